"""From tensors to a kernel: the plan of a call, or why there is none.

One place asks the three directions for plans and checks what a plan cannot know: dtypes, memory
order, addresses.  No plan is an answer too, a :class:`Refusal`; whether that is an error or torch's
turn is the caller's decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from triton_ext import backends
from triton_ext.errors import DescriptorError, TritonExtError, UnsupportedError
from triton_ext.ops import conv_plan, dgrad_plan, wgrad_plan
from triton_ext.ops.conv_refusals import epilogue_reasons
from triton_ext.ops.core.device import Device, device_of
from triton_ext.ops.core.dispatch_cache import allows_tf32
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.core.memory_format import channels_last_strides
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.rewrites.packing import violations

__all__ = [
    "Direction",
    "Refusal",
    "address_refusal",
    "geometry_refusal",
    "layout_refusal",
    "plan_or_refusal",
    "reasons",
    "stride_reasons",
    "tensor_refusal",
]

descriptor_error = backends.load("nvidia", "descriptor_error")

Direction = Literal["fprop", "dgrad", "wgrad"]

_PLANNERS = {"fprop": conv_plan, "dgrad": dgrad_plan, "wgrad": wgrad_plan}

# TMA reads from and writes to addresses that are multiples of this.
_ALIGNMENT_BYTES = 16

_MEMORY_FORMATS = {4: "torch.channels_last", 5: "torch.channels_last_3d"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no kernel takes a call.

    Attributes:
        kind: The class of the error.
        text: What was expected, what was found.
        by_torch: Whether torch may compute it instead, where it is asked to.
    """

    kind: type[Exception]
    text: str
    by_torch: bool = True

    def error(self) -> Exception:
        """Returns the error to raise."""
        return self.kind(self.text)


def layout_refusal(operator: str, name: str, tensor: torch.Tensor) -> Refusal | None:
    """Returns what is wrong with a tensor's memory order; ``None`` if nothing is."""
    if tensor.stride(1) == 1 or tensor.shape[1] == 1:
        return None
    order = _MEMORY_FORMATS.get(tensor.dim())
    advice = (
        f"{name}.contiguous(memory_format={order})"
        if order
        else f"{name}.transpose(1, 2).contiguous().transpose(1, 2)"
    )
    return Refusal(
        ValueError,
        f"{operator}: channels must be contiguous (channels-last), got channel stride "
        f"{tensor.stride(1)} of {name}; call {advice}",
    )


def _dtypes(direction: Direction) -> tuple[torch.dtype, ...]:
    """Returns the dtypes that a direction's kernels read."""
    planner: Any = _PLANNERS[direction]
    return tuple(getattr(planner, "INPUT_DTYPES", planner.DTYPES))


def tensor_refusal(
    direction: Direction, operator: str, tensors: dict[str, torch.Tensor]
) -> Refusal | None:
    """Returns what is wrong with dtypes and memory order; ``None`` if nothing is.

    Args:
        direction: Whose kernel is to read the tensors.
        operator: Who asks, for the text.
        tensors: Those with pixels, by name.
    """
    dtypes = _dtypes(direction)
    for name, tensor in tensors.items():
        if tensor.dtype not in dtypes:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            return Refusal(
                TypeError, f"{operator}: dtype {tensor.dtype} is not supported, use {known}"
            )
        refusal = layout_refusal(operator, name, tensor)
        if refusal is not None:
            return refusal
        reason = _tf32_reason(tensor.dtype, tensor.device)
        if reason is not None:
            return Refusal(UnsupportedError, f"{operator}: {reason}")
    return None


def _tf32_reason(dtype: torch.dtype, device: torch.device) -> str | None:
    # Triton's interpreter multiplies fp32 as it is.
    if dtype != torch.float32 or device.type != "cuda" or allows_tf32():
        return None
    return (
        "float32 is computed through TF32, which torch.backends.cudnn.conv.fp32_precision = "
        f'"{torch.backends.cudnn.conv.fp32_precision}" forbids; set it to "tf32"'
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


def plan_or_refusal(direction: Direction, make: Callable[[Any], Any]) -> Any | Refusal:
    """Returns the plan that a module makes, or its refusal.

    Args:
        direction: Whose module plans.
        make: Makes the plan with the module.
    """
    try:
        return make(_PLANNERS[direction])
    except TritonExtError as error:
        return Refusal(type(error), str(error))


def geometry_refusal(problem: ConvProblem) -> Refusal | None:
    """Returns what TMA cannot express of a forward problem, every violation, or ``None``."""
    found = violations(problem)
    return Refusal(DescriptorError, str(descriptor_error(found))) if found else None


def reasons(
    direction: Direction,
    problem: ConvProblem,
    dtype: torch.dtype,
    device: torch.device,
    epilogue: EpilogueSpec = PLAIN,
) -> tuple[str, ...]:
    """Returns why the kernel of a direction does not take a problem; empty if it does.

    Args:
        direction: Whose kernel.
        problem: What is computed.
        dtype: Of the operands.
        device: Where they are; nothing is said of ``meta``.
        epilogue: Of fprop; the other directions have none that could be refused.
    """
    machine: Device | None = None
    found: list[str] = []
    if device.type != "meta":
        try:
            machine = device_of(device, f"conv{problem.dims}d")
        except UnsupportedError as error:
            found.append(str(error))
    rounded = _tf32_reason(dtype, device)
    if rounded is not None and dtype in _dtypes(direction):
        found.append(rounded)
    if direction == "fprop":
        found.extend(epilogue_reasons(dtype, device, epilogue))
    planner: Any = _PLANNERS[direction]
    # An empty batch has a geometry as well: that of one image.
    found.extend(planner.reasons(replace(problem, batch=max(problem.batch, 1)), dtype, machine))
    return tuple(found)


def stride_reasons(
    direction: Direction,
    problem: ConvProblem,
    dtype: torch.dtype,
    device: torch.device,
    *,
    x_strides: tuple[int, ...] | None = None,
    dy_strides: tuple[int, ...] | None = None,
) -> tuple[str, ...]:
    """Returns why the kernel of a direction cannot read views in place; empty if it can.

    Args:
        direction: Whose kernel; it takes the problem of dense tensors.
        problem: What is computed.
        dtype: Of the operands.
        device: Where they are.
        x_strides: Of x, whose channels lie side by side; ``None`` if it is dense.
        dy_strides: Of dy, likewise.
    """
    asked = replace(problem, batch=max(problem.batch, 1))
    x_strides = x_strides or channels_last_strides(asked.x_shape)
    dy_strides = dy_strides or channels_last_strides(asked.y_shape)
    read = {"fprop": (x_strides,), "dgrad": (dy_strides,), "wgrad": (x_strides, dy_strides)}

    def make(planner: Any) -> Any:
        return planner.make_plan(asked, *read[direction], dtype, device)

    plan = plan_or_refusal(direction, make)
    return (plan.text,) if type(plan) is Refusal else ()
