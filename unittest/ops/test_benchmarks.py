"""The benchmark driver without a GPU: arithmetic, output, and dry runs of every mode."""

from __future__ import annotations

import csv
import importlib
import json
import math
import os
import pathlib
import shutil
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


def test_the_help_lists_every_case():
    from benchmarks.__main__ import CASES

    result = run("benchmarks", "--help")
    assert result.returncode == 0
    told = " ".join(result.stdout.split())
    for name, module in CASES.items():
        summary = importlib.import_module(module).__doc__.partition("\n")[0]
        assert f" {name} {summary}" in told


# Less than the commands take by default.  Those that are not here have a dry run or a stand-in of
# their own; the norms' calls are those of test_norm_calls.py.
QUICK = """
import sys
from benchmarks import bank_conflicts, ir, waits_kernels
from benchmarks.__main__ import main
bank_conflicts.CASES = bank_conflicts.CASES[::20]
ir.SIZES_KB = (19,)
waits_kernels.KERNELS = waits_kernels.KERNELS[:1]
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("import_time --runs 1", "import triton_ext may take 30: "),
        ("ir --rounds 1", "for a kernel with im2col loads, "),
        ("waits --rounds 1", "of the compile in the geometric mean (limit 2 %): "),
        ("bank_conflicts --compile", '"is_transposed": '),
        ("calls --rounds 1 --chunks 1", "conv2d, bias, residual, relu  prepared "),
    ],
)
def test_commands_for_machines_without_a_gpu_run(words, told):
    if words.startswith("calls") and not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("no C compiler for the stand-in of libcuda")
    # The stand-in's process is started as the command: without the code above.
    start = ["-m", "benchmarks"] if words.startswith("calls") else ["-c", QUICK]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, *start, *words.split()], cwd=ROOT, capture_output=True, text=True,
        timeout=300, check=False, env=environment,
    )  # fmt: skip
    # A busy machine may take longer than a limit.
    assert result.returncode in (0, 1), result.stderr
    assert told in result.stdout


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


def test_dry_run_writes_a_row_per_layer(tmp_path):
    out = tmp_path / "rows.csv"
    words = ("--suite", "shapes", "--shapes", "0", "3", "--out", str(out))
    result = run("benchmarks", "compare", "cudnn", "jit", "gluon", "--dry-run", *words)
    assert result.returncode == 0, result.stderr
    assert "DRY RUN" in result.stdout
    assert "cudnn/gluon, geometric mean of 2 layers" in result.stdout
    assert "jit/gluon, geometric mean of 2 layers" in result.stdout
    lines = out.read_text().splitlines()
    assert any(line.startswith("# triton:") for line in lines)
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert [row["layer"] for row in rows] == ["32x64x56x56_64_k3x3", "32x512x7x7_512_k3x3"]
    for row in rows:
        assert row["ratio_to_gluon"] == "1.0"
        ratio = float(row["jit_ms"]) / float(row["gluon_ms"])
        assert float(row["ratio_to_jit"]) == pytest.approx(ratio)


def test_what_the_time_limit_leaves_out_is_named():
    limit = ("--time-limit", "1e-9")
    result = run("benchmarks", "compare", "--suite", "video", "--shapes", "0", "--dry-run", *limit)
    assert result.returncode == 1, result.stderr
    assert "missing: 8x64x16x56x56_64_k3x3x3 (time limit)" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cudnn", "cutlass"], "variant 'cutlass': expected among cudnn, compile, jit, gluon"),
        (["ours", "ours"], "variants ours ours: expected two or more different ones"),
        (["cudnn", "cluster", "--direction", "wgrad"], "cluster are for --direction fprop"),
        (["cudnn", "ours", "--dtype", "float8_e4m3fn"], "expected the variants bfloat16 and ours"),
        (["bfloat16", "ours"], "variant bfloat16 is for --dtype float8_e4m3fn"),
        (["cudnn", "jit", "--epilogue"], "--epilogue is for the variants cudnn, compile and ours"),
        (["--shapes", "999"], "layer '999': expected an index"),
    ],
)
def test_variants_that_are_not_compared(words, message, capsys):
    from benchmarks.__main__ import main

    assert main(["compare", *words, "--dry-run"]) == 2
    assert message in capsys.readouterr().out


def test_a_wrong_result_is_not_timed(monkeypatch):
    import torch

    from benchmarks import compare
    from benchmarks.harness import FakeTimer
    from benchmarks.operands import make_operands
    from benchmarks.suites import select_layers

    (layer,) = select_layers("audio", ["8x512x1500_1024_k10_s5_p3"])
    operands = make_operands(layer.problem, "float16", "meta")
    exact = torch.tensor([1.0, -2.0])
    operands_type = type(operands)
    monkeypatch.setattr(operands_type, "in_fp32", lambda self: operands)
    monkeypatch.setattr(operands_type, "run_torch", lambda *_: exact)
    for name, factor in (("cudnn", 1.001), ("ours", 1.01)):
        monkeypatch.setitem(
            compare.VARIANTS, name, lambda *_, factor=factor: lambda: exact * factor
        )
    monkeypatch.setitem(compare.VARIANTS, "gluon", lambda *_: None)
    row = compare.measure(layer, operands, ["cudnn", "gluon", "ours"], "fprop", FakeTimer(), 2)
    assert (row.wrong, row.timings) == (("ours",), {})
    assert "WRONG RESULT, not timed: rel. error cudnn 1.0e-03, ours 1.0e-02" in row.line()
    row = compare.measure(layer, operands, ["ours", "gluon", "cudnn"], "fprop", FakeTimer(), 2)
    assert (row.wrong, [*row.timings]) == ((), ["ours", "cudnn"])
    fields = row.fields()
    assert fields["ratio_to_ours"] == row.timings["ours"].ms / row.timings["cudnn"].ms
    assert fields["gluon_ms"] == fields["ratio_to_gluon"] == ""

    def refuse(*_):
        raise ValueError("no such padding\nmore")

    monkeypatch.setitem(compare.VARIANTS, "ours", refuse)
    row = compare.measure(layer, operands, ["cudnn", "ours"], "fprop", FakeTimer(), 2)
    assert row.line().split(None, 1)[1] == "refused: no such padding"


INTERPRETED = """
from triton_ext.ops.tuning import parse_shape

