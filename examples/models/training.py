"""``python -m examples.models.training``: training steps with torch's convolutions and with ours.

With ``--ranks N``, or under ``torchrun --nproc-per-node N``, the same through DDP or FSDP.
Every mode's gradients are checked against fp32 before it is timed; README.md has examples of calls.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from benchmarks.harness import collect_environment, emit, measure_errors
from examples.models import ahead, modes, networks, options, parallel, per_layer
from examples.models.measure import Job, Prepared, Row, compare, keeping, prepare, timed

__all__ = ["Step", "main"]

# How far our scaling efficiency may be behind torch's own, of torch's.
EFFICIENCY_LOSS = 0.02

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
        metavar="KIND",
        help=f"under torchrun: {', '.join(parallel.KINDS)} (ddp)",
    )
    parser.add_argument(
        "--check", nargs="?", const="only", choices=("only", "too"),
        help="under torchrun: compare the ranks' step with one of the joined batch; "
        "'too' measures then, else nothing is timed",
    )  # fmt: skip
    parser.add_argument(
        "--check-batch", type=int, metavar="N",
        help="pictures per rank for --check (as --batch): one process has those of all ranks",
    )  # fmt: skip
    parser.add_argument("--ranks", type=int, metavar="N", help="start N of them, as torchrun would")
    return parser.parse_args(argv)


def kinds_of(arguments: argparse.Namespace) -> Sequence[str]:
    """How the ranks work together: all ways that are asked for."""
    return arguments.parallel or ["ddp"]


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
        norms=arguments.norms,
        compile_mode=arguments.compile_mode,
        compile_backend=arguments.compile_backend,
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
    name: str, arguments: argparse.Namespace, ranks: parallel.Ranks, batch: int | None = None
) -> tuple[networks.Network, networks.Network]:
    """Makes a network with the joined batch, and with this rank's part of it.

    Args:
        name: Of the network.
        arguments: Of the script.
        ranks: All of them.
        batch: Pictures per rank; ``None`` for ``--batch``.
    """
    alone = networks.build(
        name,
        size=arguments.size,
        batch=arguments.batch if batch is None else batch,
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
        "deadline": deadline,
        "agree": ranks.agree,
        "tolerant": ranks.size == 1,
        "say": say,
    }
    makers = {mode: functools.partial(make, network, mode, arguments) for mode in asked}
    # The ranks were checked already; do not check again with a larger batch.
    reference = None if arguments.check else reference_of(network, arguments)
    rounds = arguments.rounds
    if ranks.size == 1:
        timer = options.timer_of(arguments)
        rows = compare("training", name, makers, reference, timer, rounds=rounds, **common)
        if arguments.per_layer is not None and not deadline.over:
            with keeping(lambda: rows):
                per_layer.compare(network, arguments, training=True)
        return rows
    timer = parallel.RanksTimer(arguments.steps, ranks)
    prepared: list[Prepared] = [prepare("training", name, makers, reference, timer, **common)]
    for kind in kinds_of(arguments):
        makers = {mode: functools.partial(make, network, mode, arguments, kind) for mode in asked}
        task = f"training {kind} x{ranks.size}"
        prepared.append(prepare(task, name, makers, None, timer, **common))
    return timed(prepared, timer, rounds)


@contextlib.contextmanager
def fixed_statistics(model: nn.Module) -> Iterator[None]:
    """BatchNorm as in inference: its statistics are of one rank's pictures else, not of all."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    were_training = [norm.training for norm in norms]
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm, was_training in zip(norms, were_training, strict=True):
            norm.train(was_training)


def check(
    name: str,
    arguments: argparse.Namespace,
    ranks: parallel.Ranks,
    say: Callable[[str], None],
) -> list[Row]:
    """Compares the ranks' gradients with one process's of the joined batch, mode by mode.

    Both are compared with fp32; the ranks may be twice as far from it as the one process.
    """
    alone, part = build(name, arguments, ranks, arguments.check_batch)
    rows: list[Row] = []
    modes.settle(alone)
    with fixed_statistics(alone.model):
        reference = reference_of(alone, arguments)
        for mode in modes.modes_of(arguments.mode):
            one = measure_errors(make(alone, mode, arguments).result(), reference)
            rows.append(Row(task="check", model=name, mode=mode, errors=one))
            for kind in kinds_of(arguments):
                many = measure_errors(make(part, mode, arguments, kind).result(), reference)
                right = ranks.agree(many.within(one))
                say(
                    f"{_verdict(right)} {name} {mode}: gradients of {ranks.size} ranks through "
                    f"{kind} {many.l2:.2e} from fp32, of one process with the joined batch "
                    f"{one.l2:.2e} (goal: at most twice that)"
                )
                task, problem = f"check {kind} x{ranks.size}", "" if right else "WRONG RESULT"
                rows.append(Row(task=task, model=name, mode=mode, errors=many, problem=problem))
    return rows


