"""What the verifier refuses, where it points, and what it lets pass."""

from __future__ import annotations

import pytest
from ir_helpers import FIXTURES, corpus_files, fixture, named, value
from triton_ext.errors import VerifyError
from triton_ext.ir import parse
from triton_ext.ir.integers import read_integer
from triton_ext.ir.rules import RULES
from triton_ext.ir.verifier import find_problems


def function(body: str, header: str = "%x: i32, %p: i1, %l: i64") -> str:
    """A module with one function; ``body`` starts in line 3."""
    return f"module {{\n  tt.func public @f({header}) {{\n{body}\n  }}\n}}\n"


def problems(text: str) -> list[tuple[int, str]]:
    return [(error.line, error.message) for error in find_problems(parse(text, "t.mlir"))]


VALID = {
    "sizes that only the dialect tt refuses": """\
    %a = arith.constant dense<0> : tensor<3xi32>
    %b = arith.addi %a, %a : tensor<3xi32>
    tt.return""",
    "branches": """\
    cf.cond_br %p, ^bb1(%x : i32), ^bb2
  ^bb1(%a: i32):
    cf.br ^bb2
  ^bb2:
    tt.return""",
    "loop of blocks": """\
    cf.br ^bb1(%x : i32)
  ^bb1(%a: i32):
    %b = arith.addi %a, %x : i32
    cf.cond_br %p, ^bb1(%b : i32), ^bb2
  ^bb2:
    %c = arith.addi %b, %a : i32
    tt.return""",
    "unreachable": """\
    tt.return
  ^bb1:
    %a = arith.addi %b, %b : i32
    %b = arith.addi %a, %a : i32
    cf.br ^bb1""",
    "no yield": """\
    scf.if %p {
      tt.print "x" {hex = false, isSigned = array<i32: 1>} : %x : i32
    }
    tt.return""",
    "one name in two regions": """\
    %y = scf.if %p -> (i32) {
      %a = arith.addi %x, %x : i32
      scf.yield %a : i32
    } else {
      %a = arith.muli %x, %x : i32
      scf.yield %a : i32
    }
    tt.return""",
    "an end that nobody knows": """\
    "your.end"(%x) : (i32) -> ()""",
    "another dialect": """\
    "your.op"() ({
    ^bb0:
      %a = "your.op"(%b) : (i32) -> i32
      %b = "your.op"(%a) : (i32) -> i32
    }) : () -> ()
    tt.return""",
}

