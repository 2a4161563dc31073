"""Assigns printed types to values.

The printed form ends most operations with a list of types: ``: T``, ``: T, T -> T``, or
``: (T) -> T``.  These rules, in order, decide which value a type belongs to:

1. Operations in :data:`FORMATS` have an explicit rule.
2. Types after ``->`` or ``to`` belong to the results if there are as many; if the operation has no
   results, or is in :data:`ARROW_TO_OPERANDS`, they belong to operands like the others.
3. If there are as many types as operands, they belong to them in order, unless one of them is
   the type of another operand instead.  (In :data:`IN_ORDER` they always do.)
4. A single type that all operands have belongs to all of them (the first one is printed).
5. A remaining type goes to the first free operand with this very type.  For operations of
   :data:`KNOWN_DIALECTS` this is correct for all of their formats (some print operands and types
   in different orders).  For others it requires that the type is printed as often as there are
   operands of it; otherwise the type is *loose*: it is kept as text, and changing the type of such
   an operand is an error.

Types are bound when they are first needed or when an operation is first edited, always before the
type of one of its values changes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from . import lexer
from .lexer import find_group_end
from .nodes import Operation
from .parser import parse_optional_type
from .segments import OperandTypeSlot, PrintedType, Slot, ValueTypeSlot
from .type_text import boolean_like, element_type, pointee_type
from .values import OpResult, Value

__all__ = [
    "Signature",
    "bind_types",
    "check_implied",
    "ensure_bound",
    "infer_type",
    "read_signature",
]

Mark = tuple[int, int, Slot]
Span = tuple[int, int]

KNOWN_DIALECTS = frozenset(
    {"amdg", "amdgpu", "arith", "cf", "gluon", "gpu", "math", "scf"}
    | {"tt", "ttg", "tti", "ttng", "ub"}
)
TOKEN = "!ttg.async.token"
#: Operations whose types are always in the order of their operands.
IN_ORDER = frozenset({"tt.elementwise_inline_asm", "tt.extern_elementwise", "tt.map_elementwise"})

#: Owners of types in printed order: ``oN`` operand N, ``r`` the next result.
FORMATS = {
    "amdg.buffer_atomic_cas": ("o0",),
    "amdg.buffer_atomic_rmw": ("o0",),
    "amdg.buffer_load": ("r",),
    "arith.constant": ("r",),
    "tt.make_tensor_descriptor": ("o0", "r"),
    "ttg.warp_id": ("r",),
}
#: The type after the arrow is that of an operand; a result, if any, is a token.
ARROW_TO_OPERANDS = frozenset(
    {"amdg.async_tdm_copy_global_to_local", "amdg.async_tdm_copy_local_to_global"}
    | {"amdg.async_tdm_fused_copy_global_to_local", "amdg.async_tdm_gather"}
    | {"amdg.async_tdm_scatter", "amdg.async_copy_local_to_global"}
    | {"amdg.buffer_load_to_local", "ttg.async_copy_global_to_local", "ttng.tmem_store"}
)
#: Results that are tokens and never printed.
TOKEN_RESULTS = ARROW_TO_OPERANDS | frozenset(
    {"amdg.async_tdm_intrinsic_wait", "amdg.async_tdm_wait", "amdg.async_wait"}
    | {"ttg.async_commit_group", "ttg.async_wait"}
    | {"ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled"}
)
#: Prefix that the short form ``<...>`` omits for a result.
RESULT_PREFIX = {"tt.make_tensor_descriptor": "!tt.tensordesc"}
#: Results have the type of this operand.
SAME_AS_OPERAND = {
    "amdg.buffer_atomic_cas": 0,
    "amdg.buffer_atomic_rmw": 0,
    "amdg.update_tensor_descriptor": 0,
    "arith.select": 1,
    "tt.addptr": 0,
}
_CALLS = frozenset({"func.call", "tt.call"})
BOOLEAN_RESULT = frozenset({"arith.cmpf", "arith.cmpi"})
#: A single type applies to all operands and the result.
SAME_TYPE_DIALECTS = frozenset({"arith", "math"})
SAME_TYPE = frozenset(
    {"tt.clampf", "tt.mulhiui", "tt.precise_sqrt", "tt.precise_divf", "tt.approx_divf"}
    | {"ttng.warp_group_dot_wait"}
)
#: Operations that imply the type of a result instead of printing it.
IMPLIED_RESULT = BOOLEAN_RESULT | SAME_TYPE | SAME_AS_OPERAND.keys() | {"tt.unsplat"}
HEADER_TYPES = frozenset({"scf.execute_region", "scf.for", "scf.if", "scf.while"})
#: Types occur in brackets as well: ``: !tt.ptr<f16>[tensor<64xi32>] tensor<64xf16> -> <..>``.
BRACKETED = frozenset({"amdg.buffer_load_to_local"})

_STEP = re.compile(
    r"(?:[^\"()\[\]<>{}:/-]+|-(?!>)|/(?!/)|[)\]>}]|//[^\n]*)*"
    r"(?:(:)|(->)|([(\[{<])|(" + lexer.STRING + r")|(\Z)|(.))",
    re.ASCII | re.DOTALL,
)
_TO = re.compile(r"to\b")
#: Follows the types of an ``scf.execute_region``.
_NO_INLINE = re.compile(r"\bno_inline\b")


@dataclass(slots=True)
class Signature:
    """The types that an operation prints, as offsets into its source.

    Attributes:
        inputs: Types before the arrow, or all of them.
        outputs: Types after the arrow.
        has_arrow: Whether there is an arrow.
        functional: Whether the inputs are in parentheses.
        induction: The type after the second colon of ``scf.for``.
    """

    inputs: list[Span] = field(default_factory=list)
    outputs: list[Span] = field(default_factory=list)
    has_arrow: bool = False
    functional: bool = False
    induction: Span | None = None


def read_signature(op: Operation) -> Signature | None:
    """``signature ::= ':' types (('->' | 'to') types)?``; ``None`` if none is printed.

    Args:
        op: An operation that still has its source text.
    """
    text = op.source.text
    start, limit = _signature_range(op)
    position = start
    while position < limit:
        match = _STEP.match(text, position, limit)
        if match is None or match.lastindex is None:
            return None
        position = match.end()
        # Without operands there is no colon: ``tt.elementwise_inline_asm "..." {..} -> i32``.
        has_no_inputs = op.name in HEADER_TYPES or not op._operand_spans
        if match.lastindex == 1 or (match.lastindex == 2 and has_no_inputs):
            signature = Signature(has_arrow=match.lastindex == 2)
            end = _read_types(op, signature, position, limit)
            if end is None:
                return None
            if op.name == "scf.for":
                _read_induction(op, signature, end, limit)
            return signature
        if match.lastindex == 3:
            position = find_group_end(op.source, position - 1)
        elif match.lastindex >= 5:
            return None
    return None


def _signature_range(op: Operation) -> Span:
    """Returns the range that may contain types: after the last operand or region, or the header."""
    limit = op._span[3]
    if isinstance(op._loc, tuple):
        limit = op._loc[0]
    start = op._operand_spans[-1] if op._operand_spans else _name_end(op)
    if op._regions:
        if op.name in HEADER_TYPES and not op.is_quoted:
            limit = op._regions[0]._span[0] - 1
            keyword = _NO_INLINE.search(op.source.text, start, limit)
            return start, limit if keyword is None else keyword.start()
        start = max(start, op._regions[-1]._span[1] + 1)
    return start, limit


def _name_end(op: Operation) -> int:
    match = lexer.OPERATION_HEAD.match(op.source.text, op._span[2])
    return match.end() if match is not None else op._span[2]


def _read_types(op: Operation, signature: Signature, position: int, limit: int) -> int | None:
    """``types ::= type ((',' | '*') type)* | '(' types? ')'``; the end, or ``None``."""
    text = op.source.text
    between = " \n\t\r,*)[]" if op.name in BRACKETED else " \n\t\r,*)"
    while position < limit:
        character = text[position]
        if character in between:
            position += 1
        elif character == "(":
            signature.functional = signature.functional or not signature.has_arrow
            position += 1
        elif character == ":":
            return position
        elif text.startswith("->", position) or _TO.match(text, position) is not None:
            signature.has_arrow = True
            position += 2
        else:
            end = parse_optional_type(op.source, position)
            if end is None or end == position or end > limit:
                return None
            (signature.outputs if signature.has_arrow else signature.inputs).append((position, end))
            position = end
    return position


def _read_induction(op: Operation, signature: Signature, position: int, limit: int) -> None:
    """``induction ::= ':' type``; without iteration arguments it is the only type."""
    if not signature.has_arrow:
        signature.induction = signature.inputs.pop() if signature.inputs else None
        return
    rest = Signature()
    _read_types(op, rest, position + 1, limit)
    signature.induction = rest.inputs[0] if rest.inputs else None


def count_outputs(op: Operation) -> int:
    """Counts the results of an operation without names for them, by its types.

    Counts the types after the arrow in the generic form, in calls and in known dialects, except for
    operations in ``WITHOUT_RESULTS``.
    """
    known = op.name.partition(".")[0] in KNOWN_DIALECTS or op.name in _CALLS
    signature = read_signature(op) if known or op.is_quoted else None
    if signature is None or not signature.has_arrow:
        return 0
    count = len(signature.outputs)
    if op.name == "ttng.tmem_load" and count and not op.is_quoted:
        # A token is a result that is not printed: ``tmem_load %src[%dep]``, ``tmem_load %src[]``.
        count += "[" in op.source.text[_name_end(op) : signature.outputs[0][0]].partition(":")[0]
    return count


class _Binder:
    """Finds the owner of each type of one operation."""

    def __init__(self, op: Operation, signature: Signature) -> None:
        self.op = op
        self.text = op.source.text
        self.signature = signature
        self.marks: list[Mark] = []
        self.loose: list[str] = []
        self.known = op.name.partition(".")[0] in KNOWN_DIALECTS
        self.bound: set[int] = set()
        # Types of the operands, cached.
        self.types = [operand._type for operand in op._operands]

    def to_operand(self, span: Span, index: int) -> None:
        """Binds a type to an operand."""
        printed = self.text[span[0] : span[1]]
        full = self.types[index]
        self.bound.add(index)
        if full is None and printed.startswith("<"):
            self.loose.append(printed)
            return
        if full is None:
            self.op._operands[index]._type = full = printed
        self.marks.append((*span, OperandTypeSlot(index, PrintedType(printed, full))))

    def to_result(self, span: Span, result: OpResult) -> None:
        """Binds a type to a result, and sets the result's type."""
        printed = self.text[span[0] : span[1]]
        prefix = RESULT_PREFIX.get(self.op.name, "")
        if printed.startswith("<") and not prefix:
            self.loose.append(printed)
        else:
            full = prefix + printed if printed.startswith("<") else printed
            self.marks.append((*span, _result_slot(printed, full, result)))

    def bind(self) -> None:
        """Applies the rules of the module's docstring in order."""
        op, signature = self.op, self.signature
        if op.name in FORMATS and not signature.has_arrow:
            self.bind_format(FORMATS[op.name])
            return
        rest = list(signature.inputs)
        late: list[Span] = []
        outputs = signature.outputs
        if op.name in ARROW_TO_OPERANDS or (outputs and not op._results):
            late = outputs
        elif op.name == "tt.split" and len(outputs) == 1:
            for result in op._results:
                self.to_result(outputs[0], result)
            del self.marks[1:]
        elif op.name == "ttng.tmem_load":
            self.bind_tmem_load(outputs)
        elif len(outputs) == len(op._results):
            for span, result in zip(outputs, op._results, strict=True):
                self.to_result(span, result)
        else:
            self.loose += [self.text[a:b] for a, b in outputs]
        if late and len(rest) + len(late) == len(op._operands) and self.are_in_order(rest + late):
            rest, late = rest + late, []
        if op.name == "scf.condition":
            self.in_order(rest, 1)
        elif len(rest) == len(op._operands) and (op.name in IN_ORDER or self.are_in_order(rest)):
            self.in_order(rest, 0)
        elif not op._operands and len(rest) == len(op._results) and not signature.has_arrow:
            for span, result in zip(rest, op._results, strict=True):
                self.to_result(span, result)
        elif not self.bind_shared(rest):
            self.bind_by_text(rest)
        self.bind_by_text(late)

    def bind_format(self, entries: tuple[str, ...]) -> None:
        """Rule 1."""
        results = iter(self.op._results)
        for span, entry in zip(self.signature.inputs, entries, strict=False):
            if entry == "r":
                result = next(results, None)
                if result is not None:
                    self.to_result(span, result)
            elif int(entry[1:]) < len(self.op._operands):
                self.to_operand(span, int(entry[1:]))

    def bind_tmem_load(self, outputs: list[Span]) -> None:
        """The loaded tensor comes first, a token may follow, a reduction is last."""
        results = self.op._results
        if not results or len(outputs) > len(results):
            return
        for span, result in zip(outputs, [results[0], *results[:0:-1]], strict=False):
            self.to_result(span, result)
        for result in results[1:]:
            if result._type is None:
                result._type = TOKEN

    def in_order(self, spans: list[Span], first: int) -> None:
        """Rule 3."""
        count = len(self.op._operands)
        for index, span in enumerate(spans, first):
            if index < count:
                self.to_operand(span, index)

    def bind_shared(self, spans: list[Span]) -> bool:
        """Rule 4; returns whether it applies."""
        if self.op.name == "arith.select" and len(spans) == 1 and len(self.op._operands) == 3:
            self.to_operand(spans[0], 1)
            return True
        if len(spans) != 1 or not self.types:
            return False
        printed = self.text[spans[0][0] : spans[0][1]]
        if any(known is None or not _fits(printed, known) for known in self.types):
            return False
        self.to_operand(spans[0], 0)
        return True

    def are_in_order(self, spans: list[Span]) -> bool:
        """Returns whether as many types as operands are in the order of the operands.

        They are if each type equals that of its operand, if known.  A different type may still be
        another spelling of it, unless it is the type of another operand.
        """
        for (first, last), known in zip(spans, self.types, strict=True):
            printed = self.text[first:last]
            if known is None or _fits(printed, known):
                continue
            if any(other is not None and _fits(printed, other) for other in self.types):
                return False
        return True

    def bind_by_text(self, spans: list[Span]) -> None:
        """Rule 5."""
        printed = [self.text[first:last] for first, last in spans]
        for span, text in zip(spans, printed, strict=True):
            having = [
                index
                for index, known in enumerate(self.types)
                if known is not None and _fits(text, known)
            ]
            free = [index for index in having if index not in self.bound]
            if free and (self.known or len(having) == printed.count(text)):
                self.to_operand(span, free[0])
            else:
                self.loose.append(text)


