"""docs/tdm-waits.md is true: its programs run, print what it says, and quote the examples."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest
from triton_ext.host import capabilities

pytest.importorskip("numpy")

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tdm-waits.md"
BLOCK = re.compile(r"^(?:<!-- from (\S+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDED = capabilities()["amd-partitioned-shared"]


def blocks():
    return [match.groups() for match in BLOCK.finditer(PAGE.read_text())]


def programs():
    return [text for _, language, text in blocks() if language == "python"]


def sessions():
    return [text for _, _, text in blocks() if text.startswith("$ ")]


def test_quotes_are_those_of_the_examples():
    quotes = [(source, text) for source, _, text in blocks() if source is not None]
    assert len(quotes) == 3
    for source, text in quotes:
        assert text in (ROOT / source).read_text(), source


def test_every_link_leads_somewhere():
    prose = re.sub(r"`[^`\n]*`", "", BLOCK.sub("", PAGE.read_text()))
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        assert (PAGE.parent / target).exists(), target
    assert (ROOT / "unittest/emulator/test_against_the_verifier.py").exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The programs of the page, each in the file that its first line names."""
    folder = tmp_path_factory.mktemp("tdm-waits")
    for text in programs():
        name = re.match(r"# (\w+\.py)\n", text)[1]
        (folder / name).write_text(text)
    return folder


@pytest.mark.skipif(not NEEDED.available, reason=NEEDED.reason)
@pytest.mark.parametrize("session", sessions(), ids=lambda text: text.splitlines()[0][2:50])
def test_it_prints_what_the_page_says(folder, session):
    command, *expected = session.splitlines()
    # What a shell would find first.
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    python = tools / "python"
    if not python.exists():
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    environment = {key: value for key, value in os.environ.items() if "TRITON" not in key}
    environment |= {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TRITON_CACHE_DIR": str(folder / "cache"),
    }
    done = subprocess.run(
        ["/bin/sh", "-c", command.removeprefix("$ ")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    said = (done.stdout + done.stderr).replace(f"{folder}{os.sep}", "")
    if expected[0] == "...":
        # The end of a traceback; a release may add lines of its own.
        assert "\n".join(expected[1:]) in said
        assert done.returncode != 0
    else:
        assert done.stdout.splitlines() == expected, said
        assert done.returncode == 0
