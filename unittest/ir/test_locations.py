"""Locations: what they resolve to."""

from __future__ import annotations

import pytest
from triton_ext.ir import Location, parse

ALIASES = {
    "#loc": 'loc("k.py":1:2)',
    "#loc1": "loc(unknown)",
    "#loc2": 'loc("name"(#loc))',
    "#loc3": "loc(callsite(#loc2 at #loc4))",
    "#loc4": 'loc("caller.py":7:8)',
    "#loc5": "loc(callsite(#loc3 at #loc6))",
    "#loc6": 'loc("main.py":9:1)',
    "#self": "loc(callsite(#self at #self))",
    "#a": 'loc("x"(#b))',
    "#b": 'loc("y"(#a))',
}


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ('loc("k.py":3:4)', ("k.py", 3, 4)),
        ('loc("k.py":3:4 to :9)', ("k.py", 3, 4)),
        ("loc(#loc)", ("k.py", 1, 2)),
        ("#loc2", ("k.py", 1, 2)),
        ("loc(#loc3)", ("k.py", 1, 2)),
        ("loc(#loc5)", ("k.py", 1, 2)),
        ("loc(unknown)", None),
        ("loc(#loc1)", None),
        ("loc(#missing)", None),
        ('loc("only a name")', None),
        ("loc(callsite(#loc1 at #loc4))", ("caller.py", 7, 8)),
        ("loc(fused[#loc1, #loc2, #loc4])", ("k.py", 1, 2)),
        ('loc(fused<{a = "[,]"}>["n"(#loc4), #loc2])', ("caller.py", 7, 8)),
        ('loc("x at y"(callsite("f at g"(#loc4) at #loc)))', ("caller.py", 7, 8)),
        ('loc("a\\22b\\\\c":1:1)', ('a"b\\c', 1, 1)),
        ("loc(#self)", None),
        ("loc(#a)", None),
        ("loc(", None),
        ("", None),
    ],
)
def test_resolve(raw, place):
    assert Location(raw, ALIASES).resolve() == place


def test_callers():
    callers = Location("loc(#loc5)", ALIASES).callers
    assert [caller.resolve() for caller in callers] == [("caller.py", 7, 8), ("main.py", 9, 1)]
    assert Location("loc(#loc2)", ALIASES).callers == ()
    assert Location("loc(#a)", ALIASES).callers == ()
    assert len(Location("loc(#self)", ALIASES).callers) <= 2


def test_name():
    assert Location("loc(#loc2)", ALIASES).name == "name"
    assert Location("loc(#loc)", ALIASES).name is None
    assert Location("loc(unknown)", ALIASES).name is None


def test_of_an_operation():
    module = parse('t.a loc(#loc1)\nt.b\n#loc = loc("f.py":2:3)\n#loc1 = loc("v"(#loc))\n')
    located, bare = module.body
    assert located.loc is not None
    assert located.loc.raw == "loc(#loc1)"
    assert located.loc.name == "v"
    assert located.loc.resolve() == ("f.py", 2, 3)
    assert bare.loc is None


def test_deep_nesting_needs_no_stack():
    raw = 'loc("n"(' * 3000 + "unknown" + "))" * 3000
    assert Location(raw).resolve() is None


@pytest.mark.parametrize(
    ("before", "middle", "after", "expected"),
    [
        ("callsite(", '"a":1:1', ' at "b":2:2)', ("a", 1, 1)),
        ('callsite("b":2:2 at ', '"a":1:1', ")", ("b", 2, 2)),
        ("callsite(unknown at ", '"a":1:1', ")", ("a", 1, 1)),
        ("callsite(", "unknown", " at unknown)", None),
        ("fused[unknown, ", '"a":1:1', "]", ("a", 1, 1)),
        ('fused<#di<"x":3:3>>[', '"a":1:1', "]", ("a", 1, 1)),
        ('"name"(', '"a":1:1', ")", ("a", 1, 1)),
    ],
)
def test_deep_nests_are_resolved_in_linear_time(before, middle, after, expected):
    for depth in (1, 2, 30_000):
        text = before * depth + middle + after * depth
        assert Location(f"loc({text})").resolve() == expected


def test_a_chain_of_aliases_is_resolved_in_linear_time():
    count = 30_000
    aliases = {f"#l{n}": f"callsite(unknown at #l{n + 1})" for n in range(count)}
    aliases[f"#l{count}"] = '"a":1:1'
    assert Location("loc(#l0)", aliases).resolve() == ("a", 1, 1)
    aliases[f"#l{count}"] = "#l0"
    assert Location("loc(#l0)", aliases).resolve() is None
