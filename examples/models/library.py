"""Networks of public libraries, at sizes that these document.

``python -m examples.models.zoo`` runs them, ``python -m benchmarks zoo collect`` records their
convolutions.  Names of networks that differ by name and size alone are in ``library.txt``.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.suites import sections
from examples.models.entries import (
    VAE,
    Entry,
    codec_entry,
    conditioned_entry,
    controlnet_entry,
    decoder_entry,
    detector_entry,
    diffusers_entry,
    encoder_entry,
    mel_entry,
    monai_entry,
    pair_entry,
    sdxl_unet,
    segmentation_entry,
    svd_entry,
    timm_entry,
    torchvision_entry,
    transformers_entry,
    unconditioned_entry,
    univnet_entry,
    video_entry,
)

__all__ = ["EXAMPLES", "Network", "networks"]

Made = tuple[Any, tuple[Any, ...]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network and the sizes that it runs at."""

    name: str  # unique in the zoo
    entry: Entry  # makes it
    inference: tuple[int, ...]  # batch sizes of inference
    training: tuple[int, ...]  # batch sizes of training
    # Types of the operands, torch's names; float32 where the network usually runs so.
    dtypes: tuple[str, ...] = ("bfloat16",)
    format: str = "channels_last"  # memory format of its activations as it is usually run


_BOTH = ("bfloat16", "float32")


_WORDS = sections(pathlib.Path(__file__).with_suffix(".txt"))


# ---- Images ------------------------------------------------------------------------------------


_TORCHVISION_SIZES = {
    "inception_v3": 299, "efficientnet_b4": 380, "efficientnet_b6": 528, "efficientnet_v2_s": 384,
    "efficientnet_v2_l": 480,
}  # fmt: skip


_LARGE_SIDE = 320


