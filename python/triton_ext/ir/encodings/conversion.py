"""Building blocks of ``to_linear_layout``.

Inside a conversion the output dimensions are ordered by how fast they vary, because a product of
layouts puts its right factor above its left one and the fitting functions fill dimensions in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..linear_layout import LinearLayout
from .base import Bases, Ints

__all__ = [
    "broadcast_nd",
    "cga_linear_layout",
    "cga_units",
    "combine_cta_and_cga",
    "dim_names",
    "fit_above",
    "fit_below",
    "identity_nd",
    "matrix_order",
    "operand_order",
    "shape_per_cta",
]


def dim_names(rank: int) -> list[str]:
    """``dim0``, ``dim1``, ..."""
    return [f"dim{i}" for i in range(rank)]


def identity_nd(in_dim: str, shape: Sequence[int], order: Sequence[int]) -> LinearLayout:
    """Enumerates a shape, the dimension ``order[0]`` fastest."""
    return broadcast_nd(in_dim, shape, order, None)


def broadcast_nd(
    in_dim: str, shape: Sequence[int], order: Sequence[int], along: int | None
) -> LinearLayout:
    """Enumerates a shape without moving along one dimension."""
    layout = LinearLayout(((in_dim, ()),), ())
    for dim in order:
        make = LinearLayout.zeros_1d if dim == along else LinearLayout.identity_1d
        layout = layout * make(shape[dim], in_dim, f"dim{dim}")
    return layout


def matrix_order(rank: int, *, row_major: bool = True) -> list[int]:
    """Dimensions from fast to slow: columns, rows, batches; or rows first."""
    order = list(range(rank - 1, -1, -1))
    if not row_major and rank > 1:
        order[0], order[1] = order[1], order[0]
    return order


def operand_order(operand_index: int, rank: int) -> list[int]:
    """Returns dimensions of a dot operand from fast to slow, the contracted one first."""
    return matrix_order(rank, row_major=operand_index == 0)


def fit_above(layout: LinearLayout, shape: Mapping[str, int]) -> LinearLayout:
    """Repeats a layout along its first input dimension until it covers a shape."""
    in_dim = layout.in_dim_names[0]
    for name, size in layout.out_dims:
        if size < shape[name]:
            layout = layout * LinearLayout.identity_1d(shape[name] // size, in_dim, name)
    return layout


def fit_below(
    layout: LinearLayout, shape: Mapping[str, int], *, drop_registers: bool = False
) -> LinearLayout:
    """Zeroes the bits that would leave a shape.

    Per output dimension, the bits with the largest steps are zeroed first.

    Args:
        layout: The layout.
        shape: Output dimension to its size.
        drop_registers: Whether to remove register bits that were zeroed.
    """
    bases = {name: [list(basis) for basis in vectors] for name, vectors in layout.bases}
    dropped: set[tuple[str, int]] = set()
    for out, name in enumerate(layout.out_dim_names):
        steps = [
            (basis[out], in_dim, bit)
            for in_dim, vectors in bases.items()
            for bit, basis in enumerate(vectors)
            if basis[out]
        ]
        steps.sort(key=lambda step: -step[0])
        for step, in_dim, bit in steps:
            if step < shape[name]:
                break
            bases[in_dim][bit][out] = 0
            if drop_registers and in_dim == "register":
                dropped.add((in_dim, bit))
    return LinearLayout(
        tuple(
            (
                name,
                tuple(
                    tuple(basis)
                    for bit, basis in enumerate(vectors)
                    if any(basis) or (name, bit) not in dropped
                ),
            )
            for name, vectors in bases.items()
        ),
        tuple((name, min(size, shape[name])) for name, size in layout.out_dims),
    )


def cga_linear_layout(bases: Bases, rank: int) -> LinearLayout:
    """Returns the layout of the CTAs of a cluster; one CTA if there are no bases."""
    return LinearLayout.of({"block": bases}, dim_names(rank))


def cga_units(bases: Bases) -> Bases:
    """Converts steps of CTAs from elements to units of one CTA's share: 1, 2, 4, ...

    With 2 CTAs over 8 rows, ``[[4, 0]]`` becomes ``[[1, 0]]``.
    """
    places = [sorted({step for step in column if step}) for column in zip(*bases, strict=True)]
    return tuple(
        tuple(1 << places[dim].index(step) if step else 0 for dim, step in enumerate(basis))
        for basis in bases
    )


def shape_per_cta(bases: Bases, shape: Sequence[int]) -> Ints:
    """Returns the shape of one CTA's share."""
    split = [size for _, size in cga_linear_layout(bases, len(shape)).out_dims]
    # A buffer without elements has no share.
    return tuple(size // max(1, min(size, parts)) for size, parts in zip(shape, split, strict=True))


def combine_cta_and_cga(cta: LinearLayout, bases: Bases, shape: Sequence[int]) -> LinearLayout:
    """Fits the layout of one CTA to its share of a shape and repeats it over the CTAs."""
    names = dim_names(len(shape))
    sizes = dict(zip(names, shape, strict=True))
    cga = fit_below(cga_linear_layout(bases, len(shape)), sizes)
    cga = cga.transpose_outs(cta.out_dim_names)
    share = {name: max(1, sizes[name] // size) for name, size in cga.out_dims}
    fitted = fit_below(fit_above(cta, share), share)
    return (fitted * cga).transpose_outs(names)
