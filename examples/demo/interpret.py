"""Child process: filters the photograph in Triton's interpreter; TRITON_INTERPRET=1 is set.

Prints one JSON object per line; saves the results as ``<bank>-<stride>.npy`` in the given folder.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time

import numpy as np
import torch

from examples.demo.filters import banks, jobs, photograph

BAND_ROWS = 40


def main(folder: pathlib.Path) -> None:
    """Runs every job."""
    from triton_ext.ops import conv2d

    picture = photograph()
    plan = [(job, list(job.bands(picture.shape[2], BAND_ROWS))) for job in jobs()]
    _tell(jobs=[{"name": job.name, "bands": len(bands)} for job, bands in plan])
    for index, (job, bands) in enumerate(plan):
        bank = banks()[job.bank]
        weight, pad = bank.weight(), bank.size // 2
        start, outputs = time.monotonic(), []
        for rows, above_below in bands:
            strip = picture[:, :, rows].contiguous(memory_format=torch.channels_last)
            outputs.append(
                conv2d(strip, weight, stride=job.stride, padding=(above_below, (pad, pad)))
            )
            _tell(job=index)
        seconds = time.monotonic() - start
        ours = torch.cat(outputs, dim=2)
        exact = torch.nn.functional.conv2d(
            picture.float(), weight.float(), stride=job.stride, padding=pad
        )
        torchs = torch.nn.functional.conv2d(picture, weight, stride=job.stride, padding=pad)
        np.save(folder / f"{job.bank}-{job.stride}.npy", ours.numpy())
        _tell(
            done=index,
            shape=list(ours.shape),
            seconds=seconds,
            error=(ours.float() - exact).abs().max().item(),
            torch_error=(torchs.float() - exact).abs().max().item(),
        )


def _tell(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
