"""Where the im2col markers of a module go: forward data flow from each marker to its copies.

Properties, for each value that can hold a marker:

1. It is a marker's result, or a value that ``scf.if``, ``scf.for``, ``arith.select`` or
   ``ttg.warp_specialize`` passes on unchanged.
2. Every use of it is either one of those or the matching index of a TMA load; any other use is an
   error at the user's line, because a marker is not a number.
3. It holds one kind of marker (pixel or channel) with one number of operands.

Not covered: markers carried through ``scf.while``, unstructured control flow or a call.  They are
refused by name, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from triton_ext.ir import Module, Operation, Use, Value
from triton_ext.markers import CHANNEL, LIBRARY, PIXEL, kind_of
from triton_ext.passes import error_at

from ..dialect.ttng import TmaLoad

# Operand index of a TMA load at which a marker may stand; operand 0 is the descriptor.
_INDEX: Final = {PIXEL: 1, CHANNEL: 2}

__all__ = ["MarkerFlow", "MarkerKind", "carrier_targets", "find_markers", "marker_kind"]


@dataclass(frozen=True, slots=True)
class MarkerKind:
    """Kind of a marker: the position that it stands for.

    Attributes:
        symbol: ``PIXEL`` or ``CHANNEL``.
        arity: Number of operands it carries.
    """

    symbol: str
    arity: int

    def __str__(self) -> str:
        what = "start pixel" if self.symbol == PIXEL else "channel and offsets"
        return f"{what} of {self.arity} values"


@dataclass(frozen=True, slots=True)
class MarkerFlow:
    """The result of the analysis.

    Attributes:
        markers: The marker operations, in program order.
        kinds: Every value that can hold a marker, with its kind.
        loads: The TMA loads whose two indices are markers, in program order.
    """

    markers: tuple[Operation, ...]
    kinds: dict[Value, MarkerKind]
    loads: tuple[TmaLoad, ...]

    @classmethod
    def of(cls, module: Module) -> MarkerFlow:
        """Analyses ``module``.

        Raises:
            PassError: A marker is used as a number, never meets a load, meets one of another kind,
                or takes a way that is not covered.
        """
        markers = find_markers(module)
        kinds: dict[Value, MarkerKind] = {}
        reached: dict[Operation, set[int]] = {}
        for marker in markers:
            kind = marker_kind(marker)
            assert kind is not None, "find_markers returns markers only"
            values, loads = _closure(marker, kind)
            if marker.results[0].uses and not loads:
                raise error_at(
                    marker, "this im2col position never meets a load: use it in load_im2col"
                )
            for value in values:
                known = kinds.setdefault(value, kind)
                if known != kind:
                    raise error_at(marker, f"a {kind} meets a {known} in one value")
            for load in loads:
                reached.setdefault(load, set()).add(_INDEX[kind.symbol])
        return cls(markers, kinds, tuple(_matched(op, found) for op, found in reached.items()))


def _closure(marker: Operation, kind: MarkerKind) -> tuple[list[Value], list[Operation]]:
    """Returns every value that a marker can reach, and every load that it reaches."""
    values: dict[Value, None] = {}
    loads: dict[Operation, None] = {}
    todo: list[Value] = [marker.results[0]]
    while todo:
        value = todo.pop()
        if value in values:
            continue
        values[value] = None
        for use in value.uses:
            targets = carrier_targets(use)
            if targets is not None:
                todo.extend(targets)
            elif TmaLoad.match(use.op) is not None and use.index == _INDEX[kind.symbol]:
                loads[use.op] = None
            else:
                if use.op.name == "tt.descriptor_load":
                    raise error_at(
                        use.op,
                        "this module is TTIR: an im2col position goes to 'tt.descriptor_load', and "
                        "the pass runs on TTGIR, where it goes to "
                        "'ttng.async_tma_copy_global_to_local'",
                    )
                raise error_at(
                    use.op,
                    f"an im2col position ({kind}) is used by {use.op.name!r}: "
                    "it is not a number and can only be passed to a load",
                )
    return list(values), list(loads)


def _matched(op: Operation, found: set[int]) -> TmaLoad:
    load = TmaLoad.match(op)
    if load is None or found != set(_INDEX.values()):
        raise error_at(op, "only one of the two indices of this load comes from load_im2col")
    return load


def find_markers(module: Module) -> tuple[Operation, ...]:
    """Returns the marker operations of a module, in program order."""
    return tuple(op for op in module.walk() if marker_kind(op) is not None)


def marker_kind(op: Operation) -> MarkerKind | None:
    """Returns the kind of a marker, or ``None`` if ``op`` is not a marker."""
    if op.name != "tt.extern_elementwise":
        return None
    if op.attributes.get("libname", "").strip('"') != LIBRARY:
        return None
    symbol = op.attributes.get("symbol", "").strip('"')
    kind = kind_of(symbol)
    if not kind:
        raise error_at(
            op, f"unknown marker {symbol!r}: it was made by another version of triton-ext"
        )
    for index, operand in enumerate(op.operands):
        if operand.known_type not in (None, "i32"):
            raise error_at(
                op,
                f"operand {index} of an im2col position has the type {operand.known_type!r}; "
                "positions are of 'i32' values",
            )
    return MarkerKind(kind, len(op.operands))


def carrier_targets(use: Use) -> tuple[Value, ...] | None:
    """Returns the values that a use passes its value on to, or ``None`` if it passes on nothing."""
    op, index = use.op, use.index
    if op.name == "arith.select" and index > 0:
        return tuple(op.results)
    if op.name == "scf.for" and index >= 3:
        # Operands: lower bound, upper bound, step, inits; block arguments: induction variable, ...
        return (op.regions[0].blocks[0].args[index - 2], op.results[index - 3])
    if op.name == "ttg.warp_specialize":
        # Region 0 is the default partition; it sees the captured values themselves.
        return tuple(region.blocks[0].args[index] for region in op.regions[1:])
    if op.name == "scf.yield":
        parent = op.parent_op
        if parent is not None and parent.name == "scf.if":
            return (parent.results[index],)
        if parent is not None and parent.name == "scf.for":
            return (parent.regions[0].blocks[0].args[index + 1], parent.results[index])
    return None
