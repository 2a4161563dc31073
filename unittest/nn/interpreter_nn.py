"""Converted models with the kernels, in Triton's interpreter.

``fallback="error"``: what no kernel computes would be an error.  Tolerance: the distance (of norms)
from float64's result is at most twice that of torch's in the same dtype, plus an epsilon of it;
of fp32, which the kernels round to TF32, plus TF32's.
"""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from interpreted import why_not_interpreted

if reason := why_not_interpreted():
    pytest.skip(reason, allow_module_level=True)

from channel_norms import LayerNorm2d, RmsNorm2d, WanRMS_norm
from norm_act import NormActBlock
from recorded_graphs import recording
from torch.nn import functional as F
from triton_ext import nn
from triton_ext.nn import folding, norms, padding
from triton_ext.ops.api import execution
from triton_ext.ops.core import dispatch_cache
from triton_ext.ops.core.refusals import Refusal
from triton_ext.ops.kernels.copies import pad_channels_last, to_channels_last
from triton_ext.ops.norms.checks import IS_OPERATOR
from triton_ext.ops.tuning import runs

TORCH = torch.nn
FLOAT = torch.float32
accelerate = sys.modules["triton_ext.nn.accelerate"]  # the package has a function of that name


class Block(TORCH.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = TORCH.Conv2d(8, 16, 3, padding=1, stride=2, bias=False)
        self.bn1 = TORCH.BatchNorm2d(16)
        self.conv2 = TORCH.Conv2d(16, 16, 3, padding=1)
        self.bn2 = TORCH.BatchNorm2d(16)
        self.shortcut = TORCH.Sequential(TORCH.Conv2d(8, 16, 1, stride=2), TORCH.BatchNorm2d(16))
        self.relu = TORCH.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return self.relu(y)


def sequence(dims: int) -> TORCH.Sequential:
    convolution, norm = (getattr(TORCH, f"{n}{dims}d") for n in ("Conv", "BatchNorm"))
    return TORCH.Sequential(convolution(8, 8, 3, padding=1), norm(8), TORCH.SiLU(),
                            convolution(8, 8, 1), TORCH.GELU())  # fmt: skip


def settled(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, TORCH.modules.batchnorm._BatchNorm):
            for tensor, low in ((module.running_mean, -1), (module.running_var, 0.5)):
                tensor.uniform_(low, 1.5)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.uniform_(-1, 1)
    return model.to(dtype)


def image(dims: int, dtype: torch.dtype, size: int = 2) -> torch.Tensor:
    torch.manual_seed(1)
    x = torch.randn(size, *(6, 5, 4)[:dims], 8).to(dtype)
    return x.movedim(-1, 1)


def ours_of(model: torch.nn.Module, **how) -> torch.nn.Module:
    return nn.convert(copy.deepcopy(model), fallback="error", report=False, **how)


def as_exact(ours, theirs, exact) -> None:
    one, other = ((t.double() - exact).norm() for t in (ours, theirs))
    assert ours.dtype == theirs.dtype
    eps = 2**-10 if ours.dtype == torch.float32 else torch.finfo(ours.dtype).eps
    assert one <= 2 * other + eps * exact.norm()


MODELS = {"block": (Block, 2), **{f"{d}d": (lambda d=d: sequence(d), d) for d in (1, 2, 3)}}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_folded_models(name, dtype, monkeypatch):
    make, dims = MODELS[name]
    torch.manual_seed(0)
    model = settled(make(), dtype).eval()
    x = image(dims, dtype)
    ours = ours_of(model, fold=True)
    monkeypatch.setattr(folding, "_one_by_one", None)  # every place is one kernel
    exact = copy.deepcopy(model).double()(x.double())
    as_exact(ours(x), model(x), exact)
    with torch.inference_mode():
        as_exact(ours(x), model(x), exact)


@torch.no_grad()
def test_a_model_that_was_made_in_inference_mode():
    with torch.inference_mode():
        torch.manual_seed(0)
        model = settled(Block(), torch.float32).eval()
    x = image(2, torch.float32)
    expected = model(x)
    exact = copy.deepcopy(model).double()(x.double())
    for how in ({}, {"fold": True}):
        with torch.inference_mode():
            ours = copy.deepcopy(model)
        nn.convert(ours, fallback="error", report=False, **how)
        as_exact(ours(x), expected, exact)
        assert torch.equal(nn.revert(ours)(x), expected)


@torch.no_grad()
def test_a_folded_model_under_autocast():
    model = settled(Block(), torch.float32).eval()
    x = image(2, torch.float32)
    exact = copy.deepcopy(model).double()(x.double())
    ours = ours_of(model, fold=True)
    with torch.autocast("cpu", dtype=torch.float16):
        as_exact(ours(x), model(x), exact)


def gradients(model, x):
    x = x.detach().requires_grad_()
    y = model(x)
    torch.manual_seed(2)
    y.backward(torch.randn(y.shape).to(y.dtype))
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


class Diffusion(TORCH.Module):
    """Norms in front of convolutions, as in diffusion models."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = TORCH.GroupNorm(4, 8), TORCH.GroupNorm(2, 8)
        self.conv = TORCH.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        y = self.conv(TORCH.functional.silu(self.norm1(x)))
        return x + self.norm2(y)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("make", [Block, Diffusion])
def test_norms(make, training, monkeypatch):
    torch.manual_seed(0)
    model = settled(make(), torch.float32).train(training)
    x = image(2, torch.float32)
    ours, exact = ours_of(model, norms=True), copy.deepcopy(model).double()
    for class_ in (TORCH.GroupNorm, TORCH.modules.batchnorm._BatchNorm):
        monkeypatch.setattr(class_, "forward", None)  # every place is one kernel
    monkeypatch.setattr(norms, "add_and_activate", None)
    found = gradients(ours, x)
    monkeypatch.undo()
    theirs, right = gradients(model, x), gradients(exact, x.double())
    models = ((ours, found), (model, theirs), (exact, right))
    every = zip(*([*tensors, *m.buffers()] for m, tensors in models), strict=True)
    for our, their, best in every:
        assert our.dtype == their.dtype
        one, other = ((t.double() - best).norm() for t in (our, their))
        assert one <= 2 * other + 0.01 * best.double().norm()  # convolutions are TF32's


@pytest.mark.parametrize("momentum", [0.3, None])
def test_batches_are_counted(momentum, monkeypatch):
    """By a kernel where the call was seen before, and by torch where memory is none of its own."""
    theirs = TORCH.BatchNorm2d(8, momentum=momentum)
    ours = ours_of(TORCH.Sequential(theirs), norms=True)[0]
    monkeypatch.setattr(TORCH.BatchNorm2d, "forward", None)
    is_counter, by_kernel = norms._is_counter, []
    monkeypatch.setattr(
        norms, "_is_counter", lambda *a: by_kernel.append(is_counter(*a)) or by_kernel[-1]
    )
    apart = torch.zeros(3, dtype=torch.long)
    versions = []
    for step in range(5):
        x = image(2, torch.float32) + step
        statistics = (theirs.running_mean, theirs.running_var)
        theirs.num_batches_tracked += 1
        moved = 1.0 / float(theirs.num_batches_tracked) if momentum is None else momentum
        TORCH.functional.batch_norm(x, *statistics, training=True, momentum=moved)
        if step == 3:
            ours.num_batches_tracked = apart[1].copy_(ours.num_batches_tracked)
        ours(x)
        versions.append(ours.num_batches_tracked._version)
        assert ours.num_batches_tracked == theirs.num_batches_tracked == step + 1
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)
    assert versions[:3] == [versions[0] + step for step in range(3)]
    assert by_kernel == ([] if momentum is None else [True, True, False, False])
    assert apart.tolist() == [0, 5, 0]


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_norms(dynamic, monkeypatch):
    """Bit for bit what the modules give by themselves, running statistics too."""
    for kind in IS_OPERATOR:
        monkeypatch.setitem(IS_OPERATOR, kind, True)
    torch._dynamo.reset()
    stem = TORCH.Conv2d(8, 8, 1)
    model = settled(TORCH.Sequential(stem, Diffusion(), Block(), TORCH.GroupNorm(4, 16)), FLOAT)
    ours, compiled, calls = ours_of(model, norms=True), ours_of(model, norms=True), []
    run = torch.compile(compiled, backend=recording(calls), fullgraph=True, dynamic=dynamic)
    for size in (2, 3):
        x = image(2, FLOAT, size)
        found, expected = gradients(run, x), gradients(ours, x)
        states = zip([*found, *compiled.buffers()], [*expected, *ours.buffers()], strict=True)
        assert all(torch.equal(one, other) for one, other in states)
    names = ("batch_moments", "norm_forward", "norm_backward")
    times = 1 if dynamic else 2  # another batch is another graph
    assert [calls.count(name) // times for name in names] == [3, 6, 6]


class Timed(TORCH.Module):
    """Convolutions that are told the time behind them, as in diffusion models."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = TORCH.Conv2d(8, 16, 3, padding=1)
        self.conv2 = TORCH.Conv2d(16, 16, 3, padding=1, groups=16)
        self.shift1, self.shift2 = TORCH.Linear(4, 16), TORCH.Linear(4, 16)

    def forward(self, x, time):
        y = TORCH.functional.silu(self.conv1(x) + self.shift1(time)[:, :, None, None])
        return self.shift2(time)[:, :, None, None] + self.conv2(y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_the_embedding_of_a_time(dtype, monkeypatch):
    torch.manual_seed(0)
    model, x, time = Timed().to(dtype).eval(), image(2, dtype), torch.randn(2, 4).to(dtype)
    exact = copy.deepcopy(model).double()(x.double(), time.double())
    ours = ours_of(model, fold=True)
    as_exact(ours(x, time), model(x, time), exact)  # derivatives are recorded: one by one
    monkeypatch.setattr(folding, "_one_by_one", None)
    with torch.no_grad():
        as_exact(ours(x, time), model(x, time), exact)


def test_training():
    torch.manual_seed(0)
    model = settled(Block(), torch.float16).train()
    x = image(2, torch.float16)
    found = gradients(ours_of(model), x)
    exact = gradients(copy.deepcopy(model).double(), x.double())
    for our, their, right in zip(found, gradients(model, x), exact, strict=True):
        one, other = ((t.double() - right).norm() for t in (our, their))
        assert one <= 2 * other + 0.01 * right.norm()


def test_weights_that_change_are_seen_in_any_order():
    theirs = TORCH.Sequential(TORCH.Conv2d(8, 8, 3)).half()
    ours = ours_of(theirs)
    x = image(2, torch.float16)

    def same():
        with torch.no_grad():
            exact = copy.deepcopy(theirs).double()(x.double())
            as_exact(ours(x), theirs(x), exact)

    same()
    for index in range(4):
        for model in (ours, theirs):
            weight = model[0].weight
            torch.manual_seed(index)
            new = torch.randn(weight.shape).half() / 8
            if index == 0:
                weight.data.lerp_(new, 0.5)
            elif index == 1:
                weight.data = new  # torch's order
            elif index == 2:
                model[0].weight = TORCH.Parameter(new)
            else:
                model.load_state_dict({"0.weight": new, "0.bias": new[0, :, 0, 0]}, assign=True)
        same()


def test_transposed_and_depthwise_layers():
    model = TORCH.Sequential(
        TORCH.Conv2d(8, 8, 3, padding=1, groups=8), TORCH.ReLU(),
        TORCH.ConvTranspose2d(8, 8, 4, stride=2, padding=1), TORCH.ReLU(),
    ).half().eval()  # fmt: skip
    x = image(2, torch.float16)
    ours = ours_of(model, fold=True)
    assert [layer.folded for layer in nn.survey(ours, fold=True).layers] == [("ReLU",), ()]
    with torch.no_grad():
        as_exact(ours(x), model(x), copy.deepcopy(model).double()(x.double()))


# --- models as people write them ----------------------------------------------------------------


class Causal(TORCH.Conv3d):
    def forward(self, x):
        return super().forward(F.pad(x, (1, 1, 1, 1, 2, 0)))


class Standardized(TORCH.Conv2d):
    def forward(self, x):
        weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        return F.conv2d(F.pad(x, (1, 0, 1, 0)), weight, self.bias, self.stride)


WRITTEN = {
    "super": (lambda: Causal(8, 8, 3), 3),
    "function": (lambda: Standardized(8, 8, 2), 2),
    "weight_norm": (lambda: TORCH.utils.parametrizations.weight_norm(TORCH.Conv1d(8, 8, 3)), 1),
    "transposed": (lambda: TORCH.ConvTranspose2d(8, 8, 4, stride=2, padding=1), 2),
    "norm_act": (lambda: settled(NormActBlock(TORCH.SiLU()), FLOAT), 2),
}


@pytest.mark.parametrize("is_channels_last", [True, False])
@pytest.mark.parametrize("name", WRITTEN)
@torch.no_grad()
def test_models_as_they_are_written(name, is_channels_last):
    make, dims = WRITTEN[name]
    torch.manual_seed(0)
    model = make().to(torch.float16).eval()
    x = image(dims, torch.float16)
    x = x if is_channels_last else x.contiguous()
    expected, exact = model(x), copy.deepcopy(model).double()(x.double())
    for how in ({}, {"fold": True}):
        ours = nn.convert(copy.deepcopy(model), report=False, **how)
        as_exact(ours(x), expected, exact)
        report = nn.report(ours)
        assert (report.torch, report.left) == (0, ())
        assert report.ours == len(report.modules)
    with nn.accelerate() as redirect:
        as_exact(model(x), expected, exact)
    assert (redirect.calls.ours, redirect.calls.torch) == (len(report.modules), 0)


def test_a_report_names_kernels_and_counts_gradients():
    torch.manual_seed(0)
    layers = (TORCH.Conv2d(8, 16, 3), TORCH.ConvTranspose2d(16, 8, 2, stride=2))
    model = nn.convert(TORCH.Sequential(*layers), report=False).half()
    for _ in range(4):
        gradients(model, image(2, torch.float16))
    forward, transposed = nn.report(model).modules
    for module in (forward, transposed):
        for counts in (module.forward, module.dgrad, module.wgrad):
            assert (counts.ours, counts.torch) == (4, 0)
            assert all(name.endswith("kernel") for name, _ in counts.kernels)
    assert "dgrad: 4 by our kernels (" in forward.outcome
    assert nn.report(model).summary == (
        "8 calls of 2 converted convolutions: 8 by our kernels, 0 by torch; "
        "16 gradients: 16 by our kernels, 0 by torch"
    )
    # The first layer's input needs no gradient.
    model(image(2, torch.float16)).sum().backward()
    forward, transposed = nn.report(model).modules
    assert (forward.dgrad.ours, forward.wgrad.ours) == (4, 5)
    assert (transposed.dgrad.ours, transposed.wgrad.ours) == (5, 5)


def test_a_report_counts_what_torch_computes_and_why():
    model = nn.convert(TORCH.ConvTranspose2d(8, 8, 3, dilation=2), report=False)
    model.output_padding = (1, 1)
    model(image(2, FLOAT))
    ((refusal, count),) = nn.report(model).modules[0].refusals
    assert refusal == "conv_transpose2d: output_padding (1, 1) is not smaller than stride (1, 1)"
    assert count == 1
    model = nn.convert(TORCH.Sequential(TORCH.Conv2d(8, 8, 1)), report=False)
    with torch.autograd.forward_ad.dual_level():
        model(torch.autograd.forward_ad.make_dual(image(2, FLOAT), image(2, FLOAT)))
    assert nn.report(model).modules[0].refusals == (("derivatives of forward mode are torch's", 1),)


def test_torch_computes_what_it_is_faster_for_where_nothing_is_recorded(monkeypatch):
    asked = []
    monkeypatch.setattr(runs, "is_torch_faster", lambda *_: asked.append(1) or True)
    dispatch_cache.clear()
    layers = TORCH.Conv2d(16, 16, 3, padding=1), TORCH.ConvTranspose2d(16, 16, 2, 2)
    theirs = settled(TORCH.Sequential(*layers), torch.float16)
    x = image(2, torch.float16, size=8)[:, :1].expand(-1, 16, -1, -1)
    x = x.contiguous(memory_format=torch.channels_last)
    ours = nn.convert(copy.deepcopy(theirs), report=False)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)
    assert len(asked) == 2  # the verdict is kept
    reason = ("torch, predicted or measured to be faster", 2)
    assert [each.refusals for each in nn.report(ours).modules] == [(reason,)] * 2
    assert nn.report(ours).ours == 0
    # Gradients of a call by torch would be torch's: nobody asked whether it is faster for them.
    ours(x)
    assert (nn.report(ours).ours, len(asked)) == (2, 2)
    with torch.no_grad():
        strict = nn.convert(copy.deepcopy(theirs), fallback="error", report=False)
        strict(x)
        with nn.accelerate() as redirect:
            theirs(x)
    assert (nn.report(strict).torch, redirect.calls.ours) == (0, 0)
    assert redirect.calls.refusals == {reason[0]: 2}


def test_a_report_tells_why_torch_computed_a_gradient(monkeypatch):
    plan = execution.plan_or_refusal
    monkeypatch.setattr(
        execution,
        "plan_or_refusal",
        lambda case, device: (
            Refusal("not today") if case.direction == "wgrad" else plan(case, device)
        ),
    )
    dispatch_cache.clear()
    model = nn.convert(TORCH.Sequential(TORCH.Conv2d(8, 8, 3)), report=False).half()
    for _ in range(3):
        gradients(model, image(2, torch.float16))
    dispatch_cache.clear()
    (module,) = nn.report(model).modules
    assert (module.forward.ours, module.dgrad.ours, module.wgrad.ours) == (3, 3, 0)
    assert module.wgrad.refusals == (("not today", 3),)
    assert module.outcome.endswith("wgrad: 3 by torch: not today (3)")


def test_counts_do_not_keep_the_plans_of_many_sizes(monkeypatch):
    monkeypatch.setattr(sys.modules["triton_ext.nn.calls"], "_MOST_PLANS", 2)
    model = nn.convert(TORCH.Conv1d(8, 8, 1), report=False)
    with torch.no_grad():
        for _ in range(2):
            for size in range(4, 8):
                model(torch.zeros(1, size, 8).mT)
    assert len(model.counts()._followed) <= 2
    assert nn.report(model).modules[0].ours == 8


CHANNEL_NORMS = {
    "layer": (lambda: LayerNorm2d(12, eps=1e-6), 2),
    "layer, no terms": (lambda: LayerNorm2d(12, elementwise_affine=False), 2),
    "rms": (lambda: RmsNorm2d(12), 2),
    "wan": (lambda: WanRMS_norm(12, images=False, bias=True), 3),
    "wan, images": (lambda: WanRMS_norm(12), 2),
}


def pixels(dims, dtype, channels=12):
    x = torch.randn(2, *(5, 4, 3)[:dims], channels, generator=torch.Generator().manual_seed(1))
    return (3 * x + 1).to(dtype).movedim(-1, 1)


@pytest.mark.parametrize("act", [None, TORCH.SiLU(), TORCH.GELU()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, FLOAT], ids=str)
@pytest.mark.parametrize("name", CHANNEL_NORMS)
def test_norms_over_channels(name, dtype, act, monkeypatch):
    make, dims = CHANNEL_NORMS[name]
    torch.manual_seed(0)
    model = TORCH.Sequential(make(), *([] if act is None else [act])).to(dtype)
    for parameter in model.parameters():
        parameter.data.uniform_(-1, 1.5)
    x = pixels(dims, dtype)
    ours = nn.convert(copy.deepcopy(model), report=False, norms=True)
    monkeypatch.setattr(type(model[0]), "forward", None)
    found = gradients(ours, x)
    if act is not None:
        monkeypatch.setattr(type(act), "forward", None)  # part of the kernel
    assert torch.equal(ours(x), found[0])
    monkeypatch.undo()
    exact = gradients(copy.deepcopy(model).double(), x.double())
    for each in zip(found, gradients(model, x), exact, strict=True):
        as_exact(*each)
    assert found[0].stride(1) == found[1].stride(1) == 1


@pytest.mark.parametrize("channels", [1, 200, 3000])
def test_norms_over_few_and_many_channels(channels):
    model = WanRMS_norm(channels).half()
    x = pixels(2, torch.float16, channels)
    exact = gradients(copy.deepcopy(model).double(), x.double())
    ours = gradients(nn.convert(copy.deepcopy(model), report=False, norms=True), x)
    for each in zip(ours, gradients(model, x), exact, strict=True):
        one, other = ((t.double() - each[2]).norm() for t in each[:2])
        assert one <= 2 * other + 1e-3 * each[2].norm() + 1e-6
    x[:, :, 0, 0] = 0  # less than the least norm
    norm = nn.convert(copy.deepcopy(model), report=False, norms=True)
    with torch.no_grad():
        torch.testing.assert_close(norm(x), model(x), rtol=2e-3, atol=1e-5)


def test_second_derivatives_of_norms_over_channels():
    norm = nn.convert(WanRMS_norm(12).double().float(), report=False, norms=True)
    x = pixels(2, FLOAT).requires_grad_()
    (dx,) = torch.autograd.grad(norm(x).square().sum(), x, create_graph=True)
    (found,) = torch.autograd.grad(dx.square().sum(), x)
    wide = x.detach().double().requires_grad_()
    theirs = nn.revert(copy.deepcopy(norm)).double()
    (dx,) = torch.autograd.grad(theirs(wide).square().sum(), wide, create_graph=True)
    (right,) = torch.autograd.grad(dx.square().sum(), wide)
    torch.testing.assert_close(found.double(), right, rtol=1e-3, atol=1e-3)


def test_what_torch_computes_of_norms_over_channels():
    norm = nn.convert(LayerNorm2d(12), report=False, norms=True)
    x = pixels(2, FLOAT)
    assert norm.normalized(x, None, "none") is not None
    for other in (x.contiguous(), x.double(), x[:, :8], x[0], x[..., ::2], x[:0], x.to("meta")):
        assert norm.normalized(other, None, "none") is None
    torch.testing.assert_close(norm(x.contiguous()), norm(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert norm.normalized(x, None, "none") is None
    assert torch.vmap(norm)(x[None]).shape == (1, *x.shape)
    norm.weight.data = norm.weight.data.half()
    assert norm.normalized(x, None, "none") is None


class Downsample(TORCH.Module):
    """Like diffusers': an odd pixel in front of a convolution with a stride."""

    def __init__(self):
        super().__init__()
        self.conv = TORCH.Conv2d(8, 8, 3, stride=2, padding=(1, 0))

    def forward(self, x):
        return self.conv(F.pad(x, (0, 1, 0, 1), mode="constant", value=0))


class Same(TORCH.Conv2d):
    """Like timm's Conv2dSame."""

    def forward(self, x):
        return convolve_same(x, self.weight, self.bias, self.stride)


def convolve_same(x, weight, bias, stride):
    x = F.pad(x, [1, 2, 0, 1])
    return F.conv2d(x, weight, bias, stride, (0, 0), groups=1)


PADDED = {
    "causal": (lambda: Causal(8, 8, 3), 3),
    "downsample": (Downsample, 2),
    "same": (lambda: Same(8, 8, 3, stride=2), 2),
    "zeros": (lambda: TORCH.Sequential(TORCH.ZeroPad2d((1, 0, 2, 1)), TORCH.Conv2d(8, 8, 2)), 2),
    "constant": (
        lambda: TORCH.Sequential(TORCH.ConstantPad1d((2, 0), 0.0), TORCH.Conv1d(8, 8, 3)),
        1,
    ),
}


@pytest.mark.parametrize("is_channels_last", [True, False])
@pytest.mark.parametrize("name", PADDED)
def test_zeros_in_front_of_a_convolution_are_left_to_its_kernel(
    name, is_channels_last, monkeypatch
):
    make, dims = PADDED[name]
    torch.manual_seed(0)
    model = make().half().eval()
    x = image(dims, torch.float16)
    x = x if is_channels_last else x.contiguous()
    expected, exact = model(x).detach(), copy.deepcopy(model).double()(x.double()).detach()
    ours = nn.convert(copy.deepcopy(model), report=False)
    monkeypatch.setattr(padding.Padded, "real", None)  # nobody pads
    for _ in range(3):
        with torch.no_grad():
            as_exact(ours(x), expected, exact)
    assert (nn.report(ours).ours, nn.report(ours).torch) == (3, 0)
    monkeypatch.undo()
    for each in zip(
        gradients(ours, x),
        gradients(model, x),
        gradients(copy.deepcopy(model).double(), x.double()),
        strict=True,
    ):
        one, other = ((t.double() - each[2]).norm() for t in each[:2])
        assert one <= 2 * other + 2e-3 * each[2].norm()
    assert [type(m) for m in nn.revert(ours).modules()] == [type(m) for m in model.modules()]


class Careful(TORCH.Module):
    """Uses a padded tensor in several ways; writes to what it was padded from."""

    def __init__(self, how):
        super().__init__()
        self.conv, self.how = TORCH.Conv2d(8, 8, 3), how

    def forward(self, x):
        x = x * 1
        y = F.pad(x, (1, 1, 1, 1))
        if self.how == "write":
            x.mul_(2)
        elif self.how == "iadd":
            x += 1
        elif self.how == "set":
            x[:, :, 0] = 3
        elif self.how == "relu":
            F.relu(x, inplace=True)
        elif self.how == "out":
            torch.add(x, 1, out=x)
        elif self.how == "padded":
            y.mul_(2)
        elif self.how == "twice":
            return self.conv(y) + self.conv(y).relu_() + x.neg_().sum() + self.conv(y)
        elif self.how == "returns":
            return {"y": [y, self.conv(y)]}
        return self.conv(y) + y.sum() + x.mean()


@pytest.mark.parametrize(
    "how", ["reads", "write", "iadd", "set", "relu", "out", "padded", "twice", "returns"]
)
@torch.no_grad()
def test_padding_that_is_put_off_shows_nowhere(how):
    torch.manual_seed(0)
    model, x = Careful(how), image(2, FLOAT)
    ours = nn.convert(copy.deepcopy(model), report=False)
    found, expected = ours(x), model(x)
    if how == "returns":
        assert [type(each) for each in found["y"]] == [torch.Tensor] * 2
        found, expected = found["y"][1] + found["y"][0].sum(), sum_of(expected["y"])
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


@torch.no_grad()
def test_sides_that_are_tensors_are_read_by_torch():
    """As transformers' EnCodec has them."""
    x, model = image(1, FLOAT), TORCH.Sequential(TORCH.Conv1d(8, 8, 3))
    with nn.accelerate():
        for mode in ("reflect", "constant"):
            for behind in (1, 2, 3):
                sides = (2, torch.tensor(behind))
                expected = F.pad(x.contiguous(), (2, behind), mode=mode)
                assert torch.equal(F.pad(x, sides, mode=mode), expected)
                torch.testing.assert_close(
                    model(F.pad(x, sides, mode=mode)), model(expected), rtol=2e-3, atol=2e-3
                )


def sum_of(pair):
    return pair[1] + pair[0].sum()


@torch.no_grad()
def test_a_write_that_nobody_sees_is_an_error():
    x = image(2, FLOAT)
    later = padding.padded(x, (1, 1, 1, 1))
    assert later.shape == (2, 8, 8, 7)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="a tensor was written to, by something else than a"):
        later + 1


@pytest.mark.parametrize("mode", ["replicate", "reflect"])
@torch.no_grad()
def test_borders_in_torchs_order_are_padded_and_reordered_by_one_kernel(mode, monkeypatch):
    model = TORCH.Conv2d(8, 8, 3, padding=1, padding_mode=mode)
    x = image(2, FLOAT).contiguous()
    expected = model(x)
    ours = nn.convert(copy.deepcopy(model), report=False)
    monkeypatch.setattr(F, "pad", None)
    monkeypatch.setattr(sys.modules["triton_ext.nn.modules"], "to_channels_last", None)
    torch.testing.assert_close(ours(x), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("chunks", [[1, 4, 4], [4, 5], [2, 1, 1, 5], [9]], ids=str)
@pytest.mark.parametrize("dilation", [1, (2, 1, 1)])
def test_a_video_in_chunks_is_the_whole_bit_for_bit(chunks, dilation):
    torch.manual_seed(0)
    how = {"padding": (7, 1, 1), "dilation": dilation}
    causal = nn.CausalConv3d(8, 16, 3, **how).half()
    # Sums are exact: numpy, which multiplies here, adds rows of a tile in different orders.
    for tensor in (causal.weight.data, causal.bias.data):
        tensor.copy_(torch.randint(-4, 5, tensor.shape) / 8)
    x = (torch.randint(-8, 9, (2, 9, 5, 4, 8)) / 8).half().movedim(-1, 1)
    with torch.no_grad():
        whole = causal(x)
        frames = nn.Frames()
        parts = [causal(chunk, frames) for chunk in x.split(chunks, dim=2)]
        assert torch.equal(torch.cat(parts, dim=2), whole)
        first = 2 * causal.dilation[0]
        theirs = F.conv3d(
            F.pad(x, (1, 1, 1, 1, first, 0)), causal.weight, causal.bias, dilation=dilation
        )
    torch.testing.assert_close(whole, theirs, rtol=2e-3, atol=2e-3)
    assert frames.last.shape == (2, 8, first, 5, 4)
    plans = [bound.plan for bound in causal.counts().forward]
    assert len({plan.config for plan in plans}) == 1
    assert len({plan.problem for plan in plans}) == len({(n, n == chunks[0]) for n in [*chunks, 9]})
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    frames = nn.Frames()
    y = torch.cat([causal(chunk, frames) for chunk in a.split(chunks, dim=2)], dim=2)
    weight = torch.randn(y.shape).half()
    (y * weight).sum().backward()
    (causal(b) * weight).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-2, atol=1e-2)
    frames = nn.Frames()
    causal(x, frames)
    with pytest.raises(ValueError, match=r"expected a chunk like those before it, \[2, 8, "):
        causal(x[:1], frames)


def test_causal_convolutions_that_keep_no_frames():
    x = torch.randn(1, 4, 5, 4, 8).half().movedim(-1, 1)
    for how in ({"stride": (2, 1, 1)}, {"kernel_size": (1, 3, 3)}):
        causal = nn.CausalConv3d(8, 8, **{"kernel_size": 3, **how}).half()
        with torch.no_grad():
            y = causal(x)
        assert y.shape[2] == (2 if "stride" in how else 4)
    strided = nn.CausalConv3d(8, 8, 3, stride=(2, 1, 1)).half()
    with pytest.raises(ValueError, match="got \\[1, 8, 4, 5, 4\\] and a stride of 2"):
        strided(x, nn.Frames())
    with pytest.raises(ValueError, match="expected padding in numbers and of zeros, got 'same'"):
        nn.CausalConv3d(8, 8, 3, padding="same")
    with pytest.raises(ValueError, match=r"expected padding in numbers .* \(\(1, 1\), \(0, 0\)"):
        nn.CausalConv3d(8, 8, 3, padding=((1, 1), (0, 0), (0, 0)))


def test_gradients_through_redirected_functions():
    torch.manual_seed(0)
    model = Standardized(8, 8, 2)
    exact = gradients(copy.deepcopy(model).double(), image(2, FLOAT).double())
    expected = gradients(copy.deepcopy(model), image(2, FLOAT))
    with nn.accelerate() as redirect:
        got = gradients(model, image(2, FLOAT))
    assert redirect.calls.ours == 1
    for each in zip(got, expected, exact, strict=True):
        as_exact(*each)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_instance_norms(dims, affine):
    norm = getattr(TORCH, f"InstanceNorm{dims}d")(8, affine=affine)
    model = settled(TORCH.Sequential(norm, TORCH.SiLU()), FLOAT)
    ours = nn.convert(copy.deepcopy(model), report=False, norms=True)
    x = image(dims, FLOAT)
    exact = gradients(copy.deepcopy(model).double(), x.double())
    for each in zip(gradients(ours, x), gradients(model, x), exact, strict=True):
        as_exact(*each)
    y = ours[0].normalized(x, None, "silu")
    assert y is not None
    assert y.stride(1) == 1
    tracking = getattr(TORCH, f"InstanceNorm{dims}d")(8, track_running_stats=True)
    assert nn.convert(tracking, report=False, norms=True).normalized(x, None, "none") is None
    unbatched = x[0].contiguous()
    assert torch.equal(ours[0](unbatched), model[0](unbatched))


COPIES = {
    "2d": lambda x: x,
    "wide": lambda x: x[:, :, :, :1],
    "a part of the channels": lambda x: x[:, 3:70],
    "a part of the pixels": lambda x: x[..., 1:],
    "channels first of all": lambda x: x.transpose(0, 1),
    "one channel": lambda x: x[:, :1],
    "empty": lambda x: x[:0],
    "3d": lambda x: x.unflatten(2, (3, 3)),
    "1d": lambda x: x.flatten(2),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("name", COPIES)
def test_copies_into_channels_last(name, dtype):
    x = COPIES[name](torch.arange(2 * 72 * 9 * 8).reshape(2, 72, 9, 8).to(dtype))
    y = to_channels_last(x)
    assert torch.equal(y, x)
    assert not y.numel() or y.stride(1) == 1 or y.shape[1] == 1
    assert (y is x) == (x.stride(1) == 1 or x.shape[1] == 1)
    if dtype.is_floating_point:
        leaf = x.detach().clone().requires_grad_()
        weight = torch.randn(x.shape, dtype=dtype)
        (to_channels_last(leaf) * weight).sum().backward()
        assert torch.equal(leaf.grad, weight)


@pytest.mark.parametrize("mode", ["replicate", "reflect"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_padding_of_channels_last_tensors(dims, mode):
    x = to_channels_last(torch.randn(2, 72, *(5, 6, 7)[:dims], dtype=torch.float16))
    pad = (2, 1, 0, 3, 4, 0)[: 2 * dims]
    y = pad_channels_last(x, pad, mode)
    assert torch.equal(y, F.pad(x, pad, mode=mode))
    assert y.stride(1) == 1
    part = x[..., 1:]
    assert torch.equal(pad_channels_last(part, pad, mode), F.pad(part, pad, mode=mode))
    with nn.accelerate():
        assert torch.equal(F.pad(x, pad, mode=mode), y)
        with pytest.raises((RuntimeError, ValueError)):
            F.pad(x, (7, 0, *pad[2:]), mode="reflect")
    assert torch.equal(pad_channels_last(x.contiguous(), pad, mode), y)
    assert pad_channels_last(x, (-1, *pad[1:]), mode) is None
    assert pad_channels_last(x.float().requires_grad_(), pad, mode) is None


class Padded(TORCH.Module):
    """Like HunyuanVideo's causal convolution: pads by replication, then convolves."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = TORCH.Conv3d(8, 8, 3)

    def forward(self, x):
        return self.conv(F.pad(x, (1, 1, 1, 1, 2, 0), mode="replicate"))


@torch.no_grad()
def test_modules_that_pad_in_front_of_a_convolution(monkeypatch):
    torch.manual_seed(0)
    model = TORCH.Sequential(Padded(), Padded()).half().eval()
    x = image(3, torch.float16)
    expected, exact = model(x), copy.deepcopy(model).double()(x.double())
    ours = nn.convert(copy.deepcopy(model), report=False, fold=True)
    padded = []
    kernel = accelerate.pad_channels_last
    monkeypatch.setattr(
        accelerate, "pad_channels_last", lambda *how: padded.append(how[1:]) or kernel(*how)
    )
    as_exact(ours(x), expected, exact)
    assert padded == [((1, 1, 1, 1, 2, 0), "replicate")] * 2
    as_exact(copy.deepcopy(ours)(x), expected, exact)
    nn.revert(ours)
    assert type(ours[0]) is Padded
    assert torch.equal(ours(x), expected)
