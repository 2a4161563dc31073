"""The source files that decide what a pass does, for keys of caches.

They are the files of the classes that the pass is made of, of what those files import, and of what
these import in turn; a package counts as a whole.  The standard library, Triton and this package
are left out: their versions are in the key anyway.  What an installed package imports is not
followed, unless the pass is in it.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import pathlib
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from typing import Protocol

from triton_ext.errors import UnsupportedError
from triton_ext.passes.base import Pass

__all__ = ["Digest", "add_content", "add_files", "add_sources", "python_files"]

_KNOWN = frozenset({*sys.stdlib_module_names, "triton", "triton_ext"}) - {"__main__"}
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})
_STDLIB = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})


class Digest(Protocol):
    """The interface of digests of ``hashlib``."""

    def update(self, data: bytes, /) -> object:
        """Adds bytes."""


def add_content(digest: Digest, name: str, content: bytes) -> None:
    """Adds something with its name and length, so that no two lists give the same bytes."""
    digest.update(f"{len(name.encode())}:{name}\0{len(content)}\0".encode())
    digest.update(content)


def add_files(digest: Digest, root: pathlib.Path) -> None:
    """Adds all Python files below a folder by their name in it, or one file."""
    if root.is_file():
        add_content(digest, root.name, root.read_bytes())
        return
    for path in python_files(root):
        add_content(digest, path.relative_to(root).as_posix(), path.read_bytes())


def python_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The Python files below a folder, those behind links to folders too, each folder once."""
    found: list[pathlib.Path] = []
    entered: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in entered:
            folders.clear()  # Links can lead back to a folder around them.
            continue
        entered.add(real)
        folders.sort()
        found += (pathlib.Path(parent, name) for name in names if name.endswith(".py"))
    return sorted(found)


def add_sources(digest: Digest, pass_type: type[Pass]) -> None:
    """Adds the source files that decide what a pass does.

    Raises:
        UnsupportedError: The source of a class that the pass is made of is in no file.
    """
    for root in sorted(_roots(pass_type), key=lambda root: (root.name, str(root))):
        add_files(digest, root)


def _roots(pass_type: type[Pass]) -> set[pathlib.Path]:
    """The folders of packages and the single files."""
    found: set[pathlib.Path] = set()
    seen: set[str] = set()
    waiting: list[str] = []
    for cls in pass_type.__mro__:
        module = sys.modules.get(cls.__module__)
        path = _file(module)
        if path is None and (cls is pass_type or cls.__module__ not in sys.stdlib_module_names):
            raise UnsupportedError(
                f"the source of pass {pass_type.name!r} is not in a file, so Triton's cache could "
                "not notice when it changes: define the pass in a module"
            )
        if path is None or _is_known(cls.__module__, path):
            continue
        # The file itself too: a module can lie outside of the package that its name says.
        own = {path, *_roots_of(cls.__module__.partition(".")[0])}
        found |= own
        waiting += _imports(own, cls.__module__)
    while waiting:
        top = waiting.pop()
        if top in seen or top in _KNOWN:
            continue
        seen.add(top)
        roots = _roots_of(top)
        followed = {root for root in roots if not str(root).startswith(_INSTALLED)}
        found |= roots
        waiting += _imports(followed, top) if followed else ()
    # A file in the folder of a package is among the package's.
    folders = [root for root in found if root.is_dir()]
    return {root for root in found if not any(folder in root.parents for folder in folders)}


def _file(module: types.ModuleType | None) -> pathlib.Path | None:
    name = getattr(module, "__file__", None)
    path = pathlib.Path(name) if isinstance(name, str) else None
    return path if path is not None and path.is_file() else None


def _is_known(name: str, path: pathlib.Path) -> bool:
    """Returns whether a module belongs to the standard library, to Triton or to this package."""
    if name.partition(".")[0] not in _KNOWN:
        return False
    text = str(path)
    # A folder of tests can be named like a module of the standard library.
    return name.partition(".")[0] not in sys.stdlib_module_names or (
        text.startswith(_STDLIB) and not text.startswith(_INSTALLED)
    )


def _roots_of(top: str) -> set[pathlib.Path]:
    """The folders of a package or the file of a module, which need not be loaded."""
    if top in _KNOWN:
        return set()
    module = sys.modules.get(top)
    if module is not None:
        folders = list(getattr(module, "__path__", ()))
        path = _file(module)
    else:
        spec = importlib.machinery.PathFinder.find_spec(top)
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        origin = pathlib.Path(spec.origin) if spec is not None and spec.origin else None
        path = origin if origin is not None and origin.is_file() else None
    roots = {pathlib.Path(folder) for folder in folders}
    return roots or ({path} if path is not None else set())


def _imports(roots: Iterable[pathlib.Path], name: str) -> set[str]:
    """The top-level names of what files import, and of what their loaded modules hold."""
    found: set[str] = set()
    for root in roots:
        for path in [root] if root.is_file() else python_files(root):
            if path.suffix == ".py":
                found.update(_imported(path.read_bytes()))
    for loaded in [*sys.modules]:
        if loaded == name or loaded.startswith(f"{name}."):
            for value in [*vars(sys.modules[loaded]).values()]:
                found.add(_module_of(value).partition(".")[0])
    return found - _KNOWN - {""}


def _module_of(value: object) -> str:
    """The module that a module's variable comes from, as far as it can be told."""
    if isinstance(value, types.ModuleType):
        where: object = vars(value).get("__name__")
    elif isinstance(value, type | types.FunctionType):
        where = value.__module__
    else:
        where = type(value).__module__
    return where if isinstance(where, str) else ""


def _imported(source: bytes) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a template, say; it cannot be imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
