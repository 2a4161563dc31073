"""im2col loads for Gluon kernels: ``async_load_im2col`` and ``im2col_start``.

The host (3.8 and newer) has the copy; what it lacks is added here: every argument is checked at the
user's line, offsets are unsigned 16-bit numbers of the range that the hardware has, and the pixels
of a block may be split over the CTAs of a cluster.

Coordinates and offsets are outermost first, (n, [d, [h,]] w, c) and ([d, [h,]] w).
"""

from __future__ import annotations

from typing import Any, Final

from triton.experimental.gluon.language import _core as ttgl
from triton.experimental.gluon.language._core import builtin
from triton.language import core
from triton_ext.errors import UnsupportedError
from triton_ext.host import require

from ..dialect.cluster import CTA_RANK_ASM, Walk, advance, first_pixel, splits_pixels
from ..language.builtin import as_int32, as_list, describe
from ..language.im2col import MAX_OFFSET, check_target, start_of, walk_scalars

__all__ = ["async_load_im2col", "im2col_start"]

_NAME: Final = "async_load_im2col"


@builtin
def async_load_im2col(  # type: ignore[no-untyped-def]
    desc,
    coord,
    offsets,
    barrier,
    result,
    pred=True,
    multicast=False,
    cache_policy=None,
    walk=None,
    _semantic=None,
):
    """Starts the copy of a [pixels, channels] tile of an N(D)(H)WC tensor into shared memory.

    Asynchronous: the barrier must expect ``desc.nbytes_per_cta`` bytes, all of them also where
    pixels or channels beyond the tensor are filled with zeros.

    Args:
        desc: Kernel argument for which a ``TensorDescriptorIm2Col`` is passed.
        coord: int32 scalars (n, [d, [h,]] w, c): the start pixel of the whole block, which must
            lie inside the descriptor's pixel box, and the first channel.
        offsets: Integer scalars ([d, [h,]] w), filter tap times dilation: 0 to 65535, 255 or 31
            for 1, 2 or 3 spatial dimensions.
        barrier: mbarrier that counts the bytes.
        result: Shared memory of the descriptor's block shape, dtype and layout.
        pred: Whether the copy is issued.
        multicast: Whether CTAs that hold the same data share one copy.
        cache_policy: As for the host's operation (3.9 and newer).
        walk: (output_size, stride, padding) as for :func:`im2col_start`.  Needed where the layout
            splits the pixels over the CTAs of a cluster: each CTA's start is derived from it.
            Checked in any case.

    Raises:
        TypeError, ValueError: At compile time, at the line of the call: an argument of the wrong
            type, a wrong count, a constant offset out of range, a split of pixels without ``walk``.
        UnsupportedError: The host (3.8 or newer is needed) or the target (sm_90 or newer) cannot.
    """
    require("im2col-gluon")
    check_target(_NAME, _semantic.builder.options)
    from triton.experimental.gluon.language.nvidia.hopper import tma

    if not isinstance(desc, tma.tensor_descriptor_im2col):
        raise TypeError(
            f"{_NAME}: expected an im2col descriptor, got {describe(desc)}; pass a "
            "triton_ext.gluon.nvidia.TensorDescriptorIm2Col for this kernel argument"
        )
    coord = as_list(coord, f"{_NAME} coordinates")
    offsets = as_list(offsets, f"{_NAME} offsets")
    rank = len(desc.shape)
    if len(coord) != rank or len(offsets) != rank - 2:
        raise ValueError(
            f"{_NAME}: the descriptor is of a tensor of rank {rank}: expected {rank} coordinates "
            f"(n, [d, [h,]] w, c) and {rank - 2} offsets, got {len(coord)} and {len(offsets)}"
        )
    _check_barrier(barrier)
    _check_result(desc, result)
    _check_pred(pred)
    multicast = core._unwrap_if_constexpr(multicast)
    if not isinstance(multicast, bool):
        raise TypeError(f"{_NAME}: multicast must be a constant bool, got {describe(multicast)}")
    taps = [_offset(x, i, rank - 2, _semantic) for i, x in enumerate(offsets)]
    start = [as_int32(x, f"{_NAME} coordinate {i}", _semantic) for i, x in enumerate(coord)]
    parts = walk_scalars(_NAME, walk, rank - 2, _semantic)
    layout = desc.layout.cga_layout or []
    if splits_pixels(layout):
        start[:-1] = _start_of_cta(start[:-1], parts, layout, desc, _semantic)
    options: dict[str, Any] = {}
    if core._unwrap_if_constexpr(cache_policy) is not None:
        if not _takes_cache_policy(tma.async_load_im2col):
            raise UnsupportedError(
                f"{_NAME}: this triton has no cache_policy; install 3.9 or newer"
            )
        options["cache_policy"] = cache_policy
    tma.async_load_im2col(
        desc, start, taps, barrier, result, pred, multicast, **options, _semantic=_semantic
    )


