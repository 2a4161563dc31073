"""The pictures of docs/assets are what tools/draw_docs.py draws, and show what is true."""

from __future__ import annotations

import pathlib
import re
import sys
import xml.etree.ElementTree as ET

import pytest
from triton_ext.host import capabilities

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "draw_docs.py"
DOCS = ROOT / "docs"
PICTURES = sorted(path.name for path in (DOCS / "assets").glob("*.svg"))
EMULATED = capabilities()["im2col-copies"]

pytest.importorskip("torch", reason="descriptors are made of tensors")


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_is_what_the_tool_draws(tool, name):
    if name == "roles.svg" and not EMULATED.available:
        pytest.skip(EMULATED.reason)
    drawn = tool.PICTURES[name]()
    assert (DOCS / "assets" / name).read_text(encoding="utf-8") == drawn, (
        "run python tools/draw_docs.py"
    )


def test_every_picture_is_drawn_by_a_tool(tool):
    assert sorted(tool.PICTURES) == PICTURES


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_pictures_stand_alone_and_have_a_dark_theme(path):
    source = path.read_text(encoding="utf-8")
    root = ET.fromstring(source)
    assert root.find("{http://www.w3.org/2000/svg}title").text
    assert "prefers-color-scheme:dark" in source
    assert not re.search(r"(?:href|src)=|url\((?!#)", source)


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_shown_with_a_description(path):
    shown = 0
    for page in DOCS.rglob("*.md"):
        for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text("utf-8")):
            if (page.parent / target).resolve() == path:
                shown += 1
                assert len(alt.split()) >= 5, (page.name, alt)
    assert shown


# ---- The roofline -------------------------------------------------------------------------------


def test_layers_have_the_intensity_of_their_sizes(tool):
    page = "\n### fprop\n\n| 1,8,8,64,64,1,1,1 | 100 | 90 | 110 | 1.1 |\n\n### dgrad\n"
    (layer,) = tool.layers_of(page, "fprop")
    assert (layer.theirs, layer.ours, layer.is_pointwise) == (100.0, 110.0, True)
    # 2 * 64 * 64 * 64 operations; x, w and y are 64 x 64 numbers of 2 bytes.
    assert layer.intensity == pytest.approx(2 * 64**3 / (3 * 64 * 64 * 2))


def test_the_page_of_measurements_has_21_layers_below_the_roof(tool):
    page = (DOCS / "explanation" / "gluon-measured.md").read_text(encoding="utf-8")
    layers = tool.layers_of(page, "fprop")
    assert len(layers) == 21
    for layer in layers:
        assert max(layer.theirs, layer.ours) < min(989.5, 4.8 * layer.intensity)


# ---- The timeline -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def timeline(tool):
    if not EMULATED.available:
        pytest.skip(EMULATED.reason)
    return sys.modules["draw_timeline"]


def test_the_timeline_has_every_operation_of_the_roles(timeline):
    events = timeline.record()
    count = {}
    for event in events:
        key = event.role, event.what
        count[key] = count.get(key, 0) + 1
    steps = timeline.STEPS
    assert count == {
        ("producer", "wait"): steps,
        ("producer", "expect"): steps,
        ("producer", "copy"): 2 * steps,
        ("consumer", "wait"): steps,
        ("consumer", "dot"): steps,
        ("consumer", "dot_wait"): steps + 1,
        ("consumer", "arrive"): steps - 1,
        ("consumer", "store"): 1,
    }


def test_the_timeline_keeps_what_the_barriers_order(timeline):
    found = timeline.Schedule.of(timeline.record())
    ring = timeline.STAGES
    for step, (barrier, start, landed) in enumerate(found.loads):
        assert landed <= found.products[step][0]
        if step >= ring:
            before, freed = found.loads[step - ring], found.frees[step - ring][1]
            assert before[0] == barrier
            assert found.products[step - ring][1] <= freed <= start


def test_a_change_of_the_kernel_changes_the_timeline(timeline):
    events = timeline.record()
    # Products that nothing waits for free their stages at once.
    eager = [e for e in events if e.what != "dot_wait"]
    first = timeline.Schedule.of(events).frees[0][1]
    assert timeline.Schedule.of(eager).frees[0][1] < first
