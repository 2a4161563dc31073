"""The table of tile configurations and the choice among them.  Runs anywhere torch is installed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

from triton_ext.ops.core.device import KNOWN, SMEM_BYTES
from triton_ext.ops.families.gemm_config import (
    CONFIGS,
    NARROW_COSTS,
    ConvConfig,
    OutputTile,
    Product,
    busiest,
    expected_times,
)

products = st.builds(
    Product,
    pixels=st.integers(1, 2**31 - 1),
    columns=st.integers(1, 65536),
    channels=st.integers(1, 65536),
    taps=st.tuples(st.integers(1, 225)),
    element_bytes=st.sampled_from([1, 2]),
)
devices = st.builds(replace, st.just(KNOWN["h200"]), num_sms=st.integers(1, 256))
outputs = st.builds(OutputTile, whole=st.booleans())


def choose_config(product, device=KNOWN["h200"], **options) -> ConvConfig:
    """The configuration that the model expects to be fastest."""
    times = expected_times(product, device, **options)
    return min(times, key=lambda config: times[config].counted_us)


def product_of(pixels: int, columns: int, channels: int) -> Product:
    """A product of a filter of 3 x 3."""
    return Product(pixels=pixels, columns=columns, channels=channels, taps=(9,))


def accumulators(config: ConvConfig) -> int:
    """fp32 accumulators that each thread holds."""
    return config.block_m * config.block_n // (32 * config.num_warps)


@given(products, devices, outputs)
def test_choice_is_a_configuration_that_fits(product, device, output):
    config = choose_config(product, device, output=output)
    assert config in CONFIGS or (config in NARROW_COSTS and product.columns <= 32)
    where = (product.element_bytes, output)
    assert config.fits(*where)
    assert config.smem_bytes(*where) < SMEM_BYTES


@given(products, devices, outputs)
def test_choice_is_deterministic(product, device, output):
    first = choose_config(product, device, output=output)
    assert first == choose_config(product, device, output=output)


def test_a_small_problem_gets_a_small_tile():
    # 49 output pixels and 16 channels: every larger tile computes more that nobody asked for.
    config = choose_config(product_of(49, 16, 64))
    assert (config.block_m, config.block_n) == (64, 16)
    config = choose_config(product_of(49, 40, 64))
    assert (config.block_m, config.block_n) == (64, 64)


def test_a_large_problem_does_not_get_a_small_tile():
    # 65536 x 512 fills 132 multiprocessors many times over with tiles of any size.
    config = choose_config(product_of(65536, 512, 512))
    assert config.block_m * config.block_n >= 128 * 128


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_shipped_configurations_are_possible(config):
    assert config.fits(2)
    for size in (config.block_m, config.block_n, config.block_k):
        # Triton's blocks are powers of two.
        assert size & (size - 1) == 0
    # A WGMMA of one warp group computes 64 rows.
    assert config.block_m % 64 == 0
    assert config.num_warps in (4, 8)
    # More than 128 accumulators per thread do not fit beside the rest of 255 registers.
    assert accumulators(config) <= 128
    assert config.store_parts in (1, 2)
    assert config.num_stages >= 2
    assert config.group_size_m >= 1


def test_shipped_configurations_differ():
    assert len(set(CONFIGS)) == len(CONFIGS)


def test_shared_memory_is_counted():
    config = ConvConfig(block_m=128, block_n=256, num_stages=4, num_warps=8)
    # 4 stages x (128 + 256) rows x 64 channels x 2 bytes, and 128 x 256 outputs x 2 bytes.
    assert config.smem_bytes(2) == 4 * 384 * 128 + 65536
    assert not config.fits(2)
    # Without TMA, or on sm_100, the whole output tile is converted through shared memory.
    assert config.smem_bytes(2, OutputTile(whole=True)) == config.smem_bytes(2)
    in_halves = replace(config, store_parts=2)
    assert in_halves.smem_bytes(2) == 4 * 384 * 128 + 32768
    assert in_halves.fits(2)
    assert not in_halves.fits(2, OutputTile(whole=True))


@given(
    st.integers(1, 300),
    st.lists(st.integers(0, 50), min_size=1, max_size=12),
    st.integers(1, 140),
)
def test_the_busiest_program_is_that_of_dealt_tiles(tiles, costs, programs):
    shares = [0] * programs
    for tile in range(tiles * len(costs)):
        shares[tile % programs] += costs[tile // tiles]
    assert busiest(tiles, costs, programs) == max(shares)
