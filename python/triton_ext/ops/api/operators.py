"""The operators of torch, and calls of them: eager, compiled, traced or transformed.

Every direction is two operators, with and without a backward; :class:`Operator` describes both, and
``library.py`` registers them.  torch enters Python for an operator with a backward even where
nothing is differentiated, which costs more than the rest of a call; so there is one without:

    fprop          conv            y of x, weight and bias
    dgrad          conv_input      dx of dy and weight; with a bias, a transposed convolution
    wgrad          conv_weight     dw of x and dy
    fprop_fused    conv_fused      y with an epilogue
    fprop_into                     the same into tensors that are given

:class:`ConvCall` is the one description of a call: functions make it of their arguments, operators
of theirs, and checks, plans, fake tensors, derivatives and vmap read it.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.nn import functional as F

from triton_ext.ops.core import dispatch_cache
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.descriptors import (
    channels_last,
    channels_last_strides,
    empty_channels_last,
)
from triton_ext.ops.core.dispatch_cache import cast_operands, is_autocast
from triton_ext.ops.core.epilogue import (
    PLAIN,
    EpilogueArguments,
    apply_epilogue,
    is_device_function,
    output_dtype,
    result_refusal,
)
from triton_ext.ops.core.problem import ConvParameters

Tensor = torch.Tensor

_OPERANDS = {"fprop": ("x", "weight"), "dgrad": ("dy", "weight"), "wgrad": ("x", "dy")}
# How the fields of ConvParameters are declared in schemas.
_DECLARATIONS = ("int[] stride", "int[] padding", "int[] dilation", "SymInt groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator of a direction, and its twin with a backward.

    Its flat arguments are tensors, the fields of :class:`ConvParameters`, others, whether torch may
    take the call, and tensors that are written; each is declared as in a schema.

    Attributes:
        differentiable: Name of the twin; empty if there is none.
        is_traceable: Whether torch.jit.trace records it, which it does not with SymInt[] arguments
            (torch 2.13).
    """

    name: str
    differentiable: str
    direction: Direction
    tensors: tuple[str, ...]
    others: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    is_traceable: bool = False

    @property
    def schema(self) -> str:
        """The schema of both operators."""
        arguments = (*self.tensors, *_DECLARATIONS, *self.others, "bool fallback", *self.written)
        return f"({', '.join(arguments)}) -> {'()' if self.written else 'Tensor'}"

    def call(self, arguments: Sequence[Any]) -> ConvCall:
        """Returns the call of flat arguments."""
        count, size = len(self.tensors), None
        first, second, *epilogue = arguments[:count]
        stride, padding, dilation, groups = arguments[count : count + 4]
        parameters = ConvParameters(tuple(stride), tuple(padding), tuple(dilation), groups)
        end = count + 4 + len(self.others)
        if self.direction == "fprop":
            epilogue += (*arguments[count + 4 : end], *arguments[end + 1 :])
        else:
            size = arguments[count + 4]
        made = EpilogueArguments(*epilogue)
        return ConvCall(self, first, second, made, parameters, size, arguments[end])


_EPILOGUE = (
    *("Tensor x", "Tensor weight", "Tensor? bias", "Tensor? scale", "Tensor? residual"),
    *("Tensor? out_scale", "Tensor[] extra"),
)
_FUNCTION = ("str activation", "ScalarType? out_dtype", "str? function")

FPROP = Operator(
    name="fprop",
    differentiable="conv",
    direction="fprop",
    tensors=("Tensor x", "Tensor weight", "Tensor? bias"),
    is_traceable=True,
)
DGRAD = Operator(
    name="dgrad",
    differentiable="conv_input",
    direction="dgrad",
    tensors=("Tensor dy", "Tensor weight", "Tensor? bias"),
    others=("SymInt[] input_size",),
)
WGRAD = Operator(
    name="wgrad",
    differentiable="conv_weight",
    direction="wgrad",
    tensors=("Tensor x", "Tensor dy"),
    others=("SymInt[] filter_size",),
)
FUSED = Operator(
    name="fprop_fused",
    differentiable="conv_fused",
    direction="fprop",
    tensors=_EPILOGUE,
    others=_FUNCTION,
    is_traceable=True,
)
INTO = Operator(
    name="fprop_into",
    differentiable="",
    direction="fprop",
    tensors=_EPILOGUE,
    others=_FUNCTION,
    written=("Tensor(a!) out", "Tensor(b!)? amax"),
)
OPERATORS = (FPROP, DGRAD, WGRAD, FUSED, INTO)


