"""What the numbers of a configuration have to be, in the words of an error."""

from __future__ import annotations

from triton_ext.host import capabilities
from triton_ext.host.dots import INSTRUCTION_BITS, least_dot_depth

__all__ = ["depth_problems", "power_problems", "range_problems"]


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


def depth_problems(config: object, element_bytes: int, *names: str) -> list[str]:
    """Returns which fields are fewer columns of a product's operand than ``tl.dot`` takes.

    Args:
        config: Whose.
        element_bytes: Size of an element of the operands: 1, 2 or 4.
        names: Of the fields.
    """
    bits = 8 * element_bytes
    least = least_dot_depth(bits)
    found = []
    for name, value in _values(config, names):
        if value < least:
            found.append(f"{name} is {value}: expected at least {least} elements of {bits} bits")
            if bits == 32 and value >= INSTRUCTION_BITS // bits:
                # A newer Triton takes it.
                found[-1] += f"; {capabilities()['fp32-dots-of-8'].reason}"
    return found


def _values(config: object, names: tuple[str, ...]) -> list[tuple[str, int]]:
    return [(name, getattr(config, name)) for name in names]
