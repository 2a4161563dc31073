"""Weights and norms that are changed through any door: what is computed is never stale.

Random sequences of updates are done to a converted model and to torch's own beside it.
"""

from __future__ import annotations

import copy
import io
import os

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")
pytest.importorskip("hypothesis")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_ext import nn
from triton_ext.ops.core.descriptors import channels_last_strides

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
EXAMPLES = 150 if NIGHTLY else 40


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(4, 6, 3, padding=1),
        torch.nn.BatchNorm2d(6),
        torch.nn.ReLU(),
        torch.nn.Conv2d(6, 4, 2, bias=False),
        torch.nn.BatchNorm2d(4, affine=False),
    ).eval()


def image(model: torch.nn.Module) -> torch.Tensor:
    torch.manual_seed(1)
    x = torch.randn(1, 4, 5, 5, dtype=model[0].weight.dtype)
    return x.to(memory_format=torch.channels_last)


def tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    found = [*model.parameters(), *model.buffers()]
    return [t for t in found if t.is_floating_point()]


def like(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Small positive numbers, which variances may be, of the same dtype in torch's order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(tensor.shape, generator=generator).add(0.1).to(tensor.dtype)


# --- updates that torch knows of ----------------------------------------------------------------


def optimize(kind, **how):
    def update(model, seed):
        optimizer = kind(model.parameters(), lr=0.05, **how)
        for parameter in model.parameters():
            parameter.grad = like(parameter, seed)
        optimizer.step()
        optimizer.zero_grad()

    return update


def in_place(function):
    @torch.no_grad()
    def update(model, seed):
        for tensor in tensors(model):
            function(tensor, like(tensor, seed))

    return update


def load(assign):
    def update(model, seed):
        state = {
            key: like(value, seed) if value.is_floating_point() else value.clone()
            for key, value in model.state_dict().items()
        }
        model.load_state_dict(state, assign=assign)

    return update


def average(model, seed):
    """An exponential moving average that is made elsewhere and put back."""
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5), use_buffers=True
    )
    in_place(torch.Tensor.copy_)(model, seed)
    averaged.update_parameters(model)
    model.load_state_dict(averaged.module.state_dict())


def swap_data(model, seed):
    for tensor in tensors(model):
        tensor.data = like(tensor, seed)


def swap_data_in_other_order(model, seed):
    for tensor in tensors(model):
        tensor.data = like(tensor, seed).movedim(0, -1).contiguous().movedim(-1, 0)


def swap_data_back_and_forth(model, seed):
    """A tensor at a new address, changed, and again one at what may be the old address."""
    for tensor in tensors(model):
        tensor.data = like(tensor, seed)
        tensor.data = like(tensor, seed + 1)


def new_parameters(model, seed):
    for module in model:
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                setattr(module, name, torch.nn.Parameter(like(parameter, seed)))
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.is_floating_point():
                setattr(module, name, like(buffer, seed))


def swap_tensors(model, seed):
    for parameter in model.parameters():
        torch.utils.swap_tensors(parameter, torch.nn.Parameter(like(parameter, seed)))


def from_vector(model, seed):
    vector = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    torch.nn.utils.vector_to_parameters(like(vector, seed), model.parameters())


def through_half(model, seed):
    model.half().float()


def order(model, seed):
    formats = (torch.channels_last, torch.contiguous_format)
    model.to(memory_format=formats[seed % 2])


def through_a_file(model, seed):
    file = io.BytesIO()
    in_place(torch.Tensor.copy_)(model, seed)
    torch.save(model.state_dict(), file)
    in_place(torch.Tensor.add_)(model, seed)
    file.seek(0)
    model.load_state_dict(torch.load(file, weights_only=True))


def epsilon(model, seed):
    model[1].eps = 0.01 * (seed % 7 + 1)


def statistics(model, seed):
    model.train()
    with torch.no_grad():
        model(image(model))
    model.eval()


