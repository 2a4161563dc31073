"""Convolutions for torch, on hardware im2col.

Importing this module installs the plugin (``triton_ext.install()``).
"""

from __future__ import annotations

from triton_ext import plugin

plugin.install()

from triton_ext.ops.functional import conv2d  # noqa: E402 - the kernels it imports need the plugin

__all__ = ["conv2d"]
