"""Edits of single operations and values: the text, the def-use chains, and nothing else changes."""

from __future__ import annotations

import re

import pytest
from ir_helpers import check_contract, fixture, named, value
from triton_ext.errors import ParseError, VerifyError
from triton_ext.ir import Module, Use, parse


def changed_lines(before: str, after: str) -> list[tuple[str, str]]:
    """The lines that differ, of texts with equally many lines."""
    left, right = before.splitlines(), after.splitlines()
    assert len(left) == len(right)
    return [(a.strip(), b.strip()) for a, b in zip(left, right, strict=True) if a != b]


@pytest.fixture
def memory() -> Module:
    return parse(fixture("memory.ttgir"), "memory.ttgir")


class TestOperands:
    def test_set_operand(self, memory):
        text = str(memory)
        op = named(memory, "tt.extern_elementwise")[0]
        old, new = op.operands[1], op.operands[0]
        op.set_operand(1, new)
        assert changed_lines(text, str(memory)) == [
            (
                "%8 = tt.extern_elementwise %7, %i, %i {" + op.text.split(" {")[1],
                "%8 = tt.extern_elementwise %7, %7, %i {" + op.text.split(" {")[1],
            )
        ]
        assert Use(op, 1) in new.uses
        assert Use(op, 1) not in old.uses
        assert Use(op, 2) in old.uses
        check_contract(memory)

    def test_printed_type_follows_the_new_operand(self):
        module = parse("%a = t.a : i8\n%b = t.b : i16\nt.use %a : i8\n")
        module.body[2].set_operand(0, module.body[1].results[0])
        assert str(module) == "%a = t.a : i8\n%b = t.b : i16\nt.use %b : i16\n"

    def test_same_operand_changes_nothing(self, memory):
        text = str(memory)
        op = named(memory, "tt.call")[0]
        op.set_operand(0, op.operands[0])
        assert str(memory) == text

    def test_no_such_operand(self, memory):
        with pytest.raises(IndexError):
            named(memory, "tt.return")[-1].set_operand(0, value(memory, "%i"))

    def test_replace_all_uses(self, memory):
        module = memory
        old, new = value(module, "%7"), value(module, "%i")
        count = len(old.uses)
        assert count == 1
        old.replace_all_uses_with(new)
        assert old.uses == ()
        assert "extern_elementwise %i, %i, %i" in str(module)
        check_contract(module)


class TestErase:
    def test_takes_comments_and_line_along(self):
        module = parse("t.a\n\n// about b\n%b = t.b : i1 // same line\nt.c\n")
        module.body[1].erase()
        assert str(module) == "t.a\nt.c\n"

    def test_refused_while_used(self, memory):
        op = named(memory, "tt.call")[0]
        with pytest.raises(VerifyError) as caught:
            op.erase()
        assert str(caught.value) == (
            "memory.ttgir:23:5: error: cannot erase 'tt.call': its result '%7' is used\n"
            '    %7 = tt.call @"helper(1,)"(%i) : (i32) -> i32\n'
            "    ^\n"
            "note: used here: memory.ttgir:24:5"
        )

    def test_with_regions(self):
        module = parse(fixture("control.ttgir"))
        loop = named(module, "scf.for")[1]
        step = named(module, "scf.while")[0].results[1]
        assert step.uses
        loop.erase()
        assert step.uses == ()
        assert loop.parent is None
        assert not named(module, "tt.print")
        check_contract(module)

    def test_twice(self):
        module = parse("t.a\nt.b\n")
        op = module.body[0]
        op.erase()
        with pytest.raises(VerifyError, match="not in a block"):
            op.erase()

    def test_aliases_stay_in_front(self):
        module = parse("#a = 1\nt.a\nt.b\n")
        module.body[0].erase()
        assert str(module) == "#a = 1\nt.b\n"
        module.body[0].erase()
        assert str(module) == "#a = 1\n\n"

    def test_replace_with(self, memory):
        marker = named(memory, "tt.extern_elementwise")[0]
        call = named(memory, "tt.call")[0]
        with pytest.raises(VerifyError, match=r"with 1 results by 'tt\.return' with 0"):
            marker.replace_with(named(memory, "tt.return")[-1])
        with pytest.raises(VerifyError, match="which uses its result"):
            call.replace_with(marker)
        marker.set_operand(0, marker.operands[1])
        marker.replace_with(call)
        assert "tt.extern_elementwise" not in str(memory)
        assert "pure = true} %7 : i32" in str(memory)
        check_contract(memory)

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("your.outer", "your.inner", "which is inside of it"),
            ("your.inner", "your.user", "which uses its result"),
            ("your.outer", "your.holder", "which uses its result"),
        ],
    )
    def test_replace_with_is_refused_before_anything_changes(self, old, new, message):
        text = """\
%a = "your.outer"() ({
  %b = "your.inner"() : () -> i1
  %c = "your.user"(%b) : (i1) -> i1
}) : () -> i1
%d = "your.holder"() ({
  "your.user"(%a) : (i1) -> ()
}) : () -> i1
"""
        module = parse(text)
        with pytest.raises(VerifyError, match=message):
            named(module, old)[0].replace_with(named(module, new)[0])
        assert str(module) == text
        check_contract(module)

    def test_replace_with_of_what_is_in_no_block(self):
        module = parse("%a = t.a : i1\n%b = t.b : i1\nt.use %b : i1\n")
        first, second, _ = module.body
        first.erase()
        with pytest.raises(VerifyError, match="it is not in a block"):
            first.replace_with(second)


