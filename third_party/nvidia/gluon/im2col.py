"""im2col loads for Gluon kernels: ``async_load_im2col`` and ``im2col_start``.

The host has the copy from 3.8 on; what it lacks is added here: every argument is checked at the
user's line, offsets are unsigned 16-bit numbers of the range that the hardware has, and the pixels
of a block may be split over the CTAs of a cluster.  Before 3.8 the copy is a tiled one of markers
(``language.im2col``), as in ``@triton.jit`` kernels.

Coordinates and offsets are outermost first, (n, [d, [h,]] w, c) and ([d, [h,]] w).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from triton.experimental.gluon.language import _core as ttgl
from triton.language import core
from triton_ext.errors import UnsupportedError
from triton_ext.host import capabilities, require
from triton_ext.host.place import gluon_builtin

from ..dialect.cluster import CTA_RANK_ASM, Walk, advance, first_pixel, splits_pixels
from ..language.builtin import Scalar, Scalars, as_int32, as_list, describe
from ..language.im2col import (
    MAX_OFFSET,
    check_channel,
    check_target,
    position_markers,
    start_of,
    walk_scalars,
)

__all__ = ["async_load_im2col", "im2col_start"]

_NAME: Final = "async_load_im2col"


@gluon_builtin
def async_load_im2col(
    desc: Any,
    coord: Scalars,
    offsets: Scalars,
    barrier: ttgl.shared_memory_descriptor,
    result: ttgl.shared_memory_descriptor,
    pred: core.tensor | core.constexpr | bool = True,
    multicast: core.constexpr | bool = False,
    cache_policy: Any = None,
    walk: tuple[Scalars, Scalars, Scalars] | None = None,
    _semantic: Any = None,
) -> None:
    """Starts the copy of a [pixels, channels] tile of an N(D)(H)WC tensor into shared memory.

    Asynchronous: the barrier must expect ``desc.nbytes_per_cta`` bytes, all of them also where
    pixels or channels beyond the tensor are filled with zeros.

    Args:
        desc: Kernel argument for which a ``TensorDescriptorIm2Col`` is passed.
        coord: int32 scalars (n, [d, [h,]] w, c): the start pixel of the whole block, which must
            lie inside the descriptor's pixel box, and the first channel.  It lies at a multiple
            of 16 bytes, 8 channels of 16 bits: a GPU stops at any other one with an illegal
            instruction, the emulator with an error.
        offsets: Integer scalars ([d, [h,]] w), filter tap times dilation: 0 to 65535, 255 or 31
            for 1, 2 or 3 spatial dimensions.
        barrier: mbarrier that counts the bytes.
        result: Shared memory of the descriptor's block shape, dtype and layout.
        pred: Whether the copy is issued.
        multicast: Whether CTAs that hold the same data share one copy (3.7 and newer).
        cache_policy: As for the host's operation (3.9 and newer).
        walk: (output_size, stride, padding) as for :func:`im2col_start`.  Needed where the layout
            splits the pixels over the CTAs of a cluster: each CTA's start is derived from it.
            Checked in any case.

    Raises:
        TypeError, ValueError: At compile time, at the line of the call: an argument of the wrong
            type, a wrong count, a constant offset out of range, a constant first channel that is
            not at a multiple of 16 bytes, a split of pixels without ``walk``.
        UnsupportedError: The host or the target (sm_90 or newer is needed) cannot.
    """
    require("im2col-gluon")
    check_target(_NAME, _semantic.builder.options)
    if not isinstance(desc, _descriptor_class()):
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
    taps = [_checked_offset(x, i, rank - 2, _semantic) for i, x in enumerate(offsets)]
    check_channel(_NAME, coord[-1], desc.dtype)
    start = [as_int32(x, f"{_NAME} coordinate {i}", _semantic) for i, x in enumerate(coord)]
    parts = walk_scalars(_NAME, walk, rank - 2, _semantic)
    layout = desc.layout.cga_layout or []
    if splits_pixels(layout) and not parts:
        raise ValueError(
            f"{_NAME}: the layout splits the pixels of this block over the CTAs of a cluster "
            f"(cga_layout={layout}), and each CTA starts at another pixel: pass "
            "walk=(output_size, stride, padding), or split the channels only"
        )
    load = _Load(desc, start, taps, parts if splits_pixels(layout) else (), barrier, result, pred)
    if capabilities()["im2col-copies"].available:
        _copy_by_host(load, multicast, cache_policy, _semantic)
    else:
        _copy_by_markers(load, multicast, cache_policy, _semantic)


@dataclass(frozen=True, slots=True)
class _Load:
    """A load whose arguments are checked.

    Attributes:
        desc: The descriptor.
        start: int32 scalars (n, [d, [h,]] w, c).
        taps: Offsets, ints or integer scalars.
        walk: (output_size, stride, padding) where pixels are split over CTAs; otherwise empty.
        barrier: As it was passed.
        result: As it was passed.
        pred: As it was passed.
    """

    desc: Any
    start: list[Any]
    taps: list[Any]
    walk: tuple[tuple[Any, ...], ...]
    barrier: Any
    result: Any
    pred: Any


def _descriptor_class() -> Any:
    """Returns the class of im2col descriptors in kernels: the host's, or its substitute."""
    if capabilities()["im2col-copies"].available:
        from triton.experimental.gluon.language.nvidia.hopper.tma import tensor_descriptor_im2col
    else:
        from .substitutes import tensor_descriptor_im2col
    return tensor_descriptor_im2col


