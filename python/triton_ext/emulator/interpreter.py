"""Runs the kernel of a TTGIR module, workgroup after workgroup.

Every operation is prepared once: its types, attributes and operands are looked up then, and what is
left is a function of the workgroup.  An unknown operation is an error before the
kernel starts, with the line that it comes from.

Control flow: ``scf`` and calls.  Branches between blocks (``cf``) are followed as well; they are
uniform, for a workgroup runs as one.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from triton_ext.backends import VENDORS, load
from triton_ext.errors import PassError, UnsupportedError
from triton_ext.ir import Block, Module, Operation, Value, parse, parse_type
from triton_ext.ir.functions import FUNCTIONS, RETURNS, symbol_of
from triton_ext.ir.types import Type
from triton_ext.passes import PassManager

from .arguments import MakeDescriptor, bind
from .clusters import Cluster, check_operation, num_ctas_of, share_of
from .control_flow import CONTROL_FLOW
from .faults import EmulationError, deadlock, fault
from .fibers import Fibers, StuckError
from .launching import SCHEDULES, Schedule
from .memory import GlobalMemory
from .operations_arith import ARITH
from .operations_atomic import ATOMIC
from .operations_tensor import TENSOR
from .operations_ttg import TTG
from .races import Races
from .workgroup import Context, Prepare, Step, Workgroup

__all__ = ["Program"]

Features = Callable[[], "frozenset[str] | None"]

#: Terminators, and operations that change nothing that the emulator keeps.
_NOTHING = (
    FUNCTIONS
    | RETURNS
    | {
        "scf.yield",
        "tt.reduce.return",
        "tt.map_elementwise.return",
        "gpu.barrier",
        "ttg.barrier",
        "ttg.local_dealloc",
    }
    | {
        "ttg.warp_return",
        "ttg.warp_yield",
        "ttg.local_barrier",
        "llvm.intr.assume",
        "tt.assert",
        "tt.print",
        "rocdl.sched.barrier",
    }
    | {"amdg.sched_barrier", "rocdl.s.setprio", "scf.condition"}
)


def _nothing(op: Operation, context: Context) -> Step:
    return lambda group: None


#: Vendors by what a module calls their backend.
_VENDORS = {"cuda": "nvidia", "hip": "amd"}


def _target_of(module: Module) -> str:
    """The backend that a module is for; empty where it does not say."""
    text: str = module.op.attributes.get("ttg.target", "")
    return text.strip('"').partition(":")[0]


def _operations(target: str) -> dict[str, Prepare]:
    """All operations; where vendors have one of the same name, the target's."""
    table: dict[str, Prepare] = {name: _nothing for name in _NOTHING}
    table |= CONTROL_FLOW | ARITH | TENSOR | ATOMIC | TTG
    for vendor in sorted(VENDORS, key=lambda vendor: vendor == _VENDORS.get(target)):
        table |= load(vendor, "emulator.operations")
    return table


def _make_descriptor(target: str) -> MakeDescriptor | None:
    try:
        found: MakeDescriptor = load(_VENDORS.get(target, ""), "emulator.descriptor")
    except KeyError:
        return None
    return found


