"""Fixtures of the tests of the tree."""

from __future__ import annotations

import pathlib

import ir_helpers
import pytest


@pytest.fixture(scope="session")
def corpus() -> list[pathlib.Path]:
    """Files that Triton printed; skips with the reason where they are absent."""
    files = ir_helpers.corpus_files()
    if not files:
        pytest.skip(ir_helpers.NO_CORPUS)
    return files


@pytest.fixture(scope="session")
def host() -> ir_helpers.Host:
    """The installed Triton's parser and verifier."""
    try:
        return ir_helpers.Host()
    except ImportError as error:
        pytest.skip(f"needs Triton to verify with: {error}")
