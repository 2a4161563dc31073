"""Folded models: what is found, that outputs are the model's own, and who may not notice.

With ``fallback="torch"`` on the CPU the epilogue is torch's, in fp32, so outputs agree closely;
what the kernels give is tested in ``interpreter_nn.py`` and ``test_nn_gpu.py``.
"""

from __future__ import annotations

import copy
import io
import pickle

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")

import torch
from torch.nn import functional as F
from triton_ext import nn
from triton_ext.nn import folding

TORCH = torch.nn


def settled(model: torch.nn.Module) -> torch.nn.Module:
    """In eval mode, with norms that do something."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, TORCH.modules.batchnorm._BatchNorm):
            for tensor, low, high in (
                (module.weight, 0.5, 1.5),
                (module.bias, -1, 1),
                (module.running_mean, -1, 1),
                (module.running_var, 0.5, 2),
            ):
                if tensor is not None:
                    tensor.data.uniform_(low, high)
    return model.eval()


def image(channels: int = 4, dims: int = 2) -> torch.Tensor:
    x = torch.randn(2, channels, *(7, 6, 5)[:dims])
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def conv(channels: int = 4, **how) -> TORCH.Conv2d:
    return TORCH.Conv2d(4, channels, 3, padding=1, **how)


def parts(model: torch.nn.Module) -> dict[str, tuple[str, ...]]:
    return {layer.name: layer.folded for layer in nn.survey(model, fold=True).layers}


def reason(model: torch.nn.Module, name: str) -> str:
    (found,) = [x for x in nn.survey(model, fold=True).layers if x.name == name]
    assert not found.folded
    return found.unfolded


@pytest.fixture
def only_kernels(monkeypatch):
    """Makes a folded place an error that is not one call."""

    def refuse(*_):
        raise AssertionError("the modules were called one by one")

    monkeypatch.setattr(folding, "_one_by_one", refuse)


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


# --- blocks of many styles ----------------------------------------------------------------------


class Basic(TORCH.Module):
    """A residual block with modules, a shared activation, ``+=``."""

    def __init__(self, shortcut: bool = False, inplace: bool = True) -> None:
        super().__init__()
        self.conv1 = conv(bias=False)
        self.bn1 = TORCH.BatchNorm2d(4)
        self.relu = TORCH.ReLU(inplace=inplace)
        self.conv2 = conv()
        self.bn2 = TORCH.BatchNorm2d(4)
        self.downsample = None
        if shortcut:
            self.downsample = TORCH.Sequential(TORCH.Conv2d(4, 4, 1), TORCH.BatchNorm2d(4))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Functional(TORCH.Module):
    """The same with functions and ``+``, both operands convolutions of this forward."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = TORCH.ModuleList([conv(), conv(), TORCH.Conv2d(4, 4, 1)])
        self.norms = TORCH.ModuleList([TORCH.BatchNorm2d(4, affine=i != 1) for i in range(3)])

    def forward(self, x):
        out = F.relu(self.norms[0](self.convs[0](x)), inplace=True)
        out = self.norms[1](self.convs[1](out))
        return torch.relu(self.norms[2](self.convs[2](x)) + out)


class PreActivated(TORCH.Module):
    """A block of a UNet: the norm and the activation stand in front, the sum at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = TORCH.GroupNorm(2, 4), TORCH.GroupNorm(2, 4)
        self.conv1, self.conv2 = conv(), conv()

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return x + h


class Methods(TORCH.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = conv(), conv(), conv()

    def forward(self, x):
        y = self.first(x).relu_()
        y = F.gelu(self.second(y), approximate="tanh")
        return self.third(y).add(x).tanh()


class Aliases(TORCH.Module):
    """What is written to in place has a second name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()

    def forward(self, x):
        y = x * 2
        other = y
        y += 1
        y *= 3
        y -= x
        z = torch.relu(self.conv(y))
        y /= 2
        return z, other


