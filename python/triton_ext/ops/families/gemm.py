"""fprop and dgrad as implicit GEMMs through im2col loads: the kernels of ``kernels/gemm.py``.

Both have the configurations and the model of ``gemm_config.py``.  In dgrad every stride phase has
tiles of its own, with the k iterations of its own taps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext import backends
from triton_ext.ops.core import descriptors
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import ROW_BYTES, Describe, Layout
from triton_ext.ops.core.device import H200, Device, Expected
from triton_ext.ops.core.family import Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.loads import dram_us, outside_share
from triton_ext.ops.core.packing import channel_block, filling_us
from triton_ext.ops.core.plan import TO_LAST, ConvSizes, ForwardPlan, three
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusals, refused, smem_refusals
from triton_ext.ops.core.stride_phases import phase_taps, phases_of
from triton_ext.ops.families import gemm_config
from triton_ext.ops.families.gemm_config import ConvConfig, OutputTile, Product
from triton_ext.ops.kernels.gemm import DgradProblem, Phases, conv_dgrad_kernel, conv_fprop_kernel
from triton_ext.ops.kernels.row_copy import RowCopies, fill_channels

Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")
conv_violations = backends.load("nvidia", "conv_violations")

# dgrad fills groups up to multiples of so many channels, which are an operand of a matrix product
# with every Triton, of 16 and of 32 bits.
_GROUP_UNIT = 16


def tap_refusals(case: Case) -> Refusals:
    """Returns why im2col cannot read x tap by tap; empty where it can, or rows are packed."""
    if case.packing is not None or not conv_violations(case.problem.geometry):
        return ()
    return refused("im2col cannot read x tap by tap: expected a configuration of packed rows")


def product_of(case: Case) -> Product:
    """Returns the matrix product of a case of fprop or dgrad."""
    size, out_size = case.dtype.itemsize, case.output_dtype.itemsize
    if case.direction == "dgrad":
        problem, groups = _padded(case.problem), case.problem.groups
        pixels, taps, repeats = phase_taps(phases_of(problem))
        return Product(
            pixels=problem.batch * pixels, columns=problem.in_channels // groups,
            channels=problem.out_channels // groups, taps=taps, repeats=repeats, groups=groups,
            element_bytes=size, out_bytes=out_size, is_dgrad=True,
            outside=outside_share(problem, is_dgrad=True),
        )  # fmt: skip
    read = _Read.of(case)
    problem, groups = read.problem, read.problem.groups
    return Product(
        pixels=problem.geometry.m_gemm, columns=problem.out_channels // groups,
        channels=read.group_ci, taps=(problem.taps,), groups=groups,
        element_bytes=size, out_bytes=out_size, outside=outside_share(problem),
        pitch_bytes=(read.strides[-2] if groups == 1 else read.group_ci) * size,
    )  # fmt: skip


class _Gemm(Family[ConvConfig]):
    """Implicit GEMM of fprop and dgrad."""

    kind = "gemm"
    config_type = ConvConfig
    is_gemm = True
    tile_fields = ("block_m", "block_n")
    has_stages = True

    def number_refusals(self, config: ConvConfig, case: Case, device: Device) -> Refusals:
        # With an output tile in parts, of elements of the operands' size.
        size = case.dtype.itemsize
        return config.refusals(size) or smem_refusals(config.smem_bytes(size), device)


def tiled(shape: list[int], row: int, block: list[int], **options: bool) -> Describe:
    """Returns a function that makes the tiled descriptor of a tensor; ``row`` is its row stride."""
    strides = [*(row * math.prod(shape[i + 1 : -1]) for i in range(len(shape) - 1)), 1]
    return partial(TensorDescriptor, shape=shape, strides=strides, block_shape=block, **options)


def im2col_of(
    descriptor: Any, problem: ConvProblem, x: Layout, block: list[int], **options: bool
) -> Any:
    """Returns the im2col descriptor of x [N, *input_size, Ci], without memory."""
    return descriptor.for_conv(
        x, problem.filter_size, problem.stride, problem.padding, problem.dilation,
        block_shape=block, **options,
    )  # fmt: skip


def described_inputs(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    pixels: Describe,  # describes x [N, *input_size, Ci], or dy
    matrix: Describe | None,  # describes the product's rows as a matrix, where im2col is it
    columns: Sequence[Describe | None],  # describe its columns
    dims: int | None,  # of tensors in torch's order; ``None`` for packed, channels-last rows
    fill: Callable[..., list[torch.Tensor]] | None = None,  # adds channels to both
    rows_from_w: bool = False,  # whether rows are the filter, and columns the pixels
) -> tuple[Any, ...]:
    """Returns a kernel's descriptors of the rows and columns of its product."""
    if dims is not None:
        x, weight = x.permute(TO_LAST[dims]), weight.permute(TO_LAST[dims])
        if fill is not None:
            x, weight = fill(x, weight)
        weight = descriptors.aligned_rows(weight)
    rows_desc = pixels(x)  # also where it is not used: it checks the address
    rows, others = (weight, x) if rows_from_w else (x, weight)
    if matrix is not None:
        rows_desc = matrix(rows)
    return rows_desc, *(None if describe is None else describe(others) for describe in columns)


