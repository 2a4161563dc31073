"""``prefer="fastest"``: when torch's own convolution is called, and what of it is listed."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from problem_cases import problem_of
from triton_ext import ops
from triton_ext.ops.api.explain import explain_case
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import DIRECTIONS, Case
from triton_ext.ops.core.device import KNOWN, Expected, assumed_device
from triton_ext.ops.core.epilogue import EpilogueSpec
from triton_ext.ops.core.family import TORCH
from triton_ext.ops.core.tables import Entry, encode
from triton_ext.ops.families.by_torch import TorchConfig
from triton_ext.ops.tuning import runs

from benchmarks.suites import select_layers
from benchmarks.zoo.layers import ZOO
from benchmarks.zoo.rows import read_rows

ROWS = ZOO.parent / "rows"
H200 = KNOWN["h200"]
HALF = torch.float16
# 7.4 GFLOP and 25.8 MB: 10.57 us at 700 TFLOP/s.
LAYER = problem_of(n=32, ci=64, co=64, size=(56, 56), padding=1)
ROOFLINE_US = 2 * 32 * 56 * 56 * 64 * 64 * 9 / 700e6


def is_torch_faster(case):
    with assumed_device(H200):
        return runs.is_torch_faster(case, torch.device("meta"))


def counted_us():
    """torch's time for the layer, as it is compared."""
    (expected,) = TORCH["fprop"].candidates(case_of(), H200).values()
    return expected.counted_us


def case_of(problem=LAYER, direction="fprop", **others):
    return Case(direction=direction, problem=problem, dtype=HALF, **others)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_its_time_is_above_the_roofline_and_counts_with_a_margin(direction):
    case = case_of(direction=direction)
    assert not TORCH[direction].refusals(case, H200)
    (expected,) = TORCH[direction].candidates(case, H200).values()
    assert ROOFLINE_US < expected.us < 4 * ROOFLINE_US
    assert expected.counted_us == pytest.approx(1.03 * expected.us)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (case_of(problem_of(ci=64, co=64, size=(9, 9), taps=(9, 9), groups=64)), "groups of one"),
        (case_of(epilogue=EpilogueSpec(activation="relu")), "epilogue"),
        (Case(direction="fprop", problem=LAYER, dtype=torch.float32), "no measured rate"),
    ],
    ids=["groups", "epilogue", "dtype"],
)
def test_what_was_not_measured_is_refused(case, reason):
    assert reason in "; ".join(map(str, TORCH["fprop"].refusals(case, H200)))
    assert not is_torch_faster(case)


def test_it_is_listed_and_never_chosen_by_default():
    found = explain_case(case_of(), H200)
    assert found.chosen.kind != "torch"
    (listed,) = [each for each in found.candidates if each.kind == "torch"]
    assert "prefer=" in listed.refusal
    assert f"{counted_us() / 1.03:.1f} us" in str(listed)
    assert "torch" not in {each.family.kind for each in planner.offers(case_of(), H200)}
    assert TORCH["fprop"].refusals(case_of(), H200, TorchConfig())


def test_layers_of_the_suites_go_to_torch_only_where_it_was_faster():
    measured = {
        (row["direction"], row["layer"]): row["cudnn_us"]
        / min(result["us"] for result in row["results"] if result["us"])
        for row in read_rows(ROWS / "suites.jsonl.xz")
        if "layer" in row
    }
    gone = [
        measured[direction, layer.name]
        for layer in select_layers("all")
        for direction in DIRECTIONS
        if is_torch_faster(case_of(layer.problem, direction))
    ]
    assert 10 < len(gone) < 60
    assert max(gone) < 1.1  # models err by as much


@pytest.mark.parametrize(("more_us", "is_faster"), [(-0.1, False), (0.1, True)])
def test_a_kernel_that_is_slower_than_torchs_largest_time_gives_way(
    monkeypatch, more_us, is_faster
):
    case, family = case_of(), planner.cheapest(case_of(), H200).family
    (config, *_) = family.candidates(case, H200)
    choice = planner.Choice(family, config, Expected.of(counted_us() + more_us))
    monkeypatch.setattr(planner, "measured", lambda *_: None)
    monkeypatch.setattr(planner, "cheapest", lambda *_: choice)
    assert is_torch_faster(case) == is_faster


def test_a_measured_kernel_counts_as_measured(monkeypatch):
    case, choice = case_of(), planner.cheapest(case_of(), H200)
    monkeypatch.setattr(planner, "measured", lambda *_: choice)
    limit = planner.MEASURED_MARGIN * counted_us()
    for us, is_faster in ((limit - 0.1, False), (limit + 0.1, True)):
        entry = Entry(kind=choice.family.kind, config=encode(choice.config), us=us, measured="")
        monkeypatch.setattr(planner, "entry_for", lambda *_, entry=entry: ("", entry.raw()))
        assert is_torch_faster(case) == is_faster


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(n=32, ci=128, co=128, size=(56, 56), padding=1, groups=32),
        problem_of(n=1, ci=19, co=64, size=(56, 56)),
    ],
    ids=["groups", "channels"],
)
def test_what_has_no_model_runs_a_kernel_unless_it_is_raced(problem):
    case = case_of(problem)
    (expected,) = TORCH["fprop"].candidates(case, H200).values()
    assert math.isnan(expected.us)
    assert not is_torch_faster(case)


@pytest.mark.parametrize(("torch_us", "us", "is_faster"), [(9.0, 10.0, True), (10.0, 9.0, False)])
def test_times_that_were_measured_together_decide(monkeypatch, torch_us, us, is_faster):
    case, choice = case_of(), planner.cheapest(case_of(), H200)
    monkeypatch.setattr(planner, "measured", lambda *_: choice)
    entry = Entry(
        kind=choice.family.kind, config=encode(choice.config), us=us, torch_us=torch_us, measured=""
    )
    monkeypatch.setattr(planner, "entry_for", lambda *_: ("", entry.raw()))
    with assumed_device(H200):
        assert planner.torch_ratio(case, torch.device("meta")) == (torch_us / us, True)
    monkeypatch.setattr(runs, "_may_race", lambda _: True)  # and no race is needed
    assert is_torch_faster(case) == is_faster


@pytest.mark.parametrize(
    ("ratio", "is_raced"), [(0.4, False), (0.6, True), (math.nan, True), (1.9, True), (2.1, False)]
)
def test_a_race_decides_where_the_models_are_not_sure(monkeypatch, ratio, is_raced):
    races = []
    monkeypatch.setattr(planner, "torch_ratio", lambda *_: (ratio, False))
    monkeypatch.setattr(runs, "_may_race", lambda _: True)
    monkeypatch.setattr(runs, "_race", lambda *_: races.append(1) or 0.9)
    assert is_torch_faster(case_of()) == (is_raced or ratio < 1)
    assert len(races) == is_raced


def test_nothing_is_measured_where_that_would_change_results_or_break_a_graph(monkeypatch):
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert runs._may_race(gpu)
    assert not runs._may_race(torch.device("cpu"))
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert not runs._may_race(gpu)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
    monkeypatch.setenv("TRITON_EXT_TUNING", "0")
    assert not runs._may_race(gpu)
    monkeypatch.delenv("TRITON_EXT_TUNING")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not runs._may_race(gpu)


def test_another_preference_is_refused():
    x, weight = torch.ones(1, 8, 4, 4, dtype=HALF), torch.ones(8, 8, 3, 3, dtype=HALF)
    with pytest.raises(ValueError, match='expected "ours" or "fastest", got'):
        ops.conv2d(x, weight, prefer="best")
