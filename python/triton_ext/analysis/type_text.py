"""The text of a value's type, behind an alias that a person gave it."""

from __future__ import annotations

from ..ir import OpResult, Value

__all__ = ["type_text"]


def type_text(value: Value) -> str:
    """The type as printed; of ``!buffer``, what that alias stands for.

    Aliases inside of it stay as they are.  Empty where the printed form does not tell the type.
    """
    text = value.known_type or ""
    if not text.startswith("!") or "." in text.partition("<")[0]:
        return text  # types of dialects have a dot in their names, aliases never have
    op = value.owner if isinstance(value, OpResult) else value.owner.parent_op
    module = op.module if op is not None else None
    aliases = module.aliases if module is not None else {}
    seen = set()
    while text in aliases and text not in seen:
        seen.add(text)
        text = aliases[text].strip()
    return text
