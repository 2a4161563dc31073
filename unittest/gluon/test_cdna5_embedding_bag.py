"""The embedding bags of examples/gluon/cdna5, without a GPU."""

from __future__ import annotations

import itertools
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

from triton_ext.gluon import amd as xamd  # noqa: E402

from examples.gluon.cdna5 import embedding_bag as bags  # noqa: E402

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
INPUTS = 50 if NIGHTLY else 6
CONFIGS = (
    bags.Config(num_buffers=2),
    bags.Config(num_buffers=3, block_d=32),
    bags.Config(num_buffers=4, block_r=64, num_warps=8),
)


def reference(table, indices, offsets, weights):
    out = np.zeros((len(offsets) - 1, table.shape[1]), np.float32)
    for bag, (first, end) in enumerate(itertools.pairwise(offsets)):
        rows = indices[first:end]
        kept = rows >= 0
        out[bag] = weights[first:end][kept] @ table[rows[kept]].astype(np.float32)
    return out


def draw(rng, lengths=None):
    """Bags with repeated rows, rows that are left out, and nothing at all."""
    num_rows, dim = int(rng.integers(1, 200)), int(rng.integers(1, 40)) * 4
    if lengths is None:
        lengths = rng.integers(0, 200, int(rng.integers(1, 6)))
        lengths[rng.random(len(lengths)) < 0.3] = 0
    offsets = np.cumsum([0, *lengths]).astype(np.int32)
    indices = rng.integers(-1, num_rows, offsets[-1]).astype(np.int32)
    if rng.random() < 0.3:
        indices[...] = rng.integers(0, num_rows)
    table = rng.standard_normal((num_rows, dim)).astype(np.float16)
    return table, indices, offsets, rng.random(offsets[-1]).astype(np.float32)


def run(config, launcher, table, indices, offsets, weights):
    # An empty array has no address: the last element is never read.
    indices = np.append(indices, np.int32(0))
    weights = np.append(weights, np.float32(0))
    out = np.full((len(offsets) - 1, table.shape[1]), np.nan, np.float16)
    bags.embedding_bag(table, indices, offsets, weights, out, config, launcher)
    return out


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    with recorded(tmp_path_factory.mktemp("triton-cache")) as found:
        yield found


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("seed", range(INPUTS))
def test_equals_numpy(launcher, config, seed):
    bag = draw(np.random.default_rng(seed))
    np.testing.assert_allclose(run(config, launcher, *bag), reference(*bag), atol=2e-2, rtol=2e-3)


def test_a_row_that_holds_inf_is_not_touched_by_others(launcher):
    table, indices, offsets, weights = draw(np.random.default_rng(0), [40, 40])
    table = np.concatenate([table, np.full_like(table[:1], np.inf)])
    indices[:40] = np.where(indices[:40] < 0, 0, indices[:40])
    indices[50] = len(table) - 1
    out = run(bags.Config(), launcher, table, indices, offsets, weights)
    assert np.isfinite(out[0]).all()
    assert np.isinf(out[1]).all()


def test_rows_of_bags_that_32_bits_do_not_hold(launcher):
    """Bag 32 of 2**26 columns is at element 2**31; all but the first columns is never touched."""
    config, dim = bags.Config(), 1 << 26
    table, out = np.zeros((1, dim), np.float16), np.zeros((33, dim), np.float16)
    table[0, :64] = np.arange(64)
    launcher(bags.bag_sum)[33, 1](
        table, np.zeros(33, np.int32), np.arange(34, dtype=np.int32), np.ones(33, np.float32), out,
        1, dim, BLOCK_R=config.block_r, BLOCK_D=config.block_d, NUM_BUFFERS=config.num_buffers,
        STAGE=config.stage(), num_warps=config.num_warps, **config.layouts(),
    )  # fmt: skip
    for bag in (0, 32):
        np.testing.assert_array_equal(out[bag, :66], [*range(64), 0, 0])


def test_sums_of_fp32(launcher):
    bag = draw(np.random.default_rng(0), [40, 3])
    out = np.zeros((2, bag[0].shape[1]), np.float32)
    bags.embedding_bag(*bag, out, launcher=launcher)
    np.testing.assert_allclose(out, reference(*bag), atol=1e-4, rtol=1e-4)


def test_bf16(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch", reason="the reference is torch's")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    table, indices, offsets, weights = draw(np.random.default_rng(4), [70, 3])
    rounded = torch.from_numpy(table.astype(np.float32)).to(torch.bfloat16)
    out = torch.zeros(2, table.shape[1], dtype=torch.bfloat16)
    bags.embedding_bag(
        rounded.view(torch.int16).numpy().view(np.uint16),
        indices,
        offsets,
        weights,
        out.view(torch.int16).numpy().view(np.uint16),
        launcher=lambda kernel: xamd.emulated(
            kernel, types={"table_ptr": "*bf16", "out_ptr": "*bf16"}
        ),
    )
    expected = reference(rounded.float().numpy(), indices, offsets, weights)
    np.testing.assert_allclose(out.float().numpy(), expected, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_wait_is_needed(launcher, config):
    del launcher.launches[:]
    run(config, launcher, *draw(np.random.default_rng(1), [20 * config.block_r]))
    (launch,) = launcher.launches
    assert verifier_objects(launch.ttgir) is None
    for change in (without_waits, with_one_more):
        texts = list(change(launch.ttgir))
        assert len(texts) == config.num_buffers
        for _, text in texts:
            assert "while a copy into it is in flight" in str(launch.rerun(text))
            assert "unsafe" in str(verifier_objects(text))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_waits_of_the_machine_code(launcher, config):
    del launcher.launches[:]
    run(config, launcher, *draw(np.random.default_rng(2)))
    (launch,) = launcher.launches
    (count,) = config.stage().instructions
    assert set(tensorcnt_waits(launch.asm)) == {count * n for n in range(config.num_buffers - 1)}
    assert waits_without_barrier(launch.asm) == []
    assert launch.placed_bytes > 0
    assert launch.shared <= config.lds_bytes
    assert len(launch.asm["hsaco"]) > 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_r": 24}, "block_r is 24: expected a power of two"),
        ({"num_buffers": 1}, "num_buffers is 1"),
        ({"block_r": 512, "block_d": 128}, "B of LDS, a workgroup has 327680"),
    ],
)
def test_configurations_that_cannot_run(change, message):
    with pytest.raises(ValueError, match=message):
        bags.embedding_bag(*[None] * 5, config=bags.Config(**change))
