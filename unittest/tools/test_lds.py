"""triton-ext lds: every buffer is at its bytes and rows, every wavefront at its banks."""

from __future__ import annotations

import io
import os
import pathlib
import re
import sys
import xml.etree.ElementTree as ET

import pytest
from triton_ext import backends
from triton_ext.analysis import memory_mapper
from triton_ext.analysis.memory_map import RowKind
from triton_ext.analysis.memory_mapper import map_of
from triton_ext.ir import parse
from triton_ext.tools import cli
from triton_ext.tools import lds as lds_tool
from triton_ext.tools.lds_svg import render_html, render_svg
from triton_ext.tools.lds_text import render_text

HERE = pathlib.Path(__file__).parent / "lds"
DOCS = HERE.parents[2] / "docs"
#: TRITON_EXT_ACCEPT=1 takes what the tool prints as what is expected.
ACCEPT = bool(os.environ.get("TRITON_EXT_ACCEPT"))
KERNELS = ("matmul", "transpose", "specialized")
NAMESPACE = "http://www.w3.org/2000/svg"
VENDORS = {"hip": "amd", "cuda": "nvidia"}
#: 4 KiB more than 64 KiB.
BIG = """\
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx942"} {
  tt.func public @big() {
    %a = ttg.local_alloc : () -> !ttg.memdesc<64x64xi8, #s, #ttg.shared_memory, mutable>
    %b = ttg.local_alloc : () -> !ttg.memdesc<1024x32xf16, #s, #ttg.shared_memory, mutable>
    ttg.local_dealloc %a : !ttg.memdesc<64x64xi8, #s, #ttg.shared_memory, mutable>
    ttg.local_dealloc %b : !ttg.memdesc<1024x32xf16, #s, #ttg.shared_memory, mutable>
    tt.return
  }
}
"""
#: A value in {count} partitions.
PARTITIONED = """\
#s = #ttg.swizzled_shared<{{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}}>
#p = #ttg.partitioned_shared<{{numPartitions = {count}, numGroups = 1, partitionDim = 0, \
partitionLayout = #s}}>
module attributes {{"ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250"}} {{
  tt.func public @k() {{
    %a = ttg.local_alloc : () -> !ttg.memdesc<{shape}xf32, #p, #ttg.shared_memory, mutable>
    tt.return
  }}
}}
"""


def lds(*arguments: str) -> int:
    return cli.main(["lds", "--host=none", *arguments])


def memory_of(arch: str):
    return backends.load("amd" if arch.startswith("gfx") else "nvidia", "shared-memory")(arch)


def mapped(name: str, arch: str = ""):
    path = HERE / f"{name}.ttgir"
    module = parse(path.read_text(), path.name)
    target = module.op.attributes["ttg.target"].strip('"').partition(":")[2]
    return map_of(module, memory_of(arch or target))


def drawn(name: str, arch: str = "") -> tuple[object, ET.Element]:
    found = mapped(name, arch)
    return found.functions[0], ET.fromstring(render_svg(found, f"{name}.ttgir"))


def with_data(root: ET.Element, name: str) -> list[ET.Element]:
    return [element for element in root.iter() if element.get(f"data-{name}") is not None]


# ---- the map


def test_a_partitioned_matmul():
    (found,) = mapped("matmul").functions
    places = [(bar.name, bar.offset, bar.size, bar.partitions) for bar in found.bars]
    # Operands: a buffer in each of two partitions; the result's goes where A was.
    assert places == [
        ("%a_1", 0, 17392, (0,)),
        ("%a_1", 65536, 17392, (1,)),
        ("%b_2", 17392, 17392, (0,)),
        ("%b_2", 82928, 17392, (1,)),
        ("%local_alloc", 0, 34800, (0,)),
    ]
    rows = {index: row for index, row in enumerate(found.rows) if row.kind is RowKind.OPERATION}
    first, last = found.bars[0].first, found.bars[0].last
    assert (rows[first].head, rows[first].rest) == ("local_alloc", "%a_1")
    assert (rows[last].head, rows[last].rest) == ("local_dealloc", "%a_1")
    assert found.total == 82928 + 17392
    assert found.peak == 4 * 17392
    assert found.holes == ((34800, 65536),)
    reads = [access for access in found.accesses if not access.is_store]
    assert [access.names for access in reads] == [("%a_1",), ("%b_2",)]
    for access in reads:
        assert access.cost.wavefronts == access.cost.ideal == 128
        # Two waves at a time: never the same partition.
        assert access.partition_slots[0] == access.partition_slots[1]


