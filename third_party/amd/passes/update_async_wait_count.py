"""``tritonamdgpu-update-async-wait-count``: waits count instructions instead of operations.

Before (two groups may stay in flight; each copy is 4 instructions of a wave)::

    %w = ttg.async_wait {num = 2 : i32}
    %t = amdg.async_tdm_wait  {num = 1 : i32}

After::

    %w = amdg.async_wait {num_inst = 8 : i32, ttg.num_commit_groups = 2 : i32}
    %t = amdg.async_tdm_intrinsic_wait  {count = 1 : i32, ttg.num_tdm_ops = 1 : i32}

Upstream's pass of this name does the same (pull request 9352 for the TDM).  Waits that a person
wrote with a number of instructions stay as they are.  On gfx942 and gfx950 of hosts that lower
waits to LLVM's asynchronous marks, ``ttg.async_wait`` stays: LLVM counts instructions there, but
looks at ``num`` alone, so ``num`` becomes what the tokens ask for.  A negative ``num`` becomes 0:
behind an asynchronous mark it would wait for nothing.

Safe direction: a number may be too low (the wait is longer than it has to be), never too high.
What the numbers are is defined in :mod:`triton_ext.backends.amd.analysis.wait_distance`, what an
operation issues in :mod:`triton_ext.backends.amd.analysis.instruction_count`.  Precondition: the
module is canonical, as Triton's own passes leave it; of arithmetic that the host simplifies behind
this pass only single identities are foreseen.

Where the result differs from the host's pass:

* Loads and stores of ASYNCcnt retire out of order against each other on gfx1250: only those of the
  awaited direction count.
* Calls are walked through, so are ``tt.scan``, ``scf.index_switch``, blocks and partitions.
* Nothing is outstanding at the start of a kernel or partition, or behind an earlier wait for it.
* A loop with a known number of iterations is walked that often.
* Tokens that a loop carries unchanged or exchanges are followed to where they come from.
* A number above 63, which the hardware cannot hold, becomes 63.
* A masked copy that the host branches around counts nothing, nor does one whose types are not
  known here; of the latter a warning tells.
* A wait to which too many ways lead waits for everything, and a warning tells of it.
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
        gfx_arch: The GPU, ``"gfx950"``; by default what the module's ``ttg.target`` says.
        arch_generation_name: The same under its older name.
    """

    name: ClassVar[str] = "tritonamdgpu-update-async-wait-count"

    gfx_arch: str = ""
    arch_generation_name: str = ""

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrites every wait of ``module`` that counts groups or operations.

        Raises:
            VerifyError: The GPU is not given, or an operation cannot be read.
            UnsupportedError: The GPU that was asked for is not known.
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
        # All of them first: the walks read the module as it is.
        distances = [distance_of(wait, events, flow) for wait in waits]
        for wait, distance in zip(waits, distances, strict=True):
            if distance.gave_up:
                context.warning(wait.op, "too many ways lead to this wait: it waits for everything")
            _rewrite(wait, distance, events)
            context.count("waits-rewritten")
            if not distance.constrained:
                context.count("waits-for-nothing")

    def _target(self, module: Module, context: PassContext) -> Target | None:
        """The GPU; ``None`` for one whose waits have nothing to count."""
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
        # The smaller one: the author of the number may have meant it.
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
    """Puts a wait of another name and with other numbers in the place of one."""
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
