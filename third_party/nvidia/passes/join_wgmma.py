"""WGMMAs behind a marker, over neighbouring columns, become one: in LLVM IR, on every host.

What ``gluon.joined_mma`` leaves, here of 128 + 32 columns and one step of 16::

    %1 = call i32 @triton_ext.wgmma.join(i32 128, i32 32)
    call void @llvm.nvvm.wgmma.fence.sync.aligned()
    %2 = call { 64 x float } asm sideeffect "wgmma... m64n128k16 ..."(.., i64 %a, i64 %b, ..)
    call void @llvm.nvvm.wgmma.commit_group.sync.aligned()
    call void @llvm.nvvm.wgmma.fence.sync.aligned()
    %3 = call { 16 x float } asm sideeffect "wgmma... m64n32k16 ..."(.., i64 %a, i64 %c, ..)
    call void @llvm.nvvm.wgmma.commit_group.sync.aligned()

After::

    call void @llvm.nvvm.wgmma.fence.sync.aligned()
    %2 = call { 80 x float } asm sideeffect "wgmma... m64n160k16 ..."(.., i64 %a, i64 %b, ..)
    call void @llvm.nvvm.wgmma.commit_group.sync.aligned()

A wait behind them counts them as one, as ``warpgroup_mma_joined`` says: an empty group would be one
more instruction for the tensor cores.

Properties of the WGMMAs that become one:

1. Their left operand, depth, types, flags and predicate are the same.
2. The right operand of each begins where that of the one before ends: N / 8 groups of 8 rows behind
   it, as far apart as its descriptor says (:mod:`.smem_descriptors`).
3. Nothing that has an effect stands between them but their fences and ends of groups.
4. They and the marker come from the same call, as far as their source locations are known.

LLVM merges equal instructions at the start of both sides of a branch.  So a marker in front of a
branch, with nothing but values behind it, counts for every side that is entered from there alone.

Safe direction: a marker behind which that does not hold, or cannot be seen, is an error at the
user's line.  Not covered: left operands in registers, transposed right operands, accumulators of
fp16.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from triton_ext.errors import PassError
from triton_ext.llvm_ir import (
    Block,
    Call,
    Entity,
    Function,
    Instruction,
    Module,
    parse,
    source_position,
)
from triton_ext.markers import JOIN

from ..dialect.wgmma_asm import MAX_N, Wgmma, joined_text, result_type
from .call_flow import error_in
from .smem_descriptors import descriptor_of

__all__ = ["join_wgmma"]

_FENCE: Final = "@llvm.nvvm.wgmma.fence.sync.aligned"
_WAIT: Final = "wgmma.wait_group.sync.aligned"
_COMMIT: Final = "@llvm.nvvm.wgmma.commit_group.sync.aligned"
# Instructions that only compute a value.
_PURE: Final = frozenset(
    {"add", "and", "ashr", "bitcast", "extractelement", "extractvalue", "freeze", "getelementptr"}
    | {"icmp", "insertelement", "insertvalue", "lshr", "mul", "or", "ptrtoint", "select", "sext"}
    | {"shl", "shufflevector", "sub", "trunc", "xor", "zext"}
)
_LABEL: Final = re.compile(r'\blabel (%(?:"[^"]*"|[-\w$.]+))')
_EXTRACT: Final = re.compile(r"extractvalue \{[^}]*\} (?P<value>%[-\w$.]+), (?P<index>\d+)\b")


def join_wgmma(text: str, filename: str = "<llir>") -> str:
    """Joins the WGMMAs behind each marker of an LLVM IR module.

    Args:
        text: The module.
        filename: Its name in errors about places that have no place in the user's program.

    Raises:
        ParseError: The module is malformed.
        PassError: The WGMMAs behind a marker cannot become one.
    """
    if JOIN not in text:
        return text
    module = parse(text, filename)
    for function in module.functions:
        markers = _markers(function)
        if markers:
            _join_function(module, function, markers)
    for entity in list(module.entities):
        if isinstance(entity, Entity) and _belongs_to_marker(entity):
            module.remove(entity)
    return str(module)


def _marker(instruction: Instruction) -> Call | None:
    if JOIN not in instruction.text:
        return None
    call = Call.match(instruction)
    return call if call is not None and call.callee.strip('@"') == JOIN else None


def _markers(function: Function) -> list[Call]:
    """The markers, in the blocks of their WGMMAs.

    Of equal ones that begin both ways of a branch LLVM makes one in front of it: that becomes two
    again.
    """
    waiting = [call for call in map(_marker, function.instructions()) if call is not None]
    found: list[Call] = []
    while waiting:
        marker = waiting.pop()
        instruction = marker.instruction
        ways = _ways(function, instruction)
        for block in ways:
            first = next(one for one in block.instructions if one.opcode != "phi")
            body = instruction.text[instruction.body_start :].rstrip()
            copy = _marker(first.insert_before(f"{function.fresh_name()} = {body}"))
            assert copy is not None
            waiting.append(copy)
        if ways:
            _erase_marker(function, instruction)
        else:
            found.append(marker)
    return found


def _erase_marker(function: Function, marker: Instruction) -> None:
    """Removes a marker, and the debug records of its result, which has no other use."""
    for record in function.users(marker.result) if marker.result else ():
        record.erase()
    marker.erase()


def _ways(function: Function, marker: Instruction) -> list[Block]:
    """The blocks that are entered from a marker's block alone; none if it has WGMMAs itself."""
    block = marker.block
    assert block is not None
    *behind, end = block.instructions[block.instructions.index(marker) + 1 :]
    labels = set(_LABEL.findall(end.text))
    others = [one.instructions[-1].text for one in function.blocks if one is not block]
    if not all(map(_is_pure, behind)) or labels.intersection(_LABEL.findall("".join(others))):
        return []
    return [one for one in function.blocks if one.label in labels and one is not block]


