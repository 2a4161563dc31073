"""How far a tuning run is: a bar where rich is installed, lines where it is not."""

from __future__ import annotations

import sys
from typing import Any, Protocol, TextIO

__all__ = ["Progress", "Silence", "make_progress"]


class Progress(Protocol):
    """What a run tells of itself; a context manager around it."""

    def __enter__(self) -> Progress: ...

    def __exit__(self, *exception: object) -> None: ...

    def begin(self, compiles: int, cases: int) -> None:
        """Says how much there is to do."""

    def compiled(self) -> None:
        """One more configuration is compiled."""

    def tuned(self, text: str) -> None:
        """One more case is done; what came out."""


class Silence:
    """Says nothing."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def begin(self, compiles: int, cases: int) -> None:
        """As for :class:`Progress`."""

    def compiled(self) -> None:
        """As for :class:`Progress`."""

    def tuned(self, text: str) -> None:
        """As for :class:`Progress`."""


class _Lines(Silence):
    """A line per case."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._cases = self._done = 0

    def begin(self, compiles: int, cases: int) -> None:
        self._cases = cases
        self._write(f"{cases} convolutions, {compiles} configurations to compile")

    def tuned(self, text: str) -> None:
        self._done += 1
        self._write(f"[{self._done}/{self._cases}] {text}")

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class _Bars(Silence):
    """Two bars of rich's, and a line per case above them."""

    def __init__(self, rich_progress: Any) -> None:
        self._bars = rich_progress
        self._compiling = self._tuning = None

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def begin(self, compiles: int, cases: int) -> None:
        self._compiling = self._bars.add_task("compiling", total=compiles)
        self._tuning = self._bars.add_task("measuring", total=cases)

    def compiled(self) -> None:
        self._bars.advance(self._compiling)

    def tuned(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, markup=False)
        self._bars.advance(self._tuning)


def make_progress(is_wanted: bool, stream: TextIO | None = None) -> Progress:
    """Returns what shows a run's progress.

    Args:
        is_wanted: Whether anything is to be shown.
        stream: Where; standard error by default.
    """
    stream = sys.stderr if stream is None else stream
    if not is_wanted:
        return Silence()
    if not stream.isatty():
        return _Lines(stream)
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress
    except ImportError:
        return _Lines(stream)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return _Bars(RichProgress(*columns, console=Console(file=stream)))
