"""Tutorials of docs/ as tests: their programs, what a shell prints of them, quotes and links."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass

__all__ = ["ROOT", "Command", "Page", "check"]

ROOT = pathlib.Path(__file__).resolve().parents[2]

BLOCK = re.compile(r"^(?:<!-- from (\S+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Commands that a page calls by name, put first in PATH.
TOOLS = {"python": "", "triton-opt": " -m triton_ext.tools.opt"}


@dataclass(frozen=True)
class Command:
    """A command of a page, and the lines that it prints; ``...`` stands for a traceback."""

    line: str
    expected: tuple[str, ...]


class Page:
    """A page of docs/, or the parts of one, read as one text.

    Args:
        names: File names, in the order in which people read them.
    """

    def __init__(self, *names: str) -> None:
        self.paths = [ROOT / "docs" / name for name in names]
        self.text = "\n".join(path.read_text(encoding="utf-8") for path in self.paths)
        self.blocks = [match.groups() for match in BLOCK.finditer(self.text)]

    def programs(self) -> dict[str, str]:
        """The programs by the file name that is in their first line."""
        texts = [text for _, language, text in self.blocks if language == "python"]
        return {re.match(r"# (\w+\.py)\n", text)[1]: text for text in texts}

    def commands(self, text: str) -> list[Command]:
        """The commands of a part of the page."""
        found = []
        for _, _, block in (match.groups() for match in BLOCK.finditer(text)):
            if block.startswith("$ "):
                for session in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                    line, *expected = session.splitlines()
                    found.append(Command(line, tuple(expected)))
        return found

    def sections(self) -> dict[str, list[Command]]:
        """The commands under each heading; headings without any are left out."""
        parts = re.split(r"^## (.*)$", self.text, flags=re.MULTILINE)
        pairs = zip(parts[1::2], parts[2::2], strict=True)
        found = {title: self.commands(text) for title, text in pairs}
        return {title: commands for title, commands in found.items() if commands}

    def quotes(self) -> list[tuple[str, str]]:
        """The files that are quoted, with what is quoted."""
        return [(source, text) for source, _, text in self.blocks if source is not None]

    def broken_links(self) -> list[str]:
        """The links that lead nowhere."""
        return [target for path in self.paths for target in self._broken(path)]

    def _broken(self, path: pathlib.Path) -> list[str]:
        text = path.read_text(encoding="utf-8")
        prose = re.sub(r"`[^`\n]*`", "", BLOCK.sub("", text))
        headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in headings}
        targets = re.findall(r"\]\(([^)]+)\)", prose)
        here = {target for target in targets if target.startswith("#")}
        return [
            target
            for target in targets
            if (target[1:] not in anchors if target in here else not _exists(path, target))
        ]

    def write_programs(self, folder: pathlib.Path) -> None:
        """Puts the programs into a folder, with the tools that its commands call."""
        for name, text in self.programs().items():
            (folder / name).write_text(text, encoding="utf-8")
        tools = folder / "bin"
        tools.mkdir()
        for name, arguments in TOOLS.items():
            tool = tools / name
            tool.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
            tool.chmod(0o755)


def _exists(page: pathlib.Path, target: str) -> bool:
    return (page.parent / target.partition("#")[0]).exists()


def check(command: Command, folder: pathlib.Path, **variables: str) -> None:
    """Runs a command in a folder and compares what it prints with what the page says."""
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    # Where ptxas is stays known: packages of Triton leave it out.
    environment = {
        key: value
        for key, value in os.environ.items()
        if "TRITON" not in key or key.startswith("TRITON_PTXAS")
    }
    environment |= {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TRITON_CACHE_DIR": str(folder / "cache"),
        **variables,
    }
    done = subprocess.run(
        ["/bin/sh", "-c", command.line],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    said = (done.stdout + done.stderr).replace(f"{folder}{os.sep}", "")
    if command.expected[:1] == ("...",):
        # The end of a traceback; a release may add lines of its own.
        assert "\n".join(command.expected[1:]) in said
        assert done.returncode != 0
    else:
        assert done.stdout.splitlines() == list(command.expected), said
        assert done.returncode == 0, said
