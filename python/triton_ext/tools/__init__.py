"""Command line tools: ``triton-ext`` and ``triton-opt``.  Standard library only."""