#: Name: body, line, message.
INVALID = {
    "a loop without a body": (
        "    scf.while : () -> () {\n      scf.condition(%p)\n    }\n    tt.return",
        3,
        "'scf.while' has 1 regions, expected 2",
    ),
    "results of an operation with one": (
        "    %a:2 = arith.addi %x, %x : i32\n    tt.return",
        3,
        "'arith.addi' defines 1 result, and the text names 2",
    ),
    "size of a tensor": (
        "    %a = tt.splat %x : i32 -> tensor<3xi32>\n    tt.return",
        3,
        "the type of '%a' at 'tt.splat' is malformed: expected powers of two as the sizes of a "
        "tensor, found 3, in 'tensor<3xi32>'",
    ),
    "rank of a buffer": (
        "    %a = ttg.local_alloc : () -> !ttg.memdesc<64xi32, #ttg.swizzled_shared<{vec = 1, "
        "perPhase = 1, maxPhase = 1, order = [1, 0]}>, #ttg.shared_memory, mutable>\n    tt.return",
        3,
        "the type of '%a' at 'ttg.local_alloc' is malformed: expected rank 2 or, with a number of "
        "buffers in front, 3, found rank 1, in '!ttg.memdesc<64xi32, #ttg.swizzled_shared<{vec",
    ),
    "lanes of an encoding": (
        "    %a = arith.constant dense<0> : tensor<64xi32, #ttg.blocked<{sizePerThread = [1], "
        "threadsPerWarp = [5], warpsPerCTA = [4], order = [0]}>>\n    tt.return",
        3,
        "the type of '%a' at 'arith.constant' is malformed: expected powers of two in "
        "'threadsPerWarp', found 5, in '#ttg.blocked<{sizePerThread",
    ),
    "order": (
        "    %a = arith.addi %b, %x : i32\n    %b = arith.addi %x, %x : i32\n    tt.return",
        3,
        "operand 0 of 'arith.addi', '%b', does not dominate this use",
    ),
    "itself": (
        "    %a = arith.addi %x, %a : i32\n    tt.return",
        3,
        "operand 1 of 'arith.addi', '%a', does not dominate this use",
    ),
    "block that does not dominate": (
        "    cf.cond_br %p, ^bb1, ^bb2\n  ^bb1:\n    %a = arith.addi %x, %x : i32\n"
        "    cf.br ^bb2\n  ^bb2:\n    %b = arith.addi %a, %x : i32\n    tt.return",
        8,
        "operand 0 of 'arith.addi', '%a', does not dominate this use",
    ),
    "branch operands": (
        "    cf.br ^bb1(%x : i32)\n  ^bb1(%a: i64):\n    tt.return",
        3,
        "'cf.br' passes (i32) to ^bb1, which expects (i64)",
    ),
    "branch operand count": (
        "    cf.cond_br %p, ^bb1(%x : i32), ^bb2\n  ^bb1:\n    tt.return\n  ^bb2:\n    tt.return",
        3,
        "'cf.cond_br' passes (i32) to ^bb1, which expects ()",
    ),
    "quoted branch": (
        '    "cf.br"(%x, %x)[^bb1] : (i32, i32) -> ()\n  ^bb1(%a: i32):\n    tt.return',
        3,
        "'cf.br' passes (i32, i32) to ^bb1, which expects (i32)",
    ),
    "first block": (
        "    scf.execute_region {\n    ^bb0:\n      cf.br ^bb0\n    }\n    tt.return",
        5,
        "'cf.br' branches to the first block of its region",
    ),
    "no terminator": (
        "    %a = arith.addi %x, %x : i32",
        2,
        "expected 'llvm.unreachable' or 'tt.return' or 'ub.unreachable' at the end of each block "
        "in region 0 of 'tt.func', found 'arith.addi'",
    ),
    "terminator in the middle": (
        "    tt.return\n    tt.return",
        3,
        "'tt.return' must be the last operation of its block",
    ),
    "yield of another type": (
        "    %y = scf.if %p -> (i64) {\n      scf.yield %x : i32\n    } else {\n"
        "      scf.yield %x : i32\n    }\n    tt.return",
        4,
        "'scf.yield' passes (i32) to 'scf.if', which expects (i64)",
    ),
    "loop that carries another type": (
        "    %y = scf.for %i = %x to %x step %x iter_args(%a = %p) -> (i32) : i32 {\n"
        "      scf.yield %a : i32\n    }\n    tt.return",
        3,
        "'scf.for' carries (i1), and its arguments are (i32)",
    ),
    "return": (
        "    tt.return %x : i32",
        3,
        "'tt.return' passes (i32) to 'tt.func', which expects ()",
    ),
    "call": ("    tt.call @g() : () -> ()\n    tt.return", 3, "'tt.call' calls '@g', which is not"),
    "call with other arguments": (
        "    tt.call @f(%x) : (i32) -> ()\n    tt.return",
        3,
        "'tt.call' calls '@f' with (i32), whose arguments are (i32, i1, i64)",
    ),
    "printed type": (
        '    tt.print "x" {hex = false, isSigned = array<i32: 1>} : %x : i64\n    tt.return',
        3,
        "'tt.print' prints the type 'i64' for '%x', whose type is 'i32'",
    ),
    "quoted printed type": (
        '    "your.op"(%x) : (i64) -> ()\n    tt.return',
        3,
        "'your.op' prints the type 'i64' for '%x', whose type is 'i32'",
    ),
    "condition": (
        "    scf.if %x {\n    }\n    tt.return",
        3,
        "the condition of 'scf.if' must be an 'i1', found 'i32'",
    ),
    "mask": (
        "    %q = tt.int_to_ptr %l : i64 -> !tt.ptr<f32>\n"
        "    %v = tt.load %q, %x : !tt.ptr<f32>\n    tt.return",
        4,
        "operand 1 of 'tt.load' must be 'i1', found 'i32'",
    ),
    "stored value": (
        "    %q = tt.int_to_ptr %l : i64 -> !tt.ptr<f32>\n"
        "    tt.store %q, %x : !tt.ptr<f32>\n    tt.return",
        4,
        "operand 1 of 'tt.store' must be 'f32', found 'i32'",
    ),
    "accumulator": (
        "    %a = arith.constant dense<0.0> : tensor<16x16xf16>\n"
        "    %c = arith.constant dense<0.0> : tensor<16x16xf16>\n"
        "    %d = tt.dot %a, %a, %c : tensor<16x16xf16> * tensor<16x16xf16> -> tensor<16x16xf32>\n"
        "    tt.return",
        5,
        "operand 2 of 'tt.dot' must be 'tensor<16x16xf32>', found 'tensor<16x16xf16>'",
    ),
    "one operand of two": (
        "    %a = arith.addi %x : i32\n    tt.return",
        3,
        "'arith.addi' takes 2 operands, and the text names 1",
    ),
    "no step": (
        "    scf.for %i = %x to %x : i32 {\n    }\n    tt.return",
        3,
        "'scf.for' takes at least 3 operands, and the text names 2",
    ),
    "no operand of one": (
        "    %a = arith.extsi  : i32 to i64\n    tt.return",
        3,
        "'arith.extsi' takes 1 operand, and the text names 0",
    ),
    "no layout to set": (
        "    %a = gluon.set_auto_layout : tensor<16xi32>\n    tt.return",
        3,
        "'gluon.set_auto_layout' takes 1 operand, and the text names 0",
    ),
    "one half of a product": (
        "    %a, %b = arith.mulsi_extended %x : i32\n    tt.return",
        3,
        "'arith.mulsi_extended' takes 2 operands, and the text names 1",
    ),
    "two old values": (
        '    %a:2 = "tti.experimental_gsan_atomic_cas"(%x) : (i32) -> (i32, i32)\n    tt.return',
        3,
        "'tti.experimental_gsan_atomic_cas' defines 1 result, and the text names 2",
    ),
    "the result of an unknown operation": (
        "    %a = foo.bar %x : i32 -> tensor<16xi32>\n"
        "    %b = arith.addi %a, %x : i32\n    tt.return",
        4,
        "operands of 'arith.addi' must have one type, found (tensor<16xi32>, i32)",
    ),
    "the result of an unknown operation without operands": (
        "    %a = foo.bar : tensor<16xi32>\n"
        "    %b = tt.splat %a : i32 -> tensor<16xi32>\n    tt.return",
        4,
        "'tt.splat' prints the type 'i32' for '%a', whose type is 'tensor<16xi32>'",
    ),
    "operands of two types": (
        "    %a = arith.addi %x, %p : i32\n    tt.return",
        3,
        "operands of 'arith.addi' must have one type, found (i32, i1)",
    ),
}


