"""Where the CTAs of a cluster start: the arithmetic against the model, then compiled."""

from __future__ import annotations

import pathlib
import re

import pytest
import triton
import triton.language as tl
import triton_ext.language as tle
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.errors import CompilationError
from triton_ext import backends
from triton_ext.backends.nvidia.backend import im2col_model
from triton_ext.backends.nvidia.backend.geometry import ConvGeometry, Im2ColGeometry
from triton_ext.backends.nvidia.dialect.cluster import (
    Walk,
    advance,
    first_pixel,
    splits_pixels,
)
from triton_ext.errors import PassError
from triton_ext.host import capabilities
from triton_ext.ir import Module, parse

needs_im2col = pytest.mark.skipif(
    not capabilities()["im2col"].available, reason=capabilities()["im2col"].reason
)


class Integers:
    """Arithmetic on Python integers that refuses what int32 arithmetic would get wrong."""

    def constant(self, value: int) -> int:
        return value

    def add(self, a: int, b: int) -> int:
        return a + b

    def sub(self, a: int, b: int) -> int:
        return a - b

    def mul(self, a: int, b: int) -> int:
        return a * b

    def div(self, a: int, b: int) -> int:
        assert a >= 0, "divsi rounds towards zero"
        assert b > 0
        return a // b

    def rem(self, a: int, b: int) -> int:
        assert a >= 0
        assert b > 0
        return a % b


@st.composite
def convolutions(draw: st.DrawFn) -> ConvGeometry:
    """Convolutions with at least one output pixel."""
    spatial_rank = draw(st.integers(1, 3))
    size, taps, stride, dilation, padding = [], [], [], [], []
    for _ in range(spatial_rank):
        taps.append(draw(st.integers(1, 4)))
        dilation.append(draw(st.integers(1, 3)))
        stride.append(draw(st.integers(1, 8)))
        padding.append((draw(st.integers(0, 4)), draw(st.integers(0, 4))))
        reach = (taps[-1] - 1) * dilation[-1] + 1
        least = max(1, reach - sum(padding[-1]))
        size.append(draw(st.integers(least, least + 12)))
    shape = (draw(st.integers(1, 3)), *size, 8)
    return ConvGeometry.make(shape, taps, stride, padding, dilation)


def geometry_of(conv: ConvGeometry) -> Im2ColGeometry:
    strides = [1]
    for size in reversed(conv.input_shape[1:]):
        strides.insert(0, strides[0] * size)
    return Im2ColGeometry(
        shape=conv.input_shape,
        strides=tuple(strides),
        element_bytes=2,
        dtype="fp16",
        pixel_box_lower_corner=conv.pixel_box_lower_corner,
        pixel_box_upper_corner=conv.pixel_box_upper_corner,
        element_strides=conv.element_strides,
        pixels_per_column=64,
        channels_per_pixel=8,
    )


def walk_of(conv: ConvGeometry) -> Walk[int]:
    return Walk(conv.output_size, conv.stride, tuple(low for low, _ in conv.padding))


@settings(deadline=None)
@given(convolutions(), st.data())
def test_every_cta_starts_where_the_walk_is(conv: ConvGeometry, data: st.DataObject) -> None:
    pytest.importorskip("numpy")
    start = conv.start(data.draw(st.integers(0, conv.m_gemm - 1)))
    steps = data.draw(st.integers(0, 256))
    coords, _ = im2col_model.walk(
        geometry_of(conv), start, (0,) * (conv.rank - 2), pixels=steps + 1
    )
    assert advance(Integers(), start, walk_of(conv), steps) == tuple(coords[steps])


@pytest.mark.parametrize(
    ("bases", "pixels", "expected"),
    [
        ([[1, 0]], 128, [0, 64]),
        ([[0, 1]], 128, [0, 0]),
        ([[0, 0]], 128, [0, 0]),
        ([[1, 0], [2, 0]], 128, [0, 32, 64, 96]),
        ([[0, 1], [1, 0]], 128, [0, 0, 64, 64]),
        ([[1, 0], [0, 0]], 64, [0, 32, 0, 32]),
        ([[2, 0], [1, 0]], 64, [0, 32, 16, 48]),
        ([], 64, [0]),
    ],
)
def test_first_pixel_of_each_cta(bases: list[list[int]], pixels: int, expected: list[int]) -> None:
    found = [first_pixel(Integers(), rank, bases, pixels) for rank in range(len(expected))]
    assert found == expected
    assert splits_pixels(bases) == any(expected)


