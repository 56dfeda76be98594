"""Maps from free weights onto a set, each with the set's membership test. They hold under any optimiser."""
