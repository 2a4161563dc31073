"""Partial im2col: taps of a row of the filter, or of all of it, are channels of x or dy.

``core/packing.py`` has the geometry, ``kernels/row_copy.py`` the copies.

dgrad as fprop: with stride 1, dx is the convolution of dy with the filter turned round, its two
channels swapped; with few output channels rows of dy are worth packing.

Operand swap, for few output channels: with stride 1 and one group,

    dw[co, r, ci] = sum over output pixels p of dy[p, co] * x[p + r * dilation - padding, ci]
                  = sum over input pixels q of x[q, ci] * dy[q - r * dilation + padding, co]

The second sum is a wgrad, too: of the convolution over dy that computes dx (``as_forward``).  Its
input is dy, whose few channels are worth packing; its output's gradient is x.  The copy that
unpacks its dw flips the taps and swaps the channels.  The swap pads dy, not x: NaN or infinity of x
shows also in taps through which no output pixel reads it, that of dy not in taps that read padding.
Not handled: strides, groups, padding beyond the reach of the filter, an x that has to be copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from triton_ext import backends
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.descriptors import ROW_BYTES, Operand
from triton_ext.ops.core.device import H200, Device, Expected
from triton_ext.ops.core.family import HOPELESS, Family
from triton_ext.ops.core.packing import RowPacking, packing_refusals
from triton_ext.ops.core.problem import ConvProblem, as_forward
from triton_ext.ops.core.refusals import Refusals, refused
from triton_ext.ops.families.gemm import GEMM, tap_refusals
from triton_ext.ops.families.gluon import GLUON
from triton_ext.ops.families.rewrite import Rewrite
from triton_ext.ops.families.wgrad import WGRAD, WgradPlan, filling_dy_us, packing_us

conv_violations = backends.load("nvidia", "conv_violations")

# The operand swap reads x in place: its channels are whole units of 16 bytes of 16-bit numbers.
_CHANNEL_UNIT = ROW_BYTES // 2
# An error that the models may have: partial im2col should be faster by more.
_MARGIN = 0.85


# Refusals, times and the plan of one case ask for it.
@lru_cache(maxsize=256)
def _packed(case: Case, device: Device, *, is_copied: bool = False) -> Case | Refusals:
    """Returns a case of fprop or wgrad with the packing of x that is expected to be fastest.

    Refusals say why there is no packing, or with ``is_copied`` none that copies x.
    """
    problem, is_wgrad = case.problem, case.direction == "wgrad"
    times = {
        each: packing_us(each, case, device) if is_wgrad else each.cost(device.num_sms)[0]
        for each in RowPacking.candidates(problem, case.strides_of_x, case.dtype.itemsize)
        if each.is_copied >= is_copied and (problem.batch or not is_wgrad)
    }
    if times:
        return replace(case, packing=min(times, key=times.__getitem__))
    return packing_refusals(problem) or refused(
        "im2col cannot read packed rows either", in_key=False
    )


@dataclass(frozen=True, slots=True)
class PackedConfig:
    """A configuration of partial im2col in fprop or wgrad: that of the family that computes it."""

    config: Any


class AsFpropConfig(PackedConfig):
    """A configuration of dgrad as fprop over packed rows of dy."""


class SwappedConfig(PackedConfig):
    """A configuration of the operand swap."""


class _PackedRows(Rewrite[PackedConfig]):
    """Reads rows of the filter as channels; there is one other case at most."""

    reads = "packed rows"

    def rewritten(self, case: Case, device: Device) -> Case | Refusals:
        """Returns the other case, or why there is none."""
        return _packed(case, device)

    def case_refusals(self, case: Case, device: Device) -> Refusals:
        rewritten = self.rewritten(case, device)
        return () if isinstance(rewritten, Case) else rewritten

    def variants(
        self, case: Case, device: Device
    ) -> Iterable[tuple[Callable[[Any], PackedConfig], Family[Any], Case]]:
        rewritten = self.rewritten(case, device)
        if not isinstance(rewritten, Case):
            return ()
        return [(self.config_type, family, rewritten) for family in self.inner]


class PartialIm2col(_PackedRows):
    """fprop over packed rows of x."""

    kind = "packed"
    direction: Direction = "fprop"
    config_type = PackedConfig
    supersedes: ClassVar[tuple[str, ...]] = ("gemm", "gluon")
    inner = (GLUON, GEMM)

    def passed_over(self, case: Case, device: Device) -> str:
        packed_us, taps_us = self._times(case, device)
        if packed_us < _MARGIN * taps_us:
            return ""
        return (
            f"copies and steps of packed rows take {packed_us:.1f} us, tap by tap {taps_us:.1f}: "
            f"expected less than {_MARGIN} of that"
        )

    def is_hopeless(self, case: Case, device: Device) -> bool:
        packed_us, taps_us = self._times(case, device)
        return packed_us > HOPELESS * taps_us

    def _times(self, case: Case, device: Device) -> tuple[float, float]:
        """Returns the expected times, with packed rows and tap by tap, of a case that it computes.

        This model decides in fprop and dgrad whether packing pays; models of the kernels were
        fitted to other k iterations.
        """
        rewritten = self.rewritten(case, device)
        assert isinstance(rewritten, Case)
        assert rewritten.packing is not None
        return rewritten.packing.cost(device.num_sms)


class PartialIm2colWgrad(_PackedRows):
    """wgrad: of x's packed pixels, and a copy that unpacks dw."""

    kind = "packed"
    direction = "wgrad"
    config_type = PackedConfig
    inner = (WGRAD,)

    def with_copies(self, case: Case, rewritten: Case, expected: Expected) -> Expected:
        # Wgrad tap by tap fills channels of dy, too: that alone does not count 1 / _MARGIN times.
        expected = expected.plus("unpacking", H200.launch_us).corrected(1 / _MARGIN)
        return expected.plus("filling", filling_dy_us(rewritten))


