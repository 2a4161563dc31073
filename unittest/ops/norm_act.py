"""A norm like timm's BatchNormAct2d, under timm's name, for tests where timm is not installed."""

from __future__ import annotations

import torch

__all__ = ["BatchNormAct2d", "NormActBlock"]


class BatchNormAct2d(torch.nn.BatchNorm2d):
    """BatchNorm, then ``drop``, then ``act``: what timm's class computes."""

    def __init__(self, channels: int, act: torch.nn.Module | None = None) -> None:
        super().__init__(channels)
        self.drop = torch.nn.Identity()
        self.act = torch.nn.Identity() if act is None else act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.drop(super().forward(x)))


# The class is known by these names.
BatchNormAct2d.__module__ = "timm.layers.norm_act"


class NormActBlock(torch.nn.Module):
    """Like timm's EdgeResidual: expand, project, add."""

    def __init__(self, act: torch.nn.Module) -> None:
        super().__init__()
        self.conv_exp = torch.nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.bn1 = BatchNormAct2d(16, act)
        self.conv_pwl = torch.nn.Conv2d(16, 8, 1, bias=False)
        self.bn2 = BatchNormAct2d(8)
        self.drop_path = torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x
        x = self.bn1(self.conv_exp(x))
        x = self.bn2(self.conv_pwl(x))
        return self.drop_path(x) + shortcut
