"""Whatever the host reads and verifies, we accept: one change to a module that somebody wrote.

The other direction is no aim: a host knows operations that ``Module.verify`` does not.
"""

from __future__ import annotations

import os
import re
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_helpers import FIXTURES, NOT_FOR_HOST, corpus_files
from triton_ext.errors import TritonExtError
from triton_ext.ir import parse

pytest.importorskip("triton")
from triton_ext.host.process import HostProcess, find_library

LONGEST = 8_000
TEXTS = [path.read_text() for path in FIXTURES if path.name not in NOT_FOR_HOST]
TEXTS += [text for path in corpus_files()[::20] if len(text := path.read_text()) < LONGEST]
NUMBER = re.compile(r"(?<![\w.#%])\d+(?!\w)")
TYPE = re.compile(
    r"![\w.]+(?:<[^<>]*(?:<[^<>]*(?:<[^<>]*>[^<>]*)*>[^<>]*)*>)?"
    r"|tensor<[^<>]*(?:<[^<>]*>[^<>]*)*>|\b(?:i1|i8|i16|i32|i64|f16|bf16|f32|f64|index)\b"
)
VALUE = re.compile(r"%[\w.$-]+(?:#\d+)?")
ALIAS = re.compile(r"#[A-Za-z_]\w*")
ENTRY = re.compile(r"[\"\w.-]+ = [^,{}\[\]<>=]+(?=[,}])")
NAMES = re.compile(r"%[\w.$-]+(?::\d+)? = (?=\w)")
SIZE = re.compile(r"(\d+)x")


def replaced(text: str, match: re.Match[str], new: str) -> str:
    return text[: match.start()] + new + text[match.end() :]


def changed(text: str, random: Random) -> str:
    """A text with a number, a type, a value, an alias, an attribute or a line changed."""
    pattern = random.choice([NUMBER, TYPE, VALUE, ALIAS, ENTRY, NAMES, SIZE, None])
    if pattern is None:
        lines = text.split("\n")
        index = random.randrange(len(lines))
        lines[index : index + 1] = random.choice([[], [lines[index]] * 2])
        return "\n".join(lines)
    found = list(pattern.finditer(text))
    if not found:
        return text
    match, other = random.choice(found), random.choice(found)
    if pattern in (TYPE, VALUE, ALIAS):
        return replaced(text, match, other[0])
    if pattern is NUMBER:
        number = int(match[0])
        choices = [0, 1, 2, 3, 4, 8, 16, 32, 64, 128, 2 * number, number // 2, number + 1, -1]
        return replaced(text, match, str(random.choice(choices)))
    if pattern is SIZE:
        return replaced(
            text, match, random.choice(["1x", "2x", "16x", "3x", "0x", "", match[0] * 2])
        )
    return replaced(text, match, "")


@pytest.fixture(scope="module")
def library():
    with HostProcess(find_library()) as process:
        yield process


@settings(
    max_examples=4_000 if os.environ.get("TRITON_EXT_NIGHTLY") == "1" else 250,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(random=st.randoms(use_true_random=False))
def test_what_a_host_reads_is_accepted(library, random):
    text = random.choice(TEXTS)
    for _ in range(random.choice([1, 1, 2])):
        text = changed(text, random)
    problem = problem_of(text)
    if problem:
        read = library.run(text, "changed.mlir", allow_unregistered=True)
        assert read.text is None, f"the host reads it, and we say: {problem}"


def problem_of(text: str) -> str:
    try:
        module = parse(text)
        assert str(module) == text
        module.verify()
    except TritonExtError as error:
        return str(error)
    return ""