@pytest.mark.parametrize("name", VALID)
def test_valid(name):
    assert problems(function(VALID[name])) == []


@pytest.mark.parametrize("name", INVALID)
def test_invalid(name):
    body, line, message = INVALID[name]
    found = problems(function(body))
    assert found, "nothing was found"
    assert found[0][0] == line
    assert found[0][1].startswith(message)


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("!tt.ptr<f16, 1>", "!tt.ptr<f16>"),
        ('!tt.ptr<f16, "global">', "!tt.ptr<f16>"),
        ("tensor<4x!tt.ptr<f16,1>>", "tensor<4x!tt.ptr<f16>>"),
        ("!ttg.memdesc<4xf16, #s, #ttg.shared_memory, 4>", "!ttg.memdesc<4xf16,#s,#smem>"),
        ("tensor<4xf16, #ttg.blocked<{order=[0],sizePerThread=[1],threadsPerWarp=[32],"
         "warpsPerCTA=[4]}>>", "tensor<4xf16, #b>"),
    ],
)  # fmt: skip
def test_two_ways_to_write_a_type(written, printed):
    aliases = (
        "#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], "
        "order = [0]}>\n#smem = #ttg.shared_memory\n"
        "#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>\n"
    )
    body = f"    %a = arith.select %c, %y, %y : {printed}\n    tt.return"
    assert problems(aliases + function(body, f"%c: i1, %y: {written}")) == []
    other = body.replace("f16", "f32")
    ((line, message),) = problems(aliases + function(other, f"%c: i1, %y: {written}"))[:1]
    assert line == 6
    assert message.startswith(f"'arith.select' prints the type '{printed.replace('16', '32')}'")


