"""Plans of normalizations: tiles, launches in sequence, tensors of a call.

BatchNorm is one image of N * pixels rows whose groups are single channels, GroupNorm N images of
pixels rows (``kernels.py``).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import increment_version

from triton_ext.ops.core.descriptors import channels_last, channels_last_strides
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.dispatch_cache import ALIGNMENT, DispatchCache
from triton_ext.ops.core.launcher import Launcher, Launches, Step, Tensors
from triton_ext.ops.norms import kernels

Tensor = torch.Tensor
Term = Tensor | None

_LOAD_BYTES = 16
_NUM_WARPS = 8
# 16-byte loads of a thread and tensor in flight.  More cost registers, and so programs that run at
# a time: kernels with 48 to 104 registers have 32 to 40 KB in flight on a multiprocessor of sm_90.
_UNROLL = 2
# Channels of a tile are a row's neighbours: more than 512 bytes bring nothing.
_MOST_BLOCK_C = 256
# Part of the memory's rate by the bytes of a tile's rows; not measured.
_RATES = {16: 0.4, 32: 0.7, 64: 0.9}
_MERGE_ELEMENTS = 8192
_MERGE_CHANNELS = 8
# Programs of 8 warps that are wanted for each multiprocessor, and tiles of a chunk that is not all
# rows; not measured.  Sums: two programs run at a time, and each leaves parts to be added.  Others:
# several rounds, so that all end together.
_ADDING = (4, 2)
_NORMALIZING = (12, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NormShape:
    """A channels-last tensor and what is normalized together."""

    images: int  # parts with statistics of their own
    rows: int  # pixels of each part
    channels: int
    groups: int  # statistics of each part, each of ``channels / groups`` neighbours

    @classmethod
    def of(cls, x: Tensor, groups: int | None) -> NormShape:
        """Returns the shape of GroupNorm, or without groups of BatchNorm, of x [N, C, *size]."""
        images, channels = 1 if groups is None else x.shape[0], x.shape[1]
        rows = x.numel() // channels // images
        return cls(images=images, rows=rows, channels=channels, groups=groups or channels)

    @property
    def group_channels(self) -> int:
        """Channels that share statistics."""
        return self.channels // self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class NormTiles:
    """Tiles and chunks of a kernel that reads a whole tensor."""

    unit: int  # channels come in multiples of it; what a thread loads at once
    block_c: int  # channels of a tile
    block_rows: int  # rows of a tile that the threads of a program hold side by side
    unroll: int  # how many such rows a tile has below each other: loads in flight of a thread
    chunk_rows: int
    chunks: int  # of an image
    num_warps: int
    programs: int


def _power_up(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _choose_block_c(channels: int, element_bytes: int) -> int:
    def rate(block_c: int) -> float:
        used = channels / (math.ceil(channels / block_c) * block_c)
        return used * _RATES.get(block_c * element_bytes, 1.0)

    most = min(_MOST_BLOCK_C, _power_up(channels))
    least = min(most, _LOAD_BYTES // element_bytes)
    sizes = [1 << power for power in range(least.bit_length() - 1, most.bit_length())]
    # The widest of equals.
    return max(reversed(sizes), key=rate)


def choose_tiles(
    shape: NormShape, element_bytes: int, num_sms: int, programs_per_sm: int, least_tiles: int = 1
) -> NormTiles:
    """Returns tiles that keep every multiprocessor's loads in flight; not measured."""
    vector = _LOAD_BYTES // element_bytes
    block_c = _choose_block_c(shape.channels, element_bytes)
    block_rows = max(1, 32 * _NUM_WARPS * vector // block_c)
    block_rows = min(block_rows, _power_up(shape.rows))
    unroll = min(_UNROLL, _power_up(math.ceil(shape.rows / block_rows)))
    num_warps = max(1, min(_NUM_WARPS, block_rows * block_c // (32 * vector)))
    columns = shape.images * math.ceil(shape.channels / block_c)
    wanted = programs_per_sm * num_sms * _NUM_WARPS // num_warps
    # Where images and channels alone are about as many, no fraction of them may be left over.
    wanted = wanted // columns if columns <= wanted // 2 else math.ceil(4 * wanted / columns)
    chunks = max(1, min(wanted, math.ceil(shape.rows / (least_tiles * block_rows * unroll))))
    chunk_rows = math.ceil(math.ceil(shape.rows / chunks) / block_rows) * block_rows
    chunks = math.ceil(shape.rows / chunk_rows)
    return NormTiles(
        unit=math.gcd(shape.channels, vector), block_c=block_c, block_rows=block_rows,
        unroll=unroll, chunk_rows=chunk_rows, chunks=chunks, num_warps=num_warps,
        programs=columns * chunks,
    )  # fmt: skip


def choose_merge_tiles(parts: int, group_channels: int) -> tuple[int, int]:
    """Returns parts and channels of a tile that adds parts: as few rounds as registers allow."""
    block_c = _MERGE_CHANNELS if group_channels == 1 else _power_up(group_channels)
    return min(_power_up(parts), max(1, _MERGE_ELEMENTS // block_c)), block_c


#: Tensors of the launches of a forward; the last ones only where statistics are those of x.
_FORWARD = (
    *("x", "residual", "y", "mean", "rstd", "weight", "bias"),
    *("parts", "running_mean", "running_var", "batches"),
)
#: Tensors of the launches of a backward; none is None.
_BACKWARD = (
    *("x", "dy", "y", "g", "mean", "rstd", "weight", "bias"),
    *("parts", "means", "dweight", "dbias", "dx", "none"),
)


def are_aligned(*tensors: Term) -> bool:
    """Tells whether all tensors begin at multiples of 16 bytes, as newly allocated memory does."""
    addresses = 0
    for tensor in tensors:
        if tensor is not None:
            addresses |= tensor.data_ptr()
    return not addresses % ALIGNMENT


def _bits(number: float) -> int:
    """Returns the bits of an fp32, as an int32."""
    if abs(number) > torch.finfo(torch.float32).max:
        number = math.copysign(math.inf, number)
    return int(struct.unpack("<i", struct.pack("<f", number))[0])


class Running(NamedTuple):
    """Running statistics of a call."""

    mean: Term = None  # [C]
    variance: Term = None  # [C]
    momentum: float = 0.0  # how far a call that uses those of x moves them, from 0 to 1
    batches: Term = None  # int64 [], which such a call counts up


#: Statistics are those of x, and nothing is moved.
NOT_RUNNING = Running()


@dataclass(slots=True, kw_only=True)
class NormPlan:
    """Launches of one kind of normalization of tensors of one geometry and of the same dtypes.

    Tensors of its launches: x, dy, y, g (the gradient of the activation's input), dx and the
    residual are [N, C, *size] in the order of x; weight, bias and running statistics [C]; mean and
    rstd, which is 1 / standard deviation, or the variance of statistics that are not those of x,
    [images * groups]; the number of batches int64 []; parts and means of gradients fp32,
    ``parts_size`` and ``means_size`` of them.
    """

    shape: NormShape
    strides: tuple[int, ...]  # of x
    term_dtypes: tuple[torch.dtype | None, ...]  # of weight, bias, running mean and variance
    device: Device
    dtype: torch.dtype  # of x
    out_dtype: torch.dtype  # of y
    activation: str
    eps: float
    uses_batch: bool  # whether statistics are those of x
    parts_size: int = field(init=False)  # numbers that a kernel leaves to be merged
    means_size: int = field(init=False)  # two per group of an image
    _launchers: dict[Hashable, Launcher] = field(default_factory=dict)
    _forwards: DispatchCache[Launches] = field(default_factory=lambda: DispatchCache(16))
    _backwards: dict[Hashable, list[Launches]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = self.shape
        self.parts_size = 2 * shape.images * self._tiles(_ADDING).chunks * shape.channels
        self.means_size = 2 * shape.images * shape.groups

    def forward(
        self, x: Tensor, weight: Term = None, bias: Term = None, residual: Term = None,
        running: Running = NOT_RUNNING, is_aligned: bool = False,
        statistics: Sequence[Any] | None = None, has_y: bool = True,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Returns y, means and rstd; computing those of x moves running statistics.

        Computed means are followed by rstd in their tensor, [2, images * groups].  ``statistics``
        are means and rstd of an earlier call with x.  y is None without ``has_y``.  All tensors are
        known to be aligned with ``is_aligned``.
        """
        running_mean, running_var, momentum, batches = running
        y = torch.empty_like(x, dtype=self.out_dtype) if has_y else None
        if not self.uses_batch:
            statistics = running_mean, running_var
        if statistics is not None:
            mean, rstd = statistics
            tensors: Tensors = (x, residual, y, mean, rstd, weight, bias)
            launches = self._forward_launches((None, True))
            launches.launch(tensors, is_aligned or are_aligned(*tensors))
            return y, mean, rstd
        device = x.device
        mean = torch.empty(2, self.means_size // 2, dtype=torch.float32, device=device)
        rstd = mean[1]
        parts = torch.empty(self.parts_size, dtype=torch.float32, device=device)
        moved = (running_mean, running_var, batches)
        tensors = (x, residual, y, mean, rstd, weight, bias, parts, *moved)
        is_aligned = are_aligned(rstd) if is_aligned else are_aligned(*tensors)
        key = (momentum, has_y, *[each is not None for each in moved])
        self._forward_launches(key).launch(tensors, is_aligned)
        # Versions of running statistics stay, as after torch's call: a backward in training mode
        # reads none of them, and may run after this call.
        if batches is not None and not batches.is_inference():
            increment_version(batches)
        return y, mean, rstd

    def backward(self, saved: list[Any], dy: Tensor, needs: Sequence[bool]) -> tuple[Term, ...]:
        """Returns the gradients of x, weight, bias and residual; ``None`` for what needs none.

        Args:
            saved: x, weight, bias, means and rstd as for the forward, and y where a ReLU
                follows a residual, or None.  Emptied, so that tensors without other owners are
                freed when no kernel reads them any more.
            dy: [N, C, *size]; the residual's gradient may be this tensor.
            needs: Which gradients are computed.

        Raises:
            TypeError: A saved tensor came back in another dtype.
        """
        self._check(saved)
        x, weight, bias, mean, rstd, y = saved
        saved.clear()
        strides, given = self.strides, dy
        if dy.stride() != strides or dy.is_neg():
            dy = in_order(dy)
        if x.stride() != strides:
            x = in_order(x)
        if y is not None and y.stride() != strides:
            y = in_order(y)
        needs_x, needs_weight, needs_bias, needs_residual = needs
        writes_g = needs_residual and self.activation != "identity"
        needs_means = needs_x and self.uses_batch
        adds = writes_g or needs_means or needs_weight or needs_bias
        key = (*needs, y is not None)
        launches = self._backwards.get(key)
        if launches is None:
            found = self._backward_launches(needs, adds, writes_g, needs_means)
            launches = self._backwards.setdefault(key, found)
        device, wide = x.device, torch.float32
        parts = torch.empty(self.parts_size, dtype=wide, device=device) if adds else None
        means = torch.empty(self.means_size, dtype=wide, device=device) if needs_means else None
        # A copy, as of the gradient that comes from pooling, is written over: autograd keeps the
        # one that it was made of, and at the end of a network is where memory is short.
        is_own = dy.data_ptr() != given.data_ptr() and dy.dtype is x.dtype
        g = None
        if writes_g:
            g = dy if is_own else torch.empty_like(x)
        dweight = torch.empty_like(weight) if needs_weight else None
        dbias = torch.empty_like(bias) if needs_bias else None
        # Where it is short, dx may have the memory of a y that nobody else has.
        in_two = len(launches) > 1 and is_own and y is not None
        dx = torch.empty_like(x) if needs_x and not in_two else None
        others = (g, mean, rstd, weight, bias, parts, means, dweight, dbias)
        is_aligned = are_aligned(x, dy, y, mean, rstd, weight, bias)
        launches[in_two].launch((x, dy, y, *others, dx, None), is_aligned)
        if in_two:
            del y
            dx = torch.empty_like(x)
            launches[2].launch((x, dy, None, *others, dx, None), is_aligned)
        return dx, dweight, dbias, dy if needs_residual and g is None else g

    def _check(self, saved: list[Any]) -> None:
        """Refuses saved tensors that are not of the forward's dtypes: hooks may replace them."""
        terms, moments = self.term_dtypes[:2], self.term_dtypes[2:]
        if self.uses_batch:
            moments = (torch.float32, torch.float32)
        for tensor, dtype in zip(
            saved, (self.dtype, *terms, *moments, self.out_dtype), strict=True
        ):
            if tensor is not None and tensor.dtype is not dtype:
                raise TypeError(
                    f"hooks on saved tensors gave back x as {saved[0].dtype} and means as "
                    f"{saved[3].dtype}, expected {self.dtype} and {moments[0]}, and all others as "
                    "they were"
                )

    def _forward_launches(self, key: tuple[Any, ...]) -> Launches:
        """Returns the kernels of a forward.

        The key: how far running statistics are moved, from 0 to 1, or ``None`` where statistics are
        given; whether there is a y, a running mean, a running variance, a number of batches.
        """
        launches = self._forwards.get(key)
        if launches is None:
            momentum, has_y, *_ = key
            steps = []
            if momentum is not None:
                moments = self._over_x(kernels.moments_kernel, _ADDING)
                steps = [moments, self._merge_moments(momentum)]
            if has_y:
                steps.append(self._over_x(kernels.normalize_kernel, _NORMALIZING, self.activation))
            launches = self._forwards.keep(key, Launches(_FORWARD, [(each, {}) for each in steps]))
        return launches

    def _backward_launches(
        self, needs: Sequence[bool], adds: bool, writes_g: bool, needs_means: bool
    ) -> list[Launches]:
        """Returns the kernels of a backward, and those that write g, alone and in two parts.

        The second part writes dx and reads no y.
        """
        needs_x, needs_weight, needs_bias, _ = needs
        steps: list[Step] = []
        if adds:
            sums = kernels.gradient_sums_kernel
            steps.append((self._over_x(sums, _ADDING, self.activation), {}))
        if needs_means or needs_weight or needs_bias:
            steps.append((self._merge_gradients(needs_means, needs_weight or needs_bias), {}))
        if not needs_x:
            return [Launches(_BACKWARD, steps)]
        activation = "identity" if writes_g else self.activation
        dx = self._over_x(kernels.input_gradient_kernel, _NORMALIZING, activation)
        last: Step = (dx, {"dy": "g", "y": "none"} if writes_g else {})
        parts = [[*steps, last], *([steps, [last]] if writes_g else [])]
        return [Launches(_BACKWARD, each) for each in parts]

    def _tiles(self, wanted: tuple[int, int]) -> NormTiles:
        return choose_tiles(self.shape, self.dtype.itemsize, self.device.num_sms, *wanted)

    def _launcher(self, kernel: Any, programs: int, num_warps: int, **values: Any) -> Launcher:
        """Returns the launcher of a kernel that gets values, and those of the plan, by name."""
        shape = self.shape
        values |= {
            "rows": shape.rows, "images": shape.images, "channels": shape.channels,
            "groups": shape.groups, "group_channels": shape.group_channels,
            "eps_bits": _bits(self.eps), "IS_CHANNEL": shape.group_channels == 1,
            "IS_VARIANCE": not self.uses_batch,
        }  # fmt: skip
        names = [name for name in kernel.arg_names if name in values]
        return Launcher(
            kernel=kernel,
            grid=(programs, 1, 1),
            scalars=tuple([values[name] for name in names if name.islower()]),
            constants={name: values[name] for name in names if name.isupper()},
            options={"num_warps": num_warps},
        )

    def _over_x(self, kernel: Any, wanted: tuple[int, int], activation: str = "") -> Launcher:
        """Returns the launcher of a kernel that reads all of x, and may store as much."""
        key = kernel.__name__, activation
        if key not in self._launchers:
            tiles = self._tiles(wanted)
            self._launchers[key] = self._launcher(
                kernel, tiles.programs, tiles.num_warps, chunk_rows=tiles.chunk_rows,
                chunks=tiles.chunks, units=self.shape.channels // tiles.unit, UNIT=tiles.unit,
                BLOCK_C=tiles.block_c, ROWS=tiles.block_rows, UNROLL=tiles.unroll,
                ACTIVATION=activation,
            )  # fmt: skip
        return self._launchers[key]

    def _group_programs(self, block_c: int) -> int:
        """Returns the programs of a kernel that merges groups, or some of one channel each."""
        shape = self.shape
        is_channel = shape.group_channels == 1
        return shape.images * (math.ceil(shape.channels / block_c) if is_channel else shape.groups)

    def _merge_moments(self, momentum: float) -> Launcher:
        tiles = self._tiles(_ADDING)
        parts, block_c = choose_merge_tiles(tiles.chunks, self.shape.group_channels)
        return self._launcher(
            kernels.merge_moments_kernel, self._group_programs(block_c), _NUM_WARPS,
            chunk_rows=tiles.chunk_rows, chunks=tiles.chunks, momentum_bits=_bits(momentum),
            BLOCK_P=parts, BLOCK_C=block_c,
        )  # fmt: skip

    def _merge_gradients(self, needs_means: bool, needs_channels: bool) -> Launcher:
        shape, chunks = self.shape, self._tiles(_ADDING).chunks
        group_p, group_c = choose_merge_tiles(chunks, shape.group_channels)
        channel_p, channel_c = choose_merge_tiles(shape.images * chunks, 1)
        group_programs = self._group_programs(group_c) if needs_means else 0
        channel_programs = math.ceil(shape.channels / channel_c) if needs_channels else 0
        return self._launcher(
            kernels.merge_gradients_kernel, group_programs + channel_programs, _NUM_WARPS,
            chunks=chunks, group_programs=group_programs, GROUP_P=group_p, GROUP_C=group_c,
            CHANNEL_P=channel_p, CHANNEL_C=channel_c,
        )  # fmt: skip


def is_channels_last(x: Tensor) -> bool:
    """Tells whether [N, C, *size] is dense and its channels lie side by side."""
    # torch 2.11 says that tensors of symbolic sizes are not contiguous.
    strides = zip(x.stride(), channels_last_strides(x.shape), x.shape, strict=True)
    return all([found == wanted or size == 1 for found, wanted, size in strides])


def in_order(tensor: Tensor) -> Tensor:
    """Returns a tensor whose memory holds its values in the order of the kernels."""
    tensor = tensor.resolve_neg()
    return tensor if tensor.dim() < 3 or is_channels_last(tensor) else channels_last(tensor)
