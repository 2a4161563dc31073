"""Converted models under torch's own engines for several GPUs, in one process on the CPU."""

from __future__ import annotations

import copy
import subprocess
import sys
import types
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from triton_ext import nn
from triton_ext.nn import norms

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo"
)


@pytest.fixture
def group(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def mesh(group):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (1,))


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(4, 8, 3, bias=False), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)
    )


def image() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 4, 7, 6).to(memory_format=torch.channels_last)


def train(model: torch.nn.Module) -> list[torch.Tensor]:
    """Losses of three steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(image()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.filterwarnings("error:Grad strides do not match bucket view strides")
def test_data_parallel(group, views):
    from torch.nn.parallel import DistributedDataParallel

    theirs = network()
    ours = nn.convert(copy.deepcopy(theirs), report=False)
    wrapped = DistributedDataParallel(ours, gradient_as_bucket_view=views)
    torch.testing.assert_close(train(wrapped), train(theirs))


@pytest.mark.parametrize("views", [False, True])
def test_data_parallel_before_the_conversion(group, views):
    """Weights are not packed then: torch's first step would be wrong (torch 2.13)."""
    from torch.nn.parallel import DistributedDataParallel

    late = DistributedDataParallel(network(), gradient_as_bucket_view=views)
    nn.convert(late, report=False)
    assert type(late.module[0]) is nn.Conv2d
    assert late.module[0].weight.is_contiguous()
    torch.testing.assert_close(train(late), train(network()))


@pytest.mark.parametrize("views", [False, True])
def test_reverted_before_the_first_step(group, views):
    """Weights stay packed: DDP has seen them so."""
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(
        nn.convert(network(), report=False), gradient_as_bucket_view=views
    )
    nn.revert(model)
    assert type(model.module[0]) is torch.nn.Conv2d
    assert not model.module[0].weight.is_contiguous()
    torch.testing.assert_close(train(model), train(network()))


def test_gradients_in_the_buckets_stay_there(group):
    """So their weights are not packed, though nothing says that the model was wrapped."""
    from torch.nn.parallel import DistributedDataParallel

    model, theirs = (
        DistributedDataParallel(network(), gradient_as_bucket_view=True) for _ in range(2)
    )
    train(model), train(theirs)
    places = [p.grad.data_ptr() for p in model.parameters()]
    nn.convert(model.module, report=False)
    assert type(model.module[0]) is nn.Conv2d
    assert [p.grad.data_ptr() for p in model.parameters()] == places
    torch.testing.assert_close(train(model), train(theirs))


def test_fully_sharded(mesh):
    from torch.distributed.fsdp import fully_shard

    expected = train(network())
    before = nn.convert(network(), report=False, pack=False)
    fully_shard(before, mesh=mesh)
    torch.testing.assert_close(train(before), expected)
    after = network()
    fully_shard(after, mesh=mesh)
    nn.convert(after, report=False)
    assert type(after[0]) is nn.Conv2d
    torch.testing.assert_close(train(after), expected)
    with pytest.raises(NotImplementedError, match="non-contiguous"):
        fully_shard(nn.convert(network(), report=False), mesh=mesh)