def test_a_transposition():
    (found,) = mapped("transpose").functions
    ways = {
        (access.names[0], access.is_store): access.cost.wavefronts / access.cost.ideal
        for access in found.accesses
    }
    assert ways == {
        ("%plain", True): 1,
        ("%plain", False): 32,
        ("%swizzled", True): 1,
        ("%swizzled", False): 1,
        ("%padded", True): 1,
        ("%padded", False): 4,
    }
    assert [len(access.phases) for access in found.accesses] == [1] * 6
    assert [(bar.offset, bar.end) for bar in found.bars] == [
        (0, 16384),
        (0, 16384),
        (16384, 25584),
    ]


@pytest.mark.parametrize(("features", "ways"), [((), 2), (("nvidia-matrix-rows",), 1)])
def test_rows_of_transposed_matrices(features, ways):
    # 16-bit elements, lanes 4 to 16 along a row of 8, a swizzle that leaves pairs of rows together.
    text = """
#b = #ttg.blocked<{sizePerThread = [2, 1], threadsPerWarp = [4, 8], warpsPerCTA = [2, 2], \
order = [0, 1]}>
#s = #ttg.swizzled_shared<{vec = 8, perPhase = 2, maxPhase = 4, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", \
"ttg.threads-per-warp" = 32 : i32} {
  tt.func public @f() {
    %m = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #s, #smem, mutable>
    %x = ttg.local_load %m : !ttg.memdesc<64x64xf16, #s, #smem, mutable> -> tensor<64x64xf16, #b>
    tt.return
  }
}
""".replace("\\\n", "")
    found = map_of(parse(text), memory_of("sm_90"), features=frozenset(features))
    (access,) = found.functions[0].accesses
    assert access.is_transposed
    assert access.cost.wavefronts == 64 * ways
    (matrix,) = access.phases
    assert matrix.wavefronts == ways


def test_warps_that_run_at_the_same_time():
    (found,) = mapped("specialized").functions
    bars = {bar.name: bar for bar in found.bars if bar.name.startswith("%")}
    opened = next(i for i, row in enumerate(found.rows) if row.kind is RowKind.OPEN)
    closed = max(i for i, row in enumerate(found.rows) if row.kind is RowKind.CLOSE)
    heads = [row.head for row in found.rows if row.kind is RowKind.SPLIT]
    assert heads == ["partition 0", "partition 1"]
    # What is made in one partition may be alive all the time that the others run.
    assert bars["%mine"].ghost == bars["%yours"].ghost == (opened + 1, closed)
    assert bars["%mine"].last < bars["%yours"].first
    assert not set(range(bars["%mine"].offset, bars["%mine"].end)) & set(
        range(bars["%yours"].offset, bars["%yours"].end)
    )
    assert bars["%both"].ghost is None
    assert bars["%both"].first < opened < closed <= bars["%both"].last + 1


@pytest.mark.parametrize("name", KERNELS)
def test_no_two_buffers_overlap(name):
    for function in mapped(name).functions:
        for index, one in enumerate(function.bars):
            for two in function.bars[:index]:
                apart = one.end <= two.offset or two.end <= one.offset
                assert apart or one.last < two.first or two.last < one.first
        for number, row in enumerate(function.rows):
            assert row.alive == sum(bar.size for bar in function.bars if bar.is_at(number))
        assert function.total == max(bar.end for bar in function.bars)


