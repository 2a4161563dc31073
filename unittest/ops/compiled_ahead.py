"""Compiling a kernel whose tensors are pointers ahead of time, without a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

__all__ = ["compile_ahead", "without_tensors"]


def without_tensors(kernel: Any, pointers: Iterable[str]) -> dict[str, None]:
    """Returns the constants of a kernel that gets none of its tensors but the named ones."""
    given = set(pointers)
    return {
        name: None
        for name in kernel.arg_names
        if (name.endswith(("_ptr", "_desc")) or name == "extra") and name not in given
    }


def compile_ahead(
    kernel: Any,
    pointers: Mapping[str, str],
    constants: Mapping[str, Any],
    capability: int,
    *,
    multiples: Iterable[str] = (),
    **options: Any,
) -> Any:
    """Compiles a kernel; what is neither a pointer nor a constant is an int32.

    Args:
        kernel: The kernel.
        pointers: Types of its pointers, as signatures spell them; 16-byte aligned.
        constants: Values of its constants, those in place of what is not there included.
        capability: Compute capability of the target times ten: 90, 100.
        multiples: Scalars that are multiples of 16, as Triton's front door finds out; constants
            among them do not count.
        options: Triton's, such as ``num_warps``.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.
    """
    names = list(kernel.arg_names)
    signature = {
        name: pointers.get(name, "constexpr" if name in constants else "i32") for name in names
    }
    attributes = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name in (*pointers, *multiples)
        if name not in constants
    }
    return triton.compile(
        ASTSource(kernel, signature, constexprs=dict(constants), attrs=attributes),
        target=GPUTarget("cuda", capability, 32),
        options=options,
    )
