"""``tools/fuzz.py`` finds faults that are planted, reduces them, and finds none otherwise."""

from __future__ import annotations

import collections
import contextlib
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from random import Random

import pytest
from triton_ext.errors import ParseError
from triton_ext.ir import Module

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
SEED = """\
module attributes {"ttg.num-warps" = 4 : i32} {
  tt.func public @f(%x: i32, %y: i32) -> i32 {
    %a = arith.addi %x, %y : i32
    %b = arith.muli %a, %x : i32
    tt.return %b : i32
  }
}
"""


@pytest.fixture(scope="module", autouse=True)
def importable():
    sys.path.insert(0, str(TOOLS))
    yield
    sys.path.remove(str(TOOLS))


def tool(name):
    return importlib.import_module(name)


def examine(text, **options):
    return tool("fuzz_ir").examine(text, Random(0), passes=(), edits=0, **options)


def test_a_module_without_a_fault():
    assert examine(SEED) is None
    assert examine("module {") is None  # refused, as it should be
    for seed in range(20):
        ir = tool("fuzz_ir")
        assert ir.examine(SEED, Random(seed), passes=ir.pass_names(), edits=2) is None


def test_a_foreign_exception(monkeypatch):
    def faulty(module):
        if "arith.muli" in str(module):
            raise KeyError("planted")

    monkeypatch.setattr(Module, "verify", faulty)
    found = examine(SEED)
    assert (found.kind, found.step) == ("exception", "verify")
    assert found.signature.startswith("exception KeyError at ")
    assert examine(SEED.replace("muli", "addi")) is None


def test_another_text(monkeypatch):
    monkeypatch.setattr(Module, "__str__", lambda module: module.source.text.rstrip())
    found = examine(SEED)
    assert (found.kind, found.step) == ("round trip", "print")


def test_a_hang(monkeypatch):
    ir = tool("fuzz_ir")
    monkeypatch.setattr(ir, "LIMIT_SECONDS", 0.2)

    def endless(module):
        while True:
            pass

    monkeypatch.setattr(Module, "verify", endless)
    found = examine(SEED)
    assert (found.kind, found.step) == ("hang", "verify")
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_errors_of_ours_are_none(monkeypatch):
    def refusing(module):
        raise ParseError("planted")

    monkeypatch.setattr(Module, "verify", refusing)
    assert examine(SEED) is None


def test_a_finding_is_reduced_and_kept(monkeypatch, tmp_path):
    def faulty(module):
        if "arith.muli" in str(module):
            raise KeyError("planted")

    monkeypatch.setattr(Module, "verify", faulty)
    path = tool("fuzz_cases").keep(examine(SEED), tmp_path / "cases")
    assert path.parent == tmp_path / "cases"
    text = path.read_text()
    assert "arith.muli" in text
    assert len(text) < 60


def test_reduction_takes_away_what_can_go():
    lines = "".join(f"line {number}\n" for number in range(100))
    found = tool("fuzz_cases").reduced(lines, lambda text: "7" in text and "3" in text)
    assert sorted(found) == ["3", "7"]


def test_a_module_of_a_run_is_always_the_same():
    ir = tool("fuzz_ir")
    seeds = [ir.Seed("a", SEED), ir.Seed("b", SEED.replace("addi", "subi"))]
    first, second, other = (ir.Mutator(seeds, seed) for seed in (3, 3, 4))
    texts = [first.make(number)[1] for number in range(200)]
    assert texts == [second.make(number)[1] for number in range(200)]
    assert texts != [other.make(number)[1] for number in range(200)]
    assert len(set(texts)) > 150


@pytest.mark.parametrize("door", ["command-lines", "tables", "descriptors"])
def test_other_doors(door):
    doors, ir = tool("fuzz_doors"), tool("fuzz_ir")
    said = []
    if not doors.is_there(door, said.append):
        pytest.skip(said[0])
    for seed in range(60):
        text, run = doors.INPUTS[door](Random(seed))
        found = ir.guarded(door, text, run)
        assert found is None, f"{text}\n{found.detail}"


def planted(monkeypatch, run_input, *, modules=3):
    """A plan for one worker whose tables run something else."""
    fuzz, doors = tool("fuzz"), tool("fuzz_doors")
    monkeypatch.setitem(doors.INPUTS, "tables", lambda rng: (str(rng.random()), run_input))
    return fuzz._Plan(
        mutator=tool("fuzz_ir").Mutator([], 1),
        seed=1,
        doors=("tables",),
        jobs=1,
        end=time.monotonic() + 60,
        modules=modules,
    )


