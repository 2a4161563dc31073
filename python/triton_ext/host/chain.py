"""A patch point in Triton that several extensions may share, each calling the next.

Triton offers one slot or one function; an extension installs a function that calls the previous
one.  Others do so before and after us, leave in any order, or forget to call ours
(``knobs.runtime.scope()`` also restores the slot at its end).  Guarantees:

* The previous function is called before or within ours, and restored when ours is removed.
* Ours is installed once: a probe through the functions of others detects it.
* A :class:`PatchPoint` tells whether Triton still reaches ours, and who is in front of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

__all__ = ["PROBE", "PatchPoint", "describe"]

#: Our functions return this if it is their first argument, so that a patch point can detect them.
#: It stands for all other arguments too: Triton's C++ refuses it, but crashes on some None values.
PROBE: Final = object()

# An attribute of every function of ours: the function itself, because functools.wraps copies
# attributes, and the function that was there before.
_LINK: Final = "_triton_ext_link"


def describe(function: object) -> str:
    """Names a function for a person: module and name."""
    module = getattr(function, "__module__", None) or type(function).__module__
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{module}.{name}"


class PatchPoint:
    """One name of Triton's behind which ours stands.

    Args:
        title: Its name in messages.
        holder: The module, class or object that has the attribute.
        attribute: Name of the attribute that is replaced.
        make: Given the present function, returns ours, which calls it.
        is_present: Tells whether a function calls ours; by default it is called with :data:`PROBE`.
        arguments: How many arguments ours needs.
    """

    def __init__(
        self,
        title: str,
        holder: Any,
        attribute: str,
        make: Callable[[Any], Callable[..., Any]],
        is_present: Callable[[Any], bool] | None = None,
        arguments: int = 1,
    ):
        self.title = title
        self._holder, self._attribute, self._make = holder, attribute, make
        self._is_present, self._arguments = is_present or self._answers, arguments

    @property
    def _present(self) -> Any:
        return getattr(self._holder, self._attribute)

    @property
    def in_front(self) -> str:
        """Names the function in front of ours or in its place; empty if there is none."""
        present = self._present
        return "" if _is_ours(present) or _is_stock(present) else describe(present)

    @property
    def behind(self) -> str:
        """Names the function behind ours, if ours is the first; empty if only Triton is."""
        present = self._present
        if not _is_ours(present):
            return ""
        last = _behind_ours(present)
        return "" if _is_stock(last) else describe(last)

    def is_reached(self) -> bool:
        """Tells whether Triton's calls reach ours; cheap if no other function is in front."""
        present = self._present
        return _is_ours(present) or self._is_present(present)

    def chain(self) -> None:
        """Installs ours in front of the present function."""
        previous = self._present
        ours = self._make(previous)
        setattr(ours, _LINK, (ours, previous))
        setattr(self._holder, self._attribute, ours)

    def unchain(self) -> None:
        """Takes ours out; if another function is in front of it, it stays in that one's chain."""
        present = self._present
        if _is_ours(present):
            setattr(self._holder, self._attribute, _behind_ours(present))

    def _answers(self, present: Any) -> bool:
        if _is_stock(present):
            return False
        number = max(self._arguments, _number_of_arguments(present))
        try:
            return present(*[PROBE] * number) is PROBE
        except Exception:  # another extension's function may raise anything for a probe
            return False


def _is_ours(function: object) -> bool:
    link = getattr(function, _LINK, None)
    return link is not None and link[0] is function


def _is_stock(function: object) -> bool:
    """Returns whether it is Triton's own function, or an empty slot."""
    return function is None or describe(function).startswith("triton.")


def _behind_ours(function: Any) -> Any:
    while _is_ours(function):
        function = getattr(function, _LINK)[1]
    return function


def _number_of_arguments(function: Any) -> int:
    """Returns how many positional arguments a function names."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    return sum(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in parameters
    )
