"""NaN and infinity in the forward kernels, in Triton's interpreter."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")
pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")

from interpreted import assert_passes_in_the_interpreter


@pytest.mark.slow
def test_everything_in_the_interpreter():
    assert_passes_in_the_interpreter("interpreter_nonfinite.py")
