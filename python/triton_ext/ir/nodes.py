"""The tree: operations, regions, blocks and values.

An unedited :class:`Operation` prints the slice of the source that it was parsed from.  The first
edit of an operation, or of something inside it, cuts its text into *segments*: unchanged literal
pieces, and slots (result names, operands, types, regions, attribute dictionaries, the location)
that print the current tree.  See :mod:`triton_ext.ir.segments`.

Ownership of characters (every character has exactly one owner):

- *Operation*: from the end of what precedes it (so blank lines, indentation and own-line comments
  above it are its *lead*) to its last character, including a comment on the same line.  Erasing it
  removes all of this.
- *Block*: the label, from the end of what precedes it to the colon, and a comment on the same line.
  A block that is opened by its region's brace owns nothing itself.
- *Region*: the text between its last operation and its closing brace.  The braces belong to the
  operation that holds the region.
- *Module*: the text after its last operation.  Aliases are part of the lead of the top-level
  operation that follows them.

Operands are numbered in printed order.  Nodes compare by identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn

from ..errors import VerifyError
from .values import BlockArgument, OpResult, Value

if TYPE_CHECKING:
    from .lexer import Source
    from .locations import Location
    from .module import Module
    from .segments import Segment
    from .type_slots import TypeMarks

__all__ = ["Block", "Operation", "Region"]

#: Operations whose bodies cannot use outer names.
ISOLATED = frozenset(
    {"builtin.module", "func.func", "gpu.func", "gpu.module", "llvm.func", "tt.func"}
    | {"ttg.warp_specialize.partitions"}
)
_TERMINATOR_WORDS = frozenset(
    {"return", "yield", "condition", "br", "cond_br", "switch", "unreachable", "terminator"}
)


class Block:
    """A list of operations with arguments.

    Attributes:
        label: The printed label, ``^bb1``, or ``None`` for a block opened by its region's brace.
        parent: The region that holds the block.
    """

    __slots__ = ("_args", "_label_segments", "_lead", "_near", "_ops", "_span", "label", "parent")

    def __init__(self, parent: Region, label: str | None = None) -> None:
        self.parent = parent
        self.label = label
        self._args: list[BlockArgument] = []
        self._ops: list[Operation] = []
        # Index of the last lookup; the next one is often adjacent.
        self._near = 0
        # Offsets in the region's source: start of the lead, of the label, and the end of both.
        self._span: tuple[int, int, int] | None = None
        self._lead: str | None = None
        self._label_segments: list[Segment] | None = None

    @property
    def args(self) -> tuple[BlockArgument, ...]:
        """The arguments."""
        return tuple(self._args)

    @property
    def ops(self) -> tuple[Operation, ...]:
        """The operations, as a copy that edits do not affect."""
        return tuple(self._ops)

    @property
    def parent_op(self) -> Operation:
        """The operation around this block."""
        return self.parent.parent

    @property
    def terminator(self) -> Operation | None:
        """The last operation if it is a terminator; ``None`` if none is printed."""
        if not self._ops:
            return None
        last = self._ops[-1]
        word = last.name.rpartition(".")[2]
        ends = word in _TERMINATOR_WORDS or word.endswith(("_yield", "_return"))
        return last if ends or last._successors else None

    @property
    def predecessors(self) -> tuple[Operation, ...]:
        """The terminators that name this block, in printed order."""
        return tuple(
            block._ops[-1]
            for block in self.parent._blocks
            if block._ops and self in block._ops[-1]._successors
        )

    def _index(self, op: Operation) -> int:
        """Returns the index of one of the operations."""
        ops, near = self._ops, self._near
        for index in (near, near - 1, near + 1):
            if 0 <= index < len(ops) and ops[index] is op:
                break
        else:
            index = ops.index(op)
        self._near = index
        return index

    def _touch_label(self) -> None:
        """Marks the label (or the header with the arguments) as changed."""
        if self.label is not None and self._label_segments is None and self._span is not None:
            from .segments import cut_label

            self._label_segments = cut_label(self)
        self.parent.parent._touch()

    def _write(self, out: list[str]) -> None:
        if self._label_segments is not None:
            out.append(self._lead if self._lead is not None else "")
            for segment in self._label_segments:
                if type(segment) is str:
                    out.append(segment)
                else:
                    segment.write(self.parent.parent, out)  # type: ignore[union-attr]
        elif self._span is not None and self.label is not None:
            out.append(self.parent.source.text[self._span[0] : self._span[2]])
        for op in self._ops:
            op._write(out)


class Region:
    """A list of blocks.

    Attributes:
        parent: The operation that holds the region.
        isolated: Whether its operations can use only names of this region.
    """

    __slots__ = (
        "_blocks",
        "_definitions",
        "_names",
        "_span",
        "_tail",
        "isolated",
        "parent",
        "source",
    )

    def __init__(self, parent: Operation, source: Source, *, isolated: bool) -> None:
        self.parent = parent
        self.source = source
        self.isolated = isolated
        self._blocks: list[Block] = []
        self._span = (0, 0)
        self._tail = ""
        # All names given in this region, each with the next number to try.
        self._names: dict[str, int] | None = None
        # The values of a name at its last lookup.
        self._definitions: dict[str, list[Value]] = {}

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks; never empty."""
        return tuple(self._blocks)

    def _write(self, out: list[str]) -> None:
        for block in self._blocks:
            block._write(out)
        out.append(self._tail)


