"""Encodings of shared memory (LDS on AMD)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from ..attribute_values import Attribute, OpaqueAttr
from ..linear_layout import LinearLayout, is_power_of_two
from .base import (
    Bases,
    Encoding,
    Fields,
    Ints,
    Names,
    SharedEncoding,
    ordered_parameters,
    print_bases,
    print_ints,
)
from .conversion import (
    cga_units,
    combine_cta_and_cga,
    dim_names,
    fit_below,
    identity_nd,
    matrix_order,
    shape_per_cta,
)

if TYPE_CHECKING:
    from ..aliases import AliasTable
    from ..value_parser import ValueParser

__all__ = [
    "AmdRotatingSharedEncoding",
    "PaddedSharedEncoding",
    "PartitionedSharedEncoding",
    "SharedLinearEncoding",
    "SharedMemorySpace",
    "SwizzledSharedEncoding",
]


@dataclass(frozen=True, slots=True)
class SharedMemorySpace(Attribute):
    """``#ttg.shared_memory``."""

    def _text(self, aliases: AliasTable | None) -> str:
        return "#ttg.shared_memory"


@dataclass(frozen=True, slots=True)
class _Swizzled(SharedEncoding):
    """Base of the encodings that swizzle two dimensions.

    Attributes:
        vec: Consecutive elements that stay together.
        per_phase: Rows that are swizzled alike.
        max_phase: Number of different phases.
        order: Dimensions, the fastest varying first.
        cga_layout: Basis per bit of the CTA in its cluster.
    """

    vec: int
    per_phase: int
    max_phase: int
    order: Ints
    cga_layout: Bases = ()

    @classmethod
    def _of(cls, fields: Fields) -> _Swizzled:
        return cls(
            fields.number("vec", 0),
            fields.number("perPhase", 0),
            fields.number("maxPhase", 0),
            *fields.order_and_cga(),
        )

    def _parameters(self, aliases: AliasTable | None) -> list[tuple[str, str]]:
        return [
            ("vec", str(self.vec)),
            ("perPhase", str(self.per_phase)),
            ("maxPhase", str(self.max_phase)),
            *ordered_parameters(self.order, self.cga_layout),
        ]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.order)

    def verify(self) -> None:
        """Checks the CGA layout.

        Raises:
            VerifyError: It is wrong.
        """
        self._check_cga(self.cga_layout, self.rank)

    def _check_layout(self) -> None:
        SharedEncoding._check_layout(self)
        self._check_order(self.order)
        self._check_powers(vec=(self.vec,), perPhase=(self.per_phase,), maxPhase=(self.max_phase,))

    def phase(self, row: int) -> int:
        """The number that the columns of a row, in units of ``vec``, are XORed with."""
        return row // self.per_phase % self.max_phase

    def _layout(self, shape: Ints) -> LinearLayout:
        share = shape_per_cta(self.cga_layout, shape)
        column = self.order[0]
        if self.rank == 1:
            cta = LinearLayout.identity_1d(share[0], "offset", "dim0")
            return combine_cta_and_cga(cta, self.cga_layout, shape)
        row = self.order[1]
        bases = [(0, 1 << i) for i in range(share[column].bit_length() - 1)]
        for i in range(share[row].bit_length() - 1):
            bases.append((1 << i, self.vec * self.phase(1 << i) % share[column]))
        cta = LinearLayout.of(
            {"offset": bases}, {f"dim{row}": share[row], f"dim{column}": share[column]}
        )
        for dim in self.order[2:]:
            cta = cta * LinearLayout.identity_1d(share[dim], "offset", f"dim{dim}")
        return combine_cta_and_cga(cta, self.cga_layout, shape)


