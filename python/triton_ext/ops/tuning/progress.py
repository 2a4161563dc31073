"""Progress of a tuning run: a bar where rich is installed, lines where it is not."""

from __future__ import annotations

import sys
from typing import Any, TextIO

__all__ = ["Progress", "make_progress"]


class Progress:
    """Shows nothing; a context manager around a run."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def begin(self, compiles: int, cases: int) -> None:
        """Shows how much there is to do."""

    def compiled(self) -> None:
        """Shows that one more configuration is compiled."""

    def tuned(self, text: str) -> None:
        """Shows the result of one more case."""


class _Lines(Progress):
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


class _Bars(Progress):
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
    """Returns bars on a terminal where rich is installed, else lines; standard error by default."""
    stream = sys.stderr if stream is None else stream
    if not is_wanted:
        return Progress()
    if not stream.isatty():
        return _Lines(stream)
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        return _Lines(stream)
    columns = (
        progress.TextColumn("{task.description}"), progress.BarColumn(),
        progress.MofNCompleteColumn(), progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )  # fmt: skip
    return _Bars(progress.Progress(*columns, console=Console(file=stream)))
