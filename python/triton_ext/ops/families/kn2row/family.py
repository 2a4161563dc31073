"""kn2row: fprop to few output channels, as products of all taps that are shifted and added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.families.kn2row.config import (
    Col2ImConfig,
    col2im_problems,
    col2im_reasons,
    expected_times,
    has_full_loads,
)
from triton_ext.ops.kernels.kn2row import Col2ImPlan, col2im_plan

__all__ = ["KN2ROW"]

# Its times count twice: the model was measured on two layers only (H200, 2026-11-24), which take
# 0.91 and 1.14 of what it expects.
_CORRECTION = 2.0


class Kn2Row(Family[Col2ImConfig]):
    """The kernel of ``kernels/kn2row.py``."""

    kind: ClassVar[str] = "col2im"
    direction: ClassVar[Direction] = "fprop"
    config_type: ClassVar[type[Col2ImConfig]] = Col2ImConfig

    def refusals(self, case: Case, device: Device, config: Col2ImConfig | None = None) -> list[str]:
        found = [*col2im_reasons(case.problem, case.dtype)]
        if not found and not has_full_loads(case.problem, case.strides_of_x):
            found.append("loads of x are not of 16 bytes, for which alone there is a model")
        if config is not None and not found:
            found += col2im_problems(config, case.problem, device.smem_bytes)
        return found

    def passed_over(self, case: Case, device: Device) -> str:
        return "one tap: there is nothing to shift" if case.problem.taps == 1 else ""

    def number_refusals(self, config: Col2ImConfig, case: Case, device: Device) -> list[str]:
        return config.problems()

    def config_refusals(self, config: Col2ImConfig, case: Case, device: Device) -> list[str]:
        found = [*col2im_reasons(case.problem, case.dtype)]
        return found or col2im_problems(config, case.problem, device.smem_bytes)

    def candidates(self, case: Case, device: Device) -> Mapping[Col2ImConfig, Expected]:
        times = expected_times(case.problem, device)
        return ranked(
            {config: Expected.of(us, correction=_CORRECTION) for config, us in times.items()}
        )

    def bind(self, config: Col2ImConfig, case: Case, device: Device) -> Col2ImPlan:
        return col2im_plan(
            case.problem, case.strides_of_x, case.dtype, device, case.epilogue, config
        )


KN2ROW: Kn2Row = Kn2Row()
