"""Makes networks of public libraries, as they are written, with random weights.

The libraries are torchvision, timm, diffusers, MONAI, transformers and segmentation_models_pytorch,
which are optional.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["VAE", "Entry", "Output", "codec_entry", "conditioned_entry", "controlnet_entry",
           "decoder_entry", "detector_entry", "diffusers_entry", "encoder_entry", "image",
           "mel_entry", "monai_entry", "pair_entry", "sdxl_unet", "segmentation_entry", "svd_entry",
           "timm_entry", "torchvision_entry", "transformers_entry", "unconditioned_entry",
           "univnet_entry", "video_entry"]  # fmt: skip

Tensor = torch.Tensor
Made = tuple[torch.nn.Module, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A network of a library.

    Attributes:
        library: The package to install.
        make: Returns the model and its inputs for a batch size, in fp32 on the default device.
        batch: The default batch size.
    """

    library: str
    make: Callable[[int], Made]
    batch: int


def image(batch: int, side: int = 224, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, side, side)


class Output(torch.nn.Module):
    """A model's function with one tensor as its output.

    Args:
        model: The model.
        call: Computes the tensor, or a structure whose first tensor is meant.
    """

    def __init__(self, model: torch.nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self._call = call

    def forward(self, *inputs: Any) -> Tensor:
        """Returns the first tensor of the model's output."""
        return _first(self._call(self.model, *inputs))


def _first(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    parts = output.values() if hasattr(output, "values") else output
    return next(_first(part) for part in parts if part is not None)


def torchvision_entry(name: str, side: int = 224, batch: int = 64, **keywords: Any) -> Entry:
    def make(count: int) -> Made:
        from torchvision import models

        model = models.get_model(name, weights=None, **keywords)
        return Output(model, lambda m, x: m(x)), (image(count, side),)

    return Entry("torchvision", make, batch)


def video_entry(name: str, side: int = 112, batch: int = 8) -> Entry:
    def make(count: int) -> Made:
        from torchvision.models import video

        return getattr(video, name)(weights=None), (torch.randn(count, 3, 16, side, side),)

    return Entry("torchvision", make, batch)


def timm_entry(name: str, side: int = 224, batch: int = 64) -> Entry:
    def make(count: int) -> Made:
        import timm

        return timm.create_model(name, pretrained=False), (image(count, side),)

    return Entry("timm", make, batch)


def decoder_entry(name: str, shape: tuple[int, ...], batch: int = 1, **config: Any) -> Entry:
    """The decoder of an autoencoder of diffusers; ``shape`` is that of a latent, [C, *size]."""

    def make(count: int) -> Made:
        import diffusers

        model = getattr(diffusers, name)(**config)
        latent = torch.randn(count, *shape)
        return Output(model, lambda m, z: m.decode(z, return_dict=False)), (latent,)

    return Entry("diffusers", make, batch)


def sdxl_unet(count: int) -> Made:
    import diffusers

    model = diffusers.UNet2DConditionModel(
        sample_size=128,
        block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10),
        attention_head_dim=(5, 10, 20),
        cross_attention_dim=2048,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )

    def call(m: Any, x: Tensor, text: Tensor, pooled: Tensor, ids: Tensor) -> Any:
        added = {"text_embeds": pooled, "time_ids": ids}
        step = torch.full((x.shape[0],), 500.0, device=x.device, dtype=x.dtype)
        return m(x, step, text, added_cond_kwargs=added, return_dict=False)

    inputs = (
        image(count, 128, 4),
        torch.randn(count, 77, 2048),
        torch.randn(count, 1280),
        torch.randn(count, 6),
    )
    return Output(model, call), inputs


VAE: dict[str, Any] = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
    "latent_channels": 4,
}


def monai_entry(name: str, shape: tuple[int, ...], batch: int = 1, **config: Any) -> Entry:
    def make(count: int) -> Made:
        from monai.networks import nets

        return getattr(nets, name)(**config), (torch.randn(count, *shape),)

    return Entry("monai", make, batch)


def transformers_entry(
    model: str, config: str, shape: tuple[int, ...], batch: int, **settings: Any
) -> Entry:
    def make(count: int) -> Made:
        import transformers

        made = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return Output(made, lambda m, x: m(x)), (torch.randn(count, *shape),)

    return Entry("transformers", make, batch)


