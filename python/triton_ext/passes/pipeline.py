"""The text of a pass pipeline, as upstream's ``--pass-pipeline`` takes it.

::

    pipeline ::= element (',' element)*
    element  ::= anchor '(' pipeline? ')' | name options?
    options  ::= '{' (option (blank option)*)? '}'
    option   ::= key ('=' value)?
    value    ::= word | "'" anything "'" | '"' anything '"' | '{' anything '}'

``builtin.module(a{x=1 y=true},b,tt.func(c))`` is the pipeline of a module: ``a`` and ``b`` run on
it, ``c`` runs on each of its functions.  Without an anchor around all of it, it is a module's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NoReturn

from triton_ext.errors import PipelineError

__all__ = ["MODULE", "PassSpec", "Pipeline", "TextPlace", "is_pass_name", "parse_pipeline"]

MODULE = "builtin.module"
_MAX_NESTING = 32
_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_KEY = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_BLANKS = re.compile(r"\s*")
_WORD = re.compile(r"[^\s{}'\"]+")
_PLAIN_VALUE = re.compile(r"[^\s{}'\"()]*\Z")


@dataclass(frozen=True, slots=True)
class TextPlace:
    """Where something stands in the text of a pipeline.

    Attributes:
        text: The whole text.
        offset: Offset of the first character.
    """

    text: str
    offset: int

    def fail(self, message: str, *notes: str) -> NoReturn:
        """Raises a :class:`~triton_ext.errors.PipelineError` that points here."""
        start = self.text.rfind("\n", 0, self.offset) + 1
        line = self.text[start:].partition("\n")[0]
        raise PipelineError(
            message,
            filename="<pipeline>",
            line=self.text.count("\n", 0, start) + 1,
            column=self.offset - start + 1,
            source_line=line,
            notes=notes,
        )


@dataclass(frozen=True, slots=True)
class PassSpec:
    """A pass as a pipeline names it.

    Attributes:
        name: Its name.
        options: Option name to text of the value; ``true`` where none was given.
        place: Where the name stands in the text, if it was read from one.
        option_places: Where each option stands.

    Raises:
        PipelineError: A value cannot be written, because no kind of quote would end where it does.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    place: TextPlace | None = field(default=None, compare=False, repr=False)
    option_places: Mapping[str, TextPlace] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        for key, value in self.options.items():
            if "'" in value and '"' in value and not _is_balanced(value):
                raise PipelineError(
                    f"option '{key}' of '{self.name}' cannot be written: its value has both "
                    f"quotes and braces that are not in pairs, {value!r}"
                )

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.options.items())))

    def __str__(self) -> str:
        if not self.options:
            return self.name
        pairs = " ".join(f"{key}={_quoted(value)}" for key, value in self.options.items())
        return f"{self.name}{{{pairs}}}"

    def fail(self, message: str, *notes: str) -> NoReturn:
        """Raises an error at the name of the pass."""
        if self.place is not None:
            self.place.fail(message, *notes)
        TextPlace(str(self), 0).fail(message, *notes)

    def fail_option(self, key: str, message: str, *notes: str) -> NoReturn:
        """Raises an error at an option."""
        place = self.option_places.get(key)
        if place is not None:
            place.fail(message, *notes)
        text = str(self)
        TextPlace(text, max(text.find(f"{key}=", len(self.name)), 0)).fail(message, *notes)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Passes that run one after another on every operation of one name.

    Attributes:
        anchor: The name, ``builtin.module`` or ``tt.func``; ``any`` for whatever is there.
        items: Passes and nested pipelines in order.
        place: Where the anchor stands in the text, if it was read from one.
    """

    anchor: str
    items: tuple[PassSpec | Pipeline, ...] = ()
    place: TextPlace | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.anchor}({','.join(str(item) for item in self.items)})"

    def specs(self) -> Iterator[PassSpec]:
        """Every pass, those of nested pipelines included, in the order of the text."""
        for item in self.items:
            if isinstance(item, PassSpec):
                yield item
            else:
                yield from item.specs()


def is_pass_name(text: str) -> bool:
    """Returns whether a text is the name of a pass in the grammar of pipelines."""
    return _NAME.fullmatch(text) is not None


def parse_pipeline(text: str) -> Pipeline:
    """``pipeline`` as in the module's docstring.

    Args:
        text: The text.

    Returns:
        The pipeline of a module.  ``str`` of it parses to an equal one.

    Raises:
        PipelineError: The text is malformed; the error has the place.
    """
    reader = _Reader(text)
    items = reader.parse_elements(0)
    reader.skip_blanks()
    if reader.position < len(text):
        reader.fail(f"expected ',' or the end, found '{text[reader.position]}'")
    if len(items) == 1 and isinstance(items[0], Pipeline) and items[0].anchor in (MODULE, "any"):
        return items[0]
    return Pipeline(MODULE, items)


def _quoted(value: str) -> str:
    if value and _PLAIN_VALUE.match(value) is not None:
        return value
    if "'" not in value:
        return f"'{value}'"
    return f'"{value}"' if '"' not in value else f"{{{value}}}"


def _is_balanced(value: str) -> bool:
    """Returns whether every brace of a value is closed in it."""
    depth = 0
    for character in value:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


class _Reader:
    """Reads one text; a method for each production."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def fail(self, message: str, *notes: str, offset: int | None = None) -> NoReturn:
        TextPlace(self.text, self.position if offset is None else offset).fail(message, *notes)

    def skip_blanks(self) -> None:
        match = _BLANKS.match(self.text, self.position)
        assert match is not None  # matches the empty text, too
        self.position = match.end()

    def found(self) -> str:
        """Returns the character at the position, for an error."""
        if self.position >= len(self.text):
            return "the end"
        return f"'{self.text[self.position]}'"

    def accept(self, character: str) -> bool:
        """Skips a character if it comes next; returns whether it does."""
        self.skip_blanks()
        if not self.text.startswith(character, self.position):
            return False
        self.position += len(character)
        return True

    def parse_elements(self, depth: int) -> tuple[PassSpec | Pipeline, ...]:
        """``pipeline ::= element (',' element)*``; empty in front of ``)`` or the end."""
        self.skip_blanks()
        if self.position == len(self.text) or self.text[self.position] == ")":
            return ()
        items = [self.parse_element(depth)]
        while self.accept(","):
            items.append(self.parse_element(depth))
        return tuple(items)

    def parse_element(self, depth: int) -> PassSpec | Pipeline:
        """``element ::= anchor '(' pipeline? ')' | name options?``."""
        self.skip_blanks()
        start = self.position
        match = _NAME.match(self.text, start)
        if match is None:
            self.fail(f"expected the name of a pass, found {self.found()}")
        self.position = match.end()
        place = TextPlace(self.text, start)
        if self.accept("("):
            opener = self.position - 1
            if depth == _MAX_NESTING:
                self.fail(f"pipelines are nested more than {_MAX_NESTING} deep", offset=opener)
            items = self.parse_elements(depth + 1)
            if not self.accept(")"):
                line = f"to match the '(' behind '{match[0]}'"
                self.fail(f"expected ',' or ')', found {self.found()}", line)
            return Pipeline(match[0], items, place)
        options, places = self.parse_optional_options()
        return PassSpec(match[0], options, place, places)

    def parse_optional_options(self) -> tuple[dict[str, str], dict[str, TextPlace]]:
        """``options ::= '{' (option (blank option)*)? '}'``."""
        options: dict[str, str] = {}
        places: dict[str, TextPlace] = {}
        if not self.accept("{"):
            return options, places
        opener = self.position - 1
        while not self.accept("}"):
            start = self.position
            match = _KEY.match(self.text, start)
            if match is None:
                if start == len(self.text):
                    self.fail("expected '}' to match this '{', found the end", offset=opener)
                self.fail(f"expected the name of an option or '}}', found {self.found()}")
            key = match[0]
            if key in options:
                self.fail(f"option '{key}' is given twice")
            self.position = match.end()
            value = "true"
            if self.text.startswith("=", self.position):
                self.position += 1
                value = self.parse_value(key)
            options[key] = value
            places[key] = TextPlace(self.text, start)
        return options, places

    def parse_value(self, key: str) -> str:
        """``value ::= word | "'" anything "'" | '"' anything '"' | '{' anything '}'``."""
        text, start = self.text, self.position
        opener = text[start : start + 1]
        if opener in ("'", '"'):
            end = text.find(opener, start + 1)
            if end < 0:
                self.fail(f"expected {opener} at the end of the value of '{key}', found the end")
            self.position = end + 1
            return text[start + 1 : end]
        if opener == "{":
            depth = 0
            for offset in range(start, len(text)):
                depth += (text[offset] == "{") - (text[offset] == "}")
                if depth == 0:
                    self.position = offset + 1
                    return text[start + 1 : offset]
            self.fail("expected '}' to match this '{', found the end")
        match = _WORD.match(text, start)
        if match is None:
            self.fail(f"expected a value behind '{key}=', found {self.found()}")
        self.position = match.end()
        return match[0]
