"""The verifier's table: operations, predicates and messages.

A predicate returns ``None`` if the operation is correct, and otherwise the values of its message.
Values whose type is not printed equal everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import VerifyError
from ..strings import SKIPPED_STRING
from . import lexer
from .descriptor_rules import COPIES, wrong_copy
from .functions import CALLS, FUNCTIONS, RETURNS, callee_of, function_results, symbol_of
from .nodes import Block, Operation
from .result_counts import BINARY, COMPARED, FEWEST_OPERANDS, ONE_RESULT, OPERANDS, UNARY
from .segments import OperandSlot, OperandTypeSlot, cut
from .shape_rules import SHAPED, shape_problem
from .type_slots import (
    IMPLIED_RESULT,
    KNOWN_DIALECTS,
    bind_types,
    implied_type,
    is_printed,
    read_signature,
)
from .type_text import boolean_like, pointee_type
from .values import OpResult, Value

if TYPE_CHECKING:
    from .type_problems import TypeProblems

__all__ = ["RULES", "Facts", "Rule", "branch_operands", "rules_of"]

Broken = Mapping[str, object] | None
_ALIAS = re.compile(SKIPPED_STRING + r"|//[^\n]*|[#!][A-Za-z_$][\w$]*(?![\w$.<])", re.ASCII)
#: Characters of a type without aliases; hosts print none that is nearly as long.
_MAX_TYPE = 1 << 16
_UNDERSTOOD = KNOWN_DIALECTS | {"func", "llvm"}


@dataclass(slots=True)
class Facts:
    """The context of rules: the module around an operation.

    Attributes:
        aliases: The module's aliases.
    """

    aliases: Mapping[str, str]
    _spelled_out: dict[str, str] = field(default_factory=dict)
    _meanings: dict[str, str] = field(default_factory=dict)
    # Aliases that are too long to expand, and those that refer to one.
    _too_long: dict[str, VerifyError] = field(default_factory=dict)
    _symbols: dict[Operation, dict[str, Operation]] = field(default_factory=dict)
    _types: TypeProblems | None = None

    @property
    def types(self) -> TypeProblems:
        """The checks of types and encodings."""
        if self._types is None:
            from .type_problems import TypeProblems

            self._types = TypeProblems(self.aliases, self.spelled_out)
        return self._types

    def equal(self, left: str | None, right: str | None) -> bool:
        """Returns whether two types are equal; an unknown type equals any."""
        if left is None or right is None or left == right:
            return True
        left, right = self.spelled_out(left), self.spelled_out(right)
        if left == right:
            return True
        from .type_problems import are_one_type

        return are_one_type(left, right)

    def spelled_out(self, type_: str) -> str:
        """Returns a type without aliases and blanks.

        Raises:
            VerifyError: It is too long to expand.
        """
        known = self._spelled_out.get(type_)
        if known is None:
            pending = [name for name in _ALIAS.findall(type_) if name in self.aliases]
            entered: set[str] = set()
            while pending:
                name = pending[-1]
                if name in entered or name in self._meanings or name in self._too_long:
                    pending.pop()
                    try:
                        if name in self._too_long:
                            said = self._too_long[name]
                            raise VerifyError(said.message, notes=said.notes)
                        if name not in self._meanings:
                            self._meanings[name] = self._substitute(self.aliases[name])
                    except VerifyError as error:
                        # Entered aliases without a meaning yet depend on this one.
                        for other in entered - self._meanings.keys():
                            self._too_long[other] = error
                        raise
                    continue
                entered.add(name)
                # An alias that refers to itself, directly or not, stays as it is.
                inner = dict.fromkeys(_ALIAS.findall(self.aliases[name]))
                pending += [n for n in inner if n in self.aliases and n not in entered]
            known = self._spelled_out[type_] = "".join(self._substitute(type_).split())
        return known

    def _substitute(self, text: str) -> str:
        """Replaces aliases in a text by their meanings."""
        length = len(text)
        for name in _ALIAS.findall(text):
            length += len(self._meanings.get(name, name)) - len(name)
            if length > _MAX_TYPE:
                raise VerifyError(
                    f"a type is longer than {_MAX_TYPE} characters without its aliases",
                    notes=(text,),
                )
        return _ALIAS.sub(lambda match: self._meanings.get(match[0], match[0]), text)

    def all_equal(self, left: Sequence[str | None], right: Sequence[str | None]) -> bool:
        """Returns whether two lists of types are equal."""
        return len(left) == len(right) and all(
            self.equal(a, b) for a, b in zip(left, right, strict=True)
        )

    def function(self, call: Operation, symbol: str) -> Operation | None:
        """Returns the function that a symbol names at a call."""
        holder = call
        while holder.parent is not None:
            holder = holder.parent.parent.parent
            if holder.name == "builtin.module":
                break
        if holder not in self._symbols:
            table: dict[str, Operation] = {}
            for op in _nested(holder):
                name = symbol_of(op) if op.name in FUNCTIONS else None
                if name is not None:
                    table.setdefault(name, op)
            self._symbols[holder] = table
        return self._symbols[holder].get(symbol)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        operations: Names of its operations; ``None`` for all.
        predicate: Returns the values of the message if an operation breaks the rule, or ``None``.
        message: Formatted with ``op`` and what the predicate returns.
    """

    operations: frozenset[str] | None
    predicate: Callable[[Operation, Facts], Broken]
    message: str


