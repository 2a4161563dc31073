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
from triton_ext.ir.encodings.conversion import shape_per_cta

triton = pytest.importorskip("triton")
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])

BLOCKED = enc.BlockedEncoding((1, 4), (4, 8), (2, 2), (1, 0))


@pytest.fixture(scope="module")
def layouts():
    host = LayoutHost()
    yield host
    host.close()


def is_linear(layout, shape) -> bool:
    """Whether ``#ttg.linear`` can hold a layout; since 3.8 it moves by powers of two only."""
    try:
        enc.LinearEncoding(*(bases for _, bases in layout.bases)).to_linear_layout(shape)
    except VerifyError:
        return False
    return all(x & (x - 1) == 0 for _, bases in layout.bases for basis in bases for x in basis)


def differs_by_design(encoding, shape) -> bool:
    """What this host is known to convert otherwise; each line is a fact about one release."""
    # `transposed` is ignored.
    if VERSION < (3, 8) and isinstance(encoding, enc.NvmmaSharedEncoding):
        return encoding.transposed and not encoding.swizzle_byte_width
    # The binding gives a layout that may have no repetitions and moves one dimension at a time.
    if isinstance(encoding, enc.GenericLinearEncoding):
        return not is_linear(encoding.to_linear_layout(shape), shape)
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
    if VERSION < (3, 7) and "shared" in kind:
        pytest.skip("the host before 3.7 ends its process when asked for a shared layout")
    if VERSION < (3, 8) and "tensor_memory" in kind:
        pytest.skip("the host before 3.8 is given the CTAs of tensor memory as counts")
    if VERSION < (3, 8) and kind == "generic_linear":
        pytest.skip("the host before 3.8 knows no generic_linear")
    if VERSION < (3, 8) and "wmma" in kind:
        pytest.skip("the host before 3.8 has neither instruction shapes nor clusters for WMMA")
    encoding = KINDS[kind](random)
    shape = some_shape(random, encoding)
    assume(has_layout(encoding, shape) and not differs_by_design(encoding, shape))
    ours = encoding.to_linear_layout(shape)
    if VERSION >= (3, 9) and isinstance(encoding, enc.BlockedEncoding):
        ours = ours.without_zero_bases("register")
    theirs = layouts.bases(encoding, shape)
    found = {name: [list(b) for b in bases] for name, bases in ours.bases}
    if isinstance(encoding, enc.TensorMemory):
        # The binding leaves the CTAs out; they have to reach what the host's rows and columns miss.
        assert len(found.pop("block")) == len(encoding.cga_layout)
    assert found == theirs
    assert tuple(size for _, size in ours.out_dims) == shape
    assert ours.is_surjective


def test_example_blocked():
    layout = BLOCKED.to_linear_layout((64, 64))
    assert layout.in_bases("register") == ((0, 1), (0, 2), (8, 0), (16, 0), (32, 0))
    assert layout.in_bases("lane") == ((0, 4), (0, 8), (0, 16), (1, 0), (2, 0))
    assert layout.in_bases("warp") == ((0, 32), (4, 0))
    assert layout.in_dim_names == ("register", "lane", "warp", "block")


