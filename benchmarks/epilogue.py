"""Convolution, bias, residual and ReLU in one kernel, beside torch eager or torch.compile.

``--compile`` times ``torch.compile(mode="max-autotune-no-cudagraphs")`` in the place of eager; it
tunes for half a minute per shape, so there are fewer shapes by default.  Everything is checked
against eager torch in fp32 with TF32 off, then timed.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.conv_fprop import make_tensors
from benchmarks.harness import Function, add_conv_arguments
from benchmarks.pairs import OURS, Pair, run_pairs
from benchmarks.shapes import FPROP_SHAPES, ConvShape, select_shapes

__all__ = ["COMPILED_SHAPES", "add_arguments", "run"]

# One of each kind: stages of ResNet-50, a strided one, a U-Net, a 1x1.
COMPILED_SHAPES = ("0", "1", "2", "3", "8", "10", "17")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    add_conv_arguments(parser)
    parser.add_argument("--compile", action="store_true", help="beside torch.compile, not eager")


def make(shape: ConvShape, dtype: str, is_compiled: bool, device: str = "cuda") -> Pair:
    """Draws the tensors of a shape."""
    import torch
    from torch.nn.functional import conv2d
    from triton_ext import ops

    tensors = make_tensors(shape, dtype, device)
    x, weight = tensors.x, tensors.weight
    out_h, out_w = shape.output_size
    bias = torch.randn(shape.co, device=device).to(x.dtype)
    rows = torch.randn(shape.n, out_h, out_w, shape.co, device=device)
    residual = rows.to(x.dtype).permute(0, 3, 1, 2)

    def block(x: Any, weight: Any, bias: Any, residual: Any) -> Any:
        return torch.relu(conv2d(x, weight, bias, shape.stride, shape.padding) + residual)

    operands = (x, weight, bias, residual)
    torch.backends.cudnn.benchmark = False
    reference = block(*(operand.float() for operand in operands))
    torch.backends.cudnn.benchmark = True
    functions: dict[str, Function] = {}
    if is_compiled:
        torch._dynamo.reset()
        compiled = torch.compile(block, mode="max-autotune-no-cudagraphs")
        functions["compile"] = lambda: compiled(*operands)
    else:
        functions["eager"] = lambda: block(*operands)
    functions[OURS] = lambda: ops.conv2d(
        x, weight, bias, shape.stride, shape.padding, residual=residual, activation="relu"
    )
    return Pair(functions, reference)


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a result was wrong or a shape failed."""
    names = ("compile" if arguments.compile else "eager", OURS)
    shapes = select_shapes(list(COMPILED_SHAPES)) if arguments.compile else FPROP_SHAPES
    return run_pairs(
        arguments, names, lambda shape: make(shape, arguments.dtype, arguments.compile), shapes
    )
