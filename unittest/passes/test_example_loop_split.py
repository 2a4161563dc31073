"""examples/loop-split: iterations stay what they were, and the example does what its page says."""

from __future__ import annotations

import itertools
import os
import re
import sys

import pytest
from example_packages import EXAMPLES, OPT, install, run, run_lit
from triton_ext.host import capabilities
from triton_ext.ir import parse
from triton_ext.passes import PassManager

EXAMPLE = EXAMPLES / "loop-split"
LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1

#: Each instance of the program hashes the iterations of one loop, in order, with their branches.
KERNEL = """\
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 1 : i32, \
ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @f(%lows: !tt.ptr<i32>, %highs: !tt.ptr<i32>, %limits: !tt.ptr<i32>, \
%out: !tt.ptr<i32>) {
    %pid = tt.get_program_id x : i32
    %low_ptr = tt.addptr %lows, %pid : !tt.ptr<i32>, i32
    %high_ptr = tt.addptr %highs, %pid : !tt.ptr<i32>, i32
    %limit_ptr = tt.addptr %limits, %pid : !tt.ptr<i32>, i32
    %out_ptr = tt.addptr %out, %pid : !tt.ptr<i32>, i32
    %low_unscaled = tt.load %low_ptr : !tt.ptr<i32>
    %high = tt.load %high_ptr : !tt.ptr<i32>
    %limit_unscaled = tt.load %limit_ptr : !tt.ptr<i32>
    %scale = arith.constant SCALE : i32
    %low = arith.muli %low_unscaled, %scale : i32
    %limit = arith.muli %limit_unscaled, %scale : i32
    %step = arith.constant STEP : i32
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %prime = arith.constant 1000003 : i32
    %hash = scf.for %i = %low to %high step %step iter_args(%before = %zero) -> (i32) : i32 {
      %outcome = arith.cmpi PREDICATE, OPERANDS : i32
      %branch = scf.if %outcome -> (i32) {
        %next = arith.addi %i, %one : i32
        scf.yield %next : i32
      } else {
        %other = arith.xori %i, %prime : i32
        scf.yield %other : i32
      }
      %scaled = arith.muli %before, %prime : i32
      %after = arith.addi %scaled, %branch : i32
      scf.yield %after : i32
    }
    tt.store %out_ptr, %hash : !tt.ptr<i32>
    tt.return
  }
}
"""


