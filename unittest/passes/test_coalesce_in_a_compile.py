"""Asynchronous copies of Gluon kernels in a compile with the plugin, and nobody who asks for it."""

from __future__ import annotations

import re

import pytest

triton = pytest.importorskip("triton")

import scaled_tiles  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402
from triton_ext import host, plugin  # noqa: E402
from triton_ext.errors import PassError, SourceError, UnsupportedError, VerifyError  # noqa: E402

HAS_KEY = host.capabilities()["stages-hook-key"]
in_the_key = pytest.mark.skipif(not HAS_KEY.available, reason=HAS_KEY.reason)


@in_the_key
def test_a_copy_that_triton_refuses_compiles(installed):
    with pytest.raises(RuntimeError):
        scaled_tiles.compiled("i8")
    installed()
    ptx = scaled_tiles.compiled("i8")["ptx"]
    assert scaled_tiles.widths_of(ptx) == "16 B x 15"


@in_the_key
def test_the_environment_leaves_layouts_alone(installed):
    installed()
    ours = plugin.cache_key()
    installed(TRITON_EXT_COALESCE="host")
    assert plugin.cache_key() != ours
    with pytest.raises(RuntimeError):
        scaled_tiles.compiled("i8")


def test_a_value_that_means_nothing_is_refused(installed):
    installed(TRITON_EXT_COALESCE="on")
    with pytest.raises(UnsupportedError, match="TRITON_EXT_COALESCE=on: expected 'ext'"):
        plugin.cache_key()


@in_the_key
def test_only_what_a_copy_takes_is_retargeted(installed):
    """Whatever the author sees in registers has the layout that he gave it."""
    stock = registers(scaled_tiles.compiled("fp32")["ttgir"])
    installed()
    ours = registers(scaled_tiles.compiled("fp32")["ttgir"])
    assert ours["ttg.async_copy_global_to_local"] != stock["ttg.async_copy_global_to_local"]
    for name in ("ttg.local_load", "tt.store", "arith.mulf", "scf.for", "scf.yield"):
        assert ours[name] == stock[name]
        assert ours[name]


def registers(ttgir: str) -> dict[str, list[str]]:
    """The types that operations of some kinds print, encodings spelled out."""
    aliases = dict(re.findall(r"^(#\w+) = (#ttg\..*)$", ttgir, re.MULTILINE))
    found: dict[str, list[str]] = {}
    names = "ttg.async_copy_global_to_local ttg.local_load tt.store arith.mulf scf.for scf.yield"
    for name in names.split():
        lines = re.findall(rf"{re.escape(name)}\b.*? : (.*?)(?: loc\(.*\))?$", ttgir, re.MULTILINE)
        found[name] = [re.sub(r"#\w+\b", lambda m: aliases.get(m[0], m[0]), x) for x in lines]
    return found


SMALL = """\
#b = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", \
"ttg.threads-per-warp" = 32 : i32} {
  tt.func public @f(%x: !tt.ptr<ELEMENT> {tt.divisibility = 16 : i32}, \
%loaded: tensor<64xi32, #b>) {
    %m = ttg.local_alloc : () -> !ttg.memdesc<64xELEMENT, #s, #smem, mutable>
    %made = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32, #b>
    %y = tt.splat %x : !tt.ptr<ELEMENT> -> tensor<64x!tt.ptr<ELEMENT>, #b>
    %p = tt.addptr %y, %OFFSETS : tensor<64x!tt.ptr<ELEMENT>, #b>, tensor<64xi32, #b>
    %t = ttg.async_copy_global_to_local %p, %m HINT: tensor<64x!tt.ptr<ELEMENT>, #b> -> \
<64xELEMENT, #s, #smem, mutable>
    tt.return
  }
}
"""


def small(element: str, offsets: str, hint: int = 0) -> str:
    attribute = f"{{contiguity = {hint} : i32}} " if hint else ""
    text = SMALL.replace("ELEMENT", element).replace("OFFSETS", offsets)
    return text.replace("HINT", attribute)


@in_the_key
@pytest.mark.parametrize(("offsets", "changes"), [("made", True), ("loaded", False)])
def test_copies_that_compile(installed, offsets, changes):
    """Four instructions of 4 bytes become one where offsets can be computed anew."""
    installed()
    text = small("f32", offsets).replace("tt.divisibility = 16", "tt.divisibility = 4")
    assert str(plugin.run_passes(text)) == text  # not Gluon
    found = str(plugin.run_passes(text, is_gluon=True))
    assert "ttg.convert_layout" not in found
    assert (found != text) == changes