def efficiencies(rows: Sequence[Row]) -> dict[tuple[str, str, str], tuple[float, ...]]:
    """How much of the ranks' speed is left when they work together, round by round.

    Returns:
        By task, model and mode, the time alone over the time together.
    """
    alone = {(row.model, row.mode): row.timing for row in rows if row.task == "training"}
    found = {}
    for row in rows:
        one = alone.get((row.model, row.mode))
        if row.task == "training" or row.timing is None or one is None:
            continue
        pairs = zip(one.rounds_ms, row.timing.rounds_ms, strict=True)
        found[row.task, row.model, row.mode] = tuple(a / b for a, b in pairs)
    return found


def scaling(rows: Sequence[Row], is_judged: bool) -> tuple[bool, list[str]]:
    """Tells the scaling efficiency of every mode, and whether ours are as good as torch's own.

    Args:
        rows: Of ranks alone and together.
        is_judged: Whether there are GPUs; ranks that share a CPU's cores say nothing.

    Returns:
        Whether they are, and lines; those that are judged begin with PASS or FAIL.
    """
    found = efficiencies(rows)
    good, lines = True, []
    for (task, model, mode), values in found.items():
        middle = statistics.median(values)
        spread = (max(values) - min(values)) / middle
        text = f"{task}, {model}, {mode}: scaling efficiency {middle:.1%}, spread {spread:.1%}"
        theirs = found.get((task, model, modes.THEIRS.get(mode, "")))
        if theirs is None or not is_judged:
            lines.append(text)
            continue
        part = middle / statistics.median(theirs)
        right = part >= 1 - EFFICIENCY_LOSS
        good &= right
        lines.append(
            f"{_verdict(right)} {text}; {part:.3f} of torch's "
            f"(goal: at least {1 - EFFICIENCY_LOSS:.2f})"
        )
    return good, lines


def _verdict(good: bool) -> str:
    return "PASS" if good else "FAIL"


def run(
    arguments: argparse.Namespace, argv: list[str], ranks: parallel.Ranks, rows: list[Row]
) -> int:
    """Runs the script on one rank; the first one tells.  Adds to the rows, network by network."""
    say = emit if ranks.rank == 0 else _quiet
    environment = collect_environment()
    options.announce(arguments, environment, say)
    deadline = parallel.AgreedDeadline(arguments.time_limit, ranks)
    if ranks.rank == 0:
        say(ahead.compile_ahead(arguments, argv, "training"))
    ranks.barrier()
    good = True
    for name in options.models_of(arguments.model):
        found: list[Row] = []
        try:
            if arguments.check:
                found += check(name, arguments, ranks, say)
            if arguments.check != "only":
                found += measure(name, arguments, ranks, deadline, say)
        except networks.MissingPackage as missing:
            found = [Row(task="training", model=name, mode="eager", problem=str(missing))]
            good = False
        rows += found
        if ranks.rank == 0:
            options.show(arguments, rows, found, environment)
        torch._dynamo.reset()
    is_scaling, told = scaling(rows, torch.cuda.is_available())
    good &= is_scaling
    for text in told:
        say(text)
    if ranks.rank == 0:
        good &= options.finish(arguments, rows, environment) == 0
    return 0 if good else 1


def _quiet(text: str = "") -> None:
    """Says nothing."""


def main(argv: list[str] | None = None) -> int:
    """Runs the script.

    Returns:
        1 where a result was wrong or is missing, 2 for wrong options, 130 where the user ended it.
    """
    argv = sys.argv[1:] if argv is None else argv
    arguments = parse(argv)
    problem = options.problem_of(arguments)
    if problem:
        emit(problem)
        return 2
    rows: list[Row] = []
    try:
        return start(arguments, argv, rows)
    except KeyboardInterrupt as interrupt:
        if parallel.is_rank():
            # The process that started the ranks reports it.
            return 130
        if arguments.ranks is not None:
            emit("interrupted")
            return 130
        return options.stopped(arguments, rows, interrupt)


def start(arguments: argparse.Namespace, argv: list[str], rows: list[Row]) -> int:
    """Starts the ranks, or runs as one of them, or alone."""
    if arguments.ranks is not None and not parallel.is_rank():
        problem = parallel.ranks_problem(arguments.ranks)
        if problem:
            emit(f"--ranks {arguments.ranks}: {problem}")
            return 2
        return parallel.start(arguments.ranks, "examples.models.training", argv)
    with parallel.joined() as ranks:
        if arguments.check and ranks.size == 1:
            emit("--check needs several ranks, torchrun --nproc-per-node 2 -m ...")
            return 2
        if arguments.parallel is not None and ranks.size == 1:
            emit("--parallel needs several ranks: --ranks 2, or torchrun")
            return 2
        if arguments.graph and ranks.size > 1:
            emit("--graph is for one process: ranks would not make the same number of steps")
            return 2
        return run(arguments, argv, ranks, rows)


if __name__ == "__main__":
    sys.exit(main())
