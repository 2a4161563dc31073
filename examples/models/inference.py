"""``python -m examples.models.inference``: networks with torch's convolutions and with ours.

Every mode is checked against fp32 before it is timed; README.md has examples of calls.
"""

from __future__ import annotations

import argparse
import functools
import sys

import torch

from benchmarks.harness import Deadline, collect_environment, emit
from examples.models import ahead, modes, networks, options, per_layer
from examples.models.measure import Job, Row, compare, keeping

__all__ = ["main"]


def parse(argv: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.models.inference", description=__doc__.partition("\n")[0]
    )
    options.add_arguments(parser)
    parser.add_argument(
        "--no-fold", dest="fold", action="store_false",
        help="leave BatchNorm and activations outside of our convolutions",
    )  # fmt: skip
    return parser.parse_args(argv)


def make(network: networks.Network, mode: str, arguments: argparse.Namespace) -> Job:
    """Makes a mode of a network, ready to run."""
    made = modes.variant(
        network,
        mode,
        dtype=modes.DTYPES[arguments.dtype],
        fold=arguments.fold,
        norms=arguments.norms,
        compile_mode=arguments.compile_mode,
        compile_backend=arguments.compile_backend,
    )

    @torch.no_grad()
    def step() -> torch.Tensor:
        return made.call(*made.network.inputs)

    first = options.first_steps(arguments, mode, step)
    return Job(step, step, made.taken, made.folded, made.left, first)


@torch.no_grad()
def reference_of(network: networks.Network, dtype: torch.dtype) -> torch.Tensor:
    """The network's output, computed in fp32."""
    exact = modes.fp32(network, dtype)
    with options.exactly():
        return exact.model(*exact.inputs)


def measure(name: str, arguments: argparse.Namespace, deadline: Deadline) -> list[Row]:
    """Checks and measures all modes of one network."""
    network = networks.build(
        name,
        size=arguments.size,
        batch=arguments.batch,
        side=arguments.side,
        attention=arguments.attention,
        device=options.device(),
    )
    modes.settle(network)
    network.model.eval()
    makers = {
        mode: functools.partial(make, network, mode, arguments)
        for mode in modes.modes_of(arguments.mode)
    }
    rows = compare(
        "inference",
        name,
        makers,
        reference_of(network, modes.DTYPES[arguments.dtype]),
        options.timer_of(arguments),
        rounds=arguments.rounds,
        deadline=deadline,
    )
    if arguments.per_layer is not None and not deadline.over:
        with keeping(lambda: rows):
            per_layer.compare(network, arguments, training=False)
    return rows


def run(arguments: argparse.Namespace, argv: list[str], rows: list[Row]) -> int:
    """Runs the script; adds to the rows, network by network."""
    environment = collect_environment()
    options.announce(arguments, environment, emit)
    deadline = Deadline(arguments.time_limit)
    emit(ahead.compile_ahead(arguments, argv, "inference"))
    for name in options.models_of(arguments.model):
        try:
            found = measure(name, arguments, deadline)
        except networks.MissingPackage as missing:
            found = [Row(task="inference", model=name, mode="eager", problem=str(missing))]
        rows += found
        options.show(arguments, rows, found, environment)
        torch._dynamo.reset()
    return options.finish(arguments, rows, environment)


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
        return run(arguments, argv, rows)
    except KeyboardInterrupt as interrupt:
        return options.stopped(arguments, rows, interrupt)


if __name__ == "__main__":
    sys.exit(main())
