"""The table of Triton's tutorials in the emulator, over files of our own and over a checkout."""

from __future__ import annotations

import os
import pathlib

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch", reason="the tutorials compare with torch")
gluon = pytest.importorskip("triton.experimental.gluon")

TOOL = pathlib.Path(__file__).parent.parent / "tools" / "emulate_upstream.py"
CHECKOUT = os.environ.get("TRITON_EXT_TRITON_CHECKOUT", "")
NIGHTLY = bool(os.environ.get("TRITON_EXT_NIGHTLY"))

FILE = """
import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def copy_kernel(x_ptr, y_ptr, N: gl.constexpr, LAYOUT: gl.constexpr):
    offs = gl.arange(0, N, LAYOUT)
    gl.store(y_ptr + offs, gl.load(x_ptr + offs))


def test_copy(n, scale=1):
    x = torch.randn(64, device="cuda")
    y = torch.empty_like(x).to("cuda")
    copy_kernel[(1,)](x, y, n, gl.BlockedLayout([1], [32], [4], [0]), num_warps=4)
    torch.cuda.synchronize()
    assert torch.cuda.get_device_capability() == (10, 0)
    torch.testing.assert_close(y, x * scale)
"""


@pytest.fixture
def checkout(tmp_path, fresh_triton_cache):
    folder = tmp_path / "triton" / "python" / "tutorials" / "gluon"
    folder.mkdir(parents=True)
    (folder / "01-copy.py").write_text(FILE)
    return tmp_path / "triton"


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("test_copy(64)", ""),
        ("test_copy(64, scale=2)", "AssertionError: Tensor-likes are not close!"),
        ("test_copy(128)", "reads outside of global memory: byte "),
        ("test_nothing()", "NameError: name 'test_nothing' is not defined"),
    ],
)
def test_a_row_has_the_result_or_the_reason(tool, checkout, call, problem):
    run = tool.Run("tutorials/gluon/01-copy.py", "sm_100", call)
    row = tool.run_one(checkout, run)
    if problem:
        assert problem in row.problem
    else:
        assert row.problem == ""
    assert row.kernels == (("copy_kernel",) if "copy" in call else ())


def test_the_stand_in_is_taken_back(tool, checkout):
    import torch
    from triton.runtime.jit import JITFunction

    before = torch.cuda.get_device_capability, JITFunction.run
    tool.run_one(checkout, tool.Run("tutorials/gluon/01-copy.py", "sm_100", "test_copy(64)"))
    assert (torch.cuda.get_device_capability, JITFunction.run) == before


def test_fences_and_waits_are_added(tool):
    store = "  ttng.async_tma_copy_local_to_global %y[%i] %s : x, y\n"
    lines = tool._mended(f"{store}  tt.return\n").splitlines()
    assert [line.split()[0] for line in lines] == [
        "ttng.fence_async_shared",
        "ttng.async_tma_copy_local_to_global",
        "ttng.async_tma_store_wait",
        "tt.return",
    ]


#: Runs of a checkout that take a second or so each.
FAST = ("01-intro", "03-async-copy", "04-tma", "06-tcgen05", "09-tma", "11-tcgen05", "14-multicta")


@pytest.mark.skipif(not CHECKOUT, reason="TRITON_EXT_TRITON_CHECKOUT names no checkout of Triton")
def test_a_checkout(tool, fresh_triton_cache):
    rows = []
    for only in ("",) if NIGHTLY else FAST:
        rows += tool.run_all(pathlib.Path(CHECKOUT), only)
    ran = {kernel for row in rows if not row.problem or row.is_mended for kernel in row.kernels}
    unknown = [row for row in rows if "does not support" in row.problem]
    print([row for row in rows if row.problem])  # noqa: T201 - what a release changed
    assert len(ran) >= (30 if NIGHTLY else 20)
    assert len(unknown) <= 3
