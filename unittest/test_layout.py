"""The import rules of the folders, over the package that is installed."""

from __future__ import annotations

import ast
import json
import os
import pathlib
import subprocess
import sys
from dataclasses import dataclass

import pytest
import triton_ext
from triton_ext import backends

# What each folder (longest match) may import: folders of ours, and packages of others.
# A <- B means that B may import A; CONTRIBUTING.md says it in words.
COMPILER = {"errors", "markers", "ir", "llvm_ir", "analysis", "passes"}
RULES: dict[str, tuple[set[str], set[str]]] = {
    # Packages, the vendor's class and the emulator's door only to tell type checkers what
    # __getattr__ returns.
    "": (
        COMPILER
        | {
            "backends",
            "backends.V.backend",
            "emulator",
            "gluon",
            "language",
            "nn",
            "ops",
            "plugin",
        },
        set(),
    ),
    "__main__": ({"tools"}, set()),
    "errors": (set(), set()),
    "markers": (set(), set()),
    "strings": (set(), set()),
    # The compiler side and the host show lines of sources by the same rule.
    "source_files": (set(), set()),
    "ir": ({"errors", "ir", "strings"}, set()),
    "llvm_ir": ({"errors", "llvm_ir", "strings"}, set()),
    # The table of memory effects finds the vendors' rows by name.
    "analysis": ({"errors", "ir", "analysis", "backends"}, set()),
    # The registry finds the vendors' tables of passes by name.
    "passes": (COMPILER | {"backends", "source_files"}, set()),
    "host": ({"errors", "host", "source_files", "strings"}, {"triton"}),
    "own_passes": ({"", "backends", "errors", "host", "markers", "passes"}, set()),
    "plugin": (
        {"", "backends", "errors", "host", "ir", "markers", "own_passes", "passes"},
        {"triton"},
    ),
    # It runs what the compiler side reads, and says where as passes do.
    "emulator": ({"errors", "ir", "passes", "backends", "emulator"}, {"numpy"}),
    # Device functions are loaded by name; type checkers need the import.
    "language": ({"backends", "backends.V.language", "plugin"}, {"triton"}),
    "gluon": ({"backends", "backends.V.gluon", "plugin"}, {"triton"}),
    "ops": ({"plugin", "ops.api", "ops.families", "ops.norms"}, set()),
    "ops.core": ({"backends", "errors", "host", "plugin", "ops.core"}, {"torch", "triton"}),
    "ops.kernels": (
        {"backends", "errors", "gluon", "host", "language", "ops.core", "ops.kernels"},
        {"torch", "triton"},
    ),
    "ops.families": (
        {"backends", "errors", "host", "ops.core", "ops.kernels", "ops.families"},
        {"torch", "triton"},
    ),
    # ``prefer="fastest"`` measures where models are not sure.
    "ops.api": ({"errors", "ops.api", "ops.core", "ops.tuning"}, {"torch"}),
    "ops.norms": (
        {"errors", "host", "ops.api", "ops.core", "ops.kernels", "ops.norms"},
        {"torch", "triton"},
    ),
    # rich, where it is installed, shows progress.
    "ops.tuning": (
        {"errors", "host", "ops", "ops.api", "ops.core", "ops.families", "ops.tuning"},
        {"rich", "torch", "triton"},
    ),
    # rich draws its table where it is installed.
    "nn": (
        {"errors", "ops", "ops.api", "ops.core", "ops.kernels", "ops.norms", "nn", "nn.kernels"},
        {"torch", "rich"},
    ),
    "nn.kernels": ({"ops.kernels", "ops.norms"}, {"triton"}),
    "tools": (
        {"", "backends", "errors", "host", "strings", "tools", "tools.doctor", "tools.explain"}
        | {"tools.tune"}
        | COMPILER,
        set(),
    ),
    # Its command runs where torch and a GPU are.
    "tools.tune": ({"errors", "ops.tuning", "tools"}, set()),
    # Its command needs torch.
    "tools.explain": ({"ops.tuning", "tools"}, set()),
    # It looks at what is installed; every import stands in a guarded probe.
    "tools.doctor": ({"", "backends", "errors", "host", "plugin", "tools"}, {"torch"}),
    # It compiles with all of the package, in processes of its own.
    "selftest": (
        {"analysis", "backends", "errors", "gluon", "host", "ir", "language", "ops", "passes"}
        | {"selftest", "strings"},
        {"numpy", "torch", "triton"},
    ),
    "backends": ({"backends"}, set()),
    "backends.V": (set(), set()),
    "backends.V.dialect": (
        {"errors", "markers", "ir", "llvm_ir", "analysis", "backends.V.dialect"},
        set(),
    ),
    "backends.V.analysis": (
        {"errors", "ir", "analysis", "backends.V.analysis", "backends.V.dialect"},
        set(),
    ),
    "backends.V.passes": (
        COMPILER | {"backends.V.analysis", "backends.V.dialect", "backends.V.passes"},
        set(),
    ),
    # The launcher reads from the lowered module what a launch is checked against.
    "backends.V.backend": (
        {"errors", "host", "markers", "backends.V.backend"},
        {"numpy", "triton"},
    ),
    # The model of the walk is the one that descriptors are checked with.
    "backends.V.emulator": (
        {"errors", "ir", "emulator", "backends.V.analysis", "backends.V.dialect"}
        | {"backends.V.backend", "backends.V.emulator"},
        {"numpy"},
    ),
    "backends.V.gluon": (
        {"errors", "host", "backends.V.backend", "backends.V.dialect", "backends.V.gluon"}
        | {"backends", "backends.V.language", "emulator"},
        {"numpy", "triton"},
    ),
    "backends.V.language": (
        {"errors", "host", "markers", "backends.V.backend", "backends.V.language"},
        {"numpy", "triton"},
    ),
}