from benchmarks import compare
from benchmarks.harness import FakeTimer
from benchmarks.operands import call_of, case_of, make_operands
from benchmarks.suites import Layer

layer = Layer("small", parse_shape("1x32x6x5_32_k3x3"))
for dtype, names, direction, epilogue in (
    ("float16", ["cudnn", "ours"], "fprop", False),
    ("float16", ["cudnn", "ours"], "dgrad", False),
    ("float16", ["cudnn", "ours"], "wgrad", False),
    ("float16", ["cudnn", "ours"], "fprop", True),
    ("float8_e4m3fn", ["bfloat16", "ours"], "fprop", False),
):
    operands = make_operands(layer.problem, dtype, "cpu", epilogue=epilogue)
    row = compare.measure(layer, operands, names, direction, FakeTimer(), 1)
    print(*row.timings, row.wrong, all(0 < found.l2 < 0.01 for found in row.errors.values()))
    if not epilogue and dtype == "float16":
        case = case_of(direction, layer.problem, dtype)
        result = call_of(case, None, operands)()
        print((result - operands.run_torch(direction)).abs().max().item() < 0.05)
"""

# The code of a GPU, over tensors on the CPU: kernels are compiled, then interpreted; times are
# invented.
ON_THE_CPU = """
import functools
import sys

from triton_ext.ops.core import device
from triton_ext.ops.tuning import parse_shape

from benchmarks import compare, harness, norms
from benchmarks.__main__ import main
from benchmarks.suites import Layer
from benchmarks.zoo import sweep

