"""Convolutions in Gluon for sm_90: warp-specialised kernels and what they are made of.

Importing these modules needs a Triton whose Gluon can have im2col loads, and no interpreter:
``host.capabilities()["im2col-gluon"]``.  Nothing here is imported with ``triton_ext.ops``.
"""

from __future__ import annotations

__all__: list[str] = []
