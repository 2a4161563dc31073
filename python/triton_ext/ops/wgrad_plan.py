"""The gradient of the filter: which kernel takes a problem, the choice among them, the plan.

A plan is all of the launches that does not depend on addresses, made once per geometry and kept.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops import wgrad_gemm, wgrad_swapped
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import H200, Device, device_of
from triton_ext.ops.depthwise_config import DepthwiseWgradConfig, Walk, is_depthwise, rank_wgrad
from triton_ext.ops.depthwise_wgrad import DepthwiseWgradPlan
from triton_ext.ops.depthwise_wgrad import wgrad_plan as depthwise_plan
from triton_ext.ops.hopper import wgrad_plan as gluon
from triton_ext.ops.hopper.wgrad_tiles import WgradTileChoice
from triton_ext.ops.problem import ConvProblem
from triton_ext.ops.row_packing import MARGIN, PackedConfig, RowPacking, violations
from triton_ext.ops.tuning_store.lookup import find
from triton_ext.ops.wgrad_config import (
    CONFIGS,
    Store,
    WgradChoice,
    WgradConfig,
    WgradTiles,
    expected_us,
)
from triton_ext.ops.wgrad_gemm import DTYPES, OUT_DTYPES, PackedWgradPlan, WgradPlan, ranked_tiles
from triton_ext.ops.wgrad_swapped import SwappedConfig, SwappedWgradPlan

__all__ = [
    "DTYPES",
    "MOST_EXPECTED",
    "PackedWgradPlan",
    "SwappedWgradPlan",
    "WgradPlan",
    "expected_times",
    "fastest_packing",
    "make_plan",
    "packing_pays",
    "ranking",
    "reasons",
    "swapped_ranking",
    "swapped_way",
]

conv_violations = backends.load("nvidia", "conv_violations")
descriptor_error = backends.load("nvidia", "descriptor_error")

#: The Gluon kernel is taken where its model expects at most so many times what that of the
#: @triton.jit kernel does.  Both models were fitted on the same GPU.  Of the 36 layers whose
#: @triton.jit time is measured (docs/wgrad.md; H200, fp16, 2026-11-20), 12 would be the Gluon
#: kernel's, one of them by 0.3 % wrongly; with 1.0 there would be 15, two by 8 % wrongly.
MOST_EXPECTED = 0.96


def reasons(
    problem: ConvProblem, dtype: torch.dtype, machine: Device | None = None
) -> tuple[str, ...]:
    """Returns why the kernel does not take a problem; nothing where it does.

    Args:
        problem: The convolution.
        dtype: Of x and dy.
        machine: Where it is to run; ``None`` asks for what no machine changes.
    """
    found = list(_other_reasons(problem, dtype, machine))
    return (*_geometry_reasons(problem), *found)


def _geometry_reasons(problem: ConvProblem) -> tuple[str, ...]:
    """What TMA cannot express."""
    if not 1 <= problem.dims <= 3:
        return (f"{problem.dims} spatial dimensions: expected 1 to 3",)
    return tuple(violations(problem))


def _other_reasons(
    problem: ConvProblem, dtype: torch.dtype, machine: Device | None
) -> tuple[str, ...]:
    found = []
    if dtype not in (OUT_DTYPES if is_depthwise(problem) else DTYPES):
        found.append(
            f"dtype {dtype}: wgrad needs float16 or bfloat16, WGMMA transposes 16-bit operands only"
        )
    if machine is not None:
        if machine.capability < (9, 0):
            found.append(f"compute capability {machine.capability}: TMA im2col needs (9, 0)")
        smallest = min(config.smem_bytes(Store(in_pieces=False)) for config in CONFIGS) + 1024
        if smallest > machine.smem_bytes:
            found.append(
                f"{machine.smem_bytes} bytes of shared memory per CTA: the smallest tile "
                f"configuration needs {smallest}"
            )
    return tuple(found)


def _packed_us(packing: RowPacking, out_dtype: torch.dtype, machine: Device) -> float:
    """Expected time of the gradient of a packed filter."""
    # Windows overlap: x comes from DRAM once.
    elements = math.prod(packing.problem.y_shape) + math.prod(packing.memory_shape)
    every = (
        replace(tiles, operand_mib=elements * packing.element_bytes / 2**20)
        for _, tiles in ranked_tiles(packing.padded, out_dtype, machine)
    )
    # One more kernel unpacks dw.
    return min(map(expected_us, every), default=math.inf) + packing.copy_us + H200.launch_us


def fastest_packing(
    ways: list[RowPacking], out_dtype: torch.dtype, machine: Device
) -> RowPacking | None:
    """Returns the way to pack rows in which the gradient is expected first."""
    return min(ways, key=lambda way: _packed_us(way, out_dtype, machine), default=None)


def packing_pays(packing: RowPacking, out_dtype: torch.dtype, machine: Device) -> bool:
    """Whether the gradient of a packed filter is expected clearly sooner than tap by tap."""
    # All kernels of dense filters read 16 bits; which of them makes no difference to the models.
    dtype = out_dtype if out_dtype in DTYPES else torch.float16
    times = expected_times(packing.problem, dtype, machine, out_dtype)
    plain_us = min(times.values(), default=0.0)
    if times:
        plain_us += packing.unpacked_copy_us
    return _packed_us(packing, out_dtype, machine) < MARGIN * plain_us


def swapped_way(
    problem: ConvProblem,
    strides: tuple[tuple[int, ...], tuple[int, ...]],
    packing: RowPacking | None,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    machine: Device,
) -> RowPacking | None:
    """Returns how rows of dy are packed where swapping x and dy is expected clearly sooner.

    Args:
        problem: The convolution, which im2col can walk tap by tap.
        strides: Of x [N, Ci, *input_size] and of dy [N, Co, *output_size], in elements.
        packing: The fastest way to pack rows of x, if there is one.
        dtype: Of x and dy.
        out_dtype: Of dw.
        machine: The device.
    """
    if problem.in_channels <= problem.out_channels:
        # Rows of x are worth packing sooner.
        return None
    way = fastest_packing(wgrad_swapped.ways(problem, strides, dtype.itemsize), out_dtype, machine)
    if way is None:
        return None
    others = [*expected_times(problem, dtype, machine, out_dtype).values()]
    if packing is not None:
        others.append(_packed_us(packing, out_dtype, machine))
    # All others read dy as it is, once its missing channels are filled up.
    other_us = min(others, default=math.inf) + way.unpacked_copy_us
    return way if _packed_us(way, out_dtype, machine) < MARGIN * other_us else None


def expected_times(
    problem: ConvProblem, dtype: torch.dtype, machine: Device, out_dtype: torch.dtype
) -> dict[WgradChoice | WgradTileChoice, float]:
    """Returns the choices of all kernels of dense filters, with the microseconds to compare.

    Args:
        problem: With at least one output pixel.
        dtype: Of x and dy.
        machine: The device.
        out_dtype: Of dw.
    """
    jit = ranked_tiles(problem, out_dtype, machine)
    times: dict[WgradChoice | WgradTileChoice, float] = {
        choice: expected_us(tiles) for choice, tiles in jit
    }
    if not jit or gluon.reasons(problem, dtype, out_dtype, machine):
        return times
    best, elements = jit[0][1], problem.out_channels * problem.taps * problem.in_channels
    partition = best.partition
    jit_elements = (partition.whole_tiles + partition.split_tiles) * best.config.tile_elements
    for work, us in gluon.ranking(problem, machine.num_sms):
        # Its model was fitted to channels in whole blocks.  What its tiles compute beside dw, more
        # than those of the other kernel do, counts once more.
        computed = work.partition.tiles * work.config.tile_elements
        waste = max(1.0, computed / max(jit_elements, elements))
        times[work.choice] = us * waste / MOST_EXPECTED
    return times


def ranking(
    problem: ConvProblem,
    dtype: torch.dtype,
    machine: Device,
    out_dtype: torch.dtype | None = None,
    *,
    packed: bool = False,
) -> list[WgradChoice | WgradTileChoice | DepthwiseWgradConfig]:
    """Returns the choices that fit, in the order of the times that the models expect.

    The best of each kernel come first: models err by kernel more than by configuration.

    Args:
        problem: The convolution.
        dtype: Of x and dy.
        machine: The device.
        out_dtype: Of dw; ``None`` for ``dtype``.
        packed: Whether the problem is one of packed rows, which the Gluon kernel does not take.
    """
    problem, out_dtype = replace(problem, batch=max(problem.batch, 1)), out_dtype or dtype
    if is_depthwise(problem):
        return [*rank_wgrad(Walk.forward(problem), machine.num_sms)]
    if packed:
        return [choice for choice, _ in ranked_tiles(problem, out_dtype, machine)]
    times = expected_times(problem, dtype, machine, out_dtype)
    ranked = sorted(times, key=lambda choice: times[choice])
    other = next((each for each in ranked if type(each) is not type(ranked[0])), None)
    if other is not None:
        ranked.remove(other)
        ranked.insert(1, other)
    return [*ranked]


def swapped_ranking(
    problem: ConvProblem,
    strides: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    machine: Device,
) -> list[SwappedConfig]:
    """Returns the choices that swap x and dy, as :func:`ranking`; none where that does not pay.

    Arguments as for :func:`swapped_way`.
    """
    if conv_violations(problem.geometry):
        return []
    ways = RowPacking.ways(problem, strides[0], dtype.itemsize, with_planes=True)
    packing = fastest_packing(ways, out_dtype, machine)
    way = swapped_way(problem, strides, packing, dtype, out_dtype, machine)
    if way is None:
        return []
    return [SwappedConfig(choice) for choice, _ in ranked_tiles(way.padded, out_dtype, machine)]


Plan = WgradPlan | PackedWgradPlan | SwappedWgradPlan | DepthwiseWgradPlan | gluon.HopperWgradPlan


@lru_cache(maxsize=4096)
def make_plan(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dy_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    config: WgradConfig
    | WgradChoice
    | WgradTileChoice
    | PackedConfig
    | SwappedConfig
    | DepthwiseWgradConfig
    | None = None,
    out_dtype: torch.dtype | None = None,
    num_sms: int | None = None,
    part_rounds: int = 1,
    pack_rows: bool | RowPacking | None = None,
) -> Plan:
    """Returns the plan of a gradient of a filter.

    Args:
        problem: The convolution.
        x_strides: Of x [N, Ci, *input_size], in elements; channels contiguous.
        dy_strides: Of dy [N, Co, *output_size], in elements; what is not channels-last is copied at
            every run, because gradients come as autograd makes them.
        dtype: Of x and dy: float16 or bfloat16.
        device: Where they are.
        config: The tile configuration, with or without the parts of tiles; ``None``: the choice
            that was measured, else the model's.
        out_dtype: Of dw: float16, bfloat16 or float32; ``None`` for ``dtype``.
        num_sms: Programs that run at a time; ``None`` for one per multiprocessor.
        part_rounds: With a configuration: parts of tiles that the busiest program has.
        pack_rows: Whether rows of the filter become channels (``row_packing.py``) if they can, or
            in which way; ``None``: as a model expects, and not where a configuration is given.

    Raises:
        DescriptorError: TMA cannot express the geometry; every violation is listed.
        UnsupportedError: No GPU, too old a GPU or too old a Triton; another dtype.
    """
    machine = device_of(device, "wgrad")
    wrong = _geometry_reasons(problem)
    if wrong:
        raise descriptor_error(wrong)
    others = _other_reasons(problem, dtype, machine)
    out_dtype = dtype if out_dtype is None else out_dtype
    if out_dtype not in OUT_DTYPES:
        others = (*others, f"out_dtype {out_dtype}: expected float16, bfloat16 or float32")
    if others:
        raise UnsupportedError("wgrad: " + "; ".join(others))
    strides = (x_strides, dy_strides)
    if config is None and num_sms is None and pack_rows is None:
        config = _measured(problem, strides, dtype, out_dtype, machine)
    if num_sms is not None:
        machine = replace(machine, num_sms=num_sms)
    if isinstance(config, DepthwiseWgradConfig) or (
        is_depthwise(problem) and config is None and not isinstance(pack_rows, RowPacking)
    ):
        return depthwise_plan(problem, x_strides, dy_strides, out_dtype, machine, config)
    if isinstance(config, SwappedConfig):
        return _swapped_plan(problem, strides, dtype, out_dtype, machine, config)
    if isinstance(config, PackedConfig):
        inner: WgradConfig | WgradChoice = config.config
        config, pack_rows = inner, True
    packing = pack_rows if isinstance(pack_rows, RowPacking) else None
    if pack_rows is True or (pack_rows is None and config is None):
        ways = RowPacking.ways(problem, x_strides, dtype.itemsize, with_planes=True)
        packing = fastest_packing(ways if problem.batch else [], out_dtype, machine)
        # What im2col cannot walk tap by tap is packed whatever it costs.
        if not (pack_rows or conv_violations(problem.geometry)):
            swapped = swapped_way(problem, strides, packing, dtype, out_dtype, machine)
            if swapped is not None:
                tiles = _tiles(swapped.padded, None, out_dtype, machine, part_rounds)
                return wgrad_swapped.make_plan(problem, strides, dtype, out_dtype, tiles, swapped)
            if packing and not packing_pays(packing, out_dtype, machine):
                packing = None
    if packing is None and config is None and problem.batch:
        config = _fastest(problem, dtype, out_dtype, machine)
    if isinstance(config, WgradTileChoice):
        if packing is not None:
            raise UnsupportedError("wgrad: the Gluon kernel does not take packed rows")
        return gluon.make_plan(problem, strides, dtype, out_dtype, machine, config)
    if isinstance(config, WgradChoice):
        config, part_rounds = config.config, config.part_rounds
    computed = problem if packing is None else packing.padded
    tiles = _tiles(computed, config, out_dtype, machine, part_rounds)
    return wgrad_gemm.make_plan(problem, strides, dtype, out_dtype, tiles, packing)


def _measured(
    problem: ConvProblem,
    strides: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    machine: Device,
) -> Any | None:
    """Returns the choice that was measured, ``None`` where there is none for these strides."""
    case = Case(direction="wgrad", problem=problem, dtype=dtype, out_dtype=out_dtype)
    config = find(case, machine)
    if isinstance(config, WgradTileChoice):
        wrong = gluon.reasons(problem, dtype, out_dtype, machine, config)
        return None if wrong else config
    if isinstance(config, SwappedConfig):
        return config if wgrad_swapped.ways(problem, strides, dtype.itemsize) else None
    return config


def _swapped_plan(
    problem: ConvProblem,
    strides: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    machine: Device,
    config: SwappedConfig,
) -> SwappedWgradPlan:
    """Returns the plan of a configuration that swaps x and dy."""
    every = wgrad_swapped.ways(problem, strides, dtype.itemsize)
    way = fastest_packing(every, out_dtype, machine)
    if way is None:
        why = wgrad_swapped.swap_reasons(problem) or ("its padding, its batch or the memory of x",)
        raise UnsupportedError("wgrad: x and dy cannot be swapped: " + "; ".join(why))
    inner, part_rounds = config.config, 1
    if isinstance(inner, WgradChoice):
        inner, part_rounds = inner.config, inner.part_rounds
    tiles = _tiles(way.padded, inner, out_dtype, machine, part_rounds)
    return wgrad_swapped.make_plan(problem, strides, dtype, out_dtype, tiles, way)


def _fastest(
    problem: ConvProblem, dtype: torch.dtype, out_dtype: torch.dtype, machine: Device
) -> WgradChoice | WgradTileChoice | None:
    """Returns the choice that the models expect to be fastest; ``None`` where nothing fits."""
    times = expected_times(problem, dtype, machine, out_dtype)
    return min(times, key=lambda choice: times[choice], default=None)


def _tiles(
    problem: ConvProblem,
    config: WgradConfig | None,
    out_dtype: torch.dtype,
    machine: Device,
    part_rounds: int,
) -> WgradTiles:
    problem = replace(problem, batch=max(problem.batch, 1))
    if config is None:
        ranked = ranked_tiles(problem, out_dtype, machine)
        if not ranked:
            raise UnsupportedError(
                f"wgrad: a CTA has {machine.smem_bytes} bytes of shared memory, the smallest tile "
                "configuration needs more"
            )
        return ranked[0][1]
    if config.problems():
        raise UnsupportedError(f"wgrad: configuration {config}: " + "; ".join(config.problems()))
    return WgradTiles.make(config, problem, machine.num_sms, part_rounds)
