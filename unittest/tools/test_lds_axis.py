"""The axis of a memory map: nothing is left out, what is used is to scale."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_ext.tools.lds_axis import Axis

RANGES = st.lists(
    st.tuples(st.integers(0, 300_000), st.integers(1, 70_000)).map(lambda p: (p[0], sum(p))),
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(RANGES, st.integers(1, 400_000))
def test_bytes_are_in_order_and_to_scale(used, end):
    end = max([end, *(stop for _, stop in used)])
    axis = Axis.of(used, end, 640, 44)
    stretches = axis.stretches
    assert stretches[0].start == 0
    assert stretches[-1].end == end
    assert stretches[-1].right == pytest.approx(640)
    scales = set()
    for before, stretch in zip((None, *stretches), stretches, strict=False):
        assert before is None or (before.end, before.right) == (stretch.start, stretch.left)
        assert before is None or before.is_used != stretch.is_used
        middle = (stretch.start + stretch.end) // 2
        assert stretch.is_used == any(start <= middle < stop for start, stop in used)
        scale = (stretch.right - stretch.left) / (stretch.end - stretch.start)
        if stretch.is_short:
            assert not stretch.is_used
            assert stretch.right - stretch.left == pytest.approx(44)
        else:
            scales.add(round(scale, 9))
    assert len(scales) == 1
    places = [axis.at(byte) for start, stop in used for byte in (start, stop)]
    order = [byte for start, stop in used for byte in (start, stop)]
    for place, byte in zip(places, order, strict=True):
        for other, its in zip(places, order, strict=True):
            assert (byte <= its) == (place <= other) or place == pytest.approx(other, abs=1e-6)


def test_a_long_gap_is_short():
    axis = Axis.of([(0, 1000), (65536, 66536)], 320 * 1024, 640, 40)
    assert [s.is_short for s in axis.stretches] == [False, True, False, True]
    assert axis.at(1000) == pytest.approx(280)
    assert axis.at(65536) == pytest.approx(320)
    assert axis.at(66536) == pytest.approx(600)


def test_nothing_is_used():
    assert Axis.of([], 65536, 640, 40).at(65536) == pytest.approx(640)
