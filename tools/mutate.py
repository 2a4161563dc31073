"""Measures what the tests notice: seeded faults, one at a time, in a copy of the installed package.

A fault changes one comparison, operator, constant, condition or returned value.  The tests that
name what the changed module defines run until one fails, in a fork of a process that has imported
Triton and torch.  Tests have to pass on the unchanged copy, and get ten times the time of that run.

Run it with the Python of a test environment::

    .venv/test-3.9.0/bin/python tools/mutate.py --area ir --faults 40 --out faults.json
    .venv/test-3.9.0/bin/python tools/mutate.py --table faults.json
"""

from __future__ import annotations

import argparse
import ast
import collections
import importlib.util
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """A part of the package and its tests.

    Attributes:
        sources: Folders of the package.
        tests: Folders of ``unittest`` whose files are looked through for names.
        always: Test files that run for every module, after those found by name.
        lit: Folders of ``test``, run where pytest notices nothing.
    """

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    always: tuple[str, ...] = ()
    lit: tuple[str, ...] = ()


AREAS: dict[str, Area] = {
    "ir": Area(
        sources=("ir",),
        tests=("ir", "tools"),
        always=("ir/test_printed_by_triton.py", "ir/test_properties.py"),
        lit=("ir", "tools"),
    ),
    "analysis": Area(
        sources=("analysis",),
        tests=("analysis", "passes", "nvidia", "amd", "emulator", "tools"),
        lit=("ttg", "amd", "nvidia"),
    ),
    "passes": Area(sources=("passes",), tests=("passes", "tools"), lit=("ttg", "tools")),
    "amd": Area(
        sources=("backends/amd/passes", "backends/amd/analysis"),
        tests=("amd", "tools"),
        lit=("amd",),
    ),
    "nvidia": Area(
        sources=("backends/nvidia/passes", "backends/nvidia/analysis"),
        tests=("nvidia", "tools"),
        lit=("nvidia",),
    ),
    "backend": Area(sources=("backends/nvidia/backend",), tests=("nvidia",)),
    "ops": Area(
        sources=("ops/core", "ops/families", "ops/api", "ops/norms", "ops/tuning"),
        tests=("ops",),
    ),
    "nn": Area(sources=("nn",), tests=("nn",)),
}
C_SOURCES = ("tensor_map.c", "prepared_launch.c")
_FILES_PER_MODULE = 4
_LEAST_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of a text.

    Attributes:
        line: Its line, from 1.
        start: Offset in bytes of the changed text.
        end: Offset of its end.
        new: What stands there instead.
    """

    line: int
    start: int
    end: int
    new: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Says how tests ended with a fault: ``caught``, ``time`` (they did not end) or ``missed``."""

    area: str
    module: str
    line: int
    old: str
    new: str
    verdict: str


_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


