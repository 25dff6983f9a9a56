"""The Triton kernels, and the instructions that they run for each sample."""
