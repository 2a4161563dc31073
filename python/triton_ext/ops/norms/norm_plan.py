"""Launches of the kernels for one tensor's geometry."""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from triton_ext.ops.launcher import Launcher
from triton_ext.ops.norms.moments import merge_moments_kernel, moments_kernel, normalize_kernel
from triton_ext.ops.norms.norm_config import (
    NormShape,
    NormTiles,
    choose_merge_tiles,
    choose_tiles,
)
from triton_ext.ops.norms.norm_gradients import (
    gradient_sums_kernel,
    input_gradient_kernel,
    merge_gradients_kernel,
)
from triton_ext.ops.plans import PlanCache

__all__ = ["ALIGNMENT", "NormPlan", "Terms", "are_aligned"]

Tensor = torch.Tensor
#: Means, spreads, weight and bias.
Terms = tuple[Tensor, Tensor, Tensor | None, Tensor | None]

#: Where memory begins that was just allocated, in bytes, or at a multiple.
ALIGNMENT = 16
# Programs of a multiprocessor, and tiles of a chunk; not measured.  Sums: two programs run at a
# time, and each leaves parts to be added.  Others: several rounds, so that all end together.
_ADDING = (4, 2)
_NORMALIZING = (12, 1)
_MERGE_WARPS = 8
_STATISTIC_BYTES = 4
_MOST_FLOAT = torch.finfo(torch.float32).max


def _bits(number: float) -> int:
    """The bits of an fp32, as an int32."""
    if abs(number) > _MOST_FLOAT:
        number = math.copysign(math.inf, number)
    return int(struct.unpack("<i", struct.pack("<f", number))[0])


def are_aligned(*tensors: Tensor | None) -> bool:
    """Tells whether all tensors begin where memory that was just allocated begins."""
    addresses = 0
    for tensor in tensors:
        if tensor is not None:
            addresses |= tensor.data_ptr()
    return not addresses % ALIGNMENT


@dataclass(frozen=True, slots=True)
class _Step:
    """A kernel with the same arguments at every launch but for its tensors.

    Attributes:
        launcher: Launches it.
        aligned: The launcher's variant where :func:`are_aligned` of all tensors.
    """

    launcher: Launcher
    aligned: tuple[int, ...]

    def launch(self, is_aligned: bool, tensors: tuple[Tensor | None, ...]) -> None:
        """Launches the kernel."""
        variant = self.aligned
        if not is_aligned:
            variant = tuple([-1 if t is None else t.data_ptr() % ALIGNMENT for t in tensors])
        self.launcher.launch(tensors, variant)


def _step(launcher: Launcher, tensors: tuple[Tensor | None, ...]) -> _Step:
    """A kernel that is launched with some tensors, or others where these are."""
    return _Step(launcher, tuple([-1 if t is None else 0 for t in tensors]))