class Gemm(_Gemm):
    """fprop, tap by tap or over packed pixels."""

    direction = "fprop"
    reads_packed = True

    def case_refusals(self, case: Case, device: Device) -> Refusals:
        return tap_refusals(case)

    def candidates(self, case: Case, device: Device) -> Mapping[ConvConfig, Expected]:
        product, read = product_of(case), _Read.of(case)
        # Steps that end where the group does, or few long ones whose last one is masked.
        blocks = {read.block_k}
        if product.groups > 1:
            blocks.add(channel_block(read.group_ci, product.element_bytes, 1))
        copies_us = case.packing.copy_us if case.packing is not None else 0.0
        if read.missing:
            copies_us = H200.launch_us
        times: dict[ConvConfig, Expected] = {}
        crossing = _output_tile(case, device, False)
        output = _output_tile(case, device, True) if _stores_through_tma(case, 16) else crossing
        for block_k in sorted(blocks):
            times |= gemm_config.expected_times(
                product, device, block_k,
                output=output, crossing=crossing, dram_us=dram_us(case, device),
            )  # fmt: skip
        return ranked({config: each.plus("copies", copies_us) for config, each in times.items()})

    def bind(self, config: ConvConfig, case: Case, device: Device) -> ForwardPlan:
        read, packing, dtype = _Read.of(case), case.packing, case.dtype
        problem, conv = read.problem, read.problem.geometry
        x_block, is_fp32 = [config.block_m, config.block_k], dtype == torch.float32
        x_desc = im2col_of(
            Im2ColDescriptor, problem, Layout(read.shape, read.strides, dtype), x_block,
            round_f32_to_tf32=is_fp32,
        )  # fmt: skip
        row_stride, x_matrix = descriptors.matrix_row_stride(x_desc), None
        if row_stride is not None:
            x_rows = [conv.m_gemm, read.shape[-1]]
            x_matrix = tiled(x_rows, row_stride, x_block, **descriptors.rounding(dtype))
        co, groups, taps, ci = problem.out_channels, problem.groups, problem.taps, read.group_ci
        if packing is not None:
            _, *rows, ci = packing.weight_shape
            taps = math.prod(rows)
        launcher = Launcher(
            kernel=conv_fprop_kernel,
            grid=(product_of(case).programs(config, device.num_sms), 1, 1),
            scalars=(conv.m_gemm, co, ConvSizes.of(conv)),
            constants={
                "FILTER": conv.filter_size,
                "GROUPS": groups,
                "GROUP_CI": read.group_ci,
                "X_IS_MATRIX": row_stride is not None,
                "CONFIG": config,
                "FINISH": case.epilogue.finish,
            },
            options={"num_stages": config.num_stages, "num_warps": config.num_warps},
        )
        w_block, missing = [config.block_n, 1, config.block_k], read.missing
        inputs = partial(
            described_inputs,
            pixels=x_desc.with_base,
            matrix=x_matrix,
            columns=[tiled([co, taps, ci], ci, w_block, **descriptors.rounding(dtype))],
            dims=problem.dims if packing is None else None,
            fill=partial(_filled, missing, groups) if missing else None,
        )
        outputs = None
        # TMA does not stop at the end of a group: its tiles have to.
        if _stores_through_tma(case, config.block_n):
            outputs = _tiled_output(conv.m_gemm, co, config.store_block)
        return ForwardPlan.make(
            case,
            config,
            inputs,
            launcher,
            outputs=outputs,
            row_copies=None if packing is None else RowCopies(packing),
        )


