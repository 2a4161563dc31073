"""Embedding bags on CDNA5: weighted sums of gathered rows, written in Gluon.

fp16 or bf16, fp32 accumulation, gfx1250, stock Triton 3.8 or newer.

Symbols
    table    [V, D]    rows
    indices  [L]       row numbers of all bags, one behind the other; -1 for a row that is left out
    offsets  [B + 1]   where each bag starts; the last one is L
    weights  [L]       fp32
    out      [B, D]    out[b] = sum of weights[i] * table[indices[i]], i in bag b

Mapping
    A workgroup has one bag and BLOCK_D columns.  A stage gathers BLOCK_R rows of the bag.  Rows
    that are left out, and those behind the bag's end, get the number V, which is out of bounds:
    they arrive as zeros, and their weights are zero.

Waves
    All of them issue each gather, each for its part of the rows, and all of them add.

Pipeline (NUM_BUFFERS blocks of rows)
    stage k      gather of block k of the bag
    in flight    NUM_BUFFERS - 1 stages
    order        wait for stage k; issue stage k + NUM_BUFFERS - 1 into the buffer that was read
                 before; add block k.  The row numbers of a stage are loaded when it is issued.

Waits (TENSORcnt; the compiler puts a barrier behind each, so one wave's wait is for all)
    where                may be in flight behind it      what it covers
    loop, block k        NUM_BUFFERS - 2 stages          stage k
    behind the loop      NUM_BUFFERS - 2 stages, .. 0    the stages that are left

Nothing is partitioned: the data mover does not gather into pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton_ext.gluon import amd as xamd

from .arguments import HALVES, INT32_MAX, array_problems, has_rank, on_gpu, same_type

__all__ = ["Config", "bag_problems", "bag_sum", "embedding_bag"]

LDS_BYTES = 320 * 1024


@dataclass(frozen=True, kw_only=True)
class Config:
    """Tiles of :func:`bag_sum`.

    Attributes:
        block_r: Rows of a stage.
        block_d: Columns of a workgroup.
        num_buffers: Blocks of rows in LDS.
        num_warps: Waves of a workgroup.
    """

    block_r: int = 32
    block_d: int = 64
    num_buffers: int = 3
    num_warps: int = 4

    def problems(self) -> list[str]:
        """Everything that keeps the configuration from running; empty if nothing does."""
        found = []
        for name in ("block_r", "block_d", "num_warps"):
            size = getattr(self, name)
            if size < 1 or size & (size - 1):
                found.append(f"{name} is {size}: expected a power of two")
        if 0 < self.block_d < 4:
            found.append(
                f"block_d is {self.block_d}: expected at least 4, two lanes of two columns"
            )
        if not 2 <= self.num_buffers <= 4:
            found.append(f"num_buffers is {self.num_buffers}: expected 2 to 4")
        if self.lds_bytes > LDS_BYTES:
            found.append(f"{self.lds_bytes} B of LDS, a workgroup has {LDS_BYTES}")
        return found

    @property
    def lds_bytes(self) -> int:
        """LDS of a workgroup: the blocks, 16 B more for each row, and 4 KiB for the sums."""
        return 2 * self.num_buffers * self.block_r * (self.block_d + 8) + 4096

    def layouts(self) -> dict[str, Any]:
        """Layouts, as constants of the kernel."""
        lanes_d = min(32, self.block_d // 2)
        return {
            "IDX_LAYOUT": xamd.index_layout(self.block_r, self.num_warps),
            "ROWS_LAYOUT": xamd.smem_layout([self.block_r, self.block_d], 16),
            "ACC_LAYOUT": gl.BlockedLayout(
                [1, 2], [32 // lanes_d, lanes_d], [self.num_warps, 1], [1, 0]
            ),
        }

    def stage(self) -> Any:
        """Returns the TDM operations of one stage of the pipeline."""
        rows = max(1, self.block_r // self.num_warps)
        return xamd.TdmStage((xamd.rows_instructions(rows, 32),))


# ---- device


@gluon.jit
def issue_stage(desc, indices_ptr, first, end, num_rows, off_d, smem, IDX_LAYOUT: gl.constexpr):
    """Starts the gather of one block of a bag's rows."""
    BLOCK_R: gl.constexpr = smem.shape[0]
    offs = first + gl.arange(0, BLOCK_R, layout=IDX_LAYOUT)
    rows = gl.load(indices_ptr + offs, mask=offs < end, other=-1)
    rows = gl.where(rows < 0, num_rows, rows)
    xamd.async_gather(desc, rows, off_d, smem)


