"""Classes derived from torch's convolutions: converted with the user's own forward."""

from __future__ import annotations

import copy
import io
import itertools
import logging
import pickle

import pytest
import torch
from channel_norms import LayerNorm2d, RmsNorm2d, WanRMS_norm
from norm_act import BatchNormAct2d, NormActBlock
from torch.nn import functional as F
from triton_ext import nn
from triton_ext.errors import UnsupportedError

TORCH = torch.nn


class Causal(TORCH.Conv3d):
    """Like Wan's and HunyuanVideo's: pads the time in front, and asks the base class."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        t, h, w = self.padding
        self._sides = (w, w, h, h, 2 * t, 0)
        self.padding = (0, 0, 0)

    def forward(self, x, cache=None):
        if cache is not None:
            x = torch.cat([cache, x], dim=2)
        return super().forward(F.pad(x, self._sides))


class Cast(TORCH.Conv2d):
    """Like ComfyUI's: the weight is cast at every call."""

    def forward(self, *arguments, **keywords):
        return self.forward_cast(*arguments, **keywords)

    def forward_cast(self, input):
        return self._conv_forward(input, self.weight.to(input.dtype), self.bias)


class Named(TORCH.Conv2d):
    """Calls torch's class by its name."""

    def forward(self, x):
        return TORCH.Conv2d.forward(self, x) + 1


class Same(TORCH.Conv2d):
    """Like timm's Conv2dSame: calls a function."""

    def forward(self, x):
        x = F.pad(x, (1, 1, 1, 1))
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class Standardized(TORCH.Conv2d):
    """Like timm's StdConv2d: mathematics of its own on the weight."""

    def forward(self, x):
        weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class Own(TORCH.Conv2d):
    """Replaces what the base class would call."""

    def _conv_forward(self, input, weight, bias):
        return 2 * super()._conv_forward(input, weight, bias)


class Plain(TORCH.ConvTranspose2d):
    """Only has another constructor."""

    def __init__(self, channels):
        super().__init__(channels, 6, 4, stride=2)


class WithState(TORCH.Conv1d):
    """Has a __getstate__ of its own."""

    def __getstate__(self):
        return {**self.__dict__, "seen": True}


def image(dims=2):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 4, *(6,) * dims, generator=generator)


MAKERS = {
    "causal": (lambda: Causal(4, 6, 3, padding=1), 3),
    "cast": (lambda: Cast(4, 6, 3), 2),
    "named": (lambda: Named(4, 6, 3), 2),
    "same": (lambda: Same(4, 6, 3), 2),
    "standardized": (lambda: Standardized(4, 6, 3, padding=1), 2),
    "own": (lambda: Own(4, 6, 3), 2),
    "plain": (lambda: Plain(4), 2),
    "state": (lambda: WithState(4, 6, 3), 1),
}


