"""GPUs: kernels in Triton, written from the same tile programs as the CPU's loops."""