def test_memory_that_only_triton_knows(monkeypatch, capsys):
    def first_store(module, **options):
        return tuple(op for op in module.walk() if op.name == "ttg.local_store")[:1]

    monkeypatch.setattr(memory_mapper, "unknown_scratch", first_store)
    assert lds(str(HERE / "transpose.ttgir")) == 0
    said = capsys.readouterr()
    source = HERE / "transpose.ttgir"
    assert said.err.startswith(
        f"{source}:25:5: warning: the memory that 'ttg.local_store' needs while it runs is not "
        "shown: its size is not known\n    ttg.local_store %"
    )
    assert "needs at least 25 KiB" in said.out
    assert re.search(r" 25  local_store .* size unknown", said.out)


@pytest.mark.parametrize(("padding", "is_torn"), [("64:+8", False), ("64:+4", True)])
def test_paddings_that_tear_vectors(padding, is_torn, tmp_path, capsys):
    # Triton 3.8 and 3.9 read 16 bytes at once, whatever the padding leaves aligned.
    text = (HERE / "transpose.ttgir").read_text()
    text = text.replace("[64:+8]", f"[{padding}]").replace(
        "sizePerThread = [1, 1], threadsPerWarp = [1, 32]",
        "sizePerThread = [1, 8], threadsPerWarp = [4, 8]",
    )
    path = tmp_path / "torn.ttgir"
    path.write_text(text)
    assert lds(str(path)) == 0
    said = "padded by less than 16 bytes: Triton may emit misaligned instructions"
    assert capsys.readouterr().out.count(said) == is_torn


@pytest.mark.parametrize(
    ("features", "second"), [((), 34816), (("amd-partition-placement",), 17408)]
)
def test_placement_of_triton(features, second):
    path = HERE / "matmul.ttgir"
    module = parse(path.read_text(), path.name)
    memory = memory_of("gfx1250")
    found = map_of(module, memory, features=frozenset(features), as_triton=True)
    # Triton 3.8 leaves a gap that 3.9 does not.
    assert [bar.offset for bar in found.functions[0].bars] == [0, 65536, second, 82944, 0]
    assert ", placed by Triton\n" in render_text(found, path.name)
    assert "placed by Triton" in render_svg(found, path.name)


RETURNED = """\
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {ttg.target = "cuda:90", "ttg.num-warps" = 4 : i32} {
tt.func private @giver() -> $T attributes {noinline = true} {
  %0 = ttg.local_alloc : () -> $T
  tt.return %0 : $T
}
tt.func public @taker() {
  %a = tt.call @giver() : () -> $T
  %b = ttg.local_alloc : () -> $T
  ttg.local_dealloc %b : $T
  ttg.local_dealloc %a : $T
  tt.return
}
}
""".replace("$T", "!ttg.memdesc<64xi32, #s, #smem, mutable>")


@pytest.mark.parametrize(("as_triton", "offsets"), [(False, {0, 256}), (True, {0})])
def test_what_a_call_returns(as_triton, offsets):
    found = map_of(
        parse(RETURNED), memory_of("sm_90"), features=frozenset(), as_triton=as_triton
    ).functions[1]
    assert {bar.offset for bar in found.bars} == offsets
    # It is alive until its last use, wherever Triton puts the next buffer.
    assert [(bar.name, bar.first, bar.last) for bar in found.bars] == [
        ("@giver", 0, 3),
        ("%b", 1, 2),
    ]
    assert [row.rest for row in found.rows] == ["", "%b", "%b", "@giver"]


# ---- text


@pytest.mark.parametrize("name", KERNELS)
def test_text(name, monkeypatch, capsys):
    monkeypatch.chdir(HERE)
    assert lds(f"{name}.ttgir") == 0
    printed = capsys.readouterr().out
    expected = HERE / f"{name}.txt"
    if ACCEPT:
        expected.write_text(printed, encoding="utf-8")
    assert printed == expected.read_text(encoding="utf-8")


def test_text_has_a_letter_for_each_buffer(capsys):
    assert lds(str(HERE / "transpose.ttgir")) == 0
    lines = capsys.readouterr().out.splitlines()
    store = next(line for line in lines if line.startswith("  54  local_store %padded"))
    cells = re.search(r"(\w+)\W*┃", store)[1]
    # 16384 and 9200 bytes beside each other, to scale.
    assert cells.count("b") / cells.count("C") == pytest.approx(16384 / 9200, rel=0.05)
    assert set(cells) == {"b", "C"}


