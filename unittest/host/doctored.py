"""Doctored copies of the installed Triton: links to its files but for what a case replaces."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

import triton

__all__ = ["DOCTOR", "INSTALLED", "TELL", "Copy"]

INSTALLED = pathlib.Path(triton.__file__).parent

#: Programs for :meth:`Copy.run`.
TELL = """
from triton_ext import host
from triton_ext.errors import UnsupportedError
try:
    print("found", host.detect().version)
except UnsupportedError as error:
    print(type(error).__name__, error)
"""
DOCTOR = "import sys; from triton_ext.tools import cli; sys.exit(cli.main(['doctor']))"


class Copy:
    """A copy in the site folder of a virtual environment of its own."""

    def __init__(self, folder):
        self.folder = folder
        command = [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")]
        subprocess.run(command, check=True)
        (self.site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        self.link(INSTALLED, self.site / "triton", {"_C"})
        self.link(INSTALLED / "_C", self.site / "triton" / "_C", set())

    @staticmethod
    def link(source, target, leave_out):
        target.mkdir()
        for path in source.iterdir():
            if path.name not in leave_out:
                (target / path.name).symlink_to(path)

    def replace(self, name, content):
        path = self.site / "triton" / name
        path.unlink()
        if isinstance(content, pathlib.Path):
            path.symlink_to(content)
        else:
            path.write_text(content)

    def say_version(self, version):
        text = (INSTALLED / "__init__.py").read_text()
        self.replace("__init__.py", re.sub(r"__version__ = .*", f"__version__ = {version!r}", text))

    def record(self, version):
        folder = self.site / f"triton-{version}.dist-info"
        folder.mkdir()
        head = f"Metadata-Version: 2.1\nName: triton\nVersion: {version}\n"
        (folder / "METADATA").write_text(head)
        # Triton finds its backends there.
        for found in importlib.metadata.distributions(name="triton", path=[str(INSTALLED.parent)]):
            (folder / "entry_points.txt").write_text(found.read_text("entry_points.txt"))
        return folder

    def run(self, *command):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(self.package())}
        environment.pop("TRITON_INTERPRET", None)
        python = self.folder / "venv" / "bin" / "python"
        return subprocess.run(
            [str(python), *command], env=environment, capture_output=True, text=True, check=False
        )

    def package(self):
        """A folder with triton_ext alone, so that nothing else of this environment is seen."""
        import triton_ext

        folder = self.folder / "package"
        folder.mkdir(exist_ok=True)
        if not (folder / "triton_ext").exists():
            (folder / "triton_ext").symlink_to(pathlib.Path(triton_ext.__file__).parent)
        return [str(folder)]

    def says(self):
        done = self.run("-c", TELL)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()
