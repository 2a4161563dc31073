"""The cases of ``python -m benchmarks reproduce``: commands, figures in what they write, goals."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.epilogue import COMPILED_SHAPES
from benchmarks.fp8 import SHAPES as FP8_SHAPES
from benchmarks.readings import (
    Reader,
    across_releases,
    depthwise_ratio,
    first_of,
    good_findings,
    mean_of,
    models_ratio,
    of_curve,
    of_modes,
    packed_ratio,
    ranks_efficiency,
    ranks_error,
    worst_of,
)
from benchmarks.shapes import FPROP_SHAPES
from benchmarks.suites import select_layers

__all__ = ["CASES", "Case", "Figure", "Step"]

# Keys of examples.models.networks, which needs torch.
MODELS = ("resnet50", "convnext", "unet", "vae")


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that a case gives.

    Attributes:
        name: What it is.
        read: Reads it out of rows, by the suffix of the step that wrote them.
        reach: The goal; ``None`` for none.
        stretch: What would be better still.
        less_is_better: Whether the goal is an upper limit.
        expected: Rows that it is of when all is there.
    """

    name: str
    read: Reader
    reach: float | None = None
    stretch: float | None = None
    less_is_better: bool = False
    expected: int = 1

    def reaches(self, value: float) -> bool:
        """Returns whether a value is as good as the goal."""
        if self.reach is None:
            return True
        return value <= self.reach if self.less_is_better else value >= self.reach


@dataclass(frozen=True, slots=True)
class Step:
    """A command behind Python's name.

    Attributes:
        command: Words; ``{out}`` is the file to write, ``{limit}`` the seconds to keep to.
        suffix: Of that file, behind the name of the case.
        on_other_triton: Whether it runs with the release of ``--other-triton``.
        dry: What else a dry run says.
    """

    command: tuple[str, ...]
    suffix: str = ".csv"
    on_other_triton: bool = False
    dry: tuple[str, ...] = ("--dry-run",)


@dataclass(frozen=True, slots=True)
class Case:
    """Commands of one name.

    Attributes:
        name: For ``--only``.
        about: What it measures.
        steps: Commands, one after another.
        figures: Figures read from their output; empty if running is all.
        seconds: Time limit, about twice the expected time.
        has_dry_run: Whether the commands have a dry run.
        gpus: Number of GPUs.
        shares_host: Whether cases on other GPUs may run at the same time: no host time is measured.
        sources: Files of other cases that the figures are read from.
        tells_by_status: Whether exit status 1 means the same as the rows: something is wrong.
    """

    name: str
    about: str
    steps: tuple[Step, ...]
    figures: tuple[Figure, ...] = ()
    seconds: float = 300.0
    has_dry_run: bool = True
    gpus: int = 1
    shares_host: bool = False
    sources: tuple[str, ...] = ()
    tells_by_status: bool = False


# ---- Cases -------------------------------------------------------------------------------------


def _step(name: str, *options: str, suffix: str = ".csv", on_other_triton: bool = False) -> Step:
    """A case of the benchmarks that keeps to a time limit."""
    words = ("-m", "benchmarks", name, *options, "--time-limit", "{limit}", "--out", "{out}")
    return Step(words, suffix, on_other_triton)


def _gluon(kernel: str) -> Case:
    count = len(FPROP_SHAPES)
    return Case(
        f"gluon_conv.{kernel}",
        f"the Gluon example of {kernel} beside cuDNN and the @triton.jit kernel",
        (_step("gluon_conv", "--kernel", kernel),),
        (
            Figure("cuDNN / Gluon, mean", mean_of("ratio_to_cudnn"), 1.10, expected=count),
            Figure("@triton.jit / Gluon, mean", mean_of("ratio_to_triton"), 1.0, expected=count),
        ),
        seconds=240,
    )


def _conv(direction: str, reach: float, stretch: float) -> Case:
    count = len(select_layers("all"))
    return Case(
        f"conv.{direction}",
        f"triton_ext.ops, {direction} of all suites, beside cuDNN",
        (_step("conv", "--suite", "all", "--direction", direction),),
        (
            Figure("cuDNN / ours, mean", mean_of("ratio_to_cudnn"), reach, stretch, False, count),
            Figure("cuDNN / ours, worst", worst_of("ratio_to_cudnn"),
                   *((0.95, 1.0) if direction == "fprop" else (None, None)), False, count),
        ),
        seconds=540,
    )  # fmt: skip


# Blocks of memory have sizes that are multiples of 512 bytes, so 1 % is no difference.
_PEAK = 1.01
_TINY = ("--size", "tiny", "--batch", "2", "--side")


