"""Tensor maps in the form that Triton's launcher accepts.

The launcher copies the payload of its own ``PyCUtensorMap`` objects (exact type test) into the
kernel's parameters.  The type can be made from Python but not filled, so we write the payload: the
object is 256 bytes, allocated on a 128-byte boundary, with the map in its second half.  Checked on
3.6.0 to 3.9.0; a host whose object differs is refused.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from triton_ext.errors import UnsupportedError

__all__ = ["driver_element_type", "map_object_layout"]

MAP_BYTES: Final = 128
OBJECT_BYTES: Final = 256


@lru_cache(maxsize=1)
def map_object_layout() -> tuple[Any, int]:
    """Returns the launcher's type of tensor maps, and where in its objects the map lies.

    Raises:
        UnsupportedError: The host's objects are not laid out as we know them.
    """
    import triton
    from triton.backends.nvidia import driver

    if driver.PyCUtensorMap is None:
        triton.runtime.driver.active.utils  # noqa: B018 - loading the utilities defines the type
    kind = driver.PyCUtensorMap
    # The type allocates every object alike, so one tells for all.
    sample = kind()
    if kind.__basicsize__ != OBJECT_BYTES or id(sample) % MAP_BYTES != 0:
        raise UnsupportedError(
            f"triton {triton.__version__} lays out its tensor map objects in a way that triton-ext "
            f"does not know ({kind.__basicsize__} bytes at {id(sample):#x}, expected "
            f"{OBJECT_BYTES} bytes on a {MAP_BYTES}-byte boundary)"
        )
    return kind, OBJECT_BYTES - MAP_BYTES


def driver_element_type(device_type: int) -> int:
    """Returns the CUDA driver's CUtensorMapDataType for the number in a kernel's metadata."""
    from triton.backends.nvidia import driver

    return int(driver.TMA_DTYPE_DEVICE_TO_HOST[device_type])
