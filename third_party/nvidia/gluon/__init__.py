"""im2col for Gluon kernels on NVIDIA: the host's own operations, or what takes their place before 3.8."""
