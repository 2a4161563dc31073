"""Names during parsing: visible definitions, and uses that precede theirs."""

from __future__ import annotations

from .lexer import Source
from .nodes import Operation
from .values import OpResult, Value

__all__ = ["Scope"]


class Scope:
    """The names of one isolated region.

    Args:
        source: The text, for errors.
    """

    __slots__ = ("pending", "source", "values")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.values: dict[str, Value] = {}
        # Uses before the definition: operation, operand, offset.
        self.pending: dict[str, list[tuple[Operation, int, int]]] = {}

    def define(self, key: str, value: Value, offset: int, names: list[str]) -> None:
        """Makes a value visible and resolves pending uses of its name."""
        values = self.values
        if key in values:
            self.source.error(offset, f"redefinition of SSA value '{key}'")
        values[key] = value
        names.append(key)
        pending = self.pending
        if pending and key in pending:
            for op, index, _ in pending.pop(key):
                op._operands[index] = value
                value._users.append(op)

    def define_results(
        self, op: Operation, groups: list[tuple[str, int, int]], names: list[str]
    ) -> None:
        """Creates the results of an operation; a group is name, count (or -1) and offset."""
        results = op._results
        for base, count, offset in groups:
            if count < 0:
                result = OpResult(op, len(results), base, -1)
                results.append(result)
                self.define(base, result, offset, names)
                continue
            if count == 0:
                self.source.error(offset, "expected at least one result in a group, found 0")
            # MLIR prints a group of one as %x; %x:1 is written by hand only.
            for number in range(count):
                result = OpResult(op, len(results), base, number if count > 1 else -1)
                results.append(result)
                if number == 0:
                    self.define(base, result, offset, names)
                self.define(f"{base}#{number}", result, offset, names)

    def define_unnamed_results(self, op: Operation, count: int) -> None:
        """Creates results without names in the text, which nothing in it can use."""
        for number in range(count):
            op._results.append(OpResult(op, number, "", number if count > 1 else -1))

    def use(self, op: Operation, key: str, offset: int) -> None:
        """Adds an operand by name; the value may be defined later."""
        value = self.values.get(key)
        if value is None:
            base, sign, number = key.partition("#")
            if sign:
                value = self.values.get(base)
                if value is not None and (int(number[:9]) or _is_group(value)):
                    self.source.error(offset, f"'{base}' has no result number {number}")
                if value is None and not number.strip("0"):
                    key = base if f"{base}#0" not in self.values else key
        if value is None:
            self.pending.setdefault(key, []).append((op, len(op._operands), offset))
            op._operands.append(_PLACEHOLDER)
            return
        op._operands.append(value)
        value._users.append(op)

    def check_pending(self) -> None:
        """Raises an error for the first name that is used but never defined."""
        if self.pending:
            offset, key = min((uses[0][2], key) for key, uses in self.pending.items())
            self.source.error(offset, f"use of undeclared SSA value '{key}'")


def _is_group(value: Value) -> bool:
    return isinstance(value, OpResult) and value._number >= 0


#: Placeholder of an operand until its definition is read; absent from a finished tree.
_PLACEHOLDER = Value("%?", None)
