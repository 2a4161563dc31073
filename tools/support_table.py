"""Makes the table in ``docs/support.md`` from what each Triton release does.

    python3 tools/support_table.py            # brings the environments up to date, writes the table
    python3 tools/support_table.py --check    # fails where the table is not what would be written
    python tools/support_table.py --probe     # inside one environment: prints its column as JSON

Each column is made in the environment of that release by running every row's probe there, so a row
says yes only where the feature was seen to work.  No probe needs a GPU; what does has no row.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from environment import ROOT, environment_for

PAGE = ROOT / "docs" / "support.md"
HOSTS = ("3.6.0", "3.7.0", "3.7.1", "3.8.0", "3.9.0")
BEGIN, END = "<!-- table: tools/support_table.py -->", "<!-- end of table -->"

_COMPILE = """
import json, sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
signature = {"x_desc": "tensordesc<fp16[128, 64]>", "w_desc": "tensordesc<fp16[128, 64]>",
             "y_desc": "tensordesc<fp16[128, 128]>",
             "CI": "constexpr", "BLOCK": "constexpr"}
source = ASTSource(conv3x3, signature, constexprs={"CI": 128, "BLOCK": 128})
compiled = triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32))
assert ".im2col." in compiled.asm["ptx"] and compiled.asm["cubin"]
"""

_CONV2D = """
import torch
from triton_ext.ops import conv2d
torch.manual_seed(0)
x = torch.randn(1, 16, 9, 9).half().contiguous(memory_format=torch.channels_last)
w = torch.randn(8, 16, 3, 3).half() / 12
exact = torch.nn.functional.conv2d(x.float(), w.float(), padding=1)
assert (conv2d(x, w, padding=1).float() - exact).abs().max() < 4e-3
"""

_GLUON = """
from triton_ext.gluon import nvidia as xnv
class Tensor:
    shape, dtype = (2, 8, 8, 64), "torch.float16"
    def data_ptr(self): return 1 << 20
    def stride(self): return (4096, 512, 64, 1)
xnv.TensorDescriptorIm2Col.for_conv(Tensor(), 3, padding=1, block_shape=[64, 64])
"""

_GLUON_AMD = """
import numpy as np
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton_ext.gluon import amd as xamd
@gluon.jit
def copy(x_ptr, y_ptr, n, LAYOUT: gl.constexpr):
    x = xamd.make_tensor_descriptor(x_ptr, [n, n], [n, 1], [16, 32], LAYOUT)
    y = xamd.make_tensor_descriptor(y_ptr, [n, n], [n, 1], [16, 32], LAYOUT)
    smem = gl.allocate_shared_memory(gl.float32, [16, 32], LAYOUT)
    xamd.async_load(x, [1, 2], smem)
    xamd.async_wait(0)
    xamd.async_store(y, [1, 2], smem)
    xamd.async_wait(0)
x = np.arange(2500, dtype=np.float32).reshape(50, 50)
y = np.zeros_like(x)
xamd.emulated(copy)[1,](x, y, 50, xamd.smem_layout([16, 32], 32, False))
assert (y[1:17, 2:34] == x[1:17, 2:34]).all() and y.sum() == x[1:17, 2:34].sum()
"""

_EXAMPLES_AMD = """
import sys
sys.path.insert(0, ROOT)
import numpy as np
from triton_ext.gluon import amd as xamd
from examples.gluon.cdna5.embedding_bag import embedding_bag
table = np.ones((9, 64), np.float16)
indices, out = np.zeros(40, np.int32), np.zeros((1, 64), np.float16)
offsets, weights = np.array([0, 40], np.int32), np.ones(40, np.float32)
embedding_bag(table, indices, offsets, weights, out, launcher=xamd.emulated)
assert (out == 40).all()
"""

_SPLIT_PIXELS = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import triton_ext.language as tle
@triton.jit
def load(x_desc, y_desc, size):
    walk = ((size, size), (1, 1), (1, 1))
    n, h, w = tle.im2col_start(tl.program_id(0) * 128, *walk)
    y_desc.store([tl.program_id(0) * 128, 0], tle.load_im2col(x_desc, [n, h, w, 0], [0, 0], walk))
block = "tensordesc<fp16[128, 64]>"
source = ASTSource(load, {"x_desc": block, "y_desc": block, "size": "i32"})
compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_ctas": 2})
assert ".im2col." in compiled.asm["ptx"]
"""

