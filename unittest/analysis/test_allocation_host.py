"""Allocation of the corpus against the host's own pass: the same sizes, never a larger total."""

from __future__ import annotations

import re

import pytest
from ir_helpers import CORPUS
from triton_ext.analysis.allocation import allocate, unknown_scratch
from triton_ext.host.process import find_library
from triton_ext.ir import parse
from triton_ext.tools import opt

_NUMBER = re.compile(r"-?\d+")


def modules():
    """Every kernel of the installed Triton's corpus that has buffers; some of them by day."""
    folder = CORPUS / find_library().version
    files = sorted(folder.glob("*/*.ttgir")) if folder.exists() else []
    return [file for file in files if "ttg.local_alloc" in file.read_text()]


def pass_of(file):
    """The host's pass for a file, and the size of a partition that it knows of."""
    arch = file.parent.name.partition("-")[2]
    if not file.parent.name.startswith("hip"):
        return "--allocate-shared-memory", 0
    if find_library().version < "3.8":
        return "--allocate-amdgpu-shared-memory", 0
    return f"--allocate-amdgpu-shared-memory=arch={arch}", 65536 * (arch == "gfx1250")


def compare(file, capsys):
    """Whether the total is smaller than the host's; ``None`` where a size is not known."""
    name, partition_size = pass_of(file)
    assert opt.main([str(file), "--pass-provider=host", name]) == 0
    module = parse(capsys.readouterr().out)
    theirs = int(_NUMBER.search(module.op.attributes["ttg.shared"])[0])
    if unknown_scratch(module):
        return None
    found = allocate(module, partition_size=partition_size)
    assert found.total <= theirs, file
    for function in found.functions.values():
        for buffer in function.buffers:
            assert buffer.offset % buffer.alignment == 0
        _check(function)
        # The host gives memory to the same operations.
        given = {b.op for b in function.buffers}
        for op in function.function.walk():
            assert ("allocation.offset" in op.attributes) == (op in given), op
    return found.total < theirs


def _check(function):
    buffers = function.buffers
    for number, one in enumerate(buffers):
        for two in buffers[number + 1 :]:
            if one.live.meets(two.live):
                assert one.end <= two.offset or two.end <= one.offset


def test_never_more_than_the_host(capsys):
    files = modules()
    if not files:
        pytest.skip("no corpus; TRITON_EXT_CORPUS names a folder")
    results = [compare(file, capsys) for file in files[::5]]
    known = [result for result in results if result is not None]
    assert len(known) > len(results) / 2


@pytest.mark.slow
def test_never_more_than_the_host_on_any(capsys):
    files = modules()
    if not files:
        pytest.skip("no corpus; TRITON_EXT_CORPUS names a folder")
    results = [compare(file, capsys) for file in files]
    # Kernels with buffers of many alignments have room for improvement.
    assert sum(bool(result) for result in results) >= 10
