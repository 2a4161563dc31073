"""Copies that are no blocks: rows by their numbers, reductions, and copies by address in groups."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from hopper_text import BAR, BUFFER, DESC, message, run  # noqa: E402

ROWS = "tensor<64xi32, #line>"
#: Numbers of rows: from the last one to the first.
NUMBERS = f"""
    %range = tt.make_range {{end = 64 : i32, start = 0 : i32}} : {ROWS}
    %last = arith.constant dense<63> : {ROWS}
    %rows = arith.subi %last, %range : {ROWS}
"""
GATHER = (
    NUMBERS
    + f"""
    $alloc a
    $bar full 1
    $expect full 8192
    ttng.async_tma_gather %x[%rows, %c0] %a, %full, %true : {DESC}, {ROWS}, i32, {BAR}, {BUFFER}, i1
    $wait full 0
    $store a c0
    $stores 0
"""
)
SCATTER = (
    NUMBERS
    + f"""
    $alloc a
    $bar full 1
    $expect full 8192
    $load a full c0
    $wait full 0
    ttng.async_tma_scatter %y[%rows, %c0] %a : {DESC}, {ROWS}, i32, {BUFFER}
    $stores 0
"""
)
REDUCE = f"""
    $alloc a
    $bar full 1
    $expect full 8192
    $load a full c0
    $wait full 0
    ttng.async_tma_reduce add, %y[%c0, %c0] %a : {DESC}, {BUFFER}
    $stores 0
"""


def test_rows_are_gathered():
    x, y = run(GATHER)
    assert (y == x[::-1]).all()


def test_rows_and_columns_out_of_bounds_are_zero():
    x, y = run(
        GATHER.replace("dense<63>", "dense<61>").replace("%x[%rows, %c0]", "%x[%rows, %c32]")
    )
    assert (y[:62, :32] == x[61::-1, 32:]).all()
    assert (y[62:] == 0).all()
    assert (y[:, 32:] == 0).all()


def test_rows_are_scattered_within_bounds():
    x, y = run(SCATTER)
    assert (y == x[::-1]).all()
    x, y = run(SCATTER.replace("dense<63>", "dense<61>"))
    assert (y[:62] == x[61::-1]).all()
    assert (y[62:] == 1).all()


@pytest.mark.parametrize(
    ("kind", "combine"),
    [("add", np.add), ("min", np.minimum), ("max", np.maximum)],
)
def test_reductions_combine_with_what_is_there(kind, combine):
    x, y = run(REDUCE.replace("reduce add", f"reduce {kind}"))
    assert (y == combine(x, np.float16(1))).all()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (GATHER.replace("$wait full 0\n", ""), "in flight"),
        (SCATTER.replace("$stores 0\n", ""), "the kernel ends while this store may still read"),
        (REDUCE.replace("reduce add", "reduce inc"), "does not support the reduction 'inc'"),
        (GATHER.replace("$expect full 8192", "$expect full 4096"), "deadlock"),
    ],
)
def test_faults(body, expected):
    assert expected in message(body)


# ---- copies by address

ADDRESSES = """
    %m = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32, #ttg.slice<{dim = 1, parent = #blocked}>>
    %n = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32, #ttg.slice<{dim = 0, parent = #blocked}>>
    %m1 = tt.expand_dims %m {axis = 1 : i32} : tensor<64xi32, #ttg.slice<{dim = 1, parent = #blocked}>> -> tensor<64x1xi32, #blocked>
    %n1 = tt.expand_dims %n {axis = 0 : i32} : tensor<64xi32, #ttg.slice<{dim = 0, parent = #blocked}>> -> tensor<1x64xi32, #blocked>
    %pitch = arith.constant dense<64> : tensor<64x1xi32, #blocked>
    %m2 = arith.muli %m1, %pitch : tensor<64x1xi32, #blocked>
    %m3 = tt.broadcast %m2 : tensor<64x1xi32, #blocked> -> tensor<64x64xi32, #blocked>
    %n3 = tt.broadcast %n1 : tensor<1x64xi32, #blocked> -> tensor<64x64xi32, #blocked>
    %o = arith.addi %m3, %n3 : tensor<64x64xi32, #blocked>
    %ps = tt.splat %p : !tt.ptr<f16> -> tensor<64x64x!tt.ptr<f16>, #blocked>
    %at = tt.addptr %ps, %o : tensor<64x64x!tt.ptr<f16>, #blocked>, tensor<64x64xi32, #blocked>
    $alloc a
"""  # noqa: E501 - TTGIR
COPY = (
    "%t{0} = ttg.async_copy_global_to_local %at, %{1} : "
    "tensor<64x64x!tt.ptr<f16>, #blocked> -> <64x64xf16, #s, #smem, mutable>\n"
)
COMMIT = "%g{0} = ttg.async_commit_group tokens %t{0}\n"
WAIT = "%w{0} = ttg.async_wait %g{0} {{num = {1} : i32}}\n"
READ = "$fence\n$store a c0\n$stores 0\n"


def test_a_wait_lands_the_groups_before_it():
    body = ADDRESSES + COPY.format(0, "a") + COMMIT.format(0) + WAIT.format(0, 0) + READ
    x, y = run(body, pointer=True)
    assert (x == y).all()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (COPY.format(0, "a") + COMMIT.format(0) + READ, "reads 'a' while a copy into it is in"),
        (COPY.format(0, "a") + COMMIT.format(0) + WAIT.format(0, 1) + READ, "reads 'a' while a"),
        (COPY.format(0, "a") + COPY.format(1, "a"), "overwrites 'a' while a copy into it is in"),
        (COPY.format(0, "a"), "the kernel ends while this copy into shared memory is in flight"),
    ],
)
def test_waits_of_groups_that_are_missing(body, expected):
    assert expected in message(ADDRESSES + body, pointer=True)


def test_an_mbarrier_waits_for_copies_by_address():
    arrive = f"ttng.async_copy_mbarrier_arrive %full {{noIncrement}} : {BAR}\n"
    body = ADDRESSES + "$bar full 1\n" + COPY.format(0, "a") + arrive + "$wait full 0\n" + READ
    x, y = run(body, pointer=True)
    assert (x == y).all()
    assert "in flight" in message(body.replace("$wait full 0\n", ""), pointer=True)


# ---- places that do not exist


def test_an_address_outside_harms_only_who_uses_it():
    array, one = BUFFER.replace("64x64", "2x64x64"), BUFFER
    index = f"%all = ttg.local_alloc : () -> {array}\n%b = ttg.memdesc_index %all[%before] : {array} -> {one}\n"  # noqa: E501 - TTGIR
    x, y = run(GATHER + index)
    assert (y == x[::-1]).all()
    assert "index -32 of 2 buffers 'all'" in message(index + "$read r b\n")
