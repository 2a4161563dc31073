"""The sweep of the Gluon kernels' tiles, its fit, pairs and choosing, without a GPU."""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import pathlib
import subprocess
import sys
from concurrent.futures import Future

import pytest

torch = pytest.importorskip("torch", reason="the benchmarks need torch, which is not installed")
pytest.importorskip("numpy", reason="the fit needs numpy, which is not installed")

from triton_ext.host import capabilities  # noqa: E402
from triton_ext.ops.core.case import Case  # noqa: E402
from triton_ext.ops.families.gluon_config import COSTS  # noqa: E402

from benchmarks import choosing, fit_gluon, gluon_conv, gluon_sweep, pairs  # noqa: E402
from benchmarks.compile_ahead import Compiled, CompilePool  # noqa: E402
from benchmarks.harness import Errors, FakeTimer, collect_environment  # noqa: E402
from benchmarks.readings import load_rows  # noqa: E402
from benchmarks.shapes import FPROP_SHAPES, select_shapes  # noqa: E402
from benchmarks.suites import select_layers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
GLUON = capabilities()["im2col-gluon"]
needs_gluon = pytest.mark.skipif(not GLUON.available, reason=GLUON.reason)


def swept(folder, *words):
    parser = argparse.ArgumentParser()
    gluon_conv.add_arguments(parser)
    out = folder / "sweep.csv"
    assert (
        gluon_conv.run(parser.parse_args(["--sweep", "--dry-run", "--out", str(out), *words])) == 0
    )
    lines = out.read_text().splitlines()
    return out, list(csv.DictReader(line for line in lines if not line.startswith("#")))


@needs_gluon
@pytest.mark.parametrize("kernel", ["fprop", "dgrad"])
def test_what_is_tried_is_legal_and_what_is_chosen_comes_first(kernel):
    from triton_ext.ops.families.gluon import product_of

    for shape in FPROP_SHAPES[::3]:
        problem = shape.problem()
        found = gluon_sweep.candidates(kernel, problem, 132)
        narrow = gluon_sweep.candidates(kernel, problem, 132, narrow=True)
        assert found[: len(narrow)] == narrow
        assert len(set(found)) == len(found) > 50
        product = product_of(Case(direction=kernel, problem=problem, dtype=torch.float16))
        assert not [c for c in found if c.fit_refusals(product, 132)]
        may_turn = kernel == "fprop" and problem.is_pointwise
        assert any(c.rows_from_w for c in found) == may_turn
        times = [gluon_sweep.model_us(kernel, problem, config, 132) for config in narrow]
        assert times[0] == min(times)


@needs_gluon
def test_the_sweep_of_wgrad_has_both_ways_of_adding():
    found = gluon_sweep.candidates("wgrad", FPROP_SHAPES[2].problem(), 132)
    assert {config.add_in_place for config in found} == {True, False}
    names = [gluon_sweep.name_of(config) for config in found]
    assert len(set(names)) == len(names)


@needs_gluon
def test_what_shapes_share_is_compiled_once():
    class Pool:
        jobs = 0

        def submit_job(self, job):
            Pool.jobs += 1
            future = Future()
            future.set_result(Compiled(shared_bytes=0, error=""))
            return future

    shapes = select_shapes(["0", "4", "17", "8"])
    work = {shape: gluon_sweep.candidates("dgrad", shape.problem(), 132)[:3] for shape in shapes}
    found = gluon_sweep._submit(Pool(), work, "dgrad", "float16", 132)
    assert len(found) == sum(map(len, work.values()))
    # The first two differ in their batch alone; a 1x1 and a strided one are other kernels.
    assert Pool.jobs == len({*work[shapes[0]], *work[shapes[1]]}) + 6


@needs_gluon
def test_a_configuration_is_compiled_in_another_process(fresh_triton_cache):
    shape = FPROP_SHAPES[3]
    config = gluon_sweep.candidates("dgrad", shape.problem(), 132)[0]
    job = gluon_sweep._job("dgrad", shape, "float16", 132, config)
    with CompilePool(1, (9, 0)) as pool:
        compiled = pool.submit_job(job).result(timeout=100)
    assert compiled.error == ""
    assert compiled.shared_bytes > 100_000
    assert list(fresh_triton_cache.rglob("*.cubin"))


