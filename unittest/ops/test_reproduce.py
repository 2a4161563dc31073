"""``python -m benchmarks reproduce`` without a GPU: plans, budgets, crashes, summaries, readers."""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import importlib
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch", reason="the benchmarks need torch, which is not installed")

from triton_ext.ops.tuning import parse_shape
from triton_ext.tools import tune

from benchmarks import reproduce
from benchmarks.__main__ import CASES as BENCHMARKS
from benchmarks.readings import (
    Reading,
    across_releases,
    good_findings,
    load_rows,
    mean_of,
    models_ratio,
    of_curve,
    ranks_efficiency,
    ranks_error,
    seconds_of,
    swept,
    worst_of,
)
from benchmarks.reproduce import Place, allowance, run_cases, select_cases
from benchmarks.reproduce_cases import CASES, Case, Figure, Step

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A stand-in for a benchmark: writes some rows, then does what it is told.
WRITE = """
import os, sys, time
with open(sys.argv[1], "w") as file:
    file.write("# device: none\\nshape,ratio,ours_spread,wrong\\n")
    file.writelines(f"s{{i}},{{float(v)}},0.02,\\n" for i, v in enumerate({values}))
{then}
"""


def fake(name, values="[2.0, 0.5]", then="", **changes):
    code = WRITE.format(values=values, then=then).replace("{", "{{").replace("}", "}}")
    figure = Figure("mean", mean_of("ratio"), reach=1.0, expected=2)
    figure = dataclasses.replace(figure, **changes.pop("figure", {}))
    case = Case(name, "a stand-in", (Step(("-c", code, "{out}")),), (figure,), seconds=20)
    return dataclasses.replace(case, **changes)


def results(findings):
    return {finding.case: finding.result for finding in findings}


def run_all(cases, folder, budget=100.0, **options):
    return run_cases(cases, Place(folder, folder / "caches"), budget, **options)


