"""BatchNorm and GroupNorm of converted models, and what is computed with them.

On the CPU no kernel takes an input, so converted models give torch's own results.  ``kernels`` puts
functions of torch in the kernels' place, which note how they were called; the kernels run in
``interpreter_nn.py`` and ``test_nn_gpu.py``.
"""

from __future__ import annotations

import copy
import io
import pickle
import types

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")

import torch
from recorded_graphs import recording
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from triton_ext import nn
from triton_ext.nn import norms
from triton_ext.ops.core.descriptors import channels_last
from triton_ext.ops.norms.checks import IS_OPERATOR

TORCH = torch.nn
ACTIVATIONS = {
    "identity": lambda y: y,
    "relu": torch.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
    "tanh": torch.tanh,
}


@pytest.fixture
def kernels(monkeypatch):
    """Notes calls of kernels, such as ``batch + relu`` and ``group silu``; torch computes them."""
    calls = []

    def norm_problem(kind, x, groups, weight, bias, residual, activation):
        if residual is not None and activation not in ("identity", "relu"):
            return "a residual is added in front of relu"
        return None if x.stride(1) == 1 else "x is not channels-last"

    def note(kind, residual, activation):
        parts = (kind, "+" if residual is not None else "", activation)
        calls.append(" ".join(part for part in parts if part not in ("", "identity")))

    def batch_norm(
        x, weight, bias, mean, variance, *, training, momentum, eps, activation, residual
    ):
        note("batch", residual, activation)
        y = F.batch_norm(x, mean, variance, weight, bias, training, momentum, eps)
        return channels_last(ACTIVATIONS[activation](y if residual is None else y + residual))

    def group_norm(x, groups, weight, bias, *, eps, activation):
        note("group", None, activation)
        return channels_last(ACTIVATIONS[activation](F.group_norm(x, groups, weight, bias, eps)))

    stand_ins = types.SimpleNamespace(
        norm_problem=norm_problem, batch_norm=batch_norm, group_norm=group_norm, calls=calls
    )
    monkeypatch.setattr(norms, "kernels", stand_ins)
    return stand_ins


class Bottleneck(TORCH.Module):
    """As torchvision's: one ReLU module in place, called three times."""

    def __init__(self, shortcut: bool = True) -> None:
        super().__init__()
        self.conv1, self.bn1 = TORCH.Conv2d(4, 4, 1, bias=False), TORCH.BatchNorm2d(4)
        self.conv2, self.bn2 = TORCH.Conv2d(4, 4, 3, padding=1), TORCH.BatchNorm2d(4)
        self.conv3, self.bn3 = TORCH.Conv2d(4, 4, 1, bias=False), TORCH.BatchNorm2d(4)
        self.relu = TORCH.ReLU(inplace=True)
        self.downsample = None
        if shortcut:
            self.downsample = TORCH.Sequential(TORCH.Conv2d(4, 4, 1), TORCH.BatchNorm2d(4))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


BOTTLENECK = ["batch relu", "batch relu", "batch", "batch + relu"]


