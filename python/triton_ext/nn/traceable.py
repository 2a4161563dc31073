"""Whether recording a forward once tells what it does every time.

torch.fx runs a forward with stand-ins for its inputs and writes down what is done to them.  What it
cannot write down it either refuses, or, which is worse, does once and forgets: assignments to
attributes, ``with`` blocks, questions about types.  :func:`hazard` finds those in the code, of the
forward and of everything of the model's own that it calls.

Safe direction: a forward that would be recorded rightly may be refused.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["hazard", "names_read"]

_OPERATIONS = {
    "STORE_ATTR": "assigns to an attribute",
    "DELETE_ATTR": "deletes an attribute",
    "STORE_GLOBAL": "assigns to a global name",
    "STORE_SUBSCR": "assigns to an element",
    "DELETE_SUBSCR": "deletes an element",
    "BEFORE_WITH": "has a with block",
    "SETUP_WITH": "has a with block",
    "LOAD_SPECIAL": "has a with block",
    "SETUP_FINALLY": "catches exceptions",
    "PUSH_EXC_INFO": "catches exceptions",
    "YIELD_VALUE": "yields",
}

_NAMES = {
    **dict.fromkeys(("isinstance", "issubclass", "type", "hasattr"), "asks for types"),
    **dict.fromkeys(
        ("append", "extend", "insert", "update", "setdefault", "pop", "setattr", "print"),
        "has effects beside its result",
    ),
    **dict.fromkeys(
        ("random", "rand", "randn", "randint", "bernoulli", "time", "perf_counter"),
        "gives something else each time",
    ),
    **dict.fromkeys(
        ("is_grad_enabled", "is_autocast_enabled", "is_inference_mode_enabled"),
        "asks for a mode of torch",
    ),
}


def hazard(module: torch.nn.Module) -> str:
    """Returns what in a module's forward is not recorded; empty if nothing is found."""
    for function in _reached(module):
        found = _hazard_of(function.__code__)
        if found:
            return f"{function.__qualname__} {found}"
    return ""


def names_read(module: torch.nn.Module) -> set[str]:
    """Returns the names, of attributes too, that a module's forward may ask for."""
    return {name for function in _reached(module) for name in _names(function.__code__)}


def _hazard_of(code: types.CodeType) -> str:
    # Generator expressions and comprehensions yield to nobody else.
    allowed = {"YIELD_VALUE"} if code.co_name.startswith("<") else set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _OPERATIONS and instruction.opname not in allowed:
            return _OPERATIONS[instruction.opname]
    for name in code.co_names:
        if name in _NAMES:
            return f"{_NAMES[name]} ({name})"
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return next(filter(None, map(_hazard_of, inner)), "")


def _reached(module: torch.nn.Module) -> list[types.FunctionType]:
    """Returns the forward and what it may call of its class and its file, one after another."""
    kind = type(module)
    found: dict[int, types.FunctionType] = {}
    waiting = [f for f in _functions(getattr(kind, "forward", None))]
    while waiting:
        function = waiting.pop()
        if id(function) in found or _is_torchs(function):
            continue
        found[id(function)] = function
        cells = [_content(cell) for cell in function.__closure__ or ()]
        for name in _names(function.__code__):
            # Every definition along the bases: super() may ask for any.
            cells += [vars(base).get(name) for base in kind.__mro__ if base is not torch.nn.Module]
            cells.append(function.__globals__.get(name))
        for value in cells:
            waiting += _functions(value)
    return list(found.values())


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return None


def _functions(value: object) -> Iterator[types.FunctionType]:
    """Returns the functions behind a value: methods, properties, partial and wrapped functions."""
    if isinstance(value, types.FunctionType):
        yield value
        yield from _functions(getattr(value, "__wrapped__", None))
    elif isinstance(value, (staticmethod, classmethod, types.MethodType)):
        yield from _functions(value.__func__)
    elif isinstance(value, property):
        yield from _functions(value.fget)
    elif isinstance(value, functools.partial):
        yield from _functions(value.func)


def _is_torchs(function: types.FunctionType) -> bool:
    """Tells whether a function is torch's own: stand-ins are known there."""
    name = function.__module__ or ""
    return name == "torch" or name.startswith("torch.")
