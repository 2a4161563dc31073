"""Allocation of the corpus against the host's own pass: the same sizes, never a larger total."""

from __future__ import annotations

import re

import pytest
from ir_helpers import CORPUS
from triton_ext import host
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
        return f"--allocate-shared-memory-nv=compute-capability={arch} ptx-version=85", 0
    if find_library().version < "3.8":
        return "--allocate-amdgpu-shared-memory", 0
    return f"--allocate-amdgpu-shared-memory=arch={arch}", 65536 * (arch == "gfx1250")


def compare(file, capsys):
    """Whether the total is smaller than the host's; ``None`` where a size is not known."""
    name, partition_size = pass_of(file)
    assert opt.main([str(file), "--pass-provider=host", name]) == 0
    allocated = parse(capsys.readouterr().out)
    theirs = int(_NUMBER.search(allocated.op.attributes["ttg.shared"])[0])
    module = parse(file.read_text())
    features = host.features()
    if unknown_scratch(module, features):
        return None
    found = allocate(module, partition_size=partition_size, features=features)
    assert found.total <= theirs, file
    given = {b.op for function in found.functions.values() for b in function.buffers}
    for function in found.functions.values():
        for buffer in function.buffers:
            assert buffer.offset % buffer.alignment == 0
        _check(function)
    # The host gives memory to the same operations, and tells of the same sizes.
    for op, other in zip(module.walk(), allocated.walk(), strict=True):
        assert ("allocation.offset" in other.attributes) == (op in given), op
        size = other.attributes.get("allocation.size")
        if size is not None:
            owner = next(f for f in found.functions.values() if f.of(op))
            assert owner.of(op)[0].size == int(_NUMBER.search(size)[0]), op
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
    assert None not in results


@pytest.mark.slow
def test_never_more_than_the_host_on_any(capsys):
    files = modules()
    if not files:
        pytest.skip("no corpus; TRITON_EXT_CORPUS names a folder")
    results = [compare(file, capsys) for file in files]
    # Kernels with buffers of many alignments have room for improvement.
    assert sum(bool(result) for result in results) >= 10


def offsets_of_host(allocated):
    """What Triton's pass wrote, operation by operation."""
    found = []
    for op in allocated.walk():
        text = op.attributes.get("allocation.offset")
        places = re.findall(r"\d+(?= : i32)|^\d+$", text) if text is not None else []
        found.append([int(place) for place in places])
    return found


def test_placement_of_triton_is_followed(capsys):
    # -test-print-allocation has to print what upstream's prints.
    files = modules()
    if not files:
        pytest.skip("no corpus; TRITON_EXT_CORPUS names a folder")
    for file in files[::7]:
        name, partition_size = pass_of(file)
        assert opt.main([str(file), "--pass-provider=host", name]) == 0
        expected = offsets_of_host(parse(capsys.readouterr().out))
        module = parse(file.read_text())
        found = allocate(
            module, partition_size=partition_size, features=host.features(), as_triton=True
        )
        given = {}
        for function in found.functions.values():
            for buffer in function.buffers:
                given.setdefault(buffer.op, []).append(buffer.offset)
        assert [given.get(op, []) for op in module.walk()] == expected, file
