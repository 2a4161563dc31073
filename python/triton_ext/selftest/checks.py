"""The checks of the selftest: for each target, what the compiled code has to show.

A check returns a sentence on what it saw, or raises :class:`NotShown`.  Kernels are imported by the
checks themselves: what one of them needs may be missing on a Triton that serves the others.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from triton_ext import backends, host
from triton_ext.host.children import command
from triton_ext.strings import without_leak_report

__all__ = ["CHECKS", "CPU", "GPU", "NUMPY", "TORCH", "Check", "NotShown"]

#: Targets of checks that run something: on the GPU that is here, on the CPU alone, with numpy, and
#: with torch in Triton's interpreter.
GPU, CPU, NUMPY, TORCH = "gpu", "cpu", "numpy", "torch"


#: Size of a physical partition of gfx1250's LDS.
_PARTITION_BYTES = 1 << 16


class NotShown(Exception):
    """A kernel compiled, and its code does not show what it should."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        target: ``"sm_90"``, ``"gfx950"`` or one of those that run something.
        feature: What a user would call it.
        needs: Capability of the host without which it cannot work; empty for none.
        run: Compiles and looks; returns what it saw.
    """

    target: str
    feature: str
    needs: str
    run: Callable[[str], str]

    @property
    def name(self) -> str:
        """As it is asked for."""
        return f"{self.target}:{self.feature}"


def _im2col(target: str) -> str:
    from triton_ext.selftest import kernels

    return _im2col_copies(kernels.compile_conv(target))


def _gluon_im2col(target: str) -> str:
    from triton_ext.selftest import nvidia

    return _im2col_copies(nvidia.compile_im2col(target))


def _im2col_copies(stages: dict[str, Any]) -> str:
    number = len(re.findall(r"cp\.async\.bulk\.tensor\S*\.im2col\.", stages["ptx"]))
    if number == 0:
        raise NotShown("the PTX has no im2col copy")
    return f"{number} im2col copies, cubin of {len(stages['cubin'])} bytes"


def _tiled(target: str) -> str:
    from triton_ext.selftest import kernels

    ptx = kernels.compile_conv(target)["ptx"]
    loads = len(re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared\S*\.global\.mbarrier", ptx))
    stores = len(re.findall(r"cp\.async\.bulk\.tensor\.2d\.global\.shared", ptx))
    if loads == 0 or stores == 0:
        raise NotShown(f"the PTX has {loads} tiled loads and {stores} tiled stores")
    return f"{loads} tiled loads and {stores} tiled stores beside them"


def _nvidia_copies(target: str) -> str:
    from triton_ext.selftest import nvidia

    ptx = nvidia.compile_copies(target)["ptx"]
    widths = re.findall(r"cp\.async\.c[ag]\.shared\.global\S* [^;]*?\], (0x\w+|\d+)", ptx)
    return _all_of({int(width, 0) for width in widths}, 16)


# Bits behind _b (gfx1250), or a word (gfx942 and gfx950).
_TO_LDS = re.compile(r"global_load_async_to_lds_b(\d+)|global_load_lds_(\w+)")
_BYTES = {"ubyte": 1, "ushort": 2, "dword": 4, "dwordx3": 12, "dwordx4": 16}


def _amd_copies(target: str) -> str:
    from triton_ext.selftest import amd

    found = _TO_LDS.finditer(amd.compile_copies(target)["amdgcn"])
    widths = {int(m[1]) // 8 if m[1] else _BYTES.get(m[2], 0) for m in found}
    # gfx942 copies 4 bytes of a lane at most.
    return _all_of(widths, 4 if target == "gfx942" else 16)


def _all_of(widths: set[int], wanted: int) -> str:
    if widths != {wanted}:
        seen = ", ".join(map(str, sorted(widths))) or "none"
        raise NotShown(f"copies of {wanted} bytes were expected, there are: {seen}")
    return f"copies of one element each became copies of {wanted} bytes"


def _waits(target: str) -> str:
    from triton_ext.ir import parse
    from triton_ext.passes import PassManager
    from triton_ext.selftest import amd

    stages = amd.compile_copies(target)
    module = parse(stages["ttgir"], "<ttgir>")
    PassManager([backends.load("amd", "verify-async-waits")()], host_features=host.features).run(
        module
    )
    found = re.findall(r"vmcnt\((\d+)\)|s_wait_asynccnt (0x\w+|\d+)", stages["amdgcn"])
    counts = sorted({int(vector or several, 0) for vector, several in found})
    if not any(counts):
        raise NotShown(f"no wait leaves the newer copies in flight; the counts are {counts}")
    return f"verified; the waits of the assembly leave {', '.join(map(str, counts))} in flight"


def _tdm(target: str) -> str:
    from triton_ext.selftest import cdna5

    return _instructions(cdna5.compile_block(target), 1, 1)


def _tdm_rows(target: str) -> str:
    from triton_ext.selftest import cdna5

    # A wave has four of the rows.
    return _instructions(cdna5.compile_rows(target), 1, 1)


def _instructions(stages: dict[str, Any], loads: int, stores: int) -> str:
    text = stages["amdgcn"]
    found = (text.count("tensor_load_to_lds"), text.count("tensor_store_from_lds"))
    if found != (loads, stores):
        raise NotShown(f"{found[0]} TDM loads and {found[1]} stores, expected {loads}, {stores}")
    return f"{loads} TDM loads and {stores} stores, waits of the assembly: {_tensor_waits(text)}"


def _tensor_waits(text: str) -> str:
    counts = re.findall(r"s_wait_tensorcnt (0x\w+|\d+)", text)
    if not counts:
        raise NotShown("nothing waits for the TDM")
    return ", ".join(str(int(count, 0)) for count in counts)


def _partitioned(target: str) -> str:
    from triton_ext.selftest import cdna5

    stages, taken = cdna5.compile_partitioned(target)
    return _two_partitioned(stages["ttgir"], taken)


def _two_partitioned(ttgir: str, taken: int) -> str:
    """Looks at two values and how far LDS is used: a part of each lies in the second partition."""
    names = re.findall(r"(#\w+) = #ttg\.partitioned_shared<\{numPartitions = 2,", ttgir)
    values = re.findall(r"= ttg\.local_alloc .*!ttg\.memdesc<64x32xf16, (#\w+),", ttgir)
    partitioned = sum(name in names for name in values)
    if partitioned != 2:
        raise NotShown(f"{partitioned} of {len(values)} values in two partitions, expected 2")
    if taken <= _PARTITION_BYTES:
        raise NotShown(f"LDS up to byte {taken}: both values are entirely in the first partition")
    return f"two values of 4096 bytes, each in two partitions; LDS up to byte {taken}"


_CANONICAL = """module {
  tt.func public @kernel(%x: i32) -> i32 {
    %zero = arith.constant 0 : i32
    %sum = arith.addi %x, %zero : i32
    tt.return %sum : i32
  }
}
"""


def _triton_opt(_: str) -> str:
    done = subprocess.run(
        command("-m", "triton_ext.tools.opt", "-canonicalize", "--host=always", "-"),
        input=_CANONICAL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode != 0:
        raise NotShown(f"status {done.returncode}: {_said(done.stderr)}")
    if "arith.addi" in done.stdout or "tt.return" not in done.stdout:
        raise NotShown(f"-canonicalize left {done.stdout!r}")
    return "Triton's -canonicalize folds an addition of 0, through triton-opt"


def _emulator(_: str) -> str:
    from triton_ext.selftest import cdna5

    wrong = cdna5.copy_over_numpy()
    if wrong:
        raise NotShown(f"{wrong} elements are not what was copied")
    return "a TDM copy for gfx1250, run over numpy, copies what it should"


def _said(errors: str) -> str:
    return without_leak_report(errors).strip()


_CONV2D = """
import torch
from triton_ext.ops import conv2d
torch.manual_seed(0)
x = torch.randn(1, 16, 9, 9).half().contiguous(memory_format=torch.channels_last)
w = torch.randn(8, 16, 3, 3).half() / 12
exact = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
print("off by", float((conv2d(x, w, padding=1).double() - exact).abs().max()))
"""


def _interpreted(_: str) -> str:
    # Triton asks for the interpreter when a kernel is defined.
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        command("-c", _CONV2D),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    found = re.search(r"^off by (\S+)$", done.stdout, re.M)
    if found is None:
        raise NotShown(f"status {done.returncode}: {_said(done.stderr)[-300:]}")
    # fp16 sums of 144 products of about 1.
    if not float(found[1]) < 4e-3:
        raise NotShown(f"off by {found[1]}, 0.004 is allowed")
    return f"conv2d of 16 to 8 channels off by {float(found[1]):.2g}"


def _shared(target: str) -> str:
    from triton_ext.analysis.allocation import allocate, unknown_scratch
    from triton_ext.ir import parse
    from triton_ext.selftest import kernels

    stages, taken = kernels.compile_matmul(target)
    module = parse(stages["ttgir"], "<ttgir>")
    if unknown_scratch(module, host.features()):
        raise NotShown("what conversions of layouts need is not known on this release")
    total = allocate(module, features=host.features()).total
    if total > taken:
        raise NotShown(f"placed in {total} bytes, Triton takes {taken}")
    return f"placed in {total} bytes, Triton takes {taken}"


def _conv2d(_: str) -> str:
    import torch

    from triton_ext.ops import conv2d

    torch.manual_seed(0)
    x = torch.randn(2, 64, 28, 28, device="cuda").half()
    x = x.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(128, 64, 3, 3, device="cuda").half() / 24
    exact = torch.nn.functional.conv2d(x.double(), weight.double(), padding=1)
    theirs = torch.nn.functional.conv2d(x, weight, padding=1)
    ours: Any = conv2d(x, weight, padding=1)
    error = float((ours.double() - exact).abs().max())
    # Twice torch's own in the same type, and a floor of some units in the last place of 1.
    allowed = 2 * float((theirs.double() - exact).abs().max()) + 2e-3
    if not error <= allowed:
        raise NotShown(f"off by {error:.3g}, {allowed:.3g} is allowed")
    return f"off by {error:.3g} ({allowed:.3g} is allowed) on {torch.cuda.get_device_name()}"


_NVIDIA, _AMD = ("sm_90", "sm_100"), ("gfx942", "gfx950", "gfx1250")

CHECKS: tuple[Check, ...] = (
    *(Check(target, "im2col convolution", "im2col", _im2col) for target in _NVIDIA),
    *(Check(target, "tiled copies", "im2col", _tiled) for target in _NVIDIA),
    *(Check(target, "im2col in Gluon", "im2col-gluon", _gluon_im2col) for target in _NVIDIA),
    *(Check(target, "wide copies", "stages-hook-key", _nvidia_copies) for target in _NVIDIA),
    *(Check(target, "wide copies", "stages-hook-key", _amd_copies) for target in _AMD),
    *(Check(target, "wait counts", "stages-hook-key", _waits) for target in _AMD),
    Check("gfx1250", "TDM copies", "", _tdm),
    Check("gfx1250", "TDM gather and scatter", "amd-tdm-rows", _tdm_rows),
    Check("gfx1250", "partitioned values", "amd-partitioned-shared", _partitioned),
    *(Check(target, "shared memory", "", _shared) for target in (*_NVIDIA, *_AMD)),
    Check(CPU, "triton-opt", "", _triton_opt),
    Check(NUMPY, "emulator", "", _emulator),
    Check(TORCH, "interpreter", "interpreter", _interpreted),
    Check(GPU, "conv2d against torch", "im2col", _conv2d),
)
