"""The tree of an LLVM IR module: entities, functions, blocks, instructions.

Who owns which character: an instruction owns its lines and the comment and blank lines in front of
them; a block owns its label's line and the comment and blank lines in front of that; a function
owns everything from ``define`` to the line feed behind its closing brace; an entity the lines of
anything else, comment and blank lines each by themselves.  So the module's text is that of its
parts, one behind the other, and an edit changes nothing but the instruction that was edited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

__all__ = ["Block", "Entity", "Function", "Instruction", "Module"]

_DEFINED = re.compile(r'(%(?:"[^"]*"|[-a-zA-Z$._0-9]+))[ \t]*=[ \t]*')
_OPCODE = re.compile(r"[ \t]*(?:(?:musttail|notail|tail)[ \t]+)?(#?[-a-zA-Z_.0-9]+)")
_LOCAL = re.compile(r'"[^"]*"|;[^\n]*|(%(?:"[^"]*"|[-a-zA-Z$._0-9]+))')
_DBG = re.compile(r"!dbg[ \t]+!([0-9]{1,18})")


@dataclass(eq=False, slots=True)
class Instruction:
    """One instruction, or a debug record (``#dbg_value(...)``) between instructions.

    Attributes:
        text: Its lines.
        line: Line of the module's text it began at, counted from 1; 0 for one that was inserted.
        lead: Comment and blank lines in front of it.
        block: Where it stands; ``None`` once it was erased.
    """

    text: str
    line: int
    lead: str = ""
    block: Block | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.lead + self.text

    @property
    def body_start(self) -> int:
        """Offset of the opcode in the text: behind indentation, result and its ``=``."""
        start = len(self._indentation)
        match = _DEFINED.match(self.text, start)
        return match.end() if match is not None else start

    @property
    def result(self) -> str:
        """Name of the value it defines, such as ``%12``; empty for none."""
        match = _DEFINED.match(self.text, len(self._indentation))
        return match[1] if match is not None else ""

    @property
    def _indentation(self) -> str:
        return self.text[: len(self.text) - len(self.text.lstrip())]

    @property
    def opcode(self) -> str:
        """Such as ``call``, without the words in front of it that say how a call ends."""
        match = _OPCODE.match(self.text, self.body_start)
        return match[1] if match is not None else ""

    @property
    def location(self) -> int | None:
        """Number of its ``!dbg`` attachment."""
        match = _DBG.search(self.text)
        return int(match[1]) if match is not None else None

    def local_names(self) -> Iterator[tuple[str, int]]:
        """The local names in it (values, labels, types) with their offsets in the text."""
        for match in _LOCAL.finditer(self.text):
            if match[1] is not None:
                yield match[1], match.start()

    def uses(self, name: str) -> tuple[int, ...]:
        """Offsets in the text at which a value is used."""
        if name not in self.text:
            return ()
        # In ``%1 = phi i32 [ %1, %2 ]`` the first one is the definition.
        body = self.body_start
        return tuple(at for found, at in self.local_names() if found == name and at >= body)

    def set_text(self, text: str) -> None:
        """Replaces the whole instruction."""
        self.text = text
        if self.block is not None:
            self.block.mark_changed()

    def replace(self, start: int, end: int, text: str) -> None:
        """Replaces a part of the text."""
        self.set_text(self.text[:start] + text + self.text[end:])

    def erase(self) -> None:
        """Takes the instruction out."""
        if self.block is None:
            raise ValueError(f"this instruction was erased before: {self.text.strip()}")
        self.block.remove(self)

    def insert_before(self, text: str) -> Instruction:
        """Puts an instruction in front of this one, with its indentation."""
        return self._insert(text, 0)

    def insert_after(self, text: str) -> Instruction:
        """Puts an instruction behind this one, with its indentation."""
        return self._insert(text, 1)

    def _insert(self, text: str, offset: int) -> Instruction:
        if self.block is None:
            raise ValueError(f"this instruction was erased: {self.text.strip()}")
        made = Instruction(f"{self._indentation}{text}\n", 0, block=self.block)
        instructions = self.block.instructions
        instructions.insert(instructions.index(self) + offset, made)
        self.block.mark_changed()
        return made


@dataclass(eq=False, slots=True)
class Block:
    """A basic block.

    Attributes:
        head: The label's line with the lines in front of it; empty for an entry block without.
        label: The label's name with its sigil, ``%60``; empty for an entry block without.
        instructions: In order.
        tail: Comment and blank lines in front of the function's closing brace.
        function: Where it stands.
    """

    head: str
    label: str
    instructions: list[Instruction]
    tail: str = ""
    function: Function | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.head + "".join(map(str, self.instructions)) + self.tail

    def mark_changed(self) -> None:
        """Notes that something in it was edited."""
        if self.function is not None:
            self.function.is_changed = True

    def remove(self, instruction: Instruction) -> None:
        """Takes an instruction out."""
        self.instructions.remove(instruction)
        instruction.block = None
        self.mark_changed()


@dataclass(eq=False)
class Function:
    """A function with a body.

    Attributes:
        header: From ``define`` to the line feed behind the opening brace.
        name: With its sigil, ``@kernel``.
        blocks: In order, the entry block first.
        footer: The closing brace's line.
        line: Line of the module's text at which it begins.
        is_changed: Whether it was edited.
    """

    header: str
    name: str
    blocks: list[Block]
    footer: str
    line: int
    is_changed: bool = False
    _made: int = 0

    def __str__(self) -> str:
        return self.header + "".join(map(str, self.blocks)) + self.footer

    def instructions(self) -> Iterator[Instruction]:
        """Its instructions, in order."""
        for block in self.blocks:
            yield from block.instructions

    def definition(self, name: str) -> Instruction | None:
        """The instruction that defines a value; ``None`` for an argument or an unknown name."""
        return next((one for one in self.instructions() if one.result == name), None)

    def users(self, name: str) -> list[Instruction]:
        """The instructions that use a value, in order."""
        return [one for one in self.instructions() if name in one.text and one.uses(name)]

    def fresh_name(self) -> str:
        """A name for a new value that nothing in the function has."""
        self._made += 1
        return f"%{self._prefix}{self._made}"

    @cached_property
    def _prefix(self) -> str:
        """A prefix that no name in the function has."""
        text, prefix = str(self), "ext."
        while f"%{prefix}" in text:
            prefix = f"_{prefix}"
        return prefix


@dataclass(eq=False, slots=True)
class Entity:
    """Anything at the top of a module that is no function with a body.

    Attributes:
        text: Its lines.
        keyword: The word it begins with, such as ``declare`` or ``attributes``; empty for none.
        name: The global that it defines or declares, or the number of a metadata node (``!7``);
            empty for none.
        line: Line of the module's text at which it begins.
    """

    text: str
    keyword: str
    name: str
    line: int

    def __str__(self) -> str:
        return self.text


@dataclass(eq=False)
class Module:
    """A module of LLVM IR; ``str`` gives its text.

    Attributes:
        entities: In order.
        filename: Its name in errors.
    """

    entities: list[Entity | Function]
    filename: str

    def __str__(self) -> str:
        return "".join(map(str, self.entities))

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions with a body, in order."""
        return tuple(one for one in self.entities if isinstance(one, Function))

    @property
    def declarations(self) -> tuple[Entity, ...]:
        """The functions without a body, in order."""
        return tuple(
            one for one in self.entities if isinstance(one, Entity) and one.keyword == "declare"
        )

    @cached_property
    def metadata(self) -> dict[int, str]:
        """Text of the numbered metadata nodes, as the module was read."""
        found: dict[int, str] = {}
        for one in self.entities:
            if isinstance(one, Entity) and one.name.startswith("!"):
                found[int(one.name[1:])] = one.text.partition("=")[2].strip()
        return found

    def remove(self, entity: Entity | Function) -> None:
        """Takes an entity out, and the blank line behind it where there is one."""
        index = self.entities.index(entity)
        del self.entities[index]
        behind = self.entities[index : index + 1]
        if behind and isinstance(behind[0], Entity) and behind[0].text in ("\n", "\r\n"):
            del self.entities[index]
