"""Configurations as JSON, each under the name of its kind.

A configuration is a frozen dataclass of numbers, truth values, strings, and others like it.  A
direction may have several kinds, one per family; the kind says which family computes a case.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from triton_ext.ops.core import registry

__all__ = ["KindError", "decode", "encode", "kind_of"]


class KindError(ValueError):
    """What a file says of a configuration makes none."""


def _class_of(kind: str) -> Any:
    types_by_kind = registry.config_types()
    if kind not in types_by_kind:
        raise KindError(f"kind {kind!r}: expected one of {', '.join(types_by_kind)}")
    return types_by_kind[kind]


def kind_of(config: object) -> str:
    """Returns the name of a configuration's kind.

    Raises:
        KindError: It is no family's.
    """
    kind = registry.kind_of(config)
    if kind is None:
        raise KindError(
            f"{type(config).__qualname__} has no kind: no family has such configurations"
        )
    return kind


def encode(config: Any) -> dict[str, Any]:
    """Returns the fields of a configuration, ready for JSON.

    A configuration in a field that may hold any of them is with its kind.  A field whose metadata
    names a value to ``omit`` is left out at that: it is newer than files that know all others.
    """
    annotations = typing.get_type_hints(type(config))
    found = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if "omit" in field.metadata and value == field.metadata["omit"]:
            continue
        if annotations[field.name] is Any:
            value = {"kind": kind_of(value), "config": encode(value)}
        found[field.name] = encode(value) if is_dataclass(value) else value
    return found


def decode(kind: str, values: object) -> Any:
    """Returns the configuration of a kind that has these fields.

    Raises:
        KindError: There is no such kind, or a field is missing, unknown, of another type, or has
            a value without a meaning.
    """
    return _decode(_class_of(kind), values, kind)


def _decode(cls: Any, values: object, where: str) -> Any:
    if not isinstance(values, Mapping):
        raise KindError(f"{where}: expected fields, found {values!r}")
    annotations = typing.get_type_hints(cls)
    known = [field.name for field in fields(cls)]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise KindError(f"{where}: unknown field {unknown[0]!r}")
    arguments = {
        name: _value(annotations[name], values[name], f"{where}.{name}")
        for name in known
        if name in values
    }
    for field in fields(cls):
        value = arguments.get(field.name)
        if type(value) is int and value == 0 != field.default:
            raise KindError(f"{where}.{field.name}: 0 is out of range")
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        raise KindError(f"{where}: {error}") from error


def _value(annotation: Any, value: object, where: str) -> Any:
    """Returns a field's value, as its annotation wants it."""
    if annotation is Any:
        if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str):
            raise KindError(f"{where}: expected a configuration and its kind, found {value!r}")
        return decode(value["kind"], value.get("config"))
    for wanted in _alternatives(annotation):
        if is_dataclass(wanted) and isinstance(value, Mapping):
            return _decode(wanted, value, where)
        if wanted is int and type(value) is int:
            # No size and no count of a configuration is as large.
            if not 0 <= value <= 1 << 16:
                raise KindError(f"{where}: {value} is out of range")
            return value
        if wanted in (bool, str, type(None)) and type(value) is wanted:
            return value
        if typing.get_origin(wanted) is typing.Literal and value in typing.get_args(wanted):
            return value
    raise KindError(f"{where}: expected {annotation}, found {value!r}")


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)
