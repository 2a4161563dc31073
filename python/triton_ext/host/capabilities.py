"""Capabilities of the installed Triton, by name.

One row per feature that some supported release lacks.  Dispatch, refusals, test skips, ``doctor``
and ``docs/support.md`` all read this table, so they cannot disagree.  A feature is probed, not
derived from a version number, wherever it leaves a trace that can be probed.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from triton_ext.errors import UnsupportedError
from triton_ext.host.detect import SUPPORTED, detect
from triton_ext.host.dots import INSTRUCTION_BITS, least_dot_depth
from triton_ext.host.patch_points import takes_key

__all__ = ["Capability", "capabilities", "features", "require"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One feature on the installed Triton.

    Attributes:
        name: Stable name, used by code and tests.
        summary: What a user gets.
        available: Whether this host has it.
        reason: Why it is not available and what to install; empty where it is available.
        probed: Whether a probe of the installed Triton decided; otherwise the release's number did.
    """

    name: str
    summary: str
    available: bool
    reason: str
    probed: bool = True


def _lowers_im2col() -> bool:
    # 3.7 parses the type but crashes when it lowers a kernel that has it; the Gluon builder method
    # came with the lowering (3.8, upstream PRs 9322 and 9391).
    from triton._C.libtriton import gluon_ir

    return hasattr(gluon_ir.GluonOpBuilder, "get_tensor_descriptor_im2col_layout_type")


def _has_im2col() -> bool:
    # Before 3.8 the copy is made in LLVM IR; a newer release has to lower it itself.
    return _lowers_im2col() or detect().release < (3, 8)


def _interprets() -> bool:
    try:
        numpy = importlib.metadata.version("numpy")
    except importlib.metadata.PackageNotFoundError:
        return False
    # 3.6 turns one-element arrays into numbers, which numpy refuses from 2.4 on.
    return detect().release >= (3, 7) or tuple(map(int, numpy.split(".")[:2])) < (2, 4)


def _multiplies_8_of_fp32() -> bool:
    return least_dot_depth(32) <= INSTRUCTION_BITS // 32


def _gluon_builder_has(method: str) -> Callable[[], bool]:
    def probe() -> bool:
        from triton._C.libtriton import gluon_ir

        return hasattr(gluon_ir.GluonOpBuilder, method)

    return probe


def _knows_gfx1251() -> bool:
    # Each release says which GPUs have clusters; a GPU that it does not know has none.
    from triton._C import libtriton

    has_clusters = getattr(getattr(libtriton, "amd", None), "supports_multi_cta_launch", None)
    return has_clusters is not None and bool(has_clusters("gfx1251"))


@dataclass(frozen=True, slots=True)
class _ReleaseHas:
    """A probe by release, for lowerings that leave no trace outside of compiled code.

    Tests compare it with the code that each release emits (unittest/amd).
    """

    release: tuple[int, int]

    def __call__(self) -> bool:
        return detect().release >= self.release


class _ReleaseIsKnown:
    """A probe that holds for tested releases: our passes know the text of their compiles."""

    def __call__(self) -> bool:
        return detect().release <= SUPPORTED[1]


_NEEDS = "triton {{version}} {}; install {} or newer: pip install 'triton>={}'"

# For a newer release than those tested: its probe failed for an unknown reason.
_LAST = ".".join(map(str, SUPPORTED[1]))
_NEWER = (
    "triton {version} is newer than the releases that are tested, and {name} was not found in it; "
    f"upgrade triton-ext, or pip install 'triton~={_LAST}.0'"
)

