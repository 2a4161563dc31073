"""Which cases and tensors no kernel takes, and why: dtypes, TMA's rules, memory order, addresses.

A refusal is an answer, not yet an error: the caller raises it or leaves the call to torch.  A
family's own refusals (``Family.refusals``) tell why other families have to take a case.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from triton_ext import backends
from triton_ext.errors import DescriptorError, UnsupportedError
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import IS_INTERPRETED
from triton_ext.ops.core.dispatch_cache import allows_tf32
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.core.packing import violations
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.stride_phases import geometry_refusals as dgrad_refusals

__all__ = [
    "DTYPES",
    "Refusal",
    "address_refusal",
    "check",
    "epilogue_refusals",
    "geometry_refusal",
    "geometry_refusals",
    "layout_refusal",
    "tensor_refusal",
    "tf32_refusals",
    "type_refusals",
]

descriptor_error = backends.load("nvidia", "descriptor_error")

_HALF = (torch.float16, torch.bfloat16)

#: Dtypes of the operands by direction.  WGMMA reads 8-bit and 32-bit types only with the reduced
#: dimension inside, as it lies in fprop; fp32 is multiplied as tf32.
DTYPES: dict[Direction, tuple[torch.dtype, ...]] = {
    "fprop": (*_HALF, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8),
    "dgrad": (*_HALF, torch.float32),
    "wgrad": _HALF,
}
# Through a cast of the accumulators.
_Y_DTYPES = (*DTYPES["fprop"][:-1], torch.int32)
_DW_DTYPES = (*_HALF, torch.float32)
_INT32 = EpilogueSpec(out_dtype=torch.int32)

# TMA reads from and writes to addresses that are multiples of this.
_ALIGNMENT_BYTES = 16

_MEMORY_FORMATS = {4: "torch.channels_last", 5: "torch.channels_last_3d"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no kernel takes a call."""

    kind: type[Exception]  # the class of the error
    text: str  # what was expected, what was found
    by_torch: bool = True  # whether torch may compute it instead, where it is asked to

    def error(self) -> Exception:
        """Returns the error to raise."""
        return self.kind(self.text)


def check(case: Case, device: torch.device) -> None:
    """Refuses a case that no kernel takes on any GPU.

    Raises:
        DescriptorError: TMA cannot express the geometry; every violation is listed.
        UnsupportedError: Dtypes, groups or the epilogue.
    """
    if found := epilogue_refusals(case, device):
        raise UnsupportedError(f"{case.operator}: " + "; ".join(found))
    if found := geometry_refusals(case):
        raise descriptor_error(found)
    if found := type_refusals(case):
        raise UnsupportedError(f"{case.operator}: " + "; ".join(found))


def geometry_refusals(case: Case) -> list[str]:
    """Returns what TMA cannot express of a case, every violation."""
    problem = case.problem
    if not 1 <= problem.dims <= 3:
        return [f"{problem.dims} spatial dimensions: expected 1 to 3"]
    return dgrad_refusals(problem) if case.direction == "dgrad" else violations(problem)


def geometry_refusal(problem: ConvProblem) -> Refusal | None:
    """Returns what TMA cannot express of a forward convolution, or ``None``."""
    found = violations(problem)
    return Refusal(DescriptorError, str(descriptor_error(found))) if found else None


def type_refusals(case: Case) -> list[str]:
    """Returns which dtypes and groups no kernel of the direction takes."""
    problem, direction = case.problem, case.direction
    found = []
    dtypes, expected = DTYPES[direction], f"expected {_names(DTYPES[direction])}"
    if direction == "wgrad":
        expected = "wgrad needs float16 or bfloat16, WGMMA transposes 16-bit operands only"
        if 1 < problem.groups == problem.in_channels == problem.out_channels:
            dtypes = _DW_DTYPES
    if case.dtype not in dtypes:
        found.append(f"dtype {case.dtype}: {expected}")
    out_dtype = case.out_dtype or case.dtype
    if direction == "wgrad" and out_dtype not in _DW_DTYPES:
        found.append(f"out_dtype {out_dtype}: expected float16, bfloat16 or float32")
    groups = problem.groups
    if groups < 1 or problem.in_channels % groups or problem.out_channels % groups:
        found.append(
            f"groups={groups} must divide both {problem.in_channels} input channels and "
            f"{problem.out_channels} output channels"
        )
    return found