def summary(folder):
    with (folder / "summary.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# ---- What is run -------------------------------------------------------------------------------


def test_names_and_patterns_select_cases():
    names = [case.name for case in select_cases(["conv.*,fp8", "gluon_conv.dgrad"], CASES)]
    assert names == ["gluon_conv.dgrad", "conv.fprop", "conv.dgrad", "conv.wgrad", "fp8", "conv.1d"]
    assert select_cases(None, CASES) == list(CASES.values())
    with pytest.raises(ValueError, match=r"no case 'nothing'; there are gluon_conv\.dgrad, "):
        select_cases(["fp8", "nothing"], CASES)


def test_a_case_gets_what_is_left_or_nothing():
    case = fake("a", seconds=240.0)
    assert allowance(case, 500.0) == 240.0
    assert allowance(case, 103.0) == 100.0
    assert allowance(case, 20.0) == 0.0
    assert allowance(dataclasses.replace(case, seconds=10.0), 10.0) == 7.0


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_the_commands_know_their_options(case, tmp_path, monkeypatch):
    for step in case.steps:
        python, module, *words = step.command
        told = {"out": tmp_path / f"x{step.suffix}", "limit": "100", "minutes": "1.5"}
        words = [word.format(**told) for word in words]
        if python == "-c":
            parser = argparse.ArgumentParser()
            tune.add_arguments(parser)
            arguments = parser.parse_args([*words[1:], *step.dry])
            assert arguments.time_limit == 100.0
            assert len(set(arguments.shapes)) == 23
            assert all(parse_shape(name).batch == 32 for name in arguments.shapes)
        elif module == "benchmarks":
            parser = argparse.ArgumentParser()
            importlib.import_module(BENCHMARKS[words[0]]).add_arguments(parser)
            arguments = parser.parse_args([*words[1:], *step.dry])
            assert arguments.minutes == 1.5 if words[0] == "zoo" else arguments.time_limit == 100.0
        else:
            parse = importlib.import_module(module).parse
            assert parse(words).time_limit == 100.0
            assert parse([*words, *step.dry]).size == "tiny"


# ---- Running -----------------------------------------------------------------------------------


def test_whatever_a_case_does_the_rest_goes_on(tmp_path):
    is_written = (
        "sys.exit(0 if 'good' in open(os.path.dirname(sys.argv[1]) + '/summary.csv').read() else 9)"
    )
    cases = [
        fake("good", "[2.0, 1.0]"),
        fake("behind", "[0.5, 1.0]"),
        fake("less", "[0.5, 1.0]", figure={"less_is_better": True}),
        fake("few", "[2.0]"),
        fake("few behind", "[0.5]"),
        fake("segfault", "[2.0, 2.0]", "os.kill(os.getpid(), 11)"),
        fake("nothing", "[]", "os.abort()"),
        fake("exit", "[]", "sys.exit(5)"),
        fake("no goal", figure={"reach": None}),
        fake("sees the summary", "[2.0, 2.0]", is_written),
    ]
    findings = run_all(cases, tmp_path)
    assert results(findings) == {
        "good": "PASS",
        "behind": "FAIL",
        "less": "PASS",
        "few": "PARTIAL",
        "few behind": "PARTIAL",
        "segfault": "PARTIAL",
        "nothing": "CRASH",
        "exit": "FAIL",
        "no goal": "DONE",
        "sees the summary": "PASS",
    }
    by_name = {finding.case: finding for finding in findings}
    assert by_name["good"].value == pytest.approx(math.sqrt(2))
    assert by_name["good"].spread == 0.02
    assert "CRASH by SIGSEGV" in by_name["segfault"].note
    assert by_name["nothing"].note == "CRASH by SIGABRT"
    assert by_name["exit"].note == "exit status 5"
    assert "1 of 2 rows" in by_name["few"].note
    assert [row["result"] for row in summary(tmp_path)] == [f.result for f in findings]
    assert (tmp_path / "exit.log").read_text().startswith("$ -c")


def test_a_wrong_result_is_no_pass(tmp_path):
    code = "open(__import__('sys').argv[1],'w').write('shape,ratio,wrong\\na,3,ours\\nb,3,\\n')"
    case = fake("wrong", steps=(Step(("-c", code, "{out}")),))
    (finding,) = run_all([case], tmp_path)
    assert (finding.result, finding.value) == ("FAIL", pytest.approx(3.0))
    assert "1 wrong" in finding.note


def test_what_hangs_is_ended_with_all_that_it_started(tmp_path):
    beats = tmp_path / "beats"
    child = f"import time\nwhile True: open({str(beats)!r}, 'a').write('.'); time.sleep(0.05)"
    then = f"import subprocess; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(99)"
    begin = time.monotonic()
    hangs = fake("hangs", "[2.0]", then, seconds=2)
    findings = run_all([hangs, fake("next", "[2.0, 2.0]")], tmp_path, 100)
    assert time.monotonic() - begin < 30
    assert results(findings) == {"hangs": "PARTIAL", "next": "PASS"}
    assert "TIMEOUT after 2 s" in findings[0].note
    assert beats.exists()
    before = beats.stat().st_size
    time.sleep(0.3)
    assert beats.stat().st_size == before


def test_sigterm_ends_what_runs_too(tmp_path):
    child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(99)"
    parent = f"""
import subprocess, sys
from benchmarks.harness import end_group
from benchmarks.reproduce import end_on_sigterm
end_on_sigterm()
process = subprocess.Popen([sys.executable, "-c", {child!r}, sys.argv[1]], start_new_session=True)
try:
    process.wait()
finally:
    end_group(process)
"""
    told = tmp_path / "pid"
    process = subprocess.Popen([sys.executable, "-c", parent, str(told)], cwd=ROOT)
    while not (told.exists() and told.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


def test_what_there_is_no_time_for_is_named(tmp_path):
    cases = [fake("first", "[2.0, 2.0]", "time.sleep(1)", seconds=3.0), fake("second", seconds=20)]
    findings = run_all(cases, tmp_path, budget=6.5)
    assert results(findings) == {"first": "PASS", "second": "SKIPPED"}
    assert findings[1].note == "the time is used up"
    assert summary(tmp_path)[1]["result"] == "SKIPPED"


def test_a_resumed_run_leaves_out_what_is_known(tmp_path):
    cases = [fake("good", "[2.0, 2.0]"), fake("behind", "[0.1, 0.1]"), fake("nothing", "[]")]
    run_all(cases, tmp_path)
    again = [fake("good", "[9.0, 9.0]"), fake("behind", "[9.0, 9.0]"), fake("nothing", "[3, 3]")]
    assert results(run_all(again, tmp_path, resume=True)) == {"nothing": "PASS"}
    assert run_all(again, tmp_path, resume=True) == []
    assert len(summary(tmp_path)) == 4


def test_a_resumed_run_runs_again_what_was_stopped_behind_its_goal(tmp_path):
    run_all([fake("slow", "[0.5]", "time.sleep(99)", seconds=2)], tmp_path)
    again = [fake("slow", "[2.0, 2.0]")]
    assert results(run_all(again, tmp_path, resume=True)) == {"slow": "PASS"}
    assert [row["ratio"] for row in load_rows(tmp_path / "slow.csv")] == ["2.0", "2.0"]
    assert "s0,0.5" in (tmp_path / "slow.csv.before").read_text()


def test_every_case_has_caches_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/nowhere")
    names = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_EXT_TUNING_DIR")
    then = "print([os.environ[name] for name in %r])" % (names,)  # noqa: UP031
    run_all([fake("a", then=then), fake("b", then=then)], tmp_path)
    told = [(tmp_path / f"{name}.log").read_text().splitlines()[-1] for name in "ab"]
    assert all(str(tmp_path) in each and "/nowhere" not in each for each in told)
    assert told[0] != told[1]


def test_another_triton_comes_first(tmp_path):
    other = tmp_path / "other"
    (other / "triton").mkdir(parents=True)
    (other / "triton" / "__init__.py").write_text("__version__ = '0.0.other'\n")
    code = "import sys, triton; open(sys.argv[1], 'w').write('shape,ratio\\n' + triton.__version__ + ',2\\n')"  # noqa: E501
    steps = tuple(
        Step(("-c", code, "{out}"), suffix, on_other_triton=suffix == ".other.csv")
        for suffix in (".csv", ".other.csv")
    )
    case = fake("both", steps=steps, figure={"expected": 1})
    findings = run_cases([case], Place(tmp_path, tmp_path / "caches"), 100)
    assert (findings[0].result, findings[0].note) == ("SKIPPED", "needs --other-triton DIR")
    findings = run_cases([case], Place(tmp_path, tmp_path / "caches", other), 100)
    assert findings[0].result == "PASS"
    versions = [load_rows(tmp_path / f"both{step.suffix}")[0]["shape"] for step in steps]
    assert versions[0] != versions[1] == "0.0.other"


def test_a_case_that_needs_more_gpus_is_left_out(tmp_path):
    cases = [fake("two", "[2.0, 2.0]", gpus=2), fake("three", gpus=3)]
    findings = run_cases(cases, Place(tmp_path, tmp_path / "caches", gpus=2), 100)
    assert results(findings) == {"two": "PASS", "three": "SKIPPED"}
    assert findings[-1].note == "needs 3 GPUs, torch sees 2"


def test_a_figure_out_of_what_other_cases_wrote(tmp_path):
    def mean(rows):
        return Reading(sum(len(each) for each in rows.values()), len(rows.get("a.csv", [])))

    figure = Figure("rows", mean, 2.0, expected=2)
    both = Case("both", "of a", (), (figure,), seconds=4, sources=("a.csv",))
    assert results(run_all([both], tmp_path)) == {"both": "PARTIAL"}
    findings = run_all([fake("a"), both], tmp_path, resume=True)
    assert results(findings) == {"a": "PASS", "both": "PASS"}


def test_a_status_that_says_what_the_rows_say_is_no_missing_row(tmp_path):
    cases = [
        fake("told", "[2.0, 2.0]", "sys.exit(1)", tells_by_status=True),
        fake("not", "[2.0, 2.0]", "sys.exit(1)"),
        fake("broken", "[2.0, 2.0]", "sys.exit(3)", tells_by_status=True),
    ]
    findings = run_all(cases, tmp_path)
    assert results(findings) == {"told": "PASS", "not": "PARTIAL", "broken": "PARTIAL"}


# ---- Reading -----------------------------------------------------------------------------------


def test_figures_are_read_out_of_rows(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"rows": [{"us": 1.5, "chosen": True}]}))
    assert load_rows(path) == [{"us": "1.5", "chosen": "True"}]
    path.write_text("{")
    assert load_rows(path) == load_rows(tmp_path / "none.csv") == []

    rows = [{"layer": "a", "r": "2"}, {"layer": "b", "r": ""}, {"layer": "c", "r": "0.5"}]
    mean, worst = mean_of("r")({".csv": rows}), worst_of("r")({".csv": rows})
    assert (mean.value, mean.count, mean.note) == (1.0, 2, "worst 0.500 (c)")
    assert (worst.value, worst.note) == (0.5, "c")
    assert math.isnan(mean_of("r")({".csv": []}).value)
    assert seconds_of({".seconds": [{"seconds": 14.5}]}).value == 14.5

    def layer(name, model_us, best_us, status="ok"):
        results = [{"roles": ["model"], "kind": "gemm", "us": model_us, "status": status}]
        results += [{"roles": ["candidate"], "kind": "gluon", "us": best_us, "status": "ok"}]
        problem = {"groups": 1, "in_channels": 64, "out_channels": 64, "input_size": [8]}
        return {"layer": name, "cudnn_us": 8.0, "occurrences": 1, "problem": problem,
                "torch": {}, "results": results}  # fmt: skip

    found = {
        ".fprop.jsonl": [{"environment": {}}, layer("a", 4.0, 2.0)],
        ".dgrad.jsonl": [layer("a", 8.0, 8.0), layer("b", None, 8.0, "wrong result")],
    }
    alone, both = swept("alone", ".fprop.jsonl")(found), swept("model", *found)(found)
    assert (alone.value, alone.count, alone.note) == (
        pytest.approx(2.0),
        1,
        "worst 2.000 (a.fprop)",
    )
    assert (both.value, both.count, both.wrong) == (pytest.approx(0.5**0.5), 2, 1)
    assert math.isnan(swept("alone", ".wgrad.jsonl")(found).value)

    def mode(name, ms, problem=""):
        return {"model": "unet", "mode": name, "ms": ms, "problem": problem, "spread": "0.01"}

    times = [mode("eager", "6"), mode("ours", "3"), mode("compile", "", "crashed")]
    assert models_ratio("eager", "ours")({".csv": times}).value == pytest.approx(2.0)
    compiled = models_ratio("compile", "ours+compile")({".csv": times})
    assert (compiled.wrong, compiled.note) == (1, "unet compile: crashed")
    four = {f"{name}.csv": [dict(row, model=name) for row in times[:2]] for name in "abcd"}
    four["a.csv"][1]["ms"] = "6"
    mean = models_ratio("eager", "ours")(four)
    assert (mean.value, mean.count) == (pytest.approx(8**0.25), 4)
    assert mean.note == "worst 1.000 (a)"

    peaks = [mode("eager", "6") | {"peak_mib": "100"}, mode("ours", "3") | {"peak_mib": "105"}]
    assert models_ratio("ours", "eager", "peak_mib")({".csv": peaks}).value == pytest.approx(1.05)
    none = [dict(row, peak_mib="0.0") for row in peaks]
    assert models_ratio("ours", "eager", "peak_mib")({".csv": none}).value == 1.0

    def shape(ms, wrong=""):
        return {"layer": "s", "ours_ms": ms, "ours_spread": "0.1", "wrong": wrong}

    both = {".csv": [shape("2")], ".other.csv": [shape("3")]}
    assert across_releases(both).value == pytest.approx(1.5)
    assert across_releases(both | {".csv": [shape("2", "ours")]}).wrong == 1


