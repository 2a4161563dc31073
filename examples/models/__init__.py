"""Whole networks with this package's convolutions: inference, training, on one GPU and many."""
