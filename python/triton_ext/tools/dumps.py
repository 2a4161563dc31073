"""Modules printed around passes: ``--mlir-print-ir-before``, ``-after`` and what goes with them."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from triton_ext.tools.command_line import ALL, Arguments

if TYPE_CHECKING:
    from triton_ext.host.process import HostResult

__all__ = ["Dumps"]

_TITLE = re.compile(r"// -----// IR Dump (Before|After) (.*) \((.*)\) //----- //")


class Dumps:
    """Prints to standard error what the command line asks for.

    As in MLIR, ``-after-failure`` leaves out the modules behind passes that did their work, and
    ``-after-change`` those that a pass left as they were.

    Args:
        arguments: The command line.
    """

    def __init__(self, arguments: Arguments) -> None:
        self._before = frozenset(arguments.print_before)
        after = frozenset(arguments.print_after)
        if arguments.after_failure:
            after = frozenset()
        elif arguments.after_change and not after:
            after = frozenset({ALL})
        self._after = after
        self._only_changes = arguments.after_change
        self._failures = arguments.after_failure
        # The pass of ours that runs, and the module in front of it.
        self._running: tuple[str, str] | None = None
        self._state = ""

    @property
    def for_manager(self) -> tuple[frozenset[str], frozenset[str]]:
        """Names to give to a pass manager of ours, whose texts go to :meth:`take`."""
        if self._only_changes or self._failures:
            return frozenset({ALL}), frozenset({ALL})
        return self._before, self._after

    def needs_states(self, names: Sequence[str]) -> bool:
        """Returns whether the module is printed around passes of these names."""
        return self._failures or bool((self._before | self._after) & {ALL, *names})

    def take(self, text: str) -> None:
        """Takes the title and the module that a pass manager of ours prints."""
        title, _, module = text.partition("\n")
        match = _TITLE.fullmatch(title)
        if match is None:
            return
        when, class_name, name = match.groups()
        if when == "Before":
            self._running, self._state = (class_name, name), module
            if self._before & {ALL, name}:
                _write(text)
            return
        self._running = None
        if self._after & {ALL, name} and not (self._only_changes and module == self._state):
            _write(text)

    def failed(self, module: object) -> None:
        """Prints what a pass of ours left that raised an error."""
        running, self._running = self._running, None
        if self._failures and running is not None:
            _write(f"{_title('After', f'{running[0]} Failed ({running[1]})')}{module}\n")

    def of_host(self, names: Sequence[str], result: HostResult) -> None:
        """Prints what a run of Triton's passes, one by one, went through."""
        for index, name in enumerate(names):
            # A child that died, or failed to read the module, has said fewer.
            states = result.states[index : index + 2]
            if states and self._before & {ALL, name}:
                _write(f"{_title('Before', name)}{states[0]}\n")
            changed = len(states) == 2 and not (self._only_changes and states[0] == states[1])
            if changed and self._after & {ALL, name}:
                _write(f"{_title('After', name)}{states[1]}\n")
        if result.failed is not None and result.left:
            _write(f"{_title('After', f'{names[result.failed]} Failed')}{result.left}\n")


def _title(when: str, name: str) -> str:
    return f"// -----// IR Dump {when} {name} //----- //\n"


def _write(text: str) -> None:
    sys.stderr.write(text)
