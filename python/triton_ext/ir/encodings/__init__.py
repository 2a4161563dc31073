"""Encodings: how the elements of a tensor are laid out in registers or memory.

Each is a frozen dataclass with the parameters of the printed attribute, named like the fields of
Gluon's layout classes.  ``parse_attribute`` reads them, ``str`` prints them as Triton 3.9 does,
``verify`` checks what the host's verifier checks (and what some hosts only assert, which ends the
process), ``to_linear_layout(shape)`` returns the map from hardware to tensor coordinates.

Spellings of older hosts are kept: a parsed encoding prints its original text, a new or changed one
the present spelling unless a field says otherwise (``TensorMemoryEncoding.as_split``,
``AmdWmmaEncoding.as_warps``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..attribute_values import Attribute
from .base import DistributedEncoding, Encoding, SharedEncoding, TensorMemory
from .distributed import (
    BlockedEncoding,
    DotOperandEncoding,
    GenericLinearEncoding,
    LinearEncoding,
    SliceEncoding,
)
from .mma import AmdMfmaEncoding, AmdWmmaEncoding, NvidiaMmaEncoding
from .nvmma import NvmmaSharedEncoding
from .shared import (
    AmdRotatingSharedEncoding,
    PaddedSharedEncoding,
    PartitionedSharedEncoding,
    SharedLinearEncoding,
    SharedMemorySpace,
    SwizzledSharedEncoding,
)
from .tensor_memory import TensorMemoryEncoding, TensorMemoryScalesEncoding, TensorMemorySpace

if TYPE_CHECKING:
    from ..value_parser import ValueParser

__all__ = [
    "READERS",
    "AmdMfmaEncoding",
    "AmdRotatingSharedEncoding",
    "AmdWmmaEncoding",
    "BlockedEncoding",
    "DistributedEncoding",
    "DotOperandEncoding",
    "Encoding",
    "GenericLinearEncoding",
    "LinearEncoding",
    "NvidiaMmaEncoding",
    "NvmmaSharedEncoding",
    "PaddedSharedEncoding",
    "PartitionedSharedEncoding",
    "SharedEncoding",
    "SharedLinearEncoding",
    "SharedMemorySpace",
    "SliceEncoding",
    "SwizzledSharedEncoding",
    "TensorMemory",
    "TensorMemoryEncoding",
    "TensorMemoryScalesEncoding",
    "TensorMemorySpace",
]

_ENCODINGS: tuple[type[Encoding], ...] = (
    AmdMfmaEncoding,
    AmdRotatingSharedEncoding,
    AmdWmmaEncoding,
    BlockedEncoding,
    DotOperandEncoding,
    GenericLinearEncoding,
    LinearEncoding,
    NvidiaMmaEncoding,
    NvmmaSharedEncoding,
    PaddedSharedEncoding,
    PartitionedSharedEncoding,
    SharedLinearEncoding,
    SliceEncoding,
    SwizzledSharedEncoding,
    TensorMemoryEncoding,
    TensorMemoryScalesEncoding,
)


def _read_shared_space(parser: ValueParser, start: int) -> Attribute:
    return SharedMemorySpace()


def _read_tensor_space(parser: ValueParser, start: int) -> Attribute:
    return TensorMemorySpace()


#: Parsers of the body of each attribute, by its name without ``#``.
READERS: Mapping[str, Callable[[ValueParser, int], Attribute]] = {
    **{encoding.MNEMONIC: encoding.read for encoding in _ENCODINGS},
    "ttg.shared_memory": _read_shared_space,
    "ttng.tensor_memory": _read_tensor_space,
}