class TestSetType:
    def test_every_printed_mention(self, memory):
        named(memory, "ttg.local_alloc")[0].results[0].set_type("!new<box>")
        text = str(memory)
        assert text.count("!new<box>") == 3
        assert text.count("!ttg.memdesc<64x64xf16, #shared, #smem, mutable>") == 0

    def test_short_form_keeps_being_short(self, memory):
        memory.add_alias("#other", "#t.other")
        value(memory, "%2").set_type("!ttg.memdesc<64x64xf16, #other, #smem, mutable>")
        text = str(memory)
        assert "-> <64x64xf16, #other, #smem, mutable>" in text
        assert "() -> !ttg.memdesc<64x64xf16, #other, #smem, mutable>" in text

    def test_function_argument_and_its_users(self, memory):
        value(memory, "%d").set_type("!tt.tensordesc<64x64xf16, #shared>")
        text = str(memory)
        assert "tensordesc_im2col" not in text
        assert text.count("!tt.tensordesc<64x64xf16, #shared>") == 4

    def test_captures_and_partition_arguments(self):
        module = parse(fixture("warp_specialize.ttgir"))
        op = named(module, "ttg.warp_specialize")[0]
        text = str(module)
        value(module, "%a_desc").set_type("!t.new")
        for region in op.regions[1:]:
            region.blocks[0].args[2].set_type("!t.new")
        assert str(module) == text.replace("!tt.tensordesc<64x64xf16, #shared>", "!t.new")

    def test_loop_carried(self):
        module = parse(fixture("control.ttgir"))
        loop = named(module, "scf.for")[0]
        old = loop.results[0].type
        for one in (loop.results[0], loop.regions[0].blocks[0].args[1], value(module, "%1#0")):
            one.set_type("!t.new")
        named(module, "arith.select")[0].results[0].set_type("!t.new")
        text = str(module)
        assert "iter_args(%acc = %1#0) -> (!t.new)  : i32 {" in text
        assert "arith.select %0, %acc, %1#0 : !t.new" in text
        assert "scf.yield %3 : !t.new loc" in text
        assert old in text

    def test_label_argument(self):
        module = parse(fixture("quoted.ttgir"))
        value(module, "%z").set_type("f64")
        assert "^bb2(%z: f64 loc(unknown)):  // 2 preds: ^bb0, ^bb1" in str(module)

    def test_branch_operand(self):
        module = parse(fixture("quoted.ttgir"))
        label = named(module, "cf.br")[0].operands[0]
        label.set_type("f64")
        assert "^bb1(%3: f64 loc(unknown)):  // pred: ^bb0" in str(module)
        assert "cf.br ^bb2(%3 : f64)" in str(module)

    def test_only_the_spelling_of_changed_types_changes(self):
        text = "%a = t.a : !t<#x>\nt.use %a : !t<#long>\n"
        module = parse(text)
        module.body[1].set_attribute("n", "1")
        assert str(module) == "%a = t.a : !t<#x>\nt.use %a {n = 1} : !t<#long>\n"

    @pytest.mark.parametrize(
        ("line", "type_", "implied"),
        [
            ("%r = arith.cmpi eq, %x, %x : i32", "i32", "i1"),
            ("%r = arith.constant true", "i32", "i1"),
            ("%r = arith.addi %x, %x : i32", "i64", "i32"),
            ("%r = ttg.async_commit_group", "i32", "!ttg.async.token"),
            ("%r = ttg.warp_id", "i64", "i32"),
        ],
    )
    def test_a_type_that_is_not_printed_has_to_follow(self, line, type_, implied):
        text = f"module {{\n  tt.func @f(%x: i32) {{\n    {line}\n    tt.return\n  }}\n}}\n"
        module = parse(text, "f")
        result = value(module, "%r")
        result.set_type(implied)
        with pytest.raises(VerifyError, match=f"'%r', which is '{implied}'") as caught:
            result.set_type(type_)
        assert caught.value.line == 3
        assert result.type == implied
        assert str(module) == text

    def test_a_type_that_is_not_printed_follows_the_operands(self):
        module = parse(
            "#a = 1\n%x = t.a : tensor<4xi32>\n%r = arith.cmpi eq, %x, %x : tensor<4xi32>"
        )
        value(module, "%x").set_type("tensor<4xi64, #a>")
        value(module, "%r").set_type("tensor<4xi1, 1>")
        assert "arith.cmpi eq, %x, %x : tensor<4xi64, #a>" in str(module)

    def test_the_second_half_of_a_split_has_the_type_of_the_first(self):
        module = parse("%x = t.a : i1\n%a, %b = tt.split %x : i1 -> i2")
        first, second = module.body[1].results
        with pytest.raises(VerifyError, match="does not print the type of '%b'"):
            second.set_type("i3")
        first.set_type("i3")
        second.set_type("i3")
        assert str(module).endswith("tt.split %x : i1 -> i3")

    def test_ambiguous_type_of_an_unknown_operation_is_refused(self):
        text = "%a, %b = t.a : i8, i8\n%c = t.b : i1\nother.op %a, %b, %c : i8, i1 -> i2\n"
        module = parse(text.replace("%a, %b = t.a : i8, i8", "%a, %b = t.a : () -> (i8, i8)"), "f")
        a = module.body[0].results[0]
        assert a.type == "i8"
        with pytest.raises(VerifyError, match="cannot tell whether the type 'i8'") as caught:
            a.set_type("i16")
        assert caught.value.line == 3
        # Another value of the same operation is not affected.
        module.body[1].results[0].set_type("i3")
        assert "%a, %b, %c : i8, i3 -> i2" in str(module)


