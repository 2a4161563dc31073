"""What load_im2col and im2col_start refuse, and that they do so at the user's line."""

from __future__ import annotations

import dataclasses
import importlib

import pytest
import triton
import triton.language as tl
import triton_ext
import triton_ext.language as tle
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.errors import CompilationError
from triton_ext.errors import PassError
from triton_ext.host import capabilities

needs_im2col = pytest.mark.skipif(
    not capabilities()["im2col"].available, reason=capabilities()["im2col"].reason
)


@triton.jit(noinline=True)
def load_elsewhere(x_desc, n):
    return tle.load_im2col(x_desc, [n, 0, 0, 0], [0, 0])


@triton.jit
def copy_tile(x_desc, y_ptr, MODE: tl.constexpr):
    n = tl.program_id(0)
    if MODE == "good":
        tile = tle.load_im2col(x_desc, [n, 0, 0, 0], [0, 0])
    elif MODE == "two coordinates":
        tile = tle.load_im2col(x_desc, [n, 0], [])
    elif MODE == "offset missing":
        tile = tle.load_im2col(x_desc, [n, 0, 0, 0], [0])
    elif MODE == "negative offset":
        tile = tle.load_im2col(x_desc, [n, 0, 0, 0], [-1, 0])
    elif MODE == "large offset":
        tile = tle.load_im2col(x_desc, [n, 0, 0, 0], [0, 256])
    elif MODE == "large offset 3d":
        tile = tle.load_im2col(x_desc, [n, 0, 0, 0, 0], [32, 0, 0])
    elif MODE == "int64":
        tile = tle.load_im2col(x_desc, [n.to(tl.int64), 0, 0, 0], [0, 0])
    elif MODE == "float":
        tile = tle.load_im2col(x_desc, [n, 0.5, 0, 0], [0, 0])
    elif MODE == "block":
        tile = tle.load_im2col(x_desc, [n, tl.arange(0, 4), 0, 0], [0, 0])
    elif MODE == "pointer":
        tile = tle.load_im2col(y_ptr, [n, 0, 0, 0], [0, 0])
    elif MODE == "start lengths":
        start = tle.im2col_start(n, (4, 4), (1,), (0, 0))
        tile = tle.load_im2col(x_desc, [*start, 0], [0, 0])
    elif MODE == "no list":
        tile = tle.load_im2col(x_desc, n, [0, 0])
    elif MODE == "zero walk":
        tile = tle.load_im2col(x_desc, [n, 0, 0, 0], [0, 0], walk=((4, 4), (0, 1), (0, 0)))
    elif MODE == "walk stride":
        tile = tle.load_im2col(x_desc, [n, 0, 0, 0], [0, 0], walk=((4, 4), (1, 9), (0, 0)))
    elif MODE == "start stride":
        start = tle.im2col_start(n, (4, 4), (9, 1), (0, 0))
        tile = tle.load_im2col(x_desc, [*start, 0], [0, 0])
    elif MODE == "text":
        tile = tle.load_im2col(x_desc, [n, 0, 0, 0], ["a", 0])
    elif MODE == "both":
        tile = tle.load_im2col(x_desc, [n, 0, 0, 0], [0, 0]) + x_desc.load([0, 0])
    elif MODE == "two ranks":
        tile = tle.load_im2col(x_desc, [n, 0, 0], [0])
        tile = tile + tle.load_im2col(x_desc, [n, 0, 0, 0], [0, 0])
    elif MODE == "noinline":
        tile = load_elsewhere(x_desc, n)
    elif MODE == "constant channel":
        tile = tle.load_im2col(x_desc, [n, 0, 0, 4], [0, 0])
    elif MODE == "folded channel":
        blocks = n * 0 + 3
        tile = tle.load_im2col(x_desc, [n, 0, 0, blocks * 4], [0, 0])
    rows = tl.arange(0, 64)[:, None]
    tl.store(y_ptr + rows * 64 + tl.arange(0, 64)[None, :], tile)


@triton.jit
def copy_pixels(x_desc, y_ptr, MODE: tl.constexpr):
    tile = tle.load_im2col(x_desc, [tl.program_id(0), 0, 0, 0], [0, 0])
    tl.store(y_ptr, tl.sum(tile.to(tl.float32)).to(tl.float16))


