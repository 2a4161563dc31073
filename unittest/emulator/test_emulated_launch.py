"""Kernels for sm_90 launched on CPU tensors, on every release of Triton."""

from __future__ import annotations

import functools

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch", reason="descriptors need tensors with an address")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
import triton_ext  # noqa: E402
from conv_cases import Case, assert_close  # noqa: E402
from hopper_kernels import CONFIGS, WGRAD_CONFIGS, run  # noqa: E402
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma  # noqa: E402
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # noqa: E402
from triton_ext.emulator import EmulationError  # noqa: E402
from triton_ext.errors import LaunchError, UnsupportedError  # noqa: E402
from triton_ext.gluon import amd as xamd  # noqa: E402
from triton_ext.gluon import nvidia as xnv  # noqa: E402
from triton_ext.host import capabilities  # noqa: E402

GFX1251 = capabilities()["amd-gfx1251"]

# Before 3.8 they are called so.
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def copy_block(x_desc, y_desc, row, WAITS: gl.constexpr):
    """Copies a block through shared memory."""
    smem = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_type.shape, x_desc.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, x_desc.block_type.nbytes)
    async_load(x_desc, [row, 0], bar, smem)
    if WAITS:
        mbarrier.wait(bar, 0)
    async_store(y_desc, [0, 0], smem)
    tma.store_wait(0)


def blocks(x):
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [64, 64], layout)


def test_tiled_copies_of_a_gluon_kernel(fresh_triton_cache):
    x = torch.arange(80 * 64).remainder(97).reshape(80, 64).half()
    y = torch.zeros(64, 64, dtype=torch.float16)
    xnv.emulated(copy_block)[(1,)](blocks(x), blocks(y), 32, True)
    assert (y[:48] == x[32:]).all()
    assert (y[48:] == 0).all()
    with pytest.raises(EmulationError, match="while a copy into it is in flight") as caught:
        xnv.emulated(copy_block)[(1,)](blocks(x), blocks(y), 32, False)
    assert "async_store(y_desc" in caught.value.source_line


# A matrix product: everything is loaded through tiled descriptors, so any release has TTGIR for it.
POINTS = Case(
    n=2, size=(9, 11), ci=72, co=80, filter_size=(1, 1), stride=(1, 1), padding=(0, 0),
    dilation=(1, 1),
)  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "config"),
    [("fprop", CONFIGS[0]), ("dgrad", CONFIGS[1]), ("wgrad", WGRAD_CONFIGS[0])],
    ids=["fprop", "dgrad", "wgrad"],
)
def test_partitions_of_a_gluon_kernel(kernel, config, fresh_triton_cache):
    assert_close(*run(kernel, POINTS, config, seed=1))


@triton.jit
def count_up(x_ptr, total_ptr, size, BLOCK: tl.constexpr = 64):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, offs, mask=offs < size)
    tl.atomic_add(total_ptr, 1)


@pytest.mark.parametrize("constant", [(), (32,)], ids=["default", "by position"])
def test_a_grid_sees_all_arguments(constant, fresh_triton_cache):
    x, total = torch.zeros(128, dtype=torch.int32), torch.zeros((), dtype=torch.int32)

    def grid(given):
        return (triton.cdiv(given["size"], given["BLOCK"]),)

    xnv.emulated(count_up)[grid](x, total, 100, *constant)
    assert x.tolist() == [*range(100), *[0] * 28]
    assert total.item() == (4 if constant else 2)


def test_what_is_no_kernel_is_refused():
    with pytest.raises(TypeError, match="jit function, got 'print'"):
        xnv.emulated(print)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": [1]}, r"^emulated: seed is \[1\]: expected an int$"),
        ({"seed": "a", "edit": 3}, "seed is 'a': expected an int; edit is 3: expected a function"),
        ({"capability": "90"}, "capability is '90': expected an int, the compute capability times"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(TypeError, match=message):
        xnv.emulated(count_up, **options)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"arch": 1250}, TypeError, "^emulated: arch is 1250: expected gfx942, gfx950, "),
        (
            {"arch": "gfx90a", "edit": 3},
            TypeError,
            "arch is 'gfx90a': .* edit is 3: expected a fun",
        ),
        (
            {"arch": "gfx1100"},
            UnsupportedError,
            "^emulated: arch is 'gfx1100': expected gfx942, .* or gfx1251$",
        ),
        ({"types": "*bf16"}, TypeError, r"types is '\*bf16': expected types by parameter, such as"),
        (
            {"types": {"y": "*bf16"}},
            ValueError,
            "^emulated: types has 'y': expected one of x_ptr, t",
        ),
        (
            {"types": {"x_ptr": 16}},
            TypeError,
            r"^emulated: types\['x_ptr'\] is 16: expected a type",
        ),
        ({"types": {"x_ptr": "*bf17"}}, ValueError, r"is '\*bf17': expected one of bf16, fp16, .*"),
    ],
)
def test_wrong_options_of_amd_are_named(options, kind, message):
    with pytest.raises(kind, match=message) as caught:
        xamd.emulated(count_up, **options)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("emulated", "last"),
    [(xnv.emulated, "maxnreg, launch_pdl$"), (xamd.emulated, "waves_per_eu$")],
    ids=["nvidia", "amd"],
)
def test_wrong_options_of_a_launch_are_named(emulated, last):
    """The same of both vendors, before anything is compiled."""
    other = "launch_pdl" if emulated is xnv.emulated else "waves_per_eu"
    for options, kind, message in (
        (
            {"num_wraps": 8},
            TypeError,
            "^through_shared: .*'num_wraps'; it takes x_ptr, .*, " + last,
        ),
        (
            {"num_warps": "4", other: 1.5},
            TypeError,
            f"^through_shared: num_warps is '4': expected an int; {other} is 1.5: expected a",
        ),
        ({"num_warps": 3, "num_stages": -1}, ValueError, "is 3: expected a power of two; num_stag"),
    ):
        with pytest.raises(kind, match=message) as caught:
            emulated(through_shared)[(1,)](np.ones(128, np.int32), 128, 1, None, None, **options)
        assert type(caught.value) is kind


