"""Fixtures of the AMD backend's tests: the installed Triton, in processes that may die of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from async_host import Host
from emission import EmissionHost
from triton_ext.host import HostError


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """Triton's own pass that counts; skips with the reason where there is no Triton."""
    try:
        opened = Host()
    except HostError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture(scope="module")
def emission() -> Iterator[EmissionHost]:
    """Triton's stages from TTGIR to assembly."""
    with EmissionHost() as opened:
        yield opened
