"""TDM copies for Gluon kernels on CDNA5: ``from triton_ext.gluon import amd as xamd``.

One spelling for every release of Triton that has the tensor data mover; what a release lacks is
refused by name when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triton_ext import backends

__all__ = [
    "Emulated",
    "PartitionedDot",
    "TdmStage",
    "async_gather",
    "async_load",
    "async_load_fused",
    "async_scatter",
    "async_store",
    "async_wait",
    "async_wait_instructions",
    "async_wait_stage",
    "block_problems",
    "column_problems",
    "emulated",
    "index_layout",
    "index_layout_problems",
    "layout_problems",
    "load_instructions",
    "make_tensor_descriptor",
    "partition_problems",
    "partitioned_dot_layouts",
    "partitioned_layout",
    "rows_instructions",
    "smem_layout",
    "tensor_problems",
    "update_tensor_descriptor",
    "wait_problems",
    "wmma",
    "wmma_layout",
]

if TYPE_CHECKING:
    from triton_ext.backends.amd.gluon.checks import (
        block_problems,
        column_problems,
        layout_problems,
        partition_problems,
        tensor_problems,
        wait_problems,
    )
    from triton_ext.backends.amd.gluon.emulated import (
        Emulated,
        emulated,
    )
    from triton_ext.backends.amd.gluon.index_layouts import (
        index_layout_problems,
    )
    from triton_ext.backends.amd.gluon.layouts import (
        PartitionedDot,
        index_layout,
        partitioned_dot_layouts,
        partitioned_layout,
        smem_layout,
        wmma_layout,
    )
    from triton_ext.backends.amd.gluon.tdm import (
        async_gather,
        async_load,
        async_load_fused,
        async_scatter,
        async_store,
        async_wait,
        async_wait_instructions,
        async_wait_stage,
        make_tensor_descriptor,
        update_tensor_descriptor,
        wmma,
    )
    from triton_ext.backends.amd.gluon.waits import (
        TdmStage,
        load_instructions,
        rows_instructions,
    )
else:
    Emulated = backends.load("amd", "gluon.Emulated")
    PartitionedDot = backends.load("amd", "gluon.PartitionedDot")
    TdmStage = backends.load("amd", "gluon.TdmStage")
    async_gather = backends.load("amd", "gluon.async_gather")
    async_load = backends.load("amd", "gluon.async_load")
    async_load_fused = backends.load("amd", "gluon.async_load_fused")
    async_scatter = backends.load("amd", "gluon.async_scatter")
    async_store = backends.load("amd", "gluon.async_store")
    async_wait = backends.load("amd", "gluon.async_wait")
    async_wait_instructions = backends.load("amd", "gluon.async_wait_instructions")
    async_wait_stage = backends.load("amd", "gluon.async_wait_stage")
    block_problems = backends.load("amd", "gluon.block_problems")
    column_problems = backends.load("amd", "gluon.column_problems")
    emulated = backends.load("amd", "gluon.emulated")
    index_layout = backends.load("amd", "gluon.index_layout")
    index_layout_problems = backends.load("amd", "gluon.index_layout_problems")
    layout_problems = backends.load("amd", "gluon.layout_problems")
    load_instructions = backends.load("amd", "gluon.load_instructions")
    make_tensor_descriptor = backends.load("amd", "gluon.make_tensor_descriptor")
    partition_problems = backends.load("amd", "gluon.partition_problems")
    partitioned_dot_layouts = backends.load("amd", "gluon.partitioned_dot_layouts")
    partitioned_layout = backends.load("amd", "gluon.partitioned_layout")
    rows_instructions = backends.load("amd", "gluon.rows_instructions")
    smem_layout = backends.load("amd", "gluon.smem_layout")
    tensor_problems = backends.load("amd", "gluon.tensor_problems")
    update_tensor_descriptor = backends.load("amd", "gluon.update_tensor_descriptor")
    wait_problems = backends.load("amd", "gluon.wait_problems")
    wmma = backends.load("amd", "gluon.wmma")
    wmma_layout = backends.load("amd", "gluon.wmma_layout")
