"""Every copy that Gluon kernels issue: the PTX is run, and compared with the loops of the kernel.

Triton from 3.8 on lowers the copies itself, before that we do; the same is asserted of all.
"""

from __future__ import annotations

import functools
import math
import os

import pytest
import triton
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_machine import Copy, Expected, run
from triton.backends.compiler import GPUTarget
from triton_ext.backends.nvidia.backend.geometry import ConvGeometry
from triton_ext.gluon import nvidia as xnv
from triton_ext.host import capabilities

CAPABILITY = capabilities()["im2col-gluon"]
if not CAPABILITY.available:
    pytest.skip(CAPABILITY.reason, allow_module_level=True)

from ring_kernel import ring_kernel  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402

EXAMPLES = 300 if os.environ.get("TRITON_EXT_NIGHTLY") == "1" else 8

# Rank, block, dtype, stages, warps of the producer.  A tiled box has at most 256 rows, and as many
# channels as 128 bytes: blocks of one box, of several along each dimension, and along both.
VARIANTS = [
    (4, (64, 64), "fp16", 3, 1),
    (3, (512, 64), "fp16", 2, 1),
    (4, (512, 128), "fp16", 1, 4),
    (5, (1024, 32), "bf16", 2, 2),
    (4, (32, 64), "fp32", 4, 1),
    (4, (512, 16), "fp16", 3, 1),
]
BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
PROBLEM = (*("i32",) * 5, ("i32",) * 3, ("i32",) * 3, ("i32",) * 3)


@functools.cache
def compiled(variant: tuple[int, tuple[int, int], str, int, int]) -> triton.compiler.CompiledKernel:
    rank, block, dtype, stages, warps = variant
    layout = xnv.im2col_layout(block, dtype)
    text = f"tensordesc_im2col<{dtype}{list(block)},input_rank={rank},{layout!r}>"
    types = {"x_desc": text, "problem": PROBLEM, "STAGES": "constexpr"}
    constants = {"STAGES": stages, "PRODUCER_WARPS": warps}
    source = GluonASTSource(ring_kernel, {**types, "PRODUCER_WARPS": "constexpr"}, constants, {})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


def loops(variant, conv, tiles, blocks, taps, limit, dilation, program, programs):
    """What the producer does, for each load: stage, whether it is issued, coordinates, offsets."""
    rank, (rows, columns), _, stages, _ = variant
    step = 0
    for tile in range(program, tiles, programs):
        start = conv.start(tile * rows)
        for block in range(blocks):
            for tap in range(taps):
                all_offsets = (tap // 2, tap * dilation, (taps - 1 - tap) * dilation)
                issued = block * columns + tap < limit
                yield step % stages, issued, (*start, block * columns), all_offsets[5 - rank :]
                step += 1


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_copies_are_those_of_the_loops(variant, data):
    rank, (rows, columns), dtype, _, _ = variant

    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    spatial = rank - 2
    stride = tuple(draw(1, 3) for _ in range(spatial))
    padding = tuple(draw(0, 2) for _ in range(spatial))
    size = tuple(draw(5, 40) for _ in range(spatial))
    conv = ConvGeometry.make((2, *size, 64), (3,) * spatial, stride, padding)
    tiles, blocks, taps = draw(0, 4), draw(0, 3), draw(1, 3)
    dilation, limit, programs = draw(1, 7), draw(0, 4 * columns), draw(1, 3)
    program = draw(0, programs - 1)

    missing = (1,) * (3 - spatial)
    numbers = [
        *(tiles, blocks, taps, dilation, limit),
        *(*missing, *conv.output_size, *missing, *stride, *missing, *padding),
    ]
    first = 1 + 2 * rank  # behind the map, its sizes and its strides
    values = {f"param_{first + i}": number for i, number in enumerate(numbers)}
    values |= {"%ctaid.x": program, "%nctaid.x": programs}
    kernel = compiled(variant)
    events = run(kernel.asm["ptx"], values)

    box = kernel.metadata.tensordesc_meta[0]["block_size"]
    assert box[0] == rows, "one copy has all pixels"
    load_bytes = rows * columns * BYTES[dtype]
    expected, sizes = [], []
    for stage, issued, coord, offsets in loops(
        variant, conv, tiles, blocks, taps, limit, dilation, program, programs
    ):
        sizes.append((stage, load_bytes))
        for channel in range(0, columns if issued else 0, box[1]):
            target = stage * load_bytes + channel * rows * BYTES[dtype]
            moved = (coord[-1] + channel, *reversed(coord[:-1]))
            expected.append((moved, tuple(reversed(offsets)), target, stage))

    copies = [event for event in events if isinstance(event, Copy)]
    told = [event for event in events if isinstance(event, Expected)]
    assert {copy.name for copy in copies} <= {
        f"cp.async.bulk.tensor.{rank}d.shared.global.im2col.mbarrier::complete_tx::bytes"
    }
    assert {(copy.parameter, copy.mask) for copy in copies} <= {(0, 0)}
    # Warps take turns with the boxes of a load, and what each does is in its own order.
    base = min((copy.target for copy in copies), default=0) - min(
        (e[2] for e in expected), default=0
    )
    barrier = told[0].barrier - 8 * sizes[0][0] if told else 0
    found = [
        (copy.coordinates, copy.offsets, copy.target - base, (copy.barrier - barrier) // 8)
        for copy in copies
    ]
    assert sorted(found) == sorted(expected)
    if variant[-1] == 1:
        assert found == expected
    assert [((one.barrier - barrier) // 8, one.size) for one in told] == sizes
    assert math.prod(box) * BYTES[dtype] * len(copies) == load_bytes * sum(
        issued for _, issued, *_ in loops(
            variant, conv, tiles, blocks, taps, limit, dilation, program, programs
        )
    )  # fmt: skip
