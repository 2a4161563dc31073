"""Passes over TTGIR for AMD GPUs."""
