"""Forward convolutions in fp8 (e4m3) beside this package's own in bf16, where Ci is 256 or more.

Both get the same numbers: those of e4m3 are numbers of bf16, and the scale is a power of two.  So
both are checked against one product in fp32, with TF32 off, then timed.
"""

from __future__ import annotations

import argparse

from benchmarks.fprop_kinds import LIMIT
from benchmarks.harness import Errors, add_conv_arguments
from benchmarks.pairs import OURS, Pair, run_pairs
from benchmarks.shapes import FPROP_SHAPES, ConvShape

__all__ = ["SHAPES", "add_arguments", "run"]

NAMES = ("bfloat16", OURS)
# sm_90 sums products of fp8 with about 14 bits: over the norm, and over the largest value.
ALLOWED = Errors(l2=4 * LIMIT, maximum=2 * LIMIT)
SHAPES = tuple(shape for shape in FPROP_SHAPES if shape.ci >= 256)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    add_conv_arguments(parser)


def make(shape: ConvShape, device: str = "cuda") -> Pair:
    """Draws the tensors of a shape."""
    import torch
    from torch.nn.functional import conv2d
    from triton_ext import ops

    generator = torch.Generator(device).manual_seed(0)

    def draw(*sizes: int) -> torch.Tensor:
        rows = torch.randn(*sizes, generator=generator, device=device)
        return rows.to(torch.float8_e4m3fn)

    x = draw(shape.n, shape.h, shape.w, shape.ci).permute(0, 3, 1, 2)
    weight = draw(shape.co, shape.r, shape.s, shape.ci).permute(0, 3, 1, 2)
    exponent = -(shape.k_gemm.bit_length() // 2)
    scale = torch.full((1,), 2.0**exponent, device=device)
    wide_x, wide_weight = x.bfloat16(), (weight.float() * scale).bfloat16()
    torch.backends.cudnn.benchmark = False
    reference = conv2d(x.float(), weight.float() * scale, None, shape.stride, shape.padding)
    torch.backends.cudnn.benchmark = True
    common = (None, shape.stride, shape.padding)
    functions = {
        NAMES[0]: lambda: ops.conv2d(wide_x, wide_weight, *common),
        OURS: lambda: ops.conv2d(x, weight, *common, scale=scale, out_dtype=torch.bfloat16),
    }
    return Pair(functions, reference, ALLOWED)


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a result was wrong or a shape failed."""
    return run_pairs(arguments, NAMES, make, SHAPES)
