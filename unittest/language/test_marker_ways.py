"""Every way in which a marker can reach its load compiles to im2col copies, and computes right."""

from __future__ import annotations

import re

import marker_kernels
import pytest
import triton
import triton_ext
from marker_kernels import BLOCK_K, BLOCK_N, CASES, conv_tile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_ext.host import capabilities
from triton_ext.markers import LIBRARY, MARKED

pytestmark = pytest.mark.skipif(
    not capabilities()["im2col"].available, reason=capabilities()["im2col"].reason
)
# Whether this Triton lowers im2col copies itself, or the markers go on to LLVM IR.
LOWERS = capabilities()["im2col-copies"].available


def compile_case(case, arch):
    signature = {
        "x_desc": f"tensordesc<fp16[{case.block_m}, {BLOCK_K}]>",
        "w_desc": f"tensordesc<fp16[{BLOCK_N}, {BLOCK_K}]>",
        "y_desc": f"tensordesc<fp16[{case.block_m}, {BLOCK_N}]>",
        **dict.fromkeys(("out_h", "out_w", "stride", "pad", "zero", "m_gemm", "co"), "i32"),
    }
    constants = marker_kernels.constants(case)
    signature.update(dict.fromkeys(constants, "constexpr"))
    source = ASTSource(case.kernel, signature, constexprs=constants)
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


@pytest.mark.parametrize(
    ("case", "arch"),
    [(case, arch) for case in CASES for arch in case.archs],
    ids=lambda value: value if isinstance(value, int) else value.name,
)
def test_compiles_to_im2col_copies(case, arch, fresh_triton_cache):
    skip_what_triton_cannot(case, arch)
    compiled = compile_case(case, arch)
    ptx = compiled.asm["ptx"]
    loads = im2col_loads(compiled.asm["ttgir"]) if LOWERS else marked_loads(compiled.asm["ttgir"])
    # The copies of the weights stay tiled, and each copy of x is one im2col instruction.
    # (LLVM may peel a loop, so there can be more of them than in the TTGIR.)
    rank4 = re.findall(r"cp\.async\.bulk\.tensor\.4d\S*", ptx)
    assert len(rank4) >= loads > 0
    assert all(".im2col." in instruction for instruction in rank4)
    assert "cp.async.bulk.tensor.2d" in ptx
    assert MARKED not in ptx + compiled.asm["llir"]
    assert compiled.asm["cubin"][:4] == b"\x7fELF"
    (x_meta, w_meta, y_meta) = compiled.metadata.tensordesc_meta
    assert x_meta["is_im2col"]
    assert x_meta["triton_ext"] == {"name": "x_desc", "rank": 4}
    assert not w_meta["is_im2col"]
    assert not y_meta["is_im2col"]


def skip_what_triton_cannot(case, arch):
    if triton.__version__.startswith("3.6.") and arch == 100 and case.fails_on_3_6:
        pytest.skip("Triton 3.6 itself fails: it cannot specialize a nested loop for sm_100")


def im2col_loads(ttgir):
    """How many loads of x there are; all of them are im2col copies."""
    assert LIBRARY not in ttgir
    x_loads = re.findall(r"async_tma_copy_global_to_local %x_desc\w*\[([^\]]*)\](.*)", ttgir)
    for coord, rest in x_loads:
        assert len(coord.split(",")) == 4
        assert rest.startswith(" offsets = [")
        assert "!ttng.tensordesc_im2col<" in rest
    return len(x_loads)


def marked_loads(ttgir):
    """How many loads of x there are; each has two markers right in front of it."""
    x_loads = re.findall(
        r"(%\w+) = tt\.extern_elementwise [^\n]*im2col\.pixel\.3\"[^\n]*\n"
        r" *(%\w+) = tt\.extern_elementwise [^\n]*im2col\.channel\.3\"[^\n]*\n"
        r" *ttng\.async_tma_copy_global_to_local %[\w.]+\[(%\w+), (%\w+)\]",
        ttgir,
    )
    assert ttgir.count(LIBRARY) == 2 * len(x_loads)
    assert all(pixel == first and channel == second for pixel, channel, first, second in x_loads)
    return len(x_loads)


def test_warp_specialization_was_met(fresh_triton_cache):
    """The cases that are about captures really have them: a descriptor and a marker's operands."""
    by_name = {case.name: case for case in CASES}
    for arch, name in ((100, "warp-specialized-outside"), (90, "warp-specialized-outside-m64")):
        ttgir = compile_case(by_name[name], arch).asm["ttgir"]
        partitions = re.findall(r"partition\d+\((.*)\) num_warps", ttgir)
        assert partitions, f"{name} on sm_{arch} has no partitions"


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_computes_the_convolution(case, gpu, fresh_triton_cache):
    torch = pytest.importorskip("torch")
    if torch.cuda.get_device_capability()[0] * 10 not in case.archs:
        pytest.skip(f"Triton compiles this one for sm_{case.archs[0]} only")
    generator = torch.Generator(device="cuda").manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, device="cuda", dtype=torch.float16, generator=generator)

    channels, co, stride, pad = 128, 192, 1, 1
    x = normal(3, 17, 13, channels)
    w = normal(co, 3, 3, channels) / (9 * channels) ** 0.5
    reference = torch.nn.functional.conv2d(
        x.permute(0, 3, 1, 2).double(), w.permute(0, 3, 1, 2).double(), stride=stride, padding=pad
    ).permute(0, 2, 3, 1)
    x_desc = triton_ext.Im2ColDescriptor.for_conv(
        x, (3, 3), stride, pad, block_shape=[case.block_m, BLOCK_K]
    )
    y = torch.full(tuple(reference.shape), float("nan"), device="cuda", dtype=torch.float16)
    rows = y.view(-1, co)
    w_rows = w.view(co, -1)
    grid = (triton.cdiv(rows.shape[0], case.block_m), triton.cdiv(co, BLOCK_N))
    if case.kernel is not conv_tile:
        grid = (5,)
    case.kernel[grid](
        x_desc,
        TensorDescriptor(w_rows, list(w_rows.shape), list(w_rows.stride()), [BLOCK_N, BLOCK_K]),
        TensorDescriptor(rows, list(rows.shape), list(rows.stride()), [case.block_m, BLOCK_N]),
        *x_desc.output_size,
        stride,
        pad,
        0,
        x_desc.m_gemm,
        co,
        **marker_kernels.constants(case),
        num_stages=case.num_stages,
        num_warps=case.num_warps,
    )
    assert (y.double() - reference).abs().max().item() < 4e-3
