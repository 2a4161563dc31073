"""Runs the PTX of a kernel on integers, as far as it takes to see what it asks of the TMA unit.

One thread of each warp is run, the one that ``elect.sync`` elects.  Shared memory is bytes; warps
meet at named barriers.  An mbarrier never makes anybody wait, and what comes out of loads from
global memory, WGMMA and floating point is unknown: an address or a branch that depends on it is an
error.  So this says which copies are issued, and nothing of their order across warps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

__all__ = ["PARAMETERS", "Copy", "Expected", "run"]

#: Where parameters are in the address space of a run: the n-th is at PARAMETERS * (n + 1).
PARAMETERS = 1 << 20

# Instructions of a warp: more is a loop that does not end.
MOST_STEPS = 400_000

_STATEMENT = re.compile(
    r"(?:@(?P<guard>!?[\w%$]+)\s+)?(?P<name>[a-z][\w.:]*)\s*(?P<operands>[^;]*);"
)
# Have no result, or none that is ever asked for.
_WITHOUT_RESULT = (
    *("bar.warp", "fence", "membar", "red.", "wgmma.fence", "wgmma.commit", "wgmma.wait", "st."),
    *("setmaxnreg", "stmatrix", "cp.", "mbarrier.", "griddepcontrol", "prefetch"),
)


@dataclass(frozen=True)
class Copy:
    """A copy into shared memory that is issued.

    Attributes:
        name: The instruction without its state space, which releases spell differently.
        parameter: Number of the kernel's parameter that is the tensor map.
        coordinates: Innermost first, signed.
        offsets: Of an im2col copy, innermost first, unsigned.
        target: Offset in shared memory.
        barrier: Offset of the mbarrier.
        mask: CTAs of a multicast; 0 without one.
    """

    name: str
    parameter: int
    coordinates: tuple[int, ...]
    offsets: tuple[int, ...]
    target: int
    barrier: int
    mask: int


@dataclass(frozen=True)
class Expected:
    """Bytes that an mbarrier is told to expect."""

    barrier: int
    size: int


@dataclass(frozen=True)
class _Instruction:
    guard: str
    name: str
    operands: tuple[str, ...]
    scope: tuple[int, ...]


def run(ptx: str, given: Mapping[str, int]) -> list[Copy | Expected]:
    """Runs a CTA; returns what it asks for, warp by warp.

    Args:
        ptx: A module with one kernel.
        given: Values of special registers such as ``%ctaid.x``, 0 by default, and of parameters, by
            ``param_N``.
    """
    return _Cta(ptx, given).run()


class _Cta:
    def __init__(self, ptx: str, given: Mapping[str, int]) -> None:
        self.given = given
        self.memory: dict[int, int] = {}
        self.code: list[_Instruction] = []
        self.labels: dict[tuple[str, tuple[int, ...]], int] = {}
        self.tables: dict[str, list[str]] = {}
        self.threads = int(re.search(r"\.(?:req|max)ntid (\d+)", ptx)[1])
        self._read(ptx[ptx.index(".entry") :])

    def _read(self, text: str) -> None:
        body = re.sub(r"//[^\n]*", "", text[text.index("{") + 1 :])
        scope, scopes = (), 0
        # Statements and labels, braces that open a scope; those of operands stay in statements.
        token = re.compile(
            r"\s*(?:(?P<label>[\w$]+):(?!:)\s*(?P<table>\.branchtargets[^;]*;)?|(?P<open>\{)"
            r"|(?P<close>\})|(?P<directive>\.[^;\n]*[;\n])|(?P<statement>[^;]*;))"
        )
        at = 0
        while at < len(body):
            match = token.match(body, at)
            if match is None:
                break
            at = match.end()
            if match["table"]:
                names = match["table"].removeprefix(".branchtargets").rstrip(";").split(",")
                self.tables[match["label"]] = [name.strip() for name in names]
            elif match["label"]:
                self.labels[match["label"], scope] = len(self.code)
            elif match["open"]:
                scopes += 1
                scope = (*scope, scopes)
            elif match["close"]:
                if not scope:
                    break
                scope = scope[:-1]
            elif match["statement"]:
                self.code.append(_parsed(match["statement"].strip(), scope))

    def run(self) -> list[Copy | Expected]:
        warps = [_Warp(self, number) for number in range(self.threads // 32)]
        running: dict[int, Iterator[tuple[int, int]]] = {i: w.run() for i, w in enumerate(warps)}
        waiting: dict[int, tuple[int, int]] = {}
        while running:
            for number in [n for n in running if n not in waiting]:
                arrived = next(running[number], None)
                if arrived is None:
                    del running[number]
                else:
                    waiting[number] = arrived
            released = [
                number
                for number, (barrier, count) in waiting.items()
                if sum(b == barrier for b, _ in waiting.values()) == (count or self.threads) // 32
            ]
            assert released or not running, f"warps wait forever: {waiting}"
            for number in released:
                del waiting[number]
        return [event for warp in warps for event in warp.events]

    def target(self, label: str, scope: tuple[int, ...]) -> int:
        for depth in range(len(scope), -1, -1):
            found = self.labels.get((label, scope[:depth]))
            if found is not None:
                return found
        raise AssertionError(f"no label {label}")


def _parsed(text: str, scope: tuple[int, ...]) -> _Instruction:
    match = _STATEMENT.fullmatch(text)
    assert match is not None, text
    kept = tuple(_split(match["operands"]))
    return _Instruction(match["guard"] or "", match["name"], kept, scope)


def _split(operands: str) -> Iterator[str]:
    """Splits at commas outside of brackets and braces."""
    depth = start = 0
    for i, character in enumerate(operands + ","):
        depth += (character in "[{") - (character in "]}")
        if character == "," and not depth:
            if operands[start:i].strip():
                yield operands[start:i].strip()
            start = i + 1


def _width(name: str) -> int:
    """Bits of the type that ends an instruction's name; 1 for a predicate."""
    digits = re.search(r"\.(?:[subf](\d+)|pred)$", name)
    return int(digits[1]) if digits is not None and digits[1] else 1


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


