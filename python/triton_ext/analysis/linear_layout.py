"""Queries about linear layouts.

Re-exports :class:`LinearLayout`, which is part of ``ir`` because encodings are checked with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ..errors import VerifyError
from ..ir.encodings import DistributedEncoding, SharedEncoding, TensorMemory
from ..ir.linear_layout import LinearLayout, is_power_of_two, log2

__all__ = [
    "LinearLayout",
    "consecutive_run",
    "conversion",
    "elements_per_thread",
    "is_power_of_two",
    "layout_of",
    "log2",
    "register_to_shared",
]


def elements_per_thread(
    encoding: DistributedEncoding, shape: Sequence[int], *, broadcast: bool = True
) -> int:
    """Returns the number of registers of a tensor in one thread.

    Args:
        encoding: Encoding of the tensor.
        shape: Its shape.
        broadcast: Whether to count registers that repeat an element of the same thread.
    """
    layout = encoding.to_linear_layout(shape)
    if not broadcast:
        layout = layout.without_zero_bases("register")
    return layout.in_dim_size("register")


def conversion(
    source: DistributedEncoding, target: DistributedEncoding, shape: Sequence[int]
) -> LinearLayout:
    """Returns the map from ``target`` to ``source`` coordinates of the same element.

    A ``ttg.convert_layout`` implements this map; it moves nothing if the map is the identity.
    """
    return target.to_linear_layout(shape).invert_and_compose(source.to_linear_layout(shape))


def register_to_shared(
    source: DistributedEncoding,
    target: SharedEncoding,
    shape: Sequence[int],
    alloc_shape: Sequence[int] | None = None,
) -> LinearLayout:
    """Returns the map from registers, lanes, warps and blocks to offsets in a shared buffer.

    Args:
        source: Encoding of the tensor.
        target: Encoding of the buffer.
        shape: Shape of the tensor.
        alloc_shape: Shape of the allocation that the buffer is a view of.

    Returns:
        The map; its offsets are in elements, without padding.

    Raises:
        VerifyError: An encoding does not fit the shape, or the tensor exceeds the allocation.
    """
    rank = len(shape)
    inner = layout_of(source, tuple(shape))
    whole = tuple(alloc_shape or shape)[-rank:]
    if len(whole) != rank or any(map(int.__gt__, shape, whole)):
        raise VerifyError(
            f"a tensor of shape {list(shape)} does not fit into an allocation of {list(whole)}"
        )
    return inner.invert_and_compose(layout_of(target, whole))


@lru_cache(maxsize=512)
def layout_of(
    encoding: DistributedEncoding | SharedEncoding | TensorMemory, shape: tuple[int, ...]
) -> LinearLayout:
    """Returns the layout of an encoding, cached: building one takes a millisecond."""
    return encoding.to_linear_layout(shape)


def consecutive_run(layout: LinearLayout, in_dim: str = "register", out_dim: str = "offset") -> int:
    """Returns the largest n so that ``in_dim`` 0 .. n - 1 map to n consecutive ``out_dim``.

    The length is the same at every start: no other bit moves the low bits of ``out_dim``.

    Args:
        layout: The layout.
        in_dim: Input dimension, the registers of one thread.
        out_dim: Output dimension, the offset.
    """
    names = layout.out_dim_names
    at = names.index(out_dim)
    run = 1
    for bit, basis in enumerate(layout.in_bases(in_dim)):
        if basis != tuple(1 << bit if i == at else 0 for i in range(len(names))):
            break
        run *= 2
    others = [
        basis[at]
        for name, vectors in layout.bases
        for bit, basis in enumerate(vectors)
        if (name, bit) not in {(in_dim, b) for b in range(log2(run))}
    ]
    while run > 1 and any(x & (run - 1) for x in others):
        run //= 2
    return run