def _result_slot(printed: str, full: str, result: OpResult) -> ValueTypeSlot:
    """Returns the slot of a result's type, and sets the result's type."""
    if result._type is None:
        result._type = full
    return ValueTypeSlot(result, PrintedType(printed, result._type))


def _fits(printed: str, full: str) -> bool:
    return printed == full or (printed.startswith("<") and full.endswith(printed))


def bind_types(op: Operation) -> list[Mark]:
    """Returns the type slots of an operation with their offsets; sets its results' types.

    Binding needs the types of operands, so their definitions are bound first, with an explicit
    stack because a chain of definitions can be as long as the text.
    """
    if op._type_marks is not None:
        return op._type_marks.marks
    stack = [op]
    entered: set[Operation] = set()
    while stack:
        top = stack[-1]
        if top._type_marks is not None:
            stack.pop()
        elif top in entered:
            stack.pop()
            top._type_marks = _bind(top)
        else:
            entered.add(top)
            stack.extend(
                operand._holder
                for operand in top._operands
                if operand._type is None and operand._holder not in entered
            )
    assert op._type_marks is not None  # bound last
    return op._type_marks.marks


def _bind(op: Operation) -> TypeMarks:
    """Binds one operation whose operands are bound."""
    bound = TypeMarks([], [])
    if op._successors:
        _bind_branch(op, bound.marks)
    else:
        signature = read_signature(op)
        if signature is not None and op.name in HEADER_TYPES:
            _bind_header(op, signature, bound.marks)
        elif signature is not None:
            binder = _Binder(op, signature)
            binder.bind()
            bound = TypeMarks(binder.marks, binder.loose)
    _derive_results(op)
    return bound


