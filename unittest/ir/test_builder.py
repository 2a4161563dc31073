"""New operations: text, names, places, locations, and what is refused."""

from __future__ import annotations

import pytest
from ir_helpers import check_contract, fixture, named, value
from triton_ext.errors import ParseError, VerifyError
from triton_ext.ir import Builder, Location, Use, clone, parse


@pytest.fixture
def memory():
    return parse(fixture("memory.ttgir"), "memory.ttgir")


def test_template(memory):
    marker = named(memory, "tt.extern_elementwise")[0]
    i = marker.operands[1]
    op = Builder.before(marker).create(
        "arith.trunci", [i], ["i16"], text="{results} = arith.trunci {0} : {0.type} to i16"
    )
    assert op.text == "%trunci = arith.trunci %i : i32 to i16"
    assert op.results[0].type == "i16"
    assert op.results[0].uses == ()
    assert Use(op, 0) in i.uses
    assert marker.parent.ops.index(op) + 1 == marker.parent.ops.index(marker)
    assert "\n    %trunci = arith.trunci %i : i32 to i16\n    %8 = " in str(memory)
    check_contract(memory)


def test_replaces_while_walking():
    module = parse("tt.func @f(%a: i32) {\n  %q = arith.divsi %a, %a : i32\n  t.use %q : i32\n}\n")
    for op in module.walk():
        if op.name == "arith.divsi":
            new = Builder.before(op).create(
                "arith.divui",
                op.operands,
                [op.results[0].type],
                text="{results} = arith.divui {0}, {1} : {results.type}",
            )
            op.replace_with(new)
    assert str(module) == (
        "tt.func @f(%a: i32) {\n  %divui = arith.divui %a, %a : i32\n  t.use %divui : i32\n}\n"
    )
    check_contract(module)


def test_quoted_form_and_names(memory):
    marker = named(memory, "tt.extern_elementwise")[0]
    builder = Builder.after(marker)
    first = builder.create(
        "t.op", marker.operands[:1], ["i1", "i2"], attributes={"a": "1", "b": "unit"}, hint="8"
    )
    second = builder.create("t.op", first.results, ["i1"], hint="8")
    third = builder.create("t.none")
    assert first.text == '%v8:2 = "t.op"(%7) {a = 1, b} : (i32) -> (i1, i2)'
    assert second.text == '%v8_0 = "t.op"(%v8#0, %v8#1) : (i1, i2) -> i1'
    assert third.text == '"t.none"() : () -> ()'
    ops = marker.parent.ops
    assert ops.index(first) + 2 == ops.index(second) + 1 == ops.index(third)
    check_contract(memory)


def test_text_with_regions_and_fresh_names(memory):
    marker = named(memory, "tt.extern_elementwise")[0]
    made = Builder.before(marker).parse(
        """
        // About the comparison.
        %c = arith.cmpi eq, %a, %b : i32
        %0:2 = scf.if %c -> (i32, i32) {
          %i = arith.addi %a, %b : i32
          scf.yield %i, %a : i32, i32
        } else {
          scf.yield %b, %a : i32, i32
        }
        """,
        {"a": marker.operands[0], "%b": marker.operands[1]},
        loc="loc(unknown)",
    )
    assert [op.name for op in made] == ["arith.cmpi", "scf.if"]
    marker.set_operand(0, made[1].results[1])
    assert (
        "    %c = arith.cmpi eq, %7, %i : i32 loc(unknown)\n"
        "    %v0:2 = scf.if %c -> (i32, i32) {\n"
        "      %i_0 = arith.addi %7, %i : i32 loc(unknown)\n"
        "      scf.yield %i_0, %7 : i32, i32 loc(unknown)\n"
        "    } else {\n"
        "      scf.yield %i, %7 : i32, i32 loc(unknown)\n"
        "    } loc(unknown)\n"
        "    %8 = tt.extern_elementwise %v0#1, %i, %i "
    ) in str(memory)
    check_contract(memory)


def test_host_accepts(memory, host):
    host.needs_present_syntax()
    marker = named(memory, "tt.extern_elementwise")[0]
    builder = Builder.before(marker)
    i = marker.operands[1]
    sixteen = builder.create("arith.trunci", [i], ["i16"])
    copy = named(memory, "ttng.async_tma_copy_global_to_local")[0]
    earlier = Builder.before(copy).create("arith.trunci", [i], ["i16"], hint="r")
    copy.set_operand(5, earlier.results[0])
    builder.parse("%x = arith.addi %a, %a : i16", {"a": sixteen.results[0]})
    assert "arith.trunci" in host.text(str(memory))


def test_location_of_the_place_and_others():
    module = parse(fixture("control.ttgir"), "control.ttgir")
    op = named(module, "arith.select")[0]
    builder = Builder.before(op)
    assert builder.create("t.a").loc_text == "loc(#loc3)"
    assert builder.create("t.a", loc="loc(unknown)").loc_text == "loc(unknown)"
    assert builder.create("t.a", loc=Location("loc(#loc9)")).loc_text == "loc(#loc9)"
    assert builder.create("t.a", text="t.a loc(#loc7)").loc_text == "loc(#loc7)"
    end = named(module, "scf.for")[1].regions[0].blocks[0]
    assert Builder.at_end(end).create("t.b").loc_text == "loc(#loc3)"
    assert end.ops[-1].name == "t.b"
    assert Builder.at_start(end).create("t.c").parent is end
    assert end.ops[0].name == "t.c"
    check_contract(module)


