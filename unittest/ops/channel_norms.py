"""Stand-ins for norms over channels of libraries, under the libraries' names."""

from __future__ import annotations

import torch
from torch.nn import functional as F


class LayerNorm2d(torch.nn.LayerNorm):
    """torchvision's."""

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class RmsNorm2d(torch.nn.Module):
    """timm's."""

    def __init__(self, channels, eps=1e-6):
        super().__init__()
        self.normalized_shape, self.eps = (channels,), eps
        self.weight = torch.nn.Parameter(torch.ones(channels))

    def forward(self, x):
        variance = x.square().mean(1, keepdim=True)
        return x * torch.rsqrt(variance + self.eps) * self.weight.view(1, -1, 1, 1)


class WanRMS_norm(torch.nn.Module):
    """The one of Wan's VAE in diffusers."""

    def __init__(self, dim, channel_first=True, images=True, bias=False):
        super().__init__()
        shape = (dim, *((1, 1) if images else (1, 1, 1)))
        self.channel_first, self.scale = channel_first, dim**0.5
        self.gamma = torch.nn.Parameter(torch.ones(shape))
        self.bias = torch.nn.Parameter(torch.zeros(shape)) if bias else 0.0

    def forward(self, x):
        is_half = x.dtype in (torch.float16, torch.bfloat16)
        dim = 1 if self.channel_first else -1
        y = F.normalize(x.float() if is_half else x, dim=dim).to(x.dtype)
        return y * self.scale * self.gamma + self.bias


LayerNorm2d.__module__ = "torchvision.models.convnext"
RmsNorm2d.__module__ = "timm.layers.norm"
WanRMS_norm.__module__ = "diffusers.models.autoencoders.autoencoder_kl_wan"
