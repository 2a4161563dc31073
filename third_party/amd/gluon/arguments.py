"""Checks of arguments of device functions, which the host would assert or abort on.

Each function takes the name of the device function and the name of the argument.
"""

from __future__ import annotations

from typing import Any, Final

from triton.language import core

__all__ = [
    "constant",
    "describe",
    "flag",
    "integer",
    "integers",
    "predicate",
    "refuse",
    "sequence",
    "wave_mask",
]

_INT32: Final = range(-(1 << 31), 1 << 31)
_PLAIN: Final = (bool, int, float, str, type(None))


def refuse(name: str, problems: list[str]) -> None:
    """Raises one error that lists all problems; does nothing if there are none.

    Raises:
        ValueError: There are problems.
    """
    if len(problems) == 1:
        raise ValueError(f"{name}: {problems[0]}")
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise ValueError(f"{name}: {len(problems)} problems:{lines}")


def describe(value: Any) -> str:
    """Returns how messages name a kernel value: a constant as written, others by type."""
    value = core._unwrap_if_constexpr(value)
    if isinstance(value, core.tensor):
        return f"a tensor of {value.dtype}" if value.type.is_block() else f"a scalar {value.dtype}"
    return repr(value) if isinstance(value, _PLAIN) else type(value).__name__


def sequence(name: str, what: str, values: Any) -> list[Any]:
    """Returns a list or tuple of a kernel as a list.

    Raises:
        TypeError: It is not a list or tuple.
    """
    values = core._unwrap_if_constexpr(values)
    if not isinstance(values, (list, tuple, core.tuple)):
        raise TypeError(f"{name}: {what}: expected a list, got {describe(values)}")
    return [core._unwrap_if_constexpr(value) for value in values]


def integers(name: str, what: str, values: Any, bits: int = 32) -> list[Any]:
    """Returns a list of integer scalars, constant or not, that a descriptor can hold.

    Raises:
        TypeError: It is not a list of integers.
        ValueError: A constant does not fit into ``bits`` bits.
    """
    found = sequence(name, what, values)
    for position, value in enumerate(found):
        _integer(name, f"{what}[{position}]", value, bits)
    return found


def integer(name: str, what: str, value: Any) -> None:
    """Checks that a value is an integer scalar of 32 bits.

    Raises:
        TypeError: It is not.
        ValueError: A constant does not fit.
    """
    _integer(name, what, core._unwrap_if_constexpr(value), 32)


def _integer(name: str, what: str, value: Any, bits: int) -> None:
    if isinstance(value, core.tensor):
        dtype = value.dtype
        fits = dtype.is_int() and dtype not in (core.int1, core.uint32)
        if value.type.is_block() or not fits or dtype.primitive_bitwidth > bits:
            raise TypeError(
                f"{name}: {what}: expected an integer scalar of {bits} bits, got {describe(value)}"
            )
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: {what}: expected an integer scalar, got {describe(value)}")
    if bits == 32 and value not in _INT32:
        raise ValueError(f"{name}: {what} is {value}, which does not fit into 32 bits")


def predicate(name: str, pred: Any) -> bool:
    """Checks a predicate and returns whether there is one.

    Raises:
        TypeError: It is not a scalar.
    """
    pred = core._unwrap_if_constexpr(pred)
    if pred is None:
        return False
    if isinstance(pred, core.tensor):
        scalar = not pred.type.is_block() and pred.dtype in (core.int1, core.int32)
    else:
        scalar = isinstance(pred, bool) or (isinstance(pred, int) and pred in (0, 1))
    if not scalar:
        raise TypeError(
            f"{name}: pred: expected a bool, or an int1 or int32 scalar, got {describe(pred)}"
        )
    return True


def constant(name: str, what: str, value: Any) -> int:
    """Returns a constant integer.

    Raises:
        TypeError: It is not one.
    """
    value = core._unwrap_if_constexpr(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: {what}: expected a constant integer, got {describe(value)}")
    number: int = value
    return number


def flag(name: str, what: str, value: Any) -> bool:
    """Returns a constant bool.

    Raises:
        TypeError: It is not one.
    """
    value = core._unwrap_if_constexpr(value)
    if not isinstance(value, bool):
        raise TypeError(f"{name}: {what}: expected a constant bool, got {describe(value)}")
    chosen: bool = value
    return chosen


def wave_mask(name: str, what: str, mask: Any, num_warps: int) -> int:
    """Returns a constant mask of waves.

    Raises:
        TypeError: It is not a constant integer.
        ValueError: It is empty, or selects waves outside of the workgroup.
    """
    waves = constant(name, what, mask)
    if not 0 < waves < 1 << num_warps:
        raise ValueError(
            f"{name}: {what} is {waves:#x}: expected one bit for each participating wave, of "
            f"{num_warps} waves"
        )
    return waves
