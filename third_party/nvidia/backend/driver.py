"""Encoding of tensor maps through the CUDA driver, with errors that say what to do.

The C extension ``_driver`` opens libcuda when the first map is encoded, so this module imports and
everything else works where there is no GPU.  The library is ``libcuda.so.1`` as the dynamic linker
finds it, or the one in the folder that ``triton.knobs.nvidia.libcuda_path``
(``TRITON_LIBCUDA_PATH``) names, which is where Triton itself looks.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from triton_ext.backends.nvidia.backend.geometry import Im2ColGeometry
from triton_ext.errors import DriverError
from triton_ext.host.tensor_map import map_object_layout

__all__ = [
    "DriverStatus",
    "arguments_factory",
    "driver_status",
    "driver_version",
    "encode_im2col",
    "encode_tiled",
    "library_path",
    "open_library",
    "prepare_launch",
    "replace_address",
]

_EXTENSION_NAME = "triton_ext.backends.nvidia.backend._driver"
_LIBRARY_NAME = "libcuda.so.1"

_open_lock = threading.Lock()
_is_open = False


def _extension() -> ModuleType:
    """Returns the C extension.

    Raises:
        DriverError: The package was installed without it.
    """
    try:
        return importlib.import_module(_EXTENSION_NAME)
    except ImportError as error:
        raise DriverError(
            f"the C extension of triton-ext cannot be loaded ({error}); "
            "reinstall triton-ext where a C compiler and the Python headers are installed"
        ) from error


def library_path() -> str:
    """Returns what is opened as the CUDA driver: a path, or the name the linker looks up."""
    from triton import knobs

    folder = knobs.nvidia.libcuda_path
    if not folder:
        return _LIBRARY_NAME
    return os.path.join(folder, _LIBRARY_NAME)


def open_library(path: str | None = None) -> None:
    """Opens the CUDA driver now; without it the first encoding does.

    Args:
        path: Path of libcuda; :func:`library_path` by default.  A later call with another path
            switches to that library.

    Raises:
        DriverError: The library is missing or lacks a function.
    """
    global _is_open
    extension = _extension()
    try:
        extension.open_library(library_path() if path is None else path)
    except extension.Error as error:
        raise DriverError(str(error)) from error
    _is_open = True


def _open_once() -> None:
    if _is_open:
        return
    with _open_lock:
        if not _is_open:
            open_library()


def driver_version() -> int | None:
    """Returns the CUDA version of the driver (13010 for 13.1), or ``None`` without a driver."""
    try:
        _open_once()
    except DriverError:
        return None
    version: int | None = _extension().driver_version()
    return version


@dataclass(frozen=True, slots=True)
class DriverStatus:
    """State of the CUDA driver library; asking for it never raises.

    Attributes:
        library: Path or name of the library that is opened as the CUDA driver.
        version: CUDA version of the driver (13010 for 13.1), or ``None``.
        problem: Why maps cannot be encoded, or ``None``.
    """

    library: str
    version: int | None
    problem: str | None


def driver_status() -> DriverStatus:
    """Returns the state of the CUDA driver, for reports; needs no GPU and no driver."""
    library = library_path()
    try:
        _open_once()
    except DriverError as error:
        return DriverStatus(library, None, str(error))
    return DriverStatus(library, driver_version(), None)


def encode_im2col(
    geometry: Im2ColGeometry,
    address: int,
    *,
    swizzle: int,
    elem_type: int,
    box: tuple[int, int],
    fill_nan: bool = False,
) -> bytes:
    """Encodes an im2col tensor map.

    Args:
        geometry: The tensor and its pixel box, without violations (``validation.py``).
        address: Base address in bytes, 16-byte aligned.
        swizzle: ``CUtensorMapSwizzle``.
        elem_type: ``CUtensorMapDataType``, host numbering.
        box: (pixels, channels) of one TMA instruction.
        fill_nan: Whether elements outside the tensor read as NaN instead of 0.

    Returns:
        The 128 bytes of a ``CUtensorMap``.

    Raises:
        DriverError: The driver is missing, too old, has no device, or refused the arguments; the
            text names the function, the error and every argument.
    """
    extension = _extension()
    _open_once()
    pixels, channels = box
    try:
        encoded: bytes = extension.fill_tma_descriptor_im2col(
            address=address,
            data_type=elem_type,
            element_bytes=geometry.element_bytes,
            shape=geometry.shape,
            strides=geometry.strides,
            pixel_box_lower_corner=geometry.pixel_box_lower_corner,
            pixel_box_upper_corner=geometry.pixel_box_upper_corner,
            element_strides=geometry.element_strides,
            channels_per_pixel=channels,
            pixels_per_column=pixels,
            swizzle=swizzle,
            fill_nan=fill_nan,
        )
    except extension.Error as error:
        raise DriverError(str(error)) from error
    return encoded


def encode_tiled(
    address: int,
    *,
    shape: Sequence[int],
    strides: Sequence[int],
    element_bytes: int,
    swizzle: int,
    elem_type: int,
    box: Sequence[int],
    fill_nan: bool = False,
) -> bytes:
    """Encodes a tiled tensor map.

    Args:
        address: Base address in bytes, 16-byte aligned.
        shape: Sizes in elements, outermost first; rank 1 to 5.
        strides: Strides in elements, outermost first; the last is 1.
        element_bytes: Size of the unit that strides count.
        swizzle: ``CUtensorMapSwizzle``.
        elem_type: ``CUtensorMapDataType``, host numbering.
        box: Elements of one TMA instruction per dimension, outermost first.
        fill_nan: Whether elements outside the tensor read as NaN instead of 0.

    Returns:
        The 128 bytes of a ``CUtensorMap``.

    Raises:
        DriverError: The driver is missing, too old, has no device, or refused the arguments; the
            text names the function, the error and every argument.
    """
    extension = _extension()
    _open_once()
    try:
        encoded: bytes = extension.fill_tma_descriptor_tiled(
            address=address,
            swizzle=swizzle,
            element_bytes=element_bytes,
            data_type=elem_type,
            block_shape=box,
            shape=shape,
            strides=strides,
            fill_nan=fill_nan,
            element_strides=(1,) * len(shape),
        )
    except extension.Error as error:
        raise DriverError(str(error)) from error
    return encoded


def replace_address(encoded: bytes, address: int) -> bytes:
    """Returns an encoded map, of either mode, for a tensor of the same geometry elsewhere.

    Args:
        encoded: The 128 bytes of a ``CUtensorMap``.
        address: Base address in bytes, 16-byte aligned.

    Raises:
        DriverError: As for :func:`encode_tiled`.
    """
    extension = _extension()
    _open_once()
    try:
        replaced: bytes = extension.replace_tma_descriptor_address(encoded, address)
    except extension.Error as error:
        raise DriverError(str(error)) from error
    return replaced


def arguments_factory(encoded: bytes, sizes: tuple[int, ...]) -> Callable[[int], tuple[Any, ...]]:
    """Returns what makes the kernel arguments of the tensors of one geometry.

    Args:
        encoded: The 128 bytes of a map, of either mode.
        sizes: Shape and strides, which go to the kernel behind the map.

    Returns:
        A function from an address in bytes, 16-byte aligned, to ``(map, *sizes)`` of a tensor
        there, the map as Triton's launcher takes it.  It raises a RuntimeError with the driver's
        reason where the driver refuses the address.

    Raises:
        DriverError: The driver is missing or too old.
        UnsupportedError: Triton's objects are not laid out as we know them.
    """
    extension = _extension()
    _open_once()
    place = extension.map_place(*map_object_layout())
    return functools.partial(extension.new_tma_arguments, place, encoded, sizes)


def prepare_launch(**request: Any) -> Callable[[int, tuple[Any, ...]], bool]:
    """Returns what launches a kernel on a stream, with tensors, and tells whether it did.

    Args:
        **request: As ``_driver.prepare_launch`` describes them.

    Raises:
        DriverError: The driver is missing, too old, or no context is current.
        ValueError: The request makes no sense.
    """
    extension = _extension()
    _open_once()
    try:
        prepared = extension.prepare_launch(**request)
    except RuntimeError as error:
        raise DriverError(str(error)) from error
    return functools.partial(extension.launch_prepared, prepared)
