"""``ttng`` operations of sm_90: mbarriers, copies of the TMA unit, matrix products."""

from __future__ import annotations

from triton_ext.emulator.faults import fault
from triton_ext.emulator.workgroup import Context, Prepare, Step
from triton_ext.ir import Operation

from .copies import COPIES
from .mbarriers import MBARRIERS
from .wgmma import WGMMA

__all__ = ["OPERATIONS"]


def _nothing(op: Operation, context: Context) -> Step:
    return lambda group: None


def _inline_asm(op: Operation, context: Context) -> Step:
    """Grid dependencies, which hosts up to 3.8 write in PTX: kernels run one after the other."""
    if "griddepcontrol." not in op.text:
        raise fault(op, "the emulator does not know inline assembly")
    return _nothing(op, context)


OPERATIONS: dict[str, Prepare] = {
    **MBARRIERS,
    **COPIES,
    **WGMMA,
    "tt.elementwise_inline_asm": _inline_asm,
    "tt.grid_dependency_launch_dependents": _nothing,
    "tt.grid_dependency_wait": _nothing,
}
