"""The cases of ``python -m benchmarks reproduce``: commands, figures in what they write, goals."""

from __future__ import annotations

import csv
import json
import math
import pathlib
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.epilogue import COMPILED_SHAPES
from benchmarks.fp8 import SHAPES as FP8_SHAPES
from benchmarks.harness import geometric_mean
from benchmarks.shapes import FPROP_SHAPES
from benchmarks.suites import select_layers

__all__ = ["CASES", "Case", "Figure", "Reading", "Rows", "Step", "load_rows"]

# Of examples.models.networks, which needs torch.
MODELS = ("resnet50", "convnext", "unet", "vae")

#: What a command wrote: rows of texts by column.
Rows = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure as it was read.

    Attributes:
        value: NaN where there is nothing to read.
        count: Rows that it is of.
        spread: Of the median row; NaN if there is none.
        wrong: Rows with a wrong result.
        note: What else there is to say, such as the worst row.
    """

    value: float = math.nan
    count: int = 0
    spread: float = math.nan
    wrong: int = 0
    note: str = ""


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
    read: Callable[[Mapping[str, Rows]], Reading]
    reach: float | None = None
    stretch: float | None = None
    less_is_better: bool = False
    expected: int = 1

    def reaches(self, value: float) -> bool:
        """Whether a value is as good as the goal."""
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
    """What is run under a name.

    Attributes:
        name: For ``--only``.
        about: What it measures.
        steps: Commands, one after another.
        figures: What is read out of what they write; none where running is all.
        seconds: That it may take; about twice what it should.
        has_dry_run: Whether the commands have a dry run.
        gpus: How many it needs.
        shares_host: Whether cases on other GPUs may run at the same time: nothing that is timed
            is the host's.
        sources: Files of other cases that the figures are read from.
        tells_by_status: Whether exit status 1 says what the rows say: something is wrong.
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


def load_rows(path: pathlib.Path) -> Rows:
    """Returns the rows of a CSV file, or of a JSON file's ``rows``; none where there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return []
    if path.suffix == ".json":
        try:
            rows = json.loads(text)["rows"]
        except (ValueError, KeyError, TypeError):
            return []
        return [{name: str(value) for name, value in row.items()} for row in rows]
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


# ---- Reading -----------------------------------------------------------------------------------


def _spread(rows: Rows) -> float:
    """The largest spread of a row, of the median row."""
    found = [
        max(values)
        for row in rows
        if (values := [float(v) for name, v in row.items() if name.endswith("spread") and v])
    ]
    return statistics.median(found) if found else math.nan


def _name(row: Mapping[str, str]) -> str:
    return next((row[key] for key in ("shape", "layer", "model", "case") if key in row), "")


def mean_of(column: str, suffix: str = ".csv") -> Callable[[Mapping[str, Rows]], Reading]:
    """Reads the geometric mean of a column; empty cells were not timed."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        timed = [row for row in rows.get(suffix, []) if row.get(column)]
        wrong = sum(bool(row.get("wrong")) for row in rows.get(suffix, []))
        if not timed:
            return Reading(wrong=wrong, note=f"{wrong} wrong" if wrong else "")
        worst = min(timed, key=lambda row: float(row[column]))
        return Reading(
            geometric_mean([float(row[column]) for row in timed]),
            len(timed),
            _spread(timed),
            wrong,
            f"worst {float(worst[column]):.3f} ({_name(worst)})",
        )

    return read


def worst_of(column: str, suffix: str = ".csv") -> Callable[[Mapping[str, Rows]], Reading]:
    """Reads the smallest value of a column."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        timed = [row for row in rows.get(suffix, []) if row.get(column)]
        if not timed:
            return Reading()
        worst = min(timed, key=lambda row: float(row[column]))
        wrong = sum(bool(row.get("wrong")) for row in rows[suffix])
        spread = _spread([worst])
        return Reading(float(worst[column]), len(timed), spread, wrong, _name(worst))

    return read


def first_of(column: str) -> Callable[[Mapping[str, Rows]], Reading]:
    """Reads a column of the only row, whose ``exit`` tells whether it was wrong."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        for row in rows.get(".csv", []):
            return Reading(float(row[column]), 1, wrong=int(row.get("exit", "0") != "0"))
        return Reading()

    return read


def packed_ratio(rows: Mapping[str, Rows]) -> Reading:
    """Reads cuDNN's time over that of the chosen way, of ``row_packing``."""
    found = rows.get(".csv", [])
    ratios = [float(row["cudnn_us"]) / float(row[f"{row['chosen']}_us"]) for row in found]
    wrong = sum(bool(row["wrong"]) for row in found)
    return Reading(geometric_mean(ratios), len(ratios), wrong=wrong)


