"""Converted networks on a GPU: exactness, folding, training, checkpoints, graphs, memory.

Tolerance of a network's output: its distance (of norms) from fp32's output on the same rounded
weights is at most twice that of torch's own network in the same dtype, plus an eighth of the
dtype's epsilon.
"""

from __future__ import annotations

import copy
import io

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
from gpu_comparison import MARKS, cudnn_in_full_precision, skip_without_gpu
from recorded_graphs import recording
from triton_ext import nn
from triton_ext.nn import norms
from triton_ext.ops.norms.checks import IS_OPERATOR

skip_without_gpu()
pytestmark = MARKS

NETWORKS = ("resnet18", "resnet50", "convnext_tiny")
FOLDED = {"resnet18": 20, "resnet50": 53, "convnext_tiny": 0}  # convolutions
SIZE = 64  # pixels
CLASSES = 10


def network(name: str) -> torch.nn.Module:
    """A network with random weights and statistics, channels-last on the GPU."""
    models = pytest.importorskip("torchvision", reason="needs torchvision's networks").models
    torch.manual_seed(0)
    return settled(getattr(models, name)(weights=None, num_classes=CLASSES))


def settled(model: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for tensor, low, high in (
                (module.weight, 0.3, 0.6),  # sums of blocks do not grow
                (module.bias, -0.1, 0.1),
                (module.running_mean, -0.2, 0.2),
                (module.running_var, 0.5, 1.5),
            ):
                tensor.data.uniform_(low, high, generator=generator)
    return model.cuda().to(memory_format=torch.channels_last)


class Block(torch.nn.Module):
    """Convolutions, norms, a sum and functions: what is small enough to be compiled in a test."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(64)
        self.conv2 = torch.nn.Conv2d(64, 64, 3, padding=1)
        self.bn2 = torch.nn.BatchNorm2d(64)
        self.relu = torch.nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x
        return self.relu(y)


def block(dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
    torch.manual_seed(0)
    return settled(torch.nn.Sequential(Block(), Block())).to(dtype)


def images(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(shape, generator=generator, device="cuda").to(dtype)
    return x.to(memory_format=torch.channels_last)


def ours_of(model: torch.nn.Module, **how) -> torch.nn.Module:
    """A converted copy; what no kernel takes would be an error."""
    return nn.convert(copy.deepcopy(model), fallback="error", report=False, **how)


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    other = other.double()
    return ((one.double() - other).norm() / other.norm()).item()


def assert_as_exact(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    assert torch.isfinite(ours).all()
    floor = torch.finfo(theirs.dtype).eps / 8
    assert distance(ours, exact) <= 2 * distance(theirs, exact) + floor


# --- inference ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@torch.no_grad()
def test_a_network_is_as_exact_as_torchs(name, dtype):
    model = network(name).eval().to(dtype)
    x = images(4, 3, SIZE, SIZE, dtype=dtype)
    theirs = model(x)
    with cudnn_in_full_precision():
        exact = copy.deepcopy(model).float()(x.float())
    converted, folded = ours_of(model), ours_of(model, fold=True)
    found = nn.survey(folded, fold=True)
    assert sum(bool(layer.folded) for layer in found.layers) == FOLDED[name]
    for ours in (converted, folded):
        y = ours(x)
        assert_as_exact(y, theirs, exact)
        assert torch.equal(ours(x), y)
    assert torch.equal(nn.revert(folded)(x), theirs)


@torch.no_grad()
def test_a_folded_network_in_a_graph():
    model = block().eval()
    ours = ours_of(model, fold=True)
    x = images(2, 64, 16, 16)
    ours(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ours(x)
    for seed in (1, 2):
        x.copy_(images(2, 64, 16, 16, seed=seed))
        graph.replay()
        assert torch.equal(y, ours(x))
    # The vectors of a norm are computed where the graph reads them.
    ours[0].bn1.bias.add_(1)
    expected = ours(x)
    graph.replay()
    assert torch.equal(y, expected)


@torch.no_grad()
def test_a_graph_reads_its_norms_behind_a_refresh():
    ours = ours_of(block().eval(), fold=True)
    x = images(2, 64, 16, 16)
    ours(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ours(x)
    ours[0].bn1.bias.data.add_(1)
    nn.refresh(ours)
    # Memory that was given back would be these tensors' by now.
    others = [torch.full((64,), float("nan"), device="cuda") for _ in range(64)]
    expected = ours(x)
    graph.replay()
    assert torch.equal(y, expected)
    assert len(others) == 64


def test_fused_optimizers_and_folded_norms():
    """They raise no tensor's version."""
    ours, x = ours_of(block().eval(), fold=True), images(2, 64, 16, 16)
    optimizer = torch.optim.AdamW(ours.parameters(), 0.01, fused=True)
    found = []
    for _ in range(3):
        with torch.no_grad():
            found.append(ours(x))
        ours(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        found.append(ours(x))
        assert torch.equal(nn.refresh(ours)(x), found[-1])
    assert not any(map(torch.equal, found, found[1:]))


def test_fused_optimizers_and_gradients():
    """They read a weight and its gradient as they lie: what is converted has both in one order."""
    theirs = torch.nn.Conv2d(64, 64, 3).cuda()
    theirs.weight.grad = torch.randn_like(theirs.weight)
    ours = copy.deepcopy(theirs)
    ours.weight.grad = theirs.weight.grad.clone()
    nn.convert(ours, report=False)
    for conv in (theirs, ours):
        torch.optim.SGD(conv.parameters(), 0.1, fused=True).step()
    assert torch.equal(ours.weight, theirs.weight)


@torch.no_grad()
def test_a_norm_is_computed_in_a_graph_that_is_captured_before_any_call():
    ours = ours_of(block().eval(), fold=True)
    x = images(2, 64, 16, 16)
    expected = ours(x)
    nn.refresh(ours)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ours(x)
    torch.testing.assert_close(ours(x), expected, rtol=0, atol=0)
    graph.replay()
    assert torch.equal(y, expected)


@torch.no_grad()
def test_a_folded_network_compiles():
    torch._dynamo.reset()
    model = block().eval()
    x = images(2, 64, 16, 16)
    ours = ours_of(model, fold=True)
    compiled = torch.compile(ours, fullgraph=True)
    with cudnn_in_full_precision():
        exact = copy.deepcopy(model).float()(x.float())
    assert_as_exact(compiled(x), model(x), exact)


# --- training -----------------------------------------------------------------------------------


def step(model, optimizer, x, target, scaler=None):
    """One training step under autocast; returns the loss."""
    dtype = torch.bfloat16 if scaler is None else torch.float16
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=dtype):
        loss = torch.nn.functional.cross_entropy(model(x), target)
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss.item()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_checkpoint_goes_from_torch_to_ours_and_back(name):
    """A step with torch, three with ours, then torch again; beside it torch alone."""
    x, target = images(8, 3, SIZE, SIZE, dtype=torch.float32), torch.arange(8, device="cuda")
    torch.manual_seed(0)  # stochastic depth
    theirs = network(name).train()
    optimizer = sgd(theirs)
    step(theirs, optimizer, x, target)
    checkpoint = io.BytesIO()
    torch.save({"model": theirs.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)

    def resumed(model, file):
        file.seek(0)
        state = torch.load(file, weights_only=True)
        model.load_state_dict(state["model"], strict=True)
        optimizer = sgd(model)
        optimizer.load_state_dict(state["optimizer"])
        return optimizer

    losses = {}
    trained = {}
    for who in ("torch", "ours"):
        model = network(name).train()
        if who == "ours":
            nn.convert(model, report=False)
        optimizer = resumed(model, checkpoint)
        torch.manual_seed(1)
        losses[who] = [step(model, optimizer, x, target) for _ in range(3)]
        trained[who] = model, optimizer
    assert losses["ours"] == pytest.approx(losses["torch"], rel=0.05, abs=0.02)
    saved = io.BytesIO()
    model, optimizer = trained["ours"]
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    back = network(name)
    resumed(back, saved)
    for key, value in back.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]), key
    assert torch.isfinite(back.eval()(x)).all()


