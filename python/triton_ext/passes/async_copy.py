"""How wide the instructions of a copy from global to shared memory are, and another layout for it.

The layout in which a copy's pointers lie decides which thread copies what, and nothing else: the
buffer's layout is independent of it.  Numbered facts of a copy whose pointers have an encoding, on
every host, for both vendors; ``b`` are the bits of an element:

1. *Held*: elements side by side in one thread, in the dimension ``d`` that its registers move
   first.
2. *Known*: elements of which pointers and mask are proven to be side by side and selected together
   in ``d``.
3. *Run*: elements of a thread that lie side by side in the buffer as well; a swizzle, another order
   and padding end it.
4. The *vector* of one instruction: ``min(128 / b, held, known, run)``, a power of two.  The
   attribute ``contiguity`` stands for ``min(held, known)`` where it says more.  Of another layout
   it says something as well: what a thread held in ``d`` is side by side in memory.
5. A thread issues an instruction for each vector of its registers; repeated registers are left out.

Safe direction: a vector may be narrower than what the host emits, never wider.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

from triton_ext.analysis import AxisInfoAnalysis, consecutive_run, register_to_shared
from triton_ext.analysis.axis_info.layout import order_and_run
from triton_ext.analysis.warps import num_warps_of, threads_per_warp_of
from triton_ext.ir import Builder, LinearLayout, Module, Operation, Value, parse_type
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.dialects import ttg
from triton_ext.ir.encodings import (
    BlockedEncoding,
    DistributedEncoding,
    PaddedSharedEncoding,
    SharedEncoding,
)
from triton_ext.ir.encodings.conversion import shape_per_cta
from triton_ext.ir.types import MemDescType, TensorType
from triton_ext.passes.rematerialize import can_be_computed, rematerialized, type_with

__all__ = [
    "WIDEST_BITS",
    "AsyncCopy",
    "Facts",
    "Operands",
    "Vector",
    "async_copies",
    "blocked_for",
    "build_coalesced_encoding",
    "facts_of",
    "read_copy",
    "retarget_copy_operands_to_encoding",
    "run_of",
]

#: Bits of the widest instruction of a lane that copies.
WIDEST_BITS: Final = 128

Ints = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """Elements that one instruction copies, and the reasons why it copies no more.

    Attributes:
        size: What it copies (fact 4).
        dim: The dimension in which they lie side by side.
        widest: What the widest instruction would copy.
        held: Fact 1.
        pointers: What is proven of the pointers in that dimension.
        mask: What is proven of the mask; ``None`` without a mask.
        hint: What the attribute says of that dimension; 1 where it says nothing.
        run: Fact 3.
        instructions: Fact 5.
    """

    size: int
    dim: int
    widest: int
    held: int
    pointers: int
    mask: int | None
    hint: int
    run: int
    instructions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a copy that follow from the layouts of both sides.

    Attributes:
        dim: The dimension that the registers of a thread move first.
        held: Fact 1.
        run: Fact 3.
        registers: Registers that hold different elements.
        is_local: Whether each CTA of the cluster copies to its own shared memory.
    """

    dim: int
    held: int
    run: int
    registers: int
    is_local: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncCopy:
    """A copy from global to shared memory, and what is known of it before anything is rewritten.

    Attributes:
        op: The operation.
        registers: Its operands that lie in registers: pointers or offsets, mask, ``other``.
        attribute: Its attribute ``contiguity``.
        tensor: Type of its pointers, or of its offsets from one pointer.
        encoding: Their encoding.
        buffer: Type of the buffer.
        shared: The buffer's encoding.
        bits: Bits of an element.
        num_warps: Warps that run it.
        threads_per_warp: Threads of one of them.
        consecutive: Pointers that lie side by side, per dimension, wherever they start.
        contiguity: Contiguous elements that are aligned as a whole.
        constancy: Constancy of the mask per dimension; ``None`` without a mask.
        facts: What the layouts of both sides say.
    """

    op: Operation
    registers: tuple[Value, ...]
    attribute: int
    tensor: TensorType
    encoding: DistributedEncoding
    buffer: MemDescType
    shared: SharedEncoding
    bits: int
    num_warps: int
    threads_per_warp: int
    consecutive: Ints
    contiguity: Ints
    constancy: Ints | None
    facts: Facts

    @property
    def shape(self) -> Ints:
        """Sizes of what is copied."""
        return self.tensor.static_shape

    @property
    def share(self) -> Ints:
        """Sizes of what one CTA copies."""
        return shape_per_cta(self.shared.cga_bases, self.shape)

    @property
    def is_small(self) -> bool:
        """True if a CTA copies fewer elements than it has threads."""
        return prod(self.share) < self.num_warps * self.threads_per_warp

    @property
    def widest(self) -> int:
        """Elements of the widest instruction."""
        return max(1, WIDEST_BITS // self.bits)

    def hint(self, dim: int) -> int:
        """Elements that the attribute says to lie side by side in a dimension (fact 2)."""
        return min(self.attribute, self.facts.held) if dim == self.facts.dim else 1

    def known(self, dim: int) -> int:
        """Elements that may be copied at once in a dimension, whatever the layout (fact 2)."""
        proven = self.contiguity[dim]
        if self.constancy is not None:
            proven = min(proven, self.constancy[dim])
        return max(proven, self.hint(dim))

    def needs_no_conversion(self, encoding: DistributedEncoding) -> bool:
        """Returns whether all operands in registers can be computed in an encoding."""
        assert self.op.module is not None
        types = AliasTable(self.op.module.aliases)
        return all(can_be_computed(value, encoding, types) for value in self.registers)

    def facts_in(self, encoding: DistributedEncoding) -> Facts:
        """Returns the facts of the layouts with the pointers in an encoding.

        Raises:
            VerifyError: The encoding is none for the shape.
        """
        # Encodings are looked up by all that is in them, which takes a while.
        if encoding is self.encoding:
            return self.facts
        return facts_of(encoding, self.shared, self.shape, self.buffer.full_alloc_shape)

    def vector(self, encoding: DistributedEncoding) -> Vector:
        """Returns the elements of one instruction with the pointers in an encoding.

        Raises:
            VerifyError: The encoding is none for the shape.
        """
        facts = self.facts_in(encoding)
        dim, held, run = facts.dim, facts.held, facts.run
        size = min(held, self.known(dim))
        if encoding == self.encoding:
            size = max(size, self.attribute)
        size = _power(min(size, self.widest, run))
        return Vector(
            size=size,
            dim=dim,
            widest=self.widest,
            held=held,
            pointers=self.contiguity[dim],
            mask=None if self.constancy is None else self.constancy[dim],
            hint=self.hint(dim),
            run=run,
            instructions=max(1, facts.registers // size),
        )

    def order(self) -> Ints:
        """Dimensions by the contiguity of the pointers, the last one first among equals."""
        return tuple(sorted(reversed(range(len(self.shape))), key=lambda d: -self.consecutive[d]))

    def blocked(self, size_per_thread: Sequence[int], order: Ints) -> BlockedEncoding:
        """The blocked encoding in which the threads of this copy walk in an order."""
        return blocked_for(
            self.share,
            size_per_thread,
            order,
            self.num_warps,
            self.threads_per_warp,
            self.shared.cga_bases,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """Operands of a copy.

    Attributes:
        address: Tensor of pointers, or of offsets from ``base``.
        buffer: Where the elements are copied to.
        mask: Which elements are copied.
        other: Values of the elements that are not copied.
        base: The pointer that offsets are from; ``None`` for a copy by pointers.
    """

    address: Value
    buffer: Value
    mask: Value | None = None
    other: Value | None = None
    base: Value | None = None


@lru_cache(maxsize=256)
def facts_of(
    encoding: DistributedEncoding, shared: SharedEncoding, shape: Ints, alloc_shape: Ints
) -> Facts:
    """Returns the facts about a copy that follow from the layouts of both sides.

    Args:
        encoding: Encoding of the pointers.
        shared: Encoding of the buffer.
        shape: Sizes of what is copied.
        alloc_shape: Sizes of the allocation that the buffer is a view of.

    Raises:
        VerifyError: An encoding is none for the shape.
    """
    # The copies of a kernel have few types: working these out takes longer than all else here.
    dim, held = order_and_run(encoding, shape)
    layout = register_to_shared(encoding, shared, shape, alloc_shape)
    layout = layout.without_zero_bases("register")
    run = consecutive_run(layout)
    if isinstance(shared, PaddedSharedEncoding):
        run = min(run, *(interval for interval, _ in shared.interval_padding_pairs))
    return Facts(
        dim=dim,
        held=held,
        run=run,
        registers=layout.in_dim_size("register"),
        is_local=_is_local(layout),
    )


def _is_local(layout: LinearLayout) -> bool:
    if "block" not in layout.out_dim_names:
        return True
    at = layout.out_dim_names.index("block")
    return all(
        basis[at] == (1 << bit if name == "block" and any(basis) else 0)
        for name, bases in layout.bases
        for bit, basis in enumerate(bases)
    )


def run_of(tensor: str, buffer: str) -> int:
    """Elements of a thread that lie side by side on both sides of a copy.

    Args:
        tensor: Type of its pointers, as text without aliases.
        buffer: Type of its buffer.

    Returns:
        Their number; 0 where an encoding is not known here.
    """
    source, target = parse_type(tensor), parse_type(buffer)
    if not isinstance(source, TensorType) or not isinstance(target, MemDescType):
        return 0
    encoding, shared = source.encoding, target.encoding
    if not isinstance(encoding, DistributedEncoding) or not isinstance(shared, SharedEncoding):
        return 0
    facts = facts_of(encoding, shared, source.static_shape, target.full_alloc_shape)
    return min(facts.held, facts.run)


def async_copies(module: Module, analysis: AxisInfoAnalysis) -> Iterator[AsyncCopy]:
    """The copies by pointers of a module whose layouts are known here.

    Args:
        module: The module, not changed since ``analysis`` was made.
        analysis: What is known of its values.
    """
    types = AliasTable(module.aliases)
    for op in module.walk():
        view = ttg.AsyncCopyGlobalToLocalOp.match(op)
        if view is None:
            continue
        operands = Operands(address=view.src, buffer=view.dst, mask=view.mask, other=view.other)
        copy = read_copy(op, operands, view.contiguity, analysis, types)
        if copy is not None:
            yield copy


def read_copy(
    op: Operation,
    operands: Operands,
    attribute: int,
    analysis: AxisInfoAnalysis,
    types: AliasTable,
) -> AsyncCopy | None:
    """Returns the description of a copy; ``None`` for one whose layouts are not known here.

    Args:
        op: The operation.
        operands: Its operands.
        attribute: Its attribute ``contiguity``.
        analysis: What is known of the values.
        types: Types by their text.
    """
    tensor, buffer = types.type(operands.address.type), types.type(operands.buffer.type)
    if not isinstance(tensor, TensorType) or not isinstance(buffer, MemDescType):
        return None
    encoding, shared, bits = tensor.encoding, buffer.encoding, buffer.bit_width
    known = isinstance(encoding, DistributedEncoding) and isinstance(shared, SharedEncoding)
    if not known or bits is None or bits < 8:
        return None
    assert isinstance(encoding, DistributedEncoding)
    assert isinstance(shared, SharedEncoding)
    mask, info = operands.mask, analysis.info(operands.address)
    is_offset, size = operands.base is not None, bits // 8
    # Offsets count elements, pointers bytes.
    aligned = [d if is_offset else max(1, d // size) for d in info.divisibility]
    if operands.base is not None:
        least = max(1, analysis.info(operands.base).divisibility[0] // size)
        aligned = [min(each, least) for each in aligned]
    in_registers = (operands.address, mask, operands.other)
    return AsyncCopy(
        op=op,
        registers=tuple(value for value in in_registers if value is not None),
        attribute=attribute,
        tensor=tensor,
        encoding=encoding,
        buffer=buffer,
        shared=shared,
        bits=bits,
        num_warps=num_warps_of(op),
        threads_per_warp=threads_per_warp_of(op),
        consecutive=info.contiguity,
        contiguity=tuple(map(min, info.contiguity, aligned)),
        constancy=None if mask is None else analysis.info(mask).constancy,
        facts=facts_of(encoding, shared, tensor.static_shape, buffer.full_alloc_shape),
    )


def _power(number: int) -> int:
    """The largest power of two up to a number."""
    return 1 << (number.bit_length() - 1)


# ---- encodings


def blocked_for(
    share: Sequence[int],
    size_per_thread: Sequence[int],
    order: Ints,
    num_warps: int,
    threads_per_warp: int,
    cga_layout: tuple[Ints, ...] = (),
) -> BlockedEncoding:
    """The blocked encoding whose lanes, and then warps, walk through the dimensions in an order.

    As upstream makes them: a dimension gets as many threads as it has tiles of a thread, and the
    slowest one the rest.

    Args:
        share: Sizes of what one CTA holds.
        size_per_thread: Tile of a thread.
        order: Dimensions, the fastest varying first.
        num_warps: Warps.
        threads_per_warp: Threads of one of them.
        cga_layout: Bases of the CTAs.
    """
    lanes, warps = [1] * len(order), [1] * len(order)
    left_lanes, left_warps = threads_per_warp, num_warps
    for dim in order[:-1]:
        tiles = min(left_lanes * left_warps, max(1, share[dim] // size_per_thread[dim]))
        lanes[dim] = min(tiles, left_lanes)
        warps[dim] = min(max(1, tiles // lanes[dim]), left_warps)
        left_lanes //= lanes[dim]
        left_warps //= warps[dim]
    lanes[order[-1]], warps[order[-1]] = left_lanes, left_warps
    return BlockedEncoding(tuple(size_per_thread), tuple(lanes), tuple(warps), order, cga_layout)


def build_coalesced_encoding(copy: AsyncCopy, least_bits: int = 8) -> BlockedEncoding | None:
    """The encoding with the widest instructions, whose lanes walk side by side through memory.

    Among equally wide ones it is that in whose fastest dimension the pointers are the most
    contiguous, and of those the one of the last dimension.

    Args:
        copy: The copy.
        least_bits: Bits of the narrowest instruction that the hardware has.

    Returns:
        The encoding, or ``None`` where no instruction is that narrow.
    """
    best: BlockedEncoding | None = None
    best_size = 0
    for dim in copy.order():
        size = _power(min(copy.widest, copy.known(dim), copy.share[dim]))
        order = (dim, *(other for other in copy.order() if other != dim))
        while size > best_size and size * copy.bits >= least_bits:
            tile = [1] * len(copy.shape)
            tile[dim] = size
            encoding = copy.blocked(tile, order)
            # CTAs that take turns in a dimension have no blocked encoding.
            is_local = copy.facts_in(encoding).is_local
            if is_local and (size == 1 or copy.vector(encoding).size == size):
                best, best_size = encoding, size
            size //= 2
    return best


# ---- the rewrite


def retarget_copy_operands_to_encoding(copy: AsyncCopy, encoding: DistributedEncoding) -> None:
    """Converts pointers, mask and ``other`` of a copy to an encoding, or computes them in it.

    What is known of the pointers goes into the attribute ``contiguity``: an analysis that looks at
    the converted values may find less.

    Args:
        copy: The copy.
        encoding: The encoding.
    """
    op = copy.op
    size = copy.vector(encoding).size
    for index, value in enumerate(op.operands):
        if value in copy.registers and encoding != copy.encoding:
            op.set_operand(index, _converted(op, value, encoding))
    if size > 1:
        op.set_attribute("contiguity", f"{size} : i32")
    elif "contiguity" in op.attributes:
        op.remove_attribute("contiguity")


def _converted(op: Operation, value: Value, encoding: DistributedEncoding) -> Value:
    module = op.module
    assert module is not None
    computed = rematerialized(value, encoding, op)
    if computed is not None:
        return computed
    return (
        Builder.before(op)
        .create(
            "ttg.convert_layout",
            [value],
            [type_with(value, encoding, module)],
            text="{results} = ttg.convert_layout {0} : {0.type} -> {results.type}",
        )
        .results[0]
    )