def test_inputs_of_other_doors_follow_the_seed():
    fuzz = tool("fuzz")
    for door in ("command-lines", "descriptors"):
        texts = [fuzz.make_other(door, 3, number)[0] for number in range(50)]
        assert texts == [fuzz.make_other(door, 3, number)[0] for number in range(50)]
        assert texts != [fuzz.make_other(door, 4, number)[0] for number in range(50)]
        assert len(set(texts)) > 30


def test_an_input_that_ends_the_process(monkeypatch):
    fuzz = tool("fuzz")
    plan = planted(monkeypatch, lambda step: os.kill(os.getpid(), signal.SIGKILL))
    totals = fuzz.run(plan)
    ((number, found),) = totals.findings.values()
    assert found.signature == "the process ended in tables: exit status -9"
    assert (found.door, found.kind, totals.times[found.signature]) == ("tables", "exception", 3)
    assert found.text == fuzz.make_other("tables", 1, number)[0]


def test_an_input_that_blocks(monkeypatch):
    fuzz = tool("fuzz")
    monkeypatch.setattr(fuzz, "_STUCK_SECONDS", 1.0)
    totals = fuzz.run(planted(monkeypatch, lambda step: time.sleep(600), modules=1))
    ((_, found),) = totals.findings.values()
    assert (found.kind, found.signature) == ("hang", "the process ended in tables: hang")


def test_findings_before_a_hang_are_kept(monkeypatch):
    fuzz = tool("fuzz")
    monkeypatch.setattr(fuzz, "_STUCK_SECONDS", 2.0)
    monkeypatch.setattr(fuzz, "_REPORT_SECONDS", 0.0)
    done = iter(("exception: planted", ""))

    def run_input(step):
        return next(done, None) or time.sleep(600)

    found = fuzz.run(planted(monkeypatch, run_input, modules=1)).findings
    assert [f.signature for _, f in found.values()] == ["exception in start: planted"]
    done = iter(("exception: planted",))
    found = fuzz.run(planted(monkeypatch, run_input, modules=2)).findings
    assert len(found) == 2


@pytest.mark.parametrize("error", [EOFError(), OSError("got end of file during message")])
def test_a_worker_that_ends_in_the_middle_of_a_message(monkeypatch, error):
    fuzz = tool("fuzz")
    plan = planted(monkeypatch, lambda step: "", modules=1)
    worker = fuzz._Worker(0, 0, plan)
    worker.process.join()

    class Pipe:
        def recv(self):
            raise error

        def close(self):
            worker.pipe.close()

    pipe = Pipe()
    workers = {pipe: worker}
    fuzz._take(pipe, workers, fuzz.Totals())
    assert workers == {}


def test_what_ended_its_process_is_not_run_again(monkeypatch, tmp_path):
    fuzz, cases = tool("fuzz"), tool("fuzz_cases")
    found = tool("fuzz_ir").Finding(
        door="ir", kind="hang", step=fuzz.ENDED, signature="planted", detail="", text=SEED
    )
    monkeypatch.setattr(cases, "examine_case", None)
    assert fuzz._kept(found, tmp_path).read_text() == SEED


def test_a_reduction_that_ends_its_process(monkeypatch, tmp_path):
    fuzz, cases = tool("fuzz"), tool("fuzz_cases")
    found = tool("fuzz_ir").Finding(
        door="ir", kind="exception", step="verify", signature="planted", detail="", text=SEED
    )
    monkeypatch.setattr(cases, "examine_case", lambda *given, **options: os._exit(3))
    assert fuzz._kept(found, tmp_path).read_text() == SEED
    monkeypatch.setattr(fuzz, "_KEEPING_SECONDS", 1.0)
    monkeypatch.setattr(cases, "examine_case", lambda *given, **options: time.sleep(600))
    assert fuzz._kept(found, tmp_path).read_text() == SEED


