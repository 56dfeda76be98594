"""Pure tensor functions: plane rotations (givens), maps onto orthogonal matrices (skew), norms."""
