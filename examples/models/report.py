"""Rows of measurements as text, CSV, JSON, Markdown and a plot."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from benchmarks.harness import Environment, geometric_mean, write_rows
from examples.models.measure import Row
from examples.models.modes import BASELINE, MODES, THEIRS

__all__ = ["header", "line", "ratio", "summary", "write"]

# Whose time over whose: what a user gains who stays eager, who compiles, and who changes both.
_RATIOS = (("eager", "ours"), ("compile", "ours+compile"), ("compile", "ours"))


def header() -> str:
    """The head of the table."""
    return (
        f"{'model':<14} {'task':<18} {'mode':<13} {'ms':>9} {'+-%':>5} {'eager/it':>8} "
        f"{'rel. error':>10} {'peak MiB':>9} {'converted':>10} {'folded':>6}"
    )


def ratio(rows: Sequence[Row], row: Row, over: str) -> float | None:
    """Time of another mode of the same model and task over a row's; ``None`` without both."""
    for other in rows:
        if (other.task, other.model, other.mode) == (row.task, row.model, over):
            if other.timing is None or row.timing is None:
                return None
            return other.timing.ms / row.timing.ms
    return None


def line(rows: Sequence[Row], row: Row) -> str:
    """A row of the table.

    Args:
        rows: All, to compare with.
        row: The one.
    """
    head = f"{row.model:<14} {row.task:<18} {row.mode:<13}"
    if row.timing is None:
        return f"{head} {row.problem or f'right, error {_error(row)}'}"
    gain = ratio(rows, row, BASELINE) or float("nan")
    return (
        f"{head} {row.timing.ms:>9.3f} {row.timing.spread * 100:>5.1f} {gain:>8.3f} "
        f"{_error(row):>10} {row.peak_bytes / 2**20:>9.0f} {row.taken[0]:>4} of {row.taken[1]:<2} "
        f"{row.folded:>6}" + (" waits for the host" if row.timing.host_bound else "")
    )


def _error(row: Row) -> str:
    return "" if row.errors is None else f"{row.errors.l2:.1e}"


def summary(rows: Sequence[Row]) -> list[str]:
    """Geometric means over models, by task."""
    lines = []
    for task in dict.fromkeys(row.task for row in rows):
        for over, mode in _RATIOS:
            found = {
                row.model: value
                for row in rows
                if row.task == task
                and row.mode == mode
                and (value := ratio(rows, row, over)) is not None
            }
            if found:
                worst = min(found, key=lambda name: found[name])
                lines.append(
                    f"{task}, {over} / {mode}: geometric mean of {len(found)} "
                    f"{geometric_mean(list(found.values())):.3f}, "
                    f"worst {found[worst]:.3f} ({worst})"
                )
    heavier = [row for row in rows if _is_heavier(rows, row)]
    lines += [
        f"{row.task}, {row.model}, {row.mode}: the memory peak is higher than with torch's "
        "convolutions"
        for row in heavier
    ]
    return lines


def _is_heavier(rows: Sequence[Row], row: Row) -> bool:
    """Returns whether the peak exceeds that of the mode without our convolutions by 1 %."""
    theirs = (row.task, row.model, THEIRS.get(row.mode))
    peaks = [each.peak_bytes for each in rows if (each.task, each.model, each.mode) == theirs]
    return any(0 < peak < row.peak_bytes / 1.01 for peak in peaks)


def write(
    rows: Sequence[Row],
    environment: Environment,
    out: pathlib.Path | None,
    markdown: pathlib.Path | None,
    plot: pathlib.Path | None,
) -> None:
    """Writes the files that were asked for."""
    if out is not None:
        write_rows(out, environment, [row.fields() for row in rows])
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(_markdown(rows, environment), encoding="utf-8")
    if plot is not None and any(row.timing for row in rows):
        _draw(plot, rows, environment.device)


def _markdown(rows: Sequence[Row], environment: Environment) -> str:
    head = (
        "model",
        "task",
        "mode",
        "ms",
        "spread",
        "eager / it",
        "error",
        "peak MiB",
        "converted",
        "folded",
    )
    lines = [
        f"{environment.device}, torch {environment.torch}, cuDNN {environment.cudnn}, Triton "
        f"{environment.triton}, commit {environment.commit}, {environment.date}",
        "",
        f"| {' | '.join(head)} |",
        "| --- " * len(head) + "|",
    ]
    for row in rows:
        cells = [row.model, row.task, row.mode]
        if row.timing is not None:
            gain = ratio(rows, row, BASELINE)
            cells += [f"{row.timing.ms:.3f}", f"{row.timing.spread:.1%}"]
            cells += [f"{gain:.3f}" if gain else "", _error(row)]
            cells += [f"{row.peak_bytes / 2**20:.0f}", f"{row.taken[0]} of {row.taken[1]}"]
            cells += [str(row.folded)]
        else:
            cells += [row.problem.replace("|", "/"), *[""] * 6]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *summary(rows), ""]
    return "\n".join(lines)


def _draw(path: pathlib.Path, rows: Sequence[Row], device: str) -> None:
    """Bars of eager's time over each mode's, a group per model and task."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    groups = list(dict.fromkeys((row.model, row.task) for row in rows))
    modes = [mode for mode in MODES if mode != BASELINE and any(r.mode == mode for r in rows)]
    figure, axes = pyplot.subplots(figsize=(2 + 1.8 * len(groups), 4), layout="constrained")
    width = 0.8 / max(len(modes), 1)
    for number, mode in enumerate(modes):
        for row in (row for row in rows if row.mode == mode):
            gain = ratio(rows, row, BASELINE)
            place = groups.index((row.model, row.task)) + (number - (len(modes) - 1) / 2) * width
            if gain is not None:
                bars = axes.bar(place, gain, width, color=f"C{number}")
                axes.bar_label(bars, fmt="%.2f", fontsize=7)
        axes.bar(0, 0, color=f"C{number}", label=mode)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(groups)), [f"{model}\n{task}" for model, task in groups])
    axes.set_ylabel("eager's time / it")
    axes.set_title(device, fontsize=9)
    figure.legend(loc="outside lower center", ncols=len(modes) or 1, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
