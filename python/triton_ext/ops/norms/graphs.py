"""Which normalizations of a graph of torch.compile are operators of this package.

By bytes, in tensors of x's size.  Assumed, not measured: nothing stays in L2, and Inductor's
GroupNorm has torch's order, NCHW, in which a group's values lie side by side.

    GroupNorm                Ours: 2 reads, 1 write, the activation among them.  Inductor's as many,
                             and copies of channels-last tensors before and after: 2 reads and 2
                             writes more.
    BatchNorm, training      Ours: 2 reads (3 with a residual), 1 write; backward 4 (5), 1 (2).
                             Inductor's are the same passes with the same neighbours, and it fuses
                             what else is there (casts, pooling, gradients that meet).
    BatchNorm, evaluation    One pass either way, which Inductor fuses with its neighbours.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch.autograd import forward_ad

__all__ = ["IS_OPERATOR", "Kind", "is_operator"]

#: GroupNorm, BatchNorm with statistics of x, BatchNorm with running ones.
Kind = Literal["group", "training", "evaluation"]

#: Whether it is an operator of ours; Inductor generates the others.
IS_OPERATOR: dict[Kind, bool] = {"group": True, "training": False, "evaluation": False}


def is_operator(kind: Kind) -> bool:
    """Tells whether what calls this is being compiled, and its graph is to have our operator.

    Graphs that are exported do not: they run where this package is not.
    """
    return (
        torch.compiler.is_dynamo_compiling()
        and IS_OPERATOR[kind]
        # The function is_exporting() is always true in what torch 2.11 traces.
        and not torch.compiler._is_exporting_flag
        and not _is_transformed()
    )


def _is_transformed() -> bool:
    """Tells whether torch asks for derivatives forwards, or by a transform of torch.func.

    Asked in words that torch.compile traces: for torch 2.11, the interpreter is never None, and
    the number of layers is none.
    """
    interpreter = torch._C._functorch.peek_interpreter_stack()
    return forward_ad._current_level >= 0 or isinstance(
        interpreter, torch._C._functorch.CInterpreter
    )
