"""How many warps run an operation, and what is said where the module does not tell."""

from __future__ import annotations

import pytest
from triton_ext.analysis.warps import num_warps_of, number_of, threads_per_warp_of
from triton_ext.errors import VerifyError
from triton_ext.ir import parse
from triton_ext.tools import cli

TEXT = """\
module attributes {"ttg.num-warps" = 8 : i32} {
  tt.func @f(%a: i32) {
    %x = arith.addi %a, %a : i32
    ttg.warp_specialize(%a)
    default {
      %y = arith.addi %a, %a : i32
      ttg.warp_yield
    }
    partition0(%b: i32) num_warps(2) {
      %c = arith.constant true
      scf.if %c {
        %z = arith.addi %b, %b : i32
      }
      ttg.warp_return
    } : (i32) -> ()
    tt.return
  }
  tt.func private @called_by_a_partition(%a: i32) attributes {"ttg.num-warps" = 1 : i32} {
    %x = arith.addi %a, %a : i32
    tt.return
  }
}
"""


def warps(text: str, default: int | None = None) -> list[int]:
    return [num_warps_of(op, default) for op in parse(text).walk() if op.name == "arith.addi"]


def test_a_partition_a_function_and_the_module_tell():
    assert warps(TEXT) == [8, 8, 2, 1]
    assert warps(TEXT.replace('"ttg.num-warps" = 8 : i32', ""), 4) == [4, 4, 2, 1]


def test_a_module_that_does_not_tell():
    with pytest.raises(VerifyError, match=r"number as 'ttg\.num-warps'") as raised:
        warps(TEXT.replace('"ttg.num-warps" = 8 : i32', ""))
    assert raised.value.line == 1


@pytest.mark.parametrize(("was", "line"), [("8 : i32", 1), ("1 : i32", 18)])
@pytest.mark.parametrize("value", ['"x"', "0 : i32", "-4 : i32", "[4]", "dense<4> : i32"])
def test_what_is_no_number_is_refused_where_it_stands(was, line, value):
    text = TEXT.replace(f'"ttg.num-warps" = {was}', f'"ttg.num-warps" = {value}')
    assert text != TEXT
    with pytest.raises(VerifyError, match="expected a power of two as") as found:
        warps(text, 4)
    assert found.value.line == line
    assert value in str(found.value)


def test_lds_of_what_is_no_number(tmp_path, capsys):
    path = tmp_path / "kernel.ttgir"
    path.write_text(
        'module attributes {"ttg.num-warps" = "x", ttg.target = "cuda:90"} {\n'
        "  tt.func public @f() {\n    tt.return\n  }\n}\n"
    )
    assert cli.main(["lds", "--host=none", str(path)]) == 1
    said = capsys.readouterr().err
    assert "kernel.ttgir:1:1: error: expected a power of two as 'ttg.num-warps'" in said


def test_each_of_several_modules_tells():
    other = TEXT.replace("8 : i32", '4 : i32, "ttg.threads-per-warp" = 64 : i32')
    other = other.replace("@f(", "@g(").replace("@called", "@also_called")
    both = parse(TEXT + other)
    ops = [op for op in both.walk() if op.name == "arith.addi"]
    assert [num_warps_of(op) for op in ops] == [8, 8, 2, 1, 4, 4, 2, 1]
    assert [threads_per_warp_of(op) for op in ops] == [32] * 4 + [64] * 4


def test_a_warp_has_32_threads_unless_the_module_says_otherwise():
    op = next(op for op in parse(TEXT).walk() if op.name == "arith.addi")
    assert threads_per_warp_of(op) == 32
    text = TEXT.replace("8 : i32", '8 : i32, "ttg.threads-per-warp" = 64 : i32')
    assert {threads_per_warp_of(op) for op in parse(text).walk()} == {64}


def test_other_numbers_of_a_module():
    module = parse(TEXT).op
    assert number_of(module, "ttg.num-ctas", 1) == 1
    assert number_of(module, "ttg.num-warps", 1) == 8


def test_bits_are_a_number_as_well():
    assert warps(TEXT.replace("8 : i32", "0x8 : i32")) == [8, 8, 2, 1]
