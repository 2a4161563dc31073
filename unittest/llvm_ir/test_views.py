"""What views read from instructions, and what they leave alone."""

from __future__ import annotations

import pytest
from llvm_helpers import read
from triton_ext.llvm_ir import Binary, Call, Freeze, Phi, Select, parse, source_position


def instruction(text):
    module = parse(f"define void @f() {{\n  {text}\n  ret void\n}}\n")
    return next(module.functions[0].instructions())


def args(call):
    return [(arg.type, arg.text) for arg in call.args]


CALLS = {
    "call i32 @f()": ("@f", []),
    "%1 = call i32 @f(i32 %0, i32 -1)": ("@f", [("i32", "%0"), ("i32", "-1")]),
    "%1 = tail call fastcc noundef range(i32 0, 8) i32 @f(float 1.0e+00) #3, !dbg !7": (
        "@f",
        [("float", "1.0e+00")],
    ),
    'call void @"a b"(ptr addrspace(3) noundef nonnull align 16 dereferenceable(8) %p)': (
        '@"a b"',
        [("ptr addrspace(3)", "%p")],
    ),
    "call void %f(ptr byval([128 x i8]) align 64 %0, metadata !5)": (
        "%f",
        [("ptr", "%0"), ("metadata", "!5")],
    ),
    "call { i32, [2 x i8] } @f(<2 x i32> splat (i32 127), { i32, i1 } { i32 0, i1 true })": (
        "@f",
        [("<2 x i32>", "splat (i32 127)"), ("{ i32, i1 }", "{ i32 0, i1 true }")],
    ),
    "call void (ptr, ...) @printf(ptr @x, [1 x i8] zeroinitializer)": (
        "@printf",
        [("ptr", "@x"), ("[1 x i8]", "zeroinitializer")],
    ),
    "call %pair (i32) @f(%pair %x, i32 undef)": ("@f", [("%pair", "%x"), ("i32", "undef")]),
    'call void @f(ptr "a"="b,c" %x, i32 signext add (i32 1, i32 2))': (
        "@f",
        [("ptr", "%x"), ("i32", "add (i32 1, i32 2)")],
    ),
    'call void @f(ptr getelementptr (i8, ptr addrspace(3) @s, i32 8), target("a", i32) %t)': (
        "@f",
        [("ptr", "getelementptr (i8, ptr addrspace(3) @s, i32 8)"), ('target("a", i32)', "%t")],
    ),
    "call void @f(ptr captures(none) null, half 0xH3C00, i1 true)": (
        "@f",
        [("ptr", "null"), ("half", "0xH3C00"), ("i1", "true")],
    ),
    'notail call addrspace(1) i32 @f() [ "deopt"(i32 7) ]': ("@f", []),
    "call void @f(ptr %a, ; why (\n    i32 7)": ("@f", [("ptr", "%a"), ("i32", "7")]),
}


@pytest.mark.parametrize("text", CALLS)
def test_call(text):
    call = Call.match(instruction(text))
    assert (call.callee, args(call)) == CALLS[text]
    source = call.instruction.text
    assert source[slice(*call.callee_span)] == call.callee
    assert (call.template, call.constraints) == ("", "")
    for arg in call.args:
        assert source[arg.start : arg.end] == arg.text
        assert source[arg.type_start :].startswith(arg.type)
    assert source[call.args_span[0] - 1] == "("
    assert source[call.args_span[1]] == ")"


def test_call_of_assembly():
    text = (
        'call void asm sideeffect alignstack "@$0 mov {$1}; \\22", "b,r"(i1 %p, i32 7) #2, !dbg !8'
    )
    call = Call.match(instruction(text))
    assert call.callee == ""
    assert (call.template, call.constraints) == ('"@$0 mov {$1}; \\22"', '"b,r"')
    assert args(call) == [("i1", "%p"), ("i32", "7")]
    source = call.instruction.text
    assert source[slice(*call.callee_span)] == '"@$0 mov {$1}; \\22", "b,r"'
    assert source[slice(*call.args_span)] == "i1 %p, i32 7"


@pytest.mark.parametrize(
    "text",
    [
        "%1 = add i32 1, 2",
        "call void inttoptr (i64 7 to ptr)(i32 1)",
        "call void @f",
        'call void asm "a"',
        'call void asm "a", "b"',
        'call void asm "a", "b", (i32 1)',
    ],
)
def test_no_call(text):
    assert Call.match(instruction(text)) is None