def test_colours_only_where_asked_for(capsys):
    assert lds(str(HERE / "matmul.ttgir"), "--color=always") == 0
    coloured = capsys.readouterr().out
    assert lds(str(HERE / "matmul.ttgir")) == 0
    plain = capsys.readouterr().out
    assert "\x1b[" in coloured
    assert "\x1b[" not in plain
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_no_color(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert lds(str(HERE / "matmul.ttgir")) == 0
    assert "\x1b[" not in capsys.readouterr().out


# ---- pictures


@pytest.mark.parametrize("name", KERNELS)
def test_bars_are_at_their_bytes_and_rows(name):
    found, root = drawn(name)
    shapes = with_data(root, "buffer")
    keys = ("buffer", "offset", "size", "first", "last")
    assert [tuple(shape.get(f"data-{key}") for key in keys) for shape in shapes] == [
        (bar.name, str(bar.offset), str(bar.size), str(bar.first), str(bar.last))
        for bar in found.bars
    ]
    tops = {}
    for bar, shape in zip(found.bars, shapes, strict=True):
        left, top = float(shape.get("x")), float(shape.get("y"))
        height = float(shape.get("height"))
        tops.setdefault(bar.first, top)
        assert tops[bar.first] == top
        # 22 pixels a row, less a gap of 3.
        assert height == pytest.approx(22 * (bar.last - bar.first + 1) - 3, abs=0.11)
        for other, its in zip(found.bars, shapes, strict=True):
            there = float(its.get("x"))
            assert (left < there) == (bar.offset < other.offset)
            assert (top < float(its.get("y"))) == (bar.first < other.first)
            if bar.size == other.size and bar.size > 256:
                assert float(shape.get("width")) == pytest.approx(float(its.get("width")), abs=0.2)


@pytest.mark.parametrize("name", KERNELS)
def test_marks_are_what_is_read_and_written(name):
    found, root = drawn(name)
    marks = [element.get("data-effect") for element in with_data(root, "effect")]
    wide = [
        effect.value
        for row in found.rows
        for number, effect in row.uses
        if found.bars[number].size > 1024 and effect.value != "use"
    ]
    assert marks == wide


def test_banks_are_those_of_the_model():
    found, root = drawn("transpose")
    cells = with_data(root, "access")
    for number, access in enumerate(found.accesses, 1):
        mine = [cell for cell in cells if cell.get("data-access") == str(number)]
        shown = {}
        for cell in mine:
            shown.setdefault(int(cell.get("data-wavefront")), []).append(int(cell.get("data-bank")))
        wanted = []
        for phase in access.phases:
            for turn in range(phase.wavefronts):
                wanted.append(sorted(b for b, words in phase.banks.items() if turn < len(words)))
        assert [sorted(shown[turn]) for turn in sorted(shown)] == wanted
    # A column of a plain buffer: one bank, 32 times, all but the first in the colours of conflicts.
    column = [cell for cell in cells if cell.get("data-access") == "2"]
    assert [cell.get("data-bank") for cell in column] == ["0"] * 32
    assert [cell.get("class") for cell in column].count("h0") == 1
    assert column[1].find(f"{{{NAMESPACE}}}title").text == "bank 0: word 64, lane 1"


def test_partitions_and_holes():
    found, root = drawn("matmul")
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"partition 0", "partition 1"} <= set(texts)
    (hole,) = with_data(root, "start")
    assert (hole.get("data-start"), hole.get("data-end")) == ("34800", "65536")
    assert "320 KiB in all, 222 KiB free" in texts
    edges = [e for e in root.iter() if e.get("class") == "edge"]
    assert len(edges) == 4
    second = with_data(root, "buffer")[1]
    assert float(edges[0].get("d")[1:].split()[0]) == pytest.approx(float(second.get("x")), abs=0.1)
    assert found.bars[1].offset == 65536


