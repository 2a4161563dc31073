"""The values that a marker stands for, made available wherever the marker is.

A marker that travels through ``scf.if``, ``scf.for``, ``arith.select`` or a capture of
``ttg.warp_specialize`` is a tuple that sits in one slot: the slot is given to the tuple's first
value and slots for the others are added beside it, so no slot has to be removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from triton_ext.errors import PassError
from triton_ext.ir import BlockArgument, Builder, Operation, OpResult, Region, Value
from triton_ext.ir.dialects.arith import constant_int
from triton_ext.ir.structured import append_captures, append_if_results, append_iter_args
from triton_ext.ir.types import parse_type
from triton_ext.markers import channel_problem
from triton_ext.passes import error_at

from ..dialect.cluster import splits_pixels
from ..dialect.ttng import TmaLoad
from .cluster_start import start_of_cta
from .marker_flow import MarkerKind, marker_kind

__all__ = ["MarkerTuples", "Position", "position_of"]


@dataclass(slots=True)
class MarkerTuples:
    """The values that each marker stands for, made on demand and once.

    Attributes:
        kinds: Every value that can hold a marker.
    """

    kinds: dict[Value, MarkerKind]
    _made: dict[Value, tuple[Value, ...]] = field(default_factory=dict)

    def of(self, value: Value) -> tuple[Value, ...]:
        """Returns the values that ``value`` stands for, available wherever ``value`` is."""
        if value in self._made:
            return self._made[value]
        if isinstance(value, OpResult):
            self._expand_result(value)
        elif isinstance(value, BlockArgument):
            self._expand_argument(value)
        if value not in self._made:
            raise _untraceable(value)
        return self._made[value]

    def _expand_result(self, value: OpResult) -> None:
        op = value.owner
        if marker_kind(op) is not None:
            self._made[value] = op.operands
        elif op.name == "arith.select":
            self._expand_select(value, op)
        elif op.name == "scf.if":
            self._expand_if(value, op)
        elif op.name == "scf.for":
            self._expand_for(op, value.index)

    def _expand_argument(self, value: BlockArgument) -> None:
        op = value.owner.parent.parent if value.owner.parent is not None else None
        if op is None:
            return
        if op.name == "scf.for" and value.index > 0:
            self._expand_for(op, value.index - 1)
        elif op.name == "ttg.warp_specialize":
            self._expand_capture(op, value.index)

    def _expand_select(self, value: OpResult, op: Operation) -> None:
        condition, on_true, on_false = op.operands
        first, *rest = zip(self.of(on_true), self.of(on_false), strict=True)
        if value in self._made:
            return  # on the way round a loop
        op.set_operand(1, first[0])
        op.set_operand(2, first[1])
        builder = Builder.after(op)
        added = [
            builder.create(
                "arith.select",
                [condition, *pair],
                [value.type],
                text="{results} = arith.select {0}, {1}, {2} : " + value.type,
                loc=op.loc,
            ).results[0]
            for pair in rest
        ]
        self._made[value] = (value, *added)

    def _expand_if(self, value: OpResult, op: Operation) -> None:
        index = value.index
        yields = [_terminator(region) for region in op.regions]
        (then_first, *then_rest), (else_first, *else_rest) = (
            self.of(terminator.operands[index]) for terminator in yields
        )
        if value in self._made:
            return
        yields[0].set_operand(index, then_first)
        yields[1].set_operand(index, else_first)
        self._made[value] = (value, *append_if_results(op, then_rest, else_rest))

    def _expand_for(self, op: Operation, index: int) -> None:
        argument, result = op.regions[0].blocks[0].args[index + 1], op.results[index]
        init = op.operands[index + 3]
        if _is_placeholder(init):
            first, *rest = (init,) * self.kinds[argument].arity
        else:
            first, *rest = self.of(init)
        op.set_operand(index + 3, first)
        added = append_iter_args(op, rest)
        self._made[argument] = (argument, *(pair[0] for pair in added))
        self._made[result] = (result, *(pair[1] for pair in added))
        # Only now, because what is yielded may be the argument itself.
        terminator = _terminator(op.regions[0])
        slots = [index, *(pair[1].index for pair in added)]
        for slot, yielded in zip(slots, self.of(terminator.operands[index]), strict=True):
            terminator.set_operand(slot, yielded)

    def _expand_capture(self, op: Operation, index: int) -> None:
        first, *rest = self.of(op.operands[index])
        op.set_operand(index, first)
        for region, added in zip(op.regions[1:], append_captures(op, rest), strict=True):
            argument = region.blocks[0].args[index]
            self._made[argument] = (argument, *added)


def _terminator(region: Region) -> Operation:
    """Returns the operation that ends a region of one block and yields its values."""
    terminator = region.blocks[0].terminator
    if terminator is None:
        raise error_at(region.parent, f"a region of {region.parent.name!r} yields nothing")
    return terminator


def _is_placeholder(init: Value) -> bool:
    """Tells whether a loop-carried value starts as a value that nobody reads.

    Triton's loop flattening (FuseNestedLoops) starts a value that the first iteration always sets
    as ``ub.poison`` or zero.  User code cannot make such a start: it never holds a marker.
    """
    if not isinstance(init, OpResult):
        return False
    op = init.owner
    return op.name == "ub.poison" or (op.name == "arith.constant" and " 0 : i32" in str(op))


def _untraceable(value: Value) -> PassError:
    owner = value.owner
    op = owner if isinstance(owner, Operation) else owner.parent_op
    if op is None:
        return PassError(f"the im2col position {value.name} cannot be traced")
    return error_at(
        op,
        f"the im2col position {value.name} comes from {op.name!r} on one of its paths, "
        "not from load_im2col",
    )


@dataclass(frozen=True, slots=True)
class Position:
    """Position that a load reads.

    Attributes:
        pixel: Start pixel (n, [d, [h,]] w).
        channel: First channel.
        offsets: Filter offsets ([d, [h,]] w).
    """

    pixel: tuple[Value, ...]
    channel: Value
    offsets: tuple[Value, ...]


def position_of(
    load: TmaLoad, tuples: MarkerTuples, bases: list[list[int]], builder: Builder
) -> Position:
    """Returns what a load reads, as values in front of it.

    Args:
        load: A load whose indices are markers.
        tuples: The values of the markers.
        bases: How the CTAs of a cluster cover its block (``ttng.cga_bases``).
        builder: Where arithmetic is put that this takes.

    Raises:
        PassError: The two markers do not fit each other, the pixels are split without a walk, or
            the first channel is a constant that is not at a multiple of 16 bytes.
    """
    position, (channel, *offsets) = (tuples.of(index) for index in load.coord)
    spatial_rank = len(offsets)
    # Behind the start may stand the walk: sizes, strides, paddings (markers.PIXEL).
    pixel, walk = position[: spatial_rank + 1], position[spatial_rank + 1 :]
    if len(pixel) != spatial_rank + 1 or len(walk) not in (0, 3 * spatial_rank):
        raise error_at(
            load.op,
            f"a start pixel of {len(position)} values meets {spatial_rank} filter offsets: "
            "one offset per spatial dimension is needed",
        )
    _check_channel(load, channel)
    if splits_pixels(bases):
        pixel = start_of_cta(load, pixel, walk, bases, builder)
    return Position(pixel, channel, tuple(offsets))


def _check_channel(load: TmaLoad, channel: Value) -> None:
    number, module = constant_int(channel), load.op.module
    bits = None
    if number is not None and module is not None:
        bits = parse_type(load.result.type, module.aliases).bit_width
    problem = channel_problem(number or 0, bits // 8) if bits is not None else ""
    if problem:
        raise error_at(load.op, problem)