def test_everything_with_another_type_leaves_no_old_one(corpus, host):
    """Spells out the aliases in every type: no printed mention may be left behind."""
    newest = corpus[-1].parts[-3]
    if not host.version.startswith(newest):
        pytest.skip(f"the corpus has {newest} as its newest host, this one is {host.version}")
    alias = re.compile(r"#[A-Za-z]\w*(?![\w.])")
    for path in [p for p in corpus if p.parts[-3] == newest and p.suffix == ".ttgir"][::12]:
        text = path.read_text()
        module = parse(text, str(path))
        known = {k: v for k, v in module.aliases.items() if not k.startswith("#loc")}

        def expand(raw: str, known: dict[str, str] = known) -> str:
            longer = alias.sub(lambda match: known.get(match[0], match[0]), raw)
            return raw if longer == raw else expand(longer, known)

        for op in list(module.walk()):
            values = [*op.results, *(a for r in op.regions for b in r.blocks for a in b.args)]
            for one in values:
                one.set_type(expand(one.type))
        after = str(module)
        body = after[after.index("\nmodule") :]
        assert not [name for name in alias.findall(body) if name in known], path
        assert host.text(after) == host.text(text)


class TestAttributes:
    def test_change_add_remove(self, memory):
        op = named(memory, "tt.extern_elementwise")[0]
        op.set_attribute("pure", "false")
        op.set_attribute("other.name", "dense<[1, 2]> : tensor<2xi32>")
        op.set_attribute("with space", "unit")
        op.remove_attribute("libpath")
        assert (
            '%8 = tt.extern_elementwise %7, %i, %i {libname = "lib", pure = false,'
            ' symbol = "im2col.pixel", other.name = dense<[1, 2]> : tensor<2xi32>, "with space"}'
            " : (i32, i32, i32) -> i32"
        ) in str(memory)
        assert dict(op.attributes)["other.name"] == "dense<[1, 2]> : tensor<2xi32>"
        check_contract(memory)
        for name in list(op.attributes):
            op.remove_attribute(name)
        assert "tt.extern_elementwise %7, %i, %i  : (i32" in str(memory)
        op.set_attribute("pure", "true")
        assert dict(op.attributes) == {"pure": "true"}
        with pytest.raises(KeyError):
            op.remove_attribute("libname")

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("t.a", "t.a {n = 1}"),
            ("t.a loc(unknown)", "t.a {n = 1} loc(unknown)"),
            ("t.a : () -> ()", "t.a : () -> () {n = 1}"),
            ("%x = t.a {} : i1", "%x = t.a {n = 1} : i1"),
            ("%x = t.a : i1 loc(unknown)", "%x = t.a {n = 1} : i1 loc(unknown)"),
            ("t.a {\n  t.b\n}", "t.a {\n  t.b\n} {n = 1}"),
            ('"t.a"() : () -> ()', '"t.a"() {n = 1} : () -> ()'),
            ('"t.a"() ({\n  t.b\n}) : () -> ()', '"t.a"() ({\n  t.b\n}) {n = 1} : () -> ()'),
            ('"t.a"() <{m}> : () -> ()', '"t.a"() <{m, n = 1}> : () -> ()'),
            ('"t:(.a"() : () -> ()', '"t:(.a"() {n = 1} : () -> ()'),
            ('"t.a"() [":("] : () -> ()', '"t.a"() [":("] {n = 1} : () -> ()'),
            ("%x = scf.condition : i1", "%x = scf.condition {n = 1} : i1"),
            ("t.a // c", "t.a {n = 1} // c"),
            ("return // c d e f g", "return {n = 1} // c d e f g"),
            ("tt.func private @f() // c", "tt.func private @f() attributes {n = 1} // c"),
            ('"t.a"() // : (\n : () -> ()', '"t.a"() // : (\n {n = 1} : () -> ()'),
            ("func.call @f() // :(\n : () -> ()", "func.call @f() // :(\n {n = 1} : () -> ()"),
            ("func.func @f() // {\n {\n}", "func.func @f() // {\n attributes {n = 1} {\n}"),
            ("t.a {m = 1 // c, d\n}", "t.a {m = 1, n = 1 // c, d\n}"),
            ("t.a {m = 1, // c, d\n o = 2}", "t.a {m = 1, // c, d\n o = 2, n = 1}"),
            ('"t.a"() <{ // c\n}> : () -> ()', '"t.a"() <{n = 1 // c\n}> : () -> ()'),
        ],
    )
    def test_new_dictionary(self, before, after):
        module = parse(before)
        module.body[0].set_attribute("n", "1")
        assert str(module) == after
        assert dict(module.body[0].attributes)["n"] == "1"

    def test_a_default_region_behind_a_comment(self):
        text = """\
tt.func @f() {
  ttg.warp_specialize() // default {
  // default {
  default {
    ttg.warp_yield
  } : () -> ()
  tt.return
}
"""
        module = parse(text)
        op = named(module, "ttg.warp_specialize")[0]
        op.set_attribute("n", "1")
        assert str(module) == text.replace("\n  default {", "\n attributes {n = 1}  default {")
        assert dict(named(parse(str(module)), op.name)[0].attributes) == {"n": "1"}

    def test_a_comma_with_nothing_behind_it_is_refused(self):
        with pytest.raises(ParseError, match="expected another attribute behind this comma"):
            parse("t.a {m = 1, }").body[0].set_attribute("n", "1")

    def test_of_a_quoted_branch(self, host):
        host.needs_present_syntax()
        module = parse(fixture("quoted.ttgir"))
        named(module, "cf.cond_br")[0].set_attribute("test.n", "0 : i32")
        assert "<{operandSegmentSizes = array<i32: 1, 1, 1>}> {test.n = 0 : i32} : (i1, f32" in str(
            module
        )
        host.text(str(module))

    def test_refused_where_the_syntax_has_none(self):
        module = parse('"ttg.barrier"() {n = 0} : () -> ()\nttg.barrier local loc(unknown)\n', "f")
        text = str(module)
        quoted, custom = module.body
        with pytest.raises(VerifyError, match="its syntax has no attribute dictionary") as caught:
            custom.set_attribute("n", "1")
        assert caught.value.line == 2
        assert str(module) == text
        quoted.set_attribute("n", "1")
        assert str(module) == text.replace("n = 0", "n = 1")


