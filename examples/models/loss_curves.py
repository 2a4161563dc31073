"""``python -m examples.models.loss_curves``: does training go as with torch's convolutions?

1. Some hundred steps on synthetic data, with torch's convolutions from several seeds and with ours
   from the first of them.  In windows of steps our mean loss has to lie where one more run of
   torch's would in 99 of 100 cases, in all but one window in twenty.  How often it lies between the
   lowest and the highest of the runs themselves is told too.
2. A checkpoint of torch's model and optimizer is loaded after ``convert``, trained on, saved, and
   loaded into torch's model, which then gives the same outputs.

Each of the two ends in a line that begins with PASS or FAIL.
"""

from __future__ import annotations

import argparse
import copy
import functools
import io
import math
import pathlib
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.harness import (
    Deadline,
    add_out_argument,
    collect_environment,
    emit,
    measure_errors,
    write_json,
)
from examples.models import ahead, modes, networks, options, training
from examples.models.training import Step

__all__ = ["Comparison", "checkpoint", "compare", "curve", "main"]

WINDOW = 10
# Student's t for 99 of 100, by the number of runs.
_STUDENT = {2: 63.66, 3: 9.925, 4: 5.841, 5: 4.604, 6: 4.032, 7: 3.707, 8: 3.499, 9: 3.355}
_STUDENT_OF_MORE = 3.25
_WINDOWS_PER_STRAY = 20
# Different batches, which repeat: something that can be learnt by heart.
_BATCHES = 8
_LEARNING_RATE = 3e-4
_OUT = (".json",)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.models.loss_curves", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--model", choices=networks.MODELS, default="resnet50")
    parser.add_argument("--size", choices=networks.SIZES, default="full")
    parser.add_argument("--batch", type=int, help="pictures per step (by network)")
    parser.add_argument("--side", type=int, help="pixels or latents per side (by network)")
    parser.add_argument("--attention", action="store_true", help="in the UNet and the decoder")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--steps", type=int, default=200, help="of every run (200)")
    parser.add_argument("--seeds", type=int, default=5, help="runs with torch's convolutions (5)")
    parser.add_argument(
        "--ahead", type=int, default=0, metavar="N",
        help="compile our kernels in N processes first (0)",
    )  # fmt: skip
    parser.add_argument(
        "--no-norms", dest="norms", action="store_false",
        help="leave BatchNorm and GroupNorm to torch in our runs",
    )  # fmt: skip
    parser.add_argument(
        "--time-limit", type=float, default=1800.0, metavar="S",
        help="seconds behind which no run is begun (1800)",
    )  # fmt: skip
    add_out_argument(parser, _OUT)
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE", help=".png or .svg to write")
    return parser.parse_args(argv)


def prepare(mode: str, seed: int, arguments: argparse.Namespace) -> Step:
    """Makes a training step: weights in fp32, autocast to the dtype, AdamW."""
    network = networks.build(
        arguments.model,
        size=arguments.size,
        batch=arguments.batch,
        side=arguments.side,
        attention=arguments.attention,
        device=options.device(),
        seed=seed,
    )
    made = modes.variant(network, mode, dtype=torch.float32, norms=arguments.norms)
    optimizer = functools.partial(torch.optim.AdamW, lr=_LEARNING_RATE)
    return Step(made, optimizer, modes.DTYPES[arguments.dtype])


def curve(mode: str, seed: int, arguments: argparse.Namespace) -> list[float]:
    """Trains a network from a seed; returns the loss of every step."""
    step = prepare(mode, seed, arguments)
    x, target = step.network.inputs[0], step.network.target
    torch.manual_seed(1000 + seed)
    batches = []
    for _ in range(_BATCHES):
        shuffled = target[torch.randperm(len(target), device=target.device)]
        batches.append((torch.randn_like(x), shuffled))
    losses = []
    for number in range(arguments.steps):
        picture, wanted = batches[number % _BATCHES]
        x.copy_(picture)
        target.copy_(wanted)
        losses.append(step())
    return torch.stack(losses).tolist()


