"""Properties of the tree over generated modules, and over damaged ones."""

from __future__ import annotations

import os

from hypothesis import given, settings
from hypothesis import strategies as st
from llvm_helpers import read
from triton_ext.errors import ParseError
from triton_ext.llvm_ir import Binary, Call, Freeze, Phi, Select, parse

EXAMPLES = 2000 if os.environ.get("TRITON_EXT_NIGHTLY") == "1" else 150
FORMS = read("forms.ll")

plain = st.from_regex(r"[a-zA-Z$._][a-zA-Z$._0-9]{0,6}|[0-9]{1,3}", fullmatch=True)
quoted = st.from_regex(r'"[ a-z;,(){}\[\]=%@!\\0-9]{1,8}"', fullmatch=True)
names = st.one_of(plain, quoted)
types = st.sampled_from(
    ["i32", "i1", "ptr", "ptr addrspace(3)", "<2 x i32>", "{ i32, [2 x i8] }", "[3 x half]"]
)
constants = st.one_of(
    st.sampled_from(["0", "-1", "poison", "undef", "true", "zeroinitializer", "1.5e+00"]),
    st.sampled_from(["0xH3C00", "splat (i32 7)", "<i32 1, i32 2>"]),
    st.just("getelementptr (i8, ptr addrspace(3) @s, i32 8)"),
)
attributes = st.sampled_from(
    ["", "noundef ", "nonnull align 16 ", "captures(none) ", 'range(i32 0, 8) "a"="b;(" ']
)
comments = st.sampled_from(["", " ; why", '  ; "odd ( quote', ", !dbg !7", ", !dbg !7, !prof !8"])
leads = st.lists(st.sampled_from(["\n", "  ; a comment }\n", "; {\n"]), max_size=2)


@st.composite
def instructions(draw, defined):
    """An instruction, what a view has to read from it, and the lines in front of it."""
    value = st.one_of(st.sampled_from(defined), constants) if defined else constants
    kind = draw(st.sampled_from(["call", "asm", "phi", "select", "binary", "freeze", "store"]))
    a, b, condition = draw(value), draw(value), draw(value)
    if kind in ("call", "asm"):
        args = draw(st.lists(st.tuples(types, attributes, value), max_size=4))
        text = ", ".join(f"{t} {attribute}{v}" for t, attribute, v in args)
        callee = f"@{draw(names)}" if kind == "call" else 'asm sideeffect "$0 {x}; ,(", "r,r"'
        meaning = [(t, v) for t, _, v in args]
        body = f"call {draw(types)} {callee}({text}){draw(st.sampled_from(['', ' #1']))}"
    elif kind == "phi":
        labels = draw(st.lists(names, min_size=1, max_size=3))
        rows = [(draw(value), f"%{label}") for label in labels]
        body = f"phi {draw(types)} " + ", ".join(f"[ {v}, {label} ]" for v, label in rows)
        meaning = rows
    elif kind == "select":
        body, meaning = f"select i1 {condition}, i32 {a}, i32 {b}", [condition, a, b]
    elif kind == "binary":
        flag = draw(st.sampled_from(["add", "add nsw", "or disjoint", "sub nuw nsw"]))
        body, meaning = f"{flag} i32 {a}, {b}", [a, b]
    elif kind == "freeze":
        body, meaning = f"freeze i32 {a}", [a]
    else:
        body, meaning = f"store i32 {a}, ptr {b}, align 4", []
    result = "" if kind in ("store", "asm") else f"%{draw(names)}"
    line = f"  {result} = {body}" if result else f"  {body}"
    return kind, result, line + draw(comments) + "\n", meaning, "".join(draw(leads))


@st.composite
def functions(draw):
    """Text of a module with one function, and what is in its blocks."""
    expected, defined = [], []
    text = "define void @f(ptr byval([128 x i8]) %0) #0 {\n"
    for number in range(draw(st.integers(1, 3))):
        label = "" if number == 0 and draw(st.booleans()) else draw(names)
        if label:
            text += f"{''.join(draw(leads))}{label}:   ; preds = %x\n"
        block = []
        for _ in range(draw(st.integers(0, 4))):
            made = draw(instructions(defined))
            block.append(made)
            text += made[4] + made[2]
            defined += [made[1]] if made[1] else []
        text += "  br label %x\n"
        expected.append((f"%{label}" if label else "", block))
    return f"{text}{''.join(draw(leads))}}}\n", expected


def meaning_of(kind, one):
    if kind in ("call", "asm"):
        return [(arg.type, arg.text) for arg in Call.match(one).args]
    if kind == "phi":
        phi = Phi.match(one)
        return [(a.text, b) for a, b in zip(phi.incoming, phi.labels, strict=True)]
    if kind == "select":
        select = Select.match(one)
        return [select.condition.text, select.on_true.text, select.on_false.text]
    if kind == "binary":
        binary = Binary.match(one)
        return [binary.left.text, binary.right.text]
    return [Freeze.match(one).value.text] if kind == "freeze" else []


@settings(max_examples=EXAMPLES, deadline=None)
@given(functions())
def test_generated_functions_are_read_as_written(generated):
    text, expected = generated
    module = parse(text)
    assert str(module) == text
    (function,) = module.functions
    assert [block.label for block in function.blocks] == [label for label, _ in expected]
    for block, (_, wanted) in zip(function.blocks, expected, strict=True):
        *instructions, _end = block.instructions
        for one, (kind, result, line, meaning, lead) in zip(instructions, wanted, strict=True):
            assert (one.text, one.lead, one.result) == (line, lead, result)
            assert meaning_of(kind, one) == meaning
        for one in instructions:
            assert one.uses(one.result) == () or one.result in one.text[one.body_start :]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_damaged_modules_are_read_back_or_refused(data):
    """Whatever is taken out, doubled or put in: the text comes back, or an error with a place."""
    start = data.draw(st.integers(0, len(FORMS)))
    end = data.draw(st.integers(start, min(len(FORMS), start + 200)))
    put = data.draw(st.sampled_from(["", '"', "{", "}", "(", "]", ";", "\n", "%1 = ", "define "]))
    text = FORMS[:start] + put + FORMS[end:]
    module, error = attempt(parse, text, "damaged.ll")
    if error is not None:
        assert 1 <= error.line <= text.count("\n") + 1
        assert error.column >= 1
        assert error.source_line is not None
        return
    assert str(module) == text
    for function in module.functions:
        for one in function.instructions():
            for view in (Call, Phi, Select, Binary, Freeze):
                _, error = attempt(view.match, one)
                assert error is None or one.line <= error.line <= one.line + one.text.count("\n")


def attempt(function, *arguments):
    """What a function returns, and the error that it raised instead."""
    try:
        return function(*arguments), None
    except ParseError as error:
        return None, error
