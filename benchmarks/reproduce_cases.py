"""The cases of ``python -m benchmarks reproduce``: commands, figures in what they write, goals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.readings import (
    Reader,
    across_releases,
    good_findings,
    mean_of,
    models_ratio,
    of_curve,
    ranks_efficiency,
    ranks_error,
    seconds_of,
    swept,
    worst_of,
)
from benchmarks.suites import select_layers

__all__ = ["CASES", "Case", "Figure", "Step"]

# Keys of examples.models.networks, which needs torch.
MODELS = ("resnet50", "convnext", "unet", "vae")


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that a case gives."""

    name: str  # what it is
    read: Reader  # reads it out of rows, by the suffix of the step that wrote them
    reach: float | None = None  # the goal; ``None`` for none
    less_is_better: bool = False  # whether the goal is an upper limit
    expected: int = 1  # rows that it is of when all is there

    def reaches(self, value: float) -> bool:
        """Returns whether a value is as good as the goal."""
        if self.reach is None:
            return True
        return value <= self.reach if self.less_is_better else value >= self.reach


@dataclass(frozen=True, slots=True)
class Step:
    """A command behind Python's name."""

    # Words; ``{out}`` is the file to write, ``{limit}`` and ``{minutes}`` what to keep to.
    command: tuple[str, ...]
    suffix: str = ".csv"  # of that file, behind the name of the case
    on_other_triton: bool = False  # whether it runs with the release of ``--other-triton``
    dry: tuple[str, ...] = ("--dry-run",)  # what else a dry run says


@dataclass(frozen=True, slots=True)
class Case:
    """Commands of one name."""

    name: str  # for ``--only``
    about: str  # what it measures
    steps: tuple[Step, ...]  # commands, one after another
    figures: tuple[Figure, ...] = ()  # figures read from their output; empty if running is all
    seconds: float = 300.0  # time limit, about twice the expected time
    gpus: int = 1  # number of GPUs
    sources: tuple[str, ...] = ()  # files of other cases that the figures are read from
    # Whether exit status 1 means the same as the rows: something is wrong.
    tells_by_status: bool = False


# ---- Cases -------------------------------------------------------------------------------------


# One of each kind in the suite "shapes" for torch.compile, which tunes for half a minute each:
# stages of ResNet-50, a strided one, a U-Net, a 1x1.
_COMPILED = ("0", "1", "2", "3", "8", "10", "17")


def _compare(*options: str, **how: Any) -> Step:
    words = ("compare", *options, "--time-limit", "{limit}", "--out", "{out}")
    return Step(("-m", "benchmarks", *words), **how)


def _sweep(direction: str, *options: str) -> Step:
    """Candidates of every family beside the planner's choice, in fp16."""
    words = ("-m", "benchmarks", "zoo", "sweep", "--direction", direction, "--dtype", "float16",
             *options, "--minutes", "{minutes}", "--out", "{out}")  # fmt: skip
    return Step(words, f".{direction}.jsonl")


def _count(suite: str) -> int:
    return len(select_layers(suite))


def _gluon(kernel: str) -> Case:
    over = {"cuDNN / Gluon": ("cudnn", 1.10), "@triton.jit / Gluon": ("jit", 1.0)}
    return Case(
        f"gluon_conv.{kernel}",
        f"the Gluon example of {kernel} beside cuDNN and the @triton.jit kernel",
        (_compare("cudnn", "jit", "gluon", "--suite", "shapes", "--direction", kernel),),
        tuple(
            Figure(f"{name}, mean", mean_of(f"ratio_to_{other}"), reach, expected=_count("shapes"))
            for name, (other, reach) in over.items()
        ),
        seconds=240,
    )


def _conv(direction: str, reach: float) -> Case:
    worst = 0.95 if direction == "fprop" else None
    return Case(
        f"conv.{direction}",
        f"triton_ext.ops, {direction} of all suites, beside cuDNN",
        (_compare("--suite", "all", "--direction", direction),),
        tuple(
            Figure(f"cuDNN / ours, {name}", read("ratio_to_cudnn"), goal, expected=_count("all"))
            for name, read, goal in (("mean", mean_of, reach), ("worst", worst_of, worst))
        ),
        seconds=540,
    )


def _mean(
    name: str, about: str, figure: tuple[str, str, float], expected: int, seconds: float, *how: str
) -> Case:
    """One figure, a mean of ``compare``: its name, the variant that is compared, the goal."""
    title, variant, reach = figure
    read = mean_of(f"ratio_to_{variant}")
    figures = (Figure(title, read, reach, expected=expected),)
    return Case(name, about, (_compare(*how),), figures, seconds)


