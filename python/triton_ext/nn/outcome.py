"""Tables of a model's convolutions and norms: the outcome of a conversion, and counts of calls.

The table is drawn by rich where that is installed, and otherwise printed in plain columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO

from triton_ext.errors import for_terminal

__all__ = ["ALREADY_OURS", "Conversion", "Counts", "Layer", "ModuleCalls", "Report", "show"]

#: The reason of a layer that was converted before.
ALREADY_OURS = "it is ours already"

# Where the output is no terminal, rich would take 80 columns and fold the texts.
_WIDTH = 200

# The most characters of a layer's name and of a module's text in a line of a table.
_NAME_WIDTH, _TEXT_WIDTH = 48, 80


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution or a norm of a model.

    Attributes:
        name: As ``named_modules`` calls it; empty for the model itself.
        text: The module's class and its numbers, in one line.
        shape: Shape of its weight, such as ``64x3x7x7``, or a norm's number of channels; ``?``
            where it is not known yet.
        reason: Why it was left; empty if it was converted.  Begins with ``it is ours already``
            where it had been converted before.
        folded: The operations that are folded into it, in order: classes of modules, names of
            functions, ``+``, ``+[:, :, None, None]``.
        unfolded: Why nothing is folded; empty if something is, or folding was not asked for.
        within: The convolution that a norm is folded into in eval mode; empty if it is not.
        kept: Options of an earlier conversion that differ from those asked for now; empty if none
            do.
    """

    name: str
    text: str
    shape: str
    reason: str
    folded: tuple[str, ...]
    unfolded: str
    within: str = ""
    kept: str = ""

    @property
    def is_ours_already(self) -> bool:
        """Returns whether it was converted earlier."""
        return self.reason.startswith(ALREADY_OURS)

    @property
    def outcome(self) -> str:
        """The result in words."""
        return f"{self._became}; {self.kept}" if self.kept else self._became

    @property
    def _became(self) -> str:
        if self.within and self.reason in ("", ALREADY_OURS):
            return f"converted, and part of {self.within} in eval mode"
        if self.folded:
            return f"converted with {', '.join(self.folded)}"
        if self.is_ours_already and not self.unfolded:
            return self.reason.removeprefix("it is ")
        if self.reason and not self.unfolded:
            return f"left: {self.reason}"
        return f"converted alone: {self.unfolded}" if self.unfolded else "converted"


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of converting a model's layers; ``str`` prints a table.

    Attributes:
        layers: The convolutions.
        norms: The norms; empty if they were not to be converted.
    """

    layers: tuple[Layer, ...]
    norms: tuple[Layer, ...] = ()

    @property
    def summary(self) -> str:
        """How many convolutions and norms there are and what became of them."""
        text = _counts("convolution", self.layers)
        return f"{text}; {_counts('norm', self.norms)}" if self.norms else text

    def __str__(self) -> str:
        rows = [
            (_short(layer.name), _cut(layer.text), _line(layer.outcome))
            for layer in (*self.layers, *self.norms)
        ]
        return "\n".join([*_columns(rows), self.summary])


@dataclass(frozen=True, slots=True)
class Counts:
    """The calls of one direction: which kernels ran, and why torch computed the others.

    Attributes:
        kernels: Names of kernels of this package with their calls, the most frequent first.
        refusals: Reasons for the calls by torch with their counts, the most frequent first.
    """

    kernels: tuple[tuple[str, int], ...] = ()
    refusals: tuple[tuple[str, int], ...] = ()

    @property
    def ours(self) -> int:
        """Calls that ran a kernel of this package."""
        return sum(count for _, count in self.kernels)

    @property
    def torch(self) -> int:
        """Calls that torch computed."""
        return sum(count for _, count in self.refusals)

    def __str__(self) -> str:
        texts = []
        if self.kernels:
            names = ", ".join(name for name, _ in self.kernels)
            texts.append(f"{self.ours} by our kernels ({names})")
        if self.refusals:
            reasons = "; ".join(f"{refusal} ({count})" for refusal, count in self.refusals)
            texts.append(f"{self.torch} by torch: {reasons}")
        return ", ".join(texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCalls:
    """The calls of one converted module.

    Attributes:
        name: As ``named_modules`` calls it; empty for the model itself.
        text: The module's class and its numbers, in one line.
        forward: Forward calls.
        dgrad: Gradients of the input.
        wgrad: Gradients of the weight.
        forward_ms: Time of the forward calls on the GPU; 0 if they were not timed.
        backward_ms: The same for backward calls.
    """

    name: str
    text: str
    forward: Counts
    dgrad: Counts = Counts()
    wgrad: Counts = Counts()
    forward_ms: float = 0.0
    backward_ms: float = 0.0

    @property
    def ours(self) -> int:
        """Forward calls that ran a kernel of this package."""
        return self.forward.ours

    @property
    def torch(self) -> int:
        """Forward calls that ran torch's convolution."""
        return self.forward.torch

    @property
    def refusals(self) -> tuple[tuple[str, int], ...]:
        """Reasons for the forward calls by torch with their counts, the most frequent first."""
        return self.forward.refusals

    @property
    def outcome(self) -> str:
        """The numbers of calls that our kernels and torch computed, in words."""
        found = (("", self.forward), ("dgrad: ", self.dgrad), ("wgrad: ", self.wgrad))
        texts = [f"{name}{text}" for name, counts in found if (text := str(counts))]
        if self.forward_ms or self.backward_ms:
            texts.insert(0, f"{self.forward_ms:.3f} ms, backward {self.backward_ms:.3f} ms")
        return "; ".join(texts) or "not called"