def test_figures_of_ranks_curves_and_killed_ranks():
    def row(task, mode, ms="", error="", problem=""):
        return {"task": task, "model": "m", "mode": mode, "ms": ms, "error_l2": error,
                "problem": problem, "spread": "0.01" if ms else ""}  # fmt: skip

    rows = [
        row("check", "eager", error="1e-3"), row("check ddp x2", "eager", error="1.5e-3"),
        row("check", "ours", error="1e-3"), row("check ddp x2", "ours", error="1.2e-3"),
        row("training", "eager", "9"), row("training", "ours", "4.5"),
        row("training ddp x2", "eager", "10"), row("training ddp x2", "ours", "4.8"),
    ]  # fmt: skip
    error, speed = ranks_error("ddp")({".csv": rows}), ranks_efficiency("ddp")({".csv": rows})
    assert (error.value, error.count, error.wrong) == (pytest.approx(1.5), 2, 0)
    assert error.note == "eager 1.50, ours 1.20"
    assert (speed.value, speed.spread) == (pytest.approx(4.5 / 4.8 / 0.9), 0.01)
    assert speed.note == "torch's own 0.900, ours 0.938"
    rows[3]["problem"] = "WRONG RESULT"
    assert ranks_error("ddp")({".csv": rows}).wrong == 1
    assert math.isnan(ranks_error("fsdp")({".csv": rows}).value)
    assert math.isnan(ranks_efficiency("fsdp")({".csv": rows}).value)

    curve = {"inside": "0.9", "curve_wrong": "outside at steps (3, 7)"}
    read = of_curve("inside", "curve_wrong")({".json": [curve]})
    assert (read.value, read.wrong, read.note) == (0.9, 1, "outside at steps (3, 7)")

    missing = {"task": "training", "model": "m", "mode": "eager", "problem": "needs p", "ms": ""}
    for reader, found in (
        (of_curve("inside", "curve_wrong"), {".json": [{"model": "m", "problem": "needs p"}]}),
        (ranks_error("ddp"), {".csv": [missing]}),
        (ranks_efficiency("ddp"), {".csv": [missing]}),
        (models_ratio("compile", "ours+compile"), {".csv": [missing]}),
    ):
        read = reader(found)
        assert math.isnan(read.value)
        assert read.note.endswith("needs p")

    found = [{"finding": "the job ends", "good": "True"}, {"finding": "cache", "good": "False"}]
    read = good_findings({".csv": found})
    assert (read.value, read.wrong, read.note) == (1, 1, "cache")


