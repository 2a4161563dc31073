"""``python -m benchmarks memcheck`` with a stand-in for compute-sanitizer."""

from __future__ import annotations

import argparse

import pytest

torch = pytest.importorskip("torch", reason="the benchmarks need torch, which is not installed")

from triton_ext.host import capabilities  # noqa: E402
from triton_ext.ops.conv_config import SMEM_BYTES  # noqa: E402
from triton_ext.ops.machine import Machine, assumed_machine  # noqa: E402
from triton_ext.ops.tuning.calls import make_plan  # noqa: E402

from benchmarks import memcheck  # noqa: E402
from benchmarks.conv_variants import case_of  # noqa: E402
from benchmarks.memcheck import draw_problems, find_checker, kinds, verdict  # noqa: E402

GLUON = capabilities()["im2col-gluon"]

CHECKER = """#!/usr/bin/env python3
import sys
words = sys.argv[1:]
log, cases = words[words.index("--log-file") + 1], int(words[words.index("--cases") + 1])
direction = words[words.index("--direction") + 1]
assert words[words.index("--tool") + 1] == "memcheck"
for number in range(cases):
    print(f"ran case {number}: 3 configurations")
errors = 2 if direction == "dgrad" else 0
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
    assert memcheck.run(arguments_of("--cases", "0")) == 2


def test_logs_are_read():
    found = verdict("========= ERROR SUMMARY: 0 errors", "ran a: 2 configurations\nran b: 1 c")
    assert (found.errors, found.geometries, found.configs) == (0, 1, 2)
    assert found.is_clean(1)
    assert not found.is_clean(2)
    assert not verdict("", "ran a: 2 configurations").is_clean(1)
    assert verdict("= RACECHECK SUMMARY: 3 hazards displayed", "").errors == 3


def test_directions_are_checked_one_by_one(checker, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    filled = []
    monkeypatch.setattr(memcheck, "_fill_cache", lambda *given: filled.append(given[:2]))
    words = ("--checker", str(checker), "--cases", "4", "--out", str(tmp_path / "logs"))
    assert memcheck.run(arguments_of(*words, "--direction", "fprop", "dgrad")) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("clean: memcheck fprop: 0 errors, 4 of 4 geometries, 12 launches")
    assert lines[1].startswith("NOT CLEAN: memcheck dgrad: 2 errors, 4 of 4 geometries")
    assert filled == [(["fprop", "dgrad"], 4)]
    assert memcheck.run(arguments_of(*words, "--direction", "fprop")) == 0
    assert (tmp_path / "logs" / "memcheck.fprop.log").exists()


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
    machine = Machine(132, (9, 0), SMEM_BYTES)
    found = set()
    with assumed_machine(machine):
        for problem, dtype in draw_problems(direction, 20):
            case = case_of(direction, problem, dtype)
            for config in kinds(case, machine):
                assert make_plan(case, torch.device("meta"), config) is not None
                found.add(type(config).__name__)
    assert len(found) >= 3, found
