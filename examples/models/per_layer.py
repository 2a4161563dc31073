"""Time of every convolution of a network, before and after ``convert``.

Hooks record CUDA events around each layer: its own time on the GPU; without one, the host's.
Nothing is folded into layers here, since a layer with hooks runs by itself.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.harness import collect_environment, emit, write_json, write_rows
from examples.models import modes
from examples.models.measure import synchronize
from examples.models.networks import Network

__all__ = ["LayerTimes", "compare", "draw", "times_of_layers"]

_WARM_UP = 3

# Time of this product hides the host's behind the GPU, so that gaps are not measured as layers.
_LEAD_MS = 20.0


# Layers with the least gain that are told.
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
        """What a table says of it."""
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

    def lead(self) -> None:
        """Keeps the GPU busy while the host enqueues."""
        if self._on_gpu:
            torch.cuda._sleep(int(_LEAD_MS * 1.5e6))

    def between(self, start: Any, end: Any) -> float:
        """Milliseconds."""
        return float(start.elapsed_time(end)) if self._on_gpu else (end - start) * 1e3


def times_of_layers(
    model: nn.Module, step: Callable[[], object], *, repeats: int, backward: bool
) -> dict[str, float]:
    """Measures every convolution in some steps.

    Args:
        model: Whose modules are measured.
        step: Runs the model, and its backward if that is to be measured.
        repeats: Steps that are measured.
        backward: Whether the times of the gradients are added.  The first layer's is not among
            them where the model's input needs none.

    Returns:
        Median milliseconds by the layer's name.
    """
    clock = _Clock()
    marks: dict[str, list[tuple[Any, Any]]] = {}
    open_marks: dict[str, Any] = {}
    handles = []

    def opens(key: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            open_marks[key] = clock.mark()

        return hook

    def closes(key: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            start = open_marks.pop(key, None)
            if start is not None:
                marks.setdefault(key, []).append((start, clock.mark()))

        return hook

    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.conv._ConvNd)
    }
    for name, module in layers.items():
        handles.append(module.register_forward_pre_hook(opens(name)))
        handles.append(module.register_forward_hook(closes(name)))
        if backward:
            handles.append(module.register_full_backward_pre_hook(opens(name + " gradients")))
            handles.append(module.register_full_backward_hook(closes(name + " gradients")))
    try:
        with warnings.catch_warnings():
            # The first layer's input needs no gradient, which torch tells at every step.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            for number in range(_WARM_UP + repeats):
                if number == _WARM_UP:
                    marks.clear()
                synchronize()
                clock.lead()
                step()
        synchronize()
    finally:
        for handle in handles:
            handle.remove()
    medians = {
        key: statistics.median(clock.between(*pair) for pair in pairs)
        for key, pairs in marks.items()
    }
    return {
        name: medians[name] + medians.get(name + " gradients", 0.0)
        for name in layers
        if name in medians
    }


def compare(network: Network, arguments: argparse.Namespace, *, training: bool) -> None:
    """Measures the layers of torch's and of our convolutions; draws them, or writes them.

    A plot has its numbers beside it, in a .csv of the same name.

    Args:
        network: The network.
        arguments: Of the script.
        training: Whether gradients are computed too.
    """
    times = {}
    for mode in ("eager", "ours"):
        made = modes.variant(network, mode, dtype=modes.DTYPES[arguments.dtype])

        def step(made: modes.Variant = made) -> None:
            with torch.set_grad_enabled(training):
                output = made.call(*made.network.inputs)
                if training:
                    made.network.loss(output, made.network.target).backward()
            made.network.model.zero_grad(set_to_none=True)

        times[mode] = times_of_layers(
            made.network.model, step, repeats=arguments.steps, backward=training
        )
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
