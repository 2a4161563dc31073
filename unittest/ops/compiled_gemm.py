"""Compiles the kernels of the implicit GEMM ahead of time, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from problem_cases import problem_of
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import KNOWN
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec, Operands
from triton_ext.ops.core.plan import ConvSizes
from triton_ext.ops.families.gemm import GEMM, GEMM_DGRAD
from triton_ext.ops.families.gemm_config import ConvConfig
from triton_ext.ops.kernels.gemm import DgradProblem, conv_dgrad_kernel, conv_fprop_kernel

TORCH_DTYPES = {
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float32: torch.float32,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
    tl.int8: torch.int8,
    tl.int32: torch.int32,
}
TRITON_DTYPES = {of_torch: of_triton for of_triton, of_torch in TORCH_DTYPES.items()}


def compile_conv_fprop(
    config: ConvConfig,
    capability: int,
    *,
    filter_size: tuple[int, ...] = (3, 3),
    ci: int = 128,
    dtype: tl.dtype = tl.float16,
    has_bias: bool = False,
    store_through_tma: bool = True,
    epilogue: EpilogueSpec = PLAIN,
    groups: int = 1,
    x_is_matrix: bool = False,
) -> Any:
    """Compiles the kernel ahead of time, without a GPU.

    Args:
        config: The tile configuration.
        capability: Compute capability of the target times ten: 90, 100.
        filter_size: ([T, [R, ]]S).
        ci: Input channels of a group.
        dtype: Of x and w.
        has_bias: Whether a bias is added.
        store_through_tma: Whether y is stored by TMA; otherwise through a pointer.
        epilogue: What is done to the output; its bias is ``has_bias``.
        groups: Groups of channels.
        x_is_matrix: Whether x is read as a matrix; im2col is the identity then.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.
    """
    m, n, k = config.block_m, config.block_n, config.block_k
    problem = problem_of(
        ci=ci * groups, co=64 * groups, size=(32,) * len(filter_size), taps=filter_size,
        padding=[taps // 2 for taps in filter_size], groups=groups,
    )  # fmt: skip
    case = Case(direction="fprop", problem=problem, dtype=TORCH_DTYPES[dtype], epilogue=epilogue)
    constants = {**GEMM.bind(config, case, KNOWN["h200"]).launcher.constants}
    constants["X_IS_MATRIX"] = x_is_matrix
    element, out_element = _name(dtype), _name(TRITON_DTYPES[case.output_dtype])
    tile = f"[{m}, {n // config.store_parts}]"
    # Through TMA comes what has the tiles of y.
    residual_tiles = epilogue.residual and store_through_tma and not epilogue.residual_per_image
    given = {
        "bias": (f"*{element}", has_bias or epilogue.bias),
        "tile_scale": ("*fp32", epilogue.scale),
        "residual": (f"*{element}", epilogue.residual and not residual_tiles),
        "out_scale": ("*fp32", epilogue.out_scale),
        "amax": ("*i32", epilogue.amax),
    }
    operands = Operands(**{name: kind for name, (kind, is_there) in given.items() if is_there})
    per_dim = ("i32",) * len(filter_size)
    signature: dict[str, Any] = {
        "x_desc": f"tensordesc<{element}[{m}, {k}]>",
        "w_desc": f"tensordesc<{element}[{n}, 1, {k}]>",
        "y": f"tensordesc<{out_element}{tile}>" if store_through_tma else f"*{out_element}",
        "residual_desc": f"tensordesc<{element}{tile}>" if residual_tiles else "constexpr",
        "operands": Operands(*(kind or "constexpr" for kind in operands)),
        "m_gemm": "i32",
        "co": "i32",
        "conv": ConvSizes(per_dim, per_dim, per_dim, per_dim),  # type: ignore[arg-type]
        **dict.fromkeys(constants, "constexpr"),
    }
    at = list(signature).index("operands")
    nothing = {(at, i): None for i, kind in enumerate(operands) if kind is None}
    if not residual_tiles:
        constants["residual_desc"] = None
    constants |= nothing
    return triton.compile(
        ASTSource(conv_fprop_kernel, signature, constexprs=constants),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )


def _name(dtype: tl.dtype) -> str:
    """What Triton calls a type in signatures."""
    return {"int8": "i8", "int32": "i32"}.get(str(dtype), str(dtype))


def compile_conv_dgrad(
    config: ConvConfig,
    capability: int,
    *,
    filter_size: Sequence[int] = (3, 3),
    stride: Sequence[int] = (1, 1),
    dilation: Sequence[int] = (1, 1),
    ci: int = 128,
    groups: int = 1,
    dtype: tl.dtype = tl.float16,
    has_bias: bool = False,
    store_through_tma: bool = True,
) -> Any:
    """Compiles the kernel ahead of time, without a GPU; its pointers are 16-byte aligned.

    Args:
        config: The tile configuration.
        capability: Compute capability of the target times ten: 90, 100.
        filter_size: Taps per spatial dimension.
        stride: Of the convolution.
        dilation: Distance of neighbouring taps.
        ci: Input channels of a group.
        groups: Into how many parts the channels are divided.
        dtype: Of dy, w and dx.
        has_bias: Whether a bias is added.
        store_through_tma: Whether dx is stored by TMA; otherwise through a pointer.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.
    """
    problem = problem_of(
        ci=ci * groups, co=128 * groups, size=(64,) * len(filter_size), taps=filter_size,
        stride=stride, dilation=dilation, groups=groups,
    )  # fmt: skip
    case = Case(direction="dgrad", problem=problem, dtype=TORCH_DTYPES[dtype])
    m, n, k = config.block_m, config.block_n, config.block_k
    tensors = {
        "dy_desc": f"tensordesc<{dtype}[{m}, {k}]>",
        "w_desc": f"tensordesc<{dtype}{[n, 1, k] if dtype == tl.float32 else [k, 1, n]}>",
        "problem": DgradProblem(*("i32",) * 3, *(("i32",) * 3,) * 6),  # type: ignore[arg-type]
    }
    tile = f"[{m}, {n // config.store_parts}]"
    tensors["dx"] = f"tensordesc<{dtype}{tile}>" if store_through_tma else f"*{dtype}"
    if has_bias:
        tensors["bias_ptr"] = f"*{dtype}"
    constants = {**GEMM_DGRAD.bind(config, case, KNOWN["h200"]).launcher.constants}
    if not has_bias:
        constants["bias_ptr"] = None
    names = conv_dgrad_kernel.arg_names
    return triton.compile(
        ASTSource(
            conv_dgrad_kernel,
            {name: tensors.get(name, "constexpr") for name in names},
            constexprs=constants,
            attrs={
                (names.index(name),): [["tt.divisibility", 16]]
                for name in ("dx", "bias_ptr")
                if tensors.get(name, "").startswith("*")
            },
        ),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )
