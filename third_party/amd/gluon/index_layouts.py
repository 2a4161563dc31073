"""Host-side checks of the layout of row indices of a gather or scatter."""

from __future__ import annotations

from typing import Any

from .checks import row_index_problems

__all__ = ["index_layout_problems"]

Bases = list[list[int]]


def index_layout_problems(
    layout: Any, rows: int, num_warps: int, index_bits: int = 32, threads_per_warp: int = 32
) -> list[str]:
    """Returns the violations of a row index layout; empty if it is legal.

    Args:
        layout: A Gluon layout: blocked, linear, or a slice of one of these.
        rows: Number of row indices.
        num_warps: Waves of the workgroup.
        index_bits: Width of a row index, 16 or 32.
        threads_per_warp: Lanes of a wave.
    """
    if rows < 1 or rows & (rows - 1):
        return [f"{rows} row indices: expected a power of two"]
    if index_bits not in (16, 32):
        return [f"row indices of {index_bits} bits, expected 16 or 32"]
    found, shape, layers = [], [rows], layout
    dims = []
    while type(layers).__name__ == "SliceLayout":
        dims.append(layers.dim)
        layers = layers.parent
    for dim in dims:
        shape.insert(dim, 1)
    kind = type(layers).__name__
    if kind == "BlockedLayout":
        found = _blocked_problems(layers, len(shape), num_warps, threads_per_warp)
        if found:
            return found
        registers, lanes = _blocked_bases(layers, shape)
    elif kind == "DistributedLinearLayout":
        if list(layers.shape) != shape:
            return [f"the layout has shape {list(layers.shape)}, expected {shape}"]
        registers, lanes = list(layers.reg_bases), list(layers.lane_bases)
    else:
        return [f"expected a blocked or linear layout, or a slice of one, got {kind}"]
    for dim in reversed(dims):
        registers, lanes = ([[*b[:dim], *b[dim + 1 :]] for b in of] for of in (registers, lanes))
    return row_index_problems([rows], f"int{index_bits}", rows, lanes, registers)


def _blocked_problems(layout: Any, rank: int, num_warps: int, lanes: int) -> list[str]:
    found = []
    parts = {
        name: list(getattr(layout, name))
        for name in ("size_per_thread", "threads_per_warp", "warps_per_cta")
    }
    for name, numbers in parts.items():
        if len(numbers) != rank:
            found.append(f"{name} is {numbers}, expected {rank} numbers")
        elif any(n < 1 or n & (n - 1) for n in numbers):
            found.append(f"{name} is {numbers}, expected powers of two")
    if sorted(layout.order) != list(range(rank)):
        found.append(f"order is {list(layout.order)}, expected the dimensions 0 to {rank - 1}")
    for name, count in (("threads_per_warp", lanes), ("warps_per_cta", num_warps)):
        product = 1
        for number in parts[name]:
            product *= number
        if not found and product != count:
            found.append(f"{name} is {parts[name]}, {product} in all: the workgroup has {count}")
    return found


def _blocked_bases(layout: Any, shape: list[int]) -> tuple[Bases, Bases]:
    """Returns the register and lane bases, as the compiler lays them out.

    Along a dimension a thread's registers come first, then lanes, then waves.  Bases that exceed
    the dimension are broadcast; elements that are left over go to further registers.
    """
    reached = [1] * len(shape)
    parts: list[Bases] = []
    for numbers in (layout.size_per_thread, layout.threads_per_warp, layout.warps_per_cta):
        bases: Bases = []
        for dim in layout.order:
            for _ in range(numbers[dim].bit_length() - 1):
                step = reached[dim] if reached[dim] < shape[dim] else 0
                bases.append([step if d == dim else 0 for d in range(len(shape))])
                reached[dim] *= 2
        parts.append(bases)
    registers, lanes, _ = parts
    for dim in layout.order:
        while reached[dim] < shape[dim]:
            registers.append([reached[dim] if d == dim else 0 for d in range(len(shape))])
            reached[dim] *= 2
    return registers, lanes
