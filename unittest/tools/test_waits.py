"""triton-ext waits: the text, the picture and the page show every copy and every wait."""

from __future__ import annotations

import io
import os
import pathlib
import re
import sys
import xml.etree.ElementTree as ET

import pytest
from triton_ext import backends
from triton_ext.analysis.timeline import Copy, Wait
from triton_ext.ir import parse
from triton_ext.tools import cli
from triton_ext.tools import waits as waits_tool
from triton_ext.tools.waits_html import render_html
from triton_ext.tools.waits_layout import layout_of
from triton_ext.tools.waits_svg import render_svg
from triton_ext.tools.waits_text import render_text
from triton_ext.tools.waits_words import arithmetic

HERE = pathlib.Path(__file__).parent / "waits"
REGIONS = HERE.parents[2] / "test" / "amd" / "update-async-wait-count" / "regions.mlir"
#: TRITON_EXT_ACCEPT=1 takes what the tool prints as what is expected.
ACCEPT = bool(os.environ.get("TRITON_EXT_ACCEPT"))
KERNELS = ("branches", "pipeline")
NAMESPACE = "http://www.w3.org/2000/svg"


def waits(*arguments: str) -> int:
    return cli.main(["waits", "--host=none", *arguments])


def timeline(path: pathlib.Path, **options: str):
    return backends.load("amd", "async-timeline")(parse(path.read_text(), path.name), **options)


def said(root: ET.Element) -> list[str]:
    """Every piece of text in a picture that is not a tooltip."""
    return [element.text or "" for element in root.iter() if element.tag.endswith("text")]


# ---- text


@pytest.mark.parametrize("name", KERNELS)
def test_text(name, monkeypatch, capsys):
    monkeypatch.chdir(HERE)
    assert waits(f"{name}.ttgir") == 0
    printed = capsys.readouterr().out
    expected = HERE / f"{name}.txt"
    if ACCEPT:
        expected.write_text(printed, encoding="utf-8")
    assert printed == expected.read_text(encoding="utf-8")


def test_the_text_tells_what_is_wrong(capsys):
    assert waits(str(HERE / "pipeline.ttgir")) == 0
    out = capsys.readouterr().out
    assert "num 1 group → 4 (copy a2, line 18) + 1 (copy scale2, line 19) = 5 instructions" in out
    assert "unsafe: copy scale2 may be in flight: read before the data has arrived" in out
    # The wait in the loop is right; the one behind it lets through what is read next.
    assert out.count("lets too much through") == 1
    assert re.search(
        r" 22 .*wait ASYNCcnt until 1 group left(\n.*){3}\n.*lets too much through", out
    )


