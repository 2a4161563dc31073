"""Compiles configurations in other processes, without a GPU, into Triton's disk cache.

A worker is ``python -m benchmarks.compile_ahead``.  The processes, and what stands in for a GPU in
them, are those of ``triton_ext.ops.tuning``; the jobs are the benchmarks' own.
"""

from __future__ import annotations

import importlib
import sys
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import SMEM_BYTES, Device, assumed_device
from triton_ext.ops.families.gemm_config import ConvConfig
from triton_ext.ops.tuning.measure import Compiled, Processes, compile_plan, serve, target_only

from benchmarks.harness import ROOT
from benchmarks.shapes import ConvShape, select_shapes

__all__ = ["CompilePool", "Compiled"]


class CompilePool(Processes):
    """Compiling processes, each fed by a thread; use it as a context manager.

    Args:
        jobs: Processes.
        capability: Compute capability of the target, such as (9, 0).
    """

    def __init__(self, jobs: int, capability: tuple[int, int]) -> None:
        major, minor = capability
        command = [sys.executable, "-m", "benchmarks.compile_ahead", str(major * 10 + minor)]
        super().__init__(jobs, command, cwd=str(ROOT))

    def __enter__(self) -> CompilePool:
        return self

    def submit(self, shape: ConvShape, dtype: str, config: Any) -> Future[Compiled]:
        """Compiles ``config`` for ``shape``; jobs start in the order of submission.

        A job of :meth:`submit_job` names a ``module``, whose ``compile_job`` does it.
        """
        return self.submit_job({"shape": shape.name, "dtype": dtype, "config": asdict(config)})


def _compile(job: dict[str, Any], machine: Device) -> int:
    """Compiles a forward kernel; returns the shared memory that it asks for."""
    import torch

    (shape,) = select_shapes([job["shape"]])
    case = Case(direction="fprop", problem=shape.problem(), dtype=getattr(torch, job["dtype"]))
    return compile_plan(case, ConvConfig(**job["config"]), machine)


def _serve(arch: int) -> None:
    """Answers jobs until stdin ends."""
    machine = Device(1, (arch // 10, arch % 10), SMEM_BYTES)
    target_only(machine.capability)

    def do(job: dict[str, Any]) -> int:
        if "module" not in job:
            return _compile(job, machine)
        # Plans on the meta device are made for this machine, unless the module has its own.
        with assumed_device(machine):
            shared: int = importlib.import_module(job["module"]).compile_job(
                job, machine.capability
            )
        return shared

    serve(do)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
