"""BatchNorm and GroupNorm without a GPU: tiles, what is compiled, the interpreter in a process."""

from __future__ import annotations

import contextlib
import math
import re

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from compiled_ahead import compile_ahead, without_tensors
from cubin_resources import resources
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from triton_ext.errors import UnsupportedError
from triton_ext.ops import batch_norm, group_norm
from triton_ext.ops.norms import kernels
from triton_ext.ops.norms.plan import NormShape, choose_merge_tiles, choose_tiles

FLOAT = "*fp32"
TERMS = dict.fromkeys(("mean_ptr", "rstd_ptr", "weight_ptr", "bias_ptr"), FLOAT)


# ---- Tiles --------------------------------------------------------------------------------------


@given(
    images=st.integers(1, 300),
    rows=st.integers(1, 1 << 21),
    group_channels=st.integers(1, 200),
    groups=st.integers(1, 200),
    element_bytes=st.sampled_from((2, 4)),
    wanted=st.sampled_from(((4, 2), (12, 1))),
)
def test_tiles_cover_a_tensor(images, rows, group_channels, groups, element_bytes, wanted):
    channels = groups * group_channels
    shape = NormShape(images=images, rows=rows, channels=channels, groups=groups)
    tiles = choose_tiles(shape, element_bytes, 132, *wanted)
    for size in (tiles.unit, tiles.block_c, tiles.block_rows, tiles.unroll, tiles.num_warps):
        assert size.bit_count() == 1
    assert channels % tiles.unit == 0
    # No chunk is empty: means of nothing would be added.
    assert (tiles.chunks - 1) * tiles.chunk_rows < rows <= tiles.chunks * tiles.chunk_rows
    assert tiles.programs == images * tiles.chunks * math.ceil(channels / tiles.block_c)
    assert tiles.block_rows * tiles.block_c * element_bytes <= 32 * tiles.num_warps * 16 or (
        tiles.num_warps == tiles.block_rows == 1
    )
    parts, block_c = choose_merge_tiles(tiles.chunks, group_channels)
    assert block_c >= group_channels
    assert parts.bit_count() == block_c.bit_count() == 1


@pytest.mark.parametrize(
    ("images", "rows", "channels", "groups"),
    [(1, 64 * 49, 2048, 2048), (1, 64 * 3136, 256, 256), (1, 4096, 512, 32), (8, 1024, 640, 32)],
)
def test_every_multiprocessor_has_something_to_do(images, rows, channels, groups):
    shape = NormShape(images=images, rows=rows, channels=channels, groups=groups)
    for wanted in ((4, 2), (12, 1)):
        tiles = choose_tiles(shape, 2, 132, *wanted)
        assert tiles.programs >= 1.9 * 132
        assert tiles.num_warps == 8
        assert channels % tiles.block_c == 0


def test_ragged_channels_leave_few_threads_idle():
    for channels, most in ((320, 0.0), (96, 0.0), (24, 0.25), (1000, 0.05)):
        shape = NormShape(images=2, rows=4096, channels=channels, groups=channels)
        tiles = choose_tiles(shape, 2, 132, 4)
        held = math.ceil(channels / tiles.block_c) * tiles.block_c
        assert 1 - channels / held <= most, channels


# ---- What is compiled ---------------------------------------------------------------------------


def compiled(kernel, shape, pointers, constants, ones=()):
    """A kernel that walks a tensor of bf16, for sm_90."""
    tiles = choose_tiles(shape, 2, 132, 4)
    constants = {
        "UNIT": tiles.unit, "BLOCK_C": tiles.block_c, "ROWS": tiles.block_rows,
        "UNROLL": tiles.unroll, **constants, **without_tensors(kernel, pointers),
        **dict.fromkeys(ones, 1),
    }  # fmt: skip
    return compile_ahead(kernel, pointers, constants, 90, num_warps=tiles.num_warps)


def of_tensors(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "*bf16")


BATCH = NormShape(images=1, rows=64 * 49, channels=2048, groups=2048)
GROUP = NormShape(images=2, rows=128 * 128, channels=320, groups=32)
ONES = ("images", "group_channels")  # what Triton compiles for, where it is 1


def test_statistics_load_16_bytes_and_keep_sums_in_registers(fresh_triton_cache, tmp_path):
    pointers = {"x_ptr": "*bf16", "parts_ptr": FLOAT}
    for shape, ones in ((BATCH, ("images",)), (GROUP, ())):
        kernel = compiled(kernels.moments_kernel, shape, pointers, {}, ones)
        ptx = kernel.asm["ptx"]
        # Two for the first tile, two in the loop.
        assert len(re.findall(r"\bld\.global\.v4\.b32", ptx)) == 4
        used = resources(kernel.asm["cubin"], tmp_path)
        assert used["STACK"] == used["LOCAL"] == 0
        # Two programs of 8 warps share a multiprocessor at least.
        assert used["REG"] <= 128
        # Rows are added between threads once, at the ends: not in the loop.
        ttgir = kernel.asm["ttgir"]
        loop = ttgir[ttgir.index("scf.for") : ttgir.index("scf.yield")]
        assert "convert_layout" not in loop


