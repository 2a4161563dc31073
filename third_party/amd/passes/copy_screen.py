"""Screens a module's text for copies to LDS that may want another layout.

See :mod:`triton_ext.passes.copy_screen`; the rules are in
:mod:`triton_ext.backends.amd.passes.coalesce_async_copy`.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial

from triton_ext.errors import UnsupportedError
from triton_ext.passes.copy_screen import PrintedCopy, any_candidate

from ..analysis.target import Target

__all__ = ["has_narrow_copies"]

_TARGET = re.compile(r'ttg\.target = "hip:([\w-]+)"')


def has_narrow_copies(text: str) -> bool:
    """Returns whether a module for an AMD GPU has a copy to LDS that may want another layout."""
    found = _TARGET.search(text)
    if found is None:
        return False
    try:
        target = Target.of(found[1])
    except UnsupportedError:
        return False
    return any_candidate(text, partial(_is_refused, target=target))


def _is_refused(copy: PrintedCopy, target: Target) -> bool:
    run = copy.run()
    if target.lanes_have_addresses:
        if run is not None:
            return min(run, copy.widest) * copy.bits not in target.load_widths
    elif run is not None and _lanes_write_one_run(copy):
        return run * copy.bits not in target.load_widths
    return not _lowers_at_best(copy.tensor, copy.buffer, copy.threads, target.arch)


def _lanes_write_one_run(copy: PrintedCopy) -> bool:
    """Returns whether the text shows that the lanes of a wave write one contiguous run."""
    blocked, swizzled = copy.blocked, copy.swizzled
    if blocked is None or swizzled is None or not blocked.threads_per_warp:
        return False
    if blocked.order != swizzled.order:
        return False
    if swizzled.reach > blocked.size_per_thread[blocked.order[0]] * copy.threads:
        return False  # Unless rows are shorter, the base moves to another wave's lanes.
    if blocked.size_per_thread[blocked.order[0]] != copy.run():
        return False  # The elements between two vectors of a thread are its own.
    for place, dim in enumerate(blocked.order):
        size, lanes = blocked.size_per_thread[dim], blocked.threads_per_warp[dim]
        if size * lanes > copy.shape[dim] or (place > 0 and size > 1):
            return False
        if place == 0 and lanes == 1 and size < copy.shape[dim]:
            return False  # More registers may follow along the dimension.
        later = (blocked.threads_per_warp[d] for d in blocked.order[place + 1 :])
        if size * lanes < copy.shape[dim] and any(lanes > 1 for lanes in later):
            return False
    return True


@lru_cache(maxsize=256)
def _lowers_at_best(tensor: str, buffer: str, threads: int, arch: str) -> bool:
    # Imported here: kernels without such copies should not pay for the import.
    from .coalesce_async_copy import lowers_at_best

    return lowers_at_best(tensor, buffer, threads, Target.of(arch))