def epilogue_refusals(case: Case, device: torch.device) -> list[str]:
    """Returns why no kernel ends in the epilogue of a case, or stores its dtype of y."""
    spec = case.epilogue
    found = []
    is_float = spec.out_dtype is not None and spec.out_dtype.is_floating_point
    if case.dtype == torch.int8 and not is_float and spec not in (PLAIN, _INT32):
        found.append("an epilogue of int8 needs an out_dtype of floating point")
    if spec.out_dtype is not None and spec.out_dtype not in _Y_DTYPES:
        found.append(f"out_dtype {spec.out_dtype} is not supported")
    y_dtype = spec.out_dtype or case.dtype
    is_fp8 = y_dtype.itemsize == 1 and y_dtype.is_floating_point
    if case.direction == "fprop" and is_fp8 and device.type == "cpu" and IS_INTERPRETED:
        found.append(
            f"Triton's interpreter casts to {y_dtype} wrongly; a GPU and the emulator round right, "
            "and out_dtype=torch.float16 works here"
        )
    return found


def tf32_refusals(dtype: torch.dtype, device: torch.device) -> list[str]:
    """Returns why fp32 may not be multiplied as tf32, where kernels do so."""
    # Triton's interpreter multiplies fp32 as it is.
    if dtype != torch.float32 or device.type != "cuda" or allows_tf32():
        return []
    return [
        "float32 is computed through TF32, which torch.backends.cudnn.conv.fp32_precision = "
        f'"{torch.backends.cudnn.conv.fp32_precision}" forbids; set it to "tf32"'
    ]


def tensor_refusal(
    direction: Direction, operator: str, tensors: dict[str, torch.Tensor]
) -> Refusal | None:
    """Returns what is wrong with dtypes and memory order of tensors with pixels, by name."""
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES[direction]:
            text = f"dtype {tensor.dtype} is not supported, use {_names(DTYPES[direction])}"
            return Refusal(TypeError, f"{operator}: {text}")
        if (refusal := layout_refusal(operator, name, tensor)) is not None:
            return refusal
        for text in tf32_refusals(tensor.dtype, tensor.device):
            return Refusal(UnsupportedError, f"{operator}: {text}")
    return None


def layout_refusal(operator: str, name: str, tensor: torch.Tensor) -> Refusal | None:
    """Returns what is wrong with a tensor's memory order; ``None`` if nothing is."""
    if tensor.stride(1) == 1 or tensor.shape[1] == 1:
        return None
    advice = f"{name}.transpose(1, 2).contiguous().transpose(1, 2)"
    if order := _MEMORY_FORMATS.get(tensor.dim()):
        advice = f"{name}.contiguous(memory_format={order})"
    return Refusal(
        ValueError,
        f"{operator}: channels must be contiguous (channels-last), got channel stride "
        f"{tensor.stride(1)} of {name}; call {advice}",
    )


def address_refusal(operator: str, tensors: dict[str, torch.Tensor]) -> Refusal | None:
    """Returns what is wrong with the addresses of real tensors; ``None`` if nothing is."""
    for name, tensor in tensors.items():
        if tensor.data_ptr() % _ALIGNMENT_BYTES:
            return Refusal(
                DescriptorError,
                f"{operator}: {name} begins at an address that is no multiple of "
                f"{_ALIGNMENT_BYTES} bytes; call {name}.clone()",
            )
    return None


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