_TABLE: tuple[tuple[str, str, Callable[[], bool], str], ...] = (
    (
        "stages-hook-key",
        "an installed plugin enters Triton's cache key",
        takes_key,
        "triton {version} leaves the stages hook out of its cache key; "
        "install 3.7 or newer: pip install 'triton>=3.7'",
    ),
    (
        "interpreter",
        "kernels run in Triton's interpreter (TRITON_INTERPRET=1)",
        _interprets,
        "the interpreter of triton {version} needs numpy (for 3.6 one older than 2.4): "
        "pip install 'numpy<2.4'",
    ),
    (
        "im2col",
        "hardware im2col loads in @triton.jit kernels (NVIDIA, sm_90 and newer)",
        _has_im2col,
        "triton {version} cannot lower a TMA im2col copy; "
        "install 3.8 or newer: pip install 'triton>=3.8'",
    ),
    (
        "im2col-copies",
        "TMA im2col copies from TTGIR to PTX (NVIDIA, sm_90 and newer)",
        _lowers_im2col,
        _NEEDS.format("lowers no TMA im2col copy itself", "3.8", "3.8"),
    ),
    (
        "im2col-gluon",
        "hardware im2col loads in Gluon kernels (NVIDIA, sm_90 and newer)",
        _has_im2col,
        _NEEDS.format("has no im2col descriptors for Gluon kernels", "3.8", "3.8"),
    ),
    (
        "wgmma-join",
        "WGMMAs of one left operand as one instruction (NVIDIA, sm_90)",
        _ReleaseIsKnown(),
        _NEWER,
    ),
    (
        "fp32-dots-of-8",
        "tl.dot over 8 columns of fp32, for steps of few channels (NVIDIA)",
        _multiplies_8_of_fp32,
        _NEEDS.format("multiplies no fewer than 16 columns of fp32", "3.8", "3.8"),
    ),
    (
        "amd-async-stores",
        "asynchronous copies from LDS to global memory (AMD, gfx1250)",
        _gluon_builder_has("create_async_copy_local_to_global"),
        _NEEDS.format("has no asynchronous copy from LDS", "3.7", "3.7"),
    ),
    (
        "amd-gfx1251",
        "kernels are compiled for gfx1251 as for gfx1250 (AMD)",
        _knows_gfx1251,
        _NEEDS.format("does not know gfx1251", "3.8", "3.8"),
    ),
    (
        "amd-tdm-rows",
        "TDM gathers and scatters (AMD, gfx1250)",
        _gluon_builder_has("create_async_tdm_gather"),
        _NEEDS.format("has no TDM gather and scatter", "3.7", "3.7"),
    ),
    (
        "amd-tdm-intrinsic-wait",
        "waits for TDM operations are counted in instructions (AMD, gfx1250)",
        _ReleaseHas((3, 7)),
        _NEEDS.format("takes the number of a TDM wait for instructions", "3.7", "3.7"),
    ),
    (
        "amd-tdm-rows-by-layout",
        "a TDM gather or scatter of rows that do not lie side by side is split (AMD, gfx1250)",
        _ReleaseHas((3, 8)),
        _NEEDS.format("issues gathers as if all rows of a thread lay side by side", "3.8", "3.8"),
    ),
    (
        "amd-masked-loads-predicated",
        "masked asynchronous loads are issued by every wave (AMD, gfx1250)",
        _ReleaseHas((3, 8)),
        _NEEDS.format("branches around masked asynchronous loads", "3.8", "3.8"),
    ),
    (
        "amd-async-marks",
        "LLVM counts the instructions of asynchronous copies (AMD, gfx942 and gfx950)",
        _ReleaseHas((3, 8)),
        _NEEDS.format("has no asynchronous marks", "3.8", "3.8"),
    ),
    (
        "amd-partitioned-shared",
        "LDS buffers in pieces over several physical partitions (AMD, gfx1250)",
        _gluon_builder_has("get_partitioned_shared_layout"),
        _NEEDS.format("does not know #ttg.partitioned_shared", "3.8", "3.8"),
    ),
    (
        "amd-partition-placement",
        "Triton's allocation knows physical partitions of LDS from its start (AMD, gfx1250)",
        _ReleaseHas((3, 9)),
        _NEEDS.format("may allocate partitioned values forever", "3.9", "3.9"),
    ),
    (
        "ttg-barrier",
        "a barrier of the CTA says which memory it orders (ttg.barrier)",
        _ReleaseHas((3, 7)),
        _NEEDS.format("has only barriers for all memory (gpu.barrier)", "3.7", "3.7"),
    ),
    (
        "arrival-barriers",
        "an arrival at an mbarrier contains a barrier of the CTA (NVIDIA)",
        _ReleaseHas((3, 8)),
        _NEEDS.format("arrives at mbarriers when the first thread does", "3.8", "3.8"),
    ),
    (
        "ordering-barriers",
        "ordered atomic operations, and waits for WGMMAs of several warp groups, contain a barrier",
        _ReleaseHas((3, 9)),
        _NEEDS.format("orders the accesses of one thread only", "3.9", "3.9"),
    ),
    (
        "reductions-by-conversion",
        "reductions across warps are lowered to conversions of layouts",
        _ReleaseHas((3, 8)),
        _NEEDS.format("keeps an element for each warp in shared memory", "3.8", "3.8"),
    ),
    (
        "broadcasts-by-shuffle",
        "what every warp holds is handed on by shuffles, without shared memory",
        _ReleaseHas((3, 9)),
        _NEEDS.format("hands it on through shared memory", "3.9", "3.9"),
    ),
    (
        "nvidia-matrix-rows",
        "matrix instructions that transpose take rows that conflict least in shared memory",
        _ReleaseHas((3, 9)),
        _NEEDS.format("takes rows in the order of registers", "3.9", "3.9"),
    ),
    (
        "amd-tdm-fused",
        "several TDM loads in one instruction (AMD, gfx1250)",
        _gluon_builder_has("create_async_tdm_fused_copy_global_to_local"),
        _NEEDS.format("has no fused TDM load", "3.9", "3.9"),
    ),
)


@lru_cache(maxsize=1)
def capabilities() -> dict[str, Capability]:
    """Returns every capability of the installed Triton, by name."""
    version, is_newer = detect().version, detect().release > SUPPORTED[1]
    table = {}
    for name, summary, probe, reason in _TABLE:
        available = probe()
        reason = _NEWER if is_newer else reason
        table[name] = Capability(
            name=name,
            summary=summary,
            available=available,
            reason="" if available else reason.format(version=version, name=name),
            probed=not isinstance(probe, (_ReleaseHas, _ReleaseIsKnown)) and probe is not takes_key,
        )
    return table


def features() -> frozenset[str]:
    """Returns the names of the capabilities that the installed Triton has."""
    return frozenset(name for name, found in capabilities().items() if found.available)


def require(name: str) -> None:
    """Refuses by name what the installed Triton lacks.

    Raises:
        UnsupportedError: The capability is not available; the text says which release has it.
    """
    capability = capabilities()[name]
    if not capability.available:
        raise UnsupportedError(capability.reason)