class UNetBlock(TORCH.Module):
    """As in diffusion models: norm, activation, convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = TORCH.GroupNorm(2, 4), TORCH.GroupNorm(2, 4)
        self.conv1, self.conv2 = (TORCH.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.act = TORCH.SiLU()

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(self.act(self.norm2(h)))
        return x + h


UNET = ["group silu", "group silu"]
BLOCKS = {
    "resnet": (Bottleneck, BOTTLENECK),
    "unet": (UNetBlock, UNET),
    "1d": (
        lambda: TORCH.Sequential(TORCH.BatchNorm1d(4), TORCH.Tanh(), TORCH.GroupNorm(4, 4)),
        ["batch tanh", "group"],
    ),
    "3d": (
        lambda: TORCH.Sequential(TORCH.BatchNorm3d(4, affine=False), TORCH.GELU("tanh")),
        ["batch gelu_tanh"],
    ),
}


def seeded(make) -> torch.nn.Module:
    torch.manual_seed(0)
    return make()


def image(dims: int = 2, size: int = 2) -> torch.Tensor:
    torch.manual_seed(1)
    x = torch.randn(size, 4, *(5, 4, 3)[:dims])
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def ours_of(model: torch.nn.Module, **how) -> torch.nn.Module:
    return nn.convert(copy.deepcopy(model), report=False, norms=True, **how)


def same(ours: torch.nn.Module, theirs: torch.nn.Module, x: torch.Tensor, run=None) -> None:
    """Compares outputs, gradients and buffers of a step."""
    results = []
    for model in (ours, theirs):
        model.zero_grad()
        leaf = x.clone().requires_grad_()
        y = model(leaf * 1) if run is None else run(model, leaf * 1)
        y.square().sum().backward()
        gradients = [p.grad for p in model.parameters()]
        results.append([y, leaf.grad, *gradients, *(b.clone() for b in model.buffers())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def outcomes(model: torch.nn.Module, fold: bool = False) -> dict[str, str]:
    return {x.name: x.outcome for x in nn.survey(model, fold, norms=True).norms}


# --- chains -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_train_and_infer_as_torchs(name, kernels):
    make, expected = BLOCKS[name]
    theirs = seeded(make)
    ours = ours_of(theirs)
    x = image({"1d": 1, "3d": 3}.get(name, 2))
    for training in (True, False, True):
        for model in (ours, theirs):
            model.train(training)
        kernels.calls.clear()
        same(ours, theirs, x)
        assert kernels.calls == expected
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("name", ["resnet", "unet"])
def test_what_no_kernel_takes_is_torchs(name):
    """Here the CPU: the same bits."""
    theirs = seeded(BLOCKS[name][0])
    ours = ours_of(theirs)
    for training in (True, False):
        results = []
        for model in (ours, theirs):
            model.train(training)
            y = model(image() * 1)
            results.append([y, *model.buffers()])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    double = image().double()
    torch.testing.assert_close(ours.double()(double), theirs.double()(double))


def test_the_table_tells_what_became_of_norms(capsys):
    model = TORCH.Sequential(
        Bottleneck(), TORCH.SyncBatchNorm(4), TORCH.BatchNorm2d(4).double(), TORCH.GroupNorm(2, 4)
    )
    before = str(nn.survey(model))
    found = outcomes(model)
    assert found == {
        "0.bn1": "converted with ReLU",
        "0.bn2": "converted with ReLU",
        "0.bn3": "converted with +=, ReLU",
        "0.downsample.1": "converted alone: nothing is behind it in its module",
        "1": "left: it is a SyncBatchNorm",
        "2": "left: dtype float64 is not supported",
        "3": "converted alone: nothing is behind it in its module",
    }
    assert nn.survey(model, norms=True).layers == nn.survey(model).layers
    nn.convert(model, norms=True)
    text = capsys.readouterr().out
    assert "BatchNorm2d" in text
    assert "4 convolutions: 4 converted; 7 norms: 5 converted, 2 left, 3 folded" in text
    assert nn.survey(model).norms == ()
    assert "norms" not in before
    assert outcomes(model)["0.bn3"] == "converted with +=, ReLU"
    assert outcomes(TORCH.Linear(2, 2)) == {}


def test_convolutions_take_their_norms_where_both_are_asked_for(kernels):
    theirs = seeded(lambda: TORCH.Sequential(Bottleneck(), UNetBlock())).eval()
    ours = ours_of(theirs, fold=True)
    found = outcomes(ours, fold=True)
    assert found["0.bn3"] == "converted, and part of 0.conv3 in eval mode"
    assert found["1.norm2"] == "converted with SiLU"
    with torch.no_grad():
        torch.testing.assert_close(ours(image()), theirs(image()), rtol=1e-4, atol=1e-4)
    assert kernels.calls == UNET
    for training in (True, False):
        for model in (ours, theirs):
            model.train(training)
        kernels.calls.clear()
        same(ours, theirs, image())
        assert kernels.calls == BOTTLENECK + UNET


@pytest.mark.parametrize("order", [("fold", "norms"), ("norms", "fold")])
def test_models_are_converted_twice(order, kernels):
    theirs = seeded(lambda: TORCH.Sequential(Bottleneck(), UNetBlock())).eval()
    ours = copy.deepcopy(theirs)
    for what in (*order, *order):
        nn.convert(ours, report=False, **{what: True})
    with torch.no_grad():
        torch.testing.assert_close(ours(image()), theirs(image()), rtol=1e-4, atol=1e-4)
    assert kernels.calls == UNET
    ours.train(), theirs.train()
    same(ours, theirs, image())
    nn.revert(ours)
    assert [type(m) for m in ours.modules()] == [type(m) for m in theirs.modules()]


class Chained(TORCH.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other = TORCH.BatchNorm2d(4), TORCH.BatchNorm2d(4)
        self.group, self.act = TORCH.GroupNorm(2, 4), TORCH.SiLU()


def twice(self, x):
    one = self.norm(x)
    other = self.norm(x * 2)
    return torch.relu(other) * torch.relu(one)


def written_to(self, x):
    z = x * 1
    y = self.norm(x)
    z += 1
    return torch.relu(y) + z


CHAINS = {
    "sum of two": (lambda m, x: F.relu(m.norm(x) + m.other(x)), ["batch", "batch + relu"]),
    "sum and SiLU": (lambda m, x: m.act(m.norm(x) + x), ["batch +"]),
    "sum, alone": (lambda m, x: x + m.norm(x), ["batch +"]),
    "one per channel": (
        lambda m, x: F.relu(m.norm(x) + x[:, :, 0, 0][:, :, None, None]),
        ["batch"],
    ),
    "spread over pixels": (lambda m, x: F.relu(m.norm(x) + x[:, :, :1]), ["batch"]),
    "behind GroupNorm": (lambda m, x: F.relu(m.group(x) + x), ["group"]),
    "with itself": (lambda m, x: torch.tanh(m.norm(x) + m.norm(x)), ["batch", "batch +"]),
    "used twice": (lambda m, x: (lambda y: torch.relu(y) + y)(m.norm(x)), ["batch"]),
    "called between": (twice, ["batch", "batch relu"]),
    "methods": (lambda m, x: m.group(m.norm(x).relu_()).tanh(), ["batch relu", "group tanh"]),
    "gelu": (lambda m, x: F.gelu(m.group(x)), ["group gelu"]),
    "written between": (written_to, ["batch"]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name, kernels):
    forward, expected = CHAINS[name]
    theirs = type("Model", (Chained,), {"forward": forward})()
    ours = ours_of(theirs)
    same(ours, theirs, image())
    assert kernels.calls == expected


# --- who may not notice -------------------------------------------------------------------------


def test_hooks_replaced_modules_and_forwards_keep_modules_apart(kernels):
    theirs = seeded(Bottleneck)
    ours = ours_of(theirs)
    seen = []
    handles = [
        ours.bn1.register_forward_hook(lambda m, _, y: seen.append("bn1")),
        ours.relu.register_forward_pre_hook(lambda m, _: seen.append("relu")),
    ]
    same(ours, theirs, image())
    assert seen == ["bn1", *["relu"] * 3]
    assert kernels.calls == ["batch"] * 4
    for handle in handles:
        handle.remove()
    kernels.calls.clear()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    same(ours, theirs, image())
    assert kernels.calls == ["batch"] * 4
    handle.remove()
    for model in (ours, theirs):
        model.relu, model.bn1 = TORCH.ReLU6(), TORCH.InstanceNorm2d(4)
        model.bn2.forward = lambda x: x * 2
    kernels.calls.clear()
    same(ours, theirs, image())
    assert kernels.calls == ["batch", "batch"]
    kernels.calls.clear()
    theirs = seeded(Bottleneck).eval()
    ours = TORCH.SyncBatchNorm.convert_sync_batchnorm(ours_of(theirs))
    torch.testing.assert_close(ours(image()), theirs(image()))
    assert kernels.calls == []


@pytest.mark.parametrize(
    "how",
    [
        {"momentum": None},
        {"track_running_stats": False},
        {"affine": False, "momentum": 0.3},
        {"eps": 0.5},
    ],
    ids=str,
)
def test_statistics_are_counted_as_torch_counts(how, kernels):
    theirs = TORCH.Sequential(TORCH.BatchNorm2d(4, **how), TORCH.ReLU())
    ours = ours_of(theirs)
    for step in range(3):
        same(ours, theirs, image() + step)
    for model in (ours, theirs):
        model.eval()
    same(ours, theirs, image())
    assert kernels.calls == ["batch relu"] * 4
    for model in (ours, theirs):
        model.train()[0].track_running_stats = False
    same(ours, theirs, image())


def outcome(model, x):
    """The shape of an output, or torch's words; not all versions refuse an eps of 0."""
    try:
        return model(x).shape
    except ValueError as error:
        return str(error)


