"""Plans that several kernels share: outputs, arguments of the epilogue, the launch.

A plan is all of a launch of one geometry on one device that does not depend on addresses; it holds
no tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import (
    ROW_BYTES,
    aligned_copy,
    aligned_rows,
    empty_channels_last,
)
from triton_ext.ops.core.epilogue import NO_OPERANDS, EpilogueArguments, EpilogueSpec, Operands
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusal, refused

# Permutations of torch's order [N, C, *spatial] to channels-last, by spatial dimensions.
TO_LAST = {1: (0, 2, 1), 2: (0, 2, 3, 1), 3: (0, 2, 3, 4, 1)}

Tensor = torch.Tensor
Out = Tensor | None
Inputs = Callable[[Tensor, Tensor], tuple[Any, ...]]
Outputs = Callable[[Tensor], tuple[Any, ...]]


@dataclass(slots=True, kw_only=True)
class Plan(ABC):
    """A plan of any direction."""

    problem: ConvProblem
    out_dtype: torch.dtype  # of y, dx or dw

    def run(
        self,
        first: Tensor,
        second: Tensor,
        operands: EpilogueArguments = NO_OPERANDS,
        out: Out = None,
    ) -> Tensor:
        """Launches the kernels.

        Args:
            first: x [N, Ci, *input_size], in dgrad dy [N, Co, *output_size], of the layout that the
                plan was made for.
            second: weight [Co, Ci / groups, *filter_size] in any memory format; in wgrad dy, of the
                layout that the plan was made for.
            operands: Tensors of fprop's epilogue; in dgrad, a bias [Ci] or none.  Not checked.
            out: Where to put the output; a new tensor by default.

        Returns:
            y [N, Co, *output_size], dx [N, Ci, *input_size] or dw [Co, Ci / groups, *filter_size],
            channels-last.

        Raises:
            ValueError: ``out`` has another shape, dtype or, but for dw, another layout.
        """
        if first.is_cuda and first.device.index != torch.cuda.current_device():
            with torch.cuda.device(first.device):
                return self._run(first, second, operands, out)
        return self._run(first, second, operands, out)

    @abstractmethod
    def _run(self, first: Tensor, second: Tensor, given: EpilogueArguments, out: Out) -> Tensor:
        """Launches the kernels on the current device."""


@dataclass(slots=True, kw_only=True)
class ForwardPlan(Plan):
    """A plan of fprop, or of dgrad, whose x is dy and whose y is dx."""

    epilogue: EpilogueSpec
    y_shape: tuple[int, ...]  # [N, Co, *output_size]
    config: Any  # the configuration; its class says which kernel runs
    launcher: Launcher  # the kernel; its tensors are ``inputs``, ``outputs`` and the epilogue's
    inputs: Inputs  # returns the kernel's x and w for those of a call
    row_copies: Any = None  # packs x and w before ``inputs``, where rows of the filter are packed
    outputs: Outputs | None = None  # describes y; ``None`` where the kernel takes a pointer
    _nothing: tuple[None, ...] = field(init=False)  # instead of the epilogue's tensors

    def __post_init__(self) -> None:
        names = self.launcher.kernel.arg_names
        count = len(Operands._fields) if "operands" in names else 1
        self._nothing = (None,) * (count + ("residual_desc" in names))

    @classmethod
    def make(
        cls, case: Case, config: Any, inputs: Inputs, launcher: Launcher, **fields: Any
    ) -> ForwardPlan:
        """Returns the plan of a case; ``fields`` are further attributes."""
        problem = case.problem
        return cls(
            problem=problem,
            epilogue=case.epilogue,
            y_shape=problem.x_shape if case.direction == "dgrad" else problem.y_shape,
            out_dtype=case.output_dtype,
            config=config,
            launcher=launcher,
            inputs=inputs,
            **fields,
        )

    def _run(self, first: Tensor, second: Tensor, given: EpilogueArguments, out: Out) -> Tensor:
        if out is None:
            y = empty_channels_last(self.y_shape, self.out_dtype, first.device)
        else:
            y = self._checked(out)
        if self.row_copies is not None:
            first, second = self.row_copies.pack(first, second)
        outputs = (y,) if self.outputs is None else self.outputs(y)
        tensors = (*self.inputs(first, second), *outputs, *self._operands(given))
        self.launcher.launch(tensors)
        return y

    def _operands(self, given: EpilogueArguments) -> tuple[Any, ...]:
        """Returns the tensors of an epilogue as the kernel's arguments."""
        if given is NO_OPERANDS:
            return self._nothing
        operands, count = self.operands(given), len(self._nothing)
        if count <= len(operands):
            return operands[:count]
        residual = operands.residual
        if (
            residual is None or self.outputs is None or self.epilogue.residual_per_image
            or self.y_shape[1] * residual.itemsize % ROW_BYTES
        ):  # fmt: skip
            return None, *operands
        # It has the tiles of y.
        return *self.outputs(residual), *operands._replace(residual=None)

    def operands(self, given: EpilogueArguments) -> Operands:
        """Returns the tensors of an epilogue as the kernels take them; sets amax to zero."""
        bias, scale, residual, out_scale, extra, *_, amax = given
        one = None
        if scale is not None:
            scale, one = (None, scale) if scale.numel() == 1 else (scale.contiguous(), None)
        if residual is not None:
            residual = aligned_rows(residual.permute(TO_LAST[self.problem.dims]))
        # int32 flags were set to zero by an earlier kernel.
        if amax is not None and amax.dtype != torch.int32:
            amax = amax.zero_().view(torch.int32)
        bias = None if bias is None else bias.contiguous()
        return Operands(bias, scale, one, residual, out_scale, amax, tuple(extra) or None)

    def _checked(self, out: Tensor) -> Tensor:
        """Returns the caller's output, which has to be as a new one."""
        if tuple(out.shape) != self.y_shape or out.dtype != self.out_dtype:
            raise ValueError(
                f"out: expected {list(self.y_shape)} of {self.out_dtype}, got {list(out.shape)} of "
                f"{out.dtype}"
            )
        rows = out.permute(TO_LAST[self.problem.dims])
        if not rows.is_contiguous() or out.data_ptr() % ROW_BYTES:
            raise ValueError(
                "out: expected packed channels-last memory on a 16-byte boundary, got strides "
                f"{list(out.stride())}"
            )
        return out


