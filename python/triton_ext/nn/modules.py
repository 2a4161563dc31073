"""``torch.nn``'s convolutions with the kernels of :mod:`triton_ext.ops`.

Each is a subclass of torch's: the same constructor and one keyword more, the same parameters, state
dict and initialization, and ``isinstance`` tells no difference.  The weight has torch's shape and
lies in memory with its channels side by side, as the kernels read it: no copy is kept that an
in-place update would miss, and none is made per call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch.compiler import is_compiling
from torch.fx import Proxy
from torch.overrides import handle_torch_function

from triton_ext import ops
from triton_ext.nn import gathered
from triton_ext.nn.calls import CALLS, Calls
from triton_ext.nn.padding import Padded
from triton_ext.nn.steps import refuse_scripting
from triton_ext.ops.api.checks import Fallback, How, parse_fallback
from triton_ext.ops.api.convolve import convolve, convolve_fused
from triton_ext.ops.core.descriptors import channels_last, in_filter_order
from triton_ext.ops.kernels.copies import pad_channels_last, to_channels_last

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
]

Tensor = torch.Tensor

_is_grad_enabled = torch.is_grad_enabled


def _call(operator: Any, arguments: tuple[Any, ...], **keywords: Any) -> Tensor:
    """Calls an operator, or records the call where torch.fx traces the module."""
    if isinstance(arguments[0], Proxy):
        result: Tensor = handle_torch_function(operator, arguments[:3], *arguments, **keywords)
        return result
    result = operator(*arguments, **keywords)
    return result


def is_alone(weight: torch.nn.Parameter) -> bool:
    """Tells whether a parameter and its gradient each have their storage for themselves."""
    return all(_is_whole(tensor) for tensor in (weight.data, weight.grad) if tensor is not None)


def _is_whole(tensor: Tensor) -> bool:
    """Tells whether a tensor fills its storage."""
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return True
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def reorder(weight: torch.nn.Parameter, order: Callable[[Tensor], Tensor]) -> None:
    """Brings a parameter and its gradient into another memory order; both stay the same tensors.

    If one of them is a view into another tensor, both keep their order and it remains a view.

    Args:
        weight: The parameter.
        order: Returns a tensor in the new order.
    """
    if not is_alone(weight):
        return
    # Inside and outside of inference mode it stays what it is: what could be trained still can.
    with torch.inference_mode(weight.is_inference()), torch.no_grad():
        weight.data = order(weight.data)
        grad = weight.grad
        if type(grad) is Tensor and grad.layout is torch.strided:
            grad.data = order(grad.data)


class _Signature:
    """The signature of a class for ``inspect``, which torch's ``skip_init`` calls."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        its = inspect.getattr_static(owner, "__init__")
        if instance is not None or its is not _Convolution.__dict__["__init__"]:
            raise AttributeError("__signature__")  # inspect falls back to its own __init__
        torchs = next(base for base in owner.__mro__ if not issubclass(base, _Convolution))
        found = inspect.signature(torchs)
        keyword = inspect.Parameter.KEYWORD_ONLY
        fallback = inspect.Parameter("fallback", keyword, default="error", annotation="Fallback")
        return found.replace(parameters=[*found.parameters.values(), fallback])


