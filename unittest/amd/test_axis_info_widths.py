"""Widths of asynchronous copies as the host counts them, for random encodings and hints.

Triton's wait-count pass divides the registers of a copy by the width that its axis info and the
layouts allow; the module has nothing else to count.  A number that is lower than the host's is
safe, a higher one is not.
"""

from __future__ import annotations

import re
import tempfile
from random import Random

import pytest
from triton_ext import ir
from triton_ext.analysis import AxisInfoAnalysis, consecutive_run, register_to_shared
from triton_ext.host.process import find_library
from triton_ext.ir.types import parse_type

BITS = {"i8": 8, "f16": 16, "f32": 32}
MODULE = """\
#b = {encoding}
#s = #ttg.swizzled_shared<{{vec = 1, perPhase = 1, maxPhase = 1, order = {order}}}>
#smem = #ttg.shared_memory
module attributes {{"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, \
"ttg.threads-per-warp" = 32 : i32, ttg.target = "hip:gfx1250"}} {{
  tt.func public @f(%p: tensor<64x64x!tt.ptr<{element}>, #b> {{{pointer_hints}}}, \
%k: tensor<64x64xi1, #b> {{{mask_hints}}}, %m: !ttg.memdesc<64x64x{element}, #s, #smem, mutable>) {{
    %g = ttg.async_commit_group
    %c = ttg.async_copy_global_to_local %p, %m {mask}: tensor<64x64x!tt.ptr<{element}>, #b> -> \
<64x64x{element}, #s, #smem, mutable>
    %h = ttg.async_commit_group
    %w = ttg.async_wait {{num = 1 : i32}}
    tt.return
  }}
}}
"""


def hints(**numbers: list[int]) -> str:
    return ", ".join(
        f"tt.{name} = dense<{values}> : tensor<2xi32>" for name, values in numbers.items()
    )


def linear(random: Random) -> str:
    """A linear encoding of 64 x 64: bases in any order, in rows, or in columns."""
    columns = [[0, 1 << bit] for bit in range(6)]
    rows = [[1 << bit, 0] for bit in range(6)]
    bases = random.choice([columns + rows, rows + columns])
    if random.random() < 0.5:
        random.shuffle(bases)
    return (
        f"#ttg.linear<{{register = {bases[:5]}, lane = {bases[5:10]}, warp = {bases[10:]},"
        " block = []}>"
    )


def blocked(random: Random, order: list[int]) -> str:
    sizes = [random.choice((1, 2, 4, 8)), random.choice((1, 2, 4, 8, 16))]
    lanes = random.choice([[1, 32], [4, 8], [32, 1], [8, 4]])
    warps = random.choice([[4, 1], [1, 4], [2, 2]])
    return (
        f"#ttg.blocked<{{sizePerThread = {sizes}, threadsPerWarp = {lanes}, warpsPerCTA = {warps},"
        f" order = {order}}}>"
    )


def draw(random: Random) -> str:
    order = random.choice([[0, 1], [1, 0]])
    some = [[random.choice((1, 2, 4, 8, 16, 64)) for _ in range(2)] for _ in range(3)]
    # Where nothing is contiguous one divisor holds everywhere: hints do not contradict each other.
    if 1 in some[0]:
        some[1] = [min(some[1])] * 2
    return MODULE.format(
        encoding=linear(random) if random.random() < 0.4 else blocked(random, order),
        order=random.choice([order, order, [0, 1], [1, 0]]),
        element=random.choice(list(BITS)),
        pointer_hints=hints(contiguity=some[0], divisibility=some[1]),
        mask_hints=hints(constancy=some[2]),
        mask="mask %k " if random.random() < 0.5 else "",
    )


def count_of_host(text: str) -> int:
    libtriton = pytest.importorskip("triton._C.libtriton")
    context = libtriton.ir.context()
    libtriton.ir.load_dialects(context)
    libtriton.amd.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(text)
        file.flush()
        module = libtriton.ir.parse_mlir_module(file.name, context)
    module.context = context
    manager = libtriton.ir.pass_manager(context)
    libtriton.amd.passes.ttgpuir.add_update_async_wait_count(manager, "gfx1250")
    manager.run(module, "axis-info")
    return int(re.search(r"num_inst = (\d+)", module.str_nodebug())[1])


def count_of_ours(text: str, *, broadcast: bool) -> tuple[int, int]:
    """Instructions and width."""
    module = ir.parse(text)
    pointer, mask, buffer = module.body[0].regions[0].blocks[0].args
    analysis = AxisInfoAnalysis.of(module)
    types = [parse_type(value.type, module.aliases) for value in (pointer, buffer)]
    bits = types[0].element.pointee.bit_width
    width = min(analysis.pointer_contiguity(pointer), 128 // bits)
    if "mask %k" in text:
        width = min(width, analysis.mask_alignment(mask))
    layout = register_to_shared(types[0].encoding, types[1].encoding, types[0].static_shape)
    width = min(width, consecutive_run(layout))
    if not broadcast:
        layout = layout.without_zero_bases("register")
    return max(1, layout.in_dim_size("register") // width), width


def test_widths_are_those_of_the_host():
    random = Random(0)
    old = tuple(map(int, find_library().version.split(".")[:2])) < (3, 8)
    widths = set()
    for _ in range(150):
        text = draw(random)
        host = count_of_host(text)
        ours, width = count_of_ours(text, broadcast=old)
        # From 3.8 on, copies that some warps only repeat count nothing.
        assert host == ours or (host == 0 and not old), f"{host}, {ours} of width {width}\n{text}"
        widths.add(width)
    assert widths >= {1, 2, 4, 8}
