"""docs/im2col-in-an-hour.md and its parts are true: their programs run, and print what they say."""

from __future__ import annotations

import re

import pytest
from pages import ROOT, Page, check
from triton_ext.host import capabilities

pytest.importorskip("numpy")
pytest.importorskip("torch")

PARTS = sorted(path.name for path in (ROOT / "docs" / "im2col").glob("*.md"))
PAGE = Page("im2col-in-an-hour.md", *(f"im2col/{name}" for name in PARTS))
SECTIONS = PAGE.sections()
#: What is shown of compiled code; the rest runs anywhere.
COMPILED = capabilities()["im2col-copies"]
ON_A_GPU = ("conv.py", "geometries.py", "conv_nd.py", "dgrad.py", "wgrad.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("im2col")
    PAGE.write_programs(folder)
    return folder


def test_every_link_leads_somewhere():
    assert PAGE.broken_links() == []


def test_every_program_is_run():
    lines = [command.line for commands in SECTIONS.values() for command in commands]
    run = re.findall(r"python (\w+\.py)", "\n".join(lines))
    assert set(PAGE.programs()) <= set(run)


def test_the_first_kernel_is_short():
    (kernel,) = re.findall(r"@triton.jit\n(.*?)\n\n\n", PAGE.programs()["conv.py"], re.DOTALL)
    assert len(kernel.splitlines()) <= 15


@pytest.mark.parametrize("title", SECTIONS)
def test_it_prints_what_the_page_says(folder, title):
    if ("Gluon" in title or "compiler" in title) and not COMPILED.available:
        pytest.skip(COMPILED.reason)
    for command in SECTIONS[title]:
        # Without the GPU that there may be: this is about the CPU.
        check(command, folder, CUDA_VISIBLE_DEVICES="")


@pytest.mark.skipif(not COMPILED.available, reason=COMPILED.reason)
def test_all_warps_meet_in_front_of_a_copy_into_what_they_read(folder):
    if not (folder / "ring.ptx").exists():
        check(SECTIONS["Gluon: a ring of stages"][0], folder, CUDA_VISIBLE_DEVICES="")
    ptx = (folder / "ring.ptx").read_text()
    (between,) = re.findall(r"mma_async(?!.*mma_async).*?wgmma\.wait_group(.*?)im2col", ptx, re.S)
    assert "bar.sync" in between


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_A_GPU)
def test_it_runs_on_a_gpu(gpu, folder, name):
    commands = [c for commands in SECTIONS.values() for c in commands if name in c.line]
    for command in commands:
        check(type(command)(f"python {name}", command.expected), folder)
