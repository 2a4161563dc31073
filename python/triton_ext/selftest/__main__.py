"""Runs checks by name; prints a line of JSON before and after each."""

from __future__ import annotations

import json
import sys

from triton_ext import host
from triton_ext.selftest.checks import CHECKS, NotShown


def _say(**fields: object) -> None:
    # Triton writes to the same file descriptors; whoever reads this takes the lines with the mark.
    sys.stdout.write(f"\ntriton-ext-selftest {json.dumps(fields)}\n")
    sys.stdout.flush()


def main() -> int:
    """Runs the checks that the command line names, or tells their names without any."""
    table = {check.name: check for check in CHECKS}
    if sys.argv[1:] == ["--list"]:
        _say(checks=[[check.target, check.feature, check.needs] for check in CHECKS])
        return 0
    for name in sys.argv[1:]:
        check = table[name]
        _say(name=name, status="begun")
        status, text = "yes", ""
        lacking = host.capabilities()[check.needs] if check.needs else None
        if lacking is not None and not lacking.available:
            status, text = "absent", lacking.reason
        else:
            try:
                text = check.run(check.target)
            except NotShown as problem:
                status, text = "no", str(problem)
            except Exception as error:  # whatever a Triton nobody has seen yet may raise
                status, text = "no", f"{type(error).__name__}: {error}"
        _say(name=name, status=status, text=text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
