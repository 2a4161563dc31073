"""Tensors of convolutions in every direction, and calls of torch and of the package over them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from triton_ext.ops.core.problem import ConvProblem

from benchmarks.harness import Errors, Function

__all__ = ["BASELINE", "DIRECTIONS", "DTYPES", "FP8", "FP8_LIMIT", "OURS", "Operands", "call_of",
           "case_of", "inputs_of", "make_operands"]  # fmt: skip

DIRECTIONS = ("fprop", "dgrad", "wgrad")
BASELINE = "cudnn"
OURS = "ours"
FP8 = "float8_e4m3fn"
DTYPES = ("float16", "bfloat16", "float32", FP8)
# Half of what fp8 may err, as sm_90 sums its products with about 14 bits: of the norm, and of the
# largest value.
FP8_LIMIT = Errors(l2=1e-2, maximum=5e-3)


@dataclass(frozen=True, slots=True)
class Operands:
    """Tensors of a problem in torch's order, in channels-last memory."""

    problem: ConvProblem  # what is computed from them
    x: Any  # [N, Ci, *input_size], standard normal
    weight: Any  # [Co, Ci / groups, *filter_size], normal with variance 1 / (taps * Ci / groups)
    dy: Any  # [N, Co, *output_size], standard normal
    # [Co] of an epilogue, which adds dy as the residual and has a ReLU; ``None`` without.
    bias: Any = None
    scale: Any = None  # [1], which brings fp8 weights of variance 1 to the others' variance, about

    def as_type(self, dtype: Any) -> Operands:
        """Returns the same numbers in another type, the weight scaled."""
        weight = self.weight if self.scale is None else self.weight.float() * self.scale
        bias = None if self.bias is None else self.bias.to(dtype)
        x, weight, dy = (tensor.to(dtype) for tensor in (self.x, weight, self.dy))
        return Operands(self.problem, x, weight, dy, bias)

    def in_fp32(self) -> Operands:
        """The same in fp32, contiguous as cuDNN likes it best there."""
        import torch

        wide = self.as_type(torch.float32)
        tensors = {name: getattr(wide, name).contiguous() for name in ("x", "weight", "dy")}
        return dataclasses.replace(wide, **tensors)

    def _geometry(self) -> tuple[list[int], list[int], list[int]]:
        p = self.problem
        # torch's operator knows equal sides only.
        if any(a != b for a, b in p.padding):
            raise ValueError("torch's convolution pads both sides alike")
        return list(p.stride), [low for low, _ in p.padding], list(p.dilation)

    def run_torch(self, direction: str) -> Any:
        """Returns torch's result: cuDNN on a GPU."""
        import torch

        common = (*self._geometry(), False, [0] * self.problem.dims, self.problem.groups)
        if direction == "fprop":
            y = torch.ops.aten.convolution(self.x, self.weight, self.bias, *common)
            return y if self.bias is None else torch.relu(y + self.dy)
        wanted = [direction == "dgrad", direction == "wgrad", False]
        gradients = torch.ops.aten.convolution_backward(
            self.dy, self.x, self.weight, None, *common, wanted
        )
        return gradients[wanted.index(True)]

    def run_ours(self, direction: str) -> Any:
        """Returns the package's result; of fp8 in bfloat16."""
        import torch
        from triton_ext import ops

        name, common = f"conv{self.problem.dims}d", (*self._geometry(), self.problem.groups)
        if direction == "dgrad":
            return getattr(ops, f"{name}_input")(self.x.shape, self.weight, self.dy, *common)
        if direction == "wgrad":
            return getattr(ops, f"{name}_weight")(self.x, self.weight.shape, self.dy, *common)
        more: dict[str, Any] = {}
        if self.bias is not None:
            more = {"residual": self.dy, "activation": "relu"}
        if self.scale is not None:
            more |= {"scale": self.scale, "out_dtype": torch.bfloat16}
        return getattr(ops, name)(self.x, self.weight, self.bias, *common, **more)


def case_of(direction: str, problem: ConvProblem, dtype: str) -> Any:
    """Returns a convolution in the terms of the tuning, which makes and runs plans of all kernels.

    Args:
        direction: One of :data:`DIRECTIONS`.
        problem: What is computed.
        dtype: Of the operands and the result, torch's name; the result of fp8 is bfloat16.
    """
    import torch
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.epilogue import EpilogueSpec

    kind = getattr(torch, dtype)
    more: dict[str, Any] = {"epilogue": EpilogueSpec(out_dtype=torch.bfloat16)}
    if dtype != FP8:
        more = {"out_dtype": kind} if direction == "wgrad" else {}
    return Case(direction=direction, problem=problem, dtype=kind, **more)  # type: ignore[arg-type]


def make_operands(
    problem: ConvProblem, dtype: str, device: str = "cuda", *, epilogue: bool = False
) -> Operands:
    """Draws a problem's tensors from a fixed seed; on the "meta" device they have no values.

    Args:
        problem: What is computed.
        dtype: Of the operands.
        device: Where they lie.
        epilogue: Whether there is a bias.
    """
    import torch

    generator = None if device == "meta" else torch.Generator(device).manual_seed(0)
    target, p = getattr(torch, dtype), problem

    def normal(*sizes: int, scale: float = 1.0) -> Any:
        return (torch.randn(*sizes, generator=generator, device=device) * scale).to(target)

    k_gemm = p.taps * p.in_channels // p.groups
    # Small numbers would be rounded to few values in fp8, and a scale of a power of two is exact.
    is_fp8 = dtype == FP8
    weight_scale = 1.0 if is_fp8 else k_gemm**-0.5
    scale = torch.full((1,), 2.0 ** -(k_gemm.bit_length() // 2), device=device)
    weight = normal(p.out_channels, *p.filter_size, p.in_channels // p.groups, scale=weight_scale)
    x = normal(p.batch, *p.input_size, p.in_channels)
    dy = normal(p.batch, *p.output_size, p.out_channels)
    bias = normal(p.out_channels) if epilogue else None
    # [N, *size, C] in memory is [N, C, *size] to torch.
    x, weight, dy = (tensor.movedim(-1, 1) for tensor in (x, weight, dy))
    return Operands(p, x, weight, dy, bias, scale if is_fp8 else None)


def inputs_of(case: Any, o: Operands) -> tuple[Any, Any]:
    """Returns both operands of a case, the filter as modules have it."""
    from triton_ext.ops.core.descriptors import in_filter_order

    weight = in_filter_order(o.weight, case.problem.groups)
    return {"fprop": (o.x, weight), "dgrad": (o.dy, weight), "wgrad": (o.x, o.dy)}[case.direction]


def call_of(case: Any, config: Any, operands: Operands) -> Function:
    """Returns a call of the plan of a configuration of a case."""
    from triton_ext.ops.core.epilogue import NO_OPERANDS
    from triton_ext.ops.core.planner import make_plan

    inputs = inputs_of(case, operands)
    plan = make_plan(case, operands.x.device, config)
    return lambda: plan.run(*inputs, NO_OPERANDS)
