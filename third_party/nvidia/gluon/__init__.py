"""im2col for Gluon kernels on NVIDIA, on top of the host's own operations (3.8 and newer)."""
