"""torch's convolutions and norms on the kernels of :mod:`triton_ext.ops`."""

from __future__ import annotations

from triton_ext.nn.accelerate import accelerate
from triton_ext.nn.causal import CausalConv3d, Frames
from triton_ext.nn.conversion import convert, refresh, report, revert, survey
from triton_ext.nn.modules import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from triton_ext.nn.norms import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from triton_ext.nn.outcome import Conversion, Counts, Layer, ModuleCalls, Report

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CausalConv3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Conversion",
    "Counts",
    "Frames",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "Layer",
    "ModuleCalls",
    "Report",
    "accelerate",
    "convert",
    "refresh",
    "report",
    "revert",
    "survey",
]