def depthwise_ratio(direction: str) -> Callable[[Mapping[str, Rows]], Reading]:
    """Reads torch's time over that of the chosen configuration, of ``depthwise``."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        mine = [row for row in rows.get(".json", []) if row["direction"] == direction]
        torch = {row["layer"]: float(row["us"]) for row in mine if row["config"] == "torch"}
        chosen = {
            row["layer"]: float(row["us"])
            for row in mine
            if row.get("chosen") == "True" and row.get("us")
        }
        ratios = [torch[layer] / us for layer, us in chosen.items()]
        wrong = sum(row["status"] == "wrong" for row in mine)
        return Reading(geometric_mean(ratios), len(ratios), wrong=wrong)

    return read


def _told(rows: Rows) -> str:
    """What modes say of themselves that did not run, or ran wrong."""
    return "; ".join(f"{row['mode']}: {row['problem']}" for row in rows if row["problem"])


#: Reads rows by suffix, or by the names of sources.
Reader = Callable[[Mapping[str, Rows]], Reading]


def of_modes(column: str, over: str, mode: str, suffix: str = ".csv") -> Reader:
    """Reads the geometric mean of a mode's value over another's, of ``examples.models``.

    Args:
        column: ``ms`` or ``peak_mib``.
        over: The mode above the line.
        mode: The one below it.
        suffix: Of the files, of one case or of all sources.
    """

    def read(rows: Mapping[str, Rows]) -> Reading:
        files = [each for name, found in rows.items() if name.endswith(suffix) for each in found]
        found = [row for row in files if row["mode"] in (over, mode)]
        if not found:
            return Reading(note=_told(files))
        # What is not timed has a peak too, but is wrong.
        values = {(row["model"], row["mode"]): float(row[column]) for row in found if row["ms"]}
        # Without a GPU all peaks are 0.
        ratios = {
            model: values[model, over] / value if value else 1.0
            for (model, each), value in values.items()
            if each == mode and (model, over) in values
        }
        problems = [f"{row['model']} {row['mode']}: {row['problem']}"
                    for row in found if row["problem"]]  # fmt: skip
        notes = list(problems)
        if len(ratios) > 1:
            name = min(ratios, key=ratios.__getitem__)
            notes.append(f"worst {ratios[name]:.3f} ({name})")
        timed = [row for row in found if row["ms"]]
        value = geometric_mean([*ratios.values()])
        spread = _spread(timed) if column == "ms" else math.nan
        return Reading(value, len(ratios), spread, len(problems), "; ".join(notes))

    return read


def models_ratio(over: str, mode: str) -> Reader:
    """Reads the geometric mean of a mode's time over another's, of ``examples.models``."""
    return of_modes("ms", over, mode)


def ranks_error(kind: str) -> Reader:
    """Reads ranks' error over that of one process, the largest of all modes."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        every = rows.get(".csv", [])
        found = [row for row in every if row["task"].startswith("check")]
        if not found:
            return Reading(note=_told(every))
        one = {row["mode"]: float(row["error_l2"]) for row in found if row["task"] == "check"}
        mine = [row for row in found if row["task"].startswith(f"check {kind} ")]
        ratios = {row["mode"]: float(row["error_l2"]) / one[row["mode"]] for row in mine}
        wrong = sum(bool(row["problem"]) for row in mine)
        note = ", ".join(f"{mode} {ratio:.2f}" for mode, ratio in ratios.items())
        return Reading(max(ratios.values(), default=math.nan), len(ratios), math.nan, wrong, note)

    return read


def ranks_efficiency(kind: str) -> Reader:
    """Reads our scaling efficiency over that of torch's own convolutions."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        found = rows.get(".csv", [])
        tasks = {row["task"] for row in found}
        together = next((task for task in tasks if task.startswith(f"training {kind} ")), "")
        mine = [row for row in found if row["task"] in ("training", together) and row["ms"]]
        ms = {(row["task"], row["mode"]): float(row["ms"]) for row in mine}
        wrong = [row for row in found if row["problem"] and row["task"] in ("training", together)]
        note = _told(wrong)
        modes = ("eager", "ours")
        if not all((task, mode) in ms for task in ("training", together) for mode in modes):
            return Reading(wrong=len(wrong), note=note)
        theirs, ours = (ms["training", mode] / ms[together, mode] for mode in modes)
        told = f"torch's own {theirs:.3f}, ours {ours:.3f}"
        note = "; ".join(filter(None, (told, note)))
        return Reading(ours / theirs, 1, _spread(mine), len(wrong), note)

    return read


def of_curve(column: str, trouble: str) -> Reader:
    """Reads a column of what ``loss_curves`` writes; another says what is wrong."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        for row in rows.get(".json", []):
            if row.get("problem"):
                return Reading(note=row["problem"])
            return Reading(float(row[column]), 1, math.nan, int(bool(row[trouble])), row[trouble])
        return Reading()

    return read


def good_findings(rows: Mapping[str, Rows]) -> Reading:
    """Reads how many findings of ``killed_rank`` are as they should be."""
    found = rows.get(".csv", [])
    if not found:
        return Reading()
    wrong = [row["finding"] for row in found if row["good"] != "True"]
    return Reading(len(found) - len(wrong), len(found), math.nan, len(wrong), "; ".join(wrong))


def across_releases(rows: Mapping[str, Rows]) -> Reading:
    """Reads the time on another release over that on this one, of ``conv_fprop``'s ``ours``."""
    this, other = (
        {row["shape"]: row for row in rows.get(suffix, [])} for suffix in (".csv", ".other.csv")
    )
    ratios = {
        name: float(other[name]["ours_ms"]) / float(this[name]["ours_ms"])
        for name in this
        if name in other and other[name]["ours_ms"] and this[name]["ours_ms"]
    }
    wrong = sum(row["correct"] != "True" for row in (*this.values(), *other.values()))
    if not ratios:
        return Reading(wrong=wrong)
    worst = min(ratios, key=ratios.__getitem__)
    note = f"worst {ratios[worst]:.3f} ({worst})"
    values = list(ratios.values())
    return Reading(geometric_mean(values), len(values), _spread([*this.values()]), wrong, note)


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
    """What a dry run says of a network: a size for CPUs."""
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
    step = _step("depthwise", "--per-width", "2", "--rounds", "3", "--target-ms", "4",
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
            (_step("choosing", "--what", "model", "--every", "4", "--rounds", "5"),),
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
