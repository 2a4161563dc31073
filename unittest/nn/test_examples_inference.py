"""examples/models: networks and the inference script, in their tiny sizes on the CPU."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from benchmarks.harness import Deadline, Errors, Timing  # noqa: E402
from examples.models import inference, measure, modes, networks, report, training  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]


def built(name: str, **options) -> networks.Network:
    try:
        return networks.build(name, size="tiny", **options)
    except networks.MissingPackage as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("name", networks.MODELS)
def test_a_network_gives_what_its_loss_takes(name):
    network = built(name)
    output = network.model(*network.inputs)
    assert network.batch == output.shape[0] == network.target.shape[0]
    assert output.isfinite().all()
    assert math.isfinite(network.loss(output, network.target).item())
    assert network.inputs[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["unet", "vae"])
def test_the_same_seed_gives_the_same_network(name):
    one, two, other = built(name), built(name), built(name, seed=1)
    assert torch.equal(one.model.conv_in.weight, two.model.conv_in.weight)
    assert torch.equal(one.inputs[0], two.inputs[0])
    assert not torch.equal(one.model.conv_in.weight, other.model.conv_in.weight)


@pytest.mark.parametrize("name", ["resnet50", "unet", "vae"])
def test_pictures_of_another_size(name):
    network = built(name, side=96 if name == "resnet50" else 12)
    assert network.inputs[0].shape[-1] in (96, 12)
    output = network.model(*network.inputs)
    assert math.isfinite(network.loss(output, network.target).item())
    if name != "resnet50":
        assert output.shape == network.target.shape


@pytest.mark.parametrize("name", ["unet", "vae"])
def test_attention_changes_the_output(name):
    plain, attended = built(name), built(name, attention=True)
    more = [type(m).__name__ for m in attended.model.modules()].count("_Attention")
    assert more > 0
    # Weights are drawn in the same order up to the first attention only.
    assert attended.model(*attended.inputs).shape == plain.model(*plain.inputs).shape


@pytest.mark.parametrize("name", ["unet", "vae"])
def test_full_sizes_have_the_shapes_of_the_papers(name):
    recipe = networks._RECIPES[name]
    with torch.device("meta"):
        model = recipe.make("full", True)
        inputs = [torch.empty(2, *recipe.inputs["full"])]
        output = model(*inputs, *([torch.empty(2)] if recipe.has_steps else []))
    assert tuple(output.shape) == (2, *recipe.target["full"])
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    # Stable Diffusion's decoder has 49.5 million; its UNet 860, with the text's attention and more.
    assert (49 < millions < 51) if name == "vae" else (500 < millions < 900)


@pytest.mark.parametrize("name", ["unet", "vae"])
def test_modules_stay_channels_last(name):
    network = built(name)
    model = network.model.to(memory_format=torch.channels_last)
    wrong = []
    for key, module in model.named_modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_pre_hook(
                lambda m, args, key=key: (
                    None
                    if args[0].is_contiguous(memory_format=torch.channels_last)
                    else wrong.append(key)
                )
            )
    model(*network.inputs)
    assert wrong == []


@pytest.mark.parametrize("name", ["unet", "vae"])
def test_norms_take_what_follows_them(name):
    network = networks.build(name, size="tiny", attention=True)
    made = modes.variant(network, "ours", dtype=torch.bfloat16, norms=True)
    found = made.conversion.norms
    assert len(found) > 8
    assert not any(layer.reason for layer in found)
    # Those of attention have no activation.
    alone = [layer.name for layer in found if layer.folded != ("silu",)]
    assert alone == [m for m in alone if m.endswith("norm.norm")] != []
    assert made.taken == modes.variant(network, "ours", dtype=torch.bfloat16).taken


def test_batch_norms_get_the_statistics_of_the_data():
    norm = torch.nn.BatchNorm2d(3)
    x = 5 + 2 * torch.randn(8, 3, 4, 4)
    network = networks.Network(
        name="one", model=norm.eval(), inputs=(x,), target=x, loss=torch.nn.functional.mse_loss
    )
    modes.settle(network)
    assert not norm.training
    assert norm.momentum == 0.1
    torch.testing.assert_close(norm.running_mean, x.mean((0, 2, 3)))
    torch.testing.assert_close(norm.running_var, x.var((0, 2, 3)))


@pytest.mark.parametrize(
    ("asked", "run"),
    [
        (["ours"], ("eager", "ours")),
        (["compile", "eager"], ("eager", "compile")),
        (["all"], modes.MODES),
    ],
)
def test_the_baseline_is_always_run_first(asked, run):
    assert modes.modes_of(asked) == run


def test_a_variant_leaves_the_network_as_it_is():
    network = built("vae")
    before = {name: p.clone() for name, p in network.model.state_dict().items()}
    made = modes.variant(network, "ours", dtype=torch.bfloat16)
    assert made.taken == (12, 12)
    assert {type(m).__module__ for m in network.model.modules() if "Conv2d" in repr(type(m))} == {
        "torch.nn.modules.conv"
    }
    assert network.inputs[0].dtype == torch.float32
    for name, p in network.model.state_dict().items():
        assert torch.equal(p, before[name])


def run_compare(jobs, reference, **options):
    options = {"rounds": 2, "deadline": Deadline(60), **options}
    timer = measure.StepTimer(1)
    return measure.compare("inference", "m", jobs, reference, timer, **options)


def job_of(result) -> measure.Job:
    return measure.Job(lambda: None, lambda: result, (1, 1))


def test_a_wrong_mode_is_named_and_not_timed():
    exact = torch.linspace(1, 2, 100)
    rounded = exact.bfloat16()
    jobs = {
        "eager": lambda: job_of(rounded),
        "ours": lambda: job_of(rounded * 1.1),
        "compile": lambda: job_of(rounded),
    }
    rows = {row.mode: row for row in run_compare(jobs, exact)}
    assert "WRONG RESULT" in rows["ours"].problem
    assert rows["ours"].timing is None
    assert rows["compile"].problem == ""
    assert len(rows["compile"].timing.rounds_ms) == 2


def test_a_mode_that_fails_leaves_the_others():
    def fails():
        raise RuntimeError("no such kernel")

    exact = torch.ones(3)
    rows = run_compare({"eager": lambda: job_of(exact), "ours": fails}, exact)
    assert rows[0].timing is not None
    assert rows[1].problem == "RuntimeError: no such kernel"
    with pytest.raises(RuntimeError, match="no such kernel"):
        run_compare({"eager": lambda: job_of(exact), "ours": fails}, exact, tolerant=False)


def test_a_mode_that_cannot_be_timed_leaves_the_others():
    class Timer(measure.StepTimer):
        def plan(self, function):
            if function() == "ours":
                raise RuntimeError("not in a graph")
            return super().plan(function)

    exact = torch.ones(3)
    jobs = {
        mode: lambda mode=mode: measure.Job(lambda: mode, lambda: exact, (1, 1))
        for mode in ("eager", "ours", "compile")
    }
    rows = measure.compare("inference", "m", jobs, exact, Timer(1), rounds=2, deadline=Deadline(60))
    assert [row.timing is not None for row in rows] == [True, False, True]
    assert rows[1].problem == "RuntimeError: not in a graph"


def test_what_comes_first_is_done_once_and_before_all_else():
    done = []
    exact = torch.ones(3)
    job = measure.Job(
        lambda: done.append("step"),
        lambda: done.append("result") or exact,
        (1, 1),
        first=lambda: done.append("first"),
    )
    run_compare({"eager": lambda: job}, exact)
    assert done[:2] == ["first", "result"]
    assert done.count("first") == done.count("result") == 1


def test_nothing_is_begun_behind_the_deadline():
    rows = run_compare({"eager": pytest.fail}, torch.ones(3), deadline=Deadline(-1))
    assert [row.problem for row in rows] == ["time limit"]


def row_of(model: str, mode: str, ms: float, peak: int = 100) -> measure.Row:
    return measure.Row(
        task="inference",
        model=model,
        mode=mode,
        errors=Errors(1e-3, 1e-3),
        timing=Timing((ms, ms, ms), 0.0),
        peak_bytes=peak,
    )


def test_means_are_geometric_and_say_what_is_worst():
    rows = [
        row_of("a", "eager", 4.0),
        row_of("a", "ours", 2.0),
        row_of("b", "eager", 8.0),
        row_of("b", "ours", 1.0, peak=150),
    ]
    lines = report.summary(rows)
    assert lines[0] == "inference, eager / ours: geometric mean of 2 4.000, worst 2.000 (a)"
    assert lines[1].startswith("inference, b, ours: the memory peak is higher")
    assert len(lines) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--steps", "0"],
        ["--out", "x.txt"],
        ["--batch", "0"],
        ["--ahead", "-1"],
        ["--per-layer", "x.pdf"],
        ["--plot", "x.json"],
        ["--markdown", "."],
        ["--graph"],
        ["--side", "3", "--model", "unet", "--size", "tiny"],
        ["--side", "68", "--model", "vae", "unet"],
        ["--side", "31", "--model", "convnext"],
        ["--side", "32", "--model", "resnet50", "--batch", "1"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_wrong_options_end_the_script_at_once(arguments, capsys):
    if "--graph" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert inference.main(arguments) == 2
    assert capsys.readouterr().out.startswith(arguments[0])


def test_the_script_runs(tmp_path, capsys):
    out, markdown = tmp_path / "out.json", tmp_path / "out.md"
    arguments = ["--model", "vae", "--size", "tiny", "--steps", "1", "--rounds", "2"]
    assert inference.main([*arguments, "--out", str(out), "--markdown", str(markdown)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["mode"], row["problem"]) for row in rows] == [("eager", ""), ("ours", "")]
    assert rows[1]["converted"] == rows[1]["convolutions"] == 12
    assert all(row["ms"] > 0 and row["error_l2"] < 0.05 for row in rows)
    assert "| vae | inference | ours |" in markdown.read_text()
    assert "eager / ours: geometric mean of 1" in capsys.readouterr().out


def test_tuning_goes_where_there_is_nothing_to_tune(capsys):
    pytest.importorskip("triton_ext.ops.tuning")
    arguments = ["--model", "vae", "--size", "tiny", "--steps", "1", "--rounds", "1", "--tune"]
    assert inference.main(arguments) == 0


def test_tuning_in_the_interpreter_ends_the_script_at_once(monkeypatch, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    machine = pytest.importorskip("triton_ext.ops.core.device")
    monkeypatch.setattr(machine, "IS_INTERPRETED", True)
    assert inference.main(["--model", "vae", "--size", "tiny", "--tune"]) == 2
    told = "--tune needs a CUDA GPU: the interpreter's times say nothing\n"
    assert capsys.readouterr().out == told


@pytest.mark.parametrize("name", ["convnext", "convnext-timm", "resnet50", "unet", "vae"])
def test_the_smallest_pictures_that_are_taken(name):
    recipe = networks._RECIPES[name]
    least = (recipe.least or recipe.multiple or {"tiny": 1})["tiny"]
    assert not networks.side_problem(name, "tiny", least, 2)
    network = built(name, side=least, batch=2)
    assert network.model(*network.inputs).isfinite().all()


@pytest.mark.parametrize("script", [inference, training], ids=["inference", "training"])
def test_who_ends_the_script_gets_what_was_measured(script, monkeypatch, capsys, tmp_path):
    real, calls = measure.StepTimer.measure, itertools.count(1)

    def interrupted(timer, plan):
        if next(calls) > 5:
            raise KeyboardInterrupt
        return real(timer, plan)

    monkeypatch.setattr(measure.StepTimer, "measure", interrupted)
    out = tmp_path / "out.json"
    arguments = ["--model", "vae", "--size", "tiny", "--steps", "1", "--rounds", "9"]
    assert script.main([*arguments, "--out", str(out)]) == 130
    rows = json.loads(out.read_text())["rows"]
    assert [row["mode"] for row in rows] == ["eager", "ours"]
    assert all(row["ms"] > 0 for row in rows)
    told = capsys.readouterr().out
    assert "eager / ours: geometric mean of 1" in told
    assert told.endswith("interrupted: 2 rows so far\n")


def test_who_ends_the_checks_gets_what_was_checked():
    def ended():
        raise KeyboardInterrupt

    good = torch.ones(4)
    with pytest.raises(measure.Stopped) as stopped:
        run_compare({"eager": lambda: job_of(good), "ours": ended}, good)
    (row,) = stopped.value.rows
    assert (row.mode, row.timing, row.problem) == ("eager", None, "")


def test_plots_are_written(tmp_path):
    pytest.importorskip("matplotlib")
    plot, layers = tmp_path / "plot.png", tmp_path / "layers.png"
    arguments = ["--model", "vae", "--size", "tiny", "--steps", "1", "--rounds", "2"]
    assert inference.main([*arguments, "--plot", str(plot), "--per-layer", str(layers)]) == 0
    for path in (plot, tmp_path / "layers-vae-inference.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    # The numbers lie beside the plot.
    rows = numbers_of(tmp_path / "layers-vae-inference.csv")
    assert len(rows) == 12
    assert rows[0]["name"] == "conv_in"
    for row in rows:
        before, after, ratio = (
            float(row[key]) for key in ("before_ms", "after_ms", "before / after")
        )
        assert min(before, after) > 0
        assert ratio == pytest.approx(before / after)


def numbers_of(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("# ")]
    return list(csv.DictReader(lines))


def test_numbers_of_layers_alone(tmp_path, capsys):
    layers = tmp_path / "layers.csv"
    arguments = ["--model", "vae", "--size", "tiny", "--steps", "1", "--rounds", "1"]
    assert inference.main([*arguments, "--per-layer", str(layers)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["layers-vae-inference.csv"]
    rows = numbers_of(tmp_path / "layers-vae-inference.csv")
    before, after = (sum(float(row[key]) for row in rows) for key in ("before_ms", "after_ms"))
    told = f"vae: 12 convolutions {before:.3f} ms before, {after:.3f} ms after"
    assert told in capsys.readouterr().out


def test_real_kernels_run_in_the_interpreter():
    pytest.importorskip("triton")
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    path = os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(ROOT)])
    arguments = ["--model", "vae", "--size", "tiny", "--batch", "1", "--steps", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "examples.models.inference", *arguments, "--rounds", "1"],
        cwd=ROOT,
        env={**os.environ, **one, "TRITON_INTERPRET": "1", "PYTHONPATH": path.strip(os.pathsep)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if " ours " in line and "12 of 12" in line]
    assert line.startswith("vae")