class TestLocations:
    def test_set_and_add(self):
        module = parse("t.a loc(#loc1)\nt.b // c\nt.c\n#loc2 = loc(unknown)\n")
        for op in module.body:
            op.set_loc("#loc2")
        assert str(module) == (
            "t.a loc(#loc2)\nt.b loc(#loc2) // c\nt.c loc(#loc2)\n#loc2 = loc(unknown)\n"
        )
        assert [op.loc_text for op in module.body] == ["loc(#loc2)"] * 3


class TestAliases:
    def test_new_alias_goes_in_front_of_the_module(self):
        module = parse("#a = #x.y<1>\nmodule {\n}\n#loc = loc(unknown)\n")
        assert module.add_alias("#a", "#x.y<1>") == "#a"
        assert module.add_alias("#a", "#x.y<2>") == "#a1"
        assert module.add_alias("#b", "#x.y<#a1>") == "#b"
        assert str(module) == (
            "#a = #x.y<1>\n#a1 = #x.y<2>\n#b = #x.y<#a1>\nmodule {\n}\n#loc = loc(unknown)\n"
        )
        assert parse(str(module)).aliases["#b"] == "#x.y<#a1>"

    def test_without_a_module_operation(self):
        module = parse("\n#a = 1\nt.a\nt.b\n")
        module.add_alias("#b", "2")
        assert str(module) == "\n#a = 1\n#b = 2\nt.a\nt.b\n"


