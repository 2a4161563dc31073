"""Describes GPUs and host lowerings of asynchronous operations.

Two things decide how many instructions an asynchronous operation becomes.  :class:`Target` is the
GPU: its counters, the widths of direct copies between global memory and LDS, whether it has the
tensor data mover (TDM).  :class:`Lowering` is the host: for example when it puts a branch around a
copy.  Neither contains version numbers; whoever runs a pass derives the lowering from the host's
capabilities (``triton_ext.host.capabilities``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from triton_ext.errors import UnsupportedError
from triton_ext.ir import Module

__all__ = ["Counter", "Direction", "Lowering", "Queue", "Target"]


class Counter(Enum):
    """A hardware counter of a wave's instructions in flight."""

    VMCNT = "vmcnt"
    CP_ASYNC = "cp.async groups"
    ASYNCCNT = "asynccnt"
    TENSORCNT = "tensorcnt"


class Direction(Enum):
    """Direction of an asynchronous copy."""

    LOAD = "load"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Queue:
    """Instructions of a wave that retire in issue order.

    Attributes:
        counter: Their counter.
        direction: Which of the counter's instructions; ``None`` if its loads and stores retire in
            order among each other.
    """

    counter: Counter
    direction: Direction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A GPU with asynchronous copies.

    Attributes:
        arch: Its name, ``"gfx1250"``.
        threads_per_wave: 64 or 32.
        copy_counter: Counter of copies by address (``ttg.async_copy_global_to_local``,
            ``amdg.buffer_load_to_local``, ``amdg.async_copy_local_to_global``).
        directions_retire_apart: Whether loads and stores of that counter retire out of order
            against each other (CDNA5 ISA, on ASYNCcnt).
        load_widths: Supported bits per lane of a copy to LDS.
        store_widths: Supported bits per lane of a copy from LDS; empty if there are none.
        has_tdm: Whether it has the tensor data mover and its counter, TENSORcnt.
        waits_count_groups: Whether the hardware counts groups (NVIDIA's ``cp.async``), so that a
            wait names a number of groups; tokens have no effect.
        max_wait: The largest number of a wait on any of the counters; they have 6 bits.
    """

    arch: str
    threads_per_wave: int
    copy_counter: Counter
    directions_retire_apart: bool
    load_widths: tuple[int, ...]
    store_widths: tuple[int, ...] = ()
    has_tdm: bool = False
    waits_count_groups: bool = False
    max_wait: int = 63

    @classmethod
    def of(cls, arch: str) -> Target:
        """Returns the GPU of a name.

        Args:
            arch: ``"gfx950"``; a suffix such as ``-strict`` changes nothing here.

        Raises:
            UnsupportedError: It has no asynchronous copies to LDS, or is unknown.
        """
        found = _TARGETS.get(arch.partition("-")[0])
        if found is None:
            raise UnsupportedError(
                f"expected a GPU with asynchronous copies to LDS ({', '.join(_TARGETS)}), "
                f"found '{arch}'"
            )
        return found

    @staticmethod
    def is_known_without(arch: str) -> bool:
        """Returns whether a GPU, one of RDNA, is known to have no asynchronous copies to LDS."""
        return _WITHOUT.fullmatch(arch.partition("-")[0]) is not None

    @classmethod
    def of_module(cls, module: Module) -> Target:
        """Returns the GPU of a module, by its attribute ``ttg.target``.

        For an NVIDIA GPU it covers ``cp.async``: groups in order, and no counter.

        Raises:
            VerifyError: The module has no valid ``ttg.target``.
            UnsupportedError: The GPU has no asynchronous copies to LDS.
        """
        text = module.op.attributes.get("ttg.target", "").strip('"')
        backend, _, arch = text.partition(":")
        if backend == "cuda":
            return _cp_async(f"cuda:{arch}")
        if backend != "hip":
            module.op.fail(f"expected 'ttg.target' such as \"hip:gfx1250\", found '{text}'")
        return cls.of(arch)

    @property
    def lanes_have_addresses(self) -> bool:
        """Returns whether each lane has its own LDS address; else a wave writes one run."""
        return self.copy_counter is Counter.ASYNCCNT

    def copy_queue(self, direction: Direction) -> Queue:
        """Returns the queue of copies by address."""
        return Queue(self.copy_counter, direction if self.directions_retire_apart else None)

    @property
    def tdm_queue(self) -> Queue:
        """Returns the queue of the tensor data mover, whose loads and stores retire in order."""
        return Queue(Counter.TENSORCNT)

    def clamp(self, count: int) -> int:
        """Returns ``count``, limited to the largest number of a wait."""
        return min(count, self.max_wait)


def _cdna(arch: str, *widths: int) -> Target:
    """Returns a CDNA GPU: copies share VMcnt with ordinary loads, none is from LDS."""
    return Target(
        arch=arch,
        threads_per_wave=64,
        copy_counter=Counter.VMCNT,
        directions_retire_apart=False,
        load_widths=widths,
    )


def _cp_async(arch: str) -> Target:
    """Returns an NVIDIA GPU with groups of copies (PTX ISA, cp.async.wait_group)."""
    return Target(
        arch=arch,
        threads_per_wave=32,
        copy_counter=Counter.CP_ASYNC,
        directions_retire_apart=False,
        load_widths=(32, 64, 128),
        waits_count_groups=True,
    )


def _cdna5(arch: str) -> Target:
    return Target(
        arch=arch,
        threads_per_wave=32,
        copy_counter=Counter.ASYNCCNT,
        directions_retire_apart=True,
        load_widths=(32, 64, 128),
        store_widths=(8, 32, 64, 128),
        has_tdm=True,
    )


_TARGETS: Final[dict[str, Target]] = {
    target.arch: target
    for target in (
        _cdna("gfx942", 32),
        _cdna("gfx950", 32, 128),
        _cdna5("gfx1250"),
        _cdna5("gfx1251"),
    )
}
_WITHOUT: Final = re.compile(r"gfx(10|11)\d[0-9a-f]|gfx120[0-9a-f]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """How a host lowers asynchronous operations; the defaults are safe on every host.

    Attributes:
        masked_loads_branch: Whether a fully masked wave branches around a copy to LDS on gfx1250.
        masked_stores_branch: Whether it branches around a copy from LDS.
        rows_split_at_runs: Whether one gather or scatter instruction takes only rows that are
            contiguous in the index tensor, or as many as fit (wrong results if they are not
            contiguous); ``None`` if unknown.
        async_marks: Whether waits of gfx942 and gfx950 become LLVM's asynchronous marks, which
            count groups: LLVM then computes the number of instructions itself.  Marks use only the
            number of a wait, not its tokens.
        has_tdm_intrinsic_wait: Whether ``amdg.async_tdm_intrinsic_wait`` exists.  If not, the
            number of ``amdg.async_tdm_wait`` counts instructions.
    """

    masked_loads_branch: bool = True
    masked_stores_branch: bool = True
    rows_split_at_runs: bool | None = None
    async_marks: bool = False
    has_tdm_intrinsic_wait: bool = False

    @classmethod
    def of(cls, features: frozenset[str] | None) -> Lowering:
        """Returns the lowering of a host.

        Args:
            features: Names of its capabilities; ``None`` for an unknown host, for which only what
                is safe on every host is assumed.
        """
        if features is None:
            # A host without the counted TDM wait refuses it, so no error goes unnoticed.
            return cls(has_tdm_intrinsic_wait=True)
        return cls(
            masked_loads_branch="amd-masked-loads-predicated" not in features,
            rows_split_at_runs="amd-tdm-rows-by-layout" in features,
            async_marks="amd-async-marks" in features,
            has_tdm_intrinsic_wait="amd-tdm-intrinsic-wait" in features,
        )
