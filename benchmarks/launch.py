"""Host time of a launch with three descriptors: im2col ones beside tiled ones.

Method.  The kernels return at once, so the GPU never makes the host wait: what is timed is the path
from a compiled kernel to the end of ``cuLaunchKernelEx``, Triton's front door (``kernel[grid]`` on
the JIT function) left out.  Launches are timed in chunks that fit the driver's queue, with a
synchronization between them that is not timed.  A round measures each variant once, in the order
that ``triton_ext.ops.tuning.measure.turns`` gives it.

Variants: ``tiled stock``, Triton alone; ``tiled``, with the plugin installed; ``tiled cached``,
with ``TRITON_EXT_TILED_MAPS=cached``; ``im2col``.  Addresses: ``same``, three descriptors for ever;
``pool``, 512 launches' worth of descriptors in turn; ``new``, three that were never seen.

``--stand-in`` does the same without a GPU, with Triton's launcher linked to a driver that does
nothing.  Encoding a map costs nothing there, which favours ``tiled stock``: it encodes three per
launch.
"""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
import triton_ext.language as tle
from triton_ext.ops.tuning.measure import turns

from benchmarks.harness import add_out_argument, collect_environment, emit, read_count, write_rows
from benchmarks.stand_in_driver import StandInDriver, compile_stand_in, environment_of

__all__ = ["add_arguments", "run"]

ADDRESSES = ("same", "pool", "new")
VARIANTS = ("tiled stock", "tiled", "tiled cached", "im2col")
BASELINE = "tiled stock"

# [N, H, W, C] of the im2col tensors, and the same memory as rows; 16 KiB each.
SHAPE = (2, 8, 8, 64)
ROWS = (128, 64)
BLOCK = [64, 64]
POOL = 512
CHUNK = 256
# Neither 1 nor a multiple of 16: those Triton compiles into the kernel.
ACTIVE = 3
# New addresses are taken in steps of a cache line from a buffer that is longer than they go.
STEP_BYTES = 128
BUFFER_BYTES = 1 << 30

# Set in the process whose libcuda is the stand-in.
STAND_IN_VARIABLE = "TRITON_EXT_BENCHMARK_STAND_IN"

# Limits of the cost of three im2col descriptors, relative to three that Triton encodes itself.
LIMITS = {"same": 1.0, "pool": 1.0, "new": 1.1}

FORMULA = (
    "us = host time per launch, median of the rounds; ratio = time / time of 'tiled stock' at the "
    "same kind of addresses; spread = (slowest - fastest round) / median"
)


@triton.jit
def tiled_stock(a, b, c, out, active):
    if active > 0:
        tile = a.load([0, 0]) + b.load([0, 0]) + c.load([0, 0])
        at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
        tl.store(out + at, tile)


@triton.jit
def tiled(a, b, c, out, active):
    if active > 0:
        tile = a.load([0, 0]) + b.load([0, 0]) + c.load([0, 0])
        at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
        tl.store(out + at, tile)


@triton.jit
def tiled_cached(a, b, c, out, active):
    if active > 0:
        tile = a.load([0, 0]) + b.load([0, 0]) + c.load([0, 0])
        at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
        tl.store(out + at, tile)


@triton.jit
def im2col(a, b, c, out, active):
    if active > 0:
        tile = tle.load_im2col(a, [0, 0, 0, 0], [0, 0])
        tile += tle.load_im2col(b, [0, 0, 0, 0], [0, 0])
        tile += tle.load_im2col(c, [0, 0, 0, 0], [0, 0])
        at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
        tl.store(out + at, tile)