def test_names_and_what_stands_behind_them_are_one_text():
    # Where the second starts depends on how wide the font is that shows the first.
    _, root = drawn("transpose")
    gaps = [e for e in root.iter() if e.tag.endswith("tspan") and e.get("dx")]
    assert [e.text for e in gaps] == [
        "16 KiB at 0 to 16384",
        "16 KiB at 0 to 16384",
        "9200 B at 16384 to 25584",
        *("line 25", "line 36", "line 45", "line 54", "line 60", "line 67"),
    ]
    assert {float(e.get("dx")) for e in gaps} == {7.0}


def test_long_names_stay_in_their_places(tmp_path):
    long = "a" * 300
    text = (HERE / "transpose.ttgir").read_text().replace("%padded", f"%{long}")
    root = ET.fromstring(render_svg(map_of(parse(text), memory_of("sm_90")), "x"))
    texts = ["".join(e.itertext()) for e in root.iter() if e.tag.endswith("text")]
    cut = [said for said in texts if "aaa…" in said]
    # 7.26 pixels a letter: a row of banks is 448 wide, the whole 1348.
    assert sorted({said.partition("…")[2] for said in cut} - {""}) == [
        "9200 B at 16384 to 25584",
        "line 54",
        "line 67",
    ]
    assert all(len(said) < (190 if "9200" in said else 62) for said in cut)
    assert not any(long in said for said in texts)


def test_ghosts():
    _, root = drawn("specialized")
    ghosts = {element.get("data-ghost") for element in with_data(root, "ghost")}
    assert {"%mine", "%yours"} <= ghosts
    assert "%both" not in ghosts


def test_more_than_there_is(tmp_path, capsys):
    picture, source = tmp_path / "big.svg", tmp_path / "big.ttgir"
    source.write_text(BIG)
    assert lds(str(source), "--arch=gfx942", f"--svg={picture}") == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{source}:4:5: error: out of LDS of gfx942: 'big' needs 69632 bytes, there are 65536, "
        "4096 bytes are missing",
        BIG.splitlines()[3],
        "    ^",
        "note: what is alive at once takes 69632 bytes, wherever it lies",
        f"note: 0 to 65536: '%b' of 65536 bytes, {source}:5",
        f"note: 65536 to 69632: '%a' of 4096 bytes, {source}:4",
    ]
    root = ET.fromstring(picture.read_text(encoding="utf-8"))
    (line,) = [e for e in root.iter() if e.get("class") == "end capacity"]
    capacity = float(line.get("d")[1:].split()[0])
    ends = [float(e.get("x")) + float(e.get("width")) for e in with_data(root, "buffer")]
    assert max(ends) > capacity + 10
    assert any(e.get("class") == "beyond" for e in root.iter())
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert "64 KiB in all, 4 KiB too much" in texts


@pytest.mark.parametrize("name", KERNELS)
def test_pictures_need_nothing_from_elsewhere(name):
    found = mapped(name)
    svg = render_svg(found, name)
    page = render_html(found, name, render_text(found, name))
    for text in (svg.replace(f'xmlns="{NAMESPACE}"', ""), page):
        assert not re.search(r"http|//\w|@import|url\(|src=|href=|<script", text)
    assert "prefers-color-scheme:dark" in svg
    # A page whose elements are all closed is XML as well.
    ET.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    assert "The same as text" in page


