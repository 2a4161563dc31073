"""Tuning on a GPU: what is measured, that it is used, and that calls cost what they did."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from gpu_comparison import MARKS, skip_without_gpu
from triton_ext import ops
from triton_ext.errors import UnsupportedError
from triton_ext.ops import tuning
from triton_ext.ops.core import tables as lookups
from triton_ext.ops.core.planner import make_plan
from triton_ext.ops.tuning.collect import parse_shape
from triton_ext.ops.tuning.measure import EventClock

pytestmark = MARKS

SHAPES = ("8x64x56x56_64_k3x3", "8x256x14x14_256_k1x1", "8x3x64x64_64_k7x7_s2x2", "8x64x20_64_k3")


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    """An empty table of the user's."""
    skip_without_gpu()
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_EXT_TUNING", raising=False)
    monkeypatch.setattr(lookups, "shipped_path", lambda gpu: tmp_path / "none.json")
    lookups.lookup.forget(added=True)
    tuning.reload()
    yield
    lookups.lookup.forget(added=True)
    tuning.reload()


def cases(shapes=SHAPES) -> list[tuning.Case]:
    return [
        tuning.Case(direction=direction, problem=parse_shape(shape), dtype=torch.float16)
        for direction in ("fprop", "dgrad", "wgrad")
        for shape in shapes
    ]


def innermost(config):
    while hasattr(config, "config"):
        config = config.config
    return config


def test_candidates_are_measured_and_plans_use_the_fastest():
    report = tuning.tune(cases(), progress=False)
    print(report)  # noqa: T201 - what was measured, for who reads the log
    measured = [outcome for outcome in report.outcomes if outcome.is_new]
    assert {outcome.case.direction for outcome in measured} == {"fprop", "dgrad", "wgrad"}
    for outcome in report.outcomes:
        assert outcome.failures == ()
        assert outcome.is_new or outcome.note == "one configuration only"
    for outcome in measured:
        assert 1.0 < outcome.entry.us <= outcome.entry.model_us * 1.001
        plan = make_plan(outcome.case, torch.device("cuda", 0))
        raw = report.table.entries[outcome.key]
        assert innermost(plan.config) == innermost(lookups.decode(raw["kind"], raw["config"]))
    again = tuning.tune(cases(), progress=False)
    assert sum(outcome.note == "known" for outcome in again.outcomes) == len(measured)
    assert not any(outcome.is_new for outcome in again.outcomes)


def test_the_clock_measures_kernels_and_not_launches():
    clock = EventClock(torch.device("cuda"))
    x = torch.empty(1 << 26, dtype=torch.float32, device="cuda")

    def slow_launch():
        begin = time.perf_counter()
        while time.perf_counter() - begin < 100e-6:
            pass
        x[:1024].zero_()

    assert clock.measure(clock.prepare(slow_launch)) < 20.0
    # 256 MiB at less than 10 TB/s, and at more than 1 TB/s.
    assert 26.0 < clock.measure(clock.prepare(x.zero_)) < 260.0


def test_never_while_a_graph_is_captured():
    x = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with tuning.warmup_steps(1) as job, torch.cuda.graph(graph):
        x += 1
        with pytest.raises(UnsupportedError, match="being captured"):
            tuning.tune(cases())
        with pytest.raises(UnsupportedError, match="being captured"):
            job.step()
    graph.replay()
    assert x.tolist() == [1.0] * 4


def test_a_job_with_a_compiled_model_is_tuned():
    model = torch.nn.Conv2d(64, 64, 3, padding=1).half().cuda()
    weight = model.weight.detach().to(memory_format=torch.channels_last).requires_grad_()
    x = torch.randn(4, 64, 28, 28, device="cuda").half().to(memory_format=torch.channels_last)

    @torch.compile(fullgraph=True)
    def step(x):
        return torch.relu(ops.conv2d(x, weight, padding=1)).sum()

    with tuning.warmup_steps(2, progress=False) as job:
        step(x).backward()
        before = weight.grad.clone()
        report = job.step()
        assert {outcome.case.direction for outcome in report.outcomes} == {"fprop", "wgrad"}
        assert all(outcome.is_new for outcome in report.outcomes)
        weight.grad = None
        step(x).backward()
        assert job.step() is None
    torch.testing.assert_close(weight.grad, before, rtol=1e-2, atol=1e-1)