BLOCKS = [
    (Aliases(), {"conv": ("relu",)}),
    (Basic(), {"conv1": ("BatchNorm2d", "ReLU"), "conv2": ("BatchNorm2d", "+=", "ReLU")}),
    (
        Basic(shortcut=True),
        {
            "conv1": ("BatchNorm2d", "ReLU"),
            "conv2": ("BatchNorm2d", "+=", "ReLU"),
            "downsample.0": ("BatchNorm2d",),
        },
    ),
    (
        Functional(),
        {
            "convs.0": ("BatchNorm2d", "relu"),
            "convs.1": ("BatchNorm2d",),
            "convs.2": ("BatchNorm2d", "+", "relu"),
        },
    ),
    (PreActivated(), {"conv1": (), "conv2": ("+",)}),
    (Methods(), {"first": ("relu",), "second": ("gelu_tanh",), "third": ("+", "tanh")}),
    (
        TORCH.Sequential(conv(), TORCH.BatchNorm2d(4), TORCH.Identity(), TORCH.SiLU()),
        {"0": ("BatchNorm2d", "SiLU")},
    ),
    (
        TORCH.Sequential(conv(), TORCH.GELU("tanh"), conv(8, groups=2), TORCH.GELU(), TORCH.Tanh()),
        {"0": ("GELU",), "2": ("GELU",)},
    ),
    (
        TORCH.Sequential(Basic(True), TORCH.Sequential(conv(), TORCH.Tanh())),
        {
            "0.conv1": ("BatchNorm2d", "ReLU"),
            "0.conv2": ("BatchNorm2d", "+=", "ReLU"),
            "0.downsample.0": ("BatchNorm2d",),
            "1.0": ("Tanh",),
        },
    ),
    (
        TORCH.Sequential(conv(padding_mode="reflect", dilation=1), TORCH.BatchNorm2d(4)),
        {"0": ("BatchNorm2d",)},
    ),
]