def _windows(losses: Sequence[float]) -> list[float]:
    parts = [losses[i : i + WINDOW] for i in range(0, len(losses), WINDOW)]
    return [sum(part) / len(part) for part in parts]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a curve lies to others.

    Attributes:
        windows: How many there are.
        between: In how many it lies between the lowest and the highest.
        outside: First steps of the windows where it lies farther out than one more run would.
    """

    windows: int
    between: int
    outside: tuple[int, ...]

    @property
    def good(self) -> bool:
        """Returns whether it is a good one."""
        return len(self.outside) <= self.windows // _WINDOWS_PER_STRAY


def compare(ours: Sequence[float], theirs: Sequence[Sequence[float]]) -> Comparison:
    """Compares a curve with the spread of others.

    Args:
        ours: Losses, step by step.
        theirs: Of at least two runs.
    """
    outside = []
    between = 0
    values = _windows(ours)
    for number, others in enumerate(zip(*map(_windows, theirs), strict=True)):
        count = len(others)
        between += min(others) <= values[number] <= max(others)
        # The interval for one more draw from a normal distribution that count draws are known of.
        width = statistics.stdev(others) * math.sqrt(1 + 1 / count)
        width *= _STUDENT.get(count, _STUDENT_OF_MORE)
        if not abs(values[number] - statistics.mean(others)) <= width:
            outside.append(number * WINDOW)
    return Comparison(len(values), between, tuple(outside))


def checkpoint(arguments: argparse.Namespace, steps: int = 3) -> dict[str, Any]:
    """Takes a checkpoint from torch to ours and back.

    Args:
        arguments: Of the script.
        steps: Training steps before and between.

    Returns:
        Errors of outputs in relation to torch's model with the same weights in fp32, by mode, and
        whether the weights came back as they were saved.
    """
    theirs, ours, back = (prepare(mode, 0, arguments) for mode in ("eager", "ours", "eager"))
    for _ in range(steps):
        theirs()
    _load(_saved(theirs), ours)
    for _ in range(steps):
        ours()
    saved = _saved(ours)
    _load(saved, back)
    kept = _read(saved)["model"]
    same = all(torch.equal(kept[name], tensor) for name, tensor in _state(back).items())
    # Training goes on from there.
    exact = copy.deepcopy(back.model).eval()
    dtype = modes.DTYPES[arguments.dtype]
    errors = {}
    with torch.no_grad():
        reference = exact(*back.network.inputs)
        for name, step in (("torch", back), ("ours", ours)):
            step.model.eval()
            with torch.autocast(reference.device.type, dtype):
                errors[name] = measure_errors(step.model(*back.network.inputs), reference)
            step.model.train()
    finite = bool(back().isfinite())
    good = same and finite and errors["ours"].within(errors["torch"])
    return {
        "weights equal": same,
        "error of torch": errors["torch"].l2,
        "error of ours": errors["ours"].l2,
        "good": good,
    }


def _state(step: Step) -> dict[str, torch.Tensor]:
    return step.model.state_dict()


def _saved(step: Step) -> io.BytesIO:
    file = io.BytesIO()
    torch.save({"model": _state(step), "optimizer": step.optimizer.state_dict()}, file)
    return file


def _read(saved: io.BytesIO) -> dict[str, Any]:
    saved.seek(0)
    return torch.load(saved, weights_only=True)


def _load(saved: io.BytesIO, step: Step) -> None:
    state = _read(saved)
    step.model.load_state_dict(state["model"])
    step.optimizer.load_state_dict(state["optimizer"])


def draw(path: pathlib.Path, runs: dict[str, list[float]], title: str) -> None:
    """Draws the curves, the last one in front."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name, losses in runs.items():
        ours = name == "ours"
        means = _windows(losses)
        places = [WINDOW * (number + 0.5) for number in range(len(means))]
        axes.plot(places, means, color="C1" if ours else "C0", alpha=1.0 if ours else 0.4)
        axes.plot([], [], label=name, color="C1" if ours else "C0")
    axes.set_xlabel("step")
    axes.set_ylabel(f"loss, mean of {WINDOW} steps")
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def problem_of(arguments: argparse.Namespace) -> str:
    """Why the options cannot be followed here; empty if they can."""
    least = {"steps": 1, "seeds": 2, "batch": 1, "side": 1, "ahead": 0}
    wrong_number = options.number_problem(arguments, least) or options.wrong_side(arguments)
    wrong_plot = options.plot_problem("--plot", arguments.plot)
    return wrong_number or wrong_plot or options.run_problem(arguments.out, _OUT)


def compile_ahead(arguments: argparse.Namespace) -> str:
    """Compiles the kernels of a training step; returns a line that says how that went."""
    words = ["--model", arguments.model, "--size", arguments.size, "--dtype", arguments.dtype]
    for name in ("batch", "side"):
        value = getattr(arguments, name)
        words += [f"--{name}", str(value)] if value is not None else []
    words += ["--attention"] if arguments.attention else []
    words += ["--amp", "--ahead", str(arguments.ahead)]
    if not arguments.norms:
        words.append("--no-norms")
    words += ["--time-limit", str(arguments.time_limit)]
    return ahead.compile_ahead(training.parse(words), words, "training")


