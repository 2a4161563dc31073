"""The vendors, and the only way from the core to them: names and lazy loaders.

A vendor package lists in its ``EXPORTS`` what it offers, name to ``"module:attribute"``.  The core
asks by name and imports nothing of a vendor before it is needed; vendors import the core and never
each other.
"""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
from typing import Any

__all__ = ["VENDORS", "folders", "load"]

VENDORS = ("nvidia", "amd")


def load(vendor: str, name: str) -> Any:
    """Returns what ``vendor`` exports under ``name``.

    Raises:
        KeyError: The vendor is unknown, or exports no such name; the text lists what there is.
    """
    if vendor not in VENDORS:
        raise KeyError(f"no vendor {vendor!r}; there are {', '.join(VENDORS)}")
    exports = importlib.import_module(f"triton_ext.backends.{vendor}").EXPORTS
    if name not in exports:
        raise KeyError(f"{vendor} exports no {name!r}; it exports {', '.join(sorted(exports))}")
    module, attribute = exports[name].split(":")
    return getattr(importlib.import_module(module), attribute)


def folders(vendor: str) -> tuple[pathlib.Path, ...]:
    """Returns where the vendor's package lies: elsewhere than ours in an editable install.

    Empty for a vendor whose package does not exist.
    """
    spec = importlib.util.find_spec(f"triton_ext.backends.{vendor}")
    if spec is None or spec.submodule_search_locations is None:
        return ()
    return tuple(pathlib.Path(path) for path in spec.submodule_search_locations)
