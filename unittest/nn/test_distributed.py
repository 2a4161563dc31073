"""Converted models under torch's own engines for several GPUs, in one process on the CPU."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")

import torch
import torch.distributed as dist
from triton_ext import nn

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
