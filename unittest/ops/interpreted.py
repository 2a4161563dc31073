"""Tests with kernels in Triton's interpreter: when a file of them runs.

Whether kernels are interpreted is fixed when they are defined, so these tests live in files
``interpreter_*.py``, which ``tools/check.py --only pytest-interpreted`` runs in processes of their
own.  One file: ``TRITON_INTERPRET=1 python -m pytest unittest/ops/interpreter_kernels.py``.
"""

from __future__ import annotations

import importlib.util
import os

__all__ = ["why_not_interpreted"]


def why_not_interpreted(*, im2col: bool = False) -> str | None:
    """Returns why a file of these tests cannot run, or ``None``; to be asked before its imports.

    Args:
        im2col: Whether its kernels need a Triton that has im2col.
    """
    for name in ("torch", "numpy"):
        if importlib.util.find_spec(name) is None:
            return f"Triton's interpreter needs {name}, which is not installed"
    if os.environ.get("TRITON_INTERPRET") != "1":
        return "set TRITON_INTERPRET=1 before pytest starts"
    from triton_ext.host import capabilities

    needed = capabilities()["im2col"]
    return needed.reason if im2col and not needed.available else None
