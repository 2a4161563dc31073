"""What became of a model's convolutions, as data and as a table.

The table is drawn by rich where that is installed, and otherwise printed in plain columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO

__all__ = ["ALREADY_OURS", "Conversion", "Layer", "show"]

#: The reason why a converted layer is not converted.
ALREADY_OURS = "it is ours already"

# Where the output is no terminal, rich would take 80 columns and fold the texts.
_WIDTH = 200


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution of a model.

    Attributes:
        name: As ``named_modules`` calls it; empty for the model itself.
        text: The module's own.
        shape: Of its weight, such as ``64x3x7x7``; ``?`` where it is not known yet.
        reason: Why it was left; empty if it was converted.
        folded: What became part of it, in order: classes of modules, names of functions, ``+``,
            ``+[:, :, None, None]``.
        unfolded: Why nothing did; empty if something did, or nothing was to.
    """

    name: str
    text: str
    shape: str
    reason: str
    folded: tuple[str, ...]
    unfolded: str

    @property
    def outcome(self) -> str:
        """What became of it, in words."""
        if self.folded:
            return f"converted with {', '.join(self.folded)}"
        if self.reason and not self.unfolded:
            return f"left: {self.reason}"
        return f"converted alone: {self.unfolded}" if self.unfolded else "converted"


@dataclass(frozen=True, slots=True)
class Conversion:
    """What became of a model's convolutions; its text is a table."""

    layers: tuple[Layer, ...]

    @property
    def summary(self) -> str:
        """How many convolutions there are and what became of them."""
        if not self.layers:
            return "no convolutions"
        ours = sum(not layer.reason for layer in self.layers)
        before = sum(layer.reason == ALREADY_OURS for layer in self.layers)
        folded = sum(bool(layer.folded) for layer in self.layers)
        left = len(self.layers) - ours - before
        counts = {"converted": ours, "ours before": before, "left": left, "folded": folded}
        found = [f"{count} {what}" for what, count in counts.items() if count]
        return f"{len(self.layers)} convolutions: {', '.join(found)}"

    def __str__(self) -> str:
        rows = [(layer.name, layer.text, layer.outcome) for layer in self.layers]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
        lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in rows]
        return "\n".join([*lines, self.summary])


def show(conversion: Conversion, file: TextIO) -> None:
    """Prints a table of what became of every convolution."""
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
    for layer in conversion.layers:
        style = "red" if layer.outcome.startswith("left") else "green"
        cells = (layer.name or "(model)", layer.text.split("(")[0], layer.shape)
        table.add_row(*map(Text, cells), Text(layer.outcome, style=style))
    console = Console(file=file)
    if not console.is_terminal:
        console = Console(file=file, width=_WIDTH)
    console.print(table)
