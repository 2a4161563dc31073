"""Child process: times the convolution beside cuDNN on an NVIDIA GPU of sm_90 or newer.

Prints one JSON object per shape, or one that says why there is nothing to run.
"""

from __future__ import annotations

import json
import statistics
import sys

import torch

from examples.demo.filters import banks, jobs, photograph

# N, H, W, Ci, Co, filter, stride: layers of ResNet-50 and of a diffusion model.
SHAPES = ((32, 56, 56, 64, 64, 3, 1), (128, 28, 28, 128, 128, 3, 1), (8, 64, 64, 320, 320, 3, 1))


def main() -> None:
    """Runs the photograph, then a few common layers."""
    if not torch.cuda.is_available():
        _tell(reason="torch sees no NVIDIA GPU")
        return
    major, minor = torch.cuda.get_device_capability()
    if major < 9:
        _tell(reason=f"TMA im2col needs sm_90 or newer, this GPU is sm_{major}{minor}")
        return
    torch.backends.cudnn.benchmark = True
    _tell(gpu=torch.cuda.get_device_name(), cudnn=torch.backends.cudnn.version())
    picture = photograph().cuda()
    for job in jobs():
        weight = banks()[job.bank].weight().cuda()
        _compare(
            f"photograph, {job.name}", picture, weight, job.stride, banks()[job.bank].size // 2
        )
    for n, h, w, ci, co, size, stride in SHAPES:
        x = torch.randn(n, ci, h, w, device="cuda", dtype=torch.float16)
        weight = torch.randn(co, ci, size, size, device="cuda", dtype=torch.float16)
        weight /= (ci * size * size) ** 0.5
        _compare(
            f"{n}x{h}x{w}x{ci} to {co}, {size}x{size}, stride {stride}",
            x.contiguous(memory_format=torch.channels_last),
            weight.contiguous(memory_format=torch.channels_last),
            stride,
            size // 2,
        )


def _compare(name: str, x: torch.Tensor, weight: torch.Tensor, stride: int, pad: int) -> None:
    from triton_ext.ops import conv2d

    def ours() -> torch.Tensor:
        return conv2d(x, weight, stride=stride, padding=pad)

    def cudnn() -> torch.Tensor:
        return torch.nn.functional.conv2d(x, weight, stride=stride, padding=pad)

    exact = torch.nn.functional.conv2d(x.float(), weight.float(), stride=stride, padding=pad)
    errors = [(f().float() - exact).abs().max().item() for f in (ours, cudnn)]
    times = [_median_us(f) for f in (ours, cudnn)]
    _tell(
        name=name,
        us=times[0],
        cudnn_us=times[1],
        error=errors[0],
        torch_error=errors[1],
    )


def _median_us(function: object) -> float:
    from triton.testing import do_bench

    return statistics.median(do_bench(function, return_mode="all")) * 1000


def _tell(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
