"""triton-ext: extend the stock Triton wheel.

Importing this package has no side effects and needs neither a GPU nor torch.  What a kernel needs
(``triton_ext.language``, ``triton_ext.ops``) installs the plugin when it is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from triton_ext import errors

if TYPE_CHECKING:
    from triton_ext import analysis, gluon, ir, language, nn, ops, passes, plugin
    from triton_ext.backends.nvidia.backend.descriptors import Im2ColDescriptor
    from triton_ext.emulator.launching import emulated

__all__ = [
    "Im2ColDescriptor",
    "__version__",
    "analysis",
    "emulated",
    "errors",
    "gluon",
    "install",
    "ir",
    "is_installed",
    "language",
    "nn",
    "ops",
    "passes",
    "plugin",
    "uninstall",
]

__version__ = "0.2.0"

#: Packages that are imported when they are first asked for: torch or Triton come with some.
_PACKAGES = frozenset({"analysis", "gluon", "ir", "language", "nn", "ops", "passes", "plugin"})


def install() -> None:
    """Registers the plugin with the installed Triton; see :func:`triton_ext.plugin.install`."""
    from triton_ext import plugin

    plugin.install()


def uninstall() -> None:
    """Takes the plugin out; see :func:`triton_ext.plugin.uninstall`."""
    from triton_ext import plugin

    plugin.uninstall()


def is_installed() -> bool:
    """Tells whether the plugin acts on compiles and launches."""
    from triton_ext import plugin

    return plugin.is_installed()


def __getattr__(name: str) -> Any:
    # Loaded on first use: the class derives from one of Triton's.
    if name == "Im2ColDescriptor":
        from triton_ext import backends

        # Without the plugin Triton's launcher would encode it as a tiled descriptor.
        install()
        return backends.load("nvidia", name)
    if name == "emulated":
        return importlib.import_module(f"{__name__}.emulator.launching").emulated
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
