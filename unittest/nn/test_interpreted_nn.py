"""Runs ``interpreter_nn.py`` in a process whose kernels are interpreted."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")

from interpreted import assert_passes_in_the_interpreter


@pytest.mark.slow
def test_converted_models_in_the_interpreter():
    assert_passes_in_the_interpreter("../nn/interpreter_nn.py")