@pytest.mark.parametrize(
    ("activation", "with_residual"), [("relu", False), ("relu", True), ("gelu", False)]
)
def test_nothing_is_spilled(activation, with_residual, fresh_triton_cache, tmp_path):
    shape, ones = (BATCH, ONES) if with_residual else (GROUP, ())
    constants = {"IS_VARIANCE": False, "ACTIVATION": activation}
    extra = of_tensors("y_ptr", "g_ptr") if with_residual else {}
    residual = of_tensors("residual_ptr") if with_residual else {}
    normalize = kernels.normalize_kernel
    sums, dx = kernels.gradient_sums_kernel, kernels.input_gradient_kernel
    of_sums = {**of_tensors("x_ptr", "dy_ptr"), **extra, **TERMS, "parts_ptr": FLOAT}
    of_dx = {**of_tensors("x_ptr", "dy_ptr", "dx_ptr"), **TERMS, "means_ptr": FLOAT}
    for kernel, pointers, loads in (
        (normalize, {**of_tensors("x_ptr", "y_ptr"), **residual, **TERMS}, 1 + with_residual),
        (sums, of_sums, 2 + with_residual),
        (dx, of_dx, 2),
    ):
        its_ones = [name for name in ones if name in kernel.arg_names]
        found = compiled(kernel, shape, pointers, constants, its_ones)
        used = resources(found.asm["cubin"], tmp_path)
        assert used["STACK"] == used["LOCAL"] == 0, (kernel, used)
        # Tiles of two loads; whatever else is loaded is a number per channel.
        tiles = re.findall(r"\bld\.global\.v4\.b32", found.asm["ptx"])
        assert len(tiles) >= 2 * loads
        assert "ld.global.b16" not in found.asm["ptx"]
        assert not re.search(r"\b(atom|red)\.", found.asm["ptx"])


@pytest.mark.parametrize("is_channel", [True, False])
def test_parts_are_added_without_spilling(is_channel, fresh_triton_cache, tmp_path):
    parts, block_c = choose_merge_tiles(528, 1 if is_channel else 10)
    ones = dict.fromkeys(ONES, 1) if is_channel else {}
    running = ("running_mean_ptr", "running_var_ptr") if is_channel else ()
    pointers = dict.fromkeys(("parts_ptr", "mean_ptr", "rstd_ptr", *running), FLOAT)
    if is_channel:
        pointers["batches_ptr"] = "*i64"
    kernel = kernels.merge_moments_kernel
    blocks = {"IS_CHANNEL": is_channel, "BLOCK_P": parts, "BLOCK_C": block_c}
    constants = {**blocks, **ones, **without_tensors(kernel, pointers)}
    found = [compile_ahead(kernel, pointers, constants, 90, num_warps=8)]
    kernel = kernels.merge_gradients_kernel
    pointers = dict.fromkeys(
        ("parts_ptr", "weight_ptr", "means_ptr", "dweight_ptr", "dbias_ptr"), FLOAT
    )
    blocks = {"GROUP_P": parts, "GROUP_C": block_c, "CHANNEL_P": 1024, "CHANNEL_C": 8}
    constants = {"IS_CHANNEL": is_channel, **blocks, **ones}
    found.append(compile_ahead(kernel, pointers, constants, 90, num_warps=8))
    for each in found:
        used = resources(each.asm["cubin"], tmp_path)
        assert used["STACK"] == used["LOCAL"] == 0


# ---- Arguments ----------------------------------------------------------------------------------

X = torch.zeros(2, 8, 4, 4)
# By the words of the error: its class, and the argument that is wrong.
MISTAKES = {
    "batch_norm: x must be a tensor, got NoneType": (TypeError, {"x": None}),
    "batch_norm: bias must be a tensor, got list": (TypeError, {"bias": [0.0] * 8}),
    "batch_norm: running_var must be a tensor, got float": (TypeError, {"running_var": 1.0}),
    "batch_norm: residual must be a tensor, got int": (TypeError, {"residual": 1}),
    "batch_norm: training must be a bool, got 'no'": (TypeError, {"training": "no"}),
    "batch_norm: training must be a bool, got 1": (TypeError, {"training": 1}),
    "batch_norm: training must be a bool, got None": (TypeError, {"training": None}),
    "batch_norm: momentum must be a number, got str": (TypeError, {"momentum": "0.1"}),
    "batch_norm: momentum must be a number, got bool": (TypeError, {"momentum": True}),
    "batch_norm: eps must be a number, got list": (TypeError, {"eps": [1e-5]}),
    "batch_norm: eps must be a number, got NoneType": (TypeError, {"eps": None}),
    "batch_norm: expected an activation of identity, .* got 'none'": (
        ValueError, {"activation": "none"},
    ),
    "batch_norm: expected running_mean and running_var for training=False": (
        ValueError, {"training": False},
    ),
    "group_norm: x must be a tensor, got list": (TypeError, {"x": [1.0]}),
    "group_norm: weight must be a tensor, got float": (TypeError, {"weight": 1.0}),
    "group_norm: groups must be an integer .* got '4'": (ValueError, {"groups": "4"}),
    "group_norm: groups must be an integer .* got True": (ValueError, {"groups": True}),
    "group_norm: eps must be a number, got str": (TypeError, {"eps": "small"}),
    "group_norm: expected an activation of identity, .* got None": (
        ValueError, {"activation": None},
    ),
}  # fmt: skip


