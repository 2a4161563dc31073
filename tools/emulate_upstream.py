"""Runs Triton's Gluon tutorials and examples in the emulator, without a GPU, and prints a table.

    python tools/emulate_upstream.py ~/triton
    python tools/emulate_upstream.py ~/triton --only 06-tcgen05 --schedule random --seed 7

The kernels are those of the checkout, unmodified, compiled by the installed Triton.  Their files
are imported and their own tests are called, which compare with torch.  What asks for a CUDA device
there finds the CPU: ``device="cuda"`` makes tensors of the CPU, and a launch goes to
``triton_ext.emulated``.  Sizes are the smallest that the tests have, or smaller.

Where the emulator finds a fault, the table has it.  Then the kernel runs once more, with what some
of them lack added to its TTGIR: a fence in front of every store through the TMA unit, and a wait
for stores at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import io
import pathlib
import signal
import sys
import time
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from environment import say

__all__ = ["RUNS", "Row", "Run", "main", "run_all"]


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One call of a test of upstream's.

    Attributes:
        path: The file, below ``python`` of the checkout.
        target: The GPU.
        call: The call, an expression over the names of the file.
    """

    path: str
    target: str
    call: str


def _runs(folder: str, target: str, calls: Mapping[str, Sequence[str]]) -> list[Run]:
    return [
        Run(f"{folder}/gluon/{name}.py", target, call)
        for name, found in calls.items()
        for call in found
    ]


