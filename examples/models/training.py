"""``python -m examples.models.training``: training steps with torch's convolutions and with ours.

Under ``torchrun --nproc-per-node N -m examples.models.training`` the same through DDP or FSDP.
Every mode's gradients are checked against fp32 before it is timed; README.md has examples of calls.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator

import torch
from torch import nn

from benchmarks.harness import collect_environment, emit, measure_errors
from examples.models import ahead, modes, networks, options, parallel, per_layer
from examples.models.measure import Job, Row, compare

__all__ = ["Step", "main"]

_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, momentum=0.9),
    "adamw": torch.optim.AdamW,
}

# So small that the weights of a run without meaning stay what they were.
_LEARNING_RATE = 1e-6


def parse(argv: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.models.training", description=__doc__.partition("\n")[0]
    )
    options.add_arguments(parser)
    parser.add_argument("--amp", action="store_true", help="weights in fp32, autocast to the dtype")
    parser.add_argument("--optimizer", choices=tuple(_OPTIMIZERS), default="sgd")
    parser.add_argument(
        "--parallel",
        nargs="+",
        choices=parallel.KINDS,
        default=["ddp"],
        metavar="KIND",
        help=f"under torchrun: {', '.join(parallel.KINDS)} (ddp)",
    )
    parser.add_argument(
        "--check", action="store_true",
        help="under torchrun: only compare the ranks' step with one of the joined batch",
    )  # fmt: skip
    return parser.parse_args(argv)


class Step:
    """A training step.

    Args:
        made: The network in its mode.
        optimizer: Makes one for some parameters.
        amp: What autocast casts to; ``None`` for no autocast.
    """

    def __init__(
        self,
        made: modes.Variant,
        optimizer: Callable[..., torch.optim.Optimizer],
        amp: torch.dtype | None = None,
    ) -> None:
        self.network = made.network
        # DDP and FSDP have modules of their own, and FSDP parameters of its own.
        self.model: nn.Module = made.call
        self.optimizer = optimizer(self.model.parameters())
        self._amp = amp

    def backward(self) -> torch.Tensor:
        """Computes loss and gradients; returns the loss."""
        network = self.network
        kind = network.inputs[0].device.type
        with torch.autocast(kind, self._amp, enabled=self._amp is not None):
            loss = network.loss(self.model(*network.inputs), network.target)
        loss.backward()
        return loss.detach()

    def gradients(self) -> torch.Tensor:
        """Every parameter's gradient in one vector; the weights stay as they are."""
        self.backward()
        vector = parallel.gradients(self.model)
        self.optimizer.zero_grad(set_to_none=True)
        return vector

    def __call__(self) -> torch.Tensor:
        """The whole step; returns the loss."""
        loss = self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


def make(
    network: networks.Network, mode: str, arguments: argparse.Namespace, kind: str = ""
) -> Job:
    """Makes a mode of a network, ready to train.

    Args:
        network: In fp32.
        mode: One of ``MODES``.
        arguments: Of the script.
        kind: One of ``parallel.KINDS``; empty for this process alone.
    """
    made = modes.variant(
        network,
        mode,
        dtype=modes.DTYPES[arguments.dtype],
        weight_dtype=torch.float32 if arguments.amp else None,
        compile_mode=arguments.compile_mode,
        wrap=functools.partial(parallel.wrap, kind=kind) if kind else None,
    )
    optimizer = functools.partial(_OPTIMIZERS[arguments.optimizer], lr=_LEARNING_RATE)
    if arguments.graph and arguments.optimizer == "adamw":
        optimizer = functools.partial(optimizer, capturable=True)
    step = Step(made, optimizer, modes.DTYPES[arguments.dtype] if arguments.amp else None)
    first = options.first_steps(arguments, mode, step)
    return Job(step, step.gradients, made.taken, made.folded, made.left, first)


def reference_of(network: networks.Network, arguments: argparse.Namespace) -> torch.Tensor:
    """The network's gradients, computed in fp32."""
    dtype = torch.float32 if arguments.amp else modes.DTYPES[arguments.dtype]
    exact = modes.fp32(network, dtype)
    with options.exactly():
        exact.loss(exact.model(*exact.inputs), exact.target).backward()
    return parallel.gradients(exact.model)


def build(
    name: str, arguments: argparse.Namespace, ranks: parallel.Ranks
) -> tuple[networks.Network, networks.Network]:
    """Makes a network with the joined batch, and with this rank's part of it."""
    alone = networks.build(
        name,
        size=arguments.size,
        batch=arguments.batch,
        side=arguments.side,
        ranks=ranks.size,
        attention=arguments.attention,
        device=options.device(),
    )
    part = networks.Network(
        name=name,
        model=alone.model,
        inputs=tuple(ranks.part(each) for each in alone.inputs),
        target=ranks.part(alone.target),
        loss=alone.loss,
    )
    return alone, part