KNOWN = {
    "SGD": optimize(torch.optim.SGD, momentum=0.9),
    "Adam": optimize(torch.optim.Adam, foreach=True),
    "copy_": in_place(torch.Tensor.copy_),
    "lerp_": in_place(lambda tensor, other: tensor.lerp_(other, 0.3)),
    "mul_": in_place(torch.Tensor.mul_),
    "slice": in_place(lambda tensor, other: tensor[:2].add_(other[:2])),
    "detach": in_place(lambda tensor, other: tensor.detach().add_(other)),
    "view": in_place(lambda tensor, other: tensor.permute(*range(tensor.dim())).add_(other)),
    "init": in_place(lambda tensor, other: torch.nn.init.constant_(tensor, other.mean().item())),
    "load_state_dict": load(False),
    "load_state_dict(assign)": load(True),
    "average": average,
    "swap_data": swap_data,
    "swap_data_in_other_order": swap_data_in_other_order,
    "swap_data_back_and_forth": swap_data_back_and_forth,
    "new_parameters": new_parameters,
    "swap_tensors": swap_tensors,
    "from_vector": from_vector,
    "half": through_half,
    "order": order,
    "file": through_a_file,
    "eps": epsilon,
    "train": statistics,
}

# --- updates that go past torch -----------------------------------------------------------------


def past(function):
    def update(model, seed):
        for tensor in tensors(model):
            function(tensor, like(tensor, seed))

    return update


def in_numpy(tensor, other):
    tensor.detach().numpy()[...] = other.numpy()


PAST = {
    "data.mul_": past(lambda tensor, other: tensor.data.mul_(other)),
    "data.lerp_": past(lambda tensor, other: tensor.data.lerp_(other, 0.3)),
    "numpy": past(in_numpy),
}
ALL = {**KNOWN, **PAST}

steps = st.tuples(st.sampled_from(sorted(ALL)), st.integers(0, 1000))
known_steps = st.tuples(st.sampled_from(sorted(KNOWN)), st.integers(0, 1000))


def compare(ours, theirs):
    x = image(theirs)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


def run(ours, theirs, sequence):
    compare(ours, theirs)
    for name, seed in sequence:
        for model in (ours, theirs):
            torch.manual_seed(seed)
            ALL[name](model, seed)
        if name in PAST:
            nn.refresh(ours)
        compare(ours, theirs)
    nn.revert(ours)
    compare(ours, theirs)
    for one, other in zip(tensors(ours), tensors(theirs), strict=True):
        torch.testing.assert_close(one, other)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(st.lists(steps, max_size=6), st.booleans(), st.booleans())
def test_weights_and_norms_are_never_stale(sequence, fold, pack):
    theirs = network()
    ours = nn.convert(copy.deepcopy(theirs), report=False, fold=fold, pack=pack)
    run(ours, theirs, sequence)


@pytest.mark.parametrize("name", ALL)
def test_every_update_alone(name):
    theirs = network()
    ours = nn.convert(copy.deepcopy(theirs), report=False, fold=True)
    run(ours, theirs, [(name, 3), (name, 4)])


@pytest.mark.parametrize("name", PAST)
def test_without_folding_nothing_has_to_be_told(name):
    theirs = network()
    ours = nn.convert(copy.deepcopy(theirs), report=False)
    for seed in (1, 2):
        for model in (ours, theirs):
            ALL[name](model, seed)
        compare(ours, theirs)


@pytest.mark.parametrize("model", [None, 3, torch.nn.Conv2d])
@pytest.mark.parametrize("function", [nn.refresh, nn.revert])
def test_modules_are_wanted(function, model):
    text = f"^{function.__name__}: expected a torch.nn.Module, got {type(model).__name__}$"
    with pytest.raises(TypeError, match=text):
        function(model)


@pytest.mark.parametrize(
    "tell", [nn.refresh, torch.nn.Module.eval, lambda model: model.train().eval()]
)
def test_what_refresh_is_for(tell):
    """Were this not so, refresh could go; a change of mode tells as much."""
    ours = nn.convert(torch.nn.Sequential(network()).eval(), report=False, fold=True)
    theirs = torch.nn.Sequential(network()).eval()
    x = image(ours[0])
    with torch.no_grad():
        before = ours(x)
        for model in (ours, theirs):
            model[0][1].bias.data.add_(1)
        assert torch.equal(ours(x), before)
        assert tell(ours) is ours
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


FUSED = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True),
}


