"""The examples of examples/gluon/cdna5 where they cannot run: one sentence, no aborted process."""

from __future__ import annotations

import inspect
import types

import pytest

np = pytest.importorskip("numpy")

from cdna5_helpers import MISSING  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler.errors import CompilationError  # noqa: E402
from triton_ext.errors import UnsupportedError  # noqa: E402
from triton_ext.gluon import amd as xamd  # noqa: E402
from triton_ext.host import capabilities  # noqa: E402

from examples.gluon.cdna5 import arguments, moe  # noqa: E402
from examples.gluon.cdna5 import embedding_bag as bags  # noqa: E402
from examples.gluon.cdna5 import paged_attention as paged  # noqa: E402


def start_bags(launcher):
    out = np.zeros((1, 64), np.float16)
    arrays = np.zeros(40, np.int32), np.array([0, 40], np.int32), np.ones(40, np.float32)
    bags.embedding_bag(np.ones((9, 64), np.float16), *arrays, out, launcher=launcher)


def start_moe(launcher):
    x, w = np.ones((4, 32), np.float16), np.ones((1, 32, 32), np.float16)
    experts = np.zeros((4, 1), np.int32)
    weights = np.ones((4, 1), np.float32)
    routing = moe.route(experts, 1, 64)
    moe.moe(x, w, w, weights, routing, x.copy(), x.copy(), x.copy(), launcher=launcher)


def start_paged(launcher):
    q, cache = np.ones((1, 1, 64), np.float16), np.ones((16, 64), np.float16)
    table, lens = np.zeros((1, 1), np.int32), np.ones(1, np.int32)
    paged.paged_attention(q, cache, cache, table, lens, q.copy(), 1, 16, launcher=launcher)


STARTS = pytest.mark.parametrize("start", [start_bags, start_moe, start_paged])


@STARTS
@pytest.mark.parametrize("target", [None, GPUTarget("cuda", 90, 32)], ids=["none", "sm_90"])
def test_without_a_gpu_that_runs_them(monkeypatch, start, target):
    class Driver:
        def get_current_target(self):
            if target is None:
                raise RuntimeError("0 active drivers ([]). There should only be one.")
            return target

    monkeypatch.setattr(arguments, "driver", types.SimpleNamespace(active=Driver()))
    found = "and Triton finds no GPU" if target is None else "the current one is cuda:90"
    with pytest.raises(
        UnsupportedError,
        match=f"needs an AMD GPU of gfx1250 or gfx1251, {found}; launcher=xamd.emulated runs it",
    ):
        start(arguments.on_gpu)
    assert all(
        inspect.signature(launch).parameters["launcher"].default is arguments.on_gpu
        for launch in (bags.embedding_bag, moe.moe, paged.paged_attention)
    )


@STARTS
@pytest.mark.skipif(not MISSING, reason="they run on this Triton")
def test_on_this_triton(fresh_triton_cache, start):
    if capabilities()["amd-tdm-rows"].available:
        message = "a gather of this Triton does not support padding (3.8 or newer does)"
    else:
        message = "has no TDM gather and scatter; install 3.7 or newer"
    with pytest.raises(CompilationError) as caught:
        start(xamd.emulated)
    # Older releases show of a helper's error only where it was called; the cause has the rest.
    said, error = [], caught.value
    while error is not None:
        said.append(str(error))
        error = error.__cause__
    assert message in "\n".join(said)


@STARTS
@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1201"])
def test_on_another_gpu(fresh_triton_cache, start, arch):
    def launcher(kernel):
        if arch == "gfx1201":
            with pytest.raises(UnsupportedError, match=r"^emulated: arch is 'gfx1201': expected"):
                xamd.emulated(kernel, arch)
        # What the kernel says by itself.
        emulated = xamd.emulated(kernel)
        emulated.arch = arch
        return emulated

    with pytest.raises(CompilationError, match=f"the target is {arch}"):
        start(launcher)


def half(*shape):
    return np.zeros(shape, np.float16)


def refused(function, arguments, changes, *more):
    """All that is said against a call whose arguments are right but for the changes, by name."""
    with pytest.raises(ValueError) as caught:
        function(*(arguments | changes).values(), *more, launcher=None)
    return str(caught.value)


def pages_of(**changes):
    """Three sequences of two pages of a cache of 6; refused before anything is launched."""
    arguments = {
        "q": half(3, 2, 64),
        "k_cache": half(96, 64),
        "v_cache": half(96, 64),
        "block_table": np.zeros((3, 2), np.int32),
        "seq_lens": np.array([1, 2, 3], np.int32),
        "out": half(3, 2, 64),
        "kv_heads": 1,
        "page_size": 16,
    }
    return refused(paged.paged_attention, arguments, changes)


def lens(*numbers):
    return np.array(numbers, np.int32)


def table(page):
    return np.full((3, 2), page, np.int32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seq_lens": lens(1, 33, 2)}, "seq_lens[1] is 33: expected 0 to 32, 2 pages of 16 tokens"),
        (
            {"seq_lens": lens(1, 2, -1)},
            "seq_lens[2] is -1: expected 0 to 32, 2 pages of 16 tokens",
        ),
        (
            {"seq_lens": lens(0, 17, 0), "block_table": table(6)},
            "block_table[1, 0] is 6: expected 0 to 5, the pages of the cache\n"
            "block_table[1, 1] is 6: expected 0 to 5, the pages of the cache",
        ),
        (
            {"seq_lens": lens(0, 16, 0), "block_table": table(-1)},
            "block_table[1, 0] is -1: expected 0 to 5, the pages of the cache",
        ),
        (
            {"seq_lens": lens(0, 1, 0), "kv_heads": 2, "block_table": table(3)},
            "block_table[1, 0] is 3: expected 0 to 2, the pages of the cache",
        ),
        ({"seq_lens": lens(1, 2)}, "seq_lens is [2]: expected [B], here [3]"),
        (
            {"q": np.zeros((3, 2, 64), np.float32)},
            "q is of float32: expected float16 or bfloat16 or uint16",
        ),
        ({"kv_heads": 0}, "kv_heads is 0: expected an int of at least 1"),
        ({"page_size": 0}, "page_size is 0: expected an int of at least 1"),
        (
            {"k_cache": half(96, 32), "v_cache": half(96, 128)},
            "k_cache is [96, 32]: expected [rows, D], here [96, 64]\n"
            "v_cache is [96, 128]: expected [rows, D], here [96, 64]",
        ),
        ({"v_cache": half(80, 64)}, "v_cache is [80, 64]: expected [rows, D], here [96, 64]"),
        ({"out": half(3, 1, 64)}, "out is [3, 1, 64]: expected [B, heads, D], here [3, 2, 64]"),
        (
            {"out": np.zeros((3, 2, 64), np.float32)},
            "out is of float32: expected float16",
        ),
        (
            {"seq_lens": np.ones(3, np.int64)},
            "seq_lens is of int64: expected int32",
        ),
        (
            {"page_size": 20},
            "k_cache has 96 rows: expected PAGES * 20 * 1, a row for each token of a page and kv "
            "head, at most 2147483647",
        ),
        ({"q": half(3, 128)}, "q is [3, 128]: expected 3 dimensions"),
        ({"block_table": None}, "block_table is a NoneType: expected an array"),
        (
            {"k_cache": half(64, 96).T},
            "k_cache is not contiguous: expected rows that lie one behind the other",
        ),
    ],
)
def test_caches_that_cannot_be_attended_to(changes, message):
    assert pages_of(**changes) == message