KERNELS = dict(zip(VARIANTS, (tiled_stock, tiled, tiled_cached, im2col), strict=True))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    parser.add_argument(
        "--rounds", type=read_count, default=10, help="measurements per variant (10)"
    )
    parser.add_argument(
        "--calls", type=read_count, default=8192, help="launches of a measurement (8192)"
    )
    parser.add_argument(
        "--launches",
        type=functools.partial(read_count, least=0),
        default=1_000_000,
        metavar="N",
        help="launches with new addresses that must neither leak nor grow (1000000; 0: none)",
    )
    add_out_argument(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="no GPU: compiles for sm_90, times are invented"
    )
    parser.add_argument(
        "--stand-in",
        action="store_true",
        help="no GPU: times Triton's launcher on a driver that does nothing; needs a C compiler",
    )


@dataclass(slots=True)
class Base:
    """The properties of a tensor for a descriptor; its address can move within the buffer."""

    address: int
    shape: tuple[int, ...]
    dtype: Any

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple[int, ...]:
        strides = [1]
        for size in reversed(self.shape[1:]):
            strides.insert(0, strides[0] * size)
        return tuple(strides)


def descriptor(variant: str, address: int, dtype: Any) -> Any:
    """Builds a descriptor of the memory at an address."""
    from triton.tools.tensor_descriptor import TensorDescriptor
    from triton_ext import Im2ColDescriptor

    if variant == "im2col":
        return Im2ColDescriptor.for_conv(Base(address, SHAPE, dtype), 1, block_shape=BLOCK)
    return TensorDescriptor(Base(address, ROWS, dtype), list(ROWS), [ROWS[1], 1], BLOCK)


