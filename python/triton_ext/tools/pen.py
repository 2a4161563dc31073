"""Colours of a terminal."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Pen"]


@dataclass(frozen=True, slots=True)
class Pen:
    """Writes text in colours, or leaves it as it is.

    Attributes:
        colours: Whether there are any.
    """

    colours: bool

    def paint(self, text: str, code: str) -> str:
        """Text in a colour.

        Args:
            text: The text.
            code: What ECMA-48 calls the rendition, ``"1;31"``.
        """
        return f"\x1b[{code}m{text}\x1b[0m" if self.colours and text.strip() else text
