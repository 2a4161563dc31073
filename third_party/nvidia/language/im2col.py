"""im2col loads for ``@triton.jit``: ``load_im2col`` and ``im2col_start``.

A convolution is a GEMM whose left operand is never written down: row m is output pixel m, the
columns are (filter tap, input channel).  The TMA unit's im2col mode reads a [pixels, channels] tile
of that operand straight from the N(D)(H)WC tensor (PTX ISA, section "Tensor im2col mode").

Symbols: N D H W C as in the input tensor; a *start pixel* (n, [d, [h,]] w) is where filter tap 0 of
the tile's first output pixel reads, so it may be negative by up to the padding; *offsets* are the
filter tap times the dilation, per spatial dimension.

The compiled form is a stock ``tt.descriptor_load`` whose two indices are markers
(:mod:`triton_ext.markers`); ``lower-im2col`` turns it into the im2col copy after Triton's own
passes have pipelined it.  The interpreted form walks the pixels in software.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from triton.language import core
from triton_ext.errors import UnsupportedError
from triton_ext.host import require
from triton_ext.host.patch_points import plugin_is_reached
from triton_ext.markers import CHANNEL, LIBRARY, PIXEL, channel_problem

from ..backend.geometry import PackedWalk
from .builtin import (
    Scalar,
    Scalars,
    as_int32,
    as_list,
    builtin,
    describe,
    interpreting,
    sm_of,
)

__all__ = ["im2col_start", "load_im2col"]

#: (output_size, stride, padding), each outermost first.
Walk: TypeAlias = "tuple[Scalars, Scalars, Scalars]"

# Largest filter offset by the number of spatial dimensions (PTX ISA, im2col offsets).
MAX_OFFSET: Final = {1: 65535, 2: 255, 3: 31}
# Largest step of the walk (CUDA driver API, element strides).
MAX_STRIDE: Final = 8


@builtin
def load_im2col(
    desc: core.tensor_descriptor_base,
    coord: Scalars,
    offsets: Scalars,
    walk: Walk | core.tensor_descriptor_base | None = None,
    _semantic: Any = None,
) -> core.tensor:
    """Loads a [pixels, channels] tile of an N(D)(H)WC tensor through hardware im2col.

    The tile holds the pixels that a walk visits from the start pixel on, inside the descriptor's
    bounding box, in steps of the descriptor's element strides, w fastest; then each is moved by
    ``offsets``.  Whatever lies outside of the tensor reads as zero: the padding of a convolution,
    pixels past the last image, channels past the last.

    Args:
        desc: Kernel argument for which an ``Im2ColDescriptor`` is passed; its block shape is
            [pixels, channels].
        coord: int32 scalars (n, [d, [h,]] w, c): the start pixel, outermost first, then the first
            channel.  3, 4 or 5 of them: the rank of the tensor.  The first channel lies at a
            multiple of 16 bytes, 8 channels of 16 bits: a GPU stops at any other one with an
            illegal instruction, Triton's interpreter and the emulator with an error.
        offsets: int32 scalars, one per spatial dimension, outermost first: filter tap times
            dilation.  0 to 65535, 255 or 31 for 1, 2 or 3 spatial dimensions; never negative.
        walk: ``desc``, or (output_size, stride, padding) as for :func:`im2col_start`.  Needed where
            num_ctas > 1 splits the pixels of the tile over CTAs: each CTA's start is derived from
            it.

    Returns:
        A tensor of the descriptor's dtype, shape [pixels, channels].

    Raises:
        TypeError, ValueError: At compile time, at the line of the call: arguments that are not
            scalars of at most 32 bits, a wrong count, a constant offset out of range, a constant
            first channel that is not at a multiple of 16 bytes.
        UnsupportedError: The target (sm_90 or newer is needed) or the host cannot.
    """
    if not isinstance(desc, core.tensor_descriptor_base):
        raise TypeError(
            f"load_im2col: expected a tensor descriptor, got {describe(desc)}; "
            "pass an Im2ColDescriptor for this kernel argument"
        )
    coord = as_list(coord, "load_im2col coordinates")
    offsets = as_list(offsets, "load_im2col offsets")
    _check_counts(desc, coord, offsets)
    for position, offset in enumerate(offsets):
        _check_offset(offset, position, len(offsets))
    pixel = [as_int32(x, "load_im2col coordinate", _semantic) for x in coord[:-1]]
    check_channel("load_im2col", coord[-1], desc.dtype)
    channel = as_int32(coord[-1], "load_im2col channel", _semantic)
    taps = [as_int32(x, "load_im2col offset", _semantic) for x in offsets]
    parts = walk_scalars("load_im2col", walk, len(offsets), _semantic)
    steps = [x for part in parts for x in part]
    check_plugin("load_im2col")
    if interpreting(_semantic):
        from .interpreter import load

        return load(desc, pixel, channel, taps, steps)
    check_target("load_im2col", _semantic.builder.options)
    _check_cluster(_semantic.builder.options)
    if getattr(_semantic.builder.options, "num_ctas", 1) > 1:
        pixel += steps
    return desc.load(position_markers(pixel, channel, taps, _semantic), _semantic=_semantic)


@builtin
def im2col_start(
    pixel: Scalar,
    output_size: Scalars | core.tensor_descriptor_base,
    stride: Scalars | None = None,
    padding: Scalars | Sequence[tuple[int, int]] | None = None,
    spatial_rank: Literal[1, 2, 3] | core.constexpr = 2,
    _semantic: Any = None,
) -> tuple[core.tensor, ...]:
    """Returns the start pixel of an output pixel: where filter tap 0 reads for it.

    Call it once per tile with the tile's first row; the K loop changes channel and offsets only.
    ``im2col_start(row, x_desc)`` takes size, stride and padding from the descriptor.

    Args:
        pixel: int32 scalar: index of the output pixel, counted over [N, (P_d, (P_h,)) P_w].
        output_size: Output size per spatial dimension, outermost first; or the kernel argument for
            which an ``Im2ColDescriptor`` is passed.
        stride: Stride per spatial dimension, 1 to 8; left out with a descriptor.
        padding: Padding per spatial dimension: an integer, the pixels in front, or a (low, high)
            pair, of which low counts; left out with a descriptor.
        spatial_rank: With a descriptor: how many spatial dimensions its tensor has, a constant.  A
            kernel cannot ask the descriptor, which looks like [pixels, channels] to Triton.

    Returns:
        A tuple (n, [d, [h,]] w) of int32 scalars.

    Raises:
        TypeError, ValueError: At compile time: sequences of different length, or not 1 to 3 long;
            a constant size below 1 or stride outside of 1 to 8; a descriptor together with a
            stride or a padding.
        LaunchError: In Triton's interpreter: the descriptor has no im2col geometry, or one of
            another rank.
    """
    walk: tuple[Any, Any, Any] = (output_size, stride, padding)
    if isinstance(output_size, core.tensor_descriptor_base):
        if any(core._unwrap_if_constexpr(each) is not None for each in (stride, padding)):
            raise TypeError(
                "im2col_start: a descriptor and a stride or padding were given; the descriptor "
                "has both: im2col_start(row, x_desc)"
            )
        rank = core._unwrap_if_constexpr(spatial_rank)
        if rank not in (1, 2, 3):
            raise ValueError(f"im2col_start: spatial_rank must be 1, 2 or 3, got {rank!r}")
        walk = descriptor_walk("im2col_start", output_size, rank, _semantic)
    # To a kernel it is what Triton makes of a tuple.
    return core.tuple(start_of(pixel, *walk, _semantic))  # type: ignore[no-any-return]


def descriptor_walk(
    name: str, desc: Any, spatial_rank: int, semantic: Any
) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns (output_size, stride, padding) of an im2col descriptor of a ``@triton.jit`` kernel.

    The launcher passes them in place of the descriptor's strides (``geometry.PackedWalk``); the
    interpreter has the geometry itself.
    """
    if interpreting(semantic):
        from .interpreter import geometry_of

        geometry = geometry_of(name, desc, spatial_rank + 2)
        return (
            list(geometry.walk_size),
            list(geometry.element_strides[1:-1]),
            [-first for first in geometry.box_first],
        )
    high, low = desc.strides[0], desc.strides[1]

    def bits(number: Any, first: int, count: int) -> Any:
        shifted = semantic.lshr(number, semantic.to_tensor(first)) if first else number
        mask = semantic.to_tensor((1 << count) - 1)
        return semantic.cast(semantic.and_(shifted, mask), core.int32)

    size_bits, step_bits = PackedWalk.SIZE_BITS, PackedWalk.STEP_BITS
    one = semantic.to_tensor(1)
    sizes = [bits(high, 0, size_bits), bits(low, size_bits, size_bits), bits(low, 0, size_bits)]
    steps = [
        semantic.add(bits(high, PackedWalk.STEP + step_bits * index, step_bits), one, True)
        for index in range(3)
    ]
    start_bits = PackedWalk.START_BITS // spatial_rank
    bias = semantic.to_tensor(1 << start_bits - 1)
    fronts = []
    for index in range(spatial_rank):
        first = PackedWalk.START + start_bits * (spatial_rank - 1 - index)
        fronts.append(semantic.sub(bias, bits(high, first, start_bits), True))
    return sizes[3 - spatial_rank :], steps[3 - spatial_rank :], fronts


