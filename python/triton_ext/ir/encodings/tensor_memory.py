"""Encodings of Blackwell's tensor memory.

PTX ISA, "Tensor Memory": 128 rows (lanes) of 512 columns of 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ..attribute_values import Attribute, OpaqueAttr
from ..linear_layout import LinearLayout
from .base import Bases, Fields, Ints, TensorMemory, cga_parameter
from .conversion import combine_cta_and_cga, dim_names, fit_below, identity_nd, shape_per_cta

if TYPE_CHECKING:
    from ..aliases import AliasTable

__all__ = ["TensorMemoryEncoding", "TensorMemoryScalesEncoding", "TensorMemorySpace"]


@dataclass(frozen=True, slots=True)
class TensorMemorySpace(Attribute):
    """``#ttng.tensor_memory``."""

    def _text(self, aliases: AliasTable | None) -> str:
        return "#ttng.tensor_memory"


def _read_cga(fields: Fields) -> tuple[Bases, bool]:
    """The CGA layout, and whether it is printed as counts (``CTASplitM``, hosts up to 3.7)."""
    if not fields.has("CTASplitM") and not fields.has("CTASplitN"):
        return fields.bases("CGALayout", ()), False
    counts = (fields.number("CTASplitM", 1), fields.number("CTASplitN", 1))
    bases = []
    for dim, count in enumerate(counts):
        for bit in range(max(count, 1).bit_length() - 1):
            bases.append(tuple(1 << bit if d == dim else 0 for d in range(2)))
    return tuple(bases), True


def _print_cga(bases: Bases, as_split: bool) -> list[tuple[str, str]]:
    if not as_split:
        return cga_parameter(bases)
    counts = [1 << sum(1 for basis in bases if basis[dim]) for dim in range(2)]
    return [
        (name, str(count))
        for name, count in zip(("CTASplitM", "CTASplitN"), counts, strict=True)
        if count > 1
    ]


