"""Tuning with kernels that are interpreted and times that are made up; see ``test_tuning.py``."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import warnings
from concurrent.futures import Future
from dataclasses import replace

import pytest
from interpreted import why_not_interpreted

if reason := why_not_interpreted(im2col=True):
    pytest.skip(reason, allow_module_level=True)

import torch
import triton
from triton_ext import ops
from triton_ext.errors import UnsupportedError
from triton_ext.ops import tuning
from triton_ext.ops.core import dispatch_cache
from triton_ext.ops.core import tables as lookups
from triton_ext.ops.core.epilogue import EpilogueSpec
from triton_ext.ops.core.plan import Plan
from triton_ext.ops.core.planner import make_plan
from triton_ext.ops.core.tables import Table, TuningWarning, read_table
from triton_ext.ops.families import gemm
from triton_ext.ops.families.few_channels import GatherConfig
from triton_ext.ops.tuning import measure, runs
from triton_ext.ops.tuning.collect import parse_shape
from triton_ext.ops.tuning.measure import make_tensors
from triton_ext.ops.tuning.store import write_table
from tuning_fakes import GPU, MACHINE, InstantCompiler, MadeUpClock, last_is_fastest, plans_for

CPU = torch.device("cpu")
jobs = sys.modules[tuning.Warmup.__module__]


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    """The user's table, empty."""
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_EXT_TUNING", raising=False)
    plans_for(MACHINE, monkeypatch)
    lookups.lookup.forget(added=True)
    tuning.reload()
    yield lookups.user_path(GPU)
    lookups.lookup.forget(added=True)
    tuning.reload()


def case(direction="fprop", shape="1x64x8x8_32_k3x3", **changes) -> tuning.Case:
    made = {"direction": direction, "problem": parse_shape(shape), "dtype": torch.float16}
    return tuning.Case(**{**made, **changes})


def tune(cases, **options) -> tuning.Report:
    plain = {
        "gpu": MACHINE, "compiler": InstantCompiler(), "clock": last_is_fastest(),
        "progress": False, "device": "cpu",
    }  # fmt: skip
    return tuning.tune(cases, **{**plain, **options})


def configs_of(asked) -> list:
    return tuning.candidates(asked.problem, asked.direction, asked.dtype, MACHINE)


def chosen(asked):
    """What a plan of a case uses, as candidates spell it."""
    plan = make_plan(asked, CPU)
    return plan.config


@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
def test_plans_take_what_was_measured(direction, table):
    asked = case(direction)
    candidates = configs_of(asked)
    assert 2 <= len(candidates) <= 6
    (outcome,) = tune([asked]).outcomes
    assert outcome.is_new
    assert not outcome.failures
    best = candidates[-1]
    assert chosen(asked) == getattr(best, "config", best)
    assert read_table(table, GPU).entries == {asked.key(2): outcome.entry.raw()}
    # And they are right.
    tensors = make_tensors(asked, CPU)
    model = make_plan(asked, CPU, candidates[0]).run(*tensors)
    assert measure._agree(make_plan(asked, CPU).run(*tensors), model)


def configs_that_run(monkeypatch) -> list:
    """Returns what fills with the configuration of every plan that is made."""
    seen = []
    real = gemm.Gemm.bind

    def bind(family, config, case, device):
        seen.append(config)
        return real(family, config, case, device)

    monkeypatch.setattr(gemm.Gemm, "bind", bind)
    return seen


def test_an_operator_uses_the_choice_from_the_next_call_on(monkeypatch):
    asked = case(shape="2x64x8x8_32_k3x3")
    x = torch.randn(2, 64, 8, 8).half().to(memory_format=torch.channels_last)
    weight = torch.randn(32, 64, 3, 3).half().to(memory_format=torch.channels_last)
    before = ops.conv2d(x, weight, padding=1)
    seen = configs_that_run(monkeypatch)
    ops.conv2d(x, weight, padding=1)
    assert seen == []  # the plan is kept: a call looks nothing up
    tune([asked])
    seen.clear()
    after = ops.conv2d(x, weight, padding=1)
    assert seen == [configs_of(asked)[-1]]
    assert measure._agree(after, before)


