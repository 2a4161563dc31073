"""Plans that several kernels share: outputs, arguments of the epilogue, the launch.

A plan is all of a launch of one geometry on one device that does not depend on addresses; it holds
no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import (
    ROW_BYTES,
    aligned_copy,
    aligned_rows,
    empty_channels_last,
)
from triton_ext.ops.core.epilogue import (
    NO_OPERANDS,
    PLAIN,
    EpilogueArguments,
    EpilogueSpec,
    Operands,
)
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusal, refused

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

Inputs = Callable[[torch.Tensor, torch.Tensor], tuple[Any, ...]]


@dataclass(slots=True, kw_only=True)
class ForwardPlan:
    """A plan of fprop, or of a dgrad by a forward kernel, whose x is dy and whose y is dx."""

    problem: ConvProblem
    epilogue: EpilogueSpec
    y_shape: tuple[int, ...]  # [N, Co, *output_size]
    out_dtype: torch.dtype  # of y
    config: Any  # the configuration; its class says which kernel runs
    launcher: Launcher  # the kernel; its tensors are ``inputs``, ``outputs`` and the epilogue's
    inputs: Inputs  # returns the kernel's x and w for those of a call
    row_copies: Any = None  # packs x and w before ``inputs``, where rows of the filter are packed
    # Shape, strides and block of y's descriptor; ``None`` where y is a pointer.
    y_tiles: tuple[list[int], list[int], list[int]] | None = None
    describe_y: Callable[[torch.Tensor], Any] | None = None  # makes another descriptor of y
    _is_plain: bool = field(init=False)
    _has_residual_desc: bool = field(init=False)  # whether the kernel takes tiles of the residual
    _nothing: tuple[None, ...] = field(init=False)  # instead of the epilogue's tensors

    def __post_init__(self) -> None:
        self._is_plain = replace(self.epilogue, out_dtype=None) == PLAIN
        self._has_residual_desc = "residual_desc" in self.launcher.kernel.arg_names
        self._nothing = (None,) * (len(Operands._fields) + self._has_residual_desc)

    @classmethod
    def make(
        cls,
        case: Case,
        config: Any,
        inputs: Inputs,
        launcher: Launcher,
        *,
        y_block: list[int] | None = None,
        **fields: Any,
    ) -> ForwardPlan:
        """Returns the plan of a case.

        ``y_block`` has the rows and columns of the tiles of y that TMA stores; ``None`` for a
        pointer.  ``fields`` are further attributes.
        """
        problem, co = case.problem, case.problem.out_channels
        m_gemm = problem.geometry.m_gemm
        return cls(
            problem=problem,
            epilogue=case.epilogue,
            y_shape=problem.x_shape if case.direction == "dgrad" else problem.y_shape,
            out_dtype=case.output_dtype,
            config=config,
            launcher=launcher,
            inputs=inputs,
            y_tiles=None if y_block is None else ([m_gemm, co], [co, 1], y_block),
            **fields,
        )

    def run(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        operands: EpilogueArguments = NO_OPERANDS,
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
        y = _output(self.y_shape, self.out_dtype, x.device, out)
        arguments, variant = self.arguments(x, weight, y, operands)
        if not operands.extra:
            self.launcher.launch(arguments, variant)
        else:
            # The function's arguments can be specialized on in any way: through the front door.
            made = self.launcher
            given = made.arguments(arguments)
            made.kernel[made.grid](*given, **made.constants, **made.options)
        return y

    def arguments(
        self, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, operands: EpilogueArguments
    ) -> tuple[tuple[Any, ...], Hashable]:
        """Returns the kernel's tensors, described, and what of them Triton specializes on."""
        if self.row_copies is not None:
            x, weight = self.row_copies.pack(x, weight)
        inputs = self.inputs(x, weight)
        variant: Hashable = tuple(
            isinstance(each, torch.Tensor) and each.data_ptr() % ROW_BYTES == 0 for each in inputs
        )
        tensors = (*inputs, self._output(y))
        if self._is_plain and operands is NO_OPERANDS:
            return (*tensors, *self._nothing), variant
        arguments: tuple[Any, ...] = self.checked(operands)
        if self._has_residual_desc:
            arguments = self._with_residual_desc(*arguments)
        if operands.extra:
            return (*tensors, *arguments), variant
        kinds = tuple(None if a is None else _specialization(a) for a in arguments)
        return (*tensors, *arguments), (variant, kinds)

    def _output(self, y: torch.Tensor) -> Any:
        if self.describe_y is not None:
            return self.describe_y(y)
        return y if self.y_tiles is None else TensorDescriptor(y, *self.y_tiles)

    def _with_residual_desc(self, *arguments: Any) -> tuple[Any, ...]:
        """Returns the descriptor of the residual, where it has y's tiles, and what is left."""
        found = Operands(*arguments)
        residual, tiles = found.residual, self.y_tiles
        if residual is None or tiles is None or self.epilogue.residual_per_image:
            return None, *found
        if self.y_shape[1] * residual.itemsize % ROW_BYTES:
            return None, *found
        return TensorDescriptor(residual, *tiles), *found._replace(residual=None)

    def checked(self, operands: EpilogueArguments) -> Operands:
        """Returns the tensors of an epilogue as the kernels take them, checked."""
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
        if residual is not None:
            residual = self._residual_rows(residual)
        amax = operands.amax
        # Bits are what a kernel before has set to zero.
        if amax is not None and amax.dtype != torch.int32:
            if amax.dtype != torch.float32 or amax.numel() != 1:
                raise ValueError(f"epilogue: amax must be one float32, got {_describe(amax)}")
            amax = amax.zero_().view(torch.int32)
        out_scale = operands.out_scale
        if out_scale is not None and out_scale.numel() != 1:
            raise ValueError(f"epilogue: out_scale must be one number, got {_describe(out_scale)}")
        scale, one = (None, scale) if one_scale else (scale, None)
        return Operands(bias, scale, one, residual, out_scale, amax, operands.extra or None)

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
        return aligned_rows(residual.permute(TO_LAST[self.problem.dims]))


