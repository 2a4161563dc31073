"""Launches of the kernels for one tensor's geometry."""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from triton_ext.ops.core.dispatch_cache import DispatchCache
from triton_ext.ops.core.launcher import Launcher
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
from triton_ext.ops.norms.norm_launches import Launches

__all__ = ["FORWARD_TENSORS", "GRADIENT_TENSORS", "Gradients", "NormPlan", "Terms"]

Tensor = torch.Tensor
#: Means, rstd, weight and bias.
Terms = tuple[Tensor, Tensor, Tensor | None, Tensor | None]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """How the gradients of a call are computed.

    Attributes:
        launches: Its kernels, of tensors in the order of ``GRADIENT_TENSORS``.
        in_two: The same in two parts, of which the second writes dx and reads no y; ``None`` where
            there is no such part.
        adds: Whether a kernel leaves parts to be merged.
        writes_g: Whether the gradient of the activation's input is written.
        needs_means: Whether dx needs means of gradients.
    """

    launches: Launches
    in_two: tuple[Launches, Launches] | None
    adds: bool
    writes_g: bool
    needs_means: bool


#: Tensors of the launches of a forward; the last ones only where statistics are those of x.
FORWARD_TENSORS = (
    *("x", "residual", "y", "mean", "rstd", "weight", "bias"),
    *("parts", "running_mean", "running_var", "batches"),
)
#: Tensors of the launches of a backward; none is None.
GRADIENT_TENSORS = (
    *("x", "dy", "y", "g", "mean", "rstd", "weight", "bias"),
    *("parts", "means", "dweight", "dbias", "dx", "none"),
)
_TERMS = "mean rstd weight bias"


def _places(order: tuple[str, ...], names: str) -> tuple[int, ...]:
    return tuple(map(order.index, names.split()))


