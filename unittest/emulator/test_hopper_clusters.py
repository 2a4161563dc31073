"""Clusters of two CTAs in the emulator: results, and that each wait and arrival is needed."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import random
import re
import sys

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch", reason="the examples' launchers need torch")

from triton_ext.errors import UnsupportedError  # noqa: E402
from triton_ext.host import capabilities  # noqa: E402

# Where TTGIR has no such copies, the loads become calls, and that later.
CAPABILITY = capabilities()["im2col-copies"]
if not CAPABILITY.available:
    pytest.skip(CAPABILITY.reason, allow_module_level=True)

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parents[1] / "nvidia"))

import gpu_kernels  # noqa: E402
from conv_cases import Case, assert_close, draw  # noqa: E402
from hopper_kernels import CONFIGS, one_triton_cache, run  # noqa: E402
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # noqa: E402
from triton_ext.emulator import EmulationError, Program  # noqa: E402
from triton_ext.gluon import nvidia as xnv  # noqa: E402

from examples.gluon.hopper.fprop_cluster import check_host, in_cluster  # noqa: E402

try:
    check_host()
except UnsupportedError as error:
    pytest.skip(str(error), allow_module_level=True)

NIGHTLY = bool(os.environ.get("TRITON_EXT_NIGHTLY"))
PING_PONG, SHARED = (in_cluster(config) for config in CONFIGS[:2])
# More than one round of the ring, and several tiles for a cluster.
UNIT = Case(
    n=3, size=(9, 9), ci=136, co=136, filter_size=(3, 2), stride=(1, 1), padding=(1, 1),
    dilation=(1, 2),
)  # fmt: skip
STRIDED = dataclasses.replace(UNIT, n=2, size=(9, 11), ci=72, co=80, stride=(2, 1))
# A matrix product: x is loaded through a tiled descriptor.
POINTS = Case(
    n=2, size=(9, 11), ci=72, co=80, filter_size=(1, 1), stride=(1, 1), padding=(0, 0),
    dilation=(1, 1),
)  # fmt: skip
# Fewer pixels than CTA 0 has: CTA 1 has none.
ONE_CTA = dataclasses.replace(UNIT, n=1, size=(5, 6), ci=40, co=64)


@pytest.fixture(autouse=True, scope="module")
def one_cache(tmp_path_factory):
    with one_triton_cache(tmp_path_factory):
        yield


@pytest.mark.parametrize("config", [PING_PONG, SHARED], ids=str)
@pytest.mark.parametrize("case", [UNIT, STRIDED, POINTS, ONE_CTA], ids=str)
def test_it_equals_torch_in_every_order(case, config):
    for seed in range(20 if NIGHTLY else 2):
        assert_close(*run("fprop", case, config, seed))


@pytest.mark.parametrize("number", range(40 if NIGHTLY else 4))
def test_random_geometries(number):
    rng = random.Random(f"cluster {number}")
    case = draw(rng, rng.choice((1, 2, 2, 3)) if NIGHTLY else 2)
    if not NIGHTLY:
        case = dataclasses.replace(case, dtype="float16")
    assert_close(*run("fprop", case, (PING_PONG, SHARED)[number % 2], seed=number))


# Those of unittest/nvidia/test_driver_gpu.py, which an H200 has run.
@pytest.mark.parametrize(
    ("cga", "multicast"),
    [([[1, 0]], False), ([[0, 1]], False), ([[0, 0]], False), ([[0, 0]], True)],
    ids=["pixels split", "channels split", "two copies", "multicast"],
)
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "stock"])
def test_copies_of_a_cluster(cga, multicast, ours):
    height, width, block = 14, 12, [128, 64]
    x = torch.randint(-8, 8, (4, height, width, 64)).to(torch.float16)
    layout = xnv.im2col_layout(block, x.dtype, cga)
    desc = xnv.TensorDescriptorIm2Col.for_conv(x, 3, 1, 1, block_shape=block, layout=layout)
    padded = torch.nn.functional.pad(x, (0, 0, 1, 1, 1, 1))
    expected = padded[:, 1 : 1 + height, 2 : 2 + width].reshape(-1, 64)
    rows = expected.shape[0] // 128 * 128
    y = torch.zeros(rows, 64, dtype=torch.float16)
    y_desc = TensorDescriptor.from_tensor(y, block, layout)
    walk = ((height, width), (1, 1), (1, 1))
    launch = xnv.emulated(gpu_kernels.share)[(rows // 128,)]
    if not ours and cga == [[1, 0]]:
        # Triton goes on along w, and out of the pixel box.
        with pytest.raises(EmulationError, match="the TMA unit cannot do this"):
            launch(desc, y_desc, ours, multicast, walk, num_ctas=2)
        return
    launch(desc, y_desc, ours, multicast, walk, num_ctas=2)
    assert torch.equal(y, expected[:rows])


# ---- What is missing shows ---------------------------------------------------------------------

#: What is said about an operation that is missing.
EXPECTED = {
    "ttng.wait_barrier": (
        r"in flight|orders the two accesses|elements were written|deadlock|expects 0 more|"
        r"may have ended"
    ),
    "ttng.barrier_expect": r"deadlock|in flight|elements were written",
    "ttng.arrive_barrier": r"deadlock",
    "ttng.fence_async_shared": r"asynchronous proxy",
}


def without(name, number):
    """Takes the number-th operation of a name out, if there are as many."""

    def edit(ttgir):
        places = list(re.finditer(rf"^ *{re.escape(name)} .*\n", ttgir, re.MULTILINE))
        if number >= len(places):
            pytest.skip(f"the kernel has {len(places)} of them")
        place = places[number]
        return ttgir[: place.start()] + ttgir[place.end() :]

    return edit


# Two consumers: 2 waits each (a turn, a stage) and 5 arrivals (two pairs, a turn); the producer has
# 3 waits: for its stage, for the other CTA's, and at the end.
@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("ttng.wait_barrier", number) for number in range(7)),
        *(("ttng.arrive_barrier", number) for number in range(10)),
        ("ttng.barrier_expect", 0),
        ("ttng.fence_async_shared", 0),
    ],
)
def test_each_is_needed(name, number):
    for seed in range(10 if NIGHTLY else 2):
        with pytest.raises(EmulationError) as caught:
            run("fprop", UNIT, PING_PONG, seed, edit=without(name, number))
        assert re.search(EXPECTED[name], caught.value.message), caught.value.message


def test_a_copy_for_both_needs_the_bytes_of_both():
    # As if each CTA loaded its own: CTA 1 waits for bytes that nobody sends.
    with pytest.raises(EmulationError, match="bytes outstanding"):
        run("fprop", UNIT, PING_PONG, edit=one_copy_each_for_cta_0)


def one_copy_each_for_cta_0(ttgir):
    """Takes the multicast out, and lets CTA 1 load nothing of the filter."""
    head, _, rest = ttgir.partition(" {multicast}")
    if not rest:
        head, _, rest = ttgir.partition("multicast")
    line = head.rpartition("\n")[2]
    predicate = re.findall(r"%\w+", line)[-1]
    rank = (
        '%my_rank = tt.elementwise_inline_asm "mov.u32 $0, %cluster_ctarank;" '
        '{constraints = "=r", packed_element = 1 : i32, pure = true} -> i32\n'
        "%no_rank = arith.constant 0 : i32\n%is_first = arith.cmpi eq, %my_rank, %no_rank : i32\n"
    )
    changed = line.rpartition(predicate)
    return head[: -len(line)] + rank + changed[0] + "%is_first" + changed[2] + rest


SPLIT = """
#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0], CGALayout = [[1]]}>
module attributes {"ttg.num-ctas" = 2 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @kernel(%p: !tt.ptr<i32>) {
    %range = tt.make_range {end = 256 : i32, start = 0 : i32} : tensor<256xi32, #b>
    %s = tt.splat %p : !tt.ptr<i32> -> tensor<256x!tt.ptr<i32>, #b>
    %at = tt.addptr %s, %range : tensor<256x!tt.ptr<i32>, #b>, tensor<256xi32, #b>
    tt.store %at, %range : tensor<256x!tt.ptr<i32>, #b>
    tt.return
  }
}
"""  # noqa: E501 - TTGIR


def test_each_cta_has_its_share_of_a_range():
    y = np.zeros(256, np.int32)
    Program(SPLIT).run((1,), [y])
    assert (y == np.arange(256)).all()


def test_what_crosses_the_ctas_is_refused():
    total = """%t = "tt.reduce"(%range) <{axis = 0 : i32}> ({
    ^bb0(%x: i32, %w: i32):
      %sum = arith.addi %x, %w : i32
      tt.reduce.return %sum : i32
    }) : (tensor<256xi32, #b>) -> i32
"""
    with pytest.raises(EmulationError, match=r"does not support 'tt\.reduce' across the CTAs"):
        Program(SPLIT.replace("    tt.return", total + "    tt.return"))
