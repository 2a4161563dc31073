"""Mutated IR for ``tools/fuzz.py``, and what is asked about each module.

A mutated module is read, printed, verified, edited and given to passes.  Every step may refuse it
with an error of :mod:`triton_ext.errors`.  Findings are another exception, a fault of a pass, a
valid module that a pass leaves invalid, a text that is printed otherwise than it was read, and
more than :data:`LIMIT_SECONDS` of CPU time.

Nothing outside the standard library is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
import signal
import traceback
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from triton_ext import llvm_ir
from triton_ext.errors import PassError, TritonExtError, VerifyError
from triton_ext.ir import (
    Builder,
    Module,
    Operation,
    append_if_results,
    append_iter_args,
    clone,
    inline_block,
    move_after,
    move_before,
    parse,
    rename,
)
from triton_ext.passes import PassManager, registry
from triton_ext.passes.options import options_of, with_options
from triton_ext.passes.pipeline import PassSpec
from triton_ext.tools.ir_text import split

__all__ = [
    "LIMIT_SECONDS",
    "Finding",
    "Mutator",
    "Seed",
    "examine",
    "examine_llvm",
    "guarded",
    "pass_names",
    "seeds_in",
]

#: CPU seconds that one module may take.
LIMIT_SECONDS = 5.0

_MLIR = (".mlir", ".ttir", ".ttgir")
_LLVM = (".ll", ".llir")
_MARKER = "// -----"
# Larger seeds are left out: a mutation of them costs as much as many of others.
_LARGEST_SEED = 16_000
# Seeds above this size are drawn less often, in proportion.
_FULL_SHARE = 2_500

_TOKEN = re.compile(
    r'"(?:\\.|[^"\\\n])*"|[%^#!@][\w$.-]+(?:[:#]\d+)?|//[^\n]*|(?<=[\d?])x(?=[\d?a-z!])'
    r"|0x[0-9A-Fa-f]+|\d+(?:\.\d+(?:[eE][+-]?\d+)?)?|[A-Za-z_][\w$.]*|->|\n|[ \t]+|.",
    re.DOTALL,
)
_NUMBERS = (
    *("0", "1", "-1", "2", "3", "7", "31", "32", "64", "127", "128", "255", "256", "1024"),
    *("4096", "65535", "65536", "1048576", "2147483647", "2147483648", "-2147483648"),
    *("4294967295", "4294967296", "9223372036854775807", "9223372036854775808"),
    *("18446744073709551616", "1" + "0" * 40, "9" * 5000, "0x7fffffff", "1.5", "1e400"),
)
_SOUP = (
    *"%^\"'(){}[]<>:,=#@!/\\?*-+. \n\t\r\x00\x0b\x0c\x85\u2028éx0l",
    *("loc(", "%x", "%0", "->", "//", "({", "})", "<{", "}>", "^bb1", "attributes {", "dense<"),
    *(
        " : ",
        "else {",
        "do {",
        "default {",
        "%x:2 = ",
        "t.a",
        '"t.a"(',
        "i32",
        "\r\n",
        "{-#",
        "#-}",
    ),
    *(
        "unknown",
        "loc(#loc)",
        "index",
        "tensor<",
        "!tt.ptr<",
        "memref<",
        "none",
        "i0",
        "i4294967296",
    ),
    *(
        "\ufeff",
        "\ud800",
        "🐍",
        "\u0661",
        "²",
        "true",
        "false",
        "opaque",
        "#0",
        "strided<",
        "callsite(",
    ),
)
_NESTED = ("(", "[", "<", "{", "tensor<", "loc(callsite(", "!tt.ptr<", "({\n", "-", "scf.if %x {\n")


@dataclass(frozen=True, slots=True)
class Seed:
    """A text to mutate.

    Attributes:
        origin: Where it comes from: a release of the corpus, or the folder that was given.
        text: The text.
        is_llvm: Whether it is LLVM IR.
    """

    origin: str
    text: str
    is_llvm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that must not happen.

    Attributes:
        door: What was asked: ``ir``, ``llvm``, ``command line``, ``table``, ``descriptor``, ``c``.
        kind: ``exception``, ``hang``, ``round trip`` or ``invalid``.
        step: What was done then.
        signature: The same for what is probably the same fault.
        detail: The exception and its place.
        text: The input.
    """

    door: str
    kind: str
    step: str
    signature: str
    detail: str
    text: str


