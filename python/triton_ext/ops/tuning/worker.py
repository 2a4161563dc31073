"""The process that :class:`triton_ext.ops.tuning.processes.CompilePool` starts."""

from __future__ import annotations

import base64
import pickle
from typing import Any

from triton_ext.ops.tuning.compiling import compile_plan, serve, target_only

__all__ = ["main"]


def _compile(job: dict[str, Any]) -> int:
    # Of the process that started this one.
    case, config, machine = pickle.loads(base64.b64decode(job["job"]))
    target_only(machine.capability)
    return compile_plan(case, config, machine)


def main() -> None:
    """Compiles what it is told to until there is nothing more."""
    serve(_compile)


if __name__ == "__main__":
    main()
