"""``test-print-allocation``: tells offsets and sizes as remarks, for tests.

Upstream's pass of this name says the same: a function's name and its size at the function,
``offset = .., size = ..`` at each buffer, ``scratch`` or ``virtual`` in front of what an operation
needs while it runs or a called function takes.  Nothing is changed.

Upstream's tests name offsets, so buffers lie where Triton puts them, which is no better than
``placement=ext``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from triton_ext.analysis.allocation import BufferKind, allocate
from triton_ext.ir import Module, Operation
from triton_ext.ir.functions import symbol_of
from triton_ext.passes.base import Pass
from triton_ext.passes.context import PassContext
from triton_ext.passes.shared_memory import allocation_of

__all__ = ["PrintAllocation"]

_CONSTANT = 128
#: Bytes of a partition; more than any memory has.
_MOST = 1 << 30


@dataclass(frozen=True, slots=True)
class PrintAllocation(Pass):
    """Tells where buffers go.

    Attributes:
        get_scratch_size_function: ``ValidConstant``: operations are taken to need 128 bytes each
            where it is asked how much they do.
        partition_size: Bytes of a physical partition; 0 where memory is not partitioned.
        placement: Whose: Triton's, or that of ``allocate-shared-memory``.
    """

    name: ClassVar[str] = "test-print-allocation"

    get_scratch_size_function: Literal["None", "ValidConstant"] = "None"
    partition_size: int = 0
    placement: Literal["triton", "ext"] = "triton"

    def __post_init__(self) -> None:
        size = self.partition_size
        if size and not (_CONSTANT <= size <= _MOST and size & (size - 1) == 0):
            raise ValueError(
                f"expected a power of two from {_CONSTANT} to {_MOST} as 'partition-size', or 0, "
                f"found {size}"
            )

    def run(self, module: Module, context: PassContext) -> None:
        """Makes the remarks.

        Raises:
            PassError: An operation needs memory, and it is not known how much.
            VerifyError: A buffer has no size that is known, or Triton would never end.
        """
        features, as_triton = context.host_features(), self.placement == "triton"
        if self.get_scratch_size_function == "ValidConstant":
            found = allocate(
                module,
                partition_size=self.partition_size,
                scratch=_constant,
                features=features,
                as_triton=as_triton,
            )
        else:
            found = allocation_of(
                module, self.partition_size, features=features, target="", as_triton=as_triton
            )
        for function in found.functions.values():
            name = symbol_of(function.function) or ""
            context.remark(function.function, name)
            for buffer in function.buffers:
                kind = "" if buffer.kind is BufferKind.EXPLICIT else f"{buffer.kind.value} "
                context.remark(buffer.op, f"{kind}offset = {buffer.offset}, size = {buffer.size}")
            context.remark(function.function, f"size = {function.total}")


def _constant(op: Operation) -> tuple[int, int]:
    return (_CONSTANT, _CONSTANT) if not op.regions else (0, 1)
