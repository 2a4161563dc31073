"""Convolutions of networks that people run, by kind of network.  Pure arithmetic: no torch, no GPU.

Every row is a layer as the network has it at a usual size: ResNet-50 and ConvNeXt-T at 224x224, a
latent-diffusion U-Net at 64x64 and 128x128 latents, the decoder of its VAE up to 1024x1024 pixels,
a video VAE and a 3-D ResNet, and 1-D convolutions of audio codecs and speech encoders.  "all"
leaves out the suites of one kind: "groups" of a few to 112 channels (ResNeXt, RegNet, wav2vec 2.0),
"depthwise" layers, layers over "few" channels, and the 2-D "shapes" that the Gluon examples and
epilogues are timed with, of which those of 256 channels and more are "wide".
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from triton_ext.ops.core.problem import ConvProblem

__all__ = ["SUITES", "Layer", "select_layers"]


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution of a network."""

    suite: str  # name of the suite
    problem: ConvProblem  # what it computes

    @property
    def work(self) -> int:
        """Operations."""
        return self.problem.flops

    @property
    def name(self) -> str:
        """Sizes and filter, then what is unusual.

        ``32x64x56x56_64_k3x3`` is batch, Ci, input size, Co and filter; behind it the stride
        ``s2x2``, the dilation ``d2x2``, a padding of another than half the filter ``p0x0``, and
        groups ``g96``.
        """
        p = self.problem
        size, taps = (_times(values) for values in (p.input_size, p.filter_size))
        text = f"{p.batch}x{p.in_channels}x{size}_{p.out_channels}_k{taps}"
        for letter, values in (("s", p.stride), ("d", p.dilation)):
            if set(values) != {1}:
                text += f"_{letter}{_times(values)}"
        if p.padding != _half(p.filter_size, p.dilation):
            text += "_p" + "x".join(
                str(low) if low == high else f"{low}-{high}" for low, high in p.padding
            )
        return text + (f"_g{p.groups}" if p.groups > 1 else "")


def _times(values: tuple[int, ...]) -> str:
    return "x".join(map(str, values))


