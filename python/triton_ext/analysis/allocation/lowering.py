"""Host differences in the lowering through shared memory, as far as they affect sizes.

Releases differ in two ways (compared with four of them by unittest/analysis/test_scratch_host.py):

* ``reductions-by-conversion`` (3.8): a reduction across warps is a series of layout conversions;
  before it took an element for each warp.  From the same release on, conversions for AMD know the
  banks of the GPU and which lanes it serves together.
* ``broadcasts-by-shuffle`` (3.9): shuffles distribute data that every warp holds: in conversions
  whose source all warps hold, and for the results of atomics.  From the same release on, gfx1250
  serves lanes in order.  For gfx942, gfx950, gfx10 and gfx11 the set of lanes varies in a way that
  is not modelled: a size is known if all observed sets agree, which is nearly always.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass
from typing import Final, Literal

from .swizzling import LD_ST, MATRIX, MATRIX_TRANSPOSED, Swizzling

__all__ = ["Lowering"]

Vendor = Literal["nvidia", "amd", "any"]


@dataclass(frozen=True, slots=True)
class _Amd:
    """Triton's model of the LDS of an AMD GPU.

    Attributes:
        banks: Number of banks of 4 bytes.
        lanes: Lanes that a load of 16 bytes serves together; empty for the first ones.
        varies: Whether 3.9 uses one of several sets of lanes.
    """

    banks: int = 32
    lanes: tuple[int, ...] = ()
    varies: bool = False


# The first matching pattern counts; a GPU without one is like an unnamed GPU.
_AMD: Final = (
    (re.compile(r"gfx942|gfx1[01]\d\d"), _Amd(32, (0, 1, 4), varies=True)),
    (re.compile(r"gfx950"), _Amd(64, (0, 1, 3, 4), varies=True)),
    (re.compile(r"gfx125\d"), _Amd(64, (0, 1, 3, 4))),
)
_LDMATRIX: Final = 75
_STMATRIX: Final = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """The host's choices that decide scratch sizes.

    Attributes:
        vendor: Vendor of the lowering; ``any`` for the generic one, which knows no GPU.
        arch: ``"90"`` or ``"gfx950"``.
        reduces_by_conversion: See above.
        shuffles_broadcasts: See above.
    """

    vendor: Vendor
    arch: str = ""
    reduces_by_conversion: bool = True
    shuffles_broadcasts: bool = True

    @classmethod
    def of(cls, target: str, features: Set[str] | None) -> tuple[Lowering, ...]:
        """Returns the lowerings that a module may go through.

        Args:
            target: ``"cuda:90"``, ``"hip:gfx950"``; anything else for the generic one.
            features: Capabilities of the host; ``None`` if unknown.

        Returns:
            One; for an unknown host that of each release that differs.
        """
        kind, _, arch = target.partition(":")
        vendor: Vendor = "nvidia" if kind == "cuda" else "amd" if kind == "hip" else "any"
        steps = [(False, False), (True, False), (True, True)]
        if features is not None:
            by_conversion = "reductions-by-conversion" in features
            steps = [(by_conversion, "broadcasts-by-shuffle" in features)]
        return tuple(
            cls(
                vendor=vendor,
                arch=arch.partition("-")[0],
                reduces_by_conversion=by_conversion,
                shuffles_broadcasts=by_shuffle,
            )
            for by_conversion, by_shuffle in steps
        )

    def conversions(self, bits: int, *, crosses_ctas: bool = False) -> tuple[Swizzling, ...]:
        """Returns the possible swizzles of ``ttg.convert_layout``; empty if unknown.

        Args:
            bits: Element width.
            crosses_ctas: Whether a CTA reads what another one wrote.
        """
        if self.vendor != "nvidia":
            return self.exchanges()
        if not self.arch.isdigit():
            return ()
        stores, loads = [LD_ST], [LD_ST]
        tiles = [MATRIX] * (bits <= 32) + [MATRIX_TRANSPOSED] * (bits == 16)
        if int(self.arch) >= _STMATRIX:
            stores += tiles
        if int(self.arch) >= _LDMATRIX and not crosses_ctas:
            loads += tiles
        return (Swizzling(stores=tuple(stores), loads=tuple(loads)),)

    def exchanges(self) -> tuple[Swizzling, ...]:
        """Returns the swizzles of other operations that convert layouts."""
        if not self.reduces_by_conversion:
            return (Swizzling(),)
        if self.vendor != "amd":
            return (Swizzling(counts_banks=True),)
        gpu = next((gpu for name, gpu in _AMD if name.fullmatch(self.arch)), _Amd())
        first: tuple[int, ...] = ()
        ways = [(first, gpu.lanes)]
        if self.shuffles_broadcasts:
            some = (first, gpu.lanes) if gpu.varies else (first,)
            ways = [(written, addressed) for written in some for addressed in some]
        return tuple(
            Swizzling(banks=gpu.banks, counts_banks=True, addressed=addressed, written=written)
            for written, addressed in ways
        )
