"""torch's own engines for several GPUs: DDP and FSDP, over NCCL or, without GPUs, gloo.

Networks with converted convolutions go through them like any other; how many ranks there are is
torchrun's affair, and a rank that dies is torchrun's too: it ends the others and tells which.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.harness import ROOT, Deadline, Plan
from examples.models.measure import StepTimer

__all__ = [
    "KINDS",
    "AgreedDeadline",
    "Ranks",
    "RanksTimer",
    "blocks",
    "gathered",
    "gradients",
    "is_rank",
    "joined",
    "ranks_problem",
    "start",
    "torchrun",
    "wrap",
]

KINDS = ("ddp", "fsdp", "fsdp1")
# Least fraction of all parameters for a block that FSDP gathers separately.
LEAST_PART = 1 / 32


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of the job.

    Attributes:
        rank: Of this one.
        size: Of them all; 1 without torchrun.
    """

    rank: int = 0
    size: int = 1

    def agree(self, good: bool) -> bool:
        """Returns whether something is true on every rank; all ranks get the same answer."""
        if self.size == 1:
            return good
        flag = torch.tensor(int(good), device=_device())
        dist.all_reduce(flag, dist.ReduceOp.MIN)
        return bool(flag.item())

    def part(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part of a joined batch."""
        step = tensor.shape[0] // self.size
        return tensor[self.rank * step : (self.rank + 1) * step]

    def slowest(self, milliseconds: float) -> float:
        """The longest of all ranks' times."""
        if self.size == 1:
            return milliseconds
        longest = torch.tensor(milliseconds, device=_device())
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        return float(longest.item())

    def barrier(self) -> None:
        """Waits for all ranks."""
        self.agree(True)


class AgreedDeadline(Deadline):
    """A time limit that is over on all ranks or on none."""

    def __init__(self, seconds: float, ranks: Ranks) -> None:
        super().__init__(seconds)
        self._ranks = ranks

    @property
    def over(self) -> bool:
        return not self._ranks.agree(self.left() > 0)


class RanksTimer(StepTimer):
    """Times of the slowest rank; all begin together.

    Args:
        steps: Per measurement.
        ranks: All of them.
    """

    def __init__(self, steps: int, ranks: Ranks) -> None:
        super().__init__(steps)
        self._ranks = ranks

    def measure(self, plan: Plan) -> float:
        self._ranks.barrier()
        return self._ranks.slowest(super().measure(plan))


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def is_rank() -> bool:
    """Returns whether torchrun started this process."""
    return "RANK" in os.environ


def ranks_problem(count: int) -> str:
    """Why so many ranks cannot be started here; empty if they can."""
    if count < 2:
        return "expected at least 2"
    if torch.cuda.is_available() and torch.cuda.device_count() < count:
        return f"needs {count} GPUs, torch sees {torch.cuda.device_count()}"
    return ""


def torchrun(count: int) -> tuple[tuple[str, ...], dict[str, str]]:
    """Returns how torchrun is started for ranks on this machine, and its environment."""
    # A machine's own name need not lead to it, so ranks meet at the loopback interface.
    launch = ("-m", "torch.distributed.run", "--standalone", "--local-addr=localhost",
              f"--nproc-per-node={count}")  # fmt: skip
    paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(ROOT)]
    path = os.pathsep.join(filter(None, paths))
    environment = {"GLOO_SOCKET_IFNAME": "lo", **os.environ, "PYTHONPATH": path}
    return (sys.executable, *launch), environment


def start(count: int, module: str, words: Sequence[str]) -> int:
    """Starts a module's ranks on this machine; returns torchrun's exit status."""
    launch, environment = torchrun(count)
    with subprocess.Popen([*launch, "-m", module, *words], env=environment) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()  # torchrun ends its ranks
            raise


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """Joins the job that torchrun started; alone where it did not."""
    if not is_rank():
        yield Ranks()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
        # gloo's threads abort the process where models still hold on to the group, or where
        # another rank is gone while they listen to it.
        gc.collect()
        dist.barrier()
    finally:
        dist.destroy_process_group()


def wrap(model: nn.Module, kind: str) -> nn.Module:
    """Gives a model to DDP or FSDP.

    Args:
        model: On this rank's device; changed in place by ``fsdp``.
        kind: ``ddp``; ``fsdp`` for ``fully_shard``, or the older one where this torch lacks it;
            ``fsdp1`` for the older one.
    """
    if kind == "ddp":
        # Gradients are where NCCL adds them: no copy back, and no memory for a second set.
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    # fully_shard takes contiguous parameters only, and the older one trains others wrongly (torch
    # 2.13).  Filters are channels-last no longer, then: torch copies them at each call, we once per
    # all-gather, or at each call with the older one.  The activations stay channels-last.
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()
    fully_shard = _fully_shard() if kind == "fsdp" else None
    if fully_shard is None:
        from torch.distributed.fsdp import FullyShardedDataParallel

        place = torch.cuda.current_device() if torch.cuda.is_available() else torch.device("cpu")
        return FullyShardedDataParallel(model, use_orig_params=True, device_id=place)
    for part in _large_blocks(model):
        fully_shard(part)
    return fully_shard(model)


def _fully_shard() -> Any:
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        return None
    return fully_shard


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The parts of a model that are gathered one at a time: what containers hold."""
    for child in model.children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            yield from blocks(child)
        elif any(True for _ in child.parameters()):
            yield child


def _large_blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Blocks that FSDP gathers by themselves; the others are gathered with the whole.

    Every part costs the host its hooks and calls of NCCL at each step, however small it is.
    """
    least = _count(model) * LEAST_PART
    return (block for block in blocks(model) if _count(block) >= least)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@contextlib.contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Gives parameters of the older FSDP their whole shape, and their gradients."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if not isinstance(model, FullyShardedDataParallel):
        yield
        return
    with FullyShardedDataParallel.summon_full_params(model, with_grads=True, writeback=False):
        yield


def gradients(model: nn.Module) -> torch.Tensor:
    """All gradients of a model, wherever they lie, in one fp32 vector; every rank gets it."""
    with gathered(model):
        return torch.cat([_whole(parameter.grad) for parameter in model.parameters()])


def _whole(tensor: Any) -> torch.Tensor:
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    return tensor.detach().float().flatten()
