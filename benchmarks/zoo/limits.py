"""Early stops of a sweep: its time limit, kernels that hang, and a GPU that is lost."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from benchmarks.harness import Deadline

__all__ = ["RESERVE_SECONDS", "ContextLostError", "check_context", "is_compiled", "watched"]

# Kept back from the time limit, to finish a layer and write.
RESERVE_SECONDS = 15.0


class ContextLostError(Exception):
    """The CUDA context is broken; nothing more can run in this process."""


def is_compiled(future: Future[Any], deadline: Deadline, record: Callable[[str], None]) -> bool:
    """Waits for the compiler, not beyond the time limit; tells whether there is a kernel.

    ``record`` takes the status of a configuration that does not compile.
    """
    try:
        error = future.result(timeout=max(deadline.left() - RESERVE_SECONDS / 2, 0.0))
    except FutureTimeoutError:
        return False
    if error:
        record(f"does not compile: {error}")
    return not error


def check_context(what: str, error: Exception) -> None:
    """Raises a ContextLostError if the GPU answers nothing any more after ``error``."""
    import torch

    try:
        torch.cuda.synchronize()
    except Exception as lost:
        raise ContextLostError(f"{what}: {lost}") from error


@contextlib.contextmanager
def watched(last_words: Callable[[str], None], seconds: float) -> Iterator[None]:
    """Ends the process if what is inside does not come back; ``last_words`` takes the status."""

    def give_up() -> None:
        last_words(f"hangs: no end after {seconds:.0f} s")
        os._exit(3)

    watch = threading.Timer(seconds, give_up)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