@dataclass(slots=True)
class TypeMarks:
    """The bound slots, and the text of loose types."""

    marks: list[Mark]
    loose: list[str]


def _bind_header(op: Operation, signature: Signature, marks: list[Mark]) -> None:
    """Results, arguments and operands of a structured operation share their types."""
    text = op.source.text
    for span, result in zip(signature.outputs, op._results, strict=False):
        printed = text[span[0] : span[1]]
        marks.append((*span, _result_slot(printed, printed, result)))
    args = op._regions[0]._blocks[0]._args if op._regions else []
    if op.name == "scf.while":
        for index, span in enumerate(signature.inputs[: len(op._operands)]):
            printed = text[span[0] : span[1]]
            marks.append((*span, _operand_slot(op, printed, index)))
            if index < len(args) and args[index]._type is None:
                args[index]._type = printed
    elif op.name == "scf.for" and args:
        induction = "index"
        if signature.induction is not None:
            induction = text[signature.induction[0] : signature.induction[1]]
            slot = ValueTypeSlot(args[0], PrintedType(induction, induction))
            marks.append((*signature.induction, slot))
        if args[0]._type is None:
            args[0]._type = induction
        for arg, result in zip(args[1:], op._results, strict=False):
            if arg._type is None:
                arg._type = result._type


