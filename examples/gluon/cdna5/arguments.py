"""Checks of the launchers' arguments: arrays, by the argument's name, and the GPU.

A kernel uses the sizes it is given, so an array of another shape, type or order would be read out
of bounds, or give wrong results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from triton.runtime import driver
from triton_ext.errors import UnsupportedError

__all__ = ["GPUS", "HALVES", "INT32_MAX", "array_problems", "has_rank", "on_gpu", "same_type"]

#: The GPUs that have a tensor data mover.
GPUS = ("gfx1250", "gfx1251")

#: Elements of 16 bits.  numpy has no bf16: its arrays of uint16 may hold such numbers.
HALVES = ("float16", "bfloat16", "uint16")

INT32_MAX = (1 << 31) - 1


def on_gpu(kernel: Any) -> Any:
    """Returns the kernel itself, which Triton launches on the current GPU.

    Raises:
        UnsupportedError: There is none, or it has no tensor data mover.
    """
    needed = f"{kernel.__name__} needs an AMD GPU of {' or '.join(GPUS)}"
    instead = "launcher=xamd.emulated runs it over numpy arrays"
    try:
        target = driver.active.get_current_target()
    except RuntimeError as error:  # how Triton says that it finds none
        raise UnsupportedError(f"{needed}, and Triton finds no GPU; {instead}") from error
    if target.arch not in GPUS:
        found = f"{target.backend}:{target.arch}"
        raise UnsupportedError(f"{needed}, the current one is {found}; {instead}")
    return kernel


def same_type(array: Any) -> tuple[str, ...]:
    """Names of the types that arrays of one type with this one, of 16 bits, may have."""
    name = _dtype_of(array)
    return (name,) if name in HALVES else HALVES


def has_rank(name: str, array: Any, rank: int, problems: list[str]) -> bool:
    """Returns whether an array has a rank; adds a problem if not."""
    if not hasattr(array, "dtype") or not hasattr(array, "shape"):
        problems.append(f"{name} is a {type(array).__name__}: expected an array")
        return False
    if len(array.shape) != rank:
        problems.append(f"{name} is {list(array.shape)}: expected {rank} dimensions")
        return False
    return True


def array_problems(
    name: str, array: Any, sizes: Mapping[str, int], dtypes: Sequence[str]
) -> list[str]:
    """Returns the violations of an array operand; empty if there are none.

    Args:
        name: The argument.
        array: Its value.
        sizes: Size of each dimension, outermost first, by symbol.
        dtypes: Names of the legal types.
    """
    found: list[str] = []
    if not has_rank(name, array, len(sizes), found):
        return found
    shape = [int(size) for size in array.shape]
    if shape != list(sizes.values()):
        found.append(
            f"{name} is {shape}: expected [{', '.join(sizes)}], here {list(sizes.values())}"
        )
    if _dtype_of(array) not in dtypes:
        found.append(f"{name} is of {_dtype_of(array)}: expected {' or '.join(dtypes)}")
    if not _is_contiguous(array):
        found.append(f"{name} is not contiguous: expected rows that lie one behind the other")
    return found


def _dtype_of(array: Any) -> str:
    """The name of an array's type: ``float16`` for numpy's and torch's."""
    return str(array.dtype).removeprefix("torch.")


def _is_contiguous(array: Any) -> bool:
    flags = getattr(array, "flags", None)
    return bool(array.is_contiguous() if flags is None else flags.c_contiguous)