_HOPPER = {
    "01-intro": ("test_copy_scalar()", "test_memcpy(64, 40)"),
    "02-layouts": (
        "test_memcpy_1d(128, 200, 4)",
        "test_memcpy_2d(128, 256, 100, 300, False, 4)",
        "test_memcpy_2d_inout(300, 400, True, False)",
    ),
    "03-async-copy": (
        "test_memcpy_1d_cpasync(200, 128)",
        "test_elementwise_add(100, 200, 32, 32)",
        "test_elementwise_add_cpasync(100, 200, 32, 32)",
        "test_elementwise_add_pipelined(100, 200, 32, 64, 2)",
    ),
    "04-tma": (
        "test_tma_message_passing(16)",
        "test_memcpy_1d_tma(64, 500)",
        "test_elementwise_add_pipelined(100, 200, 32, 64, 2)",
    ),
    "05-wgmma": (
        "test_small_mma(64, 32, 32, False, 16, 4)",
        "test_small_mma(64, 32, 32, True, 16, 4)",
        "test_blocked_matmul(208, 416, 304, 64, 64, 64, True, 4)",
        "test_blocked_matmul_pipelined(208, 416, 304, 64, 64, 64, 4)",
    ),
    "07-persistence": (
        "test_pipelined_matmul(208, 416, 304, 64, 64, 64, 3, 4)",
        "test_persistent_matmul(208, 416, 304, 64, 64, 64, 3, 4, schedulers[0])",
        "test_persistent_matmul_pipelined(208, 416, 304, 64, 64, 64, 3, 4, schedulers[1])",
    ),
    "08-warp-specialization": ("test_elementwise_add_warp_specialized(100, 200, 32, 64, 2, 2, 4)",),
    "13-conv-im2col": (
        "test_tma_im2col_simple()",
        "test_tma_im2col_padded()",
        "test_tma_im2col_offset()",
        "test_tma_im2col_multi_batch()",
        "test_tma_im2col_multi_batch_padded()",
        "test_conv2d_tma_im2col(1, 16, 16, 64, 64, 3, 3, 1, 1)",
    ),
    "14-multicta": ("test_multicta_softmax_f32(64, 256)", "test_tma_multicast_copy()"),
}
_BLACKWELL = {
    "06-tcgen05": (
        "test_tmem_example_kernel(64, 64, 4)",
        "test_tmem_example_kernel(256, 128, 8)",
        "test_small_mma(128, 128, 128, False, False, 4)",
        "test_small_mma(64, 128, 128, True, True, 4)",
        "test_small_mma(256, 64, 64, True, True, 4)",
        "test_blocked_matmul(208, 416, 304, 64, 64, 64, True, 4)",
        "test_blocked_matmul_pipelined(208, 416, 304, 64, 64, 64, 4)",
    ),
    "07-persistence": (
        "test_pipelined_matmul(208, 416, 304, 64, 64, 64, 3, 4)",
        "test_persistent_matmul(208, 416, 304, 64, 64, 64, 3, 4, schedulers[0])",
        "test_persistent_matmul(208, 416, 304, 64, 64, 64, 3, 4, schedulers[1])",
        "test_persistent_matmul_pipelined(208, 416, 304, 64, 64, 64, 3, 4, schedulers[1])",
    ),
    "08-warp-specialization": (
        "test_elementwise_add_warp_specialized(100, 200, 32, 64, 2, 2, 4)",
        "test_matmul_warp_specialized(208, 416, 304, 128, 256, 64, 2, 4, 4, t7.schedulers[0])",
    ),
    "09-tma-gather-scatter": (
        "test_async_gather(8, 16, 0, torch.bfloat16, 1024, 1024, None)",
        "test_async_gather(128, 128, -16, torch.float32, 1024, 1024, None)",
        "test_async_scatter(8, 16, 48, torch.bfloat16, 1024, 1024, None)",
        "test_async_scatter(128, 128, 1000, torch.float32, 1024, 1024, None)",
        "test_matmul_fused_gather_scatter(256, 256, 256, 128, 64, 64, 3)",
    ),
    "10-tcgen05-copy": (
        "test_tcgen05_copy_nvmma_shared(*configs[-1], torch.float32, 128)",
        "test_matmul_accumulate(256, 256, 256, 128, 64, 64, 3, torch.float16)",
    ),
    "11-tcgen05-mma-scaled": (
        "test_simple_mma_scaled(256, 256, 512, 'mxfp8', 'mxfp8', 128, 128)",
        "test_simple_mma_scaled(256, 256, 512, 'mxfp4', 'mxfp4', 128, 128)",
        "test_simple_mma_scaled(256, 256, 512, 'mxfp8', 'mxfp4', 128, 128)",
        "test_simple_mma_scaled(256, 256, 512, 'nvfp4', 'nvfp4', 128, 128)",
        "test_mma_scaled_contig(256, 256, 512, 'mxfp8', 'mxfp8', 128, 128)",
        "test_mma_scaled_packed_block(256, 256, 512, 'mxfp4', 'mxfp4', 128, 128)",
        "test_mma_scaled_tcgen05_copy(256, 256, 512, 'mxfp8', 'mxfp8', 128, 128)",
        "test_mma_scaled_tcgen05_copy(256, 256, 512, 'nvfp4', 'nvfp4', 128, 256)",
        "test_mma_scaled_pipelined(500, 600, 640, 'mxfp8', 'mxfp8', mma_scaled_pipelined_kernel)",
        "test_mma_scaled_pipelined("
        "500, 600, 640, 'mxfp4', 'mxfp4', mma_scaled_warp_specialized_kernel)",
    ),
    "12-cluster-launch-control": (
        "test_op(1000, 1000, 1000, True)",
        "test_op(1000, 1000, 1000, False)",
    ),
    "14-multicta": (
        "test_multicta_softmax_f32(64, 256)",
        "test_two_cta_tcgen05()",
        "test_tma_multicast_copy()",
        "test_tma_tcgen05()",
        "test_matmul_multicta()",
    ),
}
#: That file's test has one size, too large for here.
_OVERLAP = (
    "lambda A, B, SA, SB, C: torch.testing.assert_close("
    "C, mma_scaled_warp_specialized(A, B, SA, SB, use_overlap={}).float(), atol=2e-3, rtol=1e-3)"
)
_EXAMPLES = {
    "01-attention-forward": (
        "test_op(1, 1, 512, 64, False, torch.float16, False, ())",
        "test_op(1, 1, 512, 64, True, torch.float16, False, ())",
        "test_op(1, 1, 512, 64, False, torch.float16, False, ((1, 0),))",
    ),
    "02-conv-fprop": (
        "test_op(conv2d_fprop_fixed, 1, 64, 8, 8, 64, 3, 3, 1, 1)",
        "test_op(conv2d_fprop_fixed, 1, 96, 1, 8, 128, 1, 2, (1, 2), 0)",
    ),
    "02-conv-dgrad": ("test_op(conv2d_dgrad_fixed, 1, 64, 8, 8, 64, 3, 3, 1, 1)",),
    "02-conv-wgrad": ("test_op(conv2d_wgrad_fixed, 1, 64, 8, 8, 64, 3, 3, 1, 1)",),
    "03-matmul-multicta": (
        "test_matmul_matches_torch(100, 200, 200, 128, 128, 64, 0, 8, (), 2, 2, 32, 4)",
        "test_matmul_matches_torch(100, 200, 200, 64, 128, 64, 0, 8, ((1, 0),), 2, 2, 32, 4)",
    ),
    "04-2cta-block-scale-matmul": (
        "test_mma_scaled_warp_specialized("
        "500, 600, 640, 'mxfp8', 'mxfp8', 1, 128, 64, 5, SCHEDULER_SPS)",
        "test_mma_scaled_warp_specialized("
        "500, 600, 640, 'mxfp4', 'mxfp4', 1, 128, 64, 5, SCHEDULER_CLC)",
        "test_mma_scaled_warp_specialized("
        "500, 600, 640, 'mxfp8', 'mxfp8', 2, 128, 64, 6, SCHEDULER_SPS)",
    ),
    "05-moe-bmm1-fused-gather": ("test_op_consan()",),
    "06-overlapping-accumulator": (
        "test_tmem_overlap_accum()",
        f"({_OVERLAP.format(True)})(*make_problem(512, 512, 512, 'mxfp8', 'mxfp8'))",
        f"({_OVERLAP.format(False)})(*make_problem(512, 512, 512, 'mxfp8', 'mxfp8'))",
    ),
}
#: The runs, in the order of the table.
RUNS = (
    *_runs("tutorials", "sm_90", _HOPPER),
    *_runs("tutorials", "sm_100", _BLACKWELL),
    *_runs("examples", "sm_100", _EXAMPLES),
)

