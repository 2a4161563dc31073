"""Compiles configurations into Triton's cache on disk, without a GPU.

Nothing is launched: tensors are torch's "meta" tensors, Triton's driver is a stand-in that names
the target, and launches compile only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import Device, assumed_device
from triton_ext.ops.core.launcher import compiling
from triton_ext.ops.tuning.calls import make_plan, make_tensors, run_plan
from triton_ext.ops.tuning.processes import Compiled

__all__ = ["TargetOnlyDriver", "compile_kernels", "compile_plan", "serve", "target_only"]


class TargetOnlyDriver:
    """Stands in for Triton's driver where kernels are compiled and never launched."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        """The target that kernels are compiled for."""
        return self._target

    def get_current_device(self) -> int:
        """There is one."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """There is one."""
        return 0


def target_only(capability: tuple[int, int]) -> None:
    """Has Triton compile for a GPU that need not be there, from now on in this process.

    Args:
        capability: Its compute capability, such as (9, 0).
    """
    major, minor = capability
    driver.set_active(TargetOnlyDriver(GPUTarget("cuda", major * 10 + minor, 32)))


def compile_kernels(case: Case, config: Any, machine: Device) -> list[Any]:
    """Compiles all kernels of a case's plan for a GPU that need not be there.

    Args:
        case: What is computed.
        config: The configuration.
        machine: The device that they are to run on.

    Returns:
        Triton's compiled kernels; their ``asm`` holds TTGIR, PTX and cubin.
    """
    meta = torch.device("meta")
    with assumed_device(machine), compiling() as kernels:
        # A plan that was made before could hold what was compiled for another machine.
        planner.make_plan.cache_clear()
        run_plan(case, make_plan(case, meta, config), make_tensors(case, meta))
    return kernels


def compile_plan(case: Case, config: Any, machine: Device) -> int:
    """Compiles as :func:`compile_kernels`; returns the largest shared memory of a kernel."""
    return max(int(kernel.metadata.shared) for kernel in compile_kernels(case, config, machine))


def serve(do: Callable[[dict[str, Any]], int]) -> None:
    """Answers jobs until standard input ends.

    Args:
        do: Does a job and returns the shared memory that its kernel asks for.
    """
    # Whatever a compiler prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        begin = time.perf_counter()
        try:
            shared = do(json.loads(line))
            result = Compiled("", shared, time.perf_counter() - begin)
        except Exception as error:  # any failure of one job is an answer, not an end
            result = Compiled(f"{type(error).__name__}: {str(error)[:300]}")
        answers.write(json.dumps(asdict(result)) + "\n")
        answers.flush()