@pytest.mark.parametrize("optimizer", FUSED)
@pytest.mark.parametrize("at", ["before", "recorded", "computed", "through keywords"])
def test_fused_optimizers_write_past_versions(optimizer, at):
    """Whenever something is inferred between two steps."""

    class Named(torch.nn.Sequential):
        def forward(self, input):
            return super().forward(input)

    theirs = Named(*network()).eval()
    ours = nn.convert(copy.deepcopy(theirs), report=False, fold=True)
    results = []
    for model in (ours, theirs):
        x, seen = image(model), []

        def infer(now, model=model, x=x, seen=seen):
            if now in (at, "behind"):
                with torch.no_grad():
                    seen.append(model(x))

        steps = FUSED[optimizer](model.parameters())
        for _ in range(3):
            infer("before")
            loss = (model(input=x) if at == "through keywords" else model(x)).square().sum()
            infer("recorded")
            loss.backward()
            infer("computed")
            version = model[1].weight._version
            steps.step()
            assert model[1].weight._version == version
            steps.zero_grad()
            infer("behind")
        results.append(seen)
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-4)


def test_what_is_kept_after_training():
    """Nothing between a call that records derivatives and the next change of mode."""
    ours = nn.convert(network(), report=False, fold=True)
    fold, x = ours._triton_ext_folds[-1], image(ours)

    def computed_again() -> bool:
        with torch.no_grad():
            ours(x)
            known = fold._known
            ours(x)
        return fold._known is not known

    assert not computed_again()
    where = fold._known.scale.data_ptr()
    ours(x)
    assert computed_again()
    ours.eval()
    assert not computed_again()
    ours.train()
    ours(x)
    ours.eval()
    assert not computed_again()
    assert fold._known.scale.data_ptr() == where  # which a captured graph reads


@pytest.mark.parametrize("trained", ["nothing", "norm", "convolution"])
def test_what_is_kept_of_frozen_modules(trained):
    """As of a network that is part of a loss: recorded for its input, with nothing to step."""
    ours = nn.convert(network()[:3].eval(), report=False, fold=True)
    for name, module in (("convolution", ours[0]), ("norm", ours[1])):
        module.requires_grad_(trained == name)
    fold, x = ours._triton_ext_folds[0], image(ours)
    with torch.no_grad():
        ours(x)
    known = fold._known
    (slope,) = torch.autograd.grad(ours(x.requires_grad_()).sum(), x)
    assert slope.abs().max() > 0
    with torch.no_grad():
        ours(x)
    assert (fold._known is known) == (trained == "nothing")
    ours.requires_grad_(True)
    ours(x)
    with torch.no_grad():
        ours(x)
    assert fold._known is not known


def test_a_norm_is_computed_once():
    ours = nn.convert(network(), report=False, fold=True)
    fold = ours._triton_ext_folds[-1]
    with torch.no_grad():
        ours(image(ours))
        first = fold.vectors(ours[1], ours[0].bias)
        second = fold.vectors(ours[1], ours[0].bias)
        assert all(one is other for one, other in zip(first, second, strict=True))
        ours[1].weight.mul_(2)
        third = fold.vectors(ours[1], ours[0].bias)
        # In the same memory, which a captured graph may read.
        assert third[0].data_ptr() == first[0].data_ptr()


# --- memory order -------------------------------------------------------------------------------


def test_packing_keeps_the_parameter_and_its_values():
    model = network()
    parameters = list(model.parameters())
    values = [p.clone() for p in parameters]
    nn.convert(model, report=False)
    assert model[0].weight.stride() == channels_last_strides(model[0].weight.shape)
    nn.revert(model)
    for parameter, now, value in zip(parameters, model.parameters(), values, strict=True):
        assert now is parameter
        assert now.stride() == value.stride()
        assert torch.equal(now, value)


def test_revert_leaves_a_model_channels_last_that_was():
    model = network().to(memory_format=torch.channels_last)
    strides = [p.stride() for p in model.parameters()]
    nn.revert(nn.convert(model, report=False))
    assert [p.stride() for p in model.parameters()] == strides


