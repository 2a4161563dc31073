"""What several tests of the tree share: texts, the host's verifier, and the contract of nodes."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Mapping

import pytest
from triton_ext.ir import Module, Operation, Value, parse
from triton_ext.ir.dialects import View

HERE = pathlib.Path(__file__).parent
FIXTURES = sorted((HERE / "fixtures").iterdir())
#: Modules that Triton printed, ``RELEASE/TARGET/*.ttgir``; CONTRIBUTING.md says what it is for.
CORPUS = pathlib.Path(
    os.environ.get("TRITON_EXT_CORPUS") or HERE.parents[1] / "test" / "corpus"
).absolute()
#: Why a test that needs them is skipped.
NO_CORPUS = f"no corpus in {CORPUS}; TRITON_EXT_CORPUS names another folder"
#: Fixtures that hold operations of no host.
NOT_FOR_HOST = {"unknown.mlir"}


def fixture(name: str) -> str:
    """The text of one fixture."""
    return (HERE / "fixtures" / name).read_text()


def corpus_files() -> list[pathlib.Path]:
    """Every TTIR and TTGIR file of the corpus; empty where there is none."""
    return sorted(path for end in ("ttgir", "ttir") for path in CORPUS.glob(f"*/*/*.{end}"))


def named(module: Module, name: str) -> list[Operation]:
    """The operations of one name, in the order of the text."""
    return [op for op in module.walk() if op.name == name]


def value(module: Module, name: str) -> Value:
    """The first value of a name."""
    for op in module.walk():
        for candidate in [*op.results, *(a for r in op.regions for b in r.blocks for a in b.args)]:
            if candidate.name == name:
                return candidate
    raise LookupError(name)


def reprint(module: Module) -> str:
    """Prints with every operation cut into its segments, as if each had been edited."""
    for op in module.walk():
        op._touch()
    return str(module)


def check_contract(module: Module) -> None:
    """What holds for every tree: links in both directions, numbers, scopes, and its own text."""
    uses: dict[Value, set[tuple[int, int]]] = {}
    for op in module.walk():
        assert op.module is module
        for index, operand in enumerate(op.operands):
            uses.setdefault(operand, set()).add((id(op), index))
        for index, result in enumerate(op.results):
            assert result.owner is op
            assert result.index == index
            assert result.name.startswith("%")
        for region in op.regions:
            assert region.parent is op
            assert region.blocks
            for block in region.blocks:
                assert block.parent is region
                assert block.parent_op is op
                for index, arg in enumerate(block.args):
                    assert arg.owner is block
                    assert arg.index == index
                for inner in block.ops:
                    assert inner.parent is block
                    assert inner.parent_op is op
        for successor in op.successors:
            assert op.parent is not None
            assert successor in op.parent.parent.blocks
            assert op in successor.predecessors
    for op in module.walk():
        for candidate in [*op.results, *(a for r in op.regions for b in r.blocks for a in b.args)]:
            found = {(id(use.op), use.index) for use in candidate.uses}
            assert found == uses.get(candidate, set())
    text = str(module)
    again = parse(text)
    assert str(again) == text
    for left, right in zip(module.walk(), again.walk(), strict=True):
        assert left.name == right.name
        assert [v.name for v in left.operands] == [v.name for v in right.operands]
        assert [v.name for v in left.results] == [v.name for v in right.results]
        assert [v.known_type for v in left.results] == [v.known_type for v in right.results]
        assert dict(left.attributes) == dict(right.attributes)
        assert left.loc_text == right.loc_text
        shape = [[len(b.args) for b in r.blocks] for r in left.regions]
        assert shape == [[len(b.args) for b in r.blocks] for r in right.regions]


class Host:
    """The installed Triton; importing it is what the constructor does."""

    def __init__(self) -> None:
        import triton
        from triton._C.libtriton import amd, ir, nvidia

        self.version = triton.__version__
        self._ir = ir
        self.context = ir.context()
        ir.load_dialects(self.context)
        nvidia.load_dialects(self.context)
        amd.load_dialects(self.context)

    def needs_present_syntax(self) -> None:
        """Skips where the host does not read the syntax that the fixtures are written in."""
        if tuple(int(part) for part in self.version.split(".")[:2]) < (3, 8):
            pytest.skip(f"fixtures have the syntax of 3.8 and newer, the host is {self.version}")

    def text(self, text: str) -> str:
        """Parses and verifies a text; returns it as the host prints it, without locations.

        Raises:
            RuntimeError: The host refuses the text.
        """
        with tempfile.NamedTemporaryFile("w", suffix=".mlir", delete=False) as file:
            file.write(text)
        try:
            module = self._ir.parse_mlir_module(file.name, self.context)
        finally:
            os.unlink(file.name)
        if not module.verify():
            raise RuntimeError("the host's verifier refuses the module")
        return module.str_nodebug()


def check_fields(
    views: Mapping[str, type[View]], module: Module, fields: Mapping[str, object]
) -> None:
    """Asserts the fields of the view of a function's first operation; values count by name."""
    op = module.body[0].regions[0].blocks[0].ops[0]
    for _ in range(2):
        view = views[op.name].match(op)
        assert view is not None
        assert view.op is op
        assert {name: name_of(getattr(view, name)) for name in fields} == fields
        # The same once the operation is cut into its segments.
        op._touch()
        str(module)
    assert views[op.name].match(module.body[0]) is None


def name_of(field: object) -> object:
    """Values as their names, also in tuples."""
    if isinstance(field, Value):
        return field.name
    return tuple(name_of(item) for item in field) if isinstance(field, tuple) else field
