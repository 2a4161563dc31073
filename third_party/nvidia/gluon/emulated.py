"""Kernels on CPU tensors, launched as on a GPU.

``emulated(kernel)[grid](x_desc, y, n, BLOCK=64)`` compiles the kernel for sm_90, without a GPU, and
runs the TTGIR of that compile in the emulator.  So the launcher of a kernel can be written once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from triton_ext.errors import LaunchError
from triton_ext.host import features, require

from ..backend.geometry import normalize_dtype
from ..backend.validation import SHARED_MEMORY_BYTES

__all__ = ["Emulated", "emulated"]

_OPTIONS: Final = ("num_warps", "num_ctas", "num_stages", "maxnreg", "launch_pdl")
#: Where a CTA has that much.
_CAPABILITIES: Final = (90, 100, 103)


class Emulated:
    """A kernel that runs over numpy.

    Args:
        kernel: A ``@gluon.jit`` or ``@triton.jit`` function.
        capability: Compute capability times ten of what it is compiled for.
        seed: Decides the order in which the partitions of a CTA take turns.
        edit: Changes the TTGIR before it runs; for experiments.

    Raises:
        TypeError: ``kernel`` is none, another argument is of another type; at a launch: the
            arguments are not those of the kernel.
        LaunchError: At a launch that the GPU would refuse, or with arguments of another type.
        UnsupportedError: At a launch with an im2col descriptor: the host is older than 3.8.
    """

    def __init__(
        self,
        kernel: Any,
        capability: int = 90,
        seed: int = 0,
        edit: Callable[[str], str] | None = None,
    ) -> None:
        if not hasattr(kernel, "arg_names") or not hasattr(kernel, "params"):
            name = getattr(kernel, "__name__", kernel)
            raise TypeError(
                f"emulated: expected a @gluon.jit or @triton.jit function, got {name!r}"
            )
        problems = [
            f"{which} is {value!r}: expected an int{of}"
            for which, value, of in (
                ("capability", capability, ", the compute capability times ten, such as 90"),
                ("seed", seed, ""),
            )
            if type(value) is not int
        ]
        if edit is not None and not callable(edit):
            problems.append(f"edit is {edit!r}: expected a function from TTGIR to TTGIR")
        if problems:
            raise TypeError("emulated: " + "; ".join(problems))
        self.kernel = kernel
        self.capability = capability
        self.seed = seed
        self.edit = edit

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """A launch: call it with the kernel's arguments, constants and options."""

        def launch(*args: Any, **kwargs: Any) -> None:
            given, options = self._bind(args, kwargs)
            compiled = self._compile(given, options)
            needed = compiled.metadata.shared
            if self.capability in _CAPABILITIES and needed > SHARED_MEMORY_BYTES:
                raise LaunchError(
                    f"the kernel needs {needed} bytes of shared memory; a CTA of "
                    f"sm_{self.capability} has {SHARED_MEMORY_BYTES}"
                )
            text = compiled.asm["ttgir"]
            if self.edit is not None:
                text = self.edit(text)
            # As Triton asks for it: with all arguments by name, wherever they stood.
            sizes = grid(given) if callable(grid) else grid
            constants = self._constants(given)
            values = [value for name, value in given.items() if name not in constants]
            _program(text).run(sizes, values, self.seed)

        return launch

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """What ``triton.compile`` makes of the kernel for these arguments."""
        return self._compile(*self._bind(args, kwargs))

    def _bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments by name, in the kernel's order, and the options."""
        options: dict[str, Any] = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        # What starts the kernel early changes nothing here.
        options.pop("launch_pdl", None)
        try:
            bound = inspect.signature(self.kernel.fn).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"{self.kernel.fn.__name__}: {error}; it takes {', '.join(self.kernel.arg_names)}"
            ) from error
        bound.apply_defaults()
        return dict(bound.arguments), options

    def _constants(self, given: dict[str, Any]) -> set[str]:
        names = self.kernel.arg_names
        constants = {names[p.num] for p in self.kernel.params if p.is_constexpr}
        return constants | {name for name, value in given.items() if value is None}

    def _compile(self, given: dict[str, Any], options: dict[str, Any]) -> Any:
        import triton
        from triton.backends.compiler import GPUTarget

        kernel = self.kernel
        names = list(kernel.arg_names)
        is_gluon = hasattr(kernel, "is_gluon") and bool(kernel.is_gluon())
        constants = self._constants(given)
        signature = {
            name: "constexpr" if name in constants else _type(name, value, is_gluon=is_gluon)
            for name, value in given.items()
        }
        # As a launch says of what an allocator gave.
        aligned = {
            (names.index(name),): [["tt.divisibility", 16]]
            for name, type_ in signature.items()
            if isinstance(type_, str) and type_.startswith("*")
        }
        constexprs = {(names.index(name),): given[name] for name in constants}
        source = _source_class(is_gluon=is_gluon)(kernel, signature, constexprs, aligned)
        target = GPUTarget("cuda", self.capability, 32)
        return triton.compile(source, target=target, options=options)


def emulated(
    kernel: Any,
    capability: int = 90,
    seed: int = 0,
    edit: Callable[[str], str] | None = None,
) -> Emulated:
    """A kernel that is launched on CPU tensors; see :class:`Emulated`."""
    return Emulated(kernel, capability, seed, edit)


# Launchers make an Emulated at each call; what was prepared outlives it.
@functools.lru_cache(maxsize=16)
def _program(text: str) -> Any:
    # Needs numpy, which only those who launch have to have.
    from triton_ext.emulator import Program

    return Program(text, host_features=features)


def _source_class(*, is_gluon: bool) -> Any:
    if is_gluon:
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource
    from triton.compiler import ASTSource

    return ASTSource


def _type(name: str, value: Any, *, is_gluon: bool) -> Any:
    """How Triton's signatures spell the type of an argument."""
    if hasattr(value, "block_shape"):
        return _descriptor_type(value, is_gluon=is_gluon)
    shape: Any = getattr(value, "shape", ())
    # A number of numpy's has a type and a shape as well, and is no tensor.
    if hasattr(value, "dtype") and (hasattr(value, "data_ptr") or shape):
        return f"*{normalize_dtype(value.dtype)}"
    if isinstance(value, tuple):
        types = [_type(name, each, is_gluon=is_gluon) for each in value]
        return type(value)(*types) if hasattr(value, "_fields") else tuple(types)
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise LaunchError(
        f"'{name}': expected a CPU tensor, a descriptor, a tuple, an int or a float, got "
        f"{type(value).__name__}"
    )


def _descriptor_type(desc: Any, *, is_gluon: bool) -> str:
    if getattr(desc, "geometry", None) is not None:
        # Without them the loads become calls, and that behind TTGIR.
        require("im2col-copies")
    block = f"{normalize_dtype(desc.base.dtype)}{list(desc.block_shape)}"
    if not is_gluon:
        return f"tensordesc<{block}>"
    if hasattr(desc, "pixel_box_lower_corner"):
        return f"tensordesc_im2col<{block},input_rank={len(desc.shape)},{desc.layout!r}>"
    return f"tensordesc<{block},{desc.layout!r}>"
