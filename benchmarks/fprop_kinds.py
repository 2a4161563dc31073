"""Kinds of forward convolution that the table of configurations was not fitted to, swept.

Epilogues with a residual, fp8, int8, tf32, few channels, groups, depthwise and 3-D: every candidate
configuration is compiled ahead by other processes, checked against torch in fp32, and timed beside
torch.  ``chosen`` in the output marks what the model takes without measuring.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
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

__all__ = ["KINDS", "add_arguments", "candidates", "compile_job", "run"]

TORCH = "torch"
# Largest error over the largest value: fp8 is summed with about 14 bits on sm_90.
LIMIT = 5e-3


@dataclass(frozen=True, slots=True)
class Kind:
    """A convolution, its dtype and epilogue.

    Attributes:
        sizes: N, Ci, Co, input size.
        filter_size: Taps per dimension; padded by half.
        dtype: Of x and weight, torch's name.
        groups: Groups of channels.
        stride: Of every dimension.
        epilogue: Fields of the specification.
    """

    sizes: tuple[int, ...]
    filter_size: tuple[int, ...] = (3, 3)
    dtype: str = "float16"
    groups: int = 1
    stride: int = 1
    epilogue: dict[str, Any] = field(default_factory=dict)

    def problem(self) -> Any:
        """Returns the convolution problem."""
        from triton_ext.ops.core.problem import ConvProblem

        n, ci, co, *size = self.sizes
        dims = len(size)
        return ConvProblem(
            batch=n,
            in_channels=ci,
            out_channels=co,
            input_size=tuple(size),
            filter_size=self.filter_size,
            stride=(self.stride,) * dims,
            padding=tuple((taps // 2, taps // 2) for taps in self.filter_size),
            dilation=(1,) * dims,
            groups=self.groups,
        )

    def spec(self) -> Any:
        """The epilogue."""
        import torch
        from triton_ext.ops.core.epilogue import EpilogueSpec

        fields = dict(self.epilogue)
        if "out_dtype" in fields:
            fields["out_dtype"] = getattr(torch, fields["out_dtype"])
        return EpilogueSpec(**fields)


_RESIDUAL = {"bias": True, "residual": True, "activation": "relu"}
_SCALED = {"scale": True, "out_dtype": "float16"}

KINDS: dict[str, Kind] = {
    "residual 64": Kind((32, 64, 64, 56, 56), epilogue=_RESIDUAL),
    "residual 256": Kind((32, 256, 256, 14, 14), epilogue=_RESIDUAL),
    "residual 512": Kind((128, 512, 512, 7, 7), epilogue=_RESIDUAL),
    "residual 1x1": Kind((32, 64, 256, 56, 56), (1, 1), epilogue=_RESIDUAL),
    "gelu": Kind((8, 320, 320, 64, 64), epilogue={"bias": True, "activation": "gelu"}),
    "fp8 128": Kind((128, 128, 128, 28, 28), dtype="float8_e4m3fn", epilogue=_SCALED),
    "fp8 256": Kind((128, 256, 256, 14, 14), dtype="float8_e4m3fn", epilogue=_SCALED),
    "fp8 640": Kind((8, 640, 640, 32, 32), dtype="float8_e4m3fn", epilogue=_SCALED),
    "int8 256": Kind((128, 256, 256, 14, 14), dtype="int8", epilogue=_SCALED),
    "tf32 128": Kind((32, 128, 128, 28, 28), dtype="float32"),
    "tf32 256": Kind((32, 256, 256, 14, 14), dtype="float32"),
    "rgb": Kind((32, 3, 64, 224, 224), (7, 7), stride=2),
    "ci 16": Kind((8, 16, 64, 128, 128)),
    "ci 32": Kind((8, 32, 64, 128, 128)),
    "groups of 4": Kind((32, 128, 128, 56, 56), groups=32),
    "groups of 8": Kind((32, 256, 256, 28, 28), groups=32),
    "groups of 16": Kind((32, 512, 512, 14, 14), groups=32),
    "groups of 32": Kind((32, 1024, 1024, 14, 14), groups=32),
    "depthwise 3x3": Kind((32, 144, 144, 56, 56), groups=144),
    "depthwise 7x7": Kind((32, 96, 96, 56, 56), (7, 7), groups=96),
    "depthwise 1-D": Kind((16, 512, 512, 2000), (31,), groups=512),
    "video": Kind((1, 128, 128, 16, 64, 64), (3, 3, 3)),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    add_conv_arguments(parser, f"names of kinds: {', '.join(KINDS)}; all by default")
    parser.add_argument("--jobs", type=read_count, default=8, help="compiling processes (8)")


def candidates(kind: Kind) -> Iterator[Any]:
    """Every configuration worth a try, in the order of the tables."""
    from triton_ext.ops.families.direct import DirectConfig
    from triton_ext.ops.families.gemm_config import CONFIGS, NARROW_CONFIGS, channel_block

    problem = kind.problem()
    group_ci, group_co = (c // kind.groups for c in kind.sizes[1:3])
    element_bytes = {"float32": 4, "float16": 2}.get(kind.dtype, 1)
    if kind.groups > 1 and group_ci <= 8:
        for block_m in (16, 32, 64, 128):
            for block_n in (32, 64, 128):
                if 1024 <= block_m * block_n <= 8192 and block_n < 2 * problem.out_channels:
                    yield DirectConfig(block_m=block_m, block_n=block_n)
    if kind.groups > 1 and group_ci < 4:
        return
    block_k = channel_block(group_ci, element_bytes, kind.groups)
    for config in (*CONFIGS, *(NARROW_CONFIGS if kind.groups > 1 else ())):
        if config.block_n >= 2 * max(group_co, 16):
            continue
        for k in dict.fromkeys((block_k, 128 // element_bytes)):
            if group_ci % k and kind.groups > 1 and k != block_k:
                continue
            for less in range(3):
                if config.num_stages - less >= 2:
                    yield dataclasses.replace(
                        config, block_k=k, num_stages=config.num_stages - less
                    )


def _inputs(kind: Kind, device: str) -> tuple[Any, Any, Any]:
    """x, weight and the epilogue's operands."""
    import torch
    from triton_ext.ops.core.epilogue import EpilogueArguments

    problem, spec = kind.problem(), kind.spec()
    dtype = getattr(torch, kind.dtype)
    wide = dtype if dtype.itemsize > 1 else torch.float16
    if device != "meta":
        torch.manual_seed(0)

    def draw(shape: tuple[int, ...], dtype: Any, size: float = 1.0) -> Any:
        rows = torch.randn(shape[0], *shape[2:], shape[1], device=device) * size
        if dtype == torch.int8:
            rows = (rows * 40).clamp(-127, 127)
        return rows.to(dtype).movedim(-1, 1)

    x = draw(problem.x_shape, dtype)
    k_gemm = problem.taps * problem.in_channels // problem.groups
    weight = draw(problem.w_shape, dtype, k_gemm**-0.5 if dtype.itemsize > 1 else 1.0)
    co = problem.out_channels
    scale = torch.full((1,), k_gemm**-0.5 / (1600 if dtype == torch.int8 else 1), device=device)
    return x, weight, EpilogueArguments(
        bias=torch.randn(co, device=device).to(wide) if spec.bias else None,
        scale=scale if spec.scale else None,
        residual=draw(problem.y_shape, wide) if spec.residual else None,
    )  # fmt: skip


