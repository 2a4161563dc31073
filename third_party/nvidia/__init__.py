"""NVIDIA: the im2col mode of the TMA unit, from the device function to the CUDA driver."""

from __future__ import annotations

from typing import Final

__all__ = ["EXPORTS", "PASSES"]

_HERE: Final = "triton_ext.backends.nvidia"

# Objects that the core loads by name (triton_ext.backends.load).
EXPORTS: Final = {
    "ConvGeometry": f"{_HERE}.backend.geometry:ConvGeometry",
    "Im2ColDescriptor": f"{_HERE}.backend.descriptors:Im2ColDescriptor",
    "SPATIAL_LIMITS": f"{_HERE}.backend.validation:SPATIAL_LIMITS",
    "coalesce-async-copy": "triton_ext.passes.coalesce_async_copy:CoalesceAsyncCopy",
    "conv_violations": f"{_HERE}.backend.validation:conv_violations",
    "descriptor_error": f"{_HERE}.backend.validation:descriptor_error",
    "emulator.descriptor": f"{_HERE}.emulator.descriptors:make_descriptor",
    "emulator.operations": f"{_HERE}.emulator.operations:OPERATIONS",
    "gluon.Emulated": f"{_HERE}.gluon.emulated:Emulated",
    "gluon.TensorDescriptorIm2Col": f"{_HERE}.gluon.descriptors:TensorDescriptorIm2Col",
    "gluon.async_load_im2col": f"{_HERE}.gluon.im2col:async_load_im2col",
    "gluon.emulated": f"{_HERE}.gluon.emulated:emulated",
    "gluon.im2col_layout": f"{_HERE}.gluon.descriptors:im2col_layout",
    "gluon.im2col_start": f"{_HERE}.gluon.im2col:im2col_start",
    "gluon.warpgroup_mma_joined": f"{_HERE}.gluon.joined_mma:warpgroup_mma_joined",
    "gluon.with_base": f"{_HERE}.gluon.descriptors:with_base",
    "gluon.wrap_source": f"{_HERE}.gluon.spelling:wrap_source",
    "gluon.wrap_str_to_ty": f"{_HERE}.gluon.spelling:wrap_str_to_ty",
    "has-narrow-copies": "triton_ext.passes.copy_screen:has_narrow_copies",
    "im2col_start": f"{_HERE}.language.im2col:im2col_start",
    "join-wgmma": f"{_HERE}.passes.join_wgmma:join_wgmma",
    "load_im2col": f"{_HERE}.language.im2col:load_im2col",
    "localize-im2col": f"{_HERE}.passes.localize_im2col:LocalizeIm2Col",
    "lower-im2col": f"{_HERE}.passes.lower_im2col:LowerIm2Col",
    "lower-im2col-calls": f"{_HERE}.passes.lower_im2col_calls:lower_im2col_calls",
    "memory-effects": f"{_HERE}.analysis.memory_effects:MEMORY_EFFECTS",
    "order-multicast-operands": (f"{_HERE}.passes.multicast_operands:order_multicast_operands"),
    "prepare_launch": f"{_HERE}.backend.prepared:prepare_launch",
    "verify-async": f"{_HERE}.passes.verify_async:verify_async",
    "verify-async-pass": "triton_ext.passes.verify_async:VerifyAsync",
    "shared-memory": f"{_HERE}.analysis.shared_memory:shared_memory",
    "wrap_make_tensordesc_arg": f"{_HERE}.backend.launch:wrap_make_tensordesc_arg",
    "wrap_make_ir": f"{_HERE}.language.wrong_family:wrap_make_ir",
    "wrap_implicit_cvt": f"{_HERE}.language.interpreter:wrap_implicit_cvt",
    "annotate_metadata": f"{_HERE}.passes.descriptor_metadata:annotate_metadata",
    "driver_status": f"{_HERE}.backend.driver:driver_status",
}

# Passes by their name in a pipeline (triton_ext.passes.registry).
PASSES: Final = {
    "allocate-shared-memory-nv": f"{_HERE}.passes.allocate_shared_memory:AllocateSharedMemoryNv",
    "test-print-membar": f"{_HERE}.passes.print_membar:PrintMembar",
    "triton-ext-localize-im2col": f"{_HERE}.passes.localize_im2col:LocalizeIm2Col",
    "triton-ext-lower-im2col": f"{_HERE}.passes.lower_im2col:LowerIm2Col",
}
