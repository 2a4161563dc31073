"""Records the convolutions of networks over meta tensors: no weights, no GPU, no memory."""

from __future__ import annotations

import importlib.metadata
import pathlib
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import complain, emit
from benchmarks.zoo.layers import Geometry, Record, write_zoo

__all__ = ["collect", "convolutions_of"]

LIBRARIES = (
    "torch", "torchvision", "timm", "diffusers", "monai", "transformers",
    "segmentation_models_pytorch",
)  # fmt: skip


def convolutions_of(model: Any, inputs: Sequence[Any]) -> Counter[Geometry]:
    """Returns how often a call of a model computes every convolution.

    Args:
        model: A module on the meta device, of one image.
        inputs: Its arguments.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found: Counter[Geometry] = Counter()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.convolution.default:
                found[Geometry.of_call(*args)] += 1
            return func(*args, **(kwargs or {}))

    with Recorder(), torch.no_grad():
        model.eval()(*inputs)
    return found


def _record(network: Any) -> Counter[Geometry]:
    """Returns the convolutions of a network; see :func:`convolutions_of`."""
    import torch

    try:
        with torch.device("meta"):
            model, inputs = network.entry.make(1)
            return convolutions_of(model, inputs)
    except (NotImplementedError, RuntimeError):
        # Some constructors read values, and some models make tensors on their inputs' device.
        model, inputs = network.entry.make(1)
        try:
            return convolutions_of(model.to("meta"), [x.to("meta") for x in inputs])
        except RuntimeError:  # the model reads values
            return convolutions_of(*network.entry.make(1))


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def collect(out: pathlib.Path, names: Sequence[str] = ()) -> int:
    """Writes the layers of all networks; returns how many networks failed.

    Args:
        out: The file; not written where a name is unknown.
        names: Networks to record; all by default.
    """
    from benchmarks.zoo.networks import networks

    found = networks()
    if unknown := [name for name in names if name not in found]:
        complain(f"no such network: {', '.join(unknown)}")
        return len(unknown)
    records: list[Record] = []
    failures = 0
    for name, network in found.items():
        if names and name not in names:
            continue
        begin = time.perf_counter()
        try:
            counts = _record(network)
        except Exception as error:  # the others are still worth recording
            failures += 1
            text = (str(error).splitlines() or [""])[0][:160]
            emit(f"{name:<40} FAILED: {type(error).__name__}: {text}")
            continue
        emit(
            f"{name:<40} {len(counts):>4} distinct of {sum(counts.values()):>4} convolutions, "
            f"{time.perf_counter() - begin:.1f} s"
        )
        records.append(
            Record(
                name=name,
                library=network.entry.library,
                inference=network.inference,
                training=network.training,
                dtypes=network.dtypes,
                format=network.format,
                counts=counts,
            )
        )
    write_zoo(out, _versions(), records)
    distinct = len({geometry for record in records for geometry in record.counts})
    emit(f"{len(records)} networks, {distinct} convolutions of one image each; written to {out}")
    return failures