small = (Layer("small", parse_shape("1x32x6x5_32_k3x3")),)
device.device_of = lambda *_: device.KNOWN["h200"]
norms.LAYERS = {
    "bn": norms.Layer("bn", (2, 16, 4, 4), with_residual=True),
    "gn": norms.Layer("gn", (2, 16, 4, 4), groups=4),
}
norms._tensors = functools.partial(norms._tensors, device="cpu")
sweep._single_ms = lambda function: function() is None
sweep._is_torch_faster = lambda work: False
for module in (compare, sweep):
    module.has_gpu = lambda: True
    module.select_layers = lambda *_: small
    module.machine_line = lambda timer: ""
    module.EventTimer = lambda *_, **options: harness.FakeTimer()
    module.make_operands = functools.partial(module.make_operands, device="cpu")
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("norms --dtype float16 --rounds 2", "torch/ours, geometric mean of 4 layers"),
        ("compare --dtype float8_e4m3fn --jobs 1", "bfloat16/ours, geometric mean of 1 layers"),
        (
            "zoo sweep --suite few --jobs 1 --candidates 2 --dtype float16",
            "1 layers, 0 of them failed",
        ),
    ],
)
def test_commands_for_a_gpu_run_over_tensors_on_the_cpu(words, told, tmp_path):
    out = tmp_path / ("rows.jsonl" if words.startswith("zoo") else "rows.csv")
    result = subprocess.run(
        [sys.executable, "-c", ON_THE_CPU, *words.split(), "--out", str(out)], cwd=ROOT,
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert told in result.stdout
    if out.suffix == ".csv":
        lines = [line for line in out.read_text().splitlines() if not line.startswith("#")]
        assert all(float(row["ours_ms"]) > 0 for row in csv.DictReader(lines))
    else:
        row = json.loads(out.read_text().splitlines()[-1])
        assert row["cudnn_us"] > 0
        assert {each["status"] for each in row["results"]} == {"ok"}


def test_clusters_have_half_of_the_pixels():
    from triton_ext.host import capabilities

    from benchmarks.compare import cluster_config
    from benchmarks.operands import case_of
    from benchmarks.suites import select_layers

    if not capabilities()["im2col-gluon"].available:
        pytest.skip(capabilities()["im2col-gluon"].reason)
    for layer in select_layers("shapes"):
        config = cluster_config(case_of("fprop", layer.problem, "float16"), 132)
        assert type(config).__name__ == "ClusterConfig"


@pytest.mark.parametrize(
    "case",
    [
        "bank_conflicts",
        "compare",
        "norms",
        "reproduce",
    ],
)
def test_without_a_gpu_it_says_so(case, monkeypatch, capsys):
    import torch

    from benchmarks.__main__ import main

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([case]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("no CUDA GPU: nothing to time (--")


@pytest.mark.parametrize("case", ["compare", "calls", "ir"])
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
    ("case", "option", "value"),
    [
        ("compare", "--rounds", "0"),
        ("compare", "--time-limit", "-1"),
        ("reproduce", "--budget", "0"),
        ("compare", "--jobs", "1.5"),
        ("norms", "--time-limit", "nan"),
        ("calls", "--rounds", "-2"),
        ("calls", "--chunks", "0"),
        ("waits", "--rounds", "0"),
    ],
)
def test_numbers_that_measure_nothing_are_refused(case, option, value, capsys):
    from benchmarks.__main__ import main

    with pytest.raises(SystemExit, match="2"):
        main([case, option, value])
    is_time = option in ("--budget", "--time-limit")
    expected = "a positive number" if is_time else "an integer of at least 1"
    problem = f"argument {option}: expected {expected}, found '{value}'\n"
    assert capsys.readouterr().err.endswith(problem)


def test_an_unknown_option_is_told_by_the_case(capsys):
    from benchmarks.__main__ import main

    with pytest.raises(SystemExit, match="2"):
        main(["calls", "--dry-run"])
    told = capsys.readouterr().err
    assert told.startswith("usage: python -m benchmarks calls ")
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


def test_suites_have_every_layer_once():
    from benchmarks.suites import SUITES, select_layers

    layers = select_layers("all")
    assert len(layers) >= 60
    assert len({layer.name for layer in layers}) == len(layers)
    assert {layer.problem.dims for layer in layers} == {1, 2, 3}
    apart = {"groups", "depthwise", "few", "shapes", "wide"}
    assert {layer.suite for layer in layers} == set(SUITES) - apart
    assert [len(select_layers(name)) for name in ("depthwise", "few", "shapes", "wide")] == [
        9, 19, 21, 14,
    ]  # fmt: skip
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


def test_norms_count_the_bytes_of_their_passes(tmp_path, capsys):
    from benchmarks.__main__ import main
    from benchmarks.norms import LAYERS

    assert [layer.shape for layer in LAYERS.values()][:5] == [
        (64, 64, 112, 112), (64, 256, 56, 56), (64, 512, 28, 28), (64, 1024, 14, 14),
        (64, 2048, 7, 7),
    ]  # fmt: skip
    out = tmp_path / "rows.csv"
    words = ["--dry-run", "--rounds", "2", "--shapes", "bn add relu 256x56", "--out", str(out)]
    assert main(["norms", *words]) == 0
    assert "torch/ours, geometric mean of 2 layers" in capsys.readouterr().out
    lines = out.read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    size = 2 * 64 * 256 * 56 * 56
    assert [int(row["work"]) for row in rows] == [4 * size, 11 * size]
    assert main(["norms", "--dry-run", "--shapes", "none"]) == 2