def _tiny(model: str) -> tuple[str, ...]:
    """Returns the options of a network in a dry run: a size for CPUs."""
    return (*_TINY, "64" if model in ("resnet50", "convnext") else "8")


def _models(task: str, model: str) -> Case:
    command = (
        "-m", f"examples.models.{task}", "--model", model, "--mode", "all", "--graph", "--rounds",
        "5", "--ahead", "8", "--time-limit", "{limit}", "--out", "{out}",
    )  # fmt: skip
    dry = (
        *_tiny(model), "--no-graph", "--rounds", "1", "--steps", "1", "--compile-backend", "eager",
    )  # fmt: skip
    return Case(
        f"models.{task}.{model}",
        f"{model}, {task}, eager and compiled, in CUDA graphs",
        (Step(command, dry=dry),),
        (
            Figure("eager / ours", models_ratio("eager", "ours"), 1.15),
            Figure("eager / ours+compile", models_ratio("eager", "ours+compile"), 1.15),
            # The goal of 1.05 is the mean's over the networks.
            Figure("compile / ours+compile", models_ratio("compile", "ours+compile"), 1.0),
            Figure("memory peak, ours / eager", of_modes("peak_mib", "ours", "eager"),
                   _PEAK, None, True),
            Figure("memory peak, ours+compile / compile",
                   of_modes("peak_mib", "ours+compile", "compile"), _PEAK, None, True),
        ),
        seconds=240,
        shares_host=True,
        tells_by_status=True,
    )  # fmt: skip


def _models_mean(task: str) -> Case:
    ratios = (("eager", "ours", 1.15), ("compile", "ours+compile", 1.05), ("compile", "ours", None))
    count = len(MODELS)
    return Case(
        f"models.mean.{task}",
        f"geometric means over the networks of models.{task}.*, out of what these wrote",
        (),
        tuple(
            Figure(f"{over} / {mode}, mean", models_ratio(over, mode), reach, expected=count)
            for over, mode, reach in ratios
        ),
        seconds=4,
        sources=tuple(f"models.{task}.{model}.csv" for model in MODELS),
    )


# Pictures per step and side, so that 1200 steps take about a minute.
_CURVES = {
    "resnet50": ("32", "128"), "convnext": ("16", "128"), "unet": ("2", "32"), "vae": ("1", "32"),
}  # fmt: skip


def _curves(model: str) -> Case:
    batch, side = _CURVES[model]
    command = (
        "-m", "examples.models.loss_curves", "--model", model, "--batch", batch, "--side", side,
        "--steps", "200", "--seeds", "5", "--ahead", "8", "--time-limit", "{limit}",
        "--out", "{out}",
    )  # fmt: skip
    return Case(
        f"models.curves.{model}",
        f"{model}, 200 steps of training beside five seeds of torch's; a checkpoint both ways",
        (Step(command, ".json", dry=(*_tiny(model), "--steps", "20", "--seeds", "2")),),
        (
            Figure("windows inside torch's spread", of_curve("inside", "curve_wrong"), 0.95),
            Figure("checkpoint, error ours / torch's",
                   of_curve("checkpoint_error", "checkpoint_wrong"), 2.0, None, True),
        ),
        # Weights and moments of the UNet are 7 GB, which are saved and loaded twice.
        seconds=280 if model == "unet" else 200,
        shares_host=True,
        tells_by_status=True,
    )  # fmt: skip


# Pictures of a rank, for times and to be checked.  For times so many that the GPUs, not the hosts,
# are what a step waits for, and that it is long beside what ranks tell each other; they have to
# fit in fp32, as the joined batch to be checked has.
_RANKS = {
    "resnet50": ("768", "64"),
    "convnext": ("768", "32"),
    "unet": ("112", "4"),
    "vae": ("16", "2"),
}


def _ranks(model: str) -> Case:
    kinds = ("ddp", "fsdp")
    batch, check_batch = _RANKS[model]
    command = (
        "-m", "examples.models.training", "--ranks", "2", "--parallel", *kinds, "--model", model,
        "--batch", batch, "--check", "too", "--check-batch", check_batch, "--rounds", "5",
        "--steps", "4", "--ahead", "8", "--time-limit", "{limit}", "--out", "{out}",
    )  # fmt: skip
    dry = ("--check-batch", "2", "--rounds", "2", "--steps", "1")
    return Case(
        f"ranks.{model}",
        f"{model} on two GPUs: the joined batch's gradients, and scaling beside torch's own",
        (Step(command, dry=(*_tiny(model), *dry)),),
        (
            *(Figure(f"{kind}, error of ranks / one process", ranks_error(kind), 2.0, None, True, 2)
              for kind in kinds),
            *(Figure(f"{kind}, scaling ours / torch's", ranks_efficiency(kind), 0.98)
              for kind in kinds),
        ),
        seconds=200,
        gpus=2,
        tells_by_status=True,
    )  # fmt: skip