def _filled(
    missing: int, groups: int, x_rows: torch.Tensor, w_rows: torch.Tensor
) -> list[torch.Tensor]:
    """Returns x and the weight with zeros behind the channels of each group.

    TMA wants rows of multiples of 16 bytes, and an im2col copy that begins at a channel between two
    such multiples is an illegal instruction (measured on an H200).
    """
    if groups == 1:
        return fill_channels((x_rows, missing), (w_rows, missing))
    # Groups are further pixels of a row, where pixels lie side by side.
    *pixels, channels = x_rows.shape
    if x_rows.stride(-2) != channels or x_rows.stride(-1) != 1:
        x_rows = x_rows.contiguous()
    rows = x_rows.unflatten(-1, (groups, -1)).flatten(-3, -2)
    rows, w_rows = fill_channels((rows, missing), (w_rows, missing))
    return [rows.view(*pixels, -1), w_rows]


class _Read(NamedTuple):
    """The convolution that the kernel computes: x with padded channels, or with packed pixels."""

    problem: ConvProblem  # its output is that of the problem asked for
    group_ci: int  # input channels of a group, as they lie in memory
    missing: int  # zeros among them
    shape: tuple[int, ...]  # of x, channels last
    strides: tuple[int, ...]
    block_k: int

    @classmethod
    def of(cls, case: Case) -> _Read:
        if (packing := case.packing) is not None:
            channels, block_k = packing.window_channels, packing.block_k
            return cls(packing.packed, channels, 0, packing.x_shape, packing.strides, block_k)
        problem, size = case.problem, case.dtype.itemsize
        group_ci = problem.in_channels // problem.groups
        missing = -group_ci % (ROW_BYTES // size)
        group_ci += missing
        shape = (problem.batch, *problem.input_size, problem.groups * group_ci)
        strides = tuple(case.strides_of_x[i] for i in TO_LAST[problem.dims])
        block_k = channel_block(group_ci, size, problem.groups)
        strides = descriptors.packed_strides(shape) if missing else strides
        return cls(problem, group_ci, missing, shape, strides, block_k)


def _stores_through_tma(case: Case, column_unit: int) -> bool:
    """Tells whether tiles of y are boxes of TMA: of rows of 16 bytes, inside of their group."""
    co, groups = case.problem.out_channels, case.problem.groups
    if co * case.output_dtype.itemsize % ROW_BYTES:
        return False
    return groups == 1 or co // groups % column_unit == 0


def _output_tile(case: Case, device: Device, through_tma: bool) -> OutputTile:
    """Returns the shared memory of a tile's epilogue, as compiled kernels have it."""
    epilogue, size = case.epilogue, case.output_dtype.itemsize
    if not through_tma:
        # Where pointers are more than one, accumulators take their order in fp32.
        more = epilogue.residual or epilogue.amax or epilogue.function is not None
        return OutputTile(element_bytes=4 if more else size, whole=True)
    residual_bytes = max(size, 2) if epilogue.residual else 0
    if epilogue.residual_per_image:
        # It comes through pointers, and meets the accumulators in the order of either, in fp32.
        residual_bytes = 4
    whole = device.capability >= (10, 0)
    return OutputTile(element_bytes=size, residual_bytes=residual_bytes, whole=whole)


class GemmDgrad(_Gemm):
    """dgrad by stride phases; zeros pad the output channels of a group to multiples of a block."""

    direction = "dgrad"

    def fit_refusals(self, config: ConvConfig, case: Case, device: Device) -> Refusals:
        # k iterations end where a group does.
        groups = case.problem.groups
        channels = group_channels(case.problem.out_channels, groups)
        if groups == 1 or channels % config.block_k == 0:
            return ()
        return refused(f"block_k is {config.block_k}: expected a divisor of {channels}, a group's")

    def candidates(self, case: Case, device: Device) -> Mapping[ConvConfig, Expected]:
        product, problem, size = product_of(case), _padded(case.problem), case.dtype.itemsize
        groups, co = product.groups, product.channels
        pointer_ns = gemm_config.pointer_store_ns(product.columns, size)
        # Measured: what goes through pointers takes less than its parts.
        whole = _is_packed(case) and groups == 1 and device.capability >= (10, 0)
        crossing = OutputTile(element_bytes=size, whole=whole, element_ns=pointer_ns)
        times = gemm_config.expected_times(
            product,
            device,
            # A 128-byte row, or a part of one that stays in its group.
            channel_block(co, size, groups) if groups > 1 else 128 // size,
            output=replace(crossing, element_ns=0.0) if _is_packed(case) else crossing,
            crossing=crossing,
            dram_us=dram_us(case, device),
        )
        pixels = problem.batch * math.prod(problem.output_size)
        copies_us = filling_us(pixels, co, size)
        if problem is not case.problem:
            elements = pixels * (case.problem.out_channels + problem.out_channels)
            copies_us = H200.launch_us + H200.dram_us(elements * size)
        elif not copies_us and problem.in_channels % (ROW_BYTES // size):
            copies_us = H200.launch_us  # of the filter
        return ranked({config: each.plus("copies", copies_us) for config, each in times.items()})

    def bind(self, config: ConvConfig, case: Case, device: Device) -> ForwardPlan:
        problem, dtype = _padded(case.problem), case.dtype
        groups, taps = problem.groups, problem.taps
        ci, co = problem.in_channels // groups, problem.out_channels // groups
        unit, is_nk = ROW_BYTES // dtype.itemsize, dtype == torch.float32
        missing_co, missing_ci = -problem.out_channels % unit, -ci % unit
        dims, dy_block = phases_of(problem), [config.block_m, config.block_k]
        dy_desc = dy_descriptor(case, problem.out_channels + missing_co, dy_block)
        w_rows, w_columns = problem.out_channels, ci + missing_ci
        w_block = [config.block_k, 1, config.block_n]
        if is_nk:
            w_rows, w_columns, w_block = ci, w_rows + missing_co, w_block[::-1]
        outputs = None
        if _is_packed(case) and (groups == 1 or ci % config.block_n == 0):
            pixels = problem.batch * math.prod(problem.input_size)
            outputs = _tiled_output(pixels, problem.in_channels, config.store_block)
        w_shape, options = [w_rows, taps, w_columns], descriptors.rounding(dtype)
        missing_group = co - case.problem.out_channels // groups
        missing = (missing_co, missing_co if is_nk else missing_ci)
        inputs = partial(
            described_inputs,
            pixels=dy_desc.with_base,
            matrix=None,
            columns=[tiled(w_shape, w_columns, w_block, **options)],
            dims=problem.dims,
            fill=partial(_filled_dy, missing, missing_group, groups),
        )
        launcher = Launcher(
            kernel=conv_dgrad_kernel,
            grid=(product_of(case).programs(config, device.num_sms), 1, 1),
            scalars=(DgradProblem.of(dims, problem.batch, ci, math.ceil(co / config.block_k)),),
            constants={
                "DIMS": problem.dims,
                "FILTER": three(problem.filter_size, 1),
                "PHASES": Phases.of(dims),
                "GROUPS": groups,
                "CHANNEL_UNIT": math.gcd(ci, 8),
                "W_IS_NK": is_nk,
                "CONFIG": config,
            },
            options={"num_stages": config.num_stages, "num_warps": config.num_warps},
        )
        return ForwardPlan.make(case, config, inputs, launcher, outputs=outputs)


def _tiled_output(
    rows: int, columns: int, block: list[int]
) -> Callable[[torch.Tensor], tuple[Any, ...]]:
    """Returns a function that describes an output [rows, columns] to TMA."""
    return lambda y: (TensorDescriptor(y, [rows, columns], [columns, 1], block),)


def dy_descriptor(
    case: Case, channels: int, block: list[int], descriptor: Any = Im2ColDescriptor
) -> Any:
    """Returns the im2col descriptor of dy [N, *output_size, channels] for stride phases.

    More channels than dy's are those of a copy.
    """
    problem, dims = case.problem, phases_of(case.problem)
    shape = (problem.batch, *problem.output_size, channels)
    strides = tuple(case.strides_of_dy[i] for i in TO_LAST[problem.dims])
    if channels != problem.out_channels:
        strides = descriptors.packed_strides(shape)
    return descriptor(
        Layout(shape, strides, case.dtype),
        shape,
        strides,
        block,
        pixel_box_lower_corner=[dim.lower for dim in dims],
        pixel_box_upper_corner=[
            dim.lower + dim.phase_size - out
            for dim, out in zip(dims, problem.output_size, strict=True)
        ],
        **({"round_f32_to_tf32": True} if case.dtype == torch.float32 else {}),
    )


def group_channels(co: int, groups: int) -> int:
    """Returns the output channels of a group that dgrad reads, zeros at its end among them."""
    return co if groups == 1 else math.ceil(co // groups / _GROUP_UNIT) * _GROUP_UNIT


def _padded(problem: ConvProblem) -> ConvProblem:
    """Returns the problem whose groups have as many output channels as a block needs."""
    co = problem.groups * group_channels(problem.out_channels, problem.groups)
    if problem.groups == 1 or co == problem.out_channels:
        return problem
    return replace(problem, out_channels=co)


def _is_packed(case: Case) -> bool:
    """Tells whether rows of a tile are neighbours in dx, of a multiple of 16 bytes."""
    problem = case.problem
    row_bytes = problem.in_channels * case.dtype.itemsize
    return set(problem.stride) == {1} and row_bytes % ROW_BYTES == 0


def _filled_dy(
    missing: tuple[int, int], missing_group: int, groups: int, dy_rows: torch.Tensor,
    w_rows: torch.Tensor,
) -> list[torch.Tensor]:  # fmt: skip
    """Returns dy and w as the kernel reads them, each group with so many output channels more.

    w is [Ci / groups, *taps, Co] for fp32, else [Co, *taps, Ci / groups]; ``missing`` zeros make
    rows of both multiples of 16 bytes.
    """
    if missing_group:
        dy_rows = pad(dy_rows.unflatten(-1, (groups, -1)), (0, missing_group)).flatten(-2)
        more = (0, 0) * (w_rows.dim() - 1) + (0, missing_group)
        w_rows = pad(w_rows.unflatten(0, (groups, -1)), more).flatten(0, 1)
    if dy_rows.dtype == torch.float32:
        w_rows = w_rows.transpose(0, -1)
    return fill_channels((dy_rows, missing[0]), (w_rows, missing[1]))


GEMM: Gemm = Gemm()
GEMM_DGRAD: GemmDgrad = GemmDgrad()