def _in_torch(kind: Kind, x: Any, weight: Any, operands: Any) -> Any:
    """The convolution and its epilogue, one operator of torch after another."""
    import torch

    problem = kind.problem()
    function = getattr(torch.nn.functional, f"conv{problem.dims}d")
    low = [sides[0] for sides in problem.padding]
    y = function(x, weight, operands.bias, problem.stride, low, problem.dilation, problem.groups)
    if operands.scale is not None:
        y = y * operands.scale.to(y.dtype)
    if operands.residual is not None:
        y = y + operands.residual
    activation = kind.epilogue.get("activation")
    return getattr(torch.nn.functional, activation)(y) if activation else y


def _plan(kind: Kind, x: Any, config: Any = None) -> Any:
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.planner import make_plan

    case = Case(
        direction="fprop",
        problem=kind.problem(),
        dtype=x.dtype,
        epilogue=kind.spec(),
        x_strides=x.stride(),
    )
    return make_plan(case, x.device, config)


def _job(name: str, config: Any) -> dict[str, object]:
    from triton_ext.ops.core.tables import encode, kind_of

    return {
        "module": "benchmarks.fprop_kinds",
        "kind": name,
        "kernel": kind_of(config),
        "config": encode(config),
    }


def compile_job(job: dict[str, Any], capability: tuple[int, int]) -> int:
    """Compiles a configuration into Triton's cache; the compiling process calls it.

    Args:
        job: What :func:`run` asked for.
        capability: Compute capability of the target.

    Returns:
        Bytes of shared memory that the kernel asks for.
    """
    from triton_ext.ops.core.launcher import compiling
    from triton_ext.ops.core.tables import decode

    kind = KINDS[job["kind"]]
    # The very tensors of the sweep: a scale per channel would be another kernel.
    x, weight, operands = _inputs(kind, "meta")
    with compiling() as kernels:
        _plan(kind, x, decode(job["kernel"], job["config"])).run(x, weight, operands)
    return max(int(kernel.metadata.shared) for kernel in kernels)


