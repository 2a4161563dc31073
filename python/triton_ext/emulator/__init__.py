"""Runs kernels over numpy: the TTGIR that the host compiles, one workgroup after the other.

The emulator interprets the module that the compiler goes on with and that the verifier of waits
looks at, so the three see one program.  What it is for is asynchronous copies: they take effect at
the last moment at which the hardware may still let them, and until then LDS that is being filled is
poison.  A missing wait shows on every run, not on one in a thousand.

The waves of a workgroup run in step; the partitions of ``ttg.warp_specialize`` take turns, and for
NVIDIA's GPUs what they do to shared and tensor memory has to be in order.  Tensors have their
values and no layout.  What is left out stands in ``docs/tdm-waits/2-pipelines.md`` and
``docs/gluon-conv.md``.

Needs numpy: ``pip install 'triton-ext[interpreter]'``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from triton_ext.errors import UnsupportedError

if TYPE_CHECKING:
    from .faults import EmulationError
    from .interpreter import Program

__all__ = ["EmulationError", "Program"]

_WHERE = {"EmulationError": "faults", "Program": "interpreter"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise UnsupportedError(
            "the emulator needs numpy: pip install 'triton-ext[interpreter]'"
        ) from error
