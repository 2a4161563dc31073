"""examples/models: the training script and the loss curves, in tiny sizes on the CPU."""

from __future__ import annotations

import contextlib
import json
import random

import pytest

torch = pytest.importorskip("torch")

from benchmarks.harness import Timing  # noqa: E402
from examples.models import (  # noqa: E402
    ahead,
    loss_curves,
    measure,
    modes,
    networks,
    parallel,
    per_layer,
    training,
)

TINY = ["--model", "vae", "--size", "tiny", "--steps", "1", "--rounds", "2"]


@pytest.fixture(autouse=True)
def one_thread():
    """Small products on few cores: threads that wait for each other cost more than they bring."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("more", [[], ["--amp", "--optimizer", "adamw"]], ids=["pure", "amp"])
def test_the_script_runs(more, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert training.main([*TINY, *more, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["task"], row["mode"]) for row in rows] == [
        ("training", "eager"),
        ("training", "ours"),
    ]
    assert all(row["ms"] > 0 and row["error_l2"] < 0.05 for row in rows)
    assert "training, eager / ours" in capsys.readouterr().out


def test_a_check_of_one_process_is_refused(capsys):
    assert training.main([*TINY, "--check"]) == 2
    assert "torchrun" in capsys.readouterr().out


def test_ways_to_work_together_need_ranks(capsys):
    assert training.main([*TINY, "--parallel", "ddp"]) == 2
    assert capsys.readouterr().out == "--parallel needs several ranks: --ranks 2, or torchrun\n"
    assert training.kinds_of(training.parse(TINY)) == ["ddp"]


@pytest.mark.parametrize("count", ["0", "-1"])
def test_no_ranks_are_refused(count, capsys):
    assert training.main([*TINY, "--ranks", count]) == 2
    assert capsys.readouterr().out == f"--ranks {count}: expected at least 2\n"


def test_graphs_of_ranks_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(training.options, "problem_of", lambda arguments: "")
    monkeypatch.setattr(
        training.parallel, "joined", lambda: contextlib.nullcontext(parallel.Ranks(0, 2))
    )
    assert training.main([*TINY, "--graph"]) == 2
    assert "one process" in capsys.readouterr().out


def test_gradients_are_those_of_torch_and_the_weights_stay():
    network = networks.build("vae", size="tiny")
    before = [p.clone() for p in network.model.parameters()]
    arguments = training.parse([*TINY, "--dtype", "float32"])
    found = training.make(network, "ours", arguments).result()
    network.loss(network.model(*network.inputs), network.target).backward()
    expected = torch.cat([p.grad.flatten() for p in network.model.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert all(torch.equal(*pair) for pair in zip(before, network.model.parameters(), strict=True))


def test_backward_times_are_in_the_times_of_layers(tmp_path):
    path = tmp_path / "layers.json"
    assert training.main([*TINY, "--per-layer", str(path)]) == 0
    layers = json.loads((tmp_path / "layers-vae-training.json").read_text())
    assert len(layers) == 12
    assert layers[0]["name"] == "conv_in"
    assert layers[0]["text"].startswith("Conv2d(4, 32")
    assert all(layer["before_ms"] > 0 and layer["after_ms"] > 0 for layer in layers)


class ClockOfLateHosts:
    """Times are leads; the GPU comes to a mark before the host where the lead is too short."""

    def __init__(self, needed_ms):
        self.needed_ms, self.leads = needed_ms, []

    def mark(self):
        return self.leads[-1]

    def lead(self, milliseconds):
        self.leads.append(milliseconds)

    def is_passed(self, mark):
        return mark < self.needed_ms

    def between(self, start, end):
        return end


@pytest.mark.parametrize(
    ("needed_ms", "leads", "late"),
    [
        (1, [20, 20, 20], 0),
        (80, [20, 40, 80, 80, 80], 0),
        (1000, [20, 40, 80, 160, 320, 320, 320], 3),
    ],
)
def test_layers_are_measured_again_where_the_gpu_waited_for_the_host(
    needed_ms, leads, late, monkeypatch
):
    clock = ClockOfLateHosts(needed_ms)
    monkeypatch.setattr(per_layer, "_Clock", lambda: clock)
    monkeypatch.setattr(per_layer, "_WARM_UP", 0)
    model = torch.nn.Conv2d(1, 1, 1)
    timer = per_layer.LayerTimer(model, lambda: model(torch.ones(1, 1, 2, 2)), backward=False)
    times = per_layer.times_of_layers({"eager": timer}, 3)
    assert clock.leads == leads
    assert timer.late == late
    assert times == {"eager": {"": leads[-1]}}  # of what was not measured again
    assert not model._forward_hooks


def test_layers_before_and_after_take_turns():
    order = []
    timers = {
        mode: per_layer.LayerTimer(torch.nn.ReLU(), lambda m=mode: order.append(m), backward=False)
        for mode in ("eager", "ours")
    }
    per_layer.times_of_layers(timers, 4)
    assert order[: 2 * per_layer._WARM_UP] == ["eager"] * 3 + ["ours"] * 3
    assert " ".join(order[2 * per_layer._WARM_UP :]) == (
        "eager ours ours eager ours eager eager ours"
    )


def rows_of(times):
    """Rows by task and mode, each with the times of its rounds."""
    return [
        measure.Row(task=task, model="m", mode=mode, timing=Timing(rounds, 0.0))
        for (task, mode), rounds in times.items()
    ]


def test_efficiency_is_the_time_alone_over_the_time_together():
    rows = rows_of(
        {
            ("training", "eager"): (9.0, 9.0, 9.9),
            ("training", "ours"): (4.5, 4.5, 4.5),
            ("training ddp x4", "eager"): (10.0, 10.0, 10.0),
            ("training ddp x4", "ours"): (5.0, 5.0, 5.0),
            ("training fsdp x4", "eager"): (10.0, 10.0, 10.0),
            ("training fsdp x4", "ours"): (5.2, 5.2, 5.2),
        }
    )
    good, lines = training.scaling(rows, is_judged=True)
    assert not good
    assert lines == [
        "training ddp x4, m, eager: scaling efficiency 90.0%, spread 10.0%",
        "PASS training ddp x4, m, ours: scaling efficiency 90.0%, spread 0.0%; 1.000 of torch's "
        "(goal: at least 0.98)",
        "training fsdp x4, m, eager: scaling efficiency 90.0%, spread 10.0%",
        "FAIL training fsdp x4, m, ours: scaling efficiency 86.5%, spread 0.0%; 0.962 of torch's "
        "(goal: at least 0.98)",
    ]
    good, lines = training.scaling(rows, is_judged=False)
    assert good
    assert not any(line.startswith(("PASS", "FAIL")) for line in lines)
    assert training.scaling(rows[:2], is_judged=True) == (True, [])


def test_what_is_timed_together_is_interleaved():
    calls = []

    class Fake:
        def plan(self, function):
            return measure.Plan(function)

        def measure(self, plan):
            plan.function()
            return 1.0

    def job(name):
        return lambda: measure.Job(lambda: calls.append(name), lambda: torch.ones(3), (1, 1))

    prepared = [
        measure.prepare(
            task, "m", {"eager": job(task)}, None, Fake(), deadline=training.parallel.Deadline(60)
        )
        for task in ("training", "training ddp x2")
    ]
    calls.clear()
    rows = measure.timed(prepared, Fake(), 3)
    assert [row.task for row in rows] == ["training", "training ddp x2"]
    assert all(len(row.timing.rounds_ms) == 3 for row in rows)
    assert [each.endswith("x2") for each in calls] == [False, True, True, False, True, False]


def test_norms_go_back_to_the_mode_that_each_was_in():
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4).eval())
    with training.fixed_statistics(model):
        assert not any(norm.training for norm in model)
    with pytest.raises(KeyError), training.fixed_statistics(model):
        raise KeyError
    assert [norm.training for norm in model] == [True, False]


def test_parts_of_a_joined_batch_are_disjoint_and_whole():
    batch = torch.arange(12)
    parts = [parallel.Ranks(rank, 3).part(batch) for rank in range(3)]
    assert torch.equal(torch.cat(parts), batch)


def test_a_batch_is_per_rank():
    arguments = training.parse(TINY)
    alone, part = training.build("unet", arguments, parallel.Ranks(1, 3))
    assert (alone.batch, part.batch) == (6, 2)
    for whole, mine in zip(alone.inputs, part.inputs, strict=True):
        assert torch.equal(mine, whole[2:4])
    assert torch.equal(part.target, alone.target[2:4])
    assert part.inputs[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["unet", "vae"])
def test_blocks_hold_every_convolution_once(name):
    model = networks.build(name, size="tiny").model
    inside = [
        id(module)
        for block in parallel.blocks(model)
        for module in block.modules()
        if isinstance(module, torch.nn.Conv2d)
    ]
    assert len(inside) == len(set(inside))
    assert len(inside) == sum(isinstance(m, torch.nn.Conv2d) for m in model.modules())


@pytest.mark.parametrize("is_training", [False, True])
def test_every_block_runs_on_its_own(is_training):
    """What the processes do that compile ahead."""
    arguments = training.parse(TINY)
    arguments.fold = True
    network = networks.build("unet", size="tiny")
    network.model.train(is_training)
    calls = list(ahead.calls_of(modes.variant(network, "eager", dtype=torch.bfloat16).network))
    assert len(calls) > 5
    for block, inputs in calls:
        assert all(each.device.type == "meta" for each in inputs)
        ahead.run_once(block, inputs, arguments, training=is_training)


@pytest.mark.parametrize(
    ("words", "batches"),
    [
        ([], [4]),
        (["--check", "too", "--check-batch", "2"], [4, 2, 6]),
        (["--check", "too"], [4, 12]),
        (["--check", "only", "--check-batch", "2"], [2, 6]),
    ],
    ids=["run", "both", "same", "check"],
)
def test_every_batch_is_compiled_ahead(words, batches, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    arguments = training.parse([*TINY, "--batch", "4", *words])
    found = list(ahead._networks(arguments, training=True))
    assert [network.batch for network in found] == batches
    assert all(network.model.training for network in found)


# --- loss curves --------------------------------------------------------------------------------


def curves(count, *, offset=0.0, seed=0):
    draw = random.Random(seed)
    return [
        [3.0 - step / 100 + offset + draw.gauss(0, 0.1) for step in range(200)]
        for _ in range(count)
    ]


def test_one_more_run_of_the_same_is_inside_the_spread():
    good = [
        loss_curves.compare(curves(1, seed=100 + trial)[0], curves(5, seed=trial)).good
        for trial in range(50)
    ]
    assert sum(good) >= 45


def test_a_run_that_learns_less_is_outside():
    found = loss_curves.compare(curves(1, offset=0.5, seed=9)[0], curves(5))
    assert not found.good
    assert found.windows == 20
    assert found.between == 0
    assert len(found.outside) > 15


def test_a_run_that_is_no_number_is_outside():
    ours = curves(1)[0]
    ours[150:] = [float("nan")] * 50
    assert loss_curves.compare(ours, curves(5)).outside == (150, 160, 170, 180, 190)


def test_training_learns_as_with_torch_and_checkpoints_go_both_ways(tmp_path, capsys):
    out = tmp_path / "out.json"
    arguments = ["--model", "vae", "--size", "tiny", "--steps", "20", "--seeds", "2"]
    assert loss_curves.main([*arguments, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["checkpoint"]["weights equal"] is True
    ours = found["runs"]["ours"]
    assert len(ours) == 20
    assert sum(ours[-5:]) < sum(ours[:5])
    # On the CPU both are torch's kernels: what convert changes is nothing.
    assert ours == pytest.approx(found["runs"]["torch, seed 0"], rel=1e-3)
    verdicts = [
        line for line in capsys.readouterr().out.splitlines() if line[:4] in ("PASS", "FAIL")
    ]
    assert [line.split(",")[0] for line in verdicts] == [
        "PASS loss curve: vae",
        "PASS checkpoint: vae",
    ]
    assert "in 2 of 2 windows inside the spread of 2 runs" in verdicts[0]
    assert "weights equal: True" in verdicts[1]
    (row,) = found["rows"]
    assert (row["inside"], row["curve_wrong"], row["checkpoint_wrong"]) == (1.0, "", "")


@pytest.mark.parametrize(
    "words",
    [
        ["--steps", "0"],
        ["--seeds", "1"],
        ["--batch", "0"],
        ["--ahead", "-1"],
        ["--plot", "x.json"],
        ["--side", "12", "--model", "unet"],
    ],
    ids=lambda words: words[0],
)
def test_wrong_options_of_loss_curves_end_at_once(words, capsys):
    assert loss_curves.main(words) == 2
    assert capsys.readouterr().out.startswith(words[0])


def test_a_file_that_loss_curves_cannot_write_ends_it_at_once(capsys):
    with pytest.raises(SystemExit) as ended:
        loss_curves.main(["--out", "x.csv"])
    assert ended.value.code == 2
    assert "x.csv: expected a name that ends in .json" in capsys.readouterr().err


def test_runs_that_the_user_ends_are_told(monkeypatch, tmp_path, capsys):
    def curve(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loss_curves, "curve", curve)
    out = tmp_path / "out.json"
    assert loss_curves.main(["--model", "vae", "--size", "tiny", "--out", str(out)]) == 130
    assert capsys.readouterr().out.endswith("\ninterrupted\n")
    assert json.loads(out.read_text())["rows"] == [{"model": "vae", "problem": "interrupted"}]


def test_runs_that_there_is_no_time_for_are_told(tmp_path, capsys):
    out = tmp_path / "out.json"
    arguments = ["--model", "vae", "--size", "tiny", "--steps", "1", "--time-limit", "0"]
    assert loss_curves.main([*arguments, "--out", str(out)]) == 1
    problem = "FAIL loss curve: vae, 0 of 6 runs within --time-limit"
    assert problem in capsys.readouterr().out
    assert json.loads(out.read_text())["rows"] == [{"model": "vae", "problem": problem}]


def test_what_loss_curves_compiles_ahead_is_a_training_step(monkeypatch):
    seen = []
    monkeypatch.setattr(ahead, "compile_ahead", lambda *words: seen.append(words) or "")
    words = ["--model", "unet", "--batch", "2", "--side", "32", "--ahead", "3"]
    loss_curves.compile_ahead(loss_curves.parse(words))
    ((arguments, argv, task),) = seen
    assert task == "training"
    assert training.parse(argv) == arguments
    assert (arguments.model, arguments.batch, arguments.side) == (["unet"], 2, 32)
    assert (arguments.amp, arguments.ahead, arguments.dtype) == (True, 3, "bfloat16")


def test_what_is_not_as_it_should_be_is_told():
    arguments = loss_curves.parse(["--model", "vae", "--seeds", "5"])
    found = loss_curves.compare(curves(1, offset=0.5, seed=9)[0], curves(5))
    carried = {"weights equal": False, "error of ours": 0.25, "good": False}
    curve, checkpoint = loss_curves.verdicts(arguments, found, carried)
    assert curve.startswith("FAIL loss curve: vae, 200 steps")
    assert f"farther out at steps {found.outside[0]}, " in curve
    assert checkpoint == (
        "FAIL checkpoint: vae, weights equal: False, error of ours: 2.50e-01 "
        "(goal: equal, and at most twice torch's error)"
    )
