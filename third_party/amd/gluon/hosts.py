"""The TDM module of the installed Gluon, behind one spelling.

The module is ``amd.gfx1250.tdm`` up to 3.8 and ``amd.cdna5.tdm`` from 3.9 on, which keeps the old
name.  What differs is where a copy's position and predicate stand:

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

#: The GPUs that have a tensor data mover, with the LDS that a workgroup can have (AMDGPU backend of
#: LLVM: gfx1250 and gfx1251 share FeatureAddressableLocalMemorySize327680).
LDS_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    dict.fromkeys(("gfx1250", "gfx1251"), 320 * 1024)
)

_MODULE = "triton.experimental.gluon.language.amd.{}"
#: Names of the module for gfx1250, that of the newest releases first.
_NAMES: Final = ("cdna5", "gfx1250")


def cdna5() -> Any:
    """Gluon's module for gfx1250, under the name that this release has for it."""
    for name in _NAMES:
        if importlib.util.find_spec(_MODULE.format(name)) is not None:
            return importlib.import_module(_MODULE.format(name))
    raise UnsupportedError(
        f"the Gluon of triton {detect().version} has no module for gfx1250; install 3.6 or "
        "newer: pip install 'triton>=3.6'"
    )


def tdm() -> Any:
    """Gluon's module of the tensor data mover."""
    return cdna5().tdm


def has_positions() -> bool:
    """Whether a descriptor carries the position and the predicate of a copy."""
    return hasattr(tdm(), "update_tensor_descriptor")


def needs_positions(what: str) -> None:
    """Refuses what is said of descriptors where they carry no position.

    Raises:
        UnsupportedError: This is a host before 3.8.
    """
    if not has_positions():
        raise UnsupportedError(
            f"{what}: the TDM descriptors of triton {detect().version} carry neither position nor "
            "predicate; install 3.8 or newer: pip install 'triton>=3.8'"
        )


def require_rows() -> None:
    """Refuses gathers and scatters where the host has none (before 3.7)."""
    require("amd-tdm-rows")


def require_fused() -> None:
    """Refuses fused loads where the host has none (before 3.9)."""
    require("amd-tdm-fused")


def require_partitions() -> None:
    """Refuses partitioned layouts where the host has none (before 3.8)."""
    require("amd-partitioned-shared")


def pads_since(kind: str) -> str:
    """The release from which on a copy takes padded layouts, if this one does not.

    Args:
        kind: ``load``, ``store``, ``gather`` or ``scatter``.
    """
    if kind in ("gather", "scatter") and not has_positions():
        return "3.8"
    if kind == "store" and not capabilities()["amd-tdm-rows"].available:
        return "3.7"
    return ""


def splits_rows() -> bool:
    """Whether rows that do not lie side by side are gathered by several instructions."""
    return capabilities()["amd-tdm-rows-by-layout"].available


def arch_problem(arch: str) -> str:
    """Why nothing is compiled for a GPU that has a data mover; empty where this release knows it.

    Args:
        arch: One of :data:`LDS_BYTES`.
    """
    return capabilities()["amd-gfx1251"].reason if arch == "gfx1251" else ""


def check_target(name: str, options: Any) -> None:
    """Refuses a GPU without a tensor data mover, and one that the host does not know.

    Args:
        name: The function that was called.
        options: Options of the compile.

    Raises:
        UnsupportedError: The kernel is compiled for another GPU, or the host is older than it.
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
