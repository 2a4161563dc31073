"""A pipelined Gluon kernel that scales rows of fp16 tiles by a small side input, copied ahead.

The side input lies in a slice of the tile's layout, as one writes it.
"""

from __future__ import annotations

import re
from collections import Counter

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.ampere import async_copy

__all__ = ["compiled", "widths_of"]

# The name since 3.8, and the one before.
_async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
_WIDTH = re.compile(r"cp\.async\.c[ag]\.shared\.global\S*\s+\[[^]]*\],\s*\[[^]]*\],\s*(0x\w+|\d+)")


@gluon.jit
def _copy(x_smem, x_ptrs, side_smem, side_ptrs):
    _async_load(x_smem, x_ptrs)
    _async_load(side_smem, side_ptrs)
    async_copy.commit_group()


@gluon.jit
def scaled_tiles(x_ptr, side_ptr, out_ptr, steps, R: gl.constexpr, STAGES: gl.constexpr):
    """Adds up [R, R] tiles, each row scaled by the step's side input."""
    tile_layout: gl.constexpr = gl.BlockedLayout(
        [1, 8], [32 // (R // 8), R // 8], [gl.num_warps(), 1], [1, 0]
    )
    side_layout: gl.constexpr = gl.SliceLayout(1, tile_layout)
    x_smem = gl.allocate_shared_memory(
        gl.float16, [STAGES, R, R], gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    )
    side_smem = gl.allocate_shared_memory(
        side_ptr.dtype.element_ty, [STAGES, R], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    offs_r = gl.arange(0, R, layout=side_layout)
    offs_c = gl.arange(0, R, layout=gl.SliceLayout(0, tile_layout))
    offs = offs_r[:, None] * R + offs_c[None, :]
    side_offs = gl.arange(0, R, layout=side_layout)
    acc = gl.zeros([R, R], gl.float32, layout=tile_layout)
    for step in gl.static_range(STAGES - 1):
        x_now, side_now = x_ptr + offs + step * (R * R), side_ptr + step * R + side_offs
        _copy(x_smem.index(step), x_now, side_smem.index(step), side_now)
    for step in range(steps):
        # The last steps copy the last tile again, into a buffer that nobody reads any more.
        ahead = gl.minimum(step + STAGES - 1, steps - 1)
        slot = (step + STAGES - 1) % STAGES
        x_now, side_now = x_ptr + offs + ahead * (R * R), side_ptr + ahead * R + side_offs
        _copy(x_smem.index(slot), x_now, side_smem.index(slot), side_now)
        async_copy.wait_group(STAGES - 1)
        x = x_smem.index(step % STAGES).load(tile_layout).to(gl.float32)
        side = side_smem.index(step % STAGES).load(side_layout).to(gl.float32)
        acc += x * side[:, None]
    gl.store(out_ptr + gl.program_id(0) * (R * R) + offs, acc)


def compiled(side: str) -> dict[str, str]:
    """Returns TTGIR, PTX and so on for sm_90; ``side`` is the type of the side input."""
    names = scaled_tiles.arg_names
    kinds = {"x_ptr": "*fp16", "side_ptr": f"*{side}", "out_ptr": "*fp32", "steps": "i32"}
    constants = {"R": 64, "STAGES": 3}
    signature = {name: kinds.get(name, "constexpr") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(names.index(n),): [["tt.divisibility", 16]] for n in kinds if n != "steps"}
    source = GluonASTSource(scaled_tiles, signature, values, aligned)
    target = GPUTarget("cuda", 90, 32)
    asm: dict[str, str] = triton.compile(source, target=target, options={"num_warps": 4}).asm
    return asm


def widths_of(ptx: str) -> str:
    """``16 B x 12, 4 B x 3``: bytes of an instruction, and how many a thread has."""
    found = Counter(int(match[1], 0) for match in _WIDTH.finditer(ptx))
    return ", ".join(f"{width} B x {count}" for width, count in sorted(found.items())[::-1])