def layer_of(block_m=64, **changes):
    """128 tokens of 2 experts; refused before anything is launched."""
    arguments = {
        "x": half(128, 32),
        "w_up": half(2, 32, 64),
        "w_down": half(2, 64, 32),
        "weights": np.ones((128, 1), np.float32),
        "routing": moe.route(np.zeros((128, 1), int), 2, block_m),
        "hidden": half(128, 64),
        "pairs": half(128, 32),
        "y": half(128, 32),
    }
    return refused(moe.moe, arguments, changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"block_m": 128},
            "routing has blocks of 128 rows and config of 64: expected the same, "
            "route(experts, 2, 64)",
        ),
        ({"w_up": half(2, 16, 64)}, "w_up is [2, 16, 64]: expected [E, D, H], here [2, 32, 64]"),
        (
            {"w_down": half(3, 64, 32)},
            "w_down is [3, 64, 32]: expected [E, H, D], here [2, 64, 32]",
        ),
        (
            {"x": np.zeros((128, 32), np.float32), "y": np.zeros((128, 32))},
            "x is of float32: expected float16 or bfloat16 or uint16\n"
            "y is of float64: expected float16 or bfloat16 or uint16 or float32",
        ),
        (
            {"hidden": half(64, 64), "pairs": half(128, 16)},
            "hidden is [64, 64]: expected [T * TOP_K, H], here [128, 64]\n"
            "pairs is [128, 16]: expected [T * TOP_K, D], here [128, 32]",
        ),
        (
            {"weights": np.ones((128, 2), np.float32), "hidden": half(256, 64)},
            "pairs is [128, 32]: expected [T * TOP_K, D], here [256, 32]\n"
            "routing.order is [128]: expected [T * TOP_K], here [256]",
        ),
        (
            {"w_up": np.zeros((2, 32, 64), np.uint16), "pairs": np.zeros((128, 32), np.uint16)},
            "w_up is of uint16: expected float16\npairs is of uint16: expected float16",
        ),
        ({"weights": half(128, 1)}, "weights is of float16: expected float32"),
        ({"weights": np.ones(128)}, "weights is [128]: expected 2 dimensions"),
        (
            {"routing": moe.route(np.zeros((128, 1), int), 3, 64)},
            "routing.expert_end is [3]: expected [E], here [2]",
        ),
        ({"routing": None}, "routing is a NoneType: expected what route() gives"),
        (
            {"w_up": half(2, 32, 0), "y": half(128, 16)},
            "x is [128, 32], w_up [2, 32, 0]: expected no empty dimension",
        ),
    ],
)
def test_operands_that_are_no_layer(changes, message):
    assert layer_of(**changes) == message


def bags_of(**changes):
    """Three bags of 8 rows; refused before anything is launched."""
    arguments = {
        "table": half(9, 64),
        "indices": np.zeros(8, np.int32),
        "offsets": np.array([0, 4, 4, 8], np.int32),
        "weights": np.ones(8, np.float32),
        "out": half(3, 64),
    }
    return refused(bags.embedding_bag, arguments, changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"table": np.zeros((9, 64), np.float32)},
            "table is of float32: expected float16 or bfloat16 or uint16",
        ),
        ({"out": half(3, 32)}, "out is [3, 32]: expected [B, D], here [3, 64]"),
        ({"out": np.zeros((3, 64))}, "out is of float64: expected float16 or float32"),
        ({"out": half(4, 64)}, "out is [4, 64]: expected [B, D], here [3, 64]"),
        ({"weights": np.ones(7, np.float32)}, "weights is [7]: expected [L], here [8]"),
        ({"indices": np.zeros(8, np.int64)}, "indices is of int64: expected int32"),
        (
            {"offsets": lens(0, 4, 3, 8)},
            "offsets[2] is 3: expected 4 to 8, none before the one in front of it, none behind the "
            "indices",
        ),
        (
            {"offsets": lens(0, 4, 5, 9)},
            "offsets[3] is 9: expected 5 to 8, none before the one in front of it, none behind the "
            "indices",
        ),
        ({"table": half(9)}, "table is [9]: expected 2 dimensions"),
    ],
)
def test_operands_that_are_no_bags(changes, message):
    assert bags_of(**changes) == message


@pytest.mark.parametrize(
    ("experts", "block_m", "message"),
    [
        ([[0.5]], 64, "^experts are of float64: expected integers$"),
        ([[0]], 0, "^block_m is 0: expected at least 1$"),
    ],
)
def test_experts_that_are_not_routed(experts, block_m, message):
    with pytest.raises(ValueError, match=message):
        moe.route(np.array(experts), 1, block_m)


@pytest.mark.parametrize("block_d", [1, 2])
def test_bags_of_few_columns(block_d):
    assert bags.Config(block_d=block_d).problems() == [
        f"block_d is {block_d}: expected at least 4, two lanes of two columns"
    ]
