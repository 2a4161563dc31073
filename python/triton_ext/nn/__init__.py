"""torch's convolution modules on the kernels of :mod:`triton_ext.ops`."""

from __future__ import annotations

from triton_ext.nn.conversion import Conversion, Layer, convert, revert
from triton_ext.nn.modules import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Conversion",
    "Layer",
    "convert",
    "revert",
]