def _killed() -> Case:
    command = (
        "-m", "examples.models.killed_rank", "--time-limit", "{limit}", "--out", "{out}",
    )  # fmt: skip
    return Case(
        "ranks.killed",
        "one of two ranks is killed: torch's error, the cache and the tables whole",
        (Step(command, dry=("--size", "tiny")),),
        (Figure("findings as they should be", good_findings, 3.0, expected=3),),
        seconds=110,
        gpus=2,
        tells_by_status=True,
    )


def _depthwise() -> Case:
    from benchmarks.depthwise import LAYERS

    figures = tuple(
        Figure(f"torch / chosen, {direction}", depthwise_ratio(direction), expected=len(LAYERS))
        for direction in ("fprop", "dgrad", "wgrad")
    )
    step = _step("depthwise", "--per-width", "2", "--rounds", "4", "--target-ms", "4",
                 suffix=".json")  # fmt: skip
    return Case(
        "depthwise", "depthwise layers of three directions beside torch", (step,), figures, 300,
        has_dry_run=False,
    )  # fmt: skip


def _cases() -> dict[str, Case]:
    """All, the figures of the smallest goals first: what is at the end is left out first."""
    from benchmarks.row_packing import LAYERS

    every = len(select_layers("all"))
    found = [
        *map(_gluon, ("dgrad", "fprop", "wgrad")),
        _conv("fprop", 1.12, 1.25),
        _conv("dgrad", 1.10, 1.25),
        _conv("wgrad", 1.20, 1.50),
        Case(
            "epilogue.eager", "conv + bias + residual + ReLU beside torch eager",
            (_step("epilogue"),),
            (Figure("eager / ours, mean", mean_of("ratio_to_eager"), 1.8, 2.3,
                    expected=len(FPROP_SHAPES)),),
            180,
        ),
        Case(
            "epilogue.compile", "the same beside torch.compile(mode='max-autotune-no-cudagraphs')",
            (_step("epilogue", "--compile"),),
            (Figure("compile / ours, mean", mean_of("ratio_to_compile"), 1.2, 1.5,
                    expected=len(COMPILED_SHAPES)),),
            420,
        ),
        Case(
            "fp8", "fp8 beside our bf16, 256 channels and more", (_step("fp8"),),
            (Figure("bf16 / fp8, mean", mean_of("ratio_to_bfloat16"), 1.5, 1.8,
                    expected=len(FP8_SHAPES)),),
            180,
        ),
        Case(
            "conv.1d", "3072,128,202 -> 384, k3 beside cuDNN",
            (_step("conv", "--suite", "audio", "--shapes", "3072x128x202_384_k3"),),
            (Figure("cuDNN / ours", mean_of("ratio_to_cudnn"), 1.05, 1.2),), 90,
        ),
        Case(
            "choosing.cold", "triton-ext tune of ResNet-50's forward convolutions, nothing cached",
            (_step("choosing", "--what", "cold"),),
            (Figure("seconds", first_of("seconds"), 90, 20, less_is_better=True),), 150,
        ),
        Case(
            "choosing.model",
            "what the model ranks first beside the fastest candidate, every fourth layer",
            (_step("choosing", "--what", "model", "--every", "4", "--rounds", "6"),),
            # Layers with one candidate have no row.
            (Figure("best found / model alone, mean", mean_of("ratio"), 0.93, 0.97,
                    expected=int(3 * every / 4 * 0.8)),),
            200,
        ),
        _depthwise(),
        Case(
            "row_packing", "layers over few channels beside cuDNN", (_step("row_packing"),),
            (Figure("cuDNN / chosen, mean", packed_ratio, expected=len(LAYERS)),), 240,
            has_dry_run=False,
        ),
        *(_models(task, model) for task in ("inference", "training") for model in MODELS),
        *map(_curves, MODELS),
        *map(_models_mean, ("inference", "training")),
        *map(_ranks, MODELS),
        _killed(),
        Case(
            "releases", "conv_fprop with the Triton of --other-triton beside this one",
            (
                _step("conv_fprop", suffix=".csv"),
                _step("conv_fprop", suffix=".other.csv", on_other_triton=True),
            ),
            (Figure("other / this, mean", across_releases, 0.95, expected=len(FPROP_SHAPES)),), 400,
        ),
    ]  # fmt: skip
    return {case.name: case for case in found}


CASES: dict[str, Case] = _cases()
