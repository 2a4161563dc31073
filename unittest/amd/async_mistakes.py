"""Kernels that Triton's own wait counts break: one for each known mistake.

Each kernel is right as written: if every wait waits for what it asks for, nothing is read before
it arrived.  The hosts are those whose own pass gives a number that does not hold that promise;
the numbers of instructions are those that the host's lowering emits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from async_text import Function, Kernel
from triton_ext.ir import Operation

__all__ = ["CASES", "Case", "emitted_of", "make", "may_skip_of"]

_SHAPE = re.compile(r"memdesc<(\d+)x64xf16, #(\w+)", re.ASCII)
_INDEX = re.compile(r"tensor<(\d+)xi(\d+), #ttg\.slice<\{dim = 0, parent = #(\w+)\}>", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kernel.

    Attributes:
        name: What Triton gets wrong.
        write: Writes the body; gets the function and the rows of a copy of one instruction.
        hosts: Versions of Triton whose own pass is wrong about it.
        arches: Targets.
        dies: Whether that pass dies of it.
        skips: Names of operations of which a wave may issue fewer instructions.
        emitted: Instructions of a copy, where it is not what its layouts say.
    """

    name: str
    write: Callable[[Function, int], None]
    hosts: tuple[str, ...]
    arches: tuple[str, ...]
    dies: bool = False
    skips: tuple[str, ...] = ()
    emitted: int | None = None

    def emitted_of(self, arch: str) -> Callable[[Operation], int]:
        """Instructions of a wave for the copies of this kernel."""
        number = self.emitted
        return emitted_of(arch) if number is None else lambda op: number

    def may_skip(self, op: Operation) -> bool:
        """Whether a wave may branch over instructions of an operation.

        A mask makes it so, and a tile of fewer rows than the waves have.
        """
        if op.name not in self.skips:
            return False
        shape = _SHAPE.search(_buffer_type(op))
        return len(op.operands) > 2 or (shape is not None and int(shape[1]) < 16)


def _buffer_type(op: Operation) -> str:
    for operand in op.operands:
        if "memdesc" in (operand.known_type or ""):
            return operand.type
    return ""


