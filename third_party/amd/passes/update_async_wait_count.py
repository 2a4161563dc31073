"""``tritonamdgpu-update-async-wait-count``: converts waits to counts of instructions.

Before (two groups may stay in flight; each copy is 4 instructions of a wave)::

    %w = ttg.async_wait {num = 2 : i32}
    %t = amdg.async_tdm_wait  {num = 1 : i32}

After::

    %w = amdg.async_wait {num_inst = 8 : i32, ttg.num_commit_groups = 2 : i32}
    %t = amdg.async_tdm_intrinsic_wait  {count = 1 : i32, ttg.num_tdm_ops = 1 : i32}

Upstream's pass of this name does the same (pull request 9352 for the TDM).  Waits that the user
wrote in instructions stay as they are.  On gfx942 and gfx950 of hosts that lower waits to LLVM's
asynchronous marks, ``ttg.async_wait`` stays: LLVM counts instructions itself but reads only
``num``, so ``num`` becomes what the tokens require.  A negative ``num`` becomes 0: after an
asynchronous mark it would wait for nothing.

Safe direction: a number may be too low (a longer wait than necessary), never too high.
:mod:`triton_ext.backends.amd.analysis.wait_distance` defines the numbers,
:mod:`triton_ext.backends.amd.analysis.instruction_count` the instructions of an operation.
Precondition: the module is canonical, as Triton's own passes leave it; of the arithmetic that the
host simplifies after this pass only single identities are covered.

Differences from the host's pass:

* Loads and stores of ASYNCcnt retire out of order against each other on gfx1250: only those of the
  awaited direction count.
* It follows calls, ``tt.scan``, ``scf.index_switch``, blocks and partitions.
* Nothing is outstanding at the start of a kernel or partition, or after an earlier wait for it.
* It walks a loop with a known trip count that often.
* It follows tokens that a loop carries unchanged or permutes to their definition.
* A number above 63, which exceeds the hardware counter, becomes 63.
* A masked copy that the host branches around counts nothing, nor does one with unknown types; the
  latter gets a warning.
* A wait with too many incoming paths waits for everything, with a warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.analysis.backward_flow import BackwardFlow
from triton_ext.ir import Builder, Module, Operation
from triton_ext.passes import Pass, PassContext

from ..analysis.async_events import AsyncEvents, Wait, WaitUnit
from ..analysis.instruction_count import AsyncIssue
from ..analysis.target import Counter, Lowering, Target
from ..analysis.wait_distance import Distance, distance_of
from ..dialect import amdg
from .chosen_target import chosen_target

__all__ = ["UpdateAsyncWaitCount"]


@dataclass(frozen=True, slots=True)
class UpdateAsyncWaitCount(Pass):
    """Replaces waits for groups and operations by waits for instructions.

    Attributes:
        gfx_arch: The GPU, ``"gfx950"``; by default that of the module's ``ttg.target``.
        arch_generation_name: Older name of the same option.
    """

    name: ClassVar[str] = "tritonamdgpu-update-async-wait-count"

    gfx_arch: str = ""
    arch_generation_name: str = ""

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrites every wait of ``module`` that counts groups or operations.

        Raises:
            VerifyError: The GPU is not given, or an operation cannot be read.
            UnsupportedError: The given GPU is unknown.
        """
        target = self._target(module, context)
        if target is None:
            return
        events = AsyncEvents(module, target, Lowering.of(context.host_features()))
        for event in events:
            if isinstance(event, AsyncIssue) and event.unknown:
                context.warning(
                    event.op,
                    f"waits count none of the instructions of '{event.op.name}': {event.unknown}",
                )
        flow = BackwardFlow(module, events.is_event)
        waits = [w for w in events.waits if _needs_number(w, events)]
        # Compute all distances first: the walks read the unchanged module.
        distances = [distance_of(wait, events, flow) for wait in waits]
        for wait, distance in zip(waits, distances, strict=True):
            if distance.gave_up:
                context.warning(
                    wait.op, "too many paths lead to this wait: it waits for everything"
                )
            _rewrite(wait, distance, events)
            context.count("waits-rewritten")
            if not distance.constrained:
                context.count("waits-for-nothing")

    def _target(self, module: Module, context: PassContext) -> Target | None:
        """Returns the GPU; ``None`` if waits have nothing to count there."""
        arch = self.gfx_arch or self.arch_generation_name
        if not arch and module.op.attributes.get("ttg.target", "").startswith('"cuda:'):
            return None
        return chosen_target(arch, module, context)


def _needs_number(wait: Wait, events: AsyncEvents) -> bool:
    if wait.unit is WaitUnit.INSTRUCTIONS:
        return False
    if wait.counter is Counter.TENSORCNT:
        return True
    return bool(wait.tokens) or wait.is_for_all or not events.counts_groups


def _rewrite(wait: Wait, distance: Distance, events: AsyncEvents) -> None:
    op = wait.op
    if wait.counter is not Counter.TENSORCNT and events.counts_groups:
        # The user may have chosen the smaller one on purpose.
        op.set_attribute("num", f"{min(wait.num, distance.count)} : i32")
        return
    count = events.target.clamp(distance.count)
    if wait.counter is Counter.TENSORCNT and not events.lowering.has_tdm_intrinsic_wait:
        op.set_attribute("num", f"{count} : i32")
        return
    if wait.counter is Counter.TENSORCNT:
        name, number, kept = amdg.TdmWaitOp.INTRINSIC, "count", "ttg.num_tdm_ops"
    else:
        name, number, kept = amdg.AsyncWaitOp.NAME, "num_inst", "ttg.num_commit_groups"
    _replace(op, name, {number: f"{count} : i32", kept: f"{wait.num} : i32"})


def _replace(op: Operation, name: str, numbers: dict[str, str]) -> None:
    """Replaces a wait by one with another name and other numbers."""
    entries = {k: v for k, v in op.attributes.items() if k != "num"} | numbers
    text = ", ".join(k if v == "unit" else f"{k} = {v}" for k, v in sorted(entries.items()))
    operands = ", ".join(f"{{{i}}}" for i in range(len(op.operands)))
    head = f"{name} {operands}".rstrip()
    results = "{results} = " if op.results else ""
    new = Builder.before(op).create(
        name,
        op.operands,
        [result.type for result in op.results],
        text=f"{results}{head} {{{text}}}",
        loc=op.loc,
    )
    op.replace_with(new)