def test_phi():
    phi = Phi.match(instruction('%1 = phi i32 [ %1, %0 ], [ -7, %"a, b" ], !dbg !3'))
    assert phi.type == "i32"
    assert [one.text for one in phi.incoming] == ["%1", "-7"]
    assert phi.labels == ("%0", '%"a, b"')
    phi = Phi.match(instruction("%1 = phi i32 [ 1, %0 ], !range !4, !dbg !3"))
    assert phi.labels == ("%0",)
    phi = Phi.match(instruction("%1 = phi nnan [2 x float] [ zeroinitializer, %0 ], [ %x, %y ]"))
    assert phi.type == "[2 x float]"
    assert [one.text for one in phi.incoming] == ["zeroinitializer", "%x"]
    phi = Phi.match(instruction("%1 = phi { i32, i32 } [ { i32 1, i32 2 }, %0 ]"))
    assert [one.text for one in phi.incoming] == ["{ i32 1, i32 2 }"]
    phi = Phi.match(
        instruction("%1 = phi ptr addrspace(3) [ getelementptr (i8, ptr @x, i32 1), %0 ]")
    )
    assert [one.text for one in phi.incoming] == ["getelementptr (i8, ptr @x, i32 1)"]


@pytest.mark.parametrize(
    "text",
    [
        "%1 = phi []dbg !7",
        "%1 = phi i32",
        "%1 = phi i32 [ %1, %0 ], [",
        "%1 = phi i32 [ , %0 ]",
        "%1 = phi i32 [ %1, %0 ], [ , %0 ]",
        "%1 = phi i32 [ 1 ], !a !1",
    ],
)
def test_no_phi(text):
    module = parse("define void @f() {\n  %1 = phi i32 [ 1, %0 ]\n}\n")
    one = next(module.functions[0].instructions())
    one.set_text(f"  {text}\n")
    assert Phi.match(one) is None


def test_select():
    select = Select.match(
        instruction("%1 = select nsz i1 %c, i32 %a, i32 poison, !dbg !3, !prof !4")
    )
    assert [select.condition.text, select.on_true.text, select.on_false.text] == [
        "%c",
        "%a",
        "poison",
    ]
    # Chosen lane by lane: no choice between two values.
    assert Select.match(instruction("%1 = select <2 x i1> %c, <2 x i32> %a, <2 x i32> %b")) is None


def test_binary():
    binary = Binary.match(instruction("%1 = add nuw nsw i32 %a, -7, !dbg !3"))
    assert (binary.opcode, binary.flags, binary.type) == ("add", ("nuw", "nsw"), "i32")
    assert (binary.left.text, binary.right.text) == ("%a", "-7")
    binary = Binary.match(instruction("%1 = or disjoint <2 x i32> %a, <i32 1, i32 2>"))
    assert (binary.flags, binary.type, binary.right.text) == (
        ("disjoint",),
        "<2 x i32>",
        "<i32 1, i32 2>",
    )
    assert Binary.match(instruction("%1 = mul i32 %a, 7")) is None


def test_freeze():
    assert Freeze.match(instruction("%1 = freeze i32 %a, !dbg !3")).value.text == "%a"
    assert Freeze.match(instruction("%1 = add i32 %a, 1")) is None


def test_source_positions():
    module = parse(read("forms.ll"))
    by_line = {one.line: one for one in module.functions[0].instructions()}
    found = {
        one.text.split("(")[0].strip(): source_position(module, one) for one in by_line.values()
    }
    assert found["%4 = call i32 @marker"] == ("/home/user/kernel.py", 12, 5)
    # The innermost position, as for operations of the other tree.
    assert found['call void asm sideeffect "@$0 bra {$1, \\22x\\22};", "b,r"'] == (
        "triton/language/standard.py",
        43,
        17,
    )
    assert found["br label %default, !llvm.loop !10"] is None


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "!7 = !DILocation(line: 3, column: 5)",
        "!7 = !DILocation(line: 3, column: 5, scope: !8)",
        "!7 = !DILocation(line: 3, column: 5, scope: !8)\n!8 = !DISubprogram(scope: !8)",
        '!7 = !DILocation(line: 0, scope: !8)\n!8 = !DIFile(filename: "a", directory: "b")',
        "!7 = distinct !{}",
    ],
)
def test_no_source_position(metadata):
    module = parse(f"define void @f() {{\n  ret void, !dbg !7\n}}\n{metadata}\n")
    assert source_position(module, next(module.functions[0].instructions())) is None
