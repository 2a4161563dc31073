"""What the numbers of a configuration have to be, in the words of an error."""

from __future__ import annotations

__all__ = ["power_problems", "range_problems"]


def power_problems(config: object, least: int, most: int, *names: str) -> list[str]:
    """Returns which fields are no powers of two from ``least`` to ``most``."""
    return [
        f"{name} is {value}: expected a power of two from {least} to {most}"
        for name, value in _values(config, names)
        if not least <= value <= most or value & (value - 1)
    ]


def range_problems(config: object, least: int, most: int, *names: str) -> list[str]:
    """Returns which fields are not from ``least`` to ``most``."""
    return [
        f"{name} is {value}: expected {least} to {most}"
        for name, value in _values(config, names)
        if not least <= value <= most
    ]


def _values(config: object, names: tuple[str, ...]) -> list[tuple[str, int]]:
    return [(name, getattr(config, name)) for name in names]
