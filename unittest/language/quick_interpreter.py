"""Triton's interpreter without work whose result it throws away.

1. It computes each sum, difference and product of integers a second time in int64, to see whether
   it overflows, and asserts that only if its options say ``debug``, which they never do.
2. At each call of a device function it looks through all members of ``triton.language`` for
   builtins to replace, which the launch has replaced.

Nothing else is changed.  ``TRITON_EXT_NIGHTLY=1`` leaves the interpreter as it is.
"""

from __future__ import annotations

import dataclasses
import inspect

__all__ = ["hasten"]


def hasten() -> None:
    """Changes the interpreter of this process."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    patch_attr, is_builtin = interpreter._patch_attr, interpreter.tl.core.is_builtin
    names: dict[object, list[str]] = {}

    def patch_builtin(package, builder, scope):
        if package not in names:
            members = inspect.getmembers(package)
            names[package] = [name for name, member in members if is_builtin(member)]
        for name in names[package]:
            member = getattr(package, name)
            if not is_builtin(member):
                break  # all of the package, by the launch
            patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin = patch_builtin