class _TooLong(BaseException):
    """The CPU time of an input is spent; nothing but :func:`guarded` catches it."""


def seeds_in(folder: pathlib.Path) -> Iterator[Seed]:
    """Yields the seeds of a folder, or of one file.

    Args:
        folder: Searched for files of MLIR and of LLVM IR.  Folders that are named by a release of
            Triton are origins of their own.
    """
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    for path in paths:
        if path.suffix not in (*_MLIR, *_LLVM) or not path.is_file():
            continue
        parts = path.relative_to(folder).parts if path != folder else ()
        origin = next((p for p in parts if re.fullmatch(r"\d+\.\d+\.\d+", p)), folder.name)
        text = path.read_text(encoding="utf-8", errors="replace")
        is_llvm = path.suffix in _LLVM
        for _, part in [(0, text)] if is_llvm else split(text, _MARKER):
            if part.strip() and len(part) <= _LARGEST_SEED:
                yield Seed(origin, part, is_llvm)


class Mutator:
    """Makes module number n of a run, always the same one.

    Args:
        seeds: What to mutate.
        seed: Of the run.
    """

    def __init__(self, seeds: Sequence[Seed], seed: int) -> None:
        self._seeds = seeds
        self._seed = seed
        # Tokens of other seeds, by kind.
        self._pool: dict[str, list[str]] = {}
        rng = Random(seed)
        for chosen in rng.sample(list(seeds), min(len(seeds), 400)):
            for token in sorted(set(_TOKEN.findall(chosen.text))):
                if not token.isspace():
                    self._pool.setdefault(_kind(token), []).append(token)

    def make(self, number: int) -> tuple[Seed, str, Random]:
        """Returns a seed, a mutation of its text, and the random numbers for what follows.

        Args:
            number: Which one.
        """
        rng = Random((self._seed << 48) + number)
        chosen = rng.choice(self._seeds)
        while rng.random() * len(chosen.text) > _FULL_SHARE:
            chosen = rng.choice(self._seeds)
        text = chosen.text
        for _ in range(1 + min(int(rng.expovariate(1.2)), 5)):
            change = rng.choices(_CHANGES, _WEIGHTS)[0]
            text = change(self, text, rng)
        return chosen, text, rng

    def _swap_tokens(self, text: str, rng: Random) -> str:
        """Exchanges two tokens of one kind."""
        tokens = _TOKEN.findall(text)
        by_kind: dict[str, list[int]] = {}
        for index, token in enumerate(tokens):
            if not token.isspace():
                by_kind.setdefault(_kind(token), []).append(index)
        choices = [places for places in by_kind.values() if len(places) > 1]
        if not choices:
            return text
        first, second = rng.sample(rng.choice(choices), 2)
        if rng.random() < 0.5:
            tokens[first], tokens[second] = tokens[second], tokens[first]
        else:
            tokens[first] = tokens[second]
        return "".join(tokens)

    def _exchange_token(self, text: str, rng: Random) -> str:
        """Puts a token of another seed in the place of one of its kind."""
        tokens, index = _some_token(text, rng)
        if index < 0:
            return text
        pool = self._pool.get(_kind(tokens[index]))
        if pool:
            tokens[index] = rng.choice(pool)
        return "".join(tokens)

    def _change_number(self, text: str, rng: Random) -> str:
        tokens = _TOKEN.findall(text)
        places = [index for index, token in enumerate(tokens) if token[0].isdecimal()]
        if not places:
            return text
        tokens[rng.choice(places)] = rng.choice(_NUMBERS)
        return "".join(tokens)

    def _remove_token(self, text: str, rng: Random) -> str:
        tokens, index = _some_token(text, rng)
        if index >= 0:
            del tokens[index : index + rng.choice((1, 1, 1, 2, 5))]
        return "".join(tokens)

    def _double_token(self, text: str, rng: Random) -> str:
        tokens, index = _some_token(text, rng)
        if index >= 0:
            count = rng.choice((1, 1, 1, 1, 2, 2000))
            tokens[index:index] = [tokens[index]] * count
        return "".join(tokens)

    def _insert(self, text: str, rng: Random) -> str:
        at = rng.randint(0, len(text))
        return text[:at] + "".join(rng.choices(_SOUP, k=rng.choice((1, 1, 2, 4)))) + text[at:]

    def _nest(self, text: str, rng: Random) -> str:
        at = rng.randint(0, len(text))
        return text[:at] + rng.choice(_NESTED) * rng.choice((3, 50, 5000)) + text[at:]

    def _change_lines(self, text: str, rng: Random) -> str:
        """Removes, doubles, moves or exchanges lines."""
        lines = text.split("\n")
        first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
        kind = rng.choice(("remove", "double", "move", "swap", "cut"))
        if kind == "remove":
            del lines[first : first + rng.choice((1, 1, 2, 6))]
        elif kind == "double":
            lines.insert(second, lines[first])
        elif kind == "move":
            lines.insert(second, lines.pop(first))
        elif kind == "swap":
            lines[first], lines[second] = lines[second], lines[first]
        else:
            return text[: rng.randint(0, len(text))]
        return "\n".join(lines)

    def _splice(self, text: str, rng: Random) -> str:
        """Inserts some lines of another seed."""
        lines, others = text.split("\n"), rng.choice(self._seeds).text.split("\n")
        start, at = rng.randrange(len(others)), rng.randrange(len(lines))
        lines[at:at] = others[start : start + rng.choice((1, 1, 2, 8))]
        return "\n".join(lines)


