"""WGMMAs behind a marker become one that adds the same to the same registers, or an error."""

from __future__ import annotations

import re

import pytest
from triton_ext.backends.nvidia.passes.join_wgmma import join_wgmma
from triton_ext.backends.nvidia.passes.smem_descriptors import descriptor_of
from triton_ext.errors import PassError
from triton_ext.llvm_ir import Call, parse
from triton_ext.markers import JOIN

COLUMNS = (32, 16)
STEPS = 2
# Of the 128-byte swizzle: 1024 bytes for 8 rows, that is 128 for a row.
HIGH = 0x40000040
ROW_BYTES = 128
FENCE = "  call void @llvm.nvvm.wgmma.fence.sync.aligned(), !dbg !5\n"
COMMIT = "  call void @llvm.nvvm.wgmma.commit_group.sync.aligned(), !dbg !5\n"

# An address as releases write it; "half" counts in elements, of 2 bytes.
ADDRESSES = {
    "bytes": """
  %at.{i} = getelementptr i8, ptr addrspace(3) getelementptr (i8, ptr addrspace(3) @global_smem, i32 4096), i32 %bytes
  %to.{i} = getelementptr i8, ptr addrspace(3) %at.{i}, i32 {offset}
""",  # noqa: E501 - LLVM IR
    "elements": """
  %ix.{i} = add i32 %halves, {half}
  %to.{i} = getelementptr half, ptr addrspace(3) getelementptr (i8, ptr addrspace(3) @global_smem, i32 4096), i32 %ix.{i}
""",  # noqa: E501 - LLVM IR
    "slots": """
  %ix.{i} = add i32 %slots, {slot}
  %to.{i} = getelementptr [2048 x i8], ptr addrspace(3) getelementptr inbounds (i8, ptr addrspace(3) @global_smem, i32 4096), i32 %ix.{i}
""",  # noqa: E501 - LLVM IR
    "chosen": """
  %ix.{i} = select i1 %odd, i32 {other}, i32 {half}
  %to.{i} = getelementptr [2 x i8], ptr addrspace(3) @global_smem, i32 %ix.{i}
""",
    "constant": "",
}
CAST = "  %in.{i} = ptrtoint ptr addrspace(3) %to.{i} to i32\n"
CONSTANT = (
    "ptrtoint (ptr addrspace(3) getelementptr (i8, ptr addrspace(3) @global_smem, i32 {offset}) "
    "to i32)"
)
# A descriptor of it, some steps on, up to 3.8 and from 3.9 on.
WORDS = """
  %sh.{i} = lshr exact i32 {number}, 4
  %lo.{i} = and i32 %sh.{i}, {mask}
"""
DESCRIPTORS = {
    "wide": "  %ze.{i} = zext nneg i32 %lo.{i} to i64\n"
    "  %d.{i}.0 = or disjoint i64 %ze.{i}, {high}\n"
    "  %d.{i}.1 = add nuw nsw i64 %ze.{i}, {next}\n",
    "pair": "  %v.{i}.0 = insertelement <2 x i32> <i32 poison, i32 {word}>, i32 %lo.{i}, i64 0\n"
    "  %d.{i}.0 = bitcast <2 x i32> %v.{i}.0 to i64\n"
    "  %l.{i}.1 = add nuw nsw i32 %lo.{i}, 2\n"
    "  %v.{i}.1 = insertelement <2 x i32> <i32 poison, i32 {word}>, i32 %l.{i}.1, i64 0\n"
    "  %d.{i}.1 = bitcast <2 x i32> %v.{i}.1 to i64\n",
}


