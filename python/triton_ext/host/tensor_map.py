"""Tensor maps in the form that Triton's launcher accepts.

The launcher copies the payload of its own ``PyCUtensorMap`` objects (exact type test) into the
kernel's parameters.  The type can be made from Python but not filled, so we write the payload: the
object is 256 bytes, allocated on a 128-byte boundary, with the map in its second half.  Checked on
3.6.0 to 3.9.0; a host whose object differs is refused.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from triton_ext.errors import UnsupportedError

__all__ = ["driver_element_type", "make_tensor_map"]

MAP_BYTES: Final = 128
OBJECT_BYTES: Final = 256


def make_tensor_map(payload: bytes) -> Any:
    """Returns a ``PyCUtensorMap`` of the host that holds ``payload``.

    Args:
        payload: A CUtensorMap, 128 bytes, as the CUDA driver encoded it.

    Raises:
        UnsupportedError: The host's object is not laid out as we know it.
    """
    import triton
    from triton.backends.nvidia import driver

    if driver.PyCUtensorMap is None:
        triton.runtime.driver.active.utils  # noqa: B018 - loading the utilities defines the type
    kind = driver.PyCUtensorMap
    host_map = kind()
    if (
        len(payload) != MAP_BYTES
        or kind.__basicsize__ != OBJECT_BYTES
        or id(host_map) % MAP_BYTES != 0
    ):
        raise UnsupportedError(
            f"triton {triton.__version__} lays out its tensor map objects in a way that triton-ext "
            f"does not know ({kind.__basicsize__} bytes at {id(host_map):#x}, expected "
            f"{OBJECT_BYTES} bytes on a {MAP_BYTES}-byte boundary)"
        )
    ctypes.memmove(id(host_map) + OBJECT_BYTES - MAP_BYTES, payload, MAP_BYTES)
    return host_map


def driver_element_type(device_type: int) -> int:
    """Returns the CUDA driver's CUtensorMapDataType for the number in a kernel's metadata."""
    from triton.backends.nvidia import driver

    return int(driver.TMA_DTYPE_DEVICE_TO_HOST[device_type])
