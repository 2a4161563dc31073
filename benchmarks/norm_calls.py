"""Host time of a whole call of BatchNorm and GroupNorm, without a GPU; ``calls`` has the method.

Statistics are those of x, as in training, and running ones are moved.  A forward is one that
autograd records.  ``both`` is with the backward, gradients of x, weight, bias and residual: what
autograd does itself counts as well.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from benchmarks.calls import add_arguments, run_calls, run_step

__all__ = ["add_arguments", "make_calls", "norms_on_stand_in", "run"]

Calls = dict[str, Callable[[], object]]


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns what ``run_calls`` does."""
    return run_calls(arguments, norms_on_stand_in, make_calls)


@contextlib.contextmanager
def norms_on_stand_in() -> Iterator[None]:
    """Within, normalizations take tensors on the CPU for those of a GPU, as operators do."""
    from triton_ext.ops.norms import checks

    # Triton's driver, which this patches, is there in the process of the stand-in only.
    stand_in: Any = importlib.import_module("benchmarks.stand_in_operators")
    with (
        stand_in.operators_on_stand_in(),
        mock.patch.object(checks, "IS_INTERPRETED", True),
        mock.patch.object(checks, "describe", return_value=stand_in.H200),
    ):
        yield


def make_calls() -> Calls:
    """Returns the calls by name, each with tensors of its own."""
    import torch
    from triton_ext import nn, ops

    def last() -> torch.Tensor:
        tensor = torch.zeros(2, 64, 16, 16, dtype=torch.bfloat16)
        return tensor.to(memory_format=torch.channels_last)

    def leaf() -> torch.Tensor:
        return last().requires_grad_()

    class Activated(torch.nn.Module):
        def __init__(self, norm: torch.nn.Module, activation: torch.nn.Module) -> None:
            super().__init__()
            self.norm, self.activation = norm, activation

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.activation(self.norm(x))
            return y

    class Added(torch.nn.Module):
        def __init__(self, norm: torch.nn.Module, activation: torch.nn.Module) -> None:
            super().__init__()
            self.norm, self.activation = norm, activation

        def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.activation(self.norm(x) + residual)
            return y

    dy, residual = last(), leaf()
    x, terms = leaf(), tuple(torch.zeros(64, requires_grad=True) for _ in range(2))
    mean, variance = torch.zeros(64), torch.ones(64)

    def batch_norm(**how: Any) -> torch.Tensor:
        return ops.batch_norm(x, *terms, mean, variance, training=True, activation="relu", **how)

    forwards: dict[str, tuple[Callable[[], torch.Tensor], tuple[torch.Tensor, ...]]] = {
        "batch_norm, relu": (batch_norm, terms),
        "batch_norm, +, relu": (lambda: batch_norm(residual=residual), terms),
        "group_norm, silu": (lambda: ops.group_norm(x, 8, *terms, activation="silu"), terms),
    }
    relu, silu = torch.nn.ReLU(), torch.nn.SiLU()
    for name, model, inputs in (
        ("nn.BatchNorm2d, ReLU", Activated(torch.nn.BatchNorm2d(64), relu), (x,)),
        ("nn.BatchNorm2d, +, ReLU", Added(torch.nn.BatchNorm2d(64), relu), (x, residual)),
        ("nn.GroupNorm, SiLU", Activated(torch.nn.GroupNorm(8, 64), silu), (x,)),
    ):
        nn.convert(model.bfloat16(), norms=True, report=False)
        forwards[name] = functools.partial(model, *inputs), tuple(model.parameters())

    calls: Calls = {}
    for name, (forward, parameters) in forwards.items():
        leaves = (x, residual, *parameters)
        calls[name] = forward
        calls[f"{name}, both"] = functools.partial(run_step, forward, dy, leaves)
    return calls
