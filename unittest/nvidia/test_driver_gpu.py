"""The real driver and the real TMA unit: verdicts on random arguments, data of random geometries.

Each test is one fixed sequence of random cases, prints its progress and ends with a summary line;
run it with ``pytest -s``.  Together they take a few minutes on an H200.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import inspect
import pathlib
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest
from triton_ext.backends.nvidia.backend import driver, im2col_model
from triton_ext.backends.nvidia.backend.driver_types import ElementType
from triton_ext.backends.nvidia.backend.geometry import (
    ConvGeometry,
    Im2ColGeometry,
    packed_size_one_strides,
)
from triton_ext.backends.nvidia.backend.map_cache import MAPS
from triton_ext.backends.nvidia.backend.validation import (
    SPATIAL_LIMITS,
    layout_violations,
    violations,
)
from triton_ext.errors import DriverError
from triton_ext.host import capabilities

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SEED = 20261120
ARGUMENT_SETS = 200_000
GEOMETRIES = 2_000

# The rules that are ours and not the driver's, as validation.py documents them.
STRICTER = {
    "element strides of N and C": r"element_strides for N and C must be 1",
    "strides positive": r"^stride of .* must be > 0",
    "strides in memory order": r"permuted views are not supported",
    "8, 16, 32 bits": r"^dtype .* not supported|needs a float dtype of 16 or 32 bits, got fp64",
    "powers of two": r"Triton blocks are powers of two",
    "shared memory": r"bytes of shared memory",
    "int32 pixels": r"int32 pixel index overflows",
    "int32 coordinates": r"int32 coordinates of kernels overflow",
    "16 bytes of channels": r"^block of \d+ channels x \d B = \d+ B: TMA needs a multiple of 16 B",
    "box divides block": r"does not divide the block",
}


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)  # noqa: T201 - progress


# ---- Arguments ---------------------------------------------------------------------------------


@dataclass
class Arguments:
    """One request to the encoder, in our terms."""

    shape: list[int]
    strides: list[int]
    element_bytes: int
    dtype: str
    elem_type: int
    lower: list[int]
    upper: list[int]
    steps: list[int]
    block: list[int]
    box: list[int]
    swizzle: int
    fill_nan: bool
    address: int

    def geometry(self) -> Im2ColGeometry:
        # A descriptor packs the strides of size-1 dimensions before anybody looks at them.
        strides = packed_size_one_strides(self.shape, self.strides, self.element_bytes)
        return Im2ColGeometry(
            shape=tuple(self.shape),
            strides=strides,
            element_bytes=self.element_bytes,
            dtype=self.dtype,
            pixel_box_lower_corner=tuple(self.lower),
            pixel_box_upper_corner=tuple(self.upper),
            element_strides=tuple(self.steps),
            pixels_per_column=self.block[0],
            channels_per_pixel=self.block[1],
        )


# Name, bytes, CUtensorMapDataType that Triton uses for it.
TYPES = (
    ("fp16", 2, ElementType.FLOAT16),
    ("bf16", 2, ElementType.BFLOAT16),
    ("fp32", 4, ElementType.FLOAT32),
    ("fp32", 4, ElementType.TFLOAT32),
    ("i8", 1, ElementType.UINT8),
    ("fp8e5", 1, ElementType.UINT8),
    ("i16", 2, ElementType.UINT16),
    ("i32", 4, ElementType.INT32),
    ("u32", 4, ElementType.UINT32),
)
WIDE_TYPES = (("fp64", 8, ElementType.FLOAT64), ("i64", 8, ElementType.INT64))
SPANS = {0: 1 << 20, 1: 32, 2: 64, 3: 128}


def legal_arguments(rng: random.Random, address: int) -> Arguments:
    """Returns arguments that break no rule, often at the edge of one."""
    while True:
        rank = rng.choice((3, 4, 5))
        limits = SPATIAL_LIMITS[rank - 2]
        dtype, size, elem_type = rng.choice(TYPES)
        unit = 16 // size
        spatial = [rng.choice((1, 2, 7, 14, 56, 224, rng.randint(1, 300))) for _ in range(rank - 2)]
        channels = unit * rng.randint(1, 64) - rng.choice((0, 0, 0, 1)) * (unit > 1)
        shape = [rng.randint(1, 64), *spatial, channels]
        if rng.random() < 0.02:
            shape[0] = rng.choice((1 << 20, 1 << 31, 1 << 32))
        strides = [1]
        for dim in range(rank - 1, 0, -1):
            least = strides[0] * shape[dim]
            least = -(-least // unit) * unit
            strides.insert(0, least + unit * rng.choice((0, 0, 1, rng.randint(0, 100))))
        edge = (limits.corner_min, limits.corner_max)
        lower, upper = [], []
        for extent in spatial:
            low = rng.choice((0, -1, rng.randint(*edge), *edge))
            lower.append(low)
            least = max(limits.corner_min, low - extent + 1)
            if least > limits.corner_max:
                break
            upper.append(rng.choice((least, rng.randint(least, limits.corner_max))))
        if len(upper) < rank - 2:
            continue
        swizzle = rng.randint(0, 3)
        widest = min(256, SPANS[swizzle] // size)
        box_channels = 1 << rng.randint((unit - 1).bit_length(), widest.bit_length() - 1)
        box_pixels = 1 << rng.randint(0, 10)
        block = [box_pixels, box_channels * rng.choice((1, 1, 2, 4))]
        found = Arguments(
            shape=shape,
            strides=strides,
            element_bytes=size,
            dtype=dtype,
            elem_type=int(elem_type),
            lower=lower,
            upper=upper,
            steps=[1, *(rng.randint(1, 8) for _ in spatial), 1],
            block=block,
            box=[box_pixels, box_channels],
            swizzle=swizzle,
            fill_nan=elem_type.is_float and rng.random() < 0.2,
            address=address + 16 * rng.randint(0, 1000),
        )
        if not problems_of(found):
            return found


def problems_of(arguments: Arguments) -> list[str]:
    """What we say: everything that is wrong, in words."""
    geometry = arguments.geometry()
    padding = "nan" if arguments.fill_nan else "zero"
    found = list(violations(geometry, address=arguments.address, padding=padding))
    found += layout_violations(
        geometry,
        address=arguments.address,
        swizzle=arguments.swizzle,
        elem_size=arguments.element_bytes,
        elem_type=arguments.elem_type,
        box=(arguments.box[0], arguments.box[1]),
        fill_nan=arguments.fill_nan,
    )
    return found


def mutate(rng: random.Random, arguments: Arguments) -> None:
    """Moves one argument to somewhere near or beyond a limit."""
    rank = len(arguments.shape)
    limits = SPATIAL_LIMITS[rank - 2]
    spatial = rng.randrange(rank - 2)
    dim = rng.randrange(rank)
    unit = 16 // arguments.element_bytes
    kind = rng.randrange(12)
    if kind == 0:
        arguments.shape[dim] = rng.choice((1, 1 << 31, 1 << 32, (1 << 32) + 1, 0))
    elif kind == 1:
        outer = rng.randrange(rank - 1)
        stride = arguments.strides[outer]
        arguments.strides[outer] = rng.choice(
            (stride + 1, stride + unit, 0, (1 << 40) // arguments.element_bytes, unit, stride * 3)
        )
    elif kind == 2:
        corner = rng.choice((arguments.lower, arguments.upper))
        corner[spatial] = rng.choice(
            (limits.corner_min - 1, limits.corner_max + 1, limits.corner_min, limits.corner_max)
        )
    elif kind == 3:
        arguments.upper[spatial] = arguments.lower[spatial] - arguments.shape[spatial + 1]
    elif kind == 4:
        arguments.steps[dim] = rng.choice((0, 1, 2, 8, 9, 255))
    elif kind == 5:
        pixels = rng.choice((0, 1, 3, 96, 192, 1000, 1024, 1025, 2048))
        arguments.block[0] = arguments.box[0] = pixels
    elif kind == 6:
        channels = rng.choice((0, 1, 4, 12, 24, 48, 96, 128, 255, 256, 257, 264, 512))
        arguments.block[1] = arguments.box[1] = channels
    elif kind == 7:
        arguments.address += rng.choice((1, 2, 4, 8, 12))
    elif kind == 8:
        arguments.swizzle = rng.randint(0, 3)
    elif kind == 9:
        arguments.fill_nan = True
    elif kind == 10:
        dtype, size, elem_type = rng.choice(TYPES + WIDE_TYPES)
        arguments.dtype, arguments.element_bytes = dtype, size
        arguments.elem_type = int(elem_type)
    else:
        arguments.box[rng.randrange(2)] *= 2


def driver_accepts(arguments: Arguments) -> bool:
    """What the driver says; anything but its one code for bad arguments is an error of the test."""
    geometry = arguments.geometry()
    try:
        driver.encode_im2col(
            geometry,
            arguments.address,
            swizzle=arguments.swizzle,
            elem_type=arguments.elem_type,
            box=(arguments.box[0], arguments.box[1]),
            fill_nan=arguments.fill_nan,
        )
    except DriverError as error:
        if "CUDA_ERROR_INVALID_VALUE" not in str(error):
            raise
        return False
    except OverflowError:
        return False  # a number that the driver's own types cannot hold
    return True


def test_verdicts_on_random_arguments(gpu: None) -> None:
    torch = pytest.importorskip("torch")
    buffer = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    rng = random.Random(SEED)
    verdicts: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    refused_by_driver: list[Arguments] = []
    undocumented: list[tuple[list[str], Arguments]] = []
    for index in range(ARGUMENT_SETS):
        if index % 20_000 == 0:
            say(f"arguments {index}/{ARGUMENT_SETS} {dict(verdicts)}")
        arguments = legal_arguments(rng, buffer.data_ptr())
        for _ in range(rng.choice((0, 1, 1, 2))):
            mutate(rng, arguments)
        problems = problems_of(arguments)
        accepted = driver_accepts(arguments)
        verdicts[f"{'refuse' if problems else 'accept'}/{'accept' if accepted else 'refuse'}"] += 1
        if not problems and not accepted:
            refused_by_driver.append(arguments)
        if problems and accepted:
            rules = [n for n, rule in STRICTER.items() if any(re.search(rule, p) for p in problems)]
            reasons.update(rules)
            if any(not any(re.search(r, p) for r in STRICTER.values()) for p in problems):
                undocumented.append((problems, arguments))
    for arguments in refused_by_driver[:10]:
        say(f"we accept, the driver refuses: {arguments}")
    for problems, arguments in undocumented[:10]:
        say(f"only we refuse, for {problems}: {arguments}")
    say(
        f"SUMMARY verdicts ours/driver's {dict(verdicts)}; only ours, by rule: {dict(reasons)}; "
        f"refused by the driver only: {len(refused_by_driver)}; undocumented: {len(undocumented)}"
    )
    assert verdicts["accept/accept"] > ARGUMENT_SETS // 5
    assert verdicts["refuse/refuse"] > ARGUMENT_SETS // 10
    assert not refused_by_driver
    assert not undocumented
    assert set(reasons) == set(STRICTER)


def test_replaced_address_is_an_encoded_one(gpu: None) -> None:
    torch = pytest.importorskip("torch")
    buffer = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    rng = random.Random(SEED)
    for _ in range(2000):
        arguments = legal_arguments(rng, buffer.data_ptr())
        layout: dict[str, Any] = {
            "swizzle": arguments.swizzle,
            "elem_type": arguments.elem_type,
            "box": (arguments.box[0], arguments.box[1]),
            "fill_nan": arguments.fill_nan,
        }
        geometry = arguments.geometry()
        first = driver.encode_im2col(geometry, arguments.address, **layout)
        moved = arguments.address + 16 * rng.randint(1, 1000)
        second = driver.encode_im2col(geometry, moved, **layout)
        assert driver.replace_address(first, moved) == second
    say("SUMMARY 2000 maps with a replaced address equal encoded ones")


# ---- Data --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """A kernel: element type and bytes, block [pixels, channels], swizzle in bytes."""

    dtype: str
    size: int
    pixels: int
    channels: int
    swizzle: int


LAYOUTS = (
    Layout("float16", 2, 64, 64, 128),
    Layout("float16", 2, 256, 64, 128),
    Layout("float16", 2, 16, 128, 128),
    Layout("float16", 2, 64, 32, 64),
    Layout("float16", 2, 128, 16, 32),
    Layout("float16", 2, 64, 8, 0),
    Layout("float16", 2, 64, 64, 0),
    Layout("bfloat16", 2, 128, 64, 128),
    Layout("int16", 2, 64, 32, 64),
    Layout("float32", 4, 64, 32, 128),
    Layout("float32", 4, 64, 16, 64),
    Layout("float32", 4, 32, 8, 32),
    Layout("float32", 4, 64, 4, 0),
    Layout("int32", 4, 64, 32, 128),
    Layout("int8", 1, 64, 128, 128),
    Layout("int8", 1, 64, 64, 64),
    Layout("int8", 1, 64, 32, 32),
    Layout("uint8", 1, 128, 16, 0),
    Layout("float8_e5m2", 1, 64, 128, 128),
    Layout("float8_e4m3fn", 1, 64, 64, 64),
)


def random_conv(rng: random.Random, rank: int, channels: int) -> ConvGeometry:
    """A convolution with output, strides 1 to 8, paddings that may differ from side to side."""
    size, taps, stride, padding, dilation = [], [], [], [], []
    most = {3: 60, 4: 14, 5: 7}[rank]
    for _ in range(rank - 2):
        taps.append(rng.randint(1, 4))
        dilation.append(rng.randint(1, 3))
        stride.append(rng.randint(1, 8))
        padding.append((rng.randint(0, 4), rng.randint(0, 4)))
        reach = (taps[-1] - 1) * dilation[-1] + 1
        least = max(1, reach - sum(padding[-1]))
        size.append(rng.randint(least, max(least, most)))
    shape = (rng.randint(1, 4), *size, channels)
    return ConvGeometry.make(shape, taps, stride, padding, dilation)


def random_memory(torch: Any, rng: random.Random, shape: tuple[int, ...], layout: Layout) -> Any:
    """A tensor of random bits that are no NaN, packed or with gaps between its rows and images."""
    unit = 16 // layout.size
    room = list(shape)
    room[-1] = -(-shape[-1] // unit) * unit + unit * rng.choice((0, 0, 1, 3))
    for dim in range(1, len(room) - 1):
        room[dim] += rng.choice((0, 0, 1))
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[layout.size]
    low, high = {1: (0, 0x70), 2: (0, 0x7000), 4: (0, 0x7F000000)}[layout.size]
    whole = torch.randint(low, high, room, device="cuda", dtype=bits)
    inner = whole[tuple(slice(0, extent) for extent in shape)]
    return inner.view(getattr(torch, layout.dtype))


def expected_block(geometry: Im2ColGeometry, x: Any, start: Any, offsets: Any, channel: int) -> Any:
    """What the model loads from the memory behind ``x``, as unsigned integers."""
    import numpy as np

    elements, mask = im2col_model.element_offsets(geometry, start, offsets, channel)
    kind = {1: "uint8", 2: "uint16", 4: "uint32"}[geometry.element_bytes]
    span = 1 + sum((n - 1) * s for n, s in zip(geometry.shape, geometry.strides, strict=True))
    memory = np.frombuffer(memory_bytes(x, span * geometry.element_bytes), dtype=kind)
    return np.where(mask, memory[np.where(mask, elements, 0)], 0).astype(kind)


def memory_bytes(x: Any, count: int) -> bytes:
    """The bytes from the first element of a GPU tensor on, gaps included."""
    import torch

    storage = x.untyped_storage()
    first = x.storage_offset() * x.element_size()
    flat = torch.empty(0, dtype=torch.uint8, device=x.device).set_(storage)
    host = flat[first : first + count].cpu()
    return ctypes.string_at(host.data_ptr(), count)


def test_random_geometries_end_to_end(gpu: None) -> None:
    torch = pytest.importorskip("torch")
    np = pytest.importorskip("numpy")
    from gpu_kernels import fetch
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton_ext.gluon import nvidia as xnv

    rng = random.Random(SEED)
    torch.manual_seed(SEED)
    seen: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    for index in range(GEOMETRIES):
        if index % 200 == 0:
            say(f"geometries {index}/{GEOMETRIES} {dict(seen)} wrong: {len(wrong)}")
        rank, layout = 3 + index % 3, LAYOUTS[index // 3 % len(LAYOUTS)]
        unit = 16 // layout.size
        channels = rng.choice((layout.channels, unit * rng.randint(1, 20), unit * 3 - 1))
        channels = max(1, channels)
        conv = random_conv(rng, rank, channels)
        x = random_memory(torch, rng, conv.input_shape, layout)
        block = [layout.pixels, layout.channels]
        smem = NVMMASharedLayout(
            swizzle_byte_width=layout.swizzle, element_bitwidth=8 * layout.size, rank=2
        )
        if index % 4:
            desc = xnv.TensorDescriptorIm2Col.for_conv(
                x,
                conv.filter_size,
                conv.stride,
                conv.padding,
                conv.dilation,
                block_shape=block,
                layout=smem,
            )
            pixel = rng.choice((0, rng.randrange(conv.m_gemm), conv.m_gemm - 1))
            start = conv.start(pixel)
            offsets = conv.filter_offset([rng.randrange(taps) for taps in conv.filter_size])
            seen["tail"] += pixel + layout.pixels > conv.m_gemm
        else:
            # No convolution: any corners, any start in the box, any offset.
            lower, upper = [], []
            for extent in conv.spatial_shape:
                lower.append(rng.randint(-12, 12))
                upper.append(rng.randint(max(-16, lower[-1] - extent + 1), 15))
            desc = xnv.TensorDescriptorIm2Col.from_tensor(
                x,
                block,
                smem,
                element_strides=conv.element_strides,
                pixel_box_lower_corner=lower,
                pixel_box_upper_corner=upper,
            )
            last = desc.geometry.box_last
            box = zip(lower, last, strict=True)
            start = (rng.randrange(conv.input_shape[0]), *(rng.randint(a, b) for a, b in box))
            limit = SPATIAL_LIMITS[rank - 2].offset_max
            offsets = tuple(rng.choice((0, 1, rng.randint(0, 31), limit)) for _ in lower)
            seen["corners"] += 1
        channel = layout.channels * rng.choice((0, 0, 0, 1, channels // layout.channels))
        y = torch.full(block, 85, dtype=torch.uint8, device="cuda").repeat(1, layout.size)
        y = y.view(x.dtype)
        n, *space = start
        d, h, w = [0] * (3 - len(space)) + list(space)
        t, r, s = [0] * (3 - len(offsets)) + list(offsets)
        fetch[(1,)](desc, y, n, d, h, w, channel, t, r, s, rank)
        kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[layout.size]
        got = y.view(kind).cpu().numpy().view({1: "uint8", 2: "uint16", 4: "uint32"}[layout.size])
        expected = expected_block(desc.geometry, x, start, offsets, channel)
        seen[f"rank {rank}"] += 1
        seen["strided"] += max(conv.stride) > 1
        if not np.array_equal(got, expected):
            count = int((got != expected).sum())
            seen["wrong convolutions" if index % 4 else "wrong corners"] += 1
            wrong.append(f"{layout} {desc.geometry} start={start} offsets={offsets} c={channel}")
            if len(wrong) <= 10:
                say(f"WRONG in {count} of {got.size} elements: {wrong[-1]}")
    say(f"SUMMARY {GEOMETRIES} geometries, {len(wrong)} wrong, {dict(seen)}")
    assert not wrong


# ---- Clusters ----------------------------------------------------------------------------------


def expected_rows(torch: Any, x: Any) -> Any:
    """im2col rows of tap (1, 2) of a 3x3 convolution with padding 1: [N * H * W, C]."""
    padded = torch.nn.functional.pad(x, (0, 0, 1, 1, 1, 1))
    height, width = x.shape[1:3]
    return padded[:, 1 : 1 + height, 2 : 2 + width].reshape(-1, x.shape[3])


def cluster_case(torch: Any, cga: list[list[int]], ours: bool, multicast: bool) -> int:
    """Returns the number of wrong elements of a cluster's blocks."""
    from gpu_kernels import share
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
    from triton_ext.gluon import nvidia as xnv

    height, width = 14, 12
    x = torch.randint(-8, 8, (4, height, width, 64), device="cuda").to(torch.float16)
    block = [128, 64]
    layout = xnv.im2col_layout(block, x.dtype, cga)
    desc = xnv.TensorDescriptorIm2Col.for_conv(x, 3, 1, 1, block_shape=block, layout=layout)
    expected = expected_rows(torch, x)
    rows = expected.shape[0] // 128 * 128
    y = torch.zeros(rows, 64, dtype=torch.float16, device="cuda")
    y_desc = TensorDescriptor.from_tensor(y, block, layout)
    walk = ((height, width), (1, 1), (1, 1))
    share[(rows // 128,)](desc, y_desc, ours, multicast, walk, num_ctas=2)
    torch.cuda.synchronize()
    return int((y != expected[:rows]).sum())


@pytest.mark.parametrize(
    ("name", "cga", "multicast"),
    [
        ("pixels split", [[1, 0]], False),
        ("channels split", [[0, 1]], False),
        ("shared block, two copies", [[0, 0]], False),
        ("shared block, multicast", [[0, 0]], True),
    ],
)
def test_a_cluster_of_two(gpu: None, name: str, cga: list[list[int]], multicast: bool) -> None:
    torch = pytest.importorskip("torch")
    if multicast and not takes_multicast():
        pytest.skip("Gluon of Triton 3.6 has no multicast")
    ours = cluster_case(torch, cga, ours=True, multicast=multicast)
    if not capabilities()["im2col-copies"].available:
        assert ours == 0
        return
    stock = stock_case(cga, multicast)
    say(f"SUMMARY {name}: ours {ours} wrong elements, stock {stock}")
    assert ours == 0
    # If this fails, Triton derives the start itself and docs/adr/0006 has to be reversed.
    assert (stock != "0 wrong elements") == (name == "pixels split")


def takes_multicast() -> bool:
    from triton.experimental.gluon.language.nvidia.hopper import tma

    load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
    return "multicast" in inspect.signature(load).parameters


def stock_case(cga: list[list[int]], multicast: bool) -> str:
    """Says what Triton alone does, in a process of its own.

    A CTA that starts outside of the pixel box is not only wrong: the H200 answers it with an
    illegal instruction, which takes the CUDA context along.
    """
    code = (
        "import sys, torch\n"
        f"sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n"
        "from test_driver_gpu import cluster_case\n"
        f"print(cluster_case(torch, {cga}, ours=False, multicast={multicast}), 'wrong elements')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    if result.returncode == 0:
        return result.stdout.strip().splitlines()[-1]
    errors = [line for line in result.stderr.splitlines() if "CUDA error" in line]
    assert errors, result.stderr[-2000:]
    return errors[0].rpartition("CUDA error: ")[2]


def test_a_cluster_of_two_in_triton(gpu: None) -> None:
    torch = pytest.importorskip("torch")
    from gpu_kernels import share_jit
    from triton.tools.tensor_descriptor import TensorDescriptor
    from triton_ext import Im2ColDescriptor

    x = torch.randint(-8, 8, (4, 14, 12, 64), device="cuda").to(torch.float16)
    desc = Im2ColDescriptor.for_conv(x, 3, 1, 1, block_shape=[128, 64])
    expected = expected_rows(torch, x)
    rows = expected.shape[0] // 128 * 128
    y = torch.zeros(rows, 64, dtype=torch.float16, device="cuda")
    y_desc = TensorDescriptor(y, [rows, 64], [64, 1], [128, 64])
    kernel = share_jit[(rows // 128,)](desc, y_desc, 128, 14, 12, num_ctas=2)
    torch.cuda.synchronize()
    wrong = int((y != expected[:rows]).sum())
    box = kernel.metadata.tensordesc_meta[0]["block_size"]
    say(f"SUMMARY @triton.jit, box {box}: wrong elements: {wrong}")
    assert wrong == 0


# ---- Launches ----------------------------------------------------------------------------------


def test_a_captured_launch_keeps_its_map(gpu: None) -> None:
    torch = pytest.importorskip("torch")
    from gpu_kernels import copy_tile
    from triton_ext import Im2ColDescriptor

    def tensor() -> Any:
        return torch.randint(-8, 8, (2, 8, 8, 64), device="cuda").to(torch.float16)

    first, second = tensor(), tensor()
    out = torch.zeros(64, 64, dtype=torch.float16, device="cuda")

    def launch(x: Any) -> None:
        desc = Im2ColDescriptor.for_conv(x, 1, block_shape=[64, 64])
        copy_tile[(1,)](desc, out, 0, 0, 0, 0, 0, 0)

    launch(second)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(first)
    # What the cache keeps, and where other launches read, is nothing to the captured one.
    MAPS.clear()
    gc.collect()
    launch(second)
    assert torch.equal(out, second.view(-1, 64)[:64])
    graph.replay()
    assert torch.equal(out, first.view(-1, 64)[:64])
    first.copy_(tensor())
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, first.view(-1, 64)[:64])
