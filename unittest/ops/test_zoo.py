"""The zoo of layers without a GPU: its data and split, sweeps with stand-ins, and the report."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib

import pytest

torch = pytest.importorskip("torch", reason="the benchmarks need torch, which is not installed")

from triton_ext.host import capabilities  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The benchmarks are not installed; they run from the root of the checkout."""
    monkeypatch.syspath_prepend(str(ROOT))


def options(out, **changes):
    values = {
        "part": "tune", "suite": None, "shapes": None, "direction": "fprop", "dtype": "bfloat16",
        "sample": 5, "seed": 0, "candidates": 3, "rounds": 2, "minutes": 5.0, "jobs": 0,
        "out": out, "dry_run": True,
    }  # fmt: skip
    return argparse.Namespace(**(values | changes))


# ---- The data ----------------------------------------------------------------------------------


def test_the_file_parses_and_is_small():
    from benchmarks.zoo.layers import ZOO, read_zoo

    records = read_zoo()
    assert ZOO.stat().st_size < 1_000_000
    assert len(records) >= 150
    assert {record.library for record in records} == {
        "torchvision", "timm", "diffusers", "monai", "transformers", "segmentation_models_pytorch",
    }  # fmt: skip
    geometries = {geometry for record in records for geometry in record.counts}
    assert len(geometries) > 3000
    assert {len(geometry.input_size) for geometry in geometries} == {1, 2, 3}
    for geometry in geometries:
        sizes = geometry.problem(1).output_size
        assert min(sizes) > 0, geometry
        assert (
            geometry.in_channels % geometry.groups == geometry.out_channels % geometry.groups == 0
        )
    versions = json.loads(ZOO.read_text().partition("\n")[0])["versions"]
    assert {"torch", "timm", "diffusers"} <= set(versions)


def test_known_layers_are_in_it():
    from benchmarks.zoo.layers import zoo_layers

    layers = {(layer.name, layer.dtype): layer for layer in zoo_layers()}
    # ResNet-50 at 224x224 has three 3x3 of 64 channels; other networks have it as well.
    found = layers["128x64x56x56_64_k3x3", "bfloat16"]
    assert found.training >= 3 <= found.occurrences("wgrad")
    assert "resnet50" in found.networks
    assert any(layer.transposed for layer in layers.values())
    for layer in layers.values():
        forward, gradient = ("dgrad", "fprop") if layer.transposed else ("fprop", "dgrad")
        assert layer.occurrences(forward) == layer.inference + layer.training > 0
        assert layer.occurrences(gradient) == layer.occurrences("wgrad") == layer.training


def test_the_split_is_disjoint_and_of_the_right_size():
    from benchmarks.zoo.layers import PARTS, zoo_layers

    parts = [zoo_layers(part) for part in PARTS]
    keys = [{(layer.name, layer.dtype) for layer in part} for part in parts]
    assert not keys[0] & keys[1]
    assert len(keys[0] | keys[1]) == len(zoo_layers())
    assert len(keys[0]) == len(parts[0])
    assert 0.55 < len(parts[0]) / (len(parts[0]) + len(parts[1])) < 0.65

    def keys_of_tables(layers):
        from benchmarks.operands import case_of

        return {case_of("fprop", layer.problem, "float16").key(132) for layer in layers[:500]}

    # No entry of a table that is tuned on one part is for a layer of the other.
    assert not keys_of_tables(parts[0]) & keys_of_tables(parts[1])