class _Warp:
    def __init__(self, cta: _Cta, number: int) -> None:
        self.cta = cta
        self.registers: dict[str, int | None] = {}
        self.special = {"%tid.x": 32 * number, "%warpid": number, **cta.given}
        self.events: list[Copy | Expected] = []

    def run(self) -> Iterator[tuple[int, int]]:
        """Runs to the end; yields each barrier it comes to, and how many threads meet there."""
        at = steps = 0
        while at < len(self.cta.code):
            steps += 1
            assert steps < MOST_STEPS, "a loop that does not end"
            one = self.cta.code[at]
            at += 1
            if one.guard and bool(self.known(one.guard.lstrip("!"))) == one.guard.startswith("!"):
                continue
            if one.name in ("ret", "exit"):
                return
            if one.name in ("bra", "bra.uni"):
                at = self.cta.target(one.operands[0], one.scope)
            elif one.name.startswith("brx.idx"):
                labels = self.cta.tables[one.operands[1]]
                at = self.cta.target(labels[self.known(one.operands[0])], one.scope)
            elif one.name.startswith(("bar.sync", "barrier.sync")):
                numbers = [self.known(operand) for operand in one.operands]
                yield numbers[0], numbers[1] if len(numbers) > 1 else 0
            else:
                self.step(one)

    def known(self, operand: str) -> int:
        value = self.value(operand)
        assert value is not None, f"{operand} is unknown, and what happens depends on it"
        return value

    def value(self, operand: str) -> int | None:
        if operand.startswith("!"):
            value = self.value(operand[1:])
            return None if value is None else int(not value)
        if operand.startswith("["):
            raise AssertionError(f"memory as an operand: {operand}")
        if re.fullmatch(r"-?\d+U?", operand):
            return int(operand.rstrip("U"))
        if operand.startswith("0x"):
            return int(operand.rstrip("U"), 16)
        if re.fullmatch(r"0[fdFD][0-9a-fA-F]+", operand):
            return None
        if operand in self.registers:
            return self.registers[operand]
        parameter = re.search(r"_param_(\d+)$", operand)
        if parameter is not None:
            return PARAMETERS * (int(parameter[1]) + 1)
        if operand == "global_smem":
            return 0
        if operand.startswith(("%tid", "%ctaid", "%nctaid", "%cluster", "%laneid", "%warpid")):
            return self.special.get(operand, 0)
        return None

    def address(self, operand: str) -> int:
        base, _, offset = operand.strip("[]").partition("+")
        return self.known(base.strip()) + (int(offset) if offset else 0)

    def step(self, one: _Instruction) -> None:
        name, operands = one.name, one.operands
        if name.startswith("cp.async.bulk.tensor") and ".shared::c" in name.split(".global")[0]:
            self.copy(one)
        elif "expect_tx" in name:
            barrier, size = operands[-2:]
            self.events.append(Expected(self.address(barrier), self.known(size)))
        elif name.startswith(("mbarrier.try_wait", "mbarrier.test_wait")):
            self.registers[operands[0]] = 1
        elif name.startswith("ld.param"):
            index = re.search(r"_param_(\d+)", operands[1])
            self.registers[operands[0]] = self.cta.given.get(f"param_{index[1]}")
        elif name.startswith("st.shared"):
            self.store(one)
        elif name.startswith("ld.shared"):
            self.load(one)
        elif name.startswith("elect.sync"):
            lane, _, elected = operands[0].partition("|")
            self.registers.update({lane: 0, elected: 1})
        elif not name.startswith(_WITHOUT_RESULT):
            self.assign(operands[0], self.compute(name, operands[1:]), name)

    def assign(self, target: str, value: int | None, name: str) -> None:
        if target.startswith("{"):
            for i, register in enumerate(target.strip("{}").split(",")):
                bits = _width(name) // (target.count(",") + 1)
                part = None if value is None else value >> (i * bits) & ((1 << bits) - 1)
                self.registers[register.strip()] = part
            return
        first, _, second = target.partition("|")
        self.registers[first] = value
        if second:
            self.registers[second] = None if value is None else int(not value)

    def copy(self, one: _Instruction) -> None:
        target, tensor, *rest = one.operands
        pieces = re.fullmatch(r"\[(.*?), \{(.*)\}\]", tensor)
        barrier, *rest = rest
        offsets: tuple[int, ...] = ()
        if ".im2col" in one.name:
            taps, *rest = rest
            offsets = tuple(self.known(x.strip()) & 0xFFFF for x in taps.strip("{}").split(","))
        self.events.append(
            Copy(
                re.sub(r"shared::(cta|cluster)", "shared", one.name),
                self.known(pieces[1]) // PARAMETERS - 1,
                tuple(_signed(self.known(x.strip()), 32) for x in pieces[2].split(",")),
                offsets,
                self.address(target),
                self.address(barrier),
                self.known(rest[0]) & 0xFFFF if ".multicast" in one.name else 0,
            )
        )

    def store(self, one: _Instruction) -> None:
        size = _width(one.name) // 8
        address = self.address(one.operands[0])
        for i, part in enumerate(one.operands[1].strip("{}").split(",")):
            value = self.value(part.strip())
            for byte in range(size):
                spot = address + i * size + byte
                if value is None:
                    self.cta.memory.pop(spot, None)
                else:
                    self.cta.memory[spot] = value >> (8 * byte) & 0xFF

    def load(self, one: _Instruction) -> None:
        size = _width(one.name) // 8
        address = self.address(one.operands[1])
        for i, register in enumerate(one.operands[0].strip("{}").split(",")):
            read = [self.cta.memory.get(address + i * size + byte) for byte in range(size)]
            value = None if None in read else sum(b << (8 * j) for j, b in enumerate(read))
            self.registers[register.strip()] = value

    def compute(self, name: str, operands: tuple[str, ...]) -> int | None:
        stem, *flags = name.split(".")
        if stem == "mov" and operands[0].startswith("{"):
            parts = [self.value(part.strip()) for part in operands[0].strip("{}").split(",")]
            bits = _width(name) // len(parts)
            if None in parts:
                return None
            return sum((part & ((1 << bits) - 1)) << (i * bits) for i, part in enumerate(parts))
        if stem == "shfl":
            return self.value(operands[0])
        if stem == "selp":
            chosen = self.value(operands[2])
            return None if chosen is None else self.value(operands[0 if chosen else 1])
        integral = re.search(r"\.(?:[sub]\d+|pred)$", name) and ".f" not in name
        if stem not in _OPERATIONS or not integral:
            return None
        values = [self.value(operand) for operand in operands]
        if None in values:
            return None
        bits = _width(name)
        wide = 2 * bits if "wide" in flags else bits
        if stem == "cvt":
            # cvt.to.from: what is read decides about the sign.
            bits, wide = _width(name), _width("." + flags[-2])
        if flags[-1].startswith("s") and stem not in ("shl",):
            signed = [_signed(value, bits) for value in values]
        else:
            signed = [value & ((1 << bits) - 1) for value in values]
        if stem == "mad" and "wide" in flags:
            signed[2] = values[2]
        if stem in ("shl", "shr"):
            signed[1] = min(values[1] & 0xFFFFFFFF, bits)
        if stem == "setp":
            return int(_COMPARISONS[flags[0]](*signed[:2]))
        if stem == "mul" and "hi" in flags:
            return (signed[0] * signed[1] >> bits) & ((1 << bits) - 1)
        return _OPERATIONS[stem](*signed) & ((1 << wide) - 1)


def _divided(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}

_OPERATIONS: dict[str, Callable[..., int]] = {
    "mov": lambda a: a,
    "cvt": lambda a: a,
    "cvta": lambda a: a,
    "setp": lambda *_: 0,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "mad": lambda a, b, c: a * b + c,
    "div": _divided,
    "rem": lambda a, b: a - b * _divided(a, b),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a,
    "neg": lambda a: -a,
    "abs": abs,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "min": min,
    "max": max,
    "bfe": lambda a, at, length: a >> at & ((1 << length) - 1),
}
