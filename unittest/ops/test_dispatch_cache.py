"""Cached calls, in Triton's interpreter; by hand as ``interpreted.py`` says."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

from interpreted import assert_passes_in_the_interpreter
from triton_ext.host import capabilities

IM2COL = capabilities()["im2col"]


@pytest.mark.skipif(not IM2COL.available, reason=IM2COL.reason)
def test_cached_calls():
    assert_passes_in_the_interpreter("interpreter_dispatch_cache.py")