@gluon.jit
def add_block(acc, indices_ptr, weights_ptr, first, end, smem, ACC_LAYOUT: gl.constexpr):
    """Adds a block of rows that has arrived."""
    BLOCK_R: gl.constexpr = smem.shape[0]
    offs = first + gl.arange(0, BLOCK_R, layout=gl.SliceLayout(1, ACC_LAYOUT))
    mask = offs < end
    rows = gl.load(indices_ptr + offs, mask=mask, other=-1)
    weights = gl.load(weights_ptr + offs, mask=mask & (rows >= 0), other=0.0)
    block = smem.load(ACC_LAYOUT).to(gl.float32)
    return acc + gl.sum(block * gl.expand_dims(weights, 1), axis=0)


@gluon.jit
def bag_sum(
    table_ptr,  # [V, D]
    indices_ptr,  # [L]
    offsets_ptr,  # [B + 1]
    weights_ptr,  # [L]
    out_ptr,  # [B, D]
    num_rows,  # V
    D,
    BLOCK_R: gl.constexpr,
    BLOCK_D: gl.constexpr,
    NUM_BUFFERS: gl.constexpr,
    STAGE: gl.constexpr,
    IDX_LAYOUT: gl.constexpr,
    ROWS_LAYOUT: gl.constexpr,
    ACC_LAYOUT: gl.constexpr,
):
    """The columns of one bag; see the top of the file."""
    bag = gl.program_id(0)
    off_d = gl.program_id(1) * BLOCK_D
    first = gl.load(offsets_ptr + bag)
    end = gl.load(offsets_ptr + bag + 1)
    num_blocks = gl.cdiv(end - first, BLOCK_R)

    desc = xamd.make_tensor_descriptor(
        table_ptr, [num_rows, D], [D, 1], [BLOCK_R, BLOCK_D], ROWS_LAYOUT
    )
    smem = gl.allocate_shared_memory(
        table_ptr.dtype.element_ty, [NUM_BUFFERS, BLOCK_R, BLOCK_D], ROWS_LAYOUT
    )
    acc = gl.zeros([BLOCK_D], gl.float32, gl.SliceLayout(0, ACC_LAYOUT))

    # Stages behind the last block bring zeros.
    for block in gl.static_range(NUM_BUFFERS - 1):
        issue_stage(
            desc, indices_ptr, first + block * BLOCK_R, end, num_rows, off_d, smem.index(block),
            IDX_LAYOUT,
        )  # fmt: skip
    # Carried through the loop, so that the waits behind it can be proven from its last value.
    done = 0
    for _ in range(num_blocks - (NUM_BUFFERS - 1)):
        xamd.async_wait_stage(STAGE, behind=NUM_BUFFERS - 2)
        ahead = done + NUM_BUFFERS - 1
        issue_stage(
            desc, indices_ptr, first + ahead * BLOCK_R, end, num_rows, off_d,
            smem.index(ahead % NUM_BUFFERS), IDX_LAYOUT,
        )  # fmt: skip
        acc = add_block(
            acc, indices_ptr, weights_ptr, first + done * BLOCK_R, end,
            smem.index(done % NUM_BUFFERS), ACC_LAYOUT,
        )  # fmt: skip
        done += 1
    for left in gl.static_range(NUM_BUFFERS - 1):
        xamd.async_wait_stage(STAGE, behind=NUM_BUFFERS - 2 - left)
        acc = add_block(
            acc, indices_ptr, weights_ptr, first + (done + left) * BLOCK_R, end,
            smem.index((done + left) % NUM_BUFFERS), ACC_LAYOUT,
        )  # fmt: skip

    offs_d = off_d + gl.arange(0, BLOCK_D, layout=gl.SliceLayout(0, ACC_LAYOUT))
    # 64 bits: bags times columns may exceed 32 bits.
    out_row_ptr = out_ptr + bag.to(gl.int64) * D
    gl.store(out_row_ptr + offs_d, acc.to(out_ptr.dtype.element_ty), mask=offs_d < D)


