"""Conversion of models: what is converted, what is left and why, and that nothing else changes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")

import torch
from triton_ext import nn


class Subclass(torch.nn.Conv2d):
    """Something else than a plain convolution."""


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.Conv2d(8, 8, 3, padding=1, groups=2, padding_mode="reflect"),
        torch.nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1),
        torch.nn.Conv2d(8, 8, 1, stride=9),
        Subclass(8, 8, 1),
    )
    return layers.eval()


def test_what_is_converted_and_what_is_left():
    net = model()
    found = nn.survey(net)
    assert [type(net[i]) for i in (0, 2, 3)] == [
        torch.nn.Conv2d, torch.nn.Conv2d, torch.nn.ConvTranspose2d,
    ]  # fmt: skip
    assert nn.convert(net) is net
    assert [(layer.name, bool(layer.reason)) for layer in found.layers] == [
        ("0", False), ("2", False), ("3", False), ("4", True), ("5", True),
    ]  # fmt: skip
    assert [type(net[i]) for i in (0, 2, 3, 4, 5)] == [
        nn.Conv2d, nn.Conv2d, nn.ConvTranspose2d, torch.nn.Conv2d, Subclass,
    ]  # fmt: skip
    lines = str(found).splitlines()
    assert lines[0].startswith("0  Conv2d(3, 8, kernel_size=(3, 3), ")
    assert lines[0].endswith("  converted")
    assert "left: conv stride 9 in H: TMA supports 1..8; conv stride 9 in W" in lines[3]
    assert lines[4].endswith("left: it is a Subclass")
    assert lines[5] == "5 convolutions: 3 converted, 2 left"
    again = nn.survey(net)
    assert [layer.reason for layer in again.layers[:3]] == ["it is ours already"] * 3


def test_results_parameters_and_hooks_stay():
    net = model()
    x = torch.randn(1, 3, 20, 20)
    expected, parameters = net(x), dict(net.named_parameters())
    texts = repr(net)
    seen = []
    net[0].register_forward_hook(lambda module, _args, _output: seen.append(type(module)))
    net[2].weight.requires_grad_(False)
    nn.convert(net)
    torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-4)
    assert seen == [nn.Conv2d]
    assert all(parameter is parameters[name] for name, parameter in net.named_parameters())
    assert not net[2].weight.requires_grad
    nn.revert(net)
    assert repr(net) == texts
    assert [type(module) for module in net] == [type(module) for module in model()]
    torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-4)


def test_shared_weights_stay_shared():
    net = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3), torch.nn.Conv2d(8, 8, 3))
    net[1].weight = net[0].weight
    nn.convert(net)
    assert net[0].weight is net[1].weight


def test_what_else_is_left():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(8, 8, 3).double(),
        torch.nn.LazyConv2d(8, 3),
        torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv2d(8, 8, 3)),
        torch.nn.Conv1d(8, 8, 3),
        torch.nn.utils.weight_norm(torch.nn.Conv2d(8, 8, 3)),
    )
    net[3].forward = net[3].forward
    reasons = [layer.reason for layer in nn.survey(net).layers]
    assert "float64 is not supported" in reasons[0]
    assert reasons[1] == "it is a LazyConv2d"
    assert reasons[2] == "it is a ParametrizedConv2d"
    assert reasons[3] == "its forward was replaced"
    assert reasons[4] == "its weight is no parameter"


def test_meta_models_and_models_without_convolutions():
    with torch.device("meta"):
        net = torch.nn.Sequential(torch.nn.Conv3d(8, 8, 3))
    assert not nn.survey(net).layers[0].reason
    assert str(nn.survey(torch.nn.Linear(2, 2))) == "no convolutions"


def test_fallback_is_passed_on():
    net = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3))
    nn.convert(net, fallback="error")
    with pytest.raises(ValueError, match="channels must be contiguous"):
        net(torch.ones(1, 8, 5, 5))
    with pytest.raises(ValueError, match='expected "error" or "torch"'):
        nn.convert(net, fallback="no")
    with pytest.raises(ValueError, match='expected "error" or "torch"'):
        nn.Conv2d(8, 8, 3, fallback="no")


def test_what_is_no_module_is_refused():
    for function in (nn.convert, nn.survey, nn.revert, nn.refresh):
        text = rf"^{function.__name__}: expected a torch\.nn\.Module, got int"
        with pytest.raises(TypeError, match=text):
            function(3)
    with pytest.raises(ValueError, match=r"^survey: fold=True is for inference"):
        nn.survey(torch.nn.Conv2d(3, 4, 3), fold=True)
