"""Analyses of NVIDIA GPUs."""
