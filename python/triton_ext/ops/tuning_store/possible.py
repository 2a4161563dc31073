"""Whether a configuration that a table holds can be compiled for what its key says.

A table is a file that anybody may have edited or sent: what its numbers would make the compiler
refuse, or the kernel compute wrongly, is told here, before a plan is made of it.
"""

from __future__ import annotations

import math
from typing import Any

from triton_ext.ops import dgrad_config
from triton_ext.ops.col2im_config import Col2ImConfig, col2im_problems, col2im_reasons
from triton_ext.ops.conv_config import ConvConfig, OutputTile
from triton_ext.ops.conv_direct import DirectConfig
from triton_ext.ops.conv_refusals import conv_violations
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import Device
from triton_ext.ops.depthwise_config import DepthwiseConfig, DepthwiseWgradConfig
from triton_ext.ops.gather_config import GatherConfig, gather_reasons
from triton_ext.ops.hopper.plans import DTYPES, problem_reasons
from triton_ext.ops.hopper.tiles import TileConfig, launch_problems
from triton_ext.ops.hopper.wgrad_plan import work_of
from triton_ext.ops.hopper.wgrad_tiles import WgradTileChoice
from triton_ext.ops.row_packing import PackedConfig
from triton_ext.ops.wgrad_config import WgradChoice
from triton_ext.ops.wgrad_swapped import SwappedConfig, swap_reasons

__all__ = ["problems_of"]

# mbarriers and alignment.
_RESERVED_BYTES = 1024


def problems_of(config: Any, case: Case, device: Device) -> list[str]:
    """Returns why a configuration cannot be what is fastest; nothing where it can.

    Args:
        config: Of a kind that the case's direction has.
        case: What it is to compute.
        device: Where.
    """
    if isinstance(config, PackedConfig):
        # Which rows are packed depends on strides: what depends on the problem is asked later.
        return _alone(config.config, case, device)
    if isinstance(config, SwappedConfig):
        # How much padding there is, is not in the key: that is asked later as well.
        return [*swap_reasons(case.problem), *_alone(config.config, case, device)]
    if isinstance(config, GatherConfig):
        # Its memory depends on strides as well.
        return [*gather_reasons(case.problem, case.dtype), *config.problems()]
    if isinstance(config, Col2ImConfig):
        found = [*col2im_reasons(case.problem, case.dtype)]
        return found or col2im_problems(config, case.problem, device.smem_bytes)
    through_im2col = isinstance(config, (ConvConfig, TileConfig, WgradChoice))
    if through_im2col and case.direction != "dgrad" and conv_violations(case.problem.geometry):
        return ["im2col cannot walk x tap by tap: expected a configuration of packed rows"]
    if isinstance(config, TileConfig):
        takes_fp8 = case.direction == "fprop"
        found = problem_reasons(case.problem, case.dtype, takes_fp8=takes_fp8)
        return found or _tile_problems(config, case, device.num_sms)
    if isinstance(config, WgradTileChoice):
        return _wgrad_tile_problems(config, case, device.num_sms)
    return _alone(config, case, device)


def _tile_problems(config: TileConfig, case: Case, num_sms: int) -> list[str]:
    """Returns why the Gluon kernels of fprop and dgrad do not compute a problem so."""
    problem, is_fprop = case.problem, case.direction == "fprop"
    columns, depth = problem.out_channels, problem.in_channels
    if not is_fprop:
        columns, depth = depth, columns
    # Pixels of dgrad see different taps with a stride, and no filter can stay.
    may_stay = is_fprop or set(problem.stride) == {1}
    steps = problem.taps * math.ceil(depth / config.block_k) if may_stay else 0
    out_dtype = case.epilogue.out_dtype or case.dtype
    return launch_problems(
        config,
        steps,
        columns,
        num_sms,
        element_bytes=case.dtype.itemsize,
        out_bytes=out_dtype.itemsize,
        # Gaps between pixels of x are not in the key: that is asked later.
        may_turn=is_fprop and problem.is_pointwise,
    )


def _wgrad_tile_problems(choice: WgradTileChoice, case: Case, num_sms: int) -> list[str]:
    """Returns why the Gluon kernels of wgrad do not compute a problem so."""
    found = [*choice.config.problems(), *problem_reasons(case.problem, case.dtype)]
    out_dtype = case.out_dtype or case.dtype
    if out_dtype not in DTYPES:
        found.append(f"out_dtype is {out_dtype}: expected float16 or bfloat16")
    # Tiles can be counted of what is right so far.
    if found or not case.problem.batch:
        return found
    return work_of(case.problem, choice, num_sms).problems()


def _alone(config: Any, case: Case, device: Device) -> list[str]:
    """Returns what is wrong with the numbers, whatever they are read from."""
    if isinstance(config, WgradChoice):
        tiles = config.config
        found = [*tiles.problems()]
        # What stores take on top depends on who computes which tile.
        return found or _over(tiles.smem_bytes(None), device)
    if isinstance(config, ConvConfig):
        element_bytes = case.dtype.itemsize
        wrong = config.problems(element_bytes)
        if case.direction == "dgrad":
            problem = case.problem
            wrong = dgrad_config.problems_of(
                config, problem.out_channels, problem.groups, element_bytes
            )
        # The least that the output takes: its tile in parts, of elements like those of x.
        least = wrong or _over(
            config.smem_bytes(element_bytes, output=OutputTile(element_bytes=element_bytes)),
            device,
        )
        return [*least]
    if isinstance(config, DepthwiseConfig):
        found = config.problems()
        up = case.problem.stride[-1] if case.direction == "dgrad" else 1
        if not found and config.qw % up:
            found.append(f"qw is {config.qw}: expected a multiple of the stride, {up}")
        return found
    if isinstance(config, (TileConfig, DirectConfig, DepthwiseWgradConfig)):
        return config.problems()
    return []


def _over(smem_bytes: int, device: Device) -> list[str]:
    needed = smem_bytes + _RESERVED_BYTES
    if needed <= device.smem_bytes:
        return []
    return [
        f"its tiles and stages take {needed} bytes of shared memory, a CTA has "
        f"{device.smem_bytes}: expected fewer stages or smaller tiles"
    ]
