"""``tools/conformance.py`` over a small checkout, and its verdicts."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
TOOL = ROOT / "tools" / "conformance.py"
pytest.importorskip("triton")
pytest.importorskip("lit")
pytest.importorskip("psutil")

FUNCTION = """\
tt.func public @f(%x: i32) -> i32 {
  // CHECK: arith.muli
  %y = arith.muli %x, %x : i32
  tt.return %y : i32
}
"""
REFUSED = "tt.func public @f(%x: i32) {\n  tt.no_such_operation %x : i32\n  tt.return\n}\n"
FILES = {
    "passes.mlir": f"// RUN: triton-opt %s -canonicalize | FileCheck %s\n{FUNCTION}",
    "sub/two-modules.mlir": "// RUN: triton-opt %s -split-input-file -verify-diagnostics\n"
    f"{FUNCTION}// -----\n"
    "tt.func @g() -> i32 {\n  // expected-error @below {{use of undeclared}}\n"
    "  tt.return %gone : i32\n}\n",
    "no-run-line.mlir": FUNCTION,
    "other-tool.mlir": f"// RUN: triton-opt %s | frobnicate --all\n{FUNCTION}",
    "no-pass.mlir": f"// RUN: triton-opt %s -tritongpu-frobnicate\n{FUNCTION}",
    "other-syntax.mlir": f"// RUN: triton-opt %s -canonicalize\n{REFUSED}",
    "fails.mlir": "// RUN: triton-opt %s -canonicalize | FileCheck %s\n// CHECK: arith.divsi\n"
    f"{FUNCTION}",
    "not-run.mlir": f"// REQUIRES: a-plugin\n// RUN: triton-opt %s\n{FUNCTION}",
    "other.ll": "; RUN: opt %s\n",
    "Inputs/input.mlir": FUNCTION,
}


@pytest.fixture(scope="module")
def conformance(tool):
    return tool


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def written(folder: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
    for name, text in files.items():
        path = folder / "test" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # Upstream's own configuration asks for a build of LLVM; it is not read.
    (folder / "test" / "lit.cfg.py").write_text("raise SystemExit('read')\n")
    return folder


def test_one_verdict_a_file(tmp_path):
    checkout = written(tmp_path / "checkout", FILES)
    done = run(checkout, "--json", tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    found = {
        verdict["file"]: (verdict["kind"], verdict["detail"]) for verdict in report["verdicts"]
    }
    assert found == {
        "passes.mlir": ("passes", ""),
        "sub/two-modules.mlir": ("passes", ""),
        "no-run-line.mlir": ("has no RUN line", ""),
        "other-tool.mlir": ("needs another tool", "frobnicate"),
        "no-pass.mlir": ("the host lacks a pass", "there is no pass 'tritongpu-frobnicate'"),
        "other-syntax.mlir": ("another release's syntax", found["other-syntax.mlir"][1]),
        "fails.mlir": ("fails with the host's passes too", found["fails.mlir"][1]),
        "not-run.mlir": ("asks for what is not there", "a-plugin"),
    }
    assert found["other-syntax.mlir"][1].startswith("line 1: ")
    assert "no_such_operation" in found["other-syntax.mlir"][1]
    assert found["fails.mlir"][1].startswith("fails.mlir:2:11: error: CHECK: expected string")
    assert (report["modules"], report["read"], report["problems"]) == (9, 7, [])
    assert report["others"] == 1
    # No fault of ours: all that does not pass is the host's, or the file's.
    assert done.returncode == 0
    assert re.search(r"^passes\.mlir +passes$", done.stdout, re.MULTILINE)
    assert "modules: 9, of which triton" in done.stdout
    assert "accepts 7 of these and prints them byte for byte" in done.stdout
    assert sorted(p.name for p in (checkout / "test").iterdir() if p.is_dir()) == ["Inputs", "sub"]


def test_a_test_that_hangs_is_stopped(tmp_path):
    hangs = f"// RUN: triton-opt %s -o %t && sleep 100\n{FUNCTION}"
    checkout = written(tmp_path, {"hangs.mlir": hangs})
    done = run(checkout, "--provider", "auto", "--time-limit", 5)
    assert "hangs.mlir  ran out of time\n" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("/no/such/folder",), "expected a checkout of Triton, '/no/such/folder' is no folder"),
        ((ROOT / "tools",), "expected a checkout of Triton with lit files (*.mlir)"),
        ((ROOT, "--only", "no/such/file"), "no lit file's name holds 'no/such/file'"),
        ((ROOT, "--jobs", "0"), "--jobs and --time-limit are at least 1"),
        ((ROOT, "--time-limit", "99999999999"), "a test may take 86400 s"),
        ((ROOT, "--host", "newest"), "expected a release such as 3.9.0, found 'newest'"),
        ((ROOT, "--json", "/no/such/folder/x"), "No such file or directory: '/no/such/folder/x'"),
        ((ROOT, "--write", "--json", "x"), "--json keeps the results of one release"),
    ],
)
def test_nothing_to_run(words, said):
    done = run(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("auto", "host", "changed", "kind"),
    [
        ("PASS", "FAIL", None, "passes"),
        ("FAIL", "PASS", None, "passes with the host's passes only"),
        ("FAIL", "PASS", "PASS", "deviates as listed"),
        ("FAIL", "PASS", "FAIL", "passes with the host's passes only"),
        ("FAIL", "FAIL", "PASS", "deviates as listed"),
        ("FAIL", "FAIL", None, "fails with the host's passes too"),
        ("FAIL", "MISSING", None, "fails"),
    ],
)
def test_verdicts(conformance, tmp_path, auto, host, changed, kind):
    from conformance_runs import LitFile, LitResult

    def result(code: str) -> LitResult:
        if code == "MISSING":
            return LitResult("FAIL", "error: there is no pass 'test-print-something'")
        return LitResult(code, "f.mlir:3:1: error: CHECK: expected string not found in input")

    file = LitFile("f.mlir", "// RUN: triton-opt %s\n")
    found = conformance.judge(
        file,
        {"auto": result(auto), "host": result(host)},
        [],
        result(changed) if changed is not None else None,
        tmp_path,
    )
    assert found.kind == kind
    assert (found.kind in conformance.FAULTS) == (kind in ("fails", conformance.HOST_ONLY))


def test_a_module_that_we_differ_about(conformance, monkeypatch):
    import conformance_runs

    monkeypatch.setattr(conformance_runs, "_difference", lambda text: "is refused")
    file = conformance_runs.LitFile("f.mlir", f"// RUN: triton-opt %s\n{FUNCTION}")
    (module,) = conformance_runs.ask_about_modules([file], time_limit=60)
    assert (module.is_read, module.problem) == (True, "is refused")
    report = conformance.Report(
        triton="3.9.0", verdicts=(), modules=1, read=1, problems=("f.mlir:1: x",), others=0
    )
    assert not report.is_good


def test_parts_of_files_are_modules(conformance):
    from conformance_runs import LitFile

    text = "// RUN: split-file %s %t && triton-opt %t/a.mlir\n//--- a.mlir\nA\n//--- b.mlir\nB\n"
    assert list(LitFile("f.mlir", text).modules()) == [(2, "A\n"), (4, "B\n")]
    text = "// RUN: split-file %s %t && triton-opt %t/a.mlir\nA\n"
    assert list(LitFile("f.mlir", text).modules()) == [(0, text)]
    text = "// RUN: triton-opt %s -split-input-file\nA\n// -----\nB\n"
    assert [line for line, _ in LitFile("f.mlir", text).modules()] == [0, 3]


def test_the_page_lists_what_is_run(conformance, tmp_path):
    verdicts = tuple(
        conformance.Verdict(file=f"{kind}.mlir", kind=kind, detail="", passes=())
        for kind in conformance.MEANINGS
    )
    report = conformance.Report(
        triton="3.9.0", verdicts=verdicts, modules=3, read=2, problems=("a: b",), others=0
    )
    text = conformance.page([report, report], "a checkout", tmp_path)
    for kind, meaning in conformance.MEANINGS.items():
        assert f"| {kind} | 1 | 1 | {meaning} |" in text
        assert (f"`{kind}.mlir`" in text) == (kind != "passes")
    assert "| accepted by us and printed byte for byte | 1 | 1 |" in text


def test_listed_lines_are_changed_at_the_nearest_place(conformance, monkeypatch):
    import conformance_deviations as deviations

    listed = deviations.Deviation(
        file="f.mlir", lines=(2, 3), upstream="= 7", ours="= 5", reason="r", proof="p"
    )
    monkeypatch.setattr(deviations, "DEVIATIONS", (listed,))
    changed = deviations.with_deviations
    assert changed("f.mlir", "a\nx = 7\ny = 7\nz = 7\n")[0] == "a\nx = 5\ny = 5\nz = 7\n"
    # Two lines more in front of them.
    text, found = changed("f.mlir", "\n\na\nx = 7\ny = 7\nb = 8\n")
    assert text == "\n\na\nx = 5\ny = 5\nb = 8\n"
    assert [line for line, _ in found] == [4, 5]
    assert changed("g.mlir", "x = 7\n") == ("x = 7\n", ())
    assert changed("f.mlir", "x = 8\n") == ("x = 8\n", ())
