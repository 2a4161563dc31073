"""Standard output and error of the tools where they are closed, full, or pipes that nobody reads.

An output that cannot be written is an error with a message and a status.  Messages that cannot be
written are lost, as with LLVM's tools: they change no status and no output.  Ctrl-C ends every tool
with the status that a shell gives it.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from triton_ext.tools.files import silence, tell, write

__all__ = ["Parser", "tool"]

# Errors of a standard output that is full, closed, or a pipe without a reader.
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EPIPE)
# 128 and the number of SIGINT, as the shell says it.
_INTERRUPTED = 130
# An output that is closed is full, for those that open it by its name.
_FULL = "/dev/full"


def tool(main: Callable[..., int]) -> Callable[..., int]:
    """Runs a tool's main function; closed or full streams become an error and a status.

    Args:
        main: Takes the arguments, ``None`` for those of the process; returns the exit status.
    """

    @functools.wraps(main)
    def run(argv: Sequence[str] | None = None) -> int:
        _open_closed_descriptors()
        before = sys.stdout, sys.stderr
        sys.stdout = _ClosedOutput() if sys.stdout is None else sys.stdout
        sys.stderr = _Messages(sys.stderr)
        try:
            status = main(argv)
            sys.stdout.flush()
            return status
        except OSError as error:
            # An error about a file has its name.
            if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
                raise
            tell("-", error)
            return 1
        except KeyboardInterrupt:
            return _INTERRUPTED
        finally:
            sys.stdout, sys.stderr = before

    return run


def _open_closed_descriptors() -> None:
    """Opens the standard streams that are closed, so that no other file gets their numbers.

    Python's own streams stay closed.  A pipe with the number of standard error would not reach a
    child process, whose standard error takes its place.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            path = _FULL if descriptor == 1 and os.path.exists(_FULL) else os.devnull
            with contextlib.suppress(OSError):
                # It gets the lowest number that is free: this one.
                os.set_inheritable(os.open(path, os.O_RDWR), True)


class Parser(argparse.ArgumentParser):
    """Writes help and version like other output: one that cannot be written ends with status 1."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stderr:
            file.write(message)
        elif message and not write(message, "-"):
            raise SystemExit(1)


class _ClosedError(OSError):
    """Standard output is closed."""

    def __init__(self) -> None:
        super().__init__(errno.EBADF, "it is closed")

    def __str__(self) -> str:
        return "it is closed"


class _ClosedOutput(io.TextIOBase):
    """Standard output of a process that was started without one."""

    def write(self, text: str) -> int:
        raise _ClosedError


class _Messages(io.TextIOBase):
    """Standard error whose messages may get lost.

    Args:
        stream: The stream; ``None`` where it is closed.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(lambda: self._stream.flush())

    def isatty(self) -> bool:
        return self._stream is not None and bool(self._stream.isatty())

    def fileno(self) -> int:
        if self._stream is None:
            raise _ClosedError
        return int(self._stream.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return str(getattr(self._stream, "encoding", None) or "utf-8")

    def _try(self, do: Callable[[], object]) -> None:
        if self._stream is None:
            return
        try:
            do()
        except OSError:
            silence(self._stream)
            self._stream = None
