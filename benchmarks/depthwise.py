"""Depthwise convolutions: every candidate configuration of three directions beside torch.

The layers are ConvNeXt's 7x7, MobileNet's 3x3, a 5x5 and a long 1-D filter.  Candidates are the
best that the model expects of each width of a thread; ``chosen`` marks the one that it takes.
Kernels are compiled ahead by other processes, checked against torch in fp32, then timed.
"""

from __future__ import annotations

import argparse
import pathlib
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.compile_ahead import CompilePool
from benchmarks.conv_runs import has_gpu, make_timer, prepare_torch, wrong_out
from benchmarks.harness import (
    Deadline,
    add_conv_arguments,
    collect_environment,
    emit,
    measure_errors,
    read_count,
    time_interleaved,
    write_json,
)

__all__ = ["LAYERS", "Layer", "add_arguments", "candidates", "compile_job", "run"]

DIRECTIONS = ("fprop", "dgrad", "wgrad")
TORCH = "torch"
# Largest error over the largest value.
LIMIT = 5e-3


@dataclass(frozen=True, slots=True)
class Layer:
    """A depthwise convolution, padded by half of its filter.

    Attributes:
        sizes: N, C, input size.
        taps: Of every dimension.
        stride: Of every dimension.
    """

    sizes: tuple[int, ...]
    taps: int
    stride: int = 1

    def problem(self) -> Any:
        """Returns the convolution problem."""
        from triton_ext.ops.core.problem import ConvProblem

        n, channels, *size = self.sizes
        dims = len(size)
        return ConvProblem(
            batch=n,
            in_channels=channels,
            out_channels=channels,
            input_size=tuple(size),
            filter_size=(self.taps,) * dims,
            stride=(self.stride,) * dims,
            padding=((self.taps // 2,) * 2,) * dims,
            dilation=(1,) * dims,
            groups=channels,
        )


LAYERS: dict[str, Layer] = {
    "convnext 56": Layer((64, 96, 56, 56), 7),
    "convnext 28": Layer((64, 192, 28, 28), 7),
    "convnext 14": Layer((64, 384, 14, 14), 7),
    "convnext 7": Layer((64, 768, 7, 7), 7),
    "mobilenet 112": Layer((64, 32, 112, 112), 3),
    "mobilenet 56 s2": Layer((64, 96, 56, 56), 3, 2),
    "mobilenet 14": Layer((64, 576, 14, 14), 3),
    "5x5 28": Layer((64, 240, 28, 28), 5),
    "1-D 31": Layer((16, 512, 2000), 31),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    add_conv_arguments(parser, f"names of layers: {', '.join(LAYERS)}; all by default")
    parser.add_argument(
        "--directions", nargs="+", choices=DIRECTIONS, default=DIRECTIONS, help="all by default"
    )
    parser.add_argument("--per-width", type=read_count, default=3, help="candidates of a width (3)")
    parser.add_argument("--jobs", type=read_count, default=12, help="compiling processes (12)")


def candidates(layer: Layer, direction: str, num_sms: int, per_width: int) -> list[Any]:
    """The model's choice, and the best of each width of a thread."""
    import torch
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.device import KNOWN
    from triton_ext.ops.families.depthwise import DEPTHWISE, DEPTHWISE_DGRAD, DEPTHWISE_WGRAD

    families: dict[str, Any] = {
        "fprop": DEPTHWISE,
        "dgrad": DEPTHWISE_DGRAD,
        "wgrad": DEPTHWISE_WGRAD,
    }
    case = Case(direction=direction, problem=layer.problem(), dtype=torch.float16)  # type: ignore[arg-type]
    ranked = families[direction].candidates(case, replace(KNOWN["h200"], num_sms=num_sms))
    taken: Counter[Any] = Counter()
    found = []
    for config in ranked:
        key = (config.thread_channels, config.num_warps)
        most = per_width if config.num_warps == 4 else 1
        if taken[key] < most:
            taken[key] += 1
            found.append(config)
    return found


def compile_job(job: dict[str, Any], capability: tuple[int, int]) -> int:
    """Compiles a configuration into Triton's cache; the compiling process calls it.

    Args:
        job: What :func:`run` asked for.
        capability: Compute capability of the target.

    Returns:
        Bytes of shared memory that the kernel asks for.
    """
    import torch
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.device import SMEM_BYTES, Device
    from triton_ext.ops.core.tables import decode
    from triton_ext.ops.tuning.measure import compile_plan

    dtype = getattr(torch, job["dtype"])
    case = Case(
        direction=job["direction"],
        problem=LAYERS[job["layer"]].problem(),
        dtype=dtype,
        out_dtype=dtype if job["direction"] == "wgrad" else None,
    )
    machine = Device(job["num_sms"], capability, SMEM_BYTES)
    return compile_plan(case, decode(job["kind"], job["config"]), machine)


def _tensors(layer: Layer, dtype: Any) -> tuple[Any, Any, Any]:
    """x, weight and dy; channels-last."""
    import torch

    torch.manual_seed(0)
    problem = layer.problem()

    def draw(shape: tuple[int, ...], size: float = 1.0) -> Any:
        rows = torch.randn(shape[0], *shape[2:], shape[1], device="cuda") * size
        return rows.to(dtype).movedim(-1, 1)

    scale = problem.taps**-0.5
    return draw(problem.x_shape), draw(problem.w_shape, scale), draw(problem.y_shape)


def _torch_call(layer: Layer, direction: str, x: Any, weight: Any, dy: Any) -> Any:
    """A direction in torch, as a function."""
    import torch

    problem = layer.problem()
    low = [sides[0] for sides in problem.padding]
    if direction == "fprop":
        function = getattr(torch.nn.functional, f"conv{problem.dims}d")
        return lambda: function(
            x, weight, None, problem.stride, low, problem.dilation, problem.groups
        )
    mask = [direction == "dgrad", direction == "wgrad", False]
    zeros = [0] * problem.dims

    def backward() -> Any:
        return torch.ops.aten.convolution_backward(
            dy, x, weight, None, problem.stride, low, problem.dilation, False, zeros,
            problem.groups, mask,
        )[mask.index(True)]  # fmt: skip

    return backward


def _plan(layer: Layer, direction: str, dtype: Any, config: Any) -> Any:
    import torch
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.planner import make_plan

    case = Case(
        direction=direction,  # type: ignore[arg-type]
        problem=layer.problem(),
        dtype=dtype,
        out_dtype=dtype if direction == "wgrad" else None,
    )
    return make_plan(case, torch.device("cuda", torch.cuda.current_device()), config)


def _sweep(name: str, direction: str, jobs: dict[Any, Any], arguments: argparse.Namespace) -> Any:
    """Checks and times the candidates of a layer's direction; yields a row for each."""
    import torch
    from triton_ext.ops.core.tables import encode

    layer, dtype = LAYERS[name], getattr(torch, arguments.dtype)
    tensors = _tensors(layer, dtype)
    x, weight, dy = tensors
    torch.backends.cudnn.allow_tf32 = False
    reference = _torch_call(layer, direction, *(t.float() for t in tensors))()
    operands = {"fprop": (x, weight), "dgrad": (dy, weight), "wgrad": (x, dy)}[direction]
    variants = {TORCH: _torch_call(layer, direction, *tensors)}
    rows: dict[str, dict[str, Any]] = {TORCH: {"config": TORCH, "status": "ok"}}
    for number, (config, job) in enumerate(jobs.items()):
        key = str(config)
        row: dict[str, Any] = {"config": encode(config), "chosen": number == 0}
        rows[key] = row
        built = job.result()
        row["status"] = built.error or "ok"
        row["compile_s"] = built.seconds
        if built.error:
            continue
        plan = _plan(layer, direction, dtype, config)
        errors = measure_errors(plan.run(*operands), reference)
        row["error"] = errors.maximum
        if not errors.maximum <= LIMIT:
            row["status"] = "wrong"
            continue
        variants[key] = lambda plan=plan: plan.run(*operands)
    timer = make_timer(arguments, arguments.target_ms)
    for key, timing in time_interleaved(variants, timer, arguments.rounds).items():
        rows[key]["us"] = timing.ms * 1e3
    return [{"layer": name, "direction": direction, **row} for row in rows.values()]


def run(arguments: argparse.Namespace) -> int:
    """Sweeps; returns 1 where a result was wrong."""
    names = arguments.shapes or list(LAYERS)
    unknown = [name for name in names if name not in LAYERS]
    if unknown:
        emit(f"unknown layers: {', '.join(unknown)}; there are {', '.join(LAYERS)}")
        return 2
    cases = [(name, direction) for direction in arguments.directions for name in names]
    if arguments.dry_run:
        for name, direction in cases:
            found = candidates(LAYERS[name], direction, 132, arguments.per_width)
            emit(f"{name} {direction}: {len(found)} configurations, first {found[0]}")
        return 0
    out = arguments.out or pathlib.Path("depthwise.json")
    problem = wrong_out(arguments, default_out=out)
    if problem:
        emit(problem)
        return 2
    if not has_gpu("--dry-run counts the configurations"):
        return 2
    import torch
    from triton_ext.ops.core.tables import encode, kind_of

    prepare_torch()
    deadline = Deadline(arguments.time_limit)
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    rows: list[dict[str, Any]] = []
    environment = collect_environment()
    with CompilePool(arguments.jobs, torch.cuda.get_device_capability()) as pool:
        jobs = {
            (name, direction): {
                config: pool.submit_job(
                    {
                        "module": "benchmarks.depthwise",
                        "layer": name,
                        "direction": direction,
                        "dtype": arguments.dtype,
                        "num_sms": num_sms,
                        "kind": kind_of(config),
                        "config": encode(config),
                    }
                )
                for config in candidates(LAYERS[name], direction, num_sms, arguments.per_width)
            }
            for name, direction in cases
        }
        for case in cases:
            if deadline.over:
                emit(f"time is up before {' '.join(case)}")
                break
            found = _sweep(*case, jobs[case], arguments)
            rows += found
            write_json(out, {"environment": asdict(environment), "rows": rows})
            _report(*case, found)
    return int(any(row["status"] == "wrong" for row in rows))


def _report(name: str, direction: str, rows: list[dict[str, Any]]) -> None:
    """Prints a line of a layer's direction, and the three fastest configurations."""
    torchs, *ours = rows
    timed = sorted((row for row in ours if "us" in row), key=lambda row: row["us"])
    if not timed:
        emit(f"{name} {direction}: {ours[0]['status']}")
        return
    chosen = next((row["us"] for row in timed if row["chosen"]), float("nan"))
    emit(
        f"{name} {direction}: torch {torchs['us']:.1f} us, best {timed[0]['us']:.1f}, chosen "
        f"{chosen:.1f}, of {len(timed)}"
    )
    for row in timed[:3]:
        values = " ".join(f"{key}={value}" for key, value in row["config"].items())
        emit(f"    {row['us']:.1f}: {values}")
    failed = [row["status"] for row in ours if row["status"] != "ok"]
    if failed:
        emit(f"    failed: {len(failed)}, {failed[0]}")
