"""``triton-ext-partition-shared``: spreads dot operands over several physical partitions of LDS.

Before (gfx1250: waves 0 and 1 read the same 64 KiB of LDS, one after the other)::

    #shared = #ttg.padded_shared<[128:+16] {order = [1, 0], shape = [128, 64]}>
    %b = ttg.local_alloc : () -> !ttg.memdesc<2x128x64xf16, #shared, #smem, mutable>

After (they read different ones, at the same time)::

    #padded_shared = #ttg.padded_shared<[128:+8] {order = [1, 0], shape = [16, 64]}>
    #partitioned_shared = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 4,
        partitionDim = 0, partitionLayout = #padded_shared}>
    %b = ttg.local_alloc : () -> !ttg.memdesc<2x128x64xf16, #partitioned_shared, #smem, mutable>

The pass changes only encodings in types, and adds an alignment where Triton's allocation needs
one.  It re-encodes the buffers, their views and the descriptors that fill them
(:mod:`~triton_ext.backends.amd.analysis.partition_group`).  If waves that issue together read the
same rows of an operand, it also reorders the waves in the encoding of the dot
(:mod:`~triton_ext.backends.amd.analysis.partition_waves`).  The kernel reads and writes the same
elements as before.  The chosen encoding has fewer wavefronts by the model, and fits
(:mod:`~triton_ext.backends.amd.analysis.partition_choice`); otherwise nothing changes.  Each
allocation that feeds a dot gets a remark with the choice or the reason against one.

TDM loads may take more instructions, one for each piece of a wave.  Waits that count operations
remain valid; waits already converted to instructions are recounted if they still carry their
number of operations.

Safe direction: no change.  Not handled: called functions, ``ttg.async_copy_global_to_local``
(Triton cannot lower it), operands that TDM also stores from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from triton_ext.errors import PassError, VerifyError
from triton_ext.ir import Builder, Module, Operation, Value
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.dialects import ttg
from triton_ext.ir.encodings import Encoding, PartitionedSharedEncoding, SharedEncoding
from triton_ext.ir.functions import FUNCTIONS
from triton_ext.ir.types import MemDescType, TensorDescType, Type
from triton_ext.passes import Pass, PassContext, error_at

from ..analysis.lds import Lds
from ..analysis.partition_choice import Choice, GroupAccesses, Renamed, viewed
from ..analysis.partition_fit import needed_bytes
from ..analysis.partition_group import BufferGroup, buffer_groups, feeds_a_dot, flow_links
from ..analysis.partition_waves import WaveOrder, wave_orders
from ..dialect import amdg
from .align_partitioned_shared import AlignPartitionedShared
from .update_async_wait_count import UpdateAsyncWaitCount

__all__ = ["PartitionShared"]

_FEATURE: Final = "amd-partitioned-shared"
_PLACEMENT: Final = "amd-partition-placement"
_OPERATIONS: Final = "ttg.num_tdm_ops"
_TOKEN: Final = "!ttg.async.token"


@dataclass(frozen=True, slots=True)
class PartitionShared(Pass):
    """Chooses partitioned and padded encodings for the operands of dots.

    Attributes:
        arch: The GPU, ``"gfx1250"``; by default that of the module's ``ttg.target``.
        reorder_waves: Whether to allow another order of the waves of a dot.
        capacity: Bytes of LDS that the kernel may use, so that several workgroups fit; 0 for all.
    """

    name: ClassVar[str] = "triton-ext-partition-shared"

    arch: str = ""
    reorder_waves: bool = True
    capacity: int = 0

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            ValueError: The GPU is unknown, or the capacity is negative.
        """
        if self.arch and Lds.of(self.arch) is None:
            known = ", ".join(Lds.archs())
            raise ValueError(
                f"expected a GPU whose LDS is known ({known}) for option 'arch', "
                f"found '{self.arch}'"
            )
        if self.capacity < 0:
            raise ValueError(
                "expected bytes of LDS, or 0 for all of it, for option 'capacity', "
                f"found {self.capacity}"
            )

    def run(self, module: Module, context: PassContext) -> None:
        """Changes the encodings of ``module`` where the model predicts a gain.

        Raises:
            PassError: The host's Triton does not know partitioned encodings.
        """
        lds = Lds.of_module(module, self.arch)
        if lds is None or not lds.partition_bytes:
            return
        links = flow_links(module)
        groups = [group for group in buffer_groups(module, links) if feeds_a_dot(group, links)]
        plan = _Plan(module, lds, context, self.capacity or lds.bytes)
        for group in groups:
            plan.add(group)
        if not plan.known:
            return
        features = context.host_features()
        # All partition features come from the same release, 3.8 or 3.9.
        is_new = features is not None and _PLACEMENT in features
        orders = wave_orders(module, links, lowers_more=is_new) if self.reorder_waves else ()
        chosen = plan.choose(orders)
        first = plan.first_partitioned(chosen)
        if features is not None and _FEATURE not in features and first is not None:
            raise error_at(
                first,
                "the Triton that compiles this does not know #ttg.partitioned_shared, which "
                f"'{self.name}' chose here; 3.8 is the first release with it",
                "pip install 'triton>=3.8'",
            )
        plan.apply(chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """Choices that fit into LDS.

    Attributes:
        order: Order of the waves, if it changes.
        choices: New encoding by group number, for each group that changes.
        reasons: Reasons against changing the other groups.
        total: Wavefronts and instructions of all groups.
        needed: Bytes of LDS; ``None`` if nothing changes.
    """

    order: WaveOrder | None
    choices: Mapping[int, Choice]
    reasons: Mapping[int, str]
    total: tuple[int, int]
    needed: int | None


class _Plan:
    """The choices for the groups of a module."""

    def __init__(self, module: Module, lds: Lds, context: PassContext, capacity: int) -> None:
        self.module, self.lds, self.context = module, lds, context
        self.capacity = min(capacity, lds.bytes)
        self.known: list[GroupAccesses] = []
        self.before: list[Choice] = []
        self.notes: list[str] = []

    def _left(self, group: BufferGroup, reason: str, *notes: str) -> None:
        for op in group.allocations:
            name = op.results[0].name
            self.context.remark(op, f"'{name}' stays in one partition: {reason}", *notes)
            self.context.count("buffers-left")

    def add(self, group: BufferGroup) -> None:
        """Adds a group that can change; reports why if it cannot."""
        if group.trouble is not None:
            line = group.trouble.op.loc.resolve() if group.trouble.op.loc is not None else None
            where = f" ({line[0]}:{line[1]})" if line is not None else ""
            self._left(group, f"{group.trouble.reason}{where}")
            return
        accesses = GroupAccesses(group, self.module, self.lds)
        if accesses.problem:
            self._left(group, accesses.problem)
            return
        try:
            self.before.append(accesses.now({}))
        except VerifyError as error:
            self._left(group, error.message)
            return
        self.known.append(accesses)

    def choose(self, orders: Iterable[WaveOrder]) -> _Chosen:
        """Returns the best encodings that fit, with the best order of waves."""
        best = self._fitting(None, self._best({}))
        reasons: dict[str, None] = {}
        others = []
        for order in orders:
            if order.trouble is not None:
                reasons[f"the order of the waves stays: {order.trouble.reason}"] = None
                continue
            options = self._best(order.renamed)
            others.append((_total(each[0] for each in options), order, options))
        # Restricting to LDS never improves a total, so most orders need not be tried.
        for total, order, options in sorted(others, key=lambda other: other[0]):
            if total >= best.total:
                break
            found = self._fitting(order, options)
            one, other = (found, best) if found.total < best.total else (best, found)
            best = replace(one, reasons={**other.reasons, **one.reasons})
        if best.order is None:
            self.notes += reasons
        return best

    def _best(self, renamed: Renamed) -> list[list[Choice]]:
        """Returns for each group its best choice, followed by the best in fewer partitions."""
        found = []
        for accesses in self.known:
            now = accesses.now(renamed)
            choices = sorted([now, *accesses.choices(renamed)], key=lambda choice: choice.key)
            options = choices[:1]
            for choice in choices:
                if choice.partitions < options[-1].partitions and choice.key < now.key:
                    options.append(choice)
            found.append(options)
        return found

    def _gain(self, i: int, choice: Choice) -> int:
        """Returns the wavefronts that a choice saves against the present encoding and waves."""
        if choice.encoding == self.known[i].encoding:
            return 0
        return self.before[i].wavefronts - choice.wavefronts

    def _fitting(self, order: WaveOrder | None, options: list[list[Choice]]) -> _Chosen:
        """Reduces options until they fit: to fewer partitions, then to no change.

        Gives up the smallest gain first.  Leaves the module unchanged.
        """
        reasons: dict[int, str] = {}
        while True:
            best = {i: each[0] for i, each in enumerate(options) if each}
            taken = {i: choice for i, choice in best.items() if self._gain(i, choice) > 0}
            if not taken:
                return _Chosen(
                    order=None,
                    choices={},
                    reasons=reasons,
                    total=_total(self.before),
                    needed=None,
                )
            needed, missing = self._attempt(order, taken)
            if not missing:
                break
            by_gain = sorted(taken, key=lambda i: self._gain(i, taken[i]))
            given_up = next((i for i in by_gain if len(options[i]) > 1), by_gain[0])
            options[given_up] = options[given_up][1:]
            reasons[given_up] = missing
        renamed = order.renamed if order is not None else {}
        total = _total(taken.get(i) or each.now(renamed) for i, each in enumerate(self.known))
        return _Chosen(order=order, choices=taken, reasons=reasons, total=total, needed=needed)

    def _attempt(
        self, order: WaveOrder | None, choices: Mapping[int, Choice]
    ) -> tuple[int | None, str]:
        """Returns the bytes of LDS that some choices need, and why they are impossible.

        The reason is empty if they are possible.  Leaves the module unchanged.
        """
        unheard = PassContext(self.context.pass_name, self.context.host_features)
        attributes = [(op, dict(op.attributes)) for op in _aligned(self.module)]
        types = self._retype(self._types(order, choices))
        try:
            AlignPartitionedShared(arch=self.lds.arch).run(self.module, unheard)
            needed = needed_bytes(self.module, self.lds, self.context.host_features())
        except PassError as error:
            return None, error.message
        finally:
            for value, type_ in types:
                value.set_type(type_)
            for op, before in attributes:
                _set_attributes(op, before)
        if needed is None:
            return None, "the allocation of Triton up to 3.8 would not terminate"
        if needed > self.capacity:
            return needed, f"the kernel would take {needed} bytes of LDS, of {self.capacity}"
        return needed, ""

    def first_partitioned(self, chosen: _Chosen) -> Operation | None:
        """Returns the first allocation that gets a partitioned encoding."""
        for i, choice in sorted(chosen.choices.items()):
            if isinstance(choice.encoding, PartitionedSharedEncoding):
                return self.known[i].group.allocations[0]
        return None

    def apply(self, chosen: _Chosen) -> None:
        """Changes the types and reports the choices."""
        if chosen.needed is not None:
            before = needed_bytes(self.module, self.lds, self.context.host_features())
            instead = f" instead of {before}" if before is not None else ""
            self.notes.append(f"the kernel takes {chosen.needed} bytes of LDS{instead}")
            self._write(chosen)
        for i, accesses in enumerate(self.known):
            self._report(i, accesses.group, chosen)
        if chosen.choices:
            self.context.count("buffers-partitioned", len(chosen.choices))
            if any(choice.instructions > 1 for choice in chosen.choices.values()):
                _count_waits_anew(self.module, self.context)

    # ---- types

    def _types(
        self, order: WaveOrder | None, choices: Mapping[int, Choice]
    ) -> Mapping[Value, Type]:
        """Returns the new types of the tensors and of some groups' buffers and descriptors."""
        types = AliasTable(self.module.aliases)
        buffers = {
            value: _with(types.type(value.type), viewed(choice.encoding, dims))
            for i, choice in choices.items()
            for value, dims in self.known[i].group.members.items()
        }
        return {**buffers, **(order.types if order is not None else {})}

    def _retype(
        self, wanted: Mapping[Value, Type], types: AliasTable | None = None
    ) -> list[tuple[Value, str]]:
        """Sets new types of values; returns the old ones to restore them."""
        # In program order: operands determine the types that an operation does not print.
        ordered = [value for value in _values(self.module) if value in wanted]
        saved = [(value, value.type) for value in ordered]
        for value in ordered:
            value.set_type(wanted[value].print(types))
        return saved

    def _write(self, chosen: _Chosen) -> None:
        """Changes types, with aliases for their encodings, and aligns the buffers."""
        wanted = self._types(chosen.order, chosen.choices)
        for type_ in wanted.values():
            _name(self.module, _encoding_of(type_))
        self._retype(wanted, AliasTable(self.module.aliases))
        AlignPartitionedShared(arch=self.lds.arch).run(self.module, self.context)
        for op in chosen.order.filled if chosen.order is not None else ():
            _split(op)

    # ---- remarks

    def _report(self, i: int, group: BufferGroup, chosen: _Chosen) -> None:
        before, choice = self.before[i], chosen.choices.get(i)
        if choice is None:
            none = f"no encoding that is legal has fewer than its {before.wavefronts} wavefronts"
            self._left(group, chosen.reasons.get(i, none), *self.notes)
            return
        cost = f"{choice.wavefronts} wavefronts instead of {before.wavefronts}"
        notes = list(self.notes)
        if chosen.order is not None:
            new = chosen.order.new
            bases = f"warp = {[list(basis) for basis in new.warp_bases]}"
            if new.reg_bases:
                bases = f"register = {[list(basis) for basis in new.reg_bases]}, {bases}"
            notes.append(f"the waves of the dot are in another order: {bases}")
        if self.known[i].is_transposed:
            notes.append(
                "Triton reads it with transposing instructions, whose bank conflicts are not "
                "documented: these wavefronts are for element-wise reads"
            )
        if choice.instructions > 1:
            notes.append(f"each TDM load of a wave takes {choice.instructions} instructions")
        for op in group.allocations:
            name = op.results[0].name
            self.context.remark(op, f"'{name}' gets {_words(choice.encoding)}: {cost}", *notes)


def _values(module: Module) -> Iterator[Value]:
    """Yields every value before its users."""
    yield from module.op.results
    for op in module.walk():
        yield from op.results
        for region in op.regions:
            for block in region.blocks:
                yield from block.args


def _aligned(module: Module) -> Iterator[Operation]:
    """Yields the operations that :class:`AlignPartitionedShared` may change."""
    for op in module.walk():
        if op.name == ttg.LocalAllocOp.NAME or op.name in FUNCTIONS:
            yield op


def _set_attributes(op: Operation, wanted: Mapping[str, str]) -> None:
    for name in [name for name in op.attributes if name not in wanted]:
        op.remove_attribute(name)
    for name, text in wanted.items():
        if op.attributes[name] != text:
            op.set_attribute(name, text)


def _total(choices: Iterable[Choice]) -> tuple[int, int]:
    found = list(choices)
    return sum(c.wavefronts for c in found), sum(c.instructions for c in found)


def _words(encoding: SharedEncoding) -> str:
    if not isinstance(encoding, PartitionedSharedEncoding):
        return f"the encoding {encoding}"
    return (
        f"{encoding.num_partitions} partitions in {encoding.num_groups} groups along dimension "
        f"{encoding.partition_dim}, pieces {encoding.partition_layout}"
    )


def _encoding_of(type_: Type) -> object:
    name = "shared_layout" if isinstance(type_, TensorDescType) else "encoding"
    return getattr(type_, name, None)


def _with(type_: Type, encoding: SharedEncoding) -> Type:
    if isinstance(type_, TensorDescType):
        return replace(type_, shared_layout=encoding)
    assert isinstance(type_, MemDescType)
    return replace(type_, encoding=encoding)


def _name(module: Module, encoding: object) -> None:
    """Creates aliases for an encoding and its nested encodings."""
    inner = getattr(encoding, "partition_layout", getattr(encoding, "parent", None))
    if inner is not None:
        _name(module, inner)
    types = AliasTable(module.aliases)
    if not isinstance(encoding, Encoding) or types.name_of(encoding) is not None:
        return
    if encoding.MNEMONIC not in ("ttg.dot_op", "ttg.slice"):
        name = "mma" if encoding.MNEMONIC == "ttg.amd_wmma" else encoding.MNEMONIC.partition(".")[2]
        module.add_alias(f"#{name}", encoding.print(types))


def _split(op: Operation) -> None:
    """Splits an allocation with an initial tensor into an allocation and a store."""
    builder = Builder.before(op)
    made = builder.create(
        op.name, [], [op.results[0].type], text="{results} = ttg.local_alloc : () -> {results.type}"
    )
    for name, value in op.attributes.items():
        made.set_attribute(name, value)
    builder.create(
        ttg.LocalStoreOp.NAME,
        [op.operands[0], made.results[0]],
        [],
        text="ttg.local_store {0}, {1} : {0.type} -> {1.type}",
    )
    op.replace_with(made)


# ---- waits


def _count_waits_anew(module: Module, context: PassContext) -> None:
    """Recounts instruction waits that carry their number of operations."""
    again = False
    for op in list(module.walk()):
        number = op.attributes.get(_OPERATIONS)
        if op.name == amdg.TdmWaitOp.INTRINSIC and number is not None:
            again = True
            kept = {k: v for k, v in op.attributes.items() if k not in ("count", _OPERATIONS)}
            text = ", ".join(f"{k} = {v}" for k, v in sorted({**kept, "num": number}.items()))
            operands = ", ".join(f"{{{i}}}" for i in range(len(op.operands)))
            results = "{results} = " if op.results else ""
            new = Builder.before(op).create(
                amdg.TdmWaitOp.NAME,
                op.operands,
                [result.known_type or _TOKEN for result in op.results],
                text=f"{results}{amdg.TdmWaitOp.NAME} {operands} {{{text}}}",
                loc=op.loc,
            )
            op.replace_with(new)
    if again:
        UpdateAsyncWaitCount().run(module, context)