def faults_of(source: str) -> list[Fault]:
    """Returns every fault of a Python module, in the order of the text."""
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    found = []
    for node in _code(ast.parse(source)):
        for old, new in _changes(node):
            text = "None" if new is None else f"({ast.unparse(new)})"
            start = lines[old.lineno - 1] + old.col_offset
            end = lines[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
            found.append(Fault(old.lineno, start, end, text))
    return sorted(found, key=lambda fault: (fault.start, fault.end, fault.new))


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run: no annotations, decorators, type unions, texts and ``TYPE_CHECKING``."""
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_comment"}:
            continue
        if isinstance(node, ast.Assign) and isinstance(value, ast.BinOp):
            continue  # X = A | B names a type
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _code(child)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in _COMPARISONS:
            yield node, ast.Compare(left, [_COMPARISONS[type(operator)]()], [right])
        case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
            if not isinstance(left, ast.Constant) or not isinstance(left.value, str):
                yield node, ast.BinOp(left, _OPERATORS[type(operator)](), right)
        case ast.BoolOp(operator, values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield node, ast.BoolOp(other, values)
        case ast.UnaryOp(ast.Not(), operand):
            yield node, operand
        case ast.Constant(bool() as value):
            yield node, ast.Constant(not value)
        case ast.Constant(int() as value):
            yield node, ast.Constant(value + 1)
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            yield test, ast.UnaryOp(ast.Not(), test)
        case ast.Return(ast.expr() as value) if ast.unparse(value) != "None":
            yield value, None
        case ast.Call(ast.Name(name)) if name in _CALLS:
            yield node, ast.Call(ast.Name(_CALLS[name]), node.args, node.keywords)


_C_CHANGES = (
    (r" == ", " != "), (r" != ", " == "), (r" < ", " <= "), (r" > ", " >= "), (r" <= ", " < "),
    (r" >= ", " > "), (r" && ", " || "), (r" \|\| ", " && "), (r" \+ ", " - "), (r" \* ", " + "),
    (r" % ", " / "), (r"\breturn 0;", "return 1;"), (r"\breturn (?!0;)[^;]+;", "return 0;"),
    (r"if \((?=[^;{]*\) ?[{\n])", "if (!"), (r"(?<=[ (\[])\d+(?=[;)\],u ])", "7"),
)  # fmt: skip


def c_faults_of(source: str) -> list[Fault]:
    """Returns faults of a C source, comments and directives left out."""
    blank = re.sub(
        r"/\*.*?\*/|//[^\n]*|^#[^\n]*|\"(?:\\.|[^\"\\\n])*\"",
        lambda match: re.sub(r"[^\n]", "@", match[0]),
        source,
        flags=re.DOTALL | re.MULTILINE,
    )
    found = [
        Fault(blank.count("\n", 0, match.start()) + 1, match.start(), match.end(), new)
        for pattern, new in _C_CHANGES
        for match in re.finditer(pattern, blank)  # pattern: one of _C_CHANGES
    ]
    return sorted(found, key=lambda fault: (fault.start, fault.new))


def tests_of(module: str, source: str, area: Area) -> list[str]:
    """Returns the test files that name most of what a module defines, rare names first.

    Args:
        module: Path in the package, ``ir/lexer.py``.
        source: Its text.
        area: Where its tests are.
    """
    names = re.findall(r"^(?:def|class) ([A-Za-z]\w+)|^([A-Z][A-Z_]+)\b", source, re.MULTILINE)
    words = {name for pair in names for name in pair if name}
    words.add(pathlib.Path(module).stem.replace("__init__", pathlib.Path(module).parent.name))
    texts = {
        path: set(re.findall(r"\w+", f"{path.stem.removeprefix('test_')} {path.read_text()}"))
        for folder in area.tests
        for path in sorted((ROOT / "unittest" / folder).glob("test_*.py"))
        if not path.stem.endswith("_gpu")
    }
    many = collections.Counter(word for text in texts.values() for word in text & words)
    scores = {path: sum(1 / many[word] for word in text & words) for path, text in texts.items()}
    ranked = sorted((path for path in texts if scores[path]), key=lambda path: -scores[path])
    found = [str(path) for path in ranked[:_FILES_PER_MODULE]]
    return list(dict.fromkeys([*found, *(f"{ROOT}/unittest/{name}" for name in area.always)]))


def run_tests(package: pathlib.Path, tests: list[str], limit_s: float) -> tuple[int | None, float]:
    """Runs tests over a copy of the package; returns pytest's status (None: no end) and seconds."""
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        status = 1
        try:
            silent = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(silent, descriptor)
            os.environ.update(PYTHONPATH=str(package.parent), PYTHONDONTWRITEBYTECODE="1")
            sys.dont_write_bytecode = True
            sys.path.insert(0, str(package.parent))
            import pytest

            options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no"]
            status = int(pytest.main([*options, "-m", "not gpu", *tests]))
        finally:
            os._exit(status)
    while time.monotonic() - start < limit_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), time.monotonic() - start
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None, time.monotonic() - start