_Change = Callable[[Mutator, str, Random], str]
_CHANGES: tuple[_Change, ...] = (
    Mutator._swap_tokens,
    Mutator._exchange_token,
    Mutator._change_number,
    Mutator._remove_token,
    Mutator._double_token,
    Mutator._insert,
    Mutator._nest,
    Mutator._change_lines,
    Mutator._splice,
)
_WEIGHTS = (24, 24, 16, 8, 4, 6, 0.5, 12, 8)


def _kind(token: str) -> str:
    first = token[0]
    if first.isdecimal():
        return "number"
    if first.isalpha() or first == "_":
        # Names of operations take the place of names of operations.
        return "dotted" if "." in token else "word"
    return first if first in '%^#!@"/' and len(token) > 1 else "sign"


def _some_token(text: str, rng: Random) -> tuple[list[str], int]:
    """The tokens of a text and the index of one that is no blank; -1 where there is none."""
    tokens = _TOKEN.findall(text)
    for _ in range(20):
        if tokens:
            index = rng.randrange(len(tokens))
            if not tokens[index].isspace():
                return tokens, index
    return tokens, -1


def pass_names() -> tuple[str, ...]:
    """The passes of this package."""
    return registry.names()


def guarded(door: str, text: str, run: Callable[[list[str]], str]) -> Finding | None:
    """Runs a check of an input.

    Args:
        door: What is asked.
        text: The input.
        run: Gets a list whose last entry is to be what it is about to do; returns a problem, with
            its kind before the colon, or nothing.

    Returns:
        The finding; ``None`` where there is none.
    """
    step = ["start"]

    def stop(number: int, frame: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
    try:
        problem = run(step)
    except TritonExtError:
        return None
    except _TooLong as error:
        return _finding(door, "hang", step[-1], error, text)
    except Exception as error:
        return _finding(door, "exception", step[-1], error, text)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    if not problem:
        return None
    kind, _, detail = problem.partition(": ")
    # Numbers and names differ between occurrences of one fault, and so do edits.
    place = re.sub(r"'[^']*'|\d+", "_", detail.partition("\n")[0])[:120]
    what = "edits" if step[-1].startswith("edits ") else step[-1]
    signature = f"{kind} in {what}: {place}"
    return Finding(
        door=door, kind=kind, step=step[-1], signature=signature, detail=detail, text=text
    )


def _finding(door: str, kind: str, step: str, error: BaseException, text: str) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "triton_ext" in f.filename or "third_party" in f.filename]
    place = ours[-1] if ours else frames[-1]
    name = pathlib.Path(place.filename).name
    where = f"{name}:{place.name}"
    if kind == "hang":
        # Where it is when its time is over is chance; the outer frames are not.
        where = " < ".join(f.name for f in ours[:4])
    signature = f"{kind} {type(error).__name__} at {where}"
    detail = f"{type(error).__name__}: {str(error)[:300]} ({name}:{place.lineno})"
    return Finding(door=door, kind=kind, step=step, signature=signature, detail=detail, text=text)


