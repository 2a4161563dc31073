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
the other group's pixel is NaN or infinity.  So a kernel reports whether there was one, and
``repair_groups_kernel`` then computes all outputs again, group by group and without tensor cores.
Where there was none, its programs end after a look at the flags.

Pointers and masks: no tensor maps, so any stride, padding, dilation and alignment would do.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_ext.ops.kernels.epilogue import finish_tile, scale_and_shift, sum_dtype, tap_count


@triton.jit
def conv_direct_kernel(
    x_ptr,  # x [N, ([D, ]H, )W, Ci], pixels of any stride, channels contiguous
    w_ptr,  # w [Co, T * R * S, Ci / groups], packed
    y,  # y [M_GEMM, Co], packed
    operands,  # Operands of the epilogue
    m_gemm,
    co,
    reads,  # PixelReads
    DIMS: tl.constexpr,
    FILTER: tl.constexpr,  # taps per spatial dimension
    GROUP_CI: tl.constexpr,  # Ci / groups
    GROUP_CO: tl.constexpr,  # Co / groups
    IS_GRADIENT: tl.constexpr,  # strides are distances of the input's pixels, not the output's
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
    size_d, size_h, size_w = reads.size
    out_d, out_h, out_w = reads.output_size
    stride_d, stride_h, stride_w = reads.stride
    num_n = (co - 1) // BLOCK_N + 1
    row = tl.program_id(0) // num_n * BLOCK_M
    column = tl.program_id(0) % num_n * BLOCK_N
    tile_rows = tl.arange(0, BLOCK_M)
    rows = row.to(tl.int64) + tile_rows
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
    channels = columns // GROUP_CO * GROUP_CI
    weights = w_ptr + columns * (TAPS * GROUP_CI)
    ZERO: tl.constexpr = 0 if ACC_DTYPE.is_int() else 0.0
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
            for c in tl.static_range(GROUP_CI):
                mask = is_pixel[:, None] & column_mask[None, :]
                x = tl.load(pixels[:, None] + (channels + c)[None, :], mask=mask, other=ZERO)
                tap = line * S + s
                if IS_GRADIENT:
                    tap = TAPS - 1 - tap
                weight = tl.load(weights + tap * GROUP_CI + c, mask=column_mask, other=ZERO)
                acc += x.to(ACC_DTYPE) * weight.to(ACC_DTYPE)[None, :]
    acc = scale_and_shift(acc, columns, co, operands)
    finish_tile(acc, row, column, m_gemm, co, co, y, None, operands, reads.output_size, FINISH)


# The bits of infinity: fp32 numbers without a sign that are larger as integers are NaN.
_INFINITY = tl.constexpr(0x7F800000)
_NAN = tl.constexpr(0x7FFFFFFF)


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


@triton.jit
def repair_groups_kernel(
    flags_ptr,  # int32: bits of fp32, above those of infinity where outputs are computed again
    x_ptr,  # x or dy [N, pixels, channels], pixels of any stride, channels side by side
    w_ptr,  # w [Co, TAPS, Ci / groups]
    y_ptr,  # [M_GEMM, columns]
    operands,  # Operands of the epilogue
    flags,  # how many there are
    m_gemm,
    columns,  # output channels
    tiles,
    size,  # (d, h, w) of the input; 1 for dimensions that are not there, as in all of these
    out_size,
    step,  # output pixel i sees through tap t the pixel (i * step + t * dilation - low) / up
    up,
    low,
    dilation,
    strides,  # of the input, (n, d, h, w), in elements
    FLAGS: tl.constexpr,  # flags, rounded up to a power of two
    FILTER: tl.constexpr,  # taps per spatial dimension
    GROUP_COLUMNS: tl.constexpr,  # output channels of a group
    GROUP_K: tl.constexpr,  # input channels of a group
    IS_TURNED: tl.constexpr,  # as in merge_filter_kernel
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FINISH: tl.constexpr,  # Finish
):
    TAPS: tl.constexpr = tap_count(FILTER)
    S: tl.constexpr = tap_count(FILTER, 1)
    R: tl.constexpr = tap_count(FILTER, 2) // S
    numbers = tl.arange(0, FLAGS)
    worst = tl.max(tl.load(flags_ptr + numbers, mask=numbers < flags, other=0), axis=0)
    if worst > _INFINITY:
        num_n = tl.cdiv(columns, BLOCK_N)
        for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
            row = tile // num_n * BLOCK_M
            column = tile % num_n * BLOCK_N
            rows = tl.cast(row, tl.int64) + tl.arange(0, BLOCK_M)
            offs_n = column + tl.arange(0, BLOCK_N)
            mask_n = offs_n < columns
            first_w = rows % out_size[2] * step[2] - low[2]
            rest = rows // out_size[2]
            first_h = rest % out_size[1] * step[1] - low[1]
            rest = rest // out_size[1]
            first_d = rest % out_size[0] * step[0] - low[0]
            images = x_ptr + rest // out_size[0] * strides[0]
            group = offs_n // GROUP_COLUMNS
            acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for tap in range(TAPS):
                d = first_d + tap // (R * S) * dilation[0]
                h = first_h + tap // S % R * dilation[1]
                w = first_w + tap % S * dilation[2]
                is_pixel = (rows < m_gemm) & (d % up[0] == 0) & (h % up[1] == 0) & (w % up[2] == 0)
                d, h, w = d // up[0], h // up[1], w // up[2]
                is_pixel = is_pixel & (d >= 0) & (h >= 0) & (w >= 0)
                is_pixel = is_pixel & (d < size[0]) & (h < size[1]) & (w < size[2])
                pixels = images + d * strides[1] + h * strides[2] + w * strides[3]
                mask = is_pixel[:, None] & mask_n[None, :]
                for k in range(GROUP_K):
                    if IS_TURNED:
                        source = (group * GROUP_K + k) * TAPS + (TAPS - 1 - tap)
                        source = source * GROUP_COLUMNS + offs_n % GROUP_COLUMNS
                    else:
                        source = (offs_n * TAPS + tap) * GROUP_K + k
                    channels = (group * GROUP_K + k)[None, :]
                    x = tl.load(pixels[:, None] + channels, mask=mask, other=0.0)
                    weight = tl.load(w_ptr + source, mask=mask_n, other=0.0)
                    acc += x.to(tl.float32) * weight.to(tl.float32)[None, :]
            acc = scale_and_shift(acc, offs_n, columns, operands)
            finish_tile(
                acc, row, column, m_gemm, columns, columns, y_ptr, None, operands, out_size, FINISH
            )