def _output(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    out: torch.Tensor | None,
    *,
    is_aligned: bool = True,
) -> torch.Tensor:
    """Returns an output [N, C, *size], new or the caller's; refuses one that it cannot be."""
    if out is None:
        return empty_channels_last(shape, dtype, device)
    if tuple(out.shape) != shape or out.dtype != dtype:
        raise ValueError(f"out: expected {list(shape)} of {dtype}, got {_describe(out)}")
    if not out.permute(TO_LAST[len(shape) - 2]).is_contiguous() or (
        is_aligned and out.data_ptr() % ROW_BYTES
    ):
        raise ValueError(
            "out: expected packed channels-last memory on a 16-byte boundary, got strides "
            f"{list(out.stride())}"
        )
    return out


def _vector(name: str, tensor: torch.Tensor, co: int) -> torch.Tensor:
    if tensor.dim() != 1 or tensor.shape[0] != co:
        raise ValueError(f"epilogue: expected {name} [{co}], got {_describe(tensor)}")
    return tensor.contiguous()


def _describe(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} of {tensor.dtype}"


def _specialization(argument: Any) -> tuple[torch.dtype, bool]:
    """Returns what Triton specializes a tensor or a descriptor on, beyond the plan's fields."""
    tensor = argument.base if isinstance(argument, TensorDescriptor) else argument
    return tensor.dtype, tensor.data_ptr() % ROW_BYTES == 0


def vector_inputs(
    vector: int, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
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
    """Returns a kernel's (d, h, w), with another value for dimensions that are not there."""
    found = tuple(values)
    return (missing,) * (3 - len(found)) + found


@dataclass(frozen=True, slots=True, kw_only=True)
class DgradPlan:
    """A plan of a kernel of dgrad."""

    problem: ConvProblem
    dtype: torch.dtype  # of dy, weight and dx
    config: Any  # the configuration; its class says which kernel runs
    launcher: Launcher  # the kernel; its tensors are ``describe``'s and the bias
    # Returns the kernel's tensors for dy, weight and dx.
    describe: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[Any, ...]]
    stores_aligned: bool  # whether dx has to begin at a multiple of 16 bytes

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
        shape, is_aligned = self.problem.x_shape, self.stores_aligned
        out = _output(shape, self.dtype, dy.device, out, is_aligned=is_aligned)
        bias = _checked_bias(self.problem, bias)
        variant = (
            is_aligned or out.data_ptr() % ROW_BYTES == 0,
            None if bias is None else _specialization(bias),
        )
        self.launcher.launch((*self.describe(dy, weight, out), bias), variant)
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
    """A gradient of the input that a forward kernel computes from dy."""

    problem: ConvProblem
    plain: ForwardPlan  # the forward kernel's plan, whose output is dx
    biased: ForwardPlan  # the same with a bias, for transposed convolutions
    swaps_channels: bool = False  # whether the forward plans take the weight [Ci, Co, *filter_size]

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
        """As of a :class:`DgradPlan`."""
        return self.plain.config

    @property
    def dtype(self) -> torch.dtype:
        """As of a :class:`DgradPlan`."""
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
        """Launches the kernel; as :meth:`DgradPlan.run`."""
        if self.swaps_channels:
            weight = weight.transpose(0, 1)
        bias = _checked_bias(self.problem, bias)
        if bias is None:
            return self.plain.run(dy, weight, NO_OPERANDS, out)
        return self.biased.run(dy, weight, EpilogueArguments(bias=bias), out)
