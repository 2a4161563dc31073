"""Device functions that live outside of ``triton.language``.

Triton passes ``_semantic`` to a builtin when it compiles a kernel.  Its interpreter does so for the
builtins of its own modules only, so a builtin of ours fetches the interpreter's itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from triton import knobs
from triton.language import core
from triton_ext.host.place import located

__all__ = [
    "Scalar",
    "Scalars",
    "as_int32",
    "as_list",
    "builtin",
    "describe",
    "interpreting",
    "sm_of",
]

F = TypeVar("F", bound=Callable[..., Any])

#: A number of a kernel: a scalar tensor, or a constant.
Scalar: TypeAlias = "core.tensor | core.constexpr | int"
#: Numbers of a kernel, one per dimension.
Scalars: TypeAlias = "Sequence[Scalar] | core.tuple"


def builtin(function: F) -> F:
    """Marks a function as a Triton builtin that also works under ``TRITON_INTERPRET=1``."""
    compiled = core.builtin(located(function))

    @functools.wraps(compiled)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("_semantic") is None and knobs.runtime.interpret:
            from triton.runtime.interpreter import interpreter_semantic

            kwargs["_semantic"] = interpreter_semantic
        if kwargs.get("_semantic") is None:
            raise TypeError(
                f"{function.__name__} is a device function: call it inside a @triton.jit kernel"
            )
        return compiled(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def interpreting(semantic: Any) -> bool:
    """Tells whether the function is being interpreted rather than compiled."""
    # The interpreter needs numpy, so it is looked at only when it can be in use.
    if not knobs.runtime.interpret:
        return False
    from triton.runtime.interpreter import InterpreterBuilder

    return isinstance(semantic.builder, InterpreterBuilder)


def describe(value: Any) -> str:
    """Returns the words of messages for a kernel's value: a constant as written, others by type."""
    value = core._unwrap_if_constexpr(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, core.tensor):
        return f"a scalar {value.dtype}" if not value.type.is_block() else "a tensor"
    return type(value).__name__


def as_list(value: Any, what: str) -> list[Any]:
    """Returns a list or tuple of a kernel as a list.

    Raises:
        TypeError: It is something else.
    """
    value = core._unwrap_if_constexpr(value)
    if not isinstance(value, (list, tuple, core.tuple)):
        raise TypeError(f"{what}: expected a list or tuple, got {describe(value)}")
    return list(value)


def as_int32(value: Any, what: str, semantic: Any) -> Any:
    """Returns a scalar as an int32 tensor.

    Raises:
        TypeError: ``value`` is not an integer scalar of at most 32 bits; nothing is truncated.
    """
    value = core._unwrap_if_constexpr(value)
    if not isinstance(value, (int, float, core.tensor)):
        raise TypeError(f"{what}: expected an int32 scalar, got {describe(value)}")
    tensor = semantic.to_tensor(value)
    if tensor.type.is_block():
        shape = [core._unwrap_if_constexpr(size) for size in tensor.shape]
        raise TypeError(f"{what}: expected a scalar, got a tensor of shape {shape}")
    dtype = tensor.dtype
    if not dtype.is_int() or dtype.primitive_bitwidth > 32 or dtype in (core.uint32, core.int1):
        raise TypeError(f"{what}: expected an int32 scalar, got {dtype}; use .to(tl.int32)")
    return semantic.cast(tensor, core.int32)


def sm_of(options: Any) -> str:
    """Returns the digits of a target of NVIDIA's, ``90``; none where they are not known."""
    arch = str(getattr(options, "arch", ""))
    return "".join(c for c in arch.removeprefix("sm") if c.isdigit())
