"""Triton's interpreter beside the package: when it is chosen, and what it multiplies."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="Triton's interpreter needs torch, which is not installed")
pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")


def test_interpretation_that_starts_after_the_import(tmp_path):
    """A second install() brings what the interpreter needs."""
    script = tmp_path / "late.py"
    script.write_text(
        "import os, torch, triton, triton.language as tl\n"
        "import triton_ext, triton_ext.language as tle\n"
        "os.environ['TRITON_INTERPRET'] = '1'\n"
        "triton_ext.install()\n"
        "@triton.jit\n"
        "def first(x_desc, y_ptr):\n"
        "    tile = tle.load_im2col(x_desc, [0, 0, 0], [0])\n"
        "    rows = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]\n"
        "    tl.store(y_ptr + rows, tile)\n"
        "x, y = torch.randn(1, 16, 16), torch.zeros(16, 16)\n"
        "first[(1,)](triton_ext.Im2ColDescriptor.for_conv(x, 1, block_shape=[16, 16]), y)\n"
        "assert torch.equal(x[0], y)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, str(script)], env=environment, check=True, timeout=300)


def test_products_of_every_float_type(tmp_path):
    """Triton's interpreter alone multiplies the bits of bf16 as integers."""
    script = tmp_path / "products.py"
    script.write_text(
        "import torch, triton, triton.language as tl, triton_ext\n"
        "triton_ext.install()\n"
        "@triton.jit\n"
        "def twice(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):\n"
        "    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)\n"
        "    a = tl.load(a_ptr + m[:, None] * K + k[None, :])\n"
        "    b = tl.load(b_ptr + k[:, None] * N + n[None, :])\n"
        "    c = tl.dot(a, b, tl.dot(a, b))\n"
        "    tl.store(c_ptr + m[:, None] * N + n[None, :], c)\n"
        "for name in ('bfloat16', 'float16', 'float32', 'float8_e4m3fn', 'float8_e5m2'):\n"
        "    dtype = getattr(torch, name)\n"
        "    a, b = (torch.randn(s).mul(4).to(dtype) for s in ((16, 64), (64, 32)))\n"
        "    c = torch.zeros(16, 32)\n"
        "    twice[(1,)](a, b, c, 16, 32, 64)\n"
        "    exact = 2 * (a.double() @ b.double())\n"
        "    error = (c - exact).abs().max() / exact.abs().max()\n"
        "    assert error < 1e-6, (name, error)\n"
        "triton_ext.uninstall()\n"
        "from triton.runtime.interpreter import InterpreterBuilder\n"
        "assert InterpreterBuilder.create_dot.__module__ == 'triton.runtime.interpreter'\n"
    )
    subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
        timeout=300,
    )
