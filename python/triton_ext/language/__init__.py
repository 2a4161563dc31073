"""Device functions for ``@triton.jit`` kernels: ``import triton_ext.language as tle``.

Importing this module installs the plugin (``triton_ext.install()``), because Triton fixes a
kernel's stages before it traces the kernel's body.
"""

from __future__ import annotations

from triton_ext import backends, plugin

__all__ = ["im2col_start", "load_im2col"]

plugin.install()

im2col_start = backends.load("nvidia", "im2col_start")
load_im2col = backends.load("nvidia", "load_im2col")
