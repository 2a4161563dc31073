"""Implicit GEMM through im2col loads, ``@triton.jit``: fprop, and dgrad by stride phases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops import dgrad_config, dgrad_gemm
from triton_ext.ops.conv_config import ConvConfig, OutputTile, expected_times
from triton_ext.ops.conv_gemm import ConvPlan, Walked, gemm_plan
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.descriptors import ROW_BYTES
from triton_ext.ops.core.device import H200, Device
from triton_ext.ops.core.family import Expected, Family, ranked, smem_refusals
from triton_ext.ops.residues import classes_of

conv_violations = backends.load("nvidia", "conv_violations")

__all__ = ["GEMM", "GEMM_DGRAD", "tap_refusals"]


def tap_refusals(case: Case) -> list[str]:
    """Returns why im2col does not walk x tap by tap; nothing where it does, or rows are packed."""
    if case.packing is not None or not conv_violations(case.problem.geometry):
        return []
    return ["im2col cannot walk x tap by tap: expected a configuration of packed rows"]


def _least_smem(config: ConvConfig, element_bytes: int) -> int:
    """Returns the shared memory that it takes at least: y in parts, of elements like those of x."""
    return config.smem_bytes(element_bytes, output=OutputTile(element_bytes=element_bytes))


class Gemm(Family[ConvConfig]):
    """fprop: the kernel of ``conv_fprop.py``."""

    kind: ClassVar[str] = "gemm"
    direction: ClassVar[Direction] = "fprop"
    config_type: ClassVar[type[ConvConfig]] = ConvConfig
    is_gemm: ClassVar[bool] = True
    tile_fields: ClassVar[tuple[str, ...]] = ("block_m", "block_n")
    reads_packed: ClassVar[bool] = True

    def refusals(self, case: Case, device: Device, config: ConvConfig | None = None) -> list[str]:
        found = tap_refusals(case)
        if config is not None and not found:
            found += self.number_refusals(config, case, device)
        return found

    def number_refusals(self, config: ConvConfig, case: Case, device: Device) -> list[str]:
        size = case.dtype.itemsize
        return config.problems(size) or smem_refusals(_least_smem(config, size), device)

    def config_refusals(self, config: ConvConfig, case: Case, device: Device) -> list[str]:
        return self.refusals(case, device, config)

    def candidates(self, case: Case, device: Device) -> Mapping[ConvConfig, Expected]:
        walked = _walked(case)
        problem = walked.problem
        times = expected_times(
            problem.geometry.m_gemm,
            problem.out_channels // problem.groups,
            walked.group_ci,
            problem.taps,
            device.num_sms,
            element_bytes=case.dtype.itemsize,
            groups=problem.groups,
            block_k=walked.block_k,
            output=_output_tile(case, device),
            available_bytes=device.smem_bytes,
        )
        copies_us = case.packing.copy_us if case.packing is not None else 0.0
        if walked.missing:
            copies_us = H200.launch_us
        return ranked({config: Expected.of(us, copies_us) for config, us in times.items()})

    def bind(self, config: ConvConfig, case: Case, device: Device) -> ConvPlan:
        wrong = config.problems(case.dtype.itemsize)
        if wrong:
            raise UnsupportedError(f"{case.operator}: configuration {config}: " + "; ".join(wrong))
        # TMA does not stop at the end of a group: its tiles have to.
        unit = 1 if case.problem.groups == 1 else config.block_n
        through_tma = _stores_through_tma(case, unit)
        return gemm_plan(
            case.problem, _walked(case), case.dtype, case.output_dtype, device, case.epilogue,
            config, through_tma,
        )  # fmt: skip


def _walked(case: Case) -> Walked:
    return Walked.make(case.problem, case.strides_of_x, case.dtype, case.packing)


def _stores_through_tma(case: Case, column_unit: int) -> bool:
    """Whether tiles of y are boxes of TMA: of rows of 16 bytes, inside of their group."""
    row_bytes = case.problem.out_channels * case.output_dtype.itemsize
    group_co = case.problem.out_channels // case.problem.groups
    return row_bytes % ROW_BYTES == 0 and group_co % column_unit == 0


def _output_tile(case: Case, device: Device) -> OutputTile:
    """What the end of a tile asks of shared memory, measured at compiled kernels."""
    epilogue, out_dtype = case.epilogue, case.output_dtype
    through_tma = _stores_through_tma(case, 1 if case.problem.groups == 1 else 16)
    whole = not through_tma or device.capability >= (10, 0)
    if through_tma:
        residual_bytes = max(out_dtype.itemsize, 2) if epilogue.residual else 0
        if epilogue.residual_per_image:
            # It comes through pointers, and meets the accumulators in the order of either, in fp32.
            residual_bytes = 4
        return OutputTile(
            element_bytes=out_dtype.itemsize, residual_bytes=residual_bytes, whole=whole
        )
    # Where pointers are more than one, accumulators take their order in fp32.
    more = epilogue.residual or epilogue.amax or epilogue.function is not None
    return OutputTile(
        element_bytes=4 if more else out_dtype.itemsize, through_pointers=True, whole=whole
    )


class GemmDgrad(Family[ConvConfig]):
    """dgrad: the kernel of ``conv_dgrad.py``; groups are filled up with zeros as it needs."""

    kind: ClassVar[str] = "gemm"
    direction: ClassVar[Direction] = "dgrad"
    config_type: ClassVar[type[ConvConfig]] = ConvConfig
    is_gemm: ClassVar[bool] = True
    tile_fields: ClassVar[tuple[str, ...]] = ("block_m", "block_n")

    def refusals(self, case: Case, device: Device, config: ConvConfig | None = None) -> list[str]:
        return [] if config is None else self.number_refusals(config, case, device)

    def number_refusals(self, config: ConvConfig, case: Case, device: Device) -> list[str]:
        problem, size = case.problem, case.dtype.itemsize
        wrong = dgrad_config.problems_of(config, problem.out_channels, problem.groups, size)
        return wrong or smem_refusals(_least_smem(config, size), device)

    def candidates(self, case: Case, device: Device) -> Mapping[ConvConfig, Expected]:
        problem = dgrad_gemm.padded_problem(case.problem)
        groups = problem.groups
        through_tma = dgrad_gemm.is_packed(problem, case.dtype) and groups == 1
        class_pixels, class_taps, repeats = classes_of(dgrad_gemm.residues_of(problem))
        times = dgrad_config.expected_times(
            problem.batch * class_pixels,
            class_taps,
            problem.in_channels // groups,
            problem.out_channels // groups,
            device.num_sms,
            repeats=repeats,
            groups=groups,
            element_bytes=case.dtype.itemsize,
            # Measured: what goes through pointers takes less than its parts.
            whole_tile=through_tma and device.capability >= (10, 0),
            available_bytes=device.smem_bytes,
        )
        return ranked({config: Expected.of(us) for config, us in times.items()})

    def bind(self, config: ConvConfig, case: Case, device: Device) -> Any:
        return dgrad_gemm.make_plan(case.problem, case.strides_of_dy, case.dtype, device, config)


GEMM: Gemm = Gemm()
GEMM_DGRAD: GemmDgrad = GemmDgrad()
