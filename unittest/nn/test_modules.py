"""The modules beside torch's: the same constructor, state dict, text, results and gradients.

With ``fallback="torch"`` on the CPU the operators are torch's; what the kernels give is tested in
``unittest/ops``.
"""

from __future__ import annotations

import copy
import inspect
import io

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")

import torch
from triton_ext import nn
from triton_ext.ops.core.descriptors import channels_last, channels_last_strides

NAMES = [f"{kind}{dims}d" for kind in ("Conv", "ConvTranspose") for dims in (1, 2, 3)]
CASES = [
    {},
    {"stride": 2, "padding": 1, "bias": False},
    {"dilation": 2, "groups": 2, "padding": 2},
]
MODES = [
    {"padding": "same", "dilation": 2},
    {"padding": "valid"},
    {"padding": 2, "padding_mode": "reflect"},
    {"padding": 1, "padding_mode": "circular", "stride": 2},
    {"padding": "same", "padding_mode": "replicate"},
]


def both(name: str, **keywords: object):
    """Ours and torch's with the same parameters."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(4, 6, 3, **keywords)
    torch.manual_seed(0)
    ours = getattr(nn, name)(4, 6, 3, **keywords, fallback="torch")
    return ours, theirs


def image(name: str) -> torch.Tensor:
    size = (7, 6, 5)[: int(name[-2])]
    return channels_last(torch.randn(2, 4, *size))


@pytest.mark.parametrize("name", ["Conv2d", "ConvTranspose1d"])
def test_forward_mode_derivatives_are_torchs(name):
    ours, theirs = both(name, padding=1)
    x, tangent = image(name), image(name)
    found, expected = (torch.func.jvp(m, (x,), (tangent,)) for m in (ours, theirs))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_signature_is_torchs_and_the_fallback(name):
    found = dict(inspect.signature(getattr(nn, name)).parameters)
    assert found.pop("fallback").default == "error"
    assert found == dict(inspect.signature(getattr(torch.nn, name)).parameters)
    made = torch.nn.utils.skip_init(getattr(nn, name), 4, 6, 3, fallback="torch")
    assert made.weight.shape == getattr(torch.nn, name)(4, 6, 3).weight.shape
    assert (made.weight.device.type, made.fallback) == ("cpu", "torch")
    assert made.weight.stride(1) == 1


def test_the_signature_of_a_subclass_is_its_own():
    class Square(nn.Conv2d):
        def __init__(self, channels):
            super().__init__(channels, channels, 3)

    class Named(nn.Conv2d):
        pass

    assert list(inspect.signature(Square).parameters) == ["channels"]
    assert inspect.signature(Named) == inspect.signature(nn.Conv2d)
    assert not hasattr(Named(3, 3, 3), "__signature__")


def compare(ours, theirs, x, *arguments) -> None:
    given = [x.clone().requires_grad_() for _ in range(2)]
    results = [m(t, *arguments) for m, t in zip((ours, theirs), given, strict=True)]
    torch.testing.assert_close(*results)
    for result in results:
        result.square().sum().backward()
    torch.testing.assert_close(given[0].grad, given[1].grad, rtol=1e-4, atol=1e-4)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keywords", CASES, ids=str)
def test_results_and_gradients_are_torchs(name, keywords):
    ours, theirs = both(name, **keywords)
    compare(ours, theirs, image(name))


@pytest.mark.parametrize("name", NAMES[:3])
@pytest.mark.parametrize("keywords", MODES, ids=str)
def test_paddings(name, keywords):
    if name == "Conv3d" and keywords.get("padding_mode") == "reflect":
        keywords = {**keywords, "padding": 1}
    ours, theirs = both(name, **keywords)
    compare(ours, theirs, image(name))
    x = image(name)
    torch.testing.assert_close(ours(x[0]), theirs(x[0]))


@pytest.mark.parametrize("name", NAMES[3:])
def test_output_sizes(name):
    ours, theirs = both(name, stride=2, padding=1)
    x = image(name)
    size = [2 * n for n in x.shape[2:]]
    assert list(ours(x, size).shape[2:]) == size
    compare(ours, theirs, x, size)


@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_torchs(name):
    for keywords in CASES:
        module = getattr(nn, name)(4, 6, 3, **keywords)
        assert repr(module) == repr(getattr(torch.nn, name)(4, 6, 3, **keywords))
    assert repr(getattr(nn, name)(4, 6, 3, fallback="torch")).endswith("fallback=torch)")


@pytest.mark.parametrize("name", NAMES)
def test_state_dicts_go_both_ways(name):
    ours, theirs = both(name)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    assert ours.weight.stride() == channels_last_strides(ours.weight.shape)
    x = image(name)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    fresh = getattr(torch.nn, name)(4, 6, 3)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    for key, value in theirs.state_dict().items():
        assert torch.equal(fresh.state_dict()[key], value)
        assert list(ours.state_dict()[key].shape) == list(value.shape)


def test_the_weight_lies_as_the_kernels_read_it():
    module = nn.Conv2d(4, 6, 3)
    parameter = module.weight
    packed = channels_last_strides(parameter.shape)
    assert parameter.stride() == packed
    for other in (copy.deepcopy(module), module.half(), module.to("meta")):
        assert other.weight.stride() == packed
    module = nn.Conv2d(4, 6, 3)
    module.load_state_dict(torch.nn.Conv2d(4, 6, 3).state_dict(), assign=True)
    assert module.weight.stride() != packed
    replaced = module.weight
    module.pack_weight()
    assert module.weight is replaced
    assert module.weight.stride() == packed


def test_updates_in_place_are_seen():
    module, other = both("Conv2d")
    x = image("Conv2d")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (module, other)]
    for _ in range(3):
        for m, optimizer in zip((module, other), optimizers, strict=True):
            optimizer.zero_grad()
            m(x).square().mean().backward()
            optimizer.step()
        # As many an exponential moving average does it, past autograd's version counter.
        for m in (module, other):
            m.weight.data.mul_(0.9)
        torch.testing.assert_close(module(x), other(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inside", [True, False])
def test_a_weight_is_of_inference_mode_where_it_was(inside):
    """Whatever the mode that it is packed in, and back."""
    with torch.inference_mode(inside):
        layer = torch.nn.Conv2d(4, 6, 3)
        made = nn.Conv2d(4, 6, 3)
    with torch.inference_mode(not inside):
        nn.convert(layer, report=False)
    assert layer.weight.stride() == made.weight.stride() == channels_last_strides((6, 4, 3, 3))
    for weight in (made.weight, layer.weight, nn.revert(layer).weight):
        assert weight.is_inference() == inside
        with torch.no_grad():
            assert weight.permute(0, 2, 3, 1).shape == (6, 3, 3, 4)


def test_it_is_torchs_module():
    for name in NAMES:
        assert issubclass(getattr(nn, name), getattr(torch.nn, name))


def test_compiles_into_one_graph():
    torch._dynamo.reset()
    module = torch.nn.Sequential(
        nn.Conv2d(4, 8, 3, padding="same", fallback="torch"),
        torch.nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 3, stride=2, fallback="torch"),
    )
    x = image("Conv2d")
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), module(x))


def test_refusals():
    with pytest.raises(ValueError, match='expected "error" or "torch", got \'cudnn\''):
        nn.Conv2d(4, 6, 3, fallback="cudnn")
    module = nn.Conv2d(8, 8, 3).half()
    with pytest.raises(ValueError, match="channels must be contiguous"):
        module(torch.ones(1, 8, 6, 6).half())


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_filters_of_depthwise_convolutions_lie_with_their_taps_outermost(dims, transposed):
    kind = f"Conv{'Transpose' * transposed}{dims}d"
    ours = getattr(nn, kind)(8, 8, 3, groups=8, fallback="torch")
    # [taps, C], as the kernels read it.
    assert ours.weight.flatten(1).mT.is_contiguous()
    theirs = getattr(torch.nn, kind)(8, 8, 3, groups=8)
    theirs.load_state_dict(ours.state_dict())
    assert theirs.weight.is_contiguous()
    x = torch.randn(2, 8, *(5,) * dims)
    y, expected = ours(x), theirs(x)
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    # Two channels of a group, and two filters of a channel, lie as others do.
    for channels, groups in ((8, 4), (4, 4)):
        other = nn.Conv2d(channels, 8, 3, groups=groups)
        assert other.weight.stride(0) != 1
