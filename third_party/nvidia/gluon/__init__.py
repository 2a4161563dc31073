"""im2col for Gluon kernels on NVIDIA: the host's operations, or what replaces them before 3.8."""
