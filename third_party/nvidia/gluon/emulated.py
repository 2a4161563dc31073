"""Kernels on CPU tensors, launched as on a GPU.

``emulated(kernel)[grid](x_desc, y, n, BLOCK=64)`` compiles the kernel for sm_90, without a GPU, and
runs the TTGIR of that compile in the emulator.  So the launcher of a kernel can be written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

from triton_ext.emulator.launching import EmulatedKernel, Problem, scalar_type
from triton_ext.host import features, require

from ..backend.geometry import normalize_dtype
from ..backend.validation import SHARED_MEMORY_BYTES

__all__ = ["Emulated", "emulated"]

#: Compute capabilities whose CTAs have ``SHARED_MEMORY_BYTES``.
_CAPABILITIES: Final = (90, 100, 103)


class Emulated(EmulatedKernel):
    """A kernel that runs over numpy.

    Args:
        kernel: A ``@gluon.jit`` or ``@triton.jit`` function.
        capability: Compute capability, times ten, that it is compiled for.
        seed: Decides the order in which the partitions of a CTA take turns.
        edit: Changes the TTGIR before it runs; for experiments.

    Raises:
        TypeError: ``kernel`` is not a kernel, or another argument has a wrong type.  At a launch:
            the arguments do not match the kernel's, or an option has a wrong type.
        ValueError: At a launch: an option has an integer value that is not allowed.
        LaunchError: At a launch that the GPU would refuse, or with arguments of another type.
        UnsupportedError: At a launch with an im2col descriptor: the host is older than 3.8.
    """

    OPTIONS: ClassVar = dict.fromkeys(("num_warps", "num_ctas", "num_stages"), False) | {
        "maxnreg": True
    }
    MEMORY: ClassVar = "shared memory"
    # It starts the kernel early, which changes nothing here.
    IGNORED: ClassVar = ("launch_pdl",)

    def __init__(
        self,
        kernel: Any,
        capability: int = 90,
        seed: int = 0,
        edit: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__(
            kernel,
            expected="a @gluon.jit or @triton.jit",
            problems=lambda: _int_problems(capability, seed),
            edit=edit,
            seed=seed,
            host_features=features,
        )
        self.capability = capability

    def _limit(self) -> tuple[int | None, str]:
        limit = SHARED_MEMORY_BYTES if self.capability in _CAPABILITIES else None
        return limit, f"a CTA of sm_{self.capability}"

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
        # A launch states the same alignment for memory from torch's allocator.
        aligned = {
            (names.index(name),): [["tt.divisibility", 16]]
            for name, type_ in signature.items()
            if isinstance(type_, str) and type_.startswith("*")
        }
        constexprs: dict[tuple[int, ...], Any]
        constexprs = {(names.index(name),): given[name] for name in constants}
        for name, value in given.items():
            if name not in constants:
                constexprs |= dict.fromkeys(_absent(value, (names.index(name),)))
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


def _int_problems(capability: Any, seed: Any) -> Iterable[Problem]:
    for which, value, of in (
        ("capability", capability, ", the compute capability times ten, such as 90"),
        ("seed", seed, ""),
    ):
        if type(value) is not int:
            yield TypeError, f"{which} is {value!r}: expected an int{of}"


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
    # A numpy scalar has a dtype and a shape as well, but is not a tensor.
    if hasattr(value, "dtype") and (hasattr(value, "data_ptr") or shape):
        return f"*{normalize_dtype(value.dtype)}"
    if isinstance(value, tuple):
        # ``None`` in a tuple is compiled in, as at a launch.
        types = ["constexpr" if v is None else _type(name, v, is_gluon=is_gluon) for v in value]
        return type(value)(*types) if hasattr(value, "_fields") else tuple(types)
    return scalar_type(name, value, "a CPU tensor, a descriptor, a tuple, an int or a float")


def _absent(value: Any, path: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Returns the places in nested tuples where there is ``None``, as paths of indices."""
    if not isinstance(value, tuple):
        return []
    found = [(*path, index) for index, each in enumerate(value) if each is None]
    return found + [at for index, each in enumerate(value) for at in _absent(each, (*path, index))]


def _descriptor_type(desc: Any, *, is_gluon: bool) -> str:
    if getattr(desc, "geometry", None) is not None:
        # Without it, im2col loads become calls after TTGIR, which the emulator does not run.
        require("im2col-copies")
    block = f"{normalize_dtype(desc.base.dtype)}{list(desc.block_shape)}"
    if not is_gluon:
        return f"tensordesc<{block}>"
    if hasattr(desc, "pixel_box_lower_corner"):
        return f"tensordesc_im2col<{block},input_rank={len(desc.shape)},{desc.layout!r}>"
    return f"tensordesc<{block},{desc.layout!r}>"
