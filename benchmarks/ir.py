"""The lossless tree beside Triton's own parser, and the plugin's share of a compile; needs no GPU.

The text is the TTGIR of the forward convolution, its function repeated under other names until the
size is reached.  Both sides parse and print the same text in the same run, in turn.
"""

from __future__ import annotations

import argparse
import gc
import pathlib
import statistics
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from typing import Any

from benchmarks.harness import (
    add_out_argument,
    collect_environment,
    emit,
    milliseconds,
    read_count,
    times_ms,
    write_json,
)

__all__ = ["add_arguments", "run"]

SIZES_KB = (19, 180, 900)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    parser.add_argument("--rounds", type=read_count, default=7, help="measurements per variant (7)")
    add_out_argument(parser, [".json"])


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a text did not come back byte for byte."""
    for line in collect_environment().lines():
        emit(line)
    emit(f"rounds:     {arguments.rounds}, interleaved, medians; edited: every operation cut up")
    emit()
    emit(
        f"{'text':>8} {'C++ ms':>8} {'ours ms':>8} {'ratio':>6} {'edited ms':>10} {'ratio':>6} "
        f"{'memory':>7} {'spread %':>9}"
    )
    kernel = str(_compiled().asm["ttgir"])
    rows = []
    for size in SIZES_KB:
        row = _measure(_grown(kernel, size * 1000), arguments.rounds)
        if row is None:
            emit(f"{size:>5} KB: the text did not come back byte for byte")
            return 1
        rows.append(row)
        emit(
            f"{row['bytes'] / 1000:>5.0f} KB {row['host_ms']:>8.2f} {row['ours_ms']:>8.2f} "
            f"{row['ratio']:>6.2f} {row['edited_ms']:>10.2f} {row['edited_ratio']:>6.2f} "
            f"{row['memory']:>6.1f}x {row['spread'] * 100:>9.1f}"
        )
    emit()
    overhead = _plugin_overhead(arguments.rounds)
    emit(
        f"plugin: {overhead['marked_ms']:.2f} ms of a {overhead['compile_ms']:.0f} ms compile "
        f"({overhead['marked_ms'] / overhead['compile_ms'] * 100:.2f} %) for a kernel with im2col "
        f"loads, {overhead['unmarked_ms']:.2f} ms for the same text without a marker"
    )
    start = statistics.median(_start_ms() for _ in range(arguments.rounds))
    emit(f"triton-opt --host=none with a pass of ours, the whole process: {start:.0f} ms")
    if arguments.out is not None:
        found = {"texts": rows, "plugin": overhead, "kernel_bytes": len(kernel)}
        write_json(arguments.out, found)
    return 0


def _compiled() -> Any:
    """Compiles the convolution kernel for sm_90, in a process without a GPU from then on."""
    import torch
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.device import KNOWN
    from triton_ext.ops.families.gemm_config import CONFIGS
    from triton_ext.ops.kernels.gemm import conv_fprop_kernel
    from triton_ext.ops.tuning import parse_shape
    from triton_ext.ops.tuning.measure import compile_kernels, target_only

    target_only((9, 0))
    # Kernels that this process has compiled before.
    conv_fprop_kernel.device_caches.clear()
    problem = parse_shape("8x128x56x56_128_k3x3")
    case = Case(direction="fprop", problem=problem, dtype=torch.float16)
    (compiled,) = compile_kernels(case, CONFIGS[0], KNOWN["h200"])
    return compiled


def _grown(text: str, size: int) -> str:
    """Repeats the function of a module until the text has about ``size`` bytes."""
    start = text.index("  tt.func ")
    # The module's own closing brace stands at the start of a line.
    end = text.index("\n}", start) + 1
    function = text[start:end]
    copies = max(1, round(size / len(function)))
    name = function[function.index("@") + 1 : function.index("(")]
    repeated = "".join(
        function.replace(f"@{name}(", f"@{name}_{number}(", 1) for number in range(copies)
    )
    return text[:start] + repeated + text[end:]


def _measure(text: str, rounds: int) -> dict[str, Any] | None:
    from triton_ext.host import module as host_module
    from triton_ext.ir import parse

    if str(parse(text)) != text:
        return None
    context = host_module.new_context(_backend())

    def edited() -> str:
        tree = parse(text)
        for op in tree.walk():
            # Whatever it is set to, the operation is now printed from the tree.
            op.set_loc(op.loc_text or "loc(unknown)")
        return str(tree)

    variants: dict[str, Callable[[], object]] = {
        "host": _host_round_trip(text, context),
        "ours": lambda: str(parse(text)),
        "edited": edited,
    }
    times = times_ms(variants, rounds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ours = times["ours"]
    return {
        "bytes": len(text),
        "host_ms": medians["host"],
        "ours_ms": medians["ours"],
        "edited_ms": medians["edited"],
        "ratio": medians["ours"] / medians["host"],
        "edited_ratio": medians["edited"] / medians["host"],
        "memory": _peak_bytes(edited) / len(text),
        "spread": (max(ours) - min(ours)) / medians["ours"],
    }


def _backend() -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    return make_backend(GPUTarget("cuda", 90, 32))


def _host_round_trip(text: str, context: Any) -> Callable[[], object]:
    """Parse and print with the host, which reads files only; the file is written beforehand."""
    from triton._C.libtriton import ir

    folder = tempfile.mkdtemp(prefix="triton-ext-bench-")
    path = pathlib.Path(folder, "module.ttgir")
    path.write_text(text, encoding="utf-8")
    return lambda: str(ir.parse_mlir_module(str(path), context))


def _peak_bytes(function: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _start_ms() -> float:
    """The whole life of triton-opt on an empty module, without a host."""
    program = "import sys; from triton_ext.tools import opt; sys.exit(opt.main(sys.argv[1:]))"
    flags = ["-", "--host=none", "--triton-ext-lower-im2col"]

    def run() -> None:
        command = [sys.executable, "-c", program, *flags]
        subprocess.run(command, input=b"module {\n}\n", capture_output=True, check=True)

    return milliseconds(run)


def _plugin_overhead(rounds: int) -> dict[str, float]:
    """Returns the plugin's time after the ``ttgir`` stage, and that of the whole compile."""
    from triton import knobs
    from triton_ext import plugin
    from triton_ext.host import module as host_module
    from triton_ext.markers import LIBRARY

    seen: list[str] = []
    original = plugin.run_passes

    def remember(text: str, *arguments: Any, **options: Any) -> Any:
        seen.append(text)
        return original(text, *arguments, **options)

    def compile_anew() -> None:
        with tempfile.TemporaryDirectory() as cache, knobs.cache.scope():
            knobs.cache.dir = cache
            _compiled()

    plugin.run_passes = remember
    try:
        compile_anew()
    finally:
        plugin.run_passes = original
    context = host_module.new_context(_backend())
    module = host_module.parse_module(seen[-1], context)

    def marked() -> object:
        printed = host_module.print_module(module)
        return host_module.parse_module(str(original(printed)), context)

    def unmarked() -> object:
        return LIBRARY + "?" in host_module.print_module(module)

    variants = {"compile_ms": compile_anew, "marked_ms": marked, "unmarked_ms": unmarked}
    times = times_ms(variants, rounds)
    return {name: statistics.median(values) for name, values in times.items()}
