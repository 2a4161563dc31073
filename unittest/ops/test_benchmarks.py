"""The benchmark driver without a GPU: arithmetic, output, and dry runs of every mode."""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import math
import pathlib
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch", reason="the benchmarks need torch, which is not installed")

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The benchmarks are not installed; they run from the root of the checkout."""
    monkeypatch.syspath_prepend(str(ROOT))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_shapes():
    from benchmarks.shapes import FPROP_SHAPES, select_shapes

    assert len(set(FPROP_SHAPES)) == 21
    (strided,) = select_shapes(["32,56,56,128,128,3,3,2"])
    assert strided.output_size == (28, 28)
    assert strided.m_gemm == 32 * 28 * 28
    assert strided.flops == 2 * 32 * 28 * 28 * 128 * 128 * 9
    assert select_shapes(["20"])[0].output_size == (1, 202)
    for shape in FPROP_SHAPES:
        assert select_shapes([shape.name]) == (shape,)


@pytest.mark.parametrize("word", ["21", "-1", "1,2,3", "a", "1,1,1,1,1,1,1,0"])
def test_a_shape_that_is_none_is_refused(word):
    from benchmarks.shapes import select_shapes

    with pytest.raises(ValueError, match="expected an index"):
        select_shapes([word])


def test_rounds_are_interleaved_in_rotating_order():
    from benchmarks.harness import Plan, time_interleaved

    class Recorder:
        def __init__(self) -> None:
            self.order: list[str] = []

        def plan(self, function):
            return Plan(function, host_us=2.0)

        def measure(self, plan):
            self.order.append(plan.function())
            return float(len(self.order))

    recorder = Recorder()
    timings = time_interleaved({name: lambda n=name: n for name in "abc"}, recorder, rounds=3)
    assert "".join(recorder.order) == "abccbabca"
    assert timings["a"].rounds_ms == (1.0, 6.0, 9.0)
    assert timings["a"].ms == 6.0
    assert timings["a"].spread == pytest.approx(8 / 6)


@pytest.mark.parametrize("count", range(1, 8))
def test_every_other_measurement_being_longer_favours_no_variant(count):
    from benchmarks.harness import Plan, time_interleaved

    class Alternating:
        def __init__(self) -> None:
            self.measured = 0

        def plan(self, function):
            return Plan(function)

        def measure(self, plan):
            self.measured += 1
            return 12.0 + self.measured % 2

    variants = {str(index): lambda: None for index in range(count)}
    timings = time_interleaved(variants, Alternating(), rounds=6)
    assert {timing.ms for timing in timings.values()} == {12.5}


def test_errors_are_limited_by_twice_those_of_cudnn():
    import torch

    from benchmarks.harness import Errors, measure_errors

    reference = torch.tensor([3.0, -4.0])
    errors = measure_errors(torch.tensor([3.0, -4.5]), reference)
    assert (errors.l2, errors.maximum) == (pytest.approx(0.1), pytest.approx(0.125))
    assert errors.within(Errors(0.05, 0.0625))
    assert not errors.within(Errors(0.04, 0.0625))
    assert not errors.within(Errors(0.05, 0.06))
    assert not measure_errors(torch.tensor([3.0, math.nan]), reference).within(errors)


def test_dry_run_writes_a_row_per_shape(tmp_path):
    out = tmp_path / "rows.csv"
    result = run("benchmarks", "conv_fprop", "--dry-run", "--shapes", "0", "3", "--out", str(out))
    assert result.returncode == 0, result.stderr
    assert "DRY RUN" in result.stdout
    assert "geometric mean of 2 ratios" in result.stdout
    lines = out.read_text().splitlines()
    assert any(line.startswith("# triton:") for line in lines)
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert [row["shape"] for row in rows] == ["32,56,56,64,64,3,3,1", "32,7,7,512,512,3,3,1"]


def test_what_the_time_limit_leaves_out_is_named():
    limit = ("--time-limit", "1e-9")
    result = run("benchmarks", "conv_fprop", "--dry-run", "--shapes", "0", *limit)
    assert result.returncode == 0, result.stderr
    assert "skipped (time limit): 32,56,56,64,64,3,3,1" in result.stdout


@pytest.mark.parametrize(
    "case",
    [
        "bank_conflicts",
        "conv_fprop",
        "depthwise",
        "fprop_kinds",
        "norms",
        "reproduce",
        "small_copies",
    ],
)
def test_without_a_gpu_it_says_so(case, monkeypatch, capsys):
    import torch

    from benchmarks.__main__ import main

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([case]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("no CUDA GPU: nothing to time (--")


@pytest.mark.parametrize("case", ["conv", "launch", "ir"])
def test_a_file_that_cannot_be_written_is_said_at_the_start(case, tmp_path, capsys):
    from benchmarks.__main__ import main

    (tmp_path / "file").touch()
    (tmp_path / "folder.json").mkdir()
    for name, problem in (
        ("rows.txt", "expected a name that ends in "),
        ("folder.json", "is a folder"),
        ("file/new/rows.json", f"{tmp_path / 'file'} is no folder"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([case, "--out", str(tmp_path / name)])
        assert f"argument --out: {tmp_path / name}: {problem}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("conv_fprop", "--sweep"), "conv_fprop_sweep.dry.json"),
        (("dgrad_sweep",), "dgrad_sweep.dry.json"),
        (("wgrad_sweep",), "wgrad_sweep.dry.json"),
        (("gluon_conv", "--sweep"), "gluon_fprop_sweep.dry.csv"),
    ],
)
def test_a_sweep_that_cannot_write_its_own_file_says_so_at_the_start(
    words, name, tmp_path, monkeypatch, capsys
):
    from benchmarks import harness
    from benchmarks.__main__ import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    assert main([*words, "--dry-run"]) == 2
    assert capsys.readouterr().out == f"{name}: is a folder; name another file with --out\n"
    (tmp_path / name).rmdir()
    monkeypatch.setattr(harness.os, "access", lambda *_: False)
    assert main([*words, "--dry-run"]) == 2
    told = f"{name}: nothing can be written to {tmp_path}; name another file with --out\n"
    assert capsys.readouterr().out == told


@pytest.mark.parametrize("case", ["depthwise", "fprop_kinds"])
def test_what_sweeps_a_gpu_alone_looks_for_its_file_first(case, tmp_path, monkeypatch, capsys):
    from benchmarks.__main__ import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{case}.json").mkdir()
    assert main([case]) == 2
    assert f"{case}.json: is a folder; name another" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("case", "option", "value"),
    [
        ("conv", "--rounds", "0"),
        ("conv_fprop", "--target-ms", "-1"),
        ("wgrad_sweep", "--jobs", "0"),
        ("choosing", "--every", "-3"),
        ("tune_suites", "--candidates", "1.5"),
        ("norms", "--time-limit", "nan"),
        ("launch", "--rounds", "-2"),
        ("launch", "--launches", "-1"),
        ("waits", "--rounds", "0"),
        ("small_copies", "--target-ms", "0"),
    ],
)
def test_numbers_that_measure_nothing_are_refused(case, option, value, capsys):
    from benchmarks.__main__ import main

    with pytest.raises(SystemExit, match="2"):
        main([case, option, value])
    least = 0 if option == "--launches" else 1
    expected = (
        "a positive number"
        if option in ("--target-ms", "--time-limit")
        else f"an integer of at least {least}"
    )
    problem = f"argument {option}: expected {expected}, found '{value}'\n"
    assert capsys.readouterr().err.endswith(problem)


def test_an_unknown_option_is_told_by_the_case(capsys):
    from benchmarks.__main__ import main

    with pytest.raises(SystemExit, match="2"):
        main(["norm_calls", "--dry-run"])
    told = capsys.readouterr().err
    assert told.startswith("usage: python -m benchmarks norm_calls ")
    assert "unrecognized arguments: --dry-run" in told


def test_folders_of_a_file_to_write_are_made(tmp_path):
    from benchmarks.harness import out_problem, write_json

    path = tmp_path / "a" / "b" / "c.json"
    assert out_problem(path) == ""
    write_json(path, [1])
    assert json.loads(path.read_text()) == [1]
    assert out_problem(None) == ""


def test_commands_side_by_side_have_one_time_limit():
    from benchmarks.harness import run_at_once

    quick, slow = (["sh", "-c", script] for script in ("exit 3", "sleep 99 & wait"))
    begin = time.monotonic()
    assert run_at_once([slow, quick, slow], 3.0) == [-15, 3, -15]
    assert time.monotonic() - begin < 30.0


def test_sweep_resume_and_fit(tmp_path):
    out = tmp_path / "sweep.json"
    arguments = ("benchmarks", "conv_fprop", "--dry-run", "--sweep", "--shapes", "3", "--out")
    result = run(*arguments, str(out))
    assert result.returncode == 0, result.stderr
    document = json.loads(out.read_text())
    assert document["environment"]["dry_run"] is True
    written = document["shapes"]["32,7,7,512,512,3,3,1"]["results"]
    assert len(written) > 20
    assert {entry["status"] for entry in written} == {"ok"}
    assert {entry["config"]["group_size_m"] for entry in written} == {1, 4, 8, 16}
    assert "\nrounds:     4, interleaved" in result.stdout
    again = run(*arguments, str(out), "--resume")
    assert "1 shapes, 0 configurations" in again.stdout
    assert json.loads(out.read_text())["shapes"]["32,7,7,512,512,3,3,1"]["results"] == written
    fit = run("benchmarks.fit_config", str(out), "--rates", "--pick", "2")
    assert fit.returncode == 0, fit.stderr
    assert "geometric mean over 1 shapes" in fit.stdout


@pytest.mark.parametrize(
    ("words", "text", "problem"),
    [
        (("conv_fprop", "--sweep"), "garbage", "with 'shapes'; this is no JSON"),
        (("conv_fprop", "--sweep"), "[]", "with 'shapes'; this is other JSON"),
        (("wgrad_sweep",), '{"shapes": {}}', "with 'layers'; this has 'shapes'"),
        (
            ("wgrad_sweep",),
            '{"environment": {"dry_run": false}, "layers": {}}',
            "expected invented times, these are measured",
        ),
    ],
)
def test_a_sweep_goes_on_behind_nothing_else(words, text, problem, tmp_path, capsys):
    from benchmarks.__main__ import main

    out = tmp_path / "sweep.json"
    out.write_text(text)
    assert main([*words, "--dry-run", "--resume", "--shapes", "0", "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"--resume: {out}: ")
    assert line.endswith(problem)
    assert out.read_text() == text


def test_a_sweep_keeps_the_shapes_that_it_does_not_time(tmp_path):
    from benchmarks.__main__ import main

    out = tmp_path / "sweep.json"
    earlier = {"other": {"results": []}}
    out.write_text(json.dumps({"environment": {"dry_run": True}, "shapes": earlier}))
    words = ["--sweep", "--dry-run", "--narrow", "--resume", "--shapes", "3"]
    assert main(["conv_fprop", *words, "--out", str(out)]) == 0
    shapes = json.loads(out.read_text())["shapes"]
    assert [*shapes] == ["other", "32,7,7,512,512,3,3,1"]
    assert shapes["other"] == earlier["other"]


def test_measured_times_do_not_go_on_behind_invented_ones(tmp_path, capsys):
    from benchmarks.sweeping import earlier_results

    out = tmp_path / "sweep.json"
    arguments = argparse.Namespace(resume=True, dry_run=False)
    assert earlier_results(arguments, out, "layers") == {}
    out.write_text('{"environment": {"dry_run": true}, "layers": {}}')
    assert earlier_results(arguments, out, "layers") is None
    assert "expected measured times, these are invented" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "name", "problem"),
    [
        ("fit_config", "none.json", "with 'shapes'; No such file or directory"),
        ("fit_config", "layers.json", "with 'shapes'; this has 'layers'"),
    ],
)
def test_a_fit_to_what_is_no_such_sweep_is_refused(module, name, problem, tmp_path, capsys):
    for key in ("layers", "shapes"):
        (tmp_path / f"{key}.json").write_text(json.dumps({key: {}}))
    path = tmp_path / name
    assert importlib.import_module(f"benchmarks.{module}").main([str(path)]) == 2
    expected = f"{path}: expected what a sweep wrote, {problem}\n"
    assert capsys.readouterr().err == expected


def test_candidates_are_possible_and_not_absurd():
    from benchmarks.shapes import FPROP_SHAPES, ConvShape
    from benchmarks.sweep import candidates

    for shape in FPROP_SHAPES:
        configs = candidates(shape, num_sms=132)
        assert len(configs) == len(set(configs)) >= 10
        assert all(config.fits(2) for config in configs)
    small = candidates(ConvShape.make(1, 7, 7, 64, 64, 3, 3, 1), num_sms=132)
    assert {(config.block_m, config.block_n) for config in small} == {(64, 64)}


@pytest.mark.slow
def test_configurations_are_compiled_without_a_gpu(tmp_path, monkeypatch):
    import dataclasses

    from triton_ext.host import capabilities
    from triton_ext.ops.families.gemm_config import CONFIGS

    from benchmarks.compile_ahead import CompilePool
    from benchmarks.shapes import ConvShape

    if not capabilities()["im2col"].available:
        pytest.skip(capabilities()["im2col"].reason)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    shape = ConvShape.make(1, 14, 14, 64, 64, 3, 3, 1)
    good = CONFIGS[-1]
    bad = dataclasses.replace(good, num_warps=3)
    with CompilePool(1, (9, 0)) as pool:
        results = [pool.submit(shape, "float16", c).result() for c in (bad, good)]
    assert "num_warps" in results[0].error
    assert results[1].error == ""
    # The mbarriers come on top of what is predicted.
    assert 0 < results[1].shared_bytes - good.smem_bytes(2) <= 1024
    assert any(tmp_path.rglob("*.cubin"))


@pytest.mark.parametrize(
    ("us", "grown_bytes", "status"), [(1.0, 0, 0), (1.05, 0, 1), (1.2, 0, 1), (1.0, 1, 1)]
)
@pytest.mark.parametrize("launches", [0, 10])
def test_launches_that_are_too_slow_fail(us, grown_bytes, status, launches):
    from benchmarks.harness import collect_environment
    from benchmarks.launch import measure_all

    class Bench:
        def measure(self, variant, addresses, calls):
            return us if variant == "im2col" else 1.0

        def soak(self, launches):
            return {"host_kib": 0, "device_bytes": grown_bytes, "maps": 0}

    arguments = argparse.Namespace(rounds=1, calls=1, launches=launches, out=None)
    expected = status if launches else int(us > 1.0)
    assert measure_all(Bench(), arguments, collect_environment()) == expected


def test_suites_have_every_layer_once():
    from benchmarks.suites import SUITES, select_layers

    layers = select_layers("all")
    assert len(layers) >= 60
    assert len({layer.name for layer in layers}) == len(layers)
    assert {layer.problem.dims for layer in layers} == {1, 2, 3}
    # Grouped layers are apart.
    assert {layer.suite for layer in layers} == set(SUITES) - {"groups"}
    assert all(min(layer.problem.output_size) > 0 for layer in layers)
    # ResNet-50's second stage, and a layer that names what is unusual about it.
    assert select_layers("resnet", ["32x128x28x28_128_k3x3"])[0].problem.flops == 2 * (
        32 * 28 * 28 * 128 * 9 * 128
    )
    (layer,) = select_layers("audio", ["8x256x6000_512_k8_s4_p2"])
    assert layer.problem.output_size == (1500,)


@pytest.mark.parametrize(
    ("suite", "words", "message"),
    [
        ("mobile", None, "suite 'mobile': expected one of resnet, convnext"),
        ("audio", ["9"], "layer '9': expected an index 0..8 of suite 'audio'"),
    ],
)
def test_what_is_in_no_suite_is_named(suite, words, message):
    from benchmarks.suites import select_layers

    with pytest.raises(ValueError, match=message):
        select_layers(suite, words)


@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
def test_layers_without_a_gpu(direction, tmp_path, capsys):
    from benchmarks.__main__ import main

    files = [tmp_path / name for name in ("rows.csv", "rows.md")]
    options = ["--suite", "video", "--direction", direction, "--dry-run", "--rounds", "2"]
    options += ["--out", str(files[0]), "--markdown", str(files[1]), "--gluon"]
    assert main(["conv", *options]) == 0
    said = capsys.readouterr().out
    assert "cudnn/ours, geometric mean of 10 layers" in said
    assert "gluon/ours, geometric mean of 10 layers" in said
    assert files[0].read_text().count("8x64x16x56x56_64_k3x3x3") == 1
    assert files[1].read_text().count("\n| 8x64x16x56x56_64_k3x3x3 |") == 1
