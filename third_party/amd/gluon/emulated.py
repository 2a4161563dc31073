"""Launches Gluon kernels on numpy arrays, without a GPU.

``emulated(kernel)[grid](x, y, n, BLOCK=64)`` compiles the kernel for gfx1250 and runs its TTGIR
in the emulator.  The same launcher code serves both the GPU and the emulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

from triton_ext.emulator.launching import EmulatedKernel, Problem, scalar_type
from triton_ext.errors import LaunchError, UnsupportedError
from triton_ext.host import features

from . import hosts

__all__ = ["Emulated", "emulated"]

#: Types in Triton signatures of pointers to array elements.
_ELEMENTS: Final = {
    "bool": "i1",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
}
#: All types of parameters in Triton signatures.
_TYPES: Final = frozenset((*_ELEMENTS.values(), "bf16", "fp8e5", "fp8e4nv", "fp8e4b8", "fp8e5b16"))


class Emulated(EmulatedKernel):
    """A Gluon kernel that runs on numpy arrays.

    Args:
        kernel: A ``@gluon.jit`` function.
        arch: GPU to compile for, one with a tensor data mover.
        types: Types of parameters that cannot be inferred from the arguments: ``{"x_ptr":
            "*bf16"}`` for an array of ``uint16`` that holds bf16 numbers.
        edit: Changes the TTGIR before it runs; for experiments.

    Raises:
        TypeError: ``kernel`` is not a Gluon kernel, or another argument has the wrong type.  At a
            launch: the arguments do not match the kernel, or an option is not an int.
        ValueError: ``types`` names an unknown parameter or type.  At a launch: an option is out of
            range.
        UnsupportedError: ``arch`` has no tensor data mover.
        LaunchError: At a launch that the GPU would refuse, or with arguments of another type.
    """

    OPTIONS: ClassVar = dict.fromkeys(
        ("num_warps", "num_ctas", "num_stages", "waves_per_eu"), False
    )
    MEMORY: ClassVar = "LDS"

    def __init__(
        self,
        kernel: Any,
        arch: str = "gfx1250",
        types: Mapping[str, str] | None = None,
        edit: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__(
            kernel,
            expected="a @gluon.jit",
            problems=lambda: (*_arch_problems(arch), *_type_problems(types, kernel.arg_names)),
            edit=edit,
            seed=0,
            host_features=features,
        )
        self.arch = arch
        self.types = dict(types or {})

    def _limit(self) -> tuple[int | None, str]:
        return hosts.LDS_BYTES.get(self.arch), f"a workgroup of {self.arch}"

    def _compile(self, given: dict[str, Any], options: dict[str, Any]) -> Any:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.experimental.gluon._runtime import GluonASTSource

        names = list(self.kernel.arg_names)
        constants = self._constants(given)
        signature = {
            name: "constexpr" if name in constants else self._type(name, value)
            for name, value in given.items()
        }
        constexprs = {(names.index(name),): given[name] for name in constants}
        source = GluonASTSource(self.kernel, signature, constexprs, {})
        return triton.compile(source, target=GPUTarget("hip", self.arch, 32), options=options)

    def _type(self, name: str, value: Any) -> str:
        if name in self.types:
            return self.types[name]
        dtype = getattr(value, "dtype", None)
        shape: Any = getattr(value, "shape", ())
        if str(dtype).startswith("torch."):
            raise LaunchError(
                f"'{name}': got a torch.{type(value).__name__}, expected a numpy array: x.numpy()"
            )
        if dtype is not None and shape:
            if str(dtype) not in _ELEMENTS:
                raise LaunchError(
                    f"'{name}': the emulator has no arrays of {dtype}, expected one of "
                    f"{', '.join(_ELEMENTS)}"
                )
            return f"*{_ELEMENTS[str(dtype)]}"
        return scalar_type(name, value, "a numpy array, an int or a float")


def _arch_problems(arch: Any) -> Iterable[Problem]:
    archs = " or ".join(hosts.LDS_BYTES)
    if not isinstance(arch, str):
        yield TypeError, f"arch is {arch!r}: expected {archs}"
    elif arch not in hosts.LDS_BYTES:
        yield (
            UnsupportedError,
            f"arch is {arch!r}: expected {archs}, which have a tensor data mover",
        )
    elif problem := hosts.arch_problem(arch):
        yield UnsupportedError, f"arch is {arch!r}: {problem}"


def _type_problems(types: Any, parameters: list[str]) -> Iterable[Problem]:
    """Yields the violations in ``types``."""
    if types is None:
        return
    example = "such as '*bf16'"
    if not isinstance(types, Mapping):
        yield (
            TypeError,
            f"types is {types!r}: expected types by parameter, such as {{'x_ptr': '*bf16'}}",
        )
        return
    for name, value in types.items():
        if name not in parameters:
            yield ValueError, f"types has {name!r}: expected one of {', '.join(parameters)}"
        if not isinstance(value, str):
            yield TypeError, f"types[{name!r}] is {value!r}: expected a type's name, {example}"
        elif value.removeprefix("*") not in _TYPES:
            known = f"one of {', '.join(sorted(_TYPES))}, behind * for arrays"
            yield ValueError, f"types[{name!r}] is {value!r}: expected {known}"


def emulated(
    kernel: Any,
    arch: str = "gfx1250",
    types: Mapping[str, str] | None = None,
    edit: Callable[[str], str] | None = None,
) -> Emulated:
    """Wraps a Gluon kernel for launches on numpy arrays; see :class:`Emulated`."""
    return Emulated(kernel, arch, types, edit)