@dataclass(slots=True, kw_only=True)
class NormPlan:
    """Computes one kind of normalization of tensors of one geometry and of the same dtypes.

    Every method takes whether :func:`are_aligned` of the tensors that it gets.

    Attributes:
        shape: The tensor, and what is normalized together.
        strides: Of x.
        num_sms: Multiprocessors.
        dtype: Of x.
        out_dtype: Of y.
        activation: Behind everything.
        eps: Added to variances.
        parts_size: Numbers that a kernel which adds leaves for the one that merges.
        rows_are_aligned: Whether :func:`are_aligned` of all rows of a matrix of statistics.
    """

    shape: NormShape
    strides: tuple[int, ...]
    num_sms: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    activation: str
    eps: float
    parts_size: int = field(init=False)
    rows_are_aligned: bool = field(init=False)
    _steps: dict[Hashable, _Step] = field(default_factory=dict)
    _merges: PlanCache[_Step] = field(default_factory=lambda: PlanCache(16))

    def __post_init__(self) -> None:
        shape = self.shape
        self.parts_size = 2 * shape.images * self._tiles(_ADDING).chunks * shape.channels
        self.rows_are_aligned = shape.statistics * _STATISTIC_BYTES % ALIGNMENT == 0

    def new_parts(self, x: Tensor) -> Tensor:
        """Returns memory for what a kernel that adds leaves."""
        return torch.empty(self.parts_size, dtype=torch.float32, device=x.device)

    # ---- forward --------------------------------------------------------------------------------

    def statistics(
        self,
        is_aligned: bool,
        x: Tensor,
        mean: Tensor,
        rstd: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
    ) -> None:
        """Writes mean and 1 / standard deviation.

        Args:
            is_aligned: Of the tensors.
            x: [N, C, *size].
            mean: fp32 [images * groups], where to put it.
            rstd: As mean.
            running_mean: [C] or None; moved towards the mean by ``momentum``.
            running_var: [C] or None; moved towards the unbiased variance.
            momentum: From 0 to 1.
        """
        step = self._steps.get("moments")
        if step is None:
            step = self._keep("moments", self._make_moments(), (x, x))
        # In memory of their own: the parts are not kept until the backward.
        parts = self.new_parts(x)
        step.launch(is_aligned, (x, parts))
        key = (momentum, running_mean is None, running_var is None)
        tensors = (parts, mean, rstd, running_mean, running_var)
        step = self._merges.get(key)
        if step is None:
            step = self._merges.keep(key, _step(self._make_merge(momentum), tensors))
        step.launch(is_aligned, tensors)

    def normalize(
        self,
        is_aligned: bool,
        x: Tensor,
        residual: Tensor | None,
        terms: Terms,
        is_variance: bool,
    ) -> Tensor:
        """Returns y.

        Args:
            is_aligned: Of the tensors.
            x: [N, C, *size].
            residual: As x, or None.
            terms: Mean and 1 / standard deviation [images * groups], weight and bias [C] or None.
            is_variance: Whether the second is the variance instead.
        """
        y = torch.empty_like(x, dtype=self.out_dtype)
        tensors = (x, residual, y, *terms)
        key = ("normalize", is_variance, residual is None)
        step = self._steps.get(key)
        if step is None:
            tiles = self._tiles(_NORMALIZING)
            launcher = self._walking(
                normalize_kernel, tiles, self._scalars(tiles), is_variance, self.activation
            )
            step = self._keep(key, launcher, tensors)
        step.launch(is_aligned, tensors)
        return y

    # ---- backward -------------------------------------------------------------------------------

    def gradient_sums(
        self,
        is_aligned: bool,
        x: Tensor,
        dy: Tensor,
        y: Tensor | None,
        terms: Terms,
        is_variance: bool,
        writes_g: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns sums of gradients by chunks, and the gradient in front of the activation.

        Args:
            is_aligned: Of the tensors.
            x: [N, C, *size].
            dy: As y.
            y: The output of a ReLU, or None to compute again what is in front of the activation.
            terms: As for :meth:`normalize`.
            is_variance: As for :meth:`normalize`.
            writes_g: Whether the second is wanted; ``None`` otherwise.
        """
        key = ("sums", is_variance, y is None, writes_g)
        step = self._steps.get(key)
        g = torch.empty_like(x) if writes_g else None
        if step is None:
            tiles = self._tiles(_ADDING)
            scalars = self._scalars(tiles, self.shape.images)
            constants = (is_variance, self.activation)
            launcher = self._walking(gradient_sums_kernel, tiles, scalars, *constants)
            step = self._keep(key, launcher, (x, dy, y, g, *terms, x))
        parts = self.new_parts(x)
        step.launch(is_aligned, (x, dy, y, g, *terms, parts))
        return parts, g

    def merge_gradients(
        self,
        is_aligned: bool,
        parts: Tensor,
        weight: Tensor | None,
        dweight: Tensor | None,
        dbias: Tensor | None,
        needs_means: bool,
    ) -> Tensor | None:
        """Returns the means that dx needs, fp32 [2, images * groups]; writes dweight and dbias.

        Args:
            is_aligned: Of the tensors.
            parts: Of :meth:`gradient_sums`.
            weight: [C] or None.
            dweight: [C] or None, where to put it.
            dbias: [C] or None, where to put it.
            needs_means: Whether there is something to return.
        """
        means = None
        if needs_means:
            size = 2 * self.shape.statistics
            means = torch.empty(size, dtype=torch.float32, device=parts.device)
        tensors = (parts, weight, means, dweight, dbias)
        key = ("merge", needs_means, dweight is None, dbias is None)
        step = self._steps.get(key)
        if step is None:
            needs_channels = dweight is not None or dbias is not None
            launcher = self._make_gradient_merge(needs_means, needs_channels)
            step = self._keep(key, launcher, tensors)
        step.launch(is_aligned, tensors)
        return means

    def input_gradient(
        self,
        is_aligned: bool,
        x: Tensor,
        dy: Tensor,
        y: Tensor | None,
        terms: Terms,
        means: Tensor | None,
        is_variance: bool,
        is_before: bool,
    ) -> Tensor:
        """Returns dx.

        Args:
            is_aligned: Of the tensors.
            x: [N, C, *size].
            dy: As y.
            y: As for :meth:`gradient_sums`.
            terms: As for :meth:`normalize`.
            means: Of :meth:`merge_gradients`; ``None`` where statistics do not depend on x.
            is_variance: As for :meth:`normalize`.
            is_before: Whether ``dy`` is the gradient in front of the activation.
        """
        dx = torch.empty_like(x)
        tensors = (x, dy, y, dx, *terms, means)
        key = ("dx", is_variance, is_before, y is None, means is None)
        step = self._steps.get(key)
        if step is None:
            tiles = self._tiles(_NORMALIZING)
            scalars = self._scalars(tiles, self.shape.images)
            constants = (is_variance, "identity" if is_before else self.activation)
            launcher = self._walking(input_gradient_kernel, tiles, scalars, *constants)
            step = self._keep(key, launcher, tensors)
        step.launch(is_aligned, tensors)
        return dx

    # ---- launchers ------------------------------------------------------------------------------

    def _keep(self, key: Hashable, launcher: Launcher, tensors: tuple[Tensor | None, ...]) -> _Step:
        step = self._steps[key] = _step(launcher, tensors)
        return step

    def _tiles(self, wanted: tuple[int, int]) -> NormTiles:
        return choose_tiles(self.shape, self.dtype.itemsize, self.num_sms, *wanted)

    def _scalars(self, tiles: NormTiles, *images: int) -> tuple[int, ...]:
        shape = self.shape
        return (
            shape.rows, tiles.chunk_rows, tiles.chunks, *images, shape.channels // tiles.unit,
            shape.groups, shape.group_channels, _bits(self.eps),
        )  # fmt: skip

    def _walking(
        self, kernel: Any, tiles: NormTiles, scalars: tuple[int, ...], *constants: object
    ) -> Launcher:
        """A launcher of a kernel that walks the tensor."""
        values = (tiles.unit, tiles.block_c, tiles.block_rows, tiles.unroll, *constants)
        names = kernel.arg_names[-len(values) :]
        return Launcher(
            kernel=kernel,
            grid=tiles.grid(self.shape),
            scalars=scalars,
            constants=dict(zip(names, values, strict=True)),
            options={"num_warps": tiles.num_warps},
        )

    def _make_moments(self) -> Launcher:
        shape = self.shape
        tiles = self._tiles(_ADDING)
        scalars = (
            shape.rows, tiles.chunk_rows, tiles.chunks, shape.images, shape.channels // tiles.unit
        )  # fmt: skip
        return self._walking(moments_kernel, tiles, scalars)

    def _make_merge(self, momentum: float) -> Launcher:
        shape = self.shape
        tiles = self._tiles(_ADDING)
        merge = choose_merge_tiles(tiles.chunks, shape.group_channels)
        is_channel = shape.group_channels == 1
        programs = math.ceil(shape.channels / merge.block_c) if is_channel else shape.groups
        return Launcher(
            kernel=merge_moments_kernel,
            grid=(shape.images * programs, 1, 1),
            scalars=(
                shape.rows, tiles.chunk_rows, tiles.chunks, shape.images, shape.channels,
                shape.groups, shape.group_channels, _bits(self.eps), _bits(momentum),
            ),
            constants={
                "IS_CHANNEL": is_channel, "BLOCK_P": merge.parts, "BLOCK_C": merge.block_c,
            },
            options={"num_warps": _MERGE_WARPS},
        )  # fmt: skip

    def _make_gradient_merge(self, needs_means: bool, needs_channels: bool) -> Launcher:
        shape, chunks = self.shape, self._tiles(_ADDING).chunks
        group = choose_merge_tiles(chunks, shape.group_channels)
        channel = choose_merge_tiles(shape.images * chunks, 1)
        is_channel = shape.group_channels == 1
        blocks = math.ceil(shape.channels / group.block_c) if is_channel else shape.groups
        group_programs = shape.images * blocks if needs_means else 0
        channel_programs = math.ceil(shape.channels / channel.block_c) if needs_channels else 0
        return Launcher(
            kernel=merge_gradients_kernel,
            grid=(group_programs + channel_programs, 1, 1),
            scalars=(
                shape.rows, chunks, shape.images, shape.channels, shape.groups,
                shape.group_channels, group_programs,
            ),
            constants={
                "IS_CHANNEL": is_channel, "GROUP_P": group.parts, "GROUP_C": group.block_c,
                "CHANNEL_P": channel.parts, "CHANNEL_C": channel.block_c,
            },
            options={"num_warps": _MERGE_WARPS},
        )  # fmt: skip