@pytest.mark.parametrize(
    ("channels", "taps", "groups", "transposed", "part"),
    [
        ((64, 64), 3, 1, False, "held-out"),
        ((64, 256), 1, 1, False, "held-out"),
        ((3, 64), 7, 1, False, "tune"),
        ((256, 256), 3, 32, False, "tune"),
        ((512, 256), 4, 1, True, "tune"),
    ],
)
def test_the_split_is_stable(channels, taps, groups, transposed, part):
    """A layer never moves: these are what the first version of the split said."""
    from benchmarks.zoo.layers import Geometry, part_of

    geometry = Geometry(
        images=1, in_channels=channels[0], out_channels=channels[1], input_size=(56, 56),
        filter_size=(taps, taps), stride=(1, 1), padding=(taps // 2,) * 2, dilation=(1, 1),
        groups=groups, transposed=transposed,
    )  # fmt: skip
    assert part_of(geometry.problem(32), transposed) == part
    other = dataclasses.replace(geometry, images=7, input_size=(9, 112), padding=(0, 0))
    assert part_of(other.problem(1), transposed) == part


def test_a_part_that_is_none_is_refused():
    from benchmarks.zoo.layers import zoo_layers

    with pytest.raises(ValueError, match="expected tune or held-out"):
        zoo_layers("test")


def test_samples_are_seeded_and_grow_from_the_front():
    from benchmarks.zoo.layers import sample, zoo_layers

    layers = zoo_layers("tune")
    few, more = sample(layers, "wgrad", 20), sample(layers, "wgrad", 60)
    assert more[:20] == few
    assert len(set(more)) == 60
    assert sample(layers, "wgrad", 20, seed=1) != few
    assert all(layer.training for layer in more)

    def mean(chosen):
        return sum(layer.training for layer in chosen) / len(chosen)

    # Common layers are more likely.
    assert mean(sample(layers, "wgrad", 400)) > 1.3 * mean(
        [each for each in layers if each.training]
    )


# ---- Recording ---------------------------------------------------------------------------------


def test_convolutions_of_a_model(tmp_path):
    from benchmarks.zoo.collect import convolutions_of
    from benchmarks.zoo.layers import Record, read_zoo, write_zoo, zoo_layers

    with torch.device("meta"):
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, stride=2, padding=1),
            torch.nn.Conv2d(8, 8, 3, padding=1, groups=4),
            torch.nn.Conv2d(8, 8, 3, padding=1, groups=4),
            torch.nn.ConvTranspose2d(8, 4, (4, 3), stride=(2, 1), padding=1),
        )
        counts = convolutions_of(model, [torch.randn(1, 3, 32, 30)])
    assert sorted(counts.values()) == [1, 1, 2]
    (transposed,) = (geometry for geometry in counts if geometry.transposed)
    assert transposed.problem(2).x_shape == (2, 4, 32, 15)
    assert transposed.problem(2).y_shape == (2, 8, 16, 15)
    record = Record(
        name="net", library="torchvision", inference=(1,), training=(2,), dtypes=("float32",),
        format="channels_last", counts=counts,
    )  # fmt: skip
    write_zoo(tmp_path / "zoo.jsonl", {"torch": "2"}, [record])
    assert read_zoo(tmp_path / "zoo.jsonl") == [record]
    layers = zoo_layers(path=tmp_path / "zoo.jsonl")
    assert {layer.name for layer in layers} >= {"1x3x32x30_8_k3x3_s2x2", "2x8x16x15_8_k3x3_g4"}
    (grouped,) = (layer for layer in layers if layer.name == "1x8x16x15_8_k3x3_g4")
    assert (grouped.inference, grouped.training, grouped.networks) == (2, 0, ("net",))
    (turned,) = (each for each in layers if each.name == "2x4x32x15_8_k4x3_s2x1_p1x1_t")
    assert (turned.occurrences("dgrad"), turned.occurrences("fprop")) == (1, 1)