def examine(
    text: str, rng: Random, *, passes: Sequence[str], edits: int, options: bool = False
) -> Finding | None:
    """Asks everything about a module.

    Args:
        text: The module.
        rng: Chooses edits and options.
        passes: The passes to run.
        edits: Number of sequences of edits to make.
        options: Whether options of passes are drawn.
    """

    def run(step: list[str]) -> str:
        step.append("parse")
        module = parse(text, "fuzz.mlir")
        step.append("print")
        if str(module) != text:
            return "round trip: the module is printed otherwise than it was read"
        step.append("verify")
        is_valid = True
        try:
            module.verify()
        except TritonExtError as error:
            str(error)
            is_valid = False
        for _ in range(edits):
            problem = _edit_some(text, rng, is_valid, step)
            if problem:
                return problem
        for name in passes:
            problem = _run_pass(text, name, rng if options else None, is_valid, step)
            if problem:
                return problem
        return ""

    return guarded("ir", text, run)


def examine_llvm(text: str) -> Finding | None:
    """Asks about a module of LLVM IR.

    Args:
        text: The module.
    """

    def run(step: list[str]) -> str:
        step.append("parse")
        module = llvm_ir.parse(text, "fuzz.ll")
        step.append("print")
        if str(module) != text:
            return "round trip: the module is printed otherwise than it was read"
        views = (llvm_ir.Call, llvm_ir.Phi, llvm_ir.Binary, llvm_ir.Select, llvm_ir.Freeze)
        for function in module.functions:
            for instruction in function.instructions():
                for view in views:
                    step.append(f"{view.__name__}.match")
                    with contextlib.suppress(TritonExtError):
                        view.match(instruction)
        return ""

    return guarded("llvm", text, run)


def _run_pass(text: str, name: str, rng: Random | None, is_valid: bool, step: list[str]) -> str:
    step.append(f"pass {name}")
    module = parse(text, "fuzz.mlir")
    loaded = registry.lookup(name)
    given = {} if rng is None else _some_options(loaded, rng)
    try:
        one = with_options(loaded, PassSpec(name, given))
        PassManager([one], verify_each=is_valid).run(module)
    except VerifyError as error:
        if is_valid and "left an invalid module" in error.message:
            return f"invalid: {error.message}"
        return ""
    except PassError as error:
        if is_valid and any("this is a fault of the pass" in note for note in error.notes):
            raise error.__cause__ or error from None
        return ""
    except TritonExtError:
        return ""
    return _prints_again(module, step) if is_valid else ""


def _some_options(loaded: typing.Any, rng: Random) -> dict[str, str]:
    given = {}
    for option in options_of(loaded):
        if option.type is bool:
            given[option.name] = rng.choice(("true", "false"))
        elif rng.random() < 0.3 or option.default is dataclasses.MISSING:
            arch = ("gfx942", "gfx950", "gfx1250", "gfx90a", "sm_90", "")
            numbers = ("0", "1", "2", "64", "163840", "-1")
            given[option.name] = rng.choice(arch if "arch" in option.name else numbers)
    return given


def _prints_again(module: Module, step: list[str]) -> str:
    """Says what is wrong with the text of an edited module that verifies."""
    step.append(f"{step[-1]}, printed and read again")
    made = str(module)
    try:
        again = parse(made, "edited.mlir")
    except TritonExtError as error:
        return f"round trip: what was printed cannot be read: {error}"
    if str(again) != made:
        return "round trip: the edited module is printed otherwise than it was read"
    if _names(again) != _names(module):
        return f"round trip: the edited module is read as other operations\n{made}"
    return ""


def _names(module: Module) -> list[str]:
    """The names of all operations, without a module that is implied around another one."""
    names = [op.name for op in module.walk()]
    return names[1:] if names[1:2] == ["builtin.module"] and len(module.body) == 1 else names


