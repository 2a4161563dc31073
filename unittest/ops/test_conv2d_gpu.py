"""conv2d and load_im2col on a GPU, against cuDNN and the software model of the im2col walk.

Tolerance: that of ``gpu_comparison.py``, against an fp32 reference (cuDNN, TF32 off).

Every convolution runs with a poisoned allocator: the memory it is going to write was filled with
NaN before, so that an output that is not written fails.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
import triton
import triton.language as tl
import triton_ext
import triton_ext.language as tle
from gpu_comparison import (
    MARKS,
    assert_as_exact_as_torch,
    bits,
    cudnn_in_full_precision,
    poison,
    skip_without_gpu,
)
from torch.nn.functional import conv2d as torch_conv2d
from torch.nn.functional import pad
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_ext.backends.nvidia.backend import im2col_model
from triton_ext.errors import DescriptorError, LaunchError
from triton_ext.ops import conv2d

skip_without_gpu()
pytestmark = MARKS

SEED = 2026


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A convolution; pairs are (h, w), padding is (top, bottom, left, right)."""

    n: int
    ci: int
    h: int
    w: int
    co: int
    r: int
    s: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    dtype: str = "float16"
    bias: bool = False

    def __str__(self) -> str:
        return (
            f"{self.n}x{self.h}x{self.w}x{self.ci}-{self.co}-{self.r}x{self.s}"
            f"-s{self.stride[0]}{self.stride[1]}-d{self.dilation[0]}{self.dilation[1]}"
            f"-p{'.'.join(map(str, self.padding))}-{self.dtype}{'-bias' * self.bias}"
        )

    @property
    def output_size(self) -> tuple[int, int]:
        """(out_h, out_w); not positive where the filter does not fit."""
        top, bottom, left, right = self.padding
        return (
            (self.h + top + bottom - (self.r - 1) * self.dilation[0] - 1) // self.stride[0] + 1,
            (self.w + left + right - (self.s - 1) * self.dilation[1] - 1) // self.stride[1] + 1,
        )

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """x and weight, standard normal, and the bias."""
        generator = torch.Generator("cuda").manual_seed(SEED)

        def normal(*sizes: int) -> torch.Tensor:
            numbers = torch.randn(*sizes, generator=generator, device="cuda")
            return numbers.to(getattr(torch, self.dtype))

        x = normal(self.n, self.h, self.w, self.ci).permute(0, 3, 1, 2)
        weight = normal(self.co, self.r, self.s, self.ci).permute(0, 3, 1, 2)
        return x, weight, normal(self.co) if self.bias else None

    def ours(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """What the package gives, into poisoned memory."""
        top, bottom, left, right = self.padding
        poison(self.n * self.co * self.output_size[0] * self.output_size[1] * 2)
        sides = ((top, bottom), (left, right))
        return conv2d(x, weight, bias, self.stride, sides, self.dilation)

    def torch(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """What torch gives; it knows equal sides only, so all padding is done in front."""
        top, bottom, left, right = self.padding
        padded = pad(x, (left, right, top, bottom))
        return torch_conv2d(padded, weight, bias, self.stride, 0, self.dilation)


FIXED_CASES = [
    Case(n=2, ci=64, h=16, w=16, co=64, r=3, s=3, padding=(1, 1, 1, 1)),
    Case(n=3, ci=72, h=9, w=11, co=40, r=3, s=3, padding=(2, 0, 1, 3), bias=True),
    Case(n=1, ci=3, h=33, w=31, co=5, r=5, s=4, stride=(2, 3), dtype="bfloat16", bias=True),
    Case(n=16, ci=512, h=7, w=7, co=512, r=3, s=3, padding=(1, 1, 1, 1), dtype="bfloat16"),
    Case(n=5, ci=136, h=15, w=8, co=200, r=2, s=3, dilation=(3, 2), padding=(3, 3, 0, 4)),
]


def check(
    case: Case,
    y: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:
    """Compares a result with cuDNN within the tolerance above."""
    reference = case.torch(x.float(), weight.float(), None if bias is None else bias.float())
    assert y.shape == reference.shape
    assert y.dtype == x.dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert_as_exact_as_torch(y, case.torch(x, weight, bias), reference)


@pytest.fixture(scope="module", autouse=True)
def prepared():
    """The plugin, which another test may have taken out, and an fp32 reference."""
    triton_ext.install()
    with cudnn_in_full_precision():
        yield


# --- against cuDNN ------------------------------------------------------------------------------


@pytest.mark.parametrize("co", [200, 199], ids=["through TMA", "through pointers"])
def test_every_output_is_written(co):
    case = Case(n=2, ci=64, h=30, w=30, co=co, r=3, s=3, padding=(1, 1, 1, 1))
    x, weight, _ = case.tensors()
    conv2d(x, weight, padding=1)
    torch.cuda.synchronize()
    addresses = poison(2 * 30 * 30 * co * 2)
    y = conv2d(x, weight, padding=1)
    # No copy of x or weight is made here, so the output is the first block that is taken.
    if y.data_ptr() not in addresses:
        pytest.skip("the allocator did not hand out the poisoned memory")
    check(case, y, x, weight, None)


@pytest.mark.parametrize("co", [200, 199], ids=["through TMA", "through pointers"])
def test_nothing_behind_the_output_is_written(co):
    # 1250 rows are no multiple of any tile.
    case = Case(n=2, ci=64, h=25, w=25, co=co, r=3, s=3, padding=(1, 1, 1, 1))
    x, weight, _ = case.tensors()
    conv2d(x, weight, padding=1)
    # In a pool of its own the output is cut from the front of the one block that was freed.
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        block = torch.full((1 << 22,), float("nan"), dtype=torch.float16, device="cuda")
        first = block.data_ptr()
        del block
        y = conv2d(x, weight, padding=1)
        behind = torch.empty(1 << 20, dtype=torch.float16, device="cuda")
    distance = behind.data_ptr() - (y.data_ptr() + y.numel() * 2)
    if y.data_ptr() != first or not 0 <= distance < 512:
        pytest.skip("the allocator did not put the two blocks side by side")
    assert torch.isnan(behind).all()
    check(case, y, x, weight, None)


def test_large_values_do_not_overflow_before_they_are_summed():
    # Products of 2^14 cancel in pairs: an fp16 accumulator would be infinite.
    x = torch.full((1, 64, 8, 8), 128.0, dtype=torch.float16, device="cuda")
    x = x.to(memory_format=torch.channels_last)
    weight = torch.full((8, 64, 3, 3), 128.0, dtype=torch.float16, device="cuda")
    weight[:, ::2] = -128.0
    assert torch.equal(conv2d(x, weight), torch.zeros(1, 8, 6, 6).half().cuda())


def test_runs_on_another_stream():
    case = FIXED_CASES[1]
    tensors = case.tensors()
    expected = case.ours(*tensors)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = case.ours(*tensors)
    stream.synchronize()
    assert torch.equal(bits(y), bits(expected))


@pytest.mark.parametrize("case", FIXED_CASES, ids=str)
def test_cuda_graph(case):
    x, weight, bias = case.tensors()
    case.ours(x, weight, bias)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        case.ours(x, weight, bias)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    top, bottom, left, right = case.padding
    sides = ((top, bottom), (left, right))
    with torch.cuda.graph(graph):
        y = conv2d(x, weight, bias, case.stride, sides, case.dilation)
    for factor in (1.0, -0.5):
        # The graph reads x where it was: new values in the same memory, and a poisoned output.
        x.mul_(factor)
        y.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(bits(y), bits(case.ours(x, weight, bias)))


def test_gradients():
    case = FIXED_CASES[1]
    tensors = case.tensors()
    ours = [tensor.clone().requires_grad_() for tensor in tensors]
    theirs = [tensor.clone().requires_grad_() for tensor in tensors]
    y, z = case.ours(*ours), case.torch(*theirs)
    grad = torch.randn_like(z)
    y.backward(grad)
    z.backward(grad)
    for our, their in zip(ours, theirs, strict=True):
        scale = their.grad.abs().max().item()
        assert (our.grad - their.grad).abs().max().item() <= 1e-2 * scale


# --- load_im2col against the model, and launches that do not fit ---------------------------------


@triton.jit(do_not_specialize=["n", "d", "h", "w", "c", "i", "j", "k"])
def copy_im2col(x_desc, y_ptr, n, d, h, w, c, i, j, k, RANK: tl.constexpr, BLOCK: tl.constexpr):
    if RANK == 3:
        tile = tle.load_im2col(x_desc, [n, w, c], [k])
    elif RANK == 4:
        tile = tle.load_im2col(x_desc, [n, h, w, c], [j, k])
    else:
        tile = tle.load_im2col(x_desc, [n, d, h, w, c], [i, j, k])
    rows = tl.arange(0, BLOCK)[:, None]
    tl.store(y_ptr + rows * BLOCK + tl.arange(0, BLOCK)[None, :], tile)


@triton.jit
def copy_tiled(x_desc, y_ptr, BLOCK: tl.constexpr):
    tile = x_desc.load([0, 0])
    rows = tl.arange(0, BLOCK)[:, None]
    tl.store(y_ptr + rows * BLOCK + tl.arange(0, BLOCK)[None, :], tile)


BLOCK = 64
SHAPES = {3: (3, 29, 72), 4: (3, 9, 11, 72), 5: (2, 5, 6, 7, 72)}


def image(rank: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(SHAPES[rank], device="cuda").to(dtype)


def im2col_descriptor(x: torch.Tensor, channels: int = BLOCK) -> triton_ext.Im2ColDescriptor:
    return triton_ext.Im2ColDescriptor.for_conv(
        x, 3, stride=2, padding=1, dilation=2, block_shape=[BLOCK, channels]
    )


def tiled_descriptor(x: torch.Tensor) -> TensorDescriptor:
    rows = x.reshape(-1, x.shape[-1])
    return TensorDescriptor(rows, list(rows.shape), list(rows.stride()), [BLOCK, BLOCK])


def run_im2col(desc, rank: int, pixel: int = 0, tap: tuple[int, ...] = (0, 0, 0), channel: int = 0):
    """Launches copy_im2col for the tile that starts at an output pixel; returns the tile."""
    conv = getattr(desc, "conv", None)
    start = conv.start(pixel) if conv is not None else (0,) * (rank - 1)
    n, spatial = start[0], (0,) * (5 - rank) + tuple(start[1:])
    y = torch.full((BLOCK, BLOCK), float("nan"), device="cuda", dtype=desc.base.dtype)
    copy_im2col[(1,)](desc, y, n, *spatial, channel, *tap, RANK=rank, BLOCK=BLOCK)
    return y


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rank", SHAPES)
def test_load_equals_the_model(rank, dtype):
    x = image(rank, dtype)
    desc = im2col_descriptor(x)
    pixels = desc.m_gemm
    for pixel in (0, 1, pixels // 2, pixels - 1):
        for tap in ((0, 0, 0), (2, 2, 2), (1, 0, 2)):
            for channel in (0, 64):
                tap = (0,) * (5 - rank) + tap[5 - rank :]
                offsets = tuple(2 * t for t in tap)
                y = run_im2col(desc, rank, pixel, offsets, channel)
                elements, valid = im2col_model.element_offsets(
                    desc.geometry, desc.conv.start(pixel), offsets[5 - rank :], channel
                )
                elements = torch.from_numpy(elements).cuda()
                expected = x.flatten()[elements] * torch.from_numpy(valid).cuda()
                assert torch.equal(y, expected.to(dtype)), (pixel, tap, channel)


def test_a_tiled_descriptor_where_im2col_is_expected():
    x = image(4)
    run_im2col(im2col_descriptor(x), 4)
    with pytest.raises(LaunchError, match=r"'x_desc' with load_im2col, but a tiled .* was passed"):
        run_im2col(tiled_descriptor(x), 4)


def test_an_im2col_descriptor_where_a_tiled_one_is_expected():
    x = image(4)
    y = torch.empty(BLOCK, BLOCK, device="cuda", dtype=x.dtype)
    copy_tiled[(1,)](tiled_descriptor(x), y, BLOCK=BLOCK)
    assert torch.equal(y, x.reshape(-1, 72)[:BLOCK, :BLOCK])
    with pytest.raises(LaunchError, match=r"does not read it with load_im2col"):
        copy_tiled[(1,)](im2col_descriptor(x), y, BLOCK=BLOCK)


@triton.jit
def copy_tiled_first_launch(x_desc, y_ptr, BLOCK: tl.constexpr):
    tile = x_desc.load([0, 0])
    rows = tl.arange(0, BLOCK)[:, None]
    tl.store(y_ptr + rows * BLOCK + tl.arange(0, BLOCK)[None, :], tile)


def test_plain_load_of_an_im2col_descriptor():
    # The kernel has never been launched correctly.
    x = image(4)
    y = torch.empty(BLOCK, BLOCK, device="cuda", dtype=x.dtype)
    with pytest.raises(LaunchError, match=r"use triton_ext\.language\.load_im2col"):
        copy_tiled_first_launch[(1,)](im2col_descriptor(x), y, BLOCK=BLOCK)


@pytest.mark.parametrize(("kernel_rank", "rank"), [(4, 3), (4, 5), (3, 4), (5, 4)])
def test_a_descriptor_of_another_rank(kernel_rank, rank):
    run_im2col(im2col_descriptor(image(kernel_rank)), kernel_rank)
    desc = im2col_descriptor(image(rank))
    y = torch.empty(BLOCK, BLOCK, device="cuda", dtype=torch.float16)
    match = rf"with {kernel_rank} coordinates, the descriptor was built for a tensor of rank {rank}"
    with pytest.raises(LaunchError, match=match):
        copy_im2col[(1,)](desc, y, 0, 0, 0, 0, 0, 0, 0, 0, RANK=kernel_rank, BLOCK=BLOCK)


def test_a_refused_launch_leaves_the_gpu_usable():
    x = image(4)
    with pytest.raises(LaunchError):
        run_im2col(tiled_descriptor(x), 4)
    case = FIXED_CASES[0]
    tensors = case.tensors()
    check(case, case.ours(*tensors), *tensors)


def test_an_unaligned_base_is_refused():
    x = Case(n=1, ci=72, h=8, w=8, co=8, r=3, s=3).tensors()[0]
    weight = Case(n=1, ci=64, h=8, w=8, co=8, r=3, s=3).tensors()[1]
    with pytest.raises(DescriptorError, match="16"):
        conv2d(x[:, 4:68], weight)
