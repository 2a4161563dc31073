"""A mixture-of-experts layer on CDNA5: TDM gather, WMMA, TDM scatter, written in Gluon.

Every token goes to TOP_K experts, each of them two matrices with a ReLU in between, and gets the
weighted sum of what they say.  fp16 or bf16, fp32 accumulation, gfx1250, stock Triton 3.8 or newer.

Symbols
    x             [T, D]       tokens
    w_up          [E, D, H]    first matrices of the experts
    w_down        [E, H, D]    second ones
    hidden        [R, H]       R = T * TOP_K rows, ordered by expert
    pairs         [R, D]       row t * TOP_K + j is what the j-th expert of token t says, weighted
    y             [T, D]       the sum of each token's rows
    order         [R]          the row of `pairs` at each place of `hidden`
    weights       [R]          weight of each row of `pairs`
    block_expert  [B]          expert of each block of up to BLOCK_M rows
    block_start   [B]          its first place
    expert_end    [E]          one more than the last place of each expert

GEMM mapping (expert_matmul, once for each matrix; a workgroup has one block of one expert)
    M_GEMM = places of the expert, in blocks; N_GEMM = H, then D; K_GEMM = D, then H

    IS_UP    the left operand is gathered from x: place -> order[place] // TOP_K.  The product goes
             to the block's places of `hidden`, a TDM store.
    else     the left operand is the block's places of `hidden`, a TDM load.  The product goes to
             the rows order[place] of `pairs`, a TDM scatter.

    Ragged ends need no mask.  A place behind the expert's last one gets the row number R, which is
    out of bounds: gathered as zeros, scattered nowhere.  The descriptor of `hidden` ends where the
    expert does.  So does that of a matrix, or the last block along K would read the next expert.

Waves
    All of them issue each TDM copy, each for its part of the rows, and all multiply.

Pipeline (NUM_BUFFERS of each operand's block)
    stage k      gather or load of the left operand's block k, load of the right one's
    in flight    NUM_BUFFERS - 1 stages; with one buffer, the stage that is waited for
    order        wait for stage k; issue stage k + NUM_BUFFERS - 1 into the buffers that were read
                 before; multiply stage k

Waits (TENSORcnt; the compiler puts a barrier behind each, so one wave's wait is for all)
    where                   may be in flight behind it      what it covers
    one buffer, each block  nothing                         the stage that was issued just before
    loop, block k           NUM_BUFFERS - 2 stages          stage k
    behind the loop         NUM_BUFFERS - 2 stages, .. 0    the stages that are left
    end                     nothing                         the store or scatter: LDS is given away

Partitioned LDS (PARTITIONED)
    What is loaded, not gathered, may lie in pieces over two physical partitions of LDS, so that
    waves that read together do not meet in one (xamd.partitioned_dot_layouts): both operands of the
    second product, the right one of the first.  It costs the LDS between the pieces, so it is for
    kernels that fill a workgroup processor alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton_ext.gluon import amd as xamd

from .arguments import HALVES, INT32_MAX, array_problems, has_rank, on_gpu, same_type

__all__ = ["Config", "Routing", "combine", "expert_matmul", "layer_problems", "moe", "route"]

LDS_BYTES = 320 * 1024


@dataclass(frozen=True, kw_only=True)
class Config:
    """Tiles of :func:`expert_matmul`.

    Attributes:
        block_m: Rows of an expert's block.
        block_n: Columns of it.
        block_k: Columns of the left operand that a stage brings.
        num_buffers: Buffers of each operand.
        num_warps: Waves of a workgroup.
        partitioned: Whether loaded operands lie in pieces over the partitions of LDS.
    """

    block_m: int = 64
    block_n: int = 64
    block_k: int = 32
    num_buffers: int = 2
    num_warps: int = 4
    partitioned: bool = False

    def problems(self) -> list[str]:
        """Everything that keeps the configuration from running; empty if nothing does."""
        found = []
        for name in ("block_m", "block_n", "block_k", "num_warps"):
            size = getattr(self, name)
            if size < 1 or size & (size - 1):
                found.append(f"{name} is {size}: expected a power of two")
        if self.block_m < 32 or self.block_n < 32 or self.block_k < 32:
            found.append(
                f"the block is {self.block_m} x {self.block_n} x {self.block_k}: WMMA of 4 waves "
                "needs 32 in each dimension"
            )
        if self.num_warps not in (4, 8):
            found.append(f"num_warps is {self.num_warps}: expected 4 or 8")
        if not 1 <= self.num_buffers <= 4:
            found.append(f"num_buffers is {self.num_buffers}: expected 1 to 4")
        if self.lds_bytes > LDS_BYTES:
            found.append(f"{self.lds_bytes} B of LDS, a workgroup has {LDS_BYTES}")
        return found

    @property
    def lds_bytes(self) -> int:
        """LDS of a workgroup: the operands' buffers and the product, 16 B more for each row.

        Pieces of a buffer lie in different partitions, 64 KiB apart.
        """
        stage = self.block_m * (self.block_k + 8) + self.block_k * (self.block_n + 8)
        product = self.block_m * (self.block_n + 8)
        return 2 * (self.num_buffers * stage + product) + (65536 if self.partitioned else 0)

    def layouts(self, is_up: bool) -> dict[str, Any]:
        """Layouts of one of the two products, as constants of the kernel."""
        found = {
            "IDX_LAYOUT": xamd.index_layout(self.block_m, self.num_warps),
            "A_LAYOUT": xamd.smem_layout([self.block_m, self.block_k], 16),
            "B_LAYOUT": xamd.smem_layout([self.block_k, self.block_n], 16),
            "C_LAYOUT": xamd.smem_layout([self.block_m, self.block_n], 16),
            "ACC_LAYOUT": xamd.wmma_layout(self.num_warps, 2, [16, 16, 32]),
        }
        if self.partitioned:
            dot = xamd.partitioned_dot_layouts(
                [self.block_m, self.block_n, self.block_k],
                16,
                self.num_warps,
                [16, 16, 32],
                cut_a=not is_up,
            )
            found |= {"B_LAYOUT": dot.b, "ACC_LAYOUT": dot.acc}
            found |= {} if dot.a is None else {"A_LAYOUT": dot.a}
        return found

    def stage(self, is_up: bool) -> Any:
        """Returns the TDM operations of one stage: the left operand, the right one."""
        pieces = 2 if self.partitioned else 1
        rows = max(1, self.block_m // self.num_warps)
        loaded = xamd.load_instructions(pieces, self.num_warps)
        left = xamd.rows_instructions(rows, 32) if is_up else loaded
        return xamd.TdmStage((left, loaded))


# ---- device


@gluon.jit
def issue_stage(
    a_desc, b_desc, rows, off_m, off_n, off_k, a_smem, b_smem, IS_UP: gl.constexpr
):  # fmt: skip
    """Starts the copies of one block of both operands."""
    if IS_UP:
        xamd.async_gather(a_desc, rows, off_k, a_smem)
    else:
        xamd.async_load(a_desc, [off_m, off_k], a_smem)
    xamd.async_load(b_desc, [off_k, off_n], b_smem)


@gluon.jit
def multiply(a_smem, b_smem, acc, ACC_LAYOUT: gl.constexpr):
    """Adds the product of two blocks in LDS."""
    a = a_smem.load(gl.DotOperandLayout(0, ACC_LAYOUT, 8))
    b = b_smem.load(gl.DotOperandLayout(1, ACC_LAYOUT, 8))
    return xamd.wmma(a, b, acc)


@gluon.jit
def expert_matmul(
    a_ptr,  # x [T, D] or hidden [R, H]
    w_ptr,  # [E, K, N]
    c_ptr,  # hidden [R, N] or pairs [R, N]
    order_ptr,  # [R]
    weights_ptr,  # [R]
    block_expert_ptr,  # [B]
    block_start_ptr,  # [B]
    expert_end_ptr,  # [E]
    num_tokens,  # T
    num_rows,  # R
    N,
    K,
    TOP_K: gl.constexpr,
    IS_UP: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    NUM_BUFFERS: gl.constexpr,
    STAGE: gl.constexpr,
    IDX_LAYOUT: gl.constexpr,
    A_LAYOUT: gl.constexpr,
    B_LAYOUT: gl.constexpr,
    C_LAYOUT: gl.constexpr,
    ACC_LAYOUT: gl.constexpr,
):
    """One block of one expert's product; see the top of the file."""
    off_m = gl.load(block_start_ptr + gl.program_id(0))
    expert = gl.load(block_expert_ptr + gl.program_id(0))
    end = gl.load(expert_end_ptr + expert)
    off_n = gl.program_id(1) * BLOCK_N
    dtype: gl.constexpr = a_ptr.dtype.element_ty

    places = off_m + gl.arange(0, BLOCK_M, layout=IDX_LAYOUT)
    rows = gl.load(order_ptr + places, mask=places < end, other=num_rows)

    if IS_UP:
        a_desc = xamd.make_tensor_descriptor(
            a_ptr, [num_tokens, K], [K, 1], [BLOCK_M, BLOCK_K], A_LAYOUT
        )
        # The row number R of places behind the end becomes T, out of bounds as well.
        a_rows = rows // TOP_K
    else:
        a_desc = xamd.make_tensor_descriptor(a_ptr, [end, K], [K, 1], [BLOCK_M, BLOCK_K], A_LAYOUT)
        a_rows = rows
    w_expert_ptr = w_ptr + expert.to(gl.int64) * K * N
    b_desc = xamd.make_tensor_descriptor(w_expert_ptr, [K, N], [N, 1], [BLOCK_K, BLOCK_N], B_LAYOUT)

    a_smem = gl.allocate_shared_memory(dtype, [NUM_BUFFERS, BLOCK_M, BLOCK_K], A_LAYOUT)
    b_smem = gl.allocate_shared_memory(dtype, [NUM_BUFFERS, BLOCK_K, BLOCK_N], B_LAYOUT)
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, ACC_LAYOUT)
    num_blocks = gl.cdiv(K, BLOCK_K)

    if NUM_BUFFERS == 1:
        a_slot = a_smem.index(0)
        b_slot = b_smem.index(0)
        for block in range(num_blocks):
            off_k = block * BLOCK_K
            issue_stage(a_desc, b_desc, a_rows, off_m, off_n, off_k, a_slot, b_slot, IS_UP)
            xamd.async_wait_stage(STAGE)
            acc = multiply(a_slot, b_slot, acc, ACC_LAYOUT)
    else:
        # Stages behind the last block bring zeros.
        for first in gl.static_range(NUM_BUFFERS - 1):
            issue_stage(
                a_desc, b_desc, a_rows, off_m, off_n, first * BLOCK_K,
                a_smem.index(first), b_smem.index(first), IS_UP,
            )  # fmt: skip
        # Carried through the loop, so that the waits behind it can be proven from its last value.
        block = 0
        for _ in range(num_blocks - (NUM_BUFFERS - 1)):
            xamd.async_wait_stage(STAGE, behind=NUM_BUFFERS - 2)
            ahead = block + NUM_BUFFERS - 1
            fill = ahead % NUM_BUFFERS
            issue_stage(
                a_desc, b_desc, a_rows, off_m, off_n, ahead * BLOCK_K,
                a_smem.index(fill), b_smem.index(fill), IS_UP,
            )  # fmt: skip
            slot = block % NUM_BUFFERS
            acc = multiply(a_smem.index(slot), b_smem.index(slot), acc, ACC_LAYOUT)
            block += 1
        for left in gl.static_range(NUM_BUFFERS - 1):
            xamd.async_wait_stage(STAGE, behind=NUM_BUFFERS - 2 - left)
            slot = (block + left) % NUM_BUFFERS
            acc = multiply(a_smem.index(slot), b_smem.index(slot), acc, ACC_LAYOUT)

    c_smem = gl.allocate_shared_memory(dtype, [BLOCK_M, BLOCK_N], C_LAYOUT)
    if IS_UP:
        c_smem.store(gl.maximum(acc, 0.0).to(dtype))
        c_desc = xamd.make_tensor_descriptor(c_ptr, [end, N], [N, 1], [BLOCK_M, BLOCK_N], C_LAYOUT)
        xamd.async_store(c_desc, [off_m, off_n], c_smem)
    else:
        acc_places = off_m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, ACC_LAYOUT))
        is_place = acc_places < end
        acc_rows = gl.load(order_ptr + acc_places, mask=is_place, other=0)
        weights = gl.load(weights_ptr + acc_rows, mask=is_place, other=0.0)
        c_smem.store((acc * gl.expand_dims(weights, 1)).to(dtype))
        c_desc = xamd.make_tensor_descriptor(
            c_ptr, [num_rows, N], [N, 1], [BLOCK_M, BLOCK_N], C_LAYOUT
        )
        xamd.async_scatter(c_desc, rows, off_n, c_smem)
    xamd.async_wait(0)


