"""The device: what kernels are planned for, and the costs of work that all models share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from triton_ext.errors import UnsupportedError
from triton_ext.host import require
from triton_ext.host.patch_points import interpreting

#: Shared memory that a CTA can use on sm_90 and sm_100: 227 KiB.
SMEM_BYTES = 232448
#: Shared memory that Triton takes beside tiles and stages: mbarriers, alignment, warp groups.
RESERVED_BYTES = 1024

# Triton decides where a kernel is defined, when this package is imported, whether it is interpreted
# or compiled.
IS_INTERPRETED = interpreting()

# The interpreter runs the programs one after another; a few show that a kernel is persistent.
_INTERPRETED_PROGRAMS = 2


# Share of the DRAM rate that kernels reach that copy: 3.5 TB/s (H200, 2026-11-20;
# docs/performance.md).
_COPY_SHARE = 0.875


@dataclass(frozen=True, slots=True)
class Device:
    """A device that can run the kernels, with costs of work, whatever kernel does it.

    The costs are those of an H200 (Triton 3.9.0, fp16) unless a GPU has its own.  A family whose
    measurements want another number has it beside its model, as a difference or a factor.

    Attributes:
        num_sms: Multiprocessors.
        capability: Compute capability, such as (9, 0).
        smem_bytes: Shared memory that a CTA can use.
        name: As the driver calls it, such as ``"NVIDIA H200"``; empty where there is no GPU.
        dram_bytes_per_us: DRAM, bytes read and written by kernels that multiply.
        launch_us: From the start of a kernel to its end, without work.
        cycles_per_us: Clock of a multiprocessor; each of its four schedulers issues one instruction
            per cycle.
    """

    num_sms: int
    capability: tuple[int, int]
    smem_bytes: int
    name: str = ""
    dram_bytes_per_us: float = 4.0e6
    launch_us: ClassVar[float] = 3.0
    cycles_per_us: ClassVar[float] = 1700.0

    def dram_us(self, moved_bytes: float, share: float = _COPY_SHARE) -> float:
        """Returns the time in which bytes are moved at a share of the DRAM rate, that of copies.

        From L2 the share is above 1.
        """
        return moved_bytes / (self.dram_bytes_per_us * share)


#: The GPU whose costs models use for copies, and for what was measured on it alone.
H200 = Device(132, (9, 0), SMEM_BYTES, "NVIDIA H200")

#: GPUs that need not be there, by their names on command lines.  The H100's DRAM rate was fitted to
#: 327 layers; it has 3.35 TB/s, an H200 4.8 TB/s.
KNOWN: dict[str, Device] = {
    "h200": H200,
    "h100": replace(H200, name="NVIDIA H100 80GB HBM3", dram_bytes_per_us=3.0e6),
}

# By the driver's names.
_DRAM_BYTES_PER_US = {device.name: device.dram_bytes_per_us for device in KNOWN.values()}


@dataclass(frozen=True, slots=True)
class Expected:
    """The time that a model expects of a configuration, in microseconds.

    Attributes:
        parts: What the time is made of, by name.  Of what overlaps, the longest counts in full, and
            the others with what it does not hide.
        counted_us: The time as the planner compares it: with the family's correction, whose
            measurement stands beside it.
    """

    parts: tuple[tuple[str, float], ...]
    counted_us: float

    @classmethod
    def of(cls, kernel: float | Mapping[str, float]) -> Expected:
        """Returns the time of a kernel, whole or by parts."""
        parts = kernel if isinstance(kernel, Mapping) else {"kernel": kernel}
        return cls(tuple(parts.items()), sum(parts.values()))

    @classmethod
    def of_kernel(
        cls,
        launch_us: float,
        busiest_us: float,  # of the busiest multiprocessor
        work: Mapping[str, float],  # of a multiprocessor in the mean; the busiest one's rest: waves
        memory_us: float,
        shown: float,  # share of the shorter one of both that the longer one does not hide
        memory: str = "DRAM",
    ) -> Expected:
        """Returns the time of a kernel that computes while it moves data."""
        (longer, of_work), (shorter, of_memory) = (busiest_us, 1.0), (memory_us, shown)
        if longer <= shorter:
            longer, of_work, shorter, of_memory = shorter, shown, longer, 1.0
        parts = [(name, us * of_work) for name, us in work.items()]
        parts.append(("waves", (busiest_us - sum(work.values())) * of_work))
        every = (("launch", launch_us), *parts, (memory, memory_us * of_memory))
        return cls(every, launch_us + longer + shown * shorter)

    def corrected(self, factor: float) -> Expected:
        """Returns the time that counts ``factor`` times."""
        return replace(self, counted_us=self.counted_us * factor)

    def plus(self, name: str, us: float) -> Expected:
        """Returns the time with one part more, if it is any."""
        return Expected((*self.parts, (name, us)), self.counted_us + us) if us else self

    @property
    def us(self) -> float:
        """All parts."""
        return sum(us for _, us in self.parts)


_assumed: ContextVar[Device | None] = ContextVar("assumed_device", default=None)


@contextlib.contextmanager
def assumed_device(device: Device) -> Iterator[None]:
    """Within the context, kernels for ``meta`` tensors are planned and compiled for this device."""
    token = _assumed.set(device)
    try:
        yield
    finally:
        _assumed.reset(token)


def describe(device: torch.device) -> Device:
    """Returns the description of a GPU that Triton runs kernels on, or of the interpreter."""
    if device.type == "cpu" and IS_INTERPRETED:
        return Device(_INTERPRETED_PROGRAMS, (9, 0), SMEM_BYTES)
    properties = torch.cuda.get_device_properties(device)
    return Device(
        properties.multi_processor_count,
        (properties.major, properties.minor),
        properties.shared_memory_per_block_optin,
        properties.name,
        _DRAM_BYTES_PER_US.get(properties.name, H200.dram_bytes_per_us),
    )


def device_of(device: torch.device, operator: str) -> Device:
    """Returns the description of the device of tensors; ``operator`` is named in errors.

    Raises:
        UnsupportedError: The device cannot run the kernels; the text says what could.
    """
    if device.type == "cpu" and IS_INTERPRETED:
        return describe(device)
    assumed = _assumed.get()
    if assumed is not None and device.type == "meta":
        return assumed
    require("im2col")
    if device.type == "cuda":
        found = describe(device)
        if found.capability < (9, 0):
            major, minor = found.capability
            raise UnsupportedError(
                f"{operator}: TMA im2col needs sm_90 or newer, {device} is sm_{major}{minor}"
            )
        return found
    raise UnsupportedError(
        f"{operator}: needs an NVIDIA GPU of sm_90 or newer, x is on {device}; to try it on a CPU, "
        "set TRITON_INTERPRET=1 before importing triton_ext.ops"
    )
