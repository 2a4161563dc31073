"""What ``torch.utils.flop_counter`` counts for the operators: what it counts for torch's own.

Also where torch counts too much, as it does for the filter's gradient with groups: numbers of a
model are the same before and after it is converted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

from triton_ext.ops import library  # noqa: F401 - registers the operators

__all__: list[str] = []

Shape = Sequence[int]


def _count_fprop(x_shape: Shape, w_shape: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    flops: int = conv_flop_count(x_shape, w_shape, out_shape)
    return flops


def _count_fprop_into(x_shape: Shape, w_shape: Shape, *rest: Any, **_: Any) -> int:
    flops: int = conv_flop_count(x_shape, w_shape, rest[-2])  # out, in front of amax
    return flops


def _count_dgrad(dy_shape: Shape, w_shape: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    flops: int = conv_flop_count(dy_shape, w_shape, out_shape, transposed=True)
    return flops


def _count_wgrad(x_shape: Shape, dy_shape: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    # A convolution whose channels are images, and whose images are channels.
    turned = ([n, m, *size] for m, n, *size in (x_shape, dy_shape, out_shape))
    flops: int = conv_flop_count(*turned)
    return flops


_operators = torch.ops.triton_ext
register_flop_formula(
    [_operators.fprop, _operators.conv, _operators.fprop_fused, _operators.conv_fused]
)(_count_fprop)
register_flop_formula([_operators.fprop_into])(_count_fprop_into)
register_flop_formula([_operators.dgrad, _operators.conv_input])(_count_dgrad)
register_flop_formula([_operators.wgrad, _operators.conv_weight])(_count_wgrad)