@builtin
def im2col_start(pixel, output_size, stride, padding, _semantic=None):  # type: ignore[no-untyped-def]
    """Returns the start pixel (n, [d, [h,]] w) of an output pixel; see ``tle.im2col_start``."""
    return ttgl.tuple(start_of(pixel, output_size, stride, padding, _semantic))


def _check_barrier(barrier: Any) -> None:
    if not isinstance(barrier, ttgl.shared_memory_descriptor):
        raise TypeError(
            f"{_NAME}: barrier must be an mbarrier in shared memory, got {describe(barrier)}"
        )
    if len(barrier.shape) != 1 or barrier.dtype not in (core.int64, core.uint64):
        raise TypeError(
            f"{_NAME}: barrier must be an mbarrier, int64[1] in shared memory, got "
            f"{barrier.dtype}{list(barrier.shape)}"
        )


def _check_pred(pred: Any) -> None:
    pred = core._unwrap_if_constexpr(pred)
    if isinstance(pred, bool):
        return
    if isinstance(pred, core.tensor) and not pred.type.is_block() and pred.dtype == core.int1:
        return
    raise TypeError(
        f"{_NAME}: pred must be a bool or an int1 scalar, got {describe(pred)}; compare integers "
        "with 0"
    )


def _check_result(desc: Any, result: Any) -> None:
    if not isinstance(result, ttgl.shared_memory_descriptor):
        raise TypeError(f"{_NAME}: expected shared memory as result, got {describe(result)}")
    wanted = (list(desc.block_shape), desc.dtype, desc.layout)
    if (list(result.shape), result.dtype, result.layout) != wanted:
        raise ValueError(
            f"{_NAME}: the descriptor's block is {wanted[1]}{wanted[0]} in {wanted[2]}, the "
            f"result is {result.dtype}{list(result.shape)} in {result.layout}"
        )


def _offset(offset: Any, position: int, spatial_rank: int, semantic: Any) -> Any:
    """Returns an offset as the host takes it: an int, or a tensor of 16 bits."""
    limit = MAX_OFFSET[spatial_rank]
    value = core._unwrap_if_constexpr(offset)
    if isinstance(value, bool) or not isinstance(value, (int, core.tensor)):
        raise TypeError(f"{_NAME}: offset {position} must be an integer, got {describe(value)}")
    if isinstance(value, int):
        if not 0 <= value <= limit:
            raise ValueError(
                f"{_NAME}: offset {position} is {value}, expected 0 to {limit}: filter tap times "
                "dilation; the padding belongs into the start pixel"
            )
        # The host makes a signed 16-bit constant; the hardware reads the same bits unsigned.
        return value - 0x10000 if value > 0x7FFF else value
    tensor = semantic.to_tensor(offset)
    if tensor.type.is_block() or not tensor.dtype.is_int() or tensor.dtype in (core.int1,):
        raise TypeError(f"{_NAME}: offset {position} must be an integer scalar, got {tensor.type}")
    return semantic.cast(tensor, core.int16)


def _takes_cache_policy(function: Any) -> bool:
    import inspect

    return "cache_policy" in inspect.signature(function).parameters


def _start_of_cta(
    start: list[Any], walk: tuple[tuple[Any, ...], ...], layout: Any, desc: Any, semantic: Any
) -> tuple[Any, ...]:
    if not walk:
        raise ValueError(
            f"{_NAME}: the layout splits the pixels of this block over the CTAs of a cluster "
            f"(cga_layout={layout}), and each CTA starts at another pixel: pass "
            "walk=(output_size, stride, padding), or split the channels only"
        )
    numbers = Walk(*walk)
    arithmetic = _Traced(semantic)
    rank = core.inline_asm_elementwise(
        CTA_RANK_ASM, "=r", [], core.int32, True, 1, _semantic=semantic
    )
    first = first_pixel(arithmetic, rank, layout, core._unwrap_if_constexpr(desc.block_shape[0]))
    moved = advance(arithmetic, start, numbers, first)
    # The host adds the same number to w, as if pixels were columns.
    return (*moved[:-1], arithmetic.sub(moved[-1], first))


class _Traced:
    """Arithmetic on scalars of the kernel that is being traced."""

    def __init__(self, semantic: Any) -> None:
        self._semantic = semantic

    def constant(self, value: int) -> Any:
        return self._semantic.cast(self._semantic.to_tensor(value), core.int32)

    def add(self, a: Any, b: Any) -> Any:
        return self._semantic.add(a, b, False)

    def sub(self, a: Any, b: Any) -> Any:
        return self._semantic.sub(a, b, False)

    def mul(self, a: Any, b: Any) -> Any:
        return self._semantic.mul(a, b, False)

    def div(self, a: Any, b: Any) -> Any:
        return self._semantic.floordiv(a, b)

    def rem(self, a: Any, b: Any) -> Any:
        return self._semantic.mod(a, b)
