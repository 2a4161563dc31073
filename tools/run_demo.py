"""``make demo``: makes the demo's environment and runs ``examples/demo`` in it."""

from __future__ import annotations

import sys

from environment import ROOT, Environment, EnvironmentProblem, say

TRITON = "3.9.0"


def main() -> int:
    """Returns the exit status of the demo, or 1 where its environment cannot be made."""
    demo = Environment(folder=ROOT / ".demo" / "venv", triton=TRITON, extras=("demo",))
    try:
        demo.prepare()
    except EnvironmentProblem as problem:
        say(f"error: {problem}")
        return 1
    return demo.run(str(demo.python), "-m", "examples.demo", *sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
