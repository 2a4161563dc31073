"""Whatever the text is: a tree that prints it again, or a ParseError with a position."""

from __future__ import annotations

import contextlib
import time
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_helpers import FIXTURES, check_contract, corpus_files, reprint
from triton_ext.errors import ParseError
from triton_ext.ir import parse

_SIZE = 12_000
TEXTS = [path.read_text() for path in FIXTURES]
TEXTS += [text for path in corpus_files()[::40] if len(text := path.read_text()) < _SIZE]
TOKENS = st.sampled_from(
    [
        *"%^\"'(){}[]<>:,=#@!/\\ \n\t-0lx\x00é",
        *("loc(", "%x", "%c0_i32", "->", "//", "({", "})", "<{", "}>", "^bb1", "attributes {"),
        *(" : ", "else {", "do {", "default {", "%x:2 = ", "t.a", '"t.a"(', "i32", "\r\n", "{-#"),
    ]
)


def survives(text: str) -> None:
    """Parses; if that works, everything that can be asked must work as well."""
    error = None
    try:
        module = parse(text)
    except ParseError as caught:
        error = caught
    if error is not None:
        lines = text.split("\n")
        assert 1 <= error.line <= len(lines)
        assert 1 <= error.column <= len(lines[error.line - 1]) + 1
        assert str(error).startswith(f"<string>:{error.line}:{error.column}: error: ")
        return
    assert str(module) == text
    for op in module.walk():
        with contextlib.suppress(ParseError):
            _ = op.attributes
        if op.loc is not None:
            op.loc.resolve()
        for result in op.results:
            _ = result.known_type
    assert reprint(module) == text


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A text with a few pieces removed, doubled, or put in."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 1, 3, 20, 200])))
        kind = draw(st.sampled_from(["remove", "double", "insert", "move"]))
        piece = text[start:end]
        if kind == "remove":
            text = text[:start] + text[end:]
        elif kind == "double":
            text = text[:end] + piece + text[end:]
        elif kind == "insert":
            new = draw(st.lists(TOKENS, min_size=1, max_size=6))
            text = text[:start] + "".join(new) + text[start:]
        else:
            rest = text[:start] + text[end:]
            to = draw(st.integers(0, len(rest)))
            text = rest[:to] + piece + rest[to:]
    return text


SETTINGS = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


@SETTINGS
@given(mutated())
def test_mutations(text):
    survives(text)


@SETTINGS
@given(st.data())
def test_truncations(data):
    text = data.draw(st.sampled_from(TEXTS))
    survives(text[: data.draw(st.integers(0, len(text)))])


@SETTINGS
@given(st.lists(TOKENS, max_size=40))
def test_token_soup(tokens):
    survives("".join(tokens))


@settings(SETTINGS, max_examples=60)
@given(st.data())
def test_random_edits_keep_the_contract(data):
    """Operands exchanged for others of their type, attributes set, unused operations erased."""
    module = parse(data.draw(st.sampled_from(TEXTS[: len(FIXTURES)])))
    for _ in range(data.draw(st.integers(1, 6))):
        ops = list(module.walk())[1:]
        if not ops:
            break
        op = data.draw(st.sampled_from(ops))
        kind = data.draw(st.sampled_from(["operand", "attribute", "erase", "type"]))
        if kind == "operand" and op.operands:
            index = data.draw(st.integers(0, len(op.operands) - 1))
            earlier = [r for o in op.parent.ops[: op.parent.ops.index(op)] for r in o.results]
            same = [v for v in earlier if v.known_type == op.operands[index].known_type]
            if same:
                op.set_operand(index, data.draw(st.sampled_from(same)))
        elif kind == "attribute" and op.attributes:
            name = data.draw(st.sampled_from(sorted(op.attributes)))
            op.set_attribute(name, "7 : i32")
        elif kind == "erase" and not any(r.uses for r in op.results) and not op.successors:
            op.erase()
        elif kind == "type" and op.results:
            # The same type again: binds and cuts without a change.
            op.results[0].set_type(op.results[0].type)
    check_contract(module)


def test_broken_bytes_take_no_longer_than_the_original():
    """Ten times the original's time is the limit, and 50 ms for what else the process does."""
    random = Random(11)
    for text in TEXTS:
        raw = text.encode()
        limit = 10 * _work(text) + 0.05
        for cut in (False, True, False, False):
            broken = bytearray(raw[: random.randrange(len(raw))] if cut else raw)
            for _ in range(0 if cut else random.choice([1, 4, 20])):
                broken[random.randrange(len(broken))] = random.randrange(256)
            result = broken.decode(errors="replace")
            survives(result)
            assert _work(result) < limit, result


def test_time_is_linear_in_hostile_texts():
    """Four times the text may take four times the work, not sixteen.

    Work is CPU time of this process, the least of three runs: a busy machine does not count.
    """
    pieces = ["(", "[", "{\n", "<", "l", "-", "%a, ", "%a,\n", '"', "a.b <", "a.b {a = ", "\n"]
    pieces += ["a.b ({", "a.b (%x: ", "loc(a.b loc(", "#a = ", "//\n", "a.b (((-> ", "^b(%a: i32, "]
    for piece in pieces:
        for start in ("", "module {\n", "a.b "):
            small, large = (_work(start + piece * (n // len(piece))) for n in (15_000, 60_000))
            assert large < 12 * small + 0.2, (start, piece, small, large)


def _work(text):
    """CPU seconds that a text takes."""
    times = []
    for _ in range(3):
        begin = time.process_time()
        survives(text)
        times.append(time.process_time() - begin)
        # Far from any limit: once is enough.
        if times[-1] < 0.2:
            break
    return min(times)