def _nested(op: Operation) -> list[Operation]:
    return [inner for region in op._regions for block in region._blocks for inner in block._ops]


def _list(types: Sequence[str | None]) -> str:
    return f"({', '.join('?' if type_ is None else type_ for type_ in types)})"


def _type(value: Value) -> str | None:
    """Returns a value's type; ``None`` if an unknown operation prints it ambiguously.

    An unknown operation that prints the types of all operands prints that of its result, too.
    """
    if isinstance(value, OpResult):
        holder = value._owner
        known = holder.name.partition(".")[0] in _UNDERSTOOD
        if not known and not holder.is_quoted and not _is_told(value):
            return None
    return value.known_type


def _is_told(result: OpResult) -> bool:
    marks = bind_types(result._owner)
    typed = sum(isinstance(slot, OperandTypeSlot) for *_, slot in marks)
    return typed == len(result._owner._operands) and is_printed(result)


def _types(values: Sequence[Value]) -> list[str | None]:
    return [_type(value) for value in values]


def _first_block(op: Operation, region: int) -> Block | None:
    return op._regions[region]._blocks[0] if region < len(op._regions) else None


# ---- terminators

BRANCHES = frozenset({"cf.br", "cf.cond_br", "cf.switch", "llvm.br", "llvm.cond_br"})
#: Legal terminators of the blocks of each region; the last entry is for all further regions.
TERMINATED: Mapping[str, tuple[frozenset[str], ...]] = {
    "func.func": (frozenset({"func.return"}),),
    "scf.execute_region": (frozenset({"scf.yield"}),),
    "scf.for": (frozenset({"scf.yield"}),),
    "scf.if": (frozenset({"scf.yield"}),),
    "scf.while": (frozenset({"scf.condition"}), frozenset({"scf.yield"})),
    "tt.func": (frozenset({"tt.return", "llvm.unreachable", "ub.unreachable"}),),
    "tt.map_elementwise": (frozenset({"tt.map_elementwise.return"}),),
    "tt.reduce": (frozenset({"tt.reduce.return"}),),
    "tt.scan": (frozenset({"tt.scan.return"}),),
    "ttg.warp_specialize": (frozenset({"ttg.warp_yield"}), frozenset({"ttg.warp_return"})),
    "ttg.warp_specialize.partitions": (frozenset({"ttg.warp_return"}),),
}
#: Operations whose terminator hosts omit if it has no operands.
IMPLICIT = frozenset({"scf.for", "scf.if"})
TERMINATORS = BRANCHES.union(*(names for regions in TERMINATED.values() for names in regions))


