"""Edits of structure: move, clone, inline, rename; locations of arguments, results of functions."""

from __future__ import annotations

import pytest
from ir_helpers import check_contract, corpus_files, fixture, named, value
from triton_ext.errors import VerifyError
from triton_ext.ir import (
    Builder,
    Module,
    clone,
    clone_region_into,
    edits,
    function_results,
    inline_block,
    move_after,
    move_before,
    move_to_end,
    move_to_start,
    parse,
    rename,
    set_function_results,
)

TEXT = """\
module {
  tt.func public @f(%x: i32, %p: i1) -> i32 {
    %a = arith.addi %x, %x : i32
    // about b
    %b = arith.muli %a, %x : i32 // same line
    %r = scf.if %p -> (i32) {
      // inside
      %c = arith.addi %b, %x : i32
      %d:2 = "your.two"(%c) : (i32) -> (i32, i32)
      scf.yield %d#1 : i32
    } else {
      scf.yield %x : i32
    }
    scf.for %i = %x to %r step %a : i32 {
      %c = arith.muli %i, %i : i32
      tt.print "c" {hex = false, isSigned = array<i32: 1>} : %c : i32
    }
    tt.return %r : i32
  }
}
"""


@pytest.fixture
def module() -> Module:
    return parse(TEXT, "t.mlir")


def block_of(module: Module, name: str, number: int = 0, region: int = 0):
    return named(module, name)[number].regions[region].blocks[0]


def lines(module: Module) -> list[str]:
    return str(module).splitlines()


class TestMove:
    def test_within_a_block(self, module):
        loop, branch = named(module, "scf.for")[0], named(module, "scf.if")[0]
        add = named(module, "arith.addi")[0]
        move_before(add, named(module, "arith.muli")[0])
        assert str(module) == TEXT
        b = named(module, "arith.muli")[0]
        b.move_before(branch)
        assert str(module) == TEXT
        move_after(b, branch)
        text = lines(module)
        assert text[11:13] == ["    // about b", "    %b = arith.muli %a, %x : i32 // same line"]
        assert text[10] == "    }"
        assert text[3] == "    %r = scf.if %p -> (i32) {"
        with pytest.raises(VerifyError, match="'%b', does not dominate this use"):
            module.verify()
        b.move_after(add)
        assert str(module) == TEXT
        assert loop.parent is branch.parent
        check_contract(module)

    def test_out_of_a_region(self, module):
        c = value(module, "%c").owner
        c.move_before(named(module, "scf.if")[0])
        text = lines(module)
        # The loop defines a %c too: outside of both regions the two would meet.
        assert text[5:7] == ["    // inside", "    %c_0 = arith.addi %b, %x : i32"]
        assert text[8] == '      %d:2 = "your.two"(%c_0) : (i32) -> (i32, i32)'
        assert "%c = arith.muli %i, %i : i32" in str(module)
        module.verify()
        check_contract(module)

    def test_into_a_region_with_what_is_inside(self):
        again = parse(TEXT)
        loop, branch = named(again, "scf.for")[0], named(again, "scf.if")[0]
        value(again, "%r").replace_all_uses_with(value(again, "%x"))
        move_to_start(loop, branch.regions[1].blocks[0])
        text = str(again)
        assert (
            "    } else {\n"
            "      scf.for %i = %x to %x step %a : i32 {\n"
            "        %c_0 = arith.muli %i, %i : i32\n"
            '        tt.print "c" {hex = false, isSigned = array<i32: 1>} : %c_0 : i32\n'
            "      }\n"
            "      scf.yield %x : i32\n"
        ) in text
        again.verify()
        check_contract(again)

    def test_to_the_ends_of_a_block(self, module):
        branch = block_of(module, "scf.if")
        b = named(module, "arith.muli")[0]
        block = b.parent
        move_to_end(b, block)
        assert [op.name for op in block.ops][-2:] == ["arith.muli", "tt.return"]
        move_to_start(b, block)
        assert block.ops[0] is b
        assert lines(module)[2] == "    // about b"
        with pytest.raises(VerifyError, match=r"cannot move 'scf\.yield': it ends its block"):
            move_to_end(branch.terminator, branch)

    def test_into_an_empty_block(self):
        module = parse("t.region {\n}\nt.a\n")
        region, a = module.body
        move_to_end(a, region.regions[0].blocks[0])
        assert str(module) == "t.region {\n  t.a\n}\n"
        check_contract(module)

    def test_aliases_stay_in_front(self):
        module = parse("#a = 1\n// about a\nt.a\nt.b\n")
        a, b = module.body
        move_after(a, b)
        assert str(module).startswith("#a = 1\n")
        check_contract(module)
        move_before(a, b)
        assert str(module).startswith("#a = 1\n")
        assert [op.name for op in parse(str(module)).body] == ["t.a", "t.b"]

    def test_refused(self, module):
        branch = named(module, "scf.if")[0]
        inner = named(module, "arith.addi")[1]
        with pytest.raises(VerifyError, match=r"cannot move 'scf\.if' into itself"):
            branch.move_before(inner)
        loop = named(module, "scf.for")[0]
        loop.erase()
        with pytest.raises(VerifyError, match="it is not in a block"):
            loop.move_before(branch)
        jumps = parse("t.region {\n  cf.br ^bb1\n^bb1:\n  t.end\n}\nt.region {\n  t.end\n}\n")
        jump, target = named(jumps, "cf.br")[0], named(jumps, "t.end")[1]
        with pytest.raises(VerifyError, match="it names blocks of its own"):
            jump.move_before(target)

    def test_groups_are_renamed_together(self):
        text = TEXT.replace("%c = arith.muli %i, %i : i32\n", "%d = arith.muli %i, %i : i32\n")
        module = parse(text.replace(": %c : i32", ": %d : i32"))
        two = named(module, "your.two")[0]
        named(module, "arith.addi")[1].move_before(named(module, "scf.if")[0])
        two.move_before(named(module, "scf.if")[0])
        assert '%d_0:2 = "your.two"(%c) : (i32) -> (i32, i32)' in str(module)
        assert "scf.yield %d_0#1 : i32" in str(module)
        module.verify()
        check_contract(module)


