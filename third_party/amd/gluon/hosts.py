"""Finds the TDM module of the installed Gluon and hides differences between releases.

The module is ``amd.gfx1250.tdm`` up to 3.8 and ``amd.cdna5.tdm`` from 3.9 on, which keeps the old
name.  Releases differ in how a copy gets its position and predicate:

=====  ================================  =====================================================
host   position                          predicate
=====  ================================  =====================================================
3.6    operands of the copy              operand of a load (i1)
3.7    operands of the copy              operand of a load (i32)
3.8+   ``update_tensor_descriptor``      ``update_tensor_descriptor``; loads and gathers
=====  ================================  =====================================================
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from triton_ext.errors import UnsupportedError
from triton_ext.host import capabilities, detect, require

__all__ = [
    "LDS_BYTES",
    "arch_problem",
    "cdna5",
    "check_target",
    "has_positions",
    "needs_positions",
    "pads_since",
    "require_fused",
    "require_partitions",
    "require_rows",
    "splits_rows",
    "tdm",
]

#: GPUs with a tensor data mover, and the LDS that a workgroup can use (AMDGPU backend of
#: LLVM: gfx1250 and gfx1251 share FeatureAddressableLocalMemorySize327680).
LDS_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    dict.fromkeys(("gfx1250", "gfx1251"), 320 * 1024)
)

_MODULE = "triton.experimental.gluon.language.amd.{}"
#: Names of the module for gfx1250, newest first.
_NAMES: Final = ("cdna5", "gfx1250")


def cdna5() -> Any:
    """Returns Gluon's module for gfx1250."""
    for name in _NAMES:
        if importlib.util.find_spec(_MODULE.format(name)) is not None:
            return importlib.import_module(_MODULE.format(name))
    raise UnsupportedError(
        f"the Gluon of triton {detect().version} has no module for gfx1250; install 3.6 or "
        "newer: pip install 'triton>=3.6'"
    )


def tdm() -> Any:
    """Returns Gluon's module of the tensor data mover."""
    return cdna5().tdm


def has_positions() -> bool:
    """Returns whether descriptors carry the position and predicate of a copy."""
    return hasattr(tdm(), "update_tensor_descriptor")


def needs_positions(what: str) -> None:
    """Raises if descriptors carry no position.

    Raises:
        UnsupportedError: The host is older than 3.8.
    """
    if not has_positions():
        raise UnsupportedError(
            f"{what}: the TDM descriptors of triton {detect().version} carry neither position nor "
            "predicate; install 3.8 or newer: pip install 'triton>=3.8'"
        )


def require_rows() -> None:
    """Raises if the host has no gathers and scatters (before 3.7)."""
    require("amd-tdm-rows")


def require_fused() -> None:
    """Raises if the host has no fused loads (before 3.9)."""
    require("amd-tdm-fused")


def require_partitions() -> None:
    """Raises if the host has no partitioned layouts (before 3.8)."""
    require("amd-partitioned-shared")


def pads_since(kind: str) -> str:
    """Returns the first release whose copies take padded layouts; empty if this one does.

    Args:
        kind: ``load``, ``store``, ``gather`` or ``scatter``.
    """
    if kind in ("gather", "scatter") and not has_positions():
        return "3.8"
    if kind == "store" and not capabilities()["amd-tdm-rows"].available:
        return "3.7"
    return ""


def splits_rows() -> bool:
    """Returns whether non-contiguous rows are gathered by several instructions."""
    return capabilities()["amd-tdm-rows-by-layout"].available


def arch_problem(arch: str) -> str:
    """Returns why the host cannot compile for a GPU with a TDM; empty if it can.

    Args:
        arch: One of :data:`LDS_BYTES`.
    """
    return capabilities()["amd-gfx1251"].reason if arch == "gfx1251" else ""


def check_target(name: str, options: Any) -> None:
    """Raises if the target has no tensor data mover, or the host does not support it.

    Args:
        name: Name of the called function.
        options: Compile options.

    Raises:
        UnsupportedError: The kernel is compiled for another GPU, or the host is too old.
    """
    arch = str(getattr(options, "arch", "")).partition("-")[0]
    backend = getattr(options, "backend_name", "")
    if backend != "hip" or arch not in LDS_BYTES:
        target = arch if backend == "hip" else f"{backend} {arch}".strip()
        raise UnsupportedError(
            f"{name} needs the tensor data mover of gfx1250 (CDNA5), the target is {target}"
        )
    if problem := arch_problem(arch):
        raise UnsupportedError(f"{name}: {problem}")
