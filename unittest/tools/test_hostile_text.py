"""Texts over which a search that starts again and again would take minutes."""

from __future__ import annotations

import contextlib
import time

import pytest
from triton_ext import strings
from triton_ext.errors import VerifyError
from triton_ext.host.diagnostics import read_printed
from triton_ext.ir import parse
from triton_ext.ir.dialects.view import OpReader
from triton_ext.ir.locations import Location
from triton_ext.tools import ir_text
from triton_ext.tools.command_line import Arguments, CommandLineError
from triton_ext.tools.expectations import expectations
from triton_ext.tools.pretty_locations import with_pretty_locations
from triton_ext.tools.reproducer import with_reproducer

COUNT = 200_000
# Linear time is a fraction of a second; quadratic time is minutes.
CPU_SECONDS = 20.0

QUOTES = '"' + '\\"' * COUNT
TEXTS = {
    "quotes": QUOTES,
    "quotes in a comment of a location": f"loc( // {QUOTES}\n)",
    "quotes in a location": f"loc({QUOTES}",
    "quotes in a section": f"{{-# {QUOTES}",
    "blanks": "x" + " " * COUNT,
    "blanks in a location": f'loc(callsite("a"{" " * COUNT}b at "c"))',
    "blanks and returns": " \r" * COUNT,
    "blank lines": " \n" * COUNT,
    "designators": "// x " + "expected-a" * COUNT,
    "open locations": "loc(" * COUNT,
    "comments": "//" * COUNT,
    "positions": "loc(" + '"":1:1' * COUNT,
    "assertions": "a:1: Assertion `" * COUNT,
}


def reproducer(text):
    with contextlib.suppress(CommandLineError):
        with_reproducer(Arguments(), text)


def location(text):
    found = Location(text)
    assert found.resolve() in (None, ("", 1, 1))
    assert found.name is None or found.name.startswith("\\")
    return found.callers


FUNCTIONS = {
    "split": lambda text: ir_text.split(text, "// -----"),
    "returns": strings.without_carriage_returns,
    "comments": ir_text.without_comments,
    "types": ir_text.with_types_in_line,
    "locations": ir_text.without_locations,
    "names": lambda text: ir_text.with_names_of(text, text),
    "pretty": with_pretty_locations,
    "expectations": expectations,
    "reproducer": reproducer,
    "location": location,
    "printed by Triton": read_printed,
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_search_takes_linear_time(function, text):
    start = time.process_time()
    FUNCTIONS[function](TEXTS[text])
    assert time.process_time() - start < CPU_SECONDS


def test_a_number_behind_blanks_is_found_in_linear_time():
    start = time.process_time()
    text = "%b = test.op : i32\n%a = test.op %b" + " " * COUNT + "x : i32\n"
    op = parse(text).body[1]
    reader = OpReader(op)
    reader.take()
    with pytest.raises(VerifyError, match="the number 'axis'"):
        reader.integer_here("axis")
    assert time.process_time() - start < CPU_SECONDS


def test_a_bracket_in_a_comment_of_a_location_closes_nothing():
    text = '%a = x.y loc("a" // ")\n) {b}'
    assert ir_text.without_locations(text) == "%a = x.y {b}"
    assert Location('loc(// "b":1:2\n"a":3:4)').resolve() == ("a", 3, 4)
