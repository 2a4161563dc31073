"""The convolutions that are timed beside each other, for every direction, and their tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from triton_ext.ops.core.problem import ConvProblem

from benchmarks.harness import Function

__all__ = [
    "BASELINE",
    "DIRECTIONS",
    "OURS",
    "Operands",
    "case_of",
    "make_operands",
    "variants_of",
]

DIRECTIONS = ("fprop", "dgrad", "wgrad")
BASELINE = "cudnn"
OURS = "ours"


@dataclass(frozen=True, slots=True)
class Operands:
    """Tensors of a problem in torch's order, in channels-last memory.

    Attributes:
        problem: What is computed from them.
        x: [N, Ci, *input_size], standard normal.
        weight: [Co, Ci / groups, *filter_size], normal with variance 1 / (taps * Ci / groups).
        dy: [N, Co, *output_size], standard normal.
    """

    problem: ConvProblem
    x: Any
    weight: Any
    dy: Any

    def in_fp32(self) -> Operands:
        """The same in fp32, contiguous as cuDNN likes it best there."""
        tensors = {name: getattr(self, name).float().contiguous() for name in ("x", "weight", "dy")}
        return dataclasses.replace(self, **tensors)

    def run_torch(self, direction: str) -> Any:
        """Returns torch's result: cuDNN on a GPU."""
        import torch

        p = self.problem
        # torch's operator knows equal sides only.
        low = [sides[0] for sides in p.padding]
        if any(a != b for a, b in p.padding):
            raise ValueError("torch's convolution pads both sides alike")
        common = (list(p.stride), low, list(p.dilation), False, [0] * p.dims, p.groups)
        if direction == "fprop":
            return torch.ops.aten.convolution(self.x, self.weight, None, *common)
        wanted = [direction == "dgrad", direction == "wgrad", False]
        gradients = torch.ops.aten.convolution_backward(
            self.dy, self.x, self.weight, None, *common, wanted
        )
        return gradients[0 if direction == "dgrad" else 1]

    def run_ours(self, direction: str) -> Any:
        """Returns the package's result."""
        from triton_ext import ops

        p = self.problem
        name = f"conv{p.dims}d"
        low = [sides[0] for sides in p.padding]
        common = (list(p.stride), low, list(p.dilation), p.groups)
        if direction == "fprop":
            return getattr(ops, name)(self.x, self.weight, None, *common)
        if direction == "dgrad":
            return getattr(ops, f"{name}_input")(self.x.shape, self.weight, self.dy, *common)
        return getattr(ops, f"{name}_weight")(self.x, self.weight.shape, self.dy, *common)

    def chosen(self, direction: str) -> str:
        """Which kernel of ours runs, and with which configuration, in one word; not for wgrad."""
        from triton_ext.ops.core.case import Case
        from triton_ext.ops.core.planner import make_plan

        from benchmarks.conv_fprop import describe_config

        if direction == "wgrad":
            return ""
        case = Case(
            direction=direction,
            problem=self.problem,
            dtype=self.x.dtype,
            x_strides=self.x.stride(),
            dy_strides=self.dy.stride(),
        )
        return describe_config(make_plan(case, self.x.device).config)

    def bytes_moved(self, direction: str) -> int:
        """Bytes that every kernel of a direction has to read and write at least."""
        by_direction = {
            "fprop": (self.x, self.weight, self.dy),
            "dgrad": (self.dy, self.weight, self.x),
            "wgrad": (self.x, self.dy, self.weight),
        }
        return sum(t.numel() * t.element_size() for t in by_direction[direction])


def case_of(direction: str, problem: ConvProblem, dtype: str) -> Any:
    """Returns a convolution in the terms of the tuning, which makes and runs plans of all kernels.

    Args:
        direction: One of :data:`DIRECTIONS`.
        problem: What is computed.
        dtype: Of the operands and the result, torch's name.
    """
    import torch
    from triton_ext.ops.core.case import Case

    kind = getattr(torch, dtype)
    out_dtype = kind if direction == "wgrad" else None
    return Case(direction=direction, problem=problem, dtype=kind, out_dtype=out_dtype)  # type: ignore[arg-type]


def _channels_last(tensor: Any) -> Any:
    """Views [N, *size, C] memory as [N, C, *size]."""
    return tensor.movedim(-1, 1)


def make_operands(problem: ConvProblem, dtype: str, device: str = "cuda") -> Operands:
    """Draws a problem's tensors from a fixed seed; on the "meta" device they have no values."""
    import torch

    generator = None if device == "meta" else torch.Generator(device).manual_seed(0)
    target = getattr(torch, dtype)

    def normal(*sizes: int) -> Any:
        return torch.randn(*sizes, generator=generator, device=device)

    p = problem
    channels = p.in_channels // p.groups
    weight = normal(p.out_channels, *p.filter_size, channels) / (p.taps * channels) ** 0.5
    return Operands(
        p,
        _channels_last(normal(p.batch, *p.input_size, p.in_channels).to(target)),
        _channels_last(weight.to(target)),
        _channels_last(normal(p.batch, *p.output_size, p.out_channels).to(target)),
    )


def _inductor(operands: Operands, direction: str) -> Function:
    """torch.compile's convolution, the fastest of its Triton templates and of cuDNN."""
    import torch

    torch._dynamo.reset()
    compiled: Callable[[], Any] = torch.compile(
        lambda: operands.run_torch(direction), mode="max-autotune-no-cudagraphs"
    )
    return compiled


def _gluon(operands: Operands, direction: str) -> Function | None:
    """The example kernel of examples/gluon/hopper; ``None`` for what it does not compute."""
    from examples.gluon.hopper import dgrad, fprop, wgrad

    p = operands.problem
    if p.groups > 1 or p.in_channels % 8 or p.out_channels % 8:
        return None
    x, weight, dy = (tensor.movedim(1, -1) for tensor in (operands.x, operands.weight, operands.dy))
    if direction == "fprop":
        return lambda: fprop.conv_fprop(x, weight, p.stride, p.padding, p.dilation).movedim(-1, 1)
    if direction == "wgrad":
        return lambda: wgrad.conv_wgrad(
            x, dy, p.filter_size, p.stride, p.padding, p.dilation
        ).movedim(-1, 1)
    low = tuple(sides[0] for sides in p.padding)
    return lambda: dgrad.conv_dgrad(dy, weight, p.input_size, p.stride, low, p.dilation).movedim(
        -1, 1
    )


def variants_of(
    operands: Operands, direction: str, *, inductor: bool = False, gluon: bool = False
) -> dict[str, Function]:
    """Returns what is timed, by name; cuDNN and ours always.

    Args:
        operands: The tensors.
        direction: One of :data:`DIRECTIONS`.
        inductor: Whether torch.compile's is timed, which takes long to tune.
        gluon: Whether the Gluon example is timed where it computes the problem.
    """
    functions: dict[str, Function] = {
        BASELINE: lambda: operands.run_torch(direction),
        OURS: lambda: operands.run_ours(direction),
    }
    if inductor:
        functions["inductor"] = _inductor(operands, direction)
    example = _gluon(operands, direction) if gluon else None
    if example is not None:
        functions["gluon"] = example
    return functions