@pytest.mark.parametrize("engine", ["ddp", "fsdp", "fsdp of each"])
def test_norms(engine, mesh, monkeypatch):
    """Chains are asked for as in a model of one process, with parameters that are gathered."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    asked = []

    def norm_problem(kind, x, groups, weight, bias, residual, activation):
        asked.append((type(weight), activation))
        return "not on the CPU"

    monkeypatch.setattr(norms, "kernels", types.SimpleNamespace(norm_problem=norm_problem))
    theirs = network()
    theirs.insert(1, torch.nn.BatchNorm2d(8))
    theirs.append(torch.nn.Sequential(torch.nn.GroupNorm(2, 4), torch.nn.SiLU()))
    model = nn.convert(copy.deepcopy(theirs), report=False, pack=False, norms=True)
    if engine == "ddp":
        model = DistributedDataParallel(model)
    else:
        for layer in [*model][:-1] if engine == "fsdp of each" else []:
            if next(layer.parameters(), None) is not None:
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    torch.testing.assert_close(train(model), train(theirs))
    assert {kind for kind, _ in asked} == {torch.nn.Parameter}
    activations = [activation for _, activation in asked]
    # Who looks at a norm, as FSDP does, is not passed by; where no kernel was, the norm asks again.
    if engine == "fsdp of each":
        assert activations[:3] == ["identity", "silu", "identity"]
    else:
        assert activations[:4] == ["relu", "identity", "silu", "identity"]


# --- copies of gathered filters -----------------------------------------------------------------

CHANNELS = (8, 16, 24, 40)  # so that filters are told by how many numbers they have


class Copies(TorchDispatchMode):
    """Counts by layer how often its filter is brought into the order of the kernels.

    That is a copy from torch's order, or an operator that is given the filter in torch's order and
    whose kernel would copy it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts = [0] * (len(CHANNELS) - 1)
        self.layers = {a * b * 9: i for i, (a, b) in enumerate(pairwise(CHANNELS))}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function._schema.name
        if name in ("triton_ext::fprop", "triton_ext::dgrad") and args[1].stride(1) != 1:
            self.counts[self.layers[args[1].numel()]] += 1
        if name in ("aten::clone", "aten::copy_") and result.numel() in self.layers:
            source = args[-1] if name == "aten::copy_" else args[0]
            if result.dim() == 4 and source.stride(result.stride().index(1)) == 9:
                self.counts[self.layers[result.numel()]] += 1
        return result


def deep() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        *(torch.nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(CHANNELS))
    )


