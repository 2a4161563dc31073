"""Networks of public libraries are converted, reported and reverted, on tensors without data.

Networks whose library is not installed are skipped.
"""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")
if importlib.util.find_spec("examples") is None:
    pytest.skip("the examples are not beside the tests", allow_module_level=True)

import torch
from torch.nn.utils.parametrize import is_parametrized
from triton_ext import nn

from examples.models.library import EXAMPLES

TORCH = torch.nn


def made(name):
    entry = EXAMPLES[name]
    pytest.importorskip(entry.library, reason=f"{entry.library} is not installed")
    with torch.device("meta"):
        try:
            return entry.make(1)
        except (NotImplementedError, RuntimeError):  # its constructor reads numbers of tensors
            pass
    model, inputs = entry.make(1)
    return model.to("meta"), tuple(x.to("meta") for x in inputs)


def state(model):
    """Returns what revert has to give back: classes, every tensor with its memory order."""
    kinds = [
        # torch makes a class of its own for each parametrized module
        (name, type(m).__bases__ if is_parametrized(m) else type(m), sorted(vars(m)))
        for name, m in model.named_modules()
    ]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return kinds, [(name, id(t), t.shape, t.stride(), t.dtype) for name, t in tensors]


def shapes(output):
    if isinstance(output, torch.Tensor):
        return (tuple(output.shape), output.dtype)
    parts = output.values() if hasattr(output, "values") else output
    return [shapes(part) for part in parts if part is not None]


# Its forward reads numbers of tensors.
NEEDS_DATA = {"encodec"}


@pytest.mark.parametrize("name", EXAMPLES)
@torch.no_grad()
def test_a_network_is_converted_reported_and_reverted(name):
    model, inputs = made(name)
    model = model.eval()
    convolutions = [
        n for n, m in model.named_modules() if isinstance(m, TORCH.modules.conv._ConvNd)
    ]
    expected = None if name in NEEDS_DATA else shapes(model(*inputs))
    before = state(model)
    found = nn.survey(model, fold=True, norms=True)
    nn.convert(model, report=False, fold=True, norms=True)
    layers = {layer.name: layer for layer in found.layers}
    assert set(layers) == set(convolutions)
    for path in convolutions:
        assert hasattr(model.get_submodule(path), "counts") or layers[path].reason
    report = nn.report(model)
    assert {each.name for each in report.modules} | set(report.left) == set(convolutions)
    if expected is not None:
        assert shapes(model(*inputs)) == expected
        report = nn.report(model)
        assert report.ours == 0  # nothing was computed
        assert report.torch >= len(convolutions) // 3  # a VAE of which the decoder runs
    nn.revert(model)
    assert state(model) == before


# Those that take small inputs, with them.
SMALL = {
    "resnet50": (3, 64, 64),
    "convnext_base": (3, 64, 64),
    "tf_efficientnetv2_s": (3, 64, 64),
    "convnext_base_timm": (3, 64, 64),
    "resnetv2_50x1_bit": (3, 64, 64),
    "convnextv2": (3, 64, 64),
    "wan_vae": (16, 2, 4, 4),
    "hunyuan_vae": (16, 2, 4, 4),
    "oobleck": (64, 4),
    "basicunet": (1, 32, 32, 32),
    "hifigan": (10, 80),
    "encodec": (1, 4800),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
@torch.no_grad()
def test_a_converted_network_computes_what_it_did(name):
    entry = EXAMPLES[name]
    pytest.importorskip(entry.library, reason=f"{entry.library} is not installed")
    torch.manual_seed(0)
    model, inputs = entry.make(1)
    model, x = model.eval(), torch.randn(1, *SMALL[name]).clamp(-2, 2)
    del inputs
    expected = first(model(x))
    nn.convert(model, report=False, fold=True, norms=True)
    torch.testing.assert_close(first(model(x)), expected, rtol=1e-3, atol=1e-3)
    nn.revert(model)
    torch.testing.assert_close(first(model(x)), expected)


def first(output):
    while not isinstance(output, torch.Tensor):
        parts = output.values() if hasattr(output, "values") else output
        output = next(part for part in parts if part is not None)
    return output
