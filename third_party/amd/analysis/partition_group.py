"""Finds the values that must change their encoding together with an allocation in LDS.

An encoding occurs in the type of a buffer, of every view of it and of the tensor descriptors that
TDM copies it with, wherever control flow carries them.  A *group* is the smallest set of
allocations and of such values that is closed under

1. views: ``ttg.memdesc_index``, ``ttg.memdesc_subslice``, ``ttg.memdesc_trans`` of a buffer;
2. TDM loads: descriptor and buffer have the same encoding;
3. descriptors: ``amdg.update_tensor_descriptor`` keeps the encoding of its operand;
4. control flow: values passed on by ``scf.for``, ``scf.if``, ``scf.while``, ``arith.select`` and by
   the captures and results of ``ttg.warp_specialize``;

and whose ends are ``ttg.local_alloc``, ``ttg.local_dealloc``, ``tt.make_tensor_descriptor``, a
kernel's descriptor arguments, and the operations that move tensors: ``ttg.local_load``,
``ttg.local_store``.  Triton 3.8 and 3.9 lower these operations for a partitioned encoding.  A group
with any other user is left alone, with the reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from triton_ext.analysis.alias_sets import is_buffer
from triton_ext.ir import Block, Module, Operation, OpResult, Value
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.dialects import scf, ttg
from triton_ext.ir.encodings import SharedEncoding
from triton_ext.ir.functions import CALLS, FUNCTIONS, visibility_of
from triton_ext.ir.types import MemDescType
from triton_ext.ir.values import BlockArgument

from ..dialect import amdg

__all__ = [
    "CARRIERS",
    "BufferGroup",
    "Trouble",
    "buffer_groups",
    "feeds_a_dot",
    "flow_links",
]

_TDM_LOAD: Final = amdg.AsyncTdmCopyGlobalToLocalOp.NAME
_UPDATE: Final = amdg.UpdateTensorDescriptorOp.NAME
_DOTS: Final = frozenset({"tt.dot", "tt.dot_scaled"})
_DOT_OPERANDS: Final = 2
#: Operations between a load and the dot that keep a tensor a dot operand.
_KEEPERS: Final = frozenset(
    {"tt.trans", "tt.reshape", "tt.fp_to_fp", "tt.bitcast", ttg.ConvertLayoutOp.NAME}
)
#: Operations at which an encoding starts or ends.
_ENDS: Final = frozenset(
    {
        ttg.LocalAllocOp.NAME,
        ttg.LocalDeallocOp.NAME,
        ttg.LocalLoadOp.NAME,
        ttg.LocalStoreOp.NAME,
        "tt.make_tensor_descriptor",
    }
)
#: Operations that pass values on themselves; see :func:`flow_links`.
_LINKED: Final = frozenset(
    {"arith.select", "scf.for", "scf.if", "scf.while", ttg.WarpSpecializeOp.NAME}
)
#: Operations that pass values on to the enclosing operation.
_TERMINATORS: Final = frozenset({"scf.yield", "scf.condition", "ttg.warp_yield"})
#: Operations that pass values on.
CARRIERS: Final = _LINKED | _TERMINATORS

#: Why an operation prevents a partitioned buffer.
_REASONS: Final[Mapping[str, str]] = {
    ttg.AsyncCopyGlobalToLocalOp.NAME: "Triton cannot lower it for a buffer in partitions",
    amdg.AsyncCopyLocalToGlobalOp.NAME: "Triton cannot lower it for a buffer in partitions",
    amdg.AsyncTdmCopyLocalToGlobalOp.NAME: "TDM cannot store from a buffer in partitions",
    amdg.AsyncTdmScatterOp.NAME: "TDM cannot store from a buffer in partitions",
    amdg.AsyncTdmGatherOp.NAME: "TDM cannot gather into a buffer in partitions",
    ttg.MemDescReinterpretOp.NAME: "it reinterprets the bytes of the buffer",
    ttg.MemDescReshapeOp.NAME: "Triton aborts on a padded piece there",
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """The reason against changing a group.

    Attributes:
        op: The operation.
        reason: The reason.
    """

    op: Operation
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferGroup:
    """Buffers and descriptors that share one encoding.

    Attributes:
        allocations: The allocations, in program order.
        members: Every value of the group, with the dimension of the allocation for each of its own
            dimensions (without the leading number of buffers).
        loads: ``ttg.local_load``.
        stores: ``ttg.local_store``, and ``ttg.local_alloc`` of a tensor.
        copies: TDM loads.
        slices: ``ttg.memdesc_subslice``.
        trouble: Why the group cannot change, or ``None``.
    """

    allocations: tuple[Operation, ...]
    members: Mapping[Value, tuple[int, ...]]
    loads: tuple[Operation, ...]
    stores: tuple[Operation, ...]
    copies: tuple[Operation, ...]
    slices: tuple[Operation, ...]
    trouble: Trouble | None

    @property
    def accesses(self) -> Iterator[tuple[Operation, Value, Value]]:
        """Yields each operation that moves a tensor, the tensor and the buffer."""
        for op in self.loads:
            yield op, op.results[0], op.operands[0]
        for op in self.stores:
            buffer = op.operands[1] if op.name == ttg.LocalStoreOp.NAME else op.results[0]
            yield op, op.operands[0], buffer


def flow_links(module: Module) -> Mapping[Value, tuple[Value, ...]]:
    """Returns for each value those whose type is equal because control flow connects them."""
    links: dict[Value, list[Value]] = defaultdict(list)
    for op in module.walk():
        for same in _same_types(op):
            for value in same:
                links[value] += [other for other in same if other is not value]
    return {value: tuple(dict.fromkeys(others)) for value, others in links.items()}


def _same_types(op: Operation) -> Iterable[tuple[Value, ...]]:
    """Yields groups of values whose types an operation makes equal."""
    if op.name == "arith.select":
        yield (*op.operands[1:], op.results[0])
        return
    loop = scf.ForOp.match(op)
    if loop is not None:
        yield from zip(loop.inits, loop.iter_args, loop.yielded, loop.results, strict=True)
        return
    branch = scf.IfOp.match(op)
    if branch is not None:
        blocks = [b for b in (branch.then_block, branch.else_block) if b is not None]
        yield from zip(op.results, *map(_handed, blocks), strict=False)
        return
    repeat = scf.WhileOp.match(op)
    if repeat is not None:
        yield from zip(repeat.inits, repeat.before.args, _handed(repeat.after), strict=False)
        condition = _handed(repeat.before)[1:]
        yield from zip(condition, repeat.after.args, repeat.results, strict=False)
        return
    specialized = ttg.WarpSpecializeOp.match(op)
    if specialized is not None:
        arguments = [partition.block.args for partition in specialized.partitions]
        yield from zip(specialized.captures, *arguments, strict=False)
        yield from zip(specialized.results, _handed(specialized.default), strict=False)


def _handed(block: Block) -> tuple[Value, ...]:
    terminator = block.terminator
    return terminator.operands if terminator is not None else ()


def buffer_groups(module: Module, links: Mapping[Value, tuple[Value, ...]]) -> list[BufferGroup]:
    """Returns the groups of all allocations in LDS of a module.

    Args:
        module: The module.
        links: Its :func:`flow_links`.
    """
    types = AliasTable(module.aliases)
    groups: list[BufferGroup] = []
    seen: set[Operation] = set()
    for op in module.walk():
        if op.name == ttg.LocalAllocOp.NAME and op not in seen:
            group = _Walk(links, types).group(op)
            seen.update(group.allocations)
            groups.append(group)
    return groups


def feeds_a_dot(group: BufferGroup, links: Mapping[Value, tuple[Value, ...]]) -> bool:
    """Returns whether a value loaded from a group becomes an operand of a dot.

    Args:
        group: The group.
        links: The :func:`flow_links` of its module.
    """
    seen: set[Value] = set()
    todo: list[Value] = [op.results[0] for op in group.loads]
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        todo += links.get(value, ())
        for use in value.uses:
            if use.op.name in _DOTS:
                if use.index < _DOT_OPERANDS:
                    return True
            elif use.op.name.startswith(("arith.", "math.")) or use.op.name in _KEEPERS:
                todo += use.op.results
    return False


class _Walk:
    """Collects one group, starting at an allocation."""

    def __init__(self, links: Mapping[Value, tuple[Value, ...]], types: AliasTable) -> None:
        self.links = links
        self.types = types
        self.members: dict[Value, tuple[int, ...]] = {}
        self.todo: list[Value] = []
        self.found: dict[str, dict[Operation, None]] = defaultdict(dict)
        self.trouble: Trouble | None = None

    def group(self, allocation: Operation) -> BufferGroup:
        value = allocation.results[0]
        type_ = self.types.type(value.type)
        encoding = type_.encoding if isinstance(type_, MemDescType) else None
        rank = encoding.rank if isinstance(encoding, SharedEncoding) else None
        if rank is None:
            self._give_up(allocation, "its encoding is not known")
        self._add(value, tuple(range(rank or 0)))
        while self.todo:
            self._visit(self.todo.pop())
        found = self.found
        filled = [op for op in found[ttg.LocalAllocOp.NAME] if op.operands]
        return BufferGroup(
            allocations=tuple(found[ttg.LocalAllocOp.NAME]),
            members=self.members,
            loads=tuple(found[ttg.LocalLoadOp.NAME]),
            stores=(*found[ttg.LocalStoreOp.NAME], *filled),
            copies=tuple(found[_TDM_LOAD]),
            slices=tuple(found[ttg.MemDescSubsliceOp.NAME]),
            trouble=self.trouble,
        )

    def _give_up(self, op: Operation, reason: str) -> None:
        if self.trouble is None:
            self.trouble = Trouble(op, reason)

    def _add(self, value: Value, dims: tuple[int, ...]) -> None:
        known = self.members.get(value)
        if known is None:
            self.members[value] = dims
            self.todo.append(value)
        elif known != dims:
            self._give_up(_holder(value), "a buffer merges there with its own transpose")

    def _visit(self, value: Value) -> None:
        dims = self.members[value]
        for other in self.links.get(value, ()):
            self._add(other, dims)
        if isinstance(value, OpResult):
            self._operation(value.owner, dims, value)
        elif isinstance(value, BlockArgument) and not self.links.get(value):
            self._argument(value)
        for use in value.uses:
            self._operation(use.op, dims, value)

    def _argument(self, argument: BlockArgument) -> None:
        around = _holder(argument)
        if around.name not in FUNCTIONS:
            self._give_up(around, f"'{around.name}' passes it on in an unknown way")
        elif visibility_of(around) != "public" or is_buffer(argument):
            self._give_up(around, "it is an argument of a called function")

    def _operation(self, op: Operation, dims: tuple[int, ...], value: Value) -> None:
        copy = amdg.AsyncTdmCopyGlobalToLocalOp.match(op)
        if copy is not None and value is not copy.desc and value is not copy.buffer:
            # Its mbarrier operand.
            return
        self.found[op.name][op] = None
        if op.name in _ENDS or op.name in _LINKED:
            return
        index, cut = ttg.MemDescIndexOp.match(op), ttg.MemDescSubsliceOp.match(op)
        trans = ttg.MemDescTransOp.match(op)
        if index is not None or cut is not None or op.name == _UPDATE:
            self._add(op.operands[0], dims)
            self._add(op.results[0], dims)
        elif trans is not None:
            self._transpose(trans, dims, value)
        elif copy is not None:
            self._add(copy.desc, dims)
            self._add(copy.buffer, dims)
        elif op.name in _TERMINATORS:
            around = op.parent_op
            if around is not None and around.name not in _LINKED:
                self._give_up(around, f"'{around.name}' passes it on in an unknown way")
        elif op.name in CALLS:
            self._give_up(op, "it is passed to a function")
        else:
            self._give_up(op, f"'{op.name}' uses it: {_REASONS.get(op.name, 'that is not known')}")

    def _transpose(self, view: ttg.MemDescTransOp, dims: tuple[int, ...], value: Value) -> None:
        if len(view.order) != len(dims):
            self._give_up(view.op, "it is transposed together with the number of buffers")
        elif value is view.src:
            self._add(view.result, tuple(dims[dim] for dim in view.order))
        else:
            back = tuple(dims[view.order.index(dim)] for dim in range(len(dims)))
            self._add(view.src, back)


def _holder(value: Value) -> Operation:
    """Returns the operation that defines a value, or whose region has it as an argument."""
    if isinstance(value, OpResult):
        return value.owner
    assert isinstance(value, BlockArgument)
    return value.owner.parent_op
