"""im2col for Gluon kernels on NVIDIA: ``from triton_ext.gluon import nvidia as xnv``.

``async_load_im2col``, ``im2col_start`` and ``warpgroup_mma_joined`` are for kernels;
``TensorDescriptorIm2Col``, ``im2col_layout`` and ``with_base`` are for the host.
``emulated`` is the older name of ``triton_ext.emulated``, for one more release.  Kernels are the
same with every Triton from 3.6 on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triton_ext import backends

__all__ = [
    "Emulated",
    "TensorDescriptorIm2Col",
    "async_load_im2col",
    "emulated",
    "im2col_layout",
    "im2col_start",
    "warpgroup_mma_joined",
    "with_base",
]

if TYPE_CHECKING:
    from triton_ext.backends.nvidia.gluon.descriptors import (
        TensorDescriptorIm2Col,
        im2col_layout,
        with_base,
    )
    from triton_ext.backends.nvidia.gluon.emulated import (
        Emulated,
        emulated,
    )
    from triton_ext.backends.nvidia.gluon.im2col import (
        async_load_im2col,
        im2col_start,
    )
    from triton_ext.backends.nvidia.gluon.joined_mma import (
        warpgroup_mma_joined,
    )
else:
    Emulated = backends.load("nvidia", "gluon.Emulated")
    TensorDescriptorIm2Col = backends.load("nvidia", "gluon.TensorDescriptorIm2Col")
    async_load_im2col = backends.load("nvidia", "gluon.async_load_im2col")
    emulated = backends.load("nvidia", "gluon.emulated")
    im2col_layout = backends.load("nvidia", "gluon.im2col_layout")
    im2col_start = backends.load("nvidia", "gluon.im2col_start")
    warpgroup_mma_joined = backends.load("nvidia", "gluon.warpgroup_mma_joined")
    with_base = backends.load("nvidia", "gluon.with_base")
