"""Modules that are more than a plain convolution: converted or left with a reason, never broken."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")

import torch
from torch.nn.utils import parametrizations, parametrize
from triton_ext import nn

TORCH = torch.nn
NAMES = [f"{kind}{dims}d" for kind in ("Conv", "ConvTranspose") for dims in (1, 2, 3)]


def image(channels: int = 4, dims: int = 2, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(1)
    x = torch.randn(2, channels, *(7, 6, 5)[:dims], dtype=dtype)
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def outcome(model: torch.nn.Module) -> dict[str, str]:
    return {layer.name: layer.reason for layer in nn.survey(model).layers}


def gradients(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor | None]:
    x = x.detach().clone()
    if x.is_floating_point() or x.is_complex():
        x.requires_grad_()
    y = model(x)
    y.abs().square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


def assert_same(ours: torch.nn.Module, theirs: torch.nn.Module, x: torch.Tensor) -> None:
    """Outputs, all gradients, and the state dict."""
    for one, other in zip(gradients(ours, x), gradients(theirs, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    for model in (ours, theirs):
        model.zero_grad()
    states = ours.state_dict(), theirs.state_dict()
    assert list(states[0]) == list(states[1])
    for one, other in zip(*(state.values() for state in states), strict=True):
        torch.testing.assert_close(one, other)


def converted(model: torch.nn.Module) -> torch.nn.Module:
    return nn.convert(copy.deepcopy(model), report=False)


def conv(*arguments, **keywords) -> torch.nn.Conv2d:
    torch.manual_seed(0)
    return TORCH.Conv2d(*(arguments or (4, 6, 3)), **keywords)


# --- constructors, text, state ------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_constructors_are_torchs(name):
    """Every argument by place and by name, on every device and dtype."""
    transposed = [0] if "Transpose" in name else []
    places = (4, 8, 3, 2, 1, *transposed, *([2, False, 1] if transposed else [1, 2, False]))
    torch.manual_seed(0)
    ours = getattr(nn, name)(*places, "zeros", "cpu", torch.float16, fallback="torch")
    torch.manual_seed(0)
    theirs = getattr(TORCH, name)(*places, "zeros", "cpu", torch.float16)
    assert ours.bias is None
    assert torch.equal(ours.weight, theirs.weight)
    assert repr(ours) == repr(theirs)[:-1] + ", fallback=torch)"
    for attribute in ("stride", "padding", "dilation", "groups", "padding_mode", "output_padding"):
        assert getattr(ours, attribute) == getattr(theirs, attribute)
    with torch.device("meta"):
        assert getattr(nn, name)(4, 8, 3).weight.is_meta
    with pytest.raises(ValueError, match="divisible by groups"):
        getattr(nn, name)(3, 8, 3, groups=2)


@pytest.mark.parametrize("name", NAMES)
def test_state_dict_keys_copies_and_pickles(name, tmp_path):
    dims = int(name[-2])
    model = TORCH.Sequential(getattr(TORCH, name)(4, 6, 3), TORCH.ReLU())
    ours = converted(model)
    assert list(ours.state_dict()) == ["0.weight", "0.bias"]
    torch.save(ours, tmp_path / "model.pt")
    for other in (
        copy.deepcopy(ours),
        copy.copy(ours),
        pickle.loads(pickle.dumps(ours)),
        torch.load(tmp_path / "model.pt", weights_only=False),
    ):
        assert type(other[0]) is getattr(nn, name)
        assert other[0].weight.stride() == ours[0].weight.stride()
        assert_same(other, model, image(dims=dims))
        assert repr(other) == repr(ours)
    deep = copy.deepcopy(ours)
    assert type(nn.revert(deep)[0]) is getattr(TORCH, name)
    assert type(ours[0]) is getattr(nn, name)
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    model.load_state_dict(torch.load(file, weights_only=True), strict=True)


def test_a_model_that_is_a_convolution():
    model = conv()
    ours = nn.convert(model, report=False)
    assert ours is model
    assert type(ours) is nn.Conv2d
    assert type(nn.revert(ours)) is TORCH.Conv2d


# --- parametrizations ---------------------------------------------------------------------------

PARAMETRIZATIONS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "own": lambda module: parametrize.register_parametrization(module, "weight", Doubled()),
}


class Doubled(TORCH.Module):
    def forward(self, weight):
        return 2 * weight


@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_parametrized_modules_are_converted(name):
    theirs = TORCH.Sequential(PARAMETRIZATIONS[name](conv())).eval()
    assert outcome(theirs) == {"0": ""}
    ours = converted(theirs)
    assert isinstance(ours[0], nn.Conv2d)
    assert type(ours[0]).__name__ == "ParametrizedConv2d"
    assert_same(ours, theirs, image())
    assert nn.report(ours).torch > 0  # the calls reached our module
    nn.revert(ours)
    assert type(ours[0]).__bases__ == (TORCH.Conv2d,)
    for model in (ours, theirs):
        parametrize.remove_parametrizations(model[0], "weight")
    assert type(ours[0]) is TORCH.Conv2d
    assert_same(ours, theirs, image())


@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_converted_modules_can_be_parametrized(name):
    theirs = TORCH.Sequential(conv())
    ours = converted(theirs)
    for model in (ours, theirs):
        torch.manual_seed(2)
        PARAMETRIZATIONS[name](model[0])
    assert isinstance(ours[0], nn.Conv2d)
    again = "ours already, and parametrized since (torch.nn.utils.parametrize)"
    assert [layer.outcome for layer in nn.survey(ours.eval(), fold=True).layers] == [again]
    nn.convert(ours, report=False)
    assert_same(ours.eval(), theirs.eval(), image())
    for model in (ours, theirs):
        parametrize.remove_parametrizations(model[0], "weight")
    assert type(ours[0]) is nn.Conv2d
    assert_same(ours, theirs, image())
    assert type(nn.revert(ours)[0]) is TORCH.Conv2d


def test_what_was_parametrized_since_is_reverted_too():
    theirs = TORCH.Sequential(conv())
    ours = converted(theirs)
    for model in (ours, theirs):
        parametrizations.weight_norm(model[0])
    nn.revert(ours)
    assert type(ours[0]).__bases__ == (TORCH.Conv2d,)
    assert_same(ours, theirs, image())
    parametrize.remove_parametrizations(ours[0], "weight")
    assert type(ours[0]) is TORCH.Conv2d


@pytest.mark.parametrize("function", ["weight_norm", "spectral_norm"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_the_old_norms_by_hooks(function):
    normed = TORCH.Sequential(getattr(TORCH.utils, function)(conv())).eval()
    assert outcome(normed) == {"0": ""}
    with torch.no_grad():
        expected = normed(image())
        assert type(nn.convert(normed, report=False)[0]) is nn.Conv2d
        torch.testing.assert_close(normed(image()), expected)
    assert nn.report(normed).torch == 1
    assert type(nn.revert(normed)[0]) is TORCH.Conv2d
    plain = TORCH.Sequential(conv())
    ours, theirs = converted(plain), plain
    for model in (ours, theirs):
        torch.manual_seed(2)
        getattr(TORCH.utils, function)(model[0])
    assert_same(ours.eval(), theirs.eval(), image())


# --- hooks --------------------------------------------------------------------------------------


def test_hooks_of_every_kind_stay_and_fire():
    def logged(model):
        log = []
        layer = model[0]
        layer.register_forward_pre_hook(lambda m, args: log.append(("pre", args[0].shape)))
        layer.register_forward_hook(lambda m, args, y: log.append(("forward", y.shape)))
        layer.register_full_backward_pre_hook(lambda m, g: log.append(("backward pre", g[0].shape)))
        layer.register_full_backward_hook(
            lambda m, g, h: log.append(("backward", g[0].shape, h[0].shape))
        )
        layer.register_forward_hook(lambda m, args, y: y * 2)
        layer.weight.register_hook(lambda g: log.append(("gradient", g.shape)))
        layer.weight.register_post_accumulate_grad_hook(lambda p: log.append(("added", p.shape)))
        layer.register_state_dict_pre_hook(lambda *_: log.append(("state",)))
        layer.register_load_state_dict_post_hook(lambda *_: log.append(("load",)))
        return log

    ours = TORCH.Sequential(conv(), TORCH.ReLU())
    theirs = copy.deepcopy(ours)
    logs = logged(ours), logged(theirs)
    nn.convert(ours, report=False)
    assert type(ours[0]) is nn.Conv2d
    assert_same(ours, theirs, image())
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(theirs.state_dict())
    kinds = [entry[0] for entry in logs[0]]
    assert set(kinds) == {
        "pre", "forward", "backward pre", "backward", "gradient", "added", "state", "load",
    }  # fmt: skip
    assert logs[0][: len(kinds) - 3] == logs[1][: len(kinds) - 3]
    nn.revert(ours)
    logs[0].clear()
    gradients(ours, image())
    assert len(logs[0]) == 6


# --- parameters ---------------------------------------------------------------------------------


def test_frozen_weights_stay_frozen():
    theirs = TORCH.Sequential(conv(), conv(6, 4, 1))
    theirs[0].weight.requires_grad_(False)
    ours = converted(theirs)
    assert [p.requires_grad for p in ours.parameters()] == [False, True, True, True]
    assert_same(ours, theirs, image())
    assert ours[0].weight.grad is None


def test_shared_weights_stay_one_tensor():
    theirs = TORCH.Sequential(conv(4, 4, 3), TORCH.ReLU(), conv(4, 4, 3))
    theirs[2].weight = theirs[0].weight
    ours = converted(theirs)
    assert ours[0].weight is ours[2].weight
    assert len(list(ours.parameters())) == 3
    assert_same(ours, theirs, image())
    strides = ours[0].weight.stride()
    nn.revert(ours)
    assert ours[0].weight is ours[2].weight
    assert ours[0].weight.stride() == theirs[0].weight.stride() != strides


def test_memory_that_others_have_too_stays_shared():
    """Other parameters over the same memory, and other processes."""
    theirs = TORCH.Sequential(conv(4, 4, 3), TORCH.ReLU(), conv(4, 4, 3), TORCH.Linear(36, 4))
    theirs[2].weight.data = theirs[0].weight.data
    theirs[3].weight.data = conv(4, 4, 3).weight.data.flatten(1)
    theirs.append(conv(4, 4, 3))
    theirs[4].weight.data = theirs[3].weight.data.view(4, 4, 3, 3)
    nn.convert(theirs, report=False)
    assert [type(theirs[i]) for i in (0, 2, 4)] == [nn.Conv2d] * 3
    for one, other in ((0, 2), (3, 4)):
        assert theirs[one].weight.data_ptr() == theirs[other].weight.data_ptr()
        with torch.no_grad():
            theirs[one].weight.fill_(one)
        assert (theirs[other].weight == one).all()
    processes = nn.convert(TORCH.Sequential(conv()).share_memory(), report=False)
    assert processes[0].weight.is_shared()
    assert type(processes[0]) is nn.Conv2d


def test_what_is_made_or_converted_in_inference_mode():
    theirs = TORCH.Sequential(conv())
    ours = copy.deepcopy(theirs)
    with torch.inference_mode():
        nn.convert(ours, report=False)
    assert not ours[0].weight.is_inference()
    assert_same(ours, theirs, image())
    with torch.inference_mode():
        nn.revert(ours)
    assert_same(ours, theirs, image())
    with torch.inference_mode():
        made = TORCH.Sequential(conv())
        made.load_state_dict(theirs.state_dict())
    nn.convert(made, report=False)
    with torch.inference_mode():
        torch.testing.assert_close(made(image()), theirs(image()))


def test_a_shared_module_stays_one():
    shared = conv(4, 4, 3)
    theirs = TORCH.Sequential(shared, TORCH.ReLU(), shared)
    ours = converted(theirs)
    assert ours[0] is ours[2]
    assert type(ours[0]) is nn.Conv2d
    assert len(nn.survey(theirs).layers) == 1
    assert_same(ours, theirs, image())
    nn.convert(ours.eval(), fold=True, report=False)
    with torch.no_grad():
        torch.testing.assert_close(ours(image()), theirs(image()))


def test_optimizers_made_before_go_on():
    theirs = TORCH.Sequential(conv())
    ours = copy.deepcopy(theirs)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (ours, theirs)]
    x = image()
    for step in range(4):
        if step == 2:
            nn.convert(ours, report=False)
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-3, atol=1e-4)


# --- other modules ------------------------------------------------------------------------------


def test_subclasses_of_ours_are_theirs():
    class Own(nn.Conv2d):
        pass

    model = TORCH.Sequential(Own(4, 6, 3, fallback="torch"))
    assert outcome(model) == {"0": "it is a Own"}
    assert type(nn.revert(nn.convert(model, report=False))[0]) is Own


def test_lazy_modules_are_left_until_they_know_their_input():
    theirs = TORCH.Sequential(TORCH.LazyConv2d(6, 3), TORCH.LazyConvTranspose2d(4, 3))
    found = nn.survey(theirs).layers
    assert [(layer.reason, layer.shape) for layer in found] == [
        ("it is a LazyConv2d", "?"),
        ("it is a LazyConvTranspose2d", "?"),
    ]
    nn.convert(theirs, report=False)
    x = image()
    theirs(x)
    assert outcome(theirs) == {"0": "", "1": ""}
    assert_same(converted(theirs), theirs, x)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("fold", [False, True])
def test_other_paddings_are_converted(dims, mode, fold):
    torch.manual_seed(0)
    layer = getattr(TORCH, f"Conv{dims}d")(4, 6, 3, padding=1, padding_mode=mode)
    theirs = TORCH.Sequential(layer, TORCH.ReLU()).eval()
    assert outcome(theirs) == {"0": ""}
    ours = nn.convert(copy.deepcopy(theirs), fold=fold, report=False)
    assert_same(ours, theirs, image(dims=dims))
    with torch.no_grad():
        torch.testing.assert_close(ours(image(dims=dims)), theirs(image(dims=dims)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", NAMES)
def test_dtypes_that_are_left(name, dtype):
    torch.manual_seed(0)
    model = TORCH.Sequential(getattr(TORCH, name)(4, 6, 3, dtype=dtype))
    (reason,) = outcome(model).values()
    expected = "float64 is not supported" if name == "Conv2d" else str(dtype).split(".")[1]
    assert expected in reason or str(dtype).split(".")[1] in reason
    ours = converted(model)
    assert type(ours[0]) is getattr(TORCH, name)
    assert_same(ours, model, image(dims=int(name[-2]), dtype=dtype))


@pytest.mark.parametrize("name", NAMES)
def test_a_dtype_that_comes_later_falls_back(name):
    torch.manual_seed(0)
    theirs = TORCH.Sequential(getattr(TORCH, name)(4, 6, 3))
    ours = converted(theirs).double()
    assert_same(ours, theirs.double(), image(dims=int(name[-2]), dtype=torch.float64))


def test_meta_models_are_converted_and_get_their_values_later():
    with torch.device("meta"):
        ours = TORCH.Sequential(conv(), TORCH.BatchNorm2d(6)).eval()
    assert outcome(ours) == {"0": ""}
    nn.convert(ours, fold=True, report=False)
    assert ours(torch.empty(1, 4, 7, 7, device="meta")).shape == (1, 6, 5, 5)
    theirs = TORCH.Sequential(conv(), TORCH.BatchNorm2d(6)).eval()
    ours.to_empty(device="cpu").load_state_dict(theirs.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(ours(image()), theirs(image()))
    with torch.device("meta"):
        other = nn.convert(TORCH.Sequential(conv(), TORCH.BatchNorm2d(6)).eval(), report=False)
    other.load_state_dict(theirs.state_dict(), assign=True)
    assert_same(other, theirs, image())


def quantization_and_engine():
    """torch's module for quantization, and the engine that is set for it."""
    quantization = pytest.importorskip("torch.ao.quantization")
    engines = [e for e in torch.backends.quantized.supported_engines if e != "none"]
    if not engines:
        pytest.skip("this torch has no engine for quantized tensors")
    torch.backends.quantized.engine = engines[0]
    return quantization, engines[0]


