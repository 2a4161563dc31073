"""Launches of kernels that run over numpy: the door for both vendors, and the base of theirs.

A launcher stands where a kernel stands, ``launcher[grid](x, y, n, BLOCK=64)``: arguments are bound
and options checked as for a launch on a GPU, and the TTGIR of the compile runs over numpy.  A
vendor's subclass knows the GPUs, their descriptors and the options of their launches.

Importing this needs no numpy; a launch does.
"""

from __future__ import annotations

import functools
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args

from triton_ext import backends
from triton_ext.errors import LaunchError, UnsupportedError

__all__ = ["SCHEDULES", "EmulatedKernel", "Problem", "Schedule", "emulated", "int_problems"]

#: When asynchronous operations complete, and in which order the parts of a workgroup run.
Schedule: TypeAlias = Literal["late", "random"]
SCHEDULES: Final[tuple[str, ...]] = get_args(Schedule)

#: A kind of error and its sentence.
Problem: TypeAlias = tuple[type[Exception], str]


class EmulatedKernel(ABC):
    """A kernel that runs over numpy.

    Args:
        kernel: A function of ``@gluon.jit`` or ``@triton.jit``.
        problems: What the vendor's launcher has against its own arguments.
        types: Types of parameters that their arguments do not have.
        edit: Changes the TTGIR before it runs; for experiments.
        seed: Decides the order in which the parts of a workgroup take turns.
        schedule: When asynchronous operations complete (:meth:`.Program.run`).
        host_features: Gives the capabilities of the Triton that compiles.
        compiler: Compiles a kernel (``triton_ext.host.sources.compile_kernel``).

    Raises:
        TypeError: An argument is of another type; at a launch: the arguments are not those of the
            kernel, an option is of another type.
        ValueError: A value that is none of those that the argument may have; the same of options.
        UnsupportedError: A GPU that is not emulated.
        LaunchError: At a launch that the GPU would refuse, or with arguments of another type.
    """

    #: Options of a launch that are ints; whether each may be ``None``, as if it were left out.
    OPTIONS: ClassVar[Mapping[str, bool]]
    #: Name of a workgroup's memory in messages.
    MEMORY: ClassVar[str]
    #: Options of a launch that change nothing here, bools.
    IGNORED: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        kernel: Any,
        *,
        problems: Callable[[], Iterable[Problem]],
        types: Mapping[str, str] | None,
        edit: Callable[[str], str] | None,
        seed: int,
        schedule: Schedule,
        host_features: Callable[[], frozenset[str] | None],
        compiler: Callable[..., Any],
    ) -> None:
        if not hasattr(kernel, "arg_names") or not hasattr(kernel, "params"):
            name = getattr(kernel, "__name__", kernel)
            hint = ""
            if type(kernel).__name__ == "InterpretedFunction":
                hint = " of Triton's interpreter: unset TRITON_INTERPRET"
            raise TypeError(
                f"emulated: expected a @gluon.jit or @triton.jit function, got {name!r}{hint}"
            )
        found = [*problems(), *_type_problems(types, kernel.arg_names)]
        found += int_problems(seed=(seed, ""))
        if schedule not in SCHEDULES:
            expected = f"expected one of {', '.join(SCHEDULES)}"
            found.append((ValueError, f"schedule is {schedule!r}: {expected}"))
        if edit is not None and not callable(edit):
            found.append((TypeError, f"edit is {edit!r}: expected a function from TTGIR to TTGIR"))
        _refuse("emulated", found)
        self.kernel = kernel
        self.edit = edit
        self.types = dict(types or {})
        self.seed = seed
        self.schedule: Schedule = schedule
        self._host_features = host_features
        self._compiler = compiler

    @property
    def arg_names(self) -> list[str]:
        """Names of the kernel's parameters, as a ``JITFunction`` has them."""
        names: list[str] = self.kernel.arg_names
        return names

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """A launch: call it with the kernel's arguments, constants and options."""

        def launch(*args: Any, **kwargs: Any) -> None:
            given, options = self._bind(args, kwargs)
            compiled = self._compile(given, options)
            self._check_size(compiled.metadata)
            text = compiled.asm["ttgir"]
            if self.edit is not None:
                text = self.edit(text)
            # As Triton asks for it: with all arguments by name, wherever they stood.
            sizes = grid(given) if callable(grid) else grid
            program = _program(text, self._host_features)
            program.run(sizes, self._values(given), self.seed, self.schedule)

        return launch

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the compiled kernel for these arguments."""
        return self._compile(*self._bind(args, kwargs))

    def _compile(self, given: dict[str, Any], options: dict[str, Any]) -> Any:
        """Compiles the kernel for arguments and options of :meth:`_bind`."""
        names = list(self.kernel.arg_names)
        constants = self._constants(given)
        signature = {
            name: "constexpr" if name in constants else self._type(name, value)
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
        return self._compiler(self.kernel, signature, constexprs, aligned, self._target(), options)

    @abstractmethod
    def _target(self) -> tuple[str, int | str, int]:
        """The backend, the GPU and the lanes of a warp, as ``GPUTarget`` has them."""

    @abstractmethod
    def _descriptor_type(self, name: str, desc: Any) -> str:
        """How Triton's signatures spell the type of a tensor descriptor of the host."""

    def _type(self, name: str, value: Any) -> Any:
        """How Triton's signatures spell the type of an argument that is not compiled in."""
        if name in self.types:
            return self.types[name]
        if hasattr(value, "block_shape"):
            return self._descriptor_type(name, value)
        if isinstance(value, tuple):
            # ``None`` in a tuple is compiled in, as at a launch.
            types = ["constexpr" if v is None else self._type(name, v) for v in value]
            return type(value)(*types) if hasattr(value, "_fields") else tuple(types)
        return _plain_type(name, value)

    @abstractmethod
    def _limit(self) -> tuple[int | None, str]:
        """Bytes of that memory which a workgroup can have, if known, and whose they are."""

    def _check_size(self, metadata: Any) -> None:
        """Raises a LaunchError for a kernel that needs more memory than there is."""
        needed: int = metadata.shared
        limit, owner = self._limit()
        if limit is not None and needed > limit:
            raise LaunchError(
                f"the kernel needs {needed} bytes of {self.MEMORY}; {owner} has {limit}"
            )

    def _bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments by name, in the kernel's order, and the options."""
        name = self.kernel.fn.__name__
        options = {each: kwargs[each] for each in self.OPTIONS if each in kwargs}
        ignored = {each: kwargs[each] for each in self.IGNORED if each in kwargs}
        # A parameter of the same name gets the value as well, as Triton's launches do it.
        parameters = self.kernel.arg_names
        taken = {each for each in (*options, *ignored) if each not in parameters}
        named = {each: value for each, value in kwargs.items() if each not in taken}
        _refuse(name, [*_option_problems(options, self.OPTIONS), *_flag_problems(ignored)])
        try:
            bound = inspect.signature(self.kernel.fn).bind(*args, **named)
        except TypeError as error:
            raise TypeError(
                f"{name}: {error}; it takes {', '.join(self.kernel.arg_names)}, a launch also "
                f"{', '.join((*self.OPTIONS, *self.IGNORED))}"
            ) from error
        bound.apply_defaults()
        return dict(bound.arguments), {k: v for k, v in options.items() if v is not None}

    def _constants(self, given: dict[str, Any]) -> set[str]:
        """Names of the arguments that are compiled in: what is ``None`` too, as at a launch."""
        names = self.kernel.arg_names
        constants = {names[p.num] for p in self.kernel.params if p.is_constexpr}
        return constants | {name for name, value in given.items() if value is None}

    def _values(self, given: dict[str, Any]) -> list[Any]:
        """The arguments that a launch passes."""
        constants = self._constants(given)
        return [value for name, value in given.items() if name not in constants]