_PASS_IN_A_COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton_ext import plugin
@triton.jit
def one(x_ptr): tl.store(x_ptr, 1)
with plugin.extra_passes("ttgir", "triton-ext-lower-im2col"):
    triton.compile(ASTSource(one, {"x_ptr": "*i32"}), target=GPUTarget("cuda", 90, 32))
"""

_GLUON_COPIES = """
from triton_ext import plugin
text = '''
#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {ttg.target = "cuda:90", "ttg.num-warps" = 4 : i32, "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @kernel(%x: !tt.ptr<i8> {tt.divisibility = 16 : i32}, %m: !ttg.memdesc<64xi8, #s, #smem, mutable>) {
    %r = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32, #b>
    %y = tt.splat %x : !tt.ptr<i8> -> tensor<64x!tt.ptr<i8>, #b>
    %p = tt.addptr %y, %r : tensor<64x!tt.ptr<i8>, #b>, tensor<64xi32, #b>
    %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<i8>, #b> -> <64xi8, #s, #smem, mutable>
    tt.return
  }
}
'''
assert "contiguity = 16" in str(plugin.run_passes(text, is_gluon=True))
"""  # noqa: E501 - TTGIR

_AMD_WAITS = """
from triton_ext import plugin
text = '''module attributes {ttg.target = "hip:gfx1250", "ttg.num-warps" = 4 : i32} {
  tt.func public @kernel() {
    %w = ttg.async_wait {num = 0 : i32}
    tt.return
  }
}
'''
assert "amdg.async_wait" in str(plugin.run_passes(text))
"""

_CHECK = """
exact = torch.nn.functional.conv2d(
    x.permute(0, 3, 1, 2).float(), w.permute(0, 3, 1, 2).float(), padding=1).permute(0, 2, 3, 1)
assert (y.float() - exact).abs().max() < 4e-3
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A feature and how to see whether it works in the running environment.

    Attributes:
        name: What the page calls it.
        since: The first release of triton-ext that has it.
        probe: Tells whether it works.
        how: Tells in some words how it is done here, where that differs between releases of Triton.
    """

    name: str
    since: str
    probe: Callable[[], bool]
    how: Callable[[], str] | None = None


def readme_kernel() -> str:
    """Returns the code in README.md."""
    found = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.M)
    if found is None:
        raise LookupError("README.md holds no python block")
    return found[1]


def _runs(code: str, **variables: str) -> bool:
    """Tells whether a program ends well, with an empty cache of kernels."""
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "probe.py")
        script.write_text(code)
        environment = {**os.environ, "TRITON_CACHE_DIR": folder, "CUDA_VISIBLE_DEVICES": ""}
        environment.pop("TRITON_INTERPRET", None)
        environment.update(variables)
        done = subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, check=False
        )
        return done.returncode == 0


def _optimizes(*flags: str) -> bool:
    """Tells whether triton-opt runs on a module that needs nothing."""
    command = [sys.executable, "-m", "triton_ext.tools.opt", *flags, "-"]
    done = subprocess.run(
        command, input="module {\n}\n", capture_output=True, text=True, check=False
    )
    return done.returncode == 0 and "module" in done.stdout


@lru_cache(maxsize=1)
def _selftested() -> dict[tuple[str, str], str]:
    """Runs the selftest's compiles as a user would; returns status by feature and target."""
    from triton_ext.tools import selftest

    skipped = dict.fromkeys(("gpu", "cpu", "numpy", "torch"), "other rows are about these")
    return {(each.feature, each.target): each.status for each in selftest.run_checks(skipped)}