def _belongs_to_marker(entity: Entity) -> bool:
    if entity.keyword == "declare":
        return JOIN in entity.name
    return f'!DISubprogram(name: "{JOIN}"' in entity.text


def _join_function(module: Module, function: Function, markers: Sequence[Call]) -> None:
    names = _Names.of(function)
    for marker in markers:
        groups = _Groups(module, marker)
        groups.read()
        parts = groups.matched(names.definitions)
        for together in parts:
            _join(module, function, together, names, groups.fences[0])
        for unneeded in (*groups.fences[1:], *groups.commits[1:]):
            unneeded.erase()
        _erase_marker(function, marker.instruction)


@dataclass(frozen=True, slots=True)
class _Names:
    """The definitions and uses of a function's values.

    Attributes:
        definitions: The instructions by the names of their results.
        extracts: For each WGMMA's result, the instructions that take a register out of it.
        others: For each, the other instructions that use it.
        early: For what stands behind the WGMMA that was joined, its name right behind it; for what
            is added to, but is computed between WGMMAs, its name in front of their fence.
    """

    definitions: dict[str, Instruction]
    extracts: dict[str, list[Instruction]]
    others: dict[str, list[Instruction]]
    early: dict[str, str]

    @classmethod
    def of(cls, function: Function) -> _Names:
        """Reads a function once."""
        instructions = list(function.instructions())
        definitions = {one.result: one for one in instructions if one.result}
        results = {one.result for one in instructions if Wgmma.is_one(one)}
        names = cls(definitions, {name: [] for name in results}, {name: [] for name in results}, {})
        for one in instructions:
            extract = _EXTRACT.match(one.text, one.body_start)
            if extract is not None:
                if extract["value"] in results:
                    names.extracts[extract["value"]].append(one)
                continue
            start = one.body_start
            for name, at in one.local_names():
                if name in results and at >= start:
                    names.others[name].append(one)
        return names


