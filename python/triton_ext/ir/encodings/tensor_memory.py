"""Encodings of Blackwell's tensor memory.

PTX ISA, "Tensor Memory": 128 rows (lanes) of 512 columns of 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ..attribute_values import Attribute, OpaqueAttr
from ..linear_layout import LinearLayout
from .base import Bases, Fields, Ints, TensorMemory, print_bases

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
        return [("CGALayout", print_bases(bases))] if bases else []
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
        if self.two_ctas and (not self.cga_layout or self.cga_layout[0] != (1, 0)):
            self._reject("expected [1, 0] as the first basis of 'CGALayout' with twoCTAs")

    def _layout(self, shape: Ints) -> LinearLayout:
        self._reject("expected another encoding: the layout of tensor memory is not known here")


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
        self._reject("expected another encoding: the layout of scales is not known here")
