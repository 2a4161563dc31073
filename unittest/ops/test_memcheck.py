"""``python -m benchmarks memcheck`` with a stand-in for compute-sanitizer."""

from __future__ import annotations

import argparse

import pytest

torch = pytest.importorskip("torch", reason="the benchmarks need torch, which is not installed")

from triton_ext.host import capabilities  # noqa: E402
from triton_ext.ops.core.device import (  # noqa: E402
    SMEM_BYTES,
    Device,
    assumed_device,
)
from triton_ext.ops.core.planner import make_plan  # noqa: E402

from benchmarks import memcheck  # noqa: E402
from benchmarks.memcheck import draw_problems, find_checker, found_errors, kinds  # noqa: E402
from benchmarks.operands import case_of  # noqa: E402

GLUON = capabilities()["im2col-gluon"]

CHECKER = """#!/usr/bin/env python3
import sys
words = sys.argv[1:]
log, cases = words[words.index("--log-file") + 1], int(words[words.index("--cases") + 1])
direction = words[words.index("--direction") + 1]
index, count = map(int, words[words.index("--share") + 1:][:2])
assert words[words.index("--tool") + 1] == "memcheck"
for number in range(cases)[index::count]:
    print(f"ran case {number}: 3 configurations", flush=True)
if direction == "wgrad" and index:
    import time
    time.sleep(60)
errors = 2 if direction == "dgrad" and not index else 0
open(log, "w").write(f"========= COMPUTE-SANITIZER\\n========= ERROR SUMMARY: {errors} errors\\n")
sys.exit(int(words[words.index("--error-exitcode") + 1]) if errors else 0)
"""


def arguments_of(*words):
    parser = argparse.ArgumentParser()
    memcheck.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def checker(tmp_path):
    path = tmp_path / "bin" / "compute-sanitizer"
    path.parent.mkdir()
    path.write_text(CHECKER)
    path.chmod(0o755)
    return path


def test_the_checker_is_looked_for(checker, monkeypatch, capsys):
    assert find_checker(str(checker)) == find_checker(str(checker.parent)) == str(checker)
    monkeypatch.setenv("PATH", str(checker.parent))
    assert find_checker(None) == str(checker)
    monkeypatch.setenv("PATH", "/nowhere")
    assert memcheck.run(arguments_of()) == 2
    assert "compute-sanitizer is not on the PATH; it comes with" in capsys.readouterr().out
    assert memcheck.run(arguments_of("--checker", "/nowhere/it")) == 2
    assert "--checker /nowhere/it: /nowhere/it is no program" in capsys.readouterr().out


def test_logs_are_read():
    assert found_errors(["========= ERROR SUMMARY: 0 errors"]) == 0
    assert found_errors(["= RACECHECK SUMMARY: 3 hazards displayed", "ERROR SUMMARY: 1 e"]) == 4
    assert found_errors(["ERROR SUMMARY: 0 errors", ""]) is None


@pytest.fixture
def checked(checker, tmp_path, monkeypatch):
    """Runs the command with the stand-in; returns its status, and has what was compiled ahead."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    filled = []
    monkeypatch.setattr(
        memcheck, "_fill_cache", lambda *given: filled.append(given[:2]) or 1.0
    )  # fmt: skip
    words = ("--checker", str(checker), "--cases", "5", "--out", str(tmp_path / "logs"))

    def run(*more):
        return memcheck.run(arguments_of(*words, *more))

    run.filled = filled
    return run


def test_shares_of_directions_are_checked_side_by_side(checked, tmp_path, capsys):
    assert checked("--direction", "fprop", "dgrad", "--processes", "4") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "compiled in 1 s, without the checker"
    assert lines[1].startswith("clean: memcheck fprop: 0 errors, 5 of 5 geometries, 15 launches")
    assert lines[2].startswith("NOT CLEAN: memcheck dgrad: 2 errors, 5 of 5 geometries, 15 laun")
    assert "exit status 77" in lines[2]
    assert checked.filled == [(["fprop", "dgrad"], 5)]
    assert checked("--direction", "fprop", "--processes", "1") == 0
    logs = sorted(path.name for path in (tmp_path / "logs").glob("*.log"))
    assert logs == [f"memcheck.{d}.{i}.log" for d in ("dgrad", "fprop") for i in (0, 1)]


def test_what_the_time_limit_stops_is_not_clean(checked, capsys):
    assert checked("--processes", "6", "--time-limit", "3") == 1
    told = capsys.readouterr().out
    assert "clean: memcheck fprop: 0 errors, 5 of 5" in told
    assert "NOT CLEAN: memcheck wgrad: no summary, 5 of 5 geometries" in told
    assert "stopped by the time limit" in told


def test_every_geometry_is_in_one_share():
    for cases, processes in ((20, 9), (2, 30), (5, 1)):
        shares = memcheck.shares_of(["fprop", "dgrad", "wgrad"], cases, processes)
        for direction in ("fprop", "dgrad", "wgrad"):
            parts = [each for each in shares if each.direction == direction]
            numbers = [n for each in parts for n in range(cases)[each.index :: each.count]]
            assert sorted(numbers) == list(range(cases))
            assert all("--share" in each.command() for each in parts)


@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
def test_geometries_are_various_and_always_the_same(direction):
    found = draw_problems(direction, 20)
    assert found == draw_problems(direction, 20)
    problems = [problem for problem, _ in found]
    assert {dtype for _, dtype in found} == {"float16", "bfloat16"}
    assert {problem.dims for problem in problems} == {1, 2, 3}
    assert {stride for problem in problems for stride in problem.stride} == {1, 2, 3}
    assert any(problem.groups > 1 for problem in problems)
    assert any(problem.in_channels % 8 for problem in problems)
    assert all(problem.flops <= memcheck.MOST_FLOPS for problem in problems)


@pytest.mark.skipif(not GLUON.available, reason=GLUON.reason)
@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
def test_every_kernel_has_a_plan(direction):
    machine = Device(132, (9, 0), SMEM_BYTES)
    found = set()
    with assumed_device(machine):
        for problem, dtype in draw_problems(direction, 20):
            case = case_of(direction, problem, dtype)
            for config in kinds(case, machine):
                assert make_plan(case, torch.device("meta"), config) is not None
                found.add(type(config).__name__)
    assert len(found) >= 3, found
