"""Which files may be read because a module names them in its locations."""

from __future__ import annotations

import os
import stat

__all__ = ["LARGEST_SOURCE_BYTES", "is_source_file"]

#: Generated sources have some 100,000.
LARGEST_SOURCE_BYTES = 1 << 24
# Their files are regular ones by their mode, but some block and some have no end.
_KERNEL_FOLDERS = ("/proc/", "/sys/", "/dev/mqueue/")


def is_source_file(name: str | bytes) -> bool | None:
    """Returns whether a file may be read to show its lines.

    A module may name any file.  Reading a device, a pipe, a file of the kernel or one above
    :data:`LARGEST_SOURCE_BYTES` may not end, or may take all memory.

    Args:
        name: The file, relative to the current folder.

    Returns:
        ``None`` where there is no file to read: nothing, a folder, or a name no file can have.
    """
    try:
        found = os.stat(name)
        real = os.fsdecode(os.path.realpath(name))
    except (OSError, ValueError):
        return None
    if stat.S_ISDIR(found.st_mode):
        return None
    is_small = found.st_size <= LARGEST_SOURCE_BYTES
    return stat.S_ISREG(found.st_mode) and is_small and not real.startswith(_KERNEL_FOLDERS)