def _sweep_kind(
    name: str, arguments: argparse.Namespace, pool: CompilePool, timer: Any
) -> list[dict[str, Any]]:
    """Compiles, checks and times the candidates of a kind; returns a row for each."""
    import torch

    kind = KINDS[name]
    x, weight, operands = _inputs(kind, "cuda")
    chosen = _plan(kind, x).config
    configs = list(dict.fromkeys([chosen, *candidates(kind)]))
    jobs = {config: pool.submit_job(_job(name, config)) for config in configs}
    wide = x.dtype if x.dtype.itemsize > 1 else torch.float16
    tensors = (x.to(wide), weight.to(wide))
    full = dataclasses.replace(
        operands,
        **{key: value.float() for key in ("bias", "scale", "residual")
           if (value := getattr(operands, key)) is not None},
    )  # fmt: skip
    torch.backends.cudnn.allow_tf32 = False
    reference = _in_torch(kind, x.float(), weight.float(), full)
    torch.backends.cudnn.allow_tf32 = True
    variants: dict[str, Any] = {TORCH: lambda: _in_torch(kind, *tensors, operands)}
    rows: dict[str, dict[str, Any]] = {TORCH: {"kind": name, "config": TORCH}}
    for config in configs:
        row: dict[str, Any] = {"kind": name, "config": asdict(config)}
        row["class"] = type(config).__name__
        row["chosen"] = config == chosen
        key = str(config)
        rows[key] = row
        built = jobs[config].result()
        row["status"] = built.error or "ok"
        if built.error:
            continue
        try:
            plan = _plan(kind, x, config)
            errors = measure_errors(plan.run(x, weight, operands), reference)
        except Exception as error:  # recorded; too much shared memory, mostly
            row["status"] = f"{type(error).__name__}: {str(error)[:200]}"
            continue
        row["error"] = errors.maximum
        if not errors.maximum <= LIMIT:
            row["status"] = "wrong"
            continue
        variants[key] = lambda plan=plan: plan.run(x, weight, operands)
    for key, timing in time_interleaved(variants, timer, arguments.rounds).items():
        rows[key]["us"] = timing.ms * 1e3
        rows[key]["tflops"] = kind.problem().flops / timing.ms * 1e-9
    return list(rows.values())


def run(arguments: argparse.Namespace) -> int:
    """Sweeps; returns 1 where a result was wrong."""
    names = arguments.shapes or list(KINDS)
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        emit(f"unknown kinds: {', '.join(unknown)}; there are {', '.join(KINDS)}")
        return 2
    if arguments.dry_run:
        for name in names:
            emit(f"{name}: {len(list(candidates(KINDS[name])))} configurations")
        return 0
    out = arguments.out or pathlib.Path("fprop_kinds.json")
    problem = wrong_out(arguments, default_out=out)
    if problem:
        emit(problem)
        return 2
    if not has_gpu("--dry-run counts the configurations"):
        return 2
    import torch

    prepare_torch()
    deadline = Deadline(arguments.time_limit)
    timer = make_timer(arguments, arguments.target_ms)
    rows: list[dict[str, Any]] = []
    environment = collect_environment()
    with CompilePool(arguments.jobs, torch.cuda.get_device_capability()) as pool:
        for name in names:
            if deadline.over:
                emit(f"time is up before {name}")
                break
            found = _sweep_kind(name, arguments, pool, timer)
            rows += found
            write_json(out, {"environment": asdict(environment), "rows": rows})
            timed = sorted((row for row in found if "us" in row), key=lambda row: row["us"])
            torchs = next(row["us"] for row in timed if row["config"] == TORCH)
            best = next((row for row in timed if row["config"] != TORCH), None)
            mine = next((row["us"] for row in timed if row.get("chosen")), float("nan"))
            fastest = best["us"] if best else float("nan")
            emit(f"{name}: torch {torchs:.1f} us, best {fastest:.1f}, chosen {mine:.1f}")
    return int(any(row.get("status") == "wrong" for row in rows))