#: Multiprocessors of the GPU that is stood in for: persistent kernels take several tiles each.
_MULTIPROCESSORS = 4

#: Seconds after which a run is stopped.
_LIMIT_SECONDS = 120


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A line of the table.

    Attributes:
        run: The run.
        kernels: Names of the kernels that were launched.
        problem: The reason that it does not run, or the error; empty if it ran as expected.
        is_mended: Whether the results are as expected with fences and waits added.
        seconds: How long it took, compiles included.
    """

    run: Run
    kernels: tuple[str, ...]
    problem: str
    is_mended: bool
    seconds: float


class _Device:
    """Stands in for a GPU: in torch, in Triton's driver, and where kernels are launched.

    Args:
        target: The GPU.
        seed: Seed of the order.
        schedule: The schedule.
        edit: Changes the TTGIR of kernels.
    """

    def __init__(self, target: str, seed: int, schedule: str, edit: Any = None) -> None:
        self.target, self.seed, self.schedule, self.edit = target, seed, schedule, edit
        self.capability = int(target.removeprefix("sm_"))
        self.launched: list[str] = []

    # The files ask Triton's driver for these.

    def get_current_target(self) -> Any:
        """The target of compiles."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        """The number of the device."""
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        """The stream."""
        return 0

    def launch(
        self, kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any
    ) -> None:
        """Runs a kernel in the emulator."""
        import triton_ext

        self.launched.append(kernel.fn.__name__)
        launcher = triton_ext.emulated(
            kernel,
            self.target,
            seed=self.seed,
            schedule=self.schedule,  # type: ignore[arg-type]
            edit=self.edit,
        )
        launcher[grid](*args, **kwargs)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Within, there seems to be such a GPU."""
        import torch
        from torch.overrides import TorchFunctionMode
        from triton.runtime import driver
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction

        device = self

        class OnCpu(TorchFunctionMode):  # type: ignore[misc]
            def __torch_function__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                args = [_cpu(arg) for arg in args]
                return func(*args, **{name: _cpu(arg) for name, arg in (kwargs or {}).items()})

        def first_config(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            config = tuner.configs[0]
            if config.pre_hook is not None:
                named = dict(zip(tuner.arg_names, args, strict=False))
                config.pre_hook({**named, **kwargs, **config.all_kwargs()})
            return tuner.fn.run(*args, **kwargs, **config.all_kwargs())

        properties = types.SimpleNamespace(
            multi_processor_count=_MULTIPROCESSORS, major=self.capability // 10
        )
        patches: list[tuple[Any, str, Any]] = [
            (torch.cuda, "get_device_capability", lambda *_: divmod(device.capability, 10)),
            (torch.cuda, "get_device_properties", lambda *_: properties),
            (torch.cuda, "is_available", lambda: False),
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "synchronize", lambda *_: None),
            (torch.Tensor, "cuda", lambda tensor, *_, **__: tensor),
            (torch.testing, "assert_close", _close(torch.testing.assert_close)),
            (JITFunction, "run", device.launch_method()),
            (Autotuner, "run", first_config),
        ]
        old = [getattr(owner, name) for owner, name, _ in patches]
        # Reading ``driver.active`` looks for a GPU.
        active = driver._active
        driver.set_active(self)
        for owner, name, new in patches:
            setattr(owner, name, new)
        try:
            with OnCpu():
                yield
        finally:
            for (owner, name, _), value in zip(patches, old, strict=True):
                setattr(owner, name, value)
            driver._active = active

    def launch_method(self) -> Any:
        """Returns the function that replaces ``JITFunction.run``."""

        def run(kernel: Any, *args: Any, **kwargs: Any) -> None:
            self.launch(kernel, *args, **kwargs)

        return run