class AsFprop(PartialIm2col):
    """dgrad as fprop over packed rows of dy."""

    kind = "as_fprop"
    direction = "dgrad"
    config_type = AsFpropConfig
    reads_packed = True
    supersedes = ("gemm", "gluon", "patches")
    is_hopeless = Family.is_hopeless

    def rewritten(self, case: Case, device: Device) -> Case | Refusals:
        forward, strides = as_forward(case.problem), case.strides_of_dy
        if forward is None:
            return refused("no convolution of dy: expected stride 1 and one group")
        if conv_violations(forward.geometry):
            return packing_refusals(forward) or refused("im2col cannot read dy so", in_key=False)
        turned = Case(direction="fprop", problem=forward, dtype=case.dtype, x_strides=strides)
        if case.packing is not None:
            packed: Case | Refusals = replace(turned, packing=case.packing)
        else:
            packed = _packed(turned, device)
        if not isinstance(packed, Case) or packed.packing is None:
            return packed
        return replace(packed, packing=replace(packed.packing, is_turned=True))

    def passed_over(self, case: Case, device: Device) -> str:
        return "" if case.packing is not None else super().passed_over(case, device)


class OperandSwap(PartialIm2colWgrad):
    """wgrad of the convolution over dy, whose rows are packed."""

    kind = "swapped"
    config_type = SwappedConfig

    def rewritten(self, case: Case, device: Device) -> Case | Refusals:
        if (swapped := swapped_case(case)) is not None:
            # Gradients begin at any address, and TMA reads from aligned ones: dy is copied.
            packed = _packed(swapped, device, is_copied=True)
            if isinstance(packed, Case):
                return packed
        return swap_refusals(case.problem) or refused(
            "its padding, its batch or the memory of x does not allow it", in_key=False
        )

    def passed_over(self, case: Case, device: Device) -> str:
        if case.problem.in_channels <= case.problem.out_channels:
            return "there are no more input channels than output channels"
        return "; ".join(map(str, tap_refusals(case)))

    def plan(
        self, case: Case, rewritten: Case, device: Device, bind: Callable[[Case], WgradPlan]
    ) -> WgradPlan:
        return replace(bind(rewritten), problem=case.problem, is_swapped=True)


def swap_refusals(problem: ConvProblem) -> Refusals:
    """Returns why x and dy of a problem cannot be swapped, whatever its sizes and its padding."""
    found = []
    if set(problem.stride) != {1}:
        found.append(f"stride {problem.stride}: expected 1, dy has no pixels between its own")
    if problem.in_channels % _CHANNEL_UNIT:
        found.append(f"{problem.in_channels} input channels: expected a multiple of 8")
    return (*refused(*found), *packing_refusals(problem))


def swapped_case(case: Case) -> Case | None:
    """Returns the case with x and dy swapped; ``None`` where they cannot be."""
    problem, x_strides = case.problem, case.strides_of_x
    swapped = None if swap_refusals(problem) or not problem.batch else as_forward(problem)
    if swapped is None or min(map(min, swapped.padding)) < 0:
        return None
    # x is the large one: a copy of it costs more than is gained.
    if Operand.make(problem.x_shape, x_strides, case.dtype.itemsize, as_matrix=True).is_copied:
        return None
    operands = replace(case, x_strides=case.strides_of_dy, dy_strides=x_strides)
    return replace(operands, problem=swapped, out_dtype=case.output_dtype)


PARTIAL_IM2COL = PartialIm2col()
PARTIAL_IM2COL_WGRAD = PartialIm2colWgrad()
AS_FPROP = AsFprop()
OPERAND_SWAP = OperandSwap()