def test_sizes_of_a_bucket_share_a_choice():
    tune([case(shape="1x64x8x8_32_k3x3")])
    best = configs_of(case())[-1]
    for shape in ("1x64x9x9_32_k3x3", "1x64x11x11_32_k3x3", "1x64x4x30_32_k3x3"):
        assert chosen(case(shape=shape)) == best
    assert case(shape="64x64x32x32_32_k3x3").key(2) != case().key(2)


def test_a_change_of_the_file_is_seen_after_reload(table):
    asked = case()
    tune([asked])
    tuned = chosen(asked)
    lookups.lookup.forget(added=True)
    other = configs_of(asked)[0]
    entry = {**read_table(table).entries[asked.key(2)], "config": lookups.encode(other)}
    write_table(table, Table(GPU, {asked.key(2): entry}))
    assert chosen(asked) == tuned
    tuning.reload()
    assert chosen(asked) == other
    assert not dispatch_cache._cache._values


def test_what_is_known_is_not_measured_again(table):
    asked = [case(), case("dgrad"), case(), case(shape="1x64x9x9_32_k3x3")]
    first = tune(asked)
    # The last one is in the first one's bucket.
    assert [outcome.is_new for outcome in first.outcomes] == [True, True]
    clock = last_is_fastest()
    second = tune(asked, clock=clock)
    assert [outcome.note for outcome in second.outcomes] == ["known", "known"]
    assert clock.measured == []
    assert second.table == first.table
    assert "0 measured, 2 known before" in str(second)
    forced = tune(asked[:1], clock=clock, force=True)
    assert forced.outcomes[0].is_new
    # What another Triton measured is measured again.
    entries = {key: {**raw, "triton": "3.0.0"} for key, raw in first.table.entries.items()}
    lookups.lookup.forget(added=True)
    write_table(table, Table(GPU, entries))
    lookups.lookup.forget()
    assert all(outcome.is_new for outcome in tune(asked).outcomes)


def test_what_fails_is_told_and_left_out():
    asked = case()
    configs = configs_of(asked)
    compiler = InstantCompiler(broken=configs[-1:])
    (outcome,) = tune([asked], compiler=compiler).outcomes
    assert len(compiler.jobs) == len(configs)
    assert chosen(asked) == configs[-2]
    (failure,) = outcome.failures
    assert "no such instruction" in failure
    (outcome,) = tune([asked], compiler=InstantCompiler(broken=configs), force=True).outcomes
    assert outcome.entry is None
    assert outcome.note == "no candidate runs"


def test_a_candidate_with_another_result_is_left_out(monkeypatch):
    asked = case()
    configs = configs_of(asked)
    real = Plan.run

    def run(plan, *tensors):
        y = real(plan, *tensors)
        if plan.config == configs[-1]:
            y[0, 3] = float("nan")
        if plan.config == configs[-2]:
            raise RuntimeError("an illegal instruction\nwas encountered")
        return y

    monkeypatch.setattr(Plan, "run", run)
    (outcome,) = tune([asked]).outcomes
    assert chosen(asked) == configs[-3]
    assert [text.partition(": ")[2] for text in outcome.failures] == [
        "RuntimeError: an illegal instruction",
        "another result than the first candidate",
    ]


def test_the_model_is_measured_against():
    (outcome,) = tune(
        [case()], clock=MadeUpClock(lambda trial: trial.config.block_m + 0.0)
    ).outcomes
    configs = configs_of(case())
    assert outcome.entry.model_us == configs[0].block_m
    assert outcome.entry.us == min(config.block_m for config in configs)
    assert "x of the model's choice" in str(outcome)