@needs_gluon
def test_the_fit_finds_the_costs_that_times_were_made_of(tmp_path, capsys):
    out, rows = swept(tmp_path, "--kernel", "dgrad", "--narrow")
    assert {row["shape"] for row in rows} == {shape.name for shape in FPROP_SHAPES}
    assert {row["status"] for row in rows} == {"ok"}
    # Times of a machine whose costs are known, in the place of the invented ones.
    cost = {"step": 0.25, "tile": 1.5, "launch": 6.0}
    for measured in fit_gluon.load([out]):
        for config in measured.times:
            us = sum(
                c * f
                for c, f in zip(cost.values(), fit_gluon.features_of(measured, config), strict=True)
            )
            # What is for few columns has too few shapes to be fitted, and is not the best.
            us *= 9 if config in COSTS["few columns"] else 1
            name = gluon_sweep.name_of(config)
            for row in rows:
                if (row["shape"], row["name"]) == (measured.shape.name, name):
                    row["us"] = us
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    capsys.readouterr()
    assert fit_gluon.main([str(out), "--fit", "--pick", "2", "--best", "1"]) == 0
    text = capsys.readouterr().out
    fitted = [line for line in text.splitlines() if " Cost(" in line]
    assert len(fitted) >= 8
    assert all("Cost(0.250, 1.50, 6.0)  median error 0.0 %" in line for line in fitted), fitted
    assert "chosen by these/best, geometric mean of 21: 1.0000" in text
    # 32 x 7 x 7 pixels in 25 tiles of 64, 512 channels in 4 of 128: one round, 100 of 132 busy.
    assert "25 x 4 tiles, 1 rounds 76 % full, 72 steps" in text


@needs_gluon
def test_waves_of_a_filter_that_stays_are_counted_by_column():
    from triton_ext.ops.families.gluon_config import keep_filter, ping_pong

    (shape,) = select_shapes(["32,28,28,128,128,3,3,1"])
    measured = fit_gluon.Measured("dgrad", shape, 132, None, math.nan, {})
    loaded = ping_pong(128, 64, 6, store_n=32)
    # 196 x 2 tiles; where the filter stays, 66 multiprocessors have a column of 196 each.
    assert fit_gluon.waves_of(measured, loaded) == 3
    kept = keep_filter(loaded, 18)
    assert fit_gluon.waves_of(measured, kept) == 3
    assert fit_gluon.features_of(measured, kept) == [3 * 18, 3, 1.0]


@needs_gluon
def test_steps_with_a_stride_are_those_of_the_busiest_multiprocessor():
    from triton_ext.ops.families.gluon_config import ping_pong

    (shape,) = select_shapes(["32,28,28,256,256,3,3,2"])
    measured = fit_gluon.Measured("dgrad", shape, 132, None, math.nan, {})
    # 98 tiles of each class of 1, 2, 2 and 4 taps: number 98 has tiles 98, 230 and 362, of the
    # second, third and fourth class, of 4 steps a tap.
    config = ping_pong(128, 128, 6, store_n=32)
    assert fit_gluon.features_of(measured, config) == [4 * (2 + 2 + 4), 3, 1.0]


