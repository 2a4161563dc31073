"""Random integer and pointer expressions as TTIR, with the numbers that they stand for.

Every value is evaluated for several draws of the function's arguments, in exact integers.  An
operation that would break an assumption of the analysis (overflow, signs) is not made.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np

#: One-dimensional size, and the two-dimensional shapes of as many elements.
SIZE, TALL, WIDE = 64, (16, 4), (4, 16)
SAMPLES = 4
ADDRESS_BITS = 40


@dataclass
class Made:
    """A value: its name, element type (``i1``, ``i32``, ``i64``, ``p1`` .. ``p8``), numbers."""

    name: str
    element: str
    shape: tuple[int, ...]
    numbers: list[np.ndarray]

    @property
    def type(self) -> str:
        element = {"p1": "!tt.ptr<i8>", "p2": "!tt.ptr<f16>", "p4": "!tt.ptr<f32>"}.get(
            self.element, self.element
        )
        if not self.shape:
            return element
        return f"tensor<{'x'.join(map(str, self.shape))}x{element}>"


def _divide(a, b):
    return np.where(b == 0, 0, np.sign(a) * np.sign(b) * (abs(a) // np.maximum(abs(b), 1)))


def _longest(rows, holds) -> int:
    """The longest aligned group that has a property in every row of every sample."""
    best, n = 1, 2
    while n <= rows[0].shape[-1]:
        groups = [x.reshape(*x.shape[:-1], -1, n) for x in rows]
        if all(holds(group, n).all() for group in groups):
            best = n
        n *= 2
    return best


BINARY = {
    "addi": np.add,
    "subi": np.subtract,
    "muli": np.multiply,
    "divsi": _divide,
    "divui": _divide,
    "remsi": lambda a, b: a - b * _divide(a, b),
    "remui": lambda a, b: a - b * _divide(a, b),
    "andi": np.bitwise_and,
    "ori": np.bitwise_or,
    "xori": np.bitwise_xor,
    "shli": lambda a, b: a << np.clip(b, 0, 20),
    "shrsi": lambda a, b: a >> np.clip(b, 0, 31),
    "shrui": lambda a, b: a >> np.clip(b, 0, 31),
    "minsi": np.minimum,
    "maxsi": np.maximum,
    "minui": np.minimum,
    "maxui": np.maximum,
}
COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


class Program:
    """Builds one function.

    Args:
        random: Where choices come from.
        length: Operations to try.
        scale: What the sizes are multiplied with.
        special: Whether to make joins, splits and conversions of pointers, for which hosts have no
            rules.
    """

    def __init__(self, random: Random, length: int, scale: int = 1, special: bool = True) -> None:
        self.random = random
        self.size = SIZE * scale
        self.shapes = [(TALL[0] * scale, TALL[1]), (WIDE[0], WIDE[1] * scale)]
        self.lines: list[str] = []
        self.values: list[Made] = []
        # Values inside loops, with their numbers in every iteration.
        self.inner: list[Made] = []
        self.arguments: list[str] = []
        self.special = special
        self._draw_arguments()
        self._leaves()
        for _ in range(length):
            self._step()

    # ---- text

    def text(self, tail: str = "") -> str:
        body = "\n".join(f"    {line}" for line in self.lines)
        return (
            "module {\n"
            f"  tt.func public @f({', '.join(self.arguments)}) {{\n{body}\n{tail}"
            "    tt.return\n  }\n}\n"
        )

    def add(self, element, shape, numbers, text) -> Made:
        """Adds an operation; ``{t}`` in its text is the type of its result."""
        made = Made(f"%v{len(self.values)}", element, tuple(shape), numbers)
        self.lines.append(f"{made.name} = {text.replace('{t}', made.type)}")
        self.values.append(made)
        return made

    # ---- leaves

    def _draw_arguments(self) -> None:
        random = self.random
        for name, element in (("a", "i32"), ("b", "i32"), ("p", "p1"), ("q", "p2"), ("r", "p4")):
            hint = random.choice((1, 2, 4, 8, 16, 64))
            if element != "i32":
                hint = max(hint, int(element[1]))
            top = 1 << (ADDRESS_BITS if element != "i32" else 12)
            numbers = [np.array(hint * random.randrange(1, top // hint)) for _ in range(SAMPLES)]
            made = Made(f"%{name}", element, (), numbers)
            self.values.append(made)
            attribute = f" {{tt.divisibility = {hint} : i32}}" if hint > 1 else ""
            self.arguments.append(f"{made.name}: {made.type}{attribute}")
        # How often loops run.
        numbers = [np.array(x) for x in random.sample(range(SAMPLES), SAMPLES)]
        self.trips = Made("%t", "i32", (), numbers)
        self.values.append(self.trips)
        self.arguments.append("%t: i32")

    def _leaves(self) -> None:
        self._constant(())
        self._range()
        self._splat(self.values[0], (self.size,))
        self._splat(self.values[1], self.random.choice(self.shapes))

    def _constant(self, shape) -> Made:
        random = self.random
        number = random.choice((0, 1, 1, 2, 3, 4, 5, 8, 12, 16, 32, 64, 128, -1, -8))
        text = (
            f"arith.constant {number} : i32"
            if not shape
            else f"arith.constant dense<{number}> : {{t}}"
        )
        return self.add("i32", shape, [np.full(shape, number)] * SAMPLES, text)

    def _range(self) -> Made:
        start = self.random.choice((0, 0, 0, 4, 6, 8, 16, 64, 1))
        size = self.random.choice((self.size, self.size, self.shapes[0][0], self.shapes[1][1]))
        text = f"tt.make_range {{end = {start + size} : i32, start = {start} : i32}} : {{t}}"
        return self.add("i32", (size,), [np.arange(start, start + size)] * SAMPLES, text)

    def _splat(self, source: Made, shape) -> Made:
        numbers = [np.full(shape, x) for x in source.numbers]
        return self.add(
            source.element, shape, numbers, f"tt.splat {source.name} : {source.type} -> {{t}}"
        )

    # ---- operations

    def pick(self, good) -> Made | None:
        found = [value for value in self.values if good(value)]
        if not found:
            return None
        # Later values are more interesting.
        index = max(self.random.randrange(len(found)), self.random.randrange(len(found)))
        return found[index]

    def like(self, value: Made, element=None) -> Made | None:
        element = element or value.element
        return self.pick(lambda x: x.element == element and x.shape == value.shape)

    def _step(self) -> None:
        steps = [self._binary] * 9 + [self._pointer] * 2 + [self._shape] * 4
        steps += [self._loop] * 2 + [self._if] * 2
        steps += [self._compare, self._compare, self._select, self._cast, self._leaf, self._rebase]
        if self.special:
            steps += [self._special]
        self.random.choice(steps)()

    def _leaf(self) -> None:
        choice = self.random.randrange(3)
        if choice == 0:
            self._range()
        elif choice == 1:
            self._constant(self.random.choice([(), (self.size,), *self.shapes]))
        else:
            source = self.pick(lambda x: not x.shape)
            self._splat(source, self.random.choice([(self.size,), *self.shapes]))

    def _rebase(self) -> None:
        """The most usual of all: a scalar times a constant plus a range."""
        scalar = self.pick(lambda x: not x.shape and x.element == "i32")
        tensor = self.pick(lambda x: x.shape and x.element == "i32")
        if scalar is not None and tensor is not None:
            self._calculate("addi", self._splat(scalar, tensor.shape), tensor)

    def _binary(self) -> None:
        lhs = self.pick(lambda x: x.element in ("i32", "i64"))
        name = self.random.choice(list(BINARY))
        rhs = self.like(lhs)
        if self.random.random() < 0.5 and lhs.element == "i32":
            rhs = self._constant(lhs.shape)
            if self.random.random() < 0.2:
                lhs, rhs = rhs, lhs
        self._calculate(name, lhs, rhs)

    def _calculate(self, name: str, lhs: Made, rhs: Made) -> None:
        pairs = list(zip(lhs.numbers, rhs.numbers, strict=True))
        if name[:3] in ("div", "rem") and any((a < 0).any() or (b <= 0).any() for a, b in pairs):
            return
        if name.startswith("sh") and any((b < 0).any() or (b > 16).any() for _, b in pairs):
            return
        if name.endswith("ui") and any((a < 0).any() or (b < 0).any() for a, b in pairs):
            return
        numbers = [np.asarray(BINARY[name](a, b)) for a, b in pairs]
        bits = 31 if lhs.element == "i32" else 50
        if any((abs(x) >= 1 << bits).any() for x in numbers):
            return
        hint = self._hint(numbers, lhs.shape) if lhs.shape and self.random.random() < 0.1 else ""
        text = f"arith.{name} {lhs.name}, {rhs.name} {hint}: {{t}}"
        self.add(lhs.element, lhs.shape, numbers, text)

    def _hint(self, numbers, shape) -> str:
        """Promises that are true of the numbers."""
        runs, divisors, repeats = [], [], []
        for dim in range(len(shape)):
            rows = [np.moveaxis(x, dim, -1) for x in numbers]
            runs.append(_longest(rows, lambda groups, n: groups == groups[..., :1] + np.arange(n)))
            repeats.append(_longest(rows, lambda groups, n: groups == groups[..., :1]))
            firsts = np.concatenate([x[..., :: runs[-1]].ravel() for x in rows])
            known = [k for k in (1, 2, 4, 8, 16, 32, 64) if not (firsts & (k - 1)).any()]
            divisors.append(max(known))
        promised = {"contiguity": runs, "divisibility": divisors}
        if self.random.random() < 0.4:
            promised = {"constancy": repeats}
        type_ = f"tensor<{len(shape)}xi32>"
        entries = ", ".join(
            f"tt.{key} = dense<{value}> : {type_}" for key, value in promised.items()
        )
        return f"{{{entries}}} "

    def _pointer(self) -> None:
        offset = self.pick(lambda x: x.element == "i32")
        base = self.pick(lambda x: x.element[0] == "p" and x.shape in ((), offset.shape))
        if base.shape != offset.shape:
            base = self._splat(base, offset.shape)
        step = int(base.element[1])
        numbers = [a + b * step for a, b in zip(base.numbers, offset.numbers, strict=True)]
        self.add(
            base.element,
            base.shape,
            numbers,
            f"tt.addptr {base.name}, {offset.name} : {base.type}, {offset.type}",
        )

    def _shape(self) -> None:
        source = self.pick(lambda x: x.shape)
        choice = self.random.randrange(4)
        if choice < 2 and len(source.shape) == 1:
            fitting = [(s, d) for s in self.shapes for d in (0, 1) if s[d] == source.shape[0]]
            if not fitting:
                return
            shape, dim = self.random.choice(fitting)
            axis = 1 - dim
            made = self.add(
                source.element,
                tuple(np.expand_dims(source.numbers[0], axis).shape),
                [np.expand_dims(x, axis) for x in source.numbers],
                f"tt.expand_dims {source.name} {{axis = {axis} : i32}} : {source.type} -> {{t}}",
            )
            self.add(
                source.element,
                shape,
                [np.broadcast_to(x, shape) for x in made.numbers],
                f"tt.broadcast {made.name} : {made.type} -> {{t}}",
            )
        elif choice == 2 and len(source.shape) > 1:
            self.add(
                source.element,
                source.shape[::-1],
                [x.transpose() for x in source.numbers],
                f"tt.trans {source.name} {{order = array<i32: 1, 0>}} : {source.type} -> {{t}}",
            )
        elif choice == 3:
            shapes = [(self.size,), *self.shapes, (8, source.numbers[0].size // 8)]
            shape = self.random.choice([s for s in shapes if np.prod(s) == source.numbers[0].size])
            self.add(
                source.element,
                shape,
                [x.reshape(shape) for x in source.numbers],
                f"tt.reshape {source.name} : {source.type} -> {{t}}",
            )

    def _compare(self) -> None:
        lhs = self.pick(lambda x: x.element == "i32")
        rhs = self.like(lhs)
        if self.random.random() < 0.5:
            rhs = self._constant(lhs.shape)
        kind = self.random.choice(list(COMPARE))
        sign = "" if kind in ("eq", "ne") else self.random.choice("su")
        if sign == "u" and any((x < 0).any() for x in (*lhs.numbers, *rhs.numbers)):
            sign = "s"
        numbers = [
            COMPARE[kind](a, b).astype(int) for a, b in zip(lhs.numbers, rhs.numbers, strict=True)
        ]
        self.add(
            "i1",
            lhs.shape,
            numbers,
            f"arith.cmpi {sign}{kind}, {lhs.name}, {rhs.name} : {lhs.type}",
        )

    def _select(self) -> None:
        condition = self.pick(lambda x: x.element == "i1")
        if condition is None:
            return
        shape = condition.shape
        lhs = self.pick(lambda x: x.element != "i1" and shape in (x.shape, ()))
        rhs = self.like(lhs) if lhs is not None else None
        if rhs is None:
            return
        numbers = [
            np.where(c, a, b)
            for c, a, b in zip(condition.numbers, lhs.numbers, rhs.numbers, strict=True)
        ]
        types = lhs.type if not shape else f"{condition.type}, {lhs.type}"
        self.add(
            lhs.element,
            lhs.shape,
            numbers,
            f"arith.select {condition.name}, {lhs.name}, {rhs.name} : {types}",
        )

    def _cast(self) -> None:
        source = self.pick(lambda x: x.element in ("i32", "i64", "i1"))
        negative = any((x < 0).any() for x in source.numbers)
        fits = all((abs(x) < 1 << 31).all() for x in source.numbers)
        if source.element == "i32" or source.element == "i1":
            name = "extui" if source.element == "i1" else self.random.choice(("extsi", "extui"))
            name = "extsi" if negative else name
            target = "i64" if source.element == "i32" else "i32"
        elif fits:
            name, target = "trunci", "i32"
        else:
            return
        made = Made("", target, source.shape, [])
        self.add(
            target,
            source.shape,
            source.numbers,
            f"arith.{name} {source.name} : {source.type} to {made.type}",
        )

    def _loop(self) -> None:
        """A loop that carries one value, which the induction variable takes part in."""
        random = self.random
        carried = self.pick(lambda x: x.element == "i32" or x.element[0] == "p")
        other = self.pick(lambda x: x.element == "i32" and x.shape == carried.shape)
        if other is None:
            return
        start, step = random.choice((0, 0, 4, 8)), random.choice((1, 2, 4, 16))
        trips = random.choice((None, None, 0, 1, 2))
        lower, by = self._number(start), self._number(step)
        if trips is None:
            span = self._must("muli", self.trips, by)
            upper = self._must("addi", lower, span)
        else:
            upper = self._number(start + step * trips)
        use_induction = random.random() < 0.5
        name = "addptr" if carried.element[0] == "p" else random.choice(("addi", "addi", "subi"))
        if name == "addi" and random.random() < 0.2:
            name = random.choice(("maxsi", "minsi", "ori"))
        after, carried_in, changed = [], [], []
        for sample in range(SAMPLES):
            x = carried.numbers[sample]
            count = trips if trips is not None else int(self.trips.numbers[sample])
            for i in range(start, start + step * count, step):
                by_number = other.numbers[sample] + i if use_induction else other.numbers[sample]
                carried_in.append(x)
                x = self._carry(name, x, by_number, carried)
                changed.append(x)
            after.append(x)
        limit = 1 << (31 if carried.element == "i32" else 50)
        if any((abs(x) >= limit).any() for x in changed):
            return
        n = len(self.values)
        head = f"%v{n} = scf.for %i{n} = {lower.name} to {upper.name} step {by.name}"
        head += f" iter_args(%x{n} = {carried.name}) -> ({carried.type})  : i32 {{"
        body, by_name = [], other.name
        if use_induction:
            by_name, induction = f"%k{n}", f"%i{n}"
            if other.shape:
                body.append(f"%j{n} = tt.splat {induction} : i32 -> {other.type}")
                induction = f"%j{n}"
            body.append(f"%k{n} = arith.addi {other.name}, {induction} : {other.type}")
        if name == "addptr":
            body.append(f"%y{n} = tt.addptr %x{n}, {by_name} : {carried.type}, {other.type}")
        else:
            body.append(f"%y{n} = arith.{name} %x{n}, {by_name} : {carried.type}")
        body.append(f"scf.yield %y{n} : {carried.type}")
        self.lines += [head, *(f"  {line}" for line in body), "}"]
        self.values.append(Made(f"%v{n}", carried.element, carried.shape, after))
        self.inner.append(Made(f"%x{n}", carried.element, carried.shape, carried_in))
        self.inner.append(Made(f"%y{n}", carried.element, carried.shape, changed))

    def _carry(self, name, x, by, carried):
        return x + by * int(carried.element[1]) if name == "addptr" else BINARY[name](x, by)

    def _number(self, number: int) -> Made:
        numbers = [np.array(number)] * SAMPLES
        return self.add("i32", (), numbers, f"arith.constant {number} : i32")

    def _must(self, name: str, lhs: Made, rhs: Made) -> Made:
        self._calculate(name, lhs, rhs)
        return self.values[-1]

    def _if(self) -> None:
        condition = self.pick(lambda x: x.element == "i1" and not x.shape)
        if condition is None:
            lhs = self.pick(lambda x: x.element == "i32" and not x.shape)
            rhs = self.like(lhs)
            condition = self.add(
                "i1",
                (),
                [np.less(a, b).astype(int) for a, b in zip(lhs.numbers, rhs.numbers, strict=True)],
                f"arith.cmpi slt, {lhs.name}, {rhs.name} : i32",
            )
        lhs = self.pick(lambda x: x.element != "i1")
        rhs = self.like(lhs)
        numbers = [
            np.where(c, a, b)
            for c, a, b in zip(condition.numbers, lhs.numbers, rhs.numbers, strict=True)
        ]
        n = len(self.values)
        self.lines += [
            f"%v{n} = scf.if {condition.name} -> ({lhs.type}) {{",
            f"  scf.yield {lhs.name} : {lhs.type}",
            "} else {",
            f"  scf.yield {rhs.name} : {lhs.type}",
            "}",
        ]
        self.values.append(Made(f"%v{n}", lhs.element, lhs.shape, numbers))

    def _special(self) -> None:
        choice = self.random.randrange(4)
        if choice == 0:
            lhs = self.pick(lambda x: len(x.shape) == 1)
            rhs = self.like(lhs)
            self.add(
                lhs.element,
                (*lhs.shape, 2),
                [np.stack(x, -1) for x in zip(lhs.numbers, rhs.numbers, strict=True)],
                f"tt.join {lhs.name}, {rhs.name} : {lhs.type} -> {{t}}",
            )
            return
        source = self.pick(lambda x: x.element[0] == "p" if choice == 1 else x.element == "i64")
        if source is None:
            return
        if choice == 1:
            self.add(
                "i64",
                source.shape,
                source.numbers,
                f"tt.ptr_to_int {source.name} : {source.type} -> {{t}}",
            )
        elif choice == 2 and all((x >= 0).all() for x in source.numbers):
            target = self.random.choice(("p1", "p2", "p4"))
            self.add(
                target,
                source.shape,
                source.numbers,
                f"tt.int_to_ptr {source.name} : {source.type} -> {{t}}",
            )
        elif choice == 3:
            source = self.pick(lambda x: x.element[0] == "p")
            target = self.random.choice(("p1", "p2", "p4"))
            self.add(
                target,
                source.shape,
                source.numbers,
                f"tt.bitcast {source.name} : {source.type} -> {{t}}",
            )


def false_claims(made: Made, info) -> list[str]:
    """Every claim about a value that its numbers contradict."""
    found = []
    stride = int(made.element[1]) if made.element[0] == "p" else 1
    for numbers in made.numbers:
        x = np.asarray(numbers).reshape(made.shape or (1,))
        if info.constant is not None and (x != info.constant).any():
            found.append(f"constant {info.constant}")
        for dim in range(x.ndim):
            rows = np.moveaxis(x, dim, -1)
            size = rows.shape[-1]
            run, divisor, repeat = info.contiguity[dim], info.divisibility[dim], info.constancy[dim]
            groups = rows.reshape(*rows.shape[:-1], size // run, run)
            if (groups != groups[..., :1] + stride * np.arange(run)).any():
                found.append(f"contiguity[{dim}] = {run}")
            if (groups[..., 0] & (divisor - 1)).any():
                found.append(f"divisibility[{dim}] = {divisor}")
            groups = rows.reshape(*rows.shape[:-1], size // repeat, repeat)
            if (groups != groups[..., :1]).any():
                found.append(f"constancy[{dim}] = {repeat}")
    return found