def _shown(feature: str) -> Callable[[], bool]:
    """Tells whether the selftest saw a feature in the code for each of its targets."""

    def probe() -> bool:
        statuses = [status for (name, _), status in _selftested().items() if name == feature]
        return bool(statuses) and all(status == "yes" for status in statuses)

    return probe


def _where_im2col_is_made() -> str:
    return "in TTGIR" if _capability("im2col-copies") else "in LLVM IR"


def _where_the_key_is() -> str:
    from triton_ext.host import patch_points

    return "in the hook's" if patch_points.asks_hook_for_key() else "behind Triton's"


def _capability(name: str) -> bool:
    from triton_ext.host import capabilities

    return bool(capabilities()[name].available)


def _compiles(capability: int) -> bool:
    kernel = readme_kernel().split("\ndevice = ")[0]
    return _runs(kernel + _COMPILE.replace("CAPABILITY", str(capability)))


ROWS = (
    Row(
        "plugin enters Triton's cache key (`stages-hook-key`)",
        "0.2.0",
        lambda: _capability("stages-hook-key"),
        _where_the_key_is,
    ),
    Row(
        "`load_im2col` in the interpreter",
        "0.2.0",
        lambda: _runs(readme_kernel() + _CHECK, TRITON_INTERPRET="1"),
    ),
    Row(
        "`load_im2col` compiled for sm_90 (`im2col`)",
        "0.2.0",
        lambda: _compiles(90),
        _where_im2col_is_made,
    ),
    Row(
        "`load_im2col` compiled for sm_100 (`im2col`)",
        "0.2.0",
        lambda: _compiles(100),
        _where_im2col_is_made,
    ),
    Row("tiled copies beside im2col ones, sm_90 and sm_100", "0.2.0", _shown("tiled copies")),
    Row(
        "`load_im2col` with pixels split over CTAs (`walk=`)",
        "0.2.0",
        lambda: _runs(_SPLIT_PIXELS),
    ),
    Row("`gluon.nvidia`: im2col descriptors", "0.2.0", lambda: _runs(_GLUON)),
    Row(
        "`gluon.nvidia`: im2col loads compiled for sm_90 and sm_100 (`im2col-gluon`)",
        "0.2.0",
        _shown("im2col in Gluon"),
        _where_im2col_is_made,
    ),
    Row(
        "`gluon.amd`: TDM loads, stores and waits, run over numpy",
        "0.2.0",
        lambda: _runs(_GLUON_AMD),
    ),
    Row(
        "`gluon.amd`: padded gathers and descriptor updates (`examples/gluon/cdna5`)",
        "0.2.0",
        lambda: _runs(_EXAMPLES_AMD.replace("ROOT", repr(str(ROOT)))),
    ),
    Row(
        "passes in Python in a compile (`extra_passes`)", "0.2.0", lambda: _runs(_PASS_IN_A_COMPILE)
    ),
    Row(
        "`triton-opt` with Triton's own passes",
        "0.2.0",
        lambda: _optimizes("-canonicalize", "--host=always"),
    ),
    Row(
        "`triton-opt` with passes of ours alone",
        "0.2.0",
        lambda: _optimizes("-triton-ext-lower-im2col", "--host=none"),
    ),
    Row(
        "Gluon: asynchronous copies get wider layouts in a compile (`TRITON_EXT_COALESCE`)",
        "0.2.0",
        lambda: _runs(_GLUON_COPIES),
    ),
    Row(
        "asynchronous copies of full width in the assembly of all five targets",
        "0.2.0",
        _shown("wide copies"),
    ),
    Row(
        "AMD: waits are counted by triton-ext in a compile (`TRITON_EXT_WAITS`)",
        "0.2.0",
        lambda: _runs(_AMD_WAITS),
    ),
    Row(
        "AMD: waits in the assembly of all three targets leave the newer copies in flight",
        "0.2.0",
        _shown("wait counts"),
    ),
    Row(
        "AMD: `triton-ext-verify-async-waits` and `triton-ext waits`",
        "0.2.0",
        lambda: _optimizes("-triton-ext-verify-async-waits=gfx-arch=gfx1250", "--host=none"),
    ),
    Row(
        "AMD: TDM copies compiled for gfx1250",
        "0.2.0",
        _shown("TDM copies"),
    ),
    Row(
        "AMD: TDM copies compiled for gfx1251 (`amd-gfx1251`)",
        "0.2.0",
        lambda: _capability("amd-gfx1251"),
    ),
    Row(
        "AMD: TDM gathers and scatters compiled for gfx1250 (`amd-tdm-rows`)",
        "0.2.0",
        _shown("TDM gather and scatter"),
    ),
    Row(
        "AMD: partitioned shared memory compiled for gfx1250 (`amd-partitioned-shared`)",
        "0.2.0",
        _shown("partitioned values"),
    ),
    Row(
        "AMD: Triton places partitioned values by itself (`amd-partition-placement`)",
        "0.2.0",
        lambda: _capability("amd-partition-placement"),
    ),
    Row(
        "placement of shared memory in no more bytes than Triton takes, all five targets",
        "0.2.0",
        _shown("shared memory"),
    ),
    Row("`ops.conv2d` in the interpreter", "0.2.0", lambda: _runs(_CONV2D, TRITON_INTERPRET="1")),
)


