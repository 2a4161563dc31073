"""docs/write-a-pass.md: its pass is installed as a package, runs in triton-opt and in a compile."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest
from example_packages import EXAMPLES, OPT, install, run, run_lit
from triton_ext import passes
from triton_ext.host import capabilities

ROOT = pathlib.Path(__file__).parent.parent.parent
EXAMPLE = EXAMPLES / "pass-in-30-lines"
DOCUMENT = ROOT / "docs" / "write-a-pass.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> dict[str, str]:
    """The environment of a process that has the example installed."""
    return install(EXAMPLE, tmp_path_factory.mktemp("example"))


def test_the_document_shows_the_file():
    text = (EXAMPLE / "root_to_rsqrt.py").read_text()
    assert BLOCKS[0] == text
    code = [line for line in text.splitlines() if line.strip()]
    assert len(code) <= 30
    entry = re.search(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert entry[1] in (EXAMPLE / "pyproject.toml").read_text()


def test_it_is_in_the_registry(installed):
    code = (
        "from triton_ext.passes import registry; "
        "print(registry.lookup('example-root-to-rsqrt').__module__)"
    )
    assert run(installed, "-c", code) == "root_to_rsqrt\n"


def test_the_documents_pass_manager(installed, tmp_path):
    script = tmp_path / "manager.py"
    script.write_text(BLOCKS[1])
    run(installed, str(script))


@pytest.mark.skipif(
    not capabilities()["stages-hook-key"].available,
    reason=capabilities()["stages-hook-key"].reason,
)
def test_the_documents_compile(installed, tmp_path):
    script = tmp_path / "compiled.py"
    without = "without = triton.compile(source, target=GPUTarget('cuda', 90, 32))\n"
    checks = (
        "assert 'arith.divf' in without.asm['ttgir']\nassert 'div.full' in without.asm['ptx']\n"
    )
    script.write_text(f"{BLOCKS[2]}{without}{checks}")
    run(installed, str(script))


def test_the_documents_facts():
    exec(compile(BLOCKS[3], str(DOCUMENT), "exec"), {})


def test_triton_opt(installed):
    text = run(
        installed,
        *("-c", OPT, str(EXAMPLE / "test" / "root-to-rsqrt.mlir"), "-split-input-file"),
        "-example-root-to-rsqrt",
    )
    first, second, _ = text.split("// -----")
    assert "math.rsqrt" in first
    assert "arith.divf" not in first
    assert "math.rsqrt" not in second


def test_lit(installed, tmp_path):
    assert "Passed: 1" in run_lit(installed, EXAMPLE / "test", tmp_path)


def test_what_the_document_imports_and_names_is_there():
    text = DOCUMENT.read_text()
    assert re.search(r"error_at\(op, \"message\"\)`, from\s+`triton_ext\.passes`", text)
    assert callable(passes.error_at)
    assert "pip install '.[test]'" in text
    if (ROOT / "pyproject.toml").exists():
        extra = re.search(r"^test = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)
        assert '"lit>=' in extra[1]


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs a git checkout"
)
def test_what_pip_leaves_in_the_example_is_ignored():
    left = ["build/lib/root_to_rsqrt.py", "pass_in_30_lines.egg-info/PKG-INFO"]
    paths = [str(EXAMPLE / name) for name in left]
    command = ["git", "-C", str(ROOT), "check-ignore", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:-1] == paths
