"""``ttng`` operations of sm_90: mbarriers, copies of the TMA unit, matrix products."""

from __future__ import annotations

from triton_ext.emulator.workgroup import Prepare

from .copies import COPIES
from .mbarriers import MBARRIERS
from .wgmma import WGMMA

__all__ = ["OPERATIONS"]

OPERATIONS: dict[str, Prepare] = {**MBARRIERS, **COPIES, **WGMMA}
