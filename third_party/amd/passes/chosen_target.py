"""The GPU that a pass about asynchronous copies works for: an option's, or the module's."""

from __future__ import annotations

from triton_ext.errors import UnsupportedError
from triton_ext.ir import Module
from triton_ext.passes import PassContext

from ..analysis.async_events import ASYNC
from ..analysis.target import Target

__all__ = ["chosen_target"]


def chosen_target(
    option: str, module: Module, context: PassContext, what: str = "waits"
) -> Target | None:
    """The GPU.

    Args:
        option: What was asked for, ``"gfx950"``; empty for what the module's ``ttg.target`` says.
        module: The module.
        context: Takes a warning where a module is left alone because its GPU is not known, and it
            has asynchronous operations.
        what: What is left alone then, in words.

    Returns:
        ``None`` for a module that is left alone: for a GPU that is not known, or one that is known
        to have no asynchronous copies to LDS.

    Raises:
        UnsupportedError: The GPU that was asked for is not known.
        VerifyError: The module has no such attribute, or one that says something else.
    """
    if option:
        return None if Target.is_known_without(option) else Target.of(option)
    try:
        return Target.of_module(module)
    except UnsupportedError as error:
        arch = module.op.attributes.get("ttg.target", "").strip('"').partition(":")[2]
        first = next((op for op in module.walk() if op.name.startswith(ASYNC)), None)
        if first is not None and not Target.is_known_without(arch):
            context.warning(first, f"the {what} of this module are left alone: {error}")
        return None
