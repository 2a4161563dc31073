"""Packages of passes under examples/: installed as pip does it, run, and tested with their lit."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent.parent / "examples"
OPT = "import sys; from triton_ext.tools.opt import main; sys.exit(main())"


def setuptools_release() -> int:
    """The first number of the installed release; 0 without any."""
    try:
        return int(importlib.metadata.version("setuptools").partition(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return 0


def install(example: pathlib.Path, folder: pathlib.Path) -> dict[str, str]:
    """Installs an example with pip and returns the environment of a process that has it."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("needs pip to install the example")
    if setuptools_release() < 77:
        pytest.skip("needs setuptools 77 to install the example without a network")
    source = shutil.copytree(example, folder / "source")
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--no-index", "--target", str(target), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    path = os.pathsep.join([str(target), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    cache = str(folder / "cache")
    return {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": cache}


def run(environment: dict[str, str], *arguments: str) -> str:
    """Runs Python in an environment and returns what it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_lit(environment: dict[str, str], tests: pathlib.Path, folder: pathlib.Path) -> str:
    """Runs the lit tests of an example and returns what lit prints."""
    if importlib.util.find_spec("lit") is None:
        pytest.skip("needs lit, which is not installed")
    # A triton-opt of its own: where this runs, the package's scripts need not be on the path.
    tool = folder / "bin" / "triton-opt"
    tool.parent.mkdir()
    tool.write_text(f"#!{sys.executable}\n{OPT}\n")
    tool.chmod(0o755)
    path = os.pathsep.join([str(tool.parent), environment["PATH"]])
    copy = shutil.copytree(tests, folder / "test")
    config = copy / "lit.cfg.py"
    # It puts the environment's own programs first.
    config.write_text(config.read_text().replace("path = [", f"path = [{str(tool.parent)!r}, "))
    code = "import sys; from lit.main import main; main()"
    return run({**environment, "PATH": path}, "-c", code, "-v", str(copy))
