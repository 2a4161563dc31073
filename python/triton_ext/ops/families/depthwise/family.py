"""Depthwise convolutions, of one channel in every group: fprop, dgrad and wgrad."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.depthwise.config import (
    MAX_UP,
    DepthwiseConfig,
    DepthwiseWgradConfig,
    Walk,
    configs,
    expected_us,
    expected_wgrad_us,
    is_depthwise,
    wgrad_configs,
)
from triton_ext.ops.families.depthwise.plan import forward_plan, input_gradient_plan
from triton_ext.ops.kernels.depthwise_wgrad import wgrad_plan

__all__ = ["DEPTHWISE", "DEPTHWISE_DGRAD", "DEPTHWISE_WGRAD"]


def _other_groups(problem: ConvProblem) -> list[str]:
    """Returns why a convolution is not depthwise; nothing where it is."""
    if is_depthwise(problem):
        return []
    return ["no depthwise convolution: expected groups of one channel each"]


class _Depthwise(Family[DepthwiseConfig]):
    """The kernel of ``kernels/depthwise.py``, over x or over dy.

    Its model counts instructions, which no other model does: nothing is compared with it.
    """

    kind: ClassVar[str] = "depthwise"
    config_type: ClassVar[type[DepthwiseConfig]] = DepthwiseConfig
    supersedes: ClassVar[tuple[str, ...]] = ("gemm", "direct")

    def refusals(
        self, case: Case, device: Device, config: DepthwiseConfig | None = None
    ) -> list[str]:
        found = _other_groups(case.problem)
        if not found and self._walk(case).up[-1] > MAX_UP:
            found.append(f"stride {case.problem.stride[-1]} in W: expected at most {MAX_UP}")
        if config is not None and not found:
            found += self.number_refusals(config, case, device)
        return found

    def number_refusals(self, config: DepthwiseConfig, case: Case, device: Device) -> list[str]:
        return config.problems()

    def config_refusals(self, config: DepthwiseConfig, case: Case, device: Device) -> list[str]:
        found = _other_groups(case.problem) or config.problems()
        up = 1 if found else self._walk(case).up[-1]
        if config.qw % up:
            found.append(f"qw is {config.qw}: expected a multiple of the stride, {up}")
        return found

    def candidates(self, case: Case, device: Device) -> Mapping[DepthwiseConfig, Expected]:
        walk = self._walk(case)
        return ranked(
            {
                config: Expected.of(expected_us(config, walk, device.num_sms))
                for config in configs(walk)
            }
        )

    def _walk(self, case: Case) -> Walk:
        return Walk.forward(case.problem)


class DepthwiseFprop(_Depthwise):
    """fprop."""

    direction: ClassVar[Direction] = "fprop"

    def bind(self, config: DepthwiseConfig, case: Case, device: Device) -> Any:
        return forward_plan(
            case.problem, case.strides_of_x, case.dtype, case.output_dtype, device,
            case.epilogue, config,
        )  # fmt: skip


class DepthwiseDgrad(_Depthwise):
    """dgrad."""

    direction: ClassVar[Direction] = "dgrad"

    def bind(self, config: DepthwiseConfig, case: Case, device: Device) -> Any:
        return input_gradient_plan(case.problem, case.strides_of_dy, case.dtype, device, config)

    def _walk(self, case: Case) -> Walk:
        return Walk.backward(case.problem)


class DepthwiseWgrad(Family[DepthwiseWgradConfig]):
    """wgrad: the kernels of ``kernels/depthwise_wgrad.py``."""

    kind: ClassVar[str] = "depthwise_wgrad"
    direction: ClassVar[Direction] = "wgrad"
    config_type: ClassVar[type[DepthwiseWgradConfig]] = DepthwiseWgradConfig
    supersedes: ClassVar[tuple[str, ...]] = ("wgrad", "gluon_wgrad")

    def refusals(
        self, case: Case, device: Device, config: DepthwiseWgradConfig | None = None
    ) -> list[str]:
        found = _other_groups(case.problem)
        if config is not None and not found:
            found += config.problems()
        return found

    def number_refusals(
        self, config: DepthwiseWgradConfig, case: Case, device: Device
    ) -> list[str]:
        return config.problems()

    def config_refusals(
        self, config: DepthwiseWgradConfig, case: Case, device: Device
    ) -> list[str]:
        return self.refusals(case, device, config)

    def candidates(self, case: Case, device: Device) -> Mapping[DepthwiseWgradConfig, Expected]:
        walk = Walk.forward(case.problem)
        return ranked(
            {
                config: Expected.of(expected_wgrad_us(config, walk, device.num_sms))
                for config in wgrad_configs(walk)
            }
        )

    def bind(self, config: DepthwiseWgradConfig, case: Case, device: Device) -> Any:
        return wgrad_plan(
            case.problem, case.strides_of_x, case.strides_of_dy, case.output_dtype, device, config
        )


DEPTHWISE: DepthwiseFprop = DepthwiseFprop()
DEPTHWISE_DGRAD: DepthwiseDgrad = DepthwiseDgrad()
DEPTHWISE_WGRAD: DepthwiseWgrad = DepthwiseWgrad()
