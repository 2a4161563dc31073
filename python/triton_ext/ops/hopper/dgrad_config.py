"""Choice of the configuration of the gradient of the input on Hopper, by fprop's table.

Up to 32 input channels have narrow tiles beside it: tiles of 64 columns and more would multiply and
load columns of the filter that nobody stores.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from triton_ext.ops.hopper import fprop_config
from triton_ext.ops.hopper.tiles import Cost, TileConfig, keep_filter, ping_pong
from triton_ext.ops.residues import Residues, classes_of

__all__ = ["NARROW_COLUMNS", "choose_config", "expected_times", "narrow_configs"]

#: Input channels up to which there are narrow tiles.
NARROW_COLUMNS = 32

# Not measured.  These are the costs of the same tiles with 64 columns, of fprop_config: a narrow
# tile loads as many pixels, and less of the filter, multiplies less and stores no more.
_NARROW_COST = Cost(0.130, 0.40, 7.1)  # 64 pixels in ping-pong
_NARROW_KEEPING_COST = Cost(0.205, 0.70, 7.0)  # 128 pixels, and the filter stays


def narrow_configs(ci: int, block_k: int, steps: int) -> dict[TileConfig, Cost]:
    """Returns the configurations for few input channels, with what they cost at most.

    Args:
        ci: Input channels.
        block_k: Output channels of a step.
        steps: Steps of the whole reduction; 0 with a stride, where the filter cannot stay.

    Returns:
        An empty dict where ``ci`` is above :data:`NARROW_COLUMNS`.
    """
    if ci > NARROW_COLUMNS:
        return {}
    # With a stride, 16 columns spill a value that rows are stored with; 32 do not.
    columns = 16 if ci <= 16 and steps else 32
    store = {"store_n": columns, "store_buffers": 2}
    found = {ping_pong(64, columns, 12, block_k=block_k, **store): _NARROW_COST}
    base = ping_pong(128, columns, 4, block_k=block_k, **store)
    kept = keep_filter(base, steps) if steps else None
    if kept is not None:
        # More stages than these hide nothing.
        kept = dataclasses.replace(kept, stages=min(kept.stages, 12))
        found[kept] = _NARROW_KEEPING_COST
    return found


def expected_times(
    dims: Sequence[Residues], n: int, ci: int, co: int, num_sms: int, *, block_k: int = 64
) -> dict[TileConfig, float]:
    """Returns the configurations that can run, with the microseconds that the model expects.

    Narrow tiles come first, so that they precede what is expected to take as long.

    Args:
        dims: The spatial dimensions.
        n: Images.
        ci: Input channels.
        co: Output channels.
        num_sms: Multiprocessors of the GPU.
        block_k: Output channels of a step.
    """
    class_pixels, class_taps, repeats = classes_of(dims)
    pixels = n * class_pixels
    # With several classes a CTA needs several filters.
    one_class = all(dim.stride == 1 for dim in dims)
    blocks = math.ceil(co / block_k)
    times = {}
    class_steps = [taps * blocks for taps in class_taps]
    kept_steps = round(class_steps[0]) if one_class else 0
    for config, cost in narrow_configs(ci, block_k, kept_steps).items():
        tiles = math.ceil(pixels / config.block_m) * repeats
        times[config] = cost.expected_us(tiles, class_steps, num_sms)
    wide = fprop_config.expected_times(
        pixels, ci, co, class_taps, num_sms, repeats=repeats, block_k=block_k,
        may_keep_filter=one_class, may_join=False,
    )  # fmt: skip
    return times | wide


def choose_config(dims: Sequence[Residues], n: int, ci: int, co: int, num_sms: int) -> TileConfig:
    """Returns the configuration that the model expects to be fastest.

    Arguments as for :func:`expected_times`.
    """
    times = expected_times(dims, n, ci, co, num_sms)
    return min(times, key=lambda config: times[config])
