"""A way past the checks of a normalization for calls that were seen before.

An eager call on plain tensors, where nobody but the kernels has to do with them, ends in its plan
whatever is asked on the way.  Such calls are known by what they look like: the second one goes to
the plan at once.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch.overrides import has_torch_function_variadic

from triton_ext.ops.autocast import is_autocast
from triton_ext.ops.norms.norm_launches import ALIGNMENT
from triton_ext.ops.norms.norm_plan import NormPlan
from triton_ext.ops.plans import PlanCache
from triton_ext.ops.shortcut import PLAIN_TYPES, is_watched

__all__ = ["batch_look", "group_look", "keep", "plan_of_look"]

_known: PlanCache[NormPlan] = PlanCache()


def batch_look(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    residual: Any,
    training: Any,
    activation: Any,
    eps: Any,
) -> Hashable:
    """Returns what a call of ``batch_norm`` looks like; ``None`` if it takes the whole way.

    Nothing about the arguments was checked.
    """
    # Equal values of other types are other arguments.
    if type(eps) is not float or type(training) is not bool or type(activation) is not str:
        return None
    tensors = (x, weight, bias, running_mean, running_var, residual)
    return _look((training, activation, eps), tensors)


def group_look(x: Any, groups: Any, weight: Any, bias: Any, activation: Any, eps: Any) -> Hashable:
    """Returns what a call of ``group_norm`` looks like, as :func:`batch_look`."""
    if type(eps) is not float or type(groups) is not int or type(activation) is not str:
        return None
    # Anything else has no look.
    is_wide = type(x) in PLAIN_TYPES and is_autocast(x.device.type)
    return _look((groups, is_wide, activation, eps), (x, weight, bias))


def _look(words: tuple[Any, ...], tensors: tuple[Any, ...]) -> Hashable:
    if is_watched() or has_torch_function_variadic(*tensors):
        return None
    looks: list[Any] = [words]
    addresses = 0
    try:
        for tensor in tensors:
            if tensor is None:
                looks.append(None)
            elif type(tensor) in PLAIN_TYPES and not tensor.is_neg():
                looks += (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
                addresses |= tensor.data_ptr()
            else:
                return None
    except RuntimeError:
        return None  # no dense tensor, or one without memory, such as a transform leaves behind
    return None if addresses % ALIGNMENT else tuple(looks)


def plan_of_look(look: Hashable) -> NormPlan | None:
    """Returns the plan of calls of a look; ``None`` where none is known."""
    # While torch traces there is no look, and what is kept is nothing to trace.
    return None if look is None else _known.get(look)


def keep(look: Hashable, plan: NormPlan) -> None:
    """Keeps the plan of a call that took the whole way."""
    if look is not None:
        _known.keep(look, plan)