def _not_last(op: Operation, facts: Facts) -> Broken:
    return {} if op.parent is not None and op.parent._ops[-1] is not op else None


def _unterminated(op: Operation, facts: Facts) -> Broken:
    wanted = TERMINATED[op.name]
    for number, region in enumerate(op._regions):
        allowed = wanted[min(number, len(wanted) - 1)]
        if op.name == "ttg.warp_specialize" and number and not region.isolated:
            continue  # the generic form, where another operation holds the partitions
        for block in region._blocks:
            last = block._ops[-1] if block._ops else None
            if last is not None and (last.name in allowed or last._successors):
                continue
            if last is not None and last.name.partition(".")[0] not in _UNDERSTOOD:
                continue  # an unknown operation may be a terminator
            if op.name in IMPLICIT and not op._results and block.terminator is None:
                continue
            names = " or ".join(f"'{name}'" for name in sorted(allowed))
            found = f"'{last.name}'" if last is not None else "nothing"
            return {"names": names, "number": number, "found": found}
    return None


# ---- passed values


def _passed(op: Operation, facts: Facts) -> Broken:
    """Terminators of structured operations and functions."""
    holder = op.parent_op
    if holder is None or op.parent is None:
        return None
    found = _types(op._operands)
    if op.name == "scf.condition":
        found = found[1:]
    wanted: Sequence[str | None] | None = None
    if op.name in RETURNS:
        custom = holder.name in FUNCTIONS and not holder.is_quoted
        wanted = function_results(holder) if custom else None
    elif op.name == "ttg.warp_return":
        wanted = ()
    elif holder.name == "scf.while" and op.name == "scf.yield":
        wanted = _types(holder._operands)
    elif holder.name in TERMINATED:
        wanted = _types(holder._results)
    if wanted is None or facts.all_equal(found, wanted):
        return None
    return {"found": _list(found), "wanted": _list(wanted), "holder": holder.name}


#: Minimum and maximum number of regions.
REGIONS: Mapping[str, tuple[int, int]] = {
    "scf.for": (1, 1),
    "scf.if": (1, 2),
    "scf.while": (2, 2),
    "tt.reduce": (1, 1),
    "tt.scan": (1, 1),
}


def _regions(op: Operation, facts: Facts) -> Broken:
    fewest, most = REGIONS[op.name]
    found = len(op._regions)
    if op.name == "scf.for" and found and not op._regions[0]._blocks[0]._args:
        return {"found": "a body without the induction variable", "wanted": "one with it"}
    if fewest <= found <= most:
        return None
    wanted = f"{fewest}" if fewest == most else f"{fewest} or {most}"
    return {"found": f"{found} regions", "wanted": wanted}


def _loop(op: Operation, facts: Facts) -> Broken:
    """Initial values, arguments and results of a loop."""
    body = _first_block(op, 0)
    if body is None:
        return None
    skipped = 3 if op.name == "scf.for" else 0
    inits = _types(op._operands[skipped:])
    args = _types(body._args[1:] if op.name == "scf.for" else body._args)
    if not facts.all_equal(inits, args):
        return {"what": "arguments", "first": _list(inits), "second": _list(args)}
    second = body if op.name == "scf.for" else _first_block(op, 1)
    if second is None:
        return None
    after = _types(second._args[1:] if op.name == "scf.for" else second._args)
    results = _types(op._results)
    if not facts.all_equal(after, results):
        return {"what": "results", "first": _list(after), "second": _list(results)}
    return None


def _captures(op: Operation, facts: Facts) -> Broken:
    values = op._operands
    regions = op._regions
    if op.name == "ttg.warp_specialize":
        regions = [region for region in regions[1:] if region.isolated]
    elif not values and op.parent_op is not None:
        values = op.parent_op._operands
    for number, region in enumerate(regions):
        args = _types(region._blocks[0]._args)
        if not facts.all_equal(_types(values), args):
            wanted = _list(_types(values))
            return {"number": number, "found": _list(args), "wanted": wanted}
    return None