@pytest.fixture(scope="module")
def loop_split():
    """The pass, from the folder of the example."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        from loop_split import LoopSplit
    finally:
        sys.path.remove(str(EXAMPLE))
    return LoopSplit()


def split(loop_split, text):
    module = parse(text)
    report = PassManager([loop_split]).run(module)
    return str(module), sum(statistic.count for statistic in report.statistics)


def bounds(step):
    """Lower and upper bounds and limits: around each other, and at the ends of the integers."""
    yield from itertools.product((0, -2), (-3, -2, 0, 1, 7, 8), range(-4, 10))
    ends = (LOWEST, LOWEST + 1, LOWEST + 2, LOWEST + step, 0, HIGHEST - 1, HIGHEST)
    yield from itertools.product((LOWEST, LOWEST + 1), (LOWEST, LOWEST + 1, LOWEST + 4), ends)
    # A loop that would count beyond the last number has no end, split or not.
    low, high = HIGHEST - 3 * step, HIGHEST - step + 1
    near = {*range(high - 4, high + 1), low, low - 1, low + step, LOWEST, HIGHEST}
    yield from itertools.product((low,), (high, high - 1), sorted(near))


def hashes(text, cases):
    import numpy as np
    from triton_ext.emulator import Program

    arguments = [np.array(column, np.int32) for column in zip(*cases, strict=True)]
    out = np.zeros(len(cases), np.int32)
    Program(text).run((len(cases), 1, 1), [*arguments, out], 0)
    return out.tolist()


@pytest.mark.parametrize("operands", ["%i, %limit", "%limit, %i"])
@pytest.mark.parametrize("predicate", ["slt", "sle", "sgt", "sge"])
@pytest.mark.parametrize(("step", "scale"), [(1, 1), (3, 1), (4, 4)])
def test_every_iteration_runs_once_in_order_and_on_its_side(
    loop_split, step, scale, predicate, operands
):
    pytest.importorskip("numpy")
    text = KERNEL.replace("STEP", str(step)).replace("SCALE", str(scale))
    text = text.replace("PREDICATE", predicate).replace("OPERANDS", operands)
    after, count = split(loop_split, text)
    # Where the limit is known to be an iteration there is no third loop.
    is_known = step == scale
    assert (count, after.count("scf.for")) == (1, 2 if is_known else 3)
    assert after.count("scf.if") == (0 if is_known else 2)
    cases = list(bounds(step))
    if scale > 1:
        cases = list(itertools.product((-2, 0, 1), range(-9, 17), range(-4, 6)))
    assert hashes(after, cases) == hashes(text, cases)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("arith.cmpi PREDICATE", "arith.cmpi ult"),
        ("arith.cmpi PREDICATE", "arith.cmpi eq"),
        ("%step = arith.constant STEP : i32", "%step = tt.load %high_ptr : !tt.ptr<i32>"),
        ("step %step iter_args", "step %zero iter_args"),
        ("OPERANDS", "%i, %before"),
        ("OPERANDS", "%i, %i"),
        ("scf.if %outcome", "scf.if %true"),
    ],
)
def test_a_loop_that_stays(loop_split, old, new):
    text = KERNEL.replace("%zero = ", "%true = arith.constant true\n    %zero = ", 1)
    for name, value in ((old, new), ("STEP", "1"), ("SCALE", "1"), ("PREDICATE", "slt")):
        text = text.replace(name, value)
    text = text.replace("OPERANDS", "%i, %limit")
    assert split(loop_split, text) == (text, 0)


def test_an_unsigned_loop_stays(loop_split):
    text = "tt.func @f(%h: i32, %p: !tt.ptr<i32>) {\n  %s = arith.constant 1 : i32\n"
    text += "  scf.for unsigned %i = %s to %h step %s : i32 {\n"
    text += "    %c = arith.cmpi slt, %i, %h : i32\n    scf.if %c {\n"
    text += "      tt.store %p, %i : !tt.ptr<i32>\n    }\n  }\n  tt.return\n}\n"
    assert split(loop_split, text) == (text, 0)
    assert split(loop_split, text.replace(" unsigned", ""))[1] == 1


def test_constants_tell_whether_the_limit_is_an_iteration(loop_split):
    text = KERNEL.replace("STEP", "10").replace("SCALE", "1").replace("PREDICATE", "slt")
    text = text.replace("OPERANDS", "%i, %fixed")
    for low, limit, loops in ((5, 35, 2), (5, 36, 3), (-5, 35, 2)):
        constants = (
            f"%fixed = arith.constant {limit} : i32\n    %start = arith.constant {low} : i32"
        )
        made = text.replace("%zero = ", f"{constants}\n    %zero = ", 1)
        after, _ = split(loop_split, made.replace("%i = %low to", "%i = %start to"))
        assert after.count("scf.for") == loops


@pytest.mark.slow
def test_causal_attention(tmp_path):
    pytest.importorskip("numpy")
    pytest.importorskip("triton")
    if not capabilities()["stages-hook-key"].available:
        pytest.skip(capabilities()["stages-hook-key"].reason)
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    out = run(environment, str(EXAMPLE / "causal_attention.py"))
    rows = re.findall(r"^(.*?), (ttir|ttgir) +loops: (\d) +branches: (\d) .* (\S+)$", out, re.M)
    assert [row[:4] for row in rows] == [
        ("as it was", "ttir", "1", "1"),
        ("as it was", "ttgir", "1", "1"),
        ("split", "ttir", "2", "0"),
        ("split", "ttgir", "2", "0"),
    ]
    # The outputs are fp16 numbers of about 1.
    assert all(float(row[4]) < 1e-3 for row in rows)
    assert len({row[4] for row in rows}) == 1


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment of a process that has the example installed."""
    return install(EXAMPLE, tmp_path_factory.mktemp("loop-split"))


def test_it_runs_by_its_name(installed, tmp_path):
    file = tmp_path / "in.mlir"
    file.write_text(
        KERNEL.replace("STEP", "1")
        .replace("SCALE", "1")
        .replace("PREDICATE", "sgt")
        .replace("OPERANDS", "%i, %limit")
    )
    text = run(installed, "-c", OPT, str(file), "-triton-loop-split")
    assert text.count("scf.for") == 2


def test_lit(installed, tmp_path):
    assert "Passed: 1" in run_lit(installed, EXAMPLE / "test", tmp_path)


def test_the_page_counts_the_lines():
    page = (EXAMPLES.parent / "docs" / "write-a-pass.md").read_text()
    for name in ("loop_split.py", "pyproject.toml"):
        lines = (EXAMPLE / name).read_text().count("\n")
        assert f"`{name}`, {lines} lines |" in page
