"""Edits with a text that would not be read back, or with something that is no text, value or place.

Each is refused at the edit, by name, and changes nothing; what is accepted is read back, and by the
host too.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triton_ext import host
from triton_ext.errors import ParseError, SourceError, VerifyError
from triton_ext.ir import (
    Builder,
    parse,
    parse_attribute,
    parse_type,
    rename,
    set_function_results,
)

TEXT = """\
#known = loc("k":1:1)
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
  tt.func @f(%x: i32, %p: !tt.ptr<f32>) -> i32 {
    %a = arith.addi %x, %x : i32
    tt.return %a : i32
  }
}
"""


@pytest.fixture
def module():
    return parse(TEXT, "m.ttgir")


def find(module, name):
    return next(op for op in module.walk() if op.name == name)


ATTRIBUTES = {
    '"x': "expected '\"'",
    "}": "unexpected '}'",
    "": "it is empty",
    "  ": "it is empty",
    "unit // x": "it has a comment",
    "#foo": "alias '#foo' is not defined",
    "[#foo]": "alias '#foo' is not defined",
    "dense<1> : tensor<4xi32, #foo>": "alias '#foo' is not defined",
    "1 : i32, b = 2 : i32": "unexpected ','",
    "1 2": "expected the end, found '2'",
    "1 : ": "expected a type",
    "[1, 2": r"expected '\]'",
    "[1, 2)": r"expected '\]', found '\)'",
    "1\n": "unexpected",
    "-": "expected a number",
    "%x": "unexpected '%'",
}


@pytest.mark.parametrize("name", ["arith.addi", "tt.func"])
@pytest.mark.parametrize("text", ATTRIBUTES)
def test_attributes(module, name, text):
    op = find(module, name)
    with pytest.raises(VerifyError, match=ATTRIBUTES[text]) as caught:
        op.set_attribute("a", text)
    assert caught.value.message.startswith(f"cannot set attribute 'a' of '{name}' to '{text}': ")
    assert (caught.value.filename, caught.value.line > 0) == ("m.ttgir", True)
    assert str(module) == TEXT


@pytest.mark.parametrize("name", ["", '"q"', "a\nb", "a\\"])
def test_names_of_attributes(module, name):
    with pytest.raises(VerifyError, match="expected its name, without quotes"):
        find(module, "arith.addi").set_attribute(name, "unit")
    assert str(module) == TEXT


GOOD_ATTRIBUTES = [
    "unit",
    "1 : i32",
    "-1 : i64",
    "1.000000e+00 : f32",
    '"a // b } \\22"',
    "@f",
    "@f::@g",
    "true",
    "[1 : i32, {a, b = 2 : i8}]",
    "{}",
    "dense<[1, 2]> : tensor<2xi32>",
    "array<i32: 1, 2>",
    "(i32, f32) -> i1",
    "!tt.ptr<f32>",
    "#ttg.shared_memory",
    "#ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>",
    "loc(unknown)",
    "affine_map<(d0) -> (d0 + 1)>",
    "[1 : i32, // why\n 2 : i32]",
]


@pytest.mark.parametrize("text", GOOD_ATTRIBUTES)
@pytest.mark.parametrize("name", ["tt.a", "a b", "é"])
def test_attributes_that_are_read_back(module, name, text):
    find(module, "tt.func").set_attribute(name, text)
    module.verify()
    assert find(parse(str(module)), "tt.func").attributes[name] == text
    host.verify(module)


LOCATIONS = {
    "loc(": "found the end",
    "loc()": r"found '\)'",
    "": r"found '\)'",
    "loc(#l)": "alias '#l' is not defined",
    "loc(fused[#known, #l])": "alias '#l' is not defined",
    'loc("a" at)': "expected one location",
    'loc("f":-1:2)': "expected a line and a column",
    'loc("f":1:2) loc("g":1:1)': "expected one location",
    'loc("f":1:2) // c': "expected one location",
    'loc(callsite("a" "b"))': "expected 'at' and the caller",
    'loc(fused["a", ])': "expected 'unknown', an alias",
    'loc("a)': "expected 'unknown', an alias",
    "loc(nowhere)": "expected 'unknown', an alias",
    "loc(#)": "expected the name of an alias",
}


@pytest.mark.parametrize("text", LOCATIONS)
def test_locations(module, text):
    op, arg = find(module, "arith.addi"), find(module, "tt.func").regions[0].blocks[0].args[0]
    with pytest.raises(VerifyError, match=LOCATIONS[text]) as caught:
        op.set_loc(text)
    raw = text or "loc()"
    assert caught.value.message.startswith(f"cannot make '{raw}' the location of 'arith.addi': ")
    with pytest.raises(VerifyError, match="the location of '%x': "):
        arg.set_loc(text)
    with pytest.raises(VerifyError, match="the location of new operations: "):
        Builder.before(op).parse("%b = arith.constant 1 : i32", loc=text)
    assert str(module) == TEXT


GOOD_LOCATIONS = [
    "unknown",
    "#known",
    '"f":1:2',
    '"f":1:2 to 3:4',
    '"f":1:2 to :4',
    '"a"',
    '"a"("f":1:2)',
    '"a"(#known)',
    'callsite("a" at "b")',
    'callsite(#known at callsite("b" at "f":1:2))',
    'fused["a", "b"(#known)]',
    'fused<"meta">["a", #known]',
    "fused[#known]",
]


@pytest.mark.parametrize("text", GOOD_LOCATIONS)
def test_locations_that_are_read_back(module, text):
    op, arg = find(module, "arith.addi"), find(module, "tt.func").regions[0].blocks[0].args[0]
    op.set_loc(text)
    arg.set_loc(f"loc({text})")
    again = parse(str(module))
    assert find(again, "arith.addi").loc_text == f"loc({text})"
    host.verify(module)


@given(st.text(alphabet='loc()"":1 2fused[],callsite at#known<>unknown{}//\\\n', max_size=30))
def test_what_is_accepted_is_read_back(text):
    module = parse(TEXT)
    op = find(module, "arith.addi")
    for edit in (op.set_loc, lambda text: op.set_attribute("a", text), module_alias(module)):
        try:
            edit(text)
        except SourceError:
            continue
        again = find(parse(str(module)), "arith.addi")
        assert (again.loc_text, again.attributes) == (op.loc_text, op.attributes)


def module_alias(module):
    return lambda text: module.add_alias("#new", text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(", r"expected '\)'"),
        ("", "it is empty"),
        ("i32, i32", "unexpected ','"),
        ("i32 x", "it is not one type"),
        ("tensor<4xf32", "expected '>'"),
        ("tensor<4xf32, #nope>", "alias '#nope' is not defined"),
        ("!nope", "alias '!nope' is not defined"),
        ('i32 loc("x")', "it is not one type"),
    ],
)
def test_types(module, text, said):
    function = find(module, "tt.func")
    with pytest.raises(VerifyError, match=said):
        function.regions[0].blocks[0].args[1].set_type(text)
    with pytest.raises(VerifyError, match=f"the type of result 0 of 'tt.func': {said}"):
        set_function_results(function, [text])
    with pytest.raises(VerifyError, match=f"the type of result 0 of 't.a': {said}"):
        Builder.before(find(module, "arith.addi")).create("t.a", (), [text])
    assert str(module) == TEXT


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("blocked", "1 : i32", "expected '#'"),
        ("#a b", "1", "expected '#'"),
        ("#a.b", "1", "expected '#'"),
        ("", "1", "expected '#'"),
        ("#q", "}", "unexpected '}'"),
        ("#x", "1 : i32\n#y = 2", "unexpected"),
        ("!t", "i32 x", "it is not one type"),
        ("#l", "loc(", "found the end"),
    ],
)
def test_aliases(module, name, text, said):
    with pytest.raises(VerifyError, match=f"(?s)alias '{name}'.*{said}"):
        module.add_alias(name, text)
    assert str(module) == TEXT


@pytest.mark.parametrize(
    ("types", "text", "said"),
    [
        (["i32"], "{results} = arith.addi {0}, {nope} : i32", "'{nope}' is not a slot"),
        (["i32"], "{results} = arith.addi {nope}, {0} : i32", "'{nope}' is not a slot"),
        (["i32"], "{results} = arith.addi {0}, {1.typ} : i32", "'{1.typ}' is not a slot"),
        (["i32"], "{results} = arith.addi {0}, {0} : i32", "operand 1 has no '{1}'"),
        (["i32"], "{results} = arith.addi {0}, {5} : i32", "'{5}' exceeds the last operand"),
        (["i32", "i32"], "{results} = arith.addi {0}, {1} : i32", "has one result, found 2"),
    ],
)
def test_templates(module, types, text, said):
    op = find(module, "arith.addi")
    with pytest.raises(VerifyError) as caught:
        Builder.before(op).create("arith.addi", op.operands, types, text)
    assert said in caught.value.message
    assert str(module) == TEXT


def test_attributes_of_the_quoted_form(module):
    builder = Builder.before(find(module, "arith.addi"))
    for name, text in (("a", "}"), ("a", "#foo"), ('"q"', "unit")):
        with pytest.raises(VerifyError, match=r"cannot set .* of 't\.a'"):
            builder.create("t.a", attributes={name: text})
    assert str(module) == TEXT
    made = builder.create("t.a", attributes={"a b": "1 : i32", "c": "unit"})
    assert str(made) == '"t.a"() {"a b" = 1 : i32, c} : () -> ()'


def test_a_dictionary_is_no_slot(module):
    op = find(module, "arith.addi")
    made = Builder.before(op).create(
        "arith.addi", op.operands, ["i32"], "{results} = arith.addi {0}, {1} {quick} : i32"
    )
    assert made.attributes == {"quick": "unit"}


def test_the_quoted_form_needs_types():
    for text in ('"a"()', '%x = "a"() {b = 1}', '"a"() ({\n}) loc(unknown)', '"a"()[^b]'):
        with pytest.raises(ParseError, match="expected ':' followed by operation type") as caught:
            parse(text)
        assert caught.value.column == text.index('"') + 1


def test_one_result(module):
    several = parse(TEXT.replace("%a =", "%a:2 =").replace("%a :", "%a#1 :"))
    with pytest.raises(VerifyError, match=r"'arith\.addi' defines 1 result, and the text names 2"):
        several.verify()
    with pytest.raises(VerifyError, match="defines 1 results but was provided 2 to bind"):
        host.verify(several)


class TestTypesOfArguments:
    """What Python would complain about deep inside is refused with the argument's name."""

    def test_values(self, module):
        op = find(module, "arith.addi")
        with pytest.raises(TypeError, match=r"a Value for operand 0 of 'arith\.addi', found '%c0'"):
            op.set_operand(0, "%c0")
        with pytest.raises(TypeError, match="a Value to replace '%a', found None"):
            op.results[0].replace_all_uses_with(None)
        with pytest.raises(TypeError, match=r"a Value as operand of 't\.a', found 'x'"):
            Builder.before(op).create("t.a", "x")
        assert str(module) == TEXT

    def test_places(self, module):
        op = find(module, "arith.addi")
        with pytest.raises(
            IndexError, match=r"'arith\.addi' has 2 operands, there is no operand 7"
        ):
            op.set_operand(7, op.operands[0])
        with pytest.raises(KeyError, match=r"'arith\.addi' has no attribute 'nope'"):
            op.remove_attribute("nope")

    def test_texts(self, module):
        op, function = find(module, "arith.addi"), find(module, "tt.func")
        cases = [
            (lambda: op.results[0].set_type(3), "the type of '%a', found 3"),
            (lambda: op.set_loc(None), r"the location of 'arith\.addi', found None"),
            (lambda: function.regions[0].blocks[0].args[0].set_loc(3), "the location of '%x'"),
            (lambda: op.set_attribute("a", 3), r"attribute 'a' of 'arith\.addi', found 3"),
            (lambda: op.set_attribute(None, "1"), "the name of an attribute of 'arith"),
            (lambda: rename(op.results[0], None), "the name of '%a', found None"),
            (lambda: Builder.before(op).parse(None), "the operations to make, found None"),
            (lambda: Builder.before(op).create("t.a", (), "i32"), "a list of result types of 't"),
            (lambda: set_function_results(function, "i32"), "a list of types for the results"),
            (lambda: set_function_results(function, [3]), r"result 0 of 'tt\.func', found 3"),
            (lambda: set_function_results(function, None), "a list of types for the results"),
            (lambda: module.add_alias(3, "x"), "the name of an alias, found 3"),
            (lambda: parse(None), "the text of a module, found NoneType"),
            (lambda: parse(b"module {}"), "the text of a module, found bytes"),
            (lambda: parse_type(None), "a type, found None"),
            (lambda: parse_attribute(3), "an attribute, found 3"),
        ]
        for call, said in cases:
            with pytest.raises(TypeError, match=said):
                call()
        assert str(module) == TEXT

    def test_an_erased_operation(self, module):
        op = find(module, "arith.addi")
        value = op.operands[0]
        op.results[0].replace_all_uses_with(value)
        op.erase()
        after = str(module)
        for edit in (
            lambda: op.set_operand(0, value),
            lambda: op.set_attribute("a", "1"),
            lambda: op.remove_attribute("a"),
            lambda: op.set_loc("unknown"),
        ):
            with pytest.raises(VerifyError, match=r"cannot .* of 'arith\.addi': it was erased"):
                edit()
        assert str(module) == after
