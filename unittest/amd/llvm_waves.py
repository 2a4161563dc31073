"""Runs the LLVM IR of a gfx1250 kernel over numpy: all lanes of one workgroup in step.

What it is for: which bytes of LDS the lowered code writes and reads.  TDM copies are done when they
are issued, so waits are not looked at; branches have to be the same in every lane.  WMMA and the
data mover work as the CDNA5 ISA and Triton's own descriptors say: lane l of a wave holds row (of A)
or column (of B and of the result) l % 16.  Transposing reads are what makes products of unchanged
kernels right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

__all__ = ["Machine"]

LANES = 32
_TOKEN = re.compile(
    r"\s*(c?\"[^\"]*\"|0x[HKRLM]?[0-9A-Fa-f]+|[-+]?\d+(?:\.\d+(?:e[-+]?\d+)?)?"
    r"|[%@][-\w.$]+|[A-Za-z_][\w.]*|[<>\[\](){}=,*!:#])"
)
_FLAGS = {"tail", "fast", "nuw", "nsw", "exact", "nneg", "disjoint", "inbounds", "samesign"}
_ATTRIBUTES = {"noundef", "range", "nonnull", "signext", "zeroext", "immarg", "inreg"}
_DTYPES = {"half": np.float16, "float": np.float32, "double": np.float64, "bfloat": np.uint16}


@dataclass(frozen=True)
class Type:
    """A type: a scalar by name, a vector, an array or a structure by its elements."""

    name: str
    count: int = 0
    elements: tuple[Type, ...] = ()

    @property
    def bits(self):
        if self.name.startswith("ptr"):
            return 64 if "(1)" in self.name or self.name == "ptr" else 32
        return {"half": 16, "float": 32, "double": 64, "bfloat": 16}.get(self.name) or int(
            self.name[1:]
        )

    @property
    def scalar(self):
        return self.elements[0] if self.name == "vector" else self

    @property
    def dtype(self):
        return _DTYPES.get(self.scalar.name, np.uint64)

    @property
    def bytes(self):
        if self.name in ("vector", "array"):
            return self.count * self.elements[0].bytes
        return (self.bits + 7) // 8


class Reader:
    """The tokens of one instruction."""

    def __init__(self, text, machine):
        self.tokens = _TOKEN.findall(text)
        self.at = 0
        self.machine = machine

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted=None):
        token = self.peek()
        assert wanted in (None, token), f"expected {wanted}, found {self.tokens[self.at :][:6]}"
        self.at += 1
        return token

    def accept(self, token):
        if self.peek() == token:
            self.at += 1
            return True
        return False

    def skip_flags(self):
        while self.peek() in _FLAGS:
            self.at += 1

    def type(self):
        token = self.take()
        if token in ("<", "["):
            count = int(self.take())
            self.take("x")
            element = self.type()
            self.take(">" if token == "<" else "]")
            return Type("vector" if token == "<" else "array", count, (element,))
        if token == "{":
            elements = [self.type()]
            while self.accept(","):
                elements.append(self.type())
            self.take("}")
            return Type("struct", len(elements), tuple(elements))
        if token == "ptr" and self.accept("addrspace"):
            self.take("(")
            token = f"ptr({self.take()})"
            self.take(")")
        return Type(token)

    def attributes(self):
        while self.peek() in _ATTRIBUTES:
            if self.take() == "range":
                while self.take() != ")":
                    pass

    def value(self, type_):
        token = self.take()
        if token[0] == "%":
            return self.machine.values[token]
        if token in ("poison", "undef", "zeroinitializer", "null"):
            return self.machine.constant(0, type_)
        if token in ("true", "false"):
            return self.machine.constant(int(token == "true"), type_)
        if token == "@global_smem":
            return self.machine.constant(0, type_)
        if token == "getelementptr":
            self.skip_flags()
            self.take("(")
            element = self.type()
            self.take(",")
            base = self.typed()
            self.take(",")
            index = self.typed()
            self.take(")")
            return base + index * np.uint64(element.bytes)
        if token == "<":
            parts = [self.typed()]
            while self.accept(","):
                parts.append(self.typed())
            self.take(">")
            return np.stack(parts, axis=-1)
        if token == "splat":
            self.take("(")
            part = self.typed()
            self.take(")")
            return np.repeat(part[:, None], type_.count, axis=1)
        return self.machine.constant(_number(token, type_), type_)

    def typed(self):
        type_ = self.type()
        self.attributes()
        return self.value(type_)


def _number(token, type_):
    if token.startswith("0xH"):
        return np.array(int(token[3:], 16), np.uint16).view(np.float16)
    if token.startswith("0x"):
        return np.array(int(token[2:], 16), np.uint64).view(np.float64)
    return float(token) if type_.dtype != np.uint64 else int(token)


class Machine:
    """One workgroup.

    Args:
        text: LLVM IR with one kernel.
        arguments: What it is called with: numbers, lists of numbers for structures.
        memory: Global memory by address: arrays of bytes.
        num_warps: Waves.
        workgroup: Its coordinates.
    """

    def __init__(self, text, arguments, memory, num_warps=4, workgroup=(0, 0, 0)):
        self.threads = num_warps * LANES
        self.lds = np.zeros(320 * 1024, np.uint8)
        self.written = np.zeros(320 * 1024, bool)
        self.memory = memory
        self.workgroup = workgroup
        self.values = {}
        self.reads = []
        text = re.sub(r", ![\w.]+ !\d+|, ![\w.]+ !\{.*?\}", "", text)
        head, body = re.search(r"^define (.*?)\{\n(.*?)^\}", text, re.M | re.S).groups()
        self.blocks = self._blocks(body)
        self._bind(head, arguments)

    @staticmethod
    def _blocks(body):
        blocks, label = {}, "entry"
        blocks[label] = []
        for line in body.split("\n"):
            line = line.split(";")[0].rstrip()
            match = re.match(r"^([-\w.$]+):$", line)
            if match:
                label = match[1]
                blocks[label] = []
            elif line.strip():
                blocks[label].append(line.strip())
        return blocks

    def _bind(self, head, arguments):
        inside = head[head.index("(") + 1 : head.rindex(")")]
        names, depth, part = [], 0, ""
        for c in inside + ",":
            depth += c in "({[<"
            depth -= c in ")}]>"
            if c == "," and not depth:
                names.append(re.findall(r"%[-\w.]+", part)[-1])
                part = ""
            else:
                part += c
        for name, given in zip(names, [*arguments, 0, 0], strict=False):
            if isinstance(given, (list, tuple)):
                self.values[name] = [self.constant(x, Type("i32")) for x in given]
            else:
                self.values[name] = self.constant(given, Type("i64"))
        # The entry block has the number behind the last argument.
        self.entry = f"%{len(names)}"

    def constant(self, number, type_):
        if type_.name == "struct":
            return [self.constant(number, element) for element in type_.elements]
        shape = (self.threads, type_.count) if type_.name == "vector" else (self.threads,)
        if type_.dtype == np.uint64:
            number = int(number) & ((1 << type_.scalar.bits) - 1)
        return np.full(shape, number, type_.dtype)

    # ---- control

    def run(self):
        label, before = "entry", None
        while label is not None:
            label, before = self._block(label, before), label

    def _block(self, label, before):
        lines = self.blocks[label]
        phis = [line for line in lines if " = phi " in line]
        found = {}
        for line in phis:
            name, _, rest = line.partition(" = phi ")
            reader = Reader(rest, self)
            reader.skip_flags()
            type_ = reader.type()
            for value, source in re.findall(r"\[ (.*?), %([-\w.$]+) \]", rest):
                if source == before or (before == "entry" and f"%{source}" == self.entry):
                    found[name] = Reader(value, self).value(type_)
        self.values |= found
        for line in lines:
            if " = phi " in line:
                continue
            if line.startswith("ret "):
                return None
            if line.startswith("br "):
                return self._branch(line)
            name, _, rest = line.partition(" = ") if line.startswith("%") else ("", "", line)
            result = self._instruction(Reader(rest, self))
            if name:
                self.values[name] = result
        raise AssertionError(f"{label} does not end")

    def _branch(self, line):
        targets = re.findall(r"label %([-\w.$]+)", line)
        if len(targets) == 1:
            return targets[0]
        condition = Reader(line[len("br i1") :], self).value(Type("i1"))
        assert len(set(condition.tolist())) == 1, f"lanes part at {line}"
        return targets[0] if condition[0] else targets[1]

    # ---- instructions

    def _instruction(self, r):
        r.skip_flags()
        name = r.take()
        method = getattr(self, f"_{name}", None)
        if method is not None:
            return method(r)
        r.skip_flags()
        type_ = r.type()
        one = r.value(type_)
        if r.accept("to"):
            return self._cast(name, one, type_, r.type())
        r.take(",")
        return self._binary(name, one, r.value(type_), type_)

    def _binary(self, name, one, two, type_):
        if type_.dtype != np.uint64:
            return {"fadd": np.add, "fmul": np.multiply, "fsub": np.subtract}[name](one, two)
        bits = type_.scalar.bits
        with np.errstate(over="ignore"):
            found = {
                "add": lambda: one + two,
                "sub": lambda: one - two,
                "mul": lambda: one * two,
                "and": lambda: one & two,
                "or": lambda: one | two,
                "xor": lambda: one ^ two,
                "shl": lambda: one << two,
                "lshr": lambda: one >> two,
                "ashr": lambda: (_signed(one, bits) >> two.astype(np.int64)).astype(np.uint64),
                "udiv": lambda: one // two,
                "urem": lambda: one % two,
                "sdiv": lambda: _truncated(_signed(one, bits), _signed(two, bits))[0],
                "srem": lambda: _truncated(_signed(one, bits), _signed(two, bits))[1],
            }[name]()
        return _masked(found, bits)

    def _cast(self, name, value, source, target):
        if name in ("zext", "trunc", "ptrtoint", "inttoptr", "addrspacecast"):
            return _masked(value, target.scalar.bits)
        if name == "sext":
            return _masked(_signed(value, source.scalar.bits).astype(np.uint64), target.scalar.bits)
        if name in ("fptrunc", "fpext"):
            return value.astype(target.dtype)
        assert name == "bitcast", name
        width = source.scalar.bits // 8
        raw = value.astype(f"u{width}") if source.dtype == np.uint64 else value
        raw = np.ascontiguousarray(raw.reshape(self.threads, -1)).view(np.uint8)
        return self._from_bytes(raw, target)

    def _from_bytes(self, raw, type_):
        raw = np.ascontiguousarray(raw)
        kind = f"u{type_.scalar.bits // 8}" if type_.dtype == np.uint64 else type_.dtype
        found = raw.view(kind)
        found = found.astype(np.uint64) if type_.dtype == np.uint64 else found
        return found if type_.name == "vector" else found[:, 0]

    def _icmp(self, r):
        r.skip_flags()
        how = r.take()
        type_ = r.type()
        one = r.value(type_)
        r.take(",")
        two = r.value(type_)
        if how[0] == "s":
            one, two = _signed(one, type_.scalar.bits), _signed(two, type_.scalar.bits)
        found = {
            "eq": np.equal,
            "ne": np.not_equal,
            "lt": np.less,
            "le": np.less_equal,
            "gt": np.greater,
            "ge": np.greater_equal,
        }[how if how in ("eq", "ne") else how[1:]](one, two)
        return found.astype(np.uint64)

    def _select(self, r):
        r.skip_flags()
        condition = r.typed()
        r.take(",")
        one = r.typed()
        r.take(",")
        two = r.typed()
        if one.ndim > condition.ndim:
            condition = condition[:, None]
        return np.where(condition != 0, one, two)

    def _fence(self, r):
        return None

    def _freeze(self, r):
        return r.typed()

    def _extractvalue(self, r):
        found = r.typed()
        r.take(",")
        return found[int(r.take())]

    def _insertvalue(self, r):
        found = list(r.typed())
        r.take(",")
        value = r.typed()
        r.take(",")
        found[int(r.take())] = value
        return found

    def _extractelement(self, r):
        vector = r.typed()
        r.take(",")
        index = r.typed().astype(np.int64)
        return vector[np.arange(self.threads), index]

    def _insertelement(self, r):
        vector = r.typed().copy()
        r.take(",")
        value = r.typed()
        r.take(",")
        vector[np.arange(self.threads), r.typed().astype(np.int64)] = value
        return vector

    def _shufflevector(self, r):
        one = r.typed()
        r.take(",")
        both = np.concatenate([one, r.typed()], axis=1)
        r.take(",")
        return both[:, r.typed()[0].astype(np.int64)]

    def _getelementptr(self, r):
        r.skip_flags()
        element = r.type()
        r.take(",")
        base = r.typed()
        r.take(",")
        kind = r.type()
        index = _signed(r.value(kind), kind.bits)
        return (base.astype(np.int64) + index * element.bytes).astype(np.uint64)

    # ---- memory

    def _load(self, r):
        type_ = r.type()
        r.take(",")
        space = r.type()
        addresses = r.value(space)
        raw = self._at(addresses, type_.bytes, is_lds="(3)" in space.name)
        return self._from_bytes(raw, type_)

    def _store(self, r):
        type_ = r.type()
        value = r.value(type_)
        r.take(",")
        space = r.type()
        addresses = r.value(space)
        width = type_.scalar.bits // 8
        raw = value.astype(f"u{width}") if type_.dtype == np.uint64 else value
        raw = np.ascontiguousarray(raw.reshape(self.threads, -1)).view(np.uint8)
        for lane in range(self.threads):
            self.put(int(addresses[lane]), raw[lane], is_lds="(3)" in space.name)

    def _at(self, addresses, count, *, is_lds):
        places = addresses.astype(np.int64)[:, None] + np.arange(count)
        if is_lds:
            assert self.written[places].all(), "bytes of LDS are read that nobody wrote"
            self.reads.append(addresses.astype(np.int64))
            return self.lds[places]
        out = np.zeros(places.shape, np.uint8)
        for lane in range(self.threads):
            memory, start = self._global(int(addresses[lane]))
            out[lane] = memory[start : start + count]
        return out

    def put(self, address, raw, *, is_lds):
        if is_lds:
            self.lds[address : address + len(raw)] = raw
            self.written[address : address + len(raw)] = True
        else:
            memory, start = self._global(address)
            memory[start : start + len(raw)] = raw

    def _global(self, address):
        base = max(b for b in self.memory if b <= address)
        assert address - base < len(self.memory[base]), hex(address)
        return self.memory[base], address - base

    # ---- calls

    def _call(self, r):
        r.skip_flags()
        r.attributes()
        result = r.type()
        callee = r.take()
        r.take("(")
        arguments = []
        while not r.accept(")"):
            arguments.append(r.typed())
            r.accept(",")
        name = callee.removeprefix("@llvm.")
        if name.startswith(("amdgcn.s.barrier", "amdgcn.s.wait", "amdgcn.sched", "assume")):
            return None
        if name.startswith("amdgcn.tensor.load.to.lds"):
            for wave in range(self.threads // LANES):
                self._tensor_load(*(each[wave * LANES] for each in arguments[:2]))
            return None
        if name.startswith("amdgcn.wmma.f32.16x16x32.f16"):
            return _wmma(arguments[0], arguments[1], arguments[3])
        if name.startswith("amdgcn.ds.load.tr16.b128"):
            found = self._from_bytes(self._at(arguments[0], 16, is_lds=True), result)
            # 8 lanes exchange their rows of 8 elements for columns.
            return found.reshape(-1, 8, 8).transpose(0, 2, 1).reshape(-1, 8)
        threads = np.arange(self.threads, dtype=np.uint64)
        if name == "amdgcn.wave.id":
            return threads // LANES
        if name == "amdgcn.workitem.id.x":
            return threads
        if name.startswith("amdgcn.workgroup.id."):
            return self.constant(self.workgroup["xyz".index(name[-1])], result)
        bits = result.bits
        if name.startswith("fshl."):
            high, low, by = arguments
            return _masked((high << by) | (low >> (np.uint64(bits) - by)), bits)
        if name.startswith("bitreverse."):
            found = np.zeros_like(arguments[0])
            for bit in range(bits):
                taken = arguments[0] >> np.uint64(bit) & np.uint64(1)
                found |= taken << np.uint64(bits - 1 - bit)
            return found
        signed = [_signed(each, bits) for each in arguments]
        if name.startswith("smax."):
            return _masked(np.maximum(*signed).astype(np.uint64), bits)
        if name.startswith("smin."):
            return _masked(np.minimum(*signed).astype(np.uint64), bits)
        if name.startswith(("umin.", "umax.")):
            return (np.minimum if "min" in name else np.maximum)(*arguments)
        raise AssertionError(f"{callee} is not known")

    def _tensor_load(self, group0, group1):
        g0, g1 = [int(x) for x in group0], [int(x) for x in group1]
        if not g0[0] & 1:
            return
        size = 1 << (g1[0] >> 16 & 3)
        interval = pad = 0
        if g1[0] >> 20 & 1:
            interval = (2 << (g1[0] >> 22 & 7)) * 4
            pad = ((g1[0] >> 25 & 127) + 1) * 4
        columns = g1[1] >> 16 | (g1[2] & 0xFFFF) << 16
        rows = g1[2] >> 16 | (g1[3] & 0xFFFF) << 16
        tile_columns, tile_rows = g1[3] >> 16, g1[4] & 0xFFFF
        stride = g1[5] | (g1[6] & 0xFFFF) << 32
        address = g0[2] | (g0[3] & 0x1FFFFFF) << 32
        lds = g0[1]
        for row in range(tile_rows):
            for column in range(tile_columns):
                offset = (row * tile_columns + column) * size
                if interval:
                    offset += offset // interval * pad
                raw = np.zeros(size, np.uint8)
                if row < rows and column < columns:
                    memory, start = self._global(address + (row * stride + column) * size)
                    raw = memory[start : start + size]
                self.put(lds + offset, raw, is_lds=True)


def _masked(value, bits):
    return value if bits >= 64 else value & np.uint64((1 << bits) - 1)


def _signed(value, bits):
    shift = np.uint64(64 - bits)
    return (value << shift).view(np.int64) >> np.int64(64 - bits)


def _truncated(one, two):
    quotient = np.sign(one) * np.sign(two) * (abs(one) // abs(two))
    return quotient.astype(np.uint64), (one - quotient * two).astype(np.uint64)


def _wmma(a, b, c):
    """16 x 16 x 32: lanes 16 to 31 hold elements 8 to 15 and 24 to 31 of K, or rows 8 to 15."""

    def matrix(x):
        x = x.reshape(-1, 2, 16, 2, 8).astype(np.float32)  # wave, half, row, k half, k
        return x.transpose(0, 2, 3, 1, 4).reshape(-1, 16, 32)

    product = np.einsum("wmk,wnk->wmn", matrix(a), matrix(b))
    # Lane: column; upper half and register: row.
    found = product.reshape(-1, 2, 8, 16).transpose(0, 1, 3, 2).reshape(-1, 8)
    return (c + found).astype(np.float32)
