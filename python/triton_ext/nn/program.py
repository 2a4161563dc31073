"""The text of a recorded forward, as torch.fx writes it.

fx copies names of modules, methods and keywords into the text as they are.  A model that was read
from a file may have any names, so a name that is not read back as itself makes no text.
"""

from __future__ import annotations

import keyword
import types
import unicodedata
from typing import Any

from torch import fx

__all__ = ["NotWritable", "program_of"]


class NotWritable(Exception):
    """A graph whose text would not be the graph."""


def program_of(graph: fx.Graph) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """Returns a graph as text, and the global names of the text; of modules, ``module:`` names.

    Raises:
        NotWritable: A name in the graph would be read as something else.
    """
    for node in graph.nodes:
        node.type = None
        _check_names(node)
    code = graph.python_code("self")
    try:
        used = _used_names(compile(code.src, "<folded forward>", "exec"))
    except SyntaxError as error:
        raise NotWritable(f"torch.fx writes no Python: {error.msg}") from error
    names = tuple(
        (name, f"module:{value.__name__}" if isinstance(value, types.ModuleType) else value)
        for name, value in sorted(code.globals.items())
        if name in used
    )
    return code.src, names


def _check_names(node: fx.Node) -> None:
    for name in node.kwargs:
        if not _is_name(name):
            raise NotWritable(f"{name!r} is no name of an argument")
    if node.op == "call_method" and not _is_name(str(node.target)):
        raise NotWritable(f"{node.target!r} is no name of a method")
    if node.op in ("call_module", "get_attr"):
        for name in str(node.target).split("."):
            if not _is_name(name) and not _is_quotable(name):
                raise NotWritable(f"torch.fx cannot write the name {name!r}")


def _is_name(text: str) -> bool:
    """Returns whether Python reads a text as a name, and as this one."""
    return (
        text.isidentifier()
        and not keyword.iskeyword(text)
        and unicodedata.normalize("NFKC", text) == text
    )


def _is_quotable(text: str) -> bool:
    """Returns whether fx writes a text between quotes, where it means itself."""
    return not text.isidentifier() and text.isprintable() and not set(text) & {'"', "\\"}


def _used_names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(_used_names, inner))