def test_colours_only_where_asked_for(capsys):
    assert waits(str(HERE / "pipeline.ttgir"), "--color=always") == 0
    coloured = capsys.readouterr().out
    assert waits(str(HERE / "pipeline.ttgir")) == 0
    plain = capsys.readouterr().out
    assert "\x1b[" in coloured
    assert "\x1b[" not in plain
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_no_color(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert waits(str(HERE / "pipeline.ttgir")) == 0
    assert "\x1b[" not in capsys.readouterr().out


# ---- pictures


@pytest.mark.parametrize("path", [*(HERE / f"{k}.ttgir" for k in KERNELS), REGIONS], ids=str)
def test_the_picture_shows_every_copy_and_wait(path):
    shown = timeline(path, arch="gfx1250")
    root = ET.fromstring(render_svg(shown, path.name, "a host"))
    texts = said(root)
    joined = " ".join(texts)
    bars = {element.get("data-copy") for element in root.iter() if element.get("data-copy")}
    items = [row.item for section in shown.sections for row in section.rows]
    copies = [item for item in items if isinstance(item, Copy)]
    assert len(copies) == len(shown.copies)
    for copy in copies:
        assert f"copy {copy.label}" in texts
        assert copy.label in bars
        assert str(copy.place.line) in texts
    assert texts.count("≤ 5") == sum(w.counted == 5 for w in shown.waits)
    assert len([e for e in root.iter() if e.get("class") == "wait"]) == len(shown.waits)
    for wait in shown.waits:
        assert arithmetic(wait) in joined


@pytest.mark.parametrize("path", [*(HERE / f"{k}.ttgir" for k in KERNELS), REGIONS], ids=str)
def test_pictures_need_nothing_from_elsewhere(path):
    shown = timeline(path, arch="gfx1250")
    svg = render_svg(shown, path.name, "a host")
    page = render_html(shown, path.name, "a host")
    for text in (svg.replace(f'xmlns="{NAMESPACE}"', ""), page):
        assert not re.search(r"http|//\w|@import|url\(|src=|href=", text.replace("// ", ""))
    assert "prefers-color-scheme:dark" in svg
    # A page whose elements are all closed is XML as well.
    ET.fromstring(page.removeprefix("<!DOCTYPE html>\n"))


def test_long_names_do_not_make_wide_columns(tmp_path):
    text = (HERE / "pipeline.ttgir").read_text().replace('loc("scale"', 'loc("' + "scale" * 9 + '"')
    path = tmp_path / "long.ttgir"
    path.write_text(text)
    usual = ET.fromstring(render_svg(timeline(HERE / "pipeline.ttgir"), "x", "y"))
    root = ET.fromstring(render_svg(timeline(path), "x", "y"))
    assert float(root.get("width")) < float(usual.get("width")) + 300
    assert {"scales…1", "scales…2"} <= set(said(root))
    assert f"copy {'scale' * 9}2" in said(root)


def test_text_in_pictures_is_escaped():
    shown = timeline(HERE / "pipeline.ttgir")
    name = "<a & b>\"'.ttgir"
    ET.fromstring(render_svg(shown, name, name))
    ET.fromstring(render_html(shown, name, name).removeprefix("<!DOCTYPE html>\n"))


@pytest.mark.parametrize("path", [*(HERE / f"{k}.ttgir" for k in KERNELS), REGIONS], ids=str)
def test_bars_do_not_lie_on_each_other(path):
    shown = timeline(path, arch="gfx1250")
    for section in shown.sections:
        layout = layout_of(section, shown)
        for one in layout.pieces:
            for other in layout.pieces:
                if layout.tracks[one.label] == layout.tracks[other.label] and one is not other:
                    assert one.last <= other.first or other.last <= one.first
        for index, row in enumerate(section.rows):
            # What a row says is in flight is what the bars beside it show.
            bars = {p.label for p in layout.pieces if p.first <= index < p.last}
            assert bars == {flight.label for flight in row.in_flight}
            if isinstance(row.item, Wait):
                ends = {p.label for p in layout.pieces if p.last == index and p.is_retired}
                assert ends == set(row.item.retires)


def test_nothing_stands_outside_of_the_picture():
    shown = timeline(HERE / "branches.ttgir")
    root = ET.fromstring(render_svg(shown, "branches.ttgir", "a host"))
    _, _, width, height = (float(number) for number in root.get("viewBox").split())
    for element in root.iter(f"{{{NAMESPACE}}}rect"):
        x, y = float(element.get("x", 0)), float(element.get("y", 0))
        assert -15 <= x <= width
        assert x + float(element.get("width")) <= width
        assert y + float(element.get("height")) <= height


def test_the_picture_of_the_manual(tmp_path, monkeypatch):
    monkeypatch.chdir(HERE)
    manual = HERE.parents[2] / "docs" / "async-waits.svg"
    made = manual if ACCEPT else tmp_path / "made.svg"
    assert waits("pipeline.ttgir", "--svg", str(made)) == 0
    assert made.read_text(encoding="utf-8") == manual.read_text(encoding="utf-8")


def test_files_are_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = str(HERE / "pipeline.ttgir")
    assert waits(path, "--svg", "out.svg", "--html", "out.html") == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "out.svg").read_text(encoding="utf-8").startswith("<svg")
    assert (tmp_path / "out.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


# ---- the command line


def test_one_function(capsys):
    assert waits(str(REGIONS), "--arch=gfx1250", "--function=blocks") == 0
    out = capsys.readouterr().out
    assert "@blocks" in out
    assert "@scan" not in out


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--function=scann", "--function: expected a function of the module, found 'scann'; did "),
        ("--arch=gfx9999", "--arch: expected a GPU with asynchronous copies to LDS (gfx942, "),
        ("--arch=gfx1100", "gfx950, gfx1250, gfx1251), found 'gfx1100'"),
    ],
)
def test_options_that_name_nothing(option, message, capsys):
    assert waits(str(REGIONS), "--arch=gfx1250", option) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("triton-ext waits: error: argument --")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_options_that_name_nothing_where_there_is_nothing_to_draw(tmp_path, capsys):
    path = tmp_path / "empty.mlir"
    path.write_text("module {\n}\n")
    assert waits(str(path), "--arch=gfx9") == 2
    assert waits(str(path), "--function=f") == 2
    assert "found 'f'; there are none" in capsys.readouterr().err


def test_stdin(monkeypatch, capsys):
    text = (HERE / "pipeline.ttgir").read_text()
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert waits() == 0
    assert capsys.readouterr().out.startswith("<stdin>: gfx1250, what is safe on every Triton\n")


