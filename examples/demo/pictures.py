"""The PNG files: one per filter and stride, and a contact sheet."""

from __future__ import annotations

import pathlib

import matplotlib
import numpy as np

from examples.demo.filters import banks, jobs, photograph

matplotlib.use("Agg")

__all__ = ["save_pictures"]

_PAPER, _INK = "#f4f1ea", "#1c1b19"


def save_pictures(results: pathlib.Path, out: pathlib.Path) -> list[pathlib.Path]:
    """Writes the pictures.

    Args:
        results: Folder with ``<bank>-<stride>.npy``, [1, 3 * filters, H, W].
        out: Folder for the PNG files.

    Returns:
        The files, the contact sheet first.
    """
    from matplotlib import image

    original = photograph()[0].permute(1, 2, 0).float().numpy()
    pictures: dict[tuple[str, int], np.ndarray] = {}
    files = []
    for job in jobs():
        bank = banks()[job.bank]
        output = np.load(results / f"{job.bank}-{job.stride}.npy")[0].astype(np.float32)
        for index, name in enumerate(bank.names):
            picture = output[3 * index : 3 * index + 3].transpose(1, 2, 0)
            pictures[name, job.stride] = _to_display(picture, bank.kernels[index])
            file = out / f"{name.replace(' ', '-')}-{bank.size}x{bank.size}-stride{job.stride}.png"
            image.imsave(file, pictures[name, job.stride])
            files.append(file)
    sheet = out / "contact-sheet.png"
    _contact_sheet(original, pictures, sheet)
    return [sheet, *files]


def _to_display(picture: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Filters that keep brightness are clipped to 0..1; those that find changes show their size."""
    if abs(kernel.sum()) > 0.5:
        return picture.clip(0, 1)
    size = np.abs(picture).max(axis=2, keepdims=True).repeat(3, axis=2)
    # Dark lines on white, as a pencil draws them.
    return 1 - (size / np.quantile(size, 0.99)).clip(0, 1) ** 0.8


def _contact_sheet(
    original: np.ndarray, pictures: dict[tuple[str, int], np.ndarray], file: pathlib.Path
) -> None:
    from matplotlib import pyplot

    small, large = banks()
    rows, columns = 4, 4
    figure = pyplot.figure(figsize=(11, 14.6), facecolor=_PAPER)
    grid = figure.add_gridspec(
        rows, columns, left=0.03, right=0.97, top=0.915, bottom=0.04, wspace=0.05, hspace=0.16
    )
    figure.text(
        0.03,
        0.967,
        "Implicit-GEMM convolution on im2col loads",
        fontsize=19,
        color=_INK,
        va="center",
    )
    figure.text(
        0.03,
        0.943,
        "one @triton.jit kernel in Triton's interpreter, two filter banks, strides 1 and 2",
        fontsize=11,
        color=_INK,
        alpha=0.7,
        va="center",
    )
    tiles = [("photograph", "256 x 300", original)]
    for bank in (small, large):
        size = f"{bank.size}x{bank.size}"
        tiles += [(name, f"{size}, stride 1", pictures[name, 1]) for name in bank.names]
    for name in ("emboss", "edges", "laplacian of gaussian"):
        size = small.size if name in small.names else large.size
        tiles.append((name, f"{size}x{size}, stride 2", pictures[name, 2]))
    for index, (name, note, picture) in enumerate(tiles):
        axes = figure.add_subplot(grid[index // columns, index % columns])
        axes.imshow(picture, interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([])
        for side in axes.spines.values():
            side.set_color(_INK)
            side.set_linewidth(0.6)
        axes.set_title(name, loc="left", fontsize=11, color=_INK, pad=4)
        axes.set_title(note, loc="right", fontsize=8, color=_INK, alpha=0.65, pad=4)
    figure.text(
        0.03,
        0.016,
        "Grace Hopper, photograph by James S. Davis (public domain), from matplotlib's sample data",
        fontsize=8,
        color=_INK,
        alpha=0.65,
    )
    figure.savefig(file, dpi=110, facecolor=_PAPER)
    pyplot.close(figure)
