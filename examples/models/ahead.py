"""Fills Triton's cache with the kernels of a run, in several processes.

Compiling takes most of a first run's time, on one core.  A process here takes its share of a
network's blocks, converts them and runs them once on the GPU, because a kernel is only known where
it is launched.  It reports nothing: what is wrong is for the run itself to find.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.harness import run_at_once
from examples.models import modes, networks, options
from examples.models.parallel import blocks

__all__ = ["compile_ahead"]

# Fraction of a run's time.
_PART = 0.6


def compile_ahead(arguments: argparse.Namespace, argv: list[str], task: str) -> str:
    """Compiles the kernels of a script's run; returns a line that says how that went.

    Args:
        arguments: Of the script; ``ahead`` says in how many processes.
        argv: The same as text.
        task: ``inference`` or ``training``.
    """
    if not arguments.ahead or not torch.cuda.is_available():
        return "nothing is compiled ahead"
    begin = time.monotonic()
    # They are no ranks of torchrun's; WORLD_SIZE stays, for the joined batch of a check.
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    command = [sys.executable, "-m", "examples.models.ahead", task]
    codes = run_at_once(
        ([*command, str(index), *argv] for index in range(arguments.ahead)),
        _PART * arguments.time_limit,
        environment,
    )
    failed, seconds = sum(code != 0 for code in codes), time.monotonic() - begin
    return f"compiled ahead in {seconds:.0f} s, {failed} of {len(codes)} processes failed"


def calls_of(network: networks.Network) -> Iterator[tuple[nn.Module, tuple[Any, ...]]]:
    """The different blocks of a network, each with the arguments that it is called with."""
    seen: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {}

    def note(block: nn.Module, inputs: tuple[Any, ...]) -> None:
        key = f"{block} {[tuple(each.shape) for each in inputs]}"
        # Only their shapes, dtypes and strides count; a network's would take its memory.
        seen.setdefault(key, (block, tuple(each.to("meta") for each in inputs)))

    handles = [block.register_forward_pre_hook(note) for block in blocks(network.model)]
    with torch.no_grad():
        network.model(*network.inputs)
    for handle in handles:
        handle.remove()
    yield from seen.values()


def run_once(
    block: nn.Module, inputs: tuple[Any, ...], arguments: argparse.Namespace, *, training: bool
) -> None:
    """Converts a block and runs it, with its gradients where it is to be trained."""
    from triton_ext import nn as ours

    fold = not training and arguments.fold
    ours.convert(block, fallback="torch", report=False, fold=fold, norms=arguments.norms)
    tensors = [
        torch.zeros_like(each, device=options.device()).requires_grad_(
            training and each.is_floating_point()
        )
        for each in inputs
    ]
    with torch.set_grad_enabled(training):
        output = block(*tensors)
        if training:
            output.sum().backward()


def _networks(arguments: argparse.Namespace, *, training: bool) -> Iterator[networks.Network]:
    """Every network that the script is going to run, in every batch."""
    batches = [] if training and arguments.check == "only" else [(arguments.batch, 1)]
    if training and arguments.check:
        # Each rank has its own pictures of a check, one process those of all.
        checked = arguments.batch if arguments.check_batch is None else arguments.check_batch
        batches += [(checked, 1), (checked, int(os.environ.get("WORLD_SIZE", "1")))]
    for name in options.models_of(arguments.model):
        for batch, ranks in dict.fromkeys(batches):
            network = networks.build(
                name,
                size=arguments.size,
                batch=batch,
                side=arguments.side,
                ranks=ranks,
                attention=arguments.attention,
                device=options.device(),
            )
            network.model.train(training)
            yield network


def _share(task: str, index: int, argv: list[str]) -> None:
    from examples.models import inference, training

    arguments = {"inference": inference, "training": training}[task].parse(argv)
    dtype = modes.DTYPES[arguments.dtype]
    is_training = task == "training"
    autocast = is_training and arguments.amp
    count = 0
    for network in _networks(arguments, training=is_training):
        # A search for the fastest of cuDNN only takes time here.
        torch.backends.cudnn.benchmark = False
        made = modes.variant(network, "eager", dtype=torch.float32 if autocast else dtype)
        for block, inputs in list(calls_of(made.network)):
            count += 1
            if count % arguments.ahead != index:
                continue
            kind = made.network.inputs[0].device.type
            # A block that does not work is found by the run.
            with contextlib.suppress(Exception), torch.autocast(kind, dtype, enabled=autocast):
                run_once(block, inputs, arguments, training=is_training)


if __name__ == "__main__":
    _share(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