def branch_operands(op: Operation) -> list[list[Value]] | None:
    """Returns the operands that a branch passes to each successor, or ``None`` if unknown."""
    found: list[list[Value]] = [[] for _ in op._successors]
    if op.is_quoted:
        if len(found) == 1:
            return [list(op._operands)]
        written = op.attributes.get("operandSegmentSizes", "").partition(":")[2]
        sizes = re.findall(r"\d{1,9}", written)
        if len(sizes) != len(found) + 1:
            return None
        position = int(sizes[0])
        for values, size in zip(found, sizes[1:], strict=True):
            values += op._operands[position : position + int(size)]
            position += int(size)
        return found
    number = -1
    for segment in cut(op):
        if isinstance(segment, str):
            number += len(lexer.BLOCK_NAME.findall(segment))
        elif isinstance(segment, OperandSlot) and 0 <= number < len(found):
            found[number].append(op._operands[segment.index])
    return found


def _branch(op: Operation, facts: Facts) -> Broken:
    for target, values in zip(op._successors, branch_operands(op) or [], strict=False):
        found, wanted = _types(values), _types(target._args)
        if not facts.all_equal(found, wanted):
            label = target.label or "the first block"
            return {"label": label, "found": _list(found), "wanted": _list(wanted)}
    return None


def _to_entry(op: Operation, facts: Facts) -> Broken:
    if op.parent is None:
        return None
    if any(target.parent is not op.parent.parent for target in op._successors):
        return {"what": "a block of another region"}
    entry = op.parent.parent._blocks[0]
    return {"what": "the first block of its region"} if entry in op._successors else None


# ---- symbols


def _twice(op: Operation, facts: Facts) -> Broken:
    seen: set[str] = set()
    for inner in _nested(op):
        symbol = symbol_of(inner) if inner.name in FUNCTIONS else None
        if symbol is not None and symbol in seen:
            return {"symbol": symbol}
        if symbol is not None:
            seen.add(symbol)
    return None


def _called(op: Operation, facts: Facts) -> Broken:
    symbol = callee_of(op)
    if symbol is None:
        return None
    function = facts.function(op, symbol)
    if function is None:
        return {"what": f"'@{symbol}', which is not in the module"}
    if function.is_quoted or not function._regions:
        return None
    args = _types(function._regions[0]._blocks[0]._args)
    if not facts.all_equal(_types(op._operands), args):
        found = _list(_types(op._operands))
        return {"what": f"'@{symbol}' with {found}, whose arguments are {_list(args)}"}
    results = list(function_results(function))
    if not facts.all_equal(_types(op._results), results):
        found = _list(_types(op._results))
        return {"what": f"'@{symbol}' for {found}, whose results are {_list(results)}"}
    return None


# ---- types


def _printed(op: Operation, facts: Facts) -> Broken:
    """The type printed for an operand must be the operand's."""
    if op.name.partition(".")[0] not in KNOWN_DIALECTS and not op.is_quoted:
        return None
    for _, _, slot in bind_types(op):
        if not isinstance(slot, OperandTypeSlot):
            continue
        printed, full = slot.spelling.printed, slot.spelling.full
        operand = op._operands[slot.index]
        # An operand edited since prints its own type.
        if printed == full or operand._type != full or not printed or _type(operand) is None:
            continue
        if printed.startswith("<"):
            printed = full.partition("<")[0] + printed
        if not facts.equal(printed, full):
            return {"name": operand.name, "printed": printed, "type": full}
    return None


def _malformed(op: Operation, facts: Facts) -> Broken:
    """The type of a value must be legal on all hosts, and for its ``tt`` operations."""
    defined: list[Value] = list(op._results)
    defined += [arg for region in op._regions for block in region._blocks for arg in block._args]
    checked = op.name.startswith("tt.") and op.name != "tt.func"
    used: list[Value] = list(op._operands) if checked else []
    for value in (*defined, *used):
        type_ = _type(value)
        if type_ is None or "<" not in type_:
            continue
        problem = facts.types.of_type(type_, as_operand=checked)
        if problem is not None:
            return {"name": value.name, "problem": problem}
    return None


