"""wgrad as an implicit GEMM in Gluon for Hopper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.families.gemm import tap_refusals
from triton_ext.ops.families.gluon_config import DTYPES, problem_refusals
from triton_ext.ops.hopper import wgrad_plan
from triton_ext.ops.hopper.wgrad_tiles import WgradTileChoice
from triton_ext.ops.wgrad_gemm import ranked_tiles

__all__ = ["GLUON_WGRAD", "MOST_EXPECTED"]

#: The wgrad kernel's time counts 1 / MOST_EXPECTED times.  Its model and that of the @triton.jit
#: kernel were fitted on the same GPU.  Of the 36 layers whose @triton.jit time is measured
#: (docs/wgrad.md; H200, fp16, 2026-11-20), 12 would be the Gluon kernel's, one of them by 0.3 %
#: wrongly; with 1.0 there would be 15, two by 8 % wrongly.
MOST_EXPECTED = 0.96


class GluonWgrad(Family[WgradTileChoice]):
    """wgrad: the kernels of ``hopper/wgrad.py``."""

    kind: ClassVar[str] = "gluon_wgrad"
    direction: ClassVar[Direction] = "wgrad"
    config_type: ClassVar[type[WgradTileChoice]] = WgradTileChoice
    is_gemm: ClassVar[bool] = True
    tile_fields: ClassVar[tuple[str, ...]] = (
        *("rows_from_x", "consumers", "main_blocks", "rest_blocks"),
    )

    def refusals(
        self, case: Case, device: Device, config: WgradTileChoice | None = None
    ) -> list[str]:
        found = wgrad_plan.reasons(case.problem, case.dtype, case.output_dtype, device, config)
        return [*tap_refusals(case), *found]

    def number_refusals(self, config: WgradTileChoice, case: Case, device: Device) -> list[str]:
        return config.config.problems()

    def config_refusals(self, config: WgradTileChoice, case: Case, device: Device) -> list[str]:
        found = [*config.config.problems(), *problem_refusals(case.problem, case.dtype)]
        if case.output_dtype not in DTYPES:
            found.append(f"out_dtype is {case.output_dtype}: expected float16 or bfloat16")
        # Tiles can be counted of what is right so far.
        if found or not case.problem.batch:
            return found
        return wgrad_plan.work_of(case.problem, config, device.num_sms).problems()

    def candidates(self, case: Case, device: Device) -> Mapping[WgradTileChoice, Expected]:
        problem = case.problem
        jit = ranked_tiles(problem, case.output_dtype, device)
        least = problem.out_channels * problem.taps * problem.in_channels
        if jit:
            best = jit[0][1]
            partition = best.partition
            tiles = partition.whole_tiles + partition.split_tiles
            least = max(least, tiles * best.config.tile_elements)
        found = {}
        for work, us in wgrad_plan.ranking(problem, device.num_sms):
            # Its model was fitted to channels in whole blocks.  What its tiles compute beside dw,
            # more than those of the @triton.jit kernel do, counts once more.
            computed = work.partition.tiles * work.config.tile_elements
            waste = max(1.0, computed / least)
            found[work.choice] = Expected.of(us, correction=waste / MOST_EXPECTED)
        return ranked(found)

    def bind(self, config: WgradTileChoice, case: Case, device: Device) -> Any:
        strides = (case.strides_of_x, case.strides_of_dy)
        return wgrad_plan.make_plan(
            case.problem, strides, case.dtype, case.output_dtype, device, config
        )


GLUON_WGRAD: GluonWgrad = GluonWgrad()
