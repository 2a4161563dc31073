"""AMD: asynchronous copies, wait counts and LDS of gfx942, gfx950 and gfx1250."""

from __future__ import annotations

from typing import Final

__all__ = ["EXPORTS", "PASSES"]

_HERE: Final = "triton_ext.backends.amd"

# What the core may ask for by name (triton_ext.backends.load).
EXPORTS: Final = {
    "async-timeline": f"{_HERE}.analysis.timeline:timeline_of",
    "verify-async-waits": f"{_HERE}.passes.verify_async_waits:VerifyAsyncWaits",
    "update-async-wait-count": f"{_HERE}.passes.update_async_wait_count:UpdateAsyncWaitCount",
}

# Passes by their name in a pipeline (triton_ext.passes.registry).
PASSES: Final = {
    "allocate-amdgpu-shared-memory": (
        f"{_HERE}.passes.allocate_shared_memory:AllocateAMDGPUSharedMemory"
    ),
    "tritonamdgpu-coalesce-async-copy": f"{_HERE}.passes.coalesce_async_copy:CoalesceAsyncCopy",
    "tritonamdgpu-update-async-wait-count": (
        f"{_HERE}.passes.update_async_wait_count:UpdateAsyncWaitCount"
    ),
    "tritonext-verify-async-waits": f"{_HERE}.passes.verify_async_waits:VerifyAsyncWaits",
}
