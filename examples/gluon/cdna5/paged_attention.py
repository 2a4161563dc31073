"""Attention over a paged cache on CDNA5 (decoding), with TDM gathers, written in Gluon.

One new token per sequence attends to the tokens of its sequence, which lie in pages anywhere in
the cache.  fp16 or bf16, fp32 softmax, gfx1250, stock Triton 3.8 or newer.

Symbols
    q            [B, KV_HEADS * GROUP, D]            query heads, GROUP of them share a kv head
    k_cache      [PAGES * PAGE_SIZE * KV_HEADS, D]   keys: row (page * PAGE_SIZE + i) * KV_HEADS + h
    v_cache      the same for values
    block_table  [B, MAX_PAGES]                      pages of each sequence
    seq_lens     [B]                                 tokens of each sequence
    out          [B, KV_HEADS * GROUP, D]

Mapping
    A workgroup has one sequence and one kv head.  Its GROUP query heads are rows of a block of
    BLOCK_M = 16; rows that are no head are zeros.  A stage gathers BLOCK_T tokens, which may be of
    several pages: the data mover takes rows, so a page needs no size of its own.  Tokens behind the
    sequence's end get the first row number that is out of bounds: their keys and values are zeros,
    and their scores are -inf.

    scores [BLOCK_M, BLOCK_T] = q @ k.T      WMMA, k is read transposed from LDS
    p = exp2(scores - max)                   online softmax, in base 2
    acc [BLOCK_M, D] = acc * scale + p @ v   WMMA

Waves
    All of them issue each gather, each for its part of the rows.  They multiply side by side along
    the tokens, then along D.

Pipeline (NUM_BUFFERS blocks of keys and of values)
    stage k      gather of the keys of block k, gather of its values
    in flight    NUM_BUFFERS - 1 stages
    order        wait for stage k; issue stage k + NUM_BUFFERS - 1 into the buffers that were read
                 before; multiply block k

Waits (TENSORcnt; the compiler puts a barrier behind each, so one wave's wait is for all)
    where              may be in flight behind it          what it covers
    loop, block k      NUM_BUFFERS - 2 stages and values   the keys of stage k
    loop, block k      NUM_BUFFERS - 1 stages              its values; stage k + NUM_BUFFERS - 1 was
                                                           issued in between
    behind the loop    what is left of the same            the stages that are left

    Keys are waited for without their values: scores are computed while those may still arrive.

Nothing is partitioned: the data mover does not gather into pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton_ext.gluon import amd as xamd

from .arguments import HALVES, INT32_MAX, array_problems, has_rank, on_gpu, same_type

__all__ = ["Config", "cache_problems", "decode", "paged_attention"]

#: Rows of the block of query heads: those of one WMMA instruction.
BLOCK_M = 16

LDS_BYTES = 320 * 1024


@dataclass(frozen=True, kw_only=True)
class Config:
    """Tiles of :func:`decode`.

    Attributes:
        block_t: Tokens of a stage.
        num_buffers: Blocks of keys and of values in LDS.
        num_warps: Waves of a workgroup.
    """

    block_t: int = 64
    num_buffers: int = 2
    num_warps: int = 4

    def problems(self, dim: int, group: int) -> list[str]:
        """Everything that keeps the configuration from running; empty if nothing does."""
        found = []
        if self.num_warps not in (2, 4):
            found.append(f"num_warps is {self.num_warps}: expected 2 or 4")
        for name, size in (("block_t", self.block_t), ("D", dim)):
            if size & (size - 1) or size < 16 * self.num_warps:
                found.append(
                    f"{name} is {size}: expected a power of two of at least {16 * self.num_warps}, "
                    "16 columns for each wave"
                )
        if not 2 <= self.num_buffers <= 4:
            found.append(f"num_buffers is {self.num_buffers}: expected 2 to 4")
        if not 1 <= group <= BLOCK_M:
            found.append(f"{group} query heads share a kv head: expected 1 to {BLOCK_M}")
        if self.lds_bytes(dim) > LDS_BYTES:
            found.append(f"{self.lds_bytes(dim)} B of LDS, a workgroup has {LDS_BYTES}")
        return found

    def lds_bytes(self, dim: int) -> int:
        """LDS of a workgroup: keys and values, 16 B more for each row, 8 KiB for the softmax."""
        return 2 * 2 * self.num_buffers * self.block_t * (dim + 8) + 8192

    def layouts(self, dim: int) -> dict[str, Any]:
        """Layouts, as constants of the kernel."""
        return {
            "IDX_LAYOUT": xamd.index_layout(self.block_t, self.num_warps),
            "KV_LAYOUT": xamd.smem_layout([self.block_t, dim], 16),
            "ACC_LAYOUT": xamd.wmma_layout(self.num_warps, 1, [16, 16, 32]),
        }

    def stage(self) -> Any:
        """Returns the TDM operations of one stage of the pipeline: keys, values."""
        count = xamd.rows_instructions(max(1, self.block_t // self.num_warps), 32)
        return xamd.TdmStage((count, count))


# ---- device


@gluon.jit
def issue_stage(
    k_desc, v_desc, pages_ptr, first, seq_len, num_rows, head, k_smem, v_smem,
    KV_HEADS: gl.constexpr, PAGE_SIZE: gl.constexpr, IDX_LAYOUT: gl.constexpr,
):  # fmt: skip
    """Starts the gathers of one block of tokens, the keys first."""
    BLOCK_T: gl.constexpr = k_smem.shape[0]
    tokens = first + gl.arange(0, BLOCK_T, layout=IDX_LAYOUT)
    is_token = tokens < seq_len
    pages = gl.load(pages_ptr + tokens // PAGE_SIZE, mask=is_token, other=0)
    rows = (pages * PAGE_SIZE + tokens % PAGE_SIZE) * KV_HEADS + head
    rows = gl.where(is_token, rows, num_rows)
    xamd.async_gather(k_desc, rows, 0, k_smem)
    xamd.async_gather(v_desc, rows, 0, v_smem)


@gluon.jit
def scores_of(q, k_smem, first, seq_len, ACC_LAYOUT: gl.constexpr):
    """Scores of one block of tokens whose keys have arrived."""
    BLOCK_T: gl.constexpr = k_smem.shape[0]
    k = k_smem.permute([1, 0]).load(gl.DotOperandLayout(1, ACC_LAYOUT, 8))
    scores = xamd.wmma(q, k, gl.zeros([16, BLOCK_T], gl.float32, ACC_LAYOUT))
    tokens = first + gl.arange(0, BLOCK_T, layout=gl.SliceLayout(0, ACC_LAYOUT))
    return gl.where(gl.expand_dims(tokens < seq_len, 0), scores, float("-inf"))


@gluon.jit
def attend(scores, v_smem, acc, total, most, ACC_LAYOUT: gl.constexpr):
    """Adds one block of tokens whose values have arrived."""
    new_most = gl.maximum(most, gl.max(scores, axis=1))
    # A block without a token leaves everything at -inf, and -inf - -inf is not a number.
    shift = gl.where(new_most == float("-inf"), 0.0, new_most)
    p = gl.exp2(scores - gl.expand_dims(shift, 1))
    scale = gl.exp2(most - shift)
    total = total * scale + gl.sum(p, axis=1)
    p = gl.convert_layout(p.to(v_smem.dtype), gl.DotOperandLayout(0, ACC_LAYOUT, 8))
    v = v_smem.load(gl.DotOperandLayout(1, ACC_LAYOUT, 8))
    acc = xamd.wmma(p, v, acc * gl.expand_dims(scale, 1))
    return acc, total, new_most


@gluon.jit
def decode(
    q_ptr,  # [B, KV_HEADS * GROUP, D]
    k_ptr,  # [num_rows, D]
    v_ptr,  # [num_rows, D]
    block_table_ptr,  # [B, max_pages]
    seq_lens_ptr,  # [B]
    out_ptr,  # [B, KV_HEADS * GROUP, D]
    num_rows,  # of the cache
    max_pages,
    scale,  # of the scores, times log2(e)
    GROUP: gl.constexpr,
    KV_HEADS: gl.constexpr,
    PAGE_SIZE: gl.constexpr,
    D: gl.constexpr,
    BLOCK_T: gl.constexpr,
    NUM_BUFFERS: gl.constexpr,
    STAGE: gl.constexpr,
    IDX_LAYOUT: gl.constexpr,
    KV_LAYOUT: gl.constexpr,
    ACC_LAYOUT: gl.constexpr,
):
    """One sequence and one kv head; see the top of the file."""
    seq = gl.program_id(0)
    head = gl.program_id(1)
    seq_len = gl.load(seq_lens_ptr + seq)
    # 64 bits, as for the rows of q and out: sequences times sizes may exceed 32 bits.
    pages_ptr = block_table_ptr + seq.to(gl.int64) * max_pages
    num_blocks = gl.cdiv(seq_len, BLOCK_T)
    dtype: gl.constexpr = k_ptr.dtype.element_ty

    k_desc = xamd.make_tensor_descriptor(k_ptr, [num_rows, D], [D, 1], [BLOCK_T, D], KV_LAYOUT)
    v_desc = xamd.make_tensor_descriptor(v_ptr, [num_rows, D], [D, 1], [BLOCK_T, D], KV_LAYOUT)
    k_smem = gl.allocate_shared_memory(dtype, [NUM_BUFFERS, BLOCK_T, D], KV_LAYOUT)
    v_smem = gl.allocate_shared_memory(dtype, [NUM_BUFFERS, BLOCK_T, D], KV_LAYOUT)

    # Stages behind the last block bring zeros, and scores of -inf.
    for block in gl.static_range(NUM_BUFFERS - 1):
        issue_stage(
            k_desc, v_desc, pages_ptr, block * BLOCK_T, seq_len, num_rows, head,
            k_smem.index(block), v_smem.index(block), KV_HEADS, PAGE_SIZE, IDX_LAYOUT,
        )  # fmt: skip

    Q_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, ACC_LAYOUT, 8)
    offs_m = gl.expand_dims(gl.arange(0, 16, layout=gl.SliceLayout(1, Q_LAYOUT)), 1)
    offs_d = gl.expand_dims(gl.arange(0, D, layout=gl.SliceLayout(0, Q_LAYOUT)), 0)
    heads = (seq.to(gl.int64) * KV_HEADS + head) * GROUP
    q = gl.load(q_ptr + (heads + offs_m) * D + offs_d, mask=offs_m < GROUP, other=0.0)
    q = (q.to(gl.float32) * scale).to(dtype)

    acc = gl.zeros([16, D], gl.float32, ACC_LAYOUT)
    total = gl.zeros([16], gl.float32, gl.SliceLayout(1, ACC_LAYOUT))
    most = gl.full([16], float("-inf"), gl.float32, gl.SliceLayout(1, ACC_LAYOUT))
    # Carried through the loop, so that the waits behind it can be proven from its last value.
    done = 0
    for _ in range(num_blocks - (NUM_BUFFERS - 1)):
        slot = done % NUM_BUFFERS
        xamd.async_wait_stage(STAGE, behind=NUM_BUFFERS - 2, newer=1)
        scores = scores_of(q, k_smem.index(slot), done * BLOCK_T, seq_len, ACC_LAYOUT)
        ahead = done + NUM_BUFFERS - 1
        fill = ahead % NUM_BUFFERS
        issue_stage(
            k_desc, v_desc, pages_ptr, ahead * BLOCK_T, seq_len, num_rows, head,
            k_smem.index(fill), v_smem.index(fill), KV_HEADS, PAGE_SIZE, IDX_LAYOUT,
        )  # fmt: skip
        xamd.async_wait_stage(STAGE, behind=NUM_BUFFERS - 1)
        acc, total, most = attend(scores, v_smem.index(slot), acc, total, most, ACC_LAYOUT)
        done += 1
    for left in gl.static_range(NUM_BUFFERS - 1):
        slot = (done + left) % NUM_BUFFERS
        first = (done + left) * BLOCK_T
        xamd.async_wait_stage(STAGE, behind=NUM_BUFFERS - 2 - left, newer=1)
        scores = scores_of(q, k_smem.index(slot), first, seq_len, ACC_LAYOUT)
        xamd.async_wait_stage(STAGE, behind=NUM_BUFFERS - 2 - left)
        acc, total, most = attend(scores, v_smem.index(slot), acc, total, most, ACC_LAYOUT)

    # A sequence without tokens gives zeros.
    acc = acc / gl.expand_dims(gl.where(total == 0.0, 1.0, total), 1)
    out_m = gl.expand_dims(gl.arange(0, 16, layout=gl.SliceLayout(1, ACC_LAYOUT)), 1)
    out_d = gl.expand_dims(gl.arange(0, D, layout=gl.SliceLayout(0, ACC_LAYOUT)), 0)
    gl.store(out_ptr + (heads + out_m) * D + out_d, acc.to(dtype), mask=out_m < GROUP)


# ---- host


def cache_problems(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_table: Any,
    seq_lens: Any,
    out: Any,
    kv_heads: int,
    page_size: int,
) -> list[str]:
    """Returns the violations in the operands of paged attention; empty if there are none.

    Reads lengths and page numbers, which waits for the GPU if they are there.
    """
    found: list[str] = []
    for what, number in (("kv_heads", kv_heads), ("page_size", page_size)):
        if not isinstance(number, int) or number < 1:
            found.append(f"{what} is {number!r}: expected an int of at least 1")
    ranks = (("q", q, 3), ("k_cache", k_cache, 2), ("block_table", block_table, 2))
    # A list, not a generator, so that all problems are reported.
    fits = all([has_rank(name, array, rank, found) for name, array, rank in ranks])
    if found or not fits:
        return found
    seqs, heads, dim = map(int, q.shape)
    rows, max_pages = int(k_cache.shape[0]), int(block_table.shape[1])
    same = same_type(q)
    for name, array, sizes, dtypes in (
        ("q", q, {"B": seqs, "heads": heads, "D": dim}, HALVES),
        ("k_cache", k_cache, {"rows": rows, "D": dim}, same),
        ("v_cache", v_cache, {"rows": rows, "D": dim}, same),
        ("block_table", block_table, {"B": seqs, "MAX_PAGES": max_pages}, ("int32",)),
        ("seq_lens", seq_lens, {"B": seqs}, ("int32",)),
        ("out", out, {"B": seqs, "heads": heads, "D": dim}, same),
    ):
        found += array_problems(name, array, sizes, dtypes)
    if heads % kv_heads:
        found.append(f"{heads} query heads cannot share {kv_heads} kv heads evenly")
    if rows % (page_size * kv_heads) or not 0 < rows <= INT32_MAX:
        found.append(
            f"k_cache has {rows} rows: expected PAGES * {page_size} * {kv_heads}, a row for each "
            f"token of a page and kv head, at most {INT32_MAX}"
        )
    if found:
        return found
    pages = k_cache.shape[0] // (page_size * kv_heads)
    table = block_table.tolist()
    tokens = block_table.shape[1] * page_size
    for seq, length in enumerate(seq_lens.tolist()):
        if not 0 <= length <= tokens:
            # The kernel would go on in the pages of the next sequence.
            found.append(
                f"seq_lens[{seq}] is {length}: expected 0 to {tokens}, "
                f"{block_table.shape[1]} pages of {page_size} tokens"
            )
            continue
        # Pages behind a sequence are not looked at.
        for index, page in enumerate(table[seq][: -(-length // page_size)]):
            if not 0 <= page < pages:
                found.append(
                    f"block_table[{seq}, {index}] is {page}: expected 0 to {pages - 1}, the pages "
                    "of the cache"
                )
    return found


def paged_attention(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_table: Any,
    seq_lens: Any,
    out: Any,
    kv_heads: int,
    page_size: int,
    config: Config | None = None,
    launcher: Callable[[Any], Any] = on_gpu,
) -> None:
    """Computes the attention of one token per sequence into ``out``.

    Args:
        q: [B, heads, D].
        k_cache: [PAGES * page_size * kv_heads, D], of one type with ``q``.
        v_cache: The same.
        block_table: [B, MAX_PAGES] int32, pages of the cache as far as a sequence goes.
        seq_lens: [B] int32, each of at most MAX_PAGES * page_size tokens.
        out: [B, heads, D], of the same type, is overwritten.
        kv_heads: Heads of keys and values; they divide the query heads.
        page_size: Tokens of a page.
        config: Tiles.
        launcher: What launches a kernel: the kernel itself, or ``xamd.emulated`` for numpy arrays.

    Raises:
        UnsupportedError: There is no GPU that runs the kernel.
        ValueError: The configuration cannot run, or the cache cannot be attended to
            (:func:`cache_problems`).
    """
    config = config or Config()
    if problems := cache_problems(
        q, k_cache, v_cache, block_table, seq_lens, out, kv_heads, page_size
    ):
        raise ValueError("\n".join(problems))
    num_seqs, heads, dim = q.shape
    if problems := config.problems(dim, heads // kv_heads):
        raise ValueError("\n".join(problems))
    launcher(decode)[num_seqs, kv_heads](
        q, k_cache, v_cache, block_table, seq_lens, out,
        k_cache.shape[0], block_table.shape[1], math.log2(math.e) / math.sqrt(dim),
        GROUP=heads // kv_heads, KV_HEADS=kv_heads, PAGE_SIZE=page_size, D=dim,
        BLOCK_T=config.block_t, NUM_BUFFERS=config.num_buffers, STAGE=config.stage(),
        num_warps=config.num_warps, **config.layouts(dim),
    )  # fmt: skip
