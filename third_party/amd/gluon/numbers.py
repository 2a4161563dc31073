"""Numbers that helpers are given: refused by name, before arithmetic fails on them.

Helpers are called on the host and, with constants, inside of kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from triton.language import core
from triton.runtime.jit import constexpr_function

__all__ = ["constant_function", "opaque", "positive", "power_of_two", "powers_of_two"]

F = TypeVar("F", bound=Callable[..., Any])


def constant_function(function: F) -> F:
    """Lets a function be called on the host and, with constants, inside of a kernel.

    Triton reads its source for the kernel's cache key, and takes no plain function in it.
    """
    return cast(F, constexpr_function(function))


def opaque(function: F) -> F:
    """Lets a constant function call one whose source is none of the cache key's business."""
    function.__triton_builtin__ = True  # type: ignore[attr-defined]
    return function


@opaque
def positive(function: str, what: str, value: Any) -> int:
    """An integer of 1 or more.

    Raises:
        TypeError: It is no integer.
        ValueError: It is smaller.
    """
    value = core._unwrap_if_constexpr(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{function}: {what}: expected an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{function}: {what} is {value}, expected 1 or more")
    number: int = value
    return number


@opaque
def power_of_two(function: str, what: str, value: Any) -> int:
    """A power of two.

    Raises:
        TypeError: It is no integer.
        ValueError: It is no power of two.
    """
    number: int = positive(function, what, value)
    if number & (number - 1):
        raise ValueError(f"{function}: {what} is {number}, expected a power of two")
    return number


@opaque
def powers_of_two(function: str, what: str, values: Any, count: int | None = None) -> list[int]:
    """A list of powers of two.

    Raises:
        TypeError: It is no list, or holds something else.
        ValueError: It is empty or of another length, or a number is no power of two.
    """
    values = core._unwrap_if_constexpr(values)
    if not isinstance(values, (list, tuple, core.tuple)):
        raise TypeError(f"{function}: {what}: expected a list of integers, got {values!r}")
    if not values or (count is not None and len(values) != count):
        raise ValueError(
            f"{function}: {what} has {len(values)} numbers, expected {count or '1 or more'}"
        )
    return [power_of_two(function, f"{what}[{i}]", value) for i, value in enumerate(values)]