class ConvCall(NamedTuple):
    """A call of an operator.

    Attributes:
        operator: The operator; both twins have the same calls.
        first: x [N, Ci, *input_size]; in dgrad, dy [N, Co, *output_size].
        second: weight [Co, Ci / groups, *filter_size]; in wgrad, dy.
        epilogue: In dgrad and wgrad, nothing but a bias [Ci] of dgrad.  Its function is a handle.
        parameters: Those of the convolution.
        size: In dgrad, the input size; in wgrad, the filter size; in fprop, None.
        fallback: Whether torch computes what the kernels do not take.
    """

    operator: Operator
    first: Tensor
    second: Tensor
    epilogue: EpilogueArguments
    parameters: ConvParameters
    size: Sequence[Any] | None
    fallback: bool

    # dynamo knows no properties of named tuples.

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Returns the tensors that are read, without further ones of the epilogue's function."""
        count = min(len(self.operator.tensors), 6) - 2
        return (self.first, self.second, *self.epilogue[:count])

    def flat(self) -> tuple[Any, ...]:
        """Returns the operator's arguments."""
        operator, epilogue = self.operator, self.epilogue
        others: tuple[Any, ...] = (self.size,)
        tensors = (self.first, self.second, *epilogue[: len(operator.tensors) - 2])
        if operator.direction == "fprop":
            others = epilogue[5 : 5 + len(operator.others)]
        written = epilogue[8 : 8 + len(operator.written)]
        return (*tensors, *self.parameters, *others, self.fallback, *written)

    def name(self) -> str:
        """Returns the name of the function for errors."""
        dims = self.first.dim() - 2
        names = {"fprop": "conv{}d", "dgrad": "conv_transpose{}d", "wgrad": "conv{}d_weight"}
        return names[self.operator.direction].format(dims)

    def operands(self) -> dict[str, Tensor]:
        """Returns both operands by name."""
        first, second = _OPERANDS[self.operator.direction]
        return {first: self.first, second: self.second}

    def pixels(self) -> dict[str, Tensor]:
        """Returns the operands that kernels read pixels of, by name."""
        return {name: each for name, each in self.operands().items() if name != "weight"}

    def shapes(self) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
        """Returns the shapes of x, weight and the output."""
        first, second, groups = self.first.shape, self.second.shape, self.parameters.groups
        size: Any = self.size
        if self.operator.direction == "fprop":
            size = self.parameters.output_size(first[2:], second[2:])
            return tuple(first), tuple(second), (first[0], second[0], *size)
        if self.operator.direction == "dgrad":
            x_shape = (first[0], second[1] * groups, *size)
            return x_shape, tuple(second), x_shape
        w_shape = (second[1], first[1] // groups, *size)
        return tuple(first), w_shape, w_shape

    def case(self, function: Any = None) -> Case:
        """Returns the case to plan; ``function`` is that of the epilogue's handle."""
        x_shape, w_shape, y_shape = self.shapes()
        direction = self.operator.direction
        # An empty batch has a geometry as well: that of one image.
        problem = self.parameters.problem((x_shape[0] or 1, *x_shape[1:]), w_shape)
        strides = {f"{name}_strides": each.stride() for name, each in self.pixels().items()}
        spec = self.epilogue.spec(y_shape, function) if direction == "fprop" else PLAIN
        return Case(
            direction=direction,
            problem=problem,
            dtype=self.first.dtype,
            epilogue=spec,
            **strides,
        )


# By direction, for the gradients of the first and of the second operand: their operator, and which
# of the first operand, the second one and the gradient of the output it reads.  Each direction is
# linear in both operands, so the gradients of each are the other two, of any order.
GRADIENTS = {
    "fprop": ((DGRAD, 2, 1), (WGRAD, 0, 2)),
    "dgrad": ((FPROP, 2, 1), (WGRAD, 2, 0)),
    "wgrad": ((DGRAD, 1, 2), (FPROP, 0, 2)),
}


def gradient_call(
    direction: Direction,
    operand: int,
    tensors: tuple[Tensor, Tensor, Tensor],
    parameters: ConvParameters,
) -> ConvCall:
    """Returns the call that computes the gradient of an operand, by torch where no kernel does.

    ``tensors`` are both operands of the direction and the gradient of its output.
    """
    operator, first, second = GRADIENTS[direction][operand]
    size = None if operator is FPROP else tensors[operand].shape[2:]
    operands = tensors[first], tensors[second]
    return ConvCall(operator, *operands, EpilogueArguments(), parameters, size, True)


#: By the name of the operator with a backward: functions of autograd for eager calls, which cost
#: 20 us less a call than the operator, whose autograd torch.library generates (torch 2.13, CPU
#: build, 2026-11-20), and for the transforms of torch.func, which refuse the operator.
#: ``library.py`` fills it.
functions: dict[str, tuple[type[torch.autograd.Function], type[torch.autograd.Function]]] = {}


class _TorchCalls(threading.local):
    """Calls of this thread that torch computed in place of a kernel: how many, and why the last."""

    count: int = 0
    refusal: str = ""

    def add(self, refusal: str) -> None:
        self.count += 1
        self.refusal = refusal


#: ``nn`` counts the calls of modules by it.
torch_calls = _TorchCalls()

# torch.compile can ask for transforms with torch 2.13, not with 2.11.
_SEES_LAYERS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def is_differentiated(*tensors: Tensor | None) -> bool:
    """Tells whether torch may ask for a derivative of what is computed from these tensors."""
    return dispatch_cache.is_differentiated(*tensors) or is_transformed()


def is_traced() -> bool:
    """Tells whether torch.jit.trace records what is called."""
    return not torch.compiler.is_compiling() and torch.jit.is_tracing()


def is_transformed() -> bool:
    """Tells whether a transform of torch.func is at work, which does not show in requires_grad."""
    if torch.compiler.is_compiling() and not _SEES_LAYERS:
        # There, the operator refuses.
        return False
    return torch._C._functorch.get_dynamic_layer_stack_depth() > 0


def has_tangent(tensors: Sequence[Tensor | None]) -> bool:
    """Tells whether any of the tensors is dual at the level of the innermost transform."""
    if forward_ad._current_level < 0:
        return False
    return any(
        tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None
        for tensor in tensors
    )


def _is_forward_mode(tensors: Sequence[Tensor | None]) -> bool:
    """Tells whether torch may ask for forward-mode derivatives of a call.

    The operators have none, for which torch would return zeros.  Under the transforms of torch.func
    that is any call within one of forward mode, because the innermost transform does not see the
    tangents of those around it.
    """
    if forward_ad._current_level < 0:
        return False
    return torch._C._functorch.get_dynamic_layer_stack_depth() > 0 or has_tangent(tensors)


def call(c: ConvCall) -> Tensor:
    """Calls the operator that costs least and has the derivatives asked for."""
    operator, tensors, extra = c.operator, c.tensors(), c.epilogue.extra
    name = operator.name
    if operator.differentiable:
        if extra and is_differentiated(*extra):
            raise NotImplementedError("epilogue= has no derivative; call it under torch.no_grad()")
        if c.fallback and _is_forward_mode(tensors):
            if c.epilogue.function is not None or extra:
                raise NotImplementedError("epilogue= has no derivative of forward mode")
            torch_calls.add("derivatives of forward mode are torch's")
            return by_torch(cast(c))
        if operator.is_traceable and is_traced() and not is_transformed():
            name = operator.differentiable  # a caller of the graph may differentiate it
        elif is_differentiated(*tensors):
            name, transformed = operator.differentiable, is_transformed()
            if not torch.compiler.is_compiling():
                function = functions[name][transformed]
                # The backward needs what was computed with.
                result: Tensor = function.apply(*cast(c).flat())
                return result
            if transformed:
                raise NotImplementedError(
                    "convolutions under a transform of torch.func do not compile; call the "
                    "transform outside of torch.compile"
                )
    result = getattr(torch.ops.triton_ext, name).default(*c.flat())
    return result


def cast(c: ConvCall) -> ConvCall:
    """Returns a call with its operands as autocast casts them; scales are applied to fp32."""
    device = c.first.device.type
    if not is_autocast(device):
        return c
    operands = (c.first, c.second, c.epilogue.bias, c.epilogue.residual)
    first, second, bias, residual = cast_operands(operands, device)
    epilogue = c.epilogue._replace(bias=bias, residual=residual)
    return c._replace(first=first, second=second, epilogue=epilogue)


def by_torch(c: ConvCall) -> Tensor:
    """Returns the output of a call without a function, by torch; writes ``epilogue.amax``.

    It has derivatives of any kind.  Padding whose two sides differ, which torch does not have, is
    applied to x before.
    """
    first, second, epilogue, parameters = c[1:5]
    bias, direction = epilogue.bias, c.operator.direction
    if direction != "fprop":
        y = _gradient(c)
        return y if bias is None else _as_promised(y + bias.view(-1, *(1,) * (y.dim() - 2)))
    if not c.operator.others:
        return _fprop(first, second, bias, parameters)
    dtype = output_dtype(first.dtype, epilogue.out_dtype)
    if first.dtype.itemsize == 2 and (epilogue.scale is not None or dtype is torch.float32):
        # fp16 or bf16 may not hold sums that the scale brings into their range.
        first, second = first.float(), second.float()
    y = apply_epilogue(_fprop(first, second, None, parameters), epilogue)
    return _as_promised(y.to(dtype))


def _sides(padding: Sequence[int]) -> tuple[list[int], bool]:
    """Returns the padding of each dimension, and whether x has it instead: its sides differ."""
    low, high = list(padding[::2]), list(padding[1::2])
    return ([0] * len(low), True) if low != high else (low, False)


def _pad(x: Tensor, padding: Sequence[int]) -> Tensor:
    """Pads with zeros, or crops; torch's pad begins with the last dimension."""
    pairs = zip(padding[::2], padding[1::2], strict=True)
    return F.pad(x, [side for pair in reversed(list(pairs)) for side in pair])


def _as_promised(y: Tensor) -> Tensor:
    """Returns y with exactly the strides that a fake tensor of the operator has."""
    strides = channels_last_strides(y.shape)
    return y if y.stride() == strides else channels_last(y).as_strided(y.shape, strides)


def _fprop(x: Tensor, weight: Tensor, bias: Tensor | None, parameters: ConvParameters) -> Tensor:
    """Returns y; of int8 it is int32, as from the kernels: torch's is modulo 256, on CPUs only."""
    stride, padding, dilation, groups = parameters
    is_int8 = x.dtype == torch.int8
    if is_int8:
        # Exact, up to sums of 2^53.
        x, weight = x.double(), weight.double()
    sides, is_padded = _sides(padding)
    x = _pad(x, padding) if is_padded else x
    zeros = [0] * len(stride)
    y = torch.ops.aten.convolution(x, weight, bias, stride, sides, dilation, False, zeros, groups)
    # A larger sum wraps around, in an int32 accumulator too.
    return _as_promised(y.long().int() if is_int8 else y)


def _gradient(c: ConvCall) -> Tensor:
    """Returns dx, without a bias, or dw."""
    stride, padding, dilation, groups = c.parameters
    (x_shape, w_shape, _), is_dgrad = c.shapes(), c.operator.direction == "dgrad"
    sides, is_padded = _sides(padding)
    if is_dgrad:
        dy, weight = c.first, c.second
        extra = [low + high for low, high in zip(padding[::2], padding[1::2], strict=True)]
        size = [pixels + more * is_padded for pixels, more in zip(x_shape[2:], extra, strict=True)]
        # torch reads shape and memory format of the operand whose gradient it computes.
        x = empty_channels_last((*x_shape[:2], *size), dy.dtype, dy.device)
    else:
        x, dy = _pad(c.first, padding) if is_padded else c.first, c.second
        weight = empty_channels_last(w_shape, x.dtype, x.device)
    zeros, mask = [0] * len(stride), [is_dgrad, not is_dgrad, False]
    found = torch.ops.aten.convolution_backward(
        dy, x, weight, None, stride, sides, dilation, False, zeros, groups, mask
    )[0 if is_dgrad else 1]
    if is_dgrad and is_padded:
        found = _pad(found, [-side for side in padding])
    return _as_promised(found)


# An operator takes no function, so functions have handles, which last as long as the process.
_functions: dict[str | None, Any] = {None: None}
_fitting: set[tuple[str, int]] = set()


@torch.compiler.assume_constant_result
def function_handle(function: Any, operands: int) -> str:
    """Returns the handle by which an operator finds a ``@triton.jit`` function.

    It gets so many operands after tile, rows and columns.

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
    return _functions[handle]
