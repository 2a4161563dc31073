"""Implicit GEMM in Gluon for Hopper: fprop and dgrad."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.dgrad_gemm import residues_of
from triton_ext.ops.families.gemm import tap_refusals
from triton_ext.ops.families.gluon_config import TileConfig, launch_refusals, problem_refusals
from triton_ext.ops.hopper import dgrad_plan, fprop_plan

__all__ = ["GLUON", "GLUON_DGRAD"]


# Measured on 42 shapes (fprop and dgrad; H200, fp16, 2026-11-22; docs/gluon-conv.md): those above
# were slower with Gluon, by 1 to 5 %, and those between 1 and this no slower.
_MOST_EXPECTED = 1.025
# The model counts steps of less than 128 bytes of channels as those of 128.
_MOST_EXPECTED_NARROW = 1.08


def most_expected(config: TileConfig) -> float:
    """Returns how many times the ``@triton.jit`` kernel's time a configuration may be expected."""
    is_narrow = config.block_k * config.element_bytes < 128
    return _MOST_EXPECTED_NARROW if is_narrow else _MOST_EXPECTED


class _Tiles(Family[TileConfig]):
    """fprop and dgrad."""

    kind: ClassVar[str] = "gluon"
    config_type: ClassVar[type[TileConfig]] = TileConfig
    is_gemm: ClassVar[bool] = True
    tile_fields: ClassVar[tuple[str, ...]] = (
        *("rows", "consumers", "ping_pong", "block_n_main", "block_n_rest"),
    )

    def number_refusals(self, config: TileConfig, case: Case, device: Device) -> list[str]:
        return config.problems()


class GluonFprop(_Tiles):
    """fprop; x is read as pixels or as a matrix of them."""

    direction: ClassVar[Direction] = "fprop"
    reads_packed: ClassVar[bool] = True

    def refusals(self, case: Case, device: Device, config: TileConfig | None = None) -> list[str]:
        problem, strides = _read(case)
        found = fprop_plan.reasons(problem, case.dtype, device, case.epilogue, config, strides)
        return [*tap_refusals(case), *found]

    def config_refusals(self, config: TileConfig, case: Case, device: Device) -> list[str]:
        problem = case.problem
        found = tap_refusals(case) or problem_refusals(problem, case.dtype, takes_fp8=True)
        out_dtype = case.epilogue.out_dtype or case.dtype
        return found or launch_refusals(
            config,
            problem.taps * math.ceil(problem.in_channels / config.block_k),
            problem.out_channels,
            device.num_sms,
            element_bytes=case.dtype.itemsize,
            out_bytes=out_dtype.itemsize,
            # Gaps between pixels of x are not in the key: refusals() asks for them.
            may_turn=problem.is_pointwise,
        )

    def candidates(self, case: Case, device: Device) -> Mapping[TileConfig, Expected]:
        problem, strides = _read(case)
        times = fprop_plan.ranking(
            problem, device.num_sms, case.dtype, case.epilogue.out_dtype, strides
        )
        copies_us = 0.0 if case.packing is None else case.packing.copy_us
        return ranked(
            {
                config: Expected.of(us, copies_us, 1 / most_expected(config))
                for config, us in times.items()
            }
        )

    def bind(self, config: TileConfig, case: Case, device: Device) -> Any:
        return fprop_plan.make_plan(
            case.problem, case.strides_of_x, case.dtype, device, case.epilogue, config,
            case.packing,
        )  # fmt: skip


def _read(case: Case) -> tuple[ConvProblem, tuple[int, ...]]:
    """Returns what fprop computes, and the strides of its x."""
    if case.packing is None:
        return case.problem, case.strides_of_x
    return case.packing.padded, case.packing.x_strides


class GluonDgrad(_Tiles):
    """dgrad by stride phases."""

    direction: ClassVar[Direction] = "dgrad"

    def refusals(self, case: Case, device: Device, config: TileConfig | None = None) -> list[str]:
        dims = residues_of(case.problem)
        return [*dgrad_plan.reasons(case.problem, dims, case.dtype, device, config)]

    def config_refusals(self, config: TileConfig, case: Case, device: Device) -> list[str]:
        problem = case.problem
        found = problem_refusals(problem, case.dtype)
        # Pixels see different taps with a stride, and no filter can stay.
        blocks = math.ceil(problem.out_channels / config.block_k)
        steps = problem.taps * blocks if set(problem.stride) == {1} else 0
        size = case.dtype.itemsize
        return found or launch_refusals(
            config,
            steps,
            problem.in_channels,
            device.num_sms,
            element_bytes=size,
            out_bytes=case.output_dtype.itemsize,
        )

    def candidates(self, case: Case, device: Device) -> Mapping[TileConfig, Expected]:
        times = dgrad_plan.ranking(case.problem, residues_of(case.problem), device.num_sms)
        return ranked(
            {
                config: Expected.of(us, correction=1 / most_expected(config))
                for config, us in times.items()
            }
        )

    def bind(self, config: TileConfig, case: Case, device: Device) -> Any:
        dims = residues_of(case.problem)
        return dgrad_plan.make_plan(
            case.problem, dims, case.strides_of_dy, case.dtype, device, config
        )


GLUON: GluonFprop = GluonFprop()
GLUON_DGRAD: GluonDgrad = GluonDgrad()
