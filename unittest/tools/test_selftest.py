"""triton-ext doctor --selftest: what it compiles works, what breaks is a line and a status."""

from __future__ import annotations

import dataclasses
import importlib.util
import json

import pytest
from triton_ext.errors import UnsupportedError
from triton_ext.host import capabilities
from triton_ext.selftest.checks import CHECKS, NotShown, _all_of, _im2col_copies, _two_partitioned
from triton_ext.tools import cli, doctor, selftest
from triton_ext.tools.selftest import Outcome


@pytest.mark.slow
@pytest.mark.slow
def test_this_triton_does_what_the_table_promises():
    skipped = {"gpu": "not asked for"}
    for name in ("numpy", "torch"):
        if importlib.util.find_spec(name) is None:
            skipped[name] = "not installed"
    found = selftest.run_checks(skipped)
    assert [(t.target, t.feature) for t in found] == [(c.target, c.feature) for c in CHECKS]
    for tested, check in zip(found, CHECKS, strict=True):
        has = not check.needs or capabilities()[check.needs].available
        wanted = "skipped" if check.target in skipped else "yes" if has else "absent"
        assert tested.status == wanted, tested
        assert tested.text


def test_every_target_and_need_is_known():
    compiled = {"sm_90", "sm_100", "gfx942", "gfx950", "gfx1250"}
    assert {c.target for c in CHECKS} == compiled | {"cpu", "numpy", "torch", "gpu"}
    assert {c.needs for c in CHECKS} - {""} <= set(capabilities())
    assert len({c.name for c in CHECKS}) == len(CHECKS)


def test_code_that_does_not_show_it_fails():
    with pytest.raises(NotShown, match=r"no im2col copy"):
        _im2col_copies({"ptx": "cp.async.bulk.tensor.2d.shared", "cubin": b""})
    with pytest.raises(NotShown, match=r"copies of 16 bytes were expected, there are: 4, 16"):
        _all_of({4, 16}, 16)
    with pytest.raises(NotShown, match="there are: none"):
        _all_of(set(), 16)


PARTITIONED = """#s = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 1}>
%one = ttg.local_alloc : () -> !ttg.memdesc<64x32xf16, #s, #smem, mutable>
%two = ttg.local_alloc : () -> !ttg.memdesc<64x32xf16, #s, #smem, mutable>
"""


def test_partitioned_values_are_counted():
    assert "LDS up to byte 70648" in _two_partitioned(PARTITIONED, 70648)
    with pytest.raises(NotShown, match="1 of 2 values in two partitions, expected 2"):
        _two_partitioned(PARTITIONED.replace("#s, ", "#t, ", 1), 70648)
    with pytest.raises(NotShown, match="0 of 2 values in two partitions"):
        _two_partitioned(PARTITIONED.replace("numPartitions = 2", "numPartitions = 1"), 70648)
    with pytest.raises(NotShown, match="up to byte 8192: both values are entirely in the first"):
        _two_partitioned(PARTITIONED, 8192)


@pytest.mark.parametrize("missing", ["torch", "GPU"])
def test_the_check_on_a_gpu_says_what_it_lacks(monkeypatch, missing):
    monkeypatch.setattr(selftest, "run_checks", lambda skipped: seen.append(skipped) or ())
    seen = []
    report = doctor.examine()
    works = [
        dataclasses.replace(work, good=False, text=f"see above: {missing}")
        if work.topic.startswith("triton_ext.ops (")
        else work
        for work in report.works
    ]
    doctor.with_selftest(dataclasses.replace(report, works=tuple(works)))
    assert seen[0]["gpu"] == f"see above: {missing}"


# A stand-in for the module that compiles.
CHILD = """
import json, os, sys, time
def say(**fields):
    print("triton-ext-selftest", json.dumps(fields), flush=True)
if sys.argv[1:] == ["--list"]:
    {start}
    say(checks=[["a", f, ""] for f in ("good", "dies", "sleeps", "last")] + [["b", "good", ""]])
else:
    for name in sys.argv[1:]:
        say(name=name, status="begun")
        if name == "a:dies":
            print("Assertion `x' failed.", file=sys.stderr, flush=True)
            os.abort()
        if name == "a:sleeps":
            time.sleep(60)
        say(name=name, status="yes", text=name)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    def install(start="pass"):
        (tmp_path / "stand_in_selftest.py").write_text(CHILD.replace("{start}", start))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(selftest, "_MODULE", "stand_in_selftest")

    return install


def test_a_dead_or_endless_process_is_one_line(stand_in):
    stand_in()
    found = {f"{t.target}:{t.feature}": t for t in selftest.run_checks({}, limit=3)}
    assert [found[name].status for name in found] == ["yes", "no", "no", "yes", "yes"]
    assert found["a:dies"].text == "Triton ended the process (SIGABRT): Assertion `x' failed."
    assert found["a:sleeps"].text == "no end after 3 seconds"


def test_one_that_does_not_start_is_an_error(stand_in):
    stand_in("sys.exit('no compiler here')")
    with pytest.raises(UnsupportedError, match=r"does not start: .* status 1: no compiler here"):
        selftest.run_checks({})


@pytest.mark.parametrize(("status", "expected"), [("yes", 0), ("absent", 0), ("no", 1)])
def test_the_status_tells_of_failures(monkeypatch, capsys, status, expected):
    tested = (Outcome("sm_90", "im2col convolution", status, "as seen"),)
    monkeypatch.setattr(doctor.selftest, "run_checks", lambda skipped: tested)
    assert cli.main(["doctor", "--selftest"]) == expected
    assert f"{int(status == 'no')} should work and do not" in capsys.readouterr().out
    assert cli.main(["doctor", "--selftest", "--json"]) == expected
    assert json.loads(capsys.readouterr().out)["selftest"] == [
        {
            "target": "sm_90",
            "feature": "im2col convolution",
            "status": status,
            "text": "as seen",
        }
    ]


def test_a_selftest_that_does_not_start_is_a_failure(monkeypatch, capsys):
    def broken(skipped):
        raise UnsupportedError("the selftest does not start: gone")

    monkeypatch.setattr(doctor.selftest, "run_checks", broken)
    assert cli.main(["doctor", "--selftest"]) == 1
    assert "the selftest does not start: gone" in capsys.readouterr().out


def test_a_list_of_leaks_does_not_hide_the_error():
    errors = (
        b"Traceback (most recent call last):\nValueError: the cause\n"
        b'nanobind: leaked 2 types!\n - leaked type "triton._C.libtriton.ir.attribute"\n'
        b" - ... skipped remainder\n"
        b"nanobind: this is likely caused by a reference counting issue in the binding code.\n"
        b"See https://nanobind.readthedocs.io/en/latest/refleaks.html"
    )
    said = selftest._how_it_ended(1, errors)
    assert said == "the process ended with status 1: ValueError: the cause"