@settings(max_examples=60, deadline=None)
@given(random=st.randoms(use_true_random=False))
def test_generic_linear_layout_by_enumeration(random):
    """Where the bases end, registers go on in tiles."""
    encoding = KINDS["generic_linear"](random)
    shape = some_shape(random, encoding)
    sizes = [size for _, size in encoding.linear_layout.out_dims]
    assume(all(a >= b for a, b in zip(shape, sizes, strict=True)))
    layout = encoding.to_linear_layout(shape)
    tiles = [(0,) * len(shape)]
    for dim in encoding.order:
        steps = range(0, shape[dim], sizes[dim])
        tiles = [(*t[:dim], t[dim] + s, *t[dim + 1 :]) for s in steps for t in tiles]
    bases = [encoding.reg_bases, encoding.lane_bases, encoding.warp_bases, encoding.block_bases]
    assert layout.in_dim_size("register") == len(tiles) << len(bases[0])
    for _ in range(20):
        point = [random.randrange(1 << len(vectors)) for vectors in bases]
        tile = random.randrange(len(tiles))
        wanted = [0] * len(shape)
        for x, vectors in zip(point, bases, strict=True):
            for bit, basis in enumerate(vectors):
                if x >> bit & 1:
                    wanted = [a ^ b for a, b in zip(wanted, basis, strict=True)]
        wanted = [a + b for a, b in zip(wanted, tiles[tile], strict=True)]
        point[0] += tile << len(bases[0])
        inputs = dict(zip(("register", "lane", "warp", "block"), point, strict=True))
        assert list(layout.apply(inputs).values()) == wanted


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(random=st.randoms(use_true_random=False))
def test_padded_layout_is_the_one_that_the_host_reads(layouts, random):
    """The host's conversion ends its process for padding; its reader spells the bases out."""
    if VERSION < (3, 8):
        pytest.skip("the host before 3.8 reads no CGA bases")
    encoding = KINDS["padded_shared"](random)
    order = list(range(len(encoding.shape)))
    random.shuffle(order)
    text = f"{{order = {order}, shape = {list(encoding.shape)}}}"
    pairs = ", ".join(f"{i}:+{pad}" for i, pad in encoding.interval_padding_pairs)
    for spelled in (f"#ttg.padded_shared<[{pairs}] {text}>", str(encoding)):
        ours = parse_attribute(spelled)
        theirs = layouts.padded(spelled, encoding.shape)
        layout = ours.to_linear_layout(encoding.shape)
        assert [list(b) for b in layout.in_bases("offset")] == theirs["offset_bases"]
        share = shape_per_cta(theirs["cga_layout"], encoding.shape)
        assert [list(b) for b in layout.in_bases("block")] == [
            [a * b for a, b in zip(basis, share, strict=True)] for basis in theirs["cga_layout"]
        ]
        assert list(ours.shape) == theirs["shape"]
        assert [list(p) for p in ours.interval_padding_pairs] == theirs["interval_padding_pairs"]


def test_example_of_tensor_memory():
    """PTX ISA, data path layouts F (64 rows by itself) and B (64 rows of one of two CTAs)."""
    alone = enc.TensorMemoryEncoding((64, 32), 1).to_linear_layout((64, 64))
    assert alone.in_dim_names == ("row", "col", "block")
    assert alone.apply({"row": 17, "col": 3, "block": 0}) == {"dim0": 1, "dim1": 35}
    assert alone.apply({"row": 37, "col": 3, "block": 0}) == {"dim0": 21, "dim1": 3}
    pair = enc.TensorMemoryEncoding((64, 32), 1, ((1, 0),), True).to_linear_layout((128, 32))
    assert pair.apply({"row": 37, "col": 3, "block": 1}) == {"dim0": 101, "dim1": 3}
    assert pair.apply({"row": 101, "col": 3, "block": 0}) == {"dim0": 37, "dim1": 19}
    scales = enc.TensorMemoryScalesEncoding().to_linear_layout((128, 8))
    for row, column in ((0, 0), (33, 2), (127, 7)):
        at = {"row": row % 32 + 96, "col": column // 4 * 16 + row // 32 * 4 + column % 4}
        assert scales.apply({**at, "block": 0}) == {"dim0": row, "dim1": column}


def test_transposed_layout_of_rank_3_repeats_elements_where_sizes_differ():
    encoding = enc.NvmmaSharedEncoding(0, 16, 3, True)
    assert encoding.to_linear_layout((8, 8, 8)).is_invertible
    layout = encoding.to_linear_layout((4, 8, 16))
    assert layout.is_surjective
    assert layout.in_dim_size("offset") == 4 * 4 * 8 * 16
    assert layout.apply({"offset": 5, "block": 0}) == {"dim0": 1, "dim1": 1, "dim2": 0}


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
        (
            enc.TensorMemoryEncoding((128, 32), 1, ((1, 0),)),
            (128, 32),
            "expected at least 128 rows for each CTA, found 64 of the shape [128, 32]",
        ),
        (
            enc.TensorMemoryScalesEncoding(((0, 1), (0, 2))),
            (128, 2),
            "expected at least 4 elements over 4 CTAs, found the shape [128, 2]",
        ),
        (
            enc.TensorMemoryScalesEncoding((), "[0, 1]"),
            (128, 4),
            "expected no 'blockRepOrder': triton-ext does not know its effect on the layout",
        ),
        (enc.NvmmaSharedEncoding(32, 16), (4, 64), "expected at least 8 rows in [4, 16]"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(encoding, shape, message):
    with pytest.raises(VerifyError) as error:
        encoding.to_linear_layout(shape)
    assert message in str(error.value)