class TestClone:
    def test_plain(self, module):
        add = named(module, "arith.addi")[0]
        made = clone(add, Builder.after(add))
        assert lines(module)[2:4] == [
            "    %a = arith.addi %x, %x : i32",
            "    %a_0 = arith.addi %x, %x : i32",
        ]
        assert made.results[0].type == "i32"
        assert made.results[0].uses == ()
        check_contract(module)

    def test_with_other_operands_and_types_that_follow(self):
        module = parse("%a = t.a : i8\n%b = t.b : i16\n%c = t.c %a : i8 loc(unknown)\n")
        old, new = (module.body[i].results[0] for i in (0, 1))
        made = clone(module.body[2], Builder.at_end(module.op.regions[0].blocks[0]), {old: new})
        assert str(module).splitlines()[3] == "%c_0 = t.c %b : i16 loc(unknown)"
        assert made.loc_text == "loc(unknown)"
        assert len(old.uses) == 1

    def test_with_regions(self, module):
        branch = named(module, "scf.if")[0]
        b, x = value(module, "%b"), value(module, "%x")
        made = clone(branch, Builder.after(branch), {b: x})
        text = str(module)
        # Names in the copy are new, comments and indentation are those of the original.
        assert (
            "    %r_0 = scf.if %p -> (i32) {\n"
            "      // inside\n"
            "      %c_0 = arith.addi %x, %x : i32\n"
            '      %d_0:2 = "your.two"(%c_0) : (i32) -> (i32, i32)\n'
            "      scf.yield %d_0#1 : i32\n"
            "    } else {\n"
            "      scf.yield %x : i32\n"
            "    }\n"
        ) in text
        assert [op.name for op in made.walk()] == [op.name for op in branch.walk()]
        module.verify()
        check_contract(module)

    def test_of_a_warp_specialized_region(self):
        module = parse(fixture("warp_specialize.ttgir"))
        op = named(module, "ttg.warp_specialize")[0]
        made = clone(op, Builder.after(op))
        assert [r.type for r in made.results] == [r.type for r in op.results]
        names = [a.name for r in made.regions for b in r.blocks for a in b.args]
        assert len(names) == len(set(names))
        assert all("_" in name for name in names)
        check_contract(module)

    def test_every_operation_of_a_fixture(self):
        for name in ("control.ttgir", "memory.ttgir", "warp_specialize.ttgir"):
            module = parse(fixture(name))
            for op in list(module.walk())[1:]:
                if op.parent is None or op.name == "tt.func" or op is op.parent.terminator:
                    continue
                made = clone(op, Builder.after(op))
                assert [r.known_type for r in made.results] == [r.known_type for r in op.results]
                assert dict(made.attributes) == dict(op.attributes)
                assert made.loc_text == op.loc_text
            module.verify()
            check_contract(module)

    def test_refused_for_branches_to_other_regions(self):
        module = parse("t.region {\n  cf.br ^bb1\n^bb1:\n  t.end\n}\nt.a\n")
        with pytest.raises(VerifyError, match=r"cannot copy 'cf\.br' to another region"):
            clone(named(module, "cf.br")[0], Builder.before(module.body[1]))

    def test_region(self, module):
        loop = named(module, "scf.for")[0]
        x = value(module, "%x")
        passed = clone_region_into(loop.regions[0], Builder.before(loop), [x])
        assert passed == ()
        assert "    %c_0 = arith.muli %x, %x : i32\n    tt.print" in str(module)
        branch = named(module, "scf.if")[0]
        (result,) = clone_region_into(branch.regions[0], Builder.before(branch), [])
        assert result.name == "%d_0#1"
        assert result.type == "i32"
        with pytest.raises(VerifyError, match="expected 1 values for the arguments"):
            clone_region_into(loop.regions[0], Builder.before(loop), [])
        module.verify()
        check_contract(module)


