"""Convolutions of networks that people run, by kind of network.  Needs no GPU.

``suites.txt`` has them, each as the network has it at a usual size.  "all" leaves out the suites of
one kind: "groups", "depthwise", layers over "few" channels, and the 2-D "shapes" that the Gluon
examples and epilogues are timed with, of which those of 256 channels and more are "wide".
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass

from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.tuning import parse_shape

__all__ = ["SUITES", "Layer", "sections", "select_layers"]


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution of a network."""

    suite: str  # name of the suite
    problem: ConvProblem  # what it computes

    @property
    def work(self) -> int:
        """Operations."""
        return self.problem.flops

    @property
    def name(self) -> str:
        """Sizes and filter, then what is unusual.

        ``32x64x56x56_64_k3x3`` is batch, Ci, input size, Co and filter; behind it the stride
        ``s2x2``, the dilation ``d2x2``, a padding of another than half the filter ``p0x0``, and
        groups ``g96``.
        """
        p = self.problem
        size, taps = (_times(values) for values in (p.input_size, p.filter_size))
        text = f"{p.batch}x{p.in_channels}x{size}_{p.out_channels}_k{taps}"
        for letter, values in (("s", p.stride), ("d", p.dilation)):
            if set(values) != {1}:
                text += f"_{letter}{_times(values)}"
        if p.padding != _half(p.filter_size, p.dilation):
            text += "_p" + "x".join(
                str(low) if low == high else f"{low}-{high}" for low, high in p.padding
            )
        return text + (f"_g{p.groups}" if p.groups > 1 else "")


def _times(values: tuple[int, ...]) -> str:
    return "x".join(map(str, values))


def _half(filter_size: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Padding that keeps the size of an odd filter with stride 1."""
    halves = (d * (k // 2) for k, d in zip(filter_size, dilation, strict=True))
    return tuple((half, half) for half in halves)


def sections(path: pathlib.Path) -> dict[str, list[str]]:
    """Returns the words of a file's sections: a line with name and comment, then lines of words."""
    found = {}
    for section in path.read_text(encoding="utf-8").split("\n\n"):
        head, *lines = section.splitlines()
        found[head.partition(":")[0]] = " ".join(lines).split()
    return found


SUITES = {
    name: tuple(Layer(name, parse_shape(word)) for word in words)
    for name, words in sections(pathlib.Path(__file__).with_suffix(".txt")).items()
}
SUITES["wide"] = tuple(
    Layer("wide", layer.problem) for layer in SUITES["shapes"] if layer.problem.in_channels >= 256
)

# Suites that are not part of "all".
_APART = ("groups", "depthwise", "few", "shapes", "wide")


def select_layers(suite: str, words: list[str] | None = None) -> tuple[Layer, ...]:
    """Returns layers of a suite, each once.

    Args:
        suite: A name of :data:`SUITES`, or ``"all"`` for those that are not apart.
        words: Names of layers, or indices; all of the suite by default.

    Raises:
        ValueError: There is no such suite or layer; the text says what there is.
    """
    if suite != "all" and suite not in SUITES:
        raise ValueError(f"suite {suite!r}: expected one of {', '.join(SUITES)}, all")
    names = [name for name in SUITES if name not in _APART] if suite == "all" else [suite]
    chosen = [SUITES[name] for name in names]
    layers = tuple(dict.fromkeys(layer for part in chosen for layer in part))
    if not words:
        return layers
    by_name = {layer.name: layer for layer in layers}
    found = []
    for word in words:
        if word.isdecimal() and int(word) < len(layers):
            found.append(layers[int(word)])
        elif word in by_name:
            found.append(by_name[word])
        else:
            raise ValueError(
                f"layer {word!r}: expected an index 0..{len(layers) - 1} of suite {suite!r} or a "
                f"name such as {layers[0].name!r}"
            )
    return tuple(found)
