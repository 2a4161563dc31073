"""Random edits that keep a module valid, for property tests.

Each edit picks something that it applies to and changes it in a way that leaves valid IR; it tells
whether there was anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from triton_ext.ir import (
    Block,
    Builder,
    Module,
    Operation,
    Value,
    append_if_results,
    append_iter_args,
    clone,
    inline_block,
    move_after,
    move_before,
    move_to_end,
    parse,
    rename,
)

#: Moved or copied, they change what holds for a whole function or break a rule of their dialect.
FIXED = ("ttg.warp_specialize", "ttng.", "tt.func", "builtin.module", "amdg.", "gluon.", "llvm.")


def movable(op: Operation) -> bool:
    """Whether an operation may stand elsewhere in its block."""
    return (
        op.parent is not None
        and not op.name.startswith(FIXED)
        and op.parent.terminator is not op
        and not op.successors
        and not any(inner.name.startswith(FIXED) for inner in op.walk())
    )


def ancestor_in(op: Operation, block: Block) -> Operation | None:
    """The operation of a block that is ``op`` or around it."""
    while op.parent is not None:
        if op.parent is block:
            return op
        op = op.parent.parent.parent
    return None


def free_values(op: Operation) -> list[Value]:
    """What an operation uses and does not define, in the order of the text."""
    used = dict.fromkeys(value for inner in op.walk() for value in inner.operands)
    return [value for value in used if ancestor_of(value, op) is None]


def ancestor_of(value: Value, op: Operation) -> Operation | None:
    """``op`` if it defines the value, or something inside of it does."""
    owner = value.owner
    around = owner.parent_op if isinstance(owner, Block) else owner
    if isinstance(owner, Operation) and owner is op:
        return op
    while around is not None:
        if around is op:
            return op
        around = around.parent_op
    return None


def legal_range(op: Operation) -> tuple[int, int]:
    """The first and the last index in its block, with the operation taken out, for it."""
    block = op.parent
    ops = [other for other in block.ops if other is not op]
    first, last = 0, len(ops)
    for value in free_values(op):
        if isinstance(value.owner, Operation) and value.owner.parent is block:
            first = max(first, ops.index(value.owner) + 1)
    for result in op.results:
        for use in result.uses:
            user = ancestor_in(use.op, block)
            if user is not None:
                last = min(last, ops.index(user))
    if block.terminator is not None:
        last = min(last, len(ops) - 1)
    return first, last


def visible_before(op: Operation) -> list[Value]:
    """Values that dominate an operation in its block and those around it, up to isolation."""
    found: list[Value] = []
    at: Operation | None = op
    while at is not None and at.parent is not None:
        block = at.parent
        found += block.args
        for other in block.ops:
            if other is at:
                break
            found += other.results
        if block.parent.isolated or len(block.parent.blocks) > 1:
            break
        at = block.parent.parent
    return found


def edit_move(module: Module, op: Operation, rng: Random) -> bool:
    if not movable(op):
        return False
    first, last = legal_range(op)
    if first > last:
        return False
    ops = [other for other in op.parent.ops if other is not op]
    index = rng.randint(first, last)
    if index < len(ops):
        move_before(op, ops[index])
    elif ops:
        move_after(op, ops[-1])
    return True


def edit_hoist(module: Module, op: Operation, rng: Random) -> bool:
    """Moves an operation in front of the one that holds it."""
    holder = op.parent_op
    if not movable(op) or holder is None or not holder.name.startswith("scf."):
        return False
    if any(ancestor_of(value, holder) is not None for value in free_values(op)):
        return False
    move_before(op, holder)
    return True


def edit_sink(module: Module, op: Operation, rng: Random) -> bool:
    """Moves an operation that nobody uses to the end of a region of a later one."""
    if not movable(op) or any(result.uses for result in op.results):
        return False
    following = op.parent.ops[op.parent.ops.index(op) + 1 :]
    targets = [other for other in following if other.name in ("scf.for", "scf.if")]
    if not targets:
        return False
    target = rng.choice(targets)
    move_to_end(op, target.regions[0].blocks[0])
    return True


def edit_clone(module: Module, op: Operation, rng: Random) -> bool:
    if not movable(op):
        return False
    mapping = {}
    visible = visible_before(op)
    for value in free_values(op):
        same = [other for other in visible if other.known_type == value.known_type]
        if same and op.name.startswith("arith."):
            mapping[value] = rng.choice(same)
    made = clone(op, Builder.after(op), mapping)
    assert [r.known_type for r in made.results] == [r.known_type for r in op.results]
    if rng.random() < 0.5 and not any(r in free_values(made) for r in op.results):
        op.replace_with(made)
    return True


def edit_operand(module: Module, op: Operation, rng: Random) -> bool:
    if not op.operands or not op.name.startswith(("arith.", "tt.store", "scf.yield")):
        return False
    index = rng.randint(0, len(op.operands) - 1)
    wanted = op.operands[index].known_type
    same = [value for value in visible_before(op) if value.known_type == wanted]
    if wanted is None or not same:
        return False
    op.set_operand(index, rng.choice(same))
    return True


def edit_erase(module: Module, op: Operation, rng: Random) -> bool:
    if not movable(op) or any(result.uses for result in op.results):
        return False
    op.erase()
    return True


def edit_attribute(module: Module, op: Operation, rng: Random) -> bool:
    if op.name == "ttg.barrier":
        return False  # its syntax has no place for one
    op.set_attribute("test.number", f"{rng.randint(0, 9)} : i32")
    if rng.random() < 0.5:
        op.remove_attribute("test.number")
    return True


def edit_location(module: Module, op: Operation, rng: Random) -> bool:
    if op.parent is None:
        return False
    name = module.add_alias("#loc_of_test", f'loc("test.py":{rng.randint(1, 3)}:1)')
    op.set_loc(name)
    return True


def edit_argument_location(module: Module, op: Operation, rng: Random) -> bool:
    args = [a for r in op.regions for b in r.blocks for a in b.args]
    if not args or op.name in ("scf.for", "scf.while"):
        return False
    rng.choice(args).set_loc(f'loc("argument":{rng.randint(1, 3)}:1)')
    return True


def edit_rename(module: Module, op: Operation, rng: Random) -> bool:
    values: list[Value] = list(op.results)
    values += [a for r in op.regions for b in r.blocks for a in b.args]
    if not values:
        return False
    value = rng.choice(values)
    rename(value, rng.choice(["%x", "%0", "%acc", "%new.name"]))
    return True


def edit_if_results(module: Module, op: Operation, rng: Random) -> bool:
    if op.name != "scf.if":
        return False
    visible = [value for value in visible_before(op) if value.known_type is not None]
    if not visible:
        return False
    value = rng.choice(visible)
    append_if_results(op, [value], [value])
    return True


def edit_iter_args(module: Module, op: Operation, rng: Random) -> bool:
    if op.name != "scf.for":
        return False
    visible = [value for value in visible_before(op) if value.known_type is not None]
    if not visible:
        return False
    append_iter_args(op, [rng.choice(visible)])
    return True


def edit_inline(module: Module, op: Operation, rng: Random) -> bool:
    if op.name != "scf.if" or any(i.name.startswith(FIXED) for i in op.walk()):
        return False
    region = rng.choice(op.regions)
    values = inline_block(region.blocks[0], op)
    for result, value in zip(op.results, values, strict=len(op.regions) == 2):
        result.replace_all_uses_with(value)
    op.erase()
    return True


def inline_every_block(text: str, name: str) -> Iterator[tuple[str, Module]]:
    """A module for each block of each ``scf.if``, with the block in place of the operation.

    Yields:
        Which block it is, and the module.
    """
    count = sum(op.name == "scf.if" for op in parse(text, name).walk())
    for number in range(count):
        for region in (0, 1):
            module = parse(text, name)
            op = [op for op in module.walk() if op.name == "scf.if"][number]
            if region >= len(op.regions):
                continue
            values = inline_block(op.regions[region].blocks[0], op)
            for result, value in zip(op.results, values, strict=False):
                result.replace_all_uses_with(value)
            op.erase()
            yield f"block {region} of scf.if {number}", module


EDITS = [value for name, value in sorted(globals().items()) if name.startswith("edit_")]


def edit(module: Module, rng: Random, tries: int = 12) -> str:
    """Makes one random edit; the name of what was done, or nothing."""
    ops = list(module.walk())
    kind = rng.choice(EDITS)
    start = rng.randint(0, len(ops) - 1)
    # A prime step meets different kinds of operations.
    for offset in range(tries * 8):
        op = ops[(start + 7 * offset) % len(ops)]
        if (op is module.op or op.module is module) and kind(module, op, rng):
            return kind.__name__
    return ""


def wild_edit(module: Module, rng: Random) -> str:
    """Changes what is defined where without a look at what follows from it.

    Types stay right, so that whether the result is valid is a question of structure alone.
    """
    ops = [op for op in list(module.walk())[1:] if op.name != "tt.func"]
    op, other = rng.choice(ops), rng.choice(ops)
    kind = rng.choice(["move", "operand", "erase"])
    if kind == "move" and not op.successors and all(inner is not other for inner in op.walk()):
        # Partitions of warp_specialize have rules of their own about what they may hold.
        if not any(inner.name.startswith("ttg.warp_specialize") for inner in op.walk()):
            move_before(op, other)
            return kind
    elif kind == "operand" and op.operands:
        index = rng.randint(0, len(op.operands) - 1)
        wanted = op.operands[index].known_type
        same = [r for o in ops for r in o.results if r.known_type == wanted]
        if same:
            op.set_operand(index, rng.choice(same))
            return kind
    elif kind == "erase":
        ends = [o for o in ops if o.parent.terminator is o and not o.successors]
        if ends:
            rng.choice(ends).erase()
            return kind
    return ""
