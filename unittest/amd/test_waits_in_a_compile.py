"""Wait counts as they reach the hardware: in a compile with the plugin, and in the assembly."""

from __future__ import annotations

import pathlib
import re

import pytest

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton_ext import host, plugin  # noqa: E402
from triton_ext.errors import PassError, UnsupportedError, VerifyError  # noqa: E402
from triton_ext.ir import parse  # noqa: E402
from triton_ext.passes import PassManager  # noqa: E402

LIT = pathlib.Path(__file__).parents[2] / "test" / "amd" / "update-async-wait-count"
PASS = "tritonamdgpu-update-async-wait-count"


def needs(name):
    found = host.capabilities()[name]
    return pytest.mark.skipif(not found.available, reason=found.reason)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, n, k, BLOCK: tl.constexpr):
    a_desc = tl.make_tensor_descriptor(a_ptr, [n, k], [k, 1], [BLOCK, BLOCK])
    b_desc = tl.make_tensor_descriptor(b_ptr, [n, k], [k, 1], [BLOCK, BLOCK])
    c_desc = tl.make_tensor_descriptor(c_ptr, [n, n], [n, 1], [BLOCK, BLOCK])
    offs_m, offs_n = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for offs_k in range(0, k, BLOCK):
        acc = tl.dot(a_desc.load([offs_m, offs_k]), b_desc.load([offs_n, offs_k]).T, acc)
    c_desc.store([offs_m, offs_n], acc.to(tl.float16))


def compile_matmul():
    signature = {name: "*fp16" for name in ("a_ptr", "b_ptr", "c_ptr")} | {"n": "i32", "k": "i32"}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(5)}
    source = ASTSource(
        matmul, {**signature, "BLOCK": "constexpr"}, constexprs={"BLOCK": 64}, attrs=aligned
    )
    return triton.compile(
        source, target=GPUTarget("hip", "gfx1250", 32), options={"num_stages": 4}
    ).asm


