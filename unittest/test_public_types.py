"""Types of the public names, as type checkers and editors see them."""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

MODULES = (
    "triton_ext",
    "triton_ext.analysis",
    "triton_ext.emulator",
    "triton_ext.errors",
    "triton_ext.gluon.amd",
    "triton_ext.gluon.nvidia",
    "triton_ext.host",
    "triton_ext.ir",
    "triton_ext.language",
    "triton_ext.nn",
    "triton_ext.ops",
    "triton_ext.passes",
    "triton_ext.plugin",
)


def names_of(module):
    return [name for name in importlib.import_module(module).__all__ if name.isidentifier()]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_function_is_annotated(module):
    """What stands in a signature is what ``help`` and editors show."""
    missing = []
    for name in names_of(module):
        function = inspect.unwrap(getattr(importlib.import_module(module), name))
        if not inspect.isfunction(function):
            continue
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.name != "self"]
        annotations = [signature.return_annotation, *(p.annotation for p in parameters)]
        if inspect.Signature.empty in annotations:
            missing.append(name)
    assert not missing


@pytest.mark.parametrize(
    "module", ["triton_ext.gluon.amd", "triton_ext.gluon.nvidia", "triton_ext.language"]
)
def test_type_checkers_read_what_runs(module):
    """Device functions are loaded by name, which no type checker follows: both ways must agree."""
    loaded = importlib.import_module(module)
    tree = ast.parse(pathlib.Path(loaded.__file__).read_text(encoding="utf-8"))
    (branch,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    )
    checked = {alias.name: line.module for line in branch.body for alias in line.names}
    assert sorted(checked) == sorted(loaded.__all__)
    for name, source in checked.items():
        assert getattr(importlib.import_module(source), name) is getattr(loaded, name)


def test_lazy_packages_of_the_package():
    """They resolve after ``import triton_ext``, which imports none of them; ``dir`` lists them."""
    code = (
        "import sys, triton_ext\n"
        "names = ['analysis', 'gluon', 'ir', 'language', 'nn', 'ops', 'passes', 'plugin']\n"
        "assert set(names) <= set(dir(triton_ext)), dir(triton_ext)\n"
        "heavy = ('torch', 'triton', 'numpy')\n"
        "assert not [name for name in heavy if name in sys.modules]\n"
        "for name in names:\n"
        "    assert getattr(triton_ext, name).__name__ == f'triton_ext.{name}'\n"
        "try:\n"
        "    triton_ext.nothing\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "module 'triton_ext' has no attribute 'nothing'\n"


@pytest.mark.slow  # mypy reads the whole package
def test_mypy_knows_every_public_name(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    lines = [f"import {module}" for module in MODULES]
    lines += [f"reveal_type({module}.{name})" for module in MODULES for name in names_of(module)]
    wrong = [
        "triton_ext.language.load_im2col(1, [0], [0], wlak=1)",
        "triton_ext.gluon.nvidia.async_load_im2col(1, [0], [0], 1)",
    ]
    file = tmp_path / "called.py"
    file.write_text("\n".join([*lines, *wrong, ""]))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "", str(file)],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=900,
    )  # fmt: skip
    told = {}
    for line in done.stdout.splitlines():
        if line.startswith("called.py:"):
            _, number, said = line.split(":", 2)
            told.setdefault(int(number), said.strip())
    unknown = [
        lines[number - 1]
        for number, said in told.items()
        if number <= len(lines) and said in ('note: Revealed type is "Any"', "error:")
    ]
    assert not unknown
    assert len(told) >= len(lines) - len(MODULES)
    assert 'Unexpected keyword argument "wlak"' in told[len(lines) + 1]
    assert 'Missing positional argument "result"' in told[len(lines) + 2]