def test_a_folder_that_cannot_be_written_costs_the_file_only(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", str(tmp_path / "file" / "below"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TuningWarning)  # of the look-up
        asked = [case(), case("dgrad")]
        with pytest.warns(TuningWarning, match="cannot be saved"):
            report = tune(asked)
        assert all(outcome.is_new for outcome in report.outcomes)
        assert chosen(case()) == configs_of(case())[-1]


def test_nothing_is_saved_if_that_is_asked_for(table):
    tune([case()], save=False)
    assert not table.exists()
    assert chosen(case()) == configs_of(case())[-1]


@pytest.mark.parametrize("kind", [pathlib.Path, str])
def test_choices_go_to_another_file_if_that_is_asked_for(kind, tmp_path, table):
    path = tmp_path / "mine" / "out.json"
    report = tune([case(), case("wgrad")], save=kind(path))
    assert read_table(path, GPU) == report.table
    assert len(report.table.entries) == 2
    assert not table.exists()


@pytest.mark.parametrize(("place", "name"), [(measure, "make_tensors"), (Plan, "run")])
def test_a_case_that_there_is_no_memory_for_is_left_out(place, name, monkeypatch):
    out_of_memory = case("dgrad")

    def fails(first, *others):
        shape = others[0].shape if place is Plan else None
        if first == out_of_memory or shape == out_of_memory.problem.y_shape:
            raise torch.OutOfMemoryError("of 80 GiB")
        return real(first, *others)

    real = getattr(place, name)
    monkeypatch.setattr(place, name, fails)
    report = tune([case("dgrad"), case()])
    assert [outcome.note for outcome in report.outcomes] == ["no memory to measure in", ""]
    assert list(report.table.entries) == [case().key(2)]


def test_what_becomes_of_a_case_is_told_before_the_next_one(table):
    tune([case("wgrad")])
    told = []

    def on_outcome(outcome):
        told.append(outcome)
        assert len(read_table(table, GPU).entries) == len(told) + 1

    report = tune([case("wgrad"), case(), case("dgrad")], on_outcome=on_outcome)
    assert tuple(told) == report.outcomes[1:]


class FakeTime:
    """The time of day and a clock: every measurement takes a second, all else none."""

    def __init__(self):
        self.now, self.clock = 0.0, MadeUpClock(self._measured)

    def _measured(self, trial):
        self.now += 1.0
        return 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def seconds(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(runs, "time", fake)
    return fake


def test_what_the_time_leaves_out_is_told_and_all_before_is_kept(seconds, table):
    asked = [case(), case("dgrad"), case("wgrad")]
    # 3 measurements of 2 candidates: the second case begins before the end, and is finished.
    report = tune(asked, clock=seconds.clock, rounds=3, count=2, seconds=8.0)
    assert [outcome.note for outcome in report.outcomes] == ["", "", "no time left"]
    assert "2 measured, 0 known before" in report.summary
    assert "1 not reached in the time" in report.summary
    assert read_table(table, GPU) == report.table
    assert set(report.table.entries) == {each.key(2) for each in asked[:2]}
    with pytest.raises(ValueError, match=r"seconds is 0\.0: expected a positive number"):
        tune(asked, seconds=0.0)


def test_what_does_not_compile_in_time_is_not_waited_for():
    class Stuck(InstantCompiler):
        def submit(self, case, config, machine):
            self.last = Future()
            return self.last

    compiler = Stuck()
    report = tune([case(), case("dgrad")], compiler=compiler, seconds=0.05)
    assert report.unreached == 2
    assert report.table.entries == {}
    assert compiler.last.cancelled()


def test_a_shared_file_is_used(tmp_path, table):
    report = tune([case()], save=False)
    lookups.lookup.forget(added=True)
    tuning.reload()
    assert chosen(case()) == configs_of(case())[0]
    write_table(tmp_path / "shared.json", report.table)
    assert tuning.use(tmp_path / "shared.json") == 1
    assert chosen(case()) == configs_of(case())[-1]
    with pytest.raises(tuning.TableError, match="no such file"):
        tuning.use(tmp_path / "none.json")


def test_what_has_no_candidates():
    (outcome,) = tune([case("wgrad", dtype=torch.float32)]).outcomes
    assert outcome.note == "no kernel takes it"
    (outcome,) = tune([case()], count=1).outcomes
    assert outcome.note == "one configuration only"
    assert outcome.entry is None


def test_rows_that_can_be_packed_are_tried_both_ways():
    asked = case(shape="1x3x16x16_32_k7x7_s2x2")
    kinds = {type(config).__name__ for config in configs_of(asked)}
    assert kinds == {"PackedConfig", "ConvConfig", "GatherConfig"}
    for wanted, is_packed in (("PackedConfig", True), ("ConvConfig", False)):
        clock = MadeUpClock(lambda t, w=wanted: 1.0 + (type(t.config).__name__ != w))
        (outcome,) = tune([asked], clock=clock, force=True).outcomes
        assert not outcome.failures
        assert (make_plan(asked, CPU).row_copies is not None) == is_packed
    clock = MadeUpClock(lambda t: 1.0 + (type(t.config).__name__ != "GatherConfig"))
    assert not tune([asked], clock=clock, force=True).outcomes[0].failures
    assert isinstance(make_plan(asked, CPU).config, GatherConfig)


def test_epilogues_have_choices_of_their_own():
    plain = case()
    residual = replace(plain, epilogue=EpilogueSpec(residual=True, bias=True))
    report = tune([plain, residual])
    assert [outcome.is_new for outcome in report.outcomes] == [True, True]
    assert len(report.table.entries) == 2


def test_without_a_gpu_it_says_so():
    with pytest.raises(UnsupportedError, match="there is no GPU to measure on"):
        tuning.tune([case()])


# ---- In a job ----------------------------------------------------------------------------------


def step_of(batch: int) -> None:
    x = torch.randn(batch, 64, 8, 8).half().to(memory_format=torch.channels_last)
    weight = torch.randn(32, 64, 3, 3).half().requires_grad_()
    ops.conv2d(x.requires_grad_(), weight, padding=1).float().square().sum().backward()


def warmup(steps, **options):
    plain = {
        "gpu": MACHINE, "compiler": InstantCompiler(), "clock": last_is_fastest(),
        "progress": False, "device": "cpu",
    }  # fmt: skip
    return tuning.warmup_steps(steps, **{**plain, **options})


def test_the_first_steps_are_tuned():
    step_of(1)  # plans from before are made again, so that they are seen
    with warmup(2) as job:
        step_of(1)
        report = job.step()
        assert [o.case.direction for o in report.outcomes] == ["fprop", "dgrad", "wgrad"]
        assert all(outcome.is_new for outcome in report.outcomes)
        step_of(1)
        assert job.step() is None  # nothing new
        step_of(6)
        assert job.step() is None  # over
    assert lookups.lookup.observers == []


def test_leaving_ends_it():
    with pytest.raises(KeyError), warmup(3) as job:
        raise KeyError
    step_of(1)
    assert job.step() is None
    assert lookups.lookup.observers == []
    assert warmup(0).step() is None


def test_never_while_a_graph_is_captured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with warmup(1) as job:
        with pytest.raises(UnsupportedError, match="graph is being captured; call step"):
            job.step()
        assert job._left == 1
    with pytest.raises(UnsupportedError, match="graph is being captured; tune before"):
        tuning.tune([case()], device="cuda")


def test_the_last_of_the_steps_ends_it():
    job = warmup(1)
    step_of(1)
    assert job.step() is not None
    assert lookups.lookup.observers == []


@triton.jit
def unchanged(tile, rows, columns):
    return tile


def test_functions_of_the_users_stay_in_their_process():
    with warmup(1) as job:
        for observe in lookups.lookup.observers:
            observe(case(epilogue=EpilogueSpec(function=unchanged)), MACHINE, False)
        assert job.step() is None


class Group:
    """Stands in for torch.distributed: a rank of two, and what they say.

    Args:
        rank: Which one.
        said: By rank 0, which adds to it, to rank 1; ``None`` where they do not hear each other.
    """

    def __init__(self, rank, said):
        self.rank, self.said = rank, said

    def is_available(self):
        return True

    def is_initialized(self):
        return True

    def get_world_size(self):
        return 2

    def get_rank(self):
        return self.rank

    def all_gather_object(self, gathered, met):
        gathered[:] = [met, met]

    def broadcast_object_list(self, messages, src):
        assert src == 0
        if self.said is None:
            raise RuntimeError("Timed out waiting 5000ms\nfor recv")
        if self.rank == 0:
            self.said += messages
        else:
            messages[0] = self.said.pop(0)


def test_no_rank_waits_for_longer_than_a_case_takes(monkeypatch):
    group, clock = Group(0, []), last_is_fastest()
    monkeypatch.setattr(jobs, "dist", group)
    told = []
    job = warmup(1, clock=clock, on_outcome=lambda _: told.append(len(clock.measured)))
    step_of(1)
    report = job.step()
    assert [outcome.case.direction for outcome in report.outcomes] == ["fprop", "dgrad", "wgrad"]
    *between, last = group.said
    assert between == [jobs._GOING_ON] * 3
    assert last == (GPU, report.table.entries)
    # The broadcasts are between the measurements of two cases, not at their end.
    assert 0 < told[0] < told[1] < told[2] == len(clock.measured)


def test_other_ranks_listen_until_rank_0_is_done_and_use_what_it_says(monkeypatch, table):
    asked = case()
    entries = tune([asked], save=False).table.entries
    lookups.lookup.forget(added=True)
    group = Group(1, [jobs._GOING_ON, jobs._GOING_ON, (GPU, entries)])
    monkeypatch.setattr(jobs, "dist", group)
    job = warmup(1)
    step_of(1)  # makes plans, which are kept
    assert job.step() is None
    assert group.said == []
    seen = configs_that_run(monkeypatch)
    step_of(1)
    assert configs_of(asked)[-1] in seen
    assert not table.exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_lose_each_other_are_told_what_to_do(rank, monkeypatch):
    monkeypatch.setattr(jobs, "dist", Group(rank, None))
    job = warmup(1)
    step_of(1)
    with pytest.raises(
        tuning.JobError,
        match=rf"rank {rank} lost the others while rank 0 measured: Timed out waiting 5000ms; .*"
        r"shorter time \(seconds=\), or give init_process_group a longer timeout",
    ):
        job.step()
    assert lookups.lookup.observers == []


@pytest.mark.parametrize("fails", [False, True])
def test_rank_0_measures_and_all_ranks_use_it(fails, tmp_path):
    command = [
        sys.executable,
        str(pathlib.Path(__file__).with_name("tuning_rank.py")),
        str(tmp_path),
        str(int(fails)),
    ]
    ranks = [
        subprocess.Popen(
            command,
            env={
                **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1",
                "TRITON_EXT_TUNING_DIR": str(tmp_path / f"home{rank}"),
            },
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    outputs = [out.split() for out, _ in said]
    if fails:
        assert outputs == [["JobError"], ["JobError"]]
        return
    # measured, then the plan's configurations of fprop on both ranks' shapes
    assert outputs[0][0] == "2"
    assert outputs[1][0] == "0"
    assert outputs[0][1:] == outputs[1][1:]
    assert len(outputs[0]) == 3
    # Only rank 0 writes.
    assert (tmp_path / "home0").exists()
    assert not (tmp_path / "home1").exists()
