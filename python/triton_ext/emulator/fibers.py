"""Parts of a kernel that run by turns: the partitions of one workgroup.

Each part has a thread, but only one of them runs at a time and hands over where it waits or pauses.
So a run is decided by its seed alone.  Who goes on is who has the highest priority of those that
can; priorities are drawn anew now and then, so that in some stretches one part runs as far ahead as
its barriers let it, and in others another one does.

An adversarial order draws how often that happens as well, so that some runs starve parts and others
change after every step.  It also completes asynchronous operations early: as soon as the hardware
may, or anywhere between that and the last moment.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

__all__ = ["Fibers", "Flight", "StuckError"]

#: How often a pause draws priorities anew, and what adversarial orders choose from.
_CHANGE, _CHANGES = 0.25, (0.02, 0.25, 0.9)
#: How often adversarial orders complete an operation at a pause.
_EARLY = (0.0, 0.05, 0.3, 0.9)


class Flight(Protocol):
    """An asynchronous operation that may complete at any time."""

    def complete(self) -> None:
        """Completes it, or its next part; takes it out of ``Fibers.flights`` at the end."""


class StuckError(Exception):
    """Every part waits for something that none of them will do.

    Args:
        waiting: The parts' own descriptions of the events they wait for.
    """

    def __init__(self, waiting: Sequence[object]) -> None:
        super().__init__("every part waits")
        self.waiting = tuple(waiting)


class _CancelledError(BaseException):
    """Ends a part because another one failed."""


@dataclass(slots=True, eq=False)
class _Fiber:
    """One part.

    Attributes:
        starter: The part that started it; ``None`` for the first one.
        priority: Who goes on.
        turn: Released for it to go on.
        is_ready: Whether what it waits for came about; ``None`` where it does not wait.
        waits_for: Describes that.
        is_done: Whether it ended.
    """

    starter: _Fiber | None = None
    priority: float = 0.0
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    is_ready: Callable[[], bool] | None = None
    waits_for: object = None
    is_done: bool = False


class Fibers:
    """The parts of a workgroup that run by turns; at first one, in the thread that made it.

    Args:
        seed: Decides the order.
        is_adversarial: Whether the order is an adversarial one.

    Attributes:
        flights: Operations in flight that may complete early.
    """

    def __init__(self, seed: int, *, is_adversarial: bool = False) -> None:
        self.random = random.Random(seed)
        self.flights: list[Flight] = []
        self._change, self._early = _CHANGE, 0.0
        if is_adversarial:
            self._change, self._early = (self.random.choice(x) for x in (_CHANGES, _EARLY))
        self._running = _Fiber()
        self._all = [self._running]
        self._failure: BaseException | None = None

    def together(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Runs jobs by turns until all have ended; the first one in the part that calls.

        Raises:
            StuckError: No part can go on.
        """
        me = self._running
        children = [self._start(job) for job in jobs[1:]]
        self._draw()
        try:
            jobs[0]()
            self.wait(lambda: all(child.is_done for child in children), None)
        except BaseException as error:
            if self._running is not me:
                # Ctrl-C while another part runs: nobody waits for it; it ends at its next turn.
                self._failure = error
                for child in children:
                    child.turn.release()
                raise
            self._unwind(children, error)
            # Report the first failure: another part may have ended this one.
            failure, self._failure = self._failure, None
            if failure is None or failure is error:
                raise
            raise failure from None
        finally:
            self._all = [fiber for fiber in self._all if fiber not in children]

    def wait(self, is_ready: Callable[[], bool], waits_for: object) -> None:
        """Waits until something comes about.

        Args:
            is_ready: Tells whether it did; it may make it come about, but must not fail.
            waits_for: What it is, for :class:`StuckError`; ``None`` for nothing of interest.

        Raises:
            StuckError: No part can go on.
        """
        me = self._running
        me.is_ready, me.waits_for = is_ready, waits_for
        self._draw()
        self._switch(me)
        me.is_ready = None

    def pause(self) -> None:
        """A place where another part may go on, and operations in flight may complete."""
        if self._early and self.flights and self.random.random() < self._early:
            self.random.choice(self.flights).complete()
        if len(self._all) > 1 and self.random.random() < self._change:
            self._draw()
            self._switch(self._running)

    def _draw(self) -> None:
        if len(self._all) > 1:
            for fiber in self._all:
                fiber.priority = self.random.random()

    def _next(self) -> _Fiber:
        waiting = []
        for fiber in sorted(self._all, key=lambda each: each.priority):
            if fiber.is_done:
                continue
            if fiber.is_ready is None or fiber.is_ready():
                return fiber
            waiting.append(fiber.waits_for)
        raise StuckError([what for what in waiting if what is not None])

    def _switch(self, me: _Fiber) -> None:
        chosen = self._next()
        if chosen is me:
            return
        self._running = chosen
        chosen.turn.release()
        me.turn.acquire()
        if self._failure is not None:
            raise _CancelledError

    def _start(self, job: Callable[[], None]) -> _Fiber:
        fiber = _Fiber(self._running)
        self._all.append(fiber)

        def run() -> None:
            fiber.turn.acquire()
            try:
                if self._failure is None:
                    with np.errstate(all="ignore"):
                        job()
            except _CancelledError:
                pass
            except BaseException as error:  # handed on to the part that started this one
                self._failure = error
            fiber.is_done = True
            self._end(fiber)

        threading.Thread(target=run, daemon=True).start()
        return fiber

    def _end(self, fiber: _Fiber) -> None:
        """Hands over from a part that ended; behind an error, to the one that started it."""
        chosen = fiber.starter
        if self._failure is None:
            try:
                chosen = self._next()
            except BaseException as error:  # handed on like one of the part itself
                self._failure = error
        assert chosen is not None
        self._running = chosen
        chosen.turn.release()

    def _unwind(self, children: Sequence[_Fiber], error: BaseException) -> None:
        """Ends what still runs behind an error in the part that started it."""
        me = self._running
        self._failure = self._failure or error
        for child in children:
            if not child.is_done:
                # It may have started others, and ends these first.
                self._running = child
                child.turn.release()
                me.turn.acquire()
        self._running = me
