"""The copy of a gathered filter by itself; under FSDP it is in ``test_distributed.py``."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")

import torch
from triton_ext import nn
from triton_ext.nn import gathered


class Sharded(torch.nn.Parameter):
    """What FSDP has for a parameter that is not gathered."""


def weight(*shape: int, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(shape or (8, 4, 3, 3)).to(dtype))


def test_another_filter_does_not_get_the_copy():
    known, own, other = gathered.Gathered(), weight(), weight()
    known.begin(own)
    copy = known.of(own)
    assert torch.equal(copy, own)
    assert copy.is_contiguous(memory_format=torch.channels_last)
    assert known.of(other) is None
    x = torch.randn(1, 4, 5, 5, requires_grad=True)
    assert gathered.in_order(known, x, other) is other
    assert torch.equal(gathered.in_order(known, x, own), own)


@pytest.mark.parametrize(
    "other", [weight(8, 4, 1, 3), weight(2, 4, 3, 3), weight(dtype=torch.bfloat16)]
)
def test_a_filter_of_another_kind_gets_a_copy_of_its_own(other):
    known, own = gathered.Gathered(), weight()
    known.begin(own)
    first = known.of(own)
    known.begin(other)
    copy = known.of(other)
    assert (copy.shape, copy.dtype) == (other.shape, other.dtype)
    assert torch.equal(copy, other)
    assert torch.equal(first, own)  # autograd may have kept it


def test_the_memory_of_a_copy_is_filled_again():
    known, own = gathered.Gathered(), weight()
    known.begin(own)
    first = known.of(own)
    known.end()
    assert first.untyped_storage().nbytes() == 0
    again = weight()
    known.begin(again)
    assert known.of(again) is first
    assert torch.equal(first, again)


def test_a_filter_that_somebody_puts_into_the_module_ends_the_exchange():
    layer = nn.Conv2d(4, 8, 3, fallback="torch")
    layer.weight = Sharded(layer.weight.detach())
    assert layer._gathered is None
    layer.weight = own = weight()
    known = layer._gathered
    assert known.of(own) is not None
    layer.weight = own
    assert layer._gathered is known
    layer.weight = weight()
    assert layer._gathered is None
    assert gathered.GATHERED not in vars(layer)
