"""From an ``Im2ColDescriptor`` to what Triton's launcher wants, and the checks in between.

A kernel knows from its metadata which of its descriptors it reads in im2col mode and of which rank
the tensor is; a launch with anything else is refused by name, because the hardware would read wrong
data without complaint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from triton_ext.errors import LaunchError
from triton_ext.host.tensor_map import driver_element_type, make_tensor_map
from triton_ext.ir import Module

from ..dialect.ttng import Im2ColLoad, descriptor_arguments, kernel_argument
from .descriptors import Im2ColDescriptor
from .driver_types import ElementType

__all__ = ["annotate_metadata", "wrap_make_tensordesc_arg"]

# Our key inside an entry of Triton's tensordesc metadata; Triton keeps what it does not know.
KEY: Final = "triton_ext"


def annotate_metadata(module: Module, entries: list[Any]) -> list[Any]:
    """Adds to a kernel's descriptor metadata what a launch is checked against.

    Args:
        module: The lowered module.
        entries: Triton's metadata of that module: one entry per descriptor argument, in order.

    Returns:
        The entries; those of im2col descriptors have ``{"name": .., "rank": ..}`` under our key.
    """
    ranks = {}
    for op in module.walk():
        load = Im2ColLoad.match(op)
        argument = kernel_argument(load.desc) if load is not None else None
        if load is not None and argument is not None:
            ranks[argument] = load.rank
    annotated = []
    for argument, entry in zip(descriptor_arguments(module), entries, strict=True):
        if argument in ranks:
            own = {"name": argument.name.removeprefix("%"), "rank": ranks[argument]}
            entry = {**entry, KEY: own}
        annotated.append(entry)
    return annotated


def wrap_make_tensordesc_arg(previous: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps what turns a host descriptor into kernel arguments (``host.seams.tensordesc_arg``)."""

    def make(arg: Any, metadata: Any, *rest: Any) -> Any:
        wanted = metadata.get(KEY) if metadata is not None else None
        if isinstance(arg, Im2ColDescriptor):
            return _im2col_args(arg, metadata, wanted)
        if wanted is not None:
            raise LaunchError(
                f"the kernel reads {wanted['name']!r} with load_im2col, but a tiled "
                f"{type(arg).__name__} was passed; pass triton_ext.Im2ColDescriptor.for_conv(...)"
            )
        return previous(arg, metadata, *rest)

    return make


def _im2col_args(arg: Im2ColDescriptor, metadata: Any, wanted: Any) -> list[Any]:
    if metadata is None:
        raise LaunchError(
            "an Im2ColDescriptor was passed to a kernel that was compiled for a target without "
            "TMA; im2col needs an NVIDIA GPU of sm_90 or newer"
        )
    if wanted is None:
        raise LaunchError(
            f"an Im2ColDescriptor of block shape {list(arg.block_shape)} was passed to a kernel "
            "that reads it with desc.load (tiled); use triton_ext.language.load_im2col, or pass a "
            "TensorDescriptor"
        )
    if wanted["rank"] != len(arg.input_shape):
        raise LaunchError(
            f"the kernel reads {wanted['name']!r} with {wanted['rank']} coordinates, the "
            f"descriptor was built for a tensor of rank {len(arg.input_shape)}"
        )
    element_type = driver_element_type(metadata["elem_type"])
    host_map = arg.encode(
        swizzle=metadata["swizzle"],
        elem_size=metadata["elem_size"],
        elem_type=ElementType.TFLOAT32 if arg.round_f32_to_tf32 else element_type,
        box=tuple(metadata["block_size"]),
        wrap=make_tensor_map,
    )
    return [host_map, *arg.shape, *arg.strides]
