"""Plans that several kernels share: outputs, arguments of the epilogue, the launch.

A plan is all of a launch of one geometry on one device that does not depend on addresses; it holds
no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import ROW_BYTES, aligned_copy
from triton_ext.ops.core.epilogue import NO_OPERANDS, PLAIN, EpilogueOperands, EpilogueSpec
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.memory_format import channels_last_strides
from triton_ext.ops.core.problem import ConvProblem

__all__ = [
    "NO_ARGUMENTS",
    "TO_LAST",
    "TRITON_DTYPES",
    "DgradRun",
    "ForwardPlan",
    "InputGradientPlan",
    "PointerPlan",
    "three",
    "vector_inputs",
]

TRITON_DTYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float8_e5m2: tl.float8e5,
    torch.int8: tl.int8,
    torch.int32: tl.int32,
}

# Permutations of torch's order [N, C, *spatial] to channels-last, by spatial dimensions.
TO_LAST = {1: (0, 2, 1), 2: (0, 2, 3, 1), 3: (0, 2, 3, 4, 1)}

# Arguments of a kernel from the bias to those of the user's function, where there is no epilogue.
NO_ARGUMENTS = (None,) * 8


@dataclass(slots=True, kw_only=True)
class ForwardPlan:
    """A forward convolution.

    Attributes:
        y_shape: [N, Co, *output_size].
        out_dtype: Of y.
        store_through_tma: Whether y is stored by TMA, otherwise through a pointer.
        launcher: Launches the kernel; it has all arguments but the tensors.  These are x, w, y as
            a descriptor, y as a pointer, and what :meth:`_epilogue_arguments` returns.
    """

    problem: ConvProblem
    epilogue: EpilogueSpec
    y_shape: tuple[int, ...]
    out_dtype: torch.dtype
    store_through_tma: bool
    launcher: Launcher
    _is_plain: bool = field(init=False)
    _y_strides: tuple[int, ...] = field(init=False, repr=False)
    # shape, strides and block of a descriptor of y: lists that nobody changes.
    # Only where the output is stored through TMA.
    _y_layout: tuple[list[int], list[int], list[int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._is_plain = replace(self.epilogue, out_dtype=None) == PLAIN
        self._y_strides = channels_last_strides(self.y_shape)
        if self.store_through_tma:
            m_gemm, co = self.problem.geometry.m_gemm, self.problem.out_channels
            self._y_layout = ([m_gemm, co], [co, 1], self._tile_shape())

    def run(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        operands: EpilogueOperands = NO_OPERANDS,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Launches the kernel.

        Args:
            x: [N, Ci, *input_size], of the layout that the plan was made for.
            weight: [Co, Ci / groups, *filter_size] in any memory format.
            operands: Those that the epilogue asks for.
            out: Where to put y; a new tensor by default.

        Returns:
            y [N, Co, *output_size], channels-last.

        Raises:
            ValueError: ``out`` has another shape, dtype or layout, or the operands are not those
                that the epilogue asks for.
        """
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                return self.run(x, weight, operands, out)
        y = out
        if y is None:
            y = torch.empty_strided(
                self.y_shape, self._y_strides, dtype=self.out_dtype, device=x.device
            )
        else:
            _check_output(y, self.y_shape, self.out_dtype)
        arguments, variant = self.arguments(x, weight, y, operands)
        if not operands.extra:
            self.launcher.launch(arguments, variant)
        else:
            # The function's arguments can be specialized on in any way: through the front door.
            made = self.launcher
            made.kernel[made.grid](*arguments, *made.scalars, **made.constants, **made.options)
        return y

    def arguments(
        self, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, operands: EpilogueOperands
    ) -> tuple[tuple[Any, ...], Hashable]:
        """Returns the kernel's tensors, described, and what of them Triton specializes on.

        Arguments are those of :meth:`run`.

        Raises:
            ValueError: The operands are not those that the epilogue asks for.
        """
        inputs, variant = self._inputs(x, weight)
        tensors = (*inputs, *self._outputs(y))
        if self._is_plain and operands is NO_OPERANDS:
            return (*tensors, *self._no_arguments()), variant
        arguments = self._epilogue_arguments(operands)
        if operands.extra:
            return (*tensors, *arguments), variant
        kinds = tuple(None if a is None else _specialization(a) for a in arguments)
        return (*tensors, *arguments), (variant, kinds)

    def _inputs(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[tuple[Any, Any], Hashable]:
        """Returns the kernel's x and w, and what of them Triton specializes on besides the plan."""
        raise NotImplementedError

    def _outputs(self, y: torch.Tensor) -> tuple[Any, ...]:
        """Returns y as the kernel's arguments behind the inputs: a descriptor, or a pointer."""
        if self.store_through_tma:
            return TensorDescriptor(y, *self._y_layout), None
        return None, y

    def _no_arguments(self) -> tuple[None, ...]:
        """Returns the kernel's arguments behind y where there is no epilogue."""
        return NO_ARGUMENTS

    def _residual_descriptor(self, residual: torch.Tensor) -> TensorDescriptor | None:
        """Returns the residual, packed rows, as a descriptor; None where it is read otherwise."""
        if self.store_through_tma and self.y_shape[1] * residual.itemsize % ROW_BYTES == 0:
            return TensorDescriptor(residual, *self._y_layout)
        return None

    def _tile_shape(self) -> list[int]:
        """Returns the shape of the tiles of y that TMA stores."""
        raise NotImplementedError

    def _epilogue_arguments(self, operands: EpilogueOperands) -> tuple[Any, ...]:
        """Returns the kernel's arguments from the bias to the function's.

        Raises:
            ValueError: An operand is missing, was not asked for, or has another shape or dtype.
        """
        spec = self.epilogue
        for name in ("bias", "scale", "residual", "out_scale", "amax"):
            is_given = getattr(operands, name) is not None
            if is_given and not getattr(spec, name):
                raise ValueError(f"epilogue: {name} was given, the specification has none")
            if getattr(spec, name) and not is_given:
                raise ValueError(f"epilogue: the specification has {name}, none was given")
        if operands.extra and spec.function is None:
            raise ValueError("epilogue: extra arguments were given, there is no function")
        co = self.y_shape[1]
        bias, scale, residual = operands.bias, operands.scale, operands.residual
        if bias is not None:
            bias = _vector("bias", bias, co)
        one_scale = scale is not None and scale.numel() == 1
        if scale is not None and not one_scale:
            scale = _vector("scale", scale, co)
        residual_desc = None
        if residual is not None:
            residual = self._residual_rows(residual)
            if not spec.residual_per_image:
                residual_desc = self._residual_descriptor(residual)
            residual = None if residual_desc is not None else residual
        amax = operands.amax
        if amax is not None:
            if amax.dtype != torch.float32 or amax.numel() != 1:
                raise ValueError(f"epilogue: amax must be one float32, got {_describe(amax)}")
            amax = amax.zero_().view(torch.int32)
        out_scale = operands.out_scale
        if out_scale is not None and out_scale.numel() != 1:
            raise ValueError(f"epilogue: out_scale must be one number, got {_describe(out_scale)}")
        return (
            bias,
            None if one_scale else scale,
            scale if one_scale else None,
            residual_desc,
            residual,
            out_scale,
            amax,
            operands.extra or None,
        )

    def _residual_rows(self, residual: torch.Tensor) -> torch.Tensor:
        """Returns the residual as packed rows on a 16-byte boundary, copied where it is not."""
        largest = max(self.out_dtype.itemsize, 2)
        shape = self.y_shape
        if self.epilogue.residual_per_image:
            shape = (*shape[:2], *(1,) * self.problem.dims)
        is_number = residual.is_floating_point() == self.out_dtype.is_floating_point
        if tuple(residual.shape) != shape or residual.itemsize > largest or not is_number:
            kind = "floating-point" if self.out_dtype.is_floating_point else "integer"
            raise ValueError(
                f"epilogue: expected a residual {list(shape)} of {kind} numbers of at most "
                f"{largest} bytes, got {_describe(residual)}"
            )
        rows = residual.permute(TO_LAST[self.problem.dims]).contiguous()
        return rows.clone() if rows.data_ptr() % ROW_BYTES else rows


def _check_output(
    out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, *, is_aligned: bool = True
) -> None:
    """Refuses a tensor of the caller's that cannot be an output [N, C, *size] of ``shape``.

    Raises:
        ValueError: It has another shape, dtype or layout, or is not aligned where it has to be.
    """
    if tuple(out.shape) != shape or out.dtype != dtype:
        raise ValueError(f"out: expected {list(shape)} of {dtype}, got {_describe(out)}")
    if not out.permute(TO_LAST[len(shape) - 2]).is_contiguous() or (
        is_aligned and out.data_ptr() % ROW_BYTES
    ):
        raise ValueError(
            "out: expected packed channels-last memory on a 16-byte boundary, got strides "
            f"{list(out.stride())}"
        )


def _vector(name: str, tensor: torch.Tensor, co: int) -> torch.Tensor:
    if tensor.dim() != 1 or tensor.shape[0] != co:
        raise ValueError(f"epilogue: expected {name} [{co}], got {_describe(tensor)}")
    return tensor.contiguous()


def _describe(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} of {tensor.dtype}"


def _specialization(argument: Any) -> tuple[torch.dtype, bool]:
    """What Triton's front door specializes a tensor or a descriptor on, besides the plan's."""
    tensor = argument.base if isinstance(argument, TensorDescriptor) else argument
    return tensor.dtype, tensor.data_ptr() % ROW_BYTES == 0


@dataclass(slots=True, kw_only=True)
class PointerPlan(ForwardPlan):
    """A plan of a kernel that reads x and w, and writes y, through pointers.

    Attributes:
        config: The configuration; its class says which kernel runs.
        prepare: Returns the kernel's x and w for those of a call.
    """

    config: Any
    prepare: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

    @classmethod
    def make(cls, case: Case, config: Any, prepare: Any, launcher: Launcher) -> PointerPlan:
        """Returns the plan of fprop, or of a dgrad whose "x" is dy and whose "y" is dx."""
        problem = case.problem
        return cls(
            problem=problem,
            epilogue=case.epilogue,
            y_shape=problem.x_shape if case.direction == "dgrad" else problem.y_shape,
            out_dtype=case.output_dtype,
            store_through_tma=False,
            launcher=launcher,
            config=config,
            prepare=prepare,
        )

    def _inputs(
        self, x: torch.Tensor, weight: torch.Tensor
    ) -> tuple[tuple[Any, Any], tuple[bool, bool]]:
        x, weight = self.prepare(x, weight)
        return (x, weight), (x.data_ptr() % ROW_BYTES == 0, weight.data_ptr() % ROW_BYTES == 0)


def vector_inputs(
    vector: int, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns x, copied where loads of ``vector`` elements are not aligned, and w channels-last."""
    if x.data_ptr() % (vector * x.itemsize):
        # Of the same strides, which the plan was made for.
        x = aligned_copy(x)
    return x, weight.permute(TO_LAST[weight.dim() - 2]).contiguous()


def three(values: tuple[int, ...] | list[int]) -> tuple[int | None, ...]:
    """Returns one value per spatial dimension of a kernel, None for those that are not there."""
    return (None,) * (3 - len(values)) + tuple(values)


class DgradRun:
    """What plans of the gradient of the input share: the output, the bias, the device.

    Attributes:
        problem: The convolution.
        dtype: Of dy, weight and dx.
        stores_aligned: Whether dx has to begin at a multiple of 16 bytes.
    """

    __slots__ = ()
    problem: ConvProblem
    dtype: torch.dtype

    @property
    def stores_aligned(self) -> bool:
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
        shape = self.problem.x_shape
        if out is None:
            strides = channels_last_strides(shape)
            out = torch.empty_strided(shape, strides, dtype=self.dtype, device=dy.device)
        else:
            _check_output(out, shape, self.dtype, is_aligned=self.stores_aligned)
        self.launch(dy, weight, out, _checked_bias(self.problem, bias))
        return out


def _checked_bias(problem: ConvProblem, bias: torch.Tensor | None) -> torch.Tensor | None:
    """Returns a bias [Ci] without gaps."""
    if bias is None:
        return None
    if tuple(bias.shape) != (problem.in_channels,):
        raise ValueError(f"bias: expected [{problem.in_channels}], got {list(bias.shape)}")
    return bias.contiguous()


@dataclass(frozen=True, slots=True, kw_only=True)
class InputGradientPlan:
    """A gradient of the input that a forward kernel computes from dy.

    Attributes:
        problem: The convolution.
        plain: The forward kernel's plan, whose output is dx.
        biased: The same with a bias, for transposed convolutions.
        swaps_channels: Whether the forward plans take the weight [Ci, Co, *filter_size].
    """

    problem: ConvProblem
    plain: ForwardPlan
    biased: ForwardPlan
    swaps_channels: bool = False

    @classmethod
    def of(
        cls,
        problem: ConvProblem,
        case: Case,
        bind: Callable[[Case], ForwardPlan],
        swaps_channels: bool = False,
    ) -> InputGradientPlan:
        """Returns the plan of a case that ``bind`` plans, without a bias and with one."""
        plain, biased = (
            bind(replace(case, epilogue=spec)) for spec in (PLAIN, EpilogueSpec(bias=True))
        )
        return cls(problem=problem, plain=plain, biased=biased, swaps_channels=swaps_channels)

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
        """The launcher of the plan without a bias."""
        return self.plain.launcher

    def run(
        self,
        dy: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Launches the kernel; as :meth:`DgradRun.run`."""
        if self.swaps_channels:
            weight = weight.transpose(0, 1)
        bias = _checked_bias(self.problem, bias)
        if bias is None:
            return self.plain.run(dy, weight, NO_OPERANDS, out)
        return self.biased.run(dy, weight, EpilogueOperands(bias=bias), out)