@pytest.fixture
def installed(fresh_triton_cache, monkeypatch):
    """The plugin, as the environment of the test makes it."""

    def install(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        forget()
        plugin.install()

    def forget():
        plugin.own_passes.cache_clear()
        plugin.cache_key.cache_clear()

    was_installed = plugin.is_installed()
    plugin.uninstall()
    yield install
    plugin.uninstall()
    monkeypatch.undo()
    forget()
    if was_installed:
        plugin.install()


# Host descriptors of gfx1250 end the process of 3.7; 3.6 takes them apart.
@needs("amd-masked-loads-predicated")
def test_a_kernel_gets_counted_waits(installed):
    installed()
    asm = compile_matmul()
    assert "amdg.async_tdm_intrinsic_wait" in asm["ttgir"]
    assert "amdg.async_tdm_wait" not in asm["ttgir"]
    counts = [
        int(n) for n in re.findall(r"async_tdm_intrinsic_wait .*?count = (\d+)", asm["ttgir"])
    ]
    # The store at the end waits for all.
    assert len(counts) > 2
    assert counts[-1] == 0
    waits = [int(n, 16) for n in re.findall(r"s_wait_tensorcnt (0x[0-9a-f]+)", asm["amdgcn"])]
    assert set(counts) <= set(waits)


@needs("amd-masked-loads-predicated")
def test_the_environment_leaves_it_to_triton(installed):
    installed()
    ours = plugin.cache_key()
    installed(TRITON_EXT_WAITS="host")
    assert "amdg.async_tdm_wait" in compile_matmul()["ttgir"]
    assert plugin.cache_key() != ours


def test_a_value_that_means_nothing_is_refused(installed):
    installed(TRITON_EXT_WAITS="hots")
    with pytest.raises(UnsupportedError, match="TRITON_EXT_WAITS=hots: expected 'ext'"):
        plugin.cache_key()


@pytest.mark.skipif(
    not host.capabilities()["stages-hook-key"].available, reason="left to Triton on this release"
)
def test_an_error_names_the_way_out(installed):
    installed()
    text = """module attributes {ttg.target = "hip:gfx1250"} {
  tt.func public @kernel() {
    %w = ttg.async_wait {number = 0 : i32}
    tt.return
  }
}
"""
    with pytest.raises(VerifyError) as caught:
        plugin.run_passes(text)
    assert caught.value.line == 3
    assert "TRITON_EXT_WAITS=host leaves this to Triton's own pass" in caught.value.notes


UNSAFE = """#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250"} {
  tt.func public @kernel(%p: tensor<512x!tt.ptr<f32>, #b>) {
    %buffer = ttg.local_alloc : () -> !ttg.memdesc<512xf32, #s, #smem, mutable>
    %t = ttg.async_copy_global_to_local %p, %buffer : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g = ttg.async_commit_group tokens %t
    %w = ttg.async_wait {num = 1 : i32}
    %x = ttg.local_load %buffer token %w : !ttg.memdesc<512xf32, #s, #smem, mutable> -> tensor<512xf32, #b> loc("kernel.py":7:9)
    tt.return
  }
}
"""  # noqa: E501 - TTGIR


def test_a_wait_that_is_not_enough_is_an_error_on_request(installed):
    installed()
    plugin.run_passes(UNSAFE)
    before = plugin.cache_key()
    installed(TRITON_EXT_VERIFY_WAITS="1")
    assert plugin.cache_key() != before
    with pytest.raises(PassError, match="unsafe read of LDS") as caught:
        plugin.run_passes(UNSAFE)
    assert (caught.value.filename, caught.value.line) == ("kernel.py", 7)
    assert caught.value.notes[-1] == "TRITON_EXT_VERIFY_WAITS asked for this check"
    plugin.run_passes(UNSAFE.replace("num = 1", "num = 0"))
    installed(TRITON_EXT_VERIFY_WAITS="off")
    plugin.run_passes(UNSAFE)
    installed(TRITON_EXT_VERIFY_WAITS="perhaps")
    with pytest.raises(UnsupportedError, match="TRITON_EXT_VERIFY_WAITS=perhaps: expected 1 or 0"):
        plugin.cache_key()


def test_the_check_is_asked_for_when_the_first_kernel_is_looked_up(installed, monkeypatch):
    installed()
    key = plugin.cache_key()
    monkeypatch.setenv("TRITON_EXT_VERIFY_WAITS", "1")
    plugin.run_passes(UNSAFE)  # or what is found under the key would not be what is compiled
    assert plugin.cache_key() == key


BY_POINTERS = """
    %t = ttg.async_copy_global_to_local %p, %buffer : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>"""  # noqa: E501 - TTGIR
BY_OFFSETS = """
    %t = amdg.buffer_load_to_local %q[%o] into %buffer : !tt.ptr<f32>[tensor<512xi32, #b>] tensor<512x!tt.ptr<f32>, #b>  -> <512xf32, #s, #smem, mutable>"""  # noqa: E501 - TTGIR


@pytest.mark.parametrize("copy", [BY_POINTERS, BY_OFFSETS])
def test_a_kernel_without_any_wait_is_checked(installed, copy):
    head, _, rest = UNSAFE.partition(BY_POINTERS)
    text = head + copy + rest.partition("{num = 1 : i32}")[2].replace(" token %w", "")
    text = text.replace("%p: ", "%q: !tt.ptr<f32>, %o: tensor<512xi32, #b>, %p: ")
    text = text.replace("gfx1250", "gfx950").replace("[32]", "[64]")
    assert "_wait" not in text
    installed(TRITON_EXT_VERIFY_WAITS="1")
    with pytest.raises(PassError, match="unsafe read of LDS"):
        plugin.run_passes(text)


def test_an_encoding_that_is_not_known_is_a_warning():
    """The copy counts nothing: the wait is for everything."""
    text = (LIT / "groups.mlir").read_text()
    text = text.replace("#ttg.blocked<{sizePerThread", "#ttg.future<{sizePerThread")
    module = parse(text)
    report = PassManager(f"{PASS}{{gfx-arch=gfx1250}}").run(module)
    # The 3 is that of a wait that a person counted.
    assert set(re.findall(r"num_inst = (\d+)", str(module))) == {"0", "3"}
    assert all("waits count none of the instructions" in r.message for r in report.remarks)
    assert len(report.remarks) > 10


# ---- the assembly of the lit tests' kernels


def emitted(name, function, arch, emission, pattern):
    """What one function's waits become, in order; the whole kernel is compiled by Triton."""
    module = parse((LIT / f"{name}.mlir").read_text())
    features = host.features()
    PassManager(f"{PASS}{{gfx-arch={arch}}}", host_features=lambda: features).run(module)
    for op in list(module.walk()):
        if op.name == "tt.func" and f"@{function}(" not in op.text.partition("\n")[0]:
            op.erase()
    answer = emission.ask(str(module), arch)
    assert answer.count, answer.said
    return [int(n, 0) for n in re.findall(pattern, answer.asm)]


# LLVM unrolls loops, and from 3.8 on it keeps only the last of waits with nothing in between.
@pytest.mark.parametrize(
    ("name", "function", "expected"),
    [
        ("groups", "straight", [5, 4, 0]),
        ("groups", "branches", [1]),
        ("groups", "pipelined", [4, 0]),
        ("tokens", "newest_token", [5, 4, 0]),
        ("tokens", "carried", [1]),
    ],
)
def test_asynccnt(name, function, expected, emission):
    found = emitted(name, function, "gfx1250", emission, r"s_wait_asynccnt (0x[0-9a-f]+)")
    assert found[-1] == expected[-1]
    assert set(found) <= set(expected)


@needs("amd-tdm-rows-by-layout")
def test_tensorcnt(emission):
    found = emitted("tdm", "rows", "gfx1250", emission, r"s_wait_tensorcnt (0x[0-9a-f]+)")
    behind = found[-5:]
    # 3.9 keeps the counter below 11 by itself, so that what may be more is not asked for again.
    assert behind == [48, 40, 32, 16, 0] or (max(found) <= 10 and behind[-1] == 0)


READ_BEHIND_A_WAIT = """\
#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [64], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx950", "ttg.threads-per-warp" = 64 : i32} {
  tt.func public @kernel(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}) {
    %m = ttg.local_alloc : () -> !ttg.memdesc<256xf32, #s, #smem, mutable>
    %r = tt.make_range {end = 256 : i32, start = 0 : i32} : tensor<256xi32, #b>
    %base = tt.splat %x : !tt.ptr<f32> -> tensor<256x!tt.ptr<f32>, #b>
    %p = tt.addptr %base, %r : tensor<256x!tt.ptr<f32>, #b>, tensor<256xi32, #b>
    %t = ttg.async_copy_global_to_local %p, %m : tensor<256x!tt.ptr<f32>, #b> -> <256xf32, #s, #smem, mutable>
    %g = ttg.async_commit_group tokens %t
    %w = ttg.async_wait WAIT
    %v = ttg.local_load %m : !ttg.memdesc<256xf32, #s, #smem, mutable> -> tensor<256xf32, #b>
    tt.store %p, %v : tensor<256x!tt.ptr<f32>, #b>
    tt.return
  }
}
"""  # noqa: E501 - TTGIR


@needs("amd-async-marks")
@pytest.mark.parametrize("wait", ["%g {num = 7 : i32}", "{num = -1 : i32}"])
def test_a_number_that_waits_for_nothing_behind_a_mark(wait, emission):
    """LLVM looks at the number alone: as written nothing waits between the copy and the read."""
    module = parse(READ_BEHIND_A_WAIT.replace("WAIT", wait))
    as_written = emission.ask(str(module), "gfx950")
    features = host.features()
    PassManager(f"{PASS}{{gfx-arch=gfx950}}", host_features=lambda: features).run(module)
    counted = emission.ask(str(module), "gfx950")

    def waits(asm):
        behind_the_copy = asm.partition("global_load_lds")[2].partition("ds_read")[0]
        return re.findall(r"vmcnt\((\d+)\)", behind_the_copy)

    assert as_written.count == counted.count == 1, as_written.said
    assert waits(as_written.asm) == []
    assert waits(counted.asm) == ["0"]


@pytest.mark.skipif(
    host.capabilities()["amd-async-marks"].available, reason="LLVM counts on this release"
)
def test_vmcnt(emission):
    found = emitted("gfx950", "by_number", "gfx950", emission, r"vmcnt\((\d+)\)")
    assert 1 in found
