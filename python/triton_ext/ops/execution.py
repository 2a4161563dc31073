"""What the operators do on real tensors: run the plan of a call, or leave the call to torch.

The answer to a call is kept per what the call looks like (shapes, strides, dtypes, devices,
numbers), so that a call seen before costs one look-up.  Arguments are those of the operators in
``library.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from triton_ext.ops import shortcut
from triton_ext.ops.arguments import (
    check_pair,
    empty_channels_last,
    fprop_size,
    is_per_image,
    operator_name,
    output_dtype,
    problem_of,
)
from triton_ext.ops.epilogue import NO_OPERANDS, PLAIN, EpilogueOperands, EpilogueSpec
from triton_ext.ops.plans import (
    PlanCache,
    Refusal,
    address_refusal,
    allows_tf32,
    plan_or_refusal,
    tensor_refusal,
)
from triton_ext.ops.problem import ConvProblem
from triton_ext.ops.reference import torch_dgrad, torch_fprop, torch_fused, torch_wgrad
from triton_ext.ops.repeats import Repeats

__all__ = [
    "Epilogue",
    "clear_plans",
    "known_dgrad",
    "known_fprop",
    "known_fused",
    "known_wgrad",
    "run_dgrad",
    "run_fprop",
    "run_fused",
    "run_wgrad",
]

_WITH_BIAS = EpilogueSpec(bias=True)

_plans: PlanCache[Any] = PlanCache()


def clear_plans() -> None:
    """Forgets the plans of all calls; tests do that when they change what plans are made of."""
    _plans.clear()
    shortcut.forget()


@dataclass(frozen=True, slots=True)
class _Nothing:
    """The plan of an empty batch: there is nothing to compute."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def run(self, first: torch.Tensor, *_: Any, out: Any = None, **__: Any) -> torch.Tensor:
        if out is None:
            out = empty_channels_last(self.shape, self.dtype, first.device)
        # A filter gets a sum over no pixels; the other directions have no element to write.
        result: torch.Tensor = out.zero_()
        return result


def _look(*tensors: torch.Tensor | None) -> tuple[object, ...]:
    return tuple(None if t is None else (t.shape, t.dtype, t.device) for t in tensors)


def _refused_here(
    refusal: Refusal | None,
    operator: str,
    fallback: bool,
    tensors: dict[str, torch.Tensor],
) -> bool:
    """Tells whether torch is to take the call; raises where it may not."""
    if refusal is None:
        # Without a fallback, the plan itself refuses an address.
        return fallback and address_refusal(operator, tensors) is not None
    if not (fallback and refusal.by_torch):
        raise refusal.error()
    return True


# --- fprop --------------------------------------------------------------------------------------


def run_fprop(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    fallback: bool,
) -> torch.Tensor:
    """Convolves.

    Args:
        x: [N, Ci, *input_size].
        weight: [Co, Ci / groups, *filter_size].
        bias: [Co] or None.
        stride: One number per dimension.
        padding: (low, high) of every dimension, one behind the other.
        dilation: One number per dimension.
        groups: Of both channels.
        fallback: Whether torch takes what the kernel does not.

    Returns:
        y [N, Co, *output_size], dense, channels contiguous.
    """
    walk = (tuple(stride), tuple(padding), tuple(dilation), groups)
    key = _fprop_key(x, weight, bias, walk)
    plan = _plans.get(key)
    if plan is None:
        spec = PLAIN if bias is None else _WITH_BIAS
        plan = _plans.keep(key, _plan_fprop(x, weight, bias, walk, spec))
    refusal = plan if type(plan) is Refusal else None
    if (refusal is not None or fallback) and _refused_here(
        refusal, operator_name(x.dim()), fallback, {"x": x}
    ):
        return torch_fprop(x, weight, bias, stride, padding, dilation, groups)
    return plan.run(x, weight, NO_OPERANDS if bias is None else EpilogueOperands(bias=bias))


def _fprop_key(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, walk: tuple[Any, ...]
) -> tuple[object, ...]:
    return (
        x.shape,
        x.stride(),
        x.dtype if x.dtype is not torch.float32 else allows_tf32(),
        x.device,
        weight.shape,
        weight.dtype,
        weight.device,
        None if bias is None else (bias.shape, bias.dtype, bias.device),
        walk,
    )


def _repeats(key: tuple[object, ...], run: Callable[..., torch.Tensor]) -> Repeats | None:
    """Returns what runs the plan that is kept under a key; ``None`` if it is torch's, or not asked.

    Args:
        key: Of a call.
        run: Runs the plan, its first argument, with the tensors of a call.
    """
    plan = _plans.get(key)
    return None if plan is None or type(plan) is Refusal else Repeats(partial(run, plan))


