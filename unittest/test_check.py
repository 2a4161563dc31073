"""``tools/check.py``: what ``make quick`` runs, and how long a run is said to take."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

TOOL = pathlib.Path(__file__).parent.parent / "tools" / "check.py"


def collected(tool, name):
    """The tests that a check of pytest selects, as its own command line collects them."""
    (check,) = (check for check in tool.CHECKS if check.name == name)
    words = [*check.command[1:], "-n", "0", "--collect-only"]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=TOOL.parents[1],
        env={**os.environ, **check.variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.slow
def test_quick_has_the_compilers_side_without_its_slow_tests(tool):
    tests = collected(tool, "pytest-quick")
    folders = {test.split("/")[1] for test in tests}
    assert folders == {"ir", "analysis", "passes", "llvm_ir", "tools"}
    assert any("test_roundtrip.py::" in test for test in tests)
    assert not any("test_ranges_random.py::test_numbers" in test for test in tests)


@pytest.mark.slow
def test_quick_has_one_case_of_each_family(tool):
    pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")
    from triton_ext.ops.core.planner import FAMILIES

    tests = collected(tool, "pytest-kernels")
    taken = [test.partition("test_dtype[")[2].removesuffix("-float16]") for test in tests]
    families = {f"{family.direction}-{family.kind}" for family in FAMILIES}
    assert len(set(taken)) == len(taken)
    assert set(taken) <= families
    # Families of Gluon kernels take nothing in Triton's interpreter.
    assert len(taken) >= 17


def test_quick_has_no_check_that_takes_long(tool):
    environment = tool.environment_for("0.0.0")
    quick = [check for check in tool.CHECKS if check.quick]
    assert {"ruff-check", "ruff-format", "prose"} < {check.name for check in quick}
    assert sum(tool.expected_seconds(environment, check) for check in quick) <= 60


def test_the_last_time_is_what_a_run_is_expected_to_take(tool, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tool, "environment_for", lambda host: tool_environment(tool, tmp_path))
    (lit,) = (check for check in tool.CHECKS if check.name == "lit")
    tool._note_seconds(tool_environment(tool, tmp_path), lit, 33.33)
    tool._say_how_long(["3.9.0", "3.8.0"], (lit,))
    assert capsys.readouterr().out == "checks: lit: about 67 seconds\n"


def tool_environment(tool, folder):
    return tool.Environment(folder=folder, triton="3.9.0")


def test_every_file_for_the_interpreter_is_run(tool):
    (check,) = (check for check in tool.CHECKS if check.name == "pytest-interpreted")
    files = {str(path.relative_to(tool.ROOT)) for path in TOOL.parents[1].rglob("interpreter_*.py")}
    named = {word for word in check.command if word.startswith("unittest")}
    ours = {file for file in files if file.startswith("unittest/")}
    assert len(ours) > 8
    assert named == {*ours, "unittest/ops/test_conformance.py"}
    assert check.every_host
    assert check.variables["TRITON_INTERPRET"] == "1"


def test_without_the_interpreter_its_files_say_how_to_run_them(monkeypatch):
    from interpreted import why_not_interpreted

    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert why_not_interpreted() == "set TRITON_INTERPRET=1 before pytest starts"


def test_a_seed_gives_an_order_of_whole_files():
    import host_plan

    class Item:
        def __init__(self, file, number):
            self.path, self.number = pathlib.Path(file), number

    def order(seed):
        items = [Item(file, number) for file in "abcdef" for number in range(5)]
        host_plan.put_in_order(items, seed)
        return [(item.path.name, item.number) for item in items]

    files = [name for name, _ in order("1")]
    assert all(files[i : i + 5] == [files[i]] * 5 for i in range(0, 30, 5))
    assert sorted(order("1")) == sorted(order(None))
    assert order("1") == order("1")
    assert len({tuple(order(str(seed))) for seed in range(5)}) == 5


@pytest.mark.parametrize("name", ["pytest", "pytest-interpreted", "pytest-quick", "lit"])
def test_a_seed_is_given_to_pytest(tool, name):
    (check,) = (check for check in tool.CHECKS if check.name == name)
    command = tool._shuffled(check, "7").command
    assert (command[-2:] == ("--shuffle", "7")) == (name != "lit")
    part = tool._part_for("3.7.0", tool._shuffled(check, "7")).command
    assert ("--shuffle" in part) == (name != "lit")
