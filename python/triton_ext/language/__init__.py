"""Device functions for ``@triton.jit`` kernels: ``import triton_ext.language as tle``.

Importing this module installs the plugin (``triton_ext.install()``), because Triton fixes a
kernel's stages before it traces the kernel's body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triton_ext import backends, plugin

__all__ = ["im2col_start", "load_im2col"]

plugin.install()

if TYPE_CHECKING:
    from triton_ext.backends.nvidia.language.im2col import im2col_start, load_im2col
else:
    im2col_start = backends.load("nvidia", "im2col_start")
    load_im2col = backends.load("nvidia", "load_im2col")
