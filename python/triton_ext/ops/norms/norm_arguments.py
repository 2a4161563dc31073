"""Mistakes in arguments of a normalization, which neither kernels nor torch take.

Mistakes are ValueError and TypeError, as those of convolutions; what is right, and taken by no
kernel, is :mod:`triton_ext.ops.norms.refusals`'.  Kinds of arguments are looked at in every call
that was not seen before, what fits what where kernels are to compute: torch tells it of what it
computes itself.
"""

from __future__ import annotations

from typing import Any

import torch

from triton_ext.ops.api.checks import check_groups, kind_of
from triton_ext.ops.core.epilogue import ACTIVATIONS

__all__ = [
    "NORM_ACTIVATIONS",
    "Mistake",
    "activation_mistake",
    "are_numbers",
    "check_batch",
    "check_fit",
    "check_group",
    "dense_mistake",
    "epsilon",
    "number",
    "residual_mistake",
    "term_mistake",
]

Tensor = torch.Tensor

NORM_ACTIVATIONS = ("identity", *(name for name in ACTIVATIONS if name != "none"))

#: The class of an error and its text, without who tells it; no error where nobody raises it.
Mistake = tuple[type[Exception], str]

_NUMBERS = (float, int, torch.SymFloat, torch.SymInt)


# --- kinds of arguments -------------------------------------------------------------------------


def check_batch(
    x: object,
    weight: object,
    bias: object,
    running_mean: object,
    running_var: object,
    residual: object,
    training: object,
    momentum: object,
    eps: object,
    activation: object,
) -> None:
    """Refuses arguments of ``batch_norm`` that are of another kind, and a lack of statistics.

    Raises:
        TypeError: A value that is no tensor, no bool or no number.
        ValueError: An activation that there is not; not training, and a running statistic is None.
    """
    name = "batch_norm"
    _check_tensor(name, "x", x)
    terms = (("weight", weight), ("bias", bias))
    running = (("running_mean", running_mean), ("running_var", running_var))
    for which, tensor in (*terms, *running, ("residual", residual)):
        if tensor is not None:
            _check_tensor(name, which, tensor)
    if not isinstance(training, (bool, torch.SymBool)):
        raise TypeError(f"{name}: training must be a bool, got {training!r}")
    if momentum is not None:
        _check_number(f"{name}: momentum", momentum)
    _check_number(f"{name}: eps", eps)
    _raise(name, activation_mistake(activation))
    if not training and (running_mean is None or running_var is None):
        raise ValueError(
            f"{name}: expected running_mean and running_var for training=False, got None"
        )


def check_group(
    x: object, groups: object, weight: object, bias: object, eps: object, activation: object
) -> None:
    """Refuses arguments of ``group_norm`` that are of another kind.

    Raises:
        TypeError: A value that is no tensor or no number.
        ValueError: Groups that are no integer; an activation that there is not.
    """
    name = "group_norm"
    _check_tensor(name, "x", x)
    for which, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            _check_tensor(name, which, tensor)
    check_groups(name, groups)
    _check_number(f"{name}: eps", eps)
    _raise(name, activation_mistake(activation))


