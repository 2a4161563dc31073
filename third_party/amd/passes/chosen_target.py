"""Finds the target GPU of a pass about asynchronous copies, from an option or the module."""

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
    """Returns the target GPU.

    Args:
        option: The GPU given as an option, ``"gfx950"``; empty for the module's ``ttg.target``.
        module: The module.
        context: Receives a warning if the GPU is unknown and the module has asynchronous
            operations.
        what: Names, in the warning, what the pass leaves alone.

    Returns:
        ``None`` for an unknown GPU, or one without asynchronous copies to LDS.

    Raises:
        UnsupportedError: The given GPU is unknown.
        VerifyError: The module has no valid ``ttg.target``.
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
