"""Writes the facts that launches are checked against into Triton's descriptor metadata.

The compiled kernel keeps it, on disk too; ``backend/launch.py`` reads it at every launch.
"""

from __future__ import annotations

from typing import Any

from triton_ext.ir import Module, Operation, OpResult, Value
from triton_ext.markers import METADATA_KEY

from ..dialect.ttng import (
    Im2ColLoad,
    TmaLoad,
    descriptor_arguments,
    kernel_argument,
    pixels_per_cta,
)
from .marker_flow import marker_kind

__all__ = ["annotate_metadata"]


def annotate_metadata(module: Module, entries: list[Any]) -> list[Any]:
    """Adds to a kernel's descriptor metadata what a launch is checked against.

    Args:
        module: The lowered module.
        entries: Triton's metadata of that module: one entry per descriptor argument, in order.

    Returns:
        The entries; those of im2col descriptors have ``{"name": .., "rank": ..}`` under our key.
        All say whether they are im2col, and those that are of how many pixels a copy is, which
        hosts before 3.8 do not: what they say is of the tiled copy.
    """
    ranks = {}
    pixels = {}
    for op in module.walk():
        load = _im2col_load(op)
        argument = kernel_argument(load[0]) if load is not None else None
        if load is not None and argument is not None:
            ranks[argument] = load[1]
            tiled = TmaLoad.match(op)
            if tiled is not None:
                pixels[argument] = pixels_per_cta(tiled.result.type, module)
    annotated = []
    for argument, entry in zip(descriptor_arguments(module), entries, strict=True):
        entry = {**entry, "is_im2col": argument in ranks or entry.get("is_im2col", False)}
        if argument in ranks:
            own = {"name": argument.name.removeprefix("%"), "rank": ranks[argument]}
            entry[METADATA_KEY] = own
        if pixels.get(argument):
            entry["block_size"] = [pixels[argument], *entry["block_size"][1:]]
        annotated.append(entry)
    return annotated


def _im2col_load(op: Operation) -> tuple[Value, int] | None:
    """The descriptor of an im2col load and its rank; of a tiled one, if its indices are markers."""
    lowered = Im2ColLoad.match(op)
    if lowered is not None:
        return lowered.desc, lowered.rank
    load = TmaLoad.match(op)
    if load is None or not isinstance(load.coord[1], OpResult):
        return None
    channel = marker_kind(load.coord[1].owner)
    return (load.desc, channel.arity + 1) if channel is not None else None
