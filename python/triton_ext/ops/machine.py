"""What plans need to know of a device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from triton_ext.errors import UnsupportedError
from triton_ext.host import require
from triton_ext.host.seams import interpreting
from triton_ext.ops.conv_config import SMEM_BYTES

__all__ = ["IS_INTERPRETED", "Machine", "assumed_machine", "machine_of"]

# Triton decides where a kernel is defined, when this package is imported, whether it is interpreted
# or compiled.
IS_INTERPRETED = interpreting()

# The interpreter runs the programs one after another; a few show that a kernel is persistent.
_INTERPRETED_PROGRAMS = 2


@dataclass(frozen=True, slots=True)
class Machine:
    """A device that can run the kernels.

    Attributes:
        num_sms: Multiprocessors.
        capability: Compute capability, such as (9, 0).
        smem_bytes: Shared memory that a CTA can use.
        name: As the driver calls it, such as ``"NVIDIA H200"``; empty where there is no GPU.
    """

    num_sms: int
    capability: tuple[int, int]
    smem_bytes: int
    name: str = ""


_assumed: ContextVar[Machine | None] = ContextVar("assumed_machine", default=None)


@contextlib.contextmanager
def assumed_machine(machine: Machine) -> Iterator[None]:
    """Within, the device ``meta`` is this machine: kernels can be planned and compiled for it."""
    token = _assumed.set(machine)
    try:
        yield
    finally:
        _assumed.reset(token)


def machine_of(device: torch.device, operator: str) -> Machine:
    """Returns the description of a device that can run im2col kernels.

    Args:
        device: Where the tensors are.
        operator: Who asks, for the error: ``"conv2d"``.

    Raises:
        UnsupportedError: The device cannot run the kernels; the text says what could.
    """
    if device.type == "cpu" and IS_INTERPRETED:
        return Machine(_INTERPRETED_PROGRAMS, (9, 0), SMEM_BYTES)
    assumed = _assumed.get()
    if assumed is not None and device.type == "meta":
        return assumed
    require("im2col")
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        capability = (properties.major, properties.minor)
        if capability < (9, 0):
            raise UnsupportedError(
                f"{operator}: TMA im2col needs sm_90 or newer, {device} is "
                f"sm_{capability[0]}{capability[1]}"
            )
        return Machine(
            properties.multi_processor_count,
            capability,
            properties.shared_memory_per_block_optin,
            properties.name,
        )
    raise UnsupportedError(
        f"{operator}: needs an NVIDIA GPU of sm_90 or newer, x is on {device}; to try it on a CPU, "
        "set TRITON_INTERPRET=1 before importing triton_ext.ops"
    )