LOWERED = pathlib.Path(__file__).parents[2] / "test/nvidia/lower-im2col/cluster.mlir"


def lowered() -> Module:
    module = parse(LOWERED.read_text(encoding="utf-8"))
    backends.load("nvidia", "lower-im2col")().run(module)
    return module


def evaluate(module: Module, arguments: dict[str, int]) -> list[int]:
    """Runs the integer operations of the function @pixels; returns the copy's coordinates."""
    binary = {"addi": "add", "subi": "sub", "muli": "mul", "divsi": "div", "remsi": "rem"}
    values: dict[object, int] = {}

    def of(value: object) -> int:
        return values[value] if value in values else arguments[value.name]  # type: ignore[attr-defined]

    for op in module.walk():
        if op.name == "tt.elementwise_inline_asm":
            values[op.results[0]] = arguments["rank"]
        elif op.name == "arith.constant":
            match = re.search(r"constant (-?\d+) : i32", str(op))
            assert match is not None
            values[op.results[0]] = int(match[1])
        elif op.name.removeprefix("arith.") in binary:
            method = getattr(Integers(), binary[op.name.removeprefix("arith.")])
            values[op.results[0]] = method(*map(of, op.operands))
        elif op.name == "ttng.async_tma_copy_global_to_local":
            return [of(operand) for operand in op.operands[1:4]]
    raise AssertionError("no copy")


@settings(deadline=None, max_examples=60)
@given(convolutions().filter(lambda conv: conv.rank == 4), st.data())
def test_the_lowered_arithmetic(conv: ConvGeometry, data: st.DataObject) -> None:
    pytest.importorskip("numpy")
    n, h, w = start = conv.start(data.draw(st.integers(0, conv.m_gemm - 1)))
    (oh, ow), (sh, sw) = conv.output_size, conv.stride
    ph, pw = (low for low, _ in conv.padding)
    coords, _ = im2col_model.walk(geometry_of(conv), start, (0, 0), pixels=65)
    module = lowered()
    named = {"n": n, "h": h, "w": w, "oh": oh, "ow": ow, "sh": sh, "sw": sw, "ph": ph, "pw": pw}
    for rank in (0, 1):
        arguments = {f"%{name}": value for name, value in named.items()}
        found = evaluate(module, {**arguments, "rank": rank})
        # Triton's lowering adds 64 * rank to w.
        found[2] += 64 * rank
        assert found == list(coords[64 * rank])


@triton.jit
def copy_tiles(x_desc, y_desc, WALK: tl.constexpr):
    m0 = tl.program_id(0) * 128
    n, h, w = tle.im2col_start(m0, (14, 12), (1, 1), (1, 1))
    if WALK:
        walk = ((14, 12), (1, 1), (1, 1))
        tile = tle.load_im2col(x_desc, [n, h, w, 0], [1, 2], walk=walk)
    else:
        tile = tle.load_im2col(x_desc, [n, h, w, 0], [1, 2])
    y_desc.store([m0, 0], tile)


def compiled(walk: bool, arch: int = 90, num_ctas: int = 2):
    signature = {
        "x_desc": "tensordesc<fp16[128, 64]>",
        "y_desc": "tensordesc<fp16[128, 64]>",
        "WALK": "constexpr",
    }
    source = ASTSource(copy_tiles, signature, {(2,): walk}, {})
    return triton.compile(
        source, target=GPUTarget("cuda", arch, 32), options={"num_ctas": num_ctas}
    )


@needs_im2col
@pytest.mark.parametrize("arch", [90, 100])
def test_a_cluster_compiles(fresh_triton_cache, arch: int) -> None:
    kernel = compiled(walk=True, arch=arch)
    assert ".im2col" in kernel.asm["ptx"]
    assert "%cluster_ctarank" in kernel.asm["ttgir"]
    assert kernel.metadata.tensordesc_meta[0]["block_size"] == [64, 64]
    assert len(kernel.asm["cubin"]) > 1000


@needs_im2col
def test_one_cta_has_nothing_of_it(fresh_triton_cache) -> None:
    with_walk, without = (compiled(walk, num_ctas=1).asm["ttgir"] for walk in (True, False))
    assert "cluster_ctarank" not in with_walk
    assert without.count("arith.") == with_walk.count("arith.")


@needs_im2col
def test_a_cluster_without_a_walk_is_refused(fresh_triton_cache) -> None:
    with pytest.raises((PassError, CompilationError), match=r"pass walk=\(output_size, stride"):
        compiled(walk=False)
