"""The tolerance of the tests on a GPU, without one: which orders of fp32 additions it accepts."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
from gpu_comparison import assert_as_exact_as_torch, pairwise_floor


def in_pairs(values: torch.Tensor) -> torch.Tensor:
    """Sums along the last axis, whose length is a power of two."""
    while values.shape[-1] > 1:
        values = values[..., ::2] + values[..., 1::2]
    return values[..., 0]


def in_a_chain(values: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(values[..., 0])
    for value in values.unbind(-1):
        total = total + value
    return total


def drawn(trials: int, sums: int, products: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (2, trials, sums, products)
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def refused(ours, torchs, exact, *floor):
    """Of how many of the trials a comparison does not accept the result."""
    found = 0
    for trial in zip(ours, torchs, exact.sum(-1), exact.square().sum(-1).sqrt(), strict=True):
        try:
            assert_as_exact_as_torch(*trial[:3], *floor, *(trial[3:] if floor else ()))
        except AssertionError:
            found += 1
    return found


@pytest.mark.parametrize("sums", [1, 36])
def test_sums_in_pairs_are_accepted_in_every_order(sums):
    a, b = drawn(500, sums, 128)
    values, exact = a * b, a.double() * b.double()
    first, second = in_pairs(values), in_pairs(values.flip(-1).roll(1, -1))
    # A single sum is what luck changes most.
    assert refused(first, second, exact, pairwise_floor(128)) <= (5 if sums == 1 else 0)
    # Beside an error that is small by luck, no other would do without it.
    assert refused(first, second, exact) > 0


def test_a_chain_of_additions_is_refused():
    a, b = drawn(20, 36, 4096)
    values, exact = a * b, a.double() * b.double()
    floor = pairwise_floor(4096)
    assert refused(in_a_chain(values), in_pairs(values), exact, floor) == 20