class TestInline:
    def test_a_region_in_place_of_its_operation(self, module):
        branch = named(module, "scf.if")[0]
        values = inline_block(branch.regions[0].blocks[0], branch)
        for result, new in zip(branch.results, values, strict=True):
            result.replace_all_uses_with(new)
        branch.erase()
        assert lines(module)[5:9] == [
            "    // inside",
            "    %c_0 = arith.addi %b, %x : i32",
            '    %d:2 = "your.two"(%c_0) : (i32) -> (i32, i32)',
            "    scf.for %i = %x to %d#1 step %a : i32 {",
        ]
        module.verify()
        check_contract(module)

    def test_with_arguments(self, module):
        loop = named(module, "scf.for")[0]
        inline_block(loop.regions[0].blocks[0], loop, [value(module, "%a")])
        loop.erase()
        assert "    %c_0 = arith.muli %a, %a : i32\n    tt.print" in str(module)
        module.verify()

    def test_several_blocks_are_refused(self):
        module = parse("t.region {\n  cf.br ^bb1\n^bb1:\n  t.end\n}\n")
        with pytest.raises(VerifyError, match=r"cannot inline a region of 't\.region' with 2"):
            inline_block(module.body[0].regions[0].blocks[0], module.body[0])


class TestRename:
    def test_a_name_does_not_run_into_what_follows(self):
        module = parse("%0 = t.a : i32\n%1 = arith.divsi %0-> %0 : i32\nt.b %0to %1#0\n")
        rename(module.body[0].results[0], "%x")
        assert str(module) == "%x = t.a : i32\n%1 = arith.divsi %x -> %x : i32\nt.b %x to %1#0\n"

    def test_result_and_argument(self, module):
        assert rename(value(module, "%a"), "%sum") == "%sum"
        assert rename(value(module, "%x"), "%sum") == "%sum_0"
        assert rename(value(module, "%i"), "%b") == "%b_0"
        assert "tt.func public @f(%sum_0: i32" in str(module)
        assert "%sum = arith.addi %sum_0, %sum_0 : i32" in str(module)
        module.verify()
        check_contract(module)

    def test_group(self, module):
        assert rename(value(module, "%d#1"), "%two") == "%two#1"
        assert '%two:2 = "your.two"' in str(module)
        assert "scf.yield %two#1" in str(module)


class TestArgumentLocations:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("%x: i32", "%x: i32 loc(#a)"),
            ("%x: i32 loc(unknown)", "%x: i32 loc(#a)"),
            (
                "%x: i32 {tt.divisibility = 16 : i32}",
                "%x: i32 {tt.divisibility = 16 : i32} loc(#a)",
            ),
            ("%x: i32 {a = 1} loc(unknown)", "%x: i32 {a = 1} loc(#a)"),
        ],
    )
    def test_of_functions(self, before, after):
        text = (
            "tt.func @f({}, %y: i1 loc(#b)) {{\n  tt.return\n}}\n"
            "#a = loc(unknown)\n#b = loc(unknown)\n"
        )
        module = parse(text.format(before))
        value(module, "%x").set_loc("#a")
        assert str(module) == text.format(after)
        assert value(module, "%x").loc_text == "loc(#a)"
        value(module, "%y").set_loc('loc("y")')
        assert '%y: i1 loc("y"))' in str(module)
        check_contract(module)

    def test_of_blocks_and_partitions(self):
        module = parse(fixture("warp_specialize.ttgir"))
        for op in module.walk():
            for region in op.regions:
                for arg in region.blocks[0].args:
                    if op.name != "scf.for":
                        arg.set_loc('"moved":1:2')
        assert str(module).count('loc("moved":1:2)') > 5
        check_contract(module)
        module = parse("t.r {\n^bb0(%x: i1):\n  t.a\n}\n")
        value(module, "%x").set_loc("unknown")
        assert str(module) == "t.r {\n^bb0(%x: i1 loc(unknown)):\n  t.a\n}\n"

    def test_where_none_is_printed(self, module):
        with pytest.raises(
            VerifyError, match=r"'scf\.for' prints no location for its argument '%i'"
        ):
            value(module, "%i").set_loc("unknown")


