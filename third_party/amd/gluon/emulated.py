"""Gluon kernels on numpy arrays, launched as on a GPU.

``emulated(kernel)[grid](x, y, n, BLOCK=64)`` compiles the kernel for gfx1250, without a GPU, and
runs the TTGIR of that compile in the emulator.  So the launcher of a kernel can be written once.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from triton_ext.errors import LaunchError
from triton_ext.host import features

__all__ = ["Emulated", "emulated"]

#: How Triton's signatures call a pointer to the elements of an array.
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
_OPTIONS: Final = ("num_warps", "num_ctas", "num_stages", "waves_per_eu")
#: Names of GPUs whose waves have 32 lanes, as the layouts of kernels for gfx1250 have.
_WAVES_OF_32: Final = re.compile(r"gfx1\d[0-9a-f]{2}", re.ASCII)
#: What a workgroup can have.
_LDS_BYTES: Final = {"gfx1250": 320 * 1024}


class Emulated:
    """A Gluon kernel that runs over numpy.

    Args:
        kernel: A ``@gluon.jit`` function.
        arch: GPU that it is compiled for.
        types: Parameters whose type the arguments do not tell: ``{"x_ptr": "*bf16"}`` for an array
            of ``uint16`` that holds bf16 numbers.
        edit: Changes the TTGIR before it runs; for experiments.

    Raises:
        TypeError: ``kernel`` is none, another argument is of another type; at a launch: the
            arguments are not those of the kernel, an option is no int.
        LaunchError: At a launch that the GPU would refuse, or with arguments of another type.
    """

    def __init__(
        self,
        kernel: Any,
        arch: str = "gfx1250",
        types: Mapping[str, str] | None = None,
        edit: Callable[[str], str] | None = None,
    ) -> None:
        if not hasattr(kernel, "arg_names") or not hasattr(kernel, "params"):
            name = getattr(kernel, "__name__", kernel)
            raise TypeError(f"emulated: expected a @gluon.jit function, got {name!r}")
        problems = []
        if not isinstance(arch, str) or _WAVES_OF_32.fullmatch(arch) is None:
            problems.append(
                f"arch is {arch!r}: expected a GPU whose waves have 32 lanes, such as 'gfx1250'"
            )
        problems += _type_problems(types, kernel.arg_names)
        if edit is not None and not callable(edit):
            problems.append(f"edit is {edit!r}: expected a function from TTGIR to TTGIR")
        if problems:
            raise TypeError("emulated: " + "; ".join(problems))
        self.kernel = kernel
        self.arch = arch
        self.types = dict(types or {})
        self.edit = edit
        self._programs: dict[str, Any] = {}

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """A launch: call it with the kernel's arguments, constants and ``num_warps``."""

        def launch(*args: Any, **kwargs: Any) -> None:
            compiled, values = self._compile(args, kwargs)
            limit = _LDS_BYTES.get(self.arch)
            if limit is not None and compiled.metadata.shared > limit:
                raise LaunchError(
                    f"the kernel needs {compiled.metadata.shared} bytes of LDS; a workgroup of "
                    f"{self.arch} has {limit}"
                )
            # As Triton asks for it: with all arguments by name, wherever they stood.
            sizes = grid(self._bound(args, kwargs)) if callable(grid) else grid
            text = compiled.asm["ttgir"]
            if self.edit is not None:
                text = self.edit(text)
            program = self._programs.get(text)
            if program is None:
                # Needs numpy, which only those who launch have to have.
                from triton_ext.emulator import Program

                program = self._programs[text] = Program(text, host_features=features)
            program.run(sizes, values)

        return launch

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """What ``triton.compile`` makes of the kernel for these arguments."""
        return self._compile(args, kwargs)[0]

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.experimental.gluon._runtime import GluonASTSource

        options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        wrong = [
            f"{name} is {value!r}: expected an int"
            for name, value in options.items()
            if type(value) is not int
        ]
        if wrong:
            raise TypeError(f"{self.kernel.fn.__name__}: {'; '.join(wrong)}")
        names = list(self.kernel.arg_names)
        given = self._bound(args, kwargs)
        constants = {names[p.num] for p in self.kernel.params if p.is_constexpr}
        signature = {
            name: "constexpr" if name in constants else self._type(name, value)
            for name, value in given.items()
        }
        source = GluonASTSource(
            self.kernel,
            signature,
            {(names.index(name),): given[name] for name in constants},
            {},
        )
        compiled = triton.compile(source, target=GPUTarget("hip", self.arch, 32), options=options)
        return compiled, [given[name] for name in names if name not in constants]

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = inspect.signature(self.kernel.fn).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"{self.kernel.fn.__name__}: {error}; it takes {', '.join(self.kernel.arg_names)}, "
                f"a launch also {', '.join(_OPTIONS)}"
            ) from error
        bound.apply_defaults()
        return dict(bound.arguments)

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
        if isinstance(value, bool):
            return "i1"
        if isinstance(value, int):
            return "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
        if isinstance(value, float):
            return "fp32"
        raise LaunchError(
            f"'{name}': expected a numpy array, an int or a float, got {type(value).__name__}"
        )


def _type_problems(types: Any, parameters: list[str]) -> list[str]:
    """What is wrong with the types of some parameters."""
    if types is None:
        return []
    if not isinstance(types, Mapping):
        return [f"types is {types!r}: expected types by parameter, such as {{'x_ptr': '*bf16'}}"]
    return [
        *(
            f"types has {name!r}: expected one of {', '.join(parameters)}"
            for name in types
            if name not in parameters
        ),
        *(
            f"types[{name!r}] is {value!r}: expected a type's name, such as '*bf16'"
            for name, value in types.items()
            if not isinstance(value, str)
        ),
    ]


def emulated(
    kernel: Any,
    arch: str = "gfx1250",
    types: Mapping[str, str] | None = None,
    edit: Callable[[str], str] | None = None,
) -> Emulated:
    """A Gluon kernel that is launched on numpy arrays; see :class:`Emulated`."""
    return Emulated(kernel, arch, types, edit)
