"""What BatchNorm and GroupNorm launch together, beside one by one: test_norm_calls.py.

Needs a process whose libcuda is the stand-in (``stand_in_driver.environment_of``).
Prints a JSON object: the name of a call to how many kernels each of its groups of launches has.
"""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

from launch_recorder import Recorder
from triton_ext.backends.nvidia.backend.prepared import parameter_sizes
from triton_ext.ops.core import launcher
from triton_ext.ops.core.launcher import Launches

from benchmarks.calls import make_norm_calls, norms_on_stand_in

recorder = Recorder()
sizes: dict[int, list[int]] = {}  # of a kernel's parameters, by its prepared launch
prepare = launcher._prepare_launch
found: list[int] = []


def prepare_and_look(compiled: Any, *rest: Any) -> Any:
    prepared = prepare(compiled, *rest)
    sizes[id(prepared)] = parameter_sizes(compiled.asm["ptx"])
    return prepared


def compare(self: Launches, tensors: tuple[Any, ...], is_aligned: bool) -> None:
    """Launches both ways, in the place of ``Launches.launch``."""
    assert is_aligned
    assert self._group is not None
    steps = [(made, pick(tensors)) for made, pick in self._steps]
    ways = [made.bypass(picked) for made, picked in steps]
    counts = [sizes[id(way.prepared)] for way in ways]

    def one_by_one() -> None:
        for (made, picked), way in zip(steps, ways, strict=True):
            way.run(*picked, *made.scalars, *made.constants.values())

    expected = recorder.record_all(counts, one_by_one)
    done: list[bool] = []
    got = recorder.record_all(counts, lambda: done.append(self._group(tensors)))
    assert done == [True]
    assert got == expected
    found.append(len(got))


def main() -> None:
    results: dict[str, list[int]] = {}
    with (
        norms_on_stand_in(),
        mock.patch.object(launcher, "_prepare_launch", prepare_and_look),
    ):
        for name, call in make_norm_calls().items():
            for _ in range(3):
                call()
            found.clear()
            with mock.patch.object(Launches, "launch", compare):
                call()
            results[name] = list(found)
    print(json.dumps(results))  # noqa: T201


main()
