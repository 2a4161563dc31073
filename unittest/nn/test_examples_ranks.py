"""examples/models on two ranks with gloo: DDP and FSDP, and a rank that is killed."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

ROOT = pathlib.Path(__file__).parents[2]
TINY = ["--model", "vae", "--size", "tiny", "--batch", "2", "--mode", "ours"]


def run_ranks(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    variables = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    path = os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(ROOT)])
    with subprocess.Popen(
        [*launch, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path.strip(os.pathsep), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its ranks
            out, errors = process.communicate()
            pytest.fail(f"two ranks took more than 90 s:\n{out[-2000:]}\n{errors[-2000:]}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def test_the_step_of_two_ranks_is_that_of_the_joined_batch():
    # In fp32 the bound is 1e-5 of the gradients.
    check = ["--check", "--parallel", "ddp", "fsdp", "--dtype", "float32"]
    done = run_ranks("-m", "examples.models.training", *TINY, *check)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if "gradients of 2 ranks" in line]
    assert all(line.endswith("equal within tolerance") for line in lines)
    found = [(line.split(":")[0], "fsdp" in line) for line in lines]
    modes = ("vae eager", "vae ours")
    assert found == [(mode, sharded) for mode in modes for sharded in (False, True)]


def test_efficiency_is_told_for_both(tmp_path):
    out = tmp_path / "out.json"
    more = ["--steps", "1", "--rounds", "2", "--out", str(out)]
    done = run_ranks("-m", "examples.models.training", *TINY, *more)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if "scaling efficiency" in line]
    assert [line.split(":")[0] for line in lines] == [
        "training ddp x2, vae, eager",
        "training ddp x2, vae, ours",
    ]
    tasks = [row["task"] for row in json.loads(out.read_text())["rows"]]
    assert tasks == ["training"] * 2 + ["training ddp x2"] * 2


def visible() -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0,1")}


# Both ranks train and, beside it, write into the caches as fast as they can; the second one is
# killed in the middle of that.
KILLED = """
import json, os, pathlib, signal, sys, threading
from examples.models import training
from triton.runtime.cache import get_cache_manager
from triton_ext.ops.tuning_store.files import Entry, Table, update_table

rank = int(os.environ["RANK"])
table = pathlib.Path(os.environ["TRITON_EXT_TUNING_DIR"]) / "gpu.json"

def write():
    is_dying = False
    for number in range(10**6):
        text = json.dumps({"rank": rank, "number": number, "filler": "x" * 200000})
        get_cache_manager(f"{number % 7:064x}").put(text, "kernel.json", binary=False)
        entry = Entry(kind="k", config={"n": number}, us=1.0, measured=f"{number:09}")
        update_table(table, Table("gpu", {f"rank{rank}": entry.raw()}))
        if rank == 1 and number >= 40 and not is_dying and "rank0" in table.read_text():
            # While this thread goes on.
            is_dying = True
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()

threading.Thread(target=write, daemon=True).start()
sys.exit(training.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_killed_rank_ends_the_job_and_leaves_the_caches_whole(device, tmp_path):
    pytest.importorskip("triton")
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs, torch sees {torch.cuda.device_count()}")
    files = pytest.importorskip("triton_ext.ops.tuning_store.files")
    script = tmp_path / "job.py"
    script.write_text(KILLED)
    cache, tables = tmp_path / "cache", tmp_path / "tables"
    done = run_ranks(
        str(script),
        *[*TINY, "--steps", "100000", "--rounds", "1"],
        TRITON_CACHE_DIR=str(cache),
        TRITON_EXT_TUNING_DIR=str(tables),
        **({} if device == "cpu" else visible()),
    )
    assert done.returncode != 0
    assert "ChildFailedError" in done.stderr
    assert "Signal 9 (SIGKILL)" in done.stderr
    kernels = [p for p in cache.rglob("kernel.json") if "tmp." not in str(p)]
    assert len(kernels) == 7
    for path in kernels:
        assert len(json.loads(path.read_text())["filler"]) == 200000
    for path in cache.rglob("*.json"):  # of kernels that were compiled, too
        if "tmp." not in str(path):
            json.loads(path.read_text())
    found = files.read_table(tables / "gpu.json", "gpu")
    assert sorted(found.entries) == ["rank0", "rank1"]
    for raw in found.entries.values():
        assert files.Entry.of(raw).kind == "k"
    # The next job goes on from there: the dead rank's lock is gone.
    more = files.Entry(kind="k", config={}, us=1.0, measured="1").raw()
    files.update_table(tables / "gpu.json", files.Table("gpu", {"next": more}))
    assert "next" in files.read_table(tables / "gpu.json", "gpu").entries
