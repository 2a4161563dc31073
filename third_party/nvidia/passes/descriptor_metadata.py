"""What a launch has to be checked against, written beside Triton's own descriptor metadata.

The compiled kernel keeps it, on disk too; ``backend/launch.py`` reads it at every launch.
"""

from __future__ import annotations

from typing import Any

from triton_ext.ir import Module
from triton_ext.markers import METADATA_KEY

from ..dialect.ttng import Im2ColLoad, descriptor_arguments, kernel_argument

__all__ = ["annotate_metadata"]


def annotate_metadata(module: Module, entries: list[Any]) -> list[Any]:
    """Adds to a kernel's descriptor metadata what a launch is checked against.

    Args:
        module: The lowered module.
        entries: Triton's metadata of that module: one entry per descriptor argument, in order.

    Returns:
        The entries; those of im2col descriptors have ``{"name": .., "rank": ..}`` under our key.
    """
    ranks = {}
    for op in module.walk():
        load = Im2ColLoad.match(op)
        argument = kernel_argument(load.desc) if load is not None else None
        if load is not None and argument is not None:
            ranks[argument] = load.rank
    annotated = []
    for argument, entry in zip(descriptor_arguments(module), entries, strict=True):
        if argument in ranks:
            own = {"name": argument.name.removeprefix("%"), "rank": ranks[argument]}
            entry = {**entry, METADATA_KEY: own}
        annotated.append(entry)
    return annotated
