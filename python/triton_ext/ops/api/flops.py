"""FLOP counts of the operators for ``torch.utils.flop_counter``, equal to those of torch's own.

They are equal even where torch counts too much, as for the filter's gradient with groups, so that a
model has the same numbers before and after it is converted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

from triton_ext.ops.api import library  # noqa: F401 - registers the operators
from triton_ext.ops.api.calls import DGRAD, FPROP, FUSED, INTO, WGRAD, Operator

__all__: list[str] = []

Shape = Sequence[int]


def _count_fprop(x_shape: Shape, w_shape: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    flops: int = conv_flop_count(x_shape, w_shape, out_shape)
    return flops


def _count_fprop_into(x_shape: Shape, w_shape: Shape, *rest: Any, **_: Any) -> int:
    flops: int = conv_flop_count(x_shape, w_shape, rest[-2])  # out; amax is last
    return flops


def _count_dgrad(dy_shape: Shape, w_shape: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    flops: int = conv_flop_count(dy_shape, w_shape, out_shape, transposed=True)
    return flops


def _count_wgrad(x_shape: Shape, dy_shape: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    # A convolution whose channels are images, and whose images are channels.
    turned = ([n, m, *size] for m, n, *size in (x_shape, dy_shape, out_shape))
    flops: int = conv_flop_count(*turned)
    return flops


_FORMULAS: dict[Operator, Callable[..., int]] = {
    FPROP: _count_fprop,
    FUSED: _count_fprop,
    INTO: _count_fprop_into,
    DGRAD: _count_dgrad,
    WGRAD: _count_wgrad,
}

for _operator, _formula in _FORMULAS.items():
    _names = filter(None, (_operator.name, _operator.differentiable))
    _targets = [getattr(torch.ops.triton_ext, name) for name in _names]
    register_flop_formula(_targets)(_formula)
