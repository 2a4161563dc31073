"""Registers the operators: kernels, fake tensors, autograd, autocast, vmap and FLOP counts.

They are registered by hand rather than by ``torch.library.custom_op``, whose wrapper alone costs
11 us a call (3 us; torch 2.13, CPU build, 2026-11-20).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

from triton_ext.ops.api import operators
from triton_ext.ops.api.checks import check
from triton_ext.ops.api.execution import gradients, run
from triton_ext.ops.api.operators import FPROP, FUSED, INTO, OPERATORS, ConvCall, Operator
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import channels_last, empty_channels_last, pixel_dims
from triton_ext.ops.core.epilogue import EpilogueArguments, is_per_image, output_dtype
from triton_ext.ops.core.refusals import tensor_refusal

__all__: list[str] = []

Tensor = torch.Tensor


def _fake(c: ConvCall) -> Tensor:
    check(c)
    x_shape, w_shape, shape = c.shapes()
    direction = c.operator.direction
    if not c.fallback:
        refusal = tensor_refusal(direction, c.name(), c.pixels())
        # Symbolic sizes are left to the call with real ones.
        sizes = (*x_shape[1:], *w_shape, c.parameters.groups)
        is_known = all(type(size) is int for size in sizes)
        if refusal is not None:
            raise refusal.error()
        if direction == "fprop" and is_known:
            # An empty batch has a geometry as well: that of one image.
            problem = c.parameters.problem((1, *x_shape[1:]), w_shape)
            case = Case(direction=direction, problem=problem, dtype=c.first.dtype)
            planner.check(case, c.first.device)
    dtype = output_dtype(c.first.dtype, c.epilogue.out_dtype)
    return empty_channels_last(shape, dtype, c.first.device)


def _setup(ctx: Any, c: ConvCall, _: Tensor) -> None:
    ctx.parameters = c.parameters
    ctx.save_for_backward(c.first, c.second)


def _backward(ctx: Any, operator: Operator, grad: Tensor) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad[: len(operator.tensors)]
    tensors, calls = (*ctx.saved_tensors, grad), getattr(ctx, "calls", None)
    return gradients(operator.direction, tensors, ctx.parameters, needs, calls)


def _setup_fused(ctx: Any, c: ConvCall, y: Tensor) -> None:
    bias, scale, residual, out_scale, extra, activation, _, function, *_ = c.epilogue
    what = f"an output of {y.dtype}" if y.dtype.itemsize == 1 else ""
    what = "out_scale=" if out_scale is not None else what
    what = "epilogue=" if function is not None else what
    if what:
        raise NotImplementedError(
            f"{c.name()}: {what} has no derivative; call it under torch.no_grad()"
        )
    # The slope of relu and tanh follows from y; the others need their input.
    kept = y if activation in ("relu", "tanh") else None
    ctx.save_for_backward(c.first, c.second, bias, scale, residual, kept)
    ctx.parameters, ctx.activation, ctx.count_extra = c.parameters, activation, len(extra)


def _backward_fused(ctx: Any, operator: Operator, grad: Tensor) -> tuple[Any, ...]:
    x, weight, bias, scale, residual, y = ctx.saved_tensors
    needs_b, needs_s, needs_r = ctx.needs_input_grad[2:5]

    def convolved(call: Operator, epilogue: EpilogueArguments) -> Tensor:
        return operators.call(ConvCall(call, x, weight, epilogue, ctx.parameters, None, True))

    if ctx.activation == "relu":
        grad = grad * (y > 0)
    elif ctx.activation == "tanh":
        grad = grad * (1 - y * y)
    elif ctx.activation != "none":
        z = convolved(operator, EpilogueArguments(bias, scale, residual, out_dtype=torch.float32))
        if ctx.activation == "silu":
            grad = torch.ops.aten.silu_backward(grad.float(), z)
        else:
            name = "none" if ctx.activation == "gelu" else "tanh"
            grad = torch.ops.aten.gelu_backward(grad.float(), z, approximate=name)
    ones = (1,) * (grad.dim() - 2)
    ds = db = dr = None
    if needs_r:
        dr = grad
        if is_per_image(residual, grad.shape):
            dr = grad.sum(pixel_dims(grad)[1:], keepdim=True, dtype=torch.float32)
        dr = dr.to(residual.dtype)
    if needs_b:
        db = grad.sum(pixel_dims(grad), dtype=torch.float32).to(bias.dtype)
    if needs_s:
        product = grad.float() * convolved(FPROP, EpilogueArguments()).float()
        ds = product.sum(pixel_dims(grad)) if scale.numel() > 1 else product.sum()
        ds = ds.reshape(scale.shape).to(scale.dtype)
    if scale is not None:
        grad = grad * (scale.view(-1, *ones) if scale.numel() > 1 else scale.reshape(()))
    needs, tensors = ctx.needs_input_grad[:2], (x, weight, grad.to(x.dtype))
    calls = getattr(ctx, "calls", None)
    dx, dw = gradients("fprop", tensors, ctx.parameters, needs, calls)
    return dx, dw, db, ds, dr, None, [None] * ctx.count_extra


# vmap: a mapped dimension is folded into images or channels.  Where only pixels are mapped, they
# are more images.  Where both operands are, every element is a group of its own.  Where only the
# filter is, every element has output channels of its own.  Channels are ordered (group, element,
# channel of the group) where elements share the groups of an operand that is not mapped, and
# (element, group, channel) where every element brings its own.

# The tensors of a direction: both operands and the output.
_ROLES = {"fprop": "xwy", "dgrad": "ywx", "wgrad": "xyw"}
# Where a mapped operand and the output it makes larger hold the mapped dimension: images, input
# channels or output channels, and whether those are ordered by group.
_DIMS = {
    "xy": (0, False), "yx": (0, False),
    "xw": (1, True), "wx": (1, False),
    "yw": (1, True), "wy": (0, True),
}  # fmt: skip
# Where the operands and the output of a convolution have groups.
_GROUPED = {"x": 1, "w": 0, "y": 1}


def _fold(tensor: Tensor, dim: int, at: int, groups: int) -> Tensor:
    """Folds the mapped dimension into dimension ``at`` of the rest, after the groups."""
    whole = tensor.movedim(dim, 0)
    # [B, ..., g, c, ...] to [..., g, B, c, ...]
    parts = whole.unflatten(at + 1, (groups, whole.shape[at + 1] // groups)).movedim(0, at + 1)
    return parts.flatten(at, at + 2)


def _unfold(tensor: Tensor, at: int, groups: int, count: int) -> Tensor:
    """Undoes :func:`_fold`: the mapped dimension comes first."""
    size = tensor.shape[at] // (groups * count)
    parts = tensor.unflatten(at, (groups, count, size)).movedim(at + 1, 0)
    return parts.flatten(at + 1, at + 2)


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(
        f"vmap of a convolution: {what} is not supported; map over the rest and apply it "
        "afterwards, or use torch.nn.functional"
    )


def _batch(info: Any, in_dims: Sequence[Any], c: ConvCall) -> tuple[Tensor, int]:
    """Computes a call whose operands are mapped at ``in_dims`` or not at all."""
    if c.operator is INTO:
        _refuse("out= or amax=")
    if c.operator is FUSED:
        return _batch_fused(info, in_dims, c)
    first, second, bias = in_dims[0], in_dims[1], c.epilogue.bias
    bias_dim = None if c.operator.direction == "wgrad" else in_dims[2]
    if bias_dim is not None and second is None:
        _refuse("a mapped bias with a filter that is not mapped")
    a, b, out = tuple(_ROLES[c.operator.direction])
    groups, parameters, count = c.parameters.groups, c.parameters, info.batch_size
    if first is not None and second is not None:
        at, groups = {role: (_GROUPED[role], False) for role in (a, b, out)}, 1
        parameters = parameters._replace(groups=count * parameters.groups)
    else:
        mapped = a if second is None else b
        at = {mapped: _DIMS[mapped + out], out: _DIMS[out + mapped]}

    def folded(tensor: Tensor, dim: int | None, role: str) -> Tensor:
        if dim is None:
            return tensor
        where, is_grouped = at[role]
        tensor = _fold(tensor, dim, where, groups if is_grouped else 1)
        return tensor if role == "w" else channels_last(tensor)

    if bias is not None and second is not None:
        bias = bias.expand(count, -1) if bias_dim is None else bias.movedim(bias_dim, 0)
        bias = _fold(bias, 0, 0, groups)
    operands = folded(c.first, first, a), folded(c.second, second, b)
    epilogue = c.epilogue._replace(bias=bias)
    y = operators.call(ConvCall(c.operator, *operands, epilogue, parameters, c.size, c.fallback))
    where, is_grouped = at[out]
    return _unfold(y, where, groups if is_grouped else 1, count), 0


def _batch_fused(info: Any, in_dims: Sequence[Any], c: ConvCall) -> tuple[Tensor, int]:
    x_dim, *others, r_dim, out_scale, extra = in_dims[:7]
    others += [out_scale, *(extra or ())]
    if any(dim is not None for dim in others):
        _refuse("an epilogue where anything but x and residual is mapped")
    count, residual = info.batch_size, c.epilogue.residual

    def images(tensor: Tensor, dim: int | None) -> Tensor:
        if dim is None:  # the same for every element
            tensor, dim = tensor.expand(count, *tensor.shape), 0
        return channels_last(_fold(tensor, dim, 0, 1))

    if residual is not None:
        residual = images(residual, r_dim)
    epilogue = c.epilogue._replace(residual=residual)
    y = operators.call(c._replace(first=images(c.first, x_dim), epilogue=epilogue))
    return _unfold(y, 0, 1, count), 0


def _flops(operator: Operator) -> Callable[..., int]:
    """Returns the formula of ``torch.utils.flop_counter``, which counts as for torch's operators.

    The counts are equal even where torch counts too much, as for the filter's gradient with groups,
    so that a model has the same numbers before and after it is converted.
    """

    def count(first: Any, second: Any, *rest: Any, out_shape: Any = None, **_: Any) -> int:
        shapes = [first, second, rest[-2] if operator is INTO else out_shape]
        if operator.direction == "wgrad":
            # A convolution whose channels are images, and whose images are channels.
            shapes = [[n, m, *size] for m, n, *size in shapes]
        flops: int = conv_flop_count(*shapes, transposed=operator.direction == "dgrad")
        return flops

    return count


_library = torch.library.Library("triton_ext", "FRAGMENT")


def _register(operator: Operator) -> None:
    is_into, is_fused = operator is INTO, operator is FUSED

    def of_call(function: Callable[[ConvCall], Tensor]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Tensor | None:
            result = function(operator.call(arguments))
            return None if is_into else result

        return called

    def batch(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _batch(info, in_dims, operator.call(arguments))

    def autocast(op: Any, key: str, *arguments: Any) -> Any:
        c = operators.cast(operator.call(arguments))
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return op(*c.flat())

    for name in filter(None, (operator.name, operator.differentiable)):
        qualified = f"triton_ext::{name}"
        tags = (torch.Tag.needs_fixed_stride_order,)
        torch.library.define(qualified, operator.schema, tags=tags)
        torch.library.impl(qualified, ("CPU", "CUDA"))(of_call(run))
        torch.library.register_fake(qualified)(of_call(_fake))
        for key in ("AutocastCPU", "AutocastCUDA"):
            op = getattr(torch.ops.triton_ext, name).default
            _library.impl(name, partial(autocast, op, key), key)
        torch.library.register_vmap(qualified, batch)
        register_flop_formula(getattr(torch.ops.triton_ext, name))(_flops(operator))
    if not operator.differentiable:
        return
    op = getattr(torch.ops.triton_ext, operator.name).default
    count = len(op._schema.arguments)

    def setup(ctx: Any, inputs: Any, output: Tensor) -> None:
        (_setup_fused if is_fused else _setup)(ctx, operator.call(inputs), output)

    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        found = (_backward_fused if is_fused else _backward)(ctx, operator, grad)
        return *found, *(None,) * (count - len(found))

    def backward_of_lists(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # The operators' backward gives a list for a list of tensors, autograd wants None.
        return tuple(None if isinstance(each, list) else each for each in backward(ctx, grad))

    def forward(ctx: Any, *arguments: Any) -> Tensor:
        output: Tensor = op(*arguments)
        setup(ctx, arguments, output)
        return output

    torch.library.register_autograd(
        f"triton_ext::{operator.differentiable}", backward, setup_context=setup
    )
    base = (torch.autograd.Function,)
    eager = {"forward": staticmethod(forward), "backward": staticmethod(backward_of_lists)}
    transformed = {
        "forward": staticmethod(lambda *arguments: op(*arguments)),
        "setup_context": staticmethod(setup),
        "backward": staticmethod(backward_of_lists),
        "vmap": staticmethod(batch),
    }
    operators.functions[operator.differentiable] = (
        type(f"Differentiable_{operator.name}", base, eager),
        type(f"Transformable_{operator.name}", base, transformed),
    )


for _operator in OPERATORS:
    _register(_operator)
