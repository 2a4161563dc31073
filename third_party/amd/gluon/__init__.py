"""TDM copies for Gluon kernels on CDNA5, on top of the host's own operations."""