#: Types of Triton's signatures by what numpy and torch call them.
_DTYPES: Final = {
    "bool": "i1",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
} | {f"{sign}int{bits}": f"{sign or 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


def _plain_type(name: str, value: Any) -> str:
    """How Triton's signatures spell the type of an array or a number.

    Args:
        name: The parameter.
        value: Its argument.

    Raises:
        LaunchError: It is neither, or an array of other elements.
    """
    shape: Any = getattr(value, "shape", ())
    # A numpy scalar has a dtype and a shape as well, but is not a tensor.
    if hasattr(value, "dtype") and (hasattr(value, "data_ptr") or shape):
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise LaunchError(
                f"'{name}': the emulator has no arrays of {dtype}, expected one of "
                f"{', '.join(_DTYPES)}"
            )
        return f"*{_DTYPES[dtype]}"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise LaunchError(
        f"'{name}': expected a CPU tensor, a numpy array, a descriptor, a tuple, an int or a "
        f"float, got {type(value).__name__}"
    )


#: All types of parameters in Triton's signatures.
_TYPES: Final = frozenset((*_DTYPES.values(), "fp8e4b8", "fp8e5b16"))


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


def _absent(value: Any, path: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Returns the places in nested tuples where there is ``None``, as paths of indices."""
    if not isinstance(value, tuple):
        return []
    found = [(*path, index) for index, each in enumerate(value) if each is None]
    return found + [at for index, each in enumerate(value) for at in _absent(each, (*path, index))]


def int_problems(**arguments: tuple[Any, str]) -> Iterable[Problem]:
    """Yields a problem for each argument that is not an int; each comes with a further word."""
    for which, (value, of) in arguments.items():
        if type(value) is not int:
            yield TypeError, f"{which} is {value!r}: expected an int{of}"


def _option_problems(options: Mapping[str, Any], known: Mapping[str, bool]) -> Iterable[Problem]:
    for name, value in options.items():
        if value is None and known[name]:
            continue
        if type(value) is not int:
            yield TypeError, f"{name} is {value!r}: expected an int"
        elif name in ("num_warps", "num_ctas"):
            if value < 1 or value & (value - 1):
                yield ValueError, f"{name} is {value}: expected a power of two"
        elif value < 0:
            yield ValueError, f"{name} is {value}: expected 0 or more"


def _flag_problems(options: Mapping[str, Any]) -> Iterable[Problem]:
    for name, value in options.items():
        if type(value) is not bool:
            yield TypeError, f"{name} is {value!r}: expected a bool"


def _refuse(name: str, problems: list[Problem]) -> None:
    """One error for all that is wrong: of the first kind of these that is among it."""
    found = {kind for kind, _ in problems}
    for kind in (TypeError, ValueError, UnsupportedError):
        if kind in found:
            raise kind(f"{name}: " + "; ".join(sentence for _, sentence in problems))


# Code makes a launcher at each call; what was prepared outlives it.
@functools.lru_cache(maxsize=16)
def _program(text: str, host_features: Callable[[], frozenset[str] | None]) -> Any:
    # Needs numpy, which only those who launch have to have.
    from triton_ext.emulator import Program

    return Program(text, host_features=host_features)


_TARGET: Final = re.compile(r"(?:cuda:|sm_?)(\d{2,3})[af]?|(?:hip:)?(gfx\w+)", re.ASCII)


def emulated(
    kernel: Any,
    target: str = "sm_90",
    *,
    seed: int = 0,
    schedule: Schedule = "late",
    types: Mapping[str, str] | None = None,
    edit: Callable[[str], str] | None = None,
) -> EmulatedKernel:
    """Returns a launcher that runs a kernel on the CPU, over numpy: ``emulated(k)[grid](x, n)``.

    A launch compiles the kernel for the target, without a GPU, and runs the TTGIR of that compile.
    Asynchronous copies and products take effect as late as the kernel's waits let them; a read that
    no wait covers, a race, a deadlock and an access out of bounds are errors at their line.

    Args:
        kernel: A ``@triton.jit`` or ``@gluon.jit`` function.
        target: The GPU: ``"sm_90"``, ``"sm_100"``, ``"gfx942"``, ``"gfx950"``, ``"gfx1250"``.
        seed: Decides the order in which the parts of a workgroup take turns.
        schedule: ``"late"``: asynchronous operations complete at the last moment that the waits
            leave them.  ``"random"``: at any moment, in adversarial orders; the seed decides them,
            and an error names it.
        types: Types of parameters that their arguments do not have: ``{"x_ptr": "*bf16"}`` for a
            numpy array of ``uint16`` that holds bf16 numbers.
        edit: Changes the TTGIR before it runs; for experiments.

    Raises:
        TypeError: ``kernel`` is not a kernel, or another argument has a wrong type.  At a launch:
            the arguments do not match the kernel's, or an option has a wrong type.
        ValueError: An argument has a value that is not allowed; at a launch, an option has one.
        UnsupportedError: The emulator does not know the target, or the installed Triton does not.
        LaunchError: At a launch that the GPU would refuse, or with arguments of another type.
        EmulationError: At a launch: the kernel did something that it must never do, or has an
            operation that the emulator does not support.

    Example:
        ``emulated(matmul, target="sm_100")[(2, 1)](a_desc, b_desc, c_desc, 192, BLOCK=64)``
    """
    if not isinstance(target, str):
        raise TypeError(f"emulated: target is {target!r}: expected a str, such as 'sm_90'")
    found = _TARGET.fullmatch(target)
    if found is None:
        raise ValueError(
            f"emulated: target is {target!r}: expected a GPU such as 'sm_90', 'sm_100', 'gfx950' "
            "or 'gfx1250'"
        )
    capability, arch = found.groups()
    vendor, gpu = ("amd", arch) if capability is None else ("nvidia", int(capability))
    make = backends.load(vendor, "gluon.Emulated")
    launcher: EmulatedKernel = make(
        kernel, gpu, types=types, edit=edit, seed=seed, schedule=schedule
    )
    return launcher