def _operand_slot(op: Operation, printed: str, index: int) -> OperandTypeSlot:
    """Returns the slot of an operand's type, and sets the operand's type if it is unknown."""
    operand = op._operands[index]
    if operand._type is None:
        operand._type = printed
    return OperandTypeSlot(index, PrintedType(printed, operand._type))


def _bind_branch(op: Operation, marks: list[Mark]) -> None:
    """``successor ::= block-name ('(' value-name (',' value-name)* ':' types ')')?``."""
    text = op.source.text
    spans = op._operand_spans or ()
    limit = op._loc[0] if isinstance(op._loc, tuple) else op._span[3]
    index = 0
    count = len(spans) // 2
    while index < count:
        opener = text.rfind("(", op._span[2], spans[2 * index])
        if opener < 0 or lexer.BLOCK_BEFORE.search(text[op._span[2] : opener]) is None:
            index += 1
            continue
        closer = find_group_end(op.source, opener) - 1
        last = index
        while last < count and spans[2 * last] < closer:
            last += 1
        colon = lexer.COLON.match(text, spans[2 * last - 1], limit)
        if colon is not None:
            signature = Signature()
            _read_types(op, signature, colon.end(), closer)
            for number, span in enumerate(signature.inputs[: last - index], index):
                marks.append((*span, _operand_slot(op, text[span[0] : span[1]], number)))
        index = last


