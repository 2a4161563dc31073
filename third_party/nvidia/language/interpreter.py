"""im2col loads under ``TRITON_INTERPRET=1``: the same kernel, without a GPU.

Triton's interpreter rebuilds each host descriptor as a plain one and drops what a subclass adds,
but hands on the ``shape`` object, and that carries the im2col geometry.  ``wrap_implicit_cvt``
picks it up and gives the kernel a descriptor handle that knows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.language import core
from triton_ext.backends.nvidia.backend.launch import UNINSTALLED
from triton_ext.errors import LaunchError
from triton_ext.host.chain import PROBE

__all__ = ["geometry_of", "load", "wrap_implicit_cvt"]

_NAN_OF_BF16 = 0x7FC0


def wrap_implicit_cvt(
    previous: Callable[[Any], Any], is_active: Callable[[], bool]
) -> Callable[[Any], Any]:
    """Wraps the interpreter's conversion of kernel arguments (``interpreter_cvt``).

    Args:
        previous: The wrapped function.
        is_active: Tells whether the plugin is installed.
    """
    from triton.runtime.interpreter import TensorDescHandle

    class Im2ColDescHandle(TensorDescHandle):  # type: ignore[misc]
        """A descriptor handle with a geometry; refuses every access but ``load_im2col``."""

        def materialize_pointers(self, offsets: Any) -> Any:
            raise LaunchError(
                "the kernel reads this descriptor with desc.load (tiled), but an Im2ColDescriptor "
                "was passed; use triton_ext.language.load_im2col, or pass a TensorDescriptor"
            )

    def convert(arg: Any) -> Any:
        if arg is PROBE:
            return PROBE
        value = previous(arg)
        geometry = getattr(getattr(arg, "shape", None), "im2col", None)
        if geometry is not None and isinstance(value, core.tensor_descriptor_base):
            if not is_active():
                raise LaunchError(UNINSTALLED)
            stock = value.handle
            handle = Im2ColDescHandle(
                stock.base, stock.shape, stock.strides, stock.block_shape, stock.padding
            )
            handle.im2col = geometry
            handle.conv = arg.shape.conv
            # From 3.9 on.
            handle.round_f32_to_tf32 = getattr(stock, "round_f32_to_tf32", False)
            value.handle = handle
        return value

    return convert


def load(desc: Any, pixel: list[Any], channel: Any, offsets: list[Any], walk: list[Any]) -> Any:
    """Loads a [pixels, channels] tile as the TMA unit would.

    Args:
        desc: The kernel's descriptor value.
        pixel: Start pixel (n, [d, [h,]] w), scalar tensors of the interpreter.
        channel: First channel.
        offsets: Filter offsets, outermost first.
        walk: Sizes, strides and paddings in front, in one list; empty where not given.  The
            hardware has no use for it with one CTA, so here it is only compared.

    Raises:
        LaunchError: A tiled descriptor was passed, or one of another rank.
    """
    import numpy as np
    from triton._C.libtriton import interpreter as memory
    from triton._C.libtriton import ir
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype
    from triton_ext.backends.nvidia.backend import im2col_model

    geometry = geometry_of("load_im2col", desc, len(pixel) + 1)

    def scalar(value: Any) -> int:
        return int(value.handle.data.item())

    if walk:
        _check_walk([scalar(x) for x in walk], geometry)
    elements, valid = im2col_model.element_offsets(
        geometry,
        start=[scalar(x) for x in pixel],
        offsets=[scalar(x) for x in offsets],
        channel=scalar(channel),
        conv=desc.handle.conv,
    )
    dtype = desc.dtype
    np_dtype = _get_np_dtype(dtype)
    base = np.uint64(desc.handle.base.data.item())
    addresses = base + (elements * (dtype.primitive_bitwidth // 8)).astype(np.uint64)
    fill: float = 0
    if desc.handle.padding == ir.PADDING_OPTION.PAD_NAN:
        # The interpreter holds bf16 as the integers of its bits.
        fill = np.nan if np.issubdtype(np_dtype, np.floating) else _NAN_OF_BF16
    data = memory.load(addresses, valid, np.full(elements.shape, fill, np_dtype), np_dtype)
    if getattr(desc.handle, "round_f32_to_tf32", False) and np_dtype == np.float32:
        # As the interpreter rounds what it loads through tiled descriptors.
        from triton.runtime.interpreter import _round_f32_to_tf32

        data = _round_f32_to_tf32(data)
    return core.tensor(TensorHandle(data, dtype), core.block_type(dtype, list(elements.shape)))


def geometry_of(name: str, desc: Any, rank: int) -> Any:
    """Returns the im2col geometry of a descriptor of a kernel.

    Args:
        name: The device function that asks.
        desc: The kernel's descriptor value.
        rank: Rank of the tensor, as the kernel has it.

    Raises:
        LaunchError: A tiled descriptor was passed, or one of another rank.
    """
    geometry = getattr(desc.handle, "im2col", None)
    if geometry is None:
        raise LaunchError(
            f"the kernel reads this descriptor with {name}, but no im2col geometry came with "
            "it: a tiled TensorDescriptor was passed (pass triton_ext.Im2ColDescriptor.for_conv), "
            "or TRITON_INTERPRET was set after triton_ext was imported (call triton_ext.install())"
        )
    if geometry.rank == rank:
        return geometry
    if name == "load_im2col":
        raise LaunchError(
            f"load_im2col was called with {rank} coordinates, the descriptor was built "
            f"for a tensor of rank {geometry.rank}"
        )
    raise LaunchError(
        f"{name} was called for {rank - 2} spatial dimensions, the descriptor was built for "
        f"{geometry.rank - 2}: pass spatial_rank={geometry.rank - 2}"
    )


def _check_walk(walk: list[int], geometry: Any) -> None:
    front = tuple(-first for first in geometry.box_first)
    expected = [*geometry.walk_size, *geometry.element_strides[1:-1], *front]
    if walk != expected:
        count = len(front)
        given, known = (
            tuple(tuple(values[i : i + count]) for i in range(0, 3 * count, count))
            for values in (walk, expected)
        )
        raise LaunchError(
            f"load_im2col was called with walk={given}, the descriptor walks {known} "
            "(output_size, stride, padding)"
        )
