"""The mixture-of-experts layer of examples/gluon/cdna5, without a GPU."""

from __future__ import annotations

import os

import pytest

np = pytest.importorskip("numpy")

from cdna5_helpers import (  # noqa: E402
    MISSING,
    recorded,
    tensorcnt_waits,
    verifier_objects,
    waits_without_barrier,
    with_one_more,
    without_waits,
)

if MISSING:
    pytest.skip(MISSING, allow_module_level=True)

from examples.gluon.cdna5 import moe  # noqa: E402

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
INPUTS = 50 if NIGHTLY else 2
CONFIGS = (
    moe.Config(num_buffers=1),
    moe.Config(num_buffers=2),
    moe.Config(num_buffers=3, block_m=32),
    moe.Config(num_buffers=3, num_warps=8, block_k=64),
    moe.Config(num_buffers=2, partitioned=True),
    moe.Config(num_buffers=3, num_warps=8, partitioned=True),
)


def reference(x, w_up, w_down, weights, experts):
    """The layer in float32, rounded to fp16 where the kernels do."""
    rows = np.zeros((*experts.shape, x.shape[1]), np.float32)
    for place in np.ndindex(experts.shape):
        expert = experts[place]
        if expert >= 0:
            hidden = np.maximum(x[place[0]].astype(np.float32) @ w_up[expert], 0)
            hidden = hidden.astype(np.float16).astype(np.float32)
            rows[place] = (weights[place] * (hidden @ w_down[expert])).astype(np.float16)
    return rows.sum(axis=1)


def draw(rng, num_tokens=None):
    """A layer with ragged experts, rows that go nowhere, and sizes that no tile divides."""
    num_tokens = num_tokens or int(rng.integers(1, 150))
    num_experts, top_k = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    dim, dim_hidden = (int(rng.integers(1, 20)) * 8 for _ in range(2))
    experts = rng.integers(-1, num_experts, (num_tokens, top_k))
    if rng.random() < 0.5:  # one that most rows go to, and one that none goes to
        experts[rng.random(experts.shape) < 0.6] = 0
        experts[experts == num_experts - 1] = min(1, num_experts - 1)

    def matrix(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float16)

    x = rng.standard_normal((num_tokens, dim)).astype(np.float16)
    w_up, w_down = matrix(num_experts, dim, dim_hidden), matrix(num_experts, dim_hidden, dim)
    weights = rng.random((num_tokens, top_k)).astype(np.float32)
    return x, w_up, w_down, weights, experts


def run(config, launcher, x, w_up, w_down, weights, experts):
    rows = experts.size
    hidden = np.full((rows, w_up.shape[2]), np.nan, np.float16)
    pairs = np.zeros((rows, x.shape[1]), np.float16)
    y = np.full(x.shape, np.nan, np.float16)
    routing = moe.route(experts, len(w_up), config.block_m)
    moe.moe(x, w_up, w_down, weights, routing, hidden, pairs, y, config, launcher)
    return y


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    with recorded(tmp_path_factory.mktemp("triton-cache")) as found:
        yield found


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("seed", range(INPUTS))
def test_equals_numpy(launcher, config, seed):
    rng = np.random.default_rng(seed)
    layer = draw(rng)
    y = run(config, launcher, *layer)
    np.testing.assert_allclose(y, reference(*layer), atol=4e-3, rtol=4e-3)


def test_rows_of_pairs_that_32_bits_do_not_hold(launcher):
    """Row 32 of 2**26 columns is at element 2**31; all but the first columns is never touched."""
    dim = 1 << 26
    pairs, y = np.zeros((34, dim), np.float16), np.zeros((17, dim), np.float16)
    pairs[1, :64], pairs[32, :64] = 1, 2
    layout = moe.gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    launcher(moe.combine)[1, 1](pairs, y, 17, dim, TOP_K=2, BLOCK_M=32, BLOCK_N=64, LAYOUT=layout)
    for token, sum_of_pairs in ((0, 1), (15, 0), (16, 2)):
        np.testing.assert_array_equal(y[token, :66], [*[sum_of_pairs] * 64, 0, 0])


