"""Residue classes as the kernels compute them, in int32, at the largest strides.  No GPU."""

from __future__ import annotations

import types
from dataclasses import replace

import pytest

np = pytest.importorskip("numpy", reason="kernels' arithmetic is done in numpy")
pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

from triton_ext.host import capabilities  # noqa: E402
from triton_ext.ops.core.device import KNOWN  # noqa: E402
from triton_ext.ops.core.stride_phases import StridePhases, phase_refusals, phase_taps  # noqa: E402
from triton_ext.ops.families import gemm_config, gluon_config  # noqa: E402
from triton_ext.ops.families.gemm_config import Product  # noqa: E402
from triton_ext.ops.kernels import gemm  # noqa: E402

GLUON = capabilities()["im2col-gluon"]
EDGES = (
    StridePhases(size=46340, taps=3, stride=46340, dilation=46339, low=0),
    # 46337 is a prime, so every dilation has an inverse.
    StridePhases(size=46337, taps=40, stride=46337, dilation=12345, low=6),
    StridePhases(size=46336, taps=7, stride=46336, dilation=46330, low=8),
    # A padding takes from the stride: 30000 * (30000 + 41582) is the last product below 2^31.
    StridePhases(size=30000, taps=3, stride=30000, dilation=29999, low=41582),
    StridePhases(size=9, taps=4, stride=3, dilation=2, low=5),
)


def int32(values):
    return tuple(np.int32(value) for value in values)


def of(dim, name):
    """A triple (d, h, w) whose last is the dimension's."""
    return int32((1, 1, getattr(dim, name)))


def problem_of(dim):
    return types.SimpleNamespace(
        padding=of(dim, "low"),
        filter_size=of(dim, "taps"),
        dilation=of(dim, "dilation"),
        lower=of(dim, "lower"),
    )


def phases_of_dim(dim):
    names = ("stride", "divisor", "tap_step", "inverse")
    return types.SimpleNamespace(**{name: of(dim, name) for name in names})


def expected(dim):
    """First tap, number of taps and im2col offset for every residue; 0 where there is no tap."""
    found, lower = [], dim.lower
    for residue in range(dim.stride):
        taps = dim.taps_of(residue)
        offset = dim.shift(residue, taps[0]) - lower if taps else 0
        found.append((taps[0] if taps else 0, len(taps), offset))
    return np.array(found).T


def compare(dim, first, count, offset):
    wanted = expected(dim)
    assert {part.dtype for part in (first, offset)} == {np.dtype(np.int32)}
    np.testing.assert_array_equal(count, wanted[1])
    has_taps = count > 0
    for part, right in ((first, wanted[0]), (offset, wanted[2])):
        np.testing.assert_array_equal(part[has_taps], right[has_taps])


@pytest.mark.skipif(not GLUON.available, reason=GLUON.reason)
@pytest.mark.parametrize("dim", EDGES, ids=str)
def test_the_gluon_kernel(dim, monkeypatch):
    from triton_ext.ops.kernels import gluon_conv

    monkeypatch.setattr(gluon_conv, "gl", types.SimpleNamespace(where=np.where))
    residues = (0, 0, np.arange(dim.stride, dtype=np.int32))
    compare(dim, *gluon_conv.phase_taps.fn(residues, problem_of(dim), 2, phases_of_dim(dim)))


@pytest.mark.parametrize("dim", EDGES, ids=str)
def test_the_jit_kernel(dim, monkeypatch):
    language = types.SimpleNamespace(where=np.where, program_id=lambda axis: np.int32(0))
    monkeypatch.setattr(gemm, "tl", language)
    monkeypatch.setattr(gemm, "max", np.maximum, raising=False)
    for name in ("_residue", "_wide"):
        monkeypatch.setattr(gemm, name, getattr(gemm, name).fn)
    classes = phases_of_dim(dim)
    residues = np.arange(dim.stride, dtype=np.int32)
    number = (residues + np.int32(dim.low)) % np.int32(dim.stride)
    problem = problem_of(dim)
    np.testing.assert_array_equal(gemm._residue(number, problem, 2, classes), residues)
    first, count = gemm._phase_taps.fn(number, 2, problem.filter_size, classes)
    compare(dim, first, count, gemm._offset.fn(number, first, problem, 2, classes))


@pytest.mark.parametrize("dim", EDGES, ids=str)
def test_what_is_right_is_taken(dim):
    assert not phase_refusals([dim], (1,), 1, 512)


def test_what_overflows_is_refused():
    def problems(stride, low, size=1):
        dim = StridePhases(size=size, taps=1, stride=stride, dilation=1, low=low)
        return [*map(str, phase_refusals([dim], (1,), 1, 8))]

    for low, most in ((0, 46340), (1, 46340), (41582, 30000), (41583, 29999)):
        assert problems(most, low) == []
        (problem,) = problems(most + 1, low)
        assert problem.startswith(f"stride {most + 1} in W: must be at most {most} with a padding")
    # Both dimensions of a class of one pixel: 2^15 * (2^15 - 1) classes.
    dims = [
        StridePhases(size=stride, taps=1, stride=stride, dilation=1, low=0)
        for stride in (32768, 32767)
    ]
    assert not phase_refusals(dims, (1, 1), 1, 8)
    (problem,) = map(str, phase_refusals(dims, (1, 1), 1, 24))
    assert problem == (
        "1073709056 stride phases of 24 channels have up to 3221127168 tiles: must be at most "
        "2147418111"
    )
    # Channels of a group are in tiles of their own.
    assert phase_refusals(dims, (1, 1), 1, 3, 3)


@pytest.mark.parametrize(("stride", "dilations"), [(1, (1, 2, 7)), (2, (1, 3)), (6, (4, 10))])
def test_a_kernel_is_compiled_for_the_dilation_modulo_the_stride(stride, dilations):
    def classes(dilation):
        dim = StridePhases(size=9, taps=3, stride=stride, dilation=dilation, low=1)
        return str(gemm.Phases.of([dim]))

    assert len({classes(dilation) for dilation in dilations}) == 1
    assert stride == 1 or classes(dilations[0]) != classes(dilations[0] + 1)


def test_the_taps_of_all_classes():
    def dims(taps: int, stride: int, size: int = 14) -> list[StridePhases]:
        return [StridePhases(size=size, taps=taps, stride=stride, dilation=1, low=taps // 2)] * 2

    assert phase_taps(dims(3, 1)) == (196, (9,), 1)
    assert phase_taps(dims(3, 2)) == (49, (1, 2, 2, 4), 1)
    assert phase_taps(dims(1, 2)) == (49, (1, 0, 0, 0), 1)
    # Too many to be looked at one by one.
    pixels, taps, repeats = phase_taps(dims(7, 1000, 2000))
    assert (pixels, repeats) == (4, 1000**2)
    assert taps == (pytest.approx(49 / 1000**2),)


@pytest.mark.parametrize("repeats", [1, 3, 1600])
def test_classes_that_are_alike_may_be_counted(repeats):
    # 49 pixels are one tile of each class, not a part of one.
    one, every = (0.0625,), (0.0625,) * repeats
    counted = Product(pixels=49, columns=64, channels=256, taps=one, repeats=repeats, is_dgrad=True)
    each = replace(counted, taps=every, repeats=1)
    for times, where in (
        (gemm_config.expected_times, KNOWN["h200"]),
        (gluon_config.expected_times, 132),
    ):
        found = ({c: e.us for c, e in times(how, where).items()} for how in (counted, each))
        assert next(found) == pytest.approx(next(found))
