"""Explains a compile that failed because of a descriptor of the wrong family.

``@triton.jit`` kernels and Gluon kernels have descriptors of their own.  Triton finds out while it
compiles: the argument has become a type by then, and the first attribute that it lacks fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from triton.compiler.errors import CompilationError
from triton_ext.errors import LaunchError
from triton_ext.host.chain import PROBE

__all__ = ["wrap_make_ir"]

# Gluon's descriptors have a layout in their type: tensordesc<fp16[64, 64],NVMMASharedLayout(...)>.
_WITHOUT_LAYOUT: Final = re.compile(r"tensordesc<[^\[]*\[[^\]]*\]>")


def wrap_make_ir(previous: Callable[..., Any], is_active: Callable[[], bool]) -> Callable[..., Any]:
    """Wraps the front end of kernels (``host.patch_points.make_ir``).

    Whatever compiles is left alone; an error that has to do with a descriptor of the wrong family
    is explained.

    Args:
        previous: The wrapped method of a source.
        is_active: Tells whether the plugin is installed.
    """

    def make_ir(source: Any, *args: Any, **kwargs: Any) -> Any:
        if source is PROBE:
            return PROBE
        try:
            return previous(source, *args, **kwargs)
        except CompilationError as error:
            problem = _problem(source, str(error)) if is_active() else ""
            if not problem:
                raise
            raise LaunchError(problem) from error

    return make_ir


def _problem(source: Any, text: str) -> str:
    """Returns which descriptor to pass, or nothing where the error is about something else."""
    from triton.experimental.gluon._runtime import GluonASTSource

    types = {name: kind for name, kind in source.signature.items() if isinstance(kind, str)}
    if isinstance(source, GluonASTSource):
        names = [name for name, kind in types.items() if _WITHOUT_LAYOUT.fullmatch(kind)]
        if names and "'tensor_descriptor' object has no attribute" in text:
            return (
                f"a descriptor for @triton.jit kernels was passed for {names[0]!r} of the Gluon "
                f"kernel {source.name}; for im2col loads pass "
                "triton_ext.gluon.nvidia.TensorDescriptorIm2Col.for_conv(...), for tiled ones "
                "Gluon's TensorDescriptor"
            )
        return ""
    names = [name for name, kind in types.items() if kind.startswith("tensordesc_im2col<")]
    if names and "builder' object has no attribute" in text:
        return (
            f"Gluon's TensorDescriptorIm2Col was passed for {names[0]!r} of the @triton.jit kernel "
            f"{source.name}; pass triton_ext.Im2ColDescriptor.for_conv(...), for load_im2col"
        )
    return ""
