"""What stands in for compilers, clocks and a GPU where tuning is tested without them."""

from __future__ import annotations

from concurrent.futures import Future

from triton_ext.ops.core import planner
from triton_ext.ops.core.device import Device
from triton_ext.ops.families.by_torch import TorchConfig

GPU = "NVIDIA Test GPU"
MACHINE = Device(2, (9, 0), 232448, GPU)


class InstantCompiler:
    """Compiles nothing; fails for the configurations that it is told."""

    def __init__(self, broken=()):
        self.broken = broken
        self.jobs = []

    def submit(self, case, config, machine):
        self.jobs.append((case, config))
        future = Future()
        future.set_result("no such instruction" if config in self.broken else "")
        return future


class MadeUpClock:
    """Times by a rule: a function of a trial that returns microseconds; torch takes 400."""

    def __init__(self, rule):
        self.rule = rule
        self.measured = []

    def prepare(self, trial):
        return trial

    def measure(self, trial):
        if isinstance(trial.config, TorchConfig):
            return 400.0
        self.measured.append(trial.config)
        return self.rule(trial)


def last_is_fastest():
    """Returns a clock by which a candidate of a case is the faster, the later it came."""
    orders = {}

    def rule(trial):
        order = orders.setdefault(trial.case, {})
        return 100.0 / (1 + order.setdefault(trial.config, len(order)))

    return MadeUpClock(rule)


def plans_for(machine, monkeypatch=None):
    """Has every direction's plans made for a machine."""
    if monkeypatch is None:
        planner.device_of = lambda device, operator: machine
    else:
        monkeypatch.setattr(planner, "device_of", lambda device, operator: machine)
    planner.make_plan.cache_clear()
