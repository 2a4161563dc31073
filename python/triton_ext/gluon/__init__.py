"""Device and host API for Gluon kernels, by vendor: ``import triton_ext.gluon.nvidia``.

Importing this package installs the plugin (``triton_ext.install()``).
"""

from __future__ import annotations

from triton_ext import plugin

__all__: list[str] = []

plugin.install()