class Program:
    """A kernel that is ready to run.

    Args:
        module: TTGIR, as text or parsed.
        name: The kernel; by default the module's only public function.
        host_features: Gives the capabilities of the Triton that made the module, for what its
            operations need of LDS (``triton_ext.host.features``).

    Raises:
        EmulationError: The emulator does not support an operation of the kernel, or the kernel
            needs more shared memory than its GPU has.
        UnsupportedError: It has values of a type that the emulator does not support.
        ValueError: The module has no such kernel, or several and no name was given.
    """

    def __init__(
        self,
        module: Module | str,
        name: str | None = None,
        host_features: Features = lambda: None,
    ) -> None:
        self.module = parse(str(module), "kernel.ttgir")
        self.lds_bytes = _place_buffers(self.module, host_features)
        self._target = _target_of(self.module)
        self._num_ctas = num_ctas_of(self.module)
        self._make_descriptor = _make_descriptor(self._target)
        self._table = _operations(self._target)
        self._types: dict[Value, Type] = {}
        self._blocks: dict[Block, list[tuple[Operation, Step]]] = {}
        # Not through triton_ext.analysis: what the emulator judges shares no code with it.
        warps = self.module.op.attributes.get("ttg.num-warps", "4").partition(":")[0]
        self._context = Context(
            self._block, self._type_of, self._function, int(warps), host_features()
        )
        self.kernel = self._find(name)
        self._check_capacity()
        self._entry = self._function(self.kernel)

    def run(
        self,
        grid: Sequence[int],
        arguments: Sequence[Any],
        seed: int = 0,
        schedule: Schedule = "late",
    ) -> None:
        """Runs all workgroups of a grid, or clusters of them.

        Args:
            grid: How many there are in x, y and z; fewer numbers mean 1.
            arguments: For each parameter of the kernel, a contiguous numpy array or a CPU tensor
                for a pointer (results are written into it), a number for a scalar, a tuple for a
                tuple, and the host's object for a tensor descriptor.
            seed: Decides the order in which the parts of a workgroup take turns.
            schedule: ``"late"``: asynchronous operations complete at the last moment at which
                the hardware may let them.  ``"random"``: at any moment, in adversarial orders of
                the parts.  The seed decides both; errors name it.

        Raises:
            EmulationError: The kernel did something that it must never do.
            TypeError: The arguments do not fit the parameters, or the grid is none.
            ValueError: There is no such schedule.
        """
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule is {schedule!r}: expected one of {', '.join(SCHEDULES)}")
        sizes = _sizes_of(grid)
        memory = GlobalMemory()
        parameters = self.kernel.regions[0].blocks[0].args
        values = bind(
            memory, [(p, self._type_of(p)) for p in parameters], arguments, self._make_descriptor
        )
        try:
            with np.errstate(all="ignore"):
                backwards = itertools.product(*(range(n) for n in reversed(sizes)))
                pending = [(x, y, z) for z, y, x in backwards]
                while pending:
                    program_id = pending.pop(0)
                    is_adversarial = schedule == "random"
                    fibers = Fibers(hash((seed, *program_id)), is_adversarial=is_adversarial)
                    groups = [
                        Workgroup(memory, self.lds_bytes, program_id, sizes, fibers)
                        for _ in range(self._num_ctas)
                    ]
                    self._run_cluster(groups, fibers, pending, values)
        except EmulationError as error:
            if seed or schedule != "late":
                error.notes = (*error.notes, f"in the order of schedule={schedule!r}, seed={seed}")
            raise

    def _run_cluster(
        self,
        groups: list[Workgroup],
        fibers: Fibers,
        pending: list[tuple[int, int, int]],
        values: list[Any],
    ) -> None:
        races = Races() if self._target == "cuda" else None
        for group in groups:
            group.pending = pending
            if races is not None:
                group.races, group.agent = races, races.agent("the kernel")
        try:
            if self._num_ctas == 1:
                self._entry(groups[0], values)
            else:
                Cluster(groups, fibers).run(lambda group: self._entry(group, values))
        except StuckError as error:
            raise deadlock(self.kernel, error.waiting) from error
        for check in itertools.chain(*(group.at_end for group in groups)):
            check(self.kernel)

    def _find(self, name: str | None) -> Operation:
        found = [op for op in self.module.walk() if op.name in FUNCTIONS]
        if name is None:
            public = [op for op in found if " public " in op.text.partition("(")[0]]
            found = public or found
        else:
            found = [op for op in found if symbol_of(op) == name]
        if len(found) != 1:
            names = ", ".join(str(symbol_of(op)) for op in found)
            raise ValueError(f"expected one kernel{f' {name!r}' if name else ''}, found: {names}")
        return found[0]

    def _check_capacity(self) -> None:
        _, _, arch = self.module.op.attributes.get("ttg.target", "").strip('"').partition(":")
        vendor = _VENDORS.get(self._target)
        memory = load(vendor, "shared-memory")(arch) if vendor is not None else None
        if memory is not None and self.lds_bytes > memory.bytes:
            raise fault(
                self.kernel,
                f"the kernel needs {self.lds_bytes} bytes of {memory.name}; a {memory.arch} has "
                f"{memory.bytes}",
                "smaller blocks or fewer stages need less",
            )

    # ---- preparing

    def _type_of(self, value: Value) -> Type:
        found = self._types.get(value)
        if found is None:
            found = parse_type(value.type, self.module.aliases)
            if self._num_ctas > 1:
                found = share_of(found)
            self._types[value] = found
        return found

    def _block(self, block: Block) -> list[tuple[Operation, Step]]:
        if block not in self._blocks:
            self._blocks[block] = steps = []
            for op in block.ops:
                prepare = self._table.get(op.name)
                if prepare is None:
                    raise fault(
                        op,
                        f"the emulator does not support '{op.name}'",
                        "replace it by operations that it supports, or run the kernel on a GPU",
                    )
                if self._num_ctas > 1:
                    check_operation(op, self._type_of)
                steps.append((op, prepare(op, self._context)))
        return self._blocks[block]

    def _function(self, op: Operation) -> Any:
        """Returns a callable that runs a function of the module."""
        region = op.regions[0]
        for block in region.blocks:
            self._block(block)

        def run(group: Workgroup, arguments: list[Any]) -> list[Any]:
            block: Block | None = region.blocks[0]
            incoming: list[Any] = arguments
            while block is not None:
                group.values.update(zip(block.args, incoming, strict=True))
                group.branch = None
                group.run(self._blocks[block])
                if group.branch is None:
                    terminator = block.terminator
                    operands = terminator.operands if terminator is not None else ()
                    return [group.values[value] for value in operands]
                block, incoming = group.branch
            return []

        return run


def _sizes_of(grid: Sequence[int]) -> tuple[int, ...]:
    """How many workgroups there are in x, y and z.

    Raises:
        TypeError: The grid has another form.
    """
    is_grid = isinstance(grid, Sequence) and all(hasattr(n, "__index__") for n in grid)
    sizes = tuple(map(operator.index, grid)) if is_grid else ()
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        raise TypeError(f"expected a grid of one to three numbers, got {grid!r}")
    return (*sizes, 1, 1)[:3]


def _place_buffers(module: Module, host_features: Features) -> int:
    """Gives every buffer its place in LDS, as a compiler does; the number of bytes.

    Where it is not known what an operation needs of LDS while it runs, every buffer gets memory of
    its own: then a copy that is in flight behind its buffer's last use disturbs nobody.
    """
    name = (
        "allocate-amdgpu-shared-memory" if _target_of(module) == "hip" else "allocate-shared-memory"
    )
    try:
        PassManager(name, host_features=host_features).run(module)
    except (PassError, UnsupportedError):
        return 0
    return int(module.op.attributes.get("ttg.shared", "0").partition(":")[0])
