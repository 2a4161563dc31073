"""How far apart two matrix descriptors of WGMMAs are, as LLVM IR computes them.

A descriptor (PTX ISA, "Matrix Descriptor") is ``(address >> 4) & mask`` with constants added.  An
address is taken apart into ``constant + factor * value + ..``.  The value is the condition in a
choice of two that are a constant apart, and the way in a choice of constants where ways meet.  Two
addresses whose values and factors are equal are their constants apart.

Safe direction: what is not understood is a value of its own, which equals nothing but itself, and a
descriptor that is not of this form is none.  Addresses of shared memory have fewer than 18 bits
(CUDA C++ Programming Guide, 228 KB), so neither the mask nor the sum loses any of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from triton_ext.llvm_ir import Instruction, Phi

__all__ = ["Descriptor", "descriptor_of"]

_NAME: Final = r'(?:"[^"]*"|[-\w$.]+)'
_VALUE: Final = rf"(?:[%@]{_NAME}|-?\d+)"
_BINARY: Final = re.compile(
    rf"(?P<opcode>add|sub|mul|shl|or|and|lshr)(?P<flags>(?: (?:nuw|nsw|exact|disjoint))*) "
    rf"i(?:32|64) (?P<left>{_VALUE}), (?P<right>{_VALUE})\b"
)
_SMEM: Final = r"ptr addrspace\(3\)"
_GEP_WORDS: Final = r"getelementptr(?: inbounds| nuw| nusw)*"
_SIZES: Final = {"i8": 1, "i16": 2, "half": 2, "bfloat": 2, "i32": 4, "float": 4, "i64": 8}
_ELEMENT: Final = rf"(?:\[(?P<count>\d+) x )?(?P<element>{'|'.join(_SIZES)})\]?"
_CONSTANT_GEP: Final = re.compile(
    rf"{_GEP_WORDS} \({_ELEMENT}, {_SMEM} (?P<base>{_VALUE}), i32 (?P<index>-?\d+)\)"
)
_ADDRESS: Final = rf"{_VALUE}|{_GEP_WORDS} \([^()]*\([^()]*\)[^()]*\)"
_GEP: Final = re.compile(
    rf"{_GEP_WORDS} {_ELEMENT}, {_SMEM} (?P<base>{_ADDRESS}), i32 (?P<index>{_VALUE})(?!, i32)"
)
# An instruction, and with parentheses a constant.
_PTRTOINT: Final = re.compile(rf"ptrtoint \(?{_SMEM} (?P<address>{_ADDRESS}) to i32\b")
_SHIFT: Final = re.compile(
    rf"lshr(?: exact)? i32 (?P<number>{_VALUE}|ptrtoint \({_SMEM} (?:{_ADDRESS}) to i32\)), 4\b"
)
_SELECT: Final = re.compile(
    rf"select i1 (?P<condition>%{_NAME}), i32 (?P<yes>{_VALUE}), i32 (?P<no>{_VALUE})(?![-\w$.])"
)
_ZEXT: Final = re.compile(rf"zext(?: nneg)? i32 (?P<value>{_VALUE}) to i64\b")
_BITCAST: Final = re.compile(rf"bitcast <2 x i32> (?P<value>{_VALUE}) to i64\b")
_INSERT: Final = re.compile(
    r"insertelement <2 x i32> <i32 (?:poison|undef), i32 (?P<high>-?\d+)>, "
    rf"i32 (?P<low>{_VALUE}), i(?:32|64) 0\b"
)
_WORD: Final = 1 << 32
# Bits of a descriptor: the address has 14 of them, the distance of groups of 8 rows stands at 32.
_ADDRESS_BITS: Final = 14
_STRIDE_AT: Final = 32
_UNIT_BYTES: Final = 16

Definitions = Mapping[str, Instruction]


@dataclass(frozen=True, slots=True)
class _Sum:
    """``constant + factor * value + ..`` modulo 2^32."""

    constant: int
    terms: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: _Sum) -> _Sum:
        terms = dict(self.terms)
        for name, factor in other.terms:
            terms[name] = (terms.get(name, 0) + factor) % _WORD
        kept = tuple(sorted(term for term in terms.items() if term[1]))
        return _Sum((self.constant + other.constant) % _WORD, kept)

    def times(self, factor: int) -> _Sum:
        """The product with a constant."""
        return _Sum(0) + _Sum(
            self.constant * factor % _WORD, tuple((n, f * factor % _WORD) for n, f in self.terms)
        )


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A matrix descriptor.

    Attributes:
        constant: The number that is added to the address.
        address: In bytes, without the constant part.
        offset_bytes: The constant part, signed.
    """

    constant: int
    address: tuple[tuple[str, int], ...]
    offset_bytes: int

    def distance_bytes(self, other: Descriptor) -> int | None:
        """How far behind this one another lies; ``None`` where they differ in anything else."""
        low = (1 << _ADDRESS_BITS) - 1
        if self.address != other.address or self.constant & ~low != other.constant & ~low:
            return None
        units = (other.constant & low) - (self.constant & low)
        return units * _UNIT_BYTES + other.offset_bytes - self.offset_bytes

    @property
    def group_bytes(self) -> int:
        """How far groups of 8 rows (columns of the product) are apart."""
        return (self.constant >> _STRIDE_AT & (1 << _ADDRESS_BITS) - 1) * _UNIT_BYTES


