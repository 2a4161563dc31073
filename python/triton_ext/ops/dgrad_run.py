"""How plans of the gradient of the input run: in a new tensor, or in one of the caller's."""

from __future__ import annotations

import torch

from triton_ext.ops.core.descriptors import ROW_BYTES
from triton_ext.ops.core.plan import TO_LAST
from triton_ext.ops.core.problem import ConvProblem

__all__ = ["DgradRun", "checked_bias"]


class DgradRun:
    """What the plans of the kernels have in common.

    Attributes:
        problem: The convolution.
        dtype: Of dy, weight and dx.
    """

    __slots__ = ()
    problem: ConvProblem
    dtype: torch.dtype

    @property
    def stores_aligned(self) -> bool:
        """Whether dx has to begin at a multiple of 16 bytes."""
        raise NotImplementedError

    def launch(
        self, dy: torch.Tensor, weight: torch.Tensor, dx: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        """Launches the kernel on tensors that were checked, on the device that is current."""
        raise NotImplementedError

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
            out: Where to put dx; a new tensor by default.
            bias: [Ci] or None; added to dx, for transposed convolutions.

        Returns:
            dx [N, Ci, *input_size], channels-last.

        Raises:
            ValueError: ``out`` has another shape, dtype or layout, or the bias another shape.
        """
        if dy.is_cuda and dy.device.index != torch.cuda.current_device():
            with torch.cuda.device(dy.device):
                return self.run(dy, weight, out, bias)
        if out is None:
            out = _new_output(self.problem, self.dtype, dy.device)
        else:
            _check_output(self.problem, self.dtype, out, is_aligned=self.stores_aligned)
        if bias is not None:
            bias = checked_bias(self.problem, bias)
        self.launch(dy, weight, out, bias)
        return out


def _new_output(problem: ConvProblem, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns a new dx, channels-last."""
    if problem.dims == 1:
        n, ci, length = problem.x_shape
        return torch.empty((n, length, ci), device=device, dtype=dtype).mT
    packed = torch.channels_last if problem.dims == 2 else torch.channels_last_3d
    return torch.empty(problem.x_shape, device=device, dtype=dtype, memory_format=packed)


def _check_output(
    problem: ConvProblem, dtype: torch.dtype, out: torch.Tensor, *, is_aligned: bool
) -> None:
    """Refuses a tensor of the caller's that cannot be dx.

    Args:
        problem: The convolution.
        dtype: Of dx.
        out: The tensor.
        is_aligned: Whether it has to begin at a multiple of 16 bytes.

    Raises:
        ValueError: It has another shape, dtype, layout or alignment.
    """
    shape = problem.x_shape
    if tuple(out.shape) != shape or out.dtype != dtype:
        raise ValueError(
            f"out: expected {list(shape)} of {dtype}, got {list(out.shape)} of {out.dtype}"
        )
    if not out.permute(TO_LAST[problem.dims]).is_contiguous():
        raise ValueError(
            f"out: expected channels-last and packed, got strides {list(out.stride())}"
        )
    if is_aligned and out.data_ptr() % ROW_BYTES:
        raise ValueError(f"out: expected an address that is a multiple of {ROW_BYTES}")


def checked_bias(problem: ConvProblem, bias: torch.Tensor) -> torch.Tensor:
    """Returns a bias [Ci] without gaps.

    Raises:
        ValueError: It has another shape.
    """
    if tuple(bias.shape) != (problem.in_channels,):
        raise ValueError(f"bias: expected [{problem.in_channels}], got {list(bias.shape)}")
    return bias.contiguous()