@dataclass(frozen=True, slots=True)
class SwizzledSharedEncoding(_Swizzled):
    """``#ttg.swizzled_shared``: columns are XORed with the phase of their row."""

    MNEMONIC: ClassVar[str] = "ttg.swizzled_shared"

    def verify(self) -> None:
        """Checks the order and the CGA layout.

        Raises:
            VerifyError: One of them is wrong.
        """
        self._check_order(self.order)
        self._check_cga(self.cga_layout, self.rank)


@dataclass(frozen=True, slots=True)
class AmdRotatingSharedEncoding(_Swizzled):
    """``#ttg.amd_rotating_shared``: as swizzled, with another phase for every block of rows."""

    MNEMONIC: ClassVar[str] = "ttg.amd_rotating_shared"

    def phase(self, row: int) -> int:
        """The number that the columns of a row, in units of ``vec``, are XORed with."""
        block = row // self.max_phase // self.per_phase % self.max_phase
        return row // self.per_phase % self.max_phase ^ block


@lru_cache(maxsize=1024)
def _identity_bases(shape: Ints, order: Ints, cga_layout: Bases) -> tuple[Bases, Bases]:
    """Bases of the offset and of the CTA that enumerate a shape, ``order[0]`` fastest."""
    cta = identity_nd("offset", shape_per_cta(cga_layout, shape), order)
    layout = combine_cta_and_cga(cta, cga_layout, shape)
    return layout.in_bases("offset"), layout.in_bases("block")


