"""The shared memory encoding of TMA, wgmma and tcgen05."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..linear_layout import LinearLayout
from .base import Bases, Fields, Ints, SharedEncoding, cga_parameter
from .conversion import combine_cta_and_cga, dim_names, fit_above, matrix_order, shape_per_cta

if TYPE_CHECKING:
    from ..aliases import AliasTable

__all__ = ["NvmmaSharedEncoding"]


@dataclass(frozen=True, slots=True)
class NvmmaSharedEncoding(SharedEncoding):
    """``#ttg.nvmma_shared``: written by TMA, read by wgmma and tcgen05.

    PTX ISA, "Shared memory matrix layout" and "Swizzling modes" of asynchronous copies.  Up to 3.7
    the host ignores ``transposed`` in the linear layout of a buffer without a swizzle; since 3.8 it
    repeats elements there if the rank is above 2 and the sizes differ.  The layout here is that of
    3.8 and 3.9: ``is_invertible`` tells whether elements repeat.

    Attributes:
        swizzle_byte_width: 0, 32, 64 or 128.
        element_bitwidth: Bits of an element.
        given_rank: Number of dimensions.
        transposed: Whether the outermost dimension is the contiguous one.
        fp4_padded: Whether 4-bit elements are padded to bytes in memory.
        cga_layout: Basis per bit of the CTA in its cluster.
    """

    MNEMONIC: ClassVar[str] = "ttg.nvmma_shared"
    swizzle_byte_width: int
    element_bitwidth: int
    given_rank: int = 2
    transposed: bool = False
    fp4_padded: bool = False
    cga_layout: Bases = ()

    @classmethod
    def _of(cls, fields: Fields) -> NvmmaSharedEncoding:
        rank = fields.number("rank", 0)
        cga = fields.cga(len(fields.ints("CTAOrder")) if fields.has("CTAOrder") else rank)
        return cls(
            fields.number("swizzlingByteWidth", 0),
            fields.number("elementBitWidth", 0),
            len(cga[0]) if cga else rank or 2,
            fields.flag("transposed", False),
            fields.flag("fp4Padded", False),
            cga,
        )

    def _parameters(self, aliases: AliasTable | None) -> list[tuple[str, str]]:
        rank = [("rank", str(self.given_rank))] if self.given_rank != 2 else []
        return [
            ("swizzlingByteWidth", str(self.swizzle_byte_width)),
            ("transposed", str(self.transposed).lower()),
            ("elementBitWidth", str(self.element_bitwidth)),
            *([("fp4Padded", "true")] if self.fp4_padded else []),
            *(cga_parameter(self.cga_layout) or rank),
        ]

    @property
    def rank(self) -> int | None:
        """Number of dimensions; ``None`` if not printed, as by older hosts."""
        return self.given_rank if self.cga_layout or self.given_rank != 2 else None

    @property
    def vec(self) -> int:
        """Elements in 16 bytes, which stay contiguous."""
        return 128 // self.element_bitwidth

    @property
    def per_phase(self) -> int:
        """Number of rows with the same swizzle."""
        return 128 // self.swizzle_byte_width if self.swizzle_byte_width else 1

    @property
    def max_phase(self) -> int:
        """Number of different phases."""
        return self.swizzle_byte_width // 16 or 1

    def order(self, rank: int) -> list[int]:
        """Dimensions, the fastest varying first."""
        inner = 0 if self.transposed else rank - 1
        return [inner, *(dim for dim in matrix_order(rank) if dim != inner)]

    def verify(self) -> None:
        """Checks the CGA layout.

        Raises:
            VerifyError: It is wrong.
        """
        self._check_cga(self.cga_layout, self.given_rank)

    def _check_layout(self) -> None:
        SharedEncoding._check_layout(self)
        if self.swizzle_byte_width not in (0, 32, 64, 128):
            self._reject(
                f"expected 'swizzlingByteWidth' 0, 32, 64 or 128, found {self.swizzle_byte_width}"
            )
        if self.element_bitwidth not in (8, 16, 32, 64):
            self._reject(
                f"expected 'elementBitWidth' 8, 16, 32 or 64, found {self.element_bitwidth}"
            )
        if self.fp4_padded and (self.swizzle_byte_width, self.element_bitwidth) != (128, 8):
            self._reject("expected a swizzle of 128 bytes and elements of 8 bits with fp4Padded")

    def _layout(self, shape: Ints) -> LinearLayout:
        share = shape_per_cta(self.cga_layout, shape)
        sizes = dict(zip(dim_names(len(shape)), share, strict=True))
        block = self._tma_block(share)
        if self.swizzle_byte_width == 0:
            cta = self._plain_block(block)
        else:
            cta = self._swizzled_block(block)
        return combine_cta_and_cga(fit_above(cta, sizes), self.cga_layout, shape)

    def _tma_block(self, share: Ints) -> Ints:
        """Shape of one TMA message: at most 256 a side, the swizzle width along the rows."""
        block = [min(size, 256) for size in share]
        if self.swizzle_byte_width:
            inner = 0 if self.transposed else len(share) - 1
            wanted = 8 * self.swizzle_byte_width // self.element_bitwidth
            if self.fp4_padded:
                wanted //= 2
            if block[inner] < wanted:
                self._reject(
                    f"expected at least {wanted} elements in the contiguous dimension of "
                    f"{list(share)} for a swizzle of {self.swizzle_byte_width} bytes"
                )
            block[inner] = wanted
        return tuple(block)

    def _plain_block(self, block: Ints) -> LinearLayout:
        """The block of one TMA message without a swizzle, in memory order."""
        inward = list(range(len(block)))  # dimensions, the fastest varying last
        sizes, names = inward, inward
        if self.transposed:
            # Hosts rotate the sizes one way and the dimensions the other way.  Both agree only for
            # rank 2, and for equal sizes.
            sizes, names = [*inward[1:], 0], [inward[-1], *inward[:-1]]
        layout = LinearLayout.empty()
        for size, name in zip(reversed(sizes), reversed(names), strict=True):
            layout = layout * LinearLayout.identity_1d(block[size], "offset", f"dim{name}")
        return layout.transpose_outs([f"dim{dim}" for dim in reversed(inward)])

    def _swizzled_block(self, block: Ints) -> LinearLayout:
        """The block of one TMA message, whose outer dimensions count as rows."""
        rank = len(block)
        if rank < 2:
            self._reject("expected rank 2 or more with a swizzle")
        rows, columns = math.prod(block[:-1]), block[-1]
        if self.transposed:
            rows, columns = columns, rows
        if rows < 8:
            self._reject(f"expected at least 8 rows in {list(block)} with a swizzle, found {rows}")
        flat = fit_above(self._core_matrix(), {"dim0": rows, "dim1": columns})
        # Split both anew, the contiguous dimension fastest, then the last of the others.
        split = [(f"dim{dim}", block[dim]) for dim in self.order(rank)]
        layout = flat.transpose_outs(["dim1", "dim0"]).reshape_outs(split)
        return layout.transpose_outs(dim_names(rank))

    def _core_matrix(self) -> LinearLayout:
        """8 rows of the swizzle width."""

        def packed(column: int) -> int:
            # 16 offsets hold 8 bytes of pairs and 8 of padding, which repeats them.
            return column // 16 * 8 + column % 8 if self.fp4_padded else column

        columns = 8 * self.swizzle_byte_width // self.element_bitwidth
        bases = [(0, packed(1 << i)) for i in range(columns.bit_length() - 1)]
        for row in (1, 2, 4):
            phase = row // self.per_phase % self.max_phase
            bases.append((row, packed(self.vec * phase)))
        sizes = {"dim0": 8, "dim1": columns // 2 if self.fp4_padded else columns}
        return LinearLayout.of({"offset": bases}, sizes)