def test_what_is_no_sweep_is_refused(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text("kernel,shape\nwgrad,a\n")
    assert fit_gluon.main([str(path)]) == 2
    assert "expected a sweep of fprop or dgrad, this is wgrad" in capsys.readouterr().err
    assert fit_gluon.main([str(tmp_path / "none.csv")]) == 2


# ---- Pairs and choosing ------------------------------------------------------------------------


def test_a_wrong_result_of_a_pair_is_not_timed():
    shape, exact = FPROP_SHAPES[0], torch.tensor([1.0, -2.0])
    functions = {"eager": lambda: exact * 1.001, pairs.OURS: lambda: exact * 1.01}
    row = pairs.measure(shape, pairs.Pair(functions, exact), FakeTimer(), 2)
    assert (row.wrong, row.timings) == ((pairs.OURS,), {})
    assert "WRONG RESULT" in row.line(("eager", pairs.OURS))
    allowed = pairs.Pair(functions, exact, Errors(0.02, 0.02))
    row = pairs.measure(shape, allowed, FakeTimer(), 2)
    assert row.wrong == ()
    fields = row.fields(("eager", pairs.OURS))
    assert fields["ratio_to_eager"] == row.timings["eager"].ms / row.timings[pairs.OURS].ms
    assert not math.isnan(row.ratio("eager"))


INTERPRETED = """
from benchmarks import epilogue, fp8, pairs
from benchmarks.harness import FakeTimer
from benchmarks.shapes import ConvShape

shape = ConvShape.make(1, 6, 5, 32, 32, 3, 3, 1)
for pair in (epilogue.make(shape, "float16", False, "cpu"), fp8.make(shape, "cpu")):
    row = pairs.measure(shape, pair, FakeTimer(), 1)
    print(*row.timings, row.wrong, all(0 < found.l2 < 0.01 for found in row.errors.values()))
"""


def test_pairs_give_what_they_are_compared_with():
    result = subprocess.run(
        [sys.executable, "-c", INTERPRETED], cwd=ROOT, capture_output=True, text=True, timeout=100,
        check=False, env={**os.environ, "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["eager ours () True", "bfloat16 ours () True"]


def test_choices_need_no_gpu(tmp_path, capsys):
    out = tmp_path / "choices.json"
    parser = argparse.ArgumentParser()
    choosing.add_arguments(parser)
    words = ["--what", "choices", "--suite", "convnext", "--shapes", "1", "--out", str(out)]
    assert choosing.run(parser.parse_args(words)) == 0
    assert "choices: 24, 1 layers" in capsys.readouterr().out
    rows = json.loads(out.read_text())["rows"]
    found = {
        (row["table"], row["direction"], row["dtype"]): row["choice"].split()[0]
        for row in rows
        if row["gpu"] == "NVIDIA H200"
    }
    for table in ("shipped", "none"):
        assert found[table, "fprop", "float16"] == "ForwardPlan"
        assert found[table, "dgrad", "float32"] == "ForwardPlan"
        assert found[table, "wgrad", "float16"] == "DepthwiseWgradPlan"


def test_choosing_runs_over_the_layers_of_resnet():
    names = choosing.resnet_names()
    assert len(set(names)) == 23
    command = choosing.cold_command(names)
    assert "--force" in command
    assert command[-23:] == names
    from triton_ext.ops.tuning.collect import parse_shape

    assert all(parse_shape(name).batch == 32 for name in names)


def test_models_are_judged_on_some_layers_within_the_time(tmp_path, monkeypatch, capsys):
    """What ``choosing --what model`` asks of the tuning, and what it says of its answers."""
    from triton_ext.ops.core.tables import Entry
    from triton_ext.ops.tuning import measure, runs

    asked = []

    def tune(cases, **options):
        asked.append((list(cases), options))
        entry = Entry(kind="gemm", config={}, us=90.0, model_us=100.0, measured="")
        outcomes = [
            runs.Outcome(case=case, key=str(case), entry=entry, is_new=True) for case in cases
        ]
        if len(asked) == 2:
            outcomes[-3:] = [
                runs.Outcome(case=case, key=str(case), note="no time left") for case in cases[-3:]
            ]
        return runs.Report("NVIDIA Test GPU", tuple(outcomes), 1.0)

    monkeypatch.setattr(runs, "tune", tune)
    monkeypatch.setattr(measure, "CompilePool", lambda jobs: contextlib.nullcontext("the pool"))
    monkeypatch.setattr(choosing, "opened_suite", opened_without_a_gpu)
    parser = argparse.ArgumentParser()
    choosing.add_arguments(parser)
    out = tmp_path / "model.csv"
    words = ["--every", "8", "--suite", "all", "--time-limit", "50", "--out", str(out)]
    assert choosing.run(parser.parse_args(words)) == 0
    cases = [case for group, _ in asked for case in group]
    layers = -(-len(select_layers("all")) // 8)
    assert len(cases) == 3 * layers
    assert [case.direction for case in cases[:6]] == ["fprop", "dgrad", "wgrad"] * 2
    assert all(0 < options["seconds"] <= 50 for _, options in asked)
    told = capsys.readouterr().out
    assert f"missing (time limit): 3 of {3 * layers}" in told
    assert f"geometric mean of {3 * layers - 3}: 0.900; worst 0.900" in told
    assert len(load_rows(out)) == 3 * layers - 3


def opened_without_a_gpu(arguments, suffixes):
    return select_layers(arguments.suite, arguments.shapes), collect_environment()
