"""``tools/mutate.py``: which faults it makes, which tests it runs, and what its table says."""

from __future__ import annotations

import ast
import pathlib

import pytest

TOOL = pathlib.Path(__file__).parent.parent / "tools" / "mutate.py"

SOURCE = '''
Name = int | str


@cached(2)
def größe(a: int | None, b: "x < 1" = 3) -> list[int]:
    """Says 1 + 1."""
    if not a or f"{a + 1}":
        return min(a + 1, b)
    return None
'''


def mutants(tool, source):
    data = source.encode()
    return {
        (data[f.start : f.end].decode(), f.new): (data[: f.start] + f.new.encode() + data[f.end :])
        for f in tool.faults_of(source)
    }


def test_faults_change_what_runs_and_nothing_else(tool):
    assert set(mutants(tool, SOURCE)) == {
        ("3", "(4)"),
        ('not a or f"{a + 1}"', "(not (not a or f'{a + 1}'))"),
        ('not a or f"{a + 1}"', "(not a and f'{a + 1}')"),
        ("not a", "(a)"),
        ("min(a + 1, b)", "None"),
        ("min(a + 1, b)", "(max(a + 1, b))"),
        ("a + 1", "(a - 1)"),
        ("1", "(2)"),
    }


@pytest.mark.parametrize("name", ["tools/mutate.py", "python/triton_ext/ir/lexer.py"])
def test_mutants_are_other_programs(tool, name):
    source = (TOOL.parents[1] / name).read_text()
    plain = ast.dump(ast.parse(source))
    made = mutants(tool, source)
    assert len(made) > 50
    for text in list(made.values())[::5]:
        assert ast.dump(ast.parse(text)) != plain


def test_faults_of_c_leave_comments_texts_and_directives(tool):
    source = '#if A == 1\n/* a == b */ int f(int a) { // a < b\n  if (a == 0 && g("c == d"))\n'
    source += "    return -1;\n  return 0;\n}\n"
    found = {(source[f.start : f.end], f.new, f.line) for f in tool.c_faults_of(source)}
    assert found == {
        (" == ", " != ", 3),
        (" && ", " || ", 3),
        ("if (", "if (!", 3),
        ("0", "7", 3),
        ("return -1;", "return 0;", 4),
        ("return 0;", "return 1;", 5),
        ("0", "7", 5),
    }


def test_a_fault_lasts_as_long_as_its_block(tool, tmp_path):
    path = tmp_path / "some.py"
    path.write_text("x = 1 < 2\n")
    cached = tmp_path / "__pycache__" / "some.cpython-311.pyc"
    cached.parent.mkdir()
    cached.touch()
    (fault,) = [fault for fault in tool.faults_of(path.read_text()) if "<=" in fault.new]
    with tool.Changed(path, fault):
        assert path.read_text() == "x = (1 <= 2)\n"
        assert not cached.exists()
    assert path.read_text() == "x = 1 < 2\n"


def test_tests_of_a_module_name_what_it_defines(tool):
    for module, test in [
        ("ir/types.py", "ir/test_types.py"),
        ("ir/lexer.py", "ir/test_properties.py"),
        ("analysis/liveness.py", "analysis/test_liveness.py"),
        ("ops/core/tables.py", "ops/test_tables.py"),
    ]:
        area = module.partition("/")[0]
        source = (tool.ROOT / "python" / "triton_ext" / module).read_text()
        tests = tool.tests_of(module, source, tool.AREAS[area])
        assert str(tool.ROOT / "unittest" / test) in tests, tests
    assert (
        tool.tests_of("nn/no_such_module.py", "def no_such_thing_anywhere(): ...", tool.AREAS["nn"])
        == []
    )


def test_areas_exist(tool):
    package = tool.ROOT / "python" / "triton_ext"
    for area in tool.AREAS.values():
        for folder in area.sources:
            vendor = folder.removeprefix("backends/")
            assert (package / folder).is_dir() or (tool.ROOT / "third_party" / vendor).is_dir()
        assert all((tool.ROOT / "unittest" / name).exists() for name in area.tests + area.always)
        assert all((tool.ROOT / "test" / folder).is_dir() for folder in area.lit)


def test_the_table_counts_and_names_what_was_missed(tool):
    verdicts = [
        tool.Verdict("ir", "ir/a.py", 3, "a <\n  b", "(a <= b)", word)
        for word in ("caught", "caught", "time", "missed")
    ]
    rows = tool.table([*verdicts, tool.Verdict("c", "x.c", 1, "0", "7", "caught")]).splitlines()
    assert rows[1].split() == ["ir", "4", "2", "1", "1", "75%"]
    assert rows[3].split() == ["all", "5", "3", "1", "1", "80%"]
    assert rows[-1] == "missed: ir/a.py:3: a < b -> (a <= b)"
