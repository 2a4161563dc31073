"""An executable model of kernels with asynchronous copies.

A module is translated to Python functions once: integers, ``scf``, ``cf``, calls and views of
buffers are executed exactly, everything else is left out.  What the kernel gets from outside
(arguments, loaded numbers, conditions that nobody knows) is drawn, the copies and waits go to an
:class:`~async_machine.Machine`.  A module is read before its waits are lowered, and the numbers of
a lowered copy of it are given beside it (:class:`Counts`): the module says what each wait promises,
the numbers say what it does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from async_machine import Fault, Machine, Rule, Truncated
from async_translate import WAITS, translate
from triton_ext.ir import Module, Operation

__all__ = ["Counts", "Fault", "Program", "Rule", "run", "wrong_numbers"]


@dataclass(frozen=True, slots=True)
class Counts:
    """How each wait of a module really waits.

    Attributes:
        rules: In the order of the text; ``None``: exactly as asked.
    """

    rules: tuple[Rule | None, ...]

    @classmethod
    def contract(cls, module: Module) -> Counts:
        """Every wait waits for exactly what it is asked for."""
        return cls(tuple(None for op in module.walk() if op.name in WAITS))

    @classmethod
    def lowered(
        cls, module: Module, *, marks: bool = False, tdm_is_instructions: bool = False
    ) -> Counts:
        """The numbers that a wait-count pass wrote.

        Args:
            module: What the pass left.
            marks: Whether the ``ttg.async_wait`` that it left alone becomes a wait for the commits
                in order whatever its tokens are (gfx942 and gfx950 from 3.8 on).
            tdm_is_instructions: Whether the ``num`` of a ``amdg.async_tdm_wait`` that it left alone
                goes to the instruction (3.6).
        """
        return cls(
            tuple(_rule(op, marks, tdm_is_instructions) for op in module.walk() if op.name in WAITS)
        )


def _rule(op: Operation, marks: bool, tdm_is_instructions: bool) -> Rule | None:
    number = WAITS[op.name](op)
    if op.name == "ttg.async_wait":
        return Rule(number, marks=True) if marks else None
    if op.name == "amdg.async_tdm_wait":
        return Rule(number) if tdm_is_instructions else None
    return Rule(number)


class Program:
    """A module that schedules can be run of.

    Args:
        module: The module.
        emitted: Instructions that a wave issues for an asynchronous operation.
        may_skip: Whether a wave may branch over some of them.
    """

    def __init__(
        self,
        module: Module,
        emitted: Callable[[Operation], int],
        may_skip: Callable[[Operation], bool] = lambda op: False,
    ) -> None:
        self.translated = translate(module, emitted, may_skip)
        self.truncated = 0

    def run(
        self, seed: int, counts: Counts, faults: dict[object, Fault] | None = None
    ) -> list[Fault]:
        """Executes one schedule and returns what it did wrong, each thing once.

        Args:
            seed: Of everything that is drawn.
            counts: How the waits wait.
            faults: Takes the faults; those that are in it already are not reported again.
        """
        found: dict[object, Fault] = {} if faults is None else faults
        known = len(found)
        rng = random.Random(seed)
        waves = rng.randint(2, 4) if self.translated.differs else 1
        for entry in self.translated.entries:
            machine = Machine(rng, waves, counts.rules, found)
            try:
                entry(machine)
            except Truncated:
                self.truncated += 1
        return list(found.values())[known:]

    def search(self, seeds: range, counts: Counts, *, stop: bool = False) -> list[Fault]:
        """Executes many schedules.

        Args:
            seeds: Of the schedules.
            counts: How the waits wait.
            stop: Whether the first fault of a number that is wrong ends the search.
        """
        found: dict[object, Fault] = {}
        for seed in seeds:
            new = self.run(seed, counts, found)
            if stop and any(fault.promised for fault in new):
                break
        return list(found.values())


def run(
    module: Module,
    schedule_seed: int,
    counts: Counts,
    emitted: Callable[[Operation], int],
    may_skip: Callable[[Operation], bool] = lambda op: False,
) -> list[Fault]:
    """Executes one schedule of a module; :class:`Program` is faster for more than one."""
    return Program(module, emitted, may_skip).run(schedule_seed, counts)


def wrong_numbers(faults: Sequence[Fault]) -> list[Fault]:
    """The faults that are the number's and not the kernel's."""
    return [fault for fault in faults if fault.promised]