class TestFunctionResults:
    TEXT = """\
module {
  tt.func private @g(%x: i32 loc(unknown)) -> (i32, f32) attributes {noinline = true} {
    %f = arith.sitofp %x : i32 to f32
    tt.return %x, %f : i32, f32
  }
  tt.func private @one(%x: i32) -> i32 {
    tt.return %x : i32
  }
  tt.func public @f(%x: i32) {
    %r:2 = tt.call @g(%x) : (i32) -> (i32, f32)
    %one = tt.call @one(%x) : (i32) -> i32
    tt.return
  }
}
"""

    def test_read(self):
        module = parse(self.TEXT)
        results = [function_results(op) for op in named(module, "tt.func")]
        assert results == [("i32", "f32"), ("i32",), ()]

    def test_change_with_the_calls(self):
        module = parse(self.TEXT)
        module.add_alias("#a", "#t.a")
        g, one, _ = named(module, "tt.func")
        set_function_results(g, ["i32", "tensor<4xf32, #a>"])
        set_function_results(one, ["(i32) -> i32"])
        text = str(module)
        assert "loc(unknown)) -> (i32, tensor<4xf32, #a>) attributes {noinline = true} {" in text
        assert "%r:2 = tt.call @g(%x) : (i32) -> (i32, tensor<4xf32, #a>)" in text
        assert "@one(%x: i32) -> ((i32) -> i32) {" in text
        assert function_results(g) == ("i32", "tensor<4xf32, #a>")
        with pytest.raises(VerifyError, match=r"'tt\.return' passes \(i32, f32\) to 'tt\.func'"):
            module.verify()
        value(module, "%f").set_type("tensor<4xf32, #a>")
        assert "tt.return %x, %f : i32, tensor<4xf32, #a>" in str(module)

    def test_refused(self):
        module = parse(self.TEXT)
        g = named(module, "tt.func")[0]
        with pytest.raises(VerifyError, match=r"expected 2 result types for 'tt\.func', found 1"):
            set_function_results(g, ["i32"])
        with pytest.raises(VerifyError, match="expected a function in its own syntax"):
            function_results(named(module, "tt.call")[0])

    def test_every_function_of_the_corpus(self, corpus):
        for path in corpus_files():
            module = parse(path.read_text(), str(path))
            for op in named(module, "tt.func"):
                results = function_results(op)
                op._touch()
                assert function_results(op) == results


class TestNewAttributes:
    def test_where_each_operation_has_them(self):
        module = parse(
            "module {\n"
            "  tt.func @f(%x: i32, %p: i1) {\n"
            "    %c = arith.constant 1 : i32\n"
            "    scf.for %i = %x to %x step %x : i32 {\n"
            "      scf.yield loc(unknown)\n"
            "    }\n"
            "    scf.while : () -> () {\n"
            "      scf.condition(%p)\n"
            "    } do {\n"
            "      scf.yield\n"
            "    }\n"
            "    cf.br ^bb1(%x : i32)\n"
            "  ^bb1(%y: i32):\n"
            "    tt.return\n"
            "  }\n"
            "  tt.func private @g(i32)\n"
            "}\n"
        )
        for op in module.walk():
            op.set_attribute("a", "1 : i32")
        assert lines(module) == [
            "module attributes {a = 1 : i32} {",
            "  tt.func @f(%x: i32, %p: i1) attributes {a = 1 : i32} {",
            "    %c = arith.constant {a = 1 : i32} 1 : i32",
            "    scf.for %i = %x to %x step %x : i32 {",
            "      scf.yield {a = 1 : i32} loc(unknown)",
            "    } {a = 1 : i32}",
            "    scf.while : () -> () {",
            "      scf.condition(%p) {a = 1 : i32}",
            "    } do {",
            "      scf.yield {a = 1 : i32}",
            "    } attributes {a = 1 : i32}",
            "    cf.br ^bb1(%x : i32) {a = 1 : i32}",
            "  ^bb1(%y: i32):",
            "    tt.return {a = 1 : i32}",
            "  }",
            "  tt.func private @g(i32) attributes {a = 1 : i32}",
            "}",
        ]

    def test_the_last_one_of_a_keyword_leaves_an_empty_dictionary(self):
        module = parse("module attributes {a = 1 : i32} {\n}\n")
        module.op.remove_attribute("a")
        assert str(module) == "module attributes {} {\n}\n"

    @pytest.mark.slow
    def test_on_every_kind_of_operation_that_the_host_prints(self, host, corpus):
        """One operation of each name gets an attribute, and the host reads it."""
        seen: set[str] = {"ttg.barrier"}  # its syntax has no place for one
        for path in corpus_files():
            if path.parts[-3] != host.version:
                continue
            text = path.read_text()
            for name in sorted({op.name for op in parse(text).walk()} - seen):
                module = parse(text)
                named(module, name)[0].set_attribute("test.number", "1 : i32")
                seen.add(name)
                assert "test.number" in host.text(str(module)), name
        if len(seen) == 1:
            pytest.skip(f"the corpus has no files of Triton {host.version}")


