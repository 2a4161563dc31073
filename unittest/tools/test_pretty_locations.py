"""The short form of locations, and what stays as it was.  lit tests the kinds of locations."""

from __future__ import annotations

import time

import pytest
from ir_helpers import CORPUS, NO_CORPUS
from triton_ext.errors import ParseError
from triton_ext.tools.pretty_locations import with_pretty_locations

DEEP = 'callsite("a.py":1:2 at ' * 300 + "unknown" + ")" * 300


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t.a loc(#loc1)\n#loc1 = loc(#loc2)\n", "t.a #loc2\n#loc1 = #loc2\n"),
        ('t.a loc(#l)\n#l = loc("\\22q\\5C" : 1 : 2)\n', 't.a "q\\:1:2\n#l = "q\\:1:2\n'),
        ('t.a loc("a.py":1:2 to :9)', "t.a a.py:1:2 to :9"),
        ('t.a loc("x"("y"(unknown)))', 't.a "x"("y")'),
        # Where the callee is a name and the caller a place, whatever they are called.
        (
            't.a loc(callsite(#n at #f))\n#n = loc("x")\n#f = loc("a.py":1:2)\n',
            't.a #n at #f\n#n = "x"\n#f = a.py:1:2\n',
        ),
        ('t.a loc(callsite("x" at "y"))', 't.a "x"\n at "y"'),
        ('t.a loc(fused["x", "a.py":1:2])', 't.a ["x", a.py:1:2]'),
        ("t.a loc(fused<#m<[1, 2]>>[unknown])", "t.a <#m<[1, 2]>>[[unknown]]"),
        ("t.a {where = loc(unknown)}", "t.a {where = [unknown]}"),
    ],
)
def test_short(text, expected):
    assert with_pretty_locations(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "t.a // loc(unknown)\n",
        't.a "loc(unknown)" : i32\n',
        "t.alloc(%x)\nt.my_loc(%x)\n",
        'loc(kind<"a.py">:1:2)',
        "loc(unknown",
        "loc()",
        'loc(fused["x"',
        'loc(fused<["x"])',
        'loc("x"(unknown)',
        'loc("x" "y")',
        "loc(callsite(unknown))",
        f"loc({DEEP})",
    ],
)
def test_what_is_no_location_that_is_known_stays(text):
    assert with_pretty_locations(text) == text


@pytest.mark.skipif(not list(CORPUS.glob("*/cuda-90/*.ttgir")), reason=NO_CORPUS)
def test_the_corpus_has_no_other_locations():
    for path in sorted(CORPUS.glob("*/cuda-90/*.ttgir"))[::12]:
        text = path.read_text()
        assert "loc(" in text
        assert "loc(" not in with_pretty_locations(text)


def test_an_alias_is_written_out_in_bounded_space(monkeypatch):
    count = 20_000
    text = "#loc = loc(fused[" + ", ".join(['"a"'] * count) + "])\n"
    text += "\n".join(f"%{number} = a.b loc(#loc)" for number in range(count))
    with pytest.raises(ParseError, match="locations written out take more than 67108864 char") as e:
        with_pretty_locations(text)
    assert "leave out --mlir-pretty-debuginfo" in str(e.value)
    monkeypatch.setattr("triton_ext.tools.pretty_locations.MAX_EXPANDED", 100)
    text = '#loc = loc("a":1:2)\n%a = a.b loc(#loc)\n%b = a.b loc(#loc)\n'
    assert with_pretty_locations(text).count("a:1:2") == 3


LONG = ", ".join(['"a"'] * 200)


def unreadable_aliases(count):
    text = f"#big = loc(fused[{', '.join([LONG] * count)}, weird(1)])\n"
    text += "\n".join(f"#a{number} = loc(#big)" for number in range(4 * count)) + "\n"
    return text + "\n".join(f"%{number} = a.b loc(#a{number})" for number in range(4 * count))


def long_names_of_call_sites(count):
    text = f'#big = loc("{LONG.replace(chr(34), "")}{"a" * 800 * count}"(weird))\n'
    uses = (f'loc(callsite(#big at "b":{number}:1))' for number in range(8 * count))
    return text + "\n".join(f"a.b {use}" for use in uses)


def nested_definitions(count):
    count *= 16
    return "".join(f"#a{number} = loc(\n" for number in range(count)) + ")" * count


@pytest.mark.parametrize("text", [unreadable_aliases, long_names_of_call_sites, nested_definitions])
def test_time_grows_in_proportion_to_the_text(text):
    def seconds(count):
        given = text(count)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            with_pretty_locations(given)
            times.append(time.perf_counter() - start)
        return min(times)

    # Eight times the text: a quadratic time would be 64 times as long.
    assert seconds(240) < 24 * seconds(30) + 0.02


def test_unreadable_aliases_stay():
    text = "#big = loc(weird(1))\n#a = loc(#big)\na.b loc(#a)\na.b loc(#big)\n"
    assert with_pretty_locations(text) == text