class _Convolution:
    """Mixin of all six convolution modules; the first of their bases.

    Args:
        arguments: Positional arguments of torch's module.
        fallback: ``"error"``, or ``"torch"`` to use torch where the kernels do not apply, and where
            the planner finds it faster and autograd records nothing.
        keywords: Keyword arguments of torch's module.
    """

    weight: torch.nn.Parameter
    fallback: Fallback = "error"
    _operator: Any
    _dims: int
    __signature__ = _Signature()
    _gathered: gathered.Gathered | None = None
    _calls: Calls | None = None

    def __init__(self, *arguments: Any, fallback: Fallback = "error", **keywords: Any) -> None:
        parse_fallback(fallback)
        super().__init__(*arguments, **keywords)
        self.fallback = fallback
        self.pack_weight()

    def __prepare_scriptable__(self) -> NoReturn:
        # torch.jit.script asks every module which object to compile instead of it.
        refuse_scripting(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "weight":
            super().__setattr__(name, value)
            return
        old = self.__dict__.get("_parameters", {}).get(name)
        super().__setattr__(name, value)
        gathered.replaced(self, old, value)

    def counts(self) -> Calls:
        """Returns the counts of this module's calls."""
        calls = self._calls
        if calls is None:
            calls = self.__dict__[CALLS] = Calls(type(self).__name__)
        return calls

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles count anew.
        state = dict(self.__dict__)
        state.pop(CALLS, None)
        return state

    def _how(self) -> How:
        """Returns whether torch computes refused calls, and calls that it is faster for.

        A call by torch has torch's gradients, whose time the planner was not asked for.
        """
        is_open = self.fallback == "torch" and not _is_grad_enabled()
        return self.fallback, "fastest" if is_open else "ours"

    def _in_order(self, x: Tensor) -> Tensor:
        """Returns the input, channels-last where torch may compute the call."""
        if self.fallback != "torch" or x.dim() != self._dims + 2 or x.stride(1) == 1:
            return x
        return to_channels_last(x)

    def _counted(self, function: Any, x: Tensor, *arguments: Any) -> Tensor:
        """Calls ``convolve`` or ``convolve_fused`` and counts who computed it.

        Args:
            function: One of the two.
            x: The input.
            arguments: Others of the function, but for ``calls``.
        """
        calls = self._calls
        if calls is None:
            calls = self.counts()
        if calls.events is None:
            y: Tensor = function(self._dims, x, *arguments, calls)
            return y
        return calls.timed(lambda: function(self._dims, x, *arguments, calls))

    def pack_weight(self) -> None:
        """Puts the weight's channels side by side in memory; the parameter stays the same one.

        These are the channels of a group; with one channel per group, the channels of all groups.
        Only needed after the parameter was replaced, as ``load_state_dict(assign=True)`` does:
        kernels take a weight in another order too, but copy it at every call.  The gradient gets
        the same order, because fused optimizers read both by memory order.  If one of the two is a
        view into another tensor, both stay as they are.
        """
        groups: int = self.groups
        reorder(self.weight, lambda tensor: in_filter_order(tensor, groups))

    def extra_repr(self) -> str:
        """torch's, with the fallback where it is not the default."""
        text: str = super().extra_repr()  # type: ignore[misc]
        return text if self.fallback == "error" else f"{text}, fallback={self.fallback}"


class _Forward(_Convolution):
    """The forward convolutions; subclasses name their operator."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # torch's modules call this one, with the weight and bias to use.
        if self._gathered is not None:
            weight = gathered.in_order(self._gathered, input, weight)
        return self.convolve(input, weight, bias)

    def convolve(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, **epilogue: Any
    ) -> Tensor:
        """Convolves the given tensors with this module's stride, padding, dilation and groups.

        Args:
            input: As for the module.
            weight: A filter of the parameter's shape.
            bias: One per output channel, or None.
            epilogue: ``scale``, ``residual`` and ``activation`` of the operator, or nothing.
        """
        module: Any = self
        padding = module.padding
        if module.padding_mode == "zeros":
            if type(input) is Padded and input.dim() == weight.dim():
                input, padding = input.merged(padding)
        else:
            sides = module._reversed_padding_repeated_twice
            padded = _bordered(input, sides, module.padding_mode)
            # An unbatched input gets a batch of one.
            if padded.dim() == weight.dim():
                input = channels_last(padded)
            else:
                input = channels_last(padded.unsqueeze(0)).squeeze(0)
            padding = 0
        parameters = (module.stride, padding, module.dilation, module.groups)
        if type(input) is Tensor:
            input = self._in_order(input)
            if not is_compiling():
                how = self._how()
                if not epilogue:
                    return self._counted(convolve, input, weight, bias, parameters, how, None)
                scale, residual = epilogue["scale"], epilogue["residual"]
                rest = (None, None, epilogue["activation"], None, None, None, None)
                fused = (bias, scale, residual, *rest)
                return self._counted(convolve_fused, input, weight, fused, parameters, how)
        arguments = (input, weight, bias, *parameters)
        return _call(type(self)._operator, arguments, fallback=self.fallback, **epilogue)


def _bordered(x: Any, sides: Any, mode: str) -> Tensor:
    """Pads as ``torch.nn.functional.pad``, by a kernel that returns channels-last where it can."""
    y = None
    if type(x) is Tensor and not is_compiling():
        y = pad_channels_last(x, tuple(sides), mode)
    return torch.nn.functional.pad(x, sides, mode=mode) if y is None else y


class _Transposed(_Convolution):
    """The transposed convolutions; subclasses name their operator."""

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Convolves; ``output_size`` is as for torch's module."""
        module: Any = self
        if module.padding_mode != "zeros":
            raise ValueError(f"{type(self).__name__}: padding_mode must be 'zeros'")
        output_padding = module._output_padding(
            input,
            output_size,
            module.stride,
            module.padding,
            module.kernel_size,
            len(module.kernel_size),
            module.dilation,
        )
        weight, bias = module.weight, module.bias
        if self._gathered is not None:
            weight = gathered.in_order(self._gathered, input, weight)
        given = (module.stride, module.padding, module.dilation, module.groups)
        if type(input) is Tensor:
            input = self._in_order(input)
            if not is_compiling():
                how = self._how()
                return self._counted(convolve, input, weight, bias, given, how, output_padding)
        stride, padding, dilation, groups = given
        arguments = (input, weight, bias, stride, padding, output_padding, groups, dilation)
        return _call(type(self)._operator, arguments, fallback=self.fallback)


class Conv1d(_Forward, torch.nn.Conv1d):
    """``torch.nn.Conv1d`` by :func:`triton_ext.ops.conv1d`; ``x.stride(1)`` has to be 1."""

    _operator = staticmethod(ops.conv1d)
    _dims = 1


class Conv2d(_Forward, torch.nn.Conv2d):
    """``torch.nn.Conv2d`` by :func:`triton_ext.ops.conv2d`, on ``torch.channels_last`` inputs."""

    _operator = staticmethod(ops.conv2d)
    _dims = 2


class Conv3d(_Forward, torch.nn.Conv3d):
    """``torch.nn.Conv3d`` by :func:`triton_ext.ops.conv3d`, ``torch.channels_last_3d`` inputs."""

    _operator = staticmethod(ops.conv3d)
    _dims = 3


class ConvTranspose1d(_Transposed, torch.nn.ConvTranspose1d):
    """``torch.nn.ConvTranspose1d`` by :func:`triton_ext.ops.conv_transpose1d`."""

    _operator = staticmethod(ops.conv_transpose1d)
    _dims = 1


class ConvTranspose2d(_Transposed, torch.nn.ConvTranspose2d):
    """``torch.nn.ConvTranspose2d`` by :func:`triton_ext.ops.conv_transpose2d`."""

    _operator = staticmethod(ops.conv_transpose2d)
    _dims = 2


class ConvTranspose3d(_Transposed, torch.nn.ConvTranspose3d):
    """``torch.nn.ConvTranspose3d`` by :func:`triton_ext.ops.conv_transpose3d`."""

    _operator = staticmethod(ops.conv_transpose3d)
    _dims = 3