@pytest.mark.filterwarnings("ignore")
def test_quantized_models_are_left():
    quantization, engine = quantization_and_engine()

    class Net(TORCH.Module):
        def __init__(self):
            super().__init__()
            self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
            self.conv = conv(4, 8, 3)

        def forward(self, x):
            return self.dequant(self.conv(self.quant(x)))

    model = Net().eval()
    model.qconfig = quantization.get_default_qconfig(engine)
    prepared = quantization.prepare(model)
    prepared(image())
    quantized = quantization.convert(prepared)
    before = quantized(image())
    (layer,) = nn.survey(quantized).layers
    assert layer.reason.startswith("it is quantized (torch.ao.nn.quantized")
    assert layer.shape == "8x4x3x3"
    assert torch.equal(nn.convert(quantized, report=False)(image()), before)


@pytest.mark.filterwarnings("ignore")
def test_quantizing_later_takes_the_other_layers():
    quantization, engine = quantization_and_engine()
    theirs = TORCH.Sequential(conv(), TORCH.Flatten(), TORCH.Linear(6 * 5 * 4, 3)).eval()
    ours, other = (
        quantization.quantize_dynamic(model, {TORCH.Linear}, torch.qint8)
        for model in (converted(theirs), theirs)
    )
    assert type(ours[0]) is nn.Conv2d
    torch.testing.assert_close(ours(image()), other(image()))
    model = TORCH.Sequential(quantization.QuantStub(), conv(), quantization.DeQuantStub()).eval()
    model.qconfig = quantization.get_default_qconfig(engine)
    prepared = quantization.prepare(nn.convert(model, report=False))
    prepared(image())
    with pytest.raises(TypeError, match="must be a dense tensor, got a quantized one"):
        quantization.convert(prepared)(image())
    # Reverted before, it is quantized as ever.
    prepared = quantization.prepare(nn.revert(model))
    prepared(image())
    assert quantization.convert(prepared)(image()).shape == (2, 6, 5, 4)