def test_what_torch_refuses_is_refused(kernels):
    ours = ours_of(TORCH.Sequential(TORCH.BatchNorm2d(4), TORCH.ReLU(), TORCH.GroupNorm(2, 4)))
    with pytest.raises(ValueError, match="expected 4D input"):
        ours(image(3))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        ours(torch.ones(1, 4, 1, 1))
    with pytest.raises(RuntimeError):
        ours[0](torch.ones(2, 6, 4, 4).to(memory_format=torch.channels_last))
    with pytest.raises(RuntimeError):
        ours[2](torch.ones(2, 6, 4, 4).to(memory_format=torch.channels_last))
    assert kernels.calls == []
    assert not ours[0].running_mean.any()
    ours[0].eps = 0.0
    assert outcome(ours[0], image()) == outcome(TORCH.BatchNorm2d(4, eps=0.0), image())
    assert kernels.calls == []
    pairs = ours_of(TORCH.Sequential(TORCH.BatchNorm1d(4), TORCH.ReLU()))
    assert pairs(torch.randn(3, 4)).shape == (3, 4)


def test_conversion_and_back():
    theirs = seeded(lambda: TORCH.Sequential(Bottleneck(), UNetBlock()))
    model = copy.deepcopy(theirs)
    parts = dict(model.named_parameters()) | dict(model.named_buffers())
    nn.convert(model, report=False, norms=True)
    assert type(model[0].bn1) is nn.BatchNorm2d
    assert isinstance(model[0].bn1, TORCH.BatchNorm2d)
    assert type(model[1].norm1) is nn.GroupNorm
    assert repr(model[0].bn1) == repr(theirs[0].bn1)
    assert repr(model[1].norm1) == repr(theirs[1].norm1)
    model.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(model.state_dict())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ):
        assert type(other[0].bn1) is nn.BatchNorm2d
        same(other, copy.deepcopy(theirs), image())
    assert nn.revert(model) is model
    assert [type(m) for m in model.modules()] == [type(m) for m in theirs.modules()]
    assert all(parts[n] is p for n, p in (*model.named_parameters(), *model.named_buffers()))
    made = nn.BatchNorm2d(4, eps=0.1)
    assert repr(made) == repr(TORCH.BatchNorm2d(4, eps=0.1))


