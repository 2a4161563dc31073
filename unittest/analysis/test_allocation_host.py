"""Allocation against the host's own pass: the same sizes, never a larger total.

On the corpus, and on random modules.  The passes put buffers where the host puts them unless that
takes more memory.
"""

from __future__ import annotations

import os
import re

import pytest
from allocation_random import module as random_module
from ir_helpers import CORPUS
from triton_ext import host
from triton_ext.analysis.allocation import Scratch, allocate, unknown_scratch
from triton_ext.host.process import find_library
from triton_ext.ir import parse
from triton_ext.ir.aliases import AliasTable
from triton_ext.tools import opt

COUNT = 400 if os.environ.get("TRITON_EXT_NIGHTLY") == "1" else 25
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


def run_pass(text, provider, tmp_path, capsys):
    """The module behind the pass of a provider."""
    file = tmp_path / "random.ttgir"
    file.write_text(text)
    name = "--allocate-shared-memory-nv=compute-capability=90"
    status = opt.main([str(file), f"--pass-provider={provider}", "--host=always", name])
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, ""), captured.err
    return parse(captured.out)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(COUNT))
def test_random_modules(seed, tmp_path, capsys):
    text = random_module(seed)
    ours, theirs = (run_pass(text, who, tmp_path, capsys) for who in ("ext", "host"))
    given = [offsets_of_host(found) for found in (ours, theirs)]
    assert [len(one) for one in given[0]] == [len(one) for one in given[1]]
    for one, other in zip(ours.walk(), theirs.walk(), strict=True):
        size = other.attributes.get("allocation.size")
        if size is not None and one.name != "tt.call":
            assert one.attributes["allocation.size"] == size
    totals = [int(_NUMBER.search(found.op.attributes["ttg.shared"])[0]) for found in (ours, theirs)]
    assert totals[0] <= totals[1]
    if totals[0] == totals[1] and "tt.call" not in text:
        assert given[0] == given[1]


@pytest.mark.parametrize("seed", range(COUNT, 2 * COUNT))
def test_placement_of_triton_in_random_modules(seed, tmp_path, capsys):
    text = random_module(seed)
    expected = offsets_of_host(run_pass(text, "host", tmp_path, capsys))
    made = parse(text)
    scratch = Scratch(made.op, AliasTable.of(made.aliases), host.features(), "cuda:90")
    found = allocate(made, scratch=scratch, features=host.features(), as_triton=True)
    given = {}
    for function in found.functions.values():
        for buffer in function.buffers:
            given.setdefault(buffer.op, []).append(buffer.offset)
    assert [given.get(op, []) for op in made.walk()] == expected