def start_of(
    pixel: Any, output_size: Any, stride: Any, padding: Any, semantic: Any
) -> tuple[Any, ...]:
    """Returns the result of :func:`im2col_start` for the kind of kernel that is being traced."""
    size, step, front = check_walk("im2col_start", (output_size, stride, padding))

    def scalar(value: Any) -> Any:
        return as_int32(value, "im2col_start", semantic)

    rest = scalar(pixel)
    start: list[Any] = []
    for extent, scale, pad in zip(reversed(size), reversed(step), reversed(front), strict=True):
        position = semantic.mod(rest, scalar(extent))
        rest = semantic.floordiv(rest, scalar(extent))
        scaled = semantic.mul(position, scalar(scale), True)
        start.insert(0, semantic.sub(scaled, scalar(pad), True))
    return (rest, *start)


def walk_scalars(
    name: str, walk: Any, spatial_rank: int, semantic: Any
) -> tuple[tuple[Any, ...], ...]:
    """Returns (output_size, stride, padding) as int32 scalars; nothing where no walk was given.

    Raises:
        TypeError, ValueError: It is not a walk of ``spatial_rank`` dimensions.
    """
    if core._unwrap_if_constexpr(walk) is None:
        return ()
    if isinstance(walk, core.tensor_descriptor_base) and not hasattr(walk, "layout"):
        walk = descriptor_walk(name, walk, spatial_rank, semantic)
    parts = check_walk(name, walk, spatial_rank)
    return tuple(tuple(as_int32(x, f"{name} walk", semantic) for x in part) for part in parts)