IMPLIED = """\
// A comment.
#s = 1 : i32
#loc = loc("x.py":1:1)
// About f.
tt.func public @f() {
  tt.return {a = #s} loc(#loc2)
} loc(#loc)
#loc1 = loc("x.py":2:1)
tt.func public @g() {
  tt.return loc(#loc1)
} loc(#loc)
#loc2 = loc("x.py":3:1)
"""


@pytest.mark.parametrize(
    "text", [IMPLIED, 'tt.func @f() {\n}\n"other.op"() : () -> ()\n', "", "\n"]
)
def test_a_module_that_is_implied_is_printed_once_it_has_an_attribute(text):
    module = parse(text)
    module.op.set_attribute("ttg.shared", "0 : i32")
    again = parse(str(module))
    assert dict(again.op.attributes) == {"ttg.shared": "0 : i32"}
    assert "module attributes {ttg.shared = 0 : i32} {" in str(module)
    assert [op.name for op in again.walk()] == [op.name for op in module.walk()]
    assert dict(again.aliases) == dict(parse(text).aliases)
    # No alias is defined inside, where MLIR has none.
    first, last = str(module).split("module", 1)[1].split("{\n", 1)[1], str(module).rfind("}")
    assert "\n#" not in first[: last - len(str(module)) + 1]
    module.op.set_attribute("ttg.shared", "1 : i32")
    module.op.set_attribute("ttg.target", '"cuda:90"')
    module.add_alias("#added", "2 : i32")
    again = parse(str(module))
    assert dict(again.op.attributes) == {"ttg.shared": "1 : i32", "ttg.target": '"cuda:90"'}
    assert str(module).index("#added") < str(module).index("module")


def test_a_module_that_is_implied_has_no_attribute_to_remove():
    module = parse(IMPLIED)
    with pytest.raises(KeyError):
        module.op.remove_attribute("ttg.shared")
    assert str(module) == IMPLIED


def test_a_location_behind_a_function_with_a_comment_in_its_header():
    text = "module {\n  tt.func @f(%x: i32, // one\n    %y: i32) {\n    tt.return\n  }\n}\n"
    module = parse(text)
    _, function, leave = module.walk()
    leave.set_loc("loc(unknown)")
    function.set_loc("loc(unknown)")
    edited = text.replace("return", "return loc(unknown)").replace("  }", "  } loc(unknown)")
    assert str(module) == edited
    assert str(parse(edited)) == edited


@pytest.mark.parametrize("types", ["(i32, i32)", "(i1, i1)", "(i32, i1)"])
def test_types_of_an_external_call_are_those_of_its_operands(types):
    text = (
        "module {\n  tt.func @f(%x: i1, %y: i32) {\n"
        '    %a = tt.extern_elementwise %x, %y {libname = "", libpath = "", pure = true, '
        f'symbol = "s"}} : {types} -> i32\n    tt.return\n  }}\n}}\n'
    )
    with pytest.raises(VerifyError, match=r"prints the type 'i(1|32)' for '%[xy]'"):
        parse(text).verify()
    parse(text.replace(types, "(i1, i32)")).verify()
