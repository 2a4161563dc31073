"""Splits a loop at the iteration from which on a branch in it goes the other way.

A comparison of the induction variable with a value from in front of the loop changes its outcome
once.  The loop becomes two; in each of them the outcome is known, and the branches that it decides
are gone.  Causal attention has such a loop: only the tiles on the diagonal need a mask.

Guarantees: every iteration runs once, in order, with the outcome that its comparison had; also
where all iterations are on one side, and at the ends of the range of integers.

The second loop has to start at an iteration.  Where the limit of the comparison is one (the step is
1, or limit and lower bound are multiples of it), the start is clamped to the bounds.  Otherwise a
test in front of the loop decides between the two loops and the one that was there.

Not handled: unsigned comparisons and loops, steps that are no constant, comparisons that decide no
``scf.if``, operations in the quoted form.  A loop is split once in a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.analysis.axis_info import AxisInfoAnalysis
from triton_ext.ir import Block, Builder, Module, Operation, Value, clone, inline_block, move_to_end
from triton_ext.ir.dialects.arith import CmpIOp, constant_int
from triton_ext.ir.dialects.scf import ForOp, IfOp
from triton_ext.passes import Pass, PassContext

SWAPPED = {"slt": "sgt", "sle": "sge", "sgt": "slt", "sge": "sle"}


@dataclass(frozen=True, slots=True)
class LoopSplit(Pass):
    """``triton-loop-split``."""

    name: ClassVar[str] = "triton-loop-split"

    def run(self, module: Module, context: PassContext) -> None:
        axes = AxisInfoAnalysis.of(module)
        for op in reversed(list(module.walk())):  # inner loops first
            loop = ForOp.match(op)
            comparison = find_comparison(loop) if loop is not None else None
            if loop is None or comparison is None:
                continue
            if is_on_iteration(comparison.limit, loop, axes):
                split_at(clamped_point(loop, comparison), op, comparison)
            else:
                split_if_possible(loop, comparison)
            context.count("loops")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison that a loop can be split at.

    Attributes:
        op: The ``arith.cmpi``.
        predicate: Its predicate, with the induction variable on the left.
        limit: The other side, which is defined in front of the loop.
    """

    op: Operation
    predicate: str
    limit: Value

    @property
    def is_greater(self) -> bool:
        """True where the comparison holds in the second loop, not in the first one."""
        return self.predicate.startswith("sg")

    @property
    def is_strict(self) -> bool:
        """True where the comparison does not hold for the limit itself."""
        return self.predicate.endswith("t")


def find_comparison(loop: ForOp) -> Comparison | None:
    """Returns the first comparison that a loop can be split at."""
    step = constant_int(loop.step)
    if loop.is_unsigned or step is None or step <= 0:
        return None
    for use in loop.induction_variable.uses:
        view = CmpIOp.match(use.op)
        if view is None or view.predicate not in SWAPPED:
            continue
        predicate = view.predicate if use.index == 0 else SWAPPED[view.predicate]
        limit = use.op.operands[1 - use.index]
        is_decisive = any(IfOp.match(user.op) for user in view.result.uses)
        if is_decisive and not is_inside(limit, loop.op):
            return Comparison(use.op, predicate, limit)
    return None


def is_inside(value: Value, op: Operation) -> bool:
    """Returns whether a value is defined by an operation or in its regions."""
    owner = value.owner
    around: Operation | None = owner if isinstance(owner, Operation) else owner.parent_op
    while around is not None and around is not op:
        around = around.parent_op
    return around is op


def is_on_iteration(limit: Value, loop: ForOp, axes: AxisInfoAnalysis) -> bool:
    """Returns whether counting from the lower bound in steps is known to meet the limit."""
    step = constant_int(loop.step) or 1
    low, high = axes.info(loop.lower_bound), axes.info(limit)
    if low.constant is not None and high.constant is not None:
        return (high.constant - low.constant) % step == 0
    return low.divisor % step == 0 and high.divisor % step == 0


def point_of(comparison: Comparison, unit: int) -> tuple[list[str], str, str]:
    """Returns operations that compute the first number of the second loop, were there no bounds.

    A comparison that is not strict is the strict one with the neighbour of its limit, the edge.
    What is less than the edge ends in front of it; what is greater starts behind it.

    Args:
        comparison: The comparison.
        unit: The distance of neighbours.

    Returns:
        The operations, and the names of the edge and of the number.
    """
    type_ = comparison.limit.type
    if comparison.predicate == "slt":
        return [], "%limit", "%limit"
    lines = [f"%delta = arith.constant {-unit if comparison.is_greater else unit} : {type_}"]
    edge = "%limit" if comparison.is_strict else "%edge"
    if not comparison.is_strict:
        lines.append(f"%edge = arith.addi %limit, %delta : {type_}")
    if not comparison.is_greater:
        return lines, edge, edge
    return [*lines, f"%point = arith.subi {edge}, %delta : {type_}"], edge, "%point"


