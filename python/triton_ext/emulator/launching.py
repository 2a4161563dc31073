"""Base class of the vendors' launchers of emulated kernels.

A launcher stands where a kernel stands, ``launcher[grid](x, y, n, BLOCK=64)``: arguments are bound
and options checked as for a launch on a GPU, and the TTGIR of the compile runs over numpy.  What
the GPU is, and how its compiler calls the types of arguments, a vendor's subclass says.

Importing this needs no numpy; a launch does.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

from triton_ext.errors import LaunchError, UnsupportedError

__all__ = ["EmulatedKernel", "Problem", "scalar_type"]

#: A kind of error and its sentence.
Problem: TypeAlias = tuple[type[Exception], str]


class EmulatedKernel(ABC):
    """A kernel that runs over numpy.

    Args:
        kernel: A function of ``@gluon.jit`` or ``@triton.jit``.
        expected: How messages call the kernels that a vendor's launcher takes.
        problems: What the vendor's launcher has against its own arguments.
        edit: Changes the TTGIR before it runs; for experiments.
        seed: Decides the order in which the parts of a workgroup take turns.
        host_features: Gives the capabilities of the Triton that compiles.

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
        expected: str,
        problems: Callable[[], Iterable[Problem]],
        edit: Callable[[str], str] | None,
        seed: int,
        host_features: Callable[[], frozenset[str] | None],
    ) -> None:
        if not hasattr(kernel, "arg_names") or not hasattr(kernel, "params"):
            name = getattr(kernel, "__name__", kernel)
            raise TypeError(f"emulated: expected {expected} function, got {name!r}")
        found = [*problems()]
        if edit is not None and not callable(edit):
            found.append((TypeError, f"edit is {edit!r}: expected a function from TTGIR to TTGIR"))
        _refuse("emulated", found)
        self.kernel = kernel
        self.edit = edit
        self.seed = seed
        self._host_features = host_features

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
            self._check_size(compiled.metadata.shared)
            text = compiled.asm["ttgir"]
            if self.edit is not None:
                text = self.edit(text)
            # As Triton asks for it: with all arguments by name, wherever they stood.
            sizes = grid(given) if callable(grid) else grid
            _program(text, self._host_features).run(sizes, self._values(given), self.seed)

        return launch

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the compiled kernel for these arguments."""
        return self._compile(*self._bind(args, kwargs))

    @abstractmethod
    def _compile(self, given: dict[str, Any], options: dict[str, Any]) -> Any:
        """Compiles the kernel for arguments and options of :meth:`_bind`."""

    @abstractmethod
    def _limit(self) -> tuple[int | None, str]:
        """Bytes of that memory which a workgroup can have, if known, and whose they are."""

    def _check_size(self, needed: int) -> None:
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


def scalar_type(name: str, value: Any, expected: str) -> str:
    """How Triton's signatures call the type of a number.

    Args:
        name: The parameter.
        value: Its argument.
        expected: How the message calls all that the parameter could have been given.

    Raises:
        LaunchError: It is not a number.
    """
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise LaunchError(f"'{name}': expected {expected}, got {type(value).__name__}")


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
