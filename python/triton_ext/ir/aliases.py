"""Aliases as values: what ``#blocked`` stands for, and which alias stands for an encoding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ..errors import ParseError

if TYPE_CHECKING:
    from .attribute_values import Attribute, Printable
    from .types import Type

__all__ = ["AliasTable"]

# An alias of an attribute; a dialect's attribute has a dot behind its first word.
_REFERENCE: Final = re.compile(r"#[A-Za-z_$][\w$-]*(?![\w$.-])", re.ASCII)


@lru_cache(maxsize=4096)
def _shared_attribute(text: str) -> Attribute:
    """An attribute that refers to no alias: the same few stand in most modules of a process."""
    from .value_parser import parse_attribute_text

    return parse_attribute_text(text, None, "<alias>")


class AliasTable:
    """The aliases of a module, parsed when they are first asked for.

    Types are kept once they were parsed, so a pass that makes one table for a module and asks it
    for every type parses each text once.

    Args:
        raw: Name with its sign to text: ``module.aliases``.  A view of a module's aliases stays
            current when the module gets new ones.
    """

    __slots__ = ("_attributes", "_names", "_open", "_raw", "_types")

    def __init__(self, raw: Mapping[str, str] | None = None) -> None:
        self._raw: Mapping[str, str] = raw if raw is not None else {}
        self._attributes: dict[str, Attribute] = {}
        self._types: dict[str, Type] = {}
        self._names: tuple[int, dict[Printable, str]] = (-1, {})
        self._open: set[str] = set()

    @classmethod
    def of(cls, aliases: AliasTable | Mapping[str, str] | None) -> AliasTable:
        """The table itself, or one for a mapping."""
        return aliases if isinstance(aliases, AliasTable) else cls(aliases)

    def attribute(self, name: str) -> Attribute | None:
        """What ``#name`` stands for; ``None`` where it is not defined, or by way of itself."""
        if name not in self._attributes:
            if name not in self._raw or name in self._open:
                return None
            self._attributes[name] = self._read(name)
        return self._attributes[name]

    def _read(self, name: str) -> Attribute:
        from .value_parser import parse_attribute_text

        text = self._raw[name]
        if _REFERENCE.search(text) is None:
            with suppress(ParseError):  # which is raised again below, at this alias
                return _shared_attribute(text)
        self._open.add(name)
        try:
            return parse_attribute_text(text, self, name)
        finally:
            self._open.discard(name)

    def type(self, text: str) -> Type:
        """The type that a text stands for, ``value.type`` for instance.

        Raises:
            ParseError: The text is no type, or an alias is not known.
        """
        known = self._types.get(text)
        if known is None:
            from .value_parser import parse_type_text

            known = self._types[text] = parse_type_text(text, self, text)
        return known

    def alias_text(self, name: str) -> str | None:
        """The raw text behind an alias, or ``None``."""
        return self._raw.get(name)

    def name_of(self, value: Printable) -> str | None:
        """The alias that stands for a value, or ``None``; the first of several."""
        if self._names[0] != len(self._raw):
            names: dict[Printable, str] = {}
            for name in self._raw:
                found = self._readable(name)
                if found is not None:
                    names.setdefault(found, name)
            self._names = (len(self._raw), names)
        return self._names[1].get(value)

    def _readable(self, name: str) -> Attribute | None:
        """What an attribute alias stands for, if it is no location and its text can be read."""
        if name[0] != "#" or self._raw[name].startswith("loc("):
            return None
        try:
            return self.attribute(name)
        except ParseError:
            return None