def _several(op: Operation, facts: Facts) -> Broken:
    return {"count": len(op._results)} if len(op._results) > 1 else None


def _miscounted(op: Operation, facts: Facts) -> Broken:
    found, wanted = len(op._operands), OPERANDS.get(op.name)
    fewest = wanted if wanted is not None else FEWEST_OPERANDS[op.name]
    if found == wanted or (wanted is None and found >= fewest):
        return None
    least = "" if wanted is not None else "at least "
    return {"found": found, "wanted": f"{least}{fewest} operand{'s' if fewest > 1 else ''}"}


def _same_operands(op: Operation, facts: Facts) -> Broken:
    first = 1 if op.name == "arith.select" else 0
    types = _types(op._operands[first:])
    return None if facts.all_equal(types[1:], types[:-1]) else {"types": _list(types)}


def _same_result(op: Operation, facts: Facts) -> Broken:
    first = 1 if op.name == "arith.select" else 0
    if len(op._results) != 1 or len(op._operands) <= first:
        return None
    wanted = _type(op._operands[first])
    if op.name == "tt.load":
        wanted = pointee_type(wanted) if wanted is not None else None
    found = op._results[0].known_type
    return None if facts.equal(found, wanted) else {"found": found, "wanted": wanted}


def _implied(op: Operation, facts: Facts) -> Broken:
    """An implied type must match the edited types of operands."""
    for result in op._results:
        found, wanted = result.known_type, implied_type(result)
        if not facts.equal(found, wanted):
            return {"found": found, "wanted": wanted}
    return None


_TYPED = frozenset({"tt.addptr", "tt.atomic_cas", "tt.atomic_rmw", "tt.load", "tt.splat"})


def _untyped(op: Operation, facts: Facts) -> Broken:
    """An operation must end with types if it does on every host."""
    return None if bind_types(op) or read_signature(op) is not None else {}


def _misshapen(op: Operation, facts: Facts) -> Broken:
    """Shape and element type must fit for operations that only reshape a tensor."""
    if not op._operands or not op._results:
        return None
    # As printed here, even if the defining operation is unknown.
    slots = [slot for *_, slot in bind_types(op) if isinstance(slot, OperandTypeSlot)]
    source = slots[0].spelling.text(op._operands[0].known_type) if slots else None
    result = _type(op._results[0])
    plain = [None if type_ is None else facts.spelled_out(type_) for type_ in (source, result)]
    wanted = shape_problem(op.name, op.text, *plain)
    return None if wanted is None else {"wanted": wanted, "source": source, "result": result}


def _condition(op: Operation, facts: Facts) -> Broken:
    found = _type(op._operands[0]) if op._operands else None
    return None if found in (None, "i1") else {"found": found}


def _memory(op: Operation, facts: Facts) -> Broken:
    """The value, the mask and the value of masked elements must fit the pointer."""
    pointer = _type(op._operands[0]) if op._operands else None
    value = pointee_type(pointer) if pointer is not None else None
    if pointer is None or value is None:
        return None  # a pointer to a block, or a descriptor of an older host
    wanted = [value] if op.name == "tt.store" else []
    wanted += [boolean_like(value)] + ([value] if op.name == "tt.load" else [])
    for index, type_ in enumerate(wanted, 1):
        found = _type(op._operands[index]) if index < len(op._operands) else None
        if not facts.equal(found, type_):
            return {"index": index, "found": found, "wanted": type_}
    return None


def _accumulator(op: Operation, facts: Facts) -> Broken:
    if len(op._operands) < 3 or not op._results:
        return None
    found, wanted = _type(op._operands[2]), _type(op._results[0])
    return None if facts.equal(found, wanted) else {"index": 2, "found": found, "wanted": wanted}


