"""``scf``, ``cf`` and calls."""

from __future__ import annotations

from typing import Any

from triton_ext.ir import Block, Operation, Value
from triton_ext.ir.dialects.scf import ConditionOp, ForOp, IfOp, WhileOp
from triton_ext.ir.functions import FUNCTIONS, callee_of, symbol_of

from .faults import fault
from .workgroup import Context, Prepare, Step, Workgroup

__all__ = ["CONTROL_FLOW"]


def _yielded(block: Block) -> tuple[Value, ...]:
    terminator = block.terminator
    known = terminator is not None and terminator.name == "scf.yield"
    return terminator.operands if terminator is not None and known else ()


def _for(op: Operation, context: Context) -> Step:
    view = ForOp.match(op)
    assert view is not None
    steps = context.block(view.body)
    yielded, carried = view.yielded, view.iter_args
    dtype_of = context.element(view.induction_variable).dtype.type
    unsigned = view.is_unsigned

    def step(group: Workgroup) -> None:
        values = group.values
        low, high = group.scalar(view.lower_bound), group.scalar(view.upper_bound)
        if unsigned:
            low, high = low % (1 << 64), high % (1 << 64)
        current = [values[value] for value in view.inits]
        for number in range(low, high, group.scalar(view.step)):
            values[view.induction_variable] = dtype_of(number)
            values.update(zip(carried, current, strict=True))
            group.run(steps)
            current = [values[value] for value in yielded]
        values.update(zip(view.results, current, strict=True))

    return step


def _if(op: Operation, context: Context) -> Step:
    view = IfOp.match(op)
    assert view is not None
    then = context.block(view.then_block), _yielded(view.then_block)
    other: tuple[list[Any], tuple[Value, ...]] = ([], ())
    if view.else_block is not None:
        other = context.block(view.else_block), _yielded(view.else_block)

    def step(group: Workgroup) -> None:
        steps, yielded = then if group.values[view.condition] else other
        group.run(steps)
        found = [group.values[value] for value in yielded]
        group.values.update(zip(view.results, found, strict=True))

    return step


def _while(op: Operation, context: Context) -> Step:
    view = WhileOp.match(op)
    assert view is not None
    before, after = context.block(view.before), context.block(view.after)
    terminator = view.before.terminator
    condition = ConditionOp.match(terminator) if terminator is not None else None
    if condition is None:
        raise fault(op, "expected 'scf.condition' at the end of the first region")
    yielded = _yielded(view.after)

    def step(group: Workgroup) -> None:
        values = group.values
        current = [values[value] for value in view.inits]
        while True:
            values.update(zip(view.before.args, current, strict=True))
            group.run(before)
            passed = [values[value] for value in condition.values]
            if not values[condition.condition]:
                break
            values.update(zip(view.after.args, passed, strict=True))
            group.run(after)
            current = [values[value] for value in yielded]
        values.update(zip(view.results, passed, strict=True))

    return step


def _call(op: Operation, context: Context) -> Step:
    name, module = callee_of(op), op.module
    functions = module.walk() if module is not None else ()
    callee = next((f for f in functions if f.name in FUNCTIONS and symbol_of(f) == name), None)
    if callee is None:
        raise fault(op, f"calls '{name}', which is not in the module")
    run = context.function(callee)

    def step(group: Workgroup) -> None:
        results = run(group, [group.values[value] for value in op.operands])
        group.branch = None
        group.values.update(zip(op.results, results, strict=True))

    return step


def _branch(op: Operation, context: Context) -> Step:
    (target,) = op.successors

    def step(group: Workgroup) -> None:
        group.branch = target, [group.values[value] for value in op.operands]

    return step


def _cond_branch(op: Operation, context: Context) -> Step:
    then, other = op.successors
    condition, *passed = op.operands
    split = len(then.args)

    def step(group: Workgroup) -> None:
        values = [group.values[value] for value in passed]
        if group.values[condition]:
            group.branch = then, values[:split]
        else:
            group.branch = other, values[split:]

    return step


CONTROL_FLOW: dict[str, Prepare] = {
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
    "tt.call": _call,
    "func.call": _call,
    "cf.br": _branch,
    "cf.cond_br": _cond_branch,
}
