"""Convolutions of networks that people run, by kind of network.  Needs no GPU.

Every row is a layer as the network has it at a usual size: ResNet-50 and ConvNeXt-T at 224x224, a
latent-diffusion U-Net at 64x64 and 128x128 latents, the decoder of its VAE up to 1024x1024 pixels,
a video VAE and a 3-D ResNet, and 1-D convolutions of audio codecs and speech encoders.  "all"
leaves out the suites of one kind: "groups" of a few to 112 channels (ResNeXt, RegNet, wav2vec 2.0),
"depthwise" layers, layers over "few" channels, and the 2-D "shapes" that the Gluon examples and
epilogues are timed with, of which those of 256 channels and more are "wide".
"""

from __future__ import annotations

from dataclasses import dataclass

from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.tuning import parse_shape

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


def _suite(name: str, text: str) -> tuple[Layer, ...]:
    return tuple(Layer(name, parse_shape(word)) for word in text.split())


# ResNet-50 at 224x224, 32 images: the stem, and of each stage the 1x1s, the 3x3 and what strides.
_RESNET = """
32x3x224x224_64_k7x7_s2x2 32x256x56x56_64_k1x1 32x64x56x56_64_k3x3 32x64x56x56_256_k1x1
32x512x28x28_128_k1x1 32x128x28x28_128_k3x3 32x128x28x28_512_k1x1 32x128x56x56_128_k3x3_s2x2
32x256x56x56_512_k1x1_s2x2 32x1024x14x14_256_k1x1 32x256x14x14_256_k3x3 32x256x14x14_1024_k1x1
32x256x28x28_256_k3x3_s2x2 32x512x28x28_1024_k1x1_s2x2 32x2048x7x7_512_k1x1 32x512x7x7_512_k3x3
32x512x7x7_2048_k1x1 32x512x14x14_512_k3x3_s2x2 32x1024x14x14_2048_k1x1_s2x2
"""
# ConvNeXt-T at 224x224: stem, downsampling, the 7x7 of each channel, the 1x1s.
_CONVNEXT = """
64x3x224x224_96_k4x4_s4x4_p0x0 64x96x56x56_96_k7x7_g96 64x96x56x56_384_k1x1 64x384x56x56_96_k1x1
64x96x56x56_192_k2x2_s2x2_p0x0 64x192x28x28_192_k7x7_g192 64x192x28x28_768_k1x1
64x768x28x28_192_k1x1 64x192x28x28_384_k2x2_s2x2_p0x0 64x384x14x14_384_k7x7_g384
64x384x14x14_1536_k1x1 64x1536x14x14_384_k1x1 64x384x14x14_768_k2x2_s2x2_p0x0
64x768x7x7_768_k7x7_g768 64x768x7x7_3072_k1x1 64x3072x7x7_768_k1x1
"""
# A latent-diffusion U-Net of 320 channels: 3x3 of each level, skips joined, strides, ends.
_UNET = """
8x4x64x64_320_k3x3 8x320x64x64_320_k3x3 8x640x32x32_640_k3x3 8x1280x16x16_1280_k3x3
8x1280x8x8_1280_k3x3 8x320x64x64_320_k3x3_s2x2 8x960x64x64_320_k3x3 8x640x32x32_640_k3x3_s2x2
8x1920x32x32_640_k3x3 8x1280x16x16_1280_k3x3_s2x2 8x2560x16x16_1280_k3x3 8x640x64x64_320_k1x1
8x320x64x64_4_k3x3 2x4x128x128_320_k3x3 2x320x128x128_320_k3x3 2x640x64x64_640_k3x3
2x1280x32x32_1280_k3x3 2x1280x16x16_1280_k3x3 2x320x128x128_320_k3x3_s2x2 2x960x128x128_320_k3x3
2x640x64x64_640_k3x3_s2x2 2x1920x64x64_640_k3x3 2x1280x32x32_1280_k3x3_s2x2 2x2560x32x32_1280_k3x3
2x640x128x128_320_k1x1 2x320x128x128_4_k3x3
"""
# The decoder of an image VAE, one image, from 512 channels at the latents' size to pixels.
_VAE = """
1x4x64x64_512_k3x3 1x512x64x64_512_k3x3 1x512x128x128_512_k3x3 1x512x256x256_512_k3x3
1x256x256x256_256_k3x3 1x256x512x512_256_k3x3 1x128x512x512_128_k3x3 1x512x256x256_256_k3x3
1x256x512x512_128_k1x1 1x128x512x512_3_k3x3 1x4x128x128_512_k3x3 1x512x128x128_512_k3x3
1x512x256x256_512_k3x3 1x512x512x512_512_k3x3 1x256x512x512_256_k3x3 1x256x1024x1024_256_k3x3
1x128x1024x1024_128_k3x3 1x512x512x512_256_k3x3 1x256x1024x1024_128_k1x1 1x128x1024x1024_3_k3x3
"""
# A video VAE and a 3-D ResNet.
_VIDEO = """
8x64x16x56x56_64_k3x3x3 8x64x16x56x56_128_k3x3x3_s2x2x2 8x128x8x28x28_128_k3x3x3
8x256x4x14x14_256_k3x3x3 8x64x16x56x56_64_k1x3x3 8x64x16x56x56_64_k3x1x1 1x128x17x256x256_128_k3x3x3
1x256x17x128x128_256_k3x3x3 1x512x9x64x64_512_k3x3x3 1x128x17x256x256_256_k3x3x3_s1x2x2
"""
# Audio codecs and speech encoders.
_AUDIO = """
3072x128x202_384_k3 16x80x3000_512_k3 16x512x3000_512_k3_s2 16x512x16000_512_k3_s2_p0
8x128x24000_128_k7_d3 8x256x6000_256_k7_d9 8x256x6000_512_k8_s4_p2 8x512x1500_1024_k10_s5_p3
32x512x400_512_k31_g512
"""
# The 3x3 of ResNeXt-50 and -101 (32x4d, 32x8d), of RegNetY-8GF and -16GF at 224x224; the positional
# convolution of wav2vec 2.0, base and large, over 10 s.
_GROUPS = """
32x128x56x56_128_k3x3_g32 32x256x28x28_256_k3x3_g32 32x256x56x56_256_k3x3_s2x2_g32
32x512x14x14_512_k3x3_g32 32x512x28x28_512_k3x3_s2x2_g32 32x1024x7x7_1024_k3x3_g32
32x1024x14x14_1024_k3x3_s2x2_g32 32x256x56x56_256_k3x3_g32 32x512x28x28_512_k3x3_g32
32x512x56x56_512_k3x3_s2x2_g32 32x1024x14x14_1024_k3x3_g32 32x1024x28x28_1024_k3x3_s2x2_g32
32x2048x7x7_2048_k3x3_g32 32x2048x14x14_2048_k3x3_s2x2_g32 32x224x56x56_224_k3x3_g4
32x448x28x28_448_k3x3_g8 32x448x56x56_448_k3x3_s2x2_g8 32x896x14x14_896_k3x3_g16
32x896x28x28_896_k3x3_s2x2_g16 32x2016x7x7_2016_k3x3_g36 32x2016x14x14_2016_k3x3_s2x2_g36
32x224x56x56_224_k3x3_g2 32x448x28x28_448_k3x3_g4 32x448x56x56_448_k3x3_s2x2_g4
32x1232x14x14_1232_k3x3_g11 32x1232x28x28_1232_k3x3_s2x2_g11 32x3024x7x7_3024_k3x3_g27
32x3024x14x14_3024_k3x3_s2x2_g27 8x768x499_768_k128_g16 8x1024x499_1024_k128_g16
"""
# ConvNeXt's 7x7, MobileNet's 3x3, a 5x5, a long 1-D filter.
_DEPTHWISE = """
64x96x56x56_96_k7x7_g96 64x192x28x28_192_k7x7_g192 64x384x14x14_384_k7x7_g384
64x768x7x7_768_k7x7_g768 64x32x112x112_32_k3x3_g32 64x96x56x56_96_k3x3_s2x2_g96
64x576x14x14_576_k3x3_g576 64x240x28x28_240_k5x5_g240 16x512x2000_512_k31_g512
"""
# Stems of ResNet, ConvNeXt, EfficientNet and ViT, first layers of U-Nets, VAEs, video and audio
# networks, and 8 to 32 channels.
_FEW = """
32x3x224x224_64_k7x7_s2x2 128x3x224x224_64_k7x7_s2x2 64x3x224x224_96_k4x4_s4x4_p0x0
64x3x224x224_32_k3x3_s2x2 32x3x224x224_32_k3x3_s2x2 64x3x224x224_384_k8x8_s8x8_p0x0
8x4x64x64_320_k3x3 1x4x64x64_512_k3x3 1x4x128x128_512_k3x3 1x3x512x512_128_k3x3
8x3x16x112x112_64_k7x7x7_s2x2x2 16x1x160000_512_k10_s5_p0 8x1x240000_64_k7 32x8x112x112_64_k3x3
32x16x112x112_64_k3x3 32x16x114x114_64_k3x3_p0x0 32x32x112x112_64_k3x3 32x32x114x114_64_k3x3_p0x0
32x32x112x112_64_k3x3_s2x2
"""
# Stages of ResNet-50 at batch 32 and 128, strides, diffusion U-Nets and VAEs, 1x1s, one 1-D.
_SHAPES = """
32x64x56x56_64_k3x3 32x128x28x28_128_k3x3 32x256x14x14_256_k3x3 32x512x7x7_512_k3x3
128x64x56x56_64_k3x3 128x128x28x28_128_k3x3 128x256x14x14_256_k3x3 128x512x7x7_512_k3x3
32x128x56x56_128_k3x3_s2x2 32x256x28x28_256_k3x3_s2x2 8x320x64x64_320_k3x3 8x640x32x32_640_k3x3
8x1280x16x16_1280_k3x3 2x320x128x128_320_k3x3 1x512x128x128_512_k3x3 1x256x256x256_256_k3x3
1x128x512x512_128_k3x3 32x256x56x56_64_k1x1 32x1024x14x14_256_k1x1 64x768x14x14_3072_k1x1
3072x128x1x202_384_k1x3
"""

SUITES: dict[str, tuple[Layer, ...]] = {
    "resnet": _suite(
        "resnet", _RESNET + _RESNET.replace("\n32x", "\n128x").replace(" 32x", " 128x")
    ),
    "convnext": _suite("convnext", _CONVNEXT),
    "unet": _suite("unet", _UNET),
    "vae": _suite("vae", _VAE),
    "video": _suite("video", _VIDEO),
    "audio": _suite("audio", _AUDIO),
    "groups": _suite("groups", _GROUPS),
    "depthwise": _suite("depthwise", _DEPTHWISE),
    "few": _suite("few", _FEW),
    "shapes": _suite("shapes", _SHAPES),
}
SUITES["wide"] = tuple(
    Layer("wide", layer.problem) for layer in SUITES["shapes"] if layer.problem.in_channels >= 256
)

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
