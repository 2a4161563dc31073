"""Convolutions and norms without a GPU: their tests in Triton's interpreter.

Whether kernels are interpreted is fixed when they are defined, so tests that run one live in files
``interpreter_*.py``, which run in a process of their own.  By hand:
``TRITON_INTERPRET=1 python -m pytest unittest/ops/interpreter_kernels.py``.
``test_conformance.py`` runs its own cases.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

from interpreted import assert_passes_in_the_interpreter, run_python
from triton_ext.host import capabilities

IM2COL = capabilities()["im2col"]
NEEDS_IM2COL = pytest.mark.skipif(not IM2COL.available, reason=IM2COL.reason)

CONV_ON_CPU = """
import torch
import triton_ext.ops
x = torch.ones(1, 8, 4, 4, dtype=torch.float16).to(memory_format=torch.channels_last)
weight = torch.ones(8, 8, 3, 3, dtype=torch.float16)
try:
    triton_ext.ops.conv2d(x, weight)
except triton_ext.errors.UnsupportedError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "timeout_s"),
    [
        pytest.param("conv2d", 900, marks=pytest.mark.slow),
        pytest.param("dispatch_cache", 900, marks=NEEDS_IM2COL),
        pytest.param("epilogue", 900, marks=(pytest.mark.slow, NEEDS_IM2COL)),
        ("kernels", 900),
        pytest.param("functional", 1800, marks=pytest.mark.slow),
        pytest.param("norms", 900, marks=pytest.mark.slow),
    ],
)
def test_everything_in_the_interpreter(name, timeout_s):
    assert_passes_in_the_interpreter(f"interpreter_{name}.py", timeout_s)


@NEEDS_IM2COL
def test_without_gpu_and_interpreter_it_says_what_to_do():
    result = run_python("-c", CONV_ON_CPU)
    assert result.returncode == 0, result.stderr
    assert "needs an NVIDIA GPU of sm_90 or newer, x is on cpu" in result.stdout
    assert "TRITON_INTERPRET=1" in result.stdout


@pytest.mark.skipif(IM2COL.available, reason="this Triton has im2col")
def test_an_old_triton_is_named_with_what_to_install():
    result = run_python("-c", CONV_ON_CPU)
    assert result.returncode == 0, result.stderr
    assert IM2COL.reason in result.stdout