def test_arguments_that_are_not_the_kernels_are_named():
    wanted = "^count_up: missing a required argument: 'total_ptr'; it takes x_ptr, total_ptr, size"
    with pytest.raises(TypeError, match=wanted):
        xnv.emulated(count_up)[(1,)](torch.zeros(128, dtype=torch.int32))


@gluon.jit
def through_shared(
    x_ptr, SIZE: gl.constexpr, STAGES: gl.constexpr, LAYOUT: gl.constexpr, SHARED: gl.constexpr
):
    """Copies a block of 4-byte numbers onto itself, through shared memory."""
    offs = gl.arange(0, SIZE, layout=LAYOUT)
    smem = gl.allocate_shared_memory(gl.int32, [STAGES, SIZE], SHARED).index(0)
    smem.store(gl.load(x_ptr + offs))
    gl.store(x_ptr + offs, smem.load(LAYOUT))


def start_through_shared(emulated, x, stages):
    layout = gl.BlockedLayout([1], [32], [4], [0])
    shared = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    emulated(through_shared)[(1,)](x, len(x), stages, layout, shared)


@pytest.mark.parametrize(
    ("emulated", "message"),
    [
        (xnv.emulated, "524288 bytes of shared memory; a CTA of sm_90 has 232448$"),
        (xamd.emulated, "524288 bytes of LDS; a workgroup of gfx1250 has 327680$"),
        pytest.param(
            functools.partial(xamd.emulated, arch="gfx1251"),
            "524288 bytes of LDS; a workgroup of gfx1251 has 327680$",
            marks=pytest.mark.skipif(not GFX1251.available, reason=GFX1251.reason),
        ),
    ],
    ids=["sm_90", "gfx1250", "gfx1251"],
)
def test_shared_memory_has_a_size(emulated, message, fresh_triton_cache):
    x = np.ones(1024, np.int32)
    if emulated is xnv.emulated:
        x = torch.from_numpy(x)
    with pytest.raises(LaunchError, match=message):
        start_through_shared(emulated, x, 128)


def test_a_gpu_that_this_triton_does_not_know_is_refused_by_name():
    if GFX1251.available:
        pytest.skip("this Triton knows them all")
    message = (
        r"^emulated: arch is 'gfx1251': triton 3\.[67]\.\d does not know gfx1251; install 3\.8"
    )
    with pytest.raises(UnsupportedError, match=message):
        xamd.emulated(through_shared, "gfx1251")


# ---- the door for both vendors


@triton.jit
def add_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + 1, mask=offs < n)


@pytest.mark.parametrize("target", ["sm_90", "cuda:100", "sm_100a", "gfx942", "gfx950", "gfx1250"])
@pytest.mark.parametrize("make", [torch.zeros, np.zeros], ids=["torch", "numpy"])
def test_one_door_for_every_target(target, make, fresh_triton_cache):
    x, y = make(100), make(100)
    triton_ext.emulated(add_one, target)[(2,)](x, y, 100, BLOCK=64)
    assert (y == 1).all()


@pytest.mark.parametrize("target", ["sm_90", "gfx1250"])
def test_one_door_for_gluon(target, fresh_triton_cache):
    x = np.arange(128, dtype=np.int32)
    start_through_shared(lambda kernel: triton_ext.emulated(kernel, target), x, 1)
    assert (x == np.arange(128)).all()


def test_types_of_arrays(fresh_triton_cache):
    x = np.full(64, 0x3F80, np.uint16)  # 1.0 as bf16
    y = np.zeros(64, np.uint16)
    types = {"x_ptr": "*bf16", "y_ptr": "*bf16"}
    for target in ("sm_100", "gfx950"):
        triton_ext.emulated(add_one, target, types=types)[(1,)](x, y, 64, BLOCK=64)
        assert (y == 0x4000).all()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"target": 90}, TypeError, "^emulated: target is 90: expected a str, such as 'sm_90'$"),
        ({"target": "h100"}, ValueError, "target is 'h100': expected a GPU such as 'sm_90', "),
        ({"target": "gfx1100"}, UnsupportedError, "arch is 'gfx1100': expected gfx942, "),
        ({"schedule": "early"}, ValueError, "schedule is 'early': expected one of late, random$"),
        ({"seed": 1.5}, TypeError, "^emulated: seed is 1.5: expected an int$"),
        ({"types": {"z": "*bf16"}}, ValueError, "types has 'z': expected one of x_ptr, y_ptr"),
    ],
)
def test_wrong_arguments_of_the_door_are_named(options, kind, message):
    with pytest.raises(kind, match=message):
        triton_ext.emulated(add_one, **options)
