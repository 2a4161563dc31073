"""The names that MLIR gives to values."""

from __future__ import annotations

import pytest
from ir_helpers import FIXTURES, NOT_FOR_HOST, corpus_files
from triton_ext.ir import Value, parse
from triton_ext.ir.value_names import printed_names

TEXT = """\
#tmem = #ttng.tensor_memory_encoding<blockM = 128, blockN = 128, colStride = 1>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
tt.func @f(%x: i32, %cond: i1) {
  %five = arith.constant 5 : i32
  %minus = arith.constant -5 : i64
  %index = arith.constant 5 : index
  %yes = arith.constant true
  %half = arith.constant 0.5 : f32
  %again = arith.constant 1.5 : f32
  %fifth = arith.constant 5 : i32
  %m:2 = ttng.tmem_alloc : () -> (!ttg.memdesc<128x128xf32, #tmem, #ttng.tensor_memory, mutable>, !ttg.async.token)
  %id = gpu.thread_id y
  %r:2 = scf.if %cond -> (i32, i32) {
    %a = arith.addi %x, %five : i32
    %b = arith.constant 5 : i32
    scf.yield %a, %b : i32, i32
  } else {
    %a = arith.muli %x, %five : i32
    scf.yield %a, %a : i32, i32
  }
  %low, %high = arith.mului_extended %x, %x : i32
  arith.subi %x, %x : i32
  scf.for %i = %x to %five step %five : i32 {
    %d = arith.addi %i, %x : i32
  }
  cf.br ^next(%x : i32)
^next(%y: i32):
  tt.return
}
tt.func @g(%x: i32) {
  %y = arith.addi %x, %x : i32
  tt.return
}
}
"""  # noqa: E501


def values_of(module) -> list[Value]:
    """Every value of a module, in the order of the text."""
    found: list[Value] = []
    for op in module.walk():
        found += op.results
        found += [arg for region in op.regions for block in region.blocks for arg in block.args]
    return found


def test_names():
    module = parse(TEXT)
    found = printed_names(module.op)
    names = [found[value] for value in values_of(module)]
    constants = ["%c5_i32", "%c-5_i64", "%c5", "%true", "%cst", "%cst_0", "%c5_i32_1"]
    results = ["%result", "%token", "%thread_id_y", "%0#0", "%0#1"]
    # Numbers of a region start behind all of the region around it, and repeat in the next one.
    regions = ["%3", "%c5_i32_2", "%3"]
    last = ["%low", "%high", "%1", "%arg2", "%3"]
    # The arguments of both blocks come first here.
    assert names == ["%arg0", "%arg1", "%2", *constants, *results, *regions, *last, "%arg0", "%0"]


def test_names_of_results_that_are_not_named_stay_unnamed():
    text = "tt.func @f(%x: i32) {\n  arith.addi %x, %x : i32\n  tt.return\n}\n"
    module = parse(text)
    assert list(printed_names(module.op).values()) == ["%arg0", "%0"]
    assert str(module) == text


BOOLS = {"true": "%true", "false": "%false", "1 : i1": "%true", "0 : i1": "%false"}


def of_a_bool(text):
    return f"tt.func @f() {{\n  %a = arith.constant {text}\n  tt.return\n}}\n"


@pytest.mark.parametrize("text", BOOLS)
def test_constants_of_one_bit_are_named_by_their_truth(text):
    assert list(printed_names(parse(of_a_bool(text)).op).values()) == [BOOLS[text]]


@pytest.fixture(scope="module")
def library():
    pytest.importorskip("triton")
    from triton_ext.host.process import HostProcess, find_library

    with HostProcess(find_library()) as process:
        yield process


def test_names_of_the_text_above_are_those_of_the_host(library):
    printed = library.run(TEXT, "").plain
    if printed is None:
        pytest.skip("this release of Triton does not read it")
    check_names(TEXT, printed)


@pytest.mark.parametrize("text", BOOLS)
def test_constants_of_one_bit_are_named_as_the_host_names_them(text, library):
    printed = library.run(of_a_bool(text), "").plain
    assert printed is not None
    check_names(of_a_bool(text), printed)


@pytest.mark.parametrize("path", [*FIXTURES, *corpus_files()], ids=str)
def test_names_are_those_of_the_host(path, library):
    if path.name in NOT_FOR_HOST:
        pytest.skip("no release of Triton reads it")
    text = path.read_text()
    printed = library.run(text, "").plain
    if printed is None:
        pytest.skip("this release of Triton does not read it")
    found, host = (len(values_of(parse(each))) for each in (text, printed))
    if found != host and library.library.version not in path.parts:
        pytest.skip("this release of Triton gives its operations other results")
    check_names(text, printed)


def check_names(text: str, printed: str) -> None:
    module = parse(text)
    names = printed_names(module.op)
    assert [names[value] for value in values_of(module)] == [
        value.name for value in values_of(parse(printed))
    ]
