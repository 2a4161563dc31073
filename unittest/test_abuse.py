"""``tools/abuse.py``: how it ends processes, and what it takes for a problem."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

TOOL = pathlib.Path(__file__).parent.parent / "tools" / "abuse.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def ended(tool, place, code, *, seconds=10.0, workers=False, seed=1):
    command = [sys.executable, "-S", "-c", code]
    return tool._run_and_kill(place, command, random.Random(seed), seconds, workers)


@pytest.fixture
def place(tool):
    with tool._place() as place:
        yield place


def test_a_run_that_fails_by_itself_is_no_kill(tool, place):
    end = ended(tool, place, "import sys; sys.exit('planted')", seconds=600.0)
    assert not end.was_killed
    assert end.problem == "ended with status 1, and nothing had ended it: planted"


def test_a_run_that_finishes(tool, place):
    assert ended(tool, place, "", seconds=600.0) == tool._End(False)


def test_a_run_that_is_killed(tool, place):
    assert ended(tool, place, "import time; time.sleep(600)", seconds=1.0) == tool._End(True)
    assert tool._processes(place) == []


def test_a_run_that_does_not_end(tool, place, monkeypatch):
    monkeypatch.setattr(tool, "_LIMIT_SECONDS", 0.5)
    code = "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (1, 15)]"
    code += "\ntime.sleep(600)"

    class Chosen(random.Random):
        def choice(self, numbers):
            return signal.SIGTERM

        def uniform(self, low, high):
            return high

    command = [sys.executable, "-S", "-c", code]
    end = tool._run_and_kill(place, command, Chosen(), 3.0, False)
    assert end == tool._End(True, "went on for 0.5 s after SIGTERM")


def test_a_process_that_has_ended_gets_no_signal(tool, place, monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda *given: sent.append(given))
    assert ended(tool, place, "", seconds=600.0) == tool._End(False)
    assert sent == []


def test_a_worker_is_killed(tool, place):
    code = "import subprocess, sys; subprocess.run(['sleep', '600'], check=True)"
    ends = [ended(tool, place, code, seconds=1.0, workers=True, seed=seed) for seed in range(6)]
    assert [end.problem for end in ends] == [""] * 6
    assert all(end.was_killed for end in ends)
    for process in tool._processes(place):  # of a parent that was killed first
        os.kill(process, signal.SIGKILL)


def test_what_is_left_is_told(tool, place):
    names = ["table.json.aside-17", "table.json.lock", ".table.json.tmp", "table.json"]
    for name in names:
        (place.root / "tables" / name).touch()
    found = tool._files_left(place, "tune")
    assert sorted(found) == sorted(f"{name} is left beside tables" for name in names[:3])


def test_an_output_is_the_old_text_or_the_new_one(tool, place):
    command = tool._command("triton-opt", place, 1)
    assert command[-2:] == ["-o", str(place.output)]
    texts = (tool._OLD, "whole\n")
    for text in texts:
        place.output.write_text(text)
        assert tool._torn_output(place, texts) == ""
    place.output.write_text("who")
    assert tool._torn_output(place, texts) == "left 3 characters of output: 'who'"
    place.output.unlink()
    assert "left an output that cannot be read" in tool._torn_output(place, texts)
    assert tool._torn_output(place, ()) == ""
    (place.output.parent / ".triton-ext-17.tmp").touch()
    assert tool._files_left(place, "triton-opt") == [".triton-ext-17.tmp is left beside the output"]


def test_writers_have_a_time_limit(tool, monkeypatch):
    monkeypatch.setattr(tool, "_LIMIT_SECONDS", 0.5)
    writers = [tool._forked(lambda: time.sleep(600)), tool._forked(lambda: None)]
    assert tool._ends(writers) == [-signal.SIGKILL, 0]


KILLED = """\
import os, signal, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import abuse, bound_processes
fork = abuse._forked(lambda: time.sleep(600))
command = bound_processes.ending_with_this(["sleep", "600"])
session = subprocess.Popen(command, start_new_session=True).pid
while open(f"/proc/{session}/comm").read() != "sleep\\n":
    time.sleep(0.01)
time.sleep(0.5)
print(fork, session, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_children_end_with_a_killed_parent():
    command = [sys.executable, "-c", KILLED, str(TOOL.parent)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    started = [int(word) for word in done.stdout.split()]
    assert len(started) == 2
    end = time.monotonic() + 10
    while (left := [each for each in started if runs(each)]) and time.monotonic() < end:
        time.sleep(0.05)
    for each in left:
        os.kill(each, signal.SIGKILL)
    assert left == []


def runs(process):
    try:
        text = pathlib.Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"