def check_walk(
    name: str, walk: Any, spatial_rank: int | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns (output_size, stride, padding) as lists of one length.

    Raises:
        TypeError: One of them is not a list.
        ValueError: There are not three, their lengths differ or are wrong, or a constant is out of
            range.
    """
    parts = as_list(walk, f"{name} walk")
    if len(parts) != 3:
        raise ValueError(
            f"{name}: expected walk=(output_size, stride, padding), got {len(parts)} entries"
        )
    names = ("output_size", "stride", "padding")
    size, step, front = (as_list(x, f"{name} {y}") for x, y in zip(parts, names, strict=True))
    front = [_low_side(name, item) for item in front]
    if spatial_rank is not None and len(size) != spatial_rank:
        raise ValueError(
            f"{name}: expected a walk of {spatial_rank} spatial dimensions, got {len(size)}"
        )
    if not 1 <= len(size) <= 3:
        raise ValueError(f"{name}: expected 1 to 3 spatial dimensions, got {len(size)}")
    if len(step) != len(size) or len(front) != len(size):
        raise ValueError(
            f"{name}: output_size, stride and padding must have one length, "
            f"got {len(size)}, {len(step)} and {len(front)}"
        )
    for extent in (*size, *step):
        value = core._unwrap_if_constexpr(extent)
        if isinstance(value, int) and value < 1:
            raise ValueError(f"{name}: sizes and strides must be at least 1, got {value}")
    for stride in step:
        value = core._unwrap_if_constexpr(stride)
        if isinstance(value, int) and value > MAX_STRIDE:
            raise ValueError(f"{name}: stride {value}: TMA supports 1..{MAX_STRIDE}")
    return size, step, front


def _low_side(name: str, padding: Any) -> Any:
    """Returns the padding in front of a dimension, also of a (low, high) pair."""
    padding = core._unwrap_if_constexpr(padding)
    if not isinstance(padding, (list, tuple, core.tuple)):
        return padding
    if len(padding) != 2:
        raise ValueError(
            f"{name}: padding must be an integer or a (low, high) pair per dimension, got "
            f"{len(padding)} entries"
        )
    return padding[0]


def _check_counts(desc: Any, coord: list[Any], offsets: list[Any]) -> None:
    if len(desc.block_shape) != 2:
        raise ValueError(
            f"load_im2col: expected a descriptor with block shape [pixels, channels], "
            f"got {[core._unwrap_if_constexpr(x) for x in desc.block_shape]}"
        )
    if not 3 <= len(coord) <= 5:
        raise ValueError(
            f"load_im2col: expected 3 to 5 coordinates (n, [d, [h,]] w, c), got {len(coord)}"
        )
    if len(offsets) != len(coord) - 2:
        raise ValueError(
            f"load_im2col: expected {len(coord) - 2} offsets for {len(coord)} coordinates "
            f"(one per spatial dimension), got {len(offsets)}"
        )


def _check_offset(offset: Any, position: int, spatial_rank: int) -> None:
    value = core._unwrap_if_constexpr(offset)
    limit = MAX_OFFSET[spatial_rank]
    if isinstance(value, int) and not 0 <= value <= limit:
        raise ValueError(
            f"load_im2col: offset {position} is {value}, expected 0 to {limit}: "
            "filter tap times dilation; the padding belongs into the start pixel"
        )


def check_channel(name: str, channel: Any, dtype: Any) -> None:
    """Refuses a constant first channel at which the TMA unit stops."""
    value = core._unwrap_if_constexpr(channel)
    problem = ""
    if isinstance(value, int):
        problem = channel_problem(value, dtype.primitive_bitwidth // 8)
    if problem:
        raise ValueError(f"{name}: {problem}")


def check_plugin(name: str) -> None:
    """Refuses a device function that needs our passes while the plugin is not installed.

    Args:
        name: The function that was called.

    Raises:
        UnsupportedError: The plugin is not in Triton's pipeline.
    """
    if not plugin_is_reached():
        raise UnsupportedError(
            f"{name}: triton_ext is uninstalled, or another stages hook took its place; call "
            "triton_ext.install()"
        )


def check_target(name: str, options: Any) -> None:
    """Refuses a target without TMA im2col, in which LLVM would end the process, and a host."""
    if getattr(options, "backend_name", "") != "cuda":
        raise UnsupportedError(
            f"{name}: TMA im2col needs an NVIDIA GPU of sm_90 or newer, the target is "
            f"{getattr(options, 'arch', '')}"
        )
    digits = sm_of(options)
    if digits and int(digits) < 90:
        raise UnsupportedError(
            f"{name}: TMA im2col needs sm_90 or newer, the target is sm_{digits}"
        )
    require("im2col")


def _check_cluster(options: Any) -> None:
    # Triton itself takes any number and then dies in an assertion of its layout code.
    num_ctas = getattr(options, "num_ctas", 1)
    if num_ctas < 1 or num_ctas & (num_ctas - 1):
        raise ValueError(f"load_im2col: num_ctas must be a power of two, got {num_ctas}")


def position_markers(pixel: list[Any], channel: Any, taps: list[Any], semantic: Any) -> list[Any]:
    """Returns the two indices with which a tiled copy becomes one of an im2col position.

    Args:
        pixel: int32 scalars (n, [d, [h,]] w); the walk may stand behind them (``markers.PIXEL``).
        channel: int32 scalar.
        taps: int32 scalars ([d, [h,]] w).
        semantic: ``_semantic`` of the kernel, ``@triton.jit`` or Gluon, that is being traced.
    """
    return [_marker(PIXEL, pixel, semantic), _marker(CHANNEL, [channel, *taps], semantic)]


def _marker(symbol: str, operands: list[Any], semantic: Any) -> Any:
    signature = (core.int32,) * len(operands)
    return core.extern_elementwise(
        LIBRARY,
        "",
        operands,
        {signature: (symbol, core.int32)},
        is_pure=True,
        _semantic=semantic,
    )