def clamped_point(loop: ForOp, comparison: Comparison) -> Value:
    """Makes the start of the second loop: an iteration, or one of the bounds."""
    type_ = comparison.limit.type
    lines, edge, point = point_of(comparison, constant_int(loop.step) or 1)
    # Both compare what cannot have wrapped around, and select the point only if it has not.
    reaches_first = "slt" if comparison.is_greater != comparison.is_strict else "sle"
    last = edge if comparison.is_greater else "%limit"
    lines += [
        f"%has_first = arith.cmpi {reaches_first}, %low, %limit : {type_}",
        f"%has_all = arith.cmpi sge, {last}, %high : {type_}",
        f"%end = arith.select %has_all, %high, {point} : {type_}",
        f"%split = arith.select %has_first, %end, %low : {type_}",
    ]
    return make(lines, loop, comparison)["%split"]


def split_if_possible(loop: ForOp, comparison: Comparison) -> None:
    """Splits a loop, behind a test, where the point is an iteration or one short of one."""
    type_ = comparison.limit.type
    lines, _, point = point_of(comparison, 1)
    lines += [
        f"%zero = arith.constant 0 : {type_}",
        f"%one = arith.constant 1 : {type_}",
        f"%distance = arith.subi {point}, %low : {type_}",
        f"%rest = arith.remui %distance, %step : {type_}",
        f"%is_between = arith.cmpi ne, %rest, %zero : {type_}",
        f"%more = arith.select %is_between, %one, %zero : {type_}",
        f"%split = arith.addi {point}, %more : {type_}",
        f"%length = arith.subi %split, %low : {type_}",
        f"%left = arith.remui %length, %step : {type_}",
        f"%is_iteration = arith.cmpi eq, %left, %zero : {type_}",
        # A point between the bounds has not wrapped around.
        f"%is_behind_low = arith.cmpi slt, %low, {point} : {type_}",
        f"%is_before_high = arith.cmpi slt, {point}, %high : {type_}",
        "%is_inside = arith.andi %is_behind_low, %is_before_high : i1",
        "%is_possible = arith.andi %is_iteration, %is_inside : i1",
    ]
    values = make(lines, loop, comparison)
    then_block, else_block = make_if(values["%is_possible"], loop)
    unsplit = clone(loop.op, Builder.before(loop.op))
    for block, op in ((then_block, loop.op), (else_block, unsplit)):
        move_to_end(op, block)
        for index, result in enumerate(op.results):
            block.ops[-1].set_operand(index, result)
    split_at(values["%split"], loop.op, comparison)


def make(lines: list[str], loop: ForOp, comparison: Comparison) -> dict[str, Value]:
    """Makes operations of one result in front of a loop; returns the results by name."""
    bounds = {"low": loop.lower_bound, "high": loop.upper_bound, "step": loop.step}
    bindings = {"limit": comparison.limit, **bounds}
    ops = Builder.before(loop.op).parse("\n".join(lines), bindings, loc=comparison.op.loc_text)
    return {line.split()[0]: op.results[0] for line, op in zip(lines, ops, strict=True)}


def make_if(condition: Value, loop: ForOp) -> tuple[Block, Block]:
    """Makes an ``scf.if`` in front of a loop that takes its results over; returns its blocks."""
    head, end = "scf.if {0}", ""
    if loop.results:
        inits = ", ".join(f"{{{index}}}" for index in range(1, len(loop.results) + 1))
        head = "{results} = scf.if {0} -> ({results.type})"
        end = f"  scf.yield {inits} : {{results.type}}\n"
    types = [result.type for result in loop.results]
    text = f"{head} {{\n{end}}} else {{\n{end}}}"
    made = Builder.before(loop.op).create("scf.if", [condition, *loop.inits], types, text)
    for old, new in zip(loop.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    return made.regions[0].blocks[0], made.regions[1].blocks[0]


def split_at(point: Value, first: Operation, comparison: Comparison) -> None:
    """Ends a loop at a point, from which a copy behind it goes on."""
    second = clone(first, Builder.after(first))
    copies = dict(zip(first.walk(), second.walk(), strict=True))
    for old, new in zip(first.results, second.results, strict=True):
        old.replace_all_uses_with(new)
    first.set_operand(1, point)
    second.set_operand(0, point)
    for index, result in enumerate(first.results):
        second.set_operand(3 + index, result)
    decide(copies[comparison.op], comparison.is_greater)
    decide(comparison.op, not comparison.is_greater)


def decide(comparison: Operation, outcome: bool) -> None:
    """Replaces a comparison by its outcome, and each ``scf.if`` that it decides by a branch."""
    result = comparison.results[0]
    while True:
        branches = (IfOp.match(use.op) for use in result.uses)
        branch = next((found for found in branches if found is not None), None)
        if branch is None:
            break
        block = branch.then_block if outcome else branch.else_block
        if block is not None:
            values = inline_block(block, branch.op)
            for old, new in zip(branch.results, values, strict=True):
                old.replace_all_uses_with(new)
        branch.op.erase()
    if result.uses:
        text = f"{{results}} = arith.constant {str(outcome).lower()}"
        made = Builder.before(comparison).create("arith.constant", [], ["i1"], text)
        comparison.replace_with(made)
    else:
        comparison.erase()
