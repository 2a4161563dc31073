"""Values computed anew in another encoding: which, how many operations, what is known of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from triton_ext.analysis import AxisInfoAnalysis
from triton_ext.ir import parse, parse_type
from triton_ext.ir.encodings import BlockedEncoding
from triton_ext.passes.rematerialize import MOST_OPERATIONS, rematerialized

TARGET = BlockedEncoding((4,), (32,), (4,), (0,))
MODULE = """\
#b = #ttg.blocked<{{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}}>
module attributes {{"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, \
ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32}} {{
  tt.func public @f(%x: !tt.ptr<f32> {{tt.divisibility = 16 : i32}}, %n: i32, \
%arg: tensor<64xi32, #b>) {{
    %r = tt.make_range {{end = 64 : i32, start = 0 : i32}} : tensor<64xi32, #b>
    %s = tt.splat %n : i32 -> tensor<64xi32, #b>
    %x0 = tt.splat %x : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>, #b>
{body}
    %p = tt.addptr %x0, %o : tensor<64x!tt.ptr<f32>, #b>, tensor<64xi32, #b>
    %v = tt.load %p : tensor<64x!tt.ptr<f32>, #b>
    tt.store %p, %v : tensor<64x!tt.ptr<f32>, #b>
    tt.return
  }}
}}
"""
SUM = "    %{} = arith.addi %{}, %{} : tensor<64xi32, #b>"


def computed(body: str, operand: int = 0, user: str = "tt.store"):
    """The module, and the operand of an operation that was computed anew; ``None`` where not."""
    module = parse(MODULE.format(body=body))
    (op,) = (op for op in module.walk() if op.name == user)
    new = rematerialized(op.operands[operand], TARGET, op)
    if new is not None:
        op.set_operand(operand, new)
    return module, new


def test_a_pointer_is_computed_with_all_that_it_needs():
    module, new = computed(SUM.format("o", "r", "s"))
    assert new is not None
    type_ = parse_type(new.type, module.aliases)
    assert type_.encoding == TARGET
    names = [op.name for op in module.walk()]
    assert (names.count("tt.splat"), names.count("tt.make_range")) == (4, 2)
    assert names.count("ttg.convert_layout") == 0
    analysis = AxisInfoAnalysis.of(module)
    (load,) = (op for op in module.walk() if op.name == "tt.load")
    assert analysis.info(new) == analysis.info(load.operands[0])


def test_what_is_needed_twice_is_computed_once():
    module, new = computed(SUM.format("a", "r", "s") + "\n" + SUM.format("o", "a", "a"))
    assert new is not None
    assert [op.name for op in module.walk()].count("arith.addi") == 4


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(SUM.format("o", "r", "arg"), id="an argument"),
        pytest.param(
            f"    %o = arith.constant dense<{list(range(64))}> : tensor<64xi32, #b>",
            id="a constant of different numbers",
        ),
    ],
)
def test_what_is_not_known_here_is_left_to_a_conversion(body):
    module, new = computed(body)
    assert new is None
    assert not module.is_changed


def test_a_constant_of_one_number_is_computed():
    module, new = computed("    %o = arith.constant dense<1> : tensor<64xi32, #b>")
    assert new is not None
    types = [
        parse_type(op.results[0].type, module.aliases)
        for op in module.walk()
        if op.name == "arith.constant"
    ]
    assert [type_.encoding == TARGET for type_ in types] == [False, True]
    reread = parse(str(module))
    assert [op.name for op in reread.walk()].count("ttg.convert_layout") == 0


def test_what_was_loaded_is_left_to_a_conversion():
    assert computed(SUM.format("o", "r", "s"), operand=1)[1] is None


@pytest.mark.parametrize(("count", "is_cheap"), [(3, True), (MOST_OPERATIONS, False), (200, False)])
def test_too_many_operations_are_not_computed(count, is_cheap):
    names = ["r", *(f"a{i}" for i in range(count - 1)), "o"]
    lines = [SUM.format(new, old, "s") for old, new in pairwise(names)]
    assert (computed("\n".join(lines))[1] is not None) == is_cheap


def test_doubling_ends():
    names = ["r", *(f"a{i}" for i in range(60)), "o"]
    lines = [SUM.format(new, old, old) for old, new in pairwise(names)]
    assert computed("\n".join(lines))[1] is None


DIVISION = "    %{} = arith.{} %{}, %{} : tensor<64xi32, #b>"
SEVEN = "    %c = arith.constant dense<7> : tensor<64xi32, #b>"
ONE_SEVEN = """\
    %k = arith.constant 7 : i32
    %c = tt.splat %k : i32 -> tensor<64xi32, #b>"""


@pytest.mark.parametrize("name", ["divsi", "divui", "remsi", "remui"])
def test_divisions_are_dear(name):
    """One by a scalar may do; of two, a conversion is cheaper.  Constants are multiplied by."""
    one = DIVISION.format("o", name, "r", "s")
    assert computed(one)[1] is not None
    two = DIVISION.format("a", name, "r", "s") + "\n" + DIVISION.format("o", name, "a", "s")
    assert computed(two)[1] is None
    by_seven = two.replace("%s :", "%c :")
    assert computed(f"{SEVEN}\n{by_seven}")[1] is not None
    assert computed(f"{ONE_SEVEN}\n{by_seven}")[1] is not None
