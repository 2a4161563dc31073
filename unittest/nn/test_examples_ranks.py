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


def run_script(name: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    variables = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    path = os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", f"examples.models.{name}", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path.strip(os.pathsep), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


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


def test_two_ranks_are_checked_and_timed_beside_one(tmp_path):
    # In fp32 the bound is 1e-5 of the gradients.
    out = tmp_path / "out.json"
    more = ["--check", "too", "--parallel", "ddp", "fsdp", "--dtype", "float32"]
    more += ["--steps", "1", "--rounds", "2", "--out", str(out)]
    done = run_ranks("-m", "examples.models.training", *TINY, *more)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    checked = [line for line in lines if "gradients of 2 ranks" in line]
    found = [(line.split(":")[0], "fsdp" in line) for line in checked]
    modes = ("PASS vae eager", "PASS vae ours")
    assert found == [(mode, sharded) for mode in modes for sharded in (False, True)]
    # Ranks that share a CPU are told, not judged.
    assert [line.split(":")[0] for line in lines if "scaling efficiency" in line] == [
        "training ddp x2, vae, eager",
        "training ddp x2, vae, ours",
        "training fsdp x2, vae, eager",
        "training fsdp x2, vae, ours",
    ]
    rows = json.loads(out.read_text())["rows"]
    tasks = [(row["task"], bool(row["ms"])) for row in rows]
    checks = [("check", False), ("check ddp x2", False), ("check fsdp x2", False)]
    times = [("training", True), ("training ddp x2", True), ("training fsdp x2", True)]
    assert tasks == checks * 2 + [each for each in times for _ in range(2)]


def test_the_older_fsdp_and_ranks_that_the_script_starts_itself(tmp_path):
    out = tmp_path / "out.csv"
    more = ["--check", "--parallel", "fsdp1", "--dtype", "float32", "--out", str(out)]
    done = run_script("training", *TINY, *more, "--ranks", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("PASS vae") == 2
    assert "through fsdp1" in done.stdout
    assert out.read_text().count("check fsdp1 x2") == 2


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_killed_rank_ends_the_job_and_leaves_the_caches_whole(device, tmp_path):
    pytest.importorskip("triton")
    pytest.importorskip("triton_ext.ops.tuning.store")
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs, torch sees {torch.cuda.device_count()}")
    seen = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0,1")}
    out = tmp_path / "out.csv"
    words = ("--size", "tiny", "--time-limit", "80", "--out", str(out))
    done = run_script("killed_rank", *words, **(seen if device == "cuda" else {}))
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "PASS the job ends",
        "PASS Triton's cache",
        "PASS the table of tuning",
    ]
    assert "names SIGKILL" in lines[0]
    assert [line[-5:] for line in out.read_text().splitlines() if "#" not in line] == [
        ",good",
        *[",True"] * 3,
    ]


@pytest.mark.parametrize("name", ["inference", "loss_curves", "killed_rank"])
def test_triton_without_its_needs_ends_the_script_in_a_line(name):
    code = (
        f"import sys; sys.modules['numpy'] = None; from examples.models import {name}; "
        f"sys.exit({name}.main([]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Triton's interpreter (TRITON_INTERPRET=1) needs numpy" in done.stdout
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("main", "words"),
    [("training", ["--ranks", "2"]), ("killed_rank", []), ("training", ["--ranks", "1"])],
)
def test_ranks_without_a_gpu_each_are_refused(main, words, monkeypatch, capsys):
    from examples.models import killed_rank, options, parallel, training

    monkeypatch.setattr(parallel.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(parallel.torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(parallel.subprocess, "Popen", pytest.fail)
    monkeypatch.setattr(options, "run_problem", lambda *_: "")
    assert {"training": training, "killed_rank": killed_rank}[main].main(words) == 2
    told = "expected at least 2" if "1" in words else "needs 2 GPUs, torch sees 1"
    assert capsys.readouterr().out.strip().endswith(told)


def test_files_that_are_not_whole_are_told(tmp_path):
    pytest.importorskip("triton_ext.ops.tuning.store")
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
