"""The examples of examples/gluon/cdna5 where they cannot run: one sentence, no aborted process."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from cdna5_helpers import MISSING  # noqa: E402
from triton.compiler.errors import CompilationError  # noqa: E402
from triton_ext.errors import UnsupportedError  # noqa: E402
from triton_ext.gluon import amd as xamd  # noqa: E402
from triton_ext.host import capabilities  # noqa: E402

from examples.gluon.cdna5 import embedding_bag as bags  # noqa: E402
from examples.gluon.cdna5 import moe  # noqa: E402
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
@pytest.mark.skipif(not MISSING, reason="they run on this Triton")
def test_on_this_triton(fresh_triton_cache, start):
    if capabilities()["amd-tdm-rows"].available:
        message = "a gather of this Triton takes no padding (3.8 or newer does)"
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
        with pytest.raises(
            UnsupportedError, match=f"^emulated: arch is '{arch}': expected gfx1250"
        ):
            xamd.emulated(kernel, arch)
        # What the kernel says by itself.
        emulated = xamd.emulated(kernel)
        emulated.arch = arch
        return emulated

    with pytest.raises(CompilationError, match=f"the target is {arch}"):
        start(launcher)


def attend(seq_lens, dtype=np.float16, kv_heads=1, page_size=16, pages=0):
    """Three sequences of two pages of a cache of 6; refused before anything is launched."""
    q, cache = np.ones((3, 2, 64), dtype), np.ones((96, 64), dtype)
    table, lens = np.full((3, 2), pages, np.int32), np.array(seq_lens, np.int32)
    paged.paged_attention(
        q, cache, cache, table, lens, q.copy(), kv_heads, page_size, launcher=None
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attend([1, 33, 2]), r"^seq_lens\[1\] is 33: expected 0 to 32, 2 pages of 16"),
        (lambda: attend([1, 2, -1]), r"^seq_lens\[2\] is -1: expected 0 to 32"),
        (
            lambda: attend([0, 17, 0], pages=6),
            r"^block_table\[1, 0\] is 6: expected 0 to 5, .*\nblock_table\[1, 1\] is 6",
        ),
        (lambda: attend([0, 16, 0], pages=-1), r"^block_table\[1, 0\] is -1: expected 0 to 5, "),
        (lambda: attend([0, 1, 0], kv_heads=2, pages=3), r"\[1, 0\] is 3: expected 0 to 2, "),
        (lambda: attend([1, 2]), "q has 3 sequences, seq_lens 2, block_table 3"),
        (lambda: attend([1, 2, 3], np.float32), "^q is of float32: expected fp16 or bf16"),
        (lambda: attend([1, 2, 3], kv_heads=0), "^kv_heads is 0: expected an int of at least 1$"),
        (lambda: attend([1, 2, 3], page_size=0), "^page_size is 0: expected an int of at least 1$"),
        (
            lambda: moe.route(np.array([[0.5]]), 1, 64),
            "^experts are of float64: expected integers$",
        ),
        (lambda: moe.route(np.zeros((1, 1), int), 1, 0), "^block_m is 0: expected at least 1$"),
    ],
)
def test_what_is_checked_on_the_host(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("block_d", [1, 2])
def test_bags_of_few_columns(block_d):
    assert bags.Config(block_d=block_d).problems() == [
        f"block_d is {block_d}: expected at least 4, two lanes of two columns"
    ]