def test_every_message_has_its_place():
    module = parse(function(INVALID["order"][0]), "t.mlir")
    with pytest.raises(VerifyError) as caught:
        module.verify()
    assert str(caught.value) == (
        "t.mlir:3:5: error: operand 0 of 'arith.addi', '%b', does not dominate this use\n"
        "    %a = arith.addi %b, %x : i32\n"
        "    ^\n"
        "note: defined here: t.mlir:4:5"
    )


@pytest.mark.parametrize("text", ["", " ", "\n", "// nothing"])
def test_an_empty_module(text):
    assert problems(text) == []


def test_two_symbols_of_one_name():
    text = function("    tt.return")
    twice = text.replace("\n}\n", "\n" + text.split("\n", 1)[1], 1)
    assert [message for _, message in problems(twice)] == [
        "redefinition of symbol '@f' in a 'builtin.module'"
    ]


def test_isolated_regions():
    module = parse(fixture("warp_specialize.ttgir"))
    partition = named(module, "ttg.warp_specialize")[0].regions[1].blocks[0]
    user = next(op for op in partition.ops if op.operands)
    outside = value(module, "%a_desc")
    user.set_operand(0, outside)
    (problem, *_) = find_problems(module)
    assert problem.message == (
        f"operand 0 of '{user.name}', '%a_desc', is defined outside of the isolated region of "
        "'ttg.warp_specialize'"
    )
    module = parse(fixture("memory.ttgir"))
    functions = named(module, "tt.func")
    stranger = functions[0].regions[0].blocks[0].args[0]
    op = named(module, "tt.extern_elementwise")[0]
    op.set_operand(0, stranger)
    (problem,) = find_problems(module)
    assert "is defined outside of the isolated region of 'tt.func'" in problem.message


def test_captures_and_partition_arguments():
    module = parse(fixture("warp_specialize.ttgir"))
    value(module, "%k").set_type("i64")
    messages = [problem.message for problem in find_problems(module)]
    assert any(
        text.startswith("partition 0 of 'ttg.warp_specialize' has the arguments (")
        for text in messages
    )


def test_an_operand_of_an_erased_operation():
    module = parse(function("    %a = arith.addi %x, %x : i32\n    tt.return"))
    other = parse(function("    %a = arith.addi %x, %x : i32\n    tt.return"))
    named(module, "arith.addi")[0].set_operand(0, value(other, "%a"))
    (problem,) = find_problems(module)
    assert problem.message == (
        "operand 0 of 'arith.addi', '%a', belongs to no operation of this module"
    )


def test_two_values_of_one_name():
    module = parse(function("    %a = arith.addi %x, %x : i32\n    tt.return"))
    value(module, "%a")._base = "%x"
    assert [p.message for p in find_problems(module)] == ["redefinition of SSA value '%x'"]


@pytest.mark.parametrize("name", ["%4_0", "%", "%4x", "%a b", "x", "%\u00e9", "%a#1"])
def test_a_name_that_is_no_token(name):
    module = parse(function("    %a = arith.addi %x, %x : i32\n    tt.return"), "t.mlir")
    value(module, "%a")._base = name
    (found,) = find_problems(module)
    assert found.message == f"'{name}' is not a valid SSA value name"
    assert found.line == 3
    named(module, "arith.addi")[0].results[0]._base = "%-a.$_0"
    module.verify()