def _check_tensor(name: str, which: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: {which} must be a tensor, got {kind_of(value)}")


def _check_number(name: str, value: object) -> None:
    """Refuses what is no number; a tensor's is not read, which nobody could trace."""
    if isinstance(value, bool) or not (isinstance(value, _NUMBERS) or hasattr(value, "__float__")):
        raise TypeError(f"{name} must be a number, got {kind_of(value)}")


def _raise(name: str, mistake: Mistake | None) -> None:
    if mistake is not None:
        raise mistake[0](f"{name}: {mistake[1]}")


def activation_mistake(activation: object) -> Mistake | None:
    """Says which activations there are, where it is none of them."""
    if isinstance(activation, str) and activation in NORM_ACTIVATIONS:
        return None
    names = ", ".join(NORM_ACTIVATIONS)
    return ValueError, f"expected an activation of {names}, got {activation!r}"


# --- numbers ------------------------------------------------------------------------------------


def number(name: str, value: Any) -> float:
    """Returns a number as plans know it: a tensor may hold another one at the next call."""
    if type(value) is float:
        return value
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(f"{name} must be a number, got {kind_of(value)}") from None


def epsilon(name: str, value: object) -> float:
    """Returns what is added to variances, from which a root is taken then."""
    eps = number(name, value)
    if not eps >= 0.0:
        raise ValueError(f"{name} must not be negative, got {eps}")
    return eps


def are_numbers(*values: object) -> bool:
    """Tells whether a graph may hold values: a tensor has another one at its next run."""
    return all([isinstance(value, _NUMBERS) for value in values])


# --- what fits what -----------------------------------------------------------------------------


def check_fit(
    name: str,
    x: Tensor,
    groups: int | None,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
) -> None:
    """Refuses tensors that do not fit each other.

    Args:
        name: Name of the function, for the errors.
        x: [N, C, *size].
        groups: Number of groups, for ``group_norm``.
        weight: [C] or None.
        bias: [C] or None.
        residual: As x, or None.
        running_mean: [C] or None.
        running_var: [C] or None.

    Raises:
        TypeError: A value that is no dense tensor; unknown or mixed dtypes.
        ValueError: Sizes, groups or devices that do not fit.
    """
    terms = (
        ("weight", weight), ("bias", bias),
        ("running_mean", running_mean), ("running_var", running_var),
    )  # fmt: skip
    for which, tensor in (("x", x), *terms, ("residual", residual)):
        if tensor is not None or which == "x":
            _raise(name, dense_mistake(which, tensor))
    if x.dim() < 2:
        raise ValueError(f"{name}: expected x [N, C, *size], got {list(x.shape)}")
    if not x.is_floating_point():
        raise TypeError(f"{name}: expected x of a floating-point dtype, got {x.dtype}")
    if groups is not None:
        _check_division(name, x.shape[1], groups)
    for which, tensor in terms:
        if tensor is not None:
            _raise(name, term_mistake(which, tensor, x))
    if residual is not None:
        _raise(name, residual_mistake(residual, x))


def _check_division(name: str, channels: int, groups: int) -> None:
    if groups < 1:
        raise ValueError(f"{name}: groups must be at least 1, got {groups}")
    if channels % groups:
        raise ValueError(f"{name}: {channels} channels do not divide into {groups} groups")


def dense_mistake(name: str, tensor: object) -> Mistake | None:
    """Returns why something is no dense tensor."""
    if not isinstance(tensor, Tensor):
        return TypeError, f"{name} must be a tensor, got {kind_of(tensor)}"
    if tensor.is_nested or tensor.layout is not torch.strided:
        kind = "a nested one" if tensor.is_nested else tensor.layout
        return TypeError, f"{name} must be a dense tensor, got {kind}"
    return None


def term_mistake(name: str, term: Tensor, x: Tensor) -> Mistake | None:
    """Returns why a tensor is not one of a number per channel of x."""
    channels = x.shape[1]
    if term.shape != (channels,):
        return ValueError, f"expected {name} [{channels}], got {list(term.shape)}"
    if term.dtype not in (x.dtype, torch.float32):
        return TypeError, f"{name} is {term.dtype}, x is {x.dtype}: expected that or float32"
    if term.device != x.device:
        return ValueError, f"{name} is on {term.device}, x is on {x.device}"
    return None


def residual_mistake(residual: Tensor, x: Tensor) -> Mistake | None:
    """Returns why a tensor is none that is added to one of x's shape and dtype."""
    if residual.shape != x.shape:
        return ValueError, f"expected a residual {list(x.shape)}, got {list(residual.shape)}"
    if residual.dtype != x.dtype:
        return TypeError, f"the residual is {residual.dtype}, x is {x.dtype}"
    if residual.device != x.device:
        return ValueError, f"the residual is on {residual.device}, x is on {x.device}"
    return None
