"""Refusals: why no kernel takes a case, a configuration or a tensor.

A refusal is an answer, not yet an error: the caller raises it or leaves the call to torch.
``Family.refusals`` says why a family does not compute a case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from triton_ext.errors import DescriptorError, UnsupportedError
from triton_ext.host import capabilities
from triton_ext.host.dots import INSTRUCTION_BITS, least_dot_depth
from triton_ext.ops.core.device import IS_INTERPRETED, RESERVED_BYTES, Device
from triton_ext.ops.core.dispatch_cache import allows_tf32
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec

if TYPE_CHECKING:
    from triton_ext.ops.core.case import Case, Direction

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
    """Why no kernel takes a call, or a family a case."""

    text: str  # what was found, what was expected
    kind: type[Exception] = UnsupportedError  # the class of the error
    by_torch: bool = True  # whether torch may compute it instead, where it is asked to
    in_key: bool = True  # whether it follows from the case's key in tables

    def __str__(self) -> str:
        return self.text

    def error(self) -> Exception:
        """Returns the error to raise."""
        return self.kind(self.text)


Refusals = tuple[Refusal, ...]


def refused(*texts: str, in_key: bool = True) -> Refusals:
    """Returns a refusal for each text."""
    return tuple(Refusal(text, in_key=in_key) for text in texts)


def refuse(where: str, found: Iterable[Refusal]) -> None:
    """Raises an UnsupportedError that begins with ``where`` and lists the refusals, if any."""
    if text := "; ".join(map(str, found)):
        raise UnsupportedError(f"{where}: {text}")


def beyond_keys(found: Iterable[Refusal]) -> Refusals:
    """Returns refusals with ``in_key`` false: they depend on strides or amounts of padding."""
    return tuple(replace(each, in_key=False) for each in found)


def field_refusals(config: Any, *, may_be_zero: Collection[str] = ()) -> Refusals:
    """Returns a refusal for each int or bool field of another type, and for small ints.

    Ints are at least 1, those of ``may_be_zero`` at least 0.  The module of the dataclass postpones
    the evaluation of annotations.
    """
    found = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        least = 0 if field.name in may_be_zero else 1
        if field.type == "int" and (type(value) is not int or value < least):
            found.append(f"{field.name} is {value!r}: expected an int of at least {least}")
        elif field.type == "bool" and type(value) is not bool:
            found.append(f"{field.name} is {value!r}: expected True or False")
    return refused(*found)


def power_refusals(config: object, **limits: tuple[int, int]) -> Refusals:
    """Returns a refusal for each field that is no power of two within its limits, both included."""
    return refused(
        *(
            f"{name} is {value}: expected a power of two from {least} to {most}"
            for name, (least, most) in limits.items()
            if not least <= (value := getattr(config, name)) <= most or value & (value - 1)
        )
    )


def range_refusals(config: object, **limits: tuple[int, int]) -> Refusals:
    """Returns a refusal for each field beyond its limits, both included."""
    return refused(
        *(
            f"{name} is {value}: expected {least} to {most}"
            for name, (least, most) in limits.items()
            if not least <= (value := getattr(config, name)) <= most
        )
    )


def depth_refusals(config: object, element_bytes: int, name: str) -> Refusals:
    """Returns why a field is below the least depth of a ``tl.dot``.

    Elements of the operands have ``element_bytes``: 1, 2 or 4.
    """
    value, bits = getattr(config, name), 8 * element_bytes
    least = least_dot_depth(bits)
    if value >= least:
        return ()
    text = f"{name} is {value}: expected at least {least} elements of {bits} bits"
    if bits == 32 and value >= INSTRUCTION_BITS // bits:
        # A newer Triton takes it.
        text += f"; {capabilities()['fp32-dots-of-8'].reason}"
    return refused(text)


def smem_refusals(
    smem_bytes: int, device: Device, reserved_bytes: int = RESERVED_BYTES
) -> Refusals:
    """Returns why tiles and stages of ``smem_bytes`` do not fit the shared memory of a CTA."""
    needed = smem_bytes + reserved_bytes
    if needed <= device.smem_bytes:
        return ()
    return refused(
        f"its tiles and stages take {needed} bytes of shared memory, a CTA has "
        f"{device.smem_bytes}: expected fewer stages or smaller tiles"
    )


def dtype_refusals(case: Case) -> Refusals:
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
    return refused(*found)


def epilogue_refusals(case: Case, device: torch.device) -> Refusals:
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
    return refused(*found)


def tf32_refusals(dtype: torch.dtype, device: torch.device) -> Refusals:
    """Returns why fp32 may not be multiplied as tf32, where kernels do so."""
    # Triton's interpreter multiplies fp32 as it is.
    if dtype != torch.float32 or device.type != "cuda" or allows_tf32():
        return ()
    return refused(
        "float32 is computed through TF32, which torch.backends.cudnn.conv.fp32_precision = "
        f'"{torch.backends.cudnn.conv.fp32_precision}" forbids; set it to "tf32"'
    )


def tensor_refusal(
    direction: Direction, operator: str, tensors: dict[str, torch.Tensor]
) -> Refusal | None:
    """Returns the first refusal of dtype, memory order or TF32 of tensors, given by name."""
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES[direction]:
            text = f"dtype {tensor.dtype} is not supported, use {_names(DTYPES[direction])}"
            return Refusal(f"{operator}: {text}", TypeError)
        if (refusal := layout_refusal(operator, name, tensor)) is not None:
            return refusal
        for refusal in tf32_refusals(tensor.dtype, tensor.device):
            return Refusal(f"{operator}: {refusal}")
    return None


def residual_refusal(
    operator: str, residual: torch.Tensor | None, dtype: torch.dtype
) -> Refusal | None:
    """Returns why kernels do not add a residual to an output of a dtype."""
    largest, is_float = max(dtype.itemsize, 2), dtype.is_floating_point
    if residual is None:
        return None
    if residual.itemsize <= largest and residual.is_floating_point() == is_float:
        return None
    kind = "floating-point" if is_float else "integer"
    return Refusal(
        f"{operator}: residual is {residual.dtype}: expected {kind} numbers of at most {largest} "
        f"bytes for an output of {dtype}",
        TypeError,
    )


def layout_refusal(operator: str, name: str, tensor: torch.Tensor) -> Refusal | None:
    """Returns what is wrong with a tensor's memory order; ``None`` if nothing is."""
    if tensor.stride(1) == 1 or tensor.shape[1] == 1:
        return None
    advice = f"{name}.transpose(1, 2).contiguous().transpose(1, 2)"
    if order := _MEMORY_FORMATS.get(tensor.dim()):
        advice = f"{name}.contiguous(memory_format={order})"
    return Refusal(
        f"{operator}: channels must be contiguous (channels-last), got channel stride "
        f"{tensor.stride(1)} of {name}; call {advice}",
        ValueError,
    )


def address_refusal(operator: str, tensors: dict[str, torch.Tensor]) -> Refusal | None:
    """Returns what is wrong with the addresses of real tensors; ``None`` if nothing is."""
    for name, tensor in tensors.items():
        if tensor.data_ptr() % _ALIGNMENT_BYTES:
            return Refusal(
                f"{operator}: {name} begins at an address that is no multiple of "
                f"{_ALIGNMENT_BYTES} bytes; call {name}.clone()",
                DescriptorError,
            )
    return None


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
