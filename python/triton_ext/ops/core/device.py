"""The device: what kernels are planned for, and the rates that models of all kernels share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from triton_ext.errors import UnsupportedError
from triton_ext.host import require
from triton_ext.host.patch_points import interpreting

#: Shared memory that a CTA can use on sm_90 and sm_100: 227 KiB.
SMEM_BYTES = 232448

# Triton decides where a kernel is defined, when this package is imported, whether it is interpreted
# or compiled.
IS_INTERPRETED = interpreting()

# The interpreter runs the programs one after another; a few show that a kernel is persistent.
_INTERPRETED_PROGRAMS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Costs of work on a GPU, whatever kernel does it, measured on an H200 (Triton 3.9.0, fp16).

    A family whose measurements want another number has a correction beside its model: a difference
    in microseconds, or a factor on a rate.
    """

    launch_us: float = 3.0  # from the start of a kernel to its end, without work
    # DRAM, bytes read and written by kernels that copy: 2026-11-20, docs/performance.md.
    copy_bytes_per_us: float = 3.5e6
    # DRAM, a MiB that is only read: layers of wgrad that DRAM limits, 245 to 768 MiB take 0.25 to
    # 0.30 us each, 2026-11-22.
    read_us_per_mib: float = 0.28
    # Clock of a multiprocessor; each of its four schedulers issues one instruction per cycle.
    cycles_per_us: float = 1700.0


#: The only GPU whose rates are measured; models use them for all.
H200 = Rates()

# Fitted to 327 layers on an H100, with 3.35 TB/s; an H200 has 4.8 TB/s.
_H100_DRAM_BYTES_PER_US, _H200_DRAM_BYTES_PER_US = 3.0e6, 4.0e6


@dataclass(frozen=True, slots=True)
class Device:
    """A device that can run the kernels.

    Attributes:
        num_sms: Multiprocessors.
        capability: Compute capability, such as (9, 0).
        smem_bytes: Shared memory that a CTA can use.
        name: As the driver calls it, such as ``"NVIDIA H200"``; empty where there is no GPU.
        dram_bytes_per_us: DRAM, bytes read and written by kernels that multiply.
    """

    num_sms: int
    capability: tuple[int, int]
    smem_bytes: int
    name: str = ""
    dram_bytes_per_us: float = _H200_DRAM_BYTES_PER_US


#: GPUs that need not be there, by their names on command lines.
KNOWN: dict[str, Device] = {
    "h200": Device(132, (9, 0), SMEM_BYTES, "NVIDIA H200"),
    "h100": Device(132, (9, 0), SMEM_BYTES, "NVIDIA H100 80GB HBM3", _H100_DRAM_BYTES_PER_US),
}

# By the driver's names.
_DRAM_BYTES_PER_US = {device.name: device.dram_bytes_per_us for device in KNOWN.values()}

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
        _DRAM_BYTES_PER_US.get(properties.name, _H200_DRAM_BYTES_PER_US),
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
