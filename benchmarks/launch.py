"""Host time of a launch with three descriptors, without a GPU: im2col ones beside tiled ones.

As ``calls``: what is timed is a compiled kernel's launch to the end of ``cuLaunchKernelEx``, on a
driver that does nothing, Triton's front door (``kernel[grid]``) left out.  Encoding a map costs
nothing there, which favours ``tiled stock``, Triton alone: it encodes three per launch.  ``tiled``
has the plugin installed, ``tiled cached`` also ``TRITON_EXT_TILED_MAPS=cached``.  Addresses are the
``same`` three for ever, or ``new`` ones for every launch.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
import triton_ext.language as tle
from triton_ext.ops.tuning.measure import turns

from benchmarks.calls import add_arguments, fastest_us, report
from benchmarks.harness import collect_environment, emit
from benchmarks.stand_in_driver import STAND_IN_VARIABLE, StandInDriver, start_on_stand_in

__all__ = ["add_arguments", "run", "verdicts"]

ADDRESSES = ("same", "new")
VARIANTS = ("tiled stock", "tiled", "tiled cached", "im2col")
BASELINE = "tiled stock"

# [N, H, W, C] of the im2col tensors, and the same memory as rows; 16 KiB each.
SHAPE, ROWS, BLOCK, TENSOR_BYTES = (2, 8, 8, 64), (128, 64), [64, 64], 16384
# New addresses are taken in steps of a cache line from a buffer that is longer than they go.
FIRST, STEP_BYTES, BUFFER_BYTES = 0x7F0000000000, 128, 1 << 30
# Limits of the cost of three im2col descriptors, relative to three that Triton encodes itself.
LIMITS = {"same": 1.0, "new": 1.1}


def tiled(a, b, c, out, active):
    if active > 0:
        tile = a.load([0, 0]) + b.load([0, 0]) + c.load([0, 0])
        at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
        tl.store(out + at, tile)


def im2col(a, b, c, out, active):
    if active > 0:
        tile = tle.load_im2col(a, [0, 0, 0, 0], [0, 0])
        tile += tle.load_im2col(b, [0, 0, 0, 0], [0, 0])
        tile += tle.load_im2col(c, [0, 0, 0, 0], [0, 0])
        at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
        tl.store(out + at, tile)


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


def _descriptors(variant: str) -> list[Any]:
    import torch
    from triton.tools.tensor_descriptor import TensorDescriptor
    from triton_ext import Im2ColDescriptor

    places = [FIRST + number * TENSOR_BYTES for number in range(3)]
    if variant == "im2col":
        bases = [Base(place, SHAPE, torch.float16) for place in places]
        return [Im2ColDescriptor.for_conv(base, 1, block_shape=BLOCK) for base in bases]
    bases = [Base(place, ROWS, torch.float16) for place in places]
    return [TensorDescriptor(base, list(ROWS), [ROWS[1], 1], BLOCK) for base in bases]


def _steps(variant: str) -> dict[tuple[str, str], Callable[[], object]]:
    """Compiles a kernel and returns its launches, by addresses and variant."""
    import torch
    from triton_ext import plugin

    plugin.uninstall()
    os.environ["TRITON_EXT_TILED_MAPS"] = "cached" if variant == "tiled cached" else "stock"
    if variant != BASELINE:
        plugin.install()
    out, grid = Base(0x7E0000000000, (64, 64), torch.float16), (1, 1, 1)
    fixed, moving = _descriptors(variant), _descriptors(variant)
    # A kernel of its own for each variant, with a launcher of its own.
    kernel = triton.jit(im2col if variant == "im2col" else tiled)
    # 3 is neither 1 nor a multiple of 16: those Triton compiles into the kernel.
    launch = kernel[grid](*fixed, out, 3)[grid]
    plugin.install()
    bases, last = [each.base for each in moving], FIRST + BUFFER_BYTES - TENSOR_BYTES

    def move_and_launch() -> None:
        place = bases[-1].address
        for base in bases:
            # Everything in a cache of maps is older than the first addresses by then.
            place = FIRST if place >= last else place + STEP_BYTES
            base.address = place
        launch(*moving, out, 0)

    return {("same", variant): lambda: launch(*fixed, out, 0), ("new", variant): move_and_launch}


def verdicts(times: dict[tuple[str, str], list[float]]) -> list[tuple[str, bool]]:
    """Returns a line for each kind of addresses, and whether im2col descriptors are too slow."""
    found = []
    for kind, limit in LIMITS.items():
        ratio = statistics.median(times[kind, "im2col"]) / statistics.median(times[kind, BASELINE])
        told = "ok" if ratio <= limit else "TOO SLOW"
        text = f"im2col, addresses {kind}: {ratio:.3f} of {BASELINE} (limit {limit:.2f}): {told}"
        found.append((text, ratio > limit))
    return found


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where im2col was too slow, 2 without a C compiler, else 0."""
    if os.environ.get(STAND_IN_VARIABLE) is None:
        return start_on_stand_in()
    environment = collect_environment()
    for line in (*environment.lines(), "driver: a stand-in that does nothing"):
        emit(line)
    triton.runtime.driver.set_active(StandInDriver())
    found = [_steps(variant) for variant in VARIANTS]
    steps = {key: step for each in found for key, step in each.items()}
    times: dict[tuple[str, str], list[float]] = {(a, v): [] for a in ADDRESSES for v in VARIANTS}
    for number in range(arguments.rounds):
        for key in turns(list(times), number):
            times[key].append(fastest_us(steps[key], arguments.chunks))
    report(times, arguments, environment, BASELINE)
    lines = verdicts(times)
    for text, _ in lines:
        emit(text)
    return int(any(is_slow for _, is_slow in lines))