@gluon.jit
def combine(
    pairs_ptr,  # [T * TOP_K, N]
    y_ptr,  # [T, N]
    num_tokens,
    N,
    TOP_K: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    LAYOUT: gl.constexpr,
):
    """Adds the rows of each token."""
    offs_m = gl.program_id(0) * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LAYOUT))
    offs_n = gl.program_id(1) * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, LAYOUT))
    # 64 bits: rows times columns may exceed 32 bits.
    offs_m = gl.expand_dims(offs_m, 1).to(gl.int64)
    offs_n = gl.expand_dims(offs_n, 0)
    mask = (offs_m < num_tokens) & (offs_n < N)
    total = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, LAYOUT)
    for j in gl.static_range(TOP_K):
        total += gl.load(pairs_ptr + (offs_m * TOP_K + j) * N + offs_n, mask=mask, other=0.0)
    gl.store(y_ptr + offs_m * N + offs_n, total.to(y_ptr.dtype.element_ty), mask=mask)


# ---- host


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Where the rows of a layer go; all arrays of int32.

    Attributes:
        block_m: Rows of a block.
        order: [R] row of ``pairs`` at each place, ordered by expert.
        block_expert: [B] expert of each block.
        block_start: [B] its first place.
        expert_end: [E] one more than the last place of each expert.
    """

    block_m: int
    order: np.ndarray
    block_expert: np.ndarray
    block_start: np.ndarray
    expert_end: np.ndarray

    def map(self, convert: Callable[[np.ndarray], Any]) -> Routing:
        """The same with converted arrays: ``lambda a: torch.from_numpy(a).cuda()``."""
        return replace(
            self,
            order=convert(self.order),
            block_expert=convert(self.block_expert),
            block_start=convert(self.block_start),
            expert_end=convert(self.expert_end),
        )


def route(experts: np.ndarray, num_experts: int, block_m: int) -> Routing:
    """Orders rows by expert and cuts each expert's rows into blocks.

    Args:
        experts: [T, TOP_K] experts of each token; -1 for a row that goes nowhere.
        num_experts: E.
        block_m: Rows of a block, those of the configuration that the layer is computed with.

    Raises:
        ValueError: An expert is out of range or no integer, or ``block_m`` is less than 1.
    """
    if block_m < 1:
        raise ValueError(f"block_m is {block_m}: expected at least 1")
    given = np.asarray(experts)
    if given.dtype.kind not in "iu":
        raise ValueError(f"experts are of {given.dtype}: expected integers")
    flat = given.astype(np.int64).reshape(-1)
    if ((flat < -1) | (flat >= num_experts)).any():
        raise ValueError(f"expected experts of 0 to {num_experts - 1}, or -1")
    order = np.argsort(flat, kind="stable")
    counts = np.bincount(flat[flat >= 0], minlength=num_experts)
    # Rows that go nowhere come first in the order, and are in no block.
    ends = np.cumsum(counts) + (flat < 0).sum()
    blocks = -(-counts // block_m)
    block_expert = np.repeat(np.arange(num_experts), blocks)
    number = np.arange(blocks.sum()) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    block_start = (ends - counts)[block_expert] + number * block_m
    found = Routing(
        block_m=block_m,
        order=order,
        block_expert=block_expert,
        block_start=block_start,
        expert_end=ends,
    )
    return found.map(lambda array: array.astype(np.int32))


def layer_problems(
    x: Any,
    w_up: Any,
    w_down: Any,
    weights: Any,
    routing: Any,
    hidden: Any,
    pairs: Any,
    y: Any,
    config: Config,
) -> list[str]:
    """Returns the violations in the operands of :func:`moe`; empty if there are none.

    Assumes that :func:`route` made the numbers in the arrays of ``routing``.
    """
    found: list[str] = []
    ranks = (("x", x, 2), ("w_up", w_up, 3), ("weights", weights, 2))
    # A list, not a generator, so that all problems are reported.
    if not all([has_rank(name, array, rank, found) for name, array, rank in ranks]):
        return found
    if not isinstance(routing, Routing):
        return [f"routing is a {type(routing).__name__}: expected what route() gives"]
    tokens, dim = map(int, x.shape)
    experts, dim_hidden = int(w_up.shape[0]), int(w_up.shape[2])
    top_k = int(weights.shape[1])
    rows = tokens * top_k
    if min(tokens, dim, experts, dim_hidden, top_k) < 1:
        return [f"x is {list(x.shape)}, w_up {list(w_up.shape)}: expected no empty dimension"]
    if rows > INT32_MAX:
        found.append(f"{tokens} tokens of {top_k} experts: expected at most {INT32_MAX} rows")
    if routing.block_m != config.block_m:
        # Blocks of more rows than a workgroup computes would leave tokens out.
        found.append(
            f"routing has blocks of {routing.block_m} rows and config of {config.block_m}: "
            f"expected the same, route(experts, {experts}, {config.block_m})"
        )
    found += array_problems("x", x, {"T": tokens, "D": dim}, HALVES)
    same = same_type(x)
    for name, array, sizes, dtypes in (
        ("w_up", w_up, {"E": experts, "D": dim, "H": dim_hidden}, same),
        ("w_down", w_down, {"E": experts, "H": dim_hidden, "D": dim}, same),
        ("weights", weights, {"T": tokens, "TOP_K": top_k}, ("float32",)),
        ("hidden", hidden, {"T * TOP_K": rows, "H": dim_hidden}, same),
        ("pairs", pairs, {"T * TOP_K": rows, "D": dim}, same),
        ("y", y, {"T": tokens, "D": dim}, (*same, "float32")),
        ("routing.order", routing.order, {"T * TOP_K": rows}, ("int32",)),
        ("routing.expert_end", routing.expert_end, {"E": experts}, ("int32",)),
        (
            "routing.block_start",
            routing.block_start,
            {"B": len(routing.block_expert)},
            ("int32",),
        ),
        (
            "routing.block_expert",
            routing.block_expert,
            {"B": len(routing.block_expert)},
            ("int32",),
        ),
    ):
        found += array_problems(name, array, sizes, dtypes)
    return found


def moe(
    x: Any,
    w_up: Any,
    w_down: Any,
    weights: Any,
    routing: Any,
    hidden: Any,
    pairs: Any,
    y: Any,
    config: Config | None = None,
    launcher: Callable[[Any], Any] = on_gpu,
) -> None:
    """Computes the layer into ``y``.

    Args:
        x: [T, D] tokens.
        w_up: [E, D, H].
        w_down: [E, H, D].
        weights: [T, TOP_K] fp32.
        routing: Of :func:`route`, with its arrays where the others are.
        hidden: [T * TOP_K, H], is overwritten.
        pairs: [T * TOP_K, D], zeros: rows of no expert stay as they are.
        y: [T, D], of the others' type or fp32, is overwritten.
        config: Tiles; its ``block_m`` is that of ``routing``.
        launcher: What launches a kernel: the kernel itself, or ``xamd.emulated`` for numpy arrays.

    Raises:
        UnsupportedError: There is no GPU that runs the kernel.
        ValueError: The configuration cannot run, or the operands are no layer
            (:func:`layer_problems`).
    """
    config = config or Config()
    problems = config.problems() or layer_problems(
        x, w_up, w_down, weights, routing, hidden, pairs, y, config
    )
    if problems:
        raise ValueError("\n".join(problems))
    num_tokens, dim = x.shape
    dim_hidden = w_up.shape[2]
    top_k = weights.shape[1]
    num_rows = num_tokens * top_k
    num_blocks = len(routing.block_expert)

    def matmul(a: Any, w: Any, c: Any, n: int, k: int, is_up: bool) -> None:
        launcher(expert_matmul)[num_blocks, -(-n // config.block_n)](
            a, w, c, routing.order, weights.reshape(-1),
            routing.block_expert, routing.block_start, routing.expert_end,
            num_tokens, num_rows, n, k,
            TOP_K=top_k, IS_UP=is_up,
            BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
            NUM_BUFFERS=config.num_buffers, STAGE=config.stage(is_up),
            num_warps=config.num_warps, **config.layouts(is_up),
        )  # fmt: skip

    if num_blocks:
        matmul(x, w_up, hidden, dim_hidden, dim, True)
        matmul(hidden, w_down, pairs, dim, dim_hidden, False)
    layout = gl.BlockedLayout([1, 8], [4, 8], [config.num_warps, 1], [1, 0])
    launcher(combine)[-(-num_tokens // 32), -(-dim // 64)](
        pairs, y, num_tokens, dim, TOP_K=top_k, BLOCK_M=32, BLOCK_N=64, LAYOUT=layout,
        num_warps=config.num_warps,
    )  # fmt: skip
