"""Calls of normalizations: checks of arguments, refusals, plans, and kernels on tensors.

Mistakes are ValueError and TypeError, as those of convolutions; a call without a mistake that no
kernel takes is UnsupportedError.  Shapes, dtypes and devices are checked where kernels are to
compute; elsewhere torch checks them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.autograd.graph import increment_version

from triton_ext.ops.api.checks import kind_of
from triton_ext.ops.core.device import IS_INTERPRETED, describe
from triton_ext.ops.core.dispatch_cache import cached, keep, operand_key
from triton_ext.ops.core.epilogue import ACTIVATIONS
from triton_ext.ops.core.refusals import Refusal
from triton_ext.ops.norms.plan import (
    NormPlan,
    NormShape,
    are_aligned,
    in_order,
    is_channels_last,
    is_negated,
)

Tensor = torch.Tensor
Term = Tensor | None
#: The tensors of a call, x first; the last ones may be missing.
Given = tuple[Term, ...]
_NAMES = ("x", "weight", "bias", "running_mean", "running_var", "residual")

_ACTIVATIONS = ("identity", *(name for name in ACTIVATIONS if name != "none"))
_RESIDUAL_ACTIVATIONS = ("identity", "relu")
#: Numbers that a graph may hold: a tensor has another one at its next run.
NUMBERS = (float, int, torch.SymFloat, torch.SymInt)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# The kernels count rows, those of a tile after the last one included, and offsets in a tile in 32
# bits.
_MOST_ROWS = 1 << 30
_MOST_CHANNELS = 1 << 20
# Channels of a group are a tile of the kernels that merge.
_MOST_GROUP_CHANNELS = 1 << 13


# ---- Kinds of arguments -------------------------------------------------------------------------


def check_kinds(
    name: str, given: tuple[object, ...], numbers: Mapping[str, object], activation: object
) -> None:
    """Raises TypeError where an argument is no tensor or no number, ValueError for an activation.

    Tensors but x may be None.
    """
    for which, value in zip(_NAMES, given, strict=False):
        if not isinstance(value, Tensor) and (value is not None or which == "x"):
            raise TypeError(f"{name}: {which} must be a tensor, got {kind_of(value)}")
    for which, value in numbers.items():
        # A tensor's number is not read, which nobody could trace.
        is_number = isinstance(value, NUMBERS) or hasattr(value, "__float__")
        if isinstance(value, bool) or not is_number:
            raise TypeError(f"{name}: {which} must be a number, got {kind_of(value)}")
    text = _activation_refusal(activation)
    if text is not None:
        raise ValueError(f"{name}: {text}")


def number(name: str, value: Any) -> float:
    """Returns a number as plans have it: a tensor may hold another one at the next call."""
    if type(value) is float:
        return value
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(f"{name} must be a number, got {kind_of(value)}") from None


# ---- Refusals and plans -------------------------------------------------------------------------


def plan_of(
    given: Given, groups: int | None, activation: str, eps: float, out_dtype: torch.dtype
) -> NormPlan:
    """Returns the plan of a normalization: GroupNorm, or BatchNorm where groups are ``None``.

    Raises:
        UnsupportedError: No kernel takes it.
        TypeError: A value that is no dense tensor; unknown or mixed dtypes.
        ValueError: Sizes, groups, devices or an activation that do not fit.
    """
    key = _key(groups, ("norm_plan", activation, eps, out_dtype), given)
    plan: NormPlan | None = cached(key)
    if plan is not None:
        return plan
    refused = refusal(given, groups, activation)
    if refused is not None:
        norm = "batch_norm" if groups is None else "group_norm"
        raise refused.kind(f"{norm}: {refused.text}")
    x: Any = given[0]
    terms = (*given, None, None)[1:5]
    plan = NormPlan(
        shape=NormShape.of(x, groups),
        strides=x.stride(),
        term_dtypes=tuple([None if term is None else term.dtype for term in terms]),
        device=describe(x.device),
        dtype=x.dtype,
        out_dtype=out_dtype,
        activation=activation,
        eps=eps,
    )
    return keep(key, plan)


def _key(groups: int | None, words: tuple[object, ...], given: Given) -> Hashable:
    """Returns the call key of an operator; ``None`` for what is no tensor or has no hash."""
    # Equal numbers of other types are the same key.
    if groups is None or type(groups) is int:
        try:
            negated = tuple([tensor is not None and tensor.is_neg() for tensor in given])
            key = operand_key((groups, words, negated), given)
            hash(key)
        except (AttributeError, RuntimeError, TypeError):
            return None  # the refusal says why
        return key
    return None


def norm_problem(
    kind: Literal["batch", "group"],
    x: Tensor,
    groups: int | None,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
) -> str | None:
    """Returns why no kernel takes a normalization; ``None`` if one does.

    Args:
        kind: ``"batch"`` or ``"group"``.
        x: [N, C, *size].
        groups: Number of groups, for ``"group"``.
        weight: [C] or None.
        bias: [C] or None.
        residual: Added before the activation, for ``"batch"``, or None.
        activation: Its name.
    """
    if kind not in ("batch", "group"):
        return f"expected a kind of batch, group, got {kind!r}"
    if kind == "group" and type(groups) is not int:
        return f"expected groups as an int, got {groups!r}"
    groups = groups if kind == "group" else None
    given = (x, weight, bias, None, None, residual)
    # torch.compile must not trace the cache.
    key = None
    if not torch.compiler.is_compiling():
        key = _key(groups, ("norm_refusal", activation), given)
    text: str | None = cached(key)
    if text is None:
        refused = refusal(given, groups, activation)
        text = keep(key, "" if refused is None else refused.text)
    return text or None


def refusal(given: Given, groups: int | None, activation: object) -> Refusal | None:
    """Returns the first mistake in arguments, else why no kernel takes them, or None.

    Without groups it is BatchNorm.
    """
    x: Any = given[0]
    pairs = zip(_NAMES, given, strict=False)
    tensors = {name: each for name, each in pairs if each is not None or name == "x"}
    found = _mistake(x, groups, tensors, activation)
    if found is None:
        text = _unsupported_input(x)
        text = text or _unsupported(x, groups, "residual" in tensors, activation)
        text = text or _unsupported_views(tensors)
        found = None if text is None else Refusal(text)
    return found


def _activation_refusal(activation: object) -> str | None:
    """Returns what is wrong with the name of an activation."""
    if isinstance(activation, str) and activation in _ACTIVATIONS:
        return None
    return f"expected an activation of {', '.join(_ACTIVATIONS)}, got {activation!r}"


def _mistake(
    x: Tensor, groups: int | None, tensors: Mapping[str, Any], activation: object
) -> Refusal | None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            return Refusal(f"{name} must be a tensor, got {kind_of(tensor)}", TypeError)
        if tensor.is_nested or tensor.layout is not torch.strided:
            layout = "a nested one" if tensor.is_nested else tensor.layout
            return Refusal(f"{name} must be a dense tensor, got {layout}", TypeError)
    if x.dim() < 2:
        return Refusal(f"expected x [N, C, *size], got {list(x.shape)}", ValueError)
    if not x.is_floating_point():
        return Refusal(f"expected x of a floating-point dtype, got {x.dtype}", TypeError)
    channels = x.shape[1]
    if groups is not None:
        if groups < 1:
            return Refusal(f"groups must be at least 1, got {groups}", ValueError)
        if channels % groups:
            return Refusal(f"{channels} channels do not divide into {groups} groups", ValueError)
    for name, tensor in tensors.items():
        is_term = name not in ("x", "residual")
        shape = (channels,) if is_term else x.shape
        if tensor.shape != shape:
            text = f"expected {name} {list(shape)}, got {list(tensor.shape)}"
            return Refusal(text, ValueError)
        if tensor.dtype != x.dtype and not (is_term and tensor.dtype == torch.float32):
            what = ": expected that or float32" if is_term else ""
            return Refusal(f"{name} is {tensor.dtype}, x is {x.dtype}{what}", TypeError)
        if tensor.device != x.device:
            return Refusal(f"{name} is on {tensor.device}, x is on {x.device}", ValueError)
    mistake = _activation_refusal(activation)
    return None if mistake is None else Refusal(mistake, ValueError)


def _unsupported_input(x: Tensor) -> str | None:
    if x.dim() not in (3, 4, 5):
        return f"expected x [N, C, *size] of one to three dimensions, got {list(x.shape)}"
    if x.dtype not in _DTYPES:
        return f"x is {x.dtype}: the kernels take float16, bfloat16 and float32"
    if x.device.type != "cuda" and not (IS_INTERPRETED and x.device.type == "cpu"):
        return f"x is on {x.device}: the kernels run on a GPU"
    if not x.numel():
        return f"x is empty: {list(x.shape)}"
    rows = x.numel() // x.shape[1]
    if rows > _MOST_ROWS or x.shape[1] > _MOST_CHANNELS:
        return f"{rows} pixels of {x.shape[1]} channels: the kernels count to 2**30 and 2**20"
    return None


def _unsupported(
    x: Tensor, groups: int | None, has_residual: bool, activation: object
) -> str | None:
    images, channels = x.shape[0], x.shape[1]
    if groups is None:
        if x.numel() == channels:
            # In training torch refuses it, too.
            return "the kernels take more than one value per channel"
        if has_residual and activation not in _RESIDUAL_ACTIVATIONS:
            return f"a residual is added in front of identity and relu, not of {activation}"
        return None
    if channels // groups > _MOST_GROUP_CHANNELS:
        return f"groups of {channels // groups} channels: the kernels add {_MOST_GROUP_CHANNELS}"
    if images * groups > _MOST_ROWS:
        return f"{groups} groups of {images} images: the kernels count to 2**30"
    if x.numel() == groups:
        return "torch refuses one value per group"
    return "a residual is added behind BatchNorm only" if has_residual else None


def _unsupported_views(tensors: Mapping[str, Tensor]) -> str | None:
    for name, tensor in tensors.items():
        if is_negated(tensor):
            return f"{name} is a negated view, whose memory holds other values; call resolve_neg()"
        if tensor.dim() == 1:
            if not tensor.is_contiguous():
                return f"{name} has strides, expected it packed"
        elif not is_channels_last(tensor):
            # A graph that says which strides holds for those alone.
            which = "" if torch.compiler.is_compiling() else f" of strides {list(tensor.stride())}"
            return (
                f"{name}{which} is not channels-last: expected dense pixels, channels side by side"
            )
    return None


# ---- Kernels on tensors -------------------------------------------------------------------------


@dataclass(slots=True)
class Call:
    """Arguments of a call other than x, weight, bias and residual."""

    plan: NormPlan
    running_mean: Term = None  # [C]
    running_var: Term = None  # [C]
    uses_batch: bool = True  # whether statistics are those of x
    momentum: float = 0.0  # how far running statistics are moved, from 0 to 1
    is_cached: bool = False  # whether the plan was cached for the call's key: tensors are aligned
    batches: Term = None  # int64 [], counts batches where statistics are those of x

    def forward(
        self, x: Tensor, weight: Term, bias: Term, residual: Term
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns y, means and rstd, which is the variance where statistics are not those of x.

        Means of x are followed by other numbers, which kernels do not read.
        """
        if self.uses_batch:
            y = torch.empty_like(x, dtype=self.plan.out_dtype)
            return y, *self.moments(x, weight, bias, residual, y)
        mean: Any = self.running_mean
        variance: Any = self.running_var
        return self.normalize(x, mean, variance, weight, bias, residual), mean, variance

    def moments(
        self, x: Tensor, weight: Term = None, bias: Term = None, residual: Term = None,
        y: Term = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Returns the statistics of x, [2, images * groups], means first, and their second row.

        Moves running statistics; writes y, if there is one.
        """
        plan, device = self.plan, x.device
        mean, variance, batches = self.running_mean, self.running_var, self.batches
        moments = torch.empty(2, plan.means_size // 2, dtype=torch.float32, device=device)
        rstd = moments[1]
        parts = torch.empty(plan.parts_size, dtype=torch.float32, device=device)
        # The first row begins where all of it begins.
        tensors = (x, residual, y, moments, rstd, weight, bias, parts, mean, variance, batches)
        is_aligned = are_aligned(rstd) if self.is_cached else are_aligned(*tensors)
        has_mean, has_variance = mean is not None, variance is not None
        key = (self.momentum, False, y is not None, has_mean, has_variance, batches is not None)
        plan.forward(key).launch(tensors, is_aligned)
        # Versions of running statistics stay, as after torch's call: a backward in training mode
        # reads none of them, and may run after this call.
        if batches is not None and not batches.is_inference():
            increment_version(batches)
        return moments, rstd

    def normalize(
        self, x: Tensor, mean: Tensor, rstd: Tensor, weight: Term, bias: Term, residual: Term
    ) -> Tensor:
        """Returns y of given statistics."""
        y = torch.empty_like(x, dtype=self.plan.out_dtype)
        tensors = (x, residual, y, mean, rstd, weight, bias)
        is_aligned = self.is_cached or are_aligned(*tensors)
        self.plan.forward((None, not self.uses_batch, True)).launch(tensors, is_aligned)
        return y

    def backward(self, saved: list[Any], dy: Tensor, needs: Sequence[bool]) -> tuple[Term, ...]:
        """Returns the gradients of x, weight, bias and residual; ``None`` for what needs none.

        Args:
            saved: x, weight, bias, means and rstd as for the forward, and y where a ReLU
                follows a residual, or None.  Emptied, so that tensors without other owners are
                freed when no kernel reads them any more.
            dy: [N, C, *size]; the residual's gradient may be this tensor.
            needs: Which gradients are computed.

        Raises:
            TypeError: A saved tensor came back in another dtype.
        """
        plan = self.plan
        self._check(*saved)
        x, weight, bias, mean, rstd, y = saved
        saved.clear()
        strides, given = plan.strides, dy
        if dy.stride() != strides or dy.is_neg():
            dy = in_order(dy)
        if x.stride() != strides:
            x = in_order(x)
        if y is not None and y.stride() != strides:
            y = in_order(y)
        needs_x, needs_weight, needs_bias, needs_residual = needs
        how = plan.gradients(tuple(needs), y is not None, not self.uses_batch)
        device, wide = x.device, torch.float32
        parts = torch.empty(plan.parts_size, dtype=wide, device=device) if how.adds else None
        means = torch.empty(plan.means_size, dtype=wide, device=device) if how.needs_means else None
        # A copy, as of the gradient that comes from pooling, is written over: autograd keeps the
        # one that it was made of, and at the end of a network is where memory is short.
        is_own = dy.data_ptr() != given.data_ptr() and dy.dtype is x.dtype
        g = None
        if how.writes_g:
            g = dy if is_own else torch.empty_like(x)
        dweight = torch.empty_like(weight) if needs_weight else None
        dbias = torch.empty_like(bias) if needs_bias else None
        # Where it is short, dx may have the memory of a y that nobody else has.
        in_two = how.in_two if is_own and y is not None else None
        dx = torch.empty_like(x) if needs_x and in_two is None else None
        others = (g, mean, rstd, weight, bias, parts, means, dweight, dbias)
        is_aligned = are_aligned(x, dy, y, mean, rstd, weight, bias)
        if in_two is None:
            how.launches.launch((x, dy, y, *others, dx, None), is_aligned)
        else:
            in_two[0].launch((x, dy, y, *others, None, None), is_aligned)
            del y
            dx = torch.empty_like(x)
            in_two[1].launch((x, dy, None, *others, dx, None), is_aligned)
        if needs_residual and g is None:
            g = dy
        return dx, dweight, dbias, g

    def _check(self, x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, y: Any) -> None:
        """Refuses saved tensors that are not of the forward's dtypes: hooks may replace them."""
        plan = self.plan
        of_weight, of_bias, of_mean, of_rstd = plan.term_dtypes
        if self.uses_batch:
            of_mean = of_rstd = torch.float32
        if (
            x.dtype is not plan.dtype
            or mean.dtype is not of_mean
            or rstd.dtype is not of_rstd
            or (weight is not None and weight.dtype is not of_weight)
            or (bias is not None and bias.dtype is not of_bias)
            or (y is not None and y.dtype is not plan.out_dtype)
        ):
            raise TypeError(
                f"hooks on saved tensors gave back x as {x.dtype} and means as {mean.dtype}, "
                f"expected {plan.dtype} and {of_mean}, and all others as they were"
            )