def run_lit(package: pathlib.Path, folders: tuple[str, ...]) -> int:
    """Runs lit tests over a copy of the package until one fails; returns lit's status."""
    command = ["lit", "-q", "-j", "1", "--max-failures", "1", "--timeout", "60"]
    binaries = pathlib.Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(package.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    paths = [str(ROOT / "test" / folder) for folder in folders]
    return subprocess.run(
        [*command, *paths], env=environment, capture_output=True, check=False
    ).returncode


@dataclass(slots=True)
class Changed:
    """A file that holds a fault while the context lasts; its cached byte code is of no use then."""

    path: pathlib.Path
    fault: Fault
    kept: bytes = b""

    def __enter__(self) -> None:
        self.kept = self.path.read_bytes()
        new = self.fault.new.encode()
        self.path.write_bytes(self.kept[: self.fault.start] + new + self.kept[self.fault.end :])
        for cached in self.path.parent.glob(f"__pycache__/{self.path.stem}.*"):
            cached.unlink()

    def __exit__(self, *_: object) -> None:
        self.path.write_bytes(self.kept)


def measure_python(
    area: str, count: int, per_module: int, chance: random.Random, lit: tuple[str, ...]
) -> Iterator[Verdict]:
    """Yields verdicts about faults in the modules of an area; ``lit`` names folders of ``test``."""
    spec = importlib.util.find_spec("triton_ext")
    assert spec is not None, "no triton_ext is installed"
    assert spec.origin is not None, "no triton_ext is installed"
    kind = AREAS[area]
    with tempfile.TemporaryDirectory(prefix="triton-ext-faults-") as folder:
        package = pathlib.Path(folder, "triton_ext")
        shutil.copytree(pathlib.Path(spec.origin).parent, package)
        modules = [path for name in kind.sources for path in sorted((package / name).rglob("*.py"))]
        chance.shuffle(modules)
        if lit and run_lit(package, lit) != 0:
            sys.stderr.write(f"note: {area}: lit fails without a fault, and is left out\n")
            lit = ()
        done = 0
        for path in modules:
            source = path.read_text()
            module = str(path.relative_to(package))
            faults, tests = faults_of(source), tests_of(module, source, kind)
            if not faults or not tests or done >= count:
                continue
            status, seconds = run_tests(package, tests, 600)
            if status not in (0, 5):
                sys.stderr.write(f"note: {module}: tests fail without a fault: {tests}\n")
                continue
            for fault in chance.sample(faults, min(per_module, len(faults))):
                old = source.encode()[fault.start : fault.end].decode()
                with Changed(path, fault):
                    status, _ = run_tests(package, tests, max(_LEAST_LIMIT_S, 10 * seconds))
                    if status in (0, 5) and lit:
                        status = run_lit(package, lit)
                word = {None: "time", 0: "missed", 5: "missed"}.get(status, "caught")
                yield Verdict(area, module, fault.line, old, fault.new, word)
                done += 1


def measure_c(count: int, chance: random.Random) -> Iterator[Verdict]:
    """Yields verdicts of the C tests about faults in the driver."""
    with tempfile.TemporaryDirectory(prefix="triton-ext-faults-") as folder:
        for name in ("third_party/nvidia/backend", "unittest/nvidia/c"):
            shutil.copytree(ROOT / name, pathlib.Path(folder, name))
        sources = {
            name: pathlib.Path(folder, "third_party/nvidia/backend", name) for name in C_SOURCES
        }
        faults = [
            (name, fault)
            for name, path in sources.items()
            for fault in c_faults_of(path.read_text())
        ]
        for name, fault in chance.sample(faults, min(count, len(faults))):
            old = sources[name].read_text()[fault.start : fault.end]
            with Changed(sources[name], fault):
                command = ["make", "-s", "-C", f"{folder}/unittest/nvidia/c", "test"]
                try:
                    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
                    word = "caught" if done.returncode else "missed"
                except subprocess.TimeoutExpired:
                    word = "time"
            yield Verdict("c", name, fault.line, old, fault.new, word)


def table(verdicts: list[Verdict]) -> str:
    """Returns a row per area, then the faults that no test noticed."""
    rows = [f"{'area':10}{'faults':>8}{'caught':>8}{'by time':>8}{'missed':>8}{'share':>8}"]
    for area in [*dict.fromkeys(each.area for each in verdicts), "all"]:
        words = collections.Counter(each.verdict for each in verdicts if area in (each.area, "all"))
        share = 1 - words["missed"] / words.total()
        rows.append(
            f"{area:10}{words.total():8}{words['caught']:8}{words['time']:8}{words['missed']:8}{share:8.0%}"
        )
    rows.append("")
    for each in verdicts:
        if each.verdict == "missed":
            old = " ".join(each.old.split())
            rows.append(f"missed: {each.module}:{each.line}: {old} -> {each.new}")
    return "\n".join(rows)


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--area", action="append", choices=[*AREAS, "c"], help="these only")
    parser.add_argument("--faults", type=int, default=40, help="faults per area (40)")
    parser.add_argument("--per-module", type=int, default=4, help="faults per module (4)")
    parser.add_argument("--no-lit", action="store_true", help="pytest alone judges: faster")
    parser.add_argument("--seed", default="1", help="which faults (1)")
    parser.add_argument("--out", type=pathlib.Path, help="file of verdicts, a line each; added to")
    parser.add_argument("--table", type=pathlib.Path, help="only show the table of such a file")
    arguments = parser.parse_args()
    if arguments.table:
        lines = arguments.table.read_text().splitlines()
        sys.stdout.write(f"{table([Verdict(**json.loads(line)) for line in lines])}\n")
        return 0
    import hypothesis  # noqa: F401  what tests import, once for all forks
    import numpy  # noqa: F401
    import torch  # noqa: F401, TID251
    import triton  # noqa: F401, TID251

    os.environ["TRITON_EXT_TEST_INSTALLED"] = "1"
    os.chdir(ROOT)
    verdicts = []
    for area in arguments.area or [*AREAS, "c"]:
        chance = random.Random(f"{arguments.seed} {area}")
        measured = (
            measure_c(arguments.faults, chance)
            if area == "c"
            else measure_python(
                area,
                arguments.faults,
                arguments.per_module,
                chance,
                () if arguments.no_lit else AREAS[area].lit,
            )
        )
        for verdict in measured:
            verdicts.append(verdict)
            if arguments.out:
                with arguments.out.open("a") as out:
                    out.write(json.dumps(asdict(verdict)) + "\n")
    sys.stdout.write(f"{table(verdicts)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