def measure(
    name: str,
    arguments: argparse.Namespace,
    ranks: parallel.Ranks,
    deadline: parallel.AgreedDeadline,
    say: Callable[[str], None],
) -> list[Row]:
    """Checks and measures all modes of one network: alone, then on all ranks."""
    _, network = build(name, arguments, ranks)
    asked = modes.modes_of(arguments.mode)
    common = {
        "rounds": arguments.rounds,
        "deadline": deadline,
        "agree": ranks.agree,
        "tolerant": ranks.size == 1,
        "say": say,
    }
    makers = {mode: functools.partial(make, network, mode, arguments) for mode in asked}
    reference = reference_of(network, arguments)
    timer = options.timer_of(arguments)
    rows = compare("training", name, makers, reference, timer, **common)
    if ranks.size > 1:
        for kind in arguments.parallel:
            makers = {
                mode: functools.partial(make, network, mode, arguments, kind) for mode in asked
            }
            task = f"training {kind} x{ranks.size}"
            rows += compare(task, name, makers, None, timer, **common)
    elif arguments.per_layer is not None and not deadline.over:
        per_layer.compare(network, arguments, training=True)
    return rows


@contextlib.contextmanager
def fixed_statistics(model: nn.Module) -> Iterator[None]:
    """BatchNorm as in inference: its statistics are of one rank's pictures else, not of all."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.eval()
    yield
    for norm in norms:
        norm.train()


def check(
    name: str,
    arguments: argparse.Namespace,
    ranks: parallel.Ranks,
    say: Callable[[str], None],
) -> bool:
    """Compares the ranks' gradients with one process's of the joined batch, mode by mode.

    Both are compared with fp32; the ranks may be twice as far from it as the one process.
    """
    alone, part = build(name, arguments, ranks)
    good = True
    modes.settle(alone)
    with fixed_statistics(alone.model):
        reference = reference_of(alone, arguments)
        for mode in modes.modes_of(arguments.mode):
            one = measure_errors(make(alone, mode, arguments).result(), reference)
            for kind in arguments.parallel:
                many = measure_errors(make(part, mode, arguments, kind).result(), reference)
                right = ranks.agree(many.within(one))
                say(
                    f"{name} {mode}: gradients of {ranks.size} ranks through {kind} "
                    f"{many.l2:.2e} from fp32, of one process with the joined batch "
                    f"{one.l2:.2e}: {'equal within tolerance' if right else 'WRONG'}"
                )
                good &= right
    return good


def efficiency(rows: list[Row]) -> list[str]:
    """How much of the ranks' speed is left when they work together, by mode."""
    alone = {(row.model, row.mode): row for row in rows if row.task == "training"}
    lines = []
    for row in rows:
        one = alone.get((row.model, row.mode))
        if row.task == "training" or row.timing is None or one is None or one.timing is None:
            continue
        lines.append(
            f"{row.task}, {row.model}, {row.mode}: scaling efficiency "
            f"{one.timing.ms / row.timing.ms:.1%} ({one.timing.ms:.3f} ms alone, "
            f"{row.timing.ms:.3f} ms together)"
        )
    return lines


def run(arguments: argparse.Namespace, argv: list[str], ranks: parallel.Ranks) -> int:
    """Runs the script on one rank; the first one tells."""
    say = emit if ranks.rank == 0 else _quiet
    environment = collect_environment()
    options.announce(arguments, environment, say)
    deadline = parallel.AgreedDeadline(arguments.time_limit, ranks)
    if ranks.rank == 0:
        say(ahead.compile_ahead(arguments, argv, "training"))
    ranks.barrier()
    rows: list[Row] = []
    good = True
    for name in options.models_of(arguments.model):
        try:
            if arguments.check:
                good &= check(name, arguments, ranks, say)
                continue
            found = measure(name, arguments, ranks, deadline, say)
        except networks.MissingPackage as missing:
            found = [Row(task="training", model=name, mode="eager", problem=str(missing))]
            good = False
        rows += found
        if ranks.rank == 0:
            options.show(arguments, rows, found, environment)
        torch._dynamo.reset()
    for text in efficiency(rows):
        say(text)
    if ranks.rank == 0 and rows:
        good &= options.finish(arguments, rows, environment) == 0
    return 0 if good else 1


def _quiet(text: str = "") -> None:
    """Says nothing."""


def main(argv: list[str] | None = None) -> int:
    """Runs the script; returns 1 where a result was wrong or is missing, 2 for wrong options."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = parse(argv)
    problem = options.problem_of(arguments)
    if problem:
        emit(problem)
        return 2
    with parallel.joined() as ranks:
        if arguments.check and ranks.size == 1:
            emit("--check needs several ranks, torchrun --nproc-per-node 2 -m ...")
            return 2
        if arguments.graph and ranks.size > 1:
            emit("--graph is for one process: ranks would not make the same number of steps")
            return 2
        return run(arguments, argv, ranks)


if __name__ == "__main__":
    sys.exit(main())
