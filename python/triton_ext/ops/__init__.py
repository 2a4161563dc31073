"""Convolutions for torch, on hardware im2col.

Importing this module installs the plugin (``triton_ext.install()``).
"""

from __future__ import annotations

from triton_ext import plugin

plugin.install()

# The kernels they import need the plugin.
from triton_ext.ops import families  # noqa: E402, F401 - lists the families
from triton_ext.ops.api import library  # noqa: E402, F401 - registers the operators
from triton_ext.ops.api.explain import Explanation, Support, explain, support  # noqa: E402
from triton_ext.ops.api.functional import (  # noqa: E402
    conv1d,
    conv1d_input,
    conv1d_weight,
    conv2d,
    conv2d_input,
    conv2d_weight,
    conv3d,
    conv3d_input,
    conv3d_weight,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from triton_ext.ops.norms import batch_norm, group_norm, norm_problem  # noqa: E402

__all__ = [
    "Explanation", "Support", "batch_norm", "conv1d", "conv1d_input", "conv1d_weight", "conv2d",
    "conv2d_input", "conv2d_weight", "conv3d", "conv3d_input", "conv3d_weight", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "explain", "group_norm", "norm_problem", "support",
]  # fmt: skip
