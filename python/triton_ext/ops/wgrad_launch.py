"""What the plans of all kernels of wgrad share: how x and dy are read, where dw goes, the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from triton_ext.ops.core.descriptors import ROW_BYTES, aligned_copy
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.problem import ConvProblem

__all__ = [
    "FilterGradientPlan",
    "Launches",
    "Operand",
    "check_out",
    "filter_rows",
    "given_or",
]

#: What is launched, in this order, with which tensors.
Launches = list[tuple[Launcher, tuple[Any, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """How a kernel reads x or dy.

    Attributes:
        missing_channels: Zeros to add so that rows are multiples of 16 bytes.
        is_copied: Whether the tensor is copied to a dense one, which adding channels does as well.
        pixel_stride: Elements from one pixel to the next; 0 where there is no one such number.
        channels: With the missing ones.
    """

    missing_channels: int
    is_copied: bool
    pixel_stride: int
    channels: int

    @classmethod
    def make(
        cls, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, as_matrix: bool
    ) -> Operand:
        """Looks at a tensor in torch's order.

        Args:
            shape: [N, C, *spatial].
            strides: In elements.
            itemsize: Bytes of an element.
            as_matrix: Whether it has to be [pixels, channels]; it is copied where it is not.
        """
        unit = ROW_BYTES // itemsize
        missing = -shape[1] % unit
        channels = shape[1] + missing
        if missing:
            return cls(
                missing_channels=missing, is_copied=True, pixel_stride=channels, channels=channels
            )
        stride = _pixel_stride(shape, strides)
        if stride % unit or stride < channels or (strides[1] != 1 and channels > 1):
            stride = 0
        copied = as_matrix and not stride
        return cls(
            missing_channels=0,
            is_copied=copied,
            pixel_stride=channels if copied else stride,
            channels=channels,
        )

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor [N, C, *spatial] as [N, *spatial, C], as the kernel reads it."""
        rows = tensor.movedim(1, -1)
        if self.missing_channels:
            return torch.nn.functional.pad(rows, (0, self.missing_channels)).contiguous()
        return rows.contiguous() if self.is_copied else rows


def _pixel_stride(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from one pixel to the next over all images; 0 where that differs."""
    pixel_stride = expected = None
    for dim in (*range(len(shape) - 1, 1, -1), 0):
        if shape[dim] == 1:
            continue
        if pixel_stride is None:
            pixel_stride = expected = strides[dim]
        if strides[dim] != expected:
            return 0
        expected *= shape[dim]
    return shape[1] if pixel_stride is None else pixel_stride


def check_out(problem: ConvProblem, dtype: torch.dtype, out: torch.Tensor) -> None:
    """Refuses what dw cannot be put into.

    Raises:
        ValueError: It has another shape or dtype.
    """
    if tuple(out.shape) != problem.w_shape or out.dtype != dtype:
        raise ValueError(
            f"out: expected {list(problem.w_shape)} of {dtype}, got {list(out.shape)} of "
            f"{out.dtype}"
        )


def filter_rows(
    problem: ConvProblem, dtype: torch.dtype, device: torch.device, out: torch.Tensor | None
) -> torch.Tensor:
    """Returns dense memory [Co, *filter_size, Ci / groups] for dw, that of ``out`` if possible.

    Args:
        problem: The convolution.
        dtype: Of dw.
        device: Where it is to be.
        out: Where the caller wants dw.

    Raises:
        ValueError: ``out`` has another shape or dtype.
    """
    if out is not None:
        check_out(problem, dtype, out)
        rows = out.movedim(1, -1)
        if rows.is_contiguous() and rows.data_ptr() % ROW_BYTES == 0:
            return rows
    co, ci, *taps = problem.w_shape
    return torch.empty((co, *taps, ci), device=device, dtype=dtype)


def given_or(rows: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Returns dw of its rows, which are copied to ``out`` where that is other memory.

    Args:
        rows: What :func:`filter_rows` returned, filled.
        out: As it was given to it.
    """
    dw = rows.movedim(-1, 1)
    if out is None:
        return dw
    if dw.data_ptr() != out.data_ptr():
        out.copy_(dw)
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterGradientPlan:
    """A gradient of a filter, of one geometry on one device, by a kernel of matrix products.

    Attributes:
        problem: The convolution.
        out_dtype: Of dw.
        x_operand: How x is read.
        dy_operand: How dy is read.
    """

    problem: ConvProblem
    out_dtype: torch.dtype
    x_operand: Operand
    dy_operand: Operand

    def run(
        self, x: torch.Tensor, dy: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Launches the kernels.

        Args:
            x: [N, Ci, *input_size], of the layout that the plan was made for.
            dy: [N, Co, *output_size], of the layout that the plan was made for.
            out: Where dw goes, of ``out_dtype``; written in place where it is dense and
                channels-last, else copied into.

        Returns:
            dw [Co, Ci / groups, *filter_size], channels-last; ``out`` if given.

        Raises:
            ValueError: ``out`` has another shape or dtype.
        """
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                return self.run(x, dy, out)
        dw_rows = self._output(x.device, out)
        if self.problem.batch == 0:
            dw_rows.zero_()
        else:
            for launcher, tensors in self.launches(x, dy, dw_rows):
                launcher.launch(tensors)
        return given_or(dw_rows, out)

    def launches(self, x: torch.Tensor, dy: torch.Tensor, dw: torch.Tensor) -> Launches:
        """Returns what is launched.

        Args:
            x: As for :meth:`run`.
            dy: As for :meth:`run`.
            dw: [Co, *filter_size, Ci / groups], dense.
        """
        raise NotImplementedError

    def _output(self, device: torch.device, out: torch.Tensor | None) -> torch.Tensor:
        """Returns memory [Co, *filter_size, Ci / groups] for dw, that of ``out`` if possible."""
        return filter_rows(self.problem, self.out_dtype, device, out)

    def _rows(self, x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns x and dy, channels last, as the kernel reads them."""
        x, dy = self.x_operand.rows(x), self.dy_operand.rows(dy)
        if dy.data_ptr() % ROW_BYTES:
            # Of the same strides, which the plan was made for: between pixels may be gaps.
            dy = aligned_copy(dy)
        return x, dy
