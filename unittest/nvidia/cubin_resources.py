"""What a compiled kernel needs of a multiprocessor."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest
import triton

__all__ = ["resources"]


def resources(cubin: bytes, folder: pathlib.Path) -> dict[str, int]:
    """What cuobjdump says of the kernel: registers, stack and local memory in bytes."""
    tool = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        pytest.skip("this Triton ships no cuobjdump")
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    text = subprocess.run(
        [str(tool), "--dump-resource-usage", str(path)], capture_output=True, text=True, check=True
    ).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
