"""Runs pytest for whoever asks, with interpreted kernels, in children of a process that has torch.

Run as a script it reads one JSON document per line (pytest's arguments, environment, seconds) and
answers with the exit status and the output.  Importing torch and Triton takes longer than most
files of tests that are run so.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import tempfile

__all__ = ["FILE"]

FILE = __file__
ROOT = str(pathlib.Path(__file__).parents[2])
#: Characters of the output that are kept.
KEPT = 10000


def _run(arguments: list[str], environment: dict[str, str], seconds: int, output) -> int:
    child = os.fork()
    if child == 0:
        status: int = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the questions are not its own
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
            signal.alarm(seconds)  # ends this process, whatever it does
            os.environ.clear()
            os.environ.update(environment)
            status = int(pytest.main(arguments))
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended)


def main() -> None:
    """Answers until standard input ends."""
    os.chdir(ROOT)
    sys.path[0] = ROOT  # as python -m pytest has it
    for line in sys.stdin:
        with tempfile.TemporaryFile() as output:
            status = _run(*json.loads(line), output)
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
        sys.stdout.write(json.dumps({"status": status, "output": text[-KEPT:]}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    # Whether a kernel is interpreted is fixed when it is defined: before the first import.
    os.environ["TRITON_INTERPRET"] = "1"
    import numpy  # noqa: F401
    import pytest
    import triton_ext.nn
    import triton_ext.ops  # noqa: F401  with torch and Triton

    main()