@pytest.mark.filterwarnings("ignore")
def test_modules_for_quantization_aware_training_are_left():
    quantization = pytest.importorskip("torch.ao.quantization")
    qat = pytest.importorskip("torch.ao.nn.qat")
    qconfig = quantization.get_default_qat_qconfig("x86")
    fused = torch.ao.nn.intrinsic.qat.ConvBnReLU2d(6, 6, 3, qconfig=qconfig)
    model = TORCH.Sequential(qat.Conv2d(4, 6, 3, qconfig=qconfig), fused)
    reasons = list(outcome(model).values())
    assert reasons[0].startswith("it is quantized (torch.ao.nn.qat")
    assert reasons[1].startswith("it is quantized (torch.ao.nn.intrinsic.qat")
    assert len(str(nn.survey(model)).splitlines()) == 3
    kind = type(model[0])
    assert type(nn.convert(model, report=False)[0]) is kind


def test_weights_that_are_other_tensors_are_left():
    class Wrapped(torch.Tensor):
        pass

    model = TORCH.Sequential(conv(), conv())
    model[0].weight = TORCH.Parameter(model[0].weight.data.as_subclass(Wrapped))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model[1].weight = TORCH.Parameter(model[1].weight.data.to_sparse(), requires_grad=False)
    assert outcome(model) == {"0": "its weight is a Wrapped", "1": "its weight is torch.sparse_coo"}
    nn.convert(model, report=False)


