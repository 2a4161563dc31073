"""Adds the padding of partitioned encodings to the launcher's descriptor metadata.

A descriptor made at launch holds the padding of its block in LDS; Triton's launcher takes it from
the metadata of the compiled kernel.  Triton 3.8 and 3.9 record it for padded encodings but not for
padded pieces of a partitioned one: TDM would write without padding, and the kernel would read with
it.
"""

from __future__ import annotations

from typing import Any

from triton_ext.ir import Module
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.encodings import PaddedSharedEncoding, PartitionedSharedEncoding
from triton_ext.ir.types import TensorDescType

__all__ = ["annotate_metadata"]

_KEY = "interval_padding_pairs"


def annotate_metadata(module: Module, entries: list[Any]) -> list[Any]:
    """Adds the padding of the pieces to a kernel's descriptor metadata.

    Args:
        module: The compiled module.
        entries: Triton's metadata: one entry per descriptor argument of the kernel, in order.

    Returns:
        The entries, with padding for partitioned and padded encodings.
    """
    found = []
    for encoding, entry in zip(_encodings(module), entries, strict=True):
        inner = getattr(encoding, "partition_layout", None)
        if isinstance(encoding, PartitionedSharedEncoding) and isinstance(
            inner, PaddedSharedEncoding
        ):
            entry = {**entry, _KEY: [list(pair) for pair in inner.interval_padding_pairs]}
        found.append(entry)
    return found


def _encodings(module: Module) -> list[object]:
    """Returns the encodings of the kernel's descriptor arguments, in order."""
    types = AliasTable(module.aliases)
    for op in module.walk():
        if op.name == "tt.func" and " private " not in op.text.partition("@")[0]:
            read = [types.type(argument.type) for argument in op.regions[0].blocks[0].args]
            return [each.shared_layout for each in read if isinstance(each, TensorDescType)]
    return []