def _edit_some(text: str, rng: Random, is_valid: bool, step: list[str]) -> str:
    module = parse(text, "fuzz.mlir")
    done = []
    for _ in range(rng.choice((1, 2, 4))):
        ops = list(module.walk())
        op, edit = rng.choice(ops), rng.choice(_EDITS)
        done.append(edit.__name__.removeprefix("_edit_"))
        step.append(f"edits {', '.join(done)}")
        with contextlib.suppress(TritonExtError):
            edit(module, op, rng)
    step.append(f"{step[-1]}, print")
    made = str(module)
    if not is_valid:
        with contextlib.suppress(TritonExtError):
            again = parse(made, "edited.mlir")
            if str(again) != made:
                return "round trip: the edited module is printed otherwise than it was read"
        return ""
    step.append(f"{step[-1]}, verify")
    try:
        module.verify()
    except TritonExtError:
        return ""
    return _prints_again(module, step)


def _values(op: Operation) -> list[typing.Any]:
    """Values that are defined around an operation: its own, its block's."""
    found: list[typing.Any] = list(op.results)
    if op.parent is not None:
        found += op.parent.args
        for other in op.parent.ops:
            found += other.results
    for region in op.regions:
        for block in region.blocks:
            found += block.args
    return found


def _edit_attribute(module: Module, op: Operation, rng: Random) -> None:
    names = [*op.attributes, "test.number", "order"]
    value = rng.choice(("7 : i32", "unit", '"a, b"', "[1, {a = 2}]", "#none", "", "}", "dense<0>"))
    op.set_attribute(rng.choice(names), value)


def _edit_no_attribute(module: Module, op: Operation, rng: Random) -> None:
    names = list(op.attributes)
    if names:
        op.remove_attribute(rng.choice(names))


def _edit_operand(module: Module, op: Operation, rng: Random) -> None:
    values = _values(op)
    if op.operands and values:
        op.set_operand(rng.randrange(len(op.operands)), rng.choice(values))


def _edit_type(module: Module, op: Operation, rng: Random) -> None:
    values = _values(op)
    if values:
        known = [value.known_type for value in values if value.known_type]
        rng.choice(values).set_type(rng.choice([*known, "i32", "tensor<4xf32>", "!x<", "index"]))


def _edit_erase(module: Module, op: Operation, rng: Random) -> None:
    op.erase()


def _edit_move(module: Module, op: Operation, rng: Random) -> None:
    rng.choice((move_before, move_after))(op, rng.choice(list(module.walk())))


def _edit_clone(module: Module, op: Operation, rng: Random) -> None:
    made = clone(op, Builder.after(op))
    if rng.random() < 0.5:
        op.replace_with(made)


def _edit_location(module: Module, op: Operation, rng: Random) -> None:
    op.set_loc(rng.choice(('loc("a.py":1:2)', "loc(unknown)", "#loc", "loc(", "unknown")))


def _edit_alias(module: Module, op: Operation, rng: Random) -> None:
    name = module.add_alias("#of_test", 'loc("a.py":1:1)')
    op.set_loc(name)


def _edit_rename(module: Module, op: Operation, rng: Random) -> None:
    values = _values(op)
    if values:
        rename(rng.choice(values), rng.choice(("%x", "%0", "%new.name", "%", "a b")))


def _edit_uses(module: Module, op: Operation, rng: Random) -> None:
    values = _values(op)
    if values:
        rng.choice(values).replace_all_uses_with(rng.choice(values))


def _edit_results(module: Module, op: Operation, rng: Random) -> None:
    values = _values(op)
    if not values:
        return
    value = rng.choice(values)
    if op.name == "scf.for":
        append_iter_args(op, [value])
    else:
        append_if_results(op, [value], [value])


def _edit_inline(module: Module, op: Operation, rng: Random) -> None:
    if op.regions and op.regions[0].blocks:
        inline_block(op.regions[0].blocks[0], op)


_EDITS: tuple[Callable[[Module, Operation, Random], None], ...] = (
    _edit_attribute,
    _edit_no_attribute,
    _edit_operand,
    _edit_type,
    _edit_erase,
    _edit_move,
    _edit_clone,
    _edit_location,
    _edit_alias,
    _edit_rename,
    _edit_uses,
    _edit_results,
    _edit_inline,
)