def test_modules_without_a_weight_are_left():
    """Whose weight comes with every call, as that of a network that another one makes."""
    model = TORCH.Sequential(conv(), conv(), conv())
    model[0].register_parameter("weight", None)
    del model[1].weight
    model[2].weight = TORCH.Parameter(torch.empty(6, 0, 3, 3))
    *reasons, empty = outcome(nn.convert(model, report=False)).values()
    assert reasons == ["it has no weight"] * 2
    assert "expected sizes of at least 1" in empty
    assert [layer.shape for layer in nn.survey(model).layers] == ["?", "?", "6x0x3x3"]
    assert [type(layer) for layer in model] == [TORCH.Conv2d] * 3
    y = conv()
    model[1].weight = y.weight.detach()
    model[1].bias = y.bias
    torch.testing.assert_close(model[1](image()), y(image()))


def test_numbers_that_were_written_to_a_module():
    """Pruning libraries give modules other weights, and not always other numbers."""
    theirs = TORCH.Sequential(conv(8, 6, 3))
    theirs[0].weight = TORCH.Parameter(theirs[0].weight.data[:, :4].clone())
    theirs[0].stride = 2
    assert outcome(theirs) == {"0": ""}
    assert_same(converted(theirs), theirs, image())
    theirs[0].groups = 4
    (reason,) = outcome(theirs).values()
    assert "groups" in reason
    assert type(nn.convert(theirs, report=False)[0]) is TORCH.Conv2d


