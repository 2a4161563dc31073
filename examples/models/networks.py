"""The networks of the scripts, with random weights: nothing is downloaded.

``full`` sizes are those of the papers; ``tiny`` ones keep every kind of layer and run on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from examples.models.diffusion import UNet, VaeDecoder

__all__ = ["MODELS", "SIZES", "MissingPackage", "Network", "build", "side_problem"]

Tensor = torch.Tensor

SIZES = ("full", "tiny")

# Scale of residual branches, small as in trained networks.  ConvNeXt's own 1e-6 would
# hide its convolutions; with ResNet's 1 gradients grow from layer to layer, their rounding more so.
_BRANCH_SCALE = 0.1


class MissingPackage(Exception):
    """A package that a network comes from is not installed; the text says how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A model and what it is run on.

    Attributes:
        name: Its key in ``MODELS``.
        model: In training mode, as torch makes it.
        inputs: What it is called with.  Pictures are channels-last.
        target: What its output is compared with in training.
        loss: Of an output and a target; one number.
    """

    name: str
    model: nn.Module
    inputs: tuple[Tensor, ...]
    target: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]

    @property
    def batch(self) -> int:
        """Pictures per step."""
        return self.inputs[0].shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """How a network is made.

    Attributes:
        make: Makes the model of a size, with or without attention.
        inputs: [C, H, W] of a picture, by size.
        target: [C, H, W] of the output, or [number of classes], by size.
        batch: Pictures per step, by size.
        has_steps: Whether the model also takes a diffusion step per picture.
        least: The smallest side that leaves a pixel to every layer, by size.
        multiple: What the side is a multiple of, by size, because halves are joined with wholes.
        single: The largest side of which one picture alone leaves a BatchNorm nothing to compare.
    """

    make: Callable[[str, bool], nn.Module]
    inputs: dict[str, tuple[int, ...]]
    target: dict[str, tuple[int, ...]]
    batch: dict[str, int]
    has_steps: bool = False
    least: dict[str, int] | None = None
    multiple: dict[str, int] | None = None
    single: int = 0


def _torchvision() -> Any:
    try:
        from torchvision import models
    except ImportError as error:
        # Alone, pip takes the newest, which brings a torch and a Triton of its own.
        torchs = torch.__version__.partition("+")[0]
        raise MissingPackage(
            f"needs torchvision, pip install torchvision torch=={torchs} ({error})"
        ) from error
    except RuntimeError as error:
        # torchvision's import fails like this with a torch that it was not built for.
        raise MissingPackage(f"torchvision does not fit this torch: {error}") from error
    return models


def _resnet50(size: str, attention: bool) -> nn.Module:
    models = _torchvision()
    block = models.resnet.Bottleneck
    if size == "full":
        model = models.resnet50()
    else:
        model = models.ResNet(block, [1, 1, 1, 1], num_classes=16, width_per_group=16)
    for module in model.modules():
        if isinstance(module, block):
            nn.init.constant_(module.bn3.weight, _BRANCH_SCALE)
    return model


def _convnext(size: str, attention: bool) -> nn.Module:
    models = _torchvision()
    # Stochastic depth off: two runs of a step are to be compared.
    fixed = {"stochastic_depth_prob": 0.0, "layer_scale": _BRANCH_SCALE}
    if size == "full":
        return models.convnext_tiny(**fixed)
    config = models.convnext.CNBlockConfig
    settings = [config(16, 32, 1), config(32, 64, 1), config(64, None, 1)]
    return models.ConvNeXt(settings, num_classes=16, **fixed)


def _convnext_timm(size: str, attention: bool) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise MissingPackage(f"needs timm, pip install timm ({error})") from error
    except RuntimeError as error:
        raise MissingPackage(f"timm's torchvision does not fit this torch: {error}") from error
    if size == "full":
        return timm.create_model("convnext_tiny", pretrained=False, ls_init_value=_BRANCH_SCALE)
    return timm.models.ConvNeXt(
        num_classes=16, depths=(1, 1, 1, 1), dims=(16, 32, 32, 64), ls_init_value=_BRANCH_SCALE
    )


def _unet(size: str, attention: bool) -> nn.Module:
    if size == "full":
        return UNet(attention=attention)
    return UNet((16, 32), blocks=1, attention=attention, heads=2)


def _vae(size: str, attention: bool) -> nn.Module:
    if size == "full":
        return VaeDecoder(attention=attention)
    return VaeDecoder((16, 32), blocks=1, attention=attention)


def _classifier(make: Callable[[str, bool], nn.Module], batch: int, **sides: Any) -> _Recipe:
    return _Recipe(
        make=make,
        inputs={"full": (3, 224, 224), "tiny": (3, 64, 64)},
        target={"full": (1000,), "tiny": (16,)},
        batch={"full": batch, "tiny": 4},
        **sides,
    )


_RECIPES = {
    "resnet50": _classifier(_resnet50, 128, single=32),
    "convnext": _classifier(_convnext, 64, least={"full": 32, "tiny": 16}),
    "convnext-timm": _classifier(_convnext_timm, 64, least={"full": 32, "tiny": 32}),
    "unet": _Recipe(
        make=_unet,
        inputs={"full": (4, 64, 64), "tiny": (4, 8, 8)},
        target={"full": (4, 64, 64), "tiny": (4, 8, 8)},
        batch={"full": 8, "tiny": 2},
        has_steps=True,
        multiple={"full": 8, "tiny": 2},
    ),
    "vae": _Recipe(
        make=_vae,
        inputs={"full": (4, 64, 64), "tiny": (4, 4, 4)},
        target={"full": (3, 512, 512), "tiny": (3, 8, 8)},
        batch={"full": 4, "tiny": 2},
    ),
}

MODELS = tuple(_RECIPES)


def _entropy(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.float(), target)


def _squares(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output.float(), target.float())


def side_problem(name: str, size: str, side: int | None, batch: int | None) -> str:
    """Why a network does not take pictures of a side; empty if it does.

    Args:
        name: One of ``MODELS``.
        size: One of ``SIZES``.
        side: As for :func:`build`.
        batch: As for :func:`build`, of one rank.
    """
    recipe = _RECIPES[name]
    if side is None:
        return ""
    least = recipe.least[size] if recipe.least is not None else 1
    if side < least:
        return f"{name} ({size}) needs at least {least}"
    multiple = recipe.multiple[size] if recipe.multiple is not None else 1
    if side % multiple:
        return f"{name} ({size}) needs a multiple of {multiple}"
    if batch == 1 and side <= recipe.single:
        return f"{name} ({size}) needs more than {recipe.single}, or more than one picture"
    return ""


def build(
    name: str,
    *,
    size: str = "full",
    batch: int | None = None,
    side: int | None = None,
    ranks: int = 1,
    attention: bool = False,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Network:
    """Makes a network in fp32 with random weights, and a batch of synthetic data for it.

    Args:
        name: One of ``MODELS``.
        size: One of ``SIZES``.
        batch: Pictures per step and rank; ``None`` for the network's own number.
        side: Height and width of the input, in pixels or latents; ``None`` for the network's own.
        ranks: How many parts the batch is to be divided into.
        attention: Whether the UNet and the decoder have attention; others have none.
        device: Where it is made.
        seed: Of weights and data.

    Raises:
        MissingPackage: Its package is not there.
    """
    recipe = _RECIPES[name]
    batch = (recipe.batch[size] if batch is None else batch) * ranks
    shape, wanted = recipe.inputs[size], recipe.target[size]
    if side is not None:
        times = side / shape[-1]
        shape = (shape[0], side, side)
        wanted = (wanted[0], *(int(pixels * times) for pixels in wanted[1:]))
    torch.manual_seed(seed)
    with torch.device(device):
        model = recipe.make(size, attention)
        x = torch.randn(batch, *shape)
        inputs = [x.contiguous(memory_format=torch.channels_last)]
        if recipe.has_steps:
            inputs.append(torch.randint(0, 1000, (batch,)))
        is_classifier = len(wanted) == 1
        if is_classifier:
            target = torch.randint(0, wanted[0], (batch,))
        else:
            target = torch.randn(batch, *wanted)
    return Network(
        name=name,
        model=model,
        inputs=tuple(inputs),
        target=target,
        loss=_entropy if is_classifier else _squares,
    )
