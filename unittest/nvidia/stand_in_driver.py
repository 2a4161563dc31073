"""Triton's own launcher on a GPU that is not there: a stand-in for libcuda, and a driver for it.

Triton links its launcher with libcuda when it is first used, so a process that is to find the
stand-in has to be started with :func:`environment_of`.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import triton.backends.nvidia.driver as host_driver

from benchmarks.harness import ROOT, emit

__all__ = ["STAND_IN_VARIABLE", "StandInDriver", "compile_stand_in", "environment_of",
           "start_on_stand_in"]  # fmt: skip

# Set in the process whose libcuda is the stand-in.
STAND_IN_VARIABLE = "TRITON_EXT_BENCHMARK_STAND_IN"

# The library without its launches has tests of its own beside it.
_FOLDER = pathlib.Path(__file__).parent


class StandInDriver(host_driver.CudaDriver):
    """Triton's driver without torch, of one device of compute capability 9.0."""

    def __init__(self) -> None:
        self.utils = host_driver.CudaUtils()
        self.launcher_cls = host_driver.CudaLauncher
        self.get_device_capability = lambda device: (9, 0)
        self.get_current_stream = lambda device: 0
        self.get_current_device = lambda: 0
        self.set_current_device = lambda device: None


def compile_stand_in(folder: pathlib.Path) -> bool:
    """Compiles libcuda.so.1 into a folder; returns whether there is a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return False
    sources = [str(_FOLDER / "c" / name) for name in ("fake_libcuda.c", "fake_launcher.c")]
    command = [compiler, "-std=c11", "-O2", "-shared", "-fPIC", *sources]
    subprocess.run([*command, "-o", str(folder / "libcuda.so.1")], check=True)
    return True


def environment_of(folder: pathlib.Path) -> dict[str, str]:
    """Returns the environment of a process that uses the stand-in in a folder, and this module."""
    environment = {
        **os.environ,
        "TRITON_LIBCUDA_PATH": str(folder),
        "LD_LIBRARY_PATH": str(folder),
        "TRITON_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([*_python_path(), str(ROOT), str(_FOLDER)]),
        "PYTHONWARNINGS": "ignore",
    }
    environment.pop("TRITON_INTERPRET", None)
    return environment


def _python_path() -> list[str]:
    # An empty entry would be the current folder.
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def start_on_stand_in() -> int:
    """Runs the same command in a process whose libcuda is the stand-in; returns its status."""
    with tempfile.TemporaryDirectory() as folder:
        if not compile_stand_in(pathlib.Path(folder)):
            emit("no C compiler for the stand-in of libcuda")
            return 2
        environment = environment_of(pathlib.Path(folder)) | {STAND_IN_VARIABLE: "1"}
        command = [sys.executable, "-m", "benchmarks", *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode
