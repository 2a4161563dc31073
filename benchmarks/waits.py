"""AMD wait counts and their verifier, beside the compile of the kernels that have them.

The compile is timed from TTGIR on (LLVM IR, assembly, object), so that the share is an upper bound.
What the plugin adds is all of it: printing, parsing, the pass, printing, parsing by Triton again.
Times are CPU times of this process and its children, which other processes do not lengthen.  A
round measures each once, one after the other; the share is the median of the rounds' shares, so
that a slow phase of the machine, which is slow for both, cancels.  Needs no GPU.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks.harness import add_out_argument, cpu_seconds, emit, read_count, times_ms, write_json

__all__ = ["add_arguments", "run"]

_ARGUMENTS = ("a_ptr", "b_ptr", "c_ptr", "M", "N", "K")
#: Limit of the share of both together in a compile.
LIMIT_PERCENT = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of this case."""
    parser.add_argument("files", nargs="*", help="TTGIR for AMD; by default kernels of our own")
    parser.add_argument(
        "--rounds", type=read_count, default=9, help="repetitions; the medians are printed"
    )
    add_out_argument(parser, [".json"])


def run(arguments: argparse.Namespace) -> int:
    """Prints a line for each kernel; returns 1 where the limit is missed in the geometric mean."""
    import triton

    emit(f"triton {triton.__version__}, python {sys.version.split()[0]}")
    texts = (
        {path: pathlib.Path(path).read_text(encoding="utf-8") for path in arguments.files}
        if arguments.files
        else _own_kernels()
    )
    rows = {}
    emit(f"{'kernel':32}{'compile ms':>12}{'pass ms':>10}{'verify ms':>11}{'added ms':>10}{'%':>7}")
    for name, text in texts.items():
        if "_wait" not in text:
            continue
        try:
            row = rows[name] = _row(text, arguments.rounds)
        except RuntimeError as error:
            emit(f"{pathlib.Path(name).name[-31:]:32}Triton refuses it: {error}")
            continue
        emit(
            f"{pathlib.Path(name).name[-31:]:32}{row['compile_ms']:12.1f}{row['pass_ms']:10.1f}"
            f"{row['verify_ms']:11.1f}{row['added_ms']:10.1f}{row['percent']:7.2f}"
        )
    if not rows:
        emit("no kernel waits for asynchronous copies on this Triton")
        return 1
    share = statistics.geometric_mean([row["percent"] for row in rows.values()])
    good = share <= LIMIT_PERCENT
    emit(
        f"pass and verifier: {share:.2f} % of the compile in the geometric mean "
        f"(limit {LIMIT_PERCENT:.0f} %): {'ok' if good else 'TOO SLOW'}"
    )
    if arguments.out is not None:
        write_json(arguments.out, rows)
    return 0 if good else 1


def _row(text: str, rounds: int) -> dict[str, float]:
    from triton_ext import backends, host, plugin
    from triton_ext.host import module as host_module
    from triton_ext.ir import parse
    from triton_ext.passes import PassManager

    context, compile_ = _compiler(text)
    module = host_module.parse_module(text, context)

    def manager(export: str) -> PassManager:
        pass_ = backends.load("amd", export)()
        return PassManager([pass_], verify_each=False, host_features=host.features)

    count, verify = manager("update-async-wait-count"), manager("verify-async-waits")

    def added() -> object:
        tree = plugin.run_passes(host_module.print_module(module))
        return host_module.parse_module(str(tree), context)

    # One round warms up: it imports, and fills caches.
    trees = [parse(text) for _ in range(rounds + 1)]
    verified, counted = iter(trees), iter(trees)
    variants = {
        "verify_ms": lambda: verify.run(next(verified)),
        "pass_ms": lambda: count.run(next(counted)),
        "added_ms": added,
        "compile_ms": compile_,
    }
    times_ms(variants, 1)
    times = times_ms(variants, rounds, cpu_seconds)
    shares = [
        100 * (verifying + counting) / compiling
        for verifying, counting, _, compiling in zip(*times.values(), strict=True)
    ]
    medians = {name: statistics.median(values) for name, values in times.items()}
    return medians | {"percent": statistics.median(shares)}


def _compiler(text: str) -> tuple[Any, Callable[[], object]]:
    """A context of Triton, and what compiles the text from there to an object."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton_ext.host import module as host_module

    arch = re.search(r'ttg\.target = "hip:(\w+)"', text)
    warps = re.search(r'"ttg\.num-warps" = (\d+)', text)
    if arch is None or warps is None:
        raise SystemExit("expected TTGIR for AMD, with its target and its number of waves")
    backend = make_backend(GPUTarget("hip", arch[1], 64 if arch[1].startswith("gfx9") else 32))
    options = backend.parse_options({"num_warps": int(warps[1])})
    context = host_module.new_context(backend)

    def compile_() -> object:
        module = host_module.parse_module(text, context)
        metadata = {"target": backend.target, "name": "f", **options.__dict__}
        llir = backend.make_llir(module, metadata, options)
        return backend.make_hsaco(backend.make_amdgcn(llir, metadata, options), metadata, options)

    return context, compile_


def _own_kernels() -> dict[str, str]:
    """TTGIR of matmuls through pointers (gfx950, gfx1250) and descriptors (gfx1250)."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from benchmarks import waits_kernels

    found = {}
    with tempfile.TemporaryDirectory() as cache, knobs.cache.scope():
        knobs.cache.dir = cache
        for name, kernel, element, constants, arch in waits_kernels.KERNELS:
            signature = {each: element if each.endswith("_ptr") else "i32" for each in _ARGUMENTS}
            aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(signature))}
            source = ASTSource(
                kernel,
                {**signature, **dict.fromkeys(constants, "constexpr")},
                constexprs=constants,
                attrs=aligned,
            )
            target = GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
            compiled = triton.compile(source, target=target, options={"num_stages": 3})
            found[f"{name} {arch}"] = compiled.asm["ttgir"]
    return found
