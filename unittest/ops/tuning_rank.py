"""One rank of a job on CPUs: it tunes in its first steps and prints what it then uses."""

from __future__ import annotations

import os
import pathlib
import sys

import torch
import torch.distributed as dist
from triton_ext import ops
from triton_ext.ops import tuning
from triton_ext.ops.core import planner
from triton_ext.ops.core.planner import make_plan
from triton_ext.ops.tuning.collect import parse_shape
from tuning_fakes import MACHINE, InstantCompiler, last_is_fastest, plans_for

SHAPES = ("1x64x8x8_32_k3x3", "6x64x8x8_32_k3x3")


def main(folder: str, fails: bool) -> None:
    """Runs a rank from joining the others to leaving them."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting = f"file://{pathlib.Path(folder) / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    tune_and_print(rank, fails)
    dist.barrier()
    # Else a thread of gloo's may still run when the interpreter ends, which aborts the process.
    dist.destroy_process_group()


def tune_and_print(rank: int, fails: bool) -> None:
    """Does the steps; rank 0's compiler raises where it is to fail."""
    plans_for(MACHINE)
    compiler = None if fails else InstantCompiler()
    if fails:
        tuning.runs.CompilePool = None  # what rank 0 calls to get one
    options = {"gpu": MACHINE, "compiler": compiler, "clock": last_is_fastest(), "count": 2}
    measured = 0
    with tuning.warmup_steps(2, progress=False, device="cpu", **options) as job:
        for _ in range(3):
            # Each rank meets another shape.
            batch = parse_shape(SHAPES[rank]).batch
            x = torch.ones(batch, 64, 8, 8).half().to(memory_format=torch.channels_last)
            ops.conv2d(x, torch.ones(32, 64, 3, 3).half(), padding=1)
            try:
                report = job.step()
            except tuning.JobError:
                sys.stdout.write("JobError\n")
                return
            if report is not None:
                measured += sum(outcome.is_new for outcome in report.outcomes)
    sys.stdout.write(f"{measured}\n")
    for shape in SHAPES:
        case = tuning.Case(direction="fprop", problem=parse_shape(shape), dtype=torch.float16)
        config = make_plan(case, torch.device("cpu")).config
        candidates = tuning.candidates(case.problem, "fprop", case.dtype, MACHINE)
        assert config == candidates[1], (shape, config)
        sys.stdout.write(f"{config.block_m}x{config.block_n}x{config.num_stages}\n")
    assert planner.make_plan.cache_info().currsize


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "1")