def emitted_of(arch: str) -> Callable[[Operation], int]:
    """Instructions of a wave for a copy whose text is of :mod:`async_text`."""
    rows = Kernel("", arch).rows

    def emitted(op: Operation) -> int:
        if "tdm" in op.name:
            if len(op.operands) > 1 and op.name.endswith(("gather", "scatter")):
                found = _INDEX.match(op.operands[1].type)
                if found is not None:
                    number = int(found[1]) // (4 if found[3] == "w" else 1)
                    return max(1, number // (8 if found[2] == "32" else 16))
            return 1
        shape = _SHAPE.search(_buffer_type(op))
        if shape is None:
            return 1
        number = max(1, int(shape[1]) // rows)
        return number * 2 if shape[2] == "s4" else number

    return emitted


def may_skip_of(host: str, arch: str) -> Callable[[Operation], bool]:
    """Whether a wave that is masked out branches over a copy."""
    old = host in ("3.6.0", "3.7.1")

    def may_skip(op: Operation) -> bool:
        if not any(re.match(r"tensor<.*xi1, ", operand.type) for operand in op.operands):
            return False
        if op.name == "ttg.async_copy_global_to_local":
            return old or arch != "gfx1250"
        return op.name == "amdg.async_copy_local_to_global"

    return may_skip


def make(case: Case, host: str, arch: str) -> str:
    """The text of a case for one Triton and target."""
    kernel = Kernel(host, arch)
    arguments = {"ptr": "!tt.ptr<f16>", "n": "i32", "b": "i1"}
    function = kernel.function("kernel", arguments)
    if arch == "gfx1250":
        arguments["d1"] = function.desc_type(1)
    case.write(function, kernel.rows)
    if arch == "gfx1250":
        function.drain()
    return str(kernel)


def _two(f: Function, rows: int) -> tuple[str, str]:
    """Two tiles of one allocation."""
    buffers = f.alloc(rows, 2)
    return f.slot(buffers, f.const(0), rows, 2), f.slot(buffers, f.const(1), rows, 2)


def _hint(f: Function, rows: int) -> None:
    """Only the hint knows that 8 elements lie side by side: 32 are counted, 4 emitted."""
    rows *= 4
    first, second = _two(f, rows)
    offsets, short = f.offsets(rows), f.buffer_type(rows).removeprefix("!ttg.memdesc")
    limit = f.value(f"tt.splat %n : i32 -> tensor<{rows}x64xi32, #b>")
    mask = f.value(f"arith.cmpi slt, {offsets}, {limit} : tensor<{rows}x64xi32, #b>")
    for tile in (first, second):
        token = f.value(
            f"ttg.async_copy_global_to_local {f.pointers(rows)}, {tile} mask {mask} "
            f"{{contiguity = 8 : i32}} : tensor<{rows}x64x!tt.ptr<f16>, #b> -> {short}"
        )
        f.commit(token)
    f.wait(num=1)
    f.load(first, rows)


def _few_rows(f: Function, rows: int) -> None:
    """The second tile has rows for one wave only; the others jump over its copy."""
    first, _ = _two(f, rows)
    small = f.slot(f.alloc(8, 1), f.const(0), 8, 1)
    f.commit(f.copy(first, rows))
    f.commit(f.copy(small, 8))
    f.wait(num=1)
    f.load(first, rows)


def _masked_load(f: Function, rows: int) -> None:
    """A wave whose mask is false issues nothing for the second copy."""
    first, second = _two(f, rows)
    f.commit(f.copy(first, rows))
    f.commit(f.copy(second, rows, mask="%b"))
    f.wait(num=1)
    f.load(first, rows)


def _masked_store(f: Function, rows: int) -> None:
    """The same for stores: the first one may still read LDS when that is filled again."""
    first, second = _two(f, rows)
    f.commit(f.store(first, rows))
    f.commit(f.store(second, rows, mask="%b"))
    f.wait(num=1)
    f.commit(f.copy(first, rows))
    f.wait(num=0)
    f.load(first, rows)


def _slice(f: Function, rows: int) -> None:
    """Pointers through ``amdg.extract_slice``: the lowering knows them, the pass does not."""
    rows *= 4
    first, second = _two(f, rows)
    whole = f"tensor<{2 * rows}x64x!tt.ptr<f16>, #b>"
    part = f"tensor<{rows}x64x!tt.ptr<f16>, #b>"
    short = f.buffer_type(rows).removeprefix("!ttg.memdesc")
    for number, tile in enumerate((first, second)):
        pointers = f.value(
            f"amdg.extract_slice {f.pointers(2 * rows)} [{number * rows}, 0] : {whole} to {part}"
        )
        f.commit(f.value(f"ttg.async_copy_global_to_local {pointers}, {tile} : {part} -> {short}"))
    f.wait(num=1)
    f.load(first, rows)


def _call(f: Function, rows: int) -> None:
    """The callee commits a group, so the group of four instructions is the last but one."""
    type_ = f.buffer_type(rows)
    callee = f.kernel.function("callee", {"ptr": "!tt.ptr<f16>", "tile": type_}, private=True)
    callee.commit(callee.copy("%tile", rows))
    first, _ = _two(f, 4 * rows)
    small, _ = _two(f, rows)
    f.commit(f.copy(first, 4 * rows))
    f.emit(f"tt.call @callee(%ptr, {small}) : (!tt.ptr<f16>, {type_}) -> ()")
    f.wait(num=1)
    f.load(first, 4 * rows)


def _gather(f: Function, rows: int) -> None:
    """64 row numbers over four waves: 8 instructions are counted, each wave issues 2."""
    first, second = _two(f, 64)
    f.rows_copy(first, 64, 32, gather=True, layout="w")
    f.rows_copy(second, 64, 32, gather=True, layout="w")
    f.tdm_wait(num=1)
    f.load(first, 64)


def _swap(f: Function, rows: int) -> None:
    """Two tokens that change places in each iteration."""
    first, second = _two(f, rows)
    one, two = f.commit(f.copy(first, rows)), f.commit(f.copy(second, rows))
    token = "!ttg.async.token"
    head = (
        f"%r:2 = scf.for %i = {f.const(0)} to %n step {f.const(1)} "
        f"iter_args(%x = {one}, %y = {two}) -> ({token}, {token}) : i32 {{"
    )
    with f.block(head):
        f.wait("%x", "%y", num=0)
        f.load(first, rows)
        f.emit(f"scf.yield %y, %x : {token}, {token}")


def _carry(f: Function, rows: int) -> None:
    """A token that every iteration hands on."""
    first, _ = _two(f, rows)
    one = f.commit(f.copy(first, rows))
    token = "!ttg.async.token"
    head = (
        f"%r = scf.for %i = {f.const(0)} to %n step {f.const(1)} "
        f"iter_args(%x = {one}) -> ({token}) : i32 {{"
    )
    with f.block(head):
        f.wait("%x", num=0)
        f.load(first, rows)
        f.emit(f"scf.yield %x : {token}")


def _mixed(f: Function, rows: int) -> None:
    """Stores behind a load: they may retire first, so 8 in flight may be the load and 4 of them."""
    first, _ = _two(f, 4 * rows)
    other, _ = _two(f, 8 * rows)
    f.commit(f.copy(first, 4 * rows))
    f.commit(f.store(other, 8 * rows))
    f.wait(num=1)
    f.load(first, 4 * rows)


def _token(f: Function, rows: int) -> None:
    """A wait for a token, whose number is ignored where tokens count, and alone counts here."""
    first, _ = _two(f, rows)
    f.wait(f.commit(f.copy(first, rows)), num=7)
    f.load(first, rows)


_OLD = ("3.6.0", "3.7.1")
_ALL = (*_OLD, "3.8.0", "3.9.0")
_COPY = "ttg.async_copy_global_to_local"
_STORE = "amdg.async_copy_local_to_global"

CASES = (
    Case(name="hint-ignored", write=_hint, hosts=_OLD, arches=("gfx950", "gfx1250"), emitted=4),
    Case(
        name="redundant-waves",
        write=_few_rows,
        hosts=_OLD,
        arches=("gfx950", "gfx1250"),
        skips=(_COPY,),
    ),
    Case(
        name="masked-load",
        write=_masked_load,
        hosts=_OLD,
        arches=("gfx950", "gfx1250"),
        skips=(_COPY,),
    ),
    Case(
        name="masked-store",
        write=_masked_store,
        hosts=_ALL[1:],
        arches=("gfx1250",),
        skips=(_STORE,),
    ),
    Case(name="extract-slice", write=_slice, hosts=_ALL, arches=("gfx1250",), emitted=4),
    Case(name="call-commits", write=_call, hosts=_ALL, arches=("gfx1250",)),
    Case(name="call-commits", write=_call, hosts=_OLD, arches=("gfx942", "gfx950")),
    Case(name="gather-layout", write=_gather, hosts=("3.7.1",), arches=("gfx1250",)),
    Case(name="token-swapped", write=_swap, hosts=_ALL, arches=("gfx1250",), dies=True),
    Case(name="token-carried", write=_carry, hosts=_ALL, arches=("gfx1250",), dies=True),
    Case(name="loads-and-stores", write=_mixed, hosts=_ALL[1:], arches=("gfx1250",)),
    Case(name="token-ignored", write=_token, hosts=_ALL[2:], arches=("gfx942", "gfx950")),
)