# ---- Sweeps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
def test_a_sweep_and_its_report_without_a_gpu(direction, tmp_path, capsys):
    from benchmarks.__main__ import main
    from benchmarks.zoo.rows import read_rows

    out = tmp_path / "rows.jsonl"
    words = ["zoo", "sweep", "--direction", direction, "--out", str(out), "--dry-run"]
    assert main([*words, "--sample", "4", "--rounds", "2"]) == 0
    assert main([*words, "--sample", "6", "--rounds", "2"]) == 0  # the four are kept
    rows = [row for row in read_rows(out) if "layer" in row]
    assert len({row["layer"] for row in rows}) == len(rows) == 6
    for row in rows:
        assert row["direction"] == direction
        assert row["cudnn_us"] > 0
        if not row["refusal"]:
            assert ["model" in result["roles"] for result in row["results"]].count(True) == 1
            assert all(result["status"] == "ok" for result in row["results"])
    with out.open("a") as file:
        file.write('{"layer": "a line that was cut o')
    capsys.readouterr()
    assert main(["zoo", "report", str(out), "--worst", "3"]) == 0
    said = capsys.readouterr().out
    assert f"{direction} bfloat16 tune: 6 rows, 6 timed" in said
    assert 'prefer="fastest"' in said
    assert "INVENTED" in said


def test_the_held_out_part_and_suites_are_measured_without_a_gpu(tmp_path):
    from benchmarks.__main__ import main
    from benchmarks.zoo.rows import read_rows

    out = tmp_path / "rows.jsonl"
    words = ["zoo", "sweep", "--out", str(out), "--dry-run", "--sample", "3", "--rounds", "2"]
    assert main([*words, "--part", "held-out"]) == 0
    assert main([*words, "--suite", "groups"]) == 0
    rows = [row for row in read_rows(out) if "layer" in row]
    assert [row["part"] for row in rows] == ["held-out"] * 3 + ["groups"] * 3
    assert all("candidate" not in r["roles"] for row in rows[:3] for r in row["results"])
    assert all("candidate" in row["results"][-1]["roles"] for row in rows[3:])


def test_invented_times_do_not_go_beside_measured_ones(tmp_path, capsys):
    from benchmarks.__main__ import main

    out = tmp_path / "rows.jsonl"
    out.write_text(json.dumps({"environment": {"dry_run": False}}) + "\n")
    assert main(["zoo", "sweep", "--out", str(out), "--dry-run"]) == 2
    assert "would have invented times beside measured ones" in capsys.readouterr().err
    assert out.read_text().count("\n") == 1


def test_a_planner_that_fails_is_an_error_and_the_layer_is_tried_again_last(tmp_path, monkeypatch):
    from triton_ext.ops.core.device import KNOWN

    from benchmarks.harness import collect_environment
    from benchmarks.zoo import rows, sweep
    from benchmarks.zoo.layers import sample, zoo_layers

    real, (first, second) = sweep._planned, sample(zoo_layers("tune"), "fprop", 2)

    def planned(layer, *others):
        if layer == first:
            raise KeyError("tile")
        return real(layer, *others)

    out = tmp_path / "rows.jsonl"

    def run(layers):
        made = sweep.Run(options(out), collect_environment(True), KNOWN["h200"], None)
        made.layers(layers)
        return made.failed

    def found():
        return [row for row in rows.read_rows(out) if "layer" in row]

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "_planned", planned)
        assert run([first]) == 1
    (row,) = found()
    assert (row["error"], row["refusal"]) == ("planner failed: KeyError: 'tile'", "")
    assert run([first, second]) == 0
    assert [row["layer"] for row in found()] == [first.name, second.name, first.name]
    assert [bool(row["error"]) for row in found()] == [True, False, False]
    assert run([first, second]) == 0
    assert len(found()) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resnet18"], "give --out for the layers of some"),
        (["resnet18", "resnet-18", "--out", "few.jsonl"], "no such network: resnet-18"),
        (["--out", "all.jsonl"], "not installed: timm; --partial leaves their networks out"),
    ],
)
def test_a_list_is_whole_or_not_written(words, message, tmp_path, monkeypatch, capsys):
    from benchmarks.__main__ import main
    from benchmarks.zoo import collect

    def version(name):
        if name == "timm":
            raise collect.importlib.metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(collect.importlib.metadata, "version", version)
    monkeypatch.chdir(tmp_path)
    assert main(["zoo", "collect", *words]) == 2
    assert message in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_partial_list_is_written_on_request_only(tmp_path, monkeypatch, capsys):
    from benchmarks.__main__ import main
    from benchmarks.zoo import collect
    from benchmarks.zoo.layers import read_zoo

    def record(network):
        if network.entry.library == "torchvision":
            return {}
        raise ImportError("no such class")

    monkeypatch.setattr(collect.importlib.metadata, "version", lambda name: "1")
    monkeypatch.setattr(collect, "_record", record)
    out = tmp_path / "some.jsonl"
    words = ["zoo", "collect", "resnet18", "whisper", "--out", str(out)]
    assert main(words) == 1
    assert "failed: whisper; --partial writes" in capsys.readouterr().err
    assert not out.exists()
    assert main([*words, "--partial"]) == 1
    assert [record.name for record in read_zoo(out)] == ["resnet18"]


