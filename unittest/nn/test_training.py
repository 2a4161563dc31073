"""Converted models in training: memory, autocast, scaling, checkpointing, compiling.

With ``fallback="torch"`` on the CPU; ``interpreter_nn.py`` trains with the kernels.
"""

from __future__ import annotations

import copy
import io

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")

import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from triton_ext import nn

TORCH = torch.nn


class Net(TORCH.Module):
    """Every kind of convolution that is converted, with what may stand between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = TORCH.Sequential(
            TORCH.Conv2d(3, 8, 3, padding=1, bias=False), TORCH.BatchNorm2d(8), TORCH.ReLU(True)
        )
        self.second = TORCH.Sequential(
            TORCH.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), TORCH.SiLU()
        )
        self.third = TORCH.Conv2d(8, 8, 3, padding=1, groups=8)
        self.fourth = TORCH.ConvTranspose2d(8, 4, 2, stride=2)

    def forward(self, x):
        y = self.first(x)
        return self.fourth(self.third(self.second(y)) + y)


def pair() -> tuple[Net, Net]:
    """Ours and torch's, channels-last."""
    theirs = Net().to(memory_format=torch.channels_last).train()
    return nn.convert(copy.deepcopy(theirs), report=False), theirs


def image(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, 8, 6).to(dtype).to(memory_format=torch.channels_last)


def gradients(model, x, run=None):
    model.zero_grad(set_to_none=True)
    x = x.detach().requires_grad_()
    y = (model if run is None else run)(x)
    y.float().square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


def close(ours, theirs, tolerance=1e-4):
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def kept_bytes(model, x, context=None) -> int:
    """What lies in memory for the backward: every storage once."""
    sizes = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)  # so that no other storage gets its address
        return tensor

    alive = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        if context is None:
            model(x)
        else:
            with context:
                model(x)
    return sum(sizes.values())


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("autocast", [False, True])
def test_the_backward_keeps_no_more_than_torchs(autocast):
    found = []
    for model in pair():
        context = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else None
        found.append(kept_bytes(model, image().requires_grad_(), context))
    assert 0 < found[0] <= found[1]


@pytest.mark.parametrize("name", ["Conv1d", "Conv3d", "ConvTranspose1d", "ConvTranspose3d"])
def test_no_layer_keeps_more_than_torchs(name):
    theirs = getattr(TORCH, name)(4, 6, 3)
    ours = nn.convert(copy.deepcopy(theirs), report=False)
    x = torch.randn(2, *((7, 6, 5)[: int(name[-2])]), 4).movedim(-1, 1).requires_grad_()
    assert 0 < kept_bytes(ours, x) <= kept_bytes(theirs, x)


def test_frozen_layers_keep_what_torchs_do():
    """A layer without a derivative keeps nothing at all."""
    found = []
    for model in pair():
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        found.append(kept_bytes(model, image()))
    assert found == [0, 0]


# --- dtypes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    ours, theirs = pair()
    x = image()

    def under(model):
        def run(x):
            with torch.autocast("cpu", dtype=dtype):
                return model(x)

        return gradients(model, x, run)

    found, expected = under(ours), under(theirs)
    assert found[0].dtype == dtype
    assert all(g.dtype == torch.float32 for g in found[1:])
    exact = gradients(copy.deepcopy(theirs).double(), x.double())
    for our, their, right in zip(found, expected, exact, strict=True):
        distances = [(g.double() - right).norm() / right.norm() for g in (our, their)]
        assert distances[0] <= 2 * distances[1] + torch.finfo(dtype).eps


def test_a_gradient_scaler():
    ours, theirs = pair()
    x = image()
    states = []
    for model in (ours, theirs):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        # fp16's gradients overflow at first, and no step is made then.
        states.append((scaler.get_scale(), [p.detach() for p in model.parameters()]))
    assert states[0][0] == states[1][0] < 2.0**60
    close(states[0][1], states[1][1], 1e-3)


# --- checkpointing, determinism, compiling ------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant):
    ours, theirs = pair()
    x = image()

    def run(x):
        y = checkpoint(ours.first, x, use_reentrant=reentrant)
        z = checkpoint_sequential(ours.second, 2, y, use_reentrant=reentrant)
        return checkpoint(
            lambda y, z: ours.fourth(ours.third(z) + y), y, z, use_reentrant=reentrant
        )

    # Norms see their batch twice; their outputs do not change by that.
    close(gradients(ours, x, run), gradients(theirs, x))
    assert kept_bytes(run, x.requires_grad_()) < kept_bytes(ours, x)


def test_deterministic_mode():
    ours, theirs = pair()
    x = image()
    torch.use_deterministic_algorithms(True)
    try:
        first, second = gradients(ours, x), gradients(ours, x)
        expected = gradients(theirs, x)
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    close(first, expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_training_is_one_graph(dynamic):
    torch._dynamo.reset()
    ours, theirs = pair()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for x in (image(), image()[:1]) if dynamic else (image(),):
        close(gradients(ours, x, compiled), gradients(theirs, x))


def test_compiled_after_autocast_and_checkpointing():
    torch._dynamo.reset()
    ours, theirs = pair()
    x = image()

    def run(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = checkpoint(ours.first, x, use_reentrant=False)
            return ours.fourth(ours.third(ours.second(y)) + y)

    def expected(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return theirs(x)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    found, other = gradients(ours, x, compiled), gradients(theirs, x, expected)
    for one, two in zip(found, other, strict=True):
        assert (one - two).norm() <= 0.05 * two.norm()


# --- checkpoints --------------------------------------------------------------------------------


def test_a_checkpoint_goes_from_torch_to_ours_and_back():
    x = image()

    def train(model, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    def made(model):
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def stored(model, optimizer):
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        return file

    def loaded(model, file):
        file.seek(0)
        state, of_optimizer = torch.load(file, weights_only=True)
        model.load_state_dict(state, strict=True)
        optimizer = made(model)
        optimizer.load_state_dict(of_optimizer)
        return optimizer

    start = Net().train()
    optimizer = made(start)
    train(start, optimizer, 2)
    file = stored(start, optimizer)
    results = []
    for convert in (True, False):
        model = Net().to(memory_format=torch.channels_last).train()
        if convert:
            nn.convert(model, report=False)
        optimizer = loaded(model, file)
        train(model, optimizer, 3)
        back = Net().train()
        train(back, loaded(back, stored(model, optimizer)), 1)
        results.append(list(back.state_dict().values()))
    close(*results)
