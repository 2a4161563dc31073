"""The analysis of a module, and the queries of passes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ...ir import Module, Operation, Value
from ...ir.encodings import DistributedEncoding
from ...ir.functions import CALLS, FUNCTIONS, callee_of, symbol_of
from ...ir.types import PointerType, TensorType
from .arith import ARITH
from .flow import Solver
from .hints import argument_infos
from .identities import claims_less, is_inlined
from .info import AxisInfo, join
from .layout import order_and_run
from .shapes import SHAPES
from .visit import Rules, Types

__all__ = ["RULES", "AxisInfoAnalysis"]

#: The vendor-independent rules.
RULES: Rules = MappingProxyType({**ARITH, **SHAPES})


class AxisInfoAnalysis:
    """The axis info of the values of a module; the package defines the terms.

    Reads the module once, when created; create another one after an edit.
    """

    __slots__ = ("_inlined", "_layouts", "_module", "_rules", "_states", "_types")

    def __init__(self, module: Module, rules: Rules) -> None:
        self._module = module
        self._rules = rules
        self._types = Types(module.aliases)
        self._inlined: frozenset[str] = frozenset()
        self._states: dict[Value, AxisInfo] = {}
        self._layouts: dict[tuple[DistributedEncoding, tuple[int, ...]], tuple[int, int]] = {}

    @classmethod
    def of(cls, root: Module | Operation, rules: Rules | None = None) -> AxisInfoAnalysis:
        """Analyses a module, or one function with its callers.

        Args:
            root: A module, or a function inside a module.
            rules: Rules of a vendor by the operation's name; they take precedence.

        Raises:
            VerifyError: An operation is malformed, or ``root`` is no function of a module.
        """
        module = root if isinstance(root, Module) else root.module
        if module is None:
            assert isinstance(root, Operation)
            root.fail(f"expected a function that is part of a module, found '{root.name}'")
        made = cls(module, RULES if rules is None else {**RULES, **rules})
        functions = [op for op in module.op.walk() if op.name in FUNCTIONS]
        if isinstance(root, Operation) and root not in functions:
            root.fail(f"expected a function, found '{root.name}'")
        made._run(functions, root if isinstance(root, Operation) else None)
        return made

    # ---- queries

    def info(self, value: Value) -> AxisInfo:
        """Returns the state of a value.

        An unreachable value has no claims, and a gap, because a host may not find it unreachable.
        """
        found = self._states.get(value)
        if found is not None:
            return found
        return AxisInfo.nothing(len(self._types.shape(value)), value._holder)

    def alignment(
        self,
        value: Value,
        element_bits: int | None = None,
        encoding: DistributedEncoding | None = None,
    ) -> int:
        """Returns the aligned run of contiguous elements in the fastest dimension.

        Args:
            value: A tensor of pointers, or of offsets from a pointer.
            element_bits: Bits of the pointee; by default read from the type.
            encoding: Determines the fastest dimension; by default the value's.

        Returns:
            A number of elements; 1 for a scalar.
        """
        kind = self._types.kind(value)
        if not kind.is_tensor:
            return 1
        dim = self._layout(value, encoding)[0]
        known = self.info(value)
        divisor = known.divisibility[dim]
        if isinstance(kind.element, PointerType):
            bits = element_bits or kind.element.pointee.bit_width or 8
            divisor = max(1, divisor // max(1, bits // 8))
        return min(divisor, known.contiguity[dim])

    def pointer_contiguity(
        self,
        value: Value,
        element_bits: int | None = None,
        encoding: DistributedEncoding | None = None,
    ) -> int:
        """Returns the elements that one thread may access at once: in its registers and aligned.

        Args:
            value: A tensor of pointers, or of offsets from a pointer.
            element_bits: Bits of the pointee; by default read from the type.
            encoding: Another encoding than that of the value.

        Returns:
            A number of elements; no hardware limit is applied.
        """
        if not self._types.kind(value).is_tensor:
            return 1
        run = self._layout(value, encoding)[1]
        return min(run, self.alignment(value, element_bits, encoding))

    def mask_alignment(self, mask: Value, encoding: DistributedEncoding | None = None) -> int:
        """Returns the group size, in the fastest dimension, in which a mask is constant.

        Args:
            mask: A tensor of ``i1``.
            encoding: Another encoding than that of the mask.
        """
        if not self._types.kind(mask).is_tensor:
            return 1
        return max(1, self.info(mask).constancy[self._layout(mask, encoding)[0]])

    def _layout(self, value: Value, encoding: DistributedEncoding | None) -> tuple[int, int]:
        type_ = self._types.of(value)
        assert isinstance(type_, TensorType)
        used = encoding if encoding is not None else type_.encoding
        if not isinstance(used, DistributedEncoding):
            value._holder.fail(
                f"expected a tensor with a register encoding as '{value.name}', found"
                f" '{value.type}'"
            )
        key = (used, type_.static_shape)
        if key not in self._layouts:
            self._layouts[key] = order_and_run(*key)
        return self._layouts[key]

    # ---- solving

    def _run(self, functions: list[Operation], target: Operation | None) -> None:
        """Analyses callers before callees."""
        calls: dict[Operation, list[Operation]] = {function: [] for function in functions}
        by_symbol = {symbol_of(function): function for function in functions}
        self._inlined = frozenset(
            symbol for symbol, function in by_symbol.items() if symbol and is_inlined(function)
        )
        for op in self._module.op.walk():
            callee = by_symbol.get(callee_of(op)) if op.name in CALLS else None
            if callee is not None:
                calls[callee].append(op)
        done: set[Operation] = set()
        for function in functions if target is None else [target]:
            self._analyse(function, calls, done, ())

    def _analyse(
        self,
        function: Operation,
        calls: Mapping[Operation, list[Operation]],
        done: set[Operation],
        above: tuple[Operation, ...],
    ) -> None:
        if function in done:
            return
        recursive = False
        for call in calls[function]:
            caller = _function_of(call)
            if caller is function or caller in above:
                recursive = True
            elif caller is not None:
                self._analyse(caller, calls, done, (*above, function))
        if function in done:
            return
        done.add(function)
        solver = Solver(self._types, self._rules, self._inlined)
        solver.run(function, self._arguments(function, calls[function], recursive))
        self._states.update(solver.states)

    def _arguments(
        self, function: Operation, calls: list[Operation], recursive: bool
    ) -> tuple[AxisInfo, ...]:
        """Returns the states of the arguments: from their attributes and all calls."""
        if not function.regions:
            return ()
        arguments = function.regions[0].blocks[0].args
        promised = argument_infos(
            function, tuple(len(self._types.shape(argument)) for argument in arguments)
        )
        if recursive:
            return tuple(info.with_gap(function) for info in promised)
        found = []
        for index, (argument, info) in enumerate(zip(arguments, promised, strict=True)):
            passed: AxisInfo | None = None
            each = [self.info(call.operands[index]).of_rank(info.rank) for call in calls]
            for one in each:
                passed = (
                    one if passed is None else join(passed, one, self._types.kind(argument).stride)
                )
            if passed is not None:
                info = _both(passed, info)
                # After inlining a host may know what this call passes.
                if is_inlined(function) and any(claims_less(info, one) for one in each):
                    info = info.with_gap(function)
            found.append(info)
        return tuple(found)


def _both(passed: AxisInfo, promised: AxisInfo) -> AxisInfo:
    """Combines two states that both hold for a value."""
    return AxisInfo(
        tuple(map(max, passed.contiguity, promised.contiguity)),
        tuple(map(max, passed.divisibility, promised.divisibility)),
        tuple(map(max, passed.constancy, promised.constancy)),
        passed.constant,
        passed.gap,
    )


def _function_of(op: Operation) -> Operation | None:
    around = op.parent_op
    while around is not None and around.name not in FUNCTIONS:
        around = around.parent_op
    return around