def test_norms_that_stay_torchs_without_being_asked_for():
    model = TORCH.Sequential(TORCH.BatchNorm2d(4), TORCH.ReLU())
    nn.convert(model, report=False)
    assert type(model[0]) is TORCH.BatchNorm2d


class Checkpointed(TORCH.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = TORCH.BatchNorm2d(4)

    def forward(self, x):
        return checkpoint(lambda x: torch.relu(self.norm(x)), x, use_reentrant=False)


def test_gradient_checkpoints(kernels):
    theirs = seeded(Bottleneck)
    for reentrant in (False, True):
        ours, other = ours_of(theirs), copy.deepcopy(theirs)
        kernels.calls.clear()

        def run(model, x, reentrant=reentrant):
            return checkpoint(model, x, use_reentrant=reentrant)

        same(ours, other, image(), run)
        assert kernels.calls == BOTTLENECK * 2
    # A forward that asks for checkpoints itself keeps asking for them.
    kernels.calls.clear()
    inner = Checkpointed()
    same(ours_of(inner), inner, image())
    assert kernels.calls == ["batch"] * 2


class Moody(TORCH.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = TORCH.GroupNorm(2, 4)

    def forward(self, x):
        y = F.silu(self.norm(x))
        return y if self.training else y * 2


class Counting(TORCH.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = TORCH.BatchNorm2d(4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        y = torch.relu(self.norm(x))
        self.calls.add_(1)
        self.mean.mul_(0.5).add_(y.detach().mean((0, 2, 3)), alpha=0.5)
        return y + self.mean[:, None, None]


def test_buffers_that_forwards_write_to(kernels):
    theirs = Counting()
    found = nn.survey(theirs, norms=True)
    assert not theirs.calls.any()
    ours = ours_of(theirs)
    for count in (1, 2):
        same(ours, theirs, image())
        assert ours.calls == count
    assert (kernels.calls == ["batch relu"] * 2) is bool(found.norms[0].folded)


def test_forwards_that_differ_between_modes(kernels):
    theirs = Moody()
    ours = ours_of(theirs)
    for training, expected in ((True, "group silu"), (False, "group"), (True, "group silu")):
        kernels.calls.clear()
        same(ours.train(training), theirs.train(training), image())
        assert kernels.calls == [expected]


class Late(TORCH.Module):
    """Something may be behind it."""

    def __init__(self):
        super().__init__()
        self.convolution = TORCH.Conv2d(4, 4, 1)
        self.norm = TORCH.BatchNorm2d(4)
        self.last = TORCH.Identity()
        self.last = None

    def forward(self, x):
        y = F.relu(self.norm(self.convolution(x)))
        return y if self.last is None else self.last(y)


@pytest.mark.parametrize(
    "options", [{"norms": True}, {"fold": True}, {"norms": True, "fold": True}]
)
def test_modules_that_come_and_go_are_seen(options):
    def layers():
        return TORCH.Sequential(*Late().children(), TORCH.ReLU(), TORCH.GroupNorm(2, 4))

    def with_identity():
        return layers().insert(1, TORCH.Identity())

    changes = (
        (layers, lambda m: m.append(TORCH.Tanh())),
        (layers, lambda m: m.insert(1, TORCH.Tanh())),
        (layers, lambda m: m.pop(2)),
        (Late, lambda m: setattr(m, "last", TORCH.Tanh())),
        (with_identity, lambda m: m.__setitem__(1, TORCH.Tanh())),
    )
    for make, change in changes:
        theirs = seeded(make).eval()
        ours = nn.convert(copy.deepcopy(theirs), report=False, **options)
        x = image()
        with torch.no_grad():
            before = ours(x)
            change(ours), change(theirs)
            torch.testing.assert_close(ours(x), theirs(x))
            assert not torch.equal(ours(x), before)


def test_replicas_of_data_parallel_are_converted(kernels):
    theirs = seeded(Late)
    ours = ours_of(theirs)
    replica = ours._replicate_for_data_parallel()
    for name, child in ours.named_children():
        setattr(replica, name, child)
    assert type(replica) is type(ours)
    torch.testing.assert_close(replica(image()), theirs(image()))
    assert kernels.calls == ["batch relu"]


def test_shared_norms_autocast_and_transforms(kernels):
    theirs = seeded(UNetBlock)
    ours = ours_of(theirs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(ours(image()), theirs(image()))
    assert kernels.calls == []
    state = dict(theirs.named_parameters())

    def loss(model):
        return lambda state: torch.func.functional_call(model, state, image()).sum()

    found, expected = (torch.func.grad(loss(model))(state) for model in (ours, theirs))
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad)
    assert kernels.calls == []


def test_what_looks_at_operators_is_shown_torchs(kernels):
    theirs = seeded(lambda: TORCH.Sequential(TORCH.BatchNorm2d(4), TORCH.SiLU()))
    ours = ours_of(theirs)
    x = image()

    def tangent(model):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(model(forward_ad.make_dual(x, x + 1))).tangent

    torch.testing.assert_close(tangent(ours), tangent(theirs))
    with torch.no_grad():
        torch.testing.assert_close(tangent(ours), tangent(theirs))
        torch.testing.assert_close(make_fx(ours)(x)(x), theirs(x))
    assert kernels.calls == []


@pytest.mark.parametrize("fold", [False, True])
def test_models_are_compiled_traced_and_exported(fold, kernels):
    theirs = seeded(lambda: TORCH.Sequential(Bottleneck(), UNetBlock())).eval()
    ours = ours_of(theirs, fold=fold)
    x = image()
    traced = torch.fx.symbolic_trace(ours)
    assert [str(n.target) for n in traced.graph.nodes if n.op == "call_module"].count("0.bn1") == 1
    exported = torch.export.export(ours, (x,)).module()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    kernels.calls.clear()
    with torch.no_grad():
        for other in (exported, compiled):
            kernels.calls.clear()
            torch.testing.assert_close(other(x), theirs(x), rtol=1e-4, atol=1e-4)
            assert kernels.calls == ([] if other is exported else UNET)
        torch.testing.assert_close(traced(x), theirs(x), rtol=1e-4, atol=1e-4)
    if not fold:
        ours.train(), theirs.train()
        same(torch.compile(ours, backend="aot_eager", fullgraph=True), theirs, x)


def test_graphs_have_the_norms_that_are_ours(kernels, monkeypatch):
    assert IS_OPERATOR == {"group": True, "training": False, "evaluation": False}
    theirs = seeded(lambda: TORCH.Sequential(Bottleneck(), UNetBlock()))
    ours = ours_of(theirs)

    def calls_of(model, training):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        other = copy.deepcopy(theirs)
        model.train(training), other.train(training)
        kernels.calls.clear()
        for _ in range(2):
            same(compiled, other, image())
        assert kernels.calls[: len(kernels.calls) // 2] * 2 == kernels.calls
        return kernels.calls[: len(kernels.calls) // 2]

    assert calls_of(copy.deepcopy(ours), True) == UNET
    assert calls_of(copy.deepcopy(ours), False) == UNET
    monkeypatch.setitem(IS_OPERATOR, "training", True)
    assert calls_of(copy.deepcopy(ours), True) == BOTTLENECK + UNET
    assert calls_of(copy.deepcopy(ours), False) == UNET
    monkeypatch.setitem(IS_OPERATOR, "evaluation", True)
    assert calls_of(copy.deepcopy(ours), False) == BOTTLENECK + UNET
    monkeypatch.setitem(IS_OPERATOR, "group", False)
    assert calls_of(copy.deepcopy(ours), True) == BOTTLENECK


@pytest.mark.parametrize("how", [{"momentum": None}, {"track_running_stats": False}], ids=str)
def test_statistics_of_graphs_are_counted_as_torch_counts(how, kernels, monkeypatch):
    monkeypatch.setitem(IS_OPERATOR, "training", True)
    torch._dynamo.reset()
    theirs = TORCH.Sequential(TORCH.BatchNorm2d(4, **how), TORCH.ReLU())
    ours = ours_of(theirs)
    # An average over all batches asks for their number, which is no part of a graph.
    compiled = torch.compile(ours, backend="aot_eager", fullgraph="momentum" not in how)
    for step in range(3):
        same(compiled, theirs, image() + step)
    assert kernels.calls == ([] if "momentum" in how else ["batch relu"] * 3)


def test_graphs_of_what_no_kernel_takes_are_torchs():
    """Here the CPU."""
    theirs = seeded(lambda: TORCH.Sequential(Bottleneck(), UNetBlock()))
    for dynamic in (False, True):
        torch._dynamo.reset()
        ours, other = ours_of(theirs), copy.deepcopy(theirs)
        calls = []
        compiled = torch.compile(ours, backend=recording(calls), fullgraph=True, dynamic=dynamic)
        for size in (2, 3):
            same(compiled, other, image(size=size))
            same(compiled, other, image(size=size).contiguous())
        assert "conv" in calls
        assert not [name for name in calls if "norm" in name]