def probe() -> dict[str, str]:
    """Returns this environment's column: row to ``yes``, ``yes, <how>`` or ``no``."""
    return {row.name: _cell(row) for row in ROWS}


def _cell(row: Row) -> str:
    if not row.probe():
        return "no"
    return f"yes, {row.how()}" if row.how is not None else "yes"


def _with_the_first(cells: dict[str, str]) -> dict[str, str]:
    """Returns a row's cells, with the release from which on it is there where it is not."""
    with_it = [host for host, cell in cells.items() if cell != "no"]
    hosts = list(cells)
    told = {}
    for host, cell in cells.items():
        later = [other for other in with_it if hosts.index(other) > hosts.index(host)]
        told[host] = f"no, from {later[0]} on" if cell == "no" and later else cell
    return told


def plain(cell: str) -> str:
    """Returns a cell of the page as :func:`probe` says it."""
    return "no" if cell.startswith("no, from ") else cell


def parse_page() -> dict[str, dict[str, str]]:
    """Returns what the page says: row to release to cell."""
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table)
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def make_table(*, update: bool) -> str:
    """Returns the table.

    Args:
        update: Whether to bring the environments up to date, or to make them.
    """
    columns = {}
    for host in HOSTS:
        place = environment_for(host)
        if update:
            place.prepare()
        elif not place.python.exists():
            raise SystemExit(f"no environment for triton {host}: leave --check out once")
        command = [str(place.python), str(pathlib.Path(__file__)), "--probe"]
        columns[host] = json.loads(subprocess.check_output(command, cwd=ROOT, text=True))
    lines = [
        f"| feature | {' | '.join(HOSTS)} | since |",
        f"| --- |{' --- |' * (len(HOSTS) + 1)}",
    ]
    for row in ROWS:
        cells = _with_the_first({host: columns[host][row.name] for host in HOSTS})
        lines.append(f"| {row.name} | {' | '.join(cells.values())} | {row.since} |")
    return "\n".join(lines)


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    parser.add_argument("--probe", action="store_true", help="print this environment's column")
    arguments = parser.parse_args()
    if arguments.probe:
        sys.stdout.write(json.dumps(probe()) + "\n")
        return 0
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    wanted = f"{before}{BEGIN}\n{make_table(update=not arguments.check)}\n{END}{rest.split(END)[1]}"
    if arguments.check:
        if wanted != page:
            sys.stderr.write("docs/support.md is not what tools/support_table.py writes\n")
        return int(wanted != page)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