def vector_inputs(vector: int, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns x, copied where loads of ``vector`` elements are not aligned, and w channels-last."""
    if x.data_ptr() % (vector * x.itemsize):
        # The copy keeps the strides that the plan was made for.
        x = aligned_copy(x)
    return x, weight.permute(TO_LAST[weight.dim() - 2]).contiguous()


def long_row_refusals(problem: ConvProblem) -> tuple[Refusal, ...]:
    """Returns why a kernel that counts elements of a padded row of x in 32 bits does not."""
    pixels = problem.input_size[-1] + sum(problem.padding[-1])
    if pixels * problem.in_channels < 1 << 31:
        return ()
    return refused(f"{pixels} pixels of a row, padding included: expected fewer than 2^31 elements")


class ConvSizes(NamedTuple):
    """Runtime arguments of a kernel that reads x by im2col, per spatial dimension."""

    output_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]  # in front
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, conv: Any) -> ConvSizes:
        """Returns those of a problem or of its geometry."""
        low = tuple(low for low, _ in conv.padding)
        return cls(conv.output_size, conv.stride, low, conv.dilation)


def three(values: Iterable[int], missing: int | None = None) -> tuple[int | None, ...]:
    """Returns a kernel's (d, h, w), with another value for missing dimensions."""
    found = tuple(values)
    return (missing,) * (3 - len(found)) + found