def descriptor_of(value: str, definitions: Definitions) -> Descriptor | None:
    """Returns the descriptor that a 64-bit value is; ``None`` for one that is not understood.

    Args:
        value: Its name.
        definitions: The instructions by the names of their results.
    """
    constant = 0
    while value in definitions:
        body = _body(definitions[value])
        binary, low = _BINARY.match(body), _ZEXT.match(body)
        pair = _BITCAST.match(body)
        insert = None
        if pair is not None and pair["value"] in definitions:
            insert = _INSERT.match(_body(definitions[pair["value"]]))
        if insert is not None:
            constant += int(insert["high"]) % _WORD << 32
            value = insert["low"]
        elif low is not None:
            value = low["value"]
        elif binary is not None and _adds(binary) and binary["right"].lstrip("-").isdigit():
            constant += int(binary["right"]) % (1 << 64)
            value = binary["left"]
        elif binary is not None and binary["opcode"] == "and":
            address = _masked_address(binary, definitions)
            if address is None or constant >> _ADDRESS_BITS & 3:
                return None
            return _made(constant % (1 << 64), address)
        else:
            return None
    return None


def _made(constant: int, address: _Sum) -> Descriptor | None:
    offset = address.constant - _WORD if address.constant >= _WORD // 2 else address.constant
    # Otherwise the shift would lose what the sum has not.
    aligned = offset // _UNIT_BYTES * _UNIT_BYTES
    rest = offset - aligned
    terms = address.terms if not rest else (*address.terms, ("", rest))
    return Descriptor(constant, terms, aligned)


def _adds(binary: re.Match[str]) -> bool:
    return binary["opcode"] == "add" or (binary["opcode"] == "or" and "disjoint" in binary["flags"])


def _masked_address(mask: re.Match[str], definitions: Definitions) -> _Sum | None:
    """The address of ``and (lshr address, 4), mask``."""
    bits = int(mask["right"]) + 1 if mask["right"].isdigit() else 0
    if bits < 1 << _ADDRESS_BITS or bits & (bits - 1) or mask["left"] not in definitions:
        return None
    shift = _SHIFT.match(_body(definitions[mask["left"]]))
    return _number(shift["number"], definitions) if shift is not None else None


def _address(text: str, definitions: Definitions) -> _Sum:
    """An address in shared memory."""
    found = _CONSTANT_GEP.fullmatch(text)
    if found is None and text in definitions:
        found = _GEP.match(_body(definitions[text]))
    if found is None:
        return _Sum(0, ((text, 1),))
    step = int(found["count"] or 1) * _SIZES[found["element"]]
    index = _number(found["index"], definitions).times(step)
    return _address(found["base"], definitions) + index


def _number(text: str, definitions: Definitions) -> _Sum:
    """A 32-bit number."""
    if text.lstrip("-").isdigit():
        return _Sum(int(text) % _WORD)
    body = _body(definitions[text]) if text in definitions else text
    cast, chosen, binary = _PTRTOINT.match(body), _SELECT.match(body), _BINARY.match(body)
    found = None
    if cast is not None:
        found = _address(cast["address"], definitions)
    elif chosen is not None:
        found = _choice(chosen, definitions)
    elif binary is not None:
        found = _result(binary, definitions)
    elif text in definitions:
        found = _way(definitions[text])
    return found if found is not None else _Sum(0, ((text, 1),))


def _choice(chosen: re.Match[str], definitions: Definitions) -> _Sum | None:
    """One of two that are a constant apart: that times the condition, 0 or 1, is added."""
    yes, no = _number(chosen["yes"], definitions), _number(chosen["no"], definitions)
    if yes.terms != no.terms:
        return None
    return no + _Sum(0, ((chosen["condition"], (yes.constant - no.constant) % _WORD),))


def _way(instruction: Instruction) -> _Sum | None:
    """A constant for each way into a block: what it is on the first one, and how far from that."""
    phi = Phi.match(instruction)
    if phi is None or not all(value.text.lstrip("-").isdigit() for value in phi.incoming):
        return None
    first, *_ = constants = [int(value.text) for value in phi.incoming]
    block = instruction.block.label if instruction.block is not None else ""
    ways = [
        f"{label} {(constant - first) % _WORD}"
        for label, constant in zip(phi.labels, constants, strict=True)
    ]
    return _Sum(first % _WORD, ((f"{block}: {', '.join(ways)}", 1),))


def _result(binary: re.Match[str], definitions: Definitions) -> _Sum | None:
    left = _number(binary["left"], definitions)
    right = _number(binary["right"], definitions)
    opcode = "add" if _adds(binary) else binary["opcode"]
    made: Callable[[], _Sum] | None = {
        "add": lambda: left + right,
        "sub": lambda: left + right.times(-1),
        "mul": lambda: left.times(right.constant),
        "shl": lambda: left.times(1 << right.constant),
    }.get(opcode)
    if made is None or (opcode in ("mul", "shl") and right.terms):
        return None
    return made()


def _body(instruction: Instruction) -> str:
    return instruction.text[instruction.body_start :]
