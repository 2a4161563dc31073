"""The operators of torch, and how they are called: eagerly, compiled, traced or transformed.

Every direction is two operators, with and without a backward; :class:`Operator` describes both, and
``library.py`` registers them.  The operators are looked up when they are called, so that whatever
is registered with one of them (a gradient, a rule for vmap) can call the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from triton_ext.ops.api.forward_mode import by_torch, is_forward_mode
from triton_ext.ops.core.dispatch_cache import cast_operands, is_autocast
from triton_ext.ops.core.epilogue import EpilogueArguments, is_device_function, result_refusal
from triton_ext.ops.core.parameters import ConvParameters

__all__ = [
    "DGRAD",
    "FPROP",
    "FUSED",
    "INTO",
    "OPERATORS",
    "WGRAD",
    "Functions",
    "Operator",
    "dgrad",
    "fprop",
    "function_handle",
    "function_of",
    "functions",
    "fused",
    "fused_into",
    "is_differentiated",
    "is_traced",
    "is_transformed",
    "wgrad",
]

Tensor = torch.Tensor
Sizes = Sequence[Any]

# How the fields of ConvParameters are declared in schemas.
_DECLARATIONS = {
    "stride": "int[]",
    "padding": "int[]",
    "dilation": "int[]",
    "groups": "SymInt",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator of a direction, and its twin with a backward.

    Its flat arguments are tensors, the fields of :class:`ConvParameters`, others, whether torch may
    take the call, and tensors that are written.  Implementations get the parameters as one value.

    Attributes:
        name: Name of the operator without a backward.
        differentiable: Name of the twin; empty if there is none.
        tensors: Declarations of the tensors.
        others: Declarations of the other arguments.
        written: Declarations of the tensors that are written.
        is_traceable: Whether torch.jit.trace records it, which sizes among the arguments, SymInt[],
            end (torch 2.13).
    """

    name: str
    differentiable: str
    tensors: tuple[str, ...]
    others: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    is_traceable: bool = False

    @property
    def schema(self) -> str:
        """The schema of both operators."""
        parameters = [f"{_DECLARATIONS[name]} {name}" for name in ConvParameters._fields]
        arguments = (*self.tensors, *parameters, *self.others, "bool fallback", *self.written)
        return f"({', '.join(arguments)}) -> {'()' if self.written else 'Tensor'}"

    def grouped(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Returns flat arguments with the parameters as one value."""
        first = len(self.tensors)
        last = first + len(ConvParameters._fields)
        stride, padding, dilation, groups = arguments[first:last]
        parameters = ConvParameters(tuple(stride), tuple(padding), tuple(dilation), groups)
        return (*arguments[:first], parameters, *arguments[last:])

    def flat(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function of flat arguments for one of grouped arguments."""

        def of_flat(*arguments: Any) -> Any:
            return function(*self.grouped(arguments))

        return of_flat


_EPILOGUE = (
    *("Tensor x", "Tensor weight", "Tensor? bias", "Tensor? scale", "Tensor? residual"),
    *("Tensor? out_scale", "Tensor[] extra"),
)
_FUNCTION = ("str activation", "ScalarType? out_dtype", "str? function")

#: y of x, weight and bias.
FPROP = Operator(
    name="fprop",
    differentiable="conv",
    tensors=("Tensor x", "Tensor weight", "Tensor? bias"),
    is_traceable=True,
)
#: dx of dy and weight; with a bias, a transposed convolution.
DGRAD = Operator(
    name="dgrad",
    differentiable="conv_input",
    tensors=("Tensor dy", "Tensor weight", "Tensor? bias"),
    others=("SymInt[] input_size",),
)
#: dw of x and dy.
WGRAD = Operator(
    name="wgrad",
    differentiable="conv_weight",
    tensors=("Tensor x", "Tensor dy"),
    others=("SymInt[] filter_size",),
)
#: y with an epilogue.
FUSED = Operator(
    name="fprop_fused",
    differentiable="conv_fused",
    tensors=_EPILOGUE,
    others=_FUNCTION,
    is_traceable=True,
)
#: The same into tensors that are given.
INTO = Operator(
    name="fprop_into",
    differentiable="",
    tensors=_EPILOGUE,
    others=_FUNCTION,
    written=("Tensor(a!) out", "Tensor(b!)? amax"),
)
OPERATORS = (FPROP, DGRAD, WGRAD, FUSED, INTO)


@dataclass(frozen=True, slots=True)
class Functions:
    """An operator with a backward as functions of autograd.

    Attributes:
        eager: Costs 20 us less a call than the operator, whose autograd torch.library generates
            (torch 2.13, CPU build, 2026-11-20).
        transformed: For the transforms of torch.func, which refuse the operator.
        casts: Which arguments autocast casts.
    """

    eager: type[torch.autograd.Function]
    transformed: type[torch.autograd.Function]
    casts: tuple[bool, ...]


#: Whether torch.compile can ask for transforms: it can with torch 2.13, not with 2.11.
SEES_LAYERS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)

#: By the name of the operator with a backward; ``library.py`` fills it.
functions: dict[str, Functions] = {}


