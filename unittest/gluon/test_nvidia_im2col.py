"""im2col for Gluon kernels: descriptors, compiles to cubin, refusals at the user's line."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
import types

import pytest
import triton
from stand_in_tensor import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError
from triton_ext.errors import DescriptorError, LaunchError, UnsupportedError
from triton_ext.gluon import nvidia as xnv
from triton_ext.host import capabilities

CAPABILITY = capabilities()["im2col-gluon"]
needs_im2col = pytest.mark.skipif(not CAPABILITY.available, reason=CAPABILITY.reason)
# Before 3.8 the class, the type and the copy are ours.
COPIES = capabilities()["im2col-copies"]
needs_copies = pytest.mark.skipif(not COPIES.available, reason=COPIES.reason)


def host_class():
    if COPIES.available:
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptorIm2Col
    else:
        from triton_ext.backends.nvidia.gluon.substitutes import TensorDescriptorIm2Col
    return TensorDescriptorIm2Col


def tensor(shape=(2, 8, 8, 64), **description):
    return Tensor(shape, **description)


@pytest.mark.skipif(CAPABILITY.available, reason="this Triton has im2col; nothing to refuse")
def test_a_host_without_im2col_is_refused_by_name():
    for use in (
        lambda: xnv.im2col_layout([64, 64], "float16"),
        lambda: xnv.TensorDescriptorIm2Col.for_conv(tensor(), 3, block_shape=[64, 64]),
        lambda: isinstance(1, xnv.TensorDescriptorIm2Col),
        lambda: xnv.async_load_im2col(1, [], [], 1, 1, _semantic=object()),
    ):
        with pytest.raises(UnsupportedError, match=f"triton {triton.__version__} has no im2col"):
            use()


# ---- Descriptors -------------------------------------------------------------------------------


@needs_im2col
def test_for_conv_is_the_hosts_descriptor():
    x = tensor()
    desc = xnv.TensorDescriptorIm2Col.for_conv(x, 3, 2, 1, block_shape=[64, 64])
    assert isinstance(desc, host_class())
    assert isinstance(desc, xnv.TensorDescriptorIm2Col)
    assert not isinstance(x, xnv.TensorDescriptorIm2Col)
    assert desc.base is x
    assert desc.shape == [2, 8, 8, 64]
    assert desc.strides == [4096, 512, 64, 1]
    assert desc.block_shape == [64, 64]
    assert desc.element_strides == [1, 2, 2, 1]
    assert desc.pixel_box_lower_corner == [-1, -1]
    assert desc.pixel_box_upper_corner == [-1, -1]
    assert desc.layout.swizzle_byte_width == 128
    assert desc.conv.output_size == (4, 4)
    assert desc.mode == "im2col"
    with pytest.raises(TypeError, match="immutable"):
        desc.shape[0] = 3


@needs_im2col
def test_descriptors_are_immutable():
    desc = xnv.TensorDescriptorIm2Col.for_conv(tensor(), 3, block_shape=[64, 64])
    for name, value in {
        **dict.fromkeys(field.name for field in dataclasses.fields(host_class())),
        "block_shape": [3, 3],
        "geometry": None,
        "something_new": 1,
    }.items():
        before = getattr(desc, name, None)
        with pytest.raises(AttributeError, match=f"immutable: cannot set '{name}'; build a new"):
            setattr(desc, name, value)
        assert getattr(desc, name, None) is before
    with pytest.raises(AttributeError, match="immutable: cannot delete 'layout'"):
        del desc.layout
    for attempt in (copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            attempt(desc)


@needs_im2col
def test_the_host_specializes_it():
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.nvidia.compiler import CUDABackend

    torch = pytest.importorskip("torch")
    x = torch.zeros(2, 8, 8, 64, dtype=torch.float16)
    desc = xnv.TensorDescriptorIm2Col.for_conv(x, 3, block_shape=[64, 64])
    text, _ = native_specialize_impl(CUDABackend, desc, False, True, True)
    if not COPIES.available:
        assert text.startswith("tensordesc<fp16[64, 64],Im2ColSharedLayout(input_rank=4,NVMMAShare")
        return
    fields = {field.name: getattr(desc, field.name) for field in dataclasses.fields(host_class())}
    stock = host_class()(**fields)
    assert native_specialize_impl(CUDABackend, stock, False, True, True)[0] == text
    assert text.startswith("tensordesc_im2col<fp16[64, 64],input_rank=4,NVMMASharedLayout(")


@needs_im2col
def test_the_layout_of_a_descriptor_is_the_plain_one_to_everybody():
    layout = xnv.im2col_layout([64, 64], "torch.float16")
    descs = [
        xnv.TensorDescriptorIm2Col.for_conv(tensor(shape), 3, block_shape=[64, 64])
        for shape in ((2, 8, 64), (2, 8, 8, 64))
    ]
    for desc in descs:
        assert desc.layout == layout
        assert layout == desc.layout
        assert hash(desc.layout) == hash(layout)
        assert xnv.with_base(desc, tensor(desc.shape)).layout is desc.layout
        # Also as the layout of a descriptor of another rank.
        other = xnv.TensorDescriptorIm2Col.for_conv(
            tensor((2, 8, 8, 8, 64)), 3, block_shape=[64, 64], layout=desc.layout
        )
        assert other.layout == layout
    assert descs[0] != descs[1]


@needs_im2col
def test_fields_of_the_driver():
    desc = xnv.TensorDescriptorIm2Col.from_tensor(
        tensor(), [32, 32], pixel_box_lower_corner=[0, -1], pixel_box_upper_corner=[-2, -3]
    )
    assert desc.pixel_box_lower_corner == [0, -1]
    assert desc.layout.swizzle_byte_width == 64
    assert desc.element_strides == [1, 1, 1, 1]
    with pytest.raises(DescriptorError, match="pixel_box_upper_corner must be given"):
        xnv.TensorDescriptorIm2Col.from_tensor(tensor(), [32, 32], pixel_box_lower_corner=[0, 0])


@needs_im2col
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_shape": [2048, 64]}, "pixel block 2048: TMA allows 1..1024"),
        ({"block_shape": [96, 64]}, "block of 96 pixels"),
        ({"block_shape": [64, 4]}, "4 channels x 2 B = 8 B"),
        ({"stride": 9}, "conv stride 9"),
        ({"padding": 129}, "padding 129"),
        ({"filter_size": 20}, "empty output"),
    ],
)
def test_what_the_host_accepts_and_the_hardware_does_not(change, message):
    arguments = {"filter_size": 3, "block_shape": [64, 64], **change}
    with pytest.raises(DescriptorError, match=re.escape(message)):
        xnv.TensorDescriptorIm2Col.for_conv(tensor(), **arguments)


@needs_im2col
def test_a_layout_that_does_not_fit():
    wide = xnv.im2col_layout([64, 64], "float16")
    with pytest.raises(DescriptorError, match="narrower than the 128-byte swizzle"):
        xnv.TensorDescriptorIm2Col.for_conv(tensor(), 3, block_shape=[64, 32], layout=wide)
    with pytest.raises(DescriptorError, match="elements of 16 bits, fp32 has 32"):
        xnv.TensorDescriptorIm2Col.for_conv(
            tensor(dtype="float32"), 3, block_shape=[64, 64], layout=wide
        )
    with pytest.raises(TypeError, match="must be an NVMMASharedLayout, got str"):
        xnv.TensorDescriptorIm2Col.for_conv(tensor(), 3, block_shape=[64, 64], layout="x")


@needs_im2col
@pytest.mark.parametrize(
    ("block", "dtype", "swizzle"),
    [
        ([64, 64], "float16", 128),
        ([64, 256], "float16", 128),
        ([64, 32], "float16", 64),
        ([64, 16], "bfloat16", 32),
        ([64, 8], "float16", 0),
        ([4, 64], "float16", 0),
        ([64, 32], "float32", 128),
        ([64, 64], "int8", 64),
    ],
)
def test_layouts(block, dtype, swizzle):
    assert xnv.im2col_layout(block, f"torch.{dtype}").swizzle_byte_width == swizzle


@needs_im2col
def test_layout_of_a_cluster():
    layout = xnv.im2col_layout([64, 64], "torch.float16", [[0, 1]])
    assert layout.swizzle_byte_width == 64
    assert xnv.im2col_layout([64, 64], "torch.float16", [[1, 0]]).swizzle_byte_width == 128


@needs_im2col
def test_with_base():
    desc = xnv.TensorDescriptorIm2Col.for_conv(tensor(), 3, block_shape=[64, 64])
    moved = xnv.with_base(desc, tensor(address=0x7F0000001000))
    assert moved.base.address == 0x7F0000001000
    assert moved.layout is desc.layout
    assert moved.geometry is desc.geometry
    with pytest.raises(DescriptorError, match="the tensor is"):
        xnv.with_base(desc, tensor((2, 8, 4, 64)))
    with pytest.raises(DescriptorError, match="is off by 8"):
        xnv.with_base(desc, tensor(address=0x7F0000001008))


@needs_im2col
def test_what_is_no_descriptor_or_tensor_is_named():
    from triton_ext import Im2ColDescriptor

    desc = xnv.TensorDescriptorIm2Col.for_conv(tensor(), 3, block_shape=[64, 64])
    for thing in (None, 3):
        with pytest.raises(TypeError, match=r"base must be a tensor .* has no dtype"):
            xnv.with_base(desc, thing)
        with pytest.raises(
            TypeError, match=r"desc must be a descriptor that .* built, got builtins"
        ):
            xnv.with_base(thing, tensor())
        with pytest.raises(TypeError, match=r"tensor must be a tensor .* has no dtype"):
            xnv.TensorDescriptorIm2Col.from_tensor(thing, [64, 64])
    ours = Im2ColDescriptor.for_conv(tensor(), 3, block_shape=[64, 64])
    with pytest.raises(TypeError, match=r"got an Im2ColDescriptor; .* desc\.with_base\(base\)"):
        xnv.with_base(ours, tensor())


@needs_im2col
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dtype": "foo"}, DescriptorError, "dtype foo not supported"),
        ({"dtype": None}, DescriptorError, "dtype None not supported"),
        ({"dtype": "torch.float64"}, DescriptorError, "dtype fp64 not supported"),
        ({"dtype": "torch.complex64"}, DescriptorError, "dtype complex64 not supported"),
        ({"block_shape": [128]}, DescriptorError, "must be [pixels, channels], got [128]"),
        ({"block_shape": None}, TypeError, "block_shape must be a sequence of ints, got None"),
        ({"block_shape": [64.0, 64.0]}, TypeError, "block_shape must be a sequence of ints"),
        ({"block_shape": [-1, 64]}, DescriptorError, "pixel block -1: TMA allows 1..1024"),
        ({"block_shape": [64, 24]}, DescriptorError, "block of 24 channels"),
        ({"cga_layout": 3}, TypeError, "cga_layout must be a sequence of [pixels, channels]"),
        ({"cga_layout": [1]}, TypeError, "cga_layout must be a sequence of ints, got 1"),
        ({"cga_layout": [[1]]}, DescriptorError, "basis [1] of cga_layout must be"),
        ({"cga_layout": [[2, 2]]}, DescriptorError, "basis [2, 2] of cga_layout must be"),
        ({"cga_layout": [[-1, 0]]}, DescriptorError, "basis [-1, 0] of cga_layout must be"),
        ({"cga_layout": [[2, 0]]}, DescriptorError, "splits the pixels at [2], expected [1]"),
        ({"cga_layout": [[0, 1]] * 2}, DescriptorError, "channels at [1, 1], expected [1, 2]"),
        (
            {"block_shape": [64, 8], "cga_layout": [[0, 1]]},
            DescriptorError,
            "leaves 64 pixels x 4 channels of the block to each CTA",
        ),
    ],
)
def test_layouts_that_are_refused(changes, error, message):
    arguments = {"block_shape": [64, 64], "dtype": "torch.float16", **changes}
    with pytest.raises(error, match=re.escape(message)):
        xnv.im2col_layout(**arguments)


@needs_im2col
def test_all_that_is_wrong_with_a_layout():
    with pytest.raises(
        DescriptorError, match=r"breaks 2 rules:\n  - dtype foo .*\n  - block_shape"
    ):
        xnv.im2col_layout([128], "foo")
    # As many CTAs as a cluster has, in any order, and shared blocks.
    bases = [[2, 0], [0, 0], [1, 0], [0, 1]]
    assert xnv.im2col_layout([64, 64], "torch.float16", bases).cga_layout == bases


@needs_im2col
def test_a_descriptor_checks_how_its_layout_splits():
    from triton.experimental.gluon.language import NVMMASharedLayout

    layout = NVMMASharedLayout(128, 16, 2, cga_layout=[[2, 2]])
    with pytest.raises(DescriptorError, match=r"basis \[2, 2\] of cga_layout must be"):
        xnv.TensorDescriptorIm2Col.for_conv(tensor(), 3, block_shape=[64, 64], layout=layout)


@needs_im2col
def test_a_swizzle_is_no_wider_than_what_one_cta_has():
    from triton.experimental.gluon.language import NVMMASharedLayout

    x = tensor()
    # 64 channels are 128 bytes; each of two CTAs has 64 of them.
    split = NVMMASharedLayout(128, 16, 2, cga_layout=[[0, 1]])
    with pytest.raises(
        DescriptorError, match=r"a CTA's part of the block, 32 channels = 64 B, is narrower than"
    ):
        xnv.TensorDescriptorIm2Col.for_conv(x, 3, block_shape=[64, 64], layout=split)
    for bases in ([[0, 1]], [[1, 0]]):
        layout = xnv.im2col_layout([64, 64], "torch.float16", bases)
        desc = xnv.TensorDescriptorIm2Col.for_conv(x, 3, block_shape=[64, 64], layout=layout)
        assert desc.geometry.channels_per_pixel == 64


# ---- Kernels -----------------------------------------------------------------------------------

if CAPABILITY.available:
    from gluon_kernels import WALK, load_tile, refused_tile, stock_tile
    from ptx_values import evaluate, im2col_copies
    from triton.experimental.gluon._runtime import GluonASTSource

    def compile_tile(mode, *, arch=90, cga=None, rank=4, num_ctas=1, kernel=load_tile, text=None):
        layout = xnv.im2col_layout([64, 64], "torch.float16", cga)
        text = text or f"tensordesc_im2col<fp16[64, 64],input_rank={rank},{layout!r}>"
        signature = {"x": text, "y": "*fp16", "c": "i32", "MODE": "constexpr", "CTAS": "constexpr"}
        constants = {(3,): mode, (4,): num_ctas}
        source = GluonASTSource(kernel, signature, constants, {})
        return triton.compile(
            source, target=GPUTarget("cuda", arch, 32), options={"num_ctas": num_ctas}
        )


@needs_im2col
@pytest.mark.parametrize("arch", [90, 100])
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_compiles_to_cubin(fresh_triton_cache, arch, rank):
    kernel = compile_tile(f"rank {rank}", arch=arch, rank=rank)
    copies = re.findall(r"cp\.async\.bulk\.tensor\.(\d)d\S*im2col\S*", kernel.asm["ptx"])
    assert copies == [str(rank)]
    assert len(kernel.asm["cubin"]) > 1000


def operands(kernel):
    ptx = kernel.asm["ptx"]
    (copy,) = im2col_copies(ptx)
    return [[evaluate(ptx, one, {}) & 0xFFFFFFFF for one in values] for values in copy.lists]


@needs_im2col
def test_operands_in_the_hardwares_order(fresh_triton_cache):
    # [n, h, w, c] and [r, s], innermost first.
    assert operands(compile_tile("constants")) == [[64, 3, 0xFFFFFFFE, 1], [255, 7]]


@needs_im2col
def test_largest_offset_of_one_dimension(fresh_triton_cache):
    ((_, _, _), (offset,)) = operands(compile_tile("largest", rank=3))
    assert offset & 0xFFFF == 65535


@needs_im2col
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("negative", "offset 0 is -1, expected 0 to 255"),
        ("large", "offset 1 is 256, expected 0 to 255"),
        ("float offset", "offset 0 must be an integer, got 1.5"),
        ("coordinates", "of rank 4: expected 4 coordinates"),
        ("offsets", "and 2 offsets, got 4 and 1"),
        ("channel", "starts at channel 4 of 2-byte elements, expected a multiple of 8"),
        ("int64", "expected an int32 scalar, got int64"),
        ("result", "the result is fp16[32, 64]"),
        (
            "not a descriptor",
            "expected an im2col descriptor, got a scalar int32; pass a triton_ext",
        ),
    ],
)
def test_refusals_at_the_users_line(fresh_triton_cache, mode, message):
    with pytest.raises(CompilationError) as caught:
        compile_tile(mode)
    assert message in str(caught.value)
    assert "xnv.async_load_im2col" in str(caught.value)


@needs_im2col
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("pred i32", "pred must be a bool or an int1 scalar, got a scalar int32"),
        ("pred 2.5", "pred must be a bool or an int1 scalar, got 2.5"),
        ("pred x", "pred must be a bool or an int1 scalar, got 'x'"),
        ("barrier", "barrier must be an mbarrier in shared memory, got a scalar int32"),
        ("swapped", "barrier must be an mbarrier, int64[1] in shared memory, got fp16[64, 64]"),
        ("result", "expected shared memory as result, got None"),
        ("multicast i32", "multicast must be a constant bool, got a scalar int32"),
        ("multicast yes", "multicast must be a constant bool, got 'yes'"),
        ("scalar", "coordinates: expected a list or tuple, got a scalar int32"),
        ("no offsets", "offsets: expected a list or tuple, got None"),
        ("offset a", "offset 0 must be an integer, got 'a'"),
        ("coordinate a", "coordinate 2: expected an int32 scalar, got 'a'"),
        ("walk 3", "walk: expected a list or tuple, got 3"),
        ("walk of two", "expected walk=(output_size, stride, padding), got 2 entries"),
        ("walk size 0", "sizes and strides must be at least 1, got 0"),
        ("walk of 3 dims", "expected a walk of 2 spatial dimensions, got 3"),
        ("walk lengths", "must have one length, got 2, 1 and 2"),
        ("walk stride 9", "stride 9: TMA supports 1..8"),
        ("walk of floats", "walk: expected an int32 scalar, got fp32"),
        ("start stride 9", "im2col_start: stride 9: TMA supports 1..8"),
        ("start", "im2col_start output_size: expected a list or tuple, got 8"),
    ],
)
def test_arguments_are_named(fresh_triton_cache, mode, message):
    if mode.endswith(" a") and triton.__version__.startswith("3.6."):
        pytest.skip("Triton 3.6 itself refuses a list with a string")
    with pytest.raises(CompilationError) as caught:
        compile_tile(mode, kernel=refused_tile)
    # One sentence at the line, and no dump of what the builder takes.
    last = str(caught.value).splitlines()[-1]
    assert re.match(r"\S+gluon_kernels\.py:\d+:\d+: error: ", last)
    assert message in last


@needs_im2col
def test_a_descriptor_for_jit_kernels_is_refused_by_name(fresh_triton_cache):
    with pytest.raises(LaunchError) as caught:
        compile_tile("constants", text="tensordesc<fp16[64, 64]>")
    assert "was passed for 'x' of the Gluon kernel load_tile; for im2col loads" in str(caught.value)
    assert "triton_ext.gluon.nvidia.TensorDescriptorIm2Col.for_conv" in str(caught.value)
    # Triton's own error, with the user's line, is behind it.
    assert isinstance(caught.value.__cause__, CompilationError)


@needs_im2col
def test_a_gluon_descriptor_for_a_jit_kernel_is_refused_by_name(fresh_triton_cache):
    from gluon_kernels import copy_tile
    from triton.compiler import ASTSource

    layout = xnv.im2col_layout([64, 64], "torch.float16")
    text = f"tensordesc_im2col<fp16[64, 64],input_rank=4,{layout!r}>"
    source = ASTSource(copy_tile, {"x": text, "y": "*fp16"}, {}, {})
    with pytest.raises(LaunchError) as caught:
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert "was passed for 'x' of the @triton.jit kernel copy_tile; pass triton_ext.Im2Col" in str(
        caught.value
    )


@needs_im2col
def test_errors_about_something_else_are_left_alone(fresh_triton_cache):
    with pytest.raises(CompilationError, match="offset 0 is -1"):
        compile_tile("negative")


@needs_im2col
@pytest.mark.parametrize("arch", [75, 80, 89])
def test_an_older_gpu_is_refused_by_name(fresh_triton_cache, arch):
    with pytest.raises(CompilationError, match=f"or newer, the target is sm_{arch}"):
        compile_tile("constants", arch=arch)


@needs_im2col
def test_split_pixels_need_a_walk(fresh_triton_cache):
    with pytest.raises(CompilationError, match=r"pass walk=\(output_size, stride, padding\)"):
        compile_tile("constants", cga=[[1, 0]], num_ctas=2)
    kernel = compile_tile("walk", cga=[[1, 0]], num_ctas=2)
    assert "%cluster_ctarank" in kernel.asm["ttgir"]
    assert WALK.value == ((8, 8), (1, 1), (1, 1))
    # Split channels and shared tiles need none.
    for cga in ([[0, 1]], [[0, 0]]):
        assert "%cluster_ctarank" not in compile_tile("constants", cga=cga, num_ctas=2).asm["ttgir"]


@needs_im2col
def test_multicast(fresh_triton_cache):
    if triton.__version__.startswith("3.6."):
        with pytest.raises(CompilationError, match=r"has no multicast; install 3\.7 or newer"):
            compile_tile("multicast", cga=[[0, 0]], num_ctas=2)
        return
    kernel = compile_tile("multicast", cga=[[0, 0]], num_ctas=2)
    ptx = kernel.asm["ptx"]
    (copy,) = im2col_copies(ptx)
    assert copy.name.endswith(".im2col.mbarrier::complete_tx::bytes.multicast::cluster")
    # The mask of both CTAs stands behind the offsets.
    assert len(copy.operands) == 6
    assert evaluate(ptx, copy.operands[-1], {}) == 3
    assert kernel.asm["cubin"]


@needs_im2col
def test_a_tiled_operation_is_refused(fresh_triton_cache):
    if COPIES.available:
        pytest.skip("Triton's own verifier refuses it")
    with pytest.raises(CompilationError, match="this im2col descriptor was passed to a tiled"):
        compile_tile("tiled")


def compile_stock(cga=None, num_ctas=1):
    layout = xnv.im2col_layout([64, 64], "torch.float16", cga)
    text = f"tensordesc_im2col<fp16[64, 64],input_rank=4,{layout!r}>"
    signature = {"x": text, "y": "*fp16", "c": "i32", "CTAS": "constexpr"}
    source = GluonASTSource(stock_tile, signature, {(3,): num_ctas}, {})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_ctas": num_ctas})


@needs_copies
def test_the_hosts_own_kernels_are_left_alone(fresh_triton_cache, monkeypatch):
    from triton_ext import plugin

    found = []
    for installed in (True, False):
        monkeypatch.setenv("TRITON_CACHE_DIR", f"{fresh_triton_cache}-{installed}")
        if not installed:
            plugin.uninstall()
        try:
            found.append(compile_stock())
        finally:
            plugin.install()
    assert found[0].asm["ttgir"] == found[1].asm["ttgir"]
    assert found[0].asm["cubin"] == found[1].asm["cubin"]


@needs_copies
def test_the_host_adds_the_first_pixel_of_a_cta_to_w(fresh_triton_cache):
    # What our lowering takes off w again (docs/adr/0006).  All coordinates of the kernel are c.
    ptx = compile_stock([[1, 0]], num_ctas=2).asm["ptx"]
    copy = re.search(
        r"im2col\S* \[%r\d+\], \[%rd\d+, \{(%r\d+), (%r\d+), (%r\d+), (%r\d+)\}\]", ptx
    )
    channel, w, h, n = copy.groups()
    assert channel == h == n != w
    terms = re.search(rf"\tadd\.s32 \t{w}, (%r\d+), (%r\d+);", ptx).groups()
    (first,) = set(terms) - {n}
    # 32 of 64 pixels for CTA 1: (rank << 5) & 32.
    shifted = re.search(rf"\tand\.b32 \t{first}, (%r\d+), 32;", ptx)[1]
    rank = re.search(rf"\tshl\.b32 \t{shifted}, (%r\d+), 5;", ptx)[1]
    assert f"mov.u32 \t{rank}, %cluster_ctarank;" in ptx


@pytest.mark.parametrize("ctas", ["[]", "((1, 0),)", "[[1, 0], [2, 0]]"])
def test_a_source_spells_layouts_with_bases(ctas):
    from triton_ext.backends.nvidia.gluon.spelling import wrap_source

    layout = f"NVMMASharedLayout(swizzle_byte_width=128, rank=2, cga_layout={ctas})"
    source = types.SimpleNamespace()

    def init(source, signature):
        source.signature = signature

    spelled = {"x": f"tensordesc_im2col<fp16[64, 64],input_rank=4,{layout}>"}
    wrap_source(init, lambda: True)(source, spelled)
    assert source.signature == {
        "x": f"tensordesc<fp16[1, 1, 64, 64],Im2ColSharedLayout(input_rank=4,{layout})>"
    }
