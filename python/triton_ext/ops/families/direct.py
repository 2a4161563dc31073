"""Groups of very few channels without tensor cores: fprop, and dgrad as the same over dy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.core.family import Expected, Family
from triton_ext.ops.input_gradient import InputGradientPlan
from triton_ext.ops.kernels.direct import (
    MIN_GROUP_BYTES,
    DirectConfig,
    choose_direct_config,
    direct_dgrad_plan,
    direct_plan,
)

__all__ = ["DIRECT", "DIRECT_DGRAD"]


class _Direct(Family[DirectConfig]):
    """The kernel of ``kernels/direct.py``: one configuration, whose time no model expects.

    TMA cannot begin a copy where such a group begins; so nothing is compared with it.
    """

    kind: ClassVar[str] = "direct"
    config_type: ClassVar[type[DirectConfig]] = DirectConfig
    supersedes: ClassVar[tuple[str, ...]] = ("gemm",)

    def refusals(self, case: Case, device: Device, config: DirectConfig | None = None) -> list[str]:
        return [] if config is None else config.problems()

    def passed_over(self, case: Case, device: Device) -> str:
        groups, group_bytes = case.problem.groups, self._channels(case) * case.dtype.itemsize
        if groups > 1 and group_bytes < MIN_GROUP_BYTES:
            return ""
        return f"chosen for several groups of less than {MIN_GROUP_BYTES} bytes of channels"

    def number_refusals(self, config: DirectConfig, case: Case, device: Device) -> list[str]:
        return config.problems()

    def candidates(self, case: Case, device: Device) -> Mapping[DirectConfig, Expected]:
        pixels, columns = self._rows_and_columns(case)
        return {choose_direct_config(pixels, columns, device.num_sms): Expected.of(math.nan)}

    def _channels(self, case: Case) -> int:
        """Channels of a group that are read."""
        return case.problem.in_channels // case.problem.groups

    def _rows_and_columns(self, case: Case) -> tuple[int, int]:
        """Pixels and channels that are written."""
        return case.problem.geometry.m_gemm, case.problem.out_channels


class Direct(_Direct):
    """fprop."""

    direction: ClassVar[Direction] = "fprop"

    def bind(self, config: DirectConfig, case: Case, device: Device) -> Any:
        return direct_plan(
            case.problem, case.strides_of_x, case.dtype, case.output_dtype, device,
            case.epilogue, config,
        )  # fmt: skip


class DirectDgrad(_Direct):
    """dgrad."""

    direction: ClassVar[Direction] = "dgrad"

    def bind(self, config: DirectConfig, case: Case, device: Device) -> Any:
        plain, biased = (
            direct_dgrad_plan(
                case.problem, case.strides_of_dy, case.dtype, device, epilogue, config
            )
            for epilogue in (PLAIN, EpilogueSpec(bias=True))
        )
        return InputGradientPlan(problem=case.problem, plain=plain, biased=biased)

    def _channels(self, case: Case) -> int:
        return case.problem.out_channels // case.problem.groups

    def _rows_and_columns(self, case: Case) -> tuple[int, int]:
        problem = case.problem
        return problem.batch * math.prod(problem.input_size), problem.in_channels


DIRECT: Direct = Direct()
DIRECT_DGRAD: DirectDgrad = DirectDgrad()