def test_files(tmp_path, capsys):
    svg, page = tmp_path / "a.svg", tmp_path / "a.html"
    assert lds(str(HERE / "matmul.ttgir"), f"--svg={svg}", f"--html={page}") == 0
    assert capsys.readouterr().out == ""
    assert svg.read_text(encoding="utf-8").startswith("<svg")
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("name", ["matmul", "transpose"])
def test_the_pictures_of_the_manual_are_what_the_tool_draws(name):
    picture = render_svg(mapped(name), f"{name}.ttgir")
    path = DOCS / f"shared-memory-{name}.svg"
    if ACCEPT:
        path.write_text(picture, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == picture


# ---- what cannot be drawn


def test_standard_input(monkeypatch, capsys):
    text = (HERE / "transpose.ttgir").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert lds() == 0
    assert capsys.readouterr().out.startswith(
        "<stdin>: shared memory of sm_90, 227 KiB, placed by triton-ext\n"
    )


def test_no_shared_memory(tmp_path, capsys):
    path = tmp_path / "empty.ttgir"
    path.write_text('module attributes {ttg.target = "cuda:90"} {\n}\n')
    assert lds(str(path), f"--svg={tmp_path / 'empty.svg'}") == 0
    assert "nothing lies in shared memory" in (tmp_path / "empty.svg").read_text()
    assert lds(str(path)) == 0
    assert "nothing lies in shared memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ("", "error: expected a module for a GPU ('ttg.target' such as \"cuda:90\""),
        ('attributes {ttg.target = "cuda:20"} ', "error: the shared memory of 'cuda:20' is not"),
        ('attributes {ttg.target = "xpu:1"} ', "error: the shared memory of 'xpu:1' is not known"),
    ],
)
def test_modules_for_other_gpus(attributes, said, tmp_path, capsys):
    path = tmp_path / "other.ttgir"
    path.write_text(f"module {attributes}{{\n}}\n")
    assert lds(str(path)) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{path}:1:1: {said}")
    assert "note: " in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--arch=sm_33"], "argument --arch: expected a known GPU, found 'sm_33'"),
        (["--arch=gfx1030"], "argument --arch: expected a known GPU, found 'gfx1030'"),
        (["--function=transpos"], "found 'transpos'; did you mean 'transpose'?"),
        (["--placement=triton"], "argument --placement: 'triton' needs an installed Triton"),
        (["--svg=out", "--html=out"], "FILE, --svg and --html have to be different files"),
    ],
)
def test_command_lines_that_cannot_be_run(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert lds(str(HERE / "transpose.ttgir"), *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("triton-ext lds: error: ")
    assert said in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["", "--svg=", "--html=", "--arch=", "--function="])
def test_an_empty_name_is_refused(option, capsys):
    with pytest.raises(SystemExit) as ended:
        lds(*([str(HERE / "transpose.ttgir")] if option else []), option)
    assert ended.value.code == 2
    name = option.strip("=") or "FILE"
    said = f"error: argument {name}: expected a name, found an empty one\n"
    assert capsys.readouterr().err.endswith(said)


@pytest.mark.parametrize("arch", ["hip:gfx950", "gfx950", "cuda:90", "sm_90", "90"])
def test_spellings_of_a_gpu(arch, capsys):
    assert lds(str(HERE / "transpose.ttgir"), f"--arch={arch}") == 0
    named = arch.removeprefix("hip:") if "gfx" in arch else "sm_90"
    assert f" of {named}, " in capsys.readouterr().out


@pytest.mark.parametrize("arch", ["cuda:gfx950", "hip:sm_90", "hip:", ":gfx950"])
def test_spellings_of_no_gpu(arch, capsys):
    assert lds(str(HERE / "transpose.ttgir"), f"--arch={arch}") == 2
    assert f"argument --arch: expected a known GPU, found '{arch}'" in capsys.readouterr().err


def test_an_empty_input(tmp_path, capsys):
    path = tmp_path / "empty.ttgir"
    path.write_text(" \n")
    assert lds(str(path)) == 1
    assert capsys.readouterr().err == f"{path}: error: the input is empty\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("%a : !ttg.memdesc<64x64xi8", "%a : !ttg.memdesc<64x64xi16"), "prints the type"),
        (("local_dealloc %a", "local_dealloc %c"), "undeclared"),
    ],
)
def test_modules_that_triton_opt_refuses(change, said, tmp_path, capsys):
    path = tmp_path / "wrong.ttgir"
    assert change[0] in BIG
    path.write_text(BIG.replace(*change))
    assert lds(str(path), f"--svg={tmp_path / 'out.svg'}") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{path}:6:")
    assert said in error
    assert not (tmp_path / "out.svg").exists()


def test_partitions_that_a_gpu_has_not(tmp_path, capsys):
    path = tmp_path / "parts.ttgir"
    path.write_text(PARTITIONED.format(count=8, shape="128x64"))
    assert lds(str(path)) == 1
    assert capsys.readouterr().err.startswith(
        f"{path}:5:5: error: expected at most 5 partitions, the number of gfx1250, found 8 in the "
        "encoding of '%a'\n"
    )
    for arch, memory in (("sm_90", "shared memory"), ("gfx950", "LDS")):
        assert lds(str(path), f"--arch={arch}") == 1
        assert capsys.readouterr().err.startswith(
            f"{path}:5:5: error: expected a GPU whose {memory} has physical partitions, such as "
            f"gfx1250, for the encoding #ttg.partitioned_shared of '%a', found {arch}\n"
        )


