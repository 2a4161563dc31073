"""Options of passes: from the text of a pipeline to the fields of a pass, and back.

The items of a list stand between commas.  One that is empty, has a comma, starts with a quote or is
the word ``none`` is quoted, ``'a,b'``, with a quote in it doubled.  Where ``None`` is allowed it is
the word ``none``, and a text that is this word or starts with a quote is quoted in the same way.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from triton_ext.errors import PipelineError
from triton_ext.passes.base import Pass
from triton_ext.passes.pipeline import PassSpec

__all__ = ["Option", "near", "options_of", "spec_of", "unknown_options", "with_options"]

_WORDS = {"true": True, "1": True, "false": False, "0": False}
_NONE = "none"
_QUOTES = ("'", '"')
# Up to the next comma, which a quoted item may have inside.
_ITEM = re.compile(r"""(?:'(?:[^']|'')*'|"(?:[^"]|"")*"|(?!['"])[^,]*)(?=,|\Z)""")


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a pass.

    Attributes:
        name: As spelled in a pipeline, ``num-stages``.
        field: The pass's field, ``num_stages``.
        type: Annotation of the field, resolved.
        default: What the field is without the option; ``dataclasses.MISSING`` for none.
        help: One line, from the field's ``help`` metadata.
    """

    name: str
    field: str
    type: Any
    default: Any
    help: str = ""

    @property
    def expects(self) -> str:
        """The legal values, for errors."""
        return _expects(self.type)


def options_of(pass_type: type[Pass]) -> tuple[Option, ...]:
    """The options of a pass in the order of its fields.

    Raises:
        PipelineError: A field has a type that no option can have.
    """
    name = f"'{getattr(pass_type, 'name', pass_type.__name__)}'"
    try:
        hints = typing.get_type_hints(pass_type)
    except NameError as error:
        raise PipelineError(f"the options of pass {name} have no known types: {error}") from error
    found = []
    for field in dataclasses.fields(pass_type):
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        option = field.metadata.get("option", field.name.replace("_", "-"))
        if not _is_readable(hints[field.name]):
            raise PipelineError(
                f"option '{option}' of pass {name} has the type {_shown(hints[field.name])}, which "
                "cannot be read from a text",
                notes=(
                    "options are bool, int, float, str, a Literal of strings, a tuple[T, ...] of "
                    "one of them, or T | None",
                ),
            )
        text = field.metadata.get("help", "")
        found.append(Option(option, field.name, hints[field.name], default, text))
    return tuple(found)


def unknown_options(pass_type: type[Pass], spec: PassSpec) -> tuple[str, ...]:
    """The options that a pipeline gives and the pass does not have."""
    known = {option.name for option in options_of(pass_type)}
    return tuple(key for key in spec.options if not {key, key.replace("_", "-")} & known)


def with_options(pass_type: type[Pass], spec: PassSpec) -> Pass:
    """Makes a pass with the options that a pipeline gives.

    An underscore in an option's name is read as ``-``.

    Raises:
        PipelineError: There is no such option, its value is of another type, or one is missing.
    """
    options = {option.name: option for option in options_of(pass_type)}
    fields: dict[str, Any] = {}
    for key, text in spec.options.items():
        option = options.get(key) or options.get(key.replace("_", "-"))
        if option is None:
            spec.fail_option(
                key,
                f"pass '{spec.name}' has no option '{key}'",
                _known("it has", options) if options else "it has no options",
            )
        if option.field in fields:
            spec.fail_option(key, f"option '{option.name}' of '{spec.name}' is given twice")
        try:
            fields[option.field] = _parse(option.type, text)
        except ValueError:
            spec.fail_option(
                key,
                f"expected {option.expects} for option '{option.name}' of '{spec.name}',"
                f" found '{text}'",
            )
    for option in options.values():
        if option.default is dataclasses.MISSING and option.field not in fields:
            spec.fail(f"pass '{spec.name}' needs the option '{option.name}', {option.expects}")
    try:
        return pass_type(**fields)
    except ValueError as error:
        # Raised by the own checks of a pass, in __post_init__.
        spec.fail(f"pass '{spec.name}': {error}")


def spec_of(pass_: Pass) -> PassSpec:
    """The pass as a pipeline names it; options that have their default are left out.

    Raises:
        PipelineError: The value of an option cannot be written.
    """
    given = {}
    for option in options_of(type(pass_)):
        value = getattr(pass_, option.field)
        if value != option.default:
            given[option.name] = _print(option.type, value)
    return PassSpec(pass_.name, given)


def near(name: str, known: Iterable[str]) -> str:
    """A note that names what is spelled like ``name``, or everything where that is little."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.75)
    if close:
        return "did you mean " + " or ".join(f"'{other}'" for other in close) + "?"
    if len(names) <= 12:
        return _known("there are", names)
    return f"there are {len(names)} others, none spelled alike"