class Bench:
    """The buffer, one launcher per variant, and the loops around them.

    Args:
        buffer: Device memory of BUFFER_BYTES.
        out: Result of the kernels, [64, 64].
        synchronize: Waits for the GPU.
    """

    def __init__(self, buffer: Any, out: Any, synchronize: Callable[[], None]) -> None:
        self._first = buffer.data_ptr()
        self._dtype = buffer.dtype
        self._end = self._first + BUFFER_BYTES - 16384
        self._next = self._first
        self._out = out
        self._synchronize = synchronize
        self._launch = {name: self._compile(name) for name in VARIANTS}
        self._fixed = {name: self._descriptors(name, 0) for name in VARIANTS}
        self._pools = {
            name: [self._descriptors(name, 3 * i) for i in range(POOL)] for name in VARIANTS
        }
        self._moving = {name: self._descriptors(name, 0) for name in VARIANTS}

    def _descriptors(self, variant: str, index: int) -> list[Any]:
        return [
            descriptor(variant, self._first + (index + i) * 16384, self._dtype) for i in range(3)
        ]

    def _compile(self, variant: str) -> Callable[..., Any]:
        """Compiles the kernel and builds its launcher, which keeps what encodes its maps."""
        from triton_ext import plugin

        plugin.uninstall()
        os.environ["TRITON_EXT_TILED_MAPS"] = "cached" if variant == "tiled cached" else "stock"
        if variant != BASELINE:
            plugin.install()
        grid = (1, 1, 1)
        kernel = KERNELS[variant][grid](*self._descriptors(variant, 0), self._out, ACTIVE)
        launch: Callable[..., Any] = kernel[grid]
        plugin.install()
        return launch

    def result(self, variant: str) -> Any:
        """Returns a copy of what the kernel makes of the first three tensors."""
        self._out.zero_()
        self._launch[variant](*self._fixed[variant], self._out, ACTIVE)
        self._synchronize()
        return self._out.clone()

    def _step(self, variant: str, addresses: str) -> Callable[[int], None]:
        launch, out = self._launch[variant], self._out
        if addresses == "same":
            a, b, c = self._fixed[variant]
            return lambda i: launch(a, b, c, out, 0)
        if addresses == "pool":
            pool = self._pools[variant]
            return lambda i: launch(*pool[i % POOL], out, 0)
        a, b, c = self._moving[variant]
        bases = (a.base, b.base, c.base)

        def step(i: int) -> None:
            for base in bases:
                self._next += STEP_BYTES
                base.address = self._next
            launch(a, b, c, out, 0)

        return step

    def measure(self, variant: str, addresses: str, calls: int) -> float:
        """Returns the host time of one launch in microseconds."""
        step = self._step(variant, addresses)
        if self._next + 3 * (calls + CHUNK) * STEP_BYTES > self._end:
            # Everything in the cache is older than these addresses by now.
            self._next = self._first
        for i in range(min(calls, 2 * POOL)):
            if addresses != "new":
                step(i)
        self._synchronize()
        elapsed = 0.0
        for begin in range(0, calls, CHUNK):
            start = time.perf_counter()
            for i in range(begin, begin + CHUNK):
                step(i)
            elapsed += time.perf_counter() - start
            self._synchronize()
        return elapsed / (-(-calls // CHUNK) * CHUNK) * 1e6

    def soak(self, launches: int) -> dict[str, int]:
        """Launches with new addresses only; returns how much memory that took for good."""
        import torch
        from triton_ext.backends.nvidia.backend.map_cache import MAPS

        step = self._step("im2col", "new")

        def go(count: int) -> None:
            for i in range(count):
                if self._next + 16384 > self._end:
                    self._next = self._first
                step(i)
                if i % CHUNK == 0:
                    self._synchronize()
            self._synchronize()

        # The cache is full and the allocators have what they need after these.
        go(20_000)
        host_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        device = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        go(launches)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - host_kib
        left = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        return {"host_kib": grown, "device_bytes": left - device, "maps": len(MAPS)}


def check(bench: Bench, buffer: Any) -> list[str]:
    """Returns the variants whose kernel does not add the three tiles exactly."""
    size = ROWS[0] * ROWS[1]
    tiles = [buffer[i * size : i * size + 64 * 64].view(64, 64) for i in range(3)]
    expected = tiles[0] + tiles[1] + tiles[2]
    return [name for name in VARIANTS if not (bench.result(name) == expected).all()]


def run(arguments: argparse.Namespace) -> int:
    """Runs the case.

    Returns:
        1 where a result was wrong, im2col was too slow, or memory grew; 2 without a GPU; else 0.
    """
    import torch

    is_stand_in = arguments.stand_in and not arguments.dry_run
    if is_stand_in and os.environ.get(STAND_IN_VARIABLE) is None:
        return start_on_stand_in()
    environment = collect_environment(arguments.dry_run)
    for line in environment.lines():
        emit(line)
    emit(FORMULA)
    if arguments.dry_run:
        return dry_run(arguments)
    if is_stand_in:
        return measure_all(bench_on_stand_in(), arguments, environment)
    if not torch.cuda.is_available():
        emit("no CUDA GPU: nothing to time (--stand-in times the host's part without one)")
        return 2
    buffer = torch.randint(-8, 8, (BUFFER_BYTES // 2,), device="cuda", dtype=torch.float16)
    out = torch.zeros(64, 64, dtype=torch.float16, device="cuda")
    bench = Bench(buffer, out, torch.cuda.synchronize)
    wrong = check(bench, buffer)
    if wrong:
        emit(f"WRONG RESULT, nothing is timed: {', '.join(wrong)}")
        return 1
    emit("results: exact")
    return measure_all(bench, arguments, environment)


def start_on_stand_in() -> int:
    """Runs the same command in a process whose libcuda is the stand-in."""
    with tempfile.TemporaryDirectory() as folder:
        if not compile_stand_in(pathlib.Path(folder)):
            emit("no C compiler for the stand-in of libcuda")
            return 2
        environment = environment_of(pathlib.Path(folder)) | {STAND_IN_VARIABLE: "1"}
        command = [sys.executable, "-m", "benchmarks", *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode


def bench_on_stand_in() -> Bench:
    """Returns the benchmark with memory that is nothing but addresses."""
    import torch

    emit("driver: a stand-in that does nothing")
    triton.runtime.driver.set_active(StandInDriver())
    buffer = Base(0x7F0000000000, (BUFFER_BYTES // 2,), torch.float16)
    out = Base(0x7E0000000000, (64, 64), torch.float16)
    return Bench(buffer, out, lambda: None)


def measure_all(bench: Bench, arguments: argparse.Namespace, environment: Any) -> int:
    """Times every variant, then launches with new addresses.

    Returns:
        1 where im2col descriptors are slower than LIMITS says, or memory grew; else 0.
    """
    times = collect(lambda name, kind: bench.measure(name, kind, arguments.calls), arguments.rounds)
    report(times, arguments, environment)
    failed = False
    for kind, limit in LIMITS.items():
        medians = [statistics.median(times[name, kind]) for name in ("im2col", BASELINE)]
        ratio = medians[0] / medians[1]
        verdict = "ok" if ratio <= limit else "TOO SLOW"
        failed |= ratio > limit
        emit(f"im2col, addresses {kind}: {ratio:.3f} of {BASELINE} (limit {limit:.2f}): {verdict}")
    if not arguments.launches:
        return int(failed)
    grown = bench.soak(arguments.launches)
    leaks = grown["host_kib"] > 8192 or grown["device_bytes"] > 0 or grown["maps"] > 8192
    emit(
        f"{arguments.launches} im2col launches with new addresses: host memory grew by "
        f"{grown['host_kib']} KiB (limit 8192), device memory by {grown['device_bytes']} B "
        f"(limit 0), {grown['maps']} maps kept (limit 8192): {'GROWS' if leaks else 'ok'}"
    )
    return int(failed or leaks)


def collect(
    measure: Callable[[str, str], float], rounds: int
) -> dict[tuple[str, str], list[float]]:
    """Measures every variant once per round, in turns."""
    times: dict[tuple[str, str], list[float]] = {
        (name, kind): [] for kind in ADDRESSES for name in VARIANTS
    }
    cases = list(times)
    for number in range(rounds):
        for case in turns(cases, number):
            times[case].append(measure(*case))
    return times


def report(
    times: dict[tuple[str, str], list[float]], arguments: argparse.Namespace, environment: Any
) -> None:
    """Prints the table and writes it where the user wants it."""
    rows = []
    emit(f"{'addresses':<10}{'variant':<14}{'us':>8}{'ratio':>8}{'spread %':>10}")
    for (name, kind), rounds in times.items():
        median = statistics.median(rounds)
        ratio = median / statistics.median(times[BASELINE, kind])
        spread = (max(rounds) - min(rounds)) / median
        emit(f"{kind:<10}{name:<14}{median:>8.2f}{ratio:>8.3f}{100 * spread:>10.1f}")
        rows.append(
            {
                "addresses": kind,
                "variant": name,
                "us": round(median, 3),
                "ratio": round(ratio, 4),
                "spread": round(spread, 4),
                "rounds": len(rounds),
            }
        )
    if arguments.out is not None:
        write_rows(arguments.out, environment, rows)


def dry_run(arguments: argparse.Namespace) -> int:
    """Compiles the kernels for sm_90 and prints a table of invented times."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = dict.fromkeys("abc", "tensordesc<fp16[64, 64]>") | {"out": "*fp16", "active": "i32"}
    for name in (BASELINE, "im2col"):
        kernel = triton.compile(
            ASTSource(KERNELS[name], signature, {}, {}), target=GPUTarget("cuda", 90, 32)
        )
        emit(f"{name}: {len(kernel.asm['cubin'])} bytes for sm_90")
    emit("DRY RUN: the times below are invented")
    invented = {"tiled stock": 6.0, "tiled": 6.1, "tiled cached": 5.5, "im2col": 5.0}
    times = collect(lambda name, kind: invented[name], arguments.rounds)
    report(times, arguments, collect_environment(dry_run=True))
    return 0
