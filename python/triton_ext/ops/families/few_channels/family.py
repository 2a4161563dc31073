"""Few-channel implicit GEMM: fprop over fewer than 16 bytes of channels, gathered from x."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.families.few_channels.config import (
    GatherConfig,
    Window,
    expected_times,
    gather_problems,
    gather_reasons,
)
from triton_ext.ops.kernels.few_channels import GatherPlan, gather_plan

__all__ = ["FEW_CHANNELS"]

# Columns of K up to which the model chooses the kernel: filters of 154 and more were slower than
# partial im2col (H200, 2026-11-22; docs/performance.md).  A table may choose it for all.
_MOST_COLUMNS = 64


class FewChannels(Family[GatherConfig]):
    """The kernel of ``kernels/few_channels.py``.

    Its model was measured, and that of the others expects less than they take (0.87 of it in the
    geometric mean of 13 layers; docs/performance.md), so that no correction is needed.
    """

    kind: ClassVar[str] = "gather"
    direction: ClassVar[Direction] = "fprop"
    config_type: ClassVar[type[GatherConfig]] = GatherConfig

    def refusals(self, case: Case, device: Device, config: GatherConfig | None = None) -> list[str]:
        found = [*gather_reasons(case.problem, case.dtype)]
        if config is not None and not found:
            found += gather_problems(config, _window(case), device.smem_bytes)
        return found

    def passed_over(self, case: Case, device: Device) -> str:
        columns = _window(case).columns
        if columns <= _MOST_COLUMNS:
            return ""
        return f"{columns} columns of a filter: chosen up to {_MOST_COLUMNS}"

    def number_refusals(self, config: GatherConfig, case: Case, device: Device) -> list[str]:
        return config.problems()

    def config_refusals(self, config: GatherConfig, case: Case, device: Device) -> list[str]:
        # Its memory depends on strides as well.
        return [*gather_reasons(case.problem, case.dtype), *config.problems()]

    def candidates(self, case: Case, device: Device) -> Mapping[GatherConfig, Expected]:
        times = expected_times(case.problem, _window(case), device)
        return ranked({config: Expected.of(us) for config, us in times.items()})

    def bind(self, config: GatherConfig, case: Case, device: Device) -> GatherPlan:
        return gather_plan(
            case.problem, case.strides_of_x, case.dtype, device, case.epilogue, config
        )


def _window(case: Case) -> Window:
    return Window.make(case.problem, case.strides_of_x)


FEW_CHANNELS: FewChannels = FewChannels()
