"""Checks of the numbers of a configuration, as refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from triton_ext.host import capabilities
from triton_ext.host.dots import INSTRUCTION_BITS, least_dot_depth

__all__ = ["depth_problems", "power_problems", "range_problems", "type_problems"]


def type_problems(config: Any, *, may_be_zero: Collection[str] = ()) -> list[str]:
    """Returns which fields that are annotated as int or bool hold something else, or too little.

    Ints are at least 1, those of ``may_be_zero`` at least 0.  The module of the dataclass postpones
    the evaluation of annotations.
    """
    found = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        least = 0 if field.name in may_be_zero else 1
        if field.type == "int" and (type(value) is not int or value < least):
            found.append(f"{field.name} is {value!r}: expected an int of at least {least}")
        elif field.type == "bool" and type(value) is not bool:
            found.append(f"{field.name} is {value!r}: expected True or False")
    return found


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

    Elements of the operands have ``element_bytes``: 1, 2 or 4.
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