def losses_of(model, inputs, steps=3, run=lambda model, x: model(x), behind=lambda model: None):
    """Losses of some steps, and the copies of the last one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        copies = Copies()
        for x in inputs:
            with copies:
                loss = run(model, x).square().mean()
                loss.backward()
            losses.append(loss.detach())
        behind(model)
        optimizer.step()
        optimizer.zero_grad()
    return losses, copies.counts


def pictures(count: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    x = torch.randn(count, 2, CHANNELS[0], 5, 4)
    return [each.contiguous(memory_format=torch.channels_last) for each in x]


def sharded(mesh, each: bool, **how) -> torch.nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = nn.convert(deep(), report=False, pack=False)
    for layer in model if each else ():
        fully_shard(layer, mesh=mesh, **how)
    return fully_shard(model, mesh=mesh, **how)


# The first layer's filter is read in the forward only, since pictures need no gradient.
@pytest.mark.parametrize(
    ("each", "how", "expected"),
    [
        (False, {}, [1, 1, 1]),
        (True, {"reshard_after_forward": False}, [1, 1, 1]),
        (True, {"reshard_after_forward": True}, [1, 2, 2]),  # two all-gathers
    ],
    ids=["together", "kept", "each"],
)
def test_filters_are_copied_once_per_all_gather(mesh, each, how, expected):
    theirs, _ = losses_of(deep(), pictures(1))
    ours, copies = losses_of(sharded(mesh, each, **how), pictures(1))
    torch.testing.assert_close(ours, theirs)
    assert copies == expected


def older(model, **how):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(
        model, use_orig_params=True, device_id=torch.device("cpu"), **how
    )


@pytest.mark.parametrize("how", ["FULL_SHARD", "SHARD_GRAD_OP"])
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_the_older_fsdp_copies_at_every_call(group, how, checkpoints):
    """What docs/models.md says that it costs."""
    from torch.distributed.fsdp import ShardingStrategy

    def run(model, x):
        return checkpoint(model, x, use_reentrant=False) if checkpoints else model(x)

    model = older(
        nn.convert(deep(), report=False, pack=False), sharding_strategy=ShardingStrategy[how]
    )
    theirs, _ = losses_of(deep(), pictures(1), run=run)
    ours, copies = losses_of(model, pictures(1), run=run)
    torch.testing.assert_close(ours, theirs)
    again = int(checkpoints)
    assert copies == [1 + again, 2 + again, 2 + again]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_the_older_fsdp_before_the_conversion(group, bias):
    """A filter that is all of a flat parameter is a view of it nevertheless, and not packed."""
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    def made():
        layers = deep()
        if not bias:
            for layer in layers:
                layer.bias = None
        return layers

    late = older(made(), auto_wrap_policy=ModuleWrapPolicy({torch.nn.Conv2d}))
    nn.convert(late, report=False)
    assert sum(isinstance(module, nn.Conv2d) for module in late.modules()) == len(CHANNELS) - 1
    theirs, _ = losses_of(made(), pictures(1))
    torch.testing.assert_close(losses_of(late, pictures(1))[0], theirs)


def test_filters_are_copied_once_for_several_batches(mesh):
    model = sharded(mesh, each=False)
    model.set_reshard_after_backward(False)
    theirs, _ = losses_of(deep(), pictures(3))
    ours, copies = losses_of(model, pictures(3), behind=lambda model: model.reshard())
    torch.testing.assert_close(ours, theirs)
    assert copies == [3, 1, 1]


def test_filters_are_copied_once_for_a_checkpoint(mesh):
    def run(model, x):
        return checkpoint(model, x, use_reentrant=False)

    theirs, _ = losses_of(deep(), pictures(1))
    ours, copies = losses_of(sharded(mesh, each=False), pictures(1), run=run)
    torch.testing.assert_close(ours, theirs)
    assert copies[1:] == [1, 1]


def test_a_copy_goes_with_the_gathered_filter(mesh):
    model = sharded(mesh, each=True)
    x = pictures(1)[0]
    for _ in range(2):
        y = model(x)
    held = [layer._gathered._copy for layer in model[1:]]
    # Of the root's own there is nothing; its parts are sharded again behind their forward.
    assert [copy.untyped_storage().nbytes() for copy in held] == [0, 0]
    y.sum().backward()
    assert [copy.untyped_storage().nbytes() for copy in held] == [0, 0]


def test_reverted_modules_keep_nothing(mesh):
    model = sharded(mesh, each=False)
    losses_of(model, pictures(1), steps=1)
    assert model[1]._gathered is not None
    assert copy.deepcopy(model[1]._gathered)._copy is None
    nn.revert(model)
    assert not any("_gathered" in vars(layer) for layer in model)


def test_a_filter_that_somebody_writes_to_is_copied_again(mesh):
    model = sharded(mesh, each=False)
    model(pictures(1)[0])
    model.unshard()
    x = torch.ones(1, CHANNELS[2], 3, 3, requires_grad=True)
    before = model[2](x)
    assert model[2]._gathered._copy is not None
    with torch.no_grad():
        model[2].weight.mul_(2)
        model[2].bias.mul_(2)
    torch.testing.assert_close(model[2](x), 2 * before)
    model.reshard()


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_validation_between_steps(mesh, kept, mode):
    def results(model):
        seen = []

        def run(model, x):
            if seen:  # FSDP's first forward may not be one of inference mode
                with mode():
                    seen.append(model(x).mean().item())
            y = model(x)
            seen.append(y.mean().item())
            return y

        return losses_of(model, pictures(1), run=run)[0], seen

    ours = results(sharded(mesh, each=True, reshard_after_forward=not kept))
    torch.testing.assert_close(ours, results(deep()))


@pytest.mark.parametrize("kept", [True, False])
def test_without_gradients_a_filter_is_read_as_it_is(mesh, kept):
    """Versions do not tell of what is written through ``.data``."""
    x = pictures(1)[0]
    theirs, ours = deep(), sharded(mesh, each=True, reshard_after_forward=not kept)
    with torch.no_grad():
        for model in (theirs, ours):
            model(x)
            for layer in model:
                layer.weight.data.mul_(0.5)
        torch.testing.assert_close(ours(x), theirs(x))


def test_filters_that_are_exchanged_otherwise_are_not_kept():
    layer = nn.Conv2d(4, 8, 3, fallback="torch")
    layer.weight = torch.nn.Parameter(layer.weight.detach().contiguous())
    layer.weight = torch.nn.Parameter(layer.weight.detach().contiguous())
    assert layer._gathered is None
    layer(image()).sum().backward()
    assert layer._gathered is None


def test_two_ranks(tmp_path):
    """One program for all that asks for two, because starting it takes most of the time."""
    program = str(Path(__file__).with_name("two_ranks_program.py"))
    done = subprocess.run(
        [sys.executable, program, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["checked"] * 2
