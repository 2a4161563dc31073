"""A diffusion UNet and a VAE decoder in plain torch, as latent diffusion models have them.

Nothing here knows of ``triton_ext``: the scripts convert these networks as they convert others'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

__all__ = ["UNet", "VaeDecoder"]

Tensor = torch.Tensor


class _Norm(nn.Module):
    """GroupNorm and SiLU that keep the memory order.

    torch's GroupNorm on CUDA returns NCHW whatever it gets.  cuDNN would copy that in front of the
    next convolution; doing it here is the same copy for everyone that needs one.
    """

    def __init__(self, channels: int, *, silu: bool = True) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(min(32, channels // 4), channels, eps=1e-6)
        self.silu = silu

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        y = functional.silu(y) if self.silu else y
        return y.contiguous(memory_format=torch.channels_last)


class _ResBlock(nn.Module):
    """Two 3x3 convolutions behind GroupNorm and SiLU, and a residual."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm1 = _Norm(channels)
        self.conv1 = nn.Conv2d(channels, out_channels, 3, padding=1)
        self.norm2 = _Norm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        same = channels == out_channels
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(self.norm1(x))
        return self.conv2(self.norm2(y)) + self.shortcut(x)


class _TimedResBlock(_ResBlock):
    """A residual block that is told the time between its convolutions."""

    def __init__(self, channels: int, out_channels: int, time_channels: int) -> None:
        super().__init__(channels, out_channels)
        self.shift = nn.Linear(time_channels, out_channels)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        y = self.conv1(self.norm1(x)) + self.shift(embedding)[:, :, None, None]
        return self.conv2(self.norm2(y)) + self.shortcut(x)


class _Attention(nn.Module):
    """Self-attention over pixels, and a residual."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = _Norm(channels, silu=False)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        rows = self.norm(x).permute(0, 2, 3, 1).reshape(n, h * w, c)
        q, k, v = self.qkv(rows).view(n, h * w, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, c)
        # A view with the channels innermost is channels-last.
        return x + self.out(y).view(n, h, w, c).permute(0, 3, 1, 2)


class _Upsample(nn.Module):
    """Twice the pixels, by repetition, and a 3x3 convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest"))


class UNet(nn.Module):
    """Predicts the noise in a latent picture.

    Args:
        widths: Channels per level; each level has half the pixels per side of the one before.
        latents: Channels of the input and the output.
        blocks: Residual blocks per level on the way down; one more on the way up.
        attention: Whether all levels but the last have self-attention behind their blocks.
        heads: Of the attention.
    """

    def __init__(
        self,
        widths: Sequence[int] = (320, 640, 1280, 1280),
        *,
        latents: int = 4,
        blocks: int = 2,
        attention: bool = False,
        heads: int = 8,
    ) -> None:
        super().__init__()
        first, time = widths[0], 4 * widths[0]
        self.time = nn.Sequential(nn.Linear(first, time), nn.SiLU(), nn.Linear(time, time))
        self.conv_in = nn.Conv2d(latents, first, 3, padding=1)
        self.down = nn.ModuleList()
        self.up = nn.ModuleList()
        kept = [first]
        channels = first

        def attended(level: int) -> nn.Module:
            wanted = attention and level < len(widths) - 1
            return _Attention(channels, heads) if wanted else nn.Identity()

        for level, width in enumerate(widths):
            for _ in range(blocks):
                block = _TimedResBlock(channels, width, time)
                channels = width
                self.down.append(nn.ModuleList([block, attended(level)]))
                kept.append(channels)
            if level < len(widths) - 1:
                self.down.append(nn.Conv2d(channels, channels, 3, stride=2, padding=1))
                kept.append(channels)
        self.middle1 = _TimedResBlock(channels, channels, time)
        self.middle2 = _TimedResBlock(channels, channels, time)
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(blocks + 1):
                block = _TimedResBlock(channels + kept.pop(), width, time)
                channels = width
                self.up.append(nn.ModuleList([block, attended(level)]))
            if level > 0:
                self.up.append(_Upsample(channels))
        self.norm_out = _Norm(channels)
        self.conv_out = nn.Conv2d(channels, latents, 3, padding=1)

    def _embed(self, steps: Tensor, dtype: torch.dtype) -> Tensor:
        half = self.time[0].in_features // 2
        powers = torch.arange(half, device=steps.device, dtype=torch.float32) / half
        angles = steps.float()[:, None] * torch.exp(-math.log(10000.0) * powers)
        embedding = torch.cat([angles.cos(), angles.sin()], dim=1)
        return functional.silu(self.time(embedding.to(dtype)))

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        """Predicts the noise.

        Args:
            x: [N, latents, H, W]; H and W are multiples of 2 per level but the last.
            steps: [N], how noisy each is.
        """
        time = self._embed(steps, x.dtype)
        x = self.conv_in(x)
        kept = [x]
        for stage in self.down:
            if isinstance(stage, nn.ModuleList):
                block, attention = stage
                x = attention(block(x, time))
            else:
                x = stage(x)
            kept.append(x)
        x = self.middle2(self.middle1(x, time), time)
        for stage in self.up:
            if isinstance(stage, nn.ModuleList):
                block, attention = stage
                x = attention(block(torch.cat([x, kept.pop()], dim=1), time))
            else:
                x = stage(x)
        return self.conv_out(self.norm_out(x))


class VaeDecoder(nn.Module):
    """Decodes latents to a picture with 2 to the power of (levels - 1) times the pixels per side.

    Args:
        widths: Channels per level, from the picture's to the latents'.
        latents: Channels of the input.
        blocks: Residual blocks per level.
        attention: Whether the middle has self-attention.
    """

    def __init__(
        self,
        widths: Sequence[int] = (128, 256, 512, 512),
        *,
        latents: int = 4,
        blocks: int = 3,
        attention: bool = False,
    ) -> None:
        super().__init__()
        channels = widths[-1]
        self.conv_in = nn.Conv2d(latents, channels, 3, padding=1)
        middle: list[nn.Module] = [_ResBlock(channels, channels), _ResBlock(channels, channels)]
        if attention:
            middle.insert(1, _Attention(channels, 1))
        up: list[nn.Module] = []
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(blocks):
                up.append(_ResBlock(channels, width))
                channels = width
            if level > 0:
                up.append(_Upsample(channels))
        self.middle = nn.Sequential(*middle)
        self.up = nn.Sequential(*up)
        self.norm_out = _Norm(channels)
        self.conv_out = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Decodes x [N, latents, H, W]."""
        return self.conv_out(self.norm_out(self.up(self.middle(self.conv_in(x)))))