def _cpu(value: Any) -> Any:
    """The CPU where a device of CUDA is meant."""
    import torch

    is_device = isinstance(value, (str, torch.device)) and str(value).partition(":")[0] == "cuda"
    return "cpu" if is_device else value


def _close(check: Any) -> Any:
    """``assert_close`` that forgives the last bits of sums in half precision near zero."""

    def close(actual: Any, expected: Any, *args: Any, **options: Any) -> None:
        wanted = (options.get(name) for name in ("rtol", "atol"))
        if actual.dtype.itemsize < 4 and None in wanted:
            options |= {"rtol": 1e-3, "atol": 5e-3}
        check(actual, expected, *args, **options)

    return close


def _load(path: pathlib.Path) -> types.ModuleType:
    """Imports a file whose name is none of a module."""
    name = "upstream_" + path.stem.replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def run_one(checkout: pathlib.Path, run: Run, seed: int = 0, schedule: str = "late") -> Row:
    """Runs one call."""
    from triton_ext.emulator import EmulationError

    start = time.perf_counter()
    device = _Device(run.target, seed, schedule)
    error = _attempt(checkout, run, device)
    is_mended = isinstance(error, EmulationError) and "not support" not in str(error)
    if is_mended:
        is_mended = _attempt(checkout, run, _Device(run.target, seed, schedule, _mended)) is None
    kernels = tuple(dict.fromkeys(device.launched))
    problem = "" if error is None else _first_line(error)
    return Row(run, kernels, problem, is_mended, time.perf_counter() - start)


def _mended(text: str) -> str:
    """TTGIR with fences in front of stores through the TMA unit and a wait at the end."""
    lines = []
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("ttng.async_tma_copy_local_to_global"):
            lines.append("ttng.fence_async_shared {bCluster = false}\n")
        if line.lstrip().startswith("tt.return"):
            lines.append("ttng.async_tma_store_wait {pendings = 0 : i32, read_only}\n")
        lines.append(line)
    return "".join(lines)


def _attempt(checkout: pathlib.Path, run: Run, device: _Device) -> BaseException | None:
    """Runs one call on a device; returns what was raised."""
    import torch

    torch.manual_seed(0)
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(_LIMIT_SECONDS)
    try:
        # Tutorials print as they go.
        with device.active(), contextlib.redirect_stdout(io.StringIO()):
            module = _load(checkout / "python" / run.path)
            eval(run.call, vars(module))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    finally:
        signal.alarm(0)
    return None


def _stop(number: int, frame: object) -> None:
    raise TimeoutError(f"ran longer than {_LIMIT_SECONDS} s")


def _first_line(error: BaseException) -> str:
    """The kind of an error and the line that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line] or lines
    text = telling[-1] if telling and "error:" in telling[-1] else "".join(telling[:1])
    return f"{type(error).__name__}: {text}"[:300]


def run_all(
    checkout: pathlib.Path, only: str = "", seed: int = 0, schedule: str = "late"
) -> Iterator[Row]:
    """Runs the table, or those lines of it whose path, call or target has a text in it."""
    for run in RUNS:
        if only in f"{run.target} {run.path} {run.call}":
            yield run_one(checkout, run, seed, schedule)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 0 if every line ran as expected."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=pathlib.Path, help="a checkout of Triton's sources")
    parser.add_argument("--only", default="", help="runs with this text in file, call or target")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order")
    parser.add_argument("--schedule", default="late", choices=("late", "random"))
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    say("| file | call | kernels | target | result | s |")
    say("| --- | --- | --- | --- | --- | --- |")
    ran = mended = total = 0
    for row in run_all(options.checkout, options.only, options.seed, options.schedule):
        total += 1
        ran += not row.problem
        mended += row.is_mended
        cells = (
            pathlib.Path(row.run.path).stem,
            f"`{row.run.call}`",
            ", ".join(row.kernels),
            row.run.target,
            (row.problem or "as expected") + ("; as expected when mended" if row.is_mended else ""),
            f"{row.seconds:.1f}",
        )
        say(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    say(f"\n{ran} of {total} ran as expected, {mended} more when mended")
    return int(ran != total)


if __name__ == "__main__":
    sys.exit(main())
