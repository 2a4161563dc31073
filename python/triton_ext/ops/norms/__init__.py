"""BatchNorm and GroupNorm of channels-last tensors with what follows them, in fused kernels.

docs/norms.md says what is computed in how many passes.
"""

from __future__ import annotations

from triton_ext.ops.norms import library  # noqa: F401 - registers the operators
from triton_ext.ops.norms.functional import batch_norm, group_norm
from triton_ext.ops.norms.refusals import norm_problem

__all__ = ["batch_norm", "group_norm", "norm_problem"]
