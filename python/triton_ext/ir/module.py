"""A module: aliases, the top-level operation, and the trailing text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from .lexer import Source
from .nodes import Operation

__all__ = ["Module"]


class Module:
    """The result of :func:`triton_ext.ir.parse`; ``str(module)`` prints it.

    Attributes:
        op: The ``builtin.module``.  If the text has none, or several top-level operations, it is
            implicit: it holds the top-level operations and prints nothing of its own until it gets
            an attribute.
        source: The parsed text.
    """

    __slots__ = ("_added", "_aliases", "_footer", "_whole", "op", "source")

    def __init__(self, source: Source, op: Operation, aliases: dict[str, str], footer: str) -> None:
        self.source = source
        self.op = op
        op._module = self
        self._aliases = aliases
        self._added: list[str] = []
        self._footer = footer
        # The module that this one is a part of, or None.
        self._whole: Module | None = None

    @property
    def aliases(self) -> Mapping[str, str]:
        """Name (``#shared``, ``#loc3``, ``!t``) to raw text of every alias."""
        return MappingProxyType(self._aliases)

    @property
    def body(self) -> tuple[Operation, ...]:
        """The operations in the module, usually functions; for a part, those of its first block."""
        regions = self.op.regions
        return regions[0].blocks[0].ops if regions else ()

    @property
    def is_changed(self) -> bool:
        """Returns whether the module was edited since it was parsed."""
        return self.op._dirty

    def part(self, op: Operation) -> Module:
        """Returns a view for a pass that runs on one operation, such as a function.

        Aliases are those of the whole module, edits are edits of it, and ``str`` prints only the
        operation.

        Args:
            op: An operation of this module.
        """
        if op is self.op:
            return self
        made = Module.__new__(Module)
        made.source, made.op, made._footer = self.source, op, ""
        made._aliases, made._added = self._aliases, self._added
        made._whole = self._whole or self
        return made

    def verify(self) -> None:
        """Checks everything that needs no knowledge of individual operations.

        The rules are those of :mod:`triton_ext.ir.verifier`; ``triton_ext.host.module.verify`` asks
        Triton for the rest.

        Raises:
            VerifyError: The first broken rule, at its operation.
        """
        from .verifier import find_problems

        for problem in find_problems(self):
            raise problem

    def walk(self) -> Iterator[Operation]:
        """Yields every operation, the module's own first, in printed order."""
        return self.op.walk()

    def resolve_alias(self, name: str) -> str:
        """Returns the raw text of an alias, with its nested aliases unresolved.

        Args:
            name: The alias with its sign, ``#loc12`` or ``#shared``.

        Raises:
            KeyError: There is no such alias.
        """
        return self._aliases[name]

    def add_alias(self, name: str, text: str) -> str:
        """Adds an alias for an attribute or a type after the existing ones.

        Args:
            name: The preferred name with its sign; a number is added if it is taken.
            text: Its definition.  An existing alias with this definition is reused.

        Returns:
            The name to print.

        Raises:
            TypeError: Name or text is not a string.
            VerifyError: One of them is malformed, or an alias in the text is undefined.
        """
        from .text_checks import check_alias

        check_alias((self._whole or self).op, name, text)
        for known, raw in self._aliases.items():
            if raw == text and known[0] == name[0]:
                return known
        chosen, number = name, 0
        while chosen in self._aliases:
            number += 1
            chosen = f"{name}{number}"
        self._aliases[chosen] = text
        self._added.append(f"{chosen} = {text}\n")
        self.op._touch()
        return chosen

    def __str__(self) -> str:
        if self._whole is not None:
            return self.op.text
        if not self.op._dirty:
            return self.source.text
        out: list[str] = []
        self.op._write(out)
        if self._added:
            self._insert_aliases(out)
        out.append(self._footer)
        return "".join(out)

    def _insert_aliases(self, out: list[str]) -> None:
        """Inserts the new aliases before the first top-level operation, after its lead."""
        first = self.op if self.op._span[4] else next(iter(self.body), self.op)
        lead = first.lead
        text = "".join(out)
        at = text.find(lead) + len(lead) if lead else 0
        out[:] = [text[:at], *self._added, text[at:]]

    def __repr__(self) -> str:
        return f"<Module {self.source.filename}>"