def _by_side(side: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns usual batch sizes of inference and training of a classifier."""
    if side <= 240:
        return (1, 32), (128,)
    if side <= _LARGE_SIDE:
        return (1, 32), (64,)
    return ((1, 8), (32,)) if side < 800 else ((1,), (4,))


def _classifiers() -> Iterator[Network]:
    sides = dict.fromkeys(_WORDS["torchvision"], 224) | _TORCHVISION_SIZES
    for name, side in sides.items():
        inference, training = _by_side(side)
        entry = torchvision_entry(name, side)
        yield Network(name=name, entry=entry, inference=inference, training=training)
    for word in _WORDS["timm"]:
        name, _, side_text = word.partition("@")
        side = int(side_text or 224)
        inference, training = _by_side(side)
        entry = timm_entry(name, side)
        yield Network(name=f"timm {name}", entry=entry, inference=inference, training=training)


def _segmentation() -> Iterator[Network]:
    for word in _WORDS["segmentation"]:
        decoder, _, rest = word.partition("-")
        encoder, _, side = rest.rpartition("-")
        entry = segmentation_entry(decoder, encoder, int(side))
        yield Network(
            name=f"smp {decoder} {encoder}", entry=entry, inference=(1, 8), training=(16,)
        )
    plain = {"weights_backbone": None}
    for name, side in (
        ("deeplabv3_resnet50", 520), ("deeplabv3_resnet101", 520), ("fcn_resnet101", 520),
        ("deeplabv3_mobilenet_v3_large", 520), ("lraspp_mobilenet_v3_large", 520),
    ):  # fmt: skip
        entry = torchvision_entry(name, side, **plain)
        yield Network(name=name, entry=entry, inference=(1, 8), training=(16,))


def _detection() -> Iterator[Network]:
    sizes = {
        "fasterrcnn_resnet50_fpn": (800, 1344), "maskrcnn_resnet50_fpn_v2": (800, 1344),
        "retinanet_resnet50_fpn": (800, 1344), "fcos_resnet50_fpn": (800, 1344),
        "ssd300_vgg16": (300, 300), "ssdlite320_mobilenet_v3_large": (320, 320),
    }  # fmt: skip
    for name, (height, width) in sizes.items():
        training = (2,) if height > _LARGE_SIDE else (32,)
        entry = detector_entry(name, height, width)
        yield Network(name=name, entry=entry, inference=(1,), training=training)
    for name in ("raft_large", "raft_small"):
        entry = pair_entry(name, 520, 960)
        yield Network(name=name, entry=entry, inference=(1,), training=(4,))


# ---- Diffusion ---------------------------------------------------------------------------------


_PIXEL_UNET = {
    "block_out_channels": (128, 128, 256, 256, 512, 512),
    "down_block_types": (*("DownBlock2D",) * 4, "AttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "AttnUpBlock2D", *("UpBlock2D",) * 4),
}
_FLUX_VAE = VAE | {"latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False}
_TEMPORAL_VAE = {
    "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "latent_channels": 4,
    "down_block_types": ("DownEncoderBlock2D",) * 4,
}  # fmt: skip
_DC_AE: dict[str, Any] = {
    "encoder_block_types": (*("ResBlock",) * 3, *("EfficientViTBlock",) * 3),
    "decoder_block_types": (*("ResBlock",) * 3, *("EfficientViTBlock",) * 3),
}
_VQ: dict[str, Any] = {
    "block_out_channels": (128, 256, 512), "layers_per_block": 2, "latent_channels": 3,
    "down_block_types": ("DownEncoderBlock2D",) * 3, "up_block_types": ("UpDecoderBlock2D",) * 3,
    "num_vq_embeddings": 8192,
}  # fmt: skip
_KANDINSKY = {
    "cross_attention_dim": 768,
    "block_out_channels": (384, 768, 1536, 1536),
    "attention_head_dim": 64,
}


def _diffusion() -> Iterator[Network]:
    unet = "UNet2DConditionModel"
    two: dict[str, Entry] = {
        "sd15_unet": conditioned_entry(unet, (4, 64, 64), 768, cross_attention_dim=768),
        "sd21_unet": conditioned_entry(
            unet, (4, 96, 96), 1024, cross_attention_dim=1024, attention_head_dim=(5, 10, 20, 20)
        ),
        "sd15_inpaint_unet": conditioned_entry(
            unet, (9, 64, 64), 768, in_channels=9, cross_attention_dim=768
        ),
        "wide_unet": conditioned_entry(unet, (4, 96, 96), 768, **_KANDINSKY),
        "controlnet_sd15": controlnet_entry(),
        "ddpm_256": unconditioned_entry("UNet2DModel", (3, 256, 256), **_PIXEL_UNET),
        "ddpm_64": unconditioned_entry("UNet2DModel", (3, 64, 64)),
    }
    for name, entry in two.items():
        yield Network(name=name, entry=entry, inference=(2, 8), training=(16,))
    one: dict[str, Entry] = {
        "sd_vae_encoder": encoder_entry("AutoencoderKL", (3, 512, 512), **VAE),
        "sdxl_vae_decoder": decoder_entry("AutoencoderKL", (4, 128, 128), **VAE),
        "flux_vae_decoder": decoder_entry("AutoencoderKL", (16, 128, 128), **_FLUX_VAE),
        "flux_vae_encoder": encoder_entry("AutoencoderKL", (3, 1024, 1024), **_FLUX_VAE),
        "flux2_vae_decoder": decoder_entry("AutoencoderKLFlux2", (32, 128, 128)),
        "taesd_decoder": decoder_entry("AutoencoderTiny", (4, 64, 64)),
        "taesd_encoder": encoder_entry("AutoencoderTiny", (3, 512, 512)),
        "dc_ae_decoder": decoder_entry("AutoencoderDC", (32, 32, 32), **_DC_AE),
        "dc_ae_encoder": encoder_entry("AutoencoderDC", (3, 1024, 1024), **_DC_AE),
        "vq_decoder": decoder_entry("VQModel", (3, 64, 64), **_VQ),
        "vq_encoder": encoder_entry("VQModel", (3, 256, 256), **_VQ),
    }
    for name, entry in one.items():
        both = _BOTH if name.startswith("sd") else ("bfloat16",)
        yield Network(name=name, entry=entry, inference=(1, 4), training=(8,), dtypes=both)
    videos: dict[str, Entry] = {
        "svd_unet": svd_entry(),
        "modelscope_unet3d": conditioned_entry("UNet3DConditionModel", (4, 16, 32, 32), 1024),
        "animatediff_unet": conditioned_entry(
            "UNetMotionModel", (4, 16, 64, 64), 768, frames=16, cross_attention_dim=768
        ),
        "svd_vae_decoder": diffusers_entry(
            "AutoencoderKLTemporalDecoder", lambda n: ((14 * n, 4, 72, 128),),
            lambda m, z: m.decode(z, num_frames=14, return_dict=False), **_TEMPORAL_VAE,
        ),
        "wan_vae_encoder": encoder_entry("AutoencoderKLWan", (3, 9, 480, 832)),
        "qwen_image_vae_decoder": decoder_entry("AutoencoderKLQwenImage", (16, 1, 128, 128)),
        "hunyuan_vae_encoder": encoder_entry("AutoencoderKLHunyuanVideo", (3, 17, 256, 256)),
        "mochi_vae_decoder": decoder_entry("AutoencoderKLMochi", (12, 3, 60, 106)),
        "cosmos_vae_decoder": decoder_entry("AutoencoderKLCosmos", (16, 3, 44, 80)),
        "cosmos_vae_encoder": encoder_entry("AutoencoderKLCosmos", (3, 17, 352, 640)),
        "magvit_vae_decoder": decoder_entry("AutoencoderKLMagvit", (16, 5, 48, 84)),
        "cogvideox_vae_encoder": encoder_entry("AutoencoderKLCogVideoX", (3, 9, 480, 720)),
        "ltx2_vae_decoder": decoder_entry("AutoencoderKLLTX2Video", (128, 4, 16, 24)),
        "vidtok_decoder": diffusers_entry(
            "AutoencoderVidTok", lambda n: ((n, 4, 4, 32, 32),), lambda m, z: m.decode(z)
        ),
        "hunyuan15_vae_decoder": decoder_entry("AutoencoderKLHunyuanVideo15", (32, 3, 30, 52)),
        "ltx2_audio_decoder": decoder_entry("AutoencoderKLLTX2Audio", (8, 128, 16)),
    }  # fmt: skip
    for name, entry in videos.items():
        yield Network(name=name, entry=entry, inference=(1,), training=(2,), format="contiguous")


# ---- Video, volumes and signals ----------------------------------------------------------------

_UNET3D = {"spatial_dims": 3, "in_channels": 1, "out_channels": 3}
_BRATS = {"spatial_dims": 3, "in_channels": 4, "out_channels": 3}
_DYNUNET = {"kernel_size": (3,) * 5, "strides": (1, 2, 2, 2, 2), "upsample_kernel_size": (2,) * 4}
_ANISOTROPIC = {
    "kernel_size": ((1, 3, 3), (1, 3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3)),
    "strides": (1, (1, 2, 2), (1, 2, 2), (2, 2, 2), (2, 2, 2), (1, 2, 2)),
    "upsample_kernel_size": ((1, 2, 2), (1, 2, 2), (2, 2, 2), (2, 2, 2), (1, 2, 2)),
}
_LEVELS = {"channels": (16, 32, 64, 128, 256), "strides": (2, 2, 2, 2)}


def _volumes() -> Iterator[Network]:
    cube = (1, 96, 96, 96)
    entries: dict[str, Entry] = {
        "dynunet_brats": monai_entry("DynUNet", (4, 128, 128, 128), **_BRATS, **_DYNUNET),
        "dynunet_res": monai_entry("DynUNet", cube, **_UNET3D, **_DYNUNET, res_block=True),
        "dynunet_anisotropic": monai_entry("DynUNet", (1, 20, 320, 256), **_UNET3D, **_ANISOTROPIC),
        "segresnet_brats": monai_entry(
            "SegResNet", (4, 128, 128, 128), **_BRATS, init_filters=16, blocks_down=(1, 2, 2, 4)
        ),
        "segresnet_ds": monai_entry("SegResNetDS", cube, **_UNET3D, init_filters=32),
        "unet3d_small": monai_entry("UNet", cube, **_UNET3D, **_LEVELS, num_res_units=2),
        "attention_unet3d": monai_entry("AttentionUnet", cube, **_UNET3D, **_LEVELS),
        "basicunetpp": monai_entry("BasicUNetPlusPlus", cube, **_UNET3D),
        "swin_unetr": monai_entry("SwinUNETR", cube, in_channels=1, out_channels=14,
                                  feature_size=48),
        "unetr": monai_entry("UNETR", cube, in_channels=1, out_channels=14, img_size=(96, 96, 96)),
        "highresnet": monai_entry("HighResNet", cube, **_UNET3D),
        "resnet50_3d": monai_entry("resnet50", (1, 96, 96, 96), spatial_dims=3, n_input_channels=1),
        "densenet121_3d": monai_entry("DenseNet121", cube, **_UNET3D),
        "mednext_s": monai_entry("MedNeXtS", (1, 128, 128, 128), **_UNET3D),
        "vae_3d": monai_entry(
            "AutoencoderKL", (1, 80, 80, 80), **{**_UNET3D, "out_channels": 1},
            channels=(32, 64, 64), num_res_blocks=(1, 1, 1), latent_channels=3,
            attention_levels=(False, False, False), norm_num_groups=16,
        ),
        "vista3d_encoder": monai_entry("SegResNetDS2", cube, **_UNET3D, init_filters=48),
    }  # fmt: skip
    for name, entry in entries.items():
        yield Network(
            name=f"monai {name}", entry=entry, inference=(1, 4), training=(2,),
            dtypes=_BOTH if name == "unet3d_small" else ("bfloat16",), format="contiguous",
        )  # fmt: skip
    flat = {"spatial_dims": 2, "in_channels": 1, "out_channels": 4}
    for name, entry in {
        "dynunet_2d": monai_entry("DynUNet", (1, 512, 512), **flat, **_DYNUNET),
        "unet_2d": monai_entry("UNet", (1, 256, 256), **flat, **_LEVELS, num_res_units=2),
        "basicunet_2d": monai_entry("BasicUNet", (1, 512, 512), **flat),
    }.items():
        yield Network(
            name=f"monai {name}", entry=entry, inference=(1, 16), training=(12,),
            format="contiguous",
        )  # fmt: skip
    for name in ("s3d", "mvit_v2_s", "swin3d_t"):
        entry = video_entry(name, 224, 1)
        yield Network(name=name, entry=entry, inference=(1, 4), training=(8,), format="contiguous")
    for name in ("r3d_18", "mc3_18", "r2plus1d_18"):
        yield Network(
            name=name, entry=video_entry(name), inference=(1, 8), training=(16,),
            format="contiguous",
        )  # fmt: skip


def _language_and_speech() -> Iterator[Network]:
    seconds = (160_000,)
    signals: dict[str, Entry] = {
        "whisper": mel_entry("WhisperModel", "WhisperConfig", (80, 3000), "encoder"),
        "hubert": transformers_entry("HubertModel", "HubertConfig", seconds, 1),
        "wavlm": transformers_entry("WavLMModel", "WavLMConfig", seconds, 1),
        "wav2vec2_large": transformers_entry(
            "Wav2Vec2Model", "Wav2Vec2Config", seconds, 1, hidden_size=1024, num_hidden_layers=24,
            num_attention_heads=16, intermediate_size=4096, conv_bias=True,
            feat_extract_norm="layer", do_stable_layer_norm=True,
        ),
        "data2vec_audio": transformers_entry(
            "Data2VecAudioModel", "Data2VecAudioConfig", seconds, 1
        ),
        "sew": transformers_entry("SEWModel", "SEWConfig", seconds, 1),
        "wav2vec2_conformer": transformers_entry(
            "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", seconds, 1
        ),
        "dac": transformers_entry("DacModel", "DacConfig", (1, 64_000), 1),
        "mimi": transformers_entry("MimiModel", "MimiConfig", (1, 96_000), 1),
        "univnet": univnet_entry(),
        "parakeet": mel_entry("ParakeetEncoder", "ParakeetEncoderConfig", (1000, 80)),
        "ast": mel_entry("ASTModel", "ASTConfig", (1024, 128)),
        "clap": transformers_entry(
            "ClapAudioModel", "ClapAudioConfig", (1, 1001, 64), 1
        ),
    }  # fmt: skip
    for name, entry in signals.items():
        codec = name in ("dac", "mimi", "univnet")
        yield Network(
            name=name, entry=entry, inference=(1, 16), training=(8,), format="contiguous",
            dtypes=_BOTH if codec else ("bfloat16",),
        )  # fmt: skip
    for word in _WORDS["transformers"]:
        name, model, side_text = word.split("-")
        side, config = int(side_text), re.sub("Model$|For[A-Z].*$", "Config", model)
        more = {"image_size": side} if name == "dpt" else {}
        entry = transformers_entry(model, config, (3, side, side), 1, **more)
        inference, training = _by_side(side)
        yield Network(
            name=f"transformers {name}", entry=entry, inference=inference, training=training
        )


# ---- All ---------------------------------------------------------------------------------------

_DYNUNET_6 = {
    "kernel_size": (3,) * 6,
    "strides": (1, 2, 2, 2, 2, 2),
    "upsample_kernel_size": (2,) * 5,
}
_WIDE = {"channels": (32, 64, 128, 256, 320), "strides": (2, 2, 2, 2)}

#: By name; all sizes are those that the libraries document.
EXAMPLES: dict[str, Entry] = {
    "resnet50": torchvision_entry("resnet50"),
    "wide_resnet50_2": torchvision_entry("wide_resnet50_2"),
    "resnext101_32x8d": torchvision_entry("resnext101_32x8d", batch=32),
    "regnet_y_8gf": torchvision_entry("regnet_y_8gf"),
    "densenet121": torchvision_entry("densenet121"),
    "efficientnet_v2_s": torchvision_entry("efficientnet_v2_s", side=384, batch=32),
    "mobilenet_v3_large": torchvision_entry("mobilenet_v3_large"),
    "convnext_base": torchvision_entry("convnext_base", batch=32),
    "deeplabv3_resnet50": torchvision_entry(
        "deeplabv3_resnet50", side=512, batch=8, weights_backbone=None
    ),
    "fcn_resnet50": torchvision_entry("fcn_resnet50", side=512, batch=8, weights_backbone=None),
    "r2plus1d_18": video_entry("r2plus1d_18"),
    "r3d_18": video_entry("r3d_18"),
    "mc3_18": video_entry("mc3_18"),
    "efficientnetv2_rw_s": timm_entry("efficientnetv2_rw_s", side=384, batch=32),
    "tf_efficientnetv2_s": timm_entry("tf_efficientnetv2_s", side=384, batch=32),
    "mobilenetv3_large_100": timm_entry("mobilenetv3_large_100"),
    "convnext_base_timm": timm_entry("convnext_base", batch=32),
    "resnetv2_50x1_bit": timm_entry("resnetv2_50x1_bit"),
    "hrnet_w32": timm_entry("hrnet_w32"),
    "regnety_080": timm_entry("regnety_080"),
    "resnext50_32x4d": timm_entry("resnext50_32x4d"),
    "cspdarknet53": timm_entry("cspdarknet53", side=256),
    "repvgg_b1": timm_entry("repvgg_b1"),
    "dla60": timm_entry("dla60"),
    "sd_vae": decoder_entry("AutoencoderKL", (4, 64, 64), 4, **VAE),
    "sdxl_unet": Entry("diffusers", sdxl_unet, 2),
    "wan_vae": decoder_entry("AutoencoderKLWan", (16, 5, 60, 104)),
    "hunyuan_vae": decoder_entry("AutoencoderKLHunyuanVideo", (16, 5, 32, 32)),
    "cogvideox_vae": decoder_entry("AutoencoderKLCogVideoX", (16, 3, 60, 90)),
    "ltx_vae": decoder_entry("AutoencoderKLLTXVideo", (128, 8, 16, 24)),
    "oobleck": decoder_entry("AutoencoderOobleck", (64, 256), 2),
    "segresnet": monai_entry("SegResNet", (1, 96, 96, 96), 2, **_UNET3D, init_filters=32),
    "dynunet": monai_entry("DynUNet", (1, 128, 128, 128), 2, **_UNET3D, **_DYNUNET_6),
    "basicunet": monai_entry("BasicUNet", (1, 96, 96, 96), 2, **_UNET3D),
    "unet3d": monai_entry("UNet", (1, 128, 128, 128), 2, **_UNET3D, **_WIDE, num_res_units=2),
    "vnet": monai_entry("VNet", (1, 64, 128, 128), 1),
    "hifigan": transformers_entry("SpeechT5HifiGan", "SpeechT5HifiGanConfig", (400, 80), 8),
    "wav2vec2": transformers_entry("Wav2Vec2Model", "Wav2Vec2Config", (160_000,), 8),
    "convnextv2": transformers_entry("ConvNextV2Model", "ConvNextV2Config", (3, 224, 224), 64),
    "encodec": codec_entry("EncodecModel", "EncodecConfig", (1, 96_000), 8),
    "unet_resnet50": segmentation_entry("Unet", "resnet50"),
    "fpn_efficientnet_b4": segmentation_entry("FPN", "efficientnet-b4"),
    "deeplabv3plus_resnet101": segmentation_entry("DeepLabV3Plus", "resnet101"),
}

_LARGE_EXAMPLES = 8  # an example of at most this batch is that of a large image or a volume


def _examples(taken: Iterable[str]) -> Iterator[Network]:
    """Yields the networks of :data:`EXAMPLES` that are not among the others by name."""
    for name, entry in EXAMPLES.items():
        if name in taken:
            continue
        batch = entry.batch
        is_large = batch <= _LARGE_EXAMPLES
        yield Network(
            name=name, entry=entry,
            inference=(1, batch) if batch > 1 else (1,), training=(2 * batch,),
            dtypes=_BOTH if name in ("hifigan", "encodec", "oobleck") else ("bfloat16",),
            format="contiguous" if is_large and entry.library != "torchvision" else "channels_last",
        )  # fmt: skip


def networks() -> dict[str, Network]:
    """Returns all networks by name."""
    parts = (
        _classifiers, _segmentation, _detection, _diffusion, _volumes, _language_and_speech,
    )  # fmt: skip
    found = {network.name: network for part in parts for network in part()}
    return found | {network.name: network for network in _examples(list(found))}
