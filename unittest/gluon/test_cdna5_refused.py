"""The examples of examples/gluon/cdna5 where they cannot run: one sentence, no aborted process."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from cdna5_helpers import MISSING  # noqa: E402
from triton.compiler.errors import CompilationError  # noqa: E402
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
    with pytest.raises(CompilationError, match=f"the target is {arch}"):
        start(lambda kernel: xamd.emulated(kernel, arch))
