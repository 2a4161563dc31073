"""Compiles the kernels of ``triton-ext doctor --selftest``, in child processes.

``python -m triton_ext.selftest NAME...`` runs checks and prints a line of JSON for each.  Whoever
starts it survives a Triton that ends the process.
"""
