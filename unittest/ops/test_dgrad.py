"""The gradient of the input without a GPU.

What runs the kernel lives in ``interpreter_dgrad.py`` and runs in a process of its own, as
``test_conv2d.py`` explains.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")
pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")

from interpreted import assert_passes_in_the_interpreter


@pytest.mark.slow
def test_everything_in_the_interpreter():
    assert_passes_in_the_interpreter("interpreter_dgrad.py", timeout_s=3000)