def test_nothing_to_draw(tmp_path, capsys):
    path = tmp_path / "empty.mlir"
    path.write_text("module {\n}\n")
    assert waits(str(path), "--svg", str(tmp_path / "out.svg")) == 0
    assert waits(str(path)) == 0
    assert "no asynchronous operations" in capsys.readouterr().out
    ET.fromstring((tmp_path / "out.svg").read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("hip:gfx1250", "cuda:90"), "expected a module for an AMD GPU"),
        (("hip:gfx1250", "hip:gfx1201"), "gfx950, gfx1250, gfx1251), found 'gfx1201'"),
        (('ttg.target = "hip:gfx1250", ', ""), "expected 'ttg.target' such as"),
        (("ttg.async_commit_group tokens %t0, %t1", "ttg.async_commit_group tokens ("), "error: "),
    ],
)
def test_refused(change, message, tmp_path, capsys):
    path = tmp_path / "kernel.mlir"
    text = (HERE / "pipeline.ttgir").read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    assert waits(str(path)) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.match(rf"{re.escape(str(path))}:\d+:\d+: error: ", captured.err)
    assert message in captured.err


def test_files_that_cannot_be_read_or_written(tmp_path, capsys):
    assert waits(str(tmp_path / "none.mlir")) == 1
    assert "none.mlir: error: cannot be read" in capsys.readouterr().err
    broken = tmp_path / "broken.mlir"
    broken.write_bytes(b"\xff\xfe")
    assert waits(str(broken)) == 1
    out = tmp_path / "no" / "out.svg"
    assert waits(str(HERE / "pipeline.ttgir"), "--svg", str(out)) == 1
    assert "out.svg: error: cannot be written" in capsys.readouterr().err


def test_a_command_line_that_cannot_be_run(capsys):
    with pytest.raises(SystemExit) as ended:
        waits("--no-such-option")
    assert ended.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err


def test_the_same_for_the_installed_triton(capsys):
    pytest.importorskip("triton")
    assert cli.main(["waits", str(HERE / "pipeline.ttgir")]) == 0
    assert re.search(r"gfx1250, triton \d", capsys.readouterr().out)


def test_text_of_a_timeline_without_a_host():
    shown = timeline(HERE / "branches.ttgir")
    assert render_text(shown, "x", "y").startswith("x: gfx1250, y\n")


def test_a_kernel_is_not_overwritten_by_its_picture(tmp_path, capsys):
    path = tmp_path / "kernel.ttgir"
    path.write_text((HERE / "pipeline.ttgir").read_text())
    assert waits(str(path), "--svg", str(path)) == 2
    other = f"{tmp_path}/../{tmp_path.name}/a"
    assert waits(str(path), "--svg", f"{tmp_path}/a", "--html", other) == 2
    assert capsys.readouterr().err.count("have to be different files") == 2
    assert path.read_text() == (HERE / "pipeline.ttgir").read_text()


def test_a_kernel_is_not_overwritten_by_another_name_of_it(tmp_path, monkeypatch, capsys):
    path, link = tmp_path / "kernel.ttgir", tmp_path / "link.ttgir"
    path.write_text((HERE / "pipeline.ttgir").read_text())
    link.hardlink_to(path)
    assert waits(str(path), f"--svg={link}") == 2
    with path.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert waits("-", f"--svg={path}") == 2
    assert capsys.readouterr().err.count("have to be different files") == 2
    assert path.read_text() == (HERE / "pipeline.ttgir").read_text()


def test_a_fault_is_told_as_one(monkeypatch, capsys):
    def fails(*arguments):
        raise KeyError("what?")

    monkeypatch.setattr(waits_tool, "_timeline", fails)
    assert waits(str(HERE / "pipeline.ttgir")) == 1
    error = capsys.readouterr().err
    assert ":1: error: 'triton-ext waits' failed: KeyError: 'what?'\n" in error
    assert "note: this is a fault of triton-ext, not of the module\n" in error


def test_spellings_of_a_gpu(capsys):
    assert waits(str(HERE / "pipeline.ttgir"), "--arch=hip:gfx950") == 0
    assert ": gfx950, " in capsys.readouterr().out
    assert waits(str(HERE / "pipeline.ttgir"), "--arch=cuda:90") == 2
    assert "found '90'" in capsys.readouterr().err


def test_an_empty_input(tmp_path, capsys):
    path = tmp_path / "empty.ttgir"
    path.write_text("")
    assert waits(str(path)) == 1
    assert capsys.readouterr().err == f"{path}: error: the input is empty\n"


def test_closed_standard_output(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert waits(str(HERE / "pipeline.ttgir")) == 1
    assert "<stdout>: error: cannot be written: it is closed" in capsys.readouterr().err