def test_without_packing_the_memory_stays():
    model = network()
    pointers = [p.data_ptr() for p in model.parameters()]
    nn.convert(model, report=False, pack=False)
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert all(p.is_contiguous() for p in model.parameters())


def test_a_part_of_another_tensor_stays_one():
    model = network()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    for parameter, part in zip(
        model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True
    ):
        parameter.data = part.view(parameter.shape)
    theirs = copy.deepcopy(model)
    nn.convert(model, report=False)
    flat.mul_(2)
    for parameter in theirs.parameters():
        parameter.data.mul_(2)
    compare(model, theirs)


def test_gradients_move_with_their_weights():
    """Fused optimizers read both as they lie."""
    theirs = network()
    ours = copy.deepcopy(theirs)
    for turn in (nn.convert, nn.revert):
        for model in (ours, theirs):
            model.zero_grad()
            model(image(model)).square().sum().backward()
        grads = [p.grad for p in ours.parameters()]
        turn(ours, **({"report": False} if turn is nn.convert else {}))
        for parameter, grad in zip(ours.parameters(), grads, strict=True):
            assert parameter.grad is grad
            assert grad.stride() == parameter.stride()
        for model in (ours, theirs):
            torch.optim.SGD(model.parameters(), lr=0.01, fused=True).step()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other)


def test_a_gradient_that_is_a_part_of_another_tensor_stays_one():
    model = network()
    flat = torch.zeros(sum(p.numel() for p in model.parameters()))
    parts = flat.split([p.numel() for p in model.parameters()])
    for parameter, part in zip(model.parameters(), parts, strict=True):
        parameter.grad = part.view(parameter.shape)
    nn.convert(model, report=False)
    model(image(model)).square().sum().backward()
    torch.testing.assert_close(flat, torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert type(model[0]) is nn.Conv2d
    assert model[0].weight.is_contiguous()


def as_part(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a larger tensor, and a part of it that looks like a tensor."""
    whole = torch.zeros(tensor.numel() + 5)
    part = whole[: tensor.numel()].as_strided(tensor.shape, tensor.stride())
    return whole, part.copy_(tensor.detach())


@pytest.mark.parametrize("turn", ["revert", "pack_weight"])
@pytest.mark.parametrize("which", ["data", "grad"])
def test_what_became_a_part_of_another_tensor_stays_one(turn, which):
    layer = nn.convert(torch.nn.Conv2d(4, 6, 3), report=False, pack=turn == "revert")
    weight = layer.weight
    values, strides = weight.detach().clone(), weight.stride()
    weight.grad = torch.ones_like(weight)
    whole, part = as_part(getattr(weight, which))
    setattr(weight, which, part)
    nn.revert(layer) if turn == "revert" else layer.pack_weight()
    assert weight.stride() == weight.grad.stride() == strides
    assert torch.equal(weight, values)
    getattr(weight, which).fill_(7)
    assert whole.tolist() == [7] * values.numel() + [0] * 5


@pytest.mark.parametrize("by", ["processes", "layers"])
def test_what_is_shared_stays_shared_behind_revert(by):
    model = nn.convert(torch.nn.Sequential(*[torch.nn.Conv2d(4, 4, 3)] * 2), report=False)
    other = nn.convert(torch.nn.Conv2d(4, 4, 3), report=False)
    model.append(other)
    if by == "processes":
        model.share_memory()
    else:
        other.weight.data = model[0].weight.data
    values = [p.detach().clone() for p in model.parameters()]
    pointers = [p.data_ptr() for p in model.parameters()]
    nn.revert(model)
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert all(map(torch.equal, model.parameters(), values))


@pytest.mark.parametrize(("pack", "fused"), [(False, True), (True, False)])
def test_the_state_of_an_optimizer_behind_the_conversion(pack, fused):
    """The two ways that docs/models.md has; fused ones with packed weights are wrong in torch."""
    theirs = network()
    ours = copy.deepcopy(theirs)
    made = [torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused) for model in (ours, theirs)]
    for turn in range(2):
        for model, optimizer in zip((ours, theirs), made, strict=True):
            optimizer.zero_grad()
            model(image(model)).square().sum().backward()
            optimizer.step()
        if not turn:
            nn.convert(ours, report=False, pack=pack)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
