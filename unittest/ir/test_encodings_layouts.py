"""Linear layouts of encodings against the installed Triton's own conversion."""

from __future__ import annotations

import pytest
from encodings_host import LayoutHost
from encodings_random import KINDS, has_layout, some_shape
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from triton_ext.errors import VerifyError
from triton_ext.ir import encodings as enc
from triton_ext.ir.attribute_values import parse_attribute

triton = pytest.importorskip("triton")
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])

BLOCKED = enc.BlockedEncoding((1, 4), (4, 8), (2, 2), (1, 0))


@pytest.fixture(scope="module")
def layouts():
    host = LayoutHost()
    yield host
    host.close()


def differs_by_design(encoding, shape) -> bool:
    """What this host is known to convert otherwise; each line is a fact about one release."""
    # `transposed` is ignored.
    if VERSION < (3, 8) and isinstance(encoding, enc.NvmmaSharedEncoding):
        return encoding.transposed and not encoding.swizzle_byte_width
    # The binding cannot express one element per CTA.
    if isinstance(encoding, enc.SharedEncoding):
        return not encoding.to_linear_layout(shape).in_bases("offset")
    return False


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "padded_shared"])
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
@given(random=st.randoms(use_true_random=False))
def test_layout_is_that_of_the_host(layouts, kind, random):
    if VERSION < (3, 8) and "wmma" in kind:
        pytest.skip("the host before 3.8 has neither instruction shapes nor clusters for WMMA")
    encoding = KINDS[kind](random)
    shape = some_shape(random, encoding)
    assume(has_layout(encoding, shape) and not differs_by_design(encoding, shape))
    ours = encoding.to_linear_layout(shape)
    if VERSION >= (3, 9) and isinstance(encoding, enc.BlockedEncoding):
        ours = ours.without_zero_bases("register")
    theirs = layouts.bases(encoding, shape)
    assert {name: [list(b) for b in bases] for name, bases in ours.bases} == theirs
    assert tuple(size for _, size in ours.out_dims) == shape
    assert ours.is_surjective


def test_example_blocked():
    layout = BLOCKED.to_linear_layout((64, 64))
    assert layout.in_bases("register") == ((0, 1), (0, 2), (8, 0), (16, 0), (32, 0))
    assert layout.in_bases("lane") == ((0, 4), (0, 8), (0, 16), (1, 0), (2, 0))
    assert layout.in_bases("warp") == ((0, 32), (4, 0))
    assert layout.in_dim_names == ("register", "lane", "warp", "block")


def test_padded_layout_does_not_count_padding():
    encoding = parse_attribute("#ttg.padded_shared<[64:+4] {order = [1, 0], shape = [16, 64]}>")
    layout = encoding.to_linear_layout((16, 64))
    for offset in (0, 1, 63, 64, 65, 1023):
        expected = {"dim0": offset // 64, "dim1": offset % 64}
        assert layout.apply({"offset": offset, "block": 0}) == expected
    assert [encoding.padded_offset(x) for x in (0, 63, 64, 128)] == [0, 63, 68, 136]
    assert encoding.padded_size(16 * 64) == 16 * 64 + 15 * 4


def test_padded_layout_over_ctas():
    encoding = enc.PaddedSharedEncoding(((64, 4),), ((0, 1), (0, 2), (1, 0)), ((2, 0),), (4, 4))
    layout = encoding.to_linear_layout((4, 4))
    assert layout.apply({"offset": 5, "block": 1}) == {"dim0": 3, "dim1": 1}


def test_partitioned_example():
    """[128, 32], 2 partitions, 4 groups: buffer 0 holds the pieces 0 2 4 6."""
    encoding = parse_attribute(
        "#ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, "
        "partitionLayout = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, "
        "order = [1, 0]}>}>"
    )
    layout = encoding.to_linear_layout((128, 32))
    assert layout.is_invertible
    for row in range(128):
        piece = row // 16
        found = layout.invert().apply({"dim0": row, "dim1": 7})
        assert found["partition"] == piece % 2
        assert found["offset"] == piece // 2 * 512 + row % 16 * 32 + 7


@pytest.mark.parametrize(
    ("encoding", "shape", "message"),
    [
        (BLOCKED, (64,), "expected a shape of rank 2, found [64]"),
        (BLOCKED, (64, 48), "expected powers of two as the shape, found [64, 48]"),
        (
            enc.NvmmaSharedEncoding(128, 16),
            (64, 32),
            "expected at least 64 elements in the contiguous dimension of [64, 32] for a swizzle "
            "of 128 bytes",
        ),
        (enc.NvmmaSharedEncoding(32, 16), (4, 64), "expected at least 8 rows in [4, 16]"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(encoding, shape, message):
    with pytest.raises(VerifyError) as error:
        encoding.to_linear_layout(shape)
    assert message in str(error.value)
