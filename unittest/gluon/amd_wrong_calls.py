"""One kernel with every wrong call of a device function of triton_ext.gluon.amd."""

# ruff: noqa: E501  # sentences stand as they are said

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton_ext.gluon import amd as xamd

__all__ = ["CALLS", "STAGE", "wrong_call"]

STAGE = xamd.TdmStage((1, 2))


@dataclass(frozen=True)
class Call:
    """A call that is refused.

    Attributes:
        text: As it stands in the kernel.
        message: What is said of it.
        positions: Whether descriptors have to carry positions for it.
    """

    text: str
    message: str
    positions: bool = False


@gluon.jit
def wrong_call(
    p, i, n, SMEM: gl.constexpr, IDX: gl.constexpr, STAGE: gl.constexpr, CASE: gl.constexpr
):
    d = xamd.make_tensor_descriptor(p, [n, 64], [64, 1], [32, 64], SMEM)
    s = gl.allocate_shared_memory(gl.float16, [32, 64], SMEM)
    rows = gl.load(i + gl.arange(0, 32, layout=IDX))
    if CASE == 0:
        xamd.async_gather(d, rows, 0, n)
    elif CASE == 1:
        xamd.async_gather(d, rows, n * 1.5, s)
    elif CASE == 2:
        xamd.async_gather(d, rows, rows, s)
    elif CASE == 3:
        xamd.async_gather(d, rows, None, s)
    elif CASE == 4:
        xamd.async_gather(d, rows, 5000000000, s)
    elif CASE == 5:
        xamd.async_gather(d, rows, 0, s, pred=rows)
    elif CASE == 6:
        xamd.async_gather(d, rows, 0, s, pred="x")
    elif CASE == 7:
        xamd.async_gather(d, rows)
    elif CASE == 8:
        xamd.async_gather(d, gl.arange(0, 32, layout=gl.AutoLayout()), 0, s)
    elif CASE == 9:
        xamd.async_load(d, [0, 0], s, pred=0.5)
    elif CASE == 10:
        xamd.async_load(d, [0, 0.5], s)
    elif CASE == 11:
        xamd.async_load(d, [0, rows], s)
    elif CASE == 12:
        xamd.async_load(d, [n > 0, 0], s)
    elif CASE == 13:
        xamd.async_load(d, [n.to(gl.int64), 0], s)
    elif CASE == 14:
        xamd.async_load(d, [0, 0], s, warp_used_hint=0)
    elif CASE == 15:
        xamd.async_load(d, [0, 0], s, warp_used_hint=256)
    elif CASE == 16:
        xamd.async_load(d, [0, 0], s, warp_used_hint=n)
    elif CASE == 17:
        xamd.async_store(d, [0, 0], p)
    elif CASE == 18:
        xamd.make_tensor_descriptor(p, n, [64, 1], [32, 64], SMEM)
    elif CASE == 19:
        xamd.make_tensor_descriptor(p, [n, 64], [64, 1], 32, SMEM)
    elif CASE == 20:
        xamd.make_tensor_descriptor(p, [n, 64], [64, 1], [32, n], SMEM)
    elif CASE == 21:
        xamd.make_tensor_descriptor(p, [n, 1.5], [64, 1], [32, 64], SMEM)
    elif CASE == 22:
        xamd.make_tensor_descriptor(p, [n, 64], [64, n], [32, 64], SMEM)
    elif CASE == 23:
        xamd.make_tensor_descriptor(p, [n, 64], [-64, 1], [32, 64], SMEM)
    elif CASE == 24:
        xamd.make_tensor_descriptor(p, [-5, 64], [64, 1], [32, 64], SMEM)
    elif CASE == 25:
        xamd.make_tensor_descriptor(p + rows, [n, 64], [64, 1], [32, 64], SMEM)
    elif CASE == 26:
        xamd.update_tensor_descriptor(d, add_offsets=n)
    elif CASE == 27:
        xamd.update_tensor_descriptor(d, add_offsets=[0, 0.5])
    elif CASE == 28:
        xamd.update_tensor_descriptor(d, pred=1.5)
    elif CASE == 29:
        xamd.update_tensor_descriptor(d, [0, 0], clamp_bounds=n)
    elif CASE == 30:
        xamd.async_load_fused(d)
    elif CASE == 31:
        xamd.async_load_fused([(d, s, 3)])
    elif CASE == 32:
        xamd.async_load_fused([(d, s, 3), (d, s, 6)])
    elif CASE == 33:
        xamd.async_load_fused([(d, n, 3), (d, s, 12)])
    elif CASE == 34:
        xamd.async_load_fused([(d, s, 0), (d, s, 12)])
    elif CASE == 35:
        xamd.async_wait(n)
    elif CASE == 36:
        xamd.async_wait(True)
    elif CASE == 37:
        xamd.async_wait_stage(STAGE, behind=n)
    elif CASE == 38:
        xamd.async_wait_stage(STAGE, newer=None)
    elif CASE == 39:
        xamd.async_wait_instructions("a", STAGE)
    elif CASE == 40:
        xamd.wmma(s, s, n)
    elif CASE == 41:
        xamd.wmma(rows, rows, rows)
    elif CASE == 42:
        xamd.update_tensor_descriptor(d, None, pred=True, clamp_bounds=True)
    elif CASE == 43:
        xamd.update_tensor_descriptor(d, None, None, None)