def test_empty_block_and_one_line_regions():
    module = parse("t.a {\n}\ntt.func @f() { t.c }\n")
    Builder.at_end(module.body[0].regions[0].blocks[0]).create("t.n", text="t.n")
    inner = module.body[1].regions[0].blocks[0]
    Builder.before(inner.ops[0]).create("t.n", text="t.n")
    Builder.at_end(inner).create("t.m", text="t.m")
    assert str(module) == ("t.a {\n  t.n\n}\ntt.func @f() {\n  t.n\n  t.c\n  t.m }\n")
    check_contract(module)


def test_top_level_keeps_aliases_in_front():
    module = parse("#a = 1\nt.a\n")
    Builder.before(module.body[0]).create("t.n", text="t.n")
    assert str(module) == "#a = 1\nt.n\nt.a\n"
    check_contract(module)


def test_branches_to_blocks_of_the_place():
    module = parse(fixture("control.ttgir"))
    early = module.body[0].regions[0].blocks[1]
    (op,) = Builder.at_end(early).parse("cf.br ^bb2")
    assert op.successors[0].label == "^bb2"


def test_partition_names_differ_from_those_around(host):
    host.needs_present_syntax()
    module = parse(fixture("warp_specialize.ttgir"))
    muli = named(module, "arith.muli")[0]
    Builder.before(muli).parse("%true = arith.constant true\n%a_desc = arith.constant 1 : i32")
    assert "%true_" in str(module)
    host.text(str(module))


class TestRefusals:
    def test_undefined_name_leaves_no_use_behind(self, memory):
        marker = named(memory, "tt.extern_elementwise")[0]
        i = marker.operands[1]
        uses, text = i.uses, str(memory)
        with pytest.raises(ParseError, match="undeclared SSA value '%nope'") as caught:
            Builder.before(marker).parse("t.a %i\nt.b %i, %nope", {"i": i})
        assert caught.value.filename == "<builder>"
        assert caught.value.line == 2
        assert i.uses == uses
        assert str(memory) == text

    def test_other_operation_or_results_than_promised(self, memory):
        marker = named(memory, "tt.extern_elementwise")[0]
        builder = Builder.before(marker)
        text = str(memory)
        for name, count, template in (
            ("t.a", 0, "t.b"),
            ("t.a", 1, "t.a"),
            ("t.a", 0, "t.a\nt.a"),
            ("t.a", 0, ""),
        ):
            with pytest.raises(VerifyError, match=r"expected one operation 't\.a'"):
                builder.create(name, [], ["i1"] * count, text=template)
        with pytest.raises(VerifyError, match="exceeds the last operand"):
            builder.create("t.a", [], text="t.a {0}")
        assert str(parse(str(memory))) == text

    @pytest.mark.parametrize(
        ("name", "given", "template", "found"),
        [
            ("arith.trunci", "i8", "{results} = arith.trunci {0} : {0.type} to i16", "i16"),
            ("arith.addi", "i64", "{results} = arith.addi {0}, {0} : i32", "i32"),
            ("arith.cmpi", "i32", "{results} = arith.cmpi eq, {0}, {0} : {0.type}", "i1"),
            ("t.a", "i32", '{results} = "t.a"({0}) : (i32) -> tensor<4xi32>', "tensor<4xi32>"),
        ],
    )
    def test_types_that_the_text_contradicts(self, memory, name, given, template, found):
        marker = named(memory, "tt.extern_elementwise")[0]
        i = marker.operands[1]
        uses, text = i.uses, str(memory)
        match = rf"result 0 has type '{found}' in the text, and '{given}' was given"
        with pytest.raises(VerifyError, match=match):
            Builder.before(marker).create(name, [i], [given], text=template)
        assert i.uses == uses
        assert str(parse(str(memory))) == text

    def test_types_that_are_spelled_otherwise(self):
        module = parse('#a = #ttg.x<{v = 1}>\nt.a {\n  %0 = "t.b"() : () -> tensor<1xi8, #a>\n}\n')
        op = named(module, "t.b")[0]
        spelled = "tensor<1xi8, #ttg.x<{v = 1}>>"
        text = '{results} = "t.c"({0}) : (tensor<1xi8, #a>) -> tensor<1xi8,#a>'
        made = Builder.after(op).create("t.c", op.results, [spelled], text=text)
        assert made.results[0].type == spelled

    def test_erased_anchor(self, memory):
        op = named(memory, "ttng.async_tma_store_wait")[0]
        op.erase()
        with pytest.raises(VerifyError, match="not in a block"):
            Builder.before(op)


def test_names_stay_unique_over_many_insertions(memory):
    marker = named(memory, "tt.extern_elementwise")[0]
    builder = Builder.before(marker)
    names = [builder.create("t.op", [], ["i1"], hint="i").results[0].name for _ in range(50)]
    assert len(set(names)) == 50
    assert value(memory, "%i").name not in names
    check_contract(memory)


@pytest.mark.parametrize("character", ["\u2028", "\x85", "\x1c", "\f", "\v"])
def test_only_a_line_feed_ends_a_line(character):
    line = f'  "your.op"() {{s = "a{character}b"}} : () -> ()\n'
    module = parse(f"module {{\n{line}}}\n")
    op = module.body[0]
    made = clone(op, Builder.after(op))
    assert made.attributes["s"] == f'"a{character}b"'
    assert str(module) == f"module {{\n{line}{line}}}\n"