def test_a_picture_of_far_too_much_is_small(tmp_path, capsys):
    source, picture = tmp_path / "far.ttgir", tmp_path / "far.svg"
    source.write_text(PARTITIONED.format(count=2, shape="1048576x1048576"))
    assert lds(str(source), f"--svg={picture}") == 1
    root = ET.fromstring(picture.read_text(encoding="utf-8"))
    assert len(list(root.iter())) < 60
    texts = ["".join(e.itertext()) for e in root.iter() if e.tag.endswith("text")]
    assert "320 KiB in all, 4096 GiB too much" in texts
    assert not [t for t in texts if t.startswith("partition ")]  # narrower than a pixel
    assert "%a2048 GiB at 0 to 2199023255552, partitions 0, 1, 2, 3, 4" in texts
    capsys.readouterr()
    assert lds(str(source)) == 1
    assert len(capsys.readouterr().out) < 1000


def test_a_fault_is_told_as_one(monkeypatch, capsys):
    def fails(module, memory, **options):
        raise KeyError("what?")

    monkeypatch.setattr(lds_tool, "map_of", fails)
    assert lds(str(HERE / "transpose.ttgir")) == 1
    said = capsys.readouterr()
    place, *notes = said.err.splitlines()
    assert place.startswith(f"{__file__}:")
    assert place.endswith(":1: error: 'triton-ext lds' failed: KeyError: 'what?'")
    assert notes[-2:] == [
        "note: this is a fault of triton-ext, not of the module",
        "note: to report it takes this message, the module, and what 'triton-ext doctor' prints",
    ]
    assert said.out == ""


def test_a_kernel_is_not_overwritten_by_another_name_of_it(tmp_path, monkeypatch, capsys):
    text = (HERE / "transpose.ttgir").read_text()
    path, link = tmp_path / "kernel.ttgir", tmp_path / "link.ttgir"
    path.write_text(text)
    link.hardlink_to(path)
    assert lds(str(path), f"--svg={link}") == 2
    with path.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert lds("-", f"--html={link}") == 2
    assert capsys.readouterr().err.count("have to be different files") == 2
    assert path.read_text() == link.read_text() == text


def test_all_pictures_or_none(tmp_path, capsys):
    old = tmp_path / "old.svg"
    old.write_text("old")
    source = str(HERE / "transpose.ttgir")
    assert lds(source, f"--svg={old}", f"--html={tmp_path / 'no' / 'x.html'}") == 1
    assert "x.html: error: cannot be written" in capsys.readouterr().err
    assert old.read_text() == "old"


def test_a_kernel_is_not_overwritten(tmp_path, capsys):
    path = tmp_path / "kernel.ttgir"
    path.write_text((HERE / "transpose.ttgir").read_text())
    assert lds(str(path), f"--svg={path}") == 2
    assert path.read_text() == (HERE / "transpose.ttgir").read_text()


def test_files_that_cannot_be_read(tmp_path, capsys):
    assert lds(str(tmp_path / "none.ttgir")) == 1
    assert "error: cannot be read" in capsys.readouterr().err
    broken = tmp_path / "broken.ttgir"
    broken.write_text("module {\n  tt.func @f( {\n}\n")
    assert lds(str(broken)) == 1
    assert re.match(rf"{re.escape(str(broken))}:\d+:\d+: error: ", capsys.readouterr().err)


def test_a_buffer_without_a_size(tmp_path, capsys):
    text = (HERE / "transpose.ttgir").read_text()
    path = tmp_path / "odd.ttgir"
    path.write_text(text.replace("[64:+8]", "[64:+7]"))
    assert lds(str(path)) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{path}:5:1: error: the encoding '#shared2' is malformed: expected ")
    assert "powers of two in 'padding', found 7" in error