# ---- The command -------------------------------------------------------------------------------


def command(*words):
    parser = argparse.ArgumentParser()
    reproduce.add_arguments(parser)
    return reproduce.run(parser.parse_args(words))


def test_the_list_names_cases_and_goals(capsys):
    assert command("--list") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in CASES)
    assert "bf16 / fp8, mean >= 1.5" in text
    assert "seconds <= 90" in text


def test_a_dry_run_reads_what_the_cases_write(tmp_path):
    names = ("fp8", "choosing.cold", "few_channels")
    assert command("--dry-run", "--only", ",".join(names), "--out", str(tmp_path / "out")) == 0
    rows = {row["case"]: row for row in summary(tmp_path / "out")}
    assert {name: row["result"] for name, row in rows.items()} == dict.fromkeys(names, "DRY")
    assert [rows[name]["rows"] for name in names] == ["14", "1", "19"]


def test_a_dry_run_of_models_and_ranks_runs_tiny_ones(tmp_path):
    if not importlib.import_module("torch.distributed").is_available():
        pytest.skip("this torch has no torch.distributed")
    words = ("--only", "models.curves.vae,ranks.vae", "--out", str(tmp_path))
    status = command("--dry-run", *words)
    assert status == 0, "\n".join(log.read_text()[-4000:] for log in tmp_path.glob("*.log"))
    rows = {(row["case"], row["figure"]): row for row in summary(tmp_path)}
    assert len(rows) == 6
    assert {row["result"] for row in rows.values()} == {"DRY"}
    assert float(rows["models.curves.vae", "windows inside torch's spread"]["value"]) == 1.0
    assert float(rows["ranks.vae", "fsdp, error of ranks / one process"]["value"]) < 2.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "cond.fprop"], "no case 'cond.fprop'"),
        (["--other-triton", "/nowhere"], "has no triton/__init__.py"),
    ],
)
def test_a_wrong_call_is_told(words, message, capsys):
    assert command(*words) == 2
    assert message in capsys.readouterr().out


def test_a_folder_is_written_by_one_run_and_never_by_invented_times(tmp_path, capsys):
    dry = ("--dry-run", "--only", "choosing.cold", "--out", str(tmp_path))
    with contextlib.ExitStack() as stack:
        reproduce._take_folder(tmp_path, False, stack)
        assert command(*dry) == 2
        assert "another run writes there" in capsys.readouterr().out
    reproduce.Summary(tmp_path).add(
        reproduce.Finding(case="conv.1d", figure="mean", value=1.1, result="PASS")
    )
    assert command(*dry) == 2
    assert "has measured times, a dry run invents some" in capsys.readouterr().out
    assert [row["result"] for row in summary(tmp_path)] == ["PASS"]
    (tmp_path / "file").touch()
    assert command("--dry-run", "--out", str(tmp_path / "file")) == 2
    assert f"--out {tmp_path / 'file'}: File exists" in capsys.readouterr().out
