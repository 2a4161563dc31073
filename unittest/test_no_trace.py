"""Installing and uninstalling the package leaves Triton's keys and its cache as they were."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest
import triton

ROOT = pathlib.Path(__file__).parent.parent

# Prints the kernel's key; a cache that holds it already gets no new file.
KERNEL = """
import json, sys
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
for name in sys.argv[1:]:
    __import__(name)

@triton.jit
def kernel(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr) + 1)

compiled = triton.compile(ASTSource(kernel, {"x_ptr": "*i32"}), target=GPUTarget("cuda", 90, 32))
print(json.dumps([compiled.hash, "triton_ext" in sys.modules]))
"""


class Machine:
    """A virtual environment with the Triton of this one, nothing else, and a cache of its own."""

    def __init__(self, folder: pathlib.Path):
        self.cache, self.script = folder / "cache", folder / "kernel.py"
        self.script.write_text(KERNEL)
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True
        )
        self.python = folder / "venv" / "bin" / "python"
        (self.site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        os.symlink(pathlib.Path(triton.__file__).parent, self.site / "triton")
        (record,) = importlib.metadata.distributions(
            name="triton", path=[str(pathlib.Path(triton.__file__).parents[1])]
        )
        shutil.copytree(str(record._path), self.site / pathlib.Path(str(record._path)).name)
        self.environment = {**os.environ, "TRITON_CACHE_DIR": str(self.cache)}
        for name in ("PYTHONPATH", "TRITON_INTERPRET"):
            self.environment.pop(name, None)

    def key(self, *imports: str) -> tuple[str, bool]:
        """The kernel's key in a process of its own, and whether triton_ext was imported there."""
        command = [str(self.python), str(self.script), *imports]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        key, imported = json.loads(done.stdout.splitlines()[-1])
        return key, imported

    def cached(self) -> dict[str, int]:
        """Every file of the cache, and when it was written."""
        files = (path for path in self.cache.rglob("*") if path.is_file())
        return {str(path): path.stat().st_mtime_ns for path in files}

    def pip(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(self.python), *arguments]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The package as pip builds it, from a copy: setuptools writes into the source tree."""
    given = os.environ.get("TRITON_EXT_WHEEL")
    if given:
        return pathlib.Path(given)
    # Not imported: setuptools refuses that in a process that has the library's distutils already.
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("the wheel is built with setuptools 77 or newer")
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("python", "third_party"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "build")
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source" / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    command += ["-w", str(folder), str(folder / "source")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_before_with_and_after(tmp_path, wheel):
    machine = Machine(tmp_path)
    before, _ = machine.key()
    cached = machine.cached()
    installed_before = {path.name for path in machine.site.iterdir()}
    time.sleep(0.01)  # a file written again would have another time

    machine.pip("install", "-q", "--no-deps", "--no-index", str(wheel))
    # Installed, but not asked for: Triton does not even load it.
    assert machine.key() == (before, False)
    assert machine.key("triton_ext") == (before, True)
    assert machine.cached() == cached
    ours, _ = machine.key("triton_ext.language")
    assert ours != before
    assert machine.key("triton_ext.language") == (ours, True)

    machine.pip("uninstall", "-q", "-y", "triton-ext")
    assert {path.name for path in machine.site.iterdir()} == installed_before
    with_ours = machine.cached()
    assert machine.key() == (before, False)
    # Served from what was compiled before the installation.
    assert machine.cached() == with_ours
    assert {path: with_ours[path] for path in cached} == cached
