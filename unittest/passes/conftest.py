"""Fixtures of the tests of passes: a registry that knows the passes of pass_helpers."""

from __future__ import annotations

import pathlib
import sys

import pytest

# importlib mode does not add the folder of the helper module.
sys.path.append(str(pathlib.Path(__file__).parent))

import pass_helpers
from triton_ext.passes import registry


@pytest.fixture
def registered(monkeypatch):
    """Registers the passes of pass_helpers as a package would."""
    own = [registry.Entry(n, t, "package 'test'") for n, t in pass_helpers.PASSES.items()]
    monkeypatch.setattr(registry, "_of_packages", lambda: own)
    registry.refresh()
    yield own
    monkeypatch.undo()
    registry.refresh()


@pytest.fixture
def installed(fresh_triton_cache, monkeypatch):
    """The plugin, as the environment of the test makes it; a function that installs it so."""
    pytest.importorskip("triton")
    from triton_ext import plugin

    def forget():
        plugin.own_passes.cache_clear()
        plugin.cache_key.cache_clear()

    def install(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        forget()
        plugin.install()

    was_installed = plugin.is_installed()
    plugin.uninstall()
    yield install
    plugin.uninstall()
    monkeypatch.undo()
    forget()
    if was_installed:
        plugin.install()
