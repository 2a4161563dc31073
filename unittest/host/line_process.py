"""A script that answers questions, a JSON document per line, in a process that may die of them."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
from types import TracebackType

__all__ = ["LineProcess"]

#: Seconds to wait for the end of a process that nobody asks any more.
PATIENCE = 60


class LineProcess:
    """Asks a process that runs a script; a new one where the last one died.

    Args:
        script: What answers; it finds this module as the tests do.
    """

    def __init__(self, script: str) -> None:
        self._script = script
        self._child = self._started()

    def __enter__(self):
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _started(self) -> subprocess.Popen[str]:
        path = [str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        return subprocess.Popen(
            [sys.executable, self._script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        )

    def exchange(self, question: dict | list) -> dict:
        """Returns the answer to a question.

        Raises:
            RuntimeError: The process ended over it.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(question) + "\n")
            self._child.stdin.flush()
            answer = self._child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.close()
            self._child = self._started()
            raise RuntimeError(f"the host ended its process for {question}")
        return json.loads(answer)

    def close(self) -> None:
        """Ends the process."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # It died with a question unread.
            self._child.stdin.close()
        self._child.stdout.close()
        self._child.wait(PATIENCE)
