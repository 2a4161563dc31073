"""AMD: asynchronous copies, wait counts and LDS of gfx942, gfx950 and gfx1250."""

from __future__ import annotations

from typing import Final

__all__ = ["ALIASES", "EXPORTS", "PASSES"]

_HERE: Final = "triton_ext.backends.amd"

# Names that the core may load from a backend (triton_ext.backends.load).
EXPORTS: Final = {
    "annotate-metadata": f"{_HERE}.passes.descriptor_metadata:annotate_metadata",
    "align-partitioned-shared": f"{_HERE}.passes.align_partitioned_shared:AlignPartitionedShared",
    "coalesce-async-copy": f"{_HERE}.passes.coalesce_async_copy:CoalesceAsyncCopy",
    "has-narrow-copies": f"{_HERE}.passes.copy_screen:has_narrow_copies",
    "async-timeline": f"{_HERE}.analysis.timeline:timeline_of",
    "emulator.operations": f"{_HERE}.emulator.operations:OPERATIONS",
    "gluon.Emulated": f"{_HERE}.gluon.emulated:Emulated",
    "gluon.PartitionedDot": f"{_HERE}.gluon.layouts:PartitionedDot",
    "gluon.TdmStage": f"{_HERE}.gluon.waits:TdmStage",
    "gluon.async_gather": f"{_HERE}.gluon.tdm:async_gather",
    "gluon.async_load": f"{_HERE}.gluon.tdm:async_load",
    "gluon.async_load_fused": f"{_HERE}.gluon.tdm:async_load_fused",
    "gluon.async_scatter": f"{_HERE}.gluon.tdm:async_scatter",
    "gluon.async_store": f"{_HERE}.gluon.tdm:async_store",
    "gluon.async_wait": f"{_HERE}.gluon.tdm:async_wait",
    "gluon.async_wait_instructions": f"{_HERE}.gluon.tdm:async_wait_instructions",
    "gluon.async_wait_stage": f"{_HERE}.gluon.tdm:async_wait_stage",
    "gluon.block_problems": f"{_HERE}.gluon.checks:block_problems",
    "gluon.column_problems": f"{_HERE}.gluon.checks:column_problems",
    "gluon.emulated": f"{_HERE}.gluon.emulated:emulated",
    "gluon.index_layout": f"{_HERE}.gluon.layouts:index_layout",
    "gluon.index_layout_problems": f"{_HERE}.gluon.index_layouts:index_layout_problems",
    "gluon.layout_problems": f"{_HERE}.gluon.checks:layout_problems",
    "gluon.load_instructions": f"{_HERE}.gluon.waits:load_instructions",
    "gluon.make_tensor_descriptor": f"{_HERE}.gluon.tdm:make_tensor_descriptor",
    "gluon.partition_problems": f"{_HERE}.gluon.checks:partition_problems",
    "gluon.partitioned_dot_layouts": f"{_HERE}.gluon.layouts:partitioned_dot_layouts",
    "gluon.partitioned_layout": f"{_HERE}.gluon.layouts:partitioned_layout",
    "gluon.rows_instructions": f"{_HERE}.gluon.waits:rows_instructions",
    "gluon.smem_layout": f"{_HERE}.gluon.layouts:smem_layout",
    "gluon.tensor_problems": f"{_HERE}.gluon.checks:tensor_problems",
    "gluon.update_tensor_descriptor": f"{_HERE}.gluon.tdm:update_tensor_descriptor",
    "gluon.wait_problems": f"{_HERE}.gluon.checks:wait_problems",
    "gluon.wmma": f"{_HERE}.gluon.tdm:wmma",
    "gluon.wmma_layout": f"{_HERE}.gluon.layouts:wmma_layout",
    "memory-effects": f"{_HERE}.analysis.memory_effects:MEMORY_EFFECTS",
    "shared-memory": f"{_HERE}.analysis.lds:shared_memory",
    "verify-async-waits": f"{_HERE}.passes.verify_async_waits:VerifyAsyncWaits",
    "update-async-wait-count": f"{_HERE}.passes.update_async_wait_count:UpdateAsyncWaitCount",
}

# Passes by pipeline name (triton_ext.passes.registry).
PASSES: Final = {
    "allocate-amdgpu-shared-memory": (
        f"{_HERE}.passes.allocate_shared_memory:AllocateAMDGPUSharedMemory"
    ),
    "test-print-amd-alignment": f"{_HERE}.passes.print_alignment:PrintAMDAlignment",
    "test-tritonamdgpu-membar": f"{_HERE}.passes.print_membar:PrintMembar",
    "test-tritonamdgpu-range-analysis": f"{_HERE}.passes.print_ranges:PrintRanges",
    "tritonamdgpu-coalesce-async-copy": f"{_HERE}.passes.coalesce_async_copy:CoalesceAsyncCopy",
    "tritonamdgpu-update-async-wait-count": (
        f"{_HERE}.passes.update_async_wait_count:UpdateAsyncWaitCount"
    ),
    "triton-ext-align-partitioned-shared": (
        f"{_HERE}.passes.align_partitioned_shared:AlignPartitionedShared"
    ),
    "triton-ext-partition-shared": f"{_HERE}.passes.partition_shared:PartitionShared",
    "triton-ext-verify-async-waits": f"{_HERE}.passes.verify_async_waits:VerifyAsyncWaits",
}

# Names of these passes before 0.2.0.
ALIASES: Final = {
    "tritonext-align-partitioned-shared": "triton-ext-align-partitioned-shared",
    "tritonext-partition-shared": "triton-ext-partition-shared",
    "tritonext-verify-async-waits": "triton-ext-verify-async-waits",
}
