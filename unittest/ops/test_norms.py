"""BatchNorm and GroupNorm without a GPU: tiles, what is compiled, the interpreter in a process."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

from interpreted import assert_passes_in_the_interpreter


@pytest.mark.slow
def test_everything_in_the_interpreter():
    assert_passes_in_the_interpreter("interpreter_norms.py")