# ---- host


def bag_problems(table: Any, indices: Any, offsets: Any, weights: Any, out: Any) -> list[str]:
    """Returns the violations in the operands of :func:`embedding_bag`; empty if there are none.

    Reads the offsets, which waits for the GPU if they are there.
    """
    found: list[str] = []
    ranks = (("table", table, 2), ("indices", indices, 1), ("offsets", offsets, 1))
    # A list, not a generator, so that all problems are reported.
    if not all([has_rank(name, array, rank, found) for name, array, rank in ranks]):
        return found
    num_rows, dim = map(int, table.shape)
    length, bags = len(indices), len(offsets) - 1
    if bags < 0 or num_rows < 1 or dim < 1 or max(num_rows, dim) > INT32_MAX:
        found.append(
            f"table is {[num_rows, dim]}, offsets {list(offsets.shape)}: expected at least a row, "
            f"a column and an offset, at most {INT32_MAX} rows and columns"
        )
        return found
    for name, array, sizes, dtypes in (
        ("table", table, {"V": num_rows, "D": dim}, HALVES),
        ("indices", indices, {"L": length}, ("int32",)),
        ("offsets", offsets, {"B + 1": bags + 1}, ("int32",)),
        ("weights", weights, {"L": length}, ("float32",)),
        ("out", out, {"B": bags, "D": dim}, (*same_type(table), "float32")),
    ):
        found += array_problems(name, array, sizes, dtypes)
    if found:
        return found
    first = 0
    for bag, start in enumerate(offsets.tolist()):
        if not first <= start <= length:
            found.append(
                f"offsets[{bag}] is {start}: expected {first} to {length}, none before the one in "
                "front of it, none behind the indices"
            )
            break
        first = start
    return found


def embedding_bag(
    table: Any,
    indices: Any,
    offsets: Any,
    weights: Any,
    out: Any,
    config: Config | None = None,
    launcher: Callable[[Any], Any] = on_gpu,
) -> None:
    """Computes the bags into ``out``.

    Args:
        table: [V, D].
        indices: [L] int32.
        offsets: [B + 1] int32.
        weights: [L] fp32.
        out: [B, D], of the table's type or fp32, is overwritten.
        config: Tiles.
        launcher: What launches a kernel: the kernel itself, or ``xamd.emulated`` for numpy arrays.

    Raises:
        UnsupportedError: There is no GPU that runs the kernel.
        ValueError: The configuration cannot run, or the operands are no bags
            (:func:`bag_problems`).
    """
    config = config or Config()
    if problems := config.problems() or bag_problems(table, indices, offsets, weights, out):
        raise ValueError("\n".join(problems))
    num_rows, dim = table.shape
    launcher(bag_sum)[len(offsets) - 1, -(-dim // config.block_d)](
        table, indices, offsets, weights, out, num_rows, dim,
        BLOCK_R=config.block_r, BLOCK_D=config.block_d, NUM_BUFFERS=config.num_buffers,
        STAGE=config.stage(), num_warps=config.num_warps, **config.layouts(),
    )  # fmt: skip