def _derive_results(op: Operation) -> None:
    """Gives results the types that the printed form implies but does not show."""
    for result in op._results:
        if result._type is None:
            result._type = _implied_type(result)


def _implied_type(result: OpResult) -> str | None:
    """Returns the type of a result that is not printed, from the rest of its operation."""
    op = result._owner
    name = op.name
    if name in TOKEN_RESULTS:
        return TOKEN
    if name == "arith.constant":
        return "i1"  # true and false are printed without a type
    if name == "ttg.warp_id":
        return "i32"
    if name == "tt.split":
        return op._results[0]._type  # printed once
    index = SAME_AS_OPERAND.get(name, 0)
    if name == "ttng.warp_group_dot_wait":
        index = result.index
    known = op._operands[index]._type if index < len(op._operands) else None
    if known is None:
        return None
    if name in BOOLEAN_RESULT:
        return boolean_like(known)
    if name == "tt.load":
        return pointee_type(known)
    if name == "tt.unsplat":
        return element_type(known)
    return known if _keeps_type(name) else None


def _keeps_type(name: str) -> bool:
    return (
        name in SAME_AS_OPERAND or name in SAME_TYPE or name.partition(".")[0] in SAME_TYPE_DIALECTS
    )


def infer_type(value: Value) -> None:
    """Infers the type of a value whose definition does not show it, if possible."""
    for op in (value._holder, *value._users):
        bind_types(op)
        if value._type is not None:
            return


def is_printed(result: OpResult) -> bool:
    """Returns whether an operation prints the type of a result."""
    slots = (slot for _, _, slot in bind_types(result._owner))
    return any(isinstance(slot, ValueTypeSlot) and slot.value is result for slot in slots)


def implied_type(result: OpResult) -> str | None:
    """Returns the type that an operation implies for a result; ``None`` if printed or unknown."""
    return None if is_printed(result) else _implied_type(result)


def _is_known(op: Operation) -> bool:
    return op.is_quoted or op.name.partition(".")[0] in KNOWN_DIALECTS


def check_implied(result: OpResult, type_: str) -> None:
    """Checks a new type of a result that is not printed against the implied type.

    Raises:
        VerifyError: The operation would still print the old type, or one that implies it.
    """
    from .rules import Facts

    op = result._owner
    if is_printed(result):
        return
    implied = _implied_type(result)
    if implied is None and result._type is None and _is_known(op):
        op.fail(f"'{op.name}' does not print the type of '{result.name}': cannot make it '{type_}'")
    module = op.module
    if not Facts(module.aliases if module is not None else {}).equal(implied, type_):
        op.fail(
            f"'{op.name}' does not print the type of '{result.name}', which is '{implied}' here: "
            f"cannot make it '{type_}'",
            "change the types that it follows from first, or replace the operation",
        )


def ensure_bound(op: Operation, value: Value, old: str) -> None:
    """Binds an operation's types before one of them changes.

    Raises:
        VerifyError: It is ambiguous whether one of them is the type of this value.
    """
    bind_types(op)
    marks = op._type_marks
    assert isinstance(marks, TypeMarks)  # bound above
    if not any(_fits(text, old) for text in marks.loose) or value not in op._operands:
        return
    op.fail(
        f"cannot tell whether the type '{old}' that '{op.name}' prints is that of '{value.name}'",
        "replace the operation by one that is printed with its new types",
    )
