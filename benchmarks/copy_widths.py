"""Bytes that an instruction of an asynchronous copy moves, Triton's layouts against ours; no GPU.

Four sets: TTGIR of a corpus (``TRITON_EXT_CORPUS``: folders of releases, of targets, of files),
kernels in @triton.jit, the Gluon kernels of ``small_copies``, and generated copies, which are those
of the tests from another seed.  ``stock`` is what the installed Triton compiles, generated copies
behind its own pass; ``ext`` is the same behind ours, Gluon kernels with triton-ext installed.

Counted are the instructions of a thread in PTX or amdgcn, by their bytes, kernels and copies that
Triton refuses to compile, and ``ttg.convert_layout`` left in the TTGIR.  ``worse`` are kernels that
compile in stock alone, or with more instructions than in stock, or as many and narrower ones.

Needs the tests' folders beside this one: who compiles, and what is generated, is there.  Triton
prints on standard error what it refuses.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks.harness import add_out_argument, emit, read_count, write_json

__all__ = ["add_arguments", "run"]

ROOT = pathlib.Path(__file__).parents[1]
PASSES = {
    "cuda": "tritongpu-coalesce-async-copy",
    "hip": "tritonamdgpu-coalesce-async-copy",
}
GENERATED = {
    "cuda": ("cuda:80", "cuda:90", "cuda:100"),
    "hip": ("hip:gfx942", "hip:gfx950", "hip:gfx1250"),
}
BY_OFFSETS = ("hip:gfx942", "hip:gfx950")
COMPILED = ("cuda:90", "hip:gfx950", "hip:gfx1250")
SETS = ("corpus", "jit", "gluon", "generated")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    parser.add_argument("--only", choices=SETS, action="append", help="one of the sets; repeatable")
    parser.add_argument(
        "--count", type=read_count, default=200, help="generated copies per vendor (200)"
    )
    parser.add_argument("--seed", type=int, default=11, help="of the generated copies (11)")
    add_out_argument(parser, [".json"])


@dataclass(slots=True)
class Tally:
    """Results of one set for one vendor.

    Attributes:
        instructions: Bytes to number of instructions, by variant.
        refused: Kernels that did not compile, by variant.
        conversions: ``ttg.convert_layout``, by variant.
        kernels: All kernels.
        changed: Kernels with other instructions.
        worse: Names of those that are worse.
    """

    instructions: dict[str, Counter[int]] = field(
        default_factory=lambda: {"stock": Counter(), "ext": Counter()}
    )
    refused: Counter[str] = field(default_factory=Counter)
    conversions: Counter[str] = field(default_factory=Counter)
    kernels: int = 0
    changed: int = 0
    worse: list[str] = field(default_factory=list)

    def add(self, name: str, widths: dict[str, dict[int, int] | None]) -> None:
        """Counts one kernel: its instructions by variant, ``None`` for one that was refused."""
        stock, ext = widths["stock"], widths["ext"]
        self.kernels += 1
        self.changed += stock != ext
        for variant, found in widths.items():
            self.refused[variant] += found is None
            self.instructions[variant].update(found or {})
        if stock is not None and (ext is None or _is_worse(stock, ext)):
            self.worse.append(name)

    def lines(self) -> Iterator[str]:
        """The table of this set."""
        widths = sorted(set().union(*self.instructions.values()))
        for variant, found in self.instructions.items():
            told = ", ".join(f"{width} B: {found[width]}" for width in widths) or "none"
            yield (
                f"  {variant:6}{told}; {self.refused[variant]} of {self.kernels} refused, "
                f"{self.conversions[variant]} convert_layout"
            )
        yield f"  {self.changed} differ, {len(self.worse)} worse"


def _is_worse(stock: dict[int, int], ext: dict[int, int]) -> bool:
    count, before = sum(ext.values()), sum(stock.values())
    # Fewer instructions may be narrower: more threads copy.
    return count > before or (count == before and min(ext, default=0) < min(stock, default=0))


def run(arguments: argparse.Namespace) -> int:
    """Prints a table per set and vendor; returns 1 where a kernel is worse."""
    for folder in ("host", "passes"):
        sys.path.append(str(ROOT / "unittest" / folder))
    import triton
    from copy_emission import EmissionHost

    emit(f"triton {triton.__version__}, instructions of a thread by bytes")
    chosen = arguments.only or SETS
    tallies: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory() as cache, triton.knobs.cache.scope(), EmissionHost() as host:
        triton.knobs.cache.dir = cache
        for name in SETS:
            if name in chosen:
                for key, tally in _SETS[name](host, arguments).items():
                    tallies[key] = tally
                    emit(key)
                    for line in [*tally.lines(), *(f"  worse: {each}" for each in tally.worse)]:
                        emit(line)
    if arguments.out is not None:
        rows = {
            name: {
                "kernels": tally.kernels,
                "changed": tally.changed,
                "worse": tally.worse,
                "instructions": {v: dict(n) for v, n in tally.instructions.items()},
                "refused": dict(tally.refused),
                "conversions": dict(tally.conversions),
            }
            for name, tally in tallies.items()
        }
        write_json(arguments.out, {"triton": triton.__version__, "sets": rows})
    return 1 if any(tally.worse for tally in tallies.values()) else 0


# ---- sets


def _corpus(host: Any, arguments: argparse.Namespace) -> dict[str, Tally]:
    import triton

    folder = os.environ.get("TRITON_EXT_CORPUS")
    if folder is None:
        emit("corpus: not there, TRITON_EXT_CORPUS names none")
        return {}
    tallies: dict[str, Tally] = {}
    for path in sorted(pathlib.Path(folder, triton.__version__).glob("*/*.ttgir")):
        text, target = path.read_text(encoding="utf-8"), path.parent.name.replace("-", ":")
        if _has_copies(text):
            tally = tallies.setdefault(f"corpus, {target}", Tally())
            _add_text(tally, f"{path.parent.name}/{path.stem}", text, target, host)
    return tallies


def _jit(host: Any, arguments: argparse.Namespace) -> dict[str, Tally]:
    from benchmarks.copy_widths_kernels import KERNELS

    tallies: dict[str, Tally] = {}
    for target in COMPILED:
        tally = tallies[f"@triton.jit, {target}"] = Tally()
        for kernel, types, blocks in KERNELS:
            name = f"{kernel.__name__} {' '.join(types.values())} {blocks}"
            text = _ttgir(kernel, types, blocks, target)
            if text is not None and _has_copies(text):
                _add_text(tally, name, text, target, host)
    return tallies


def _ttgir(
    kernel: Any, types: dict[str, str], blocks: tuple[int, int, int], target: str
) -> str | None:
    """The TTGIR of a kernel; ``None`` where Triton refuses it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    vendor, _, arch = target.partition(":")
    constants = dict(zip(("BM", "BN", "BK"), blocks, strict=True))
    given = {**types, **dict.fromkeys(("m", "n", "k"), "i32")}
    signature = {n: given.get(n, "constexpr") for n in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(signature) if n in given}
    for index, name in enumerate(signature):
        if name in types:  # so that AMD may use buffer instructions
            aligned[index,].append(["tt.pointer_range", 32])
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    gpu = (
        GPUTarget("cuda", int(arch), 32)
        if vendor == "cuda"
        else GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
    )
    with triton.knobs.amd.scope():
        triton.knobs.amd.use_async_copy = True
        try:
            found: str = triton.compile(source, target=gpu, options={"num_stages": 3}).asm["ttgir"]
        except Exception as error:  # a type or width that this release does not have
            emit(f"  {kernel.__name__} {types['a_ptr']}, {target}: {str(error)[:80]!r}")
            return None
    return found


def _gluon(host: Any, arguments: argparse.Namespace) -> dict[str, Tally]:
    from copy_emission import widths_of
    from triton_ext import plugin

    from benchmarks import small_copies

    tally = Tally()
    for case in small_copies.CASES:
        compiled: dict[str, dict[int, int] | None] = {}
        for variant in ("stock", "ext"):
            if variant == "ext":
                plugin.install()
            try:
                asm = small_copies.compiled(case, copied=True)
                compiled[variant] = widths_of(asm["ptx"], "cuda:90")
                tally.conversions[variant] += _conversions(asm["ttgir"])
            except RuntimeError:  # what Triton raises where a pass of its own fails
                compiled[variant] = None
            finally:
                plugin.uninstall()
        tally.add(case.name, compiled)
    return {"Gluon, small_copies, cuda:90": tally}


def _generated(host: Any, arguments: argparse.Namespace) -> dict[str, Tally]:
    from copy_cases import compiles_only_on_3_6, draw
    from copy_comparison import HostPass, ours

    tallies = {}
    for vendor, targets in GENERATED.items():
        random, tally = Random(arguments.seed), Tally()
        theirs = HostPass(PASSES[vendor])
        for number in range(arguments.count):
            target = random.choice(targets)
            by_offsets = target in BY_OFFSETS and random.random() < 0.3
            case = draw(random, target, by_offsets=by_offsets)
            if theirs.version < "3.7" and compiles_only_on_3_6(case):
                continue  # A wave writes past the end of the buffer; later releases refuse it.
            texts = {
                "stock": theirs.run(case.text, target) or case.text,
                "ext": ours(PASSES[vendor], case.text),
            }
            _add(tally, f"number {number}", texts, target, host)
        theirs.close()
        tallies[f"generated, {', '.join(targets)}"] = tally
    return tallies


_SETS: dict[str, Callable[[Any, argparse.Namespace], dict[str, Tally]]] = {
    "corpus": _corpus,
    "jit": _jit,
    "gluon": _gluon,
    "generated": _generated,
}


def _add_text(tally: Tally, name: str, text: str, target: str, host: Any) -> None:
    """Counts a module behind Triton's stage, and with our pass behind it."""
    from copy_comparison import ours

    texts = {"stock": text, "ext": ours(PASSES[target.partition(":")[0]], text)}
    _add(tally, name, texts, target, host)


def _add(tally: Tally, name: str, texts: dict[str, str], target: str, host: Any) -> None:
    tally.add(name, {variant: host.ask(text, target).widths for variant, text in texts.items()})
    for variant, text in texts.items():
        tally.conversions[variant] += _conversions(text)


def _has_copies(text: str) -> bool:
    return "ttg.async_copy_global_to_local" in text or "amdg.buffer_load_to_local" in text


def _conversions(text: str) -> int:
    return text.count("= ttg.convert_layout")
