"""Gives each asynchronous copy of a module the layout that a vendor's rules choose, and tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from triton_ext.ir.encodings import DistributedEncoding
from triton_ext.passes.async_copy import AsyncCopy, retarget_copy_operands_to_encoding
from triton_ext.passes.context import PassContext
from triton_ext.passes.copy_report import report

__all__ = ["CopyRules", "retarget_copies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRules:
    """Properties of a vendor's copies.

    Attributes:
        layout_for: A better encoding for the operands of a copy; ``None`` where there is none.
        compiles: Whether a copy compiles as it is.
        problem: Why a copy will not compile if its operands have an encoding; empty where it will.
    """

    layout_for: Callable[[AsyncCopy], DistributedEncoding | None]
    compiles: Callable[[AsyncCopy], bool]
    problem: Callable[[AsyncCopy, DistributedEncoding], str]


def retarget_copies(
    copies: Iterable[AsyncCopy], rules: CopyRules, context: PassContext, *, explicit_layouts: bool
) -> None:
    """Changes the copies that another layout makes better, and makes the remark of each.

    Args:
        copies: The copies of a module.
        rules: What is better.
        context: Takes remarks and counts.
        explicit_layouts: Whether a person wrote the layouts: then a copy that compiles changes only
            if it is small and nothing has to be converted.
    """
    # All are chosen before one is changed: what is known is of the module as it is.
    chosen = [(copy, _chosen(copy, rules, explicit_layouts)) for copy in copies]
    for copy, encoding in chosen:
        final = encoding if encoding is not None else copy.encoding
        report(copy, encoding, rules.problem(copy, final), context)
        if encoding is not None:
            retarget_copy_operands_to_encoding(copy, encoding)
            context.count("copies-retargeted")


def _chosen(
    copy: AsyncCopy, rules: CopyRules, explicit_layouts: bool
) -> DistributedEncoding | None:
    encoding = rules.layout_for(copy)
    if encoding is None or not explicit_layouts or not rules.compiles(copy):
        return encoding
    return encoding if copy.is_small and copy.needs_no_conversion(encoding) else None