@pytest.mark.filterwarnings("ignore")
def test_pruned_modules():
    from torch.nn.utils import prune

    model = TORCH.Sequential(prune.random_unstructured(conv(), "weight", 0.5))
    assert outcome(model) == {"0": ""}
    before = model(image())
    torch.testing.assert_close(nn.convert(model, report=False)(image()), before)
    assert type(model[0]) is nn.Conv2d
    prune.remove(nn.revert(model)[0], "weight")
    torch.testing.assert_close(model(image()), before)
    theirs = TORCH.Sequential(conv())
    ours = nn.convert(copy.deepcopy(theirs), report=False, pack=False)
    for each in (ours, theirs):
        prune.l1_unstructured(each[0], "weight", 0.5)
    assert_same(ours, theirs, image())
    prune.remove(ours[0], "weight")
    assert type(nn.revert(ours)[0]) is TORCH.Conv2d


def test_what_views_weights_flat_works_unpacked():
    theirs = TORCH.Sequential(conv(), TORCH.ReLU())
    ours = nn.convert(copy.deepcopy(theirs), report=False, pack=False)
    losses = []
    for model in (ours, theirs):
        torch.manual_seed(2)
        TORCH.init.orthogonal_(model[0].weight)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

        def loss(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            result = model(image()).square().mean()
            result.backward()
            return result.detach()

        losses.append(torch.stack([optimizer.step(loss), loss()]))
    torch.testing.assert_close(*losses)


def test_replicas_and_functional_calls():
    """What DataParallel and torch.func give a module instead of its parameters."""
    theirs = TORCH.Sequential(conv())
    ours = converted(theirs)
    doubled = {name: 2 * p for name, p in theirs.named_parameters()}
    found, expected = (
        torch.func.functional_call(model, doubled, (image(),)) for model in (ours, theirs)
    )
    torch.testing.assert_close(found, expected)
    replica = ours[0]._replicate_for_data_parallel()
    replica.weight, replica.bias = doubled["0.weight"], doubled["0.bias"]
    torch.testing.assert_close(replica(image()), expected)
    assert_same(ours, theirs, image())


def test_fake_tensors_are_left():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = TORCH.Sequential(TORCH.Conv2d(4, 6, 3))
        assert outcome(nn.convert(model, report=False)) == {"0": "its weight is a FakeTensor"}
        assert model(torch.empty(2, 4, 7, 6)).shape == (2, 6, 5, 4)


def test_a_forward_that_was_replaced_is_left():
    model = TORCH.Sequential(conv())
    layer = model[0]
    layer.forward = lambda x: TORCH.Conv2d.forward(layer, x) * 2
    assert outcome(model) == {"0": "its forward was replaced"}
    before = model(image())
    assert torch.equal(nn.convert(model, report=False)(image()), before)


def test_compiled_and_scripted_models():
    model = TORCH.Sequential(conv())
    compiled = torch.compile(model, backend="eager")
    nn.convert(compiled, report=False)
    assert type(model[0]) is nn.Conv2d
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(TORCH.Sequential(conv(4, 8, 3), TORCH.ReLU()).eval())
        traced = torch.jit.trace(TORCH.Sequential(conv(4, 8, 3), TORCH.ReLU()).eval(), image())
    for model in (scripted, traced, TORCH.Sequential(scripted, TORCH.ReLU()).eval()):
        before = model(image())
        nn.convert(model, fold=True, norms=True, report=False)
        (layer,) = nn.survey(model, fold=True).layers
        assert (layer.shape, layer.reason) == ("8x4x3x3", "it is compiled (torch.jit)")
        assert torch.equal(nn.revert(model)(image()), before)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    "layer", [conv(), TORCH.ConvTranspose1d(4, 4, 3), TORCH.BatchNorm2d(4), TORCH.GroupNorm(2, 4)]
)
def test_scripting_says_to_revert_first(layer):
    model = TORCH.Sequential(TORCH.Sequential(copy.deepcopy(layer), TORCH.ReLU())).eval()
    name = type(layer).__name__
    nn.convert(model, fold=True, norms=True, report=False)
    with pytest.raises(RuntimeError, match=rf"not take the {name} of .*revert\(model\) first"):
        torch.jit.script(model)
    torch.jit.script(nn.revert(model))