def test_a_gradient_scaler_sees_what_overflows():
    x, target = images(8, 64, 16, 16, dtype=torch.float32), torch.arange(8, device="cuda")
    head = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    model = torch.nn.Sequential(nn.convert(block(torch.float32), report=False), head).train()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cuda", init_scale=2.0**40)
    before = copy.deepcopy(model.state_dict())
    step(model, optimizer, x, target, scaler)
    assert scaler.get_scale() == 2.0**39
    assert torch.equal(model[0][0].conv1.weight, before["0.0.conv1.weight"])
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    losses = [step(model, optimizer, x, target, scaler) for _ in range(4)]
    assert losses[-1] < losses[0]
    assert not torch.equal(model[0][0].conv1.weight, before["0.0.conv1.weight"])


def gradients(model, x, run=None):
    model.zero_grad(set_to_none=True)
    x = x.detach().requires_grad_()
    y = (model if run is None else run)(x)
    y.backward(images(*y.shape, dtype=y.dtype, seed=5))
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_bits(reentrant):
    ours = ours_of(block()).train()
    x = images(2, 64, 16, 16)

    def run(x):
        for layer in ours:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant)
        return x

    for one, other in zip(gradients(ours, x, run), gradients(ours, x), strict=True):
        assert torch.equal(one, other)


