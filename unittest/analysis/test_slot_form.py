"""Slots as linear forms: against the numbers of random programs, and back along what they did."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from triton_ext.analysis.backward_flow import BackwardFlow, StepKind
from triton_ext.analysis.buffer_reference import BufferReferences
from triton_ext.analysis.slot_form import SlotForm, SlotForms, Symbol
from triton_ext.ir import Operation, Region, Value, parse
from triton_ext.ir.dialects import arith

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"

# ---- random programs of integers, loops and "test.use"


@dataclass(slots=True)
class Writer:
    """Prints a program; what is drawn decides everything."""

    draw: st.DrawFn
    count: int
    lines: list[str] = field(default_factory=list)
    names: itertools.count[int] = field(default_factory=itertools.count)

    def value(self, text: str) -> str:
        name = f"%v{next(self.names)}"
        self.lines.append(f"{name} = {text}")
        return name

    def constant(self, number: int) -> str:
        return self.value(f"arith.constant {number} : i32")

    def expression(self, values: list[str]) -> str:
        x = self.draw(st.sampled_from(values))
        n, kind = self.count, self.draw(st.integers(0, 9))
        if kind == 0:
            return self.constant(self.draw(st.integers(0, n - 1)))
        if kind in (1, 2):
            return self.value(
                f"arith.addi {x}, {self.constant(self.draw(st.integers(0, 3)))} : i32"
            )
        if kind == 3:
            return self.value(f"arith.addi {x}, {self.draw(st.sampled_from(values))} : i32")
        if kind == 4:
            return self.value(
                f"arith.muli {x}, {self.constant(self.draw(st.integers(0, 3)))} : i32"
            )
        if kind == 5:
            divisor = self.constant(n * self.draw(st.integers(1, 2)))
            return self.value(f"arith.remsi {x}, {divisor} : i32")
        if kind == 6:
            return self.value(f"arith.subi {self.constant(7 * n)}, {x} : i32")
        if kind == 7:
            return x
        if kind == 8:
            width = self.draw(st.integers(1, 3))
            cut = self.value(f"arith.trunci {x} : i32 to i{width}")
            return self.value(f"arith.extui {cut} : i{width} to i32")
        return self.rotation(x)

    def rotation(self, x: str) -> str:
        """The next slot, in one of the ways to write it."""
        n, kind = self.count, self.draw(st.integers(0, 5))
        zero, following = self.constant(0), self.value(f"arith.addi {x}, {self.constant(1)} : i32")
        whole, last = self.constant(n), self.constant(n - 1)
        compare, yes, no = [
            (f"slt, {following}, {whole}", following, zero),
            (f"sge, {following}, {whole}", zero, following),
            (f"eq, {x}, {last}", zero, following),
            (f"ne, {following}, {whole}", following, zero),
            (f"ult, {x}, {last}", following, zero),
            (f"sgt, {whole}, {following}", following, zero),
        ][kind]
        condition = self.value(f"arith.cmpi {compare} : i32")
        return self.value(f"arith.select {condition}, {yes}, {no} : i32")

    def use(self, values: list[str]) -> None:
        names = [self.draw(st.sampled_from(values)) for _ in range(2)]
        self.lines.append(f'"test.use"({", ".join(names)}) : (i32, i32) -> ()')

    def body(self, values: list[str], depth: int) -> list[str]:
        """Statements; returns what is visible behind them."""
        seen = list(values)
        for _ in range(self.draw(st.integers(1, 4))):
            kind = self.draw(st.integers(0, 5))
            if kind == 0 and depth:
                seen += self.loop(seen, depth)
            elif kind == 1:
                self.use(seen)
            else:
                seen.append(self.expression(seen))
        self.use(seen)
        return seen

    def loop(self, values: list[str], depth: int) -> list[str]:
        carried = self.draw(st.integers(0, 3))
        lower = self.draw(st.integers(0, 2))
        # A bound that is an argument is drawn when the program runs, maybe below the lower one.
        upper = self.draw(
            st.sampled_from(["%n", self.constant(lower + self.draw(st.integers(0, 4)))])
        )
        start, step = self.constant(lower), self.constant(self.draw(st.sampled_from([1, 1, 1, 2])))
        inits = [self.draw(st.sampled_from(values)) for _ in range(carried)]
        number = next(self.names)
        args = [f"%a{number}_{i}" for i in range(carried)]
        results = [f"%r{number}#{i}" for i in range(carried)]
        head = f"scf.for %i{number} = {start} to {upper} step {step}"
        if carried:
            pairs = ", ".join(f"{a} = {init}" for a, init in zip(args, inits, strict=True))
            types = ", ".join(["i32"] * carried)
            head = f"%r{number}:{carried} = {head} iter_args({pairs}) -> ({types})"
        self.lines.append(f"{head} : i32 {{")
        inside = self.body([*values, f"%i{number}", *args], depth - 1)
        handed = [self.draw(st.sampled_from([*args, *inside[-3:]])) for _ in range(carried)]
        types = ", ".join(["i32"] * carried)
        self.lines.append(f"scf.yield {', '.join(handed)} : {types}" if carried else "scf.yield")
        self.lines.append("}")
        return results


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, int]:
    count = draw(st.integers(2, 4))
    writer = Writer(draw, count)
    first = [writer.constant(draw(st.integers(0, count - 1))) for _ in range(2)]
    writer.body(["%n", "%m", *first], 2)
    lines = "\n".join(writer.lines)
    return f"module {{\ntt.func public @k(%n: i32, %m: i32) {{\n{lines}\ntt.return\n}}\n}}\n", count


# ---- what they compute

Numbers = dict[Symbol, int]


@dataclass(frozen=True, slots=True)
class Moment:
    """One executed "test.use", or one edge."""

    kind: StepKind
    op: Operation
    numbers: Numbers


class Negative(Exception):
    """A number that no index is made of."""


def execute(block_ops: tuple[Operation, ...], numbers: Numbers, trace: list[Moment]) -> list[int]:
    for op in block_ops:
        if op.name in ("scf.yield", "tt.return"):
            return [numbers[v] for v in op.operands]
        if op.name == "test.use":
            trace.append(Moment(StepKind.EVENT, op, dict(numbers)))
        elif op.name == "scf.for":
            run_loop(op, numbers, trace)
        else:
            number = compute(op, [numbers[v] for v in op.operands])
            if number < 0:
                raise Negative
            numbers[op.results[0]] = number
    return []


def run_loop(op: Operation, numbers: Numbers, trace: list[Moment]) -> None:
    lower, upper, step = (numbers[v] for v in op.operands[:3])
    carried = [numbers[v] for v in op.operands[3:]]
    block = op.regions[0].blocks[0]
    iteration = None
    for iteration, induction in enumerate(range(lower, upper, step)):
        trace.append(Moment(StepKind.PREVIOUS if iteration else StepKind.LEAVE, op, {}))
        inside: Numbers = {**numbers, op: iteration}
        inside.update(zip(block.args, [induction, *carried], strict=True))
        carried = execute(block.ops, inside, trace)
    trace.append(Moment(StepKind.SKIP if iteration is None else StepKind.ENTER, op, {}))
    numbers.update(zip(op.results, carried, strict=True))
    numbers[op.regions[0]] = 0 if iteration is None else iteration + 1


def compute(op: Operation, operands: list[int]) -> int:
    if op.name == "arith.constant":
        number = arith.constant_int(op.results[0])
        assert number is not None
        return number
    if op.name == "arith.select":
        return operands[1] if operands[0] else operands[2]
    if op.name == "arith.cmpi":
        view = arith.CmpIOp.match(op)
        assert view is not None
        x, y = operands
        word = (
            view.predicate.removeprefix("s").removeprefix("u")
            if len(view.predicate) > 2
            else view.predicate
        )
        table = {"lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y, "eq": x == y, "ne": x != y}
        return int(table[word])
    if op.name == "arith.trunci":
        return operands[0] % (1 << int((op.results[0].known_type or "")[1:]))
    if op.name == "arith.extui":
        return operands[0]
    x, y = operands
    return {"addi": x + y, "subi": x - y, "muli": x * y, "remsi": x % y if y else 0}[
        op.name.removeprefix("arith.")
    ]


def number_of(form: SlotForm, moments: Sequence[Moment]) -> int:
    """What a form is at the first of some moments."""
    total = form.constant
    total += sum(factor * number_at(symbol, moments) for symbol, factor in form.terms)
    return total % form.modulus


def number_at(symbol: Symbol, moments: Sequence[Moment]) -> int:
    """A symbol at the first moment; what is defined later in the same iterations will be that."""
    numbers = moments[0].numbers
    if not isinstance(symbol, Operation) and symbol not in numbers:
        if isinstance(symbol, Region):
            around = symbol.parent.parent_op
        else:
            around = symbol.owner if isinstance(symbol.owner, Operation) else symbol.owner.parent_op
        while around.name != "tt.func":
            assert around.name != "scf.for" or around in numbers
            around = around.parent_op
        return next(each.numbers[symbol] for each in moments if symbol in each.numbers)
    return numbers[symbol]


@settings(max_examples=2000 if NIGHTLY else 150, deadline=None)
@given(programs(), st.integers(0, 6), st.integers(0, 9))
def test_forms_are_the_numbers_here_and_at_every_earlier_moment(
    program: tuple[str, int], n: int, m: int
) -> None:
    text, count = program
    module = parse(text)
    function = next(op for op in module.walk() if op.name == "tt.func")
    block = function.regions[0].blocks[0]
    trace: list[Moment] = []
    try:
        execute(block.ops, dict(zip(block.args, (n, m), strict=True)), trace)
    except Negative:
        assume(False)
    assume(len(trace) < 120)
    forms = SlotForms()
    flow = BackwardFlow(module, lambda op: op.name == "test.use")
    for at, moment in enumerate(trace):
        if moment.kind is not StepKind.EVENT:
            continue
        for value in moment.op.operands:
            form: SlotForm | None = forms.form(value, count)
            assert form is not None
            wanted = moment.numbers[value] % count
            assert number_of(form, [moment]) == wanted
            position = flow.before(moment.op)
            for index in range(at - 1, max(0, at - 12) - 1, -1):
                earlier = trace[index]
                step = next(
                    s for s in flow.steps(position) if s.kind is earlier.kind and s.op is earlier.op
                )
                assert step.position is not None
                block, position = position.point.block, step.position
                if step.kind is not StepKind.EVENT:
                    form = forms.across(form, step, block)
                    if form is None:
                        break
                else:
                    assert number_of(form, trace[index : at + 1]) == wanted


# ---- what must be understood, so that it is not only safe but of use

HEAD = """module {
tt.func public @k(%n: i32, %m: i32) {
%c0 = arith.constant 0 : i32
%c1 = arith.constant 1 : i32
%c2 = arith.constant 2 : i32
%c3 = arith.constant 3 : i32
"""


def uses(body: str) -> list[Operation]:
    module = parse(f"{HEAD}{body}\ntt.return\n}}\n}}\n")
    return [op for op in module.walk() if op.name == "test.use"]


def two_forms(body: str, modulus: int) -> tuple[SlotForm, SlotForm]:
    """The forms of both operands of the last use."""
    forms = SlotForms()
    one, other = uses(body)[-1].operands
    return forms.form(one, modulus), forms.form(other, modulus)


def loop(carried: str, body: str, handed: str) -> str:
    count = handed.count(",") + 1
    types = ", ".join(["i32"] * count)
    return (
        f"%r:{count} = scf.for %i = %c0 to %n step %c1 iter_args({carried}) -> ({types}) : i32 {{\n"
        f"{body}\nscf.yield {handed} : {types}\n}}"
    )


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            loop(
                "%a = %c0",
                "%b = arith.addi %a, %c1 : i32\n%l = arith.cmpi slt, %b, %c3 : i32\n"
                "%x = arith.select %l, %b, %c0 : i32\n%j = arith.addi %i, %c1 : i32\n"
                '"test.use"(%x, %j) : (i32, i32) -> ()',
                "%x",
            ),
            id="rotation",
        ),
        pytest.param(
            loop(
                "%a = %c0",
                "%e = arith.cmpi eq, %a, %c2 : i32\n%b = arith.addi %a, %c1 : i32\n"
                "%x = arith.select %e, %c0, %b : i32\n%j = arith.addi %i, %c1 : i32\n"
                '"test.use"(%x, %j) : (i32, i32) -> ()',
                "%x",
            ),
            id="rotation-by-equality",
        ),
        pytest.param(
            loop(
                "%a = %c0, %b = %c1, %c = %c2",
                '%j = arith.addi %i, %c1 : i32\n"test.use"(%b, %j) : (i32, i32) -> ()',
                "%b, %c, %a",
            ),
            id="three-change-places",
        ),
        pytest.param(
            loop(
                "%a = %m",
                "%b = arith.addi %a, %c1 : i32\n%j = arith.addi %m, %i : i32\n"
                "%x = arith.remsi %a, %c3 : i32\n"
                '"test.use"(%x, %j) : (i32, i32) -> ()',
                "%b",
            ),
            id="counter-from-somewhere",
        ),
    ],
)
def test_what_is_understood(body: str) -> None:
    one, other = two_forms(body, 3)
    assert one == other
    assert not one.may_equal(other.shifted(1))
    assert not one.may_equal(other.shifted(2))


@pytest.mark.parametrize(
    ("extension", "is_minus_one"),
    [
        ("%e = arith.extui %t : i1 to i32", False),
        ("%e = arith.extsi %t : i1 to i32", True),
        ("%f = arith.index_cast %t : i1 to index\n%e = arith.index_cast %f : index to i32", True),
    ],
    ids=["extui", "extsi", "index_cast"],
)
def test_an_extended_bit(extension: str, is_minus_one: bool) -> None:
    """Twice a bit is minus the bit modulo 3."""
    one, other = two_forms(
        "%t = arith.trunci %n : i32 to i1\n%z = arith.extui %t : i1 to i32\n"
        f"{extension}\n%d = arith.muli %z, %c2 : i32\n"
        "%x = arith.addi %e, %c1 : i32\n%y = arith.addi %d, %c1 : i32\n"
        '"test.use"(%x, %y) : (i32, i32) -> ()',
        3,
    )
    assert (one == other) is is_minus_one


def test_a_ring_of_no_buffers_is_read_as_one_of_one() -> None:
    one, other = two_forms(
        "%one = arith.constant 1 : i32\n%other = arith.constant 2 : i32\n"
        '"test.use"(%one, %other) : (i32, i32) -> ()',
        0,
    )
    assert one == other == SlotForm(1, 0)


def test_what_a_truncation_leaves() -> None:
    """``(n + 2) % 2`` is ``n % 2``, so they may be the same one of four slots, and of two are."""
    body = (
        "%a = arith.trunci %n : i32 to i1\n%x = arith.extui %a : i1 to i32\n"
        "%j = arith.addi %n, %c2 : i32\n%b = arith.trunci %j : i32 to i1\n"
        '%y = arith.extui %b : i1 to i32\n"test.use"(%x, %y) : (i32, i32) -> ()'
    )
    one, other = two_forms(body, 4)
    assert one.may_equal(other)
    one, other = two_forms(body, 2)
    assert one == other


@pytest.mark.parametrize("start", ["%m", "%far"])
def test_a_rotation_from_too_far_is_not_one(start: str) -> None:
    """From 4 on, ``x + 1 < 3`` is not true: the next slot is 0, and not 5 % 3."""
    body = "%far = arith.constant 4 : i32\n" + loop(
        f"%a = {start}",
        "%b = arith.addi %a, %c1 : i32\n%l = arith.cmpi slt, %b, %c3 : i32\n"
        '%x = arith.select %l, %b, %c0 : i32\n"test.use"(%x, %b) : (i32, i32) -> ()',
        "%x",
    )
    one, other = two_forms(body, 3)
    assert one != other
    assert one.may_equal(other)


@pytest.mark.parametrize("kind", [StepKind.PREVIOUS, StepKind.LEAVE])
def test_what_an_iteration_computes_is_not_known_in_another(kind: StepKind) -> None:
    body = loop(
        "%a = %m", '%o = "test.any"() : () -> i32\n"test.use"(%o, %a) : (i32, i32) -> ()', "%o"
    )
    op = uses(body)[-1]
    forms = SlotForms()
    computed, carried = (forms.form(value, 3) for value in op.operands)
    flow = BackwardFlow(op.module, lambda each: each.name == "test.use")
    step = next(step for step in flow.steps(flow.before(op)) if step.kind is kind)
    assert op.parent is not None
    assert forms.across(computed, step, op.parent) is None
    # What it carries was handed on by the one before, or given to the loop.
    function = op.module.op.regions[0].blocks[0].ops[0].regions[0].blocks[0]
    before = op.operands[0] if kind is StepKind.PREVIOUS else function.args[1]
    assert forms.across(carried, step, op.parent) == forms.form(before, 3)


def test_steps_of_two_never_meet_between() -> None:
    """``2 * i`` and ``2 * j + 1`` differ modulo 4 whatever ``i`` and ``j`` are."""
    one, other = two_forms(
        "%a = arith.muli %n, %c2 : i32\n%b = arith.muli %m, %c2 : i32\n"
        '%x = arith.addi %b, %c1 : i32\n"test.use"(%a, %x) : (i32, i32) -> ()',
        4,
    )
    assert not one.may_equal(other)


# ---- buffers

TYPE = "!ttg.memdesc<128xf32, #s, #smem, mutable>"
BUFFERS = """#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
"""


def overlap(body: str) -> bool:
    """Whether both operands of the last use may overlap."""
    text = body.replace("T1", TYPE).replace("T3", TYPE.replace("<128", "<3x128"))
    module = parse(f"{BUFFERS}{HEAD}{text}\ntt.return\n}}\n}}\n")
    op = [op for op in module.walk() if op.name == "test.use"][-1]
    references = BufferReferences.of_module(module.op)
    one, other = (references.reference(value) for value in op.operands)
    return references.may_overlap(one, other)


def carried(inits: str, handed: str, body: str, count: int) -> str:
    types = ", ".join(["T1"] * count)
    return (
        "%p = ttg.local_alloc : () -> T1\n%q = ttg.local_alloc : () -> T1\n"
        "%m3 = ttg.local_alloc : () -> T3\n"
        "%s0 = ttg.memdesc_index %m3[%c0] : T3 -> T1\n%s1 = ttg.memdesc_index %m3[%c1] : T3 -> T1\n"
        f"%r:{count} = scf.for %i = %c0 to %n step %c1 iter_args({inits}) -> ({types}) : i32 {{\n"
        f"{body}\nscf.yield {handed} : {types}\n}}"
    )


USE = '"test.use"(%a, %b) : (T1, T1) -> ()'
FILL = """%j = arith.addi %i, %c2 : i32
%k = arith.remsi %j, %c3 : i32
%f = ttg.memdesc_index %m3[%k] : T3 -> T1
"""


@pytest.mark.parametrize(
    ("expected", "inits", "handed", "body"),
    [
        (False, "%a = %p, %b = %q", "%b, %a", USE),
        (True, "%a = %p, %b = %p", "%b, %a", USE),
        (True, "%a = %p, %b = %q", "%a, %a", USE),
        (False, "%a = %p, %b = %s0", "%a, %b", USE),
        # Slots i, i + 1 and i + 2.
        (False, "%a = %s0, %b = %s1", "%b, %f", FILL + USE),
        (False, "%a = %s0, %b = %s1", "%b, %f", FILL + USE.replace("%b", "%f")),
        # It starts at slot 1 twice, so that the second iteration is no slot ahead.
        (True, "%a = %s1, %b = %s1", "%b, %f", FILL + USE),
    ],
)
def test_buffers_that_a_loop_carries(expected: bool, inits: str, handed: str, body: str) -> None:
    assert overlap(carried(inits, handed, body, 2)) is expected


def test_values_are_of_the_module(  # the symbols of a form can be looked up by identity
) -> None:
    forms = SlotForms()
    value = uses('"test.use"(%n, %m) : (i32, i32) -> ()')[0].operands[0]
    assert isinstance(value, Value)
    assert list(forms.form(value, 3).symbols) == [value]
