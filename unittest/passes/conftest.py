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
