"""Causal convolutions of video with a cache of frames: a video in chunks gives what it gives whole.

    convolution, frames = nn.CausalConv3d(16, 16, 3, padding=1), nn.Frames()
    chunks = [convolution(chunk, frames) for chunk in video.split(4, dim=2)]

A frame sees itself and those in front of it.  The cache holds the last frames of the chunk before,
in the memory that the next chunk is copied into, so that each chunk is copied once and nothing is
concatenated.  The first chunk is not copied: zeros in front of it are the kernel's padding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from triton_ext.errors import TritonExtError
from triton_ext.nn.modules import Conv3d
from triton_ext.nn.padding import Padded
from triton_ext.ops.api.operators import FPROP, ConvCall
from triton_ext.ops.core.descriptors import empty_channels_last
from triton_ext.ops.core.dispatch_cache import cached, is_differentiated, keep, tensor_key
from triton_ext.ops.core.epilogue import EpilogueArguments
from triton_ext.ops.core.launcher import BoundPlan
from triton_ext.ops.core.planner import check, make_plan
from triton_ext.ops.core.problem import ConvParameters

__all__ = ["CausalConv3d", "Frames"]

Tensor = torch.Tensor

# Output frames of the problem whose configuration all lengths get.
_FRAMES = 4


class Frames:
    """The last frames that one convolution has seen; a new video begins with a new one.

    Attributes:
        last: [N, C, frames, H, W], as many as the next chunk needs; None before the first chunk.
    """

    def __init__(self) -> None:
        self.last: Tensor | None = None
        self._joined: Tensor | None = None  # memory of the last chunk with the frames before it

    def keep(self, x: Any, count: int) -> None:
        """Keeps the last frames of the first chunk, zeros where it has too few.

        Args:
            x: The chunk [N, C, frames, H, W].
            count: How many frames the next chunk needs.
        """
        last = x[:, :, -count:]
        missing = count - last.shape[2]
        self.last = torch.nn.functional.pad(last, (0, 0, 0, 0, missing, 0)).clone()

    def join(self, x: Tensor) -> Tensor:
        """Returns the kept frames with a chunk behind them, and keeps its last frames.

        Args:
            x: The chunk, of the size of those before it but for the number of frames.

        Raises:
            ValueError: It has another size, dtype or device.
        """
        last = self.last
        assert last is not None
        if (x.shape[:2], x.shape[3:]) != (last.shape[:2], last.shape[3:]) or (
            (x.dtype, x.device) != (last.dtype, last.device)
        ):
            raise ValueError(
                f"CausalConv3d: expected a chunk like those before it, {_text(last)} but for the "
                f"number of frames, got {_text(x)}; a new video begins with new Frames()"
            )
        count = last.shape[2]
        if is_differentiated(x, last):
            joined = torch.cat([last, x], dim=2)  # autograd keeps it
        else:
            shape = (*x.shape[:2], count + x.shape[2], *x.shape[3:])
            if self._joined is None or self._joined.shape != shape:
                self._joined = empty_channels_last(shape, x.dtype, x.device)
            elif x.shape[2] < count:
                last = last.clone()  # both places have some frames in common
            joined = self._joined
            joined[:, :, :count].copy_(last)
            joined[:, :, count:].copy_(x)
        self.last = joined[:, :, -count:]
        return joined


def _text(x: Tensor) -> str:
    return f"{list(x.shape)} of {x.dtype} on {x.device}"


class CausalConv3d(Conv3d):
    """A convolution of video that pads the time in front only.

    The kernel and its tile are those that the planner takes for a few frames, however many there
    are: others would add in another order, and a chunk would have other bits than the whole.

    Its arguments are those of ``torch.nn.Conv3d``.  The first number of ``padding`` is not used:
    the time always gets as many zeros as make the output as long as x, with a stride of 1.

    Raises:
        ValueError: ``padding`` or ``padding_mode`` other than numbers and zeros.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        padding: Any = self.padding
        is_numbers = not isinstance(padding, str) and all(isinstance(n, int) for n in padding)
        if not is_numbers or self.padding_mode != "zeros":
            raise ValueError(
                f"CausalConv3d: expected padding in numbers and of zeros, got {padding!r} and "
                f"padding_mode={self.padding_mode!r}"
            )
        self.padding: tuple[int, ...] = (0, *padding[1:])
        self._reversed_padding_repeated_twice = [
            side for pixels in reversed(self.padding) for side in (pixels, pixels)
        ]

    def forward(self, input: Tensor, frames: Frames | None = None) -> Tensor:
        """Convolves a video, or its next chunk.

        Args:
            input: [N, C, frames, H, W].
            frames: What this convolution has seen of the video; ``None`` for a whole video.

        Raises:
            ValueError: A cache for an input without a batch or for a stride in time.
        """
        count = self.dilation[0] * (self.kernel_size[0] - 1)
        if not count:
            return super().forward(input)
        if frames is not None and (input.dim() != 5 or self.stride[0] != 1):
            raise ValueError(
                "CausalConv3d: frames are kept of batches [N, C, frames, H, W] and for a stride of "
                f"1 in time, got {list(input.shape)} and a stride of {self.stride[0]}"
            )
        if frames is not None and frames.last is not None:
            joined = frames.join(input)
            y = self._pinned(joined, 0)
            return super().forward(joined) if y is None else y
        if frames is not None:
            frames.keep(input, count)
        y = self._pinned(input, count)
        if y is not None:
            return y
        sides = (0, 0, 0, 0, count, 0)
        if type(input) is not Tensor or input.dim() != 5 or torch.compiler.is_compiling():
            return super().forward(torch.nn.functional.pad(input, sides))
        return super().forward(Padded(input, sides))

    def _pinned(self, x: Tensor, front: int) -> Tensor | None:
        """Returns the output by the pinned configuration; ``None`` where torch or autograd has it.

        Args:
            x: The input.
            front: Zeros in front of the first frame.
        """
        weight, bias = self.weight, self.bias
        if type(x) is not Tensor or x.dim() != 5 or is_differentiated(x, weight, bias):
            return None
        x = self._in_order(x)
        padding = ((front, 0), *((side, side) for side in self.padding[1:]))
        given = (self.stride, padding, self.dilation, self.groups)
        key = tensor_key(("causal", *given), (x, weight, bias), is_convolution=True)
        if key is None:
            return None
        bound: BoundPlan | None = cached(key)
        if bound is None:
            try:
                bound = keep(key, BoundPlan(_plan(x, weight, bias, given)))
            except TritonExtError:  # the caller's own call raises it, or torch computes it
                return None
        self.counts().forward[bound] += 1
        return bound.run(x, weight, bias)


def _plan(x: Tensor, weight: Tensor, bias: Tensor | None, given: Any) -> Any:
    """Returns the plan of a call with the configuration of a few frames."""
    parameters = ConvParameters.parse(given, weight.shape[2:])
    epilogue = EpilogueArguments(bias)
    case = ConvCall(FPROP, x, weight, epilogue, parameters, None, False).case()
    check(case, x.device)
    few = weight.shape[2] * parameters.dilation[0] + _FRAMES
    shape = (*x.shape[:2], few, *x.shape[3:])
    spatial = parameters._replace(padding=(0, 0, *parameters.padding[2:]))
    problem = spatial.problem(shape, tuple(weight.shape))
    config = make_plan(replace(case, problem=problem, x_strides=None), x.device).config
    try:
        return make_plan(case, x.device, config)
    except TritonExtError:
        return make_plan(case, x.device)