@dataclass(frozen=True, slots=True)
class Import:
    """One import statement: the module that has it, its line, and what it imports."""

    importer: str
    line: int
    imported: str


def modules() -> dict[str, pathlib.Path]:
    """Every module of the package, by its name without ``triton_ext``."""
    found: dict[str, pathlib.Path] = {}
    roots = [(pathlib.Path(path), "") for path in triton_ext.__path__]
    for vendor in backends.VENDORS:
        roots += [(path, f"backends.{vendor}") for path in backends.folders(vendor)]
    for root, prefix in roots:
        # Links too, in which a checkout may lie beside what is installed.
        walked = os.walk(root, followlinks=True)
        paths = (pathlib.Path(folder, file) for folder, _, files in walked for file in files)
        for path in (path for path in paths if path.suffix == ".py"):
            parts = [*prefix.split("."), *path.relative_to(root).with_suffix("").parts]
            name = ".".join(part for part in parts if part and part != "__init__")
            found[name] = path
    return found


MODULES = modules()


def imports_of(name: str) -> list[Import]:
    """Every import of a module, those in functions and for type checking included."""
    path = MODULES[name]
    package = ("triton_ext." + name).strip(".")
    if path.name != "__init__.py":
        package = package.rpartition(".")[0]
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [Import(name, node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                is_module = full.removeprefix("triton_ext.") in MODULES
                found.append(Import(name, node.lineno, full if is_module else base))
    return found


def vendor_neutral(name: str) -> tuple[str, str | None]:
    """Replaces the vendor's name by V; returns it beside."""
    parts = name.split(".")
    if parts[0] == "backends" and len(parts) > 1:
        return ".".join(["backends", "V", *parts[2:]]), parts[1]
    return name, None


def layer_of(name: str) -> str:
    """The longest rule that covers a module."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if (prefix := ".".join(parts[:length])) in RULES:
            return prefix
    raise AssertionError(f"no rule covers triton_ext.{name}: add its folder to RULES")


def problem_of(found: Import) -> str | None:
    importer, vendor = vendor_neutral(found.importer)
    ours, others = RULES[layer_of(importer)]
    top = found.imported.partition(".")[0]
    if top != "triton_ext":
        allowed = top in sys.stdlib_module_names or top in others
        return None if allowed else f"imports {found.imported}"
    target, target_vendor = vendor_neutral(found.imported.removeprefix("triton_ext").strip("."))
    if vendor is not None and target_vendor is not None and vendor != target_vendor:
        return f"imports {found.imported}, another vendor"
    return None if layer_of(target) in ours else f"imports {found.imported}"


@pytest.mark.parametrize("name", sorted(MODULES), ids=lambda name: name or "__init__")
def test_imports_go_one_way(name):
    problems = [
        f"{MODULES[name]}:{found.line}: {problem}"
        for found in imports_of(name)
        if (problem := problem_of(found)) is not None
    ]
    assert not problems, "\n".join(problems)


def test_every_folder_of_modules_is_installed():
    # setuptools installs folders with an __init__.py only.
    for path in MODULES.values():
        if "ops" in path.parts:
            assert (path.parent / "__init__.py").exists(), path.parent


def test_the_rules_refuse_what_they_should():
    for importer, imported in (
        ("ir.parser", "triton"),
        ("ir.parser", "triton_ext.passes"),
        ("passes.base", "triton_ext.plugin"),
        ("host.detect", "triton_ext.plugin"),
        ("language", "triton_ext.ir"),
        ("backends.nvidia.passes.x", "triton_ext.backends.amd.dialect"),
        ("backends.nvidia.backend.x", "torch"),
        ("ops.kernels.gemm", "triton_ext.ops.api.checks"),
        ("ops.kernels.gluon_wgrad", "triton_ext.ops.families.gluon_wgrad"),
        ("ops.core.packing", "triton_ext.ops.families.gemm_config"),
        ("ops.core.case", "triton_ext.ops.kernels.gemm"),
        ("ops.core.launcher", "triton_ext.ops.api.operators"),
    ):
        assert problem_of(Import(importer, 1, imported)), (importer, imported)


def probes_of(tree: ast.AST) -> list[int]:
    """Lines that ask a module of Triton for a name that it may lack."""
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {
        alias.asname or alias.name.partition(".")[0]
        for node in imports
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).partition(".")[0] == "triton"
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
        and ast.unparse(node.args[0]).partition(".")[0] in names
    ]


def test_only_host_asks_what_triton_has():
    assert probes_of(ast.parse("from triton import x\nhasattr(x.y, 'z')")) == [2]
    found = {
        name: lines
        for name, path in MODULES.items()
        if layer_of(name) != "host" and (lines := probes_of(ast.parse(path.read_text("utf-8"))))
    }
    assert found == {}


def run_python(code: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LOADED = (
    "import json, sys; print(json.dumps(sorted({'torch', 'triton', 'numpy'} & set(sys.modules))))"
)


def test_importing_the_package_loads_nothing_of_others():
    assert json.loads(run_python(f"import triton_ext; {LOADED}")) == []


def test_packages_are_imported_when_they_are_asked_for():
    pytest.importorskip("torch")
    code = (
        "import sys, triton_ext\n"
        "names = [name for name in triton_ext.__all__ if name.islower() and name[0] != '_']\n"
        "assert set(names) <= set(dir(triton_ext))\n"
        "assert not {'triton_ext.ops', 'triton_ext.ir', 'torch'} & set(sys.modules)\n"
        "print(triton_ext.ir.parse.__name__, triton_ext.is_installed())\n"
        "print(triton_ext.ops.conv2d.__name__, triton_ext.is_installed())\n"
        "print(triton_ext.nn.convert.__name__, triton_ext.gluon.__name__)\n"
    )
    assert run_python(code).split() == (
        ["parse", "False", "conv2d", "True", "convert", "triton_ext.gluon"]
    )


def test_triton_opt_needs_no_triton():
    code = (
        "from triton_ext.tools import opt; import io, sys; "
        "sys.stdin = io.StringIO('module {\\n}\\n'); "
        f"assert opt.main(['--triton-ext-lower-im2col']) == 0; {LOADED}"
    )
    assert json.loads(run_python(code).splitlines()[-1]) == []


@pytest.mark.parametrize("module", ["triton_ext.language", "triton_ext.ops"])
def test_what_a_kernel_imports_installs_the_plugin(module):
    if module.endswith("ops"):
        pytest.importorskip("torch")
    code = (
        f"import triton_ext; before = triton_ext.is_installed(); import {module}; "
        "print(before, triton_ext.is_installed())"
    )
    assert run_python(code).split() == ["False", "True"]


@pytest.mark.skipif(
    os.environ.get("TRITON_EXT_TEST_INSTALLED") != "1",
    reason="set by make test, which tests the installed package",
)
def test_it_is_the_installed_package_that_is_tested():
    for name in ("triton_ext", *(f"triton_ext.backends.{v}" for v in backends.VENDORS)):
        if not backends.folders(name.rpartition(".")[2]) and name != "triton_ext":
            continue
        folder = pathlib.Path(__import__(name, fromlist=["x"]).__file__).parent
        assert "site-packages" in folder.parts, folder
        assert folder.is_relative_to(sys.prefix), folder