@pytest.mark.parametrize("last", ["!t22", "i32"])
def test_aliases_that_double_are_not_written_out(last):
    aliases = "".join(f"!t{i} = tuple<!t{i - 1}, !t{i - 1}>\n" for i in range(1, 23))
    body = function("    tt.return %y : tuple<!t21,!t21>", f"%y: !t22) -> ({last}")
    whole = f"!t0 = i32\n{aliases}{body}"
    (found, *_) = find_problems(parse(whole, "t.mlir"))
    assert "longer than 65536 characters" in found.message
    assert found.line > 23


def test_aliases_that_stand_for_themselves():
    body = function("    tt.return %y : tuple<!b, !b>", "%y: !a) -> (!a")
    for aliases in ("!a = tuple<!a, !a>\n", "!a = tuple<!b, !b>\n!b = tuple<!a, !a>\n"):
        assert len(list(find_problems(parse(aliases + body)))) <= 2


def test_a_long_chain_of_aliases():
    aliases = "".join(f"!t{i} = tuple<!t{i - 1}>\n" for i in range(1, 2000))
    body = function("    tt.return %y : tuple<!t1998>", "%y: !t1999) -> (!t1999")
    assert list(find_problems(parse(f"!t0 = i32\n{aliases}{body}"))) == []


def test_a_result_whose_operands_got_another_type():
    module = parse(function("    %a = arith.addi %x, %x : i32\n    tt.return"))
    value(module, "%a")  # its type is known
    assert named(module, "arith.addi")[0].results[0].type == "i32"
    value(module, "%x").set_type("i64")
    messages = [problem.message for problem in find_problems(module)]
    assert messages == ["expected the result type 'i64' for 'arith.addi', found 'i32'"]


def test_every_rule_refuses_something():
    """The table has no rule that no test breaks."""
    texts = [function(body) for body, _, _ in INVALID.values()]
    texts.append(
        function("    tt.return").replace("\n}\n", "\n  tt.func @f() {\n    tt.return\n  }\n}\n")
    )
    broken = set()
    for text in texts:
        module = parse(text)
        from triton_ext.ir.rules import Facts, rules_of

        for op in module.walk():
            for rule in rules_of(op.name):
                if rule.predicate(op, Facts(module.aliases)) is not None:
                    broken.add(rule.message)
    # Broken by edits above: a text cannot have the two.
    edited = {
        "partition {number} of '{op}' has the arguments {found}, and the captures are {wanted}",
        "expected the result type '{wanted}' for '{op}', found '{found}'",
    }
    # Those about copies and shapes have tests of their own, in test_descriptor_rules.py and
    # test_shape_rules.py.
    edited.add("expected {wanted} at '{op}', found {found}")
    edited.add("'{op}' makes '{result}' of '{source}', expected {wanted}")
    edited.add("expected types at the end of '{op}'")
    assert {rule.message for rule in RULES} == broken | edited


BLOCKED = (
    "#ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>"
)


def test_an_alias_is_blamed_where_it_is_defined():
    bad = BLOCKED.replace("[4]", "[3]")
    body = function("    %a = tt.splat %x : i32 -> tensor<64xi32, #b>\n    tt.return")
    found = list(find_problems(parse(f"#b = {bad}\n#unused = {BLOCKED}\n{body}", "t.mlir")))
    assert [str(problem) for problem in found] == [
        "t.mlir:1:1: error: the encoding '#b' is malformed: expected powers of two in "
        f"'warpsPerCTA', found 3, in '{bad}'\n#b = {bad}\n^"
    ]


def test_an_alias_that_was_added_is_checked():
    module = parse(function("    tt.return"))
    module.add_alias("#b", BLOCKED.replace("[0]", "[1]"))
    with pytest.raises(VerifyError, match="'#b' is malformed: expected a permutation of 0 to 0"):
        module.verify()


def test_types_of_arguments_are_checked():
    text = function("    tt.return", f"%x: tensor<64xi32, {BLOCKED.replace('[32]', '[0]')}>")
    (problem,) = find_problems(parse(text))
    assert problem.message.startswith("the type of '%x' at 'tt.func' is malformed: expected powers")


