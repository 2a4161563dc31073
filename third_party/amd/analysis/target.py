"""What a GPU has, and what a host makes of an operation for it.

Two things decide how many instructions an asynchronous operation becomes.  :class:`Target` is the
GPU: its counters, the widths that it can copy directly between global memory and LDS, whether it
has the tensor data mover (TDM).  :class:`Lowering` is the host: in which cases it puts a branch
around a copy, for instance.  Neither knows a version number; a host's lowering is made from its
capabilities by whoever runs a pass (``triton_ext.host.capabilities``).
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
    """A hardware counter of instructions that a wave has in flight."""

    VMCNT = "vmcnt"
    CP_ASYNC = "cp.async groups"
    ASYNCCNT = "asynccnt"
    TENSORCNT = "tensorcnt"


class Direction(Enum):
    """Where an asynchronous operation moves data."""

    LOAD = "load"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Queue:
    """Instructions of a wave that retire in the order in which they were issued.

    Attributes:
        counter: The counter that they take part in.
        direction: Which of the counter's instructions; ``None`` where loads and stores are in order
            among each other.
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
        load_widths: Bits per lane of one instruction that copies to LDS.
        store_widths: Bits per lane of one instruction that copies from LDS; empty without any.
        has_tdm: Whether it has the tensor data mover and its counter, TENSORcnt.
        waits_count_groups: Whether the hardware itself keeps groups apart (NVIDIA's ``cp.async``),
            so that a wait names a number of them; tokens do not get that far.
        max_wait: The largest number a wait on any of the counters can hold; they have 6 bits.
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
        """The GPU of a name.

        Args:
            arch: ``"gfx950"``; a suffix such as ``-strict`` changes nothing here.

        Raises:
            UnsupportedError: It is none that has asynchronous copies to LDS.
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
        """Whether a GPU, one of RDNA, is known to have no asynchronous copies to LDS."""
        return _WITHOUT.fullmatch(arch.partition("-")[0]) is not None

    @classmethod
    def of_module(cls, module: Module) -> Target:
        """The GPU that a module was made for, by its attribute ``ttg.target``.

        An NVIDIA GPU is one as well, as far as ``cp.async`` goes: groups in order, and no counter.

        Raises:
            VerifyError: The module has no such attribute, or one that says something else.
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
        """Whether a copy to LDS has an address per lane; else a wave writes one run."""
        return self.copy_counter is Counter.ASYNCCNT

    def copy_queue(self, direction: Direction) -> Queue:
        """The queue of copies by address."""
        return Queue(self.copy_counter, direction if self.directions_retire_apart else None)

    @property
    def tdm_queue(self) -> Queue:
        """The queue of the tensor data mover, whose loads and stores retire in order."""
        return Queue(Counter.TENSORCNT)

    def clamp(self, count: int) -> int:
        """The largest number up to ``count`` that a wait can hold."""
        return min(count, self.max_wait)


def _cdna(arch: str, *widths: int) -> Target:
    """Copies share VMcnt with ordinary loads; nothing is copied from LDS."""
    return Target(
        arch=arch,
        threads_per_wave=64,
        copy_counter=Counter.VMCNT,
        directions_retire_apart=False,
        load_widths=widths,
    )


def _cp_async(arch: str) -> Target:
    """Groups of copies that are waited for by number (PTX ISA, cp.async.wait_group)."""
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
    """What a host makes of asynchronous operations; the defaults are safe on every host.

    Attributes:
        masked_loads_branch: Whether a wave that is masked out as a whole branches around a copy to
            LDS on gfx1250.
        masked_stores_branch: Whether it branches around a copy from LDS.
        rows_split_at_runs: Whether one gather or scatter instruction takes only rows that lie side
            by side in the index tensor, or as many as it has room for (a wrong result unless they
            lie so); ``None`` where that is not known.
        async_marks: Whether waits of gfx942 and gfx950 become LLVM's asynchronous marks, which
            count groups: then LLVM finds the number of instructions itself.  Marks know the number
            of a wait only; its tokens are not looked at.
        has_tdm_intrinsic_wait: Whether ``amdg.async_tdm_intrinsic_wait`` exists.  Where it does
            not, the number of ``amdg.async_tdm_wait`` is taken as one of instructions.
    """

    masked_loads_branch: bool = True
    masked_stores_branch: bool = True
    rows_split_at_runs: bool | None = None
    async_marks: bool = False
    has_tdm_intrinsic_wait: bool = False

    @classmethod
    def of(cls, features: frozenset[str] | None) -> Lowering:
        """The lowering of a host.

        Args:
            features: Names of its capabilities; ``None`` for a host that is not known, about which
                only what is safe on each of them is assumed.
        """
        if features is None:
            # A host without the counted TDM wait refuses it: nothing goes wrong unseen.
            return cls(has_tdm_intrinsic_wait=True)
        return cls(
            masked_loads_branch="amd-masked-loads-predicated" not in features,
            rows_split_at_runs="amd-tdm-rows-by-layout" in features,
            async_marks="amd-async-marks" in features,
            has_tdm_intrinsic_wait="amd-tdm-intrinsic-wait" in features,
        )
