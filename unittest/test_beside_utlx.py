"""triton-utlx beside us: kernels of both, whoever is imported first, in one process.

uTLX is a C++ plugin of Triton with device functions of its own.  It puts its stages hook into
Triton's slot without calling what was there, so these are the orders that matter.
``make test-utlx`` makes an environment that has it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys

import pytest
import triton
from triton_ext.tools import doctor

needs_utlx = pytest.mark.skipif(
    importlib.util.find_spec("utlx_plugin") is None,
    reason="needs triton-utlx beside a triton of its release: make test-utlx",
)

IMPORTS = {
    "utlx": "import utlx_plugin as tlx",
    "ours": "import triton_ext.language as tle",
    "triton": "import triton",
}

KERNELS = """
import hashlib, json
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def add(x_ptr, y_ptr, z_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    buffers = tlx.local_alloc((BLOCK,), tl.float32, 2)
    x_smem, y_smem = tlx.local_view(buffers, 0), tlx.local_view(buffers, 1)
    x_copy = tlx.async_load(x_ptr + offs, x_smem)
    y_copy = tlx.async_load(y_ptr + offs, y_smem)
    tlx.async_load_commit_group([x_copy, y_copy])
    tlx.async_load_wait_group(0)
    tl.store(z_ptr + offs, tlx.local_load(x_smem) + tlx.local_load(y_smem))

@triton.jit
def load(x_desc, y_desc, size, step: tl.constexpr):
    n, h, w = tle.im2col_start(tl.program_id(0) * 128, (size, size), (1, 1), (1, 1))
    y_desc.store([tl.program_id(0) * 128, 0], tle.load_im2col(x_desc, [n, h, w, 0], [0, step]))

def utlx_kernel(backend, arch, threads, code):
    names = ("x_ptr", "y_ptr", "z_ptr")
    signature = dict.fromkeys(names, "*fp32") | {"BLOCK": "constexpr"}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(3)}
    source = ASTSource(add, signature, {"BLOCK": 1024}, aligned)
    text = triton.compile(source, target=GPUTarget(backend, arch, threads)).asm[code]
    copies = text.count("cp.async.c") + text.count("global_load_lds") + text.count(" lds\\n")
    return [hashlib.sha256(text.encode()).hexdigest(), copies]

def our_kernel(arch):
    block = "tensordesc<fp16[128, 64]>"
    signature = {"x_desc": block, "y_desc": block, "size": "i32", "step": "constexpr"}
    source = ASTSource(load, signature, {"step": 1})
    return triton.compile(source, target=GPUTarget("cuda", arch, 32)).asm["ptx"].count(".im2col.")
"""


def run(order, code, folder):
    """Imports in an order and runs code there; returns what it says as JSON."""
    script = folder / "kernels.py"  # Triton reads the source of a kernel
    script.write_text("\n".join([*(IMPORTS[name] for name in order), KERNELS, code]))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache")}
    environment["TRITON_DISABLE_LINE_INFO"] = "1"  # the code is compared, not where it came from
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


THEIRS = "theirs = [utlx_kernel('cuda', 90, 32, 'ptx'), utlx_kernel('hip', 'gfx950', 64, 'amdgcn')]"
OURS = "ours = [our_kernel(90), our_kernel(100)]"


@needs_utlx
@pytest.mark.parametrize(
    "order", [("utlx", "ours"), ("ours", "utlx"), ("triton", "ours", "utlx")], ids="-".join
)
def test_kernels_of_both_in_any_order(order, tmp_path):
    alone = run(["utlx"], f"{THEIRS}; print(json.dumps(theirs))", tmp_path / _made(tmp_path, "a"))
    for first, second in ((THEIRS, OURS), (OURS, THEIRS)):
        folder = tmp_path / _made(tmp_path, first[:4])
        theirs, ours = run(order, f"{first}\n{second}\nprint(json.dumps([theirs, ours]))", folder)
        assert ours == [1, 1]
        # The same code as without us.
        assert theirs == alone
    assert all(copies for _, copies in alone)


def _made(folder, name):
    (folder / name).mkdir()
    return name


@needs_utlx
def test_uninstalled_we_leave_no_trace_in_their_kernels(tmp_path):
    code = (
        "import triton_ext\n"
        "def key(): return utlx_kernel('cuda', 90, 32, 'ptx'), hook()[0]\n"
        "def hook(): return triton.knobs.runtime.add_stages_inspection_hook()\n"
        "before = hook()\n"
        "triton_ext.install(); between = hook()\n"
        "triton_ext.uninstall()\n"
        "print(json.dumps([before == hook(), before == between]))"
    )
    assert run(["utlx"], code, tmp_path) == [True, False]


@needs_utlx
def test_doctor_says_that_both_work(capsys):
    found = {finding.topic: finding for finding in doctor.examine().facts}
    assert found["triton-utlx"].good
    assert found["plugin"].good
    assert "libutlx.so" in found["native plugin"].text


def test_doctor_names_one_for_another_triton(monkeypatch):
    versions = {"triton-utlx": "3.5.0.post1", "triton": triton.__version__}
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: versions.get(name) or real(name)
    )
    found = {finding.topic: finding for finding in doctor.examine().facts}
    assert found["triton-utlx"].good is False
    release = ".".join(triton.__version__.split(".")[:2])
    assert f"pip install 'triton-utlx~={release}.0'" in found["triton-utlx"].text
