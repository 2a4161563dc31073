"""wgrad as an implicit GEMM through im2col loads, ``@triton.jit``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from triton_ext.errors import UnsupportedError
from triton_ext.ops import wgrad_gemm
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import Expected, Family, smem_refusals
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.gemm import tap_refusals
from triton_ext.ops.rewrites.packing import filling_us
from triton_ext.ops.wgrad_config import WgradChoice, WgradTiles, expected_us

__all__ = ["WGRAD", "filling_dy_us"]


class Wgrad(Family[WgradChoice]):
    """The kernels of ``conv_wgrad.py``; where rows are packed, dw is that of the packed filter."""

    kind: ClassVar[str] = "wgrad"
    direction: ClassVar[Direction] = "wgrad"
    config_type: ClassVar[type[WgradChoice]] = WgradChoice
    is_gemm: ClassVar[bool] = True
    tile_fields: ClassVar[tuple[str, ...]] = ("block_co", "block_ci", "taps")
    reads_packed: ClassVar[bool] = True

    def refusals(self, case: Case, device: Device, config: WgradChoice | None = None) -> list[str]:
        found = tap_refusals(case)
        if case.dtype not in wgrad_gemm.DTYPES:
            found.append(
                f"dtype {case.dtype}: expected float16 or bfloat16, WGMMA transposes 16-bit "
                "operands only"
            )
        if config is not None and not found:
            found += self.number_refusals(config, case, device)
        return found

    def number_refusals(self, config: WgradChoice, case: Case, device: Device) -> list[str]:
        tiles = config.config
        # What stores take on top depends on who computes which tile.
        return [*tiles.problems()] or smem_refusals(tiles.smem_bytes(None), device)

    def config_refusals(self, config: WgradChoice, case: Case, device: Device) -> list[str]:
        return tap_refusals(case) or self.number_refusals(config, case, device)

    def candidates(self, case: Case, device: Device) -> Mapping[WgradChoice, Expected]:
        ranked = wgrad_gemm.ranked_tiles(_computed(case), case.output_dtype, device)
        if case.packing is not None:
            # Windows overlap: x comes from DRAM once.  The order is that of the model without it,
            # which has the fastest of the stems first (H200, 2026-11-22; the shipped table).
            packing = case.packing
            elements = math.prod(packing.problem.y_shape) + math.prod(packing.memory_shape)
            mib = elements * packing.element_bytes / 2**20
            copies_us = packing.copy_us
            return {
                choice: Expected.of(expected_us(replace(tiles, operand_mib=mib)), copies_us)
                for choice, tiles in ranked
            }
        copies_us = _filling_x_us(case) + filling_dy_us(case)
        return {choice: Expected.of(expected_us(tiles), copies_us) for choice, tiles in ranked}

    def bind(self, config: WgradChoice, case: Case, device: Device) -> Any:
        problem, tiles = case.problem, config.config
        if tiles.problems():
            raise UnsupportedError(f"wgrad: configuration {tiles}: " + "; ".join(tiles.problems()))
        work = WgradTiles.make(tiles, _computed(case), device.num_sms, config.part_rounds)
        strides = (case.strides_of_x, case.strides_of_dy)
        return wgrad_gemm.make_plan(
            problem, strides, case.dtype, case.output_dtype, work, case.packing
        )


def _filling_x_us(case: Case) -> float:
    problem = case.problem
    pixels = problem.batch * math.prod(problem.input_size)
    return filling_us(pixels, problem.in_channels, case.dtype.itemsize)


def filling_dy_us(case: Case) -> float:
    """Returns the time in which missing channels of dy are filled up."""
    problem = case.problem
    pixels = problem.batch * math.prod(problem.output_size)
    return filling_us(pixels, problem.out_channels, case.dtype.itemsize)


def _computed(case: Case) -> ConvProblem:
    """Returns what the kernel computes; an empty batch has the tiles of one image."""
    problem = case.problem if case.packing is None else case.packing.padded
    return replace(problem, batch=max(problem.batch, 1))


WGRAD: Wgrad = Wgrad()
