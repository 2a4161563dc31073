"""Random convolutions whose filter rows can be packed, and how they are run and compared."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch
from fprop_cases import Case, convolve
from fprop_cases import draw as draw_any
from planned import plan_fprop
from triton_ext.ops.core.epilogue import EpilogueSpec
from triton_ext.ops.core.packing import RowPacking
from triton_ext.ops.core.plan import ForwardPlan
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.gemm_config import ConvConfig
from triton_ext.ops.families.gluon_config import TileConfig

__all__ = ["PackedCase", "draw", "draw_patches", "draw_problem", "finite_where_torch_is"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCase(Case):
    """A case whose rows are packed, whatever a model says.

    Attributes:
        columns: Whether columns are, where there are any.
        planes: Whether planes are, which have to be there.
    """

    columns: bool = False
    planes: bool = False

    def way(self, x: torch.Tensor) -> RowPacking:
        """How rows are packed."""
        ways = RowPacking.candidates(self.problem, x.stride(), x.itemsize)
        return [way for way in ways if way.planes == self.planes][-1 if self.columns else 0]

    def plan(self, x: torch.Tensor, config: ConvConfig | TileConfig | None = None) -> ForwardPlan:
        """Ours."""
        way = self.way(x)
        plan = plan_fprop(
            self.problem, x.stride(), x.dtype, x.device, self.spec, config, pack_rows=way
        )
        assert plan.row_copies.packing == way
        return plan


def draw_problem(rng: random.Random, *, pixels: int) -> ConvProblem:
    """A random problem with several taps in W, next to each other.

    Args:
        rng: Draws.
        pixels: The largest side.
    """
    while True:
        dims = rng.randint(1, 3)

        def several(high: int, dims: int = dims) -> tuple[int, ...]:
            return tuple(rng.randint(1, high) for _ in range(dims))

        problem = ConvProblem(
            batch=rng.randint(1, 3),
            in_channels=rng.choice((1, 2, 3, 3, 3, 4, 5, 8, 12, 16, 20, 32)),
            out_channels=rng.choice((1, 3, 8, 16, 24, 64, 72)),
            input_size=several(pixels),
            filter_size=(*several(3)[1:], rng.randint(2, 8)),
            stride=several(4),
            padding=tuple((rng.randint(0, 3), rng.randint(0, 3)) for _ in range(dims)),
            dilation=(*several(2)[1:], 1),
        )
        if rng.random() < 0.3:
            # Without padding in W, and often with channels that need no copy.
            problem = _replace_last(problem, padding=(0, 0), channels=rng.choice((4, 8, 16)))
        if 0 not in problem.output_size:
            return problem


def draw_patches(rng: random.Random, *, pixels: int) -> ConvProblem:
    """A random problem of two dimensions whose rows are planes, often a layer of patches.

    Args:
        rng: Draws.
        pixels: The largest side.
    """
    while True:
        taps = (rng.randint(1, 5), rng.randint(2, 12))
        is_patches = rng.random() < 0.5
        problem = ConvProblem(
            batch=rng.randint(1, 3),
            in_channels=rng.choice((1, 2, 3, 3, 3, 4, 8, 20)),
            out_channels=rng.choice((1, 3, 8, 16, 24, 64, 72)),
            input_size=(rng.randint(1, pixels), rng.randint(1, 2 * pixels)),
            filter_size=taps,
            stride=taps if is_patches else (rng.randint(1, 12), rng.randint(1, 12)),
            padding=((0, 0), (0, 0) if is_patches else (rng.randint(0, 3), rng.randint(0, 3))),
            dilation=(1 if is_patches else rng.randint(1, 3), 1),
        )
        if min(problem.output_size) > 0:
            return problem


def _replace_last(problem: ConvProblem, padding: tuple[int, int], channels: int) -> ConvProblem:
    return replace(problem, padding=(*problem.padding[:-1], padding), in_channels=channels)


def draw(
    rng: random.Random,
    dtypes: tuple[torch.dtype, ...],
    *,
    activations: tuple[str, ...],
    pixels: int = 9,
    fp8_out: bool = False,
) -> PackedCase:
    """A random case with an epilogue.

    Args:
        rng: Draws.
        dtypes: Of x and weight, one of which is drawn.
        activations: One of which is drawn.
        pixels: The largest side.
        fp8_out: Whether outputs may be fp8.
    """
    case = draw_any(rng, dtypes, activations=activations, fp8_out=fp8_out)
    return PackedCase(
        problem=draw_problem(rng, pixels=pixels),
        dtype=case.dtype,
        spec=case.spec if rng.random() < 0.3 else EpilogueSpec(out_dtype=case.spec.out_dtype),
        one_scale=case.one_scale,
        plain_order=case.plain_order,
        given_out=case.given_out,
        columns=rng.random() < 0.5,
    )


def finite_where_torch_is(
    case: PackedCase, bad: float, device: str, rng: random.Random, config: TileConfig | None = None
) -> None:
    """Puts a bad number into one element of x; exactly the outputs that see it show it."""
    x, weight, operands = case.tensors(device)
    place = tuple(rng.randrange(extent) for extent in x.shape)
    x[place] = bad
    # Of zero weights infinity makes NaN as well; none is zero here.
    weight = torch.where(weight == 0, torch.ones_like(weight), weight)
    y = case.plan(x, config).run(x, weight, operands)
    expected = convolve(case.problem, x.double(), weight.double())
    assert torch.equal(y.double().isnan(), expected.isnan())
    assert torch.equal(y.isfinite(), expected.isfinite())