def test_sums_of_fp32(launcher):
    x, w_up, w_down, weights, experts = draw(np.random.default_rng(1), num_tokens=9)
    y = np.zeros(x.shape, np.float32)
    hidden = np.zeros((experts.size, w_up.shape[2]), np.float16)
    pairs = np.zeros((experts.size, x.shape[1]), np.float16)
    routing = moe.route(experts, len(w_up), 64)
    moe.moe(x, w_up, w_down, weights, routing, hidden, pairs, y, launcher=launcher)
    expected = reference(x, w_up, w_down, weights, experts)
    np.testing.assert_allclose(y, expected, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_wait_is_needed(launcher, config):
    """Without any wait, or with one that lets one instruction more through, both object."""
    del launcher.launches[:]
    rng = np.random.default_rng(7)
    x, w_up, w_down, weights, experts = draw(rng, num_tokens=70)
    # Long enough for the loop of each pipeline.
    x = rng.standard_normal((70, 256)).astype(np.float16)
    w_up = rng.standard_normal((len(w_up), 256, 256)).astype(np.float16)
    w_down = rng.standard_normal((len(w_up), 256, 256)).astype(np.float16)
    run(config, launcher, x, w_up, w_down, weights, np.abs(experts))
    launches = launcher.of("expert_matmul")
    assert len(launches) == 2
    for launch in launches:
        assert verifier_objects(launch.ttgir) is None
        assert launch.rerun(launch.ttgir) is None
        buffers = config.num_buffers
        for change in (without_waits, with_one_more):
            texts = list(change(launch.ttgir))
            # One in the loop, one for each stage behind it, one at the end.
            assert len(texts) == (2 if buffers == 1 else buffers + 1)
            for _, text in texts[:-1]:
                error = launch.rerun(text)
                assert "while a copy into it is in flight" in str(error)
                assert "moe.py" in error.filename
                assert "unsafe" in str(verifier_objects(text))
            # Nothing in this kernel uses the LDS of the last one again: the next workgroup does.
            last = texts[-1][1]
            end = "the kernel ends while a store from LDS is in flight"
            assert end in str(launch.rerun(last))
            end = "unsafe end of the kernel: a copy may still read its LDS"
            assert end in str(verifier_objects(last))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_waits_of_the_machine_code(launcher, config):
    del launcher.launches[:]
    rng = np.random.default_rng(3)
    run(config, launcher, *draw(rng, num_tokens=20))
    for launch in launcher.of("expert_matmul"):
        is_up = "amdg.async_tdm_gather" in launch.ttgir
        stage = sum(config.stage(is_up).instructions)
        buffers = config.num_buffers
        expected = {0} | {stage * behind for behind in range(buffers - 1)}
        assert set(tensorcnt_waits(launch.asm)) == expected
        code = launch.asm["amdgcn"]
        assert "tensor_load_to_lds" in code
        assert "tensor_store_from_lds" in code
        assert "v_wmma_f32_16x16x32_f16" in code
        assert waits_without_barrier(launch.asm) == []
        assert launch.placed_bytes > 0
        assert launch.shared <= config.lds_bytes
        assert len(launch.asm["hsaco"]) > 1000
        assert ("partitioned_shared" in launch.ttgir) == config.partitioned


# ---- host


def test_routing():
    experts = np.array([[1, 0], [1, -1], [1, 1], [-1, 3]])
    routing = moe.route(experts, 4, 2)
    # Rows of no expert come first; those of one expert keep their order.
    assert routing.order.tolist() == [3, 6, 1, 0, 2, 4, 5, 7]
    assert routing.expert_end.tolist() == [3, 7, 7, 8]
    assert routing.block_expert.tolist() == [0, 1, 1, 3]
    assert routing.block_start.tolist() == [2, 3, 5, 7]
    assert routing.map(len).expert_end == 4
    assert routing.map(len).block_m == 2
    assert routing.order.dtype == np.int32


def test_every_row_is_in_one_block():
    rng = np.random.default_rng(0)
    for _ in range(50):
        num_experts, block_m = int(rng.integers(1, 9)), 1 << int(rng.integers(0, 6))
        experts = rng.integers(-1, num_experts, (int(rng.integers(1, 90)), 2))
        routing = moe.route(experts, num_experts, block_m)
        found = []
        for expert, start in zip(routing.block_expert, routing.block_start, strict=True):
            rows = routing.order[start : min(start + block_m, routing.expert_end[expert])]
            assert len(rows)
            assert (experts.reshape(-1)[rows] == expert).all()
            found += rows.tolist()
        assert sorted(found) == np.flatnonzero(experts.reshape(-1) >= 0).tolist()


def test_an_expert_that_is_not_there():
    with pytest.raises(ValueError, match="expected experts of 0 to 3, or -1"):
        moe.route(np.array([[4]]), 4, 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_m": 48}, "block_m is 48: expected a power of two"),
        ({"block_n": 16}, "WMMA of 4 waves needs 32"),
        ({"num_warps": 2}, "num_warps is 2: expected 4 or 8"),
        ({"num_buffers": 5}, "num_buffers is 5"),
        ({"block_m": 512, "block_n": 512, "num_buffers": 4}, "B of LDS, a workgroup has 327680"),
    ],
)
def test_configurations_that_cannot_run(change, message):
    problems = moe.Config(**change).problems()
    assert any(message in problem for problem in problems)
    with pytest.raises(ValueError, match=message):
        moe.moe(*[None] * 8, config=moe.Config(**change))


def test_shipped_configurations_can_run():
    assert all(config.problems() == [] for config in (*CONFIGS, moe.Config()))
