"""Which forward convolutions no kernel takes, and why: dtypes, groups, TMA's rules, epilogues."""

from __future__ import annotations

import torch
import triton.language as tl

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.device import IS_INTERPRETED, Device
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.rewrites.packing import violations

__all__ = [
    "DTYPES",
    "INPUT_DTYPES",
    "OUT_DTYPES",
    "check_problem",
    "conv_violations",
    "epilogue_reasons",
    "reasons",
]

conv_violations = backends.load("nvidia", "conv_violations")
descriptor_error = backends.load("nvidia", "descriptor_error")

#: Types of x and weight that all three directions have.
DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
#: What x and weight may be; WGMMA takes 8-bit and 32-bit types as they lie here, channels inside.
INPUT_DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
)
#: What y may be, through a cast of the accumulators.
OUT_DTYPES = (*INPUT_DTYPES[:-1], torch.int32)

_INT32 = EpilogueSpec(out_dtype=torch.int32)


def reasons(
    problem: ConvProblem, dtype: torch.dtype, machine: Device | None = None
) -> tuple[str, ...]:
    """Returns why no kernel of this direction takes a problem; nothing if one does.

    Args:
        problem: What is computed; its batch is not looked at.
        dtype: Of x and weight.
        machine: The device; ``None`` where only the problem is asked about.
    """
    found: list[str] = []
    if dtype not in INPUT_DTYPES:
        names = ", ".join(str(known).removeprefix("torch.") for known in INPUT_DTYPES)
        found.append(f"dtype {dtype} is not supported; supported are {names}")
    if machine is not None and machine.capability < (9, 0):
        major, minor = machine.capability
        found.append(f"TMA im2col needs sm_90 or newer, the GPU is sm_{major}{minor}")
    groups = problem.groups
    if groups < 1 or problem.in_channels % groups or problem.out_channels % groups:
        found.append(
            f"groups={groups} must divide both {problem.in_channels} input channels and "
            f"{problem.out_channels} output channels"
        )
    if not 1 <= problem.dims <= 3:
        found.append(f"1 to 3 spatial dimensions are supported, not {problem.dims}")
    else:
        found += violations(problem)
    return tuple(found)


def epilogue_reasons(
    dtype: torch.dtype, device: torch.device, epilogue: EpilogueSpec
) -> tuple[str, ...]:
    """Returns why no kernel ends in an epilogue, or in y's dtype; nothing if one does.

    Args:
        dtype: Of x and weight.
        device: Where they are.
        epilogue: What is done to y before it is stored.
    """
    found: list[str] = []
    is_float = epilogue.out_dtype is not None and epilogue.out_dtype.is_floating_point
    if dtype == torch.int8 and not is_float and epilogue not in (PLAIN, _INT32):
        found.append("an epilogue of int8 needs an out_dtype of floating point")
    if epilogue.out_dtype is not None and epilogue.out_dtype not in OUT_DTYPES:
        found.append(f"out_dtype {epilogue.out_dtype} is not supported")
    fp8_reason = _fp8_output_reason(epilogue.out_dtype or dtype, device)
    if fp8_reason is not None:
        found.append(fp8_reason)
    return tuple(found)


def _fp8_output_reason(dtype: torch.dtype, device: torch.device) -> str | None:
    """Returns why y cannot be of a dtype where kernels are interpreted; None where it can."""
    is_fp8 = dtype.itemsize == 1 and dtype.is_floating_point
    if not is_fp8 or device.type != "cpu" or not IS_INTERPRETED:
        return None
    return (
        f"Triton's interpreter casts to {dtype} wrongly; a GPU and the emulator round right, and "
        "out_dtype=torch.float16 works here"
    )


def check_problem(
    problem: ConvProblem,
    dtype: torch.dtype,
    device: torch.device,
    epilogue: EpilogueSpec,
    name: str,
) -> None:
    """Refuses what no kernel takes.

    Raises:
        DescriptorError: TMA cannot express the geometry.
        UnsupportedError: Anything else.
    """
    # Geometry has an error of its own, which lists what is wrong.
    wrong = violations(problem) if 1 <= problem.dims <= 3 else []
    other = [reason for reason in reasons(problem, dtype) if reason not in wrong]
    other += epilogue_reasons(dtype, device, epilogue)
    if other:
        raise UnsupportedError(f"{name}: " + "; ".join(other))
    if wrong:
        raise descriptor_error(wrong)