def test_what_does_not_compile_is_in_the_row(tmp_path):
    from triton_ext.ops.core.device import KNOWN
    from tuning_fakes import InstantCompiler

    from benchmarks.harness import collect_environment
    from benchmarks.operands import case_of
    from benchmarks.suites import select_layers
    from benchmarks.zoo.layers import ZooLayer
    from benchmarks.zoo.rows import read_rows
    from benchmarks.zoo.sweep import Run, variants_for

    (layer,) = select_layers("groups")[:1]
    case = case_of("fprop", layer.problem, "bfloat16")
    variants = variants_for(case, KNOWN["h200"], 3)
    assert variants[0].is_choice
    assert len({variant.config for variant in variants}) == len(variants) == 4
    # Both kernels compute merged groups.
    assert len({type(variant.config.config) for variant in variants}) > 1
    out = tmp_path / "rows.jsonl"
    compiler = InstantCompiler(broken=[variants[1].config])
    run = Run(options(out), collect_environment(True), KNOWN["h200"], compiler)
    found = ZooLayer(
        problem=layer.problem, transposed=False, dtype="bfloat16", inference=1, training=1,
        networks=("resnext",),
    )  # fmt: skip
    assert run.layers([found]) == 0
    assert [config for _, config in compiler.jobs] == [variant.config for variant in variants]
    (row,) = (row for row in read_rows(out) if "layer" in row)
    statuses = [result["status"] for result in row["results"]]
    assert statuses == ["ok", "does not compile: no such instruction", "ok", "ok"]


def test_a_layer_that_fails_is_a_row(tmp_path, monkeypatch):
    from triton_ext.ops.core.device import KNOWN

    from benchmarks.harness import collect_environment
    from benchmarks.zoo import rows, sweep
    from benchmarks.zoo.layers import sample, zoo_layers

    calls = []

    def measure(work, *_):
        calls.append(work)
        if len(calls) == 1:
            raise RuntimeError("out of something")
        return sweep.Timing((1.0, 1.5), 0.0)

    monkeypatch.setattr(sweep, "measure", measure)
    out = tmp_path / "rows.jsonl"
    run = sweep.Run(options(out), collect_environment(True), KNOWN["h200"], None)
    assert run.layers(sample(zoo_layers("tune"), "fprop", 2)) == 0
    assert (run.measured, run.failed) == (2, 1)
    found = [row for row in rows.read_rows(out) if "layer" in row]
    assert [row["error"] for row in found] == ["RuntimeError: out of something", ""]
    assert [row["cudnn_us"] for row in found] == [None, 1250.0]