@dataclass(frozen=True, slots=True)
class TensorMemoryEncoding(TensorMemory):
    """``#ttng.tensor_memory_encoding``: operands and results of tcgen05.mma.

    Attributes:
        block: Rows and columns of one block; blocks go along M first.
        col_stride: Distance of two elements of a row, in elements.
        cga_layout: Basis per bit of the CTA in its cluster.
        two_ctas: Whether two CTAs work on one tile (``cta_group::2``).
        fp4_padded: Whether 4-bit elements are padded to bytes.
        as_split: Whether CTAs are printed as counts (hosts up to 3.7).
    """

    MNEMONIC: ClassVar[str] = "ttng.tensor_memory_encoding"
    OPEN: ClassVar[str] = "<"
    CLOSE: ClassVar[str] = ">"
    block: Ints
    col_stride: int
    cga_layout: Bases = ()
    two_ctas: bool = False
    fp4_padded: bool = False
    as_split: bool = field(default=False, compare=False)

    @classmethod
    def _of(cls, fields: Fields) -> TensorMemoryEncoding:
        block = (fields.number("blockM"), fields.number("blockN"))
        stride = fields.number("colStride")
        cga, as_split = _read_cga(fields)
        return cls(
            block,
            stride,
            cga,
            fields.flag("twoCTAs", False),
            fields.flag("fp4Padded", False),
            as_split,
        )

    def _body(self, aliases: AliasTable | None) -> str:
        return f"<{', '.join(f'{name} = {text}' for name, text in self._parameters(aliases))}>"

    def _parameters(self, aliases: AliasTable | None) -> list[tuple[str, str]]:
        return [
            ("blockM", str(self.block[0])),
            ("blockN", str(self.block[1])),
            ("colStride", str(self.col_stride)),
            *_print_cga(self.cga_layout, self.as_split),
            *([("twoCTAs", "true")] if self.two_ctas else []),
            *([("fp4Padded", "true")] if self.fp4_padded else []),
        ]

    @property
    def rank(self) -> int:
        """Tensor memory has two dimensions."""
        return 2

    def verify(self) -> None:
        """Checks the block, the stride and the CTAs.

        Raises:
            VerifyError: One of them is wrong.
        """
        if self.block[0] not in (64, 128):
            self._reject(f"expected 'blockM' 64 or 128, found {self.block[0]}")
        self._check_powers(blockN=self.block[1:], colStride=(self.col_stride,))
        self._check_cga(self.cga_layout, 2)
        if self.two_ctas and self.block == (64, 1):
            self._reject("expected 'blockN' 2 or more with 'blockM' 64 and twoCTAs, found 1")
        if self.fp4_padded and self.col_stride != 1:
            self._reject(f"expected 'colStride' 1 with fp4Padded, found {self.col_stride}")

    def _check_layout(self) -> None:
        TensorMemory._check_layout(self)
        if self.two_ctas and (not self.cga_layout or self.cga_layout[0] != (1, 0)):
            self._reject("expected [1, 0] as the first basis of 'CGALayout' with twoCTAs")

    def _layout(self, shape: Ints) -> LinearLayout:
        share = _share(self, self.cga_layout, shape)
        if share[0] < self.block[0]:
            self._reject(
                f"expected at least {self.block[0]} rows for each CTA, found {share[0]} of the "
                f"shape {list(shape)}"
            )
        columns = min(self.block[1], share[1])
        stride = self.col_stride * (2 if self.fp4_padded else 1)
        block = LinearLayout.zeros_1d(stride, "col", "dim1") * self._rows(columns, share)
        size = dict(block.out_dims)
        cta = (
            block
            * LinearLayout.identity_1d(share[0] // size["dim0"], "col", "dim0")
            * LinearLayout.identity_1d(share[1] // size["dim1"], "col", "dim1")
        )
        cta = cta.transpose_ins(["row", "col"])
        return combine_cta_and_cga(cta, self.cga_layout, shape)

    def _rows(self, columns: int, share: Ints) -> LinearLayout:
        """One block of 128 lanes, or two of 64 rows.

        PTX ISA, "Data path layout organization" of tcgen05.mma:

        1. 128 rows take a lane each.
        2. 64 rows of one of two CTAs take the lower 64 lanes with the left half of the columns and
           the upper ones with the right half.
        3. 64 rows of a CTA by itself take the lower 16 lanes of every 32.  The other lanes hold the
           next block along M, else along N, else nothing of their own.
        """
        if self.block[0] == 128:
            return identity_nd("row", (128,), (0,)) * LinearLayout.identity_1d(
                columns, "col", "dim1"
            )
        if self.two_ctas:
            if columns < 2:
                self._reject("expected at least 2 columns for each CTA with 64 rows and twoCTAs")
            lanes = [*((1 << i, 0) for i in range(6)), (0, columns // 2)]
            columns_of_lane, size = columns // 2, (64, columns)
        else:
            more_rows, more_columns = share[0] > 64, share[1] > columns
            other = (64, 0) if more_rows else (0, columns if more_columns else 0)
            lanes = [(1, 0), (2, 0), (4, 0), (8, 0), other, (16, 0), (32, 0)]
            columns_of_lane = columns
            size = (128 if more_rows else 64, columns * (2 if other[1] else 1))
        steps = [(0, 1 << i) for i in range(columns_of_lane.bit_length() - 1)]
        names = dim_names(2)
        return LinearLayout.of({"row": lanes, "col": steps}, dict(zip(names, size, strict=True)))


@dataclass(frozen=True, slots=True)
class TensorMemoryScalesEncoding(TensorMemory):
    """``#ttng.tensor_memory_scales_encoding``: block scales of tcgen05.mma.

    Attributes:
        cga_layout: Basis per bit of the CTA in its cluster.
        block_rep_order: How blocks repeat, as printed; empty for the default.
        as_split: Whether CTAs are printed as counts (hosts up to 3.7).
    """

    MNEMONIC: ClassVar[str] = "ttng.tensor_memory_scales_encoding"
    OPEN: ClassVar[str] = "<"
    CLOSE: ClassVar[str] = ">"
    cga_layout: Bases = ()
    block_rep_order: str = ""
    as_split: bool = field(default=False, compare=False)

    @classmethod
    def _of(cls, fields: Fields) -> TensorMemoryScalesEncoding:
        cga, as_split = _read_cga(fields)
        order = fields.attribute("blockRepOrder") if fields.has("blockRepOrder") else None
        return cls(cga, order.text if isinstance(order, OpaqueAttr) else str(order or ""), as_split)

    def _body(self, aliases: AliasTable | None) -> str:
        return f"<{', '.join(f'{name} = {text}' for name, text in self._parameters(aliases))}>"

    def _parameters(self, aliases: AliasTable | None) -> list[tuple[str, str]]:
        order = [("blockRepOrder", self.block_rep_order)] if self.block_rep_order else []
        return [*_print_cga(self.cga_layout, self.as_split), *order]

    @property
    def rank(self) -> int:
        """Scales have two dimensions."""
        return 2

    def verify(self) -> None:
        """Checks the CTAs.

        Raises:
            VerifyError: They are wrong.
        """
        self._check_cga(self.cga_layout, 2)

    def _layout(self, shape: Ints) -> LinearLayout:
        if self.block_rep_order:
            self._reject(
                "expected no 'blockRepOrder': triton-ext does not know its effect on the layout"
            )
        share = _share(self, self.cga_layout, shape)
        # 32 lanes of 2 x 4 scales each; all four groups of 32 lanes hold the same.
        block = (
            LinearLayout.identity_1d(32, "row", "dim0")
            * LinearLayout.zeros_1d(4, "row", "dim0")
            * LinearLayout.identity_1d(4, "col", "dim1")
            * LinearLayout.identity_1d(2, "col", "dim0")
        )
        cta = (
            block
            * LinearLayout.identity_1d(max(1, share[0] // 64), "col", "dim0")
            * LinearLayout.identity_1d(max(1, share[1] // 4), "col", "dim1")
        )
        cta = fit_below(cta, dict(zip(dim_names(2), share, strict=True)))
        return combine_cta_and_cga(cta, self.cga_layout, shape)


def _share(encoding: TensorMemory, cga_layout: Bases, shape: Ints) -> Ints:
    """Sizes of what one CTA holds, of a shape that has something for every CTA."""
    split = shape_per_cta(cga_layout, shape)
    parts = [1 << sum(1 for basis in cga_layout if basis[dim]) for dim in range(2)]
    for size, count in zip(shape, parts, strict=True):
        if size < count:
            encoding._reject(
                f"expected at least {count} elements over {count} CTAs, "
                f"found the shape {list(shape)}"
            )
    return split
