"""Puts the kernel's file and line in front of the errors of device functions.

Triton's ``CompilationError`` counts lines from the function's first one and does not name the file.
The builder knows the place that is being compiled, on every release; it prints as
``loc("kernel.py":12:5)``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

from triton_ext.errors import UnsupportedError

__all__ = ["gluon_builtin", "located", "place"]

_PLACE = re.compile(r'"([^"]+)":(\d+):(\d+)')

F = TypeVar("F", bound=Callable[..., Any])


def located(function: F) -> F:
    """Makes the errors of a device function name the user's line: ``file:line:col: error:``.

    It stands between the host's decorator and the function.  Errors keep their type.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (AssertionError, TypeError, ValueError, UnsupportedError) as error:
            found = place(kwargs.get("_semantic"))
            text = str(error)
            if found and not text.startswith(found):
                error.args = (f"{found}: error: {text}", *error.args[1:])
            raise

    return wrapper  # type: ignore[return-value]


def gluon_builtin(function: F) -> F:
    """Marks a function as a device function of Gluon whose errors name the user's line.

    Type checkers see the function's own signature; Triton's decorator has no types.
    """
    from triton.experimental.gluon.language._core import builtin

    return builtin(located(function))  # type: ignore[no-any-return]


def place(semantic: Any) -> str:
    """Returns ``file:line:col`` of the line that is being compiled; empty where it is not known.

    Args:
        semantic: The ``_semantic`` argument that Triton hands to a device function.
    """
    get_loc = getattr(getattr(semantic, "builder", None), "get_loc", None)
    if get_loc is None:
        return ""
    match = _PLACE.search(str(get_loc()))
    return "" if match is None else ":".join(match.groups())