@triton.jit
def misuse(x_desc, y_ptr, MODE: tl.constexpr):
    from_marker = raw_pixel(tl.program_id(0), 0, 0)
    if MODE == "arithmetic":
        tile = x_desc.load([from_marker + 1, raw_channel(0, 0, 0)])
    elif MODE == "stored":
        tile = tle.load_im2col(x_desc, [0, 0, 0, 0], [0, 0])
        tl.store(y_ptr, from_marker.to(tl.float16))
    elif MODE == "one index":
        tile = x_desc.load([from_marker, 0])
    elif MODE == "swapped":
        tile = x_desc.load([raw_channel(0, 0, 0), from_marker])
    elif MODE == "rank":
        tile = x_desc.load([from_marker, raw_channel_1d(0, 0)])
    rows = tl.arange(0, 64)[:, None]
    tl.store(y_ptr + rows * 64 + tl.arange(0, 64)[None, :], tile)


@triton.language.core.builtin
def raw_pixel(n, h, w, _semantic=None):
    from triton_ext.backends.nvidia.language.im2col import PIXEL, _marker

    return _marker(PIXEL, [_semantic.to_tensor(x) for x in (n, h, w)], _semantic)


@triton.language.core.builtin
def raw_channel(c, r, s, _semantic=None):
    from triton_ext.backends.nvidia.language.im2col import CHANNEL, _marker

    return _marker(CHANNEL, [_semantic.to_tensor(x) for x in (c, r, s)], _semantic)


@triton.language.core.builtin
def raw_channel_1d(c, s, _semantic=None):
    from triton_ext.backends.nvidia.language.im2col import CHANNEL, _marker

    return _marker(CHANNEL, [_semantic.to_tensor(x) for x in (c, s)], _semantic)


def compile_kernel(kernel, mode, target=None, block="64, 64", **options):
    signature = {"x_desc": f"tensordesc<fp16[{block}]>", "y_ptr": "*fp16", "MODE": "constexpr"}
    source = ASTSource(kernel, signature, constexprs={"MODE": mode})
    return triton.compile(source, target=target or GPUTarget("cuda", 90, 32), options=options)


def line_of(kernel, text):
    lines, first = kernel.raw_src, kernel.starting_line_number
    return first + next(i for i, line in enumerate(lines) if text in line)


@needs_im2col
def test_good_kernel_compiles(fresh_triton_cache):
    assert "im2col" in compile_kernel(copy_tile, "good").asm["ptx"]


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("two coordinates", "expected 3 to 5 coordinates (n, [d, [h,]] w, c), got 2"),
        ("offset missing", "expected 2 offsets for 4 coordinates"),
        ("negative offset", "offset 0 is -1, expected 0 to 255"),
        ("large offset", "offset 1 is 256, expected 0 to 255"),
        ("large offset 3d", "offset 0 is 32, expected 0 to 31"),
        ("int64", "expected an int32 scalar, got int64"),
        ("float", "expected an int32 scalar, got fp32"),
        ("no list", "load_im2col coordinates: expected a list or tuple, got"),
        ("zero walk", "sizes and strides must be at least 1, got 0"),
        ("walk stride", "load_im2col: stride 9: TMA supports 1..8"),
        ("start stride", "im2col_start: stride 9: TMA supports 1..8"),
        ("text", "load_im2col offset: expected an int32 scalar, got 'a'"),
        ("block", "expected a scalar, got a tensor of shape [4]"),
        ("pointer", "expected a tensor descriptor"),
        ("start lengths", "must have one length, got 2, 1 and 2"),
        ("constant channel", "starts at channel 4 of 2-byte elements, expected a multiple of 8"),
    ],
)
@needs_im2col
def test_refused_at_the_users_line(mode, message, fresh_triton_cache):
    if mode == "text" and triton.__version__.startswith("3.6."):
        pytest.skip("Triton 3.6 itself takes no text in a list")
    with pytest.raises(CompilationError) as caught:
        compile_kernel(copy_tile, mode)
    text = str(caught.value)
    assert message in text
    assert "tle." in text  # the source line with its caret


@needs_im2col
def test_block_of_rank_3_is_refused(fresh_triton_cache):
    with pytest.raises(CompilationError, match="block shape \\[pixels, channels\\]"):
        compile_kernel(copy_tile, "good", block="64, 1, 64")


def test_sm_80_is_refused_by_name(fresh_triton_cache):
    with pytest.raises(CompilationError, match="needs sm_90 or newer, the target is sm_80"):
        compile_kernel(copy_tile, "good", GPUTarget("cuda", 80, 32))


