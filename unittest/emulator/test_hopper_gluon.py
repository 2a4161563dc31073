"""Gluon convolutions for Hopper in the emulator: equal to torch in any order of the partitions."""

from __future__ import annotations

import dataclasses
import os
import random

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch", reason="the examples' launchers need torch")

from triton_ext.host import capabilities

# Where TTGIR has no such copies, the loads become calls, and that later.
CAPABILITY = capabilities()["im2col-copies"]
if not CAPABILITY.available:
    pytest.skip(CAPABILITY.reason, allow_module_level=True)

from conv_cases import Case, assert_close, draw  # noqa: E402
from hopper_kernels import CONFIGS, WGRAD_CONFIGS, keep_filter, one_triton_cache, run  # noqa: E402
from triton_ext.ops.families.gluon_config import cooperative, ping_pong  # noqa: E402
from triton_ext.ops.families.gluon_wgrad import WgradTileConfig  # noqa: E402
from triton_ext.ops.kernels.gluon_pipeline import stores_in_flight  # noqa: E402

NIGHTLY = bool(os.environ.get("TRITON_EXT_NIGHTLY"))
SMALL = Case(
    n=2, size=(9, 11), ci=72, co=80, filter_size=(3, 3), stride=(2, 1), padding=(1, 1),
    dilation=(1, 1),
)  # fmt: skip
UNIT = Case(
    n=3, size=(9, 9), ci=40, co=136, filter_size=(3, 2), stride=(1, 1), padding=(1, 1),
    dilation=(1, 2),
)  # fmt: skip
ONE_TILE = Case(
    n=2, size=(9, 11), ci=40, co=64, filter_size=(1, 3), stride=(1, 2), padding=(0, 1),
    dilation=(1, 1),
)  # fmt: skip
# A matrix product: x is loaded through a tiled descriptor.
POINTS = Case(
    n=2, size=(9, 11), ci=72, co=80, filter_size=(1, 1), stride=(1, 1), padding=(0, 0),
    dilation=(1, 1),
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def one_cache(tmp_path_factory):
    with one_triton_cache(tmp_path_factory):
        yield


KERNELS = [
    # Strided and not are two kernels of dgrad.
    ("fprop", SMALL, CONFIGS[0], {}),
    ("fprop", UNIT, CONFIGS[1], {}),
    ("fprop", UNIT, keep_filter(CONFIGS[0], 6), {}),
    ("fprop", POINTS, CONFIGS[0], {}),
    ("dgrad", SMALL, CONFIGS[0], {}),
    ("dgrad", UNIT, CONFIGS[1], {}),
    ("wgrad", UNIT, WGRAD_CONFIGS[0], {"add_in_place": True}),
    ("wgrad", SMALL, WGRAD_CONFIGS[1], {"add_in_place": False}),
    ("wgrad", POINTS, WGRAD_CONFIGS[0], {}),
    ("wgrad", ONE_TILE, WGRAD_CONFIGS[2], {"add_in_place": False}),
]


@pytest.mark.parametrize(
    ("kernel", "case", "config", "options"), KERNELS, ids=[f"{k[0]}-{k[2]}" for k in KERNELS]
)
def test_it_equals_torch_in_every_order(kernel, case, config, options):
    for seed in range(20 if NIGHTLY else 3):
        assert_close(*run(kernel, case, config, seed, **options))


# Tiles with as many stores as leave the first buffer the newest: 3 and 1 through 2.
MANY_TILES = dataclasses.replace(POINTS, size=(20, 20), ci=32, co=96)
FEW_PIXELS = dataclasses.replace(UNIT, n=1, size=(7, 7), ci=64, co=64, dilation=(1, 1))
STAGED = [
    (
        "fprop",
        MANY_TILES,
        cooperative(64, 2, 64, 3, block_n_rest=32, store_n=32, store_buffers=2),
    ),
    ("dgrad", MANY_TILES, ping_pong(64, 32, 4, store_n=32, store_buffers=2)),
    ("wgrad", FEW_PIXELS, WgradTileConfig(consumers=1, main_blocks=1, stages=3, store_buffers=2)),
    ("wgrad", FEW_PIXELS, WgradTileConfig(share="rows", main_blocks=1, stages=3, store_buffers=2)),
]


@pytest.mark.parametrize(("kernel", "case", "config"), STAGED, ids=[str(s[2]) for s in STAGED])
def test_a_buffer_is_filled_again_behind_its_store(kernel, case, config):
    assert_close(*run(kernel, case, config))


def test_stores_in_flight_keep_every_buffer():
    rng = random.Random(5)
    for _ in range(200):
        buffers, count = rng.randint(1, 4), rng.randint(1, 6)
        order = [number % buffers for number in range(count)]
        issued: list[int] = []
        for number in range(3 * len(order)):
            store = number % len(order)
            allowed = stores_in_flight(buffers, count, store)
            newest = issued[len(issued) - allowed :] if allowed else []
            assert order[store] not in newest
            # No stricter than it has to be.
            assert order[store] in issued[-allowed - 1 :] or len(issued) <= allowed
            issued.append(order[store])


@pytest.mark.parametrize("number", range(40 if NIGHTLY else 4))
@pytest.mark.parametrize("kernel", ["fprop", "dgrad", "wgrad"])
def test_random_geometries(kernel, number):
    rng = random.Random(f"{kernel} {number}")
    if NIGHTLY:
        case, configs = draw(rng, rng.choice((1, 2, 2, 3))), CONFIGS
        if kernel == "wgrad":
            # Consumers that share a tile want few tiles, which are split.
            configs = [config for config in WGRAD_CONFIGS if config.share != "tile"]
        config = rng.choice(configs)
    else:
        # What a test above compiled already.
        case = dataclasses.replace(draw(rng, 2), dtype="float16")
        config = WGRAD_CONFIGS[0] if kernel == "wgrad" else CONFIGS[0]
    assert_close(*run(kernel, case, config, seed=number))