@pytest.mark.parametrize("name", MAKERS)
def test_calls_reach_our_module_and_give_torchs_result(name):
    make, dims = MAKERS[name]
    theirs, x = make(), image(dims)
    ours = nn.convert(copy.deepcopy(theirs), report=False)
    kind = type(theirs)
    assert isinstance(ours, kind)
    assert type(ours).__name__ == kind.__name__
    assert repr(ours).startswith(repr(theirs)[:-1])
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.testing.assert_close(ours(a), theirs(b))
    ours(a).square().mean().backward()
    theirs(b).square().mean().backward()
    torch.testing.assert_close(a.grad, b.grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    assert nn.report(ours).torch == 2  # on a CPU, torch computes what reaches our module
    assert list(ours.state_dict()) == list(theirs.state_dict())


@pytest.mark.parametrize("name", MAKERS)
def test_copies_and_pickles_are_converted_and_revert_gives_the_class_back(name):
    make, dims = MAKERS[name]
    module, x = make(), image(dims)
    expected = module(x)
    nn.convert(module, report=False)
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    others = (
        copy.deepcopy(module),
        copy.copy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(stored, weights_only=False),
    )
    for other in others:
        assert type(other) is type(module)
        torch.testing.assert_close(other(x), expected)
        nn.revert(other)
        assert type(other) is type(make())
    nn.revert(module)
    assert type(module) is type(make())
    assert set(module.__dict__) == set(make().__dict__)
    torch.testing.assert_close(module(x), expected)


def test_instances_of_the_made_class_are_the_users():
    ours = nn.convert(Plain(4), report=False)
    assert type(type(ours)(4)) is Plain
    assert nn.survey(ours).layers[0].is_ours_already


def test_keyword_arguments_of_the_forward():
    theirs = Causal(4, 6, 3, padding=1)
    ours = nn.convert(copy.deepcopy(theirs), report=False)
    x, cache = image(3), image(3)[:, :, :2]
    torch.testing.assert_close(ours(x, cache=cache), theirs(x, cache=cache))
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        ours(x, other=1)


class Conditioned(TORCH.Conv2d):
    """Takes more than an input."""

    def forward(self, condition, x, *others, gain=1, **rest):
        y = super().forward(x * condition + sum(others))
        return {**rest, "y": y * gain}


class Paired(TORCH.Conv2d):
    """Takes a pair and returns one."""

    def forward(self, pair):
        x, mask = pair
        return self._conv_forward(x * mask, self.weight, self.bias), mask


def test_forwards_of_another_signature():
    x, mask = image(), torch.rand(2, 1, 6, 6)
    for kind, call in (
        (Conditioned, lambda m: m(2, x, x, x, gain=3, more=4)),
        (Paired, lambda m: m((x, mask))),
    ):
        theirs = TORCH.Sequential(kind(4, 6, 3))
        ours = nn.convert(copy.deepcopy(theirs), report=False)
        torch.testing.assert_close(call(ours[0]), call(theirs[0]))
        assert nn.report(ours).torch == 1
        folded = nn.convert(theirs.eval(), report=False, fold=True)
        torch.testing.assert_close(call(folded[0]), call(ours[0]))


def test_parametrized_subclasses():
    theirs = TORCH.utils.parametrizations.weight_norm(Named(4, 6, 3))
    ours = nn.convert(copy.deepcopy(theirs), report=False)
    assert isinstance(ours, nn.Conv2d)
    assert isinstance(ours, Named)
    torch.testing.assert_close(ours(image()), theirs(image()))
    nn.revert(ours)
    TORCH.utils.parametrize.remove_parametrizations(ours, "weight")
    assert type(ours) is Named


def test_a_class_that_cannot_be_derived_from_is_left():
    class Final(TORCH.Conv2d):
        def __init_subclass__(cls):
            raise TypeError("Final is final")

    module = Final(4, 6, 3)
    (layer,) = nn.survey(module).layers
    assert layer.reason == "it is a Final, from which no class can be derived (Final is final)"
    assert type(nn.convert(module, report=False)) is Final


def test_a_module_that_pads_and_cannot_be_derived_from_keeps_its_class():
    class FinalPadding(TORCH.Module):
        def __init__(self):
            super().__init__()
            self.conv = TORCH.Conv2d(4, 6, 3)

        def __init_subclass__(cls):
            raise TypeError("FinalPadding is final")

        def forward(self, x):
            return self.conv(F.pad(x, (1, 1, 1, 1), mode="reflect"))

    theirs = FinalPadding()
    ours = nn.convert(copy.deepcopy(theirs), report=False)
    assert type(ours) is FinalPadding
    assert type(ours.conv) is nn.Conv2d
    torch.testing.assert_close(ours(image()), theirs(image()))


def test_nothing_is_folded_into_a_forward_of_the_users():
    model = TORCH.Sequential(Named(4, 6, 3), TORCH.ReLU()).eval()
    expected = model(image())
    nn.convert(model, report=False, fold=True)
    torch.testing.assert_close(model(image()), expected)
    (layer,) = nn.survey(model, fold=True).layers
    assert layer.unfolded == "its class has a forward of its own"


class Simple(TORCH.Conv2d):
    """Like torchvision's Conv3DSimple: only the constructor is its own."""

    def __init__(self, channels):
        super().__init__(4, channels, 3, padding=1, bias=False)

    @staticmethod
    def get_downsample_stride(stride):
        return stride, stride


def test_subclasses_without_a_forward_are_folded():
    model = TORCH.Sequential(Simple(6), TORCH.BatchNorm2d(6), TORCH.ReLU())
    model = settled(model).eval()
    with torch.no_grad():
        expected = model(image())
        nn.convert(model, report=False, fold=True)
        torch.testing.assert_close(model(image()), expected)
    (layer,) = nn.survey(model, fold=True).layers
    assert layer.folded == ("BatchNorm2d", "ReLU")
    assert type(nn.revert(model)[0]) is Simple


def test_a_report_counts_calls_by_module():
    model = TORCH.Sequential(Named(4, 6, 3), TORCH.Conv2d(6, 8, 3), TORCH.Conv2d(8, 4, 1))
    nn.convert(model, report=False)
    nn.revert(model[2])
    assert nn.report(model).modules[0].outcome == "not called"
    for _ in range(3):
        model(image())
    report = nn.report(model)
    assert [(each.name, each.ours, each.torch) for each in report.modules] == [
        ("0", 0, 3),
        ("1", 0, 3),
    ]
    ((refusal, count),) = report.modules[1].refusals
    assert count == 3
    assert "x is on cpu" in refusal
    assert report.left == ("2",)
    lines = str(report).splitlines()
    assert lines[1].startswith("1  Conv2d(6, 8, kernel_size=(3, 3), stride=(1, 1), fallback=torch)")
    assert "3 by torch: conv2d: needs an NVIDIA GPU of sm_90 or newer" in lines[1]
    assert lines[2] == (
        "6 calls of 2 converted convolutions: 0 by our kernels, 6 by torch; not converted: 1"
    )
    with pytest.raises(TypeError, match=r"report: expected a torch\.nn\.Module, got int"):
        nn.report(3)


def test_times_of_calls_are_those_of_events(monkeypatch):
    clock = itertools.count()

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = next(clock)

        def elapsed_time(self, end):
            return float(end.at - self.at)

    model = TORCH.Sequential(TORCH.Conv2d(4, 6, 3), TORCH.Conv2d(6, 8, 3))
    nn.convert(model, report=False)
    with pytest.raises(UnsupportedError, match="report: calls are timed by CUDA events, and torch"):
        nn.report(model, run=lambda: model(image()))
    assert nn.report(model).modules[0].outcome == "not called"
    for name, value in (
        ("is_available", lambda: True),
        ("Event", Event),
        ("is_current_stream_capturing", lambda: False),
        ("synchronize", lambda: None),
    ):
        monkeypatch.setattr(torch.cuda, name, value)
    report = nn.report(model, run=lambda: model(image()).sum().backward())
    # Nothing else records, so a call's two events are neighbours.
    assert [(each.forward_ms, each.backward_ms) for each in report.modules] == [(1, 1), (1, 1)]
    assert [each.dgrad.torch for each in report.modules] == [0, 1]
    assert report.modules[0].outcome.startswith("1.000 ms, backward 1.000 ms; 1 by torch: ")
    model(image())
    assert nn.report(model).modules[0].forward_ms == 0
    assert next(clock) == 8


def test_the_first_call_that_torch_takes_is_logged_where_there_is_a_gpu(monkeypatch, caplog):
    model = nn.convert(TORCH.Sequential(TORCH.Conv2d(4, 6, 3)), report=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with caplog.at_level(logging.WARNING, logger="triton_ext.nn"):
        model(image())
        model(image())
    (record,) = caplog.records
    assert record.getMessage().startswith("0 runs torch's convolution: conv2d: needs an NVIDIA GPU")


def test_accelerate_redirects_functions_and_ends_with_the_block():
    x, weight = image(), torch.randn(6, 4, 3, 3)
    expected = F.conv2d(x, weight, stride=2), F.conv_transpose2d(x, weight.transpose(0, 1))
    with nn.accelerate() as redirect:
        got = (
            F.conv2d(input=x, weight=weight, stride=2),
            F.conv_transpose2d(x, weight.transpose(0, 1)),
        )
        with pytest.raises(RuntimeError, match="Given groups=1"):
            F.conv2d(x, torch.randn(6, 5, 3, 3))
    torch.testing.assert_close(got, expected)
    assert (redirect.calls.ours, redirect.calls.torch) == (0, 3)
    F.conv2d(x, weight)
    assert redirect.calls.torch == 3
    with pytest.raises(ValueError, match='expected "error" or "torch"'):
        nn.accelerate("no")


def test_convert_says_when_no_call_can_run_a_kernel(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    nn.convert(TORCH.Sequential(TORCH.Conv2d(4, 6, 3)))
    assert capsys.readouterr().out.endswith(
        "no GPU of compute capability 9.0 or newer here: every call will run torch\n"
    )


class Asking(TORCH.Module):
    """Like timm's ConvNormAct: asks for a module that may be None."""

    def __init__(self, name="aa"):
        super().__init__()
        self.conv, self.bn, self.aa = Simple(6), TORCH.BatchNorm2d(6), None
        self.name = name

    def forward(self, x):
        x = self.bn(self.conv(x))
        aa = getattr(self, "aa", None)
        return x if aa is None else aa(x)


class AskingForAName(Asking):
    def forward(self, x):
        x = self.bn(self.conv(x))
        return x if getattr(self, self.name, None) is None else x + 1


@torch.no_grad()
def test_forwards_that_ask_for_an_attribute_by_its_name_are_folded():
    model = settled(Asking()).eval()
    expected = model(image())
    nn.convert(model, report=False, fold=True)
    (layer,) = nn.survey(model, fold=True).layers
    assert layer.folded == ("BatchNorm2d",)
    torch.testing.assert_close(model(image()), expected)
    model.aa = TORCH.Tanh()  # seen at the next call
    torch.testing.assert_close(model(image()), expected.tanh())
    (layer,) = nn.survey(settled(AskingForAName()).eval(), fold=True).layers
    assert layer.unfolded == (
        "not recorded: AskingForAName.forward uses getattr, which is not known to be recorded"
    )


def test_weights_that_are_computed_at_every_call_are_not_folded():
    conv = TORCH.utils.parametrizations.weight_norm(Simple(6))
    model = settled(TORCH.Sequential(conv, TORCH.BatchNorm2d(6))).eval()
    with torch.no_grad():
        expected = model(image())
        nn.convert(model, report=False, fold=True)
        torch.testing.assert_close(model(image()), expected)
    (layer,) = nn.survey(model, fold=True).layers
    assert not layer.folded


# --- norms of timm that apply an activation -----------------------------------------------------


def block(act):
    torch.manual_seed(0)
    return settled(NormActBlock(act))


def settled(model):
    for module in model.modules():
        if isinstance(module, TORCH.BatchNorm2d):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.5, 1.5)
    return model


def features():
    return torch.randn(2, 6, 5, 8, generator=torch.Generator().manual_seed(1)).movedim(-1, 1)


@pytest.mark.parametrize("act", [TORCH.SiLU(), TORCH.ReLU(inplace=True), TORCH.Hardswish()])
@torch.no_grad()
def test_norms_with_activations_are_folded(act):
    model = block(act).eval()
    expected = model(features())
    nn.convert(model, report=False, fold=True)
    torch.testing.assert_close(model(features()), expected)
    found = {layer.name: layer.folded for layer in nn.survey(model, fold=True).layers}
    assert found == {"conv_exp": ("BatchNormAct2d",), "conv_pwl": ("BatchNormAct2d", "+")}
    nn.revert(model)
    torch.testing.assert_close(model(features()), expected)


@torch.no_grad()
def test_what_changes_in_a_norm_with_an_activation_is_seen():
    model = nn.convert(block(TORCH.SiLU()).eval(), report=False, fold=True)
    plain = block(TORCH.SiLU()).eval()
    changes = (
        ("bn1", "act", TORCH.Tanh()),
        ("bn2", "act", TORCH.ReLU()),
        ("bn1", "act", TORCH.Hardswish()),
        ("bn2", "drop", TORCH.AlphaDropout()),
        ("bn1", "drop", TORCH.ReLU()),
    )
    for norm, name, module in changes:
        for each in (model, plain):
            setattr(each.get_submodule(norm), name, copy.deepcopy(module).eval())
        torch.testing.assert_close(model(features()), plain(features()))


class GroupNormAct(TORCH.GroupNorm):
    """Like timm's, under timm's name: no statistics to fold."""

    def __init__(self):
        super().__init__(2, 16)
        self.drop, self.act = TORCH.Identity(), TORCH.Identity()


GroupNormAct.__module__ = "timm.layers.norm_act"


@torch.no_grad()
def test_a_norm_without_statistics_in_place_of_a_folded_one_is_called():
    model = nn.convert(block(TORCH.SiLU()).eval(), report=False, fold=True)
    plain = block(TORCH.SiLU()).eval()
    for each in (model, plain):
        each.bn1 = GroupNormAct().eval()
    torch.testing.assert_close(model(features()), plain(features()))


def test_norms_with_activations_are_converted_for_training():
    ours, theirs = block(TORCH.SiLU()), block(TORCH.SiLU())
    nn.convert(ours, report=False, norms=True)
    assert type(ours.bn1).__bases__ == (BatchNormAct2d, nn.BatchNorm2d)
    for _ in range(2):
        torch.testing.assert_close(ours(features()), theirs(features()))
    assert dict(ours.named_buffers()).keys() == dict(theirs.named_buffers()).keys()
    torch.testing.assert_close(ours.bn1.running_mean, theirs.bn1.running_mean)
    assert ours.bn1.num_batches_tracked == 2
    nn.revert(ours)
    assert type(ours.bn1) is BatchNormAct2d
    torch.testing.assert_close(ours(features()), theirs(features()))


def test_timms_own_classes():
    timm = pytest.importorskip("timm", reason="timm is not installed")
    model = settled(timm.create_model("efficientnetv2_rw_t", num_classes=10)).eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = model(x)
        nn.convert(model, report=False, fold=True, norms=True)
        torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-3)
    found = nn.survey(model, fold=True, norms=True)
    assert not [layer.name for layer in found.norms if layer.outcome.startswith("left")]


# --- norms over channels ------------------------------------------------------------------------


class Normed(TORCH.Module):
    def __init__(self, norm):
        super().__init__()
        self.conv, self.norm, self.act = TORCH.Conv2d(4, 6, 1), norm, TORCH.SiLU()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


@pytest.mark.parametrize("make", [LayerNorm2d, RmsNorm2d, WanRMS_norm])
def test_norms_over_channels_are_converted_with_what_is_behind_them(make):
    model = Normed(make(6))
    expected = model(image())
    nn.convert(model, report=False, norms=True)
    (layer,) = nn.survey(model, norms=True).norms
    assert (layer.folded, layer.shape) == (("SiLU",), "6")
    assert isinstance(model.norm, make)
    torch.testing.assert_close(model(image()), expected)  # by torch, on a CPU
    other = copy.deepcopy(model)
    assert type(other.norm) is type(model.norm)
    torch.testing.assert_close(other(image()), expected)
    nn.revert(model)
    assert type(model.norm) is make
    torch.testing.assert_close(model(image()), expected)


def test_norms_over_channels_that_are_left():
    model = TORCH.Sequential(
        WanRMS_norm(6, channel_first=False), LayerNorm2d((4, 6)), LayerNorm2d(6).double()
    )
    (layer,) = nn.survey(model, norms=True).norms
    assert (layer.name, layer.outcome) == ("2", "left: dtype float64 is not supported")