def test_a_device_function_on_the_host_is_refused_by_name():
    with pytest.raises(TypeError, match="load_im2col is a device function: call it inside a @tri"):
        tle.load_im2col(None, [0, 0, 0], [0])


def test_amd_is_refused_by_name(fresh_triton_cache):
    with pytest.raises(CompilationError, match="needs an NVIDIA GPU of sm_90 or newer"):
        compile_kernel(copy_tile, "good", GPUTarget("hip", "gfx950", 64))


def test_uninstalled_is_refused_by_name(fresh_triton_cache):
    triton_ext.uninstall()
    try:
        with pytest.raises(CompilationError, match=r"call triton_ext.install\(\)"):
            compile_kernel(copy_tile, "good")
    finally:
        triton_ext.install()


def test_a_host_that_cannot_is_refused_by_name(fresh_triton_cache, monkeypatch):
    lacking = dataclasses.replace(capabilities()["im2col"], available=False, reason="too old")
    table = {**capabilities(), "im2col": lacking}
    # Its package has a function of the same name.
    module = importlib.import_module("triton_ext.host.capabilities")
    monkeypatch.setattr(module, "capabilities", lambda: table)
    with pytest.raises(CompilationError, match="too old"):
        compile_kernel(copy_tile, "good")


def test_more_pixels_than_a_tiled_box_has(fresh_triton_cache):
    assert "im2col" in compile_kernel(copy_pixels, "good", block="512, 64").asm["ptx"]


@needs_im2col
def test_three_ctas_are_refused(fresh_triton_cache):
    with pytest.raises(CompilationError, match="num_ctas must be a power of two, got 3"):
        compile_kernel(copy_tile, "good", num_ctas=3)


@needs_im2col
def test_split_pixels_are_refused(fresh_triton_cache):
    with pytest.raises(PassError, match="splits the pixels of this im2col load") as caught:
        compile_kernel(copy_tile, "good", num_ctas=2)
    assert caught.value.line == line_of(copy_tile, "tle.load_im2col(x_desc, [n, 0, 0, 0], [0, 0])")


@needs_im2col
@pytest.mark.parametrize(
    ("mode", "message", "line"),
    [
        ("arithmetic", "it is not a number", "from_marker + 1"),
        ("stored", "is used by 'arith.sitofp'", "tl.store(y_ptr, from_marker"),
        ("one index", "only one of the two indices", "x_desc.load([from_marker, 0])"),
        ("swapped", "is used by 'ttng.async_tma_copy_global_to_local'", "raw_channel(0, 0, 0), fr"),
        ("rank", "a start pixel of 3 values meets 1 filter offsets", "raw_channel_1d(0, 0)]"),
    ],
)
def test_misused_marker_is_an_error_at_the_users_line(mode, message, line, fresh_triton_cache):
    with pytest.raises(PassError) as caught:
        compile_kernel(misuse, mode)
    assert message in str(caught.value)
    assert caught.value.filename.endswith("test_load_im2col.py")
    assert caught.value.line == line_of(misuse, line)
    assert caught.value.source_line is not None


@needs_im2col
def test_descriptor_read_with_two_ranks_is_an_error(fresh_triton_cache):
    with pytest.raises(PassError, match="with 4 coordinates here and with 3 elsewhere") as caught:
        compile_kernel(copy_tile, "two ranks")
    assert caught.value.line == line_of(copy_tile, "+ tle.load_im2col(x_desc, [n, 0, 0, 0]")


@needs_im2col
def test_a_first_channel_that_folds_to_a_constant_is_an_error(fresh_triton_cache):
    with pytest.raises(PassError, match="starts at channel 12 of 2-byte elements") as caught:
        compile_kernel(copy_tile, "folded channel")
    assert caught.value.line == line_of(copy_tile, "[n, 0, 0, blocks * 4]")
    assert caught.value.column > 1


@needs_im2col
def test_descriptor_in_a_noinline_function_is_an_error(fresh_triton_cache):
    if triton.__version__.startswith(("3.6.", "3.7.")):
        pytest.skip("Triton before 3.8 itself fails: no noinline function can return a tensor")
    with pytest.raises(PassError, match="or used in a noinline function"):
        compile_kernel(copy_tile, "noinline")


@needs_im2col
def test_descriptor_read_both_ways_is_an_error(fresh_triton_cache):
    with pytest.raises(PassError, match="x_desc is read with load_im2col and also used by"):
        compile_kernel(copy_tile, "both")
