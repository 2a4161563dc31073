"""BatchNorm and GroupNorm of channels-last tensors, fused with a residual and an activation.

docs/norms.md counts their passes.
"""

from __future__ import annotations

from triton_ext.ops.norms.checks import norm_problem
from triton_ext.ops.norms.functional import batch_norm, group_norm

__all__ = ["batch_norm", "group_norm", "norm_problem"]
