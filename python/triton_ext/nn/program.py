"""The text of a recorded forward, as torch.fx writes it.

fx copies names of modules, methods and keywords into the text as they are, and values by their
``repr``.  A model that was read from a file may have any names, so a name or a value that is not
read back as itself makes no text.
"""

from __future__ import annotations

import keyword
import types
import unicodedata
from typing import Any

import torch
from torch import fx
from torch.fx.immutable_collections import immutable_dict, immutable_list

__all__ = ["OWN", "NotWritable", "check_record", "program_of", "tied_paths"]

#: Attributes of this package in modules and classes begin with it.
OWN = "_triton_ext_"


class NotWritable(Exception):
    """A graph whose text would not be the graph."""


def check_record(graph: fx.Graph, root: torch.nn.Module) -> None:
    """Refuses a record that the text of a program cannot give back.

    Args:
        graph: The record of a forward.
        root: The module whose forward it is.

    Raises:
        NotWritable: A name or a value would be read as something else.
    """
    for node in graph.nodes:
        for name in node.kwargs:
            if not _is_name(name):
                raise NotWritable(f"{name!r} is not a name for an argument")
        if node.op == "call_method" and not _is_name(str(node.target)):
            raise NotWritable(f"{node.target!r} is not a name for a method")
        if node.op in ("call_module", "get_attr"):
            _check_path(root, str(node.target))
        _check_value((*node.args, *node.kwargs.values()))


def tied_paths(root: torch.nn.Module, graph: fx.Graph) -> tuple[tuple[str, ...], ...]:
    """Returns the paths of modules and tensors in a record that have several names."""
    used = {str(n.target) for n in graph.nodes if n.op in ("call_module", "get_attr")}
    paths: dict[int, list[str]] = {}
    for listed in (root.named_modules, root.named_parameters, root.named_buffers):
        for path, found in listed(remove_duplicate=False):
            paths.setdefault(id(found), []).append(path)
    return tuple(tuple(p) for p in paths.values() if len(p) > 1 and not used.isdisjoint(p))


def program_of(graph: fx.Graph) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """Returns a graph as text, and the global names of the text with their values.

    Raises:
        NotWritable: Python does not take the text.
    """
    for node in graph.nodes:
        node.type = None
    code = graph.python_code("self")
    try:
        used = _used_names(compile(code.src, "<folded forward>", "exec"))
    except SyntaxError as error:
        raise NotWritable(f"torch.fx writes no Python: {error.msg}") from error
    names = tuple((name, value) for name, value in sorted(code.globals.items()) if name in used)
    return code.src, names


def _check_path(root: torch.nn.Module, path: str) -> None:
    """Refuses a path that attribute access would not resolve to the recorded child."""
    module: Any = root
    for name in path.split("."):
        if not isinstance(module, torch.nn.Module):
            # Torch's own add_module refuses names with dots; a file need not.
            raise NotWritable(f"{type(root).__name__} has a child with a dot in its name: {path!r}")
        if not _is_name(name) and not _is_quotable(name):
            raise NotWritable(f"torch.fx cannot write the name {name!r}")
        kind = type(module)
        if name in vars(module) or any(name in vars(base) for base in kind.__mro__):
            raise NotWritable(f"{kind.__name__} has a child and another attribute named {name!r}")
        if name.startswith(OWN):
            raise NotWritable(f"triton-ext has an attribute of its own named {name!r}")
        if _reads_otherwise(kind):
            raise NotWritable(f"{kind.__name__} has attribute access of its own")
        module = module._modules.get(name)


def _reads_otherwise(kind: Any) -> bool:
    """Returns whether a class of modules overrides torch's look-up of attributes."""
    return (
        kind.__getattribute__ is not object.__getattribute__
        or kind.__getattr__ is not torch.nn.Module.__getattr__
    )


# They print as themselves.
_PLAIN = {int, float, bool, str, type(None), type(...), torch.dtype, torch.device}
_PLAIN |= {torch.memory_format, torch.layout}
_SEQUENCES = {tuple, list, immutable_list}
_MAPPINGS = {dict, immutable_dict}
_INT_BITS = 64  # torch takes no larger ones
_DEPTH = 32


def _check_value(value: object, depth: int = 0) -> None:
    """Refuses a value of the graph that its ``repr`` would not give back.

    NumPy's float64 is a float and prints as a name of NumPy; an enum is none that is written.
    """
    kind = type(value)
    if depth > _DEPTH:
        raise NotWritable(f"a value is nested more than {_DEPTH} times")
    if kind in _SEQUENCES:
        for part in value:
            _check_value(part, depth + 1)
    elif kind in _MAPPINGS:
        for pair in value.items():
            _check_value(pair, depth + 1)
    elif kind is slice:
        _check_value((value.start, value.stop, value.step), depth + 1)
    elif kind is int and value.bit_length() > _INT_BITS:
        raise NotWritable(f"an integer has more than {_INT_BITS} bits")
    elif kind not in _PLAIN and not isinstance(value, fx.Node):
        raise NotWritable(f"a {kind.__name__} is a value of the forward")


def _is_name(text: str) -> bool:
    """Returns whether Python reads a text as a name, and as this one."""
    return (
        text.isidentifier()
        and not keyword.iskeyword(text)
        and unicodedata.normalize("NFKC", text) == text
    )


def _is_quotable(text: str) -> bool:
    """Returns whether fx writes a text between quotes that Python reads back unchanged."""
    return not text.isidentifier() and text.isprintable() and not set(text) & {'"', "\\"}


def _used_names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(_used_names, inner))