def _half(filter_size: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Padding that keeps the size of an odd filter with stride 1."""
    halves = (d * (k // 2) for k, d in zip(filter_size, dilation, strict=True))
    return tuple((half, half) for half in halves)


def _layer(
    suite: str,
    batch: int,
    channels: tuple[int, int],
    size: tuple[int, ...],
    taps: int | tuple[int, ...],
    stride: int | tuple[int, ...] = 1,
    *,
    padding: int | None = None,
    dilation: int = 1,
    groups: int = 1,
) -> Layer:
    """Builds a layer; by default padded by half of the filter."""
    dims = len(size)
    filter_size = (taps,) * dims if isinstance(taps, int) else taps
    steps = (stride,) * dims if isinstance(stride, int) else stride
    distances = (dilation,) * dims
    sides = _half(filter_size, distances) if padding is None else ((padding, padding),) * dims
    problem = ConvProblem(
        batch=batch,
        in_channels=channels[0],
        out_channels=channels[1],
        input_size=size,
        filter_size=filter_size,
        stride=steps,
        padding=sides,
        dilation=distances,
        groups=groups,
    )
    return Layer(suite, problem)


def _resnet(batch: int) -> list[Layer]:
    """ResNet-50 at 224x224: the stem, and of each stage the 1x1s, the 3x3 and what strides."""
    layers = [_layer("resnet", batch, (3, 64), (224, 224), 7, 2)]
    for stage, (width, size) in enumerate(((64, 56), (128, 28), (256, 14), (512, 7))):
        wide, square = 4 * width, (size, size)
        layers.append(_layer("resnet", batch, (wide, width), square, 1))
        layers.append(_layer("resnet", batch, (width, width), square, 3))
        layers.append(_layer("resnet", batch, (width, wide), square, 1))
        if stage:
            before = (2 * size, 2 * size)
            layers.append(_layer("resnet", batch, (width, width), before, 3, 2))
            layers.append(_layer("resnet", batch, (2 * width, wide), before, 1, 2))
    return layers


def _convnext(batch: int) -> list[Layer]:
    """ConvNeXt-T at 224x224: stem, downsampling, the 7x7 of each channel, the 1x1s."""
    layers = [_layer("convnext", batch, (3, 96), (224, 224), 4, 4, padding=0)]
    for stage, (width, size) in enumerate(((96, 56), (192, 28), (384, 14), (768, 7))):
        square = (size, size)
        if stage:
            before = (2 * size, 2 * size)
            layers.append(_layer("convnext", batch, (width // 2, width), before, 2, 2, padding=0))
        layers.append(_layer("convnext", batch, (width, width), square, 7, groups=width))
        layers.append(_layer("convnext", batch, (width, 4 * width), square, 1))
        layers.append(_layer("convnext", batch, (4 * width, width), square, 1))
    return layers


def _unet(batch: int, latent: int) -> list[Layer]:
    """A latent-diffusion U-Net of 320 channels: 3x3 of each level, skips joined, strides, ends."""
    levels = ((320, latent), (640, latent // 2), (1280, latent // 4), (1280, latent // 8))
    layers = [_layer("unet", batch, (4, 320), (latent, latent), 3)]
    for width, size in levels:
        layers.append(_layer("unet", batch, (width, width), (size, size), 3))
    for (width, size), (below, _) in itertools.pairwise(levels):
        layers.append(_layer("unet", batch, (width, width), (size, size), 3, 2))
        layers.append(_layer("unet", batch, (width + below, width), (size, size), 3))
    layers.append(_layer("unet", batch, (640, 320), (latent, latent), 1))
    layers.append(_layer("unet", batch, (320, 4), (latent, latent), 3))
    return layers


def _vae(latent: int) -> list[Layer]:
    """The decoder of an image VAE, one image, from 512 channels at the latents' size to pixels."""
    layers = [_layer("vae", 1, (4, 512), (latent, latent), 3)]
    for width, scale in ((512, 1), (512, 2), (512, 4), (256, 4), (256, 8), (128, 8)):
        size = (latent * scale, latent * scale)
        layers.append(_layer("vae", 1, (width, width), size, 3))
    layers.append(_layer("vae", 1, (512, 256), (latent * 4, latent * 4), 3))
    layers.append(_layer("vae", 1, (256, 128), (latent * 8, latent * 8), 1))
    layers.append(_layer("vae", 1, (128, 3), (latent * 8, latent * 8), 3))
    return layers


VIDEO = [
    _layer("video", 8, (64, 64), (16, 56, 56), 3),
    _layer("video", 8, (64, 128), (16, 56, 56), 3, 2),
    _layer("video", 8, (128, 128), (8, 28, 28), 3),
    _layer("video", 8, (256, 256), (4, 14, 14), 3),
    _layer("video", 8, (64, 64), (16, 56, 56), (1, 3, 3)),
    _layer("video", 8, (64, 64), (16, 56, 56), (3, 1, 1)),
    _layer("video", 1, (128, 128), (17, 256, 256), 3),
    _layer("video", 1, (256, 256), (17, 128, 128), 3),
    _layer("video", 1, (512, 512), (9, 64, 64), 3),
    _layer("video", 1, (128, 256), (17, 256, 256), 3, (1, 2, 2)),
]

AUDIO = [
    _layer("audio", 3072, (128, 384), (202,), 3),
    _layer("audio", 16, (80, 512), (3000,), 3),
    _layer("audio", 16, (512, 512), (3000,), 3, 2),
    _layer("audio", 16, (512, 512), (16000,), 3, 2, padding=0),
    _layer("audio", 8, (128, 128), (24000,), 7, dilation=3),
    _layer("audio", 8, (256, 256), (6000,), 7, dilation=9),
    _layer("audio", 8, (256, 512), (6000,), 8, 4, padding=2),
    _layer("audio", 8, (512, 1024), (1500,), 10, 5, padding=3),
    _layer("audio", 32, (512, 512), (400,), 31, groups=512),
]


def _groups(batch: int) -> list[Layer]:
    """The 3x3 of ResNeXt-50 and -101 (32x4d, 32x8d), of RegNetY-8GF and -16GF at 224x224."""
    stages = []
    for width in (4, 8):
        stages.append([(32 * width << stage, 32, 56 >> stage) for stage in range(4)])
    for channels, widths in ((56, (224, 448, 896, 2016)), (112, (224, 448, 1232, 3024))):
        sizes = (56, 28, 14, 7)
        stages.append([(w, w // channels, s) for w, s in zip(widths, sizes, strict=True)])
    layers = []
    for stage in itertools.chain(*stages):
        width, groups, size = stage
        layers.append(_layer("groups", batch, (width, width), (size, size), 3, groups=groups))
        if size < 56:
            before = (2 * size, 2 * size)
            layers.append(_layer("groups", batch, (width, width), before, 3, 2, groups=groups))
    return layers


# The positional convolution of wav2vec 2.0, base and large, over 10 s.
POSITIONAL = [
    _layer("groups", 8, (768, 768), (499,), 128, padding=64, groups=16),
    _layer("groups", 8, (1024, 1024), (499,), 128, padding=64, groups=16),
]

# Batch, channels, size, filter and stride of a few 2-D layers: stages of ResNet-50 at batch 32 and
# 128, strides, diffusion U-Nets and VAEs, 1x1s, one 1-D.
_SHAPES = (
    *((batch, (c, c), (s, s), 3, 1) for batch in (32, 128)
      for c, s in ((64, 56), (128, 28), (256, 14), (512, 7))),
    (32, (128, 128), (56, 56), 3, 2), (32, (256, 256), (28, 28), 3, 2),
    (8, (320, 320), (64, 64), 3, 1), (8, (640, 640), (32, 32), 3, 1),
    (8, (1280, 1280), (16, 16), 3, 1), (2, (320, 320), (128, 128), 3, 1),
    (1, (512, 512), (128, 128), 3, 1), (1, (256, 256), (256, 256), 3, 1),
    (1, (128, 128), (512, 512), 3, 1), (32, (256, 64), (56, 56), 1, 1),
    (32, (1024, 256), (14, 14), 1, 1), (64, (768, 3072), (14, 14), 1, 1),
    (3072, (128, 384), (1, 202), (1, 3), 1),
)  # fmt: skip

# Batch, channels, size, taps and stride of ConvNeXt's 7x7, MobileNet's 3x3, a 5x5, a long 1-D.
_DEPTHWISE = (
    (64, 96, (56, 56), 7, 1), (64, 192, (28, 28), 7, 1), (64, 384, (14, 14), 7, 1),
    (64, 768, (7, 7), 7, 1), (64, 32, (112, 112), 3, 1), (64, 96, (56, 56), 3, 2),
    (64, 576, (14, 14), 3, 1), (64, 240, (28, 28), 5, 1), (16, 512, (2000,), 31, 1),
)  # fmt: skip

# Stems of ResNet, ConvNeXt, EfficientNet and ViT, first layers of U-Nets, VAEs, video and audio
# networks, and 8 to 32 channels: batch, channels, size, taps, stride, padding.
_FEW = (
    (32, (3, 64), (224, 224), 7, 2, 3), (128, (3, 64), (224, 224), 7, 2, 3),
    (64, (3, 96), (224, 224), 4, 4, 0), (64, (3, 32), (224, 224), 3, 2, 1),
    (32, (3, 32), (224, 224), 3, 2, 1), (64, (3, 384), (224, 224), 8, 8, 0),
    (8, (4, 320), (64, 64), 3, 1, 1), (1, (4, 512), (64, 64), 3, 1, 1),
    (1, (4, 512), (128, 128), 3, 1, 1), (1, (3, 128), (512, 512), 3, 1, 1),
    (8, (3, 64), (16, 112, 112), 7, 2, 3), (16, (1, 512), (160000,), 10, 5, 0),
    (8, (1, 64), (240000,), 7, 1, 3), (32, (8, 64), (112, 112), 3, 1, 1),
    (32, (16, 64), (112, 112), 3, 1, 1), (32, (16, 64), (114, 114), 3, 1, 0),
    (32, (32, 64), (112, 112), 3, 1, 1), (32, (32, 64), (114, 114), 3, 1, 0),
    (32, (32, 64), (112, 112), 3, 2, 1),
)  # fmt: skip

SUITES: dict[str, tuple[Layer, ...]] = {
    "resnet": (*_resnet(32), *_resnet(128)),
    "convnext": tuple(_convnext(64)),
    "unet": (*_unet(8, 64), *_unet(2, 128)),
    "vae": (*_vae(64), *_vae(128)),
    "video": tuple(VIDEO),
    "audio": tuple(AUDIO),
    "groups": (*_groups(32), *POSITIONAL),
    "depthwise": tuple(
        _layer("depthwise", n, (c, c), *rest, groups=c) for n, c, *rest in _DEPTHWISE
    ),
    "few": tuple(_layer("few", *sizes, padding=padding) for *sizes, padding in _FEW),
    "shapes": tuple(_layer("shapes", *sizes) for sizes in _SHAPES),
    "wide": tuple(_layer("wide", *sizes) for sizes in _SHAPES if sizes[1][0] >= 256),
}

# Suites that are not part of "all".
_APART = ("groups", "depthwise", "few", "shapes", "wide")


def select_layers(suite: str, words: list[str] | None = None) -> tuple[Layer, ...]:
    """Returns layers of a suite, each once.

    Args:
        suite: A name of :data:`SUITES`, or ``"all"`` for those that are not apart.
        words: Names of layers, or indices; all of the suite by default.

    Raises:
        ValueError: There is no such suite or layer; the text says what there is.
    """
    if suite != "all" and suite not in SUITES:
        raise ValueError(f"suite {suite!r}: expected one of {', '.join(SUITES)}, all")
    names = [name for name in SUITES if name not in _APART] if suite == "all" else [suite]
    chosen = [SUITES[name] for name in names]
    layers = tuple(dict.fromkeys(layer for part in chosen for layer in part))
    if not words:
        return layers
    by_name = {layer.name: layer for layer in layers}
    found = []
    for word in words:
        if word.isdecimal() and int(word) < len(layers):
            found.append(layers[int(word)])
        elif word in by_name:
            found.append(by_name[word])
        else:
            raise ValueError(
                f"layer {word!r}: expected an index 0..{len(layers) - 1} of suite {suite!r} or a "
                f"name such as {layers[0].name!r}"
            )
    return tuple(found)