@dataclass(slots=True, kw_only=True)
class NormPlan:
    """Computes one kind of normalization of tensors of one geometry and of the same dtypes.

    Tensors of its launches: x, dy, y, g (the gradient of the activation's input), dx and the
    residual are [N, C, *size] in the order of x; weight, bias and running statistics [C]; mean and
    rstd, which is 1 / standard deviation or the variance, [images * groups]; the number of
    batches int64 []; parts and means of gradients fp32, ``parts_size`` and ``means_size`` of them.

    Attributes:
        shape: The tensor, and what is normalized together.
        strides: Strides of x.
        term_dtypes: Dtypes of running mean and variance, weight and bias, or None.
        num_sms: Multiprocessors.
        dtype: Dtype of x.
        out_dtype: Dtype of y.
        activation: Applied last.
        eps: Added to variances.
        parts_size: Numbers that a kernel which adds leaves for the one that merges.
        means_size: Numbers that dx needs, two per group of an image.
    """

    shape: NormShape
    strides: tuple[int, ...]
    term_dtypes: tuple[torch.dtype | None, ...]
    num_sms: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    activation: str
    eps: float
    parts_size: int = field(init=False)
    means_size: int = field(init=False)
    _launchers: dict[Hashable, Launcher] = field(default_factory=dict)
    _forwards: DispatchCache[Launches] = field(default_factory=lambda: DispatchCache(16))
    _gradients: dict[Hashable, Gradients] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = self.shape
        self.parts_size = 2 * shape.images * self._tiles(_ADDING).chunks * shape.channels
        self.means_size = 2 * shape.statistics

    # ---- forward --------------------------------------------------------------------------------

    def forward(self, key: tuple[float, bool, bool, bool, bool]) -> Launches:
        """Returns what writes y, mean, 1 / standard deviation; moves running statistics.

        Args:
            key: By how much of their distance running ones are moved, from 0 to 1; whether there is
                a running mean, a running variance, a number of batches, a y.
        """
        launches = self._forwards.get(key)
        if launches is None:
            momentum, *_, has_y = key
            steps = [
                (self._moments(), _places(FORWARD_TENSORS, "x parts")),
                (
                    self._make_merge(momentum),
                    _places(FORWARD_TENSORS, "parts mean rstd running_mean running_var batches"),
                ),
            ]
            if has_y:
                steps.append(self._normalizing(is_variance=False))
            launches = self._forwards.keep(key, Launches(steps))
        return launches

    def normalize(self, is_variance: bool) -> Launches:
        """Returns what writes y of given statistics.

        Args:
            is_variance: Whether the rstd is the variance.
        """
        launches = self._forwards.get(is_variance)
        if launches is None:
            launches = self._forwards.keep(is_variance, Launches([self._normalizing(is_variance)]))
        return launches

    def _normalizing(self, is_variance: bool) -> tuple[Launcher, tuple[int, ...]]:
        key = ("normalize", is_variance)
        launcher = self._launchers.get(key)
        if launcher is None:
            tiles = self._tiles(_NORMALIZING)
            launcher = self._launchers[key] = self._walking(
                normalize_kernel, tiles, self._scalars(tiles), is_variance, self.activation
            )
        return launcher, _places(FORWARD_TENSORS, f"x residual y {_TERMS}")

    # ---- backward -------------------------------------------------------------------------------

    def gradients(self, key: tuple[tuple[bool, ...], bool, bool]) -> Gradients:
        """Returns how gradients are computed.

        Args:
            key: Which of x, weight, bias and residual have gradients; whether there is a y, the
                output of a ReLU that tells where it passed; whether the rstd is the variance, which
                does not depend on x.
        """
        found = self._gradients.get(key)
        if found is None:
            found = self._gradients[key] = self._make_gradients(*key)
        return found

    def _make_gradients(self, needs: tuple[bool, ...], has_y: bool, is_variance: bool) -> Gradients:
        needs_x, needs_weight, needs_bias, needs_residual = needs
        is_before = self.activation == "identity"
        writes_g = needs_residual and not is_before
        needs_means = needs_x and not is_variance
        needs_channels = needs_weight or needs_bias
        merges = needs_means or needs_channels
        steps = []
        if writes_g or merges:
            names = f"x dy y g {_TERMS} parts"
            steps.append((self._sums(is_variance), _places(GRADIENT_TENSORS, names)))
        if merges:
            names = "parts weight means dweight dbias"
            merge = self._make_gradient_merge(needs_means, needs_channels)
            steps.append((merge, _places(GRADIENT_TENSORS, names)))
        if needs_x:
            names = f"x g none dx {_TERMS} means" if writes_g else f"x dy y dx {_TERMS} means"
            dx = self._input_gradient(is_variance, is_before or writes_g)
            steps.append((dx, _places(GRADIENT_TENSORS, names)))
        is_apart = needs_x and writes_g
        return Gradients(
            launches=Launches(steps),
            in_two=(Launches(steps[:-1]), Launches(steps[-1:])) if is_apart else None,
            adds=writes_g or merges,
            writes_g=writes_g,
            needs_means=needs_means,
        )

    # ---- launchers ------------------------------------------------------------------------------

    def _moments(self) -> Launcher:
        launcher = self._launchers.get("moments")
        if launcher is None:
            launcher = self._launchers["moments"] = self._make_moments()
        return launcher

    def _sums(self, is_variance: bool) -> Launcher:
        tiles = self._tiles(_ADDING)
        scalars = self._scalars(tiles, self.shape.images)
        return self._walking(gradient_sums_kernel, tiles, scalars, is_variance, self.activation)

    def _input_gradient(self, is_variance: bool, is_before: bool) -> Launcher:
        tiles = self._tiles(_NORMALIZING)
        scalars = self._scalars(tiles, self.shape.images)
        activation = "identity" if is_before else self.activation
        return self._walking(input_gradient_kernel, tiles, scalars, is_variance, activation)

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