def _copy_by_host(load: _Load, multicast: bool, cache_policy: Any, semantic: Any) -> None:
    from triton.experimental.gluon.language.nvidia.hopper import tma

    options: dict[str, Any] = {}
    if core._unwrap_if_constexpr(cache_policy) is not None:
        if not _takes(tma.async_load_im2col, "cache_policy"):
            raise _no_cache_policy()
        options["cache_policy"] = cache_policy
    tma.async_load_im2col(
        load.desc,
        _start_of_cta(load, semantic) if load.walk else load.start,
        # The host makes a signed 16-bit constant; the hardware reads the same bits unsigned.
        [
            (tap - 0x10000 if tap > 0x7FFF else tap)
            if isinstance(tap, int)
            else semantic.cast(tap, core.int16)
            for tap in load.taps
        ],
        load.barrier,
        load.result,
        load.pred,
        multicast,
        **options,
        _semantic=semantic,
    )


def _copy_by_markers(load: _Load, multicast: bool, cache_policy: Any, semantic: Any) -> None:
    """Makes a tiled copy; what lowers it derives each CTA's start, and reads 16 bits of offsets."""
    from triton.experimental.gluon.language.nvidia.hopper import tma

    if core._unwrap_if_constexpr(cache_policy) is not None:
        raise _no_cache_policy()
    options: list[Any] = []
    if _takes(tma.async_copy_global_to_shared, "multicast"):
        options.append(multicast)
    elif multicast:
        raise UnsupportedError(f"{_NAME}: this triton has no multicast; install 3.7 or newer")
    *pixel, channel = load.start
    taps = [semantic.cast(semantic.to_tensor(tap), core.int32) for tap in load.taps]
    walk = [number for part in load.walk for number in part]
    semantic.builder.create_async_tma_copy_global_to_local(
        load.desc.map,
        [index.handle for index in position_markers([*pixel, *walk], channel, taps, semantic)],
        load.barrier.handle,
        load.result.handle,
        semantic.to_tensor(load.pred).handle,
        *options,
    )


def _takes(function: Any, parameter: str) -> bool:
    return parameter in inspect.signature(function).parameters


def _no_cache_policy() -> UnsupportedError:
    return UnsupportedError(f"{_NAME}: this triton has no cache_policy; install 3.9 or newer")


@gluon_builtin
def im2col_start(
    pixel: Scalar,
    output_size: Scalars,
    stride: Scalars,
    padding: Scalars | Sequence[tuple[int, int]],
    _semantic: Any = None,
) -> tuple[core.tensor, ...]:
    """Returns the start pixel (n, [d, [h,]] w) of an output pixel; see ``tle.im2col_start``."""
    start = start_of(pixel, output_size, stride, padding, _semantic)
    return ttgl.tuple(start)  # type: ignore[no-any-return]


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


def _checked_offset(offset: Any, position: int, spatial_rank: int, semantic: Any) -> Any:
    """Returns an offset as an int in range, or as an integer scalar."""
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
        return value
    tensor = semantic.to_tensor(offset)
    if tensor.type.is_block() or not tensor.dtype.is_int() or tensor.dtype in (core.int1,):
        raise TypeError(f"{_NAME}: offset {position} must be an integer scalar, got {tensor.type}")
    return tensor


def _start_of_cta(load: _Load, semantic: Any) -> list[Any]:
    arithmetic = _Traced(semantic)
    rank = core.inline_asm_elementwise(
        CTA_RANK_ASM, "=r", [], core.int32, True, 1, _semantic=semantic
    )
    *pixel, channel = load.start
    pixels = core._unwrap_if_constexpr(load.desc.block_shape[0])
    first = first_pixel(arithmetic, rank, load.desc.layout.cga_layout, pixels)
    *outer, w = advance(arithmetic, pixel, Walk(*load.walk), first)
    # The host adds the same number to w, as if pixels were columns.
    return [*outer, arithmetic.sub(w, first), channel]


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