def _cold() -> Case:
    """``triton-ext tune`` over the 23 distinct forward convolutions of ResNet-50 at batch 32."""
    names = [layer.name for layer in select_layers("resnet") if layer.problem.batch == 32]
    # The suite leaves out the first 1x1 of each stage, which has another input than the others.
    firsts = ((64, 56, 64), (256, 56, 128), (512, 28, 256), (1024, 14, 512))
    names += [f"32x{ci}x{size}x{size}_{co}_k1x1" for ci, size, co in firsts]
    tune = "import sys; from triton_ext.tools.cli import main; sys.exit(main(sys.argv[1:]))"
    command = ("-c", tune, "tune", "--direction", "fprop", "--dtype", "bfloat16", "--force",
               "--quiet", "--time-limit", "{limit}", "--shapes", *names)  # fmt: skip
    return Case(
        "choosing.cold", "triton-ext tune of ResNet-50's forward convolutions, nothing cached",
        (Step(command, ".json"),), (Figure("seconds", seconds_of, 90, less_is_better=True),), 150,
    )  # fmt: skip


def _model() -> Case:
    """The models' choices beside 12 candidates, for every fourth layer."""
    steps = tuple(
        _sweep(direction, "--suite", "all", "--sample", "29", "--candidates", "12", "--rounds", "6")
        for direction in ("fprop", "dgrad", "wgrad")
    )
    read = swept("model", *(step.suffix for step in steps))
    return Case(
        "choosing.model", "what the models rank first beside the fastest candidate", steps,
        # Layers that no kernel takes have no figure.
        (Figure("best found / model alone, mean", read, 0.93, expected=69),),
    )  # fmt: skip


def _suite(name: str, about: str, suite: str, directions: tuple[str, ...], seconds: float) -> Case:
    """Candidates of every family over a suite of one kind."""
    steps = tuple(
        _sweep(direction, "--suite", suite, "--candidates", "8") for direction in directions
    )
    figures = tuple(
        Figure(f"cuDNN / chosen, {each}", swept("alone", f".{each}.jsonl"), expected=_count(suite))
        for each in directions
    )
    return Case(name, about, steps, figures, seconds)


# ---- Networks ----------------------------------------------------------------------------------


def _script(module: str, *options: str, dry: tuple[str, ...], suffix: str = ".csv") -> Step:
    """A script of ``examples.models``."""
    words = ("-m", f"examples.models.{module}", *options, "--time-limit", "{limit}", "--out",
             "{out}")  # fmt: skip
    return Step(words, suffix, dry=("--size", "tiny", *dry))


def _tiny(model: str) -> tuple[str, ...]:
    """Returns a batch and a side of a network in a dry run: for CPUs."""
    return ("--batch", "2", "--side", "64" if model in ("resnet50", "convnext") else "8")


def _at_most(name: str, read: Reader, limit: float, expected: int = 1) -> Figure:
    return Figure(name, read, limit, less_is_better=True, expected=expected)