def call(kind, **changed):
    arguments = {"x": X, "weight": None, "bias": None}
    if kind == "batch":
        arguments |= {"running_mean": None, "running_var": None, "training": True, **changed}
        return batch_norm(**arguments)
    return group_norm(**{**arguments, "groups": 4, **changed})


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_are_told_as_convolutions_tell_them(words):
    """Where kernels compute, and where torch does, which would raise errors of its own."""
    error, changed = MISTAKES[words]
    kind = words[:5]
    for mode in (contextlib.nullcontext(), FakeTensorMode(allow_non_fake_inputs=True)):
        with mode, pytest.raises(error, match=f"^{words}") as raised:
            call(kind, **changed)
        assert not isinstance(raised.value, UnsupportedError)


@pytest.mark.parametrize("kind", ["batch", "group"])
def test_what_is_right_and_has_no_kernel_is_unsupported(kind):
    for changed in ({}, {"x": X.double()}, {"x": torch.zeros(2, 8)}, {"eps": torch.tensor(1e-5)}):
        with pytest.raises(UnsupportedError, match=f"^{kind}_norm: "):
            call(kind, **changed)


@pytest.mark.parametrize("kind", ["batch", "group"])
def test_graphs_tell_mistakes_and_do_not_break_for_checks(kind):
    def norm(x, eps=1e-5, **changed):
        return call(kind, x=x * 1, eps=eps, activation="relu", **changed)

    expected = {
        "batch": lambda x: torch.nn.functional.batch_norm(x, None, None, training=True).relu(),
        "group": lambda x: torch.nn.functional.group_norm(x, 4).relu(),
    }[kind]
    x = torch.randn(2, 8, 4, 4, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(norm, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), expected(x))
    torch._dynamo.reset()
    with pytest.raises(TypeError, match=f"^{kind}_norm: weight must be a tensor, got float"):
        torch.compile(norm, backend="eager")(x, weight=1.0)


# ---- Operators ----------------------------------------------------------------------------------


def channels_last_of(shape, dtype) -> torch.Tensor:
    size = (shape[0], *shape[2:], shape[1])
    return torch.empty(size, dtype=dtype).movedim(-1, 1)


@pytest.mark.parametrize("kind", ["group", "training", "evaluation"])
def test_operators_on_fake_tensors(kind):
    """What a graph is told of them: shapes, dtypes, memory order, what is written."""
    ops = torch.ops.triton_ext
    wide = torch.float32
    with FakeTensorMode():
        x = channels_last_of((2, 32, 5, 6), torch.bfloat16).requires_grad_()
        weight = torch.empty(32, requires_grad=True)
        running = [torch.empty(32) for _ in range(2)]

        def gradients(x, weight, *running):
            if kind == "group":
                y, _ = ops.norm_forward(x, weight, *[None] * 5, 8, 1e-5, "silu", wide)
            else:
                moments = None
                if kind == "training":
                    with torch.no_grad():
                        moments = ops.batch_moments(x, *running, 0.1, 1e-5)
                    running = None, None
                rest = (None, 1e-5, "relu", x.dtype)
                y, _ = ops.norm_forward(x, weight, None, x * 2, moments, *running, *rest)
            return y, *torch.autograd.grad(y.sum(), (x, weight))

        y, dx, dweight = gradients(x, weight, *running)
        for tensor in (y, dx):
            assert tensor.shape == x.shape
            assert tensor.is_contiguous(memory_format=torch.channels_last)
        assert y.dtype == (wide if kind == "group" else x.dtype)
        assert (dx.dtype, dweight.dtype, dweight.shape) == (x.dtype, wide, weight.shape)
        graph = make_fx(gradients)(x, weight, *running).graph
    calls = [node.target._opname for node in graph.nodes if _is_ours(node.target)]
    moments = ["batch_moments"] if kind == "training" else []
    assert calls == [*moments, "norm_forward", "norm_backward"]
    written = [a.name for a in ops.batch_moments.default._schema.arguments if a.is_write]
    assert written == ["running_mean", "running_var"]
    for name in ("norm_forward", "norm_backward"):
        assert not getattr(ops, name).default._schema.is_mutable


def _is_ours(target: object) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "triton_ext"
