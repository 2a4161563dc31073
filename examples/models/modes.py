"""The ways to run a network: torch's convolutions or ours, eager or compiled.

What changes between them is one line, ``triton_ext.nn.convert(model)``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from examples.models.networks import Network

__all__ = [
    "BASELINE",
    "DTYPES",
    "MODES",
    "THEIRS",
    "Variant",
    "fp32",
    "modes_of",
    "settle",
    "variant",
]

MODES = ("eager", "ours", "compile", "ours+compile")
BASELINE = MODES[0]
#: The baseline of each of our modes: the same, with torch's convolutions.
THEIRS = {"ours": "eager", "ours+compile": "compile"}

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class Variant:
    """A network in one of the modes.

    Attributes:
        network: With inputs of the dtype; ``model`` is the one whose parameters are trained.
        call: What is called: the model, or what DDP and torch.compile made of it.
        conversion: What became of the layers; ``None`` for torch's convolutions.
    """

    network: Network
    call: Any
    conversion: Any = None

    @property
    def taken(self) -> tuple[int, int]:
        """How many convolutions were converted, and how many of them all."""
        if self.conversion is None:
            return 0, sum(isinstance(m, _CONVOLUTIONS) for m in self.network.model.modules())
        layers = self.conversion.layers
        return sum(not layer.reason for layer in layers), len(layers)

    @property
    def folded(self) -> int:
        """How many convolutions took in what stands behind them."""
        layers = () if self.conversion is None else self.conversion.layers
        return sum(bool(layer.folded) for layer in layers)

    @property
    def left(self) -> tuple[str, ...]:
        """The layers that were left, each with the reason."""
        if self.conversion is None:
            return ()
        return tuple(
            f"{each.name}: {each.reason}" for each in self.conversion.layers if each.reason
        )


_CONVOLUTIONS = nn.modules.conv._ConvNd


def modes_of(names: Sequence[str]) -> tuple[str, ...]:
    """The modes that are run for those asked for: the baseline first, ``all`` written out."""
    asked = MODES if "all" in names else names
    return tuple(mode for mode in MODES if mode in asked or mode == BASELINE)


def _with_model(network: Network, model: nn.Module, dtype: torch.dtype) -> Network:
    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return Network(
        name=network.name,
        model=model,
        inputs=tuple(cast(each) for each in network.inputs),
        target=network.target,
        loss=network.loss,
    )


def settle(network: Network) -> None:
    """Gives BatchNorms the statistics of the network's data, as training would have."""
    norms = [m for m in network.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    was_training = network.model.training
    network.model.train()
    for norm in norms:
        norm.momentum = None  # a plain mean over the batches
    with torch.no_grad():
        network.model(*network.inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    network.model.train(was_training)


def fp32(network: Network, dtype: torch.dtype) -> Network:
    """The network in fp32 with weights and inputs rounded to a dtype: what errors are against."""
    model = copy.deepcopy(network.model).to(dtype).float()
    rounded = _with_model(network, model, dtype)
    return _with_model(rounded, model, torch.float32)


def variant(
    network: Network,
    mode: str,
    *,
    dtype: torch.dtype,
    weight_dtype: torch.dtype | None = None,
    fold: bool = False,
    norms: bool = False,
    compile_mode: str = "default",
    compile_backend: str = "inductor",
    wrap: Callable[[nn.Module], nn.Module] | None = None,
) -> Variant:
    """Makes a mode of a network; the network stays as it is.

    Args:
        network: In fp32, in the mode (training or not) that is wanted.
        mode: One of ``MODES``.
        dtype: Of inputs and, if nothing else is said, weights.
        weight_dtype: Of the weights, where autocast casts them.
        fold: Whether ``convert`` folds what stands behind convolutions into them; for inference.
        norms: Whether ``convert`` takes norms and what stands behind them as well.
        compile_mode: As ``torch.compile`` calls it; of inductor.
        compile_backend: As ``torch.compile`` calls it.
        wrap: What is done to the converted model before it is compiled, as DDP does.
    """
    model = copy.deepcopy(network.model).to(weight_dtype or dtype)
    model = model.to(memory_format=torch.channels_last)
    conversion = None
    if mode.startswith("ours"):
        conversion = _convert(model, fold, norms)
    call = model if wrap is None else wrap(model)
    if mode.endswith("compile"):
        inductors = {"mode": compile_mode} if compile_backend == "inductor" else {}
        call = torch.compile(call, backend=compile_backend, **inductors)
    return Variant(_with_model(network, model, dtype), call, conversion)


def _convert(model: nn.Module, fold: bool, norms: bool) -> Any:
    from triton_ext import nn as ours

    # The table that convert would print.
    conversion = ours.survey(model, fold=fold, norms=norms)
    ours.convert(model, fallback="torch", report=False, fold=fold, norms=norms)
    return conversion