@dataclass(slots=True)
class _Groups:
    """The WGMMAs behind a marker, as they are committed.

    Attributes:
        module: The module.
        marker: The marker.
        groups: For each count of columns that it names, the WGMMAs.
        fences: The fences in front of them.
        commits: The ends of the groups.
    """

    module: Module
    marker: Call
    groups: list[list[Wgmma]] = field(default_factory=list)
    fences: list[Instruction] = field(default_factory=list)
    commits: list[Instruction] = field(default_factory=list)

    def read(self) -> None:
        """Finds them, and sees that nothing that has an effect stands between them."""
        columns = [int(arg.text) for arg in self.marker.args if arg.text.isdigit()]
        if len(columns) != len(self.marker.args) or len(columns) < 2 or sum(columns) > MAX_N:
            shown = ", ".join(arg.text for arg in self.marker.args)
            raise self._error(f"expected at least 2 counts of up to {MAX_N} columns, got {shown}")
        block = self.marker.instruction.block
        assert block is not None
        behind = block.instructions[block.instructions.index(self.marker.instruction) + 1 :]
        current: list[Wgmma] = []
        for one in behind:
            if Wgmma.is_one(one):
                self._check_call(one)
                wgmma = Wgmma.match(one)
                if wgmma is None or wgmma.is_transposed:
                    raise self._error(
                        "expected both operands in shared memory, the columns of the right one "
                        "together there (of a buffer [N, K], give .permute((1, 0))), and "
                        "accumulators of fp32",
                        one,
                    )
                current.append(wgmma)
            elif _FENCE in one.text:
                self.fences.append(one)
            elif _COMMIT in one.text:
                self.groups.append(current)
                self.commits.append(one)
                current = []
                if len(self.groups) == len(columns):
                    break
            elif _WAIT in one.text and self.groups and not current:
                raise self._error(
                    f"{len(self.groups)} of {len(columns)} products are left in front of a wait: "
                    "equal ones, of one right operand and one accumulator, are computed once"
                )
            elif (self.groups or current) and not _is_pure(one):
                raise self._error(f"{_shown(one)} stands between them", one)
        self._check_widths(columns)

    def _check_call(self, wgmma: Instruction) -> None:
        """Refuses a WGMMA of another call, which the marker would take for one of its own.

        Results that nobody uses are not computed; their marker stays.
        """
        mine, other = (source_position(self.module, at) for at in (self.marker.instruction, wgmma))
        if mine is None or other is None or mine == other:
            return
        # LLVM gives an instruction merged from two places no line or column; Triton counts from 1.
        if mine[2] and other[2]:
            where = ":".join(map(str, other))
            raise self._error(f"the next ones are of the call at {where}: is the result unused?")

    def _check_widths(self, columns: list[int]) -> None:
        found = [sorted({one.columns for one in group}) for group in self.groups]
        if found != [[width] for width in columns]:
            shown = ", ".join("+".join(map(str, widths)) or "none" for widths in found) or "none"
            wanted = ", ".join(map(str, columns))
            hint = "" if found else ": is the result unused, or not waited for?"
            raise self._error(f"expected groups of {wanted} columns, found {shown}{hint}")
        if len({len(group) for group in self.groups}) != 1:
            raise self._error("the groups of columns have different numbers of them")
        if len(self.fences) != len(columns):
            raise self._error(f"expected {len(columns)} fences, found {len(self.fences)}")

    def matched(self, definitions: dict[str, Instruction]) -> list[tuple[Wgmma, ...]]:
        """Returns the WGMMAs that become one each, in order."""
        rows = list(zip(*self.groups, strict=True))
        for row in rows:
            for before, behind in itertools.pairwise(row):
                self._check_neighbours(before, behind, definitions)
        return rows

    def _check_neighbours(
        self, before: Wgmma, behind: Wgmma, definitions: dict[str, Instruction]
    ) -> None:
        where = behind.call.instruction
        for what, one, other in (
            ("depth or types", before.kind, behind.kind),
            ("flags", before.flags, behind.flags),
            ("predicate (0: one adds to nothing)", before.scale, behind.scale),
        ):
            if one != other:
                shown = " and ".join(repr(text.removeprefix(", ")) for text in (one, other))
                raise self._error(f"they differ in {what}: {shown}", where)
        if before.left != behind.left:
            lefts = [descriptor_of(one.left, definitions) for one in (before, behind)]
            if lefts[0] is None or lefts[1] is None or lefts[0].distance_bytes(lefts[1]) != 0:
                raise self._error("they do not read the same left operand", where)
        rights = [descriptor_of(one.right, definitions) for one in (before, behind)]
        if rights[0] is None or rights[1] is None:
            raise self._error("the addresses of their right operands are not known", where)
        wanted = before.columns // 8 * rights[0].group_bytes
        distance = rights[0].distance_bytes(rights[1])
        if distance is None:
            raise self._error(
                "their right operands are not known to lie in a row, in one layout", where
            )
        if distance != wanted:
            raise self._error(
                f"a right operand lies {distance} bytes behind the one before: {wanted} is right "
                "behind it",
                where,
            )

    def _error(self, message: str, instruction: Instruction | None = None) -> PassError:
        return _error(self.module, instruction or self.marker.instruction, message)