@pytest.mark.parametrize(
    "type_",
    ["!tt.ptr<!tt.ptr<f32>>", "!tt.ptr<tensor<64x64xf16>>", "!ttg.new<3>", "tensor<4xi32, #gone>"],
)
def test_types_that_some_host_takes_or_that_nobody_knows(type_):
    assert list(find_problems(parse(function("    tt.return", f"%x: {type_}")))) == []


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_fixtures_are_valid(path):
    assert list(find_problems(parse(path.read_text(), path.name))) == []


def test_whatever_a_host_prints_is_valid(corpus):
    for path in corpus_files():
        for problem in find_problems(parse(path.read_text(), str(path))):
            pytest.fail(str(problem))


def test_what_we_refuse_the_host_refuses(host):
    """The safe direction: no false alarm among the texts of this file."""
    host.needs_present_syntax()
    for name, (body, _, _) in INVALID.items():
        if "your.op" in body and name != "quoted printed type":
            continue
        with pytest.raises(RuntimeError):
            host.text(function(body))
    for name, body in VALID.items():
        if "your." not in body:
            assert host.text(function(body)), name


# ---- nothing but a VerifyError comes out

MANY = "9" * 5000


@pytest.mark.parametrize(
    "body",
    [
        "%0 = arith.select %p : i1",
        '%0 = "arith.select"(%p) : (i1) -> i32',
        f"%0 = arith.constant {MANY} : i32",
        f"%0 = arith.constant dense<{MANY}> : tensor<4xi32>",
        f"%0 = arith.constant dense<1> : tensor<{MANY}xi32>",
        f"%0 = arith.addi %x, %x {{a = {MANY} : i{MANY}}} : i32",
        f"%0 = tt.make_range {{end = {MANY} : i32, start = 0 : i32}} : tensor<4xi32>",
        f'"cf.cond_br"(%p)[^b, ^b] {{operandSegmentSizes = array<i32: {MANY}, 0, 0>}}'
        " : (i1) -> ()\n  ^b:",
        f'%0 = "test.op"(%x) : (i32) -> !ttg.memdesc<4xf16, #ttg.x<{{}}>, #s, mutable, {MANY}>',
    ],
)
def test_what_a_text_says_never_raises_another_error(body):
    module = parse(function(f"    {body}\n    tt.return"), "t.mlir")
    assert all(isinstance(error, VerifyError) for error in find_problems(module))
    for op in module.walk():
        for text in op.attributes.values():
            assert read_integer(text) is None or len(text) < 4400


@pytest.mark.parametrize(
    ("text", "edited", "message"),
    [
        (
            "%1 = arith.cmpi slt, %a, %a : tensor<4xi32>",
            "tensor<8xi32>",
            "expected the result type 'tensor<8xi1>' for 'arith.cmpi', found 'tensor<4xi1>'",
        ),
        (
            "%1 = tt.unsplat %a : tensor<4xi32>",
            "tensor<4xf16>",
            "expected the result type 'f16' for 'tt.unsplat', found 'i32'",
        ),
    ],
)
def test_a_result_whose_type_is_implied_follows_edited_operands(text, edited, message):
    module = parse(function(f"    {text}\n    tt.return", "%a: tensor<4xi32>"), "t.mlir")
    module.verify()
    (op,) = (op for op in module.walk() if op.results)
    op.operands[0].set_type(edited)
    assert [error.message for error in find_problems(module)] == [message]
    op.results[0].set_type(message.split("'")[1])
    module.verify()
    assert parse(str(module), "u.mlir").verify() is None


def test_a_result_whose_type_is_printed_nowhere_gets_none():
    text = "    %0 = tt.splat %x : tensor<4xi32>\n    tt.return"  # a host expects two types
    (op,) = (op for op in parse(function(text), "t.mlir").walk() if op.results)
    with pytest.raises(VerifyError, match="does not print the type of '%0'"):
        op.results[0].set_type("tensor<4xi32>")
