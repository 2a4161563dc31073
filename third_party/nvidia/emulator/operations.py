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


def _for_cuda(prepare: Prepare) -> Prepare:
    """Refuses an operation where the order of accesses to shared memory is not kept."""

    def prepared(op: Operation, context: Context) -> Step:
        module = op.module
        text = module.op.attributes.get("ttg.target", "none") if module is not None else "none"
        if not text.strip('"').startswith("cuda:"):
            raise fault(
                op, f"'{op.name}' needs a module with ttg.target = \"cuda:90\", this one has {text}"
            )
        return prepare(op, context)

    return prepared


OPERATIONS: dict[str, Prepare] = {
    **{name: _for_cuda(prepare) for name, prepare in (MBARRIERS | COPIES | WGMMA).items()},
    "tt.elementwise_inline_asm": _inline_asm,
    "tt.grid_dependency_launch_dependents": _nothing,
    "tt.grid_dependency_wait": _nothing,
}
