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

__all__ = ["NormPlan"]

Tensor = torch.Tensor

_ALIGNMENT = 16
# Programs of a multiprocessor, and tiles of a chunk; not measured.  Sums: two programs run at a
# time, and each leaves parts to be added.  Others: several rounds, so that all end together.
_ADDING = (4, 2)
_NORMALIZING = (12, 1)
_MERGE_WARPS = 8
_MOST_FLOAT = torch.finfo(torch.float32).max


def _bits(number: float) -> int:
    """The bits of an fp32, as an int32."""
    if abs(number) > _MOST_FLOAT:
        number = math.copysign(math.inf, number)
    return int(struct.unpack("<i", struct.pack("<f", number))[0])


def _launch(launcher: Launcher, *tensors: Tensor | None) -> None:
    variant = tuple([-1 if t is None else t.data_ptr() % _ALIGNMENT for t in tensors])
    launcher.launch(tensors, variant)


@dataclass(slots=True, kw_only=True)
class NormPlan:
    """Computes one kind of normalization of tensors of one geometry and of the same dtypes.

    Attributes:
        shape: The tensor, and what is normalized together.
        num_sms: Multiprocessors.
        dtype: Of x.
        out_dtype: Of y.
        activation: Behind everything.
        eps: Added to variances.
    """

    shape: NormShape
    num_sms: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    activation: str
    eps: float
    _launchers: dict[Hashable, Launcher] = field(default_factory=dict)
    _merges: PlanCache[Launcher] = field(default_factory=lambda: PlanCache(16))

    # ---- forward --------------------------------------------------------------------------------

    def statistics(
        self,
        x: Tensor,
        moments: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
    ) -> None:
        """Writes mean and 1 / standard deviation.

        Args:
            x: [N, C, *size].
            moments: fp32 [2, images * groups], where to put them.
            running_mean: [C] or None; moved towards the mean by ``momentum``.
            running_var: [C] or None; moved towards the unbiased variance.
            momentum: From 0 to 1.
        """
        shape = self.shape
        launcher = self._launchers.get("moments")
        if launcher is None:
            launcher = self._launchers["moments"] = self._make_moments()
        chunks = launcher.scalars[2]
        # In memory of their own: the parts are not kept until the backward.
        size = 2 * shape.images * chunks * shape.channels
        parts = torch.empty(size, dtype=torch.float32, device=x.device)
        mean, rstd = moments
        _launch(launcher, x, parts)
        merge = self._merges.get(momentum)
        if merge is None:
            merge = self._merges.keep(momentum, self._make_merge(momentum))
        _launch(merge, parts, mean, rstd, running_mean, running_var)

    def normalize(
        self,
        x: Tensor,
        residual: Tensor | None,
        mean: Tensor,
        spread: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        is_variance: bool,
    ) -> Tensor:
        """Returns y.

        Args:
            x: [N, C, *size].
            residual: As x, or None.
            mean: [images * groups].
            spread: [images * groups], 1 / standard deviation.
            weight: [C] or None.
            bias: [C] or None.
            is_variance: Whether ``spread`` is the variance instead.
        """
        key = ("normalize", is_variance)
        launcher = self._launchers.get(key)
        if launcher is None:
            tiles = self._tiles(_NORMALIZING)
            launcher = self._launchers[key] = self._walking(
                normalize_kernel, tiles, self._scalars(tiles), is_variance, self.activation
            )
        y = torch.empty_like(x, dtype=self.out_dtype)
        _launch(launcher, x, residual, y, mean, spread, weight, bias)
        return y

    # ---- backward -------------------------------------------------------------------------------

    def gradient_sums(
        self,
        x: Tensor,
        dy: Tensor,
        y: Tensor | None,
        terms: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
        is_variance: bool,
        writes_g: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns sums of gradients by chunks, and the gradient in front of the activation.

        Args:
            x: [N, C, *size].
            dy: As y.
            y: The output of a ReLU, or None to compute again what is in front of the activation.
            terms: Mean, spread, weight and bias, as for :meth:`normalize`.
            is_variance: As for :meth:`normalize`.
            writes_g: Whether the second is wanted; ``None`` otherwise.
        """
        shape = self.shape
        key = ("sums", is_variance)
        launcher = self._launchers.get(key)
        if launcher is None:
            tiles = self._tiles(_ADDING)
            launcher = self._launchers[key] = self._walking(
                gradient_sums_kernel,
                tiles,
                self._scalars(tiles, shape.images),
                is_variance,
                self.activation,
            )
        chunks = launcher.scalars[2]
        size = (2, shape.images * chunks, shape.channels)
        parts = torch.empty(size, dtype=torch.float32, device=x.device)
        g = torch.empty_like(x) if writes_g else None
        _launch(launcher, x, dy, y, g, *terms, parts)
        return parts, g

    def merge_gradients(
        self,
        parts: Tensor,
        weight: Tensor | None,
        dweight: Tensor | None,
        dbias: Tensor | None,
        needs_means: bool,
    ) -> Tensor | None:
        """Returns the means that dx needs, fp32 [2, images * groups]; writes dweight and dbias.

        Args:
            parts: Of :meth:`gradient_sums`.
            weight: [C] or None.
            dweight: [C] or None, where to put it.
            dbias: [C] or None, where to put it.
            needs_means: Whether there is something to return.
        """
        shape = self.shape
        means = None
        if needs_means:
            means = torch.empty(2 * shape.statistics, dtype=torch.float32, device=parts.device)
        needs_channels = dweight is not None or dbias is not None
        key = ("merge", needs_means, needs_channels)
        launcher = self._launchers.get(key)
        if launcher is None:
            chunks = parts.shape[1] // shape.images
            launcher = self._launchers[key] = self._make_gradient_merge(
                chunks, needs_means, needs_channels
            )
        _launch(launcher, parts, weight, means, dweight, dbias)
        return means

    def input_gradient(
        self,
        x: Tensor,
        dy: Tensor,
        y: Tensor | None,
        terms: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
        means: Tensor | None,
        is_variance: bool,
        is_before: bool,
    ) -> Tensor:
        """Returns dx.

        Args:
            x: [N, C, *size].
            dy: As y.
            y: As for :meth:`gradient_sums`.
            terms: As for :meth:`gradient_sums`.
            means: Of :meth:`merge_gradients`; ``None`` where statistics do not depend on x.
            is_variance: As for :meth:`normalize`.
            is_before: Whether ``dy`` is the gradient in front of the activation.
        """
        key = ("dx", is_variance, is_before)
        launcher = self._launchers.get(key)
        if launcher is None:
            tiles = self._tiles(_NORMALIZING)
            launcher = self._launchers[key] = self._walking(
                input_gradient_kernel,
                tiles,
                self._scalars(tiles, self.shape.images),
                is_variance,
                "identity" if is_before else self.activation,
            )
        dx = torch.empty_like(x)
        _launch(launcher, x, dy, y, dx, *terms, means)
        return dx

    # ---- launchers ------------------------------------------------------------------------------

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

    def _make_gradient_merge(
        self, chunks: int, needs_means: bool, needs_channels: bool
    ) -> Launcher:
        shape = self.shape
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