@pytest.mark.parametrize("fold", [False, True])
def test_models_are_traced_and_exported(fold):
    theirs = TORCH.Sequential(
        conv(), TORCH.ReLU(), TORCH.ConvTranspose2d(6, 4, 3), TORCH.Sequential(conv(), TORCH.SiLU())
    ).eval()
    ours = nn.convert(copy.deepcopy(theirs), fold=fold, report=False)
    x = image()
    traced = torch.fx.symbolic_trace(ours)
    assert [n.op for n in traced.graph.nodes].count("call_function") >= 3
    exported = torch.export.export(ours, (x,)).module()
    with torch.no_grad():
        for other in (traced, exported):
            torch.testing.assert_close(other(x), theirs(x))


# --- the table ----------------------------------------------------------------------------------


def test_the_table_is_printed(capsys):
    model = TORCH.Sequential(conv(), TORCH.ReLU(), conv(6, 4, 1, stride=9)).eval()
    nn.convert(model, fold=True)
    text = capsys.readouterr().out
    for part in ("Conv2d", "converted with ReLU", "left: conv stride 9 in H"):
        assert part in text
    assert "2 convolutions: 1 converted, 1 left, 1 folded" in text
    nn.convert(model, report=False)
    assert capsys.readouterr().out == ""


def test_the_table_by_rich(capsys):
    pytest.importorskip("rich", reason="needs rich, which is not installed")
    model = TORCH.Sequential(conv(), TORCH.Sequential(conv(6, 4, 1, stride=9)))
    nn.convert(model)
    lines = capsys.readouterr().out.splitlines()
    assert any(all(t in line for t in ("1.0", "Conv2d", "4x6x1x1", "left: conv")) for line in lines)
    nn.convert(TORCH.Linear(2, 2))
    assert "no convolutions" in capsys.readouterr().out