def is_differentiated(*tensors: Tensor | None) -> bool:
    """Tells whether torch may ask for a derivative of what is computed from these tensors."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return is_transformed()


def is_traced() -> bool:
    """Tells whether torch.jit.trace records what is called."""
    return not torch.compiler.is_compiling() and torch.jit.is_tracing()


def is_transformed() -> bool:
    """Tells whether a transform of torch.func is at work, which does not show in requires_grad."""
    if torch.compiler.is_compiling() and not SEES_LAYERS:
        # The operator's own refusal is what is left to say there.
        return False
    return torch._C._functorch.get_dynamic_layer_stack_depth() > 0


def _call(
    operator: Operator,
    tensors: Sequence[Tensor | None],
    parameters: ConvParameters,
    others: Sequence[Any],
    fallback: bool,
    extra: tuple[Any, ...] = (),
) -> Tensor:
    """Calls the operator of a direction that costs least and has the derivatives asked for.

    Args:
        operator: The direction.
        tensors: Its tensors.
        parameters: Those of the convolution.
        others: Its other arguments.
        fallback: Whether torch may take the call.
        extra: A list of more tensors, for those operators that have one.
    """
    name, differentiable = operator.name, operator.differentiable
    if fallback and is_forward_mode(tensors):
        return by_torch(name, _cast(differentiable, tensors), (*extra, parameters, *others))
    rest = (*extra, *parameters, *others, fallback)
    if operator.is_traceable and is_traced() and not is_transformed():
        # A caller of the graph may differentiate it.
        return getattr(torch.ops.triton_ext, differentiable).default(*tensors, *rest)
    if not is_differentiated(*tensors):
        return getattr(torch.ops.triton_ext, name).default(*tensors, *rest)
    transformed = is_transformed()
    if torch.compiler.is_compiling():
        if transformed:
            raise NotImplementedError(
                "convolutions under a transform of torch.func do not compile; call the transform "
                "outside of torch.compile"
            )
        return getattr(torch.ops.triton_ext, differentiable).default(*tensors, *rest)
    twins = functions[differentiable]
    function = twins.transformed if transformed else twins.eager
    # The backward needs what was computed with.
    return function.apply(*_cast(differentiable, tensors), *rest)


def _cast(differentiable: str, tensors: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Returns the operands of a direction as autocast casts them."""
    device = tensors[0].device.type  # type: ignore[union-attr]
    if not is_autocast(device):
        return tensors
    return cast_operands(tensors, functions[differentiable].casts[: len(tensors)], device)


def fprop(
    x: Tensor, weight: Tensor, bias: Tensor | None, parameters: ConvParameters, fallback: bool
) -> Tensor:
    """Returns y; arguments as for ``execution.run_fprop``."""
    return _call(FPROP, (x, weight, bias), parameters, (), fallback)


def dgrad(
    dy: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    parameters: ConvParameters,
    input_size: Sizes,
    fallback: bool,
) -> Tensor:
    """Returns dx; arguments as for ``execution.run_dgrad``."""
    return _call(DGRAD, (dy, weight, bias), parameters, (input_size,), fallback)


def wgrad(
    x: Tensor, dy: Tensor, parameters: ConvParameters, filter_size: Sizes, fallback: bool
) -> Tensor:
    """Returns dw; arguments as for ``execution.run_wgrad``."""
    return _call(WGRAD, (x, dy), parameters, (filter_size,), fallback)


def fused(
    x: Tensor,
    weight: Tensor,
    epilogue: EpilogueArguments,
    parameters: ConvParameters,
    fallback: bool,
) -> Tensor:
    """Returns y with an epilogue, whose function is a handle and which writes nothing else."""
    bias, scale, residual, out_scale, extra, *others, _, _ = epilogue
    if extra and is_differentiated(*extra):
        raise NotImplementedError("epilogue= has no derivative; call it under torch.no_grad()")
    tensors = (x, weight, bias, scale, residual, out_scale)
    return _call(FUSED, tensors, parameters, others, fallback, (list(extra),))


def fused_into(
    x: Tensor,
    weight: Tensor,
    epilogue: EpilogueArguments,
    parameters: ConvParameters,
    fallback: bool,
) -> None:
    """Writes y with an epilogue to ``epilogue.out``, and ``epilogue.amax``."""
    bias, scale, residual, out_scale, extra, *others, out, amax = epilogue
    torch.ops.triton_ext.fprop_into.default(
        x, weight, bias, scale, residual, out_scale, list(extra), *parameters, *others, fallback,
        out, amax,
    )  # fmt: skip


# An operator takes no function, so functions have handles, which last as long as the process.
_functions: dict[str, Any] = {}
_fitting: set[tuple[str, int]] = set()


@torch.compiler.assume_constant_result
def function_handle(function: Any, operands: int) -> str:
    """Returns the handle by which an operator finds a ``@triton.jit`` function.

    Args:
        function: The function.
        operands: Number of tensors that it gets after tile, rows and columns.

    Raises:
        TypeError: It does not take as many arguments, or returns nothing or a tuple.
    """
    name = getattr(function, "__name__", "function")
    handle = f"{getattr(function, '__module__', '')}.{name}#{id(function)}"
    if (handle, operands) not in _fitting and is_device_function(function):
        signature = inspect.signature(function.fn)
        try:
            signature.bind(*range(3 + operands))
        except TypeError:
            raise TypeError(
                f"epilogue: {name}{signature} is called with tile, rows, columns and {operands} "
                "epilogue_operands, which it does not take"
            ) from None
        result = result_refusal(function)
        if result:
            raise TypeError(
                f"epilogue: {name}{signature} returns {result}, expected a tile of the shape of "
                "its first argument"
            )
        _fitting.add((handle, operands))
    # The table keeps the function alive, so that no other one gets its id.
    _functions[handle] = function
    return handle


def function_of(handle: str | None) -> Any:
    """Returns the function of a handle; ``None`` for ``None``."""
    return None if handle is None else _functions[handle]
