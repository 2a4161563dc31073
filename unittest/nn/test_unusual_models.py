"""Models on two devices, hooked, mixed or scripted in parts: left with a reason, or right."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")

import torch
from torch.nn import functional as F
from triton_ext import nn

TORCH = torch.nn


class Block(TORCH.Module):
    """A convolution behind an own pad, a norm and an activation."""

    def __init__(self, stride=1):
        super().__init__()
        self.conv, self.norm = TORCH.Conv2d(4, 4, 3, stride=stride), TORCH.BatchNorm2d(4)

    def forward(self, x):
        return F.relu(self.norm(self.conv(F.pad(x, (1, 1, 1, 1)))))


def image():
    return torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("fold", [False, True])
@torch.no_grad()
def test_a_model_on_two_devices(fold):
    model = TORCH.Sequential(Block(), Block()).eval()
    model[1].to("meta")
    expected = model[0](image())
    nn.convert(model, report=False, fold=fold, norms=True)
    torch.testing.assert_close(model[0](image()), expected)
    y = model[1](model[0](image()).to("meta"))
    assert (y.shape, y.device.type) == (expected.shape, "meta")
    refusals = [dict(module.refusals) for module in nn.report(model).modules]
    (refusal,) = refusals[0]
    assert "x is on cpu" in refusal
    assert list(refusals[1]) == ["x has no data (meta or fake): nothing was computed"]
    with pytest.raises(ValueError, match=r"weight is on meta, x is on cpu"):
        model(image())
    nn.revert(model)
    assert type(model[1]) is Block


def to_last(module, arguments, *output):
    x = output[0] if output else arguments[0]
    x = x.contiguous(memory_format=torch.channels_last)
    return x if output else (x,)


def to_first(module, arguments, *output):
    x = output[0] if output else arguments[0]
    return x.contiguous() if output else (x.contiguous(),)


def to_double_and_back(module, arguments, *output):
    return output[0].double().float() if output else (arguments[0].double().float(),)


@pytest.mark.parametrize("how", [to_last, to_first, to_double_and_back])
@pytest.mark.parametrize("fold", [False, True])
@torch.no_grad()
def test_hooks_that_change_formats(how, fold):
    model = TORCH.Sequential(Block(), Block(stride=2)).eval()
    for block in model:
        for module in (block, block.conv, block.norm):
            module.register_forward_pre_hook(how)
            module.register_forward_hook(how)
    expected = model(image())
    nn.convert(model, report=False, fold=fold, norms=True)
    for x in (image(), image().contiguous(memory_format=torch.channels_last)):
        torch.testing.assert_close(model(x), expected)
    for layer in nn.survey(model, fold=True).layers:
        assert layer.unfolded == "it has hooks"
    nn.revert(model)
    torch.testing.assert_close(model(image()), expected)


@torch.no_grad()
def test_a_model_with_a_scripted_a_quantized_and_a_frozen_part():
    torch.manual_seed(0)
    quantized = TORCH.Sequential(Block(), TORCH.Sequential(Block()), Block()).eval()
    model = TORCH.Sequential(
        Block(),
        torch.jit.script(Block().eval()),
        torch.jit.freeze(torch.jit.script(Block().eval())),
        torch.fx.symbolic_trace(Block().eval()),
        copy.deepcopy(quantized),
    ).eval()
    expected = model(image())
    nn.convert(model, report=False, fold=True, norms=True)
    torch.testing.assert_close(model(image()), expected)
    reasons = {layer.name: layer.reason for layer in nn.survey(model).layers}
    assert reasons["1.conv"] == "it is compiled (torch.jit)"
    assert "not converted: 1" in nn.report(model).summary
    nn.revert(model)
    torch.testing.assert_close(model(image()), expected)


def test_half_of_a_model_in_another_dtype_is_left():
    model = TORCH.Sequential(Block(), Block().double())
    nn.convert(model, report=False)
    reasons = [layer.reason for layer in nn.survey(model).layers]
    assert reasons[0] == "it is ours already"
    assert "float64" in reasons[1]
    assert model[1](image().double()).dtype == torch.float64
