"""Operations whose text names no result: ``scf.for ... -> (f32) {`` with nothing in front."""

from __future__ import annotations

import pytest
from ir_helpers import check_contract, fixture, named, value
from triton_ext.errors import VerifyError
from triton_ext.ir import Builder, Module, append_if_results, append_iter_args, clone, parse
from triton_ext.ir.types import parse_type


@pytest.fixture
def module() -> Module:
    return parse(fixture("unnamed.ttgir"), "unnamed.ttgir")


def first(module: Module, name: str, with_results: int):
    return next(op for op in named(module, name) if len(op.results) == with_results)


def test_results_are_counted_by_their_types(module):
    found = [(op.name, [r.type for r in op.results]) for op in module.walk() if op.results]
    assert ("scf.for", ["tensor<128xf32, #blocked>"]) in found
    assert ("scf.while", ["i32", "i1"]) in found
    assert ("scf.if", ["i32"]) in found
    assert ("scf.execute_region", ["i32"]) in found
    assert ("tt.reduce", ["f32"]) in found
    assert ("tt.call", ["i32", "i32"]) in found
    assert ("ttg.local_alloc", ["!ttg.memdesc<128xf32, #shared, #smem>"]) in found
    assert ("ttg.local_load", ["tensor<128xf32, #blocked>"]) in found
    # The type behind the arrow is that of the buffer that is written.
    assert not named(module, "ttg.local_store")[0].results
    assert not named(module, "scf.if")[0].results


def test_nothing_is_printed_for_them(module):
    module.verify()
    assert str(module) == fixture("unnamed.ttgir")
    first(module, "scf.for", 1).set_attribute("tt.num_stages", "2 : i32")
    assert "\n    scf.for %i = %zero" in str(module)


def test_a_name_is_given_when_it_is_asked_for(module):
    loop = first(module, "scf.for", 1)
    assert loop.results[0].name == "%for"
    assert "\n    %for = scf.for %i = %zero" in str(module)
    pair = first(module, "tt.call", 2)
    assert [result.name for result in pair.results] == ["%call#0", "%call#1"]
    assert "\n    %call:2 = tt.call @pair(%n)" in str(module)
    check_contract(module)


def test_a_result_that_gets_a_use_gets_a_name(module):
    buffer = first(module, "ttg.local_alloc", 1)
    load = first(module, "ttg.local_load", 1)
    load.set_operand(0, buffer.results[0])
    assert "%local_alloc = ttg.local_alloc %x" in str(module)
    assert "ttg.local_load %local_alloc : !ttg.memdesc<128xf32, #shared, #smem> ->" in str(module)
    check_contract(module)


def test_results_are_appended_behind_unnamed_ones(module):
    n = value(module, "%n")
    (one,) = append_if_results(first(module, "scf.if", 1), [n], [n])
    assert one.name == "%if#1"
    ((_, carried),) = append_iter_args(first(module, "scf.for", 1), [n])
    assert carried.name == "%for#1"
    text = str(module)
    assert "%if:2 = scf.if %flag -> (i32, i32) {" in text
    assert "%for:2 = scf.for %i" in text
    check_contract(module)


def test_copies_stay_unnamed(module):
    loop = first(module, "scf.for", 1)
    copy = clone(loop, Builder.after(loop))
    assert [result.type for result in copy.results] == ["tensor<128xf32, #blocked>"]
    assert str(module).count("\n    scf.for %i") == 2
    check_contract(module)


def test_an_operation_in_no_block_gives_no_names(module):
    loop = first(module, "scf.for", 1)
    loop.erase()
    with pytest.raises(VerifyError, match=r"cannot name the results of 'scf\.for'"):
        _ = loop.results[0].name


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ('"ttg.local_alloc"() : () -> !ttg.memdesc<4xf32, #s, #smem>', 1),
        ('"test.two"() : () -> (i32, f32)', 2),
        ('"test.none"() : () -> ()', 0),
        ("test.unknown %x -> i32", 0),
        ("arith.addi %x, %x : i32", 1),
        ("tt.get_program_id x : i32", 1),
        ("ttng.tmem_load %x : !ttg.memdesc<4xf32, #s, #smem> -> tensor<4xf32>", 1),
        ("ttng.tmem_load %x : : !ttg.memdesc<4xf32, #s, #smem> -> tensor<4xf32>", 0),
        ("ttng.tmem_load %x[] : !ttg.memdesc<4xf32, #s, #smem> -> tensor<4xf32>", 2),
        (
            "ttng.tmem_load %x[%x] : !ttg.memdesc<4xf32, #s, #smem> -> "
            "tensor<4xf32>, tensor<4xf32>",
            3,
        ),
        ("ttng.tmem_store %x, %x[%x], %x : tensor<4xf32> -> !ttg.memdesc<4xf32, #s, #smem>", 0),
    ],
)
def test_count(text, types):
    module = parse(f"tt.func @f(%x: i32) {{\n  {text}\n  tt.return\n}}\n")
    assert len(list(module.walk())[2].results) == types


@pytest.mark.parametrize("blank", [" ", "\n", " // a comment\n  "])
@pytest.mark.parametrize("name", ["tensor", "vector"])
def test_blanks_in_front_of_the_sizes_of_a_builtin_type(name, blank):
    text = f"tt.func @f(%x: {name}{blank}<4xf32>, %c: i1) {{\n  tt.return\n}}\n"
    module = parse(text)
    module.verify()
    (argument, _) = list(module.walk())[1].regions[0].blocks[0].args
    assert parse_type(argument.type).shape == (4,)
    assert str(module) == text


def test_results_that_nobody_asks_for_may_be_left_out_of_the_text(module):
    load = first(module, "ttg.local_load", 1)
    made = Builder.after(load).create("tt.get_program_id", text="tt.get_program_id x : i32")
    assert [result.type for result in made.results] == ["i32"]
    assert "\n    tt.get_program_id x : i32" in str(module)
    check_contract(module)
