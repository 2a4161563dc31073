"""dgrad where patches do not overlap: one GEMM whose columns are the pixels of a patch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import Expected, Family, smem_refusals
from triton_ext.ops.families.gemm_config import ConvConfig, OutputTile
from triton_ext.ops.kernels import patches
from triton_ext.ops.kernels.patches import PatchDgradPlan

__all__ = ["PATCHES", "PatchConfig"]

# Its times count as much more.  The kernel's time was not measured: it is taken where its model
# leaves no doubt, which is what few channels make of stride phases.
_CORRECTION = 1 / 0.6


@dataclass(frozen=True, slots=True)
class PatchConfig:
    """One way to compile the kernel.

    Attributes:
        config: The tiles of patches and of their elements, and the pipeline.
    """

    config: ConvConfig


class Patches(Family[PatchConfig]):
    """The kernel of ``kernels/patches.py``."""

    kind: ClassVar[str] = "patches"
    direction: ClassVar[Direction] = "dgrad"
    config_type: ClassVar[type[PatchConfig]] = PatchConfig

    def refusals(self, case: Case, device: Device, config: PatchConfig | None = None) -> list[str]:
        if not patches.has_patches(case.problem):
            return ["windows of the filter are no patches beside each other"]
        return [] if config is None else self.number_refusals(config, case, device)

    def number_refusals(self, config: PatchConfig, case: Case, device: Device) -> list[str]:
        size = case.dtype.itemsize
        output = OutputTile(element_bytes=size, through_pointers=True, whole=True)
        tiles = config.config
        return tiles.problems(size) or smem_refusals(tiles.smem_bytes(size, output=output), device)

    def config_refusals(self, config: PatchConfig, case: Case, device: Device) -> list[str]:
        # How much padding there is, is not in the key; refusals() asks for it.
        return self.number_refusals(config, case, device)

    def candidates(self, case: Case, device: Device) -> Mapping[PatchConfig, Expected]:
        times = patches.ranking(case.problem, case.dtype, device)
        return {
            PatchConfig(tiles): Expected.of(us, correction=_CORRECTION)
            for tiles, us in times.items()
        }

    def bind(self, config: PatchConfig, case: Case, device: Device) -> PatchDgradPlan:
        return patches.make_plan(
            case.problem, case.strides_of_dy, case.dtype, device, config.config
        )


PATCHES: Patches = Patches()
