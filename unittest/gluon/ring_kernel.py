"""A warp-specialised kernel of im2col loads and nothing else; Triton reads its source from here."""

# ruff: noqa: RUF005  # Gluon traces these bodies, and has no starred expressions

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton_ext.gluon import nvidia as xnv
from triton_ext.host.gluon_names import typed

BARRIER = gl.constexpr(mbarrier.MBarrierLayout())


@gluon.jit
def load_ring(x_desc, smem, bars, problem, STAGES: gl.constexpr):
    """Loads the taps of blocks of channels of this CTA's tiles into the stages in turn."""
    ROWS: gl.constexpr = x_desc.block_shape[0]
    COLUMNS: gl.constexpr = x_desc.block_shape[1]
    FIRST_DIM: gl.constexpr = 5 - len(x_desc.shape)
    tiles, blocks, taps, dilation, limit, size, stride, padding = problem
    step = gl.to_tensor(0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        start = xnv.im2col_start(
            tile * ROWS, size[FIRST_DIM:], stride[FIRST_DIM:], padding[FIRST_DIM:]
        )
        for block in range(blocks):
            for tap in range(taps):
                stage = step % STAGES
                bar = bars.index(stage)
                mbarrier.expect(bar, x_desc.nbytes_per_cta)
                offsets = (tap // 2, tap * dilation, (taps - 1 - tap) * dilation)
                xnv.async_load_im2col(
                    x_desc, start + (block * COLUMNS,), offsets[FIRST_DIM:], bar, smem.index(stage),
                    pred=block * COLUMNS + tap < limit,
                )  # fmt: skip
                step += 1


@gluon.jit
def wait_ring(bars, problem, STAGES: gl.constexpr):
    """Something for the CTA's own warps."""
    for stage in gl.static_range(STAGES):
        mbarrier.wait(bars.index(stage), 0)


@gluon.jit
def ring_kernel(x_desc, problem, STAGES: gl.constexpr, PRODUCER_WARPS: gl.constexpr):
    """The kernel; ``problem`` is a tuple, sizes, strides and paddings in it are of (d, h, w)."""
    problem = typed(problem)
    BLOCK: gl.constexpr = [STAGES] + x_desc.block_shape
    smem = gl.allocate_shared_memory(x_desc.dtype, BLOCK, x_desc.layout)
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    for stage in gl.static_range(STAGES):
        mbarrier.init(bars.index(stage), count=1)
    gl.warp_specialize(
        [
            (wait_ring, (bars, problem, STAGES)),
            (load_ring, (x_desc, smem, bars, problem, STAGES)),
        ],
        [PRODUCER_WARPS],
        [64],
    )