def train_all(arguments: argparse.Namespace, deadline: Deadline) -> dict[str, list[float]]:
    """Trains with torch's convolutions from every seed and with ours; returns losses by name.

    Raises:
        TimeoutError: The time was over before the last run.
    """
    runs: dict[str, list[float]] = {}
    for mode, seed in [*(("eager", seed) for seed in range(arguments.seeds)), ("ours", 0)]:
        if deadline.over:
            count = arguments.seeds + 1
            raise TimeoutError(f"{len(runs)} of {count} runs within --time-limit")
        name = "ours" if mode == "ours" else f"torch, seed {seed}"
        runs[name] = curve(mode, seed, arguments)
        emit(_told("ours, seed 0" if mode == "ours" else name, runs[name]))
    return runs


def main(argv: list[str] | None = None) -> int:
    """Runs the script.

    Returns:
        1 where training went otherwise, 2 for wrong options, 130 where the user ended it.
    """
    arguments = parse(argv)
    problem = problem_of(arguments)
    if problem:
        emit(problem)
        return 2
    try:
        return run(arguments)
    except KeyboardInterrupt:
        give_up(arguments, "interrupted")
        return 130


def run(arguments: argparse.Namespace) -> int:
    """Trains, compares and writes; returns the exit status."""
    deadline = Deadline(arguments.time_limit)
    for text in collect_environment().lines():
        emit(text)
    emit(compile_ahead(arguments))
    try:
        runs = train_all(arguments, deadline)
        carried = checkpoint(arguments)
    except networks.MissingPackage as missing:
        return give_up(arguments, str(missing))
    except TimeoutError as error:
        return give_up(arguments, f"FAIL loss curve: {arguments.model}, {error}")
    *theirs, ours = runs.values()
    found = compare(ours, theirs)
    for text in verdicts(arguments, found, carried):
        emit(text)
    if arguments.out is not None:
        rows = [row_of(arguments.model, found, carried)]
        result = {"rows": rows, "runs": runs, "curve": asdict(found), "checkpoint": carried}
        write_json(arguments.out, result)
    if arguments.plot is not None:
        draw(arguments.plot, runs, f"{arguments.model}, {arguments.dtype}")
    return 0 if found.good and carried["good"] else 1


def give_up(arguments: argparse.Namespace, problem: str) -> int:
    """Says why there are no curves, also in the file; returns the exit status."""
    emit(problem)
    if arguments.out is not None:
        write_json(arguments.out, {"rows": [{"model": arguments.model, "problem": problem}]})
    return 1


def row_of(model: str, found: Comparison, carried: dict[str, Any]) -> dict[str, object]:
    """The verdicts as one row."""
    return {
        "model": model,
        "inside": 1 - len(found.outside) / found.windows,
        "curve_wrong": "" if found.good else f"outside at steps {found.outside}",
        "checkpoint_error": carried["error of ours"] / max(carried["error of torch"], 1e-9),
        "checkpoint_wrong": "" if carried["good"] else "WRONG",
    }


def verdicts(
    arguments: argparse.Namespace, found: Comparison, carried: dict[str, Any]
) -> tuple[str, str]:
    """Says of the curve and of the checkpoint whether they are as they should be, with figures."""
    strays = f", farther out at steps {', '.join(map(str, found.outside))}" if found.outside else ""
    inside = found.windows - len(found.outside)
    figures = [f"{name}: {_short(value)}" for name, value in carried.items() if name != "good"]
    return (
        f"{_verdict(found.good)} loss curve: {arguments.model}, {arguments.steps} steps, "
        f"in {inside} of {found.windows} windows inside the spread of {arguments.seeds} runs of "
        f"torch's{strays} (goal: all but {found.windows // _WINDOWS_PER_STRAY}); "
        f"between the lowest and the highest of them in {found.between}",
        f"{_verdict(carried['good'])} checkpoint: {arguments.model}, {', '.join(figures)} "
        "(goal: equal, and at most twice torch's error)",
    )


def _verdict(good: bool) -> str:
    return "PASS" if good else "FAIL"


def _short(value: object) -> str:
    return f"{value:.2e}" if isinstance(value, float) else str(value)


def _told(name: str, losses: Sequence[float]) -> str:
    means = _windows(losses)
    return f"{name:<16} loss {means[0]:.4f} at first, {means[-1]:.4f} at last"


if __name__ == "__main__":
    sys.exit(main())
