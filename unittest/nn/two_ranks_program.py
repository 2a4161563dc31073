"""What takes two ranks; ``test_distributed.py`` starts it with the path of a file for them."""

from __future__ import annotations

import copy
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from triton_ext import nn

CPU = torch.device("cpu")


def chain() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(4, 8, 3, bias=False),
        torch.nn.Conv2d(8, 4, (2, 3), groups=2),
        torch.nn.ConvTranspose2d(4, 6, (3, 2)),
    )


def check_fsdp_before_the_conversion() -> None:
    """A rank's parameters are flat pieces then, which tell no channels and no taps."""
    ours, theirs = (
        FullyShardedDataParallel(chain(), use_orig_params=True, device_id=CPU) for _ in range(2)
    )
    nn.convert(ours, report=False)
    # Of the module's own numbers: the same on all ranks.
    shapes = [layer.shape for layer in nn.survey(ours).layers]
    assert shapes == ["8x4x3x3", "4x4x2x3", "4x6x3x2"]
    kinds = [type(layer) for layer in ours.module]
    assert kinds == [nn.Conv2d, nn.Conv2d, nn.ConvTranspose2d]
    x = pictures_of_rank()
    for _ in range(2):
        for model in (ours, theirs):
            model.zero_grad()
            model(x).square().mean().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other)
            torch.testing.assert_close(one.grad, other.grad)


def check_fsdp_without_parameters() -> None:
    """Left, with the way out, which is one."""
    late = FullyShardedDataParallel(chain(), device_id=CPU)
    reasons = {layer.reason for layer in nn.survey(late).layers}
    assert reasons == {
        "its weight is no parameter (FullyShardedDataParallel with use_orig_params=False); convert "
        "with pack=False first, then wrap"
    }
    ours = FullyShardedDataParallel(nn.convert(chain(), report=False, pack=False), device_id=CPU)
    torch.testing.assert_close(losses_of_rank(ours), losses_of_rank(late))


def check_collectives_and_folds() -> None:
    """They write past versions: what docs/models.md says that has to be told."""
    rank = dist.get_rank()
    theirs = torch.nn.Sequential(chain()[0], torch.nn.BatchNorm2d(8)).eval()
    ours = nn.convert(copy.deepcopy(theirs), report=False, fold=True)
    x = pictures_of_rank()
    for tell in (nn.refresh, torch.nn.Module.eval):
        with torch.no_grad():
            for model in (ours, theirs):
                model[1].running_mean.fill_(rank)
            before = ours(x)
            torch.testing.assert_close(before, theirs(x))
            for model in (ours, theirs):
                dist.broadcast(model[1].running_mean, 0)
            tell(ours)
            torch.testing.assert_close(ours(x), theirs(x))
            assert rank == 0 or not torch.equal(ours(x), before)


def pictures_of_rank() -> torch.Tensor:
    torch.manual_seed(1 + dist.get_rank())
    return torch.randn(2, 4, 7, 6).to(memory_format=torch.channels_last)


def losses_of_rank(model: torch.nn.Module) -> list[torch.Tensor]:
    optimizer, x, losses = torch.optim.SGD(model.parameters(), lr=0.1), pictures_of_rank(), []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(model(x).square().mean())
        losses[-1].backward()
        optimizer.step()
    return losses


def check_rank(rank: int, path: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    check_fsdp_before_the_conversion()
    check_fsdp_without_parameters()
    check_collectives_and_folds()
    dist.destroy_process_group()
    sys.stdout.write("checked\n")


if __name__ == "__main__":
    torch.multiprocessing.spawn(check_rank, (sys.argv[1],), nprocs=2)
