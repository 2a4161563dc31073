"""Every error that triton-ext raises, one class per kind of mistake.

The types are API; the texts may improve.  All derive from :class:`TritonExtError`, so that
``except triton_ext.errors.TritonExtError`` catches what is ours and nothing else.  An error about
a place in a source (IR text, a kernel) carries it as ``filename``, ``line`` and ``column`` (both
counted from 1) and prints like a compiler's: ``file:line:col: error: message``, the source line, a
caret, then ``note:`` lines.

What a function of a kernel refuses while Triton compiles or interprets the kernel arrives inside of
Triton's own ``CompilationError`` or ``InterpreterError``, whose text has ours.
"""

from __future__ import annotations

__all__ = [
    "DescriptorError",
    "DriverError",
    "LaunchError",
    "NotModelledError",
    "ParseError",
    "PassError",
    "PipelineError",
    "SourceError",
    "TritonExtError",
    "UnsupportedError",
    "VerifyError",
    "for_terminal",
    "quoted_line",
    "shortened",
]


# Characters of a message and of a source line that are printed.
_LONGEST_MESSAGE = 2000
_LONGEST_LINE = 400


def shortened(message: str) -> str:
    """A message, without the middle of one that is too long to be read."""
    if len(message) <= _LONGEST_MESSAGE:
        return message
    half = _LONGEST_MESSAGE // 2
    left_out = len(message) - 2 * half
    return f"{message[:half]} [{left_out} characters] {message[-half:]}"


def for_terminal(message: object) -> str:
    """A message as it may be printed: shortened, with control characters as Python escapes them.

    Words of a command line, names of files and messages of a model may have them.
    """
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode()
        for c in shortened(str(message))
    )


def quoted_line(line: str, column: int) -> list[str]:
    """A source line and a caret below it; of a long one, the part around the caret.

    Args:
        line: The line.
        column: Where the caret points to, counted from 1.
    """
    start = max(0, column - 1 - _LONGEST_LINE // 2) if len(line) > _LONGEST_LINE else 0
    part = line[start : start + _LONGEST_LINE]
    before = "..." if start else ""
    after = "..." if start + len(part) < len(line) else ""
    # Tabs are kept so that the caret stands under its character in any terminal.
    lead = "".join("\t" if c == "\t" else " " for c in before + part[: column - 1 - start])
    return [f"{before}{part}{after}", f"{lead}^"]


class TritonExtError(Exception):
    """Base class of everything that triton-ext raises on purpose."""


class SourceError(TritonExtError):
    """An error at a place in a source text.

    Args:
        message: The expected value, the value found, and the way out; lower case, no full stop.
        filename: Name of the source as a user knows it.
        line: Line, counted from 1; 0 where no place is known.
        column: Column, counted from 1; 0 where no place is known.
        source_line: The text of that line, for the caret; ``None`` to print none.
        notes: Further lines, each printed behind ``note:``.
        others: Further errors that were found together with this one.
    """

    def __init__(
        self,
        message: str,
        *,
        filename: str = "<unknown>",
        line: int = 0,
        column: int = 0,
        source_line: str | None = None,
        notes: tuple[str, ...] = (),
        others: tuple[SourceError, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.filename = filename
        self.line = line
        self.column = column
        self.source_line = source_line
        self.notes = notes
        self.others = others

    def __str__(self) -> str:
        place = f"{self.filename}:{self.line}:{self.column}" if self.line else self.filename
        lines = [f"{place}: error: {shortened(self.message)}"]
        if self.source_line is not None and self.column:
            lines += quoted_line(self.source_line, self.column)
        lines.extend(f"note: {shortened(note)}" for note in self.notes)
        lines.extend(str(other) for other in self.others)
        return "\n".join(lines)


class ParseError(SourceError):
    """Text that is not the printed form of an MLIR module."""


class VerifyError(SourceError):
    """A module that parses but breaks a rule of the IR."""


class PassError(SourceError):
    """A pass that cannot do its work; never raised for a mere missed optimisation."""


class NotModelledError(PassError):
    """A pass meets an operation, a layout or a GPU whose treatment by Triton it does not know.

    ``triton-opt --pass-provider=auto`` runs Triton's pass of that name instead.

    Attributes:
        pass_name: The pass; empty until the error leaves a pipeline.
    """

    pass_name: str = ""

    @classmethod
    def of(cls, error: SourceError, *others: SourceError) -> NotModelledError:
        """An error as one about what only Triton knows.

        Args:
            error: The error that was found first.
            others: Further errors that were found with it.
        """
        return cls(
            error.message,
            filename=error.filename,
            line=error.line,
            column=error.column,
            source_line=error.source_line,
            notes=error.notes,
            others=others,
        )


class PipelineError(SourceError):
    """A pass pipeline that cannot be read, or names a pass or an option that is not there."""


class UnsupportedError(TritonExtError):
    """A feature that this host, target or machine lacks; the text names who has it."""


class DescriptorError(TritonExtError, ValueError):
    """A tensor descriptor that the hardware cannot express; lists every violation found."""


class LaunchError(TritonExtError, TypeError):
    """A launch whose arguments do not fit what the kernel was compiled for."""


class DriverError(TritonExtError, RuntimeError):
    """The CUDA driver is missing, too old, or refused a call."""