@dataclass(frozen=True, slots=True)
class Report:
    """The calls of a model's convolutions, by our kernels and by torch; ``str`` prints a table.

    Attributes:
        modules: The converted convolutions.
        left: Names of the convolutions that are not converted; torch computes them.
    """

    modules: tuple[ModuleCalls, ...]
    left: tuple[str, ...]

    @property
    def ours(self) -> int:
        """Forward calls that ran a kernel of this package."""
        return sum(each.ours for each in self.modules)

    @property
    def torch(self) -> int:
        """Forward calls of converted modules that ran torch's convolution."""
        return sum(each.torch for each in self.modules)

    @property
    def summary(self) -> str:
        """The counts of all modules in one line."""
        text = f"{self.ours + self.torch} calls of {len(self.modules)} converted convolutions"
        text += f": {self.ours} by our kernels, {self.torch} by torch"
        gradients = [each for module in self.modules for each in (module.dgrad, module.wgrad)]
        ours, torch = sum(each.ours for each in gradients), sum(each.torch for each in gradients)
        if ours or torch:
            text += f"; {ours + torch} gradients: {ours} by our kernels, {torch} by torch"
        return f"{text}; not converted: {len(self.left)}" if self.left else text

    def __str__(self) -> str:
        rows = [(_short(each.name), _cut(each.text), _line(each.outcome)) for each in self.modules]
        return "\n".join([*_columns(rows), self.summary])


def _columns(rows: list[tuple[str, str, str]]) -> list[str]:
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    return [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in rows]


def _short(name: str) -> str:
    """Returns a name, or the end of a long one, which tells layers apart."""
    name = _line(name)
    return name if len(name) <= _NAME_WIDTH else f"...{name[3 - _NAME_WIDTH :]}"


def _line(text: str) -> str:
    """Returns a text in one line; names of children may have anything in them."""
    return for_terminal(text).replace("\n", "\\n").replace("\t", "\\t")


def _cut(text: str) -> str:
    text = _line(text)
    return text if len(text) <= _TEXT_WIDTH else f"{text[: _TEXT_WIDTH - 3]}..."


def _counts(kind: str, layers: tuple[Layer, ...]) -> str:
    if not layers:
        return f"no {kind}s"
    ours = sum(not layer.reason for layer in layers)
    before = sum(layer.is_ours_already for layer in layers)
    folded = sum(bool(layer.folded or layer.within) for layer in layers)
    left = len(layers) - ours - before
    counts = {"converted": ours, "ours before": before, "left": left, "folded": folded}
    found = [f"{count} {what}" for what, count in counts.items() if count]
    return f"{len(layers)} {kind}{'s' if len(layers) > 1 else ''}: {', '.join(found)}"


def show(conversion: Conversion, file: TextIO) -> None:
    """Prints a table of what became of every layer, or that there is none."""
    if not (conversion.layers or conversion.norms):
        file.write(f"{conversion.summary}\n")
        return
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        file.write(f"{conversion}\n")
        return
    table = Table(caption=conversion.summary, caption_justify="left")
    table.add_column("layer", no_wrap=True)
    table.add_column("module")
    table.add_column("weight", no_wrap=True)
    table.add_column("outcome")
    for layer in (*conversion.layers, *conversion.norms):
        style = "red" if layer.outcome.startswith("left") else "yellow" if layer.kept else "green"
        cells = (_short(layer.name) or "(model)", layer.text.split("(")[0], layer.shape)
        table.add_row(*map(Text, cells), Text(_line(layer.outcome), style=style))
    console = Console(file=file)
    if not console.is_terminal:
        console = Console(file=file, width=_WIDTH)
    console.print(table)
