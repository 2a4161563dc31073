"""Compiles the forward Gluon kernel ahead of time, without a GPU."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.families.gluon_config import TileConfig
from triton_ext.ops.kernels.gluon_fprop import FpropProblem, conv_fprop_kernel
from triton_ext.ops.kernels.gluon_pipeline import smem_layout

__all__ = ["compile_conv_fprop"]


def compile_conv_fprop(
    config: TileConfig,
    *,
    dims: int = 2,
    x_is_matrix: bool = False,
    dtype: Any = gl.float16,
    out_dtype: Any = None,
    epilogue: EpilogueSpec = PLAIN,
    one_scale: bool = True,
) -> Any:
    """Compiles the kernel for sm_90.

    Args:
        config: How to compile.
        dims: Spatial dimensions.
        x_is_matrix: Whether im2col is the identity.
        dtype: Of x and w; where it is of 16 bits, of the bias and the residual as well, which are
            fp16 otherwise.  Scales are fp32.
        out_dtype: Of y; that of x by default.
        epilogue: What is done to the output.
        one_scale: Whether a scale is one number, rather than one per channel.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.
    """

    def tiled(block: list[int], element: Any = dtype) -> str:
        layout = smem_layout(block, element.primitive_bitwidth // 8)
        return f"tensordesc<{element}{block},{layout!r}>"

    block = [config.rows, config.block_k]
    layout = smem_layout(block, config.element_bytes)
    pixels = f"tensordesc_im2col<{dtype}{block},input_rank={dims + 2},{layout!r}>"
    wide = gl.float16 if config.element_bytes == 1 else dtype
    main, rest = (*config.fprop_boxes, 0)[:2]
    # Types take the places of values.
    problem: Any = FpropProblem
    spatial = ("i32",) * dims
    types: dict[str, Any] = {
        "x_desc": tiled(block) if x_is_matrix else pixels,
        "w_main_desc": tiled([main, 1, config.block_k]),
        "w_rest_desc": rest and tiled([rest, 1, config.block_k]),
        "y_desc": tiled(config.y_block, out_dtype or dtype),
        "bias_ptr": epilogue.bias and f"*{wide}",
        "scale_ptr": epilogue.scale and not one_scale and "*fp32",
        "tile_scale_ptr": epilogue.scale and one_scale and "*fp32",
        "residual_ptr": epilogue.residual and f"*{wide}",
        "out_scale_ptr": epilogue.out_scale and "*fp32",
        "problem": problem("i32", "i32", "i32", *(("i32",) * 3,) * 2, *(spatial,) * 3),
    }
    constants: dict[str, Any] = {name: None for name, kind in types.items() if not kind}
    constants |= {
        "CONFIG": config,
        "ACTIVATION": epilogue.activation,
        "RESIDUAL_PER_IMAGE": epilogue.residual_per_image,
    }
    signature = {
        name: "constexpr" if name in constants else types[name]
        for name in conv_fprop_kernel.arg_names
    }
    names = list(conv_fprop_kernel.arg_names)
    aligned = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name, kind in signature.items()
        if isinstance(kind, str) and kind.startswith("*")
    }
    return triton.compile(
        GluonASTSource(conv_fprop_kernel, signature, constexprs=constants, attrs=aligned),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": 4},
    )