def codec_entry(model: str, config: str, shape: tuple[int, ...], batch: int) -> Entry:
    """The encoder and decoder of an audio codec, without its codes: a rounding may change these."""

    def make(count: int) -> Made:
        import transformers

        made = getattr(transformers, model)(getattr(transformers, config)())
        return Output(made, lambda m, x: m.decoder(m.encoder(x))), (torch.randn(count, *shape),)

    return Entry("transformers", make, batch)


def segmentation_entry(name: str, encoder: str, side: int = 512, batch: int = 8) -> Entry:
    def make(count: int) -> Made:
        import segmentation_models_pytorch as smp

        made = getattr(smp, name)(encoder, encoder_weights=None, classes=19)
        return made, (image(count, side),)

    return Entry("segmentation_models_pytorch", make, batch)


def pair_entry(name: str, height: int, width: int) -> Entry:
    """Optical flow of torchvision, two images."""

    def make(count: int) -> Made:
        from torchvision.models import optical_flow

        images = [torch.randn(count, 3, height, width) for _ in range(2)]
        return getattr(optical_flow, name)(weights=None), tuple(images)

    return Entry("torchvision", make, 1)


def detector_entry(name: str, height: int, width: int) -> Entry:
    """Backbone and heads of a detector of torchvision, which see every image whole."""

    def make(count: int) -> Made:
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


def diffusers_entry(
    name: str,
    shapes: Callable[[int], tuple[tuple[int, ...], ...]],
    call: Callable[..., Any],
    **config: Any,
) -> Entry:
    """A network of diffusers, called over tensors of some shapes."""

    def make(count: int) -> Made:
        import diffusers

        model = getattr(diffusers, name)(**config)
        return Output(model, call), tuple(torch.randn(*shape) for shape in shapes(count))

    return Entry("diffusers", make, 1)


def encoder_entry(name: str, shape: tuple[int, ...], **config: Any) -> Entry:
    """The encoder of an autoencoder; ``shape`` is that of an image or a video, [C, *size]."""
    return diffusers_entry(
        name, lambda n: ((n, *shape),), lambda m, x: (m.encode(x), x)[1], **config
    )


def _at_a_step(m: Any, x: Any, *others: Any) -> Any:
    """Calls a network of diffusers in the middle of its steps."""
    step = torch.full((x.shape[0],), 500.0, device=x.device, dtype=x.dtype)
    return m(x, step, *others, return_dict=False)


def conditioned_entry(
    name: str, sample: tuple[int, ...], text: int, frames: int = 1, **config: Any
) -> Entry:
    """A U-Net that sees a text of ``text`` numbers for each of 77 words, once per frame."""
    return diffusers_entry(
        name, lambda n: ((n, *sample), (n * frames, 77, text)), _at_a_step, **config
    )


def unconditioned_entry(name: str, sample: tuple[int, ...], **config: Any) -> Entry:
    return diffusers_entry(name, lambda n: ((n, *sample),), _at_a_step, **config)


def controlnet_entry() -> Entry:
    return diffusers_entry(
        "ControlNetModel", lambda n: ((n, 4, 64, 64), (n, 77, 768), (n, 3, 512, 512)), _at_a_step,
        cross_attention_dim=768,
    )  # fmt: skip


def svd_entry() -> Entry:
    return diffusers_entry(
        "UNetSpatioTemporalConditionModel",
        lambda n: ((n, 14, 8, 72, 128), (n, 1, 1024), (n, 3)), _at_a_step,
    )  # fmt: skip


def mel_entry(model: str, config: str, shape: tuple[int, ...], call: str = "") -> Entry:
    """An encoder of transformers, over mel spectrograms of 30 s."""

    def make(count: int) -> Made:
        import transformers

        made = getattr(transformers, model)(getattr(transformers, config)())
        part = made.get_encoder() if call == "encoder" else made
        return Output(part, lambda m, x: m(x)), (torch.randn(count, *shape),)

    return Entry("transformers", make, 1)


def univnet_entry() -> Entry:
    def make(count: int) -> Made:
        import transformers

        config = transformers.UnivNetConfig()
        model = transformers.UnivNetModel(config)
        spectrogram = torch.randn(count, 200, config.num_mel_bins)
        noise = torch.randn(count, 200, config.model_in_channels)
        return Output(model, lambda m, x, z: m(x, z)), (spectrogram, noise)

    return Entry("transformers", make, 1)
