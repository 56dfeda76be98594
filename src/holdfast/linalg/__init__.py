"""Pure tensor functions: plane rotations (givens, fourier), maps onto orthogonal matrices (skew), norms."""