CALLS = (
    Call(
        "xamd.async_gather(d, rows, 0, n)",
        "async_gather: expected shared memory, got a scalar int32",
    ),
    Call(
        "xamd.async_gather(d, rows, n * 1.5, s)",
        "async_gather: column: expected an integer scalar of 32 bits, got a scalar fp32",
    ),
    Call(
        "xamd.async_gather(d, rows, rows, s)",
        "async_gather: column: expected an integer scalar of 32 bits, got a tensor of int32",
    ),
    Call(
        "xamd.async_gather(d, rows, None, s)",
        "async_gather: column: expected an integer scalar, got None",
    ),
    Call(
        "xamd.async_gather(d, rows, 5000000000, s)",
        "async_gather: column is 5000000000, which does not fit into 32 bits",
    ),
    Call(
        "xamd.async_gather(d, rows, 0, s, pred=rows)",
        "async_gather: pred: expected a bool, or an int1 or int32 scalar, got a tensor of int32",
        positions=True,
    ),
    Call(
        'xamd.async_gather(d, rows, 0, s, pred="x")',
        "async_gather: pred: expected a bool, or an int1 or int32 scalar, got 'x'",
        positions=True,
    ),
    Call(
        "xamd.async_gather(d, rows)",
        "async_gather() missing 2 required positional arguments: 'column' and 'smem'",
    ),
    Call(
        "xamd.async_gather(d, gl.arange(0, 32, layout=gl.AutoLayout()), 0, s)",
        "async_gather: row indices need an explicit layout: xamd.index_layout(rows, num_warps)",
    ),
    Call(
        "xamd.async_load(d, [0, 0], s, pred=0.5)",
        "async_load: pred: expected a bool, or an int1 or int32 scalar, got 0.5",
    ),
    Call(
        "xamd.async_load(d, [0, 0.5], s)",
        "async_load: offsets[1]: expected an integer scalar, got 0.5",
    ),
    Call(
        "xamd.async_load(d, [0, rows], s)",
        "async_load: offsets[1]: expected an integer scalar of 32 bits, got a tensor of int32",
    ),
    Call(
        "xamd.async_load(d, [n > 0, 0], s)",
        "async_load: offsets[0]: expected an integer scalar of 32 bits, got a scalar int1",
    ),
    Call(
        "xamd.async_load(d, [n.to(gl.int64), 0], s)",
        "async_load: offsets[0]: expected an integer scalar of 32 bits, got a scalar int64",
    ),
    Call(
        "xamd.async_load(d, [0, 0], s, warp_used_hint=0)",
        "async_load: warp_used_hint is 0x0: expected one bit for each participating wave, of 4 waves",
    ),
    Call(
        "xamd.async_load(d, [0, 0], s, warp_used_hint=256)",
        "async_load: warp_used_hint is 0x100: expected one bit for each participating wave, of 4 waves",
    ),
    Call(
        "xamd.async_load(d, [0, 0], s, warp_used_hint=n)",
        "async_load: warp_used_hint: expected a constant integer, got a scalar int32",
    ),
    Call(
        "xamd.async_store(d, [0, 0], p)",
        "async_store: expected shared memory, got a scalar pointer<fp16>",
    ),
    Call(
        "xamd.make_tensor_descriptor(p, n, [64, 1], [32, 64], SMEM)",
        "make_tensor_descriptor: shape: expected a list, got a scalar int32",
    ),
    Call(
        "xamd.make_tensor_descriptor(p, [n, 64], [64, 1], 32, SMEM)",
        "make_tensor_descriptor: block_shape: expected a list, got 32",
    ),
    Call(
        "xamd.make_tensor_descriptor(p, [n, 64], [64, 1], [32, n], SMEM)",
        "make_tensor_descriptor: block_shape: expected a constant integer, got a scalar int32",
    ),
    Call(
        "xamd.make_tensor_descriptor(p, [n, 1.5], [64, 1], [32, 64], SMEM)",
        "make_tensor_descriptor: shape[1]: expected an integer scalar, got 1.5",
    ),
    Call(
        "xamd.make_tensor_descriptor(p, [n, 64], [64, n], [32, 64], SMEM)",
        "make_tensor_descriptor: the last stride is not constant, expected 1: rows must be contiguous",
    ),
    Call(
        "xamd.make_tensor_descriptor(p, [n, 64], [-64, 1], [32, 64], SMEM)",
        "make_tensor_descriptor: stride 0 is -64, expected 0 or more",
    ),
    Call(
        "xamd.make_tensor_descriptor(p, [-5, 64], [64, 1], [32, 64], SMEM)",
        "make_tensor_descriptor: size 0 of the tensor is -5, expected 0 or more",
    ),
    Call(
        "xamd.make_tensor_descriptor(p + rows, [n, 64], [64, 1], [32, 64], SMEM)",
        "make_tensor_descriptor: base must be a pointer, got a tensor of pointer<fp16>",
    ),
    Call(
        "xamd.update_tensor_descriptor(d, add_offsets=n)",
        "update_tensor_descriptor: add_offsets: expected a list, got a scalar int32",
        positions=True,
    ),
    Call(
        "xamd.update_tensor_descriptor(d, add_offsets=[0, 0.5])",
        "update_tensor_descriptor: add_offsets[1]: expected an integer scalar, got 0.5",
        positions=True,
    ),
    Call(
        "xamd.update_tensor_descriptor(d, pred=1.5)",
        "update_tensor_descriptor: pred: expected a bool, or an int1 or int32 scalar, got 1.5",
        positions=True,
    ),
    Call(
        "xamd.update_tensor_descriptor(d, [0, 0], clamp_bounds=n)",
        "update_tensor_descriptor: clamp_bounds: expected a constant bool, got a scalar int32",
        positions=True,
    ),
    Call(
        "xamd.async_load_fused(d)",
        "async_load_fused: members: expected a list, got tensor_descriptor",
    ),
    Call(
        "xamd.async_load_fused([(d, s, 3)])",
        "async_load_fused: expected 2 to 4 members (descriptor, shared memory, mask of waves), got 1 of [3] parts",
    ),
    Call(
        "xamd.async_load_fused([(d, s, 3), (d, s, 6)])",
        "async_load_fused: mask of member 1 is 0x6, it shares waves with an earlier member",
    ),
    Call(
        "xamd.async_load_fused([(d, n, 3), (d, s, 12)])",
        "async_load_fused: expected shared memory, got a scalar int32",
    ),
    Call(
        "xamd.async_load_fused([(d, s, 0), (d, s, 12)])",
        "async_load_fused: mask of member 0 is 0x0: expected one bit for each participating wave, of 4 waves",
    ),
    Call(
        "xamd.async_wait(n)", "async_wait: num_ops: expected a constant integer, got a scalar int32"
    ),
    Call(
        "xamd.async_wait(True)",
        "async_wait: expected a constant number of operations in flight, got True",
    ),
    Call(
        "xamd.async_wait_stage(STAGE, behind=n)",
        "async_wait_stage: behind: expected a constant integer, got a scalar int32",
    ),
    Call(
        "xamd.async_wait_stage(STAGE, newer=None)",
        "async_wait_stage: newer: expected a constant integer, got None",
    ),
    Call(
        'xamd.async_wait_instructions("a", STAGE)',
        "async_wait_instructions: count: expected a constant integer, got 'a'",
    ),
    Call(
        "xamd.wmma(s, s, n)",
        "wmma: a: expected a matrix in registers, got shared_memory_descriptor",
    ),
    Call(
        "xamd.wmma(rows, rows, rows)",
        "wmma: a: expected a matrix in registers, got a tensor of int32",
    ),
    Call(
        "xamd.update_tensor_descriptor(d, None, pred=True, clamp_bounds=True)",
        "update_tensor_descriptor: clamp_bounds goes with add_offsets and without set_bounds",
        positions=True,
    ),
    Call(
        "xamd.update_tensor_descriptor(d, None, None, None)",
        "update_tensor_descriptor: expected add_offsets, set_bounds or pred, got none of them",
        positions=True,
    ),
)
