"""@triton.jit kernels that Triton pipelines by itself: results, and waits that are needed."""

from __future__ import annotations

import re

import pytest

np = pytest.importorskip("numpy")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton_ext import plugin  # noqa: E402
from triton_ext.emulator import EmulationError, Program  # noqa: E402
from triton_ext.host import capabilities, features  # noqa: E402

# Copies to LDS are on by default from the release on that has asynchronous marks; host descriptors
# of gfx1250 end the process of 3.7.
NEEDED = capabilities()["amd-async-marks"]
pytestmark = pytest.mark.skipif(not NEEDED.available, reason=NEEDED.reason)

M, N, K, BLOCK = 96, 80, 256, 32


@triton.jit
def matmul_pointers(a_ptr, b_ptr, c_ptr, m, n, k, BLOCK: tl.constexpr):
    offs_m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offs_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    offs_k = tl.arange(0, BLOCK)
    a_ptrs = a_ptr + offs_m[:, None] * k + offs_k[None, :]
    b_ptrs = b_ptr + offs_k[:, None] * n + offs_n[None, :]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for block in range(0, tl.cdiv(k, BLOCK)):
        left = k - block * BLOCK
        a = tl.load(a_ptrs, mask=(offs_m[:, None] < m) & (offs_k[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(offs_k[:, None] < left) & (offs_n[None, :] < n), other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK
        b_ptrs += BLOCK * n
    mask = (offs_m[:, None] < m) & (offs_n[None, :] < n)
    tl.store(c_ptr + offs_m[:, None] * n + offs_n[None, :], acc.to(tl.float16), mask=mask)


@triton.jit
def matmul_descriptors(a_ptr, b_ptr, c_ptr, m, n, k, BLOCK: tl.constexpr):
    a_desc = tl.make_tensor_descriptor(a_ptr, [m, k], [k, 1], [BLOCK, BLOCK])
    b_desc = tl.make_tensor_descriptor(b_ptr, [k, n], [n, 1], [BLOCK, BLOCK])
    c_desc = tl.make_tensor_descriptor(c_ptr, [m, n], [n, 1], [BLOCK, BLOCK])
    offs_m, offs_n = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for offs_k in range(0, k, BLOCK):
        acc = tl.dot(a_desc.load([offs_m, offs_k]), b_desc.load([offs_k, offs_n]), acc)
    c_desc.store([offs_m, offs_n], acc.to(tl.float16))


def compiled(kernel, arch, num_stages):
    signature = {name: "*fp16" for name in ("a_ptr", "b_ptr", "c_ptr")}
    signature |= dict.fromkeys(("m", "n", "k"), "i32") | {"BLOCK": "constexpr"}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(6)}
    source = ASTSource(kernel, signature, constexprs={"BLOCK": BLOCK}, attrs=aligned)
    target = GPUTarget("hip", arch, 64 if arch == "gfx950" else 32)
    return triton.compile(source, target=target, options={"num_stages": num_stages}).asm["ttgir"]


def difference(ttgir, m=M, n=N, k=K):
    rng = np.random.default_rng(0)
    a = (rng.standard_normal((m, k)) / 8).astype(np.float16)
    b = (rng.standard_normal((k, n)) / 8).astype(np.float16)
    c = np.full((m, n), np.nan, np.float16)
    grid = -(-m // BLOCK), -(-n // BLOCK)
    Program(ttgir, host_features=features).run(grid, [a, b, c, m, n, k])
    return np.abs(c - a.astype(np.float32) @ b.astype(np.float32)).max()


@pytest.fixture
def installed(fresh_triton_cache):
    was_installed = plugin.is_installed()
    plugin.install()
    yield
    if not was_installed:
        plugin.uninstall()


KERNELS = pytest.mark.parametrize(
    ("kernel", "arch", "copies"),
    [
        (matmul_pointers, "gfx950", "ttg.async_wait"),
        (matmul_pointers, "gfx1250", "amdg.async_wait"),
        (matmul_descriptors, "gfx1250", "amdg.async_tdm_intrinsic_wait"),
    ],
    ids=["gfx950", "gfx1250", "gfx1250-tdm"],
)


@KERNELS
@pytest.mark.parametrize("num_stages", [2, 4])
def test_a_pipelined_product(installed, kernel, arch, copies, num_stages):
    ttgir = compiled(kernel, arch, num_stages)
    for size in ((M, N, K), (M, N, 32), (33, 48, 64)):
        assert difference(ttgir, *size) < 2e-3


@KERNELS
def test_its_waits_are_needed(installed, kernel, arch, copies):
    ttgir = compiled(kernel, arch, 4)
    waits = [m for m in re.finditer(r"^.*(?:async_wait|intrinsic_wait).*$", ttgir, re.M)]
    if not any(copies in match[0] for match in waits):
        pytest.skip("this Triton makes no asynchronous copies of it")
    found = []
    for match in waits:
        name = re.search(r"num_inst|count(?= =)|num(?= =)", match[0])[0]
        raised = re.sub(rf"{name} = \d+", f"{name} = 60", match[0])
        raised = re.sub(r"(wait) (%[\w, #]+)\{", r"\1 {", raised) if arch != "gfx950" else raised
        try:
            difference(ttgir[: match.start()] + raised + ttgir[match.end() :])
        except EmulationError as error:
            found.append(str(error))
    assert found
    assert all("in flight" in each for each in found)
