"""The attention over a paged cache of examples/gluon/cdna5, without a GPU."""

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

from examples.gluon.cdna5 import paged_attention as paged  # noqa: E402

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
INPUTS = 50 if NIGHTLY else 4
CONFIGS = (
    paged.Config(num_buffers=2),
    paged.Config(num_buffers=3),
    paged.Config(num_buffers=2, block_t=128, num_warps=2),
)


def reference(q, k_cache, v_cache, block_table, seq_lens, kv_heads, page_size):
    out = np.zeros(q.shape, np.float64)
    group = q.shape[1] // kv_heads
    for seq, head in np.ndindex(q.shape[:2]):
        tokens = np.arange(seq_lens[seq])
        pages = block_table[seq, tokens // page_size].astype(np.int64)
        rows = (pages * page_size + tokens % page_size) * kv_heads + head // group
        if len(rows):
            scores = k_cache[rows].astype(np.float64) @ q[seq, head] / np.sqrt(q.shape[2])
            p = np.exp(scores - scores.max())
            out[seq, head] = p / p.sum() @ v_cache[rows]
    return out


def draw(rng, group, longest=None, kv_heads=2, page_size=16):
    """Sequences of any length, none included, in pages that may be shared and lie anywhere."""
    num_seqs = int(rng.integers(1, 4))
    seq_lens = rng.integers(0, 300, num_seqs).astype(np.int32)
    if longest is not None:
        seq_lens[0] = longest
    max_pages = max(1, -(-int(seq_lens.max()) // page_size))
    num_pages = int(rng.integers(1, 30))
    block_table = rng.integers(0, num_pages, (num_seqs, max_pages)).astype(np.int32)
    q = rng.standard_normal((num_seqs, group * kv_heads, 64)).astype(np.float16)
    cache = rng.standard_normal((2, num_pages * page_size * kv_heads, 64)).astype(np.float16)
    return q, cache[0].copy(), cache[1].copy(), block_table, seq_lens, kv_heads, page_size


def run(config, launcher, q, k_cache, v_cache, block_table, seq_lens, kv_heads, page_size):
    out = np.full(q.shape, np.nan, np.float16)
    paged.paged_attention(
        q, k_cache, v_cache, block_table, seq_lens, out, kv_heads, page_size, config, launcher
    )
    return out


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    with recorded(tmp_path_factory.mktemp("triton-cache")) as found:
        yield found


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("seed", range(INPUTS))
def test_equals_numpy(launcher, config, seed):
    rng = np.random.default_rng(seed)
    # Few sizes of groups: each is a compile.
    inputs = draw(rng, group=(3, 16)[seed % 2])
    np.testing.assert_allclose(
        run(config, launcher, *inputs), reference(*inputs), atol=4e-3, rtol=4e-3
    )


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 128, 129, 192])
def test_lengths_at_the_edges_of_blocks(launcher, length):
    inputs = draw(np.random.default_rng(length), 3, length)
    found = run(paged.Config(num_buffers=3), launcher, *inputs)
    np.testing.assert_allclose(found, reference(*inputs), atol=4e-3, rtol=4e-3)


def test_rows_of_heads_that_32_bits_do_not_hold(launcher):
    """Row 32 * 2**20 of 64 columns is at element 2**31; the rest is never touched."""
    config, kv_heads, rows = paged.Config(), 1 << 20, 33 << 20
    out = np.zeros((rows, 64), np.float16)
    # One token, with one key and one value.
    cache = np.arange(64, dtype=np.float16)[None].copy()
    launcher(paged.decode)[33, 1](
        out, cache, cache, np.zeros((33, 1), np.int32), np.ones(33, np.int32), out, 1, 1, 1.0,
        GROUP=1, KV_HEADS=kv_heads, PAGE_SIZE=16, D=64, BLOCK_T=config.block_t,
        NUM_BUFFERS=config.num_buffers, STAGE=config.stage(), num_warps=config.num_warps,
        **config.layouts(64),
    )  # fmt: skip
    for row in (0, 32 * kv_heads):
        np.testing.assert_array_equal(out[row : row + 2], [cache[0], np.zeros(64)])


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_wait_is_needed(launcher, config):
    del launcher.launches[:]
    run(config, launcher, *draw(np.random.default_rng(1), 3, 6 * config.block_t))
    (launch,) = launcher.launches
    assert verifier_objects(launch.ttgir) is None
    for change in (without_waits, with_one_more):
        texts = list(change(launch.ttgir))
        # One for the keys of a stage and one for its values, in the loop and behind it.
        assert len(texts) == 2 * config.num_buffers
        for _, text in texts:
            assert "while a copy into it is in flight" in str(launch.rerun(text))
            assert "unsafe" in str(verifier_objects(text))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_waits_of_the_machine_code(launcher, config):
    del launcher.launches[:]
    run(config, launcher, *draw(np.random.default_rng(2), 3))
    (launch,) = launcher.launches
    count = config.stage().instructions[0]
    # Half stages: the values of a stage may be in flight while its keys are waited for.
    expected = {count * n for n in range(2 * config.num_buffers - 1)}
    found = set(tensorcnt_waits(launch.asm))
    # Triton 3.9 waits for 10 by itself everywhere: what is longer need not be asked for.
    assert found == {n for n in expected if n != 10} or found == {n for n in expected if n < 10}
    assert "v_wmma_f32_16x16x32_f16" in launch.asm["amdgcn"]
    assert waits_without_barrier(launch.asm) == []
    assert launch.placed_bytes > 0
    assert launch.shared <= config.lds_bytes(64)
    assert len(launch.asm["hsaco"]) > 1000


@pytest.mark.parametrize(
    ("config", "heads", "message"),
    [
        (paged.Config(block_t=32), (2, 1), "block_t is 32: expected a power of two of at least 64"),
        (paged.Config(num_warps=8), (2, 1), "num_warps is 8: expected 2 or 4"),
        (paged.Config(num_buffers=1), (2, 1), "num_buffers is 1: expected 2 to 4"),
        (paged.Config(block_t=1024, num_buffers=3), (2, 1), "B of LDS, a workgroup has 327680"),
        (paged.Config(), (34, 2), "17 query heads share a kv head: expected 1 to 16"),
        (paged.Config(), (3, 2), "3 query heads cannot share 2 kv heads evenly"),
    ],
)
def test_configurations_that_cannot_run(config, heads, message):
    q, cache = np.zeros((1, heads[0], 64), np.float16), np.zeros((16 * heads[1], 64), np.float16)
    table, lens = np.zeros((1, 1), np.int32), np.ones(1, np.int32)
    with pytest.raises(ValueError, match=message):
        paged.paged_attention(q, cache, cache, table, lens, q.copy(), heads[1], 16, config)
