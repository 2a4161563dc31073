"""Checks of numeric arguments of helper functions.

The helpers run on the host and, with constants, inside kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from triton.language import core
from triton.runtime.jit import constexpr_function

__all__ = ["constant_function", "opaque", "positive", "power_of_two", "powers_of_two"]

F = TypeVar("F", bound=Callable[..., Any])


def constant_function(function: F) -> F:
    """Decorates a function so that it can be called on the host and inside kernels.

    Triton hashes its source for the kernel's cache key, and accepts no plain function in it.
    """
    return cast(F, constexpr_function(function))


def opaque(function: F) -> F:
    """Decorates a function that a constant function calls; its source stays out of cache keys."""
    function.__triton_builtin__ = True  # type: ignore[attr-defined]
    return function


@opaque
def positive(function: str, what: str, value: Any) -> int:
    """Returns an integer of 1 or more.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is less than 1.
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
    """Returns a power of two.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is not a power of two.
    """
    number: int = positive(function, what, value)
    if number & (number - 1):
        raise ValueError(f"{function}: {what} is {number}, expected a power of two")
    return number


@opaque
def powers_of_two(function: str, what: str, values: Any, count: int | None = None) -> list[int]:
    """Returns a list of powers of two.

    Raises:
        TypeError: It is not a list of integers.
        ValueError: Its length is wrong, or a number is not a power of two.
    """
    values = core._unwrap_if_constexpr(values)
    if not isinstance(values, (list, tuple, core.tuple)):
        raise TypeError(f"{function}: {what}: expected a list of integers, got {values!r}")
    if not values or (count is not None and len(values) != count):
        raise ValueError(
            f"{function}: {what} has {len(values)} numbers, expected {count or '1 or more'}"
        )
    return [power_of_two(function, f"{what}[{i}]", value) for i, value in enumerate(values)]