def test_deterministic_mode_gives_the_same_bits():
    ours = ours_of(block()).train()
    x = images(2, 64, 16, 16)
    torch.use_deterministic_algorithms(True)
    try:
        for one, other in zip(gradients(ours, x), gradients(ours, x), strict=True):
            assert torch.equal(one, other)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_compiled_training_step():
    torch._dynamo.reset()
    model, x = block(), images(2, 64, 16, 16)
    ours = ours_of(model).train()
    exact = gradients(copy.deepcopy(model).double().train(), x.double())
    compiled = torch.compile(ours, fullgraph=True)
    found, theirs = gradients(ours, x, compiled), gradients(model.train(), x)
    for our, their, right in zip(found, theirs, exact, strict=True):
        assert distance(our, right) <= 2 * distance(their, right) + 0.01


@pytest.mark.parametrize("with_norms", [False, True])
def test_a_captured_training_step_sees_its_own_updates(with_norms):
    def made():
        model = ours_of(block(), norms=with_norms).train()
        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    x, grad = images(2, 64, 16, 16), images(2, 64, 16, 16, seed=5)

    def train(model, optimizer):
        optimizer.zero_grad(set_to_none=True)
        model(x).backward(grad)
        optimizer.step()

    eager, captured = made(), made()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            train(*captured)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    captured[1].zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        train(*captured)
    for _ in range(3):
        graph.replay()
    for _ in range(6):
        train(*eager)
    states = (model.state_dict().values() for model, _ in (eager, captured))
    for one, other in zip(*states, strict=True):
        assert torch.equal(one, other)


# --- norms --------------------------------------------------------------------------------------


class UNetBlock(torch.nn.Module):
    """As in diffusion models: norm, activation, convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.GroupNorm(8, 64), torch.nn.GroupNorm(32, 64)
        self.conv1 = torch.nn.Conv2d(64, 64, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x):
        y = self.conv1(torch.nn.functional.silu(self.norm1(x)))
        return x + self.conv2(torch.nn.functional.silu(self.norm2(y)))


@pytest.fixture
def only_kernels(monkeypatch):
    """Makes a norm that is torch's an error, and one that is not one call with what follows."""
    for kind in (torch.nn.GroupNorm, torch.nn.modules.batchnorm._BatchNorm):
        monkeypatch.setattr(kind, "forward", None)
    monkeypatch.setattr(norms, "add_and_activate", None)
    return monkeypatch


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [Block, UNetBlock])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_blocks_with_norms(make, training, dtype, only_kernels):
    torch.manual_seed(0)
    model = settled(torch.nn.Sequential(make(), make())).to(dtype).train(training)
    ours, exact = ours_of(model, norms=True), copy.deepcopy(model).double()
    x = images(2, 64, 16, 16, dtype=dtype)
    found = gradients(ours, x)
    only_kernels.undo()
    theirs, right = gradients(model, x), gradients(exact, x.double())
    models = ((ours, found), (model, theirs), (exact, right))
    for our, their, best in zip(*([*tensors, *m.buffers()] for m, tensors in models), strict=True):
        assert our.dtype == their.dtype
        if our.is_floating_point():
            assert distance(our, best) <= 2 * distance(their, best) + 0.01
        else:
            assert torch.equal(our, their)


def test_norms_under_autocast(only_kernels):
    torch.manual_seed(0)
    # The block's residual is bf16 behind a convolution; fp32 would make torch's sum fp32.
    stem = torch.nn.Conv2d(64, 64, 3, padding=1)
    model = settled(torch.nn.Sequential(stem, Block(), UNetBlock())).train()
    ours, exact = ours_of(model, norms=True), copy.deepcopy(model).double()
    x = images(2, 64, 16, 16, dtype=torch.float32)

    def run(model):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return gradients(model, x)

    found = run(ours)
    only_kernels.undo()
    right = gradients(exact, x.double())
    for our, their, best in zip(found, run(model), right, strict=True):
        assert our.dtype == their.dtype
        assert distance(our, best) <= 2 * distance(their, best) + 0.01