@pytest.mark.parametrize("index", range(len(BLOCKS)))
@torch.no_grad()
def test_a_block_is_folded_and_gives_what_it_gave(index, only_kernels):
    block, expected = copy.deepcopy(BLOCKS[index])
    settled(block)
    x = image()
    given = x.clone()
    before = block(x)
    assert parts(block) == expected
    state = {key: (value, value.clone()) for key, value in block.state_dict(keep_vars=True).items()}
    modules = dict(block.named_modules())
    kinds = {name: type(module) for name, module in modules.items()}
    text = repr(block)
    nn.convert(block, fold=True, report=False)
    assert parts(block) == expected
    for _ in range(2):  # then with what was kept
        for one, other in zip(block(x), before, strict=True):
            close(one, other)
    assert torch.equal(x, given)
    assert dict(block.named_modules()) == modules
    nn.revert(block)
    assert {name: type(module) for name, module in block.named_modules()} == kinds
    assert dict(block.named_modules()) == modules
    assert repr(block) == text
    for key, (tensor, value) in state.items():
        now = block.state_dict(keep_vars=True)[key]
        assert now is tensor
        assert now.stride() == value.stride()
        assert torch.equal(now, value)
    assert all("triton" not in key for m in modules.values() for key in vars(m))
    for one, other in zip(block(x), before, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dims", [1, 2, 3])
@torch.no_grad()
def test_every_rank(dims, only_kernels):
    layers = [getattr(TORCH, f"Conv{dims}d")(4, 6, 3), getattr(TORCH, f"BatchNorm{dims}d")(6)]
    model = settled(TORCH.Sequential(*layers, TORCH.ReLU()))
    x = image(dims=dims)
    before = model(x)
    assert parts(model) == {"0": (f"BatchNorm{dims}d", "ReLU")}
    close(nn.convert(model, fold=True, report=False)(x), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_it_is_closer_to_the_exact_output_than_torchs(dtype, only_kernels):
    model = settled(TORCH.Sequential(Basic(True), Basic())).to(dtype)
    x = image().to(dtype)
    exact, theirs = copy.deepcopy(model).double()(x.double()), model(x).double()
    ours = nn.convert(model, fold=True, report=False)(x)
    assert ours.dtype == dtype
    assert (ours.double() - exact).norm() <= (theirs - exact).norm()


@torch.no_grad()
def test_autocast_does_not_round_the_bias(only_kernels):
    model = settled(TORCH.Sequential(conv(), TORCH.BatchNorm2d(4)))
    model[1].running_mean += 300  # what is subtracted has to be as exact as what it came from
    model[0].bias += 300
    x = image()
    exact = copy.deepcopy(model).double()(x.double())
    nn.convert(model, fold=True, report=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
    assert y.dtype == torch.bfloat16
    assert (y.double() - exact).abs().max() < 0.1  # bf16's step at 300 is 2


# --- what is left -------------------------------------------------------------------------------


class Hazard(TORCH.Module):
    """A convolution and an activation behind it; subclasses do more."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.scale, self.seen = conv(), TORCH.ReLU(), 2.0, []


class Branches(Hazard):
    def forward(self, x):
        return self.act(self.conv(x)) if x.sum() > 0 else x


class Remembers(Hazard):
    def forward(self, x):
        self.last = self.act(self.conv(x))
        return self.last


class Collects(Hazard):
    def forward(self, x):
        self.keep(x)
        return self.act(self.conv(x))

    def keep(self, x):
        self.seen.append(x)


class Scoped(Hazard):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return self.act(self.conv(x))


class Decorated(Hazard):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x):
        return self.act(self.conv(x))


class Asks(Hazard):
    def forward(self, x):
        return self.act(self.conv(x if isinstance(x, torch.Tensor) else x[0]))


class Required(Hazard):
    def forward(self, x, *, scale):
        return self.act(self.conv(x)) * scale


class Constant(Hazard):
    def forward(self, x):
        return self.act(self.conv(x)) + torch.ones(1)


class Random(Hazard):
    def forward(self, x):
        return self.act(self.conv(x)) * torch.rand(1)


class Tries(Hazard):
    def forward(self, x):
        try:
            return self.act(self.conv(x))
        except ValueError:
            return x


class Names(Hazard):
    def forward(self, x):
        return self.act(self.conv(input=x))


class Twice(Hazard):
    def forward(self, x):
        y = self.conv(x)
        return self.act(y) + y


class Writes(Hazard):
    """What stands between the convolution and the sum writes to the convolution's input."""

    def forward(self, x):
        y = self.conv(x)
        x.mul_(2)
        return self.act(y + x)


class Adds(Hazard):
    """The sum is written to the other operand, which is returned as well."""

    def forward(self, x):
        other = x * 1
        y = self.conv(x)
        other += y
        return other + 1, other


LEFT = {
    Branches: "does not trace: symbolically traced variables cannot be used as inputs to control",
    Remembers: "not recorded: Remembers.forward assigns to an attribute",
    Collects: "not recorded: Collects.keep reads the attribute append of an unknown value",
    Scoped: "not recorded: Scoped.forward has a with block",
    Decorated: "its module's forward is decorated",
    Asks: "not recorded: Asks.forward uses isinstance, which is not known to be recorded",
    Constant: "not recorded: Constant.forward uses torch.ones, which",
    Random: "not recorded: Random.forward uses torch.rand, which is not known",
    Tries: "not recorded: Tries.forward catches exceptions",
    Names: "it is called with keyword arguments",
    Twice: "its output is used more than once",
    Adds: "behind it: iadd",
    Writes: "behind it: add",
}


@pytest.mark.parametrize("kind", LEFT, ids=lambda kind: kind.__name__)
@torch.no_grad()
def test_a_forward_that_is_left_and_why(kind):
    model = settled(kind())
    assert LEFT[kind] in reason(model, "conv")
    x = image()
    torch.manual_seed(1)
    before = model(x.clone())
    nn.convert(model, fold=True, report=False)
    assert type(model) is kind
    torch.manual_seed(1)
    after = model(x.clone())
    for one, other in zip(before, after, strict=True):
        close(one, other)
    assert not any(isinstance(tensor, torch.fx.Proxy) for tensor in model.seen)


def test_a_keyword_argument_without_a_default():
    model, x = settled(Required()), image()
    assert reason(model, "conv") == "its module's forward has keyword arguments without a default"
    expected = model(x, scale=2)
    nn.convert(model, fold=True, report=False)
    close(model(x, scale=2), expected)


class Optional(Hazard):
    def forward(self, x, more=None, *others, power=1, **rest):
        y = self.conv(x)
        y = y if more is None else y + more
        for other in others:
            y = y + other
        y = self.act(y) if power == 1 else self.act(y) ** power
        return y * 2 if len(rest) else y


def test_optional_arguments(monkeypatch):
    model = settled(Optional())
    x, more = image(), torch.full((1,), 0.5)
    calls = [
        ((x,), {}, True),
        ((x, None), {}, True),
        ((), {"x": x}, True),
        ((), {"power": 1, "more": None, "x": x}, True),
        ((x, more), {}, False),
        ((x,), {"more": more}, False),
        ((x, None, more), {}, False),
        ((x,), {"power": 2}, False),
        ((x,), {"power": True}, False),
        ((x,), {"other": None}, False),
    ]
    with torch.no_grad():
        expected = [model(*arguments, **keywords) for arguments, keywords, _ in calls]
        nn.convert(model, fold=True, report=False)
        asked, may_fold = [], folding._may_fold
        monkeypatch.setattr(folding, "_may_fold", lambda *a: asked.append(a) or may_fold(*a))
        for (arguments, keywords, is_folded), right in zip(calls, expected, strict=True):
            asked.clear()
            close(model(*arguments, **keywords), right)
            assert bool(asked) is is_folded
    for arguments, keywords in (((), {}), ((x, None), {"more": None}), ((), {"more": None})):
        with pytest.raises(TypeError, match=r"Optional\.forward\(\) "):
            model(*arguments, **keywords)


class Shortcut(TORCH.Module):
    """The sum of two convolutions, the later one of which gets it."""

    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.sk = conv(), conv(), conv()

    def forward(self, x):
        return self.c2(self.c1(x)) + self.sk(x)


@pytest.mark.parametrize("norms", [False, True])
def test_reasons_tell_of_the_program_not_of_its_folded_form(norms):
    found = nn.survey(Shortcut().eval(), fold=True, norms=norms).layers
    assert {layer.name: layer.outcome for layer in found} == {
        "c1": "converted alone: behind it: Conv2d",
        "c2": "converted alone: the sum behind it is folded into sk",
        "sk": "converted with +",
    }


def test_a_shortcut_that_may_write_to_the_input_keeps_the_sum_out():
    class Preceded(Basic):
        pass

    model = settled(Preceded(shortcut=True))
    model.downsample = TORCH.Sequential(TORCH.ReLU(inplace=True), TORCH.Conv2d(4, 4, 1)).eval()
    assert parts(model)["conv2"] == ("BatchNorm2d",)
    model.downsample[0].inplace = False
    assert parts(model)["conv2"] == ("BatchNorm2d", "+=", "ReLU")


def test_norms_and_modules_that_are_left():
    class Norm(TORCH.BatchNorm2d):
        pass

    model = TORCH.Sequential(
        TORCH.Sequential(conv(), Norm(4)),
        TORCH.Sequential(conv(), TORCH.BatchNorm2d(4, track_running_stats=False)),
        TORCH.Sequential(TORCH.ConvTranspose2d(4, 4, 3), TORCH.ReLU()),
        TORCH.Sequential(conv(), TORCH.ReLU()),
        TORCH.Sequential(conv(), TORCH.ReLU()),
        TORCH.Sequential(conv(), TORCH.LeakyReLU()),
        conv(),
    ).eval()
    model[3][0].register_forward_hook(lambda *_: None)
    model[4][1].register_forward_pre_hook(lambda *_: None)
    assert {name: reason(model, name) for name in parts(model)} == {
        "0.0": "behind it: Norm",
        "1.0": "behind it: BatchNorm2d",
        "2.0": "transposed convolutions have no epilogue",
        "3.0": "it has hooks",
        "4.0": "behind it: ReLU",
        "5.0": "behind it: LeakyReLU",
        "6": "nothing is behind it in its module",
    }


def test_traced_and_scripted_modules_are_left():
    traced = torch.fx.symbolic_trace(settled(TORCH.Sequential(conv(), TORCH.ReLU())))
    assert reason(traced, "0") == "its module is a GraphModule"


def test_classes_with_ideas_of_their_own_are_left():
    class Registered(TORCH.Sequential):
        found = []  # noqa: RUF012 - filled by subclasses

        def __init_subclass__(cls):
            Registered.found.append(cls)

    class Copied(TORCH.Sequential):
        def __deepcopy__(self, memo):
            return self

    class Made(type):
        pass

    class WithMaker(TORCH.Sequential, metaclass=Made):
        pass

    for kind, why in (
        (Registered, "its module's class has an __init_subclass__"),
        (Copied, "its module has a __deepcopy__ of its own"),
        (WithMaker, "its module's class is made by Made"),
    ):
        model = kind(conv(), TORCH.ReLU()).eval()
        assert reason(model, "0") == why
        assert type(nn.convert(model, fold=True, report=False)) is kind
    assert not Registered.found


def test_training_mode_is_refused_by_name():
    model = settled(Basic())
    model.bn2.train()
    with pytest.raises(ValueError, match=r"but bn2 \(BatchNorm2d\) is in training mode; call"):
        nn.convert(model, fold=True)
    with pytest.raises(ValueError, match="fold=True is for inference, but Basic is in training"):
        nn.survey(model.train(), fold=True)
    assert type(model.conv1) is TORCH.Conv2d


# --- what happens afterwards --------------------------------------------------------------------


def folded(model=None):
    model = settled(Basic(True) if model is None else model)
    return nn.convert(copy.deepcopy(model), fold=True, report=False), model


def kernels(monkeypatch) -> list[int]:
    """Counts the places that are one call."""
    found = []
    convolve = nn.Conv2d.convolve

    def counted(self, *arguments, **epilogue):
        found.append(bool(epilogue))
        return convolve(self, *arguments, **epilogue)

    monkeypatch.setattr(nn.Conv2d, "convolve", counted)
    return found


def test_derivatives_are_those_of_the_modules(monkeypatch):
    ours, theirs = folded()
    found = kernels(monkeypatch)
    gradients = []
    for model in (ours, theirs):
        x = image()
        x = torch.ones_like(x).requires_grad_()
        model(x).square().sum().backward()
        gradients.append([x.grad, *(p.grad for p in model.parameters())])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert found == [False] * 3
    x = image()
    with torch.inference_mode():
        close(ours(x), theirs(x))
    assert found[3:] == [True] * 3
    for parameter in ours.parameters():
        parameter.requires_grad_(False)
    close(ours(x), theirs(x))  # nothing asks for a derivative
    assert found[6:] == [True] * 3


@torch.no_grad()
def test_training_mode_later(monkeypatch):
    ours, theirs = folded()
    x = image()
    close(ours.train()(x), theirs.train()(x))
    for one, other in zip(ours.buffers(), theirs.buffers(), strict=True):
        close(one, other)
    close(ours.eval()(x), theirs.eval()(x))
    # One norm alone.
    ours.bn1.train()
    theirs.bn1.train()
    found = kernels(monkeypatch)
    close(ours(x), theirs(x))
    assert found.count(True) == 2
    close(ours.bn1.running_mean, theirs.bn1.running_mean)


@pytest.mark.parametrize("name", ["conv1", "bn1", "relu", "conv2", "bn2"])
@torch.no_grad()
def test_hooks_that_come_later_are_called(name):
    ours, theirs = folded()
    x = image()
    calls = []
    for model in (ours, theirs):
        getattr(model, name).register_forward_hook(
            lambda module, _, y: calls.append((type(module).__name__, y.clone()))
        )
        model(x)
    half = len(calls) // 2
    assert [kind for kind, _ in calls[:half]] == [kind for kind, _ in calls[half:]]
    for (_, one), (_, other) in zip(calls[:half], calls[half:], strict=True):
        close(one, other)


@pytest.mark.parametrize("name", ["conv1", "bn1", "relu"])
@torch.no_grad()
def test_forwards_that_are_replaced_later(name):
    ours, theirs = folded()
    x = image()
    for model in (ours, theirs):
        module = getattr(model, name)
        module.forward = lambda x, module=module: type(module).forward(module, x) * 2
    close(ours(x), theirs(x))


@torch.no_grad()
def test_other_modules_in_their_place():
    ours, theirs = folded()
    x = image()
    for model in (ours, theirs):
        model.bn1 = TORCH.Identity()
        model.relu = TORCH.LeakyReLU(0.5)
    close(ours(x), theirs(x))


class Switched(TORCH.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.after = conv(), TORCH.ReLU(), None
        self.use_residual, self.factor = True, 2.0

    def forward(self, x):
        y = self.conv(x)
        if self.use_residual:
            y = y + x
        y = self.relu(y) * self.factor
        return y if self.after is None else self.after(y)


@torch.no_grad()
def test_attributes_that_change_later(monkeypatch):
    ours, theirs = folded(Switched())
    x = image()
    found = kernels(monkeypatch)
    for name, value in (
        ("factor", 3.0),
        ("factor", 2.0),
        ("use_residual", False),
        ("use_residual", True),
        ("after", TORCH.Tanh()),
        ("after", None),
    ):
        for model in (ours, theirs):
            setattr(model, name, value)
        close(ours(x), theirs(x))
    assert found == [False, True, False, True, False, False]
    ours, theirs = folded()
    for model in (ours, theirs):
        model.downsample = None
    close(ours(x), theirs(x))


class Timed(TORCH.Module):
    """A convolution that is told the time behind it, as in diffusion models."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.conv = getattr(TORCH, f"Conv{dims}d")(4, 6, 3, padding=1)
        self.norm = getattr(TORCH, f"BatchNorm{dims}d")(6)
        self.shift = TORCH.Linear(5, 6)
        self.dims = dims

    def forward(self, x, time):
        if self.dims == 1:
            return F.silu(self.norm(self.conv(x)) + self.shift(time)[:, :, None])
        if self.dims == 2:
            return F.silu(self.shift(time)[:, :, None, None] + self.norm(self.conv(x)))
        y = self.norm(self.conv(x))
        y += self.shift(time)[:, :, None, None, None]
        return F.silu(y)


@pytest.mark.parametrize("dims", [1, 2, 3])
@torch.no_grad()
def test_a_number_per_image_and_channel_is_added_in_the_kernel(dims, only_kernels):
    model = settled(Timed(dims))
    x, time = image(dims=dims), torch.randn(2, 5)
    before = model(x, time)
    spread = f"[:, :{', None' * dims}]"
    adds = ("+=" if dims == 3 else "+") + spread
    assert parts(model) == {"conv": (f"BatchNorm{dims}d", adds, "silu")}
    assert adds in str(nn.survey(model, fold=True))
    close(nn.convert(model, fold=True, report=False)(x, time), before)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(model(x, time).float(), before, rtol=0.05, atol=0.05)


def test_only_an_index_that_adds_dimensions_is_told():
    class Indexes(TORCH.Module):
        def __init__(self, take) -> None:
            super().__init__()
            self.conv, self.take = conv(), take

        def forward(self, x, other):
            return self.conv(x) + self.take(other)

    takes = (lambda t: t[0], lambda t: t[:, :, 0, 0], lambda t: t[:, None], lambda t: t[:, :])
    for take in takes:
        assert parts(Indexes(take).eval())["conv"] == ("+",)


@torch.no_grad()
def test_residuals_of_another_shape_or_dtype():
    class Sums(TORCH.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv()

        def forward(self, x, other):
            return self.conv(x) + other

    ours, theirs = folded(Sums())
    x = image()
    others = (
        torch.randn_like(x),
        torch.randn(4, 1, 1),
        torch.randn(1, 4, 1, 1),
        torch.randn(2, 1, 1, 1),
        torch.randn(2, 4, 1, 6),
        torch.randn(2, 2, 4, 7, 6),
        torch.ones(x.shape, dtype=torch.float64),
        torch.ones(x.shape, dtype=torch.int64),
    )
    for other in others:
        one, two = ours(x, other), theirs(x, other)
        assert one.dtype == two.dtype
        close(one, two)
    close(ours(x, other=others[0]), theirs(x, others[0]))
    close(ours(x, 2.0), theirs(x, 2.0))
    with pytest.raises(TypeError):
        ours(x, None)


@torch.no_grad()
def test_other_inputs():
    ours, theirs = folded()
    for x in (image().contiguous(), image()[:0], image()[:, :, :3]):
        close(ours(x), theirs(x))
    with pytest.raises(ValueError, match=r"x has 5 channels, weight .* expects 4"):
        ours(torch.randn(2, 5, 6, 6))
    double = image().double()
    close(ours.double()(double), theirs.double()(double))


@torch.no_grad()
def test_copies_pickles_and_slices(tmp_path):
    ours, theirs = folded(TORCH.Sequential(conv(), TORCH.BatchNorm2d(4), TORCH.ReLU(), Basic()))
    x = image()
    expected = theirs(x)
    ours(x)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    for other in (
        copy.deepcopy(ours),
        pickle.loads(pickle.dumps(ours)),
        torch.load(file, weights_only=False),
    ):
        assert parts(other) == parts(ours)
        close(other(x), expected)
        other[1].bias += 1  # its own norm, and its own kept vectors
        assert not torch.equal(other(x), expected)
        close(ours(x), expected)
        assert type(nn.revert(other)) is TORCH.Sequential
    close(ours[:2](x), theirs[:2](x))
    assert type(ours[1:]) is TORCH.Sequential
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())


def test_a_second_time():
    ours, _ = folded()
    kind = type(ours)
    nn.convert(ours, fold=True, report=False)
    assert type(ours) is kind
    before = settled(Basic())
    nn.convert(before, report=False)
    nn.convert(before, fold=True, report=False)
    assert parts(before)["conv2"] == ("BatchNorm2d", "+=", "ReLU")
    nn.revert(nn.revert(before))
    assert type(before) is Basic


def test_blocks_of_a_kind_share_what_is_compiled():
    model = settled(TORCH.Sequential(Basic(), Basic(), Basic(True)))
    nn.convert(model, fold=True, report=False)
    assert type(model[0]) is type(model[1])
    assert type(model[0]) is not type(model[2])


@torch.no_grad()
def test_compiles_into_one_graph():
    torch._dynamo.reset()
    ours, theirs = folded(TORCH.Sequential(Basic(True), Basic()))
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    x = image()
    close(compiled(x), theirs(x))
    for model in (ours, theirs):
        model[0].bn1.weight.mul_(3)  # the graph reads the norms themselves
        model[0].bn2.running_mean.data.add_(1)
    close(compiled(x), theirs(x))


@torch.no_grad()
def test_transforms_and_modes_of_torch():
    ours, theirs = folded()
    x = image()
    for mode in (torch.inference_mode(), torch.no_grad()):
        with mode:
            close(ours(x), theirs(x))
    batch = torch.stack([x, 2 * x])
    close(torch.vmap(ours)(batch), torch.vmap(theirs)(batch))
    with torch.inference_mode():
        inner = copy.deepcopy(theirs)  # its tensors count no versions
        inner = nn.convert(inner, fold=True, report=False)
        inner.bn1.bias += 1
        theirs.bn1.bias.data += 1
        close(inner(x), theirs(x))
