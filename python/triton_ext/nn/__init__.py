"""torch's convolutions and norms on the kernels of :mod:`triton_ext.ops`."""

from __future__ import annotations

from triton_ext.nn.conversion import convert, refresh, revert, survey
from triton_ext.nn.modules import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from triton_ext.nn.norms import BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm
from triton_ext.nn.report import Conversion, Layer

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Conversion",
    "GroupNorm",
    "Layer",
    "convert",
    "refresh",
    "revert",
    "survey",
]
