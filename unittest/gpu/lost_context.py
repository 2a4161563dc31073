"""A pytest plugin for GPU tests: names the test that broke the CUDA context, and ends its process.

After an illegal instruction or address, or a failed launch, every later call of CUDA in the
process fails, and with it every later test.  So the GPU is waited for after each test marked
``gpu``.  Where the context is lost this test fails as the culprit, and then

1. under pytest-xdist the worker process ends behind the report of the test; xdist names the test
   once more as the one that crashed its worker, starts another worker, and the rest goes on there;
2. without it the remaining tests marked ``gpu`` are skipped, with the culprit as the reason.

Nothing happens where torch sees no GPU, or has not used it in this process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator

import pytest

__all__ = ["LostContext", "LostContextError", "register"]

NAME = "triton-ext-lost-context"
EXIT_STATUS = 3


class LostContextError(Exception):
    """The CUDA context is lost; nothing more can run on the GPU in this process."""


def register(config: pytest.Config) -> None:
    """Adds the plugin to a run, once."""
    if not config.pluginmanager.has_plugin(NAME):
        config.pluginmanager.register(LostContext(hasattr(config, "workerinput")), NAME)


def what_is_lost() -> str:
    """Waits for the GPU; returns the error of a lost context, nothing where it answers."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return ""
    text = ""
    # An error of a single call is reported once; that of a lost context stays.
    for _ in range(2):
        try:
            torch.cuda.synchronize()
        except Exception as error:  # whatever class this torch raises
            text = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        else:
            return ""
    return text


class LostContext:
    """Watches the tests of a process.

    Attributes:
        in_worker: Whether the process is a worker of pytest-xdist.
        reason: Why nothing runs on the GPU any more; empty while it does.
    """

    def __init__(self, in_worker: bool) -> None:
        self.in_worker = in_worker
        self.reason = ""

    # Last: what pytest prepares for a test's teardown is there, even of one that is skipped here.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Skips what cannot run; fixtures can lose the context, too."""
        if self.reason and item.get_closest_marker("gpu") is not None:
            pytest.skip(self.reason)
        return (yield from self._watched(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Looks at the context behind a test, whether it passed or failed."""
        return (yield from self._watched(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Looks at the context behind a test's fixtures, before another test begins."""
        return (yield from self._watched(item))

    def _watched(self, item: pytest.Item) -> Generator[None, object, object]:
        try:
            result = yield
        except BaseException as failure:
            self._look(item, failure)
            raise
        self._look(item, None)
        return result

    def _look(self, item: pytest.Item, failure: BaseException | None) -> None:
        if self.reason or item.get_closest_marker("gpu") is None:
            return
        error = what_is_lost()
        if error:
            self.reason = f"{item.nodeid} lost the CUDA context: {error}"
            raise LostContextError(self.reason) from failure

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Ends a worker whose context is lost, behind the report and before the next test."""
        result = yield
        if self.reason and self.in_worker:
            sys.stdout.flush()
            sys.stderr.flush()
            # Not sys.exit: what runs at exit would call CUDA and may wait for ever.
            os._exit(EXIT_STATUS)
        return result
