"""Markers and copies in LLVM IR become im2col copies that read the same, or an error says why."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvm_machine import TILED, random_function, run
from triton_ext.backends.nvidia.passes.lower_im2col_calls import lower_im2col_calls
from triton_ext.errors import ParseError, PassError
from triton_ext.llvm_ir import parse
from triton_ext.markers import MARKED

EXAMPLES = 2000 if os.environ.get("TRITON_EXT_NIGHTLY") == "1" else 120

ARGUMENTS = {"%a": 11, "%b": (1 << 32) - 2}


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.randoms(use_true_random=False))
def test_copies_read_the_same(random):
    text = random_function(random)
    lowered = lower_im2col_calls(text)
    assert MARKED not in lowered
    assert "tensor.2d" not in lowered
    before, after = (parse(one).functions[0] for one in (text, lowered))
    for bit in (0, 1):
        arguments = {**ARGUMENTS, "%p": bit, "%x": 0}
        assert run(after, arguments) == run(before, arguments)
    # Nothing else changes: not a line, and not their order.
    old, new = text.split("\n"), lowered.split("\n")
    touched = re.compile(r"  %v\d+ = (phi|select|freeze|add|sub|or)|  %ext|.*(im2col|tensor\.2d)|$")
    kept = [[line for line in lines if not touched.match(line)] for lines in (old, new)]
    assert kept[0] == kept[1]


@settings(max_examples=EXAMPLES // 4, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_hosts_llvm_accepts_it(random):
    llvm = pytest.importorskip("triton._C.libtriton").llvm
    llvm.init_targets()
    lowered = lower_im2col_calls(random_function(random))
    # Releases differ in the number of switches behind the list of flags.
    switches = [False] * re.sub(r"bool = \w+", "", llvm.translate_to_asm.__doc__).count(": bool")
    ptx = llvm.translate_to_asm(lowered, "nvptx64-nvidia-cuda", "sm_90a", "+ptx80", [], *switches)
    # LLVM merges equal ends of blocks.
    assert ptx.count(".im2col.") <= lowered.count(".im2col.")
    assert ".im2col." in ptx or ".im2col." not in lowered


HEAD = "define void @f(ptr %x, i32 %a, i1 %p) {\n"
PIXEL = "  %1 = call i32 @triton_ext.im2col.pixel.3(i32 %a, i32 1, i32 2)\n"
CHANNEL = "  %2 = call i32 @triton_ext.im2col.channel.3(i32 64, i32 1, i32 2)\n"
TAIL = "  ret void\n}\n"


def copy(pixel, channel, template=TILED):
    args = f"i1 %p, ptr %x, ptr %x, i32 {channel}, i32 {pixel}, ptr %x"
    return f"  call void asm sideeffect {template}({args})\n"


BAD = {
    "a number": (
        PIXEL + "  %3 = mul i32 %1, 2\n",
        3,
        "an im2col position (start pixel of 3 values) is used by 'mul'",
    ),
    "stored": (
        PIXEL + "  store i32 %1, ptr %x\n",
        3,
        "is used by 'store': it is not a number",
    ),
    "given away": (PIXEL + "  call void @g(i32 %1)\n", 3, "is used by 'call'"),
    "swapped": (PIXEL + CHANNEL + copy("%2", "%1"), 4, "is used by 'call'"),
    "twice": (PIXEL + CHANNEL + copy("%1", "%1"), 4, "is used by 'call'"),
    "one index": (
        PIXEL + copy("%1", "0"),
        3,
        "only one of the two indices of this load comes from load_im2col",
    ),
    "another copy": (
        PIXEL + CHANNEL + copy("%1", "%2", TILED.replace("2d", "2d.extra")),
        4,
        "is used by 'call'",
    ),
    "a choice of kinds": (
        PIXEL + CHANNEL + "  %3 = select i1 %p, i32 %1, i32 %2\n",
        4,
        "a channel and offsets of 3 values meets a start pixel of 3 values in one value",
    ),
    "a choice with a number": (
        PIXEL + "  %3 = select i1 %p, i32 %1, i32 %a\n",
        3,
        "the im2col position %3 is %a on one of its paths",
    ),
    "a condition": (
        PIXEL + "  %3 = select i1 %1, i32 %a, i32 %a\n",
        3,
        "is used by 'select'",
    ),
    "a sum of two": (
        PIXEL + PIXEL.replace("%1", "%3") + "  %4 = add i32 %1, %3\n",
        4,
        "two im2col positions are added",
    ),
    "a difference": (PIXEL + "  %3 = sub i32 %a, %1\n", 3, "is used by 'sub'"),
    "doubled": (PIXEL + "  %3 = add i32 %1, %1\n", 3, "two im2col positions are added"),
    "an or of bits": (PIXEL + "  %3 = or i32 %1, 1\n", 3, "is used by 'or'"),
    "ranks": (
        PIXEL + CHANNEL.replace(".3(i32 64, ", ".2(") + copy("%1", "%2"),
        4,
        "a start pixel of 3 values meets 1 filter offsets",
    ),
    "its address": (
        "  store ptr @triton_ext.im2col.pixel.3, ptr %x\n",
        2,
        "expected a plain call of the im2col marker's symbol",
    ),
    "an unknown marker": (
        "  %1 = call i32 @triton_ext.im2col.row(i32 %a)\n",
        2,
        "expected a plain call of the im2col marker's symbol",
    ),
    "no result": (
        "  call i32 @triton_ext.im2col.pixel.3(i32 %a, i32 1, i32 2)\n",
        2,
        "expected a plain call of the im2col marker's symbol",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_refused_at_its_line(name):
    body, line, message = BAD[name]
    with pytest.raises(PassError) as caught:
        lower_im2col_calls(HEAD + body + TAIL, "kernel.llir")
    error = caught.value
    assert message in error.message
    assert (error.filename, error.line, error.column) == ("kernel.llir", line, 3)
    assert error.source_line == (HEAD + body).split("\n")[line - 1]


def test_refused_at_the_users_line(tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("def kernel():\n    tle.load_im2col(x)\n")
    text = HEAD + PIXEL + "  %3 = mul i32 %1, 2, !dbg !7\n" + TAIL
    text += (
        f"!7 = !DILocation(line: 2, column: 5, scope: !8)\n!8 = !DISubprogram(file: !9)\n"
        f'!9 = !DIFile(filename: "kernel.py", directory: "{tmp_path}")\n'
    )
    with pytest.raises(PassError) as caught:
        lower_im2col_calls(text)
    assert str(caught.value).startswith(f"{source}:2:5: error: an im2col position")
    assert caught.value.source_line == "    tle.load_im2col(x)"


def test_malformed_text_is_a_parse_error():
    with pytest.raises(ParseError, match="has no end"):
        lower_im2col_calls(HEAD + PIXEL, "kernel.llir")


def test_other_modules_come_back_as_they_are():
    text = 'define void @f() {\n  ret void, "'  # not even read
    assert lower_im2col_calls(text) is text


def test_debug_records_of_a_marker_go():
    record = "    #dbg_value(i32 %1, !5, !DIExpression(), !7)\n"
    other = "    #dbg_value(i32 %a, !5, !DIExpression(), !7)\n"
    text = HEAD + PIXEL + record + other + CHANNEL + copy("%1", "%2") + TAIL
    lowered = lower_im2col_calls(text)
    assert record not in lowered
    assert other in lowered


def test_unused_markers_go():
    assert lower_im2col_calls(HEAD + PIXEL + CHANNEL + TAIL) == HEAD + TAIL


def test_modifiers_of_the_copy_stay():
    template = TILED.replace("shared::cta", "shared::cluster").replace(
        "complete_tx::bytes", "complete_tx::bytes.cta_group::2"
    )
    lowered = lower_im2col_calls(HEAD + PIXEL + CHANNEL + copy("%1", "%2", template) + TAIL)
    assert (
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col"
        ".mbarrier::complete_tx::bytes.cta_group::2 "
        "[$1], [$2, {$3, $4, $5, $6}], [$7], {$8, $9};" in lowered
    )
