"""Device functions that the kernels of normalizations share."""

from __future__ import annotations

import triton
import triton.language as tl

from triton_ext.ops.kernels.epilogue import activate

__all__ = ["SIZES", "channel_terms", "gradient_before", "load_terms", "place"]

#: Arguments that kernels are not specialized on.  Nothing is gained by a kernel for each kind of
#: their values: rows are aligned by UNIT.
SIZES = (
    "rows", "chunk_rows", "chunks", "units", "channels", "groups", "group_programs", "eps_bits",
    "momentum_bits",
)  # fmt: skip


@triton.jit
def place(chunks, channels, BLOCK_C: tl.constexpr):
    """First channel, chunk and image of a program; neighbours have neighbouring channels."""
    blocks = tl.cdiv(channels, BLOCK_C)
    program = tl.program_id(0)
    rest = program // blocks
    return program % blocks * BLOCK_C, rest % chunks, rest // chunks


@triton.jit
def load_terms(ptr, columns, channels, DEFAULT: tl.constexpr):
    """A number per channel in fp32; DEFAULT where there is no tensor."""
    if ptr is None:
        return tl.full(columns.shape, DEFAULT, tl.float32)
    else:
        return tl.load(ptr + columns, mask=columns < channels, other=0.0).to(tl.float32)


@triton.jit
def channel_terms(
    mean_ptr,
    rstd_ptr,
    weight_ptr,
    bias_ptr,
    image,
    columns,
    channels,
    groups,
    group_channels,
    eps_bits,
    IS_VARIANCE: tl.constexpr,
):
    """Mean, 1 / standard deviation, weight and bias of each channel.

    Args:
        mean_ptr: [images, groups].
        rstd_ptr: [images, groups], 1 / standard deviation, or the variance.
        weight_ptr: [C] or None.
        bias_ptr: [C] or None.
        image: Of the program.
        columns: [BLOCK_C], channels.
        channels: C.
        groups: Of an image.
        group_channels: C / groups.
        eps_bits: The bits of an fp32, as int32: launches are prepared for integers.
        IS_VARIANCE: What ``rstd_ptr`` holds.
    """
    indices = image * groups + columns // group_channels
    mask = columns < channels
    mean = tl.load(mean_ptr + indices, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.load(rstd_ptr + indices, mask=mask, other=1.0).to(tl.float32)
    if IS_VARIANCE:
        rstd = tl.rsqrt(rstd + eps_bits.to(tl.float32, bitcast=True))
    weight = load_terms(weight_ptr, columns, channels, 1.0)
    bias = load_terms(bias_ptr, columns, channels, 0.0)
    return mean, rstd, weight, bias


@triton.jit
def _slope(x, ACTIVATION: tl.constexpr):
    """The derivative of ``activate`` at x, fp32."""
    if ACTIVATION == "silu":
        sigmoid = tl.sigmoid(x)
        slope = sigmoid * (1 + x * (1 - sigmoid))
    elif ACTIVATION == "gelu":
        slope = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
        slope += x * tl.exp(-0.5 * x * x) * 0.3989422804014327
    elif ACTIVATION == "gelu_tanh":
        # Of x * sigmoid(2u).
        sigmoid = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        inner = 1.5957691216057308 * (1 + 0.134145 * x * x)
        slope = sigmoid + x * sigmoid * (1 - sigmoid) * inner
    elif ACTIVATION == "tanh":
        y = activate(x, "tanh")
        slope = 1 - y * y
    return slope


@triton.jit
def gradient_before(dy, x, ACTIVATION: tl.constexpr):
    """The gradient in front of an activation of x, from the one behind it; fp32."""
    if ACTIVATION == "relu":
        # A NaN passes, as in torch.
        dy = tl.where(x <= 0, 0.0, dy)
    elif ACTIVATION != "identity":
        dy = dy * _slope(x, ACTIVATION)
    return dy
