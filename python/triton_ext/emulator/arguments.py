"""Arguments of kernels: arrays, numbers, tuples of these and tensor descriptors of the host.

Tensors need numpy's interface, or ``data_ptr()``, ``stride()`` and memory of the CPU as torch's
have.  A descriptor is an object with ``base``, ``shape``, ``strides`` and ``block_shape``; what it
is to a kernel is the vendor's business.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from triton_ext.ir import Value
from triton_ext.ir.types import PointerType, TensorDescIm2ColType, TensorDescType, Type

from .elements import Array, Element, element_of
from .memory import GlobalMemory

__all__ = ["MakeDescriptor", "bind"]

#: Makes a descriptor from the host's object, the element type and the address of its tensor.
MakeDescriptor = Callable[[Any, Element, int], Any]


def bind(
    memory: GlobalMemory,
    parameters: Sequence[tuple[Value, Type]],
    arguments: Sequence[Any],
    make_descriptor: MakeDescriptor | None,
) -> list[Any]:
    """The values of a kernel's parameters.

    Args:
        memory: Gets the tensors.
        parameters: The kernel's, with their types; a descriptor is followed by its sizes and
            strides, a tuple is one parameter for each number.
        arguments: As a launch gives them, without constants.
        make_descriptor: Makes the kernel's descriptors; ``None`` where it can have none.

    Raises:
        TypeError: The arguments do not fit the parameters.
    """
    given = list(_flat(arguments))
    values: list[Any] = []
    left = list(reversed(given))
    names = ", ".join(parameter.name for parameter, _ in parameters if "." not in parameter.name)
    while len(values) < len(parameters):
        parameter, type_ = parameters[len(values)]
        if not left:
            break
        argument = left.pop()
        if isinstance(type_, (TensorDescType, TensorDescIm2ColType)):
            if make_descriptor is None:
                raise TypeError(
                    f"{parameter.name}: the emulator has no host descriptors for this GPU"
                )
            found = _descriptor(memory, parameter, type_, argument, make_descriptor)
            values += [found, *_sizes(parameters, len(values) + 1, parameter, argument)]
        elif isinstance(type_, PointerType):
            values.append(_pointer(memory, parameter, type_, argument))
        else:
            if getattr(argument, "shape", ()):
                raise TypeError(f"{parameter.name} is {type_}, got an array")
            values.append(np.asarray(argument).astype(element_of(type_).dtype))
    if left or len(values) != len(parameters):
        raise TypeError(
            f"the kernel has {len(parameters)} parameters ({names}), got {len(given)} arguments"
        )
    return values


def _flat(arguments: Sequence[Any]) -> Iterator[Any]:
    for argument in arguments:
        if isinstance(argument, (tuple, list)):
            yield from _flat(argument)
        elif argument is not None:
            yield argument


def _pointer(memory: GlobalMemory, parameter: Value, type_: PointerType, argument: Any) -> Any:
    size = element_of(type_.pointee).size_bytes
    raw, item_bytes = _memory_of(parameter.name, type_, argument)
    if item_bytes != size:
        raise TypeError(
            f"{parameter.name} is {type_}, of {size} bytes: got an array of {argument.dtype}"
        )
    return np.asarray(memory.place(raw, parameter.name.lstrip("%")), np.int64)


def _descriptor(
    memory: GlobalMemory, parameter: Value, type_: Any, argument: Any, make: MakeDescriptor
) -> Any:
    missing = [n for n in ("base", "shape", "strides", "block_shape") if not hasattr(argument, n)]
    if missing:
        raise TypeError(
            f"{parameter.name} is {type_}: expected a tensor descriptor, got "
            f"{type(argument).__name__}"
        )
    if tuple(argument.block_shape) != tuple(type_.shape):
        raise TypeError(
            f"{parameter.name} is {type_}, the descriptor has blocks of "
            f"{list(argument.block_shape)}"
        )
    element = element_of(type_.element)
    raw, item_bytes = _memory_of(parameter.name, type_, argument.base)
    if item_bytes != element.size_bytes:
        raise TypeError(
            f"{parameter.name} is {type_}, of {element.size_bytes} bytes each: got the descriptor "
            f"of a tensor of {argument.base.dtype}"
        )
    address = memory.place(raw, parameter.name.lstrip("%"))
    return make(argument, element, address)


def _sizes(
    parameters: Sequence[tuple[Value, Type]], start: int, parameter: Value, argument: Any
) -> list[Any]:
    """Sizes and strides that follow a descriptor, whose names differ between releases of Triton."""
    # An im2col descriptor passes other numbers in place of the strides.
    numbers = [*argument.shape, *getattr(argument, "kernel_strides", argument.strides)]
    expected = ["i32"] * len(argument.shape) + ["i64"] * len(argument.strides)
    types = [type_ for _, type_ in parameters[start : start + len(numbers)]]
    if [str(type_) for type_ in types] != expected:
        raise TypeError(
            f"{parameter.name}: the descriptor's tensor has {len(argument.shape)} dimensions: "
            f"expected {', '.join(expected)} as the parameters behind it (sizes and strides), "
            f"found {', '.join(map(str, types)) or 'none'}"
        )
    return [
        np.asarray(int(number)).astype(element_of(type_).dtype)
        for number, type_ in zip(numbers, types, strict=True)
    ]


def _memory_of(name: str, type_: Type, argument: Any) -> tuple[Array, int]:
    """The memory of a tensor, from its first element to its last, and the size of an element."""
    if isinstance(argument, np.ndarray):
        return argument, argument.dtype.itemsize
    # A tensor that does not say where it is has memory of the CPU.
    device = str(getattr(argument, "device", "cpu"))
    if not hasattr(argument, "data_ptr") or device.partition(":")[0] != "cpu":
        what = f"one on {device}" if hasattr(argument, "data_ptr") else repr(argument)
        raise TypeError(f"{name} is {type_}: expected a numpy array or a CPU tensor, got {what}")
    item_bytes = int(argument.element_size())
    shape, strides = tuple(argument.shape), tuple(argument.stride())
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    count = 0 if 0 in shape else (last + 1) * item_bytes
    if not count:
        return np.zeros(0, np.uint8), item_bytes
    raw = (ctypes.c_uint8 * count).from_address(argument.data_ptr())
    return np.frombuffer(raw, np.uint8), item_bytes
