"""Walks back through control flow: against every execution of small random programs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from triton_ext.analysis.backward_flow import BackwardFlow, StepKind
from triton_ext.analysis.shortest_walk import Crossing, End, Goal, shortest_walk
from triton_ext.analysis.trip_count import trip_count
from triton_ext.ir import Module, Operation, Value, parse

HEADER = """module {
tt.func public @kernel(%n: index, %c: i1) {
%c0 = arith.constant 0 : index
%c1 = arith.constant 1 : index
%c2 = arith.constant 2 : index
%c3 = arith.constant 3 : index
"""


@dataclass(frozen=True, slots=True)
class Since:
    """Sums what ``test.issue`` costs until the (left + 1)-th ``test.commit``."""

    left: int

    def cross(self, op: Operation) -> Crossing:
        if op.name == "test.issue":
            return Crossing(self, int(op.attributes["cost"].split()[0]))
        if op.name == "test.commit":
            return Crossing(replace(self, left=self.left - 1) if self.left else End.FOUND)
        return Crossing(self)

    def renamed(self, renames: Mapping[Value, Value], op: Operation | None) -> Goal | End:
        return self

    def at_start(self) -> End:
        return End.FREE


def is_event(op: Operation) -> bool:
    return op.name in ("test.issue", "test.commit")


def cheapest(module: Module, left: int) -> int | None:
    """What the walk from the one ``test.wait`` costs."""
    wait = next(op for op in module.walk() if op.name == "test.wait")
    flow = BackwardFlow(module, is_event)
    walk = shortest_walk(flow, flow.before(wait), Since(left))
    if walk is None:
        return None
    assert walk.cost == sum(cost for _, cost in walk.terms)
    return walk.cost


# ---- random programs: a statement is ("issue", cost), ("commit",), ("wait",), or one with bodies


def statements(depth: int) -> st.SearchStrategy[tuple[object, ...]]:
    leaf = st.one_of(st.tuples(st.just("issue"), st.integers(1, 9)), st.just(("commit",)))
    if depth == 0:
        return leaf
    body = st.lists(statements(depth - 1), max_size=3)
    return st.one_of(
        leaf,
        st.tuples(st.just("static"), st.integers(0, 3), body),
        st.tuples(st.just("dynamic"), body),
        st.tuples(st.just("if"), body),
        st.tuples(st.just("else"), body, body),
        st.tuples(st.just("while"), body, body),
        st.tuples(st.just("scan"), body),
        st.tuples(st.just("switch"), body, body),
        st.tuples(st.just("call"), body),
    )


class Writer:
    """Prints a program; bodies of calls become functions."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.number = itertools.count()

    def body(self, program: list[tuple[object, ...]]) -> str:
        return "".join(self.statement(*each) for each in program)

    def statement(self, kind: str, *rest: object) -> str:
        if kind in ("issue", "commit", "wait"):
            cost = f" {{cost = {rest[0]} : i32}}" if rest else ""
            return f'"test.{kind}"(){cost} : () -> ()\n'
        bodies = [self.body(each) for each in rest if isinstance(each, list)]
        i = next(self.number)
        if kind in ("static", "dynamic"):
            end = f"%c{rest[0]}" if kind == "static" else "%n"
            return f"scf.for %i{i} = %c0 to {end} step %c1 {{\n{bodies[0]}}}\n"
        if kind == "if":
            return f"scf.if %c {{\n{bodies[0]}}}\n"
        if kind == "else":
            return f"scf.if %c {{\n{bodies[0]}}} else {{\n{bodies[1]}}}\n"
        if kind == "while":
            return (
                f"scf.while : () -> () {{\n{bodies[0]}scf.condition(%c)\n}} do {{\n{bodies[1]}"
                "scf.yield\n}\n"
            )
        if kind == "scan":
            return f'"test.region"() ({{\n{bodies[0]}"test.end"() : () -> ()\n}}) : () -> ()\n'
        if kind == "switch":
            return (
                f"scf.index_switch %n\ncase 2 {{\n{bodies[0]}scf.yield\n}}\n"
                f"default {{\n{bodies[1]}scf.yield\n}}\n"
            )
        name = f"@f{i}"
        constants = HEADER.partition("{\n")[2].partition("{\n")[2]
        self.functions.append(
            f"tt.func private {name}(%n: index, %c: i1) {{\n{constants}{bodies[0]}tt.return\n}}\n"
        )
        return f"tt.call {name}(%n, %c) : (index, i1) -> ()\n"

    def module(self, program: list[tuple[object, ...]]) -> Module:
        text = HEADER + self.body(program) + "tt.return\n}\n"
        return parse(text + "".join(self.functions) + "}\n")


Trace = tuple[tuple[object, ...], ...]


def traces(program: list[tuple[object, ...]], most: int) -> Iterator[Trace]:
    """What every execution does, with at most ``most`` iterations where the number is not known."""
    for parts in itertools.product(*(list(traces_of(most, *each)) for each in program)):
        yield tuple(itertools.chain(*parts))


def repeated(body: list[Trace], times: int) -> Iterator[Trace]:
    for parts in itertools.product(body, repeat=times):
        yield tuple(itertools.chain(*parts))


def distinct(found: Iterator[Trace]) -> list[Trace]:
    """Different traces; a program that has too many is not tried."""
    some = list(itertools.islice(found, 5001))
    assume(len(some) <= 5000)
    return list(dict.fromkeys(some))


def traces_of(most: int, kind: str, *rest: object) -> Iterator[Trace]:
    if kind in ("issue", "commit", "wait"):
        yield ((kind, *rest),)
        return
    bodies = [distinct(traces(each, most)) for each in rest if isinstance(each, list)]
    if kind == "static":
        yield from repeated(bodies[0], int(str(rest[0])))
    elif kind == "dynamic":
        for times in range(most + 1):
            yield from repeated(bodies[0], times)
    elif kind in ("if", "scan"):
        yield ()
        yield from bodies[0]
    elif kind in ("else", "switch"):
        yield from bodies[0]
        yield from bodies[1]
    elif kind == "while":
        for times in range(most + 1):
            for head in repeated([a + b for a in bodies[0] for b in bodies[1]], times):
                for last in bodies[0]:
                    yield head + last
    else:
        yield from bodies[0]


def least(program: list[tuple[object, ...]], left: int, most: int) -> int | None:
    """The least sum behind the awaited commit, over all executions."""
    found = []
    for trace in distinct(traces(program, most)):
        at = trace.index(("wait",))
        commits = [i for i, event in enumerate(trace[:at]) if event == ("commit",)]
        if len(commits) > left:
            since = commits[-1 - left]
            found.append(sum(int(str(e[1])) for e in trace[since:at] if e[0] == "issue"))
    return min(found, default=None)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.lists(statements(2), max_size=4), st.lists(statements(1), max_size=2), st.integers(0, 2))
def test_walk_equals_the_least_execution(
    before: list[tuple[object, ...]], after: list[tuple[object, ...]], left: int
) -> None:
    """Where conditions are independent, every walk is an execution, and the reverse."""
    program = [*before, ("wait",), *after]
    expected = least(program, left, most=2)
    found = cheapest(Writer().module(program), left)
    if not has_loop(program):
        assert found == expected
    elif expected is not None:
        # More iterations than were tried may cost less.
        assert found is not None
        assert found <= expected


def has_loop(program: list[tuple[object, ...]]) -> bool:
    return any(
        each[0] in ("dynamic", "while", "scan")
        or any(isinstance(part, list) and has_loop(part) for part in each)
        for each in program
    )


# ---- by hand


def module_of(body: str, functions: str = "") -> Module:
    return parse(f"{HEADER}{body}tt.return\n}}\n{functions}}}\n")


ISSUE = '"test.issue"() {cost = 4 : i32} : () -> ()\n'
COMMIT = '"test.commit"() : () -> ()\n'
WAIT = '"test.wait"() : () -> ()\n'


@pytest.mark.parametrize(
    ("body", "left", "expected"),
    [
        pytest.param(COMMIT + ISSUE + WAIT, 0, 4, id="straight"),
        pytest.param(ISSUE + WAIT, 0, None, id="nothing-committed"),
        pytest.param(
            f"{COMMIT}scf.for %i = %c0 to %c3 step %c1 {{\n{ISSUE}}}\n{WAIT}",
            0,
            12,
            id="static-trips-are-counted",
        ),
        pytest.param(
            f"{COMMIT}scf.for %i = %c0 to %n step %c1 {{\n{ISSUE}}}\n{WAIT}",
            0,
            0,
            id="dynamic-trips-may-be-none",
        ),
        pytest.param(
            f"scf.for %i = %c0 to %n step %c1 {{\n{ISSUE}{COMMIT}{WAIT}}}\n",
            2,
            8,
            id="three-iterations-back",
        ),
        pytest.param(
            f"{COMMIT}scf.for %j = %c0 to %c3 step %c1 {{\n"
            f"scf.for %i = %c0 to %c3 step %c1 {{\n{ISSUE}}}\n}}\n{WAIT}",
            0,
            36,
            id="nested-static-loops",
        ),
    ],
)
def test_distance(body: str, left: int, expected: int | None) -> None:
    assert cheapest(module_of(body), left) == expected


def test_more_iterations_than_are_counted_cost_at_least_those() -> None:
    body = "%c1000 = arith.constant 1000 : index\n"
    body += f"{COMMIT}scf.for %i = %c0 to %c1000 step %c1 {{\n{ISSUE}}}\n{WAIT}"
    found = cheapest(module_of(body), 0)
    assert found == 4 * 16


def test_call_is_left_where_it_was_entered() -> None:
    body = f"{COMMIT}tt.call @f() : () -> ()\n{ISSUE}tt.call @f() : () -> ()\n{WAIT}"
    function = f"tt.func private @f() {{\n{ISSUE}tt.return\n}}\n"
    assert cheapest(module_of(body, function), 0) == 12


def test_walk_that_starts_in_a_function_goes_on_at_each_call() -> None:
    body = (
        f"{COMMIT}{ISSUE}tt.call @f() : () -> ()\n{COMMIT}{ISSUE}{ISSUE}tt.call @f() : () -> ()\n"
    )
    function = f"tt.func private @f() {{\n{WAIT}tt.return\n}}\n"
    assert cheapest(module_of(body, function), 0) == 4


def test_unknown_function_may_have_done_anything() -> None:
    body = f"{COMMIT}{ISSUE}tt.call @elsewhere() : () -> ()\n{ISSUE}{WAIT}"
    assert cheapest(module_of(body, "tt.func private @elsewhere()\n"), 0) == 4


def test_recursion_ends() -> None:
    body = f"{COMMIT}tt.call @f() : () -> ()\n{WAIT}"
    function = f"tt.func private @f() {{\n{ISSUE}tt.call @f() : () -> ()\n{ISSUE}tt.return\n}}\n"
    assert cheapest(module_of(body, function), 0) == 0


def test_recursion_by_way_of_another_function_is_not_passed_over() -> None:
    """Whichever of the two functions is asked for first."""
    functions = f"""tt.func private @f() {{
tt.call @g() : () -> ()
{ISSUE}tt.return
}}
tt.func private @g() {{
tt.call @f() : () -> ()
tt.return
}}
"""
    for called in ("f", "g"):
        module = module_of(f"{COMMIT}tt.call @{called}() : () -> ()\n{WAIT}", functions)
        wait = next(op for op in module.walk() if op.name == "test.wait")
        flow = BackwardFlow(module, is_event)
        (step,) = flow.steps(flow.before(wait))
        assert step.kind is StepKind.UNKNOWN


def test_blocks() -> None:
    body = f"""{COMMIT}cf.cond_br %c, ^bb1, ^bb2
^bb1:
{ISSUE}cf.br ^bb3
^bb2:
{ISSUE}{ISSUE}cf.br ^bb3
^bb3:
{WAIT}"""
    assert cheapest(module_of(body), 0) == 4


SPECIALIZED = """ttg.warp_specialize(%n)
default {{
{default}ttg.warp_yield
}}
partition0(%arg0: index) num_warps(4) {{
{partition}ttg.warp_return
}} : (index) -> ()
"""


def test_default_region_goes_on_with_the_warps_before() -> None:
    body = COMMIT + ISSUE + SPECIALIZED.format(default=ISSUE + WAIT, partition="")
    assert cheapest(module_of(body), 0) == 8


def test_partition_starts_with_nothing() -> None:
    body = COMMIT + ISSUE + SPECIALIZED.format(default="", partition=ISSUE + WAIT)
    assert cheapest(module_of(body), 0) is None


def test_partition_in_a_loop_follows_itself() -> None:
    inner = SPECIALIZED.format(default="", partition=WAIT + COMMIT + ISSUE)
    body = f"scf.for %i = %c0 to %n step %c1 {{\n{inner}}}\n"
    assert cheapest(module_of(body), 0) == 4


def test_partitions_of_other_kernels_run_in_no_warps_of_this_one() -> None:
    body = SPECIALIZED.format(default="", partition=WAIT)
    other = SPECIALIZED.format(default="", partition=COMMIT + ISSUE)
    head = """tt.func {} @other(%n: index) {{
"""
    public = f"{head.format('public')}{other}tt.return\n}}\n"
    assert cheapest(module_of(body, public), 0) is None
    private = f"{head.format('private')}{other}tt.return\n}}\n"
    call = "tt.call @other(%n) : (index) -> ()\n"
    assert cheapest(module_of(call + body, private), 0) == 4


def test_values_are_followed_to_where_they_come_from() -> None:
    body = """%r:2 = scf.for %i = %c0 to %n step %c1
    iter_args(%a = %c0, %b = %c1) -> (index, index) {
"test.commit"() : () -> ()
scf.yield %b, %a : index, index
}
"test.wait"() : () -> ()
"""
    module = module_of(body)
    wait = next(op for op in module.walk() if op.name == "test.wait")
    flow = BackwardFlow(module, is_event)
    enter, skip = flow.steps(flow.before(wait))
    loop = enter.op
    assert loop is not None
    assert [enter.kind, skip.kind] == [StepKind.ENTER, StepKind.SKIP]
    assert [enter.renames[r].name for r in loop.results] == ["%b", "%a"]
    assert [skip.renames[r].name for r in loop.results] == ["%c0", "%c1"]
    assert enter.position is not None
    (commit,) = flow.steps(enter.position)
    assert commit.kind is StepKind.EVENT
    assert commit.position is not None
    previous, leave = flow.steps(commit.position)
    assert [previous.kind, leave.kind] == [StepKind.PREVIOUS, StepKind.LEAVE]
    carried = loop.regions[0].blocks[0].args[1:]
    assert [previous.renames[a].name for a in carried] == ["%b", "%a"]
    assert [leave.renames[a].name for a in carried] == ["%c0", "%c1"]


def test_a_search_that_is_too_long_is_given_up(monkeypatch) -> None:
    issue = '"test.issue"() {cost = 2 : i32} : () -> ()\n'
    module = module_of(f'"test.commit"() : () -> ()\n{issue * 8}"test.wait"() : () -> ()\n')
    wait = next(op for op in module.walk() if op.name == "test.wait")
    flow = BackwardFlow(module, is_event)
    limits = sys.modules[shortest_walk.__module__]
    for most, cost, end in ((9, 16, End.FOUND), (8, 0, End.GAVE_UP)):
        monkeypatch.setattr(limits, "MOST_PAIRS", most)
        walk = shortest_walk(flow, flow.before(wait), Since(0))
        assert walk is not None
        assert (walk.cost, walk.end) == (cost, end)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [("0 to 7 step 2", 4), ("7 to 0 step 1", 0), ("-3 to 3 step 3", 2), ("0 to 7 step 0", None)],
)
def test_trip_count(bounds: str, expected: int | None) -> None:
    lower, _, upper, _, step = bounds.split()
    text = f"""module {{
%l = arith.constant {lower} : i32
%u = arith.constant {upper} : i32
%s = arith.constant {step} : i32
scf.for %i = %l to %u step %s : i32 {{
}}
}}"""
    loop = next(op for op in parse(text).walk() if op.name == "scf.for")
    assert trip_count(loop) == expected
    loop = next(op for op in parse(text.replace("for", "for unsigned")).walk() if op.regions[0:])
    assert all(trip_count(op) is None for op in loop.walk())
