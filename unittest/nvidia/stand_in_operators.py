"""The operators on a GPU that is not there: plans for an H200, tensors on the CPU, no launch.

For a process that was started with ``stand_in_driver.environment_of``.  Everything between a call
of an operator and ``cuLaunchKernelEx`` is what it is on a GPU, but for three things: memory comes
from the CPU's allocator, torch has no current device to ask for, and the driver does nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import triton
from stand_in_driver import StandInDriver
from triton_ext.backends.nvidia.backend import launch
from triton_ext.ops.core import dispatch_cache, planner
from triton_ext.ops.core.device import SMEM_BYTES, Device

__all__ = ["H200", "operators_on_stand_in"]

H200 = Device(132, (9, 0), SMEM_BYTES)


def _is_on_gpu(tensor: object) -> bool:
    """Asked by Triton's launcher; a mock would take 8 us, and keep what it is asked about."""
    return True


@contextlib.contextmanager
def operators_on_stand_in() -> Iterator[None]:
    """Within, operators take tensors on the CPU for those of a GPU, whose driver is the stand-in.

    What they have planned and compiled before is not forgotten.
    """
    triton.runtime.driver.set_active(StandInDriver())
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(planner, "device_of", return_value=H200))
        # Calls with tensors on the CPU have keys then, and are launched.
        stack.enter_context(mock.patch.object(dispatch_cache, "IS_INTERPRETED", True))
        stack.enter_context(mock.patch.object(launch, "is_on_gpu", _is_on_gpu))
        yield