@in_the_key
def test_a_copy_that_does_not_compile_is_converted_if_need_be(installed):
    installed()
    text = small("f16", "loaded", hint=2).replace("[4]", "[1]", 1)
    assert str(plugin.run_passes(text, is_gluon=True)) == text  # a thread holds one element
    known = text.replace("%loaded: tensor<64xi32, #b>", "%loaded: tensor<64xi32, #b> " + HINTS)
    found = str(plugin.run_passes(known, is_gluon=True))
    assert found.count("= ttg.convert_layout") == 1
    assert "contiguity = 8" in found


HINTS = (
    "{tt.contiguity = dense<64> : tensor<1xi32>, tt.divisibility = dense<16> : tensor<1xi32>, "
    "tt.constancy = dense<1> : tensor<1xi32>}"
)


@in_the_key
def test_an_error_names_the_way_out(installed):
    installed()
    text = small("f16", "made").replace("[4]", "[1]", 1)
    text = text.replace('"ttg.num-warps" = 4 : i32', '"a" = 1 : i32')
    with pytest.raises((PassError, VerifyError)) as caught:
        plugin.run_passes(text, is_gluon=True)
    assert "TRITON_EXT_COALESCE=host leaves such copies as they are written" in caught.value.notes


@in_the_key
def test_an_error_of_the_screen_names_the_way_out(installed):
    installed()
    # 4 bytes of which the text alone does not tell, in a buffer that is none for the shape.
    text = small("f16", "made").replace("order = [0]}>\n#smem", "order = [1, 0]}>\n#smem")
    with pytest.raises(SourceError) as caught:
        plugin.run_passes(text, is_gluon=True)
    assert "TRITON_EXT_COALESCE=host leaves such copies as they are written" in caught.value.notes


@in_the_key
def test_a_module_that_triton_refuses_names_the_way_out(installed, monkeypatch):
    """What a pass of ours leaves behind is the host's to judge."""

    def refuse(text, context):
        raise VerifyError("triton refuses the module:\nno")

    installed()
    monkeypatch.setattr(plugin.host_module, "parse_module", refuse)
    with pytest.raises(VerifyError) as caught:
        scaled_tiles.compiled("i8")
    assert "TRITON_EXT_COALESCE=host leaves such copies as they are written" in caught.value.notes


@in_the_key
def test_a_function_that_a_partition_calls(installed):
    """It has the partition's warps, not the module's."""
    if host.detect().release < (3, 8):
        pytest.skip("written for gl.warp_specialize of 3.8 and newer")
    from small_copy_kernels import calling

    installed()
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(2)}
    source = GluonASTSource(calling, dict.fromkeys(("x_ptr", "out_ptr"), "*fp32"), {}, aligned)
    asm = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm
    assert scaled_tiles.widths_of(asm["ptx"]) == "16 B x 1"
    assert "sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [2]" in asm["ttgir"]


@in_the_key
def test_a_partition_of_one_warp(installed):
    """Its layouts have its number of warps, and what is known of captured pointers counts."""
    if host.detect().release < (3, 8):
        pytest.skip("written for gl.warp_specialize of 3.8 and newer")
    from small_copy_kernels import specialized

    installed()
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(2)}
    source = GluonASTSource(specialized, dict.fromkeys(("x_ptr", "out_ptr"), "*i8"), {}, aligned)
    asm = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm
    assert scaled_tiles.widths_of(asm["ptx"]) == "16 B x 1"
    assert "sizePerThread = [16], threadsPerWarp = [32], warpsPerCTA = [1]" in asm["ttgir"]


@in_the_key
@pytest.mark.parametrize(
    ("name", "element", "size", "held"),
    [
        ("by_pointers", "fp16", 4096, 1),
        ("by_pointers", "i8", 4096, 1),
        ("by_pointers", "fp32", 1024, 2),
        ("by_offsets", "fp16", 4096, 1),
        ("by_offsets", "i8", 4096, 1),
        ("by_offsets", "fp32", 1024, 2),
    ],
)
def test_amd(installed, name, element, size, held):
    """gfx950 copies 4 or 16 bytes of a lane: the layouts as they are written have 1, 2 or 8."""
    copy_kernels = pytest.importorskip("copy_kernels")
    kernel = getattr(copy_kernels, name)

    def compiled():
        signature = dict.fromkeys(("x_ptr", "out_ptr"), f"*{element}")
        signature |= dict.fromkeys(("SIZE", "HELD"), "constexpr")
        aligned = {(i,): [["tt.divisibility", 16]] for i in range(2)}
        source = GluonASTSource(kernel, signature, {(2,): size, (3,): held}, aligned)
        return triton.compile(source, target=GPUTarget("hip", "gfx950", 64)).asm["amdgcn"]

    with pytest.raises(RuntimeError):
        compiled()
    installed()
    copies = [line for line in compiled().splitlines() if re.search(r"load_lds_| lds$", line)]
    assert copies
    assert all("dwordx4" in line for line in copies), copies
