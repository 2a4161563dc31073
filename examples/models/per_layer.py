"""Time of every convolution of a network, before and after ``convert``.

Hooks record CUDA events around each layer: its own time on the GPU; without one, the host's.
Before and after take turns, step by step.  A kernel that spins stands in front of every step, so
that the GPU is behind the host; a step in which it was not, in some layer, is measured again, with
more of a lead.  Nothing is folded into layers here, since a layer with hooks runs by itself.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.harness import collect_environment, emit, write_json, write_rows
from examples.models import modes
from examples.models.measure import synchronize
from examples.models.networks import Network

__all__ = ["LayerTimer", "LayerTimes", "compare", "draw", "times_of_layers"]

_WARM_UP = 3

# How long the GPU spins in front of a step, for as long as that is enough, and at most.
_LEAD_MS = 20.0
_MAX_LEAD_MS = 320.0

# Number of layers with the least gain to report.
_TOLD = 8


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """A convolution of a network.

    Attributes:
        name: As ``named_modules`` calls it.
        text: The module's own.
        before_ms: Milliseconds per step with torch's convolutions.
        after_ms: The same with ours.
    """

    name: str
    text: str
    before_ms: float
    after_ms: float

    def row(self) -> dict[str, object]:
        """Returns its row of the table."""
        return {**asdict(self), "before / after": self.before_ms / self.after_ms}


class _Clock:
    """Marks of time: CUDA events on a GPU, the host's clock elsewhere."""

    def __init__(self) -> None:
        self._on_gpu = torch.cuda.is_available()

    def mark(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def lead(self, milliseconds: float) -> None:
        """Keeps the GPU busy while the host enqueues."""
        if self._on_gpu:
            torch.cuda._sleep(int(milliseconds * 1.5e6))

    def is_passed(self, mark: Any) -> bool:
        """Returns whether the GPU has reached a mark."""
        return self._on_gpu and bool(mark.query())

    def between(self, start: Any, end: Any) -> float:
        """Milliseconds."""
        return float(start.elapsed_time(end)) if self._on_gpu else (end - start) * 1e3


class LayerTimer:
    """Measures every convolution of a model in its steps; a context manager, which has the hooks.

    Args:
        model: Whose modules are measured.
        step: Runs the model, and its backward if that is to be measured.
        backward: Whether the times of the gradients are added.  The first layer's is not among
            them where the model's input needs none.

    Attributes:
        late: In how many steps the GPU waited for the host, even with the longest lead.
    """

    def __init__(self, model: nn.Module, step: Callable[[], object], *, backward: bool) -> None:
        self._layers = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, nn.modules.conv._ConvNd)
        }
        self._step, self._backward = step, backward
        self._clock = _Clock()
        self._lead_ms = _LEAD_MS
        self._open: dict[str, Any] = {}
        self._marks: dict[str, list[tuple[Any, Any]]] = {}
        self._times: dict[str, list[float]] = {}
        self._is_late = False
        self._handles: list[Any] = []
        self.late = 0

    def __enter__(self) -> LayerTimer:
        for name, module in self._layers.items():
            self._handles += [
                module.register_forward_pre_hook(self._opens(name)),
                module.register_forward_hook(self._closes(name)),
            ]
            if self._backward:
                key = name + _GRADIENTS
                self._handles += [
                    module.register_full_backward_pre_hook(self._opens(key)),
                    module.register_full_backward_hook(self._closes(key)),
                ]
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _opens(self, key: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            self._open[key] = self._clock.mark()

        return hook

    def _closes(self, key: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            start = self._open.pop(key, None)
            if start is not None:
                self._marks.setdefault(key, []).append((start, self._clock.mark()))
                # Begun before all of it was enqueued: there may be gaps.
                self._is_late |= self._clock.is_passed(start)

        return hook

    def run(self) -> None:
        """Runs a step that does not count."""
        self._marks.clear()
        self._is_late = False
        synchronize()
        self._clock.lead(self._lead_ms)
        with warnings.catch_warnings():
            # The first layer's input needs no gradient, which torch tells at every step.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            self._step()
        synchronize()

    def measure(self) -> None:
        """Runs a step, again where the GPU waited for the host in a layer."""
        self.run()
        while self._is_late and self._lead_ms < _MAX_LEAD_MS:
            self._lead_ms *= 2
            self.run()
        self.late += self._is_late
        for key, pairs in self._marks.items():
            self._times.setdefault(key, []).extend(self._clock.between(*pair) for pair in pairs)

    def medians(self) -> dict[str, float]:
        """Median milliseconds by the layer's name, gradients added."""
        medians = {key: statistics.median(times) for key, times in self._times.items()}
        return {
            name: medians[name] + medians.get(name + _GRADIENTS, 0.0)
            for name in self._layers
            if name in medians
        }


_GRADIENTS = " gradients"


def times_of_layers(timers: Mapping[str, LayerTimer], repeats: int) -> dict[str, dict[str, float]]:
    """Measures the convolutions of several models, in turns.

    Args:
        timers: Of the models, by mode.
        repeats: Steps of each that are measured.

    Returns:
        Median milliseconds by the layer's name, by mode.
    """
    from triton_ext.ops.tuning.measure import turns

    with ExitStack() as stack:
        for timer in timers.values():
            stack.enter_context(timer)
            for _ in range(_WARM_UP):
                timer.run()
        for number in range(repeats):
            for mode in turns(tuple(timers), number):
                timers[mode].measure()
    return {mode: timer.medians() for mode, timer in timers.items()}


def compare(network: Network, arguments: argparse.Namespace, *, training: bool) -> None:
    """Measures the layers of torch's and of our convolutions; draws them, or writes them.

    A plot has its numbers beside it, in a .csv of the same name.

    Args:
        network: The network.
        arguments: Of the script.
        training: Whether gradients are computed too.
    """
    timers = {}
    for mode in ("eager", "ours"):
        made = modes.variant(network, mode, dtype=modes.DTYPES[arguments.dtype])

        def step(made: modes.Variant = made) -> None:
            with torch.set_grad_enabled(training):
                output = made.call(*made.network.inputs)
                if training:
                    made.network.loss(output, made.network.target).backward()
            made.network.model.zero_grad(set_to_none=True)

        timers[mode] = LayerTimer(made.network.model, step, backward=training)
    times = times_of_layers(timers, arguments.steps)
    task = "training" if training else "inference"
    path = arguments.per_layer.with_stem(f"{arguments.per_layer.stem}-{network.name}-{task}")
    layers = dict(network.model.named_modules())
    both = [
        LayerTimes(name, str(layers[name]), times["eager"][name], times["ours"][name])
        for name in times["eager"]
        if name in times["ours"]
    ]
    if path.suffix == ".json":
        write_json(path, [asdict(each) for each in both])
    else:
        rows = [each.row() for each in both]
        write_rows(path.with_suffix(".csv"), collect_environment(), rows)
    if path.suffix not in (".csv", ".json"):
        draw(path, both, f"{network.name}, {task}, {arguments.dtype}")
    before, after = sum(each.before_ms for each in both), sum(each.after_ms for each in both)
    emit(
        f"{network.name}: {len(both)} convolutions {before:.3f} ms before, {after:.3f} ms after "
        f"({before / after:.3f}x): {path}"
    )
    for mode, timer in timers.items():
        if timer.late:
            emit(
                f"  {mode}: the GPU waited for the host in {timer.late} of {arguments.steps} steps"
            )
    for each in sorted(both, key=lambda each: each.before_ms - each.after_ms)[:_TOLD]:
        emit(
            f"  {each.before_ms * 1e3:8.1f} us before, {each.after_ms * 1e3:8.1f} after: "
            f"{each.name} {each.text}"
        )


def draw(path: pathlib.Path, layers: Sequence[LayerTimes], title: str) -> None:
    """Draws two bars per layer.

    Args:
        path: .png or .svg.
        layers: From the top to the bottom.
        title: Above the plot.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 1.5 + 0.2 * len(layers)), layout="constrained")
    places = range(len(layers))
    bars = {
        "torch's": [each.before_ms for each in layers],
        "triton_ext's": [each.after_ms for each in layers],
    }
    for number, (label, values) in enumerate(bars.items()):
        offset = (number - 0.5) * 0.4
        axes.barh(
            [place + offset for place in places], [ms * 1e3 for ms in values], 0.4, label=label
        )
    axes.set_yticks(places, [each.name for each in layers], fontsize=6)
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.set_xlabel("us per step")
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
