"""Gradients of the input that a forward kernel computes: plans of two forward plans over dy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from triton_ext.ops.core.case import Case
from triton_ext.ops.core.epilogue import NO_OPERANDS, PLAIN, EpilogueOperands, EpilogueSpec
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import ForwardPlan
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.dgrad_run import checked_bias

__all__ = ["InputGradientPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputGradientPlan:
    """A gradient of the input that a forward kernel computes from dy.

    Attributes:
        problem: The convolution.
        plain: The forward kernel's plan, whose output is dx.
        biased: The same with a bias, for transposed convolutions.
    """

    problem: ConvProblem
    plain: ForwardPlan
    biased: ForwardPlan

    @classmethod
    def of(
        cls, problem: ConvProblem, case: Case, bind: Callable[[Case], ForwardPlan]
    ) -> InputGradientPlan:
        """Returns the plan of a case that ``bind`` plans, without a bias and with one."""
        plain, biased = (
            bind(replace(case, epilogue=spec)) for spec in (PLAIN, EpilogueSpec(bias=True))
        )
        return cls(problem=problem, plain=plain, biased=biased)

    @property
    def config(self) -> Any:
        """The configuration, whose class says which kernel runs."""
        return self.plain.config

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of dy, weight and dx."""
        return self.plain.out_dtype

    @property
    def launcher(self) -> Launcher:
        """Of the plan without a bias."""
        return self.plain.launcher

    def run(
        self,
        dy: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Launches the kernel.

        Args:
            dy: [N, Co, *output_size], of the layout that the plan was made for.
            weight: [Co, Ci / groups, *filter_size] in any memory format.
            out: Where to put dx, packed channels-last; a new tensor by default.
            bias: [Ci] or None; added to dx.

        Returns:
            dx [N, Ci, *input_size], channels-last.

        Raises:
            ValueError: ``out`` has another shape, dtype or layout, or the bias another shape.
        """
        weight = self._filter(weight)
        if bias is None:
            return self.plain.run(dy, weight, NO_OPERANDS, out)
        bias = checked_bias(self.problem, bias)
        return self.biased.run(dy, weight, EpilogueOperands(bias=bias), out)

    def _filter(self, weight: torch.Tensor) -> torch.Tensor:
        """Returns the weight as the forward plans take it."""
        return weight
