"""Networks whose convolutions ``zoo collect`` records, at sizes that their libraries document.

Networks are built from configurations, without weights.  Those of ``examples.models.zoo`` are among
them.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from benchmarks.suites import sections
from examples.models.zoo import (
    NETWORKS as EXAMPLES,
)
from examples.models.zoo import (
    VAE,
    Entry,
    Output,
    decoder_entry,
    monai_entry,
    segmentation_entry,
    timm_entry,
    torchvision_entry,
    transformers_entry,
    video_entry,
)

__all__ = ["Network", "networks"]

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


def _pair(name: str, height: int, width: int) -> Entry:
    """Optical flow of torchvision, two images."""

    def make(count: int) -> Made:
        import torch
        from torchvision.models import optical_flow

        images = [torch.randn(count, 3, height, width) for _ in range(2)]
        return getattr(optical_flow, name)(weights=None), tuple(images)

    return Entry("torchvision", make, 1)


def _detector(name: str, height: int, width: int) -> Entry:
    """Backbone and heads of a detector of torchvision, which see every image whole."""

    def make(count: int) -> Made:
        import torch
        from torchvision.models import detection

        model = getattr(detection, name)(weights=None, weights_backbone=None)

        def call(m: Any, x: Any) -> Any:
            features = list(m.backbone(x).values())
            if not hasattr(m, "rpn"):
                return m.head(features)
            # Regions of interest, 512 an image, of which masks see 7 x 7 or 14 x 14 pixels.
            m.rpn.head(features)
            channels, heads = features[0].shape[1], m.roi_heads
            if isinstance(heads.box_head, torch.nn.Sequential):
                heads.box_head(torch.randn(512 * count, channels, 7, 7))
            if getattr(heads, "mask_head", None) is not None:
                heads.mask_head(torch.randn(100 * count, channels, 14, 14))
            return features[0]

        return Output(model, call), (torch.randn(count, 3, height, width),)

    return Entry("torchvision", make, 1)


def _detection() -> Iterator[Network]:
    sizes = {
        "fasterrcnn_resnet50_fpn": (800, 1344), "maskrcnn_resnet50_fpn_v2": (800, 1344),
        "retinanet_resnet50_fpn": (800, 1344), "fcos_resnet50_fpn": (800, 1344),
        "ssd300_vgg16": (300, 300), "ssdlite320_mobilenet_v3_large": (320, 320),
    }  # fmt: skip
    for name, (height, width) in sizes.items():
        training = (2,) if height > _LARGE_SIDE else (32,)
        entry = _detector(name, height, width)
        yield Network(name=name, entry=entry, inference=(1,), training=training)
    for name in ("raft_large", "raft_small"):
        entry = _pair(name, 520, 960)
        yield Network(name=name, entry=entry, inference=(1,), training=(4,))


# ---- Diffusion ---------------------------------------------------------------------------------


def _diffusers(
    name: str,
    shapes: Callable[[int], tuple[tuple[int, ...], ...]],
    call: Callable[..., Any],
    **config: Any,
) -> Entry:
    """A network of diffusers, called over tensors of some shapes."""

    def make(count: int) -> Made:
        import diffusers
        import torch

        model = getattr(diffusers, name)(**config)
        return Output(model, call), tuple(torch.randn(*shape) for shape in shapes(count))

    return Entry("diffusers", make, 1)


def _encoder(name: str, shape: tuple[int, ...], **config: Any) -> Entry:
    """The encoder of an autoencoder; ``shape`` is that of an image or a video, [C, *size]."""
    return _diffusers(name, lambda n: ((n, *shape),), lambda m, x: (m.encode(x), x)[1], **config)


def _at_a_step(m: Any, x: Any, *others: Any) -> Any:
    """Calls a network of diffusers in the middle of its steps."""
    import torch

    step = torch.full((x.shape[0],), 500.0, device=x.device, dtype=x.dtype)
    return m(x, step, *others, return_dict=False)


def _conditioned(
    name: str, sample: tuple[int, ...], text: int, frames: int = 1, **config: Any
) -> Entry:
    """A U-Net that sees a text of ``text`` numbers for each of 77 words, once per frame."""
    return _diffusers(name, lambda n: ((n, *sample), (n * frames, 77, text)), _at_a_step, **config)


def _unconditioned(name: str, sample: tuple[int, ...], **config: Any) -> Entry:
    return _diffusers(name, lambda n: ((n, *sample),), _at_a_step, **config)


def _controlnet() -> Entry:
    return _diffusers(
        "ControlNetModel", lambda n: ((n, 4, 64, 64), (n, 77, 768), (n, 3, 512, 512)), _at_a_step,
        cross_attention_dim=768,
    )  # fmt: skip


def _svd() -> Entry:
    return _diffusers(
        "UNetSpatioTemporalConditionModel",
        lambda n: ((n, 14, 8, 72, 128), (n, 1, 1024), (n, 3)), _at_a_step,
    )  # fmt: skip


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
        "sd15_unet": _conditioned(unet, (4, 64, 64), 768, cross_attention_dim=768),
        "sd21_unet": _conditioned(
            unet, (4, 96, 96), 1024, cross_attention_dim=1024, attention_head_dim=(5, 10, 20, 20)
        ),
        "sd15_inpaint_unet": _conditioned(
            unet, (9, 64, 64), 768, in_channels=9, cross_attention_dim=768
        ),
        "wide_unet": _conditioned(unet, (4, 96, 96), 768, **_KANDINSKY),
        "controlnet_sd15": _controlnet(),
        "ddpm_256": _unconditioned("UNet2DModel", (3, 256, 256), **_PIXEL_UNET),
        "ddpm_64": _unconditioned("UNet2DModel", (3, 64, 64)),
    }
    for name, entry in two.items():
        yield Network(name=name, entry=entry, inference=(2, 8), training=(16,))
    one: dict[str, Entry] = {
        "sd_vae_encoder": _encoder("AutoencoderKL", (3, 512, 512), **VAE),
        "sdxl_vae_decoder": decoder_entry("AutoencoderKL", (4, 128, 128), **VAE),
        "flux_vae_decoder": decoder_entry("AutoencoderKL", (16, 128, 128), **_FLUX_VAE),
        "flux_vae_encoder": _encoder("AutoencoderKL", (3, 1024, 1024), **_FLUX_VAE),
        "flux2_vae_decoder": decoder_entry("AutoencoderKLFlux2", (32, 128, 128)),
        "taesd_decoder": decoder_entry("AutoencoderTiny", (4, 64, 64)),
        "taesd_encoder": _encoder("AutoencoderTiny", (3, 512, 512)),
        "dc_ae_decoder": decoder_entry("AutoencoderDC", (32, 32, 32), **_DC_AE),
        "dc_ae_encoder": _encoder("AutoencoderDC", (3, 1024, 1024), **_DC_AE),
        "vq_decoder": decoder_entry("VQModel", (3, 64, 64), **_VQ),
        "vq_encoder": _encoder("VQModel", (3, 256, 256), **_VQ),
    }
    for name, entry in one.items():
        both = _BOTH if name.startswith("sd") else ("bfloat16",)
        yield Network(name=name, entry=entry, inference=(1, 4), training=(8,), dtypes=both)
    videos: dict[str, Entry] = {
        "svd_unet": _svd(),
        "modelscope_unet3d": _conditioned("UNet3DConditionModel", (4, 16, 32, 32), 1024),
        "animatediff_unet": _conditioned(
            "UNetMotionModel", (4, 16, 64, 64), 768, frames=16, cross_attention_dim=768
        ),
        "svd_vae_decoder": _diffusers(
            "AutoencoderKLTemporalDecoder", lambda n: ((14 * n, 4, 72, 128),),
            lambda m, z: m.decode(z, num_frames=14, return_dict=False), **_TEMPORAL_VAE,
        ),
        "wan_vae_encoder": _encoder("AutoencoderKLWan", (3, 9, 480, 832)),
        "qwen_image_vae_decoder": decoder_entry("AutoencoderKLQwenImage", (16, 1, 128, 128)),
        "hunyuan_vae_encoder": _encoder("AutoencoderKLHunyuanVideo", (3, 17, 256, 256)),
        "mochi_vae_decoder": decoder_entry("AutoencoderKLMochi", (12, 3, 60, 106)),
        "cosmos_vae_decoder": decoder_entry("AutoencoderKLCosmos", (16, 3, 44, 80)),
        "cosmos_vae_encoder": _encoder("AutoencoderKLCosmos", (3, 17, 352, 640)),
        "magvit_vae_decoder": decoder_entry("AutoencoderKLMagvit", (16, 5, 48, 84)),
        "cogvideox_vae_encoder": _encoder("AutoencoderKLCogVideoX", (3, 9, 480, 720)),
        "ltx2_vae_decoder": decoder_entry("AutoencoderKLLTX2Video", (128, 4, 16, 24)),
        "vidtok_decoder": _diffusers(
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
        entry = _clip(name)
        yield Network(name=name, entry=entry, inference=(1, 4), training=(8,), format="contiguous")
    for name in ("r3d_18", "mc3_18", "r2plus1d_18"):
        yield Network(
            name=name, entry=video_entry(name), inference=(1, 8), training=(16,),
            format="contiguous",
        )  # fmt: skip


def _clip(name: str) -> Entry:
    def make(count: int) -> Made:
        import torch
        from torchvision.models import video

        return getattr(video, name)(weights=None), (torch.randn(count, 3, 16, 224, 224),)

    return Entry("torchvision", make, 1)


def _mel(model: str, config: str, shape: tuple[int, ...], call: str = "") -> Entry:
    """An encoder of transformers, over mel spectrograms of 30 s."""

    def make(count: int) -> Made:
        import torch
        import transformers

        made = getattr(transformers, model)(getattr(transformers, config)())
        part = made.get_encoder() if call == "encoder" else made
        return Output(part, lambda m, x: m(x)), (torch.randn(count, *shape),)

    return Entry("transformers", make, 1)


def _language_and_speech() -> Iterator[Network]:
    seconds = (160_000,)
    signals: dict[str, Entry] = {
        "whisper": _mel("WhisperModel", "WhisperConfig", (80, 3000), "encoder"),
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
        "univnet": _univnet(),
        "parakeet": _mel("ParakeetEncoder", "ParakeetEncoderConfig", (1000, 80)),
        "ast": _mel("ASTModel", "ASTConfig", (1024, 128)),
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


def _univnet() -> Entry:
    def make(count: int) -> Made:
        import torch
        import transformers

        config = transformers.UnivNetConfig()
        model = transformers.UnivNetModel(config)
        spectrogram = torch.randn(count, 200, config.num_mel_bins)
        noise = torch.randn(count, 200, config.model_in_channels)
        return Output(model, lambda m, x, z: m(x, z)), (spectrogram, noise)

    return Entry("transformers", make, 1)


# ---- All ---------------------------------------------------------------------------------------

_LARGE_EXAMPLES = 8  # an example of at most this batch is that of a large image or a volume


def _examples(taken: Iterable[str]) -> Iterator[Network]:
    """Yields the networks of ``examples.models.zoo`` that the zoo has not under the same name."""
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
    """Returns the networks of the zoo by name."""
    parts = (
        _classifiers, _segmentation, _detection, _diffusion, _volumes, _language_and_speech,
    )  # fmt: skip
    found = {network.name: network for part in parts for network in part()}
    return found | {network.name: network for network in _examples(list(found))}