def known_fprop(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Repeats | None:
    """Returns what runs the plan of :func:`run_fprop`, of x, weight and perhaps a bias.

    ``None`` if that was not called, or is torch's.
    """
    walk = (tuple(stride), tuple(padding), tuple(dilation), groups)
    return _repeats(_fprop_key(x, weight, bias, walk), _run_forward)


def _run_forward(
    plan: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    out_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    operands = NO_OPERANDS
    if any(tensor is not None for tensor in (bias, scale, residual, out_scale)):
        operands = EpilogueOperands(bias=bias, scale=scale, residual=residual, out_scale=out_scale)
    y: torch.Tensor = plan.run(x, weight, operands)
    return y


def _plan_fprop(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    walk: tuple[Any, ...],
    spec: EpilogueSpec,
    mixed_bias: bool = False,
) -> Any:
    """Returns the plan of a forward convolution, or its refusal."""
    operator = operator_name(x.dim())
    check_pair(operator, ("x", x), weight, bias, walk[-1], mixed_bias=mixed_bias)
    refusal = tensor_refusal("fprop", operator, {"x": x})
    if refusal is not None:
        return _for_torch(refusal, x.dtype, spec)
    problem = problem_of(tuple(x.shape), tuple(weight.shape), *walk)
    # An empty batch has a geometry as well: that of one image.
    asked = problem if problem.batch else problem_of((1, *x.shape[1:]), tuple(weight.shape), *walk)

    def make(module: Any) -> Any:
        return module.make_plan(asked, x.stride(), x.dtype, x.device, spec)

    plan = plan_or_refusal("fprop", make)
    if type(plan) is Refusal:
        return _for_torch(plan, x.dtype, spec)
    if problem.batch:
        return plan
    return _Nothing(problem.y_shape, output_dtype(x.dtype, spec.out_dtype))


def _for_torch(refusal: Refusal, dtype: torch.dtype, spec: EpilogueSpec) -> Refusal:
    """Returns a refusal that says whether torch may compute the call.

    What is done to sums of int8 and leaves them integers, torch would do modulo 256.
    """
    sums_alone = replace(spec, out_dtype=None, amax=False) == PLAIN
    is_float = output_dtype(dtype, spec.out_dtype).is_floating_point
    return replace(refusal, by_torch=dtype != torch.int8 or is_float or sums_alone)


# --- fprop with an epilogue ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """What the operators say of an epilogue: its tensors, and what is done with them.

    Attributes:
        bias: [Co] or None.
        scale: [Co], one number, or None.
        residual: [N, Co, *output_size], [N, Co, 1, ...] or None.
        activation: By its name in ``EpilogueSpec``.
        out_dtype: Of y; ``None`` for that of x.
        out_scale: One fp32 or None.
        function: A ``@triton.jit`` function or None.
        extra: Its further tensors.
    """

    bias: torch.Tensor | None
    scale: torch.Tensor | None
    residual: torch.Tensor | None
    activation: Any
    out_dtype: torch.dtype | None
    out_scale: torch.Tensor | None
    function: Any
    extra: tuple[torch.Tensor, ...]


def _y_shape(x: torch.Tensor, weight: torch.Tensor, walk: tuple[Any, ...]) -> tuple[int, ...]:
    size = fprop_size(x.shape[2:], weight.shape[2:], *walk[:3])
    return (x.shape[0], weight.shape[0], *size)


def run_fused(
    x: torch.Tensor,
    weight: torch.Tensor,
    epilogue: Epilogue,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    fallback: bool,
    out: torch.Tensor | None = None,
    amax: torch.Tensor | None = None,
) -> torch.Tensor:
    """Convolves with an epilogue; arguments as for :func:`run_fprop`.

    Args:
        epilogue: What is done to y before it is stored.
        out: Where to put y; a new tensor by default.
        amax: One fp32 that the largest absolute value is written to, or None.
    """
    e = epilogue
    walk = (tuple(stride), tuple(padding), tuple(dilation), groups)
    key = _fused_key(x, weight, e, walk, amax is None)
    plan = _plans.get(key)
    if plan is None:
        spec = EpilogueSpec(
            bias=e.bias is not None,
            scale=e.scale is not None,
            residual=e.residual is not None,
            residual_per_image=e.residual is not None
            and is_per_image(e.residual, _y_shape(x, weight, walk)),
            activation=e.activation,
            out_dtype=e.out_dtype,
            out_scale=e.out_scale is not None,
            amax=amax is not None,
            function=e.function,
        )
        plan = _plans.keep(key, _plan_fprop(x, weight, e.bias, walk, spec, mixed_bias=True))
    if amax is not None and x.shape[0] == 0:
        amax.zero_()
    operator = operator_name(x.dim())
    refusal = plan if type(plan) is Refusal else None
    if _refused_here(refusal, operator, fallback and e.function is None, {"x": x}):
        added = (e.bias, e.scale, e.residual, e.out_scale)
        y = torch_fused(x, weight, *added, walk, e.activation, e.out_dtype, amax)
        return y if out is None else out.copy_(y)
    operands = EpilogueOperands(
        bias=e.bias,
        scale=e.scale,
        residual=e.residual,
        out_scale=e.out_scale,
        amax=amax,
        extra=e.extra,
    )
    return plan.run(x, weight, operands, out=out)


def _fused_key(
    x: torch.Tensor, weight: torch.Tensor, e: Epilogue, walk: tuple[Any, ...], without_amax: bool
) -> tuple[object, ...]:
    return (
        x.stride(),
        x.dtype is torch.float32 and allows_tf32(),
        _look(x, weight, e.bias, e.scale, e.residual, e.out_scale),
        walk,
        (e.activation, e.out_dtype, e.function, without_amax),
    )


def known_fused(
    x: torch.Tensor,
    weight: torch.Tensor,
    epilogue: Epilogue,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Repeats | None:
    """As :func:`known_fprop`, of :func:`run_fused`; behind the bias come scale, residual and
    ``out_scale``.
    """
    walk = (tuple(stride), tuple(padding), tuple(dilation), groups)
    return _repeats(_fused_key(x, weight, epilogue, walk, True), _run_forward)


# --- gradients ----------------------------------------------------------------------------------


def _plan_gradient(
    direction: Any,
    problem: ConvProblem,
    output_size: Sequence[int],
    make: Callable[[Any], Any],
    tensors: dict[str, torch.Tensor],
    empty_shape: tuple[int, ...],
) -> Any:
    """Returns the plan of a gradient, or its refusal."""
    operator = f"{operator_name(problem.dims + 2)} ({direction})"
    if tuple(problem.output_size) != tuple(output_size):
        raise ValueError(
            f"{operator}: expected dy with {list(problem.output_size)} pixels for an input of "
            f"{list(problem.input_size)}, got {list(output_size)}"
        )
    refusal = tensor_refusal(direction, operator, tensors)
    if refusal is not None:
        return refusal
    if not problem.batch:
        return _Nothing(empty_shape, next(iter(tensors.values())).dtype)
    return plan_or_refusal(direction, make)


def run_dgrad(
    dy: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    input_size: Sequence[int],
    fallback: bool,
) -> torch.Tensor:
    """Computes the gradient of the input, a transposed convolution of dy.

    Args:
        dy: [N, Co, *output_size].
        weight: [Co, Ci / groups, *filter_size].
        bias: [Ci] or None; added to dx, for transposed convolutions.
        stride: As for :func:`run_fprop`.
        padding: As for :func:`run_fprop`.
        dilation: As for :func:`run_fprop`.
        groups: As for :func:`run_fprop`.
        input_size: Pixels of dx per dimension.
        fallback: Whether torch takes what the kernel does not.

    Returns:
        dx [N, Ci, *input_size], dense, channels contiguous.
    """
    walk = (tuple(stride), tuple(padding), tuple(dilation), groups)
    size = tuple(input_size)
    key = _dgrad_key(dy, weight, bias, walk, size)
    plan = _plans.get(key)
    if plan is None:
        operator = f"conv_transpose{dy.dim() - 2}d"
        check_pair(operator, ("dy", dy), weight, bias, groups, transposed=True)
        x_shape = (dy.shape[0], weight.shape[1] * groups, *size)
        problem = problem_of(x_shape, tuple(weight.shape), *walk)
        plan = _plan_gradient(
            "dgrad",
            problem,
            dy.shape[2:],
            lambda module: module.make_plan(problem, dy.stride(), dy.dtype, dy.device),
            {"dy": dy},
            x_shape,
        )
        _plans.keep(key, plan)
    refusal = plan if type(plan) is Refusal else None
    if _refused_here(refusal, "dgrad", fallback, {"dy": dy}):
        dx = torch_dgrad(dy, weight, stride, padding, dilation, groups, size)
        return dx if bias is None else dx.add_(bias.view(-1, *(1,) * len(size)))
    return plan.run(dy, weight, bias=bias)


def _dgrad_key(
    dy: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    walk: tuple[Any, ...],
    size: tuple[int, ...],
) -> tuple[object, ...]:
    is_rounded = dy.dtype is torch.float32 and allows_tf32()
    return ("dgrad", dy.stride(), _look(dy, weight, bias), is_rounded, walk, size)


def known_dgrad(
    dy: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    input_size: Sequence[int],
) -> Repeats | None:
    """As :func:`known_fprop`, of :func:`run_dgrad`; of dy, weight and perhaps a bias."""
    walk = (tuple(stride), tuple(padding), tuple(dilation), groups)
    return _repeats(_dgrad_key(dy, weight, bias, walk, tuple(input_size)), _run_input_gradient)


def _run_input_gradient(
    plan: Any, dy: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    dx: torch.Tensor = plan.run(dy, weight, bias=bias)
    return dx


def run_wgrad(
    x: torch.Tensor,
    dy: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    filter_size: Sequence[int],
    fallback: bool,
) -> torch.Tensor:
    """Computes the gradient of the filter.

    Args:
        x: [N, Ci, *input_size].
        dy: [N, Co, *output_size].
        stride: As for :func:`run_fprop`.
        padding: As for :func:`run_fprop`.
        dilation: As for :func:`run_fprop`.
        groups: As for :func:`run_fprop`.
        filter_size: Taps per dimension.
        fallback: Whether torch takes what the kernel does not.

    Returns:
        dw [Co, Ci / groups, *filter_size], dense, channels contiguous.
    """
    walk = (tuple(stride), tuple(padding), tuple(dilation), groups)
    size = tuple(filter_size)
    key = _wgrad_key(x, dy, walk, size)
    plan = _plans.get(key)
    if plan is None:
        check_operands(x, dy, groups)
        w_shape = (dy.shape[1], x.shape[1] // groups, *size)
        problem = problem_of(tuple(x.shape), w_shape, *walk)
        plan = _plan_gradient(
            "wgrad",
            problem,
            dy.shape[2:],
            lambda module: module.make_plan(problem, x.stride(), dy.stride(), x.dtype, x.device),
            {"x": x, "dy": dy},
            w_shape,
        )
        _plans.keep(key, plan)
    refusal = plan if type(plan) is Refusal else None
    if _refused_here(refusal, "wgrad", fallback, {"x": x, "dy": dy}):
        return torch_wgrad(x, dy, stride, padding, dilation, groups, size)
    return plan.run(x, dy)


def _wgrad_key(
    x: torch.Tensor, dy: torch.Tensor, walk: tuple[Any, ...], size: tuple[int, ...]
) -> tuple[object, ...]:
    is_rounded = x.dtype is torch.float32 and allows_tf32()
    return ("wgrad", x.stride(), dy.stride(), _look(x, dy), is_rounded, walk, size)


def known_wgrad(
    x: torch.Tensor,
    dy: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    filter_size: Sequence[int],
) -> Repeats | None:
    """As :func:`known_fprop`, of :func:`run_wgrad`; of x and dy."""
    walk = (tuple(stride), tuple(padding), tuple(dilation), groups)
    return _repeats(_wgrad_key(x, dy, walk, tuple(filter_size)), _run_weight_gradient)


def _run_weight_gradient(plan: Any, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    dw: torch.Tensor = plan.run(x, dy)
    return dw


def check_operands(x: torch.Tensor, dy: torch.Tensor, groups: int) -> None:
    """Refuses x and dy that are not input and output of one convolution."""
    operator = f"{operator_name(x.dim())}_weight"
    if x.dim() not in (3, 4, 5) or dy.dim() != x.dim():
        raise ValueError(
            f"{operator}: expected x and dy of the same rank, 3 to 5, got {list(x.shape)} and "
            f"{list(dy.shape)}"
        )
    if groups < 1 or x.shape[1] % groups or dy.shape[1] % groups:
        raise ValueError(
            f"{operator}: {x.shape[1]} channels of x and {dy.shape[1]} of dy do not divide into "
            f"{groups} groups"
        )
    if x.shape[0] != dy.shape[0]:
        raise ValueError(f"{operator}: x has {x.shape[0]} images, dy has {dy.shape[0]}")
    if x.dtype != dy.dtype:
        raise TypeError(f"{operator}: dy is {dy.dtype}, x is {x.dtype}")
    if x.device != dy.device:
        raise ValueError(f"{operator}: dy is on {dy.device}, x is on {x.device}")