def descriptor(name, offset, address="bytes", form="pair", high=HIGH):
    values = {"i": name, "offset": offset, "half": offset // 2, "slot": offset // 2048}
    values["other"] = offset // 2 + 4096
    at = ADDRESSES[address]
    values["number"] = (f"%in.{name}" if at else CONSTANT).format(**values)
    values |= {"mask": 0x7FFF if form == "pair" else 0x3FFF, "word": high}
    values |= {"high": high << 32, "next": (high << 32) + 2}
    text = at + CAST * bool(at) + WORDS + DESCRIPTORS[form]
    return text.format(**values).replace("\n\n", "\n")


def wgmma(result, columns, added, left, right, flags=", 1, 1, 0, 0", scale="true"):
    count = columns // 2
    floats = ", ".join(["float"] * count)
    registers = ",".join(f"${i}" for i in range(count))
    template = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 {{{registers}}}"
    first = count + len(added)
    template += f", ${first}, ${first + 1}, {f'${first + 2}' if added else 0}{flags};"
    tied = [str(i) for i in range(len(added))]
    constraints = ",".join(["=f"] * count + tied + ["l,l,b" if added else "l,l"])
    passed = [*(f"float {name}" for name in added), f"i64 {left}", f"i64 {right}"]
    passed += [f"i1 {scale}"] * bool(added)
    text = f'  {result} = call {{ {floats} }} asm sideeffect "{template}", "{constraints}"'
    text += f"({', '.join(passed)}) #1, !dbg !5\n"
    for i in range(count):
        text += f"  {result}.{i} = extractvalue {{ {floats} }} {result}, {i}, !dbg !5\n"
    return text


def module(
    columns=COLUMNS, offsets=None, marked=None, between="", changed="", fresh=False, **spelled
):
    """A step of 2 x 16 channels; ``changed`` are the flags of the last accumulator's WGMMAs.

    With ``fresh`` nothing is there yet that the first ones could add to.
    """
    starts = [sum(columns[:i]) * ROW_BYTES for i in range(len(columns))]
    first = ", ".join(f"i32 {n}" for n in (columns if marked is None else marked))
    body = "  %bytes = mul i32 %stage, 8192\n  %halves = mul i32 %stage, 4096\n"
    body += "  %slots = shl i32 %stage, 2\n  %odd = trunc i32 %stage to i1\n"
    body += f"  %m = call i32 @{JOIN}({first}), !dbg !5\n"
    body += descriptor("x", 1 << 17, **spelled)
    last = ""
    for i, (n, start) in enumerate(zip(columns, offsets or starts, strict=True)):
        body += descriptor(f"w{i}", start, **spelled) + FENCE
        added = [] if fresh else [f"%a{i}.{j}" for j in range(n // 2)]
        for step in range(STEPS):
            flags = {"flags": changed} if changed and i == len(columns) - 1 else {}
            body += wgmma(f"%r{i}.{step}", n, added, f"%d.x.{step}", f"%d.w{i}.{step}", **flags)
            added = [f"%r{i}.{step}.{j}" for j in range(n // 2)]
        body += COMMIT + (between if i == 0 else "")
        last += "".join(f", float {name}" for name in added)
    arguments = [f"float %a{i}.{j}" for i, n in enumerate(columns) for j in range(n // 2)]
    declared = ", ".join(["i32"] * first.count("i32"))
    return f"""@global_smem = external addrspace(3) global [0 x i8], align 16

declare !dbg !6 i32 @{JOIN}({declared})

declare void @llvm.nvvm.wgmma.fence.sync.aligned()

declare void @llvm.nvvm.wgmma.commit_group.sync.aligned()

declare void @use({", ".join(["float"] * len(arguments))})

define void @f(i32 %stage, {", ".join(arguments)}) !dbg !4 {{
{body}  call void @use({last[2:]}), !dbg !5
  ret void
}}

attributes #1 = {{ nounwind }}

!llvm.dbg.cu = !{{!0}}
!llvm.module.flags = !{{!8}}

!0 = distinct !DICompileUnit(language: DW_LANG_C, file: !1, producer: "triton", emissionKind: 2)
!1 = !DIFile(filename: "kernel.py", directory: "/src")
!4 = distinct !DISubprogram(name: "f", scope: !1, file: !1, line: 1, type: !7, unit: !0)
!5 = !DILocation(line: 12, column: 5, scope: !4)
!6 = !DISubprogram(name: "{JOIN}", scope: !1, file: !1, line: 1, type: !7)
!7 = !DISubroutineType(types: !9)
!8 = !{{i32 2, !"Debug Info Version", i32 3}}
!9 = !{{}}
"""


def used(text):
    """What each register of the last call holds: the products that were added to it, in order."""
    (function,) = parse(text).functions
    definitions = {one.result: one for one in function.instructions() if one.result}
    registers: dict[str, list[object]] = {}
    for one in function.instructions():
        call = Call.match(one)
        if call is not None and "wgmma.mma_async" in call.template:
            passed = [arg.text for arg in call.args]
            left, right = (arg.text for arg in call.args if arg.type == "i64")
            found = descriptor_of(right, definitions)
            count = call.template.partition("}")[0].count("$")
            added = passed[:count] if len(passed) > 2 else ["zero"] * count
            for i, name in enumerate(added):
                # Four registers are 8 columns, 8 rows of the right operand.
                at = (found.address, found.offset_bytes + i // 4 * found.group_bytes, i % 4)
                step = found.constant & 0x3FFF
                registers[f"{one.result} {i}"] = [*registers.get(name, [name]), (left, at, step)]
        extract = re.search(r"extractvalue \{.*\} (%[\w.]+), (\d+)", one.text)
        if extract is not None:
            registers[one.result] = registers[f"{extract[1]} {extract[2]}"]
        if call is not None and call.callee == "@use":
            return [registers[arg.text] for arg in call.args]
    raise AssertionError("nothing is used")


@pytest.mark.parametrize("columns", [COLUMNS, (16, 16, 16), (128, 64)])
@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("form", DESCRIPTORS)
def test_the_same_is_added_to_the_same_registers(columns, address, form):
    text = module(columns, address=address, form=form)
    joined = join_wgmma(text)
    assert used(joined) == used(text)
    assert re.findall(r"mma_async\S*m64n(\d+)k16", joined) == [str(sum(columns))] * STEPS
    # One fence, one group, and nothing left of the marker.
    assert joined.count(FENCE) == joined.count(COMMIT) == 1
    assert JOIN not in joined


@pytest.mark.parametrize("columns", [COLUMNS, (16, 16, 16)])
def test_the_first_products_of_all_are_joined(columns):
    # What Triton writes where it knows that the accumulators are zero: of a loop of one step.
    text = module(columns, fresh=True)
    joined = join_wgmma(text)
    assert used(joined) == used(text)
    assert used(text)[0][0] == "zero"
    assert re.findall(r"mma_async\S*m64n(\d+)k16", joined) == [str(sum(columns))] * STEPS


# What is there with LLVM_EXTRACT_DI_LOCAL_VARIABLES.
RECORDS = """  #dbg_value(i32 %m, !10, !DIExpression(), !5)
  #dbg_value({{ {} }} %r1.1, !10, !DIExpression(), !5)
"""
VARIABLE = '!10 = !DILocalVariable(name: "m", scope: !4, file: !1, line: 12)\n'


def with_records(text):
    """The module where variables of the user's are the marker and an accumulator."""
    records = RECORDS.format(", ".join(["float"] * (COLUMNS[1] // 2)))
    return text.replace("  call void @use(", f"{records}  call void @use(") + VARIABLE


def test_what_debug_information_says_of_what_goes_goes():
    joined = join_wgmma(with_records(module()))
    assert "#dbg_value" not in joined
    assert joined.removesuffix(VARIABLE) == join_wgmma(module())
    assert "#dbg_value" not in join_wgmma(branches(with_records(module())))


def with_late(*lines):
    """The module where an accumulator of the second ones is computed behind the first ones."""
    behind = "".join(f"  {line}, !dbg !5\n" for line in lines)
    head, _, tail = module().replace("  %in.w1 =", f"{behind}  %in.w1 =").rpartition("%a1.0,")
    return f"{head}%late,{tail}"


LATE = ("%one = zext i1 %odd to i32", "%late = bitcast i32 %one to float")


def test_what_is_added_to_is_computed_in_front_of_the_fence():
    # As 3.6 and 3.7 write accumulators that are chosen: those of each product in front of it.
    text = with_late(*LATE)
    joined = join_wgmma(text)
    front = joined.partition(FENCE)[0]
    one, late = (re.search(rf"(%\S+) = {name} ", front)[1] for name in ("zext i1", "bitcast i32"))
    assert f"{one} = zext i1 %odd to i32, !dbg !5\n" in front
    assert f"{late} = bitcast i32 {one} to float, !dbg !5\n" in front
    assert used(joined.replace(late, "%late")) == used(text)


ACCEPTED = {"ready": module(), "fresh": module(fresh=True), "late": with_late(*LATE)}


@pytest.mark.parametrize("case", ACCEPTED)
def test_the_hosts_llvm_accepts_it(case):
    llvm = pytest.importorskip("triton._C.libtriton").llvm
    llvm.init_targets()
    switches = [False] * re.sub(r"bool = \w+", "", llvm.translate_to_asm.__doc__).count(": bool")
    joined = join_wgmma(ACCEPTED[case])
    ptx = llvm.translate_to_asm(joined, "nvptx64-nvidia-cuda", "sm_90a", "+ptx80", [], *switches)
    assert re.findall(r"mma_async\S*m64n(\d+)k16", ptx) == ["48"] * STEPS


def test_what_has_no_marker_stays():
    text = re.sub(rf".*{re.escape(JOIN)}.*\n", "", module())
    assert join_wgmma(text) == text


BARRIER = "  call void @llvm.nvvm.barrier0(), !dbg !5\n"
ASSEMBLY = '  call void asm sideeffect "bar.sync 0;", ""(), !dbg !5\n'
WAIT = '  call void asm sideeffect "wgmma.wait_group.sync.aligned 0;", ""(), !dbg !5\n'
REFUSED = {
    "a gap": ({"offsets": (0, 5120)}, "lies 5120 bytes behind the one before: 4096 is right"),
    "a constant gap": (
        {"offsets": (0, 5120), "address": "constant"},
        "lies 5120 bytes behind the one before: 4096 is right",
    ),
    "overlap": ({"offsets": (0, 2048)}, "lies 2048 bytes behind the one before: 4096 is right"),
    "other order": ({"offsets": (2048, 0)}, "lies -2048 bytes behind"),
    "other widths": ({"marked": (32, 32)}, "expected groups of 32, 32 columns, found 32, 16"),
    "too few": ({"marked": (32, 16, 16)}, "'call' of @use stands between them"),
    "one": ({"marked": (32,)}, "expected at least 2 counts"),
    "too wide": ({"marked": (128, 128, 8)}, "of up to 256 columns, got 128, 128, 8"),
    "unknown width": ({"marked": (32, "%stage")}, "got 32, %stage"),
    "other flags": ({"changed": ", 1, -1, 0, 0"}, "they differ in flags: '1, 1, 0, 0'"),
    "transposed": ({"changed": ", 1, 1, 0, 1"}, "the columns of the right one together there"),
    "a barrier": ({"between": BARRIER}, "'call' of @llvm.nvvm.barrier0 stands between them"),
    "assembly": (
        {"between": ASSEMBLY},
        "become one, as warpgroup_mma_joined asks: inline assembly stands",
    ),
    "a wait": ({"between": WAIT}, "1 of 2 products are left in front of a wait: equal ones"),
    "a store": ({"between": "  store i32 1, ptr null, !dbg !5\n"}, "'store' stands between them"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_become_one_is_refused(case):
    changes, expected = REFUSED[case]
    with pytest.raises(PassError) as caught:
        join_wgmma(module(**changes))
    message = str(caught.value)
    assert expected in message
    assert "/src/kernel.py:12:5: error: these WGMMAs cannot become one" in message


# Edits of the module: what was there, what is there then, and the error.
EDITED = {
    "another left operand": ("i64 %d.x.0, i64 %d.w1.0", "i64 %d.x.1, i64 %d.w1.0", "left operand"),
    "a left operand of no form": ("%d.x.0, i64 %d.w1.0", "7, i64 %d.w1.0", "left operand"),
    "another predicate": ("%d.w1.0, i1 true", "%d.w1.0, i1 false", "differ in predicate"),
    "another stage": ("i32 %bytes\n", "i32 %halves\n", "not known to lie in a row"),
    "another layout": (
        f"i32 {HIGH}>, i32 %lo.w1",
        f"i32 {HIGH + 64}>, i32 %lo.w1",
        "not known to lie in a row, in one layout",
    ),
    "an unknown address": (
        "ptr addrspace(3) %at.w1,",
        "ptr addrspace(3) null,",
        "not known to lie",
    ),
    "an unknown descriptor": ("i64 %d.w1.0, i1", "i64 9, i1", "operands are not known"),
    "another form": ("f32.f16.f16 {$0,$1,$2,$3,$4,$5,$6,$7},", "f16.f16.f16 {$0},", "of fp32"),
    "used as a whole": (
        "  call void @use(",
        "  store {} %r1.1, ptr null\n  call void @use(",
        "as a whole",
    ),
}


@pytest.mark.parametrize("case", EDITED)
def test_what_is_not_alike_is_refused(case):
    before, after, expected = EDITED[case]
    text = module()
    assert before in text
    head, _, tail = text.rpartition(before)
    with pytest.raises(PassError, match=re.escape(expected)):
        join_wgmma(head + after + tail)


@pytest.mark.parametrize(
    "lines",
    [
        ("%bits = bitcast float %r0.0.0 to i32", "%late = bitcast i32 %bits to float"),
        ("%late = freeze float poison",),
    ],
)
def test_what_is_added_to_may_not_come_of_the_first_product(lines):
    with pytest.raises(PassError, match="the accumulator %late is not there yet at the fence"):
        join_wgmma(with_late(*lines))


def test_products_of_another_call_are_not_a_markers():
    def marked_at(line, column):
        text = re.sub(rf"(call i32 @{JOIN}.*)!5", r"\1!11", module())
        return f"{text}!11 = !DILocation(line: {line}, column: {column}, scope: !4)\n"

    for place in ((11, 5), (12, 9)):
        with pytest.raises(PassError) as caught:
            join_wgmma(marked_at(*place))
        message = str(caught.value)
        assert "/src/kernel.py:{}:{}: error: these WGMMAs cannot".format(*place) in message
        assert "of the call at /src/kernel.py:12:5: is the result unused?" in message
    # What LLVM makes of markers at two places is at none, or has no column.
    for place in ((0, 0), (12, 0)):
        assert used(join_wgmma(marked_at(*place))) == used(module())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # 4096 halves behind what is chosen otherwise, as all are; then 4224, and by another choice.
        ("i32 6144, i32 2048", "i32 6272, i32 2048"),
        ("%ix.w1 = select i1 %odd", "%ix.w1 = select i1 %even"),
    ],
)
def test_what_is_chosen_lies_in_a_row_in_both_cases(before, after):
    text = module(address="chosen")
    assert used(join_wgmma(text)) == used(text)
    assert text.count(before) == 1
    with pytest.raises(PassError, match="not known to lie in a row"):
        join_wgmma(text.replace(before, after))


def branches(text):
    """The body of a module twice, behind a branch in front of which LLVM moved the marker."""
    head, _, rest = text.partition("!dbg !4 {\n")
    body, _, tail = rest.partition("  call void @use(")
    use, _, tail = tail.partition("  ret void\n")
    (marker,) = re.findall(rf".*call i32 @{JOIN}.*\n", body)
    body = body.replace(marker, "") + f"  call void @use({use}  ret void\n"
    other = re.sub(r"%(?!stage|m\b|a\d)", "%other.", body)
    way = "  br i1 %way, label %one, label %other, !dbg !5\n"
    text = f"{head}!dbg !4 {{\n{marker}{way}\none:\n{body}\nother:\n{other}{tail}"
    return text.replace("define void @f(", "define void @f(i1 %way, ")


def test_a_marker_in_front_of_a_branch_is_that_of_both_ways():
    text = branches(module())
    joined = join_wgmma(text)
    assert re.findall(r"mma_async\S*m64n(\d+)k16", joined) == [str(sum(COLUMNS))] * STEPS * 2
    assert joined.count(FENCE) == joined.count(COMMIT) == 2
    assert JOIN not in joined
    # Where one of the ways is entered from elsewhere as well, it is not known to be marked.
    entered = text.replace("  ret void\n", "  br label %other\n", 1)
    with pytest.raises(PassError, match="expected groups of 32, 16 columns, found none"):
        join_wgmma(entered)


WAYS = """define void @f(i1 %c) {{
  br i1 %c, label %one, label %two

one:
  br label %two

two:
  %i0 = phi i32 [ 4096, %one ], [ 0, %0 ]
  %i1 = phi i32 [ {one}, %one ], [ 2048, %0 ]
  %t0 = getelementptr i8, ptr addrspace(3) @global_smem, i32 %i0
  %t1 = getelementptr i8, ptr addrspace(3) @global_smem, i32 %i1
  %n0 = ptrtoint ptr addrspace(3) %t0 to i32
  %n1 = ptrtoint ptr addrspace(3) %t1 to i32
  %s0 = lshr exact i32 %n0, 4
  %s1 = lshr exact i32 %n1, 4
  %a0 = and i32 %s0, 16383
  %a1 = and i32 %s1, 16383
  %d0 = zext nneg i32 %a0 to i64
  %d1 = zext nneg i32 %a1 to i64
  ret void
}}
"""


@pytest.mark.parametrize(("one", "expected"), [("6144", 2048), ("6272", None), ("%x", None)])
def test_what_comes_with_the_way_lies_in_a_row_on_each(one, expected):
    (function,) = parse(WAYS.format(one=one)).functions
    definitions = {each.result: each for each in function.instructions() if each.result}
    first, second = (descriptor_of(name, definitions) for name in ("%d0", "%d1"))
    assert first.distance_bytes(second) == expected
    assert first.distance_bytes(first) == 0
