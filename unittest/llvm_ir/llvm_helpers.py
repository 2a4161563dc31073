"""What the tests of the LLVM IR tree share."""

from __future__ import annotations

import os
import pathlib

HERE = pathlib.Path(__file__).parent
FIXTURES = sorted((HERE / "fixtures").iterdir())
#: Modules that Triton printed, ``RELEASE/TARGET/*.llir``; CONTRIBUTING.md says what it is for.
CORPUS = pathlib.Path(
    os.environ.get("TRITON_EXT_CORPUS") or HERE.parents[1] / "test" / "corpus"
).absolute()


def read(name: str) -> str:
    """The text of a fixture."""
    return (HERE / "fixtures" / name).read_text()


def corpus_files() -> list[pathlib.Path]:
    """Every LLVM IR file of the corpus; empty where there is none."""
    return sorted(path for end in ("llir", "ll") for path in CORPUS.glob(f"*/*/*.{end}"))