def _known(lead: str, names: Iterable[str]) -> str:
    return f"{lead} {', '.join(repr(name) for name in names)}" if names else "there are none"


def _parse(type_: Any, text: str) -> Any:
    """The value of a text; ``ValueError`` if it has none of this type."""
    origin = get_origin(type_)
    if type_ is bool:
        if text.lower() not in _WORDS:
            raise ValueError(text)
        return _WORDS[text.lower()]
    if type_ is int:
        return int(text, 0)
    if type_ in (float, str):
        return type_(text)
    if origin is Literal:
        if text not in get_args(type_):
            raise ValueError(text)
        return text
    if origin is tuple:
        return tuple(_parse(get_args(type_)[0], part) for part in _items(text))
    if origin in (Union, types.UnionType):
        if text == _NONE and type(None) in get_args(type_):
            return None
        inner = _inner(type_)
        if _is_quotable(type_) and text[:1] in _QUOTES:
            (text,) = _items(text)
        return _parse(inner, text)
    raise PipelineError(f"options of type {type_!r} cannot be read from a text")


def _print(type_: Any, value: Any) -> str:
    """The text of a value, from which :func:`_parse` makes it."""
    origin = get_origin(type_)
    if value is None:
        return _NONE
    if origin in (Union, types.UnionType):
        text = _print(_inner(type_), value)
        is_taken = text == _NONE or text[:1] in _QUOTES
        return _quoted(text) if text and is_taken and _is_quotable(type_) else text
    if type_ is bool:
        return "true" if value else "false"
    if type_ is int and isinstance(value, bool):
        return str(int(value))
    if origin is tuple:
        return ",".join(_print_item(_print(get_args(type_)[0], part)) for part in value)
    return str(value)


def _is_readable(type_: Any) -> bool:
    """Returns whether :func:`_parse` can make values of a type."""
    origin, args = get_origin(type_), get_args(type_)
    if origin is Literal:
        return all(isinstance(arg, str) for arg in args)
    if origin is tuple:
        return len(args) == 2 and args[1] is Ellipsis and _is_single(args[0])
    if origin in (Union, types.UnionType):
        return len(args) == 2 and type(None) in args and _is_readable(_inner(type_))
    return type_ in (bool, int, float, str)


def _is_single(type_: Any) -> bool:
    """Returns whether a type can be that of the items of a list."""
    return get_origin(type_) is not tuple and _is_readable(type_)


def _shown(type_: Any) -> str:
    return type_.__name__ if isinstance(type_, type) and not get_args(type_) else str(type_)


def _inner(type_: Any) -> Any:
    """``T`` of ``T | None``."""
    return next(arg for arg in get_args(type_) if arg is not type(None))


def _is_quotable(type_: Any) -> bool:
    """Returns whether a text of ``T | None`` may be quoted; a list quotes its items instead."""
    return type(None) in get_args(type_) and get_origin(_inner(type_)) is not tuple


def _print_item(text: str) -> str:
    if text and text != _NONE and "," not in text and text[0] not in _QUOTES:
        return text
    return _quoted(text)


def _quoted(text: str) -> str:
    # The kind that is there, which leaves the other one to the pipeline's text.
    quote = '"' if '"' in text and "'" not in text else "'"
    return quote + text.replace(quote, quote * 2) + quote


def _items(text: str) -> Iterator[str]:
    """The items of a list without their quotes; ``ValueError`` where a quote does not end."""
    position = 0
    while position < len(text):
        match = _ITEM.match(text, position)
        if match is None:
            raise ValueError(text)
        item, position = match[0], match.end() + 1
        if item[:1] in _QUOTES and item:
            yield item[1:-1].replace(item[0] * 2, item[0])
        elif item:
            yield item


def _expects(type_: Any) -> str:
    origin = get_origin(type_)
    if origin is Literal:
        return "one of " + ", ".join(f"'{arg}'" for arg in get_args(type_))
    if origin is tuple:
        return f"a list with commas, each {_expects(get_args(type_)[0])}"
    if origin in (Union, types.UnionType):
        return f"{_expects(_inner(type_))} or '{_NONE}'"
    words = {bool: "'true' or 'false'", int: "an integer", float: "a number", str: "a text"}
    return words.get(type_, str(type_))