class TestPart:
    def test_is_a_view(self):
        module = parse("#a = 1\n" + TEXT)
        function = module.body[0]
        part = module.part(function)
        assert str(part) == function.text
        assert next(part.walk()).name == "tt.func"
        assert part.body == function.regions[0].blocks[0].ops
        assert part.aliases == module.aliases
        part.add_alias("#b", "2")
        named(part, "arith.addi")[0].set_attribute("x", "#b")
        assert str(module).startswith("#a = 1\n#b = 2\nmodule {")
        assert module.is_changed
        part.verify()
        assert module.part(module.op) is module
        assert function.module is module


def test_a_numeric_name_that_is_taken_gets_letters():
    # MLIR reads %3_0 as the number 3 and something behind it.
    module = parse(
        "module {\n"
        "  func.func @f(%a: i32) {\n"
        "    %3 = arith.constant 1 : i32\n"
        "    func.return\n"
        "  }\n"
        "  func.func @g(%a: i32) {\n"
        "    %3 = arith.constant 2 : i32\n"
        "    func.return\n"
        "  }\n"
        "}\n"
    )
    first, second = (op for op in module.walk() if op.name == "arith.constant")
    move_before(first, second)
    assert "%v3_0 = arith.constant 1 : i32" in str(module)
    assert str(parse(str(module))) == str(module)


class TestWork:
    """What edits of many operations look at, whatever the time."""

    def test_names_are_collected_once(self, monkeypatch):
        walks = []
        collect = edits.definitions_in
        monkeypatch.setattr(edits, "definitions_in", lambda r: walks.append(r) or collect(r))
        inner = "".join(f"      %{i} = arith.constant {i} : i32\n" for i in range(100))
        module = parse(
            "module {\n  tt.func @f(%p: i1) {\n"
            f"    scf.if %p {{\n{inner}    }}\n    scf.if %p {{\n{inner}    }}\n"
            "    tt.return\n  }\n}\n"
        )
        for op in named(module, "scf.if"):
            for one in op.regions[0].blocks[0].ops:
                move_before(one, op)
        assert len(walks) <= 2
        module.verify()
        names = [op.results[0].name for op in named(module, "arith.constant")]
        # Those of the second block were free until they came out.
        assert names == [f"%v{i}_0" for i in range(100)] + [f"%{i}" for i in range(100)]
        assert str(parse(str(module))) == str(module)

    @pytest.mark.parametrize("order", [1, -1])
    def test_neighbours_are_not_searched(self, order):
        class Counted(list):
            searched = 0

            def index(self, *args):
                Counted.searched += 1
                return super().index(*args)

        lines = "".join(f"    %{i} = arith.constant {i} : i32\n" for i in range(50))
        module = parse(f"module {{\n  tt.func @f() {{\n{lines}    tt.return\n  }}\n}}\n")
        block = block_of(module, "tt.func")
        block._ops = Counted(block._ops)
        for op in named(module, "arith.constant")[::order]:
            op.erase()
        assert Counted.searched <= 1
        assert [op.name for op in block.ops] == ["tt.return"]


def test_a_name_is_taken_for_as_long_as_its_value_stands():
    module = parse(TEXT)
    first, loop = named(module, "scf.if")[0], named(module, "scf.for")[0]
    inner = first.regions[0].blocks[0].ops[0]
    move_before(inner, first)
    assert inner.results[0].name == "%c_0"  # the loop has a %c
    other = loop.regions[0].blocks[0].ops[0]
    rename(other.results[0], "%other")
    move_before(other, loop.regions[0].blocks[0].ops[1])
    assert other.results[0].name == "%other"
    copy = clone(other, Builder.before(other))
    move_to_end(copy, first.regions[0].blocks[0])
    assert copy.results[0].name == "%other_0"
    check_contract(module)
