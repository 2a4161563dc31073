"""Records the convolutions of networks over meta tensors: no weights, no GPU, no memory."""

from __future__ import annotations

import importlib.metadata
import pathlib
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import complain, emit
from benchmarks.zoo.layers import ZOO, Geometry, Record, write_zoo

__all__ = ["collect", "convolutions_of"]


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


def collect(out: pathlib.Path, names: Sequence[str] = (), partial: bool = False) -> int:
    """Writes the layers of networks; returns 1 where one failed, 2 where nothing is recorded.

    Args:
        out: The file; not written where a name is unknown, a library is missing, or a network
            fails.
        names: Networks to record; all by default.
        partial: Whether the file is written without the networks that fail or whose library is
            missing.
    """
    from examples.models.library import networks

    found = networks()
    if names and out == ZOO:
        complain(f"{ZOO.name} has all networks: give --out for the layers of some")
        return 2
    if unknown := [name for name in names if name not in found]:
        complain(f"no such network: {', '.join(unknown)}")
        return 2
    found = {name: found[name] for name in names or found}
    versions: dict[str, str] = {}
    missing: list[str] = []
    for library in dict.fromkeys(("torch", *(each.entry.library for each in found.values()))):
        try:
            versions[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            missing.append(library)
    if missing and not partial:
        complain(f"not installed: {', '.join(missing)}; --partial leaves their networks out")
        return 2
    records: list[Record] = []
    failed: list[str] = []
    for name, network in found.items():
        if network.entry.library in missing:
            continue
        begin = time.perf_counter()
        try:
            counts = _record(network)
        except Exception as error:  # whatever one does, the others are told, too
            failed.append(name)
            text = (str(error).splitlines() or [""])[0][:160]
            emit(f"{name:<40} FAILED: {type(error).__name__}: {text}")
            continue
        emit(
            f"{name:<40} {len(counts):>4} distinct of {sum(counts.values()):>4} convolutions, "
            f"{time.perf_counter() - begin:.1f} s"
        )
        common = ("inference", "training", "dtypes", "format")
        fields = {each: getattr(network, each) for each in common}
        library = network.entry.library
        records.append(Record(name=name, library=library, counts=counts, **fields))
    if failed and not partial:
        complain(f"failed: {', '.join(failed)}; --partial writes {out} without them")
        return 1
    write_zoo(out, versions, records)
    distinct = len({geometry for record in records for geometry in record.counts})
    emit(f"{len(records)} networks, {distinct} convolutions of one image each; written to {out}")
    return int(bool(failed))