def _models(task: str, model: str) -> Case:
    dry = ("--no-graph", "--rounds", "1", "--steps", "1", "--compile-backend", "eager")
    ratios = (("eager", "ours", 1.15), ("eager", "ours+compile", 1.15),
              # The goal of 1.05 is the mean's over the networks.
              ("compile", "ours+compile", 1.0))  # fmt: skip
    return Case(
        f"models.{task}.{model}",
        f"{model}, {task}, eager and compiled, in CUDA graphs",
        (_script(task, "--model", model, "--mode", "all", "--graph", "--rounds", "5", "--ahead",
                 "8", dry=(*_tiny(model), *dry)),),
        (
            *(Figure(f"{over} / {mode}", models_ratio(over, mode), reach)
              for over, mode, reach in ratios),
            # Blocks of memory have sizes that are multiples of 512 bytes, so 1 % is no difference.
            *(_at_most(f"memory peak, {over} / {mode}", models_ratio(over, mode, "peak_mib"), 1.01)
              for over, mode in (("ours", "eager"), ("ours+compile", "compile"))),
        ),
        seconds=240,
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
    dry = (*_tiny(model), "--steps", "20", "--seeds", "2")
    return Case(
        f"models.curves.{model}",
        f"{model}, 200 steps of training beside five seeds of torch's; a checkpoint both ways",
        (_script("loss_curves", "--model", model, "--batch", batch, "--side", side, "--steps",
                 "200", "--seeds", "5", "--ahead", "8", dry=dry, suffix=".json"),),
        (
            Figure("windows inside torch's spread", of_curve("inside", "curve_wrong"), 0.95),
            _at_most("checkpoint, error ours / torch's",
                     of_curve("checkpoint_error", "checkpoint_wrong"), 2.0),
        ),
        # Weights and moments of the UNet are 7 GB, which are saved and loaded twice.
        seconds=280 if model == "unet" else 200,
        tells_by_status=True,
    )  # fmt: skip


# Pictures of a rank, for times and to be checked.  For times so many that the GPUs, not the hosts,
# are what a step waits for, and that it is long beside what ranks tell each other; they have to
# fit in fp32, as the joined batch to be checked has.
_RANKS = {
    "resnet50": ("768", "64"), "convnext": ("768", "32"), "unet": ("112", "4"), "vae": ("16", "2"),
}  # fmt: skip


def _ranks(model: str) -> Case:
    kinds, (batch, check) = ("ddp", "fsdp"), _RANKS[model]
    dry = (*_tiny(model), "--check-batch", "2", "--rounds", "2", "--steps", "1")
    return Case(
        f"ranks.{model}",
        f"{model} on two GPUs: the joined batch's gradients, and scaling beside torch's own",
        (_script("training", "--ranks", "2", "--parallel", *kinds, "--model", model, "--batch",
                 batch, "--check", "too", "--check-batch", check, "--rounds", "5", "--steps", "4",
                 "--ahead", "8", dry=dry),),
        (
            *(_at_most(f"{kind}, error of ranks / one process", ranks_error(kind), 2.0, expected=2)
              for kind in kinds),
            *(Figure(f"{kind}, scaling ours / torch's", ranks_efficiency(kind), 0.98)
              for kind in kinds),
        ),
        seconds=200,
        gpus=2,
        tells_by_status=True,
    )  # fmt: skip


def _killed() -> Case:
    return Case(
        "ranks.killed",
        "one of two ranks is killed: torch's error, the cache and the tables whole",
        (_script("killed_rank", dry=()),),
        (Figure("findings as they should be", good_findings, 3.0, expected=3),),
        seconds=110,
        gpus=2,
        tells_by_status=True,
    )


def _cases() -> dict[str, Case]:
    """All, the figures of the smallest goals first: what is at the end is left out first."""
    shapes, wide = _count("shapes"), _count("wide")
    compiled = ("compile", "ours", "--epilogue", "--suite", "shapes", "--shapes", *_COMPILED)
    audio = ("--suite", "audio", "--shapes", "3072x128x202_384_k3")
    found = [
        *map(_gluon, ("dgrad", "fprop", "wgrad")),
        *(_conv(*each) for each in (("fprop", 1.12), ("dgrad", 1.10), ("wgrad", 1.20))),
        _mean("epilogue.eager", "conv + bias + residual + ReLU beside torch eager",
              ("eager / ours, mean", "cudnn", 1.8), shapes, 180, "--epilogue", "--suite", "shapes"),
        _mean("epilogue.compile",
              "the same beside torch.compile(mode='max-autotune-no-cudagraphs')",
              ("compile / ours, mean", "compile", 1.2), len(_COMPILED), 420, *compiled),
        _mean("fp8", "fp8 beside our bf16, 256 channels and more",
              ("bf16 / fp8, mean", "bfloat16", 1.5), wide, 180,
              "--dtype", "float8_e4m3fn", "--suite", "wide"),
        _mean("conv.1d", "3072,128,202 -> 384, k3 beside cuDNN",
              ("cuDNN / ours", "cudnn", 1.05), 1, 90, *audio),
        _cold(),
        _model(),
        _suite("depthwise", "depthwise layers beside torch", "depthwise",
               ("fprop", "dgrad", "wgrad"), 300),
        _suite("few_channels", "layers over few channels beside cuDNN", "few", ("fprop",), 240),
        *(_models(task, model) for task in ("inference", "training") for model in MODELS),
        *map(_curves, MODELS),
        *map(_models_mean, ("inference", "training")),
        *map(_ranks, MODELS),
        _killed(),
        Case(
            "releases", "forward layers with the Triton of --other-triton beside this one",
            (
                _compare("--suite", "shapes"),
                _compare("--suite", "shapes", suffix=".other.csv", on_other_triton=True),
            ),
            (Figure("other / this, mean", across_releases, 0.95, expected=shapes),), 400,
        ),
    ]  # fmt: skip
    return {case.name: case for case in found}


CASES: dict[str, Case] = _cases()
