"""Aliases as values: the attribute of ``#blocked``, and the alias of an encoding."""

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

# An alias of an attribute; a dialect's attribute has a dot after its first word.
_REFERENCE: Final = re.compile(r"#[A-Za-z_$][\w$-]*(?![\w$.-])", re.ASCII)


@lru_cache(maxsize=4096)
def _shared_attribute(text: str) -> Attribute:
    """Parses an attribute without aliases, cached across modules."""
    from .value_parser import parse_attribute_text

    return parse_attribute_text(text, None, "<alias>")


class AliasTable:
    """The aliases of a module, parsed on demand.

    Parsed types are cached, so one table per module parses each text once.

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
        """Returns the table itself, or a table of a mapping."""
        return aliases if isinstance(aliases, AliasTable) else cls(aliases)

    def attribute(self, name: str) -> Attribute | None:
        """Returns the attribute of ``#name``; ``None`` if it is undefined or refers to itself."""
        if name not in self._attributes:
            if name not in self._raw or name in self._open:
                return None
            self._attributes[name] = self._read(name)
        return self._attributes[name]

    def _read(self, name: str) -> Attribute:
        from .value_parser import parse_attribute_text

        text = self._raw[name]
        if _REFERENCE.search(text) is None:
            with suppress(ParseError):  # raised again below, at this alias
                return _shared_attribute(text)
        self._open.add(name)
        try:
            return parse_attribute_text(text, self, name)
        finally:
            self._open.discard(name)

    def type(self, text: str) -> Type:
        """Returns the type of a text, ``value.type`` for instance.

        Raises:
            ParseError: The text is not a type, or an alias is undefined.
        """
        known = self._types.get(text)
        if known is None:
            from .value_parser import parse_type_text

            known = self._types[text] = parse_type_text(text, self, text)
        return known

    def alias_text(self, name: str) -> str | None:
        """Returns the raw text of an alias, or ``None``."""
        return self._raw.get(name)

    def name_of(self, value: Printable) -> str | None:
        """Returns the first alias of a value, or ``None``."""
        if self._names[0] != len(self._raw):
            names: dict[Printable, str] = {}
            for name in self._raw:
                found = self._readable(name)
                if found is not None:
                    names.setdefault(found, name)
            self._names = (len(self._raw), names)
        return self._names[1].get(value)

    def _readable(self, name: str) -> Attribute | None:
        """Returns the attribute of an alias if it is readable and not a location."""
        if name[0] != "#" or self._raw[name].startswith("loc("):
            return None
        try:
            return self.attribute(name)
        except ParseError:
            return None