@pytest.mark.parametrize("ours_in_graphs", ["group", "all"])
@pytest.mark.parametrize("training", [True, False])
def test_compiled_blocks_with_norms(training, ours_in_graphs, monkeypatch):
    torch._dynamo.reset()
    if ours_in_graphs == "all":
        for kind in IS_OPERATOR:
            monkeypatch.setitem(IS_OPERATOR, kind, True)
    torch.manual_seed(0)
    model = settled(torch.nn.Sequential(Block(), UNetBlock())).to(torch.bfloat16).train(training)
    ours, exact, calls = ours_of(model, norms=True), copy.deepcopy(model).double(), []
    recorded = ours_of(model, norms=True)
    x = images(2, 64, 16, 16)
    compiled = torch.compile(ours, fullgraph=True)
    found = [*gradients(ours, x, compiled), *ours.buffers()]
    gradients(recorded, x, torch.compile(recorded, fullgraph=True, backend=recording(calls)))
    theirs = [*gradients(model, x), *model.buffers()]
    right = [*gradients(exact, x.double()), *exact.buffers()]
    for our, their, best in zip(found, theirs, right, strict=True):
        assert our.dtype == their.dtype
        if our.is_floating_point():
            assert distance(our, best) <= 2 * distance(their, best) + 0.01
        else:
            assert torch.equal(our, their)
    batches = 2 if ours_in_graphs == "all" else 0
    assert calls.count("norm_forward") == 2 + batches
    assert calls.count("batch_moments") == (batches if training else 0)
    assert calls.count("norm_backward") == 2 + batches


def test_graphs_of_compiled_models_with_norms():
    """``reduce-overhead`` replays graphs of CUDA: training, with our convolutions and norms."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = settled(torch.nn.Sequential(UNetBlock(), UNetBlock())).to(torch.bfloat16)
    eager, ours = ours_of(model, norms=True), ours_of(model, norms=True)
    compiled = torch.compile(ours, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):
        x = images(2, 64, 16, 16, seed=seed)
        torch.compiler.cudagraph_mark_step_begin()
        found = [tensor.clone() for tensor in gradients(ours, x, compiled)]
        for one, other in zip(found, gradients(eager, x), strict=True):
            assert distance(one, other) < 0.02


@torch.no_grad()
def test_a_folded_block_with_norms(only_kernels):
    torch.manual_seed(0)
    model = settled(torch.nn.Sequential(Block(), UNetBlock())).eval().to(torch.bfloat16)
    x = images(2, 64, 16, 16)
    y = ours_of(model, fold=True, norms=True)(x)
    only_kernels.undo()
    with cudnn_in_full_precision():
        exact = copy.deepcopy(model).float()(x.float())
    assert_as_exact(y, model(x), exact)


# --- filters that FSDP gathers ------------------------------------------------------------------


@pytest.mark.parametrize("each", [False, True])
def test_filters_that_are_gathered(each, tmp_path):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def layers():
        torch.manual_seed(0)
        made = [torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(4)]
        return torch.nn.Sequential(*made).cuda().to(torch.bfloat16)

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(4):
            loss = model(images(8, 64, 28, 28)).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses)

    expected = train(ours_of(layers()))
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cuda", (1,))
        model = ours_of(layers(), pack=False)
        for layer in model if each else ():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        # The same kernels on the same filters, wherever these lie.
        torch.testing.assert_close(train(model), expected, rtol=1e-2, atol=1e-4)
        copies = [layer._gathered._copy for layer in model]
        assert [copy is not None for copy in copies] == [False, True, True, True]
    finally:
        dist.destroy_process_group()


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("with_norms", [False, True])
def test_what_is_kept_for_the_backward_is_no_more_than_torchs(name, with_norms):
    x = images(8, 3, SIZE, SIZE)
    model = network(name).to(torch.bfloat16).train()

    def kept(model):
        sizes = {}

        def pack(tensor):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = model(x)
        del y
        return sum(sizes.values())

    def peak(model):
        for _ in range(2):  # the first step compiles, and allocates the gradients
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            model(x).float().sum().backward()
        return torch.cuda.max_memory_allocated() - before

    theirs = kept(model), peak(model)
    del model
    ours = ours_of(network(name).to(torch.bfloat16).train(), norms=with_norms)
    found = kept(ours), peak(ours)
    assert found[0] <= theirs[0]
    assert found[1] <= 1.02 * theirs[1]
