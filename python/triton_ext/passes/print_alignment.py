"""``test-print-alignment``: prints the axis info of every result as remarks, for tests.

The remarks have the form of upstream's pass of this name: ``contiguity = [..], divisibility = [..],
constancy = [..], constant_value = ..``.  The module stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from triton_ext.analysis.axis_info import AxisInfo, AxisInfoAnalysis, Rules
from triton_ext.ir import Module, Value
from triton_ext.ir.functions import FUNCTIONS
from triton_ext.ir.types import TensorType, parse_type
from triton_ext.passes.base import Pass
from triton_ext.passes.context import PassContext

__all__ = ["PrintAlignment"]


@dataclass(frozen=True, slots=True)
class PrintAlignment(Pass):
    """Prints contiguity, divisibility, constancy and constant of every result in a function."""

    name: ClassVar[str] = "test-print-alignment"

    def rules(self) -> Rules | None:
        """Returns the rules of a vendor's operations; ``None`` without a vendor."""
        return None

    def run(self, module: Module, context: PassContext) -> None:
        """Makes one remark for each result, at the operation that defines it.

        Raises:
            VerifyError: An operation is malformed.
        """
        analysis = AxisInfoAnalysis.of(module, self.rules())
        for function in [op for op in module.walk() if op.name in FUNCTIONS]:
            for op in function.walk():
                # Without names: a result that the text does not name would get one by the question.
                for number, result in enumerate(op.results):
                    what = op.name if len(op.results) == 1 else f"{op.name} result {number}"
                    claims = _text(analysis.info(result), result, module.aliases)
                    context.remark(op, f"{what} => {claims}")


def _text(info: AxisInfo, value: Value, aliases: Mapping[str, str]) -> str:
    constant = info.constant
    if constant == 1 and _is_truth(value, aliases):
        constant = -1  # The remark shows every constant as a signed number.
    numbers = (("contiguity", info.contiguity), ("divisibility", info.divisibility))
    parts = [f"{name} = {list(found)}" for name, found in (*numbers, ("constancy", info.constancy))]
    return ", ".join([*parts, f"constant_value = {'<none>' if constant is None else constant}"])


def _is_truth(value: Value, aliases: Mapping[str, str]) -> bool:
    """Returns whether a value is an ``i1`` or a tensor of them."""
    type_ = parse_type(value.type, aliases)
    return (type_.element if isinstance(type_, TensorType) else type_).bit_width == 1
