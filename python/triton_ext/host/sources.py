"""Compiles a kernel function for a GPU that need not be there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["compile_kernel"]


def compile_kernel(
    kernel: Any,
    signature: Mapping[str, Any],
    constexprs: Mapping[tuple[int, ...], Any],
    attrs: Mapping[tuple[int, ...], Any],
    target: tuple[str, int | str, int],
    options: Mapping[str, Any],
) -> Any:
    """Returns the compiled kernel.

    Args:
        kernel: A ``@gluon.jit`` or ``@triton.jit`` function.
        signature: Types of the parameters, as Triton spells them.
        constexprs: Values that are compiled in, by their place.
        attrs: Attributes of parameters, by their place.
        target: The backend, the GPU and the lanes of a warp.
        options: Options of the launch.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    if hasattr(kernel, "is_gluon") and kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource as Source
    else:
        from triton.compiler import ASTSource as Source
    source = Source(kernel, dict(signature), dict(constexprs), dict(attrs))
    return triton.compile(source, target=GPUTarget(*target), options=dict(options))
