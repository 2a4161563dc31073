"""Conversion of models: what is converted, what is left and why, and that nothing else changes."""

from __future__ import annotations

import contextlib
import io

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
        ("0", False), ("2", False), ("3", False), ("4", True), ("5", False),
    ]  # fmt: skip
    assert [type(net[i]) for i in (0, 2, 3, 4)] == [
        nn.Conv2d, nn.Conv2d, nn.ConvTranspose2d, torch.nn.Conv2d,
    ]  # fmt: skip
    assert type(net[5]).__bases__ == (Subclass, nn.Conv2d)
    lines = str(found).splitlines()
    assert lines[0].startswith("0  Conv2d(3, 8, kernel_size=(3, 3), ")
    assert lines[0].endswith("  converted")
    assert "left: conv stride 9 in H: TMA supports 1..8; conv stride 9 in W" in lines[3]
    assert lines[4].endswith("converted")
    assert lines[5] == "5 convolutions: 4 converted, 1 left"
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
    assert "float64: expected float16" in reasons[0]
    assert reasons[1] == "it is a LazyConv2d"
    assert reasons[2] == reasons[4] == ""
    assert reasons[3] == "its forward was replaced"


def test_meta_models_and_models_without_convolutions():
    with torch.device("meta"):
        net = torch.nn.Sequential(torch.nn.Conv3d(8, 8, 3))
    assert not nn.survey(net).layers[0].reason
    assert str(nn.survey(torch.nn.Linear(2, 2))) == "no convolutions"


def test_the_table_of_one_layer_and_of_none():
    one = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3), torch.nn.BatchNorm2d(8))
    summary = "1 convolution: 1 converted; 1 norm: 1 converted"
    assert nn.survey(one, norms=True).summary == summary
    for how in ({}, {"norms": True}):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            nn.convert(torch.nn.Sequential(torch.nn.Linear(2, 2)), **how)
        assert out.getvalue() == "no convolutions\n"


def test_fallback_is_passed_on():
    net = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3))
    nn.convert(net, fallback="error")
    with pytest.raises(ValueError, match="channels must be contiguous"):
        net(torch.ones(1, 8, 5, 5))
    with pytest.raises(ValueError, match='expected "error" or "torch"'):
        nn.convert(net, fallback="no")
    with pytest.raises(ValueError, match='expected "error" or "torch"'):
        nn.Conv2d(8, 8, 3, fallback="no")


def test_a_second_conversion_tells_which_options_stay():
    net = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3), torch.nn.Conv2d(8, 8, 3))
    nn.convert(net[0], report=False)
    nn.convert(net[1], report=False, fallback="error", pack=False)
    assert [layer.outcome for layer in nn.survey(net).layers] == ["ours already"] * 2

    def told(**how):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            nn.convert(net, **how)
        return out.getvalue()

    text = told(pack=False)
    assert text.count("ours already") == 2
    assert "ours already; keeps its packed weight: revert first" in text
    assert 'ours already; keeps fallback="error": revert first' in text
    assert "left" not in text
    assert "2 convolutions: 2 ours before" in text
    text = told(fallback="error")
    assert 'ours already; keeps fallback="torch": revert first' in text
    assert "ours already; keeps a weight that is not packed: revert first" in text
    text = told()
    assert text.count("revert first") == 1
    assert 'keeps fallback="error" and a weight that is not packed: revert first' in text
    nn.convert(nn.revert(net), report=False)
    assert "revert" not in told()


def test_a_line_per_layer_of_bounded_width():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(8, 8, 3),
        torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv2d(8, 8, 3)),
        torch.nn.Conv2d(128, 256, 33, 1, 100, 2, 128, bias=False, padding_mode="reflect"),
    )
    net.add_module("deep" * 20 + "er", torch.nn.Conv2d(8, 8, 1))
    lines = str(nn.survey(net)).splitlines()
    assert len(lines) == 5
    where = {line.index("conv") for line in lines[:4]}
    assert len(where) == 1
    assert max(where) <= 48 + 2 + 80 + 2
    assert "ParametrizedConv2d(8, 8, kernel_size=(3, 3), stride=(1, 1))  " in lines[1]
    assert "Conv2d(128, 256, kernel_size=(33, 33), " in lines[2]
    assert "..." in lines[2]
    assert lines[3].startswith("...")
    assert "deepdeeper  Conv2d(" in lines[3]


def test_what_is_no_module_is_refused():
    for function in (nn.convert, nn.survey, nn.revert, nn.refresh):
        text = rf"^{function.__name__}: expected a torch\.nn\.Module, got int"
        with pytest.raises(TypeError, match=text):
            function(3)
    with pytest.raises(ValueError, match=r"^survey: fold=True is for inference"):
        nn.survey(torch.nn.Conv2d(3, 4, 3), fold=True)


@pytest.mark.parametrize("flag", ["report", "fold", "pack", "norms"])
def test_flags_are_bools(flag):
    net = model()
    for value in ("no", 1, None):
        text = rf"^convert: {flag} must be a bool, got {value!r}$"
        with pytest.raises(TypeError, match=text):
            nn.convert(net, **{flag: value})
        if flag in ("fold", "norms"):
            with pytest.raises(TypeError, match=text.replace("convert", "survey")):
                nn.survey(net, **{flag: value})
    assert type(net[0]) is torch.nn.Conv2d


def test_revert_gives_back_any_memory_order():
    odd = torch.nn.Conv2d(6, 4, 3)
    odd.weight.data = odd.weight.data.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), odd)
    before = [weight.detach().clone() for weight in net.parameters()]
    strides = [weight.stride() for weight in net.parameters()]
    assert strides[2] == (1, 4, 24, 72)
    nn.convert(net, report=False)
    assert odd.weight.stride() == (54, 1, 18, 6)
    nn.revert(net)
    assert [weight.stride() for weight in net.parameters()] == strides
    assert all(map(torch.equal, net.parameters(), before))