def c_findings(monkeypatch, tmp_path, recipe, program):
    """Runs the door of C with another Makefile and other programs."""
    doors = tool("fuzz_doors")
    (tmp_path / "Makefile").write_text(f"fuzz:\n\t{recipe}\n")
    for sanitizer in ("asan", "tsan"):
        path = tmp_path / "build" / sanitizer / "fuzz_calls"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(0o755)
    monkeypatch.setattr(doors, "_C_FOLDER", tmp_path)
    monkeypatch.setattr(doors, "_sanitizers_problem", lambda: "")
    if doors.shutil.which("make") is None or doors.shutil.which("cc") is None:
        pytest.skip("needs make and a C compiler")
    counts, said = collections.Counter(), []
    return list(doors.c_calls(7, counts, said.append)), counts


def test_a_failed_build_of_the_c_calls(monkeypatch, tmp_path):
    found, counts = c_findings(monkeypatch, tmp_path, "@echo a.c:1: error: planted; false", "")
    assert [(f.door, f.step, f.signature) for f in found] == [
        ("c", "the build", "the build: a.c:1: error: planted")
    ]
    assert counts == {}


def test_c_calls_that_do_not_end(monkeypatch, tmp_path):
    monkeypatch.setattr(tool("fuzz_doors"), "_C_SECONDS", 2.0)
    found, counts = c_findings(monkeypatch, tmp_path, "@true", "sleep 600")
    assert [(f.kind, f.signature) for f in found] == [
        ("hang", "asan: more than 2 s"),
        ("hang", "tsan: more than 2 s"),
    ]
    assert counts == {}


def test_c_calls_that_fail(monkeypatch, tmp_path):
    found, _ = c_findings(monkeypatch, tmp_path, "@true", 'echo "ERROR: planted $3" >&2; exit 1')
    assert [f.signature for f in found] == ["asan: ERROR: planted 7", "tsan: ERROR: planted 7"]


def run_tool(*arguments, folder, door="ir"):
    seeds = folder / "seeds" / "3.9.0"
    seeds.mkdir(parents=True, exist_ok=True)
    (seeds / "a.mlir").write_text(SEED)
    command = [sys.executable, str(TOOLS / "fuzz.py"), "--only", door, "--seed", "1"]
    command += ["--seeds", str(folder / "seeds"), "--cases", str(folder / "cases"), *arguments]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_EXT_CORPUS"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_the_command_line(tmp_path):
    start = time.monotonic()
    out = tmp_path / "out.json"
    done = run_tool("--modules", "300", "--jobs", "2", "--out", str(out), folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 1, 2 jobs" in done.stdout
    assert "300 modules" in done.stdout
    summary = json.loads(out.read_text())
    assert summary["modules"] == 300
    assert summary["seeds"]["3.9.0"] == 1
    for count in ("foreign_exceptions", "hangs", "differing_round_trips", "left_invalid"):
        assert summary[count] == 0
    assert summary["findings"] == []
    assert time.monotonic() - start < 120


def test_another_door_alone(tmp_path):
    out = tmp_path / "out.json"
    arguments = ("--modules", "20", "--jobs", "1", "--out", str(out))
    done = run_tool(*arguments, folder=tmp_path, door="command-lines")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(out.read_text())
    assert (summary["modules"], summary["other_inputs"]) == (0, {"command-lines": 20})
    done = run_tool("--show", "3", folder=tmp_path, door="command-lines")
    assert json.loads(done.stdout)
    assert done.stderr.endswith("no finding\n")


def test_it_stops_by_itself(tmp_path):
    done = run_tool("--minutes", "0.02", "--jobs", "1", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workers_end_with_a_killed_run(tmp_path):
    (tmp_path / "a.mlir").write_text(SEED)
    mark = f"--seeds={tmp_path}"
    command = [sys.executable, str(TOOLS / "fuzz.py"), "--only=ir", "--jobs=2", mark]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def processes():
        found = 0
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended
                found += mark.encode() in path.read_bytes()
        return found

    try:
        _wait(lambda: processes() == 3)
    finally:
        run.kill()
        run.wait()
    _wait(lambda: processes() == 0)


def _wait(is_so, seconds=60):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_one_module_is_shown(tmp_path):
    done = run_tool("--show", "17", folder=tmp_path)
    assert done.stderr.endswith("no finding\n")
    assert done.stdout
    assert done.stdout == run_tool("--show", "17", folder=tmp_path).stdout


def test_wrong_command_lines(tmp_path):
    assert run_tool("--jobs", "0", folder=tmp_path).returncode == 2
    done = run_tool("--seeds", str(tmp_path / "gone"), folder=tmp_path)
    assert done.returncode == 2
    assert "there is no" in done.stderr
