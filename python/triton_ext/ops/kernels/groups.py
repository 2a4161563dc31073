"""Groups of few channels: a convolution without tensor cores, and device code of merged groups.

The convolution, and its gradient of the input: with fewer than 16 bytes of channels per group, a
tile of an implicit GEMM would use a few columns of what it loads and multiplies, and TMA could not
begin a copy where a group begins; loading each pixel's channels once per tap costs less.
Neighbouring threads read neighbouring channels.  Groups of one channel each way have a kernel of
their own, ``depthwise.py``.  The gradient is the same over dy: the filter is read from its end, its
channels are exchanged, and pixels between those of dy, where the convolution has a stride, do not
exist.

Merged groups: M groups are merged into one, whose filter is block-diagonal, [rows, taps, M * K],
where a row is an output channel of what is computed (Co in fprop, Ci in a gradient of the input)
and K the channels of a group that it sums over.  A product with a zero of that filter is NaN where
the other group's pixel is NaN or infinity.  So a kernel reports whether there was one in flags, and
the convolution without tensor cores then computes all outputs again.  Where there was none, its
programs end after a look at the flags.

Pointers and masks: no tensor maps, so any stride, padding, dilation and alignment would do.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_ext.ops.kernels.epilogue import finish_tile, scale_and_shift, sum_dtype, tap_count

# The bits of infinity: fp32 numbers without a sign that are larger as integers are NaN.
_INFINITY = tl.constexpr(0x7F800000)
_NAN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def conv_direct_kernel(
    x_ptr,  # x [N, ([D, ]H, )W, Ci], pixels of any stride, channels contiguous
    w_ptr,  # w [Co, T * R * S, Ci / groups], packed; IS_GRADIENT: [Ci, T * R * S, Co / groups]
    flags_ptr,  # int32, bits of fp32: only where one is NaN is anything computed; None: always
    y,  # y [M_GEMM, Co], packed
    operands,  # Operands of the epilogue
    m_gemm,
    co,
    flags,  # how many there are
    reads,  # PixelReads
    DIMS: tl.constexpr,
    FILTER: tl.constexpr,  # taps per spatial dimension
    GROUP_CI: tl.constexpr,  # Ci / groups
    GROUP_CO: tl.constexpr,  # Co / groups
    IS_GRADIENT: tl.constexpr,  # strides are distances of the input's pixels, not the output's
    FLAGS: tl.constexpr,  # flags, rounded up to a power of two
    CONFIG: tl.constexpr,  # DirectConfig
    FINISH: tl.constexpr,  # Finish
):
    # Assigning a tuple makes its type anew, as in gemm.py.
    operands = operands
    reads = reads
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    TAPS: tl.constexpr = tap_count(FILTER)
    S: tl.constexpr = tap_count(FILTER, 1)
    R: tl.constexpr = tap_count(FILTER, 2) // S
    ACC_DTYPE: tl.constexpr = sum_dtype(x_ptr.dtype.element_ty)
    ZERO: tl.constexpr = 0 if ACC_DTYPE.is_int() else 0.0
    size_d, size_h, size_w = reads.size
    out_d, out_h, out_w = reads.output_size
    stride_d, stride_h, stride_w = reads.stride
    num_n = (co - 1) // BLOCK_N + 1
    tiles = tl.cdiv(m_gemm, BLOCK_M) * num_n
    if flags_ptr is not None:
        numbers = tl.arange(0, FLAGS)
        worst = tl.max(tl.load(flags_ptr + numbers, mask=numbers < flags, other=0), axis=0)
        tiles = tl.where(worst > _INFINITY, tiles, 0)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile // num_n * BLOCK_M
        column = tile % num_n * BLOCK_N
        tile_rows = tl.arange(0, BLOCK_M)
        rows = tl.cast(row, tl.int64) + tile_rows
        columns = column + tl.arange(0, BLOCK_N)
        row_mask = tile_rows < m_gemm - row
        column_mask = columns < co
        # Where tap 0 reads.
        w = rows % out_w * (1 if IS_GRADIENT else stride_w) - reads.low[2]
        rest = rows // out_w
        if DIMS > 1:
            h = rest % out_h * (1 if IS_GRADIENT else stride_h) - reads.low[1]
            rest = rest // out_h
        if DIMS > 2:
            d = rest % out_d * (1 if IS_GRADIENT else stride_d) - reads.low[0]
            rest = rest // out_d
        images = x_ptr + rest * reads.image_stride
        group = columns // GROUP_CO
        channels = group * GROUP_CI
        if IS_GRADIENT:
            # From the last tap on, [group, GROUP_CI, TAPS, GROUP_CO].
            weights = w_ptr + (channels * TAPS + TAPS - 1) * GROUP_CO + columns % GROUP_CO
        else:
            weights = w_ptr + columns * (TAPS * GROUP_CI)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_DTYPE)
        for line in range(TAPS // S):
            inside = row_mask
            lines = images
            if DIMS > 1:
                this_h = h + line % R * reads.dilation[1]
                if IS_GRADIENT:
                    inside = inside & (this_h % stride_h == 0)
                    this_h = this_h // stride_h
                inside = inside & (this_h >= 0) & (this_h < size_h)
                lines = lines + this_h * reads.strides[1]
            if DIMS > 2:
                this_d = d + line // R * reads.dilation[0]
                if IS_GRADIENT:
                    inside = inside & (this_d % stride_d == 0)
                    this_d = this_d // stride_d
                inside = inside & (this_d >= 0) & (this_d < size_d)
                lines = lines + this_d * reads.strides[0]
            for s in range(S):
                this_w = w + s * reads.dilation[2]
                is_pixel = inside
                if IS_GRADIENT:
                    is_pixel = is_pixel & (this_w % stride_w == 0)
                    this_w = this_w // stride_w
                is_pixel = is_pixel & (this_w >= 0) & (this_w < size_w)
                pixels = lines + this_w * reads.strides[2]
                tap = line * S + s
                for c in tl.static_range(GROUP_CI):
                    mask = is_pixel[:, None] & column_mask[None, :]
                    x = tl.load(pixels[:, None] + (channels + c)[None, :], mask=mask, other=ZERO)
                    at = (c * TAPS - tap) * GROUP_CO if IS_GRADIENT else tap * GROUP_CI + c
                    weight = tl.load(weights + at, mask=column_mask, other=ZERO)
                    acc += x.to(ACC_DTYPE) * weight.to(ACC_DTYPE)[None, :]
        acc = scale_and_shift(acc, columns, co, operands)
        finish_tile(acc, row, column, m_gemm, co, co, y, None, operands, reads.output_size, FINISH)


@triton.jit
def merge_filter_kernel(
    w_ptr,  # w [Co, TAPS, Ci / groups]
    merged_ptr,  # [rows, TAPS, FACTOR * GROUP_K]
    pixels_ptr,  # x or dy as dense elements, to look for NaN and infinity; None: nobody looks
    flags_ptr,  # int32, one per program that looks; one if none does; None for integers
    elements,  # of merged
    filter_programs,  # those that write merged, the first ones
    blocks,  # of BLOCK elements of pixels
    pixel_elements,  # in the last block
    TAPS: tl.constexpr,
    GROUP_ROWS: tl.constexpr,  # rows of a group
    GROUP_K: tl.constexpr,  # K
    FACTOR: tl.constexpr,  # M
    IS_TURNED: tl.constexpr,  # rows are input channels, taps are counted from the last
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    if pixels_ptr is None and flags_ptr is not None:
        # A maximum of bits of fp32, which the convolution raises.
        tl.store(flags_ptr, 0, mask=program == 0)
    if program < filter_programs:
        offsets = program * BLOCK + tl.arange(0, BLOCK)
        channel = offsets % (FACTOR * GROUP_K)
        rest = offsets // (FACTOR * GROUP_K)
        tap = rest % TAPS
        row = rest // TAPS
        group = row // GROUP_ROWS
        is_own = (channel // GROUP_K == group % FACTOR) & (offsets < elements)
        if IS_TURNED:
            source = (group * GROUP_K + channel % GROUP_K) * TAPS + (TAPS - 1 - tap)
            source = source * GROUP_ROWS + row % GROUP_ROWS
        else:
            source = (row * TAPS + tap) * GROUP_K + channel % GROUP_K
        ZERO: tl.constexpr = 0 if w_ptr.dtype.element_ty.is_int() else 0.0
        weight = tl.load(w_ptr + source, mask=is_own, other=ZERO)
        tl.store(merged_ptr + offsets, weight, mask=offsets < elements)
    elif pixels_ptr is not None:
        looks = program - filter_programs
        found = tl.zeros((BLOCK,), dtype=tl.int32)
        for block in range(looks, blocks, tl.num_programs(0) - filter_programs):
            inside = tl.arange(0, BLOCK) < tl.where(block == blocks - 1, pixel_elements, BLOCK)
            pointers = pixels_ptr + tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
            pixels = tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
            # Infinity without itself is NaN, and NaN is not itself.
            found = found | (pixels - pixels != 0).to(tl.int32)
        tl.store(flags_ptr + looks, tl.where(tl.max(found, axis=0) > 0, _NAN, 0))
