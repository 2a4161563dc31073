"""Convolutions without a GPU and without the interpreter: the error names both."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

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


def convolve_on_the_cpu():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", CONV_ON_CPU]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=300, check=False
    )


@NEEDS_IM2COL
def test_without_gpu_and_interpreter_it_says_what_to_do():
    result = convolve_on_the_cpu()
    assert result.returncode == 0, result.stderr
    assert "needs an NVIDIA GPU of sm_90 or newer, x is on cpu" in result.stdout
    assert "TRITON_INTERPRET=1" in result.stdout


@pytest.mark.skipif(IM2COL.available, reason="this Triton has im2col")
def test_an_old_triton_is_named_with_what_to_install():
    result = convolve_on_the_cpu()
    assert result.returncode == 0, result.stderr
    assert IM2COL.reason in result.stdout
