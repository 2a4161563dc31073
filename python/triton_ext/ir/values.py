"""SSA values: results of operations and arguments of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .nodes import Block, Operation

__all__ = ["BlockArgument", "OpResult", "Use", "Value"]


@dataclass(frozen=True, slots=True)
class Use:
    """One operand of one operation."""

    op: Operation
    index: int


class Value:
    """An SSA value: a result of an operation, or an argument of a block."""

    __slots__ = ("_base", "_type", "_users")

    def __init__(self, base: str, type_: str | None) -> None:
        self._base = base
        self._type = type_
        # One entry per use, so an operation may occur repeatedly.
        self._users: list[Operation] = []

    @property
    def name(self) -> str:
        """The name as printed, for instance ``%x`` or ``%21#2``."""
        return self._base

    @property
    def owner(self) -> Operation | Block:
        """The operation or the block that defines this value."""
        raise NotImplementedError

    @property
    def _holder(self) -> Operation:
        """The operation that prints the definition: the owner, or the block's parent."""
        raise NotImplementedError

    @property
    def known_type(self) -> str | None:
        """The type, or ``None`` if the printed form does not show it."""
        if self._type is None:
            from .type_slots import infer_type

            infer_type(self)
        return self._type

    @property
    def type(self) -> str:
        """The type as printed, with aliases.

        Raises:
            VerifyError: The printed form does not show the type.
        """
        known = self.known_type
        if known is None:
            self._holder.fail(f"the type of '{self.name}' is not printed anywhere")
        return known

    @property
    def uses(self) -> tuple[Use, ...]:
        """All uses of this value, grouped by operation."""
        return tuple(
            Use(op, index)
            for op in dict.fromkeys(self._users)
            for index, operand in enumerate(op._operands)
            if operand is self
        )

    def set_type(self, type_: str) -> None:
        """Changes the type here and wherever an operation prints it.

        Changes only this value: the caller changes values that must have the same type (the other
        side of a yield, a partition's argument for a capture).

        Raises:
            VerifyError: An unknown operation prints this type where it may belong to another
                operand; or the definition does not print it but implies another type (by those of
                operands, say); or the text is malformed or names an undefined alias.
            TypeError: It is not a string.
        """
        from .text_checks import check_type
        from .type_slots import bind_types, check_implied, ensure_bound

        if isinstance(type_, str):
            type_ = type_.strip()
        check_type(self._holder, f"'{self.name}'", type_)
        old = self.known_type
        if isinstance(self, OpResult):
            check_implied(self, type_)
        touched = list(dict.fromkeys([*self._users, self._holder]))
        for op in touched:
            if old is not None:
                ensure_bound(op, self, old)
            else:
                bind_types(op)
        self._type = type_
        for op in touched:
            op._touch()

    def _add_user(self, op: Operation) -> None:
        """Adds a use."""
        self._users.append(op)

    def _drop_user(self, op: Operation) -> None:
        """Removes a use; the latest ones often go first."""
        if self._users[-1] is op:
            self._users.pop()
        else:
            self._users.remove(op)

    def replace_all_uses_with(self, other: Value) -> None:
        """Replaces all uses of this value by another one.

        Raises:
            TypeError: ``other`` is not a :class:`Value`.
        """
        if not isinstance(other, Value):
            raise TypeError(f"expected a Value to replace '{self.name}', found {other!r}")
        for use in self.uses:
            use.op.set_operand(use.index, other)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self._type or '?'}>"


class OpResult(Value):
    """A result of an operation."""

    __slots__ = ("_number", "_owner", "index")

    def __init__(
        self, owner: Operation, index: int, base: str, number: int, type_: str | None = None
    ) -> None:
        super().__init__(base, type_)
        self._owner = owner
        self.index = index
        # Index in a group that is printed as %base:count; -1 for a single name.
        self._number = number

    @property
    def name(self) -> str:
        """The name as printed; assigns one to a result that the text does not name.

        MLIR reads ``ttg.local_alloc : () -> T`` without ``%x =``.  Such a result has no uses, and
        prints no name before this property is read.
        """
        if not self._base:
            from .edits import name_results

            name_results(self._owner)
        return self._base if self._number < 0 else f"{self._base}#{self._number}"

    @property
    def owner(self) -> Operation:
        return self._owner

    def _add_user(self, op: Operation) -> None:
        if not self._base:
            _ = self.name  # used values need a name
        super()._add_user(op)

    @property
    def _holder(self) -> Operation:
        return self._owner


class BlockArgument(Value):
    """An argument of a block, including those named in a loop's or function's header."""

    __slots__ = ("_owner", "_span", "index", "loc_text")

    def __init__(self, owner: Block, index: int, base: str, type_: str | None = None) -> None:
        super().__init__(base, type_)
        self._owner = owner
        self.index = index
        #: The location printed after the type, ``loc(...)``, or ``None``.
        self.loc_text: str | None = None
        # Offsets of name and type in the source; the type's are -1 if not printed here.
        self._span: tuple[int, int, int, int] | None = None

    @property
    def owner(self) -> Block:
        return self._owner

    @property
    def _holder(self) -> Operation:
        return self._owner.parent.parent

    def set_loc(self, text: str) -> None:
        """Sets the location printed after the type, ``loc(...)`` or an alias.

        Raises:
            TypeError: It is not a string.
            VerifyError: The argument is printed without its type, as in loops; or the text is
                malformed or names an undefined alias.
        """
        from .segments import set_argument_location
        from .text_checks import check_location, require_text

        require_text(text, f"the location of '{self.name}'")
        raw = text if text.startswith("loc(") else f"loc({text})"
        check_location(self._holder, f"'{self.name}'", raw)
        set_argument_location(self, raw)

    def set_type(self, type_: str) -> None:
        self._owner._touch_label()
        super().set_type(type_)
