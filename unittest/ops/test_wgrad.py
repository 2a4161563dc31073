"""wgrad without a GPU.

Whether kernels are interpreted is fixed when they are defined, so what runs one lives in
``interpreter_wgrad.py`` and runs in a process of its own.  By hand:
``TRITON_INTERPRET=1 python -m pytest unittest/ops/interpreter_wgrad.py``.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")
pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")

from interpreted import assert_passes_in_the_interpreter


@pytest.mark.slow
def test_everything_in_the_interpreter():
    assert_passes_in_the_interpreter("interpreter_wgrad.py")
