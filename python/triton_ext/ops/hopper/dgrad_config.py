"""Choice of the configuration of the gradient of the input on Hopper, by fprop's table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from triton_ext.ops.hopper import fprop_config
from triton_ext.ops.hopper.tiles import TileConfig
from triton_ext.ops.residues import Residues

__all__ = ["choose_config", "expected_times"]


def expected_times(
    dims: Sequence[Residues], n: int, ci: int, co: int, num_sms: int, *, block_k: int = 64
) -> dict[TileConfig, float]:
    """Returns the configurations that can run, with the microseconds that the model expects.

    Args:
        dims: The spatial dimensions.
        n: Images.
        ci: Input channels.
        co: Output channels.
        num_sms: Multiprocessors of the GPU.
        block_k: Output channels of a step.
    """
    pixels = n * math.prod(dim.walk_size * dim.stride for dim in dims)
    mean_taps = math.prod(dim.mean_taps for dim in dims)
    # With several classes a CTA needs several filters.
    one_class = all(dim.stride == 1 for dim in dims)
    return fprop_config.expected_times(
        pixels, ci, co, mean_taps, num_sms, block_k=block_k, may_keep_filter=one_class
    )


def choose_config(dims: Sequence[Residues], n: int, ci: int, co: int, num_sms: int) -> TileConfig:
    """Returns the configuration that the model expects to be fastest.

    Arguments as for :func:`expected_times`.
    """
    times = expected_times(dims, n, ci, co, num_sms)
    return min(times, key=lambda config: times[config])
