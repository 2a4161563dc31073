"""Translates what matters of a module to Python functions, for the model of asynchronous copies.

Values that matter are integers, LDS buffers and tokens; the rest has no variable.  A region becomes
the statements of a loop or branch, a region of several blocks a loop that dispatches on the number
of the block.  A number that nobody here can compute is drawn each time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from async_machine import LOAD, STORE, TENSOR, Machine, Site, View
from triton_ext.backends.amd.dialect import amdg
from triton_ext.ir import Block, Module, Operation, Region, Value, parse_type
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.dialects import arith, scf, ttg
from triton_ext.ir.functions import FUNCTIONS, RETURNS, callee_of, symbol_of
from triton_ext.ir.types import MemDescType

__all__ = ["WAITS", "Translated", "translate"]

_INTEGER = re.compile(r"i\d+|index", re.ASCII)


def _of(view: type[Any], name: str) -> Callable[[Operation], int]:
    return lambda op: getattr(view.match(op), name)


#: The waits, and how to read the number of each.
WAITS: Mapping[str, Callable[[Operation], int]] = {
    "ttg.async_wait": _of(ttg.AsyncWaitOp, "num"),
    "amdg.async_wait": _of(amdg.AsyncWaitOp, "num_inst"),
    "amdg.async_tdm_wait": _of(amdg.TdmWaitOp, "num"),
    "amdg.async_tdm_intrinsic_wait": _of(amdg.TdmWaitOp, "num"),
}

#: Copies: queue, whether LDS is filled, and the operands that are buffers.
_COPIES: Mapping[str, tuple[int, bool]] = {
    "ttg.async_copy_global_to_local": (LOAD, True),
    "amdg.buffer_load_to_local": (LOAD, True),
    "amdg.async_copy_local_to_global": (STORE, False),
    "amdg.async_tdm_copy_global_to_local": (TENSOR, True),
    "amdg.async_tdm_fused_copy_global_to_local": (TENSOR, True),
    "amdg.async_tdm_copy_local_to_global": (TENSOR, False),
    "amdg.async_tdm_gather": (TENSOR, True),
    "amdg.async_tdm_scatter": (TENSOR, False),
}
_READS = frozenset(
    {"ttg.local_load", "ttg.local_gather", "amdg.local_load_packed_tranposed"}
    | {"amdg.local_load_packed_transposed"}
)
_WRITES = frozenset({"ttg.local_store", "ttg.local_scatter"})


def _divide(a: int, b: int) -> int:
    if b == 0:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_HELPERS: dict[str, Any] = {
    "divide": _divide,
    "rest": lambda a, b: a - b * _divide(a, b) if b else 0,
    "ceil": lambda a, b: -(-a // b) if b else 0,
    "floor": lambda a, b: a // b if b else 0,
}
_BINARY = {
    "arith.addi": "{} + {}",
    "arith.subi": "{} - {}",
    "arith.muli": "{} * {}",
    "arith.divsi": "divide({}, {})",
    "arith.divui": "divide({}, {})",
    "arith.floordivsi": "floor({}, {})",
    "arith.ceildivsi": "ceil({}, {})",
    "arith.ceildivui": "ceil({}, {})",
    "arith.remsi": "rest({}, {})",
    "arith.remui": "rest({}, {})",
    "arith.minsi": "min({}, {})",
    "arith.minui": "min({}, {})",
    "arith.maxsi": "max({}, {})",
    "arith.maxui": "max({}, {})",
    "arith.andi": "{} & {}",
    "arith.ori": "{} | {}",
    "arith.xori": "{} ^ {}",
    "arith.shli": "{} << ({} & 63)",
    "arith.shrsi": "{} >> ({} & 63)",
    "arith.shrui": "{} >> ({} & 63)",
}
_SAME = frozenset(
    {"arith.extui", "arith.trunci", "arith.index_cast", "arith.index_castui"}
    | {"llvm.intr.assume", "arith.extsi"}
)
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@dataclass(frozen=True, slots=True)
class Translated:
    """A module as Python functions.

    Attributes:
        entries: One function for each kernel.
        differs: Whether waves may differ.
        source: What was translated, for people who look for a mistake.
    """

    entries: tuple[Callable[[Machine], object], ...]
    differs: bool
    source: str


def translate(
    module: Module, emitted: Callable[[Operation], int], may_skip: Callable[[Operation], bool]
) -> Translated:
    """Translates a module.

    Args:
        module: The module.
        emitted: Instructions that a wave issues for an asynchronous operation.
        may_skip: Whether a wave may branch over some of them.
    """
    writer = _Writer(module, emitted, may_skip)
    functions = {symbol_of(op): op for op in module.walk() if op.name in FUNCTIONS}
    called = {callee_of(op) for op in module.walk() if op.name == "tt.call"}
    for name, function in functions.items():
        if function.regions:
            writer.function(writer.function_name(name or ""), function)
    source = "\n".join(writer.lines) + "\n"
    scope: dict[str, Any] = {**_HELPERS, **writer.constants}
    exec(compile(source, "<translated>", "exec"), scope)
    entries = []
    for name, function in functions.items():
        if function.regions and name not in called:
            entries.append(_entry(scope[writer.function_name(name or "")], writer, function))
    differs = any(site.may_skip and site.count for site in writer.sites)
    return Translated(tuple(entries), differs, source)


def _entry(
    function: Callable[..., object], writer: _Writer, op: Operation
) -> Callable[[Machine], object]:
    """Calls a kernel with drawn arguments."""
    makers: list[Callable[[Machine], object]] = []
    for argument in op.regions[0].blocks[0].args:
        kind = writer.kind(argument)
        if kind == "view":
            view = writer.buffer(argument)
            makers.append(lambda m, view=view: view)
        elif kind == "int":
            makers.append(Machine.flip if argument.type == "i1" else Machine.draw)
        else:
            makers.append(lambda m: None)
    return lambda m: function(m, *[maker(m) for maker in makers])


@dataclass(slots=True)
class _Writer:
    """Writes the functions.

    Attributes:
        module: What is translated.
        emitted: Instructions of an operation.
        may_skip: Whether a wave may branch over it.
        lines: What is written.
        constants: Names that the text uses.
        sites: The asynchronous operations.
    """

    module: Module
    emitted: Callable[[Operation], int]
    may_skip: Callable[[Operation], bool]
    lines: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    _names: dict[Value, str] = field(default_factory=dict)
    _kinds: dict[Value, str] = field(default_factory=dict)
    _functions: dict[str, str] = field(default_factory=dict)
    _waits: dict[Operation, int] = field(default_factory=dict)
    _depth: int = 0
    _buffers: int = 0

    @property
    def ends_open(self) -> bool:
        """Whether nobody but the kernel waits for its copies at its end; gfx9 does."""
        return "gfx125" in self.module.op.attributes.get("ttg.target", "")

    def __post_init__(self) -> None:
        waits = [op for op in self.module.walk() if op.name in WAITS]
        self._waits.update((op, number) for number, op in enumerate(waits))

    # ---- values

    def kind(self, value: Value) -> str:
        """``int``, ``view``, ``token``, or empty for a value that has no variable."""
        found = self._kinds.get(value)
        if found is None:
            type_ = value.known_type or ""
            if _INTEGER.fullmatch(type_):
                found = "int"
            elif type_.startswith("!ttg.memdesc"):
                found = "view"
            else:
                found = "token" if type_ == "!ttg.async.token" else ""
            self._kinds[value] = found
        return found

    def shape(self, value: Value) -> tuple[int, ...]:
        """Sizes of a buffer."""
        if "aliases" not in self.constants:
            self.constants["aliases"] = AliasTable(self.module.aliases)
        type_ = parse_type(value.type, self.constants["aliases"])
        if not isinstance(type_, MemDescType):
            raise TypeError(f"{value.type} is no buffer")
        return tuple(type_.static_shape)

    def buffer(self, value: Value) -> View:
        """The buffer that an operation makes: the same memory each time that it is executed."""
        self._buffers += 1
        shape = self.shape(value)
        return (self._buffers, (0,) * len(shape), shape, tuple(range(len(shape))))

    def name(self, value: Value) -> str:
        """The variable of a value; ``None`` for one that has none."""
        if not self.kind(value):
            return "None"
        return self._names.setdefault(value, f"v{len(self._names)}")

    def function_name(self, symbol: str) -> str:
        """The Python name of a function."""
        return self._functions.setdefault(symbol, f"function{len(self._functions)}")

    def constant(self, value: object, prefix: str) -> str:
        """A name for an object that the text needs."""
        name = f"{prefix}{len(self.constants)}"
        self.constants[name] = value
        return name

    # ---- lines

    def line(self, text: str) -> None:
        """Adds a line at the present depth."""
        self.lines.append("    " * self._depth + text)

    def assign(self, targets: Values, sources: Values) -> None:
        """Assigns values to variables, all at once."""
        pairs = [
            (self.name(target), self.name(source))
            for target, source in zip(targets, sources, strict=False)
            if self.kind(target)
        ]
        if pairs:
            self.line(f"{', '.join(p[0] for p in pairs)} = {', '.join(p[1] for p in pairs)}")

    def block_body(self, block: Block, end: Callable[[Operation], None]) -> None:
        """Writes the operations of a block one level deeper; the terminator goes to ``end``."""
        self._depth += 1
        self.line("pass")
        for op in block.ops:
            if op is block.terminator:
                end(op)
            else:
                self.operation(op)
        self._depth -= 1

    def function(self, name: str, op: Operation) -> None:
        """Writes a function."""
        arguments = [f"a{i}" for i in range(len(op.regions[0].blocks[0].args))]
        self.line(f"def {name}({', '.join(['m', *arguments])}):")
        self._depth += 1
        for argument, text in zip(op.regions[0].blocks[0].args, arguments, strict=True):
            if self.kind(argument):
                self.line(f"{self.name(argument)} = {text}")
        self._depth -= 1
        self.region(op.regions[0], self._return, in_loop=False)

    def _return(self, op: Operation) -> None:
        if op.name in RETURNS:
            if self.ends_open and " private " not in op.parent_op.text.partition("@")[0]:
                self.line(f"m.end({self._site(op)})")
            self.line(f"return ({''.join(self.name(value) + ', ' for value in op.operands)})")

    def region(
        self, region: Region, end: Callable[[Operation], None], *, in_loop: bool = True
    ) -> None:
        """Writes a region one level deeper.

        Args:
            region: The region.
            end: Writes what a terminator without successors does.
            in_loop: Whether leaving the region is leaving the loop that dispatches.
        """
        blocks = region.blocks
        if len(blocks) == 1:
            self.block_body(blocks[0], end)
            return
        numbers = {block: number for number, block in enumerate(blocks)}
        place = f"b{self._depth}"

        def leave(op: Operation) -> None:
            successors, operands = op.successors, op.operands
            if not successors:
                end(op)
                if in_loop:
                    self.line("break")
                return
            self.line("m.tick()")
            if op.name == "cf.cond_br":
                first = 1 + len(successors[0].args)
                self.line(f"if {self.name(operands[0])}:")
                self._jump(successors[0], operands[1:first], place, numbers)
                self.line("else:")
                self._jump(successors[1], operands[first:], place, numbers)
            else:
                self.line("if True:")
                self._jump(successors[0], operands, place, numbers)

        self._depth += 1
        self.line(f"{place} = 0")
        self.line("while True:")
        self._depth += 1
        for block, number in numbers.items():
            self.line(f"{'if' if number == 0 else 'elif'} {place} == {number}:")
            self.block_body(block, leave)
        self._depth -= 2

    def _jump(
        self, block: Block, operands: Values, place: str, numbers: Mapping[Block, int]
    ) -> None:
        self._depth += 1
        self.assign(block.args, operands)
        self.line(f"{place} = {numbers[block]}")
        self._depth -= 1

    # ---- operations

    def operation(self, op: Operation) -> None:
        """Writes an operation that ends no block."""
        special = _SPECIAL.get(op.name)
        if special is not None:
            special(self, op)
        elif op.name in _COPIES:
            self._copy(op)
        elif op.name in WAITS:
            self._wait(op)
        elif op.name in _READS or op.name in _WRITES:
            method = "read" if op.name in _READS else "write"
            views = [self.name(v) for v in op.operands if self.kind(v) == "view"]
            self.line(f"m.{method}({self._site(op)}, ({views[0]},))")
        elif any(self.kind(result) for result in op.results):
            self._value(op)

    def _site(self, op: Operation, count: int = 0, may_skip: bool = False) -> str:
        line, _ = op.source.line_and_column(op._span[1])
        site = Site(op, f"{op.name} in line {line}", count, may_skip)
        self.sites.append(site)
        return self.constant(site, "site")

    def _copy(self, op: Operation) -> None:
        queue, fills = _COPIES[op.name]
        # The barrier of a TDM copy is a buffer as well, and stands behind.
        views = [v for v in op.operands if self.kind(v) == "view"]
        if op.name != amdg.AsyncTdmFusedCopyGlobalToLocalOp.NAME:
            views = views[:1]
        site = self._site(op, self.emitted(op), self.may_skip(op))
        buffers = "".join(self.name(v) + ", " for v in views)
        call = f"m.copy({site}, ({buffers}), {fills}, {queue})"
        self.line(f"{self.name(op.results[0])} = {call}" if op.results else call)

    def _wait(self, op: Operation) -> None:
        left = WAITS[op.name](op)
        if op.name in (amdg.AsyncWaitOp.NAME, amdg.TdmWaitOp.INTRINSIC):
            kept = "ttg.num_commit_groups", "ttg.num_tdm_ops"
            texts = [op.attributes[name] for name in kept if name in op.attributes]
            left = int(texts[0].partition(":")[0]) if texts else -1
        tokens = "".join(self.name(v) + ", " for v in op.operands)
        method = "wait_transfers" if "tdm" in op.name else "wait_groups"
        self.line(f"m.{method}({self._site(op)}, {self._waits[op]}, ({tokens}), {left})")
        for result in op.results:
            self.line(f"{self.name(result)} = None")

    def _value(self, op: Operation) -> None:
        names = [self.name(operand) for operand in op.operands]
        kinds = {self.kind(operand) for operand in op.operands}
        result = self.name(op.results[0])
        if op.name in _BINARY and kinds == {"int"}:
            self.line(f"{result} = {_BINARY[op.name].format(*names)}")
        elif op.name in _SAME and kinds == {"int"}:
            minus = "-" if op.name == "arith.extsi" and op.operands[0].type == "i1" else ""
            self.line(f"{result} = {minus}{names[0]}")
        else:
            for value in op.results:
                self._unknown(value)

    def _unknown(self, value: Value) -> None:
        if self.kind(value) == "int":
            self.line(f"{self.name(value)} = m.{'flip' if value.type == 'i1' else 'draw'}()")
        elif self.kind(value) == "view":
            self.line(f"{self.name(value)} = {self.constant(self.buffer(value), 'buffer')}")
        elif self.kind(value):
            self.line(f"{self.name(value)} = None")

    def _constant(self, op: Operation) -> None:
        if self.kind(op.results[0]):
            view = arith.ConstantOp.match(op)
            number = view.value if view is not None else 0
            self.line(f"{self.name(op.results[0])} = {int(number)}")  # type: ignore[call-overload]

    def _compare(self, op: Operation) -> None:
        view = arith.CmpIOp.match(op)
        if view is not None and self.kind(view.result):
            sign = _COMPARE[view.predicate[-2:]]
            self.line(
                f"{self.name(view.result)} = {self.name(view.lhs)} {sign} {self.name(view.rhs)}"
            )

    def _select(self, op: Operation) -> None:
        if self.kind(op.results[0]):
            condition, first, second = (self.name(operand) for operand in op.operands)
            self.line(f"{self.name(op.results[0])} = {first} if {condition} else {second}")

    def _commit(self, op: Operation) -> None:
        self.line(f"{self.name(op.results[0])} = m.commit()")

    def _view(self, op: Operation) -> None:
        source, result = op.operands[0], op.results[0]
        shape = self.shape(result)
        if op.name == ttg.MemDescIndexOp.NAME:
            keeps = len(shape) == len(self.shape(source))
            text = f"index({self.name(source)}, {self.name(op.operands[1])}, {keeps})"
            self.constants["index"] = _Index()
        elif op.name == ttg.MemDescSubsliceOp.NAME:
            view = ttg.MemDescSubsliceOp.match(op)
            offsets = view.offsets if view is not None else ()
            text = f"subslice({self.name(source)}, {offsets}, {shape})"
            self.constants["subslice"] = _subslice
        elif op.name == ttg.MemDescTransOp.NAME:
            transposed = ttg.MemDescTransOp.match(op)
            order = transposed.order if transposed is not None else ()
            text = f"trans({self.name(source)}, {order})"
            self.constants["trans"] = _trans
        else:
            text = f"{self.name(source)}[:3] + (None,)"
        self.line(f"{self.name(result)} = {text}")

    # ---- regions

    def _for(self, op: Operation) -> None:
        view = scf.ForOp.match(op)
        if view is None:
            return
        self.assign(view.iter_args, view.inits)
        bounds = [self.name(v) for v in (view.lower_bound, view.upper_bound, view.step)]
        index = self.name(view.induction_variable)
        self.line(f"for {index} in range({bounds[0]}, {bounds[1]}, max(1, {bounds[2]})):")
        self._depth += 1
        self.line("m.tick()")
        self._depth -= 1
        self.block_body(view.body, lambda end: self.assign(view.iter_args, end.operands))
        self.assign(view.results, view.iter_args)

    def _if(self, op: Operation) -> None:
        for number, region in enumerate(op.regions):
            self.line("else:" if number else f"if {self.name(op.operands[0])}:")
            self.region(region, lambda end: self.assign(op.results, end.operands))

    def _while(self, op: Operation) -> None:
        view = scf.WhileOp.match(op)
        if view is None:
            return

        def condition(end: Operation) -> None:
            self.assign(op.results, end.operands[1:])
            self.line(f"if not {self.name(end.operands[0])}: break")
            self.assign(view.after.args, end.operands[1:])

        self.assign(view.before.args, view.inits)
        self.line("while True:")
        self._depth += 1
        self.line("m.tick()")
        self._depth -= 1
        self.block_body(view.before, condition)
        self.block_body(view.after, lambda end: self.assign(view.before.args, end.operands))

    def _execute(self, op: Operation) -> None:
        self.line("if True:")
        self.region(op.regions[0], lambda end: self.assign(op.results, end.operands))

    def _switch(self, op: Operation) -> None:
        choice = f"choice{self._depth}"
        self.line(f"{choice} = m.draw() % {len(op.regions)}")
        for number, region in enumerate(op.regions):
            self.line(f"if {choice} == {number}:")
            self.region(region, lambda end: self.assign(op.results, end.operands))

    def _call(self, op: Operation) -> None:
        names = "".join(", " + self.name(operand) for operand in op.operands)
        call = f"{self.function_name(callee_of(op) or '')}(m{names})"
        if any(self.kind(result) for result in op.results):
            targets = [self.name(r) if self.kind(r) else "_" for r in op.results]
            call = f"{''.join(t + ', ' for t in targets)} = {call}"
        self.line(call)

    def _warp_specialize(self, op: Operation) -> None:
        view = ttg.WarpSpecializeOp.match(op)
        if view is None:
            return
        default, *others = op.regions
        outer = f"m{self._depth}"
        for region in others:
            self.line(f"{outer} = m")
            self.line("m = m.partition()")
            self.assign(region.blocks[0].args, view.captures)
            self.line("if True:")
            self.region(region, lambda end: None)
            self.line(f"m = {outer}")
        self.line("if True:")
        self.region(default, lambda end: self.assign(op.results, end.operands))

    def _nothing(self, op: Operation) -> None:
        for result in op.results:
            self._unknown(result)


#: What is assigned to, and from.
Values = tuple[Value, ...] | list[Value] | tuple[Any, ...]

_SPECIAL: Mapping[str, Callable[[_Writer, Operation], None]] = {
    "arith.constant": _Writer._constant,
    "arith.cmpi": _Writer._compare,
    "arith.select": _Writer._select,
    "scf.for": _Writer._for,
    "scf.if": _Writer._if,
    "scf.while": _Writer._while,
    "scf.execute_region": _Writer._execute,
    "scf.index_switch": _Writer._switch,
    "tt.call": _Writer._call,
    "tt.reduce": _Writer._nothing,
    "tt.scan": _Writer._nothing,
    "tt.map_elementwise": _Writer._nothing,
    "ttg.async_commit_group": _Writer._commit,
    "ttg.memdesc_index": _Writer._view,
    "ttg.memdesc_subslice": _Writer._view,
    "ttg.memdesc_trans": _Writer._view,
    "ttg.memdesc_reshape": _Writer._view,
    "ttg.memdesc_reinterpret": _Writer._view,
    "ttg.warp_specialize": _Writer._warp_specialize,
}


# ---- views of buffers, at run time


class _Index:
    """``ttg.memdesc_index``; remembers its answers, which repeat in every schedule."""

    def __init__(self) -> None:
        self.known: dict[tuple[View, int], View] = {}

    def __call__(self, view: View, index: int, keeps: bool) -> View:
        found = self.known.get((view, index))
        if found is None:
            buffer, low, high, dims = view
            if dims is None:
                return view
            first = dims[0]
            start = low[first] + index
            found = (
                buffer,
                (*low[:first], start, *low[first + 1 :]),
                (*high[:first], start + 1, *high[first + 1 :]),
                dims if keeps else dims[1:],
            )
            self.known[view, index] = found
        return found


def _subslice(view: View, offsets: tuple[int, ...], shape: tuple[int, ...]) -> View:
    buffer, low, high, dims = view
    if dims is None:
        return view
    new_low, new_high = list(low), list(high)
    for dim, offset, size in zip(dims, offsets, shape, strict=True):
        new_low[dim] = low[dim] + offset
        new_high[dim] = new_low[dim] + size
    return (buffer, tuple(new_low), tuple(new_high), dims)


def _trans(view: View, order: tuple[int, ...]) -> View:
    buffer, low, high, dims = view
    return (buffer, low, high, None if dims is None else tuple(dims[i] for i in order))