RULES: tuple[Rule, ...] = (
    Rule(TERMINATORS, _not_last, "'{op}' must be the last operation of its block"),
    Rule(
        frozenset(TERMINATED),
        _unterminated,
        "expected {names} at the end of each block in region {number} of '{op}', found {found}",
    ),
    Rule(
        TERMINATORS
        - BRANCHES
        - {"tt.reduce.return", "tt.scan.return", "tt.map_elementwise.return"},
        _passed,
        "'{op}' passes {found} to '{holder}', which expects {wanted}",
    ),
    Rule(frozenset(REGIONS), _regions, "'{op}' has {found}, expected {wanted}"),
    Rule(
        frozenset({"scf.for", "scf.while"}),
        _loop,
        "'{op}' carries {first}, and its {what} are {second}",
    ),
    Rule(
        frozenset({"ttg.warp_specialize", "ttg.warp_specialize.partitions"}),
        _captures,
        "partition {number} of '{op}' has the arguments {found}, and the captures are {wanted}",
    ),
    Rule(BRANCHES, _branch, "'{op}' passes {found} to {label}, which expects {wanted}"),
    Rule(BRANCHES, _to_entry, "'{op}' branches to {what}"),
    Rule(frozenset({"builtin.module"}), _twice, "redefinition of symbol '@{symbol}' in a '{op}'"),
    Rule(CALLS, _called, "'{op}' calls {what}"),
    Rule(None, _printed, "'{op}' prints the type '{printed}' for '{name}', whose type is '{type}'"),
    Rule(None, _malformed, "the type of '{name}' at '{op}' is malformed: {problem}"),
    Rule(ONE_RESULT, _several, "'{op}' defines 1 result, and the text names {count}"),
    Rule(
        frozenset(OPERANDS | FEWEST_OPERANDS),
        _miscounted,
        "'{op}' takes {wanted}, and the text names {found}",
    ),
    Rule(
        BINARY | COMPARED | {"arith.select", "math.fma"},
        _same_operands,
        "operands of '{op}' must have one type, found {types}",
    ),
    Rule(
        BINARY | UNARY | {"arith.select", "tt.addptr", "tt.load"},
        _same_result,
        "expected the result type '{wanted}' for '{op}', found '{found}'",
    ),
    Rule(
        IMPLIED_RESULT - {"arith.select", "tt.addptr"},
        _implied,
        "expected the result type '{wanted}' for '{op}', found '{found}'",
    ),
    Rule(
        BINARY | COMPARED | UNARY | set(SHAPED) | _TYPED,
        _untyped,
        "expected types at the end of '{op}'",
    ),
    Rule(
        frozenset(SHAPED),
        _misshapen,
        "'{op}' makes '{result}' of '{source}', expected {wanted}",
    ),
    Rule(
        frozenset({"cf.cond_br", "scf.condition", "scf.if"}),
        _condition,
        "the condition of '{op}' must be an 'i1', found '{found}'",
    ),
    Rule(
        frozenset({"tt.load", "tt.store"}),
        _memory,
        "operand {index} of '{op}' must be '{wanted}', found '{found}'",
    ),
    Rule(
        frozenset({"tt.dot", "ttng.warp_group_dot"}),
        _accumulator,
        "operand {index} of '{op}' must be '{wanted}', found '{found}'",
    ),
    Rule(COPIES, wrong_copy, "expected {wanted} at '{op}', found {found}"),
)
_FOR_ALL = tuple(rule for rule in RULES if rule.operations is None)
_BY_NAME: Mapping[str, tuple[Rule, ...]] = {
    name: tuple(rule for rule in RULES if rule.operations is None or name in rule.operations)
    for name in frozenset().union(*(rule.operations or () for rule in RULES))
}


def rules_of(name: str) -> tuple[Rule, ...]:
    """Returns the rules of an operation name."""
    return _BY_NAME.get(name, _FOR_ALL)
