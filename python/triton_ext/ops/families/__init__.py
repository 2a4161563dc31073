"""Families: one way each to compute a direction of a convolution."""