@dataclass(frozen=True, slots=True)
class PaddedSharedEncoding(SharedEncoding):
    """``#ttg.padded_shared``: a linear layout with padding behind every interval.

    Attributes:
        interval_padding_pairs: Interval and padding, in elements; paddings of several add up.
        offset_bases: Basis per bit of the offset without padding.
        cga_layout: Basis per bit of the CTA in its cluster, in elements.
        shape: Sizes of what the bases span.
    """

    MNEMONIC: ClassVar[str] = "ttg.padded_shared"
    interval_padding_pairs: Bases
    offset_bases: Bases
    cga_layout: Bases
    shape: Ints

    @classmethod
    def with_identity_for(
        cls,
        interval_padding_pairs: Bases,
        shape: Sequence[int],
        order: Sequence[int],
        cga_layout: Bases = (),
    ) -> PaddedSharedEncoding:
        """Enumerates a shape, the dimension ``order[0]`` fastest.

        Args:
            interval_padding_pairs: Interval and padding, in elements.
            shape: Sizes of the whole buffer.
            order: Dimensions, the fastest varying first.
            cga_layout: Basis per bit of the CTA, in units of what one CTA holds.
        """
        bases = _identity_bases(tuple(shape), tuple(order), cga_layout)
        return cls(interval_padding_pairs, *bases, tuple(shape))

    @classmethod
    def _read(cls, parser: ValueParser) -> tuple[Encoding, Names]:
        """``'<' '[' (interval ':' '+' padding),* ']' '{' parameters '}' '>'``."""
        parser.expect("<")
        parser.expect("[")
        pairs: list[Ints] = []

        def pair() -> None:
            interval = parser.integer()
            parser.expect(":")
            parser.expect("+")
            pairs.append((interval, parser.integer()))

        parser.list_of(pair, "]")
        parser.expect("{")
        fields = Fields(parser, "}")
        parser.expect(">")
        if fields.has("order"):
            order, shape = fields.ints("order"), fields.ints("shape")
            cga = fields.cga(len(order))
            if sorted(order) != list(range(len(shape))):
                parser.fail(f"expected 'order' to permute the dimensions of {shape}", fields.start)
            if not all(map(is_power_of_two, shape)):
                parser.fail(f"expected powers of two in 'shape', found {shape}", fields.start)
            return cls.with_identity_for(tuple(pairs), shape, order, cga), fields.finish()
        offset, block = fields.bases("offset"), fields.bases("block", ())
        rank = len((offset or block or ((0,),))[0])
        sizes = [1] * rank
        for basis in (*offset, *block):
            for dim, x in enumerate(basis[:rank]):
                sizes[dim] = max(sizes[dim], 1 << x.bit_length())
        return cls(tuple(pairs), offset, block, tuple(sizes)), fields.finish()

    def _body(self, aliases: AliasTable | None) -> str:
        pairs = ", ".join(f"{interval}:+{pad}" for interval, pad in self.interval_padding_pairs)
        order = self.order
        plain = PaddedSharedEncoding.with_identity_for((), self.shape, order)
        if not self.cga_layout and plain.offset_bases == self.offset_bases:
            layout = f"order = {print_ints(order)}, shape = {print_ints(self.shape)}"
        else:
            layout = (
                f"offset = {print_bases(self.offset_bases)}, block = {print_bases(self.cga_layout)}"
            )
        return f"<[{pairs}] {{{layout}}}>"

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def cga_bases(self) -> Bases:
        """The CTA bases, converted from elements to units of one CTA's share."""
        return cga_units(self.cga_layout)

    @property
    def order(self) -> Ints:
        """Dimensions in the order in which offsets move through them."""
        moved = [dim for basis in self.offset_bases for dim, x in enumerate(basis) if x]
        return tuple(dict.fromkeys([*moved, *matrix_order(self.rank)]))

    def verify(self) -> None:
        """Checks intervals, paddings and bases.

        Raises:
            VerifyError: One of them is wrong.
        """
        pairs = self.interval_padding_pairs
        if not pairs:
            self._reject("expected at least one interval with its padding")
        for interval, padding in pairs:
            self._check_powers(interval=(interval,), padding=(padding,))
        if len({interval for interval, _ in pairs}) != len(pairs):
            self._reject("expected each interval once")
        self._check_bases(self.rank, offset=self.offset_bases, CGALayout=self.cga_layout)
        for basis in self.offset_bases:
            if sum(1 for x in basis if x) > 1:
                self._reject(
                    f"expected each basis of 'offset' to move one dimension, found {basis}"
                )
        layout = self._linear()
        if tuple(size for _, size in layout.out_dims) != self.shape:
            self._reject(f"expected bases that span {list(self.shape)}")
        if not layout.is_surjective:
            self._reject("expected bases that reach every element of their shape")
        if len({*self.offset_bases}) != len(self.offset_bases) or not all(
            map(any, self.offset_bases)
        ):
            self._reject("expected bases of 'offset' that reach no element twice")

    def _check_layout(self) -> None:
        layout = self._linear()
        moving = [basis for _, bases in layout.bases for basis in bases if any(basis)]
        if len(moving) != layout.total_out_bits:
            self._reject("expected bases that reach every element of their shape once")
        for dim in range(self.rank):
            held = max((basis[dim] for basis in self.offset_bases), default=0)
            inside = [basis for basis in self.cga_layout if 0 < basis[dim] < held]
            if inside:
                # Triton takes the layout apart into that of one CTA and that of all.
                self._reject(
                    f"expected bases of 'block' beyond those of 'offset', found {inside[0]}"
                )

    def _linear(self) -> LinearLayout:
        bases = {"offset": self.offset_bases, "block": self.cga_layout}
        return LinearLayout.of(bases, dim_names(self.rank))

    def padded_offset(self, offset: int) -> int:
        """Converts an offset without padding to the offset in memory, both in elements."""
        return offset + sum(offset // i * pad for i, pad in self.interval_padding_pairs)

    def padded_size(self, elements: int) -> int:
        """Returns the size in memory of ``elements`` elements; no padding follows the last one."""
        return self.padded_offset(elements - 1) + 1

    def _layout(self, shape: Ints) -> LinearLayout:
        if any(size > ours for size, ours in zip(shape, self.shape, strict=True)):
            self._reject(f"expected a shape inside of {list(self.shape)}, found {list(shape)}")
        return fit_below(self._linear(), dict(zip(dim_names(self.rank), shape, strict=True)))


@dataclass(frozen=True, slots=True)
class SharedLinearEncoding(SharedEncoding):
    """``#ttg.shared_linear``: any linear layout from offsets to elements.

    Attributes:
        offset_bases: Basis per bit of the offset.
        block_bases: Basis per bit of the CTA in its cluster.
        alignment: Alignment of the buffer in bytes.
    """

    MNEMONIC: ClassVar[str] = "ttg.shared_linear"
    offset_bases: Bases
    block_bases: Bases = ()
    alignment: int = 16

    @classmethod
    def _read(cls, parser: ValueParser) -> tuple[Encoding, Names]:
        """``'<' '{' parameters '}' (',' 'alignment' '=' integer)? '>'``."""
        parser.expect("<")
        parser.expect("{")
        fields = Fields(parser, "}")
        alignment = 16
        if parser.accept(","):
            parser.expect("alignment")
            parser.expect("=")
            alignment = parser.integer()
        parser.expect(">")
        encoding = cls(fields.bases("offset"), fields.bases("block", ()), alignment)
        return encoding, fields.finish()

    def _body(self, aliases: AliasTable | None) -> str:
        block = f", block = {print_bases(self.block_bases)}" if self.block_bases else ""
        offset = print_bases(self.offset_bases)
        return f"<{{offset = {offset}{block}}}, alignment = {self.alignment}>"

    @property
    def rank(self) -> int | None:
        """Length of a basis; ``None`` where there is none."""
        return next((len(basis) for basis in (*self.offset_bases, *self.block_bases)), None)

    @property
    def cga_bases(self) -> Bases:
        """The block bases, converted from elements to units of one CTA's share."""
        return cga_units(self.block_bases)

    @property
    def linear_layout(self) -> LinearLayout:
        """The bases as a layout of the smallest shape that holds them."""
        bases = {"offset": self.offset_bases, "block": self.block_bases}
        return LinearLayout.of(bases, dim_names(self.rank or 1))

    def verify(self) -> None:
        """Checks the alignment and that the bases reach every element.

        Raises:
            VerifyError: One of them is wrong.
        """
        self._check_powers(alignment=(self.alignment,))
        if self.rank is None:
            self._reject("expected at least one basis")
        self._check_bases(self.rank, offset=self.offset_bases, block=self.block_bases)
        if not self.linear_layout.is_surjective:
            self._reject("expected bases that reach every element of their shape")

    def _layout(self, shape: Ints) -> LinearLayout:
        layout = self.linear_layout
        if tuple(size for _, size in layout.out_dims) != shape:
            self._reject(f"expected the shape of the bases, found {list(shape)}")
        return layout


@dataclass(frozen=True, slots=True)
class PartitionedSharedEncoding(SharedEncoding):
    """``#ttg.partitioned_shared``: a buffer in pieces over several physical partitions of LDS.

    Pieces lie along one dimension; piece p belongs to partition p % num_partitions and is number
    p // num_partitions in that partition's buffer.

    Attributes:
        num_partitions: Buffers, each in another physical partition.
        num_groups: Pieces of each buffer.
        partition_dim: The dimension that is cut.
        partition_layout: Encoding of one piece.
    """

    MNEMONIC: ClassVar[str] = "ttg.partitioned_shared"
    num_partitions: int
    num_groups: int
    partition_dim: int
    partition_layout: Attribute

    @classmethod
    def _of(cls, fields: Fields) -> PartitionedSharedEncoding:
        return cls(
            fields.number("numPartitions"),
            fields.number("numGroups"),
            fields.number("partitionDim", 0),
            fields.attribute("partitionLayout"),
        )

    def _parameters(self, aliases: AliasTable | None) -> list[tuple[str, str]]:
        return [
            ("numPartitions", str(self.num_partitions)),
            ("numGroups", str(self.num_groups)),
            ("partitionDim", str(self.partition_dim)),
            ("partitionLayout", self.partition_layout.print(aliases)),
        ]

    @property
    def rank(self) -> int | None:
        """Number of dimensions of a piece."""
        layout = self.partition_layout
        return layout.rank if isinstance(layout, Encoding) else None

    @property
    def num_pieces(self) -> int:
        """Pieces of the whole buffer."""
        return self.num_partitions * self.num_groups

    @property
    def cga_bases(self) -> Bases:
        """The CTA bases of a piece."""
        layout = self.partition_layout
        return layout.cga_bases if isinstance(layout, SharedEncoding) else ()

    def piece_shape(self, shape: Sequence[int]) -> Ints:
        """Sizes of one piece of a buffer of this shape.

        Raises:
            VerifyError: The shape cannot be cut into so many pieces.
        """
        size = shape[self.partition_dim] if self.partition_dim < len(shape) else 0
        if size < self.num_pieces or size % self.num_pieces:
            self._reject(
                f"expected a multiple of {self.num_pieces} elements in dimension "
                f"{self.partition_dim}, found the shape {list(shape)}"
            )
        pieces = list(shape)
        pieces[self.partition_dim] //= self.num_pieces
        return tuple(pieces)

    def pieces(self, shape: Sequence[int]) -> Bases:
        """Lists the numbers of the pieces in each partition's buffer, in memory order.

        With 2 partitions and 4 groups the first buffer holds 0, 2, 4, 6, the second 1, 3, 5, 7.

        Raises:
            VerifyError: A buffer of this shape cannot be cut into so many pieces.
        """
        self.verify_shape(shape)
        count = self.num_partitions
        return tuple(tuple(range(p, self.num_pieces, count)) for p in range(count))

    def verify_shape(self, shape: Sequence[int]) -> None:
        """Checks that a buffer of this shape can be cut into such pieces.

        Raises:
            VerifyError: It cannot, or the encoding of a piece is one for another shape.
        """
        pieces = self.piece_shape(shape)
        layout = self.partition_layout
        spans: Ints = pieces
        if isinstance(layout, PaddedSharedEncoding):
            spans = layout.shape
        elif isinstance(layout, SharedLinearEncoding):
            spans = tuple(size for _, size in layout.linear_layout.out_dims)
        if spans != pieces:
            self._reject(
                f"expected a 'partitionLayout' of the shape {list(pieces)}, which a piece has, "
                f"found one of {list(spans)}"
            )

    def verify(self) -> None:
        """Checks counts, the dimension and the encoding of a piece.

        Raises:
            VerifyError: One of them is wrong.
        """
        if self.num_partitions < 2:
            self._reject(f"expected 2 or more as 'numPartitions', found {self.num_partitions}")
        self._check_powers(numPartitions=(self.num_partitions,), numGroups=(self.num_groups,))
        layout = self.partition_layout
        layout.verify()
        if not isinstance(layout, (SharedEncoding, OpaqueAttr)):
            self._reject(f"expected a shared encoding as 'partitionLayout', found '{layout}'")
        if self.rank is not None and self.partition_dim >= self.rank:
            self._reject(
                f"expected 'partitionDim' below the rank {self.rank}, found {self.partition_dim}"
            )

    def _check_layout(self) -> None:
        if isinstance(self.partition_layout, PartitionedSharedEncoding):
            self._reject("expected a 'partitionLayout' that is not partitioned itself")

    def _layout(self, shape: Ints) -> LinearLayout:
        layout = self.partition_layout
        if not isinstance(layout, SharedEncoding):
            self._reject(f"expected a 'partitionLayout' that triton-ext knows, found '{layout}'")
        self.verify_shape(shape)
        name = f"dim{self.partition_dim}"
        return (
            layout.to_linear_layout(self.piece_shape(shape))
            * LinearLayout.identity_1d(self.num_partitions, "partition", name)
            * LinearLayout.identity_1d(self.num_groups, "offset", name)
        )
