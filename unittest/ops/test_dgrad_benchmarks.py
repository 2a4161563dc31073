"""The sweep of dgrad's configurations, without a GPU."""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import asdict
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the benchmarks need torch, which is not installed")

from problem_cases import problem_of
from triton_ext.host import capabilities
from triton_ext.ops.families.gemm_config import DGRAD_CONFIGS

from benchmarks.compile_ahead import Compiled, CompilePool
from benchmarks.dgrad_sweep import configurations, geometry_of
from benchmarks.fit_config import load_problems
from benchmarks.suites import select_layers
from benchmarks.sweeping import RESERVE_SECONDS, compiled_layers, out_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
IM2COL = capabilities()["im2col"]


def test_a_layer_is_one_product():
    # 9 taps over 4 classes; 13 x 13 pixels rounded up to 14 x 14.
    problem = problem_of(n=2, ci=24, co=72, size=(13, 13), stride=2, padding=1)
    assert geometry_of(problem) == {"m_gemm": 2 * 14 * 14, "co": 24, "ci": 72, "r": 9 / 4, "s": 1}


def test_what_is_tried_fits():
    for layer in select_layers("resnet"):
        found = configurations(layer.problem, 132, narrow=False)
        assert found[: len(DGRAD_CONFIGS)] == list(DGRAD_CONFIGS)
        assert len(set(found)) == len(found) <= 60
        assert all(config.fits(2) for config in found)


def test_a_dry_run_writes_what_the_fit_reads(tmp_path):
    out = tmp_path / "sweep.json"
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks", "dgrad_sweep", "--dry-run", "--suite", "unet",
         "--narrow", "--out", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "0 wrong results" in result.stdout
    assert len(json.loads(out.read_text("utf-8"))["shapes"]) > 10
    for problem in load_problems([out]):
        assert set(problem.times) == set(DGRAD_CONFIGS)


def test_a_dry_run_leaves_the_file_of_a_sweep_alone(tmp_path):
    measured, named = pathlib.Path("dgrad_sweep.json"), tmp_path / "named.json"
    for out, dry_run, expected in (
        (None, False, measured),
        (None, True, pathlib.Path("dgrad_sweep.dry.json")),
        (named, True, named),
    ):
        assert out_file(argparse.Namespace(out=out, dry_run=dry_run), measured) == expected


class Pool:
    """Compiles at once; what is named "bad" does not compile."""

    def submit_job(self, job):
        future = Future()
        error = "no registers left" if job["config"] == "bad" else ""
        future.set_result(Compiled(shared_bytes=0, error=error))
        return future


class Recording:
    """As much of a sweep as goes through layers."""

    def __init__(self, seconds):
        self.deadline = SimpleNamespace(left=lambda: seconds.pop(0))
        self.begun, self.statuses = [], []

    def begin(self, layer):
        self.begun.append(layer.name)

    def record(self, layer, config, status):
        self.statuses.append((layer.name, config, status))


def test_layers_come_with_what_compiled_until_the_time_is_over():
    one, two = select_layers("resnet")[:2]
    work = {one: ["good", "bad"], two: ["good"]}
    sweep = Recording([99.0, 99.0, 99.0, RESERVE_SECONDS / 2])
    found = list(compiled_layers(sweep, Pool(), work, lambda layer, config: {"config": config}))
    assert [(layer.name, ready) for layer, ready in found] == [(one.name, ["good"])]
    assert sweep.begun == [one.name]
    assert sweep.statuses == [(one.name, "bad", "does not compile: no registers left")]


@pytest.mark.skipif(not IM2COL.available, reason=IM2COL.reason)
def test_kernels_are_compiled_in_another_process(fresh_triton_cache):
    layer = select_layers("resnet")[0]
    job = {
        "module": "benchmarks.dgrad_sweep",
        "layer": layer.name,
        "dtype": "float16",
        "num_sms": 132,
        "config": asdict(DGRAD_CONFIGS[0]),
    }
    with CompilePool(1, (9, 0)) as pool:
        compiled = pool.submit_job(job).result(timeout=100)
    assert compiled.error == ""
    assert compiled.shared_bytes > 100_000
    assert list(fresh_triton_cache.rglob("*.cubin"))
