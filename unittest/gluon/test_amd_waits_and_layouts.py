"""TdmStage, and the layouts that triton_ext.gluon.amd proposes: pure, no compile."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("triton")
pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st
from triton_ext.backends.amd.gluon import checks
from triton_ext.gluon import amd as xamd
from triton_ext.host import capabilities

few = settings(max_examples=200, deadline=None)
stages = st.lists(st.integers(1, 20), min_size=1, max_size=4)
PARTITIONED = capabilities()["amd-partitioned-shared"]
needs_partitions = pytest.mark.skipif(not PARTITIONED.available, reason=PARTITIONED.reason)
POWERS = st.integers(0, 8).map(lambda n: 1 << n)


@few
@given(stages, st.integers(0, 8), st.integers(0, 3))
def test_all_of_a_stage(counts, behind, newer):
    stage = xamd.TdmStage(tuple(counts))
    if behind * sum(counts) > 63:
        with pytest.raises(ValueError, match="TENSORcnt holds 63"):
            stage.behind(behind, newer)
    else:
        assert stage.behind(behind, newer) == behind * len(counts) + newer


@few
@given(stages, st.integers(0, 63))
def test_as_many_operations_as_fit_into_instructions(counts, allowed):
    stage = xamd.TdmStage(tuple(counts))
    ops = stage.within(allowed)
    newest_first = list(itertools.islice(itertools.cycle(reversed(counts)), ops + 1))
    assert sum(newest_first[:ops]) <= allowed < sum(newest_first)


@pytest.mark.parametrize("counts", [(), (0,), (1, -1), (1.5,)])
def test_a_stage_that_issues_nothing(counts):
    with pytest.raises(ValueError, match="TdmStage: expected a number of instructions"):
        xamd.TdmStage(counts)


@pytest.mark.parametrize("numbers", [(-1, 0), (0, -1)])
def test_numbers_below_zero(numbers):
    with pytest.raises(ValueError, match="expected 0 or more stages and operations"):
        xamd.TdmStage((1,)).behind(*numbers)


def test_instructions_of_copies():
    # 8 rows of 32-bit numbers or 16 of 16 bits; CDNA5 ISA, gather mode.
    assert [xamd.rows_instructions(n, 32) for n in (1, 8, 16, 64)] == [1, 1, 2, 8]
    assert [xamd.rows_instructions(n, 16) for n in (1, 8, 16, 64)] == [1, 1, 1, 4]
    # Pieces and waves as the hosts count them.
    assert [xamd.load_instructions(n, 4) for n in (1, 2, 4, 8, 16, 32)] == [1, 1, 1, 2, 4, 8]
    assert [xamd.load_instructions(n, 8) for n in (8, 16)] == [1, 2]


@few
@given(POWERS, st.sampled_from((1, 2, 4, 8)), st.sampled_from((32, 64)))
def test_rows_are_split_over_the_waves_and_never_over_lanes(rows, num_warps, lanes):
    layout = xamd.index_layout(rows, num_warps, lanes)
    parent = layout.parent
    assert layout.dim == 1
    assert parent.threads_per_warp == [1, lanes]
    assert parent.warps_per_cta[0] * parent.warps_per_cta[1] == num_warps
    # All rows, each in one wave as long as there are enough.
    assert parent.size_per_thread[0] * parent.warps_per_cta[0] == rows


@few
@given(st.lists(POWERS, min_size=1, max_size=3), st.sampled_from((8, 16, 32)))
def test_layouts_of_blocks_are_legal(shape, bits):
    shape[-1] = max(shape[-1], 64 // bits)
    layout = xamd.smem_layout(shape, bits)
    assert checks.layout_problems(layout, shape, bits, store=False) == []
    if shape[-1] * bits <= 256 * 32:
        assert checks.layout_problems(layout, shape, bits, store=True) == []
    plain = xamd.smem_layout(shape, bits, False)
    assert checks.layout_problems(plain, shape, bits, store=True) == []


@needs_partitions
@pytest.mark.parametrize("num_warps", [4, 8])
@pytest.mark.parametrize("block", [(64, 64, 32), (128, 64, 64), (256, 256, 32), (128, 32, 128)])
def test_a_partitioned_product(num_warps, block):
    block_m, block_n, block_k = block
    dot = xamd.partitioned_dot_layouts(list(block), 16, num_warps, [16, 16, 32])
    for layout, shape in ((dot.a, [block_m, block_k]), (dot.b, [block_k, block_n])):
        assert checks.partition_problems(layout, shape, 16, num_warps, "load") == []
    # Every tile of the product belongs to one wave and register.
    tiles = [block_m // 16, block_n // 16]
    bases = [*dot.acc.warp_bases, *dot.acc.reg_bases]
    found = set()
    for bits in itertools.product((0, 1), repeat=len(bases)):
        place = [0, 0]
        for bit, basis in zip(bits, bases, strict=True):
            place = [p ^ (bit * b) for p, b in zip(place, basis, strict=True)]
        found.add(tuple(place))
    assert found == set(itertools.product(range(tiles[0]), range(tiles[1])))
    # Waves that issue together, 0 and 1 as well as 2 and 3, read other halves of both operands.
    first = dot.acc.warp_bases[0]
    assert first == [tiles[0] // 2, tiles[1] // 2]
    assert all(basis[0] < tiles[0] // 2 for basis in dot.acc.warp_bases[1:])


@needs_partitions
@pytest.mark.parametrize(
    ("block", "num_warps"),
    [((16, 64, 32), 4), ((64, 16, 32), 4), ((32, 64, 32), 8), ((64,) * 3, 2)],
)
def test_products_that_are_too_small(block, num_warps):
    with pytest.raises(ValueError, match="expected 4 or 8 waves and a product of at least"):
        xamd.partitioned_dot_layouts(list(block), 16, num_warps, [16, 16, 32])


@needs_partitions
def test_a_gathered_operand_is_not_cut():
    dot = xamd.partitioned_dot_layouts([64, 64, 32], 16, 4, [16, 16, 32], cut_a=False)
    assert dot.a is None
    with pytest.raises(ValueError, match="cut 8 into a power of two of pieces, got 2 partitions"):
        xamd.partitioned_layout([8, 64], 16, 0, 2, 8)


def test_columns_that_are_not_constant_are_not_checked():
    assert checks.column_problems(None, 16) == []


def test_elements_of_less_than_a_byte():
    assert checks.block_problems([16, 64], 4) == [
        "elements of 4 bits: expected 8 or more; copy packed bytes instead"
    ]
    assert "expected 1 to 5" in checks.block_problems([1] * 6, 16)[0]
    assert checks.block_problems([16], 16, of_rows=True) == [
        "expected a block [rows, columns], got [16]"
    ]