def test_results_are_checked_before_they_are_timed(monkeypatch):
    from triton_ext.ops.core.device import KNOWN

    from benchmarks.harness import Errors, FakeTimer
    from benchmarks.operands import Operands, case_of
    from benchmarks.suites import select_layers
    from benchmarks.zoo import sweep
    from benchmarks.zoo.layers import ZooLayer

    (layer,) = select_layers("groups")[:1]
    found = ZooLayer(
        problem=layer.problem, transposed=False, dtype="bfloat16", inference=1, training=1,
        networks=(),
    )  # fmt: skip
    case = case_of("fprop", layer.problem, "bfloat16")
    variants = sweep.variants_for(case, KNOWN["h200"], 3)
    right, wrong = torch.ones(4), torch.zeros(4)
    results = [lambda: right, lambda: wrong, None, lambda: right]
    by_config = {v.config: result for v, result in zip(variants, results, strict=True)}
    times = {id(results[0]): 1.0, id(results[3]): 9.0}
    monkeypatch.setattr(sweep, "make_operands", lambda *_: Operands(layer.problem, *(None,) * 3))
    monkeypatch.setattr(sweep, "check_context", lambda *_: None)
    monkeypatch.setattr(sweep, "_single_ms", lambda call: times[id(call)])
    monkeypatch.setattr(sweep, "_reference", lambda *_: (right, lambda: right, Errors(1e-3, 1e-3)))

    def call(case, config, operands):
        if by_config[config] is None:
            raise ValueError("no such tile")
        return by_config[config]

    monkeypatch.setattr(sweep, "call_of", call)
    work = sweep.Work(found, case, variants, "", {})
    timing = sweep.measure(work, FakeTimer(), 2, False)
    assert timing.ms > 0
    statuses = [variant.status for variant in variants]
    assert statuses == [
        "ok", "wrong result", "does not run: ValueError: no such tile",
        "slow: 9000.0 us in one call",
    ]  # fmt: skip
    assert [variant.timing is not None for variant in variants] == [True, False, False, False]


# ---- The report --------------------------------------------------------------------------------


def row(name, cudnn, model, table=None, torch_chosen=False, weight=1, **candidates):
    def result(roles, kind, us):
        return {"roles": roles, "kind": kind, "us": us, "status": "ok"}

    results = [result(["model"], "gemm", model)] if model else []
    results += [result(["table"], "gluon", table)] if table else []
    results += [result(["candidate"], kind, us) for kind, us in candidates.items()]
    problem = {
        "groups": 1, "in_channels": 64, "out_channels": 64, "input_size": [8, 8],
        "filter_size": [3, 3], "stride": [1, 1],
    }  # fmt: skip
    return {
        "layer": name, "direction": "fprop", "dtype": "bfloat16", "part": "held-out",
        "occurrences": weight, "problem": problem, "refusal": "" if model else "none takes it",
        "torch": {"chosen": torch_chosen}, "error": "", "cudnn_us": cudnn, "results": results,
    }  # fmt: skip


def test_outcomes():
    from benchmarks.zoo.report import outcomes

    rows = [
        row("a", 100.0, 50.0),
        row("b", 100.0, 200.0, torch_chosen=True, direct=80.0),
        row("c", 100.0, 90.0, table=80.0),
        row("d", 100.0, None),
    ]
    found = outcomes([*rows, {**rows[0], "cudnn_us": None, "error": "failed"}])
    assert [each.decided_by for each in found] == ["model", "torch", "table", "torch"]
    assert [each.alone for each in found] == [2.0, 0.5, 1.25, None]
    assert [each.fastest for each in found] == [2.0, 1.0, 1.25, 1.0]
    assert [each.regret for each in found] == [1.0, 2.5, 1.125, None]
    assert found[1].best_family == "direct"


def test_means_and_percentiles():
    from benchmarks.zoo.report import percentile, weighted_mean

    assert weighted_mean([2.0, 0.5], [3, 1]) == pytest.approx(2**0.5)
    assert math.isnan(weighted_mean([], []))
    values = [float(number) for number in range(1, 201)]
    assert percentile(values, 0.01) == 3.0
    assert percentile(values, 0.05) == 11.0
    assert percentile([5.0], 0.99) == 5.0


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "dense"),
        ({"stride": [2, 2]}, "strided"),
        ({"in_channels": 80}, "dense narrow"),
        ({"filter_size": [1, 1]}, "1x1"),
        ({"in_channels": 3}, "few channels"),
        ({"groups": 64}, "depthwise"),
        ({"groups": 8}, "grouped"),
        ({"input_size": [1, 1]}, "one pixel"),
        ({"input_size": [8, 8, 8]}, "3-D"),
    ],
)
def test_kinds_of_layers(changes, kind):
    from benchmarks.zoo.report import kind_of_layer

    assert kind_of_layer(row("a", 1.0, 1.0)["problem"] | changes) == kind


