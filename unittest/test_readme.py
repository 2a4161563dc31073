"""The kernel in README.md is what a user pastes first: it runs, is right, and compiles."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest
from triton_ext.host import capabilities

README = pathlib.Path(__file__).parent.parent / "README.md"

CHECK = """
reference = torch.nn.functional.conv2d(
    x.permute(0, 3, 1, 2).float(), w.permute(0, 3, 1, 2).float(), padding=1
).permute(0, 2, 3, 1)
assert (y.float() - reference).abs().max().item() < 4e-3
"""

COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
signature = {"x_desc": "tensordesc<fp16[128, 64]>", "w_desc": "tensordesc<fp16[128, 64]>",
             "y_desc": "tensordesc<fp16[128, 128]>",
             "CI": "constexpr", "BLOCK": "constexpr"}
for capability in (90, 100):
    source = ASTSource(conv3x3, signature, constexprs={"CI": 128, "BLOCK": 128})
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert ".im2col." in compiled.asm["ptx"] and compiled.asm["cubin"]
"""


def kernel_of_the_readme():
    (code,) = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    return code


def run(code, folder, **variables):
    script = folder / "readme.py"
    script.write_text(code)
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, str(script)],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_short():
    lines = [line for line in kernel_of_the_readme().splitlines() if line.strip()]
    assert len(lines) <= 28


def test_only_two_commands_get_one_going():
    head = README.read_text().split("\n## ")[0]
    (block,) = re.findall(r"^```\n(.*?)^```", head, re.DOTALL | re.MULTILINE)
    assert block.split("\n") == ["make demo", "make test", ""]


def test_runs_in_the_interpreter(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("numpy")
    # Without the GPU that there may be: this is about the CPU.
    done = run(
        kernel_of_the_readme() + CHECK, tmp_path, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES=""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torch.Size([2, 14, 14, 128]) as torch: True\n"


@pytest.mark.skipif(not capabilities()["im2col"].available, reason=capabilities()["im2col"].reason)
def test_compiles_without_a_gpu(tmp_path, fresh_triton_cache):
    pytest.importorskip("torch")
    kernel = kernel_of_the_readme().split("\ndevice = ")[0]
    done = run(kernel + COMPILE, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_runs_on_a_gpu(gpu, tmp_path, fresh_triton_cache):
    done = run(kernel_of_the_readme() + CHECK, tmp_path)
    assert done.returncode == 0, done.stderr
