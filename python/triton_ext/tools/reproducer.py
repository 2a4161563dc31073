"""``--run-reproducer``: the pipeline that stands in a module's resources.

MLIR writes it there when a pipeline fails, so that one file is enough to see the failure again::

    {-#
      external_resources: {
        mlir_reproducer: {
          pipeline: "builtin.module(cse)",
          disable_threading: true,
          verify_each: true
        }
      }
    #-}

What is not a reproducer as MLIR writes it is refused: a pipeline that is skipped without a word
would look like one that changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from triton_ext.passes.pipeline import parse_pipeline
from triton_ext.strings import SKIPPED_STRING, STRING, unquote
from triton_ext.tools.command_line import Arguments, CommandLineError

__all__ = ["with_reproducer"]

_NAME = "mlir_reproducer"
_COMMENT = r"//[^\n]*"
# The start of a section of resources; in front of it strings and comments may look like one.
_OPENING = re.compile(rf"{SKIPPED_STRING}|{_COMMENT}|(?P<opening>\{{-#)")
_TOKEN = re.compile(
    rf"\s+|{_COMMENT}|(?P<string>{STRING})|(?P<word>[\w.$-]+)|(?P<end>#-\}})|(?P<mark>{SKIPPED_STRING}|.)"
)


@dataclass(frozen=True, slots=True)
class _Token:
    """A token of a section; ``kind`` is the group of ``_TOKEN``, the text for a mark."""

    kind: str
    text: str
    offset: int


def with_reproducer(arguments: Arguments, text: str) -> Arguments:
    """Returns a command line that runs the pipeline of a reproducer; without one, the same.

    Args:
        arguments: The command line.
        text: The input.

    Raises:
        CommandLineError: A reproducer cannot be read, there are several, or passes in the command
            line as well.
        PipelineError: The pipeline cannot be read.
    """
    found = [
        _Reader(text, tokens, index).read()
        for tokens in _sections(text)
        for index in range(len(tokens))
        if _names_reproducer(tokens, index)
    ]
    if not found:
        return arguments
    if len(found) > 1:
        raise CommandLineError("'--run-reproducer': the input has more than one reproducer")
    first = next(arguments.pipeline.specs(), None)
    if first is not None:
        raise CommandLineError(
            f"'--run-reproducer' cannot be used together with passes ('-{first.name}')"
        )
    entries = found[0]
    changed = replace(arguments, pipeline=parse_pipeline(unquote(entries["pipeline"])))
    if "verify_each" in entries:
        changed = replace(changed, verify_each=entries["verify_each"] == "true")
    return changed


def _sections(text: str) -> Iterator[list[_Token]]:
    """The tokens of each ``{-# ... #-}``, the end included; at the end of the text it is empty."""
    position = 0
    while (opening := _OPENING.search(text, position)) is not None:
        position = opening.end()
        if opening["opening"] is None:
            continue
        tokens: list[_Token] = []
        for match in _TOKEN.finditer(text, position):
            position = match.end()
            kind = match.lastgroup
            if kind is None:
                continue
            tokens.append(_Token(match[0] if kind == "mark" else kind, match[0], match.start()))
            if kind == "end":
                break
        yield [*tokens, _Token("end", "the end", len(text))]


def _names_reproducer(tokens: list[_Token], index: int) -> bool:
    """Returns whether a token is the key of a reproducer; MLIR accepts a quoted one."""
    token = tokens[index]
    if token.kind == "string":
        return unquote(token.text) == _NAME and tokens[index + 1].kind == ":"
    return token.text == _NAME


class _Reader:
    """Reads ``reproducer ::= key ':' '{' entry (',' entry)* '}'``; ``entry ::= key ':' value``."""

    def __init__(self, text: str, tokens: list[_Token], index: int) -> None:
        self._text = text
        self._tokens = tokens
        self._index = index

    def read(self) -> dict[str, str]:
        """The values of the entries as they are written, by key; there is a pipeline."""
        start = self._next()
        self._expect(":")
        self._expect("{")
        entries: dict[str, str] = {}
        separator = ","
        while separator == ",":
            self._entry(entries)
            separator = self._expect(",", "}").text
        if "pipeline" not in entries:
            raise self._error(start, "expected an entry 'pipeline' in the reproducer")
        return entries

    def _entry(self, entries: dict[str, str]) -> None:
        key = self._next()
        name = unquote(key.text) if key.kind == "string" else key.text
        if name not in ("pipeline", "disable_threading", "verify_each"):
            wanted = "expected 'pipeline', 'disable_threading' or 'verify_each'"
            raise self._error(key, f"{wanted}, found '{name}'")
        if name in entries:
            raise self._error(key, f"expected one entry '{name}', found another")
        self._expect(":")
        value = self._next()
        if name == "pipeline" and value.kind != "string":
            raise self._error(value, f"expected a string as the pipeline, found '{value.text}'")
        if name != "pipeline" and value.text not in ("true", "false"):
            raise self._error(
                value, f"expected 'true' or 'false' as '{name}', found '{value.text}'"
            )
        entries[name] = value.text

    def _next(self) -> _Token:
        token = self._tokens[self._index]
        # The last token is an end: nothing is read behind it.
        self._index = min(self._index + 1, len(self._tokens) - 1)
        return token

    def _expect(self, *kinds: str) -> _Token:
        token = self._next()
        if token.kind not in kinds:
            wanted = " or ".join(f"'{kind}'" for kind in kinds)
            raise self._error(token, f"expected {wanted}, found '{token.text}'")
        return token

    def _error(self, token: _Token, message: str) -> CommandLineError:
        line = self._text.count("\n", 0, token.offset) + 1
        column = token.offset - self._text.rfind("\n", 0, token.offset)
        return CommandLineError(f"'--run-reproducer': {message} in line {line}, column {column}")