def test_a_report_of_two_runs_takes_the_later_row(tmp_path, capsys):
    from benchmarks.zoo.report import run_report

    rows = [row("a", 100.0, 400.0), row("b", 100.0, 50.0, weight=3), row("a", 100.0, 100.0)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert run_report([path], 1) == 0
    said = capsys.readouterr().out
    (line,) = (line for line in said.splitlines() if line.startswith("ours alone  "))
    # The geometric mean of 1 and 2 is 1.414; with weights of 1 and 3 it is 1.682.
    assert line.split() == ["ours", "alone", "2", "1.414", "1.682", "1.000", "1.000", "1.000", "0"]
    assert run_report([tmp_path / "none.jsonl"], 1) == 1


# ---- The models --------------------------------------------------------------------------------

ROWS = ROOT / "benchmarks" / "zoo" / "rows" / "tune.jsonl.xz"


in_gluon = pytest.mark.skipif(
    not capabilities()["im2col-gluon"].available, reason=capabilities()["im2col-gluon"].reason
)


@in_gluon
def test_shipped_models_expect_what_was_measured(capsys):
    from benchmarks.zoo.fit import half_of, judge, run_fit
    from benchmarks.zoo.rows import read_layers

    layers = read_layers([ROWS])
    assert len(layers) > 300
    assert {layer.device.dram_bytes_per_us for layer in layers} == {3.0e6}  # of an H100
    assert 0.4 < sum(half_of(layer.row["layer"]) for layer in layers) / len(layers) < 0.6
    dense = [
        math.log(ratio)
        for layer in layers[::4]
        for family, ratio in judge(layer).ratios
        if family in ("gemm", "gluon", "wgrad", "gluon_wgrad")
    ]
    assert len(dense) > 100
    assert abs(sum(dense) / len(dense)) < 0.1
    assert sum(map(abs, dense)) / len(dense) < 0.2
    assert run_fit([ROWS], cross=False) == 0
    said = capsys.readouterr().out
    judged = [line for line in said.splitlines() if "choice / best" in line]
    assert [line.split(":")[0].strip() for line in judged] == ["fprop", "dgrad", "wgrad"]
    # On average the choice takes at most a twentieth longer than the best that was measured.
    assert max(float(line.split("mean ")[1].split(",")[0]) for line in judged) < 1.05


def test_a_search_changes_the_shared_numbers_alone_and_rows_are_needed(tmp_path, monkeypatch):
    from triton_ext.ops.core import loads

    from benchmarks.zoo.fit import _places, _search, run_fit
    from benchmarks.zoo.rows import read_layers

    before = loads.FITTED
    monkeypatch.setattr(loads, "FITTED", before)  # put back afterwards
    layers = read_layers([ROWS])[:2]
    changes = _search(layers, _places(costs=False))
    assert bool(changes) == (before != loads.FITTED)
    assert dataclasses.asdict(loads.FITTED).keys() == dataclasses.asdict(before).keys()
    empty = tmp_path / "rows.jsonl"
    empty.write_text("")
    assert run_fit([empty], cross=True) == 1


@in_gluon
def test_costs_are_fitted_to_times(monkeypatch, capsys):
    """Measured times that are longer make costs larger, and the shipped ones come back."""
    from triton_ext.ops.families import gemm_config

    from benchmarks.zoo import fit
    from benchmarks.zoo.rows import read_layers

    layers = [
        layer
        for layer in read_layers([ROWS])
        if layer.row["direction"] == "fprop" and fit.judge(layer).ratios[0][0] == "gemm"
    ][:3]
    for layer in layers:
        for result in layer.row["results"]:
            result["us"] = result["us"] and 3 * result["us"]
    shipped = dict(gemm_config.COSTS)
    places = [place for place in fit._places(costs=True) if place[0] is gemm_config.COSTS]
    monkeypatch.setattr(fit, "_places", lambda costs: places if costs else [])
    fit._fit(layers, costs=True, cross=False)
    assert shipped == gemm_config.COSTS
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "fitted to 3 layers:"
    assert any(line.startswith("  ConvConfig(") and "Cost(step_us=" in line for line in said)


# ---- Tables ------------------------------------------------------------------------------------

ENVIRONMENT = {
    "device": "NVIDIA H200", "triton": "3.9.0", "date": "2026-11-20 10:30 UTC", "dry_run": False,
}  # fmt: skip


def swept(shape, *results, dtype="float16", direction="fprop", torch_us=40.0):
    """A row of a sweep: configurations, times and roles.  Models expect 60 us, and of torch 40."""
    from triton_ext.ops.core.tables import encode, kind_of
    from triton_ext.ops.tuning import parse_shape

    found = [
        {"kind": kind_of(config), "config": encode(config), "us": us, "roles": list(roles),
         "status": "ok" if us else "wrong result", "counted_us": 60.0}
        for config, us, *roles in results
    ]  # fmt: skip
    problem = dataclasses.asdict(parse_shape(shape))
    return {
        "layer": shape, "direction": direction, "dtype": dtype, "problem": problem,
        "cudnn_us": 50.0, "results": found, "error": "", "torch": {"counted_us": torch_us},
    }  # fmt: skip


@pytest.fixture
def made(tmp_path):
    """Makes a table of rows; returns the exit status and what was written."""
    from triton_ext.ops.core.tables import read_table

    from benchmarks.__main__ import main

    def make(*rows, **environment):
        path, out = tmp_path / "rows.jsonl", tmp_path / "nvidia_h200.v1.json"
        head = {"environment": ENVIRONMENT | environment, "table": "NVIDIA H200"}
        path.write_text("".join(json.dumps(each) + "\n" for each in (head, *rows)))
        code = main(["zoo", "table", str(path), "--out", str(out)])
        return code, read_table(out)

    return make


@in_gluon
def test_a_table_has_the_fastest_right_configurations(made, tmp_path, monkeypatch):
    from triton_ext.ops.core import tables
    from triton_ext.ops.core.device import KNOWN
    from triton_ext.ops.families import gemm_config, gluon_wgrad, wgrad

    from benchmarks.operands import case_of
    from benchmarks.suites import select_layers

    first, second, third = gemm_config.CONFIGS[:3]
    jit = wgrad.WgradChoice(config=wgrad.CONFIGS[4], part_rounds=2)
    gluon = gluon_wgrad.WgradTileChoice(config=gluon_wgrad.CONFIGS[0], add_in_place=True)
    code, table = made(
        swept("32x64x56x56_64_k3x3", (first, 30.0, "model"), (second, 20.0), (third, None)),
        swept("32x64x56x56_64_k3x3", (jit, 200.0), (gluon, 100.0), direction="wgrad"),
        swept("32x64x56x56_256_k1x1_s2x2", (first, None)),
    )
    assert code == 0
    assert len(table.entries) == 2
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", str(tmp_path))
    tables.lookup.forget(added=True)
    (layer,) = select_layers("resnet", ["32x64x56x56_64_k3x3"])
    found = {
        direction: tables.find(case_of(direction, layer.problem, "float16"), KNOWN["h200"])
        for direction in ("fprop", "wgrad")
    }
    tables.lookup.forget(added=True)
    assert found == {"fprop": second, "wgrad": gluon}
    entry = next(e for key, e in table.entries.items() if key.startswith("fprop"))
    assert (entry["us"], entry["model_us"], entry["torch_us"]) == (20.0, 30.0, 50.0)
    assert entry["measured"] == "2026-11-20T10:30:00.000000Z"


def test_of_sizes_that_share_a_key_the_least_loss_counts(made):
    from triton_ext.ops.core.tables import encode
    from triton_ext.ops.families.gemm_config import CONFIGS

    first, second = CONFIGS[:2]
    # As many waves: 784 tiles of 128 pixels, one column.
    _, table = made(
        swept("128x64x28x28_64_k3x3", (first, 20.0), (second, 11.0)),
        swept("32x64x56x56_64_k3x3", (first, 10.0), (second, 11.0)),
    )
    (entry,) = table.entries.values()
    assert entry["config"] == encode(second)
    assert entry["us"] == 11.0


@pytest.mark.parametrize(
    ("model", "best", "torch_us", "dtype", "is_worth"),
    [
        (30.0, 29.0, 90.0, "float16", True),  # 3 % less time
        (30.0, 29.8, 90.0, "float16", False),
        (48.0, 48.0, 40.0, "float16", True),  # models choose torch, which takes 50 us
        (50.5, 50.5, 40.0, "float16", True),  # so, and it is a tie
        (52.0, 52.0, 40.0, "float16", False),  # torch is faster
        (52.0, 52.0, 90.0, "float16", False),  # models choose ours, and it is nearly a tie
        (53.0, 53.0, 90.0, "float16", True),  # so, and torch is faster
        (53.0, 53.0, 90.0, "float8_e4m3fn", False),  # torch has no fp8
        (53.0, 53.0, None, "float16", False),  # torch does not compute the layer
    ],
)
def test_an_entry_is_worth_it_or_is_taken_out(model, best, torch_us, dtype, is_worth, made, capsys):
    from triton_ext.ops.families.gemm_config import CONFIGS

    choices = ((CONFIGS[0], model, "model"), (CONFIGS[1], best, "table"))
    how = {"dtype": dtype, "torch_us": torch_us}
    if model == best:
        choices = ((CONFIGS[0], model, "model", "table"),)
    # A choice that nothing else of was measured is kept, and later rows of it are judged again.
    made(swept("32x64x56x56_64_k3x3", (CONFIGS[0], 10.0), **how))
    code, table = made(swept("32x64x56x56_64_k3x3", *choices, **how))
    assert (code, len(table.entries)) == (0, int(is_worth))
    assert ("taken out: fprop" in capsys.readouterr().out) == (not is_worth)


@pytest.mark.parametrize(
    ("rows", "environment", "message"),
    [
        ([swept], {"dry_run": True}, "those of a dry run are invented"),
        ([], {}, "expected rows of one GPU, found none"),
    ],
)
def test_rows_that_make_no_table(rows, environment, message, made, capsys):
    from triton_ext.ops.families.gemm_config import CONFIGS

    found = [make("32x64x56x56_64_k3x3", (CONFIGS[0], 1.0)) for make in rows]
    assert made(*found, **environment) == (2, None)
    assert message in capsys.readouterr().err


def test_layers_of_fp8_are_swept_for_the_fp8_entries_of_tables(tmp_path, capsys):
    from benchmarks.__main__ import main
    from benchmarks.zoo.rows import read_layers

    out = tmp_path / "rows.jsonl"
    words = ["zoo", "sweep", "--dtype", "float8_e4m3fn", "--dry-run", "--out", str(out)]
    assert main([*words, "--suite", "wide", "--sample", "2", "--rounds", "2"]) == 0
    (first, second) = read_layers([out])
    # Two of fourteen, evenly spread.
    assert (first.row["layer"], second.row["layer"]) == (
        "32x256x14x14_256_k3x3", "8x1280x16x16_1280_k3x3",
    )  # fmt: skip
    assert first.case.key(132).startswith("fprop float8_e4m3fn 256->256 k3x3 padded to-bfloat16")
    assert main([*words, "--direction", "dgrad", "--suite", "wide"]) == 2
    assert main(["zoo", "sweep", "--suite", "few", "--shapes", "99", "--out", str(out)]) == 2
    assert "layer '99': expected an index 0..18" in capsys.readouterr().err