class Operation:
    """One operation with everything printed for it.

    Attributes:
        name: Full name with the dialect, ``"tt.load"``, also for the generic form and for
            ``module``, ``func`` and ``return``.
        parent: The block that holds the operation; ``None`` for a top-level or erased one.
        source: The text that the operation was parsed from.
    """

    __slots__ = (
        "_attr_cache",
        "_attr_spans",
        "_dirty",
        "_lead",
        "_loc",
        "_module",
        "_operand_spans",
        "_operands",
        "_regions",
        "_results",
        "_segments",
        "_span",
        "_successors",
        "_type_marks",
        "name",
        "parent",
        "source",
    )

    def __init__(self, source: Source, name: str, parent: Block | None) -> None:
        self.source = source
        self.name = name
        self.parent = parent
        # Offsets: lead, first character, end of the name, end without and with a trailing comment.
        self._span: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
        # The lead, if it differs from the source.
        self._lead: str | None = None
        self._operands: list[Value] = []
        self._operand_spans: tuple[int, ...] | None = None
        self._results: list[OpResult] = []
        self._regions: list[Region] = []
        self._successors: list[Block] = []
        self._attr_spans: tuple[int, ...] = ()
        self._attr_cache: dict[str, str] | None = None
        # The location: offsets in the source, a text that was set, or None.
        self._loc: tuple[int, int] | str | None = None
        self._segments: list[Segment] | None = None
        self._type_marks: TypeMarks | None = None
        self._dirty = False
        self._module: Module | None = None

    # ---- reading

    @property
    def operands(self) -> tuple[Value, ...]:
        """The operands in printed order."""
        return tuple(self._operands)

    @property
    def results(self) -> tuple[OpResult, ...]:
        """The results."""
        return tuple(self._results)

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions in printed order.

        ``ttg.warp_specialize`` has its default region, then one region for each partition.
        """
        return tuple(self._regions)

    @property
    def successors(self) -> tuple[Block, ...]:
        """The blocks that a terminator names."""
        return tuple(self._successors)

    @property
    def attributes(self) -> Mapping[str, str]:
        """Name to raw text of each attribute in the operation's dictionaries.

        Names are unquoted; an attribute without a value has the text ``unit``.  Attributes printed
        outside of a dictionary are not included.
        """
        if self._attr_cache is None:
            from .attributes import read_attributes

            self._attr_cache = read_attributes(self)
        return self._attr_cache

    @property
    def parent_op(self) -> Operation | None:
        """The enclosing operation."""
        return None if self.parent is None else self.parent.parent.parent

    @property
    def module(self) -> Module | None:
        """The module of this operation; ``None`` after it was erased."""
        op: Operation = self
        while op.parent is not None:
            op = op.parent.parent.parent
        return op._module

    @property
    def loc_text(self) -> str | None:
        """The printed location, ``loc(...)``, or ``None``."""
        if isinstance(self._loc, tuple):
            return self.source.text[self._loc[0] : self._loc[1]]
        return self._loc

    @property
    def loc(self) -> Location | None:
        """The printed location, or ``None``."""
        raw = self.loc_text
        if raw is None:
            return None
        from .locations import Location

        module = self.module
        return Location(raw, module.aliases if module is not None else {})

    @property
    def is_quoted(self) -> bool:
        """Returns whether it is printed in the generic form, ``"tt.load"(%p) : (...) -> ...``."""
        return self.source.text.startswith('"', self._span[2])

    @property
    def text(self) -> str:
        """The operation as printed, without its lead."""
        out: list[str] = []
        self._write(out)
        return "".join(out)[len(self.lead) :]

    @property
    def lead(self) -> str:
        """Blank space and comments before the operation, which it owns."""
        if self._lead is not None:
            return self._lead
        return self.source.text[self._span[0] : self._span[1]]

    def walk(self) -> Iterator[Operation]:
        """Yields this operation, then every nested operation, in printed order.

        Directly nested operations are listed when the walk reaches their parent: those erased
        before their turn are skipped, those inserted later are not visited.
        """
        yield self
        stack = [iter(self._nested())]
        while stack:
            op = next(stack[-1], None)
            if op is None:
                stack.pop()
            elif op.parent is not None:
                yield op
                if op._regions and op.parent is not None:
                    stack.append(iter(op._nested()))

    def _nested(self) -> list[Operation]:
        return [op for region in self._regions for block in region._blocks for op in block._ops]

    def __repr__(self) -> str:
        return f"<Operation {self.name}>"

    def __str__(self) -> str:
        return self.text

    # ---- editing

    def set_operand(self, index: int, value: Value) -> None:
        """Replaces an operand; the types that the operation prints follow.

        Args:
            index: Number of the operand; negative ones count from the end.
            value: The value.

        Raises:
            IndexError: There is no such operand.
            TypeError: ``value`` is not a :class:`Value`.
            VerifyError: The operation was erased.
        """
        from .segments import cut

        if not isinstance(value, Value):
            raise TypeError(
                f"expected a Value for operand {index} of '{self.name}', found {value!r}"
            )
        try:
            old = self._operands[index]
        except IndexError:
            self._fail_operand(index)
        if old is value:
            return
        cut(self)
        old._drop_user(self)
        value._add_user(self)
        self._operands[index] = value
        self._touch()

    def _fail_operand(self, index: int) -> NoReturn:
        if self.module is None:
            self.fail(f"cannot set an operand of '{self.name}': it was erased")
        count = len(self._operands)
        raise IndexError(f"'{self.name}' has {count} operands, there is no operand {index}")

    def erase(self) -> None:
        """Removes the operation, with everything inside it, from its block.

        Raises:
            VerifyError: A result still has uses.
        """
        inner = set(self.walk())
        for op in inner:
            for result in op._results:
                for user in result._users:
                    if user not in inner:
                        self.fail(
                            f"cannot erase '{self.name}': its result '{result.name}' is used",
                            *user._note("used here"),
                        )
        self._detach()
        for op in inner:
            for operand in op._operands:
                operand._drop_user(op)
            op._operands = []
            op._operand_spans = ()
            op._segments = None

    def _detach(self) -> None:
        if self.parent is None:
            self.fail(f"cannot remove '{self.name}': it is not in a block")
        ops = self.parent._ops
        index = self.parent._index(self)
        del ops[index]
        if index == 0 and self.parent.parent.parent._span[4] == 0:
            # In an implicit module the aliases before the first operation must stay.
            if ops:
                ops[0]._lead = self.lead + ops[0].lead.lstrip()
                ops[0]._touch()
            else:
                self.parent.parent._tail = self.lead
        self.parent.parent.parent._touch()
        self.parent = None

    def replace_with(self, new_op: Operation) -> None:
        """Replaces this operation by one that is in a block, result by result, and erases it.

        Raises:
            VerifyError: The numbers of results differ, the operation is in no block, the new one is
                inside it, or uses its results.  Nothing has changed then.
        """
        if self.parent is None:
            self.fail(f"cannot replace '{self.name}': it is not in a block")
        around: Operation | None = new_op
        while around is not None and around is not self:
            around = around.parent_op
        if around is not None:
            self.fail(f"cannot replace '{self.name}' by '{new_op.name}', which is inside of it")
        if len(new_op._results) != len(self._results):
            self.fail(
                f"cannot replace '{self.name}' with {len(self._results)} results by"
                f" '{new_op.name}' with {len(new_op._results)}"
            )
        inner = set(new_op.walk())
        if not inner.isdisjoint(user for old in self._results for user in old._users):
            self.fail(f"cannot replace '{self.name}' by '{new_op.name}', which uses its result")
        for old, new in zip(self._results, new_op._results, strict=True):
            old.replace_all_uses_with(new)
        self.erase()

    def move_before(self, anchor: Operation) -> None:
        """Moves the operation before another one."""
        from .edits import move_before

        move_before(self, anchor)

    def move_after(self, anchor: Operation) -> None:
        """Moves the operation after another one."""
        from .edits import move_after

        move_after(self, anchor)

    def set_attribute(self, name: str, text: str) -> None:
        """Sets an attribute in a dictionary to a raw text; ``unit`` prints no value.

        Args:
            name: Its name, without quotes.
            text: Its value as printed.

        Raises:
            TypeError: Name or text is not a string.
            VerifyError: The printed form has no dictionary, the operation was erased, or the name
                or the text is malformed or names an undefined alias.
        """
        from .attributes import write_attribute
        from .text_checks import check_attribute, require_attached

        require_attached(self, "set an attribute")
        check_attribute(self, name, text)
        write_attribute(self, name, text)

    def remove_attribute(self, name: str) -> None:
        """Removes an attribute.

        Raises:
            KeyError: There is no such attribute.
            VerifyError: The operation was erased.
        """
        from .attributes import write_attribute
        from .text_checks import require_attached

        require_attached(self, "remove an attribute")
        write_attribute(self, name, None)

    def set_loc(self, text: str) -> None:
        """Sets the printed location to a raw text, ``loc(...)`` or an alias.

        Raises:
            TypeError: It is not a string.
            VerifyError: It is malformed or names an undefined alias, or the operation was erased.
        """
        from .segments import set_location
        from .text_checks import check_location, require_attached, require_text

        require_text(text, f"the location of '{self.name}'")
        require_attached(self, "set the location")
        raw = text if text.startswith("loc(") else f"loc({text})"
        check_location(self, f"'{self.name}'", raw)
        set_location(self, raw)

    # ---- errors

    def error(self, message: str, *notes: str) -> VerifyError:
        """Returns an error at this operation's location in its source."""
        line, column = self.source.line_and_column(self._span[1])
        return VerifyError(
            message,
            filename=self.source.filename,
            line=line,
            column=column,
            source_line=self.source.line_at(self._span[1]),
            notes=notes,
        )

    def fail(self, message: str, *notes: str) -> NoReturn:
        """Raises a :class:`~triton_ext.errors.VerifyError` at this operation's location."""
        raise self.error(message, *notes)

    def _note(self, what: str) -> tuple[str, ...]:
        line, column = self.source.line_and_column(self._span[1])
        return (f"{what}: {self.source.filename}:{line}:{column}",)

    # ---- printing

    def _touch(self) -> None:
        """Marks this operation and its ancestors as changed."""
        op: Operation | None = self
        while op is not None and not op._dirty:
            op._dirty = True
            op = op.parent_op

    def _write(self, out: list[str]) -> None:
        if not self._dirty:
            if self._lead is None:
                out.append(self.source.text[self._span[0] : self._span[4]])
            else:
                out.append(self._lead)
                out.append(self.source.text[self._span[1] : self._span[4]])
            return
        if self._segments is None:
            from .segments import cut

            cut(self)
        out.append(self.lead)
        for segment in self._segments or ():
            if type(segment) is str:
                out.append(segment)
            else:
                segment.write(self, out)  # type: ignore[union-attr]
