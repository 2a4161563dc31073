"""From a host descriptor to what Triton's launcher wants, and the checks in between.

A kernel knows from its metadata which of its descriptors it reads in im2col mode and of which rank
the tensor is; a launch with anything else is refused by name, because the hardware would read wrong
data without complaint.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from triton.tools.tensor_descriptor import TensorDescriptor
from triton_ext.errors import DriverError, LaunchError, TritonExtError
from triton_ext.host.chain import PROBE
from triton_ext.host.tensor_map import driver_element_type
from triton_ext.markers import METADATA_KEY

from . import driver
from .descriptors import Im2ColDescriptor, is_on_gpu, layout_of
from .driver_types import ElementType
from .map_cache import MAPS, BoundedCache, Family, KernelArguments
from .validation import address_violations, descriptor_error

__all__ = ["TILED_MAPS", "UNINSTALLED", "wrap_make_tensordesc_arg"]

# Why a launch is refused while the plugin is not installed.
UNINSTALLED: Final = (
    "an Im2ColDescriptor was passed while triton_ext is uninstalled; call triton_ext.install()"
)

_NO_MEMORY: Final = (
    "the tensor of an im2col descriptor has no memory (its address is 0): it was freed, or never "
    "allocated; pass a tensor with data on the GPU"
)

# Environment variable: "cached" takes the maps of tiled descriptors from our cache too.  It is not
# the default because a tensor at an address that was never seen then costs more than with Triton.
TILED_MAPS: Final = "TRITON_EXT_TILED_MAPS"


@dataclass(frozen=True, slots=True)
class KernelLayout:
    """One entry of a kernel's descriptor metadata: how the kernel reads that argument.

    Attributes:
        metadata: The entry itself; kept, so that its ``id`` stays its own.
        number: Stands for all of the below in keys of maps; equal for entries of equal content.
        swizzle: ``CUtensorMapSwizzle``.
        elem_size: Bytes per element.
        elem_type: ``CUtensorMapDataType`` before rounding to tf32, host numbering.
        box: Elements of one TMA instruction, outermost first.
        fp4_padded: Whether two 4-bit elements lie in a byte of the tensor.
        is_im2col: Whether it is read in im2col mode.
        wanted: Our own entry (``annotate_metadata``), or ``None``.
    """

    metadata: Any
    number: int
    swizzle: int
    elem_size: int
    elem_type: int
    box: tuple[int, ...]
    fp4_padded: bool
    is_im2col: bool
    wanted: Any

    @classmethod
    def of(cls, metadata: Any) -> KernelLayout:
        """Reads a metadata entry."""
        wanted = metadata.get(METADATA_KEY)
        values = (
            metadata["swizzle"],
            metadata["elem_size"],
            driver_element_type(metadata["elem_type"]),
            tuple(metadata["block_size"]),
            bool(metadata["fp4_padded"]),
            bool(metadata.get("is_im2col", wanted is not None)),
        )
        own = None if wanted is None else wanted["rank"]
        return cls(metadata, MAPS.numbers.of(("kernel", *values, own)), *values, wanted)


# By the id of a metadata entry: the launcher passes the same one at every launch of a kernel.
_LAYOUTS: Final[BoundedCache[KernelLayout]] = BoundedCache(4096)


def wrap_make_tensordesc_arg(
    previous: Callable[..., Any], is_active: Callable[[], bool]
) -> Callable[..., Any]:
    """Wraps the conversion of a host descriptor to kernel arguments (``tensordesc_arg``).

    Maps of im2col descriptors, ours and Gluon's, come from the process's cache.  Tiled descriptors
    are Triton's business unless ``TRITON_EXT_TILED_MAPS=cached`` was set when the plugin was
    installed; a map that Triton cannot encode is explained in both cases.

    Args:
        previous: The wrapped function.
        is_active: Tells whether the plugin is installed; a launcher keeps what it was built with.
    """
    tiled = _cached_tiled if os.environ.get(TILED_MAPS) == "cached" else None

    # Tiled descriptors that Triton encodes are recognized by one comparison.
    stock = TensorDescriptor if tiled is None else None

    def make(arg: Any, metadata: Any, others: Any = ()) -> Any:
        if type(arg) is stock and metadata is not None and METADATA_KEY not in metadata:
            # By far the most launches: nothing of ours in them.
            try:
                return previous(arg, metadata, others)
            except RuntimeError as error:
                raise _explained(arg, KernelLayout.of(metadata), error) from error
        if not is_active():
            if isinstance(arg, Im2ColDescriptor):
                raise LaunchError(UNINSTALLED)
            if arg is PROBE:
                return PROBE
            return previous(arg, metadata, others)
        if isinstance(arg, Im2ColDescriptor):
            # The first launch checked this geometry against the kernel.
            known = arg.families.get(id(metadata))
            if known is not None and known.metadata is metadata:
                base, numel = arg.base, arg.base_numel
                # Shape and strides cost five times as much; no smaller memory is read without.
                if numel is not None and base.numel() != numel:
                    raise _changed(arg)
                address = base.data_ptr()
                key = (address, arg.identity, known.number)
                return MAPS.get(key) or _args_of(known.family, address, key)
        if arg is PROBE:
            return PROBE
        if metadata is None:
            if isinstance(arg, Im2ColDescriptor):
                raise LaunchError(
                    "an Im2ColDescriptor was passed to a kernel that was compiled for a target "
                    "without TMA; im2col needs an NVIDIA GPU of sm_90 or newer"
                )
            return previous(arg, metadata, others)
        layout = _LAYOUTS.get(id(metadata))
        if layout is None or layout.metadata is not metadata:
            layout = _LAYOUTS.replace(id(metadata), KernelLayout.of(metadata))
        if isinstance(arg, Im2ColDescriptor):
            return _first_im2col_args(arg, layout)
        if layout.is_im2col and layout.wanted is None:
            return _gluon_im2col_args(arg, layout)
        if getattr(arg, "mode", "") == "im2col":
            # Before 3.8: those that the kernel reads look like those of @triton.jit kernels, and
            # others like tiled ones.
            return _gluon_im2col_args(arg, layout)
        if layout.wanted is not None:
            raise LaunchError(
                f"the kernel reads {layout.wanted['name']!r} with load_im2col, but a tiled "
                f"{type(arg).__name__} was passed; pass triton_ext.Im2ColDescriptor.for_conv(...)"
            )
        if tiled is not None:
            try:
                return tiled(arg, layout)
            except (TritonExtError, ValueError, TypeError, OverflowError):
                pass  # Triton decides; where it refuses too, the reason follows below.
        try:
            return previous(arg, metadata, others)
        except RuntimeError as error:
            raise _explained(arg, layout, error) from error

    return make


@dataclass(frozen=True, slots=True)
class Known:
    """Arguments of one kernel for one geometry, kept with the descriptors of that geometry.

    Attributes:
        metadata: The kernel's entry; kept, so that its ``id`` stays its own.
        number: The kernel's layout in keys of maps.
        family: Makes the kernel arguments of the tensor at an address.
    """

    metadata: Any
    number: int
    family: Family


def _first_im2col_args(arg: Im2ColDescriptor, layout: KernelLayout) -> Any:
    """Checks a descriptor of a geometry that a kernel has not been launched with."""
    if arg.base_layout is not None and layout_of(arg.base) != arg.base_layout:
        raise _changed(arg)
    key = (_address_on_gpu(arg.base), arg.identity, layout.number)
    family = MAPS.families.get(key[1:])
    if family is None:
        _check_kernel(arg, layout)
        sizes = (*arg.shape, *arg.kernel_strides)
        family = _new_family(arg, layout, key[1:], sizes)
    arg.families[id(layout.metadata)] = Known(layout.metadata, layout.number, family)
    return MAPS.get(key) or _args_of(family, key[0], key)


def _changed(arg: Im2ColDescriptor) -> LaunchError:
    """Returns the error for a tensor that has other memory than the one that was described."""
    (shape, strides), (new_shape, new_strides) = arg.base_layout, layout_of(arg.base)
    return LaunchError(
        f"the tensor of an im2col descriptor has shape {list(new_shape)} and strides "
        f"{list(new_strides)}; it had shape {list(shape)} and strides {list(strides)} when the "
        "descriptor was built (set_(), resize_() or .data change a tensor in place); build a new "
        "descriptor"
    )


def _address_on_gpu(base: Any) -> int:
    """Returns the address of a tensor that a kernel can read.

    Costs too much for every launch; it is asked once per descriptor and kernel.

    Raises:
        LaunchError: The tensor lies elsewhere, or has no memory.
    """
    if not is_on_gpu(base):
        # triton.reinterpret wraps a tensor, of which only that one knows about its memory.
        tensor = getattr(base, "base", base)
        is_pinned = getattr(tensor, "is_pinned", None)
        if is_pinned is None or not is_pinned():
            raise LaunchError(
                f"an im2col descriptor of a tensor on {base.device} was passed to a kernel on a "
                "GPU, which cannot read it; move the tensor with .cuda() and build the descriptor "
                "of that one"
            )
    address: int = base.data_ptr()
    if not address:
        raise LaunchError(_NO_MEMORY)
    return address


def _args_of(family: Family, address: int, key: tuple[Any, ...]) -> KernelArguments:
    """Returns the kernel arguments of a tensor at an address that is not in the cache."""
    if not address:
        raise LaunchError(_NO_MEMORY)
    try:
        arguments = family(address)
    except RuntimeError as error:
        problems = address_violations(address)
        if problems:
            raise descriptor_error(problems) from None
        raise DriverError(str(error)) from error
    # Making them again costs less than keeping what is used once: that would be memory out of the
    # CPU's cache each time.
    return MAPS.put(key, arguments) if MAPS.sightings.is_known(address) else arguments


def _check_kernel(arg: Im2ColDescriptor, layout: KernelLayout) -> None:
    wanted = layout.wanted
    if wanted is None:
        raise LaunchError(
            f"an Im2ColDescriptor of block shape {list(arg.block_shape)} was passed to a kernel "
            "that does not read it with load_im2col; use triton_ext.language.load_im2col instead "
            "of desc.load, or pass a TensorDescriptor"
        )
    if wanted["rank"] != len(arg.input_shape):
        raise LaunchError(
            f"the kernel reads {wanted['name']!r} with {wanted['rank']} coordinates, the "
            f"descriptor was built for a tensor of rank {len(arg.input_shape)}"
        )


def _new_family(
    arg: Im2ColDescriptor, layout: KernelLayout, key: tuple[Any, ...], sizes: tuple[int, ...]
) -> Family:
    encoded = arg.encode(
        swizzle=layout.swizzle,
        elem_size=layout.elem_size,
        elem_type=ElementType.TFLOAT32 if arg.round_f32_to_tf32 else layout.elem_type,
        box=(layout.box[0], layout.box[1]),
    )
    return MAPS.families.put(key, driver.arguments_factory(encoded, sizes))


def _gluon_im2col_args(arg: Any, layout: KernelLayout) -> Any:
    """Returns the kernel arguments of Gluon's own ``TensorDescriptorIm2Col``.

    Its fields can be changed by anybody, so all of them are in the key, and they are checked when a
    map is made, as those of an :class:`Im2ColDescriptor` are when it is built.

    Raises:
        DescriptorError: A rule of ``validation.py`` is broken; all violations are listed.
        LaunchError: The tensor is not where a kernel can read it.
        TypeError: A field is not of its type.
    """
    try:
        key = _gluon_key(arg, layout)
        found = MAPS.get(key)
    except TypeError:
        _checked(arg)  # Says which field it is.
        raise
    if found is not None:
        return found
    _address_on_gpu(arg.base)
    family = MAPS.families.get(key[1:])
    if family is None:
        family = _new_family(_checked(arg), layout, key[1:], (*arg.shape, *arg.strides))
    return _args_of(family, key[0], key)


def _gluon_key(arg: Any, layout: KernelLayout) -> tuple[Any, ...]:
    steps = arg.element_strides
    return (
        arg.base.data_ptr(),
        layout.number,
        arg.base.dtype,
        tuple(arg.shape),
        tuple(arg.strides),
        tuple(arg.block_shape),
        None if steps is None else tuple(steps),
        tuple(arg.pixel_box_lower_corner),
        tuple(arg.pixel_box_upper_corner),
        arg.padding,
        arg.round_f32_to_tf32,
    )


def _checked(arg: Any) -> Im2ColDescriptor:
    """Builds our descriptor from the fields of Gluon's, which checks them all."""
    return Im2ColDescriptor(
        arg.base,
        arg.shape,
        arg.strides,
        arg.block_shape,
        pixel_box_lower_corner=arg.pixel_box_lower_corner,
        pixel_box_upper_corner=arg.pixel_box_upper_corner,
        element_strides=arg.element_strides,
        padding=arg.padding,
        round_f32_to_tf32=arg.round_f32_to_tf32,
    )


