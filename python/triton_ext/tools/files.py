"""Input and output of the tools: files and standard streams, UTF-8 whatever the locale."""

from __future__ import annotations

import io
import os
import pathlib
import sys

__all__ = ["read", "write"]


def read(file: str) -> str:
    """Returns a text with the ends of lines that it has.

    Args:
        file: Its path; ``-``: standard input.

    Raises:
        OSError: It cannot be read, or standard input is closed.
        UnicodeDecodeError: It is not UTF-8.
    """
    if file != "-":
        return pathlib.Path(file).read_bytes().decode("utf-8")
    if sys.stdin is None:
        raise OSError("it is closed")
    # Bytes, because what text is to Python depends on the locale, and it may let any byte pass.
    buffer = getattr(sys.stdin, "buffer", None)
    return sys.stdin.read() if buffer is None else buffer.read().decode("utf-8")


def write(text: str, output: str) -> bool:
    """Writes a text, and returns whether all of it could be written.

    Args:
        text: The text.
        output: Path of the file; ``-``: standard output.
    """
    try:
        if output != "-":
            pathlib.Path(output).write_text(text, encoding="utf-8", newline="")
            return True
        if sys.stdout is None:
            raise OSError("it is closed")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if output == "-" and sys.stdout is not None:
            # Python writes what is left once more when it ends, and complains once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # Who reads our output may stop when enough was read, as `head` does.
        if not isinstance(error, BrokenPipeError):
            name = "<stdout>" if output == "-" else output
            sys.stderr.write(f"{name}: error: cannot be written: {error}\n")
        return False
    return True
