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


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_killed_rank_ends_the_job_and_leaves_the_caches_whole(device):
    pytest.importorskip("triton")
    pytest.importorskip("triton_ext.ops.tuning_store.files")
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs, torch sees {torch.cuda.device_count()}")
    hidden = {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    path = os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(ROOT)])
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "examples.models.killed_rank",
            "--size",
            "tiny",
            "--time-limit",
            "80",
        ],
        cwd=ROOT,
        env={**os.environ, **hidden, "OMP_NUM_THREADS": "1", "PYTHONPATH": path.strip(os.pathsep)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "PASS the job ends",
        "PASS Triton's cache",
        "PASS the table of tuning",
    ]
    assert "names SIGKILL" in lines[0]


def test_files_that_are_not_whole_are_told(tmp_path):
    pytest.importorskip("triton_ext.ops.tuning_store.files")
    from examples.models import killed_rank

    for number in range(7):
        (tmp_path / str(number)).mkdir()
        whole = json.dumps({"filler": "x" * 200000})
        (tmp_path / str(number) / "kernel.json").write_text(whole if number else whole[:-1])
    good, text = killed_rank._cache(tmp_path)
    assert (good, text.endswith(", kernel.json broken")) == (False, True)
    (tmp_path / "gpu.json").write_text("{")
    good, text = killed_rank._tables(tmp_path)
    assert (good, text.startswith("the table of tuning: ")) == (False, True)