def _cached_tiled(arg: Any, layout: KernelLayout) -> Any:
    """Returns the kernel arguments of a tiled descriptor; its fields can be changed by anybody."""
    shape, strides = tuple(arg.shape), tuple(arg.strides)
    key = (
        arg.base.data_ptr(),
        layout.number,
        shape,
        strides,
        arg.padding,
        _rounds_to_tf32(arg),
    )
    found = MAPS.get(key)
    if found is not None:
        return found
    family = MAPS.families.get(key[1:])
    if family is None:
        made = driver.arguments_factory(_encode_tiled(arg, layout), shape + strides)
        family = MAPS.families.put(key[1:], made)
    return _args_of(family, key[0], key)


def _rounds_to_tf32(arg: Any) -> Any:
    """Returns whether a host's descriptor rounds to tf32; those of 3.6 cannot."""
    return getattr(arg, "round_f32_to_tf32", False)


def _encode_tiled(arg: Any, layout: KernelLayout) -> bytes:
    shape = tuple(arg.shape)
    return driver.encode_tiled(
        arg.base.data_ptr(),
        # The driver counts 4-bit elements, the tensor has bytes of two.
        shape=(*shape[:-1], shape[-1] * 2) if layout.fp4_padded else shape,
        strides=tuple(arg.strides),
        element_bytes=layout.elem_size,
        swizzle=layout.swizzle,
        elem_type=ElementType.TFLOAT32 if _rounds_to_tf32(arg) else layout.elem_type,
        box=layout.box,
        fill_nan=arg.padding == "nan",
    )


def _explained(arg: Any, layout: KernelLayout, error: RuntimeError) -> RuntimeError:
    """Returns the error with every argument in user order, or the error where ours succeeds."""
    try:
        _encode_tiled(arg, layout)
    except DriverError as own:
        return own
    except (TritonExtError, ValueError, TypeError, OverflowError):
        return error
    return error