def _shown(instruction: Instruction) -> str:
    call = Call.match(instruction)
    if call is not None and not call.callee:
        return "inline assembly"
    called = f" of {call.callee}" if call is not None else ""
    return f"{instruction.opcode!r}{called}"


def _is_pure(instruction: Instruction) -> bool:
    return instruction.opcode in _PURE or instruction.opcode.startswith("#dbg_")


def _join(
    module: Module,
    function: Function,
    parts: tuple[Wgmma, ...],
    names: _Names,
    fence: Instruction,
) -> None:
    """Makes one WGMMA of several, where the first one stands, behind the fence that stays."""
    first = parts[0].call.instruction
    block = first.block
    assert block is not None
    columns = sum(part.columns for part in parts)
    # A fence orders what other instructions wrote into accumulators with the WGMMAs behind it.
    behind = block.instructions[block.instructions.index(fence) :]
    late = {one.result: one for one in behind if one.result}
    for name in _added_to(parts[1:]):
        if name not in late or name in names.early:
            continue
        if not _compute_early(function, name, late, names, fence):
            raise _error(
                module,
                late[name],
                f"the accumulator {name} is not there yet at the fence of the first one",
            )
    text = joined_text(parts, [names.early.get(name, name) for name in _added_to(parts)])
    result, type_ = first.result, result_type(columns)
    first.set_text(f"{first.text[: first.body_start]}{text}\n")
    before = 0
    for part in parts:
        old = part.call.instruction
        for use in names.others[old.result]:
            if not use.opcode.startswith("#dbg_"):
                raise _error(module, use, f"{use.opcode!r} uses an accumulator as a whole")
            if use.block is not None:
                use.erase()
        for extract in names.extracts[old.result]:
            match = _EXTRACT.match(extract.text, extract.body_start)
            assert match is not None
            body = f"extractvalue {type_} {result}, {before + int(match['index'])}"
            extract.replace(match.start(), match.end(), body)
            if old is not first:
                # It stands too far behind for what is joined next; and stays, because LLVM wants
                # the numbers of values in order.
                early = names.early[extract.result] = function.fresh_name()
                first.insert_after(f"{early} = {body}{_attached(extract)}")
        before += part.columns // 2
    for part in parts[1:]:
        part.call.instruction.erase()


def _compute_early(
    function: Function, name: str, late: dict[str, Instruction], names: _Names, fence: Instruction
) -> bool:
    """Computes a value in front of a fence, too; tells whether all that it needs is there.

    Args:
        function: The function.
        name: Name of a value that is computed behind the fence.
        late: The instructions behind the fence, by the names of their results.
        names: Gets its name in front of the fence.
        fence: The fence.
    """
    if name in names.early:
        return names.early[name] not in late
    one = late[name]
    # Two freezes of one value need not agree.
    if not _is_pure(one) or one.opcode == "freeze":
        return False
    body = one.text[one.body_start :].rstrip()
    for used, at in reversed(list(one.local_names())):
        if at < one.body_start or used not in late:
            continue
        if not _compute_early(function, used, late, names, fence):
            return False
        start = at - one.body_start
        body = f"{body[:start]}{names.early[used]}{body[start + len(used) :]}"
    names.early[name] = function.fresh_name()
    fence.insert_before(f"{names.early[name]} = {body}")
    return True


def _added_to(parts: Sequence[Wgmma]) -> list[str]:
    return [name for part in parts for name in part.accumulator]


def _attached(instruction: Instruction) -> str:
    """Returns the debug location of an instruction, to append to one that replaces it."""
    location = instruction.location
    return f", !dbg !{location}" if location is not None else ""


def _error(module: Module, instruction: Instruction, message: str) -> PassError:
    text = f"these WGMMAs cannot become one, as warpgroup_mma_joined asks: {message}"
    return error_in(module, instruction, text)
