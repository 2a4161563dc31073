"""Tables of choices out of what sweeps wrote."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from datetime import datetime, timedelta, timezone

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from triton_ext.ops.core import tables as lookups
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.tables import file_name, read_table
from triton_ext.ops.families import gemm_config
from triton_ext.ops.families import wgrad as wgrad_family
from triton_ext.ops.tuning import Case
from triton_ext.ops.tuning.collect import parse_shape

from benchmarks.harness import Environment, write_rows
from benchmarks.make_table import main

GPU = "NVIDIA Test GPU"
MACHINE = Device(132, (9, 0), 232448, GPU)
FIRST, SECOND, THIRD = gemm_config.CONFIGS[:3]
ENVIRONMENT = {"device": GPU, "triton": "3.9.0", "date": "2026-11-20 10:30 UTC"}


def result(config, ms, status="ok", **more):
    return {"config": asdict(config), "status": status, "ms": ms, **more}


def forward(shapes) -> dict:
    return {"environment": ENVIRONMENT, "dtype": "float16", "num_sms": 132, "shapes": shapes}


@pytest.fixture
def made(tmp_path):
    """Makes a table of documents; returns the exit code and what was written."""

    def make(*documents, fresh=False):
        paths = []
        for number, document in enumerate(documents):
            paths.append(tmp_path / f"{number}.json")
            paths[-1].write_text(json.dumps(document))
        out = tmp_path / file_name(GPU)
        code = main([*map(str, paths), "--out", str(out), *(["--fresh"] if fresh else [])])
        return code, read_table(out)

    return make


@pytest.fixture
def found(tmp_path, monkeypatch):
    """Looks a case up in what was made."""
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_EXT_TUNING", raising=False)
    lookups.lookup.forget(added=True)

    def find(direction, shape, dtype=torch.float16):
        lookups.lookup.forget()
        case = Case(direction=direction, problem=parse_shape(shape), dtype=dtype)
        return lookups.find(case, MACHINE)

    yield find
    lookups.lookup.forget(added=True)


def test_the_fastest_right_configuration_is_found_by_plans(made, found):
    sweep = forward(
        {
            "32,56,56,64,64,3,3,1": {
                "results": [
                    result(FIRST, 0.03),
                    result(SECOND, 0.02),
                    result(THIRD, 0.01, status="wrong result"),
                    result(THIRD, None, status="does not compile"),
                ]
            },
            "32,56,56,64,256,1,1,2": {"results": [result(FIRST, None, status="pending")]},
        }
    )
    code, table = made(sweep)
    assert code == 0
    (entry,) = table.entries.values()
    assert entry["us"] == 20.0
    assert entry["measured"] == "2026-11-20T10:30:00.000000Z"
    assert found("fprop", "32x64x56x56_64_k3x3") == SECOND
    assert found("fprop", "32x64x56x56_64_k3x3", torch.bfloat16) == SECOND
    assert found("fprop", "32x64x56x56_64_k3x3", torch.float32) is None
    # A filter of one row is not padded in H.
    _, table = made(forward({"3072,1,202,128,384,1,3,1": {"results": [result(THIRD, 1.0)]}}))
    assert found("fprop", "3072x128x1x202_384_k1x3_p0x1") == THIRD


def test_gradients_go_by_the_names_of_their_layers(made, found):
    dgrad = forward({"32x64x56x56_64_k3x3": {"results": [result(FIRST, 0.1)]}})
    config = wgrad_family.CONFIGS[4]
    wgrad = {
        "environment": ENVIRONMENT,
        "dtype": "bfloat16",
        "num_sms": 132,
        "layers": {
            "32x64x56x56_64_k3x3": {
                "results": [result(config, 0.1, part_rounds=2), result(config, 0.2, part_rounds=1)]
            }
        },
    }
    code, table = made(dgrad, wgrad)
    assert code == 0
    assert len(table.entries) == 2
    assert found("dgrad", "32x64x56x56_64_k3x3") == FIRST
    choice = found("wgrad", "32x64x56x56_64_k3x3", torch.bfloat16)
    assert choice == wgrad_family.WgradChoice(config=config, part_rounds=2)


def test_of_sizes_that_share_a_key_the_least_loss_counts(made, found):
    # As many waves: 784 tiles of 128 pixels, one column.
    shapes = {
        "32,56,56,64,64,3,3,1": {"results": [result(FIRST, 1.0), result(SECOND, 1.1)]},
        "128,28,28,64,64,3,3,1": {"results": [result(FIRST, 2.0), result(SECOND, 1.1)]},
    }
    _, table = made(forward(shapes))
    assert len(table.entries) == 1
    assert found("fprop", "32x64x56x56_64_k3x3") == SECOND


def test_tables_of_tuning_are_taken_and_newer_entries_stay(made, found):
    sweep = forward({"32,56,56,64,64,3,3,1": {"results": [result(FIRST, 1.0)]}})
    _, table = made(sweep)
    (key,) = table.entries
    newer = {
        **table.entries[key],
        "measured": (datetime.now(timezone.utc) + timedelta(hours=1)).strftime(
            "%Y-%m-%dT%H:%M:%S.%fZ"
        ),
        "us": 3.0,
    }
    document = {"format": "triton-ext tuning", "schema": 1, "gpu": GPU, "entries": {key: newer}}
    assert made(document)[1].entries == {key: newer}
    assert made(sweep)[1].entries == {key: newer}
    assert made(sweep, fresh=True)[1].entries == table.entries


def test_files_that_do_not_go_together(made, tmp_path, capsys):
    other = {**forward({}), "environment": {**ENVIRONMENT, "device": "NVIDIA Other"}}
    assert made(forward({}), other)[0] == 2
    assert "files of one GPU" in capsys.readouterr().err
    assert main([str(tmp_path / "none.json")]) == 2


@pytest.mark.parametrize("suffix", [".json", ".csv"])
def test_invented_times_are_refused(suffix, tmp_path, capsys):
    invented = ENVIRONMENT | {"dry_run": True}
    sweep, out = tmp_path / f"sweep{suffix}", tmp_path / file_name(GPU)
    if suffix == ".json":
        shapes = {"32,56,56,64,64,3,3,1": {"results": [result(FIRST, 1.0)]}}
        sweep.write_text(json.dumps(forward(shapes) | {"environment": invented}))
    else:
        known = {field.name: invented.get(field.name, "") for field in fields(Environment)}
        write_rows(sweep, Environment(**known), [{"kernel": "fprop"}])
    assert main([str(sweep), "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{sweep}: expected measured times, those of a dry run are invented" in line
    assert not out.exists()


def test_a_sweep_of_a_gluon_kernel(made, found, tmp_path):
    from benchmarks.gluon_sweep import Entry, candidates
    from benchmarks.shapes import select_shapes

    (shape,) = select_shapes(["64,14,14,768,3072,1,1,1"])
    fast, slow, wrong = candidates("fprop", shape.problem(), 132, torch.bfloat16)[7:10]
    entries = [
        Entry("fprop", shape, config, 132, "bfloat16", False, status, us)
        for config, status, us in (
            (slow, "ok", 30.0),
            (fast, "ok", 20.0),
            (wrong, "wrong result", 10.0),
            (wrong, "not compiled in time", float("nan")),
        )
    ]
    sweep = tmp_path / "sweep.csv"
    known = {field.name: ENVIRONMENT.get(field.name, "") for field in fields(Environment)}
    write_rows(sweep, Environment(**known), [entry.fields() for entry in entries])
    out = tmp_path / file_name(GPU)
    assert main([str(sweep), "--out", str(out)]) == 0
    assert found("fprop", "64x768x14x14_3072_k1x1", torch.bfloat16) == fast
    (entry,) = read_table(out).entries.values()
    assert (entry["us"], entry["measured"]) == (20.0, "2026-11-20T10:30:00.000000Z")
