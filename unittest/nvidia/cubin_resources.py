"""What a compiled kernel needs of a multiprocessor."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest
import triton

__all__ = ["disassembled", "resources"]


def resources(cubin: bytes, folder: pathlib.Path) -> dict[str, int]:
    """What cuobjdump says of the kernel: registers, stack and local memory in bytes."""
    text = _dumped(cubin, folder, "--dump-resource-usage")
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}


def disassembled(cubin: bytes, folder: pathlib.Path) -> str:
    """The kernel's instructions."""
    return _dumped(cubin, folder, "--dump-sass")


def _dumped(cubin: bytes, folder: pathlib.Path, what: str) -> str:
    tool = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        pytest.skip("this Triton ships no cuobjdump")
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    return subprocess.run(
        [str(tool), what, str(path)], capture_output=True, text=True, check=True
    ).stdout
