"""Random forwards, with aliases and writes in place: folded, they give what they gave.

A forward is a list of steps; each takes values that are there and gives one more.  A random part of
the values is returned, together with the input, which steps may have written to.
"""

from __future__ import annotations

import copy
import operator
import os
from dataclasses import dataclass

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")
pytest.importorskip("hypothesis")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from triton_ext import nn

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
EXAMPLES = 2000 if NIGHTLY else 120

CHANNELS = 2


@dataclass(frozen=True, slots=True)
class Step:
    """What is done, and to which values, counted from the last one."""

    kind: str
    first: int
    second: int


def in_place_sequence() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Conv2d(CHANNELS, CHANNELS, 1))


MODULES = {
    "conv": lambda: torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    "pointwise": lambda: torch.nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False),
    "norm": lambda: torch.nn.BatchNorm2d(CHANNELS),
    "relu": torch.nn.ReLU,
    "relu in place": lambda: torch.nn.ReLU(inplace=True),
    "silu in place": lambda: torch.nn.SiLU(inplace=True),
    "identity": torch.nn.Identity,
    "sequence": lambda: torch.nn.Sequential(MODULES["conv"](), MODULES["norm"]()),
    "writing sequence": in_place_sequence,
}
FUNCTIONS = {
    "F.relu": lambda a, b: F.relu(a),
    "F.relu in place": lambda a, b: F.relu(a, inplace=True),
    "torch.tanh": lambda a, b: torch.tanh(a),
    "relu_": lambda a, b: a.relu_(),
    "tanh": lambda a, b: a.tanh(),
    "+": operator.add,
    "torch.add": lambda a, b: torch.add(a, b),
    "add": lambda a, b: a.add(b),
    "+=": operator.iadd,
    "add_": lambda a, b: a.add_(b),
    "*= 0.5": lambda a, b: operator.imul(a, 0.5),
    "mul_": lambda a, b: a.mul_(0.5),
    "view": lambda a, b: a.view(a.shape),
    "detach": lambda a, b: a.detach(),
    "half": lambda a, b: a[:, :1],
}


class Program(torch.nn.Module):
    def __init__(self, steps: tuple[Step, ...], returned: tuple[int, ...]) -> None:
        super().__init__()
        self.steps = tuple((s.first, s.second) for s in steps)
        self.functions = tuple(FUNCTIONS.get(s.kind) for s in steps)
        self.returned = returned
        self.layers = torch.nn.ModuleList(
            [MODULES[s.kind]() if s.kind in MODULES else torch.nn.Identity() for s in steps]
        )

    def forward(self, x):
        values = (x,)
        steps = zip(self.steps, self.functions, self.layers, strict=True)
        for (first, second), function, layer in steps:
            one = values[max(-1 - first, -len(values))]
            other = values[max(-1 - second, -len(values))]
            value = layer(one) if function is None else function(one, other)
            values = (*values, value)
        return tuple(values[-1 - index % len(values)] for index in self.returned)


near = st.sampled_from([0, 0, 0, 0, 0, 1, 2])
other = st.integers(0, 4)
anything = st.builds(Step, st.sampled_from([*MODULES, *FUNCTIONS]), near, other).map(lambda s: (s,))


def one_of(*names: str) -> st.SearchStrategy[tuple[Step, ...]]:
    return st.builds(Step, st.sampled_from(names), near, other).map(lambda step: (step,))


# What is looked for, in most cases with something in between, or without a part.
link = st.just(()) | anything
chain = st.tuples(
    one_of("conv", "pointwise"),
    link | one_of("norm"),
    link | one_of("norm"),
    link | one_of("+", "+=", "add_"),
    link | one_of("relu in place", "silu in place", "relu_", "F.relu in place"),
).map(lambda parts: sum(parts, ()))
programs = st.builds(
    Program,
    st.lists(chain | anything, min_size=1, max_size=4).map(lambda parts: sum(parts, ())),
    st.lists(st.integers(0, 4), max_size=2).map(lambda more: (0, *more)),
)
folded_places = []


def run(model: torch.nn.Module) -> tuple[torch.Tensor, ...] | Exception:
    torch.manual_seed(1)
    x = torch.randn(1, CHANNELS, 3, 3).to(memory_format=torch.channels_last)
    try:
        with torch.no_grad():
            return *(y.clone() for y in model(x)), x
    except RuntimeError as error:  # a slice of one channel is given to a convolution
        return error


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(programs)
def test_a_folded_program_gives_what_it_gave(program):
    torch.manual_seed(0)
    for parameter in program.parameters():
        torch.nn.init.uniform_(parameter, -1, 1)
    program.eval()
    expected = run(copy.deepcopy(program))
    if isinstance(expected, Exception):
        return
    nn.convert(program, fold=True, report=False)
    folded_places.extend(layer.folded for layer in nn.survey(program, fold=True).layers)
    for one, other in zip(run(program), expected, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_enough_of_them_were_folded():
    if not folded_places:
        pytest.skip("the test before was not selected")
    assert sum(bool(parts) for parts in folded_places) > EXAMPLES / 8
    assert any("+=" in parts for parts in folded_places)
    assert max(map(len, folded_places)) >= (3 if NIGHTLY else 2)
