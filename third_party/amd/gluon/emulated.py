"""Kernels for AMD's GPUs that run over numpy (:func:`triton_ext.emulated`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NoReturn

from triton_ext import backends
from triton_ext.emulator.launching import EmulatedKernel, Problem, Schedule
from triton_ext.errors import LaunchError, UnsupportedError
from triton_ext.host import features
from triton_ext.host.sources import compile_kernel

from . import hosts

__all__ = ["Emulated", "emulated"]

#: GPUs that the emulator knows.
_ARCHS = ("gfx942", "gfx950", *hosts.LDS_BYTES)


class Emulated(EmulatedKernel):
    """A kernel that runs over numpy.

    Args:
        kernel: A ``@gluon.jit`` or ``@triton.jit`` function.
        arch: GPU to compile for.
        types: Types of parameters that cannot be inferred from the arguments: ``{"x_ptr":
            "*bf16"}`` for an array of ``uint16`` that holds bf16 numbers.
        edit: Changes the TTGIR before it runs; for experiments.
        seed: Decides the order in which the partitions of a workgroup take turns.
        schedule: In which order they do (:func:`triton_ext.emulated`).

    Raises:
        TypeError: ``kernel`` is not a kernel, or another argument has the wrong type.  At a
            launch: the arguments do not match the kernel, or an option is not an int.
        ValueError: ``types`` names an unknown parameter or type.  At a launch: an option is out of
            range.
        UnsupportedError: The emulator does not know ``arch``, or the installed Triton does not.
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
        seed: int = 0,
        schedule: Schedule = "late",
    ) -> None:
        super().__init__(
            kernel,
            problems=lambda: _arch_problems(arch),
            types=types,
            edit=edit,
            seed=seed,
            schedule=schedule,
            host_features=features,
            compiler=compile_kernel,
        )
        self.arch = arch

    def _limit(self) -> tuple[int | None, str]:
        lds = backends.load("amd", "shared-memory")(self.arch)
        return lds.bytes if lds is not None else None, f"a workgroup of {self.arch}"

    def _target(self) -> tuple[str, int | str, int]:
        return "hip", self.arch, 64 if self.arch.startswith("gfx9") else 32

    def _descriptor_type(self, name: str, desc: Any) -> NoReturn:
        raise LaunchError(
            f"'{name}': got a {type(desc).__name__}: the emulator has no descriptors of the host "
            f"for {self.arch}; make it in the kernel"
        )


def _arch_problems(arch: Any) -> Iterable[Problem]:
    archs = f"{', '.join(_ARCHS[:-1])} or {_ARCHS[-1]}"
    if not isinstance(arch, str):
        yield TypeError, f"arch is {arch!r}: expected {archs}"
    elif arch not in _ARCHS:
        yield UnsupportedError, f"arch is {arch!r}: expected {archs}"
    elif problem := hosts.arch_problem(arch):
        yield UnsupportedError, f"arch is {arch!r}: {problem}"


def emulated(
    kernel: Any,
    arch: str = "gfx1250",
    types: Mapping[str, str] | None = None,
    edit: Callable[[str], str] | None = None,
) -> Emulated:
    """The older name of ``triton_ext.emulated(kernel, "gfx1250")``; see :class:`Emulated`."""
    return Emulated(kernel, arch, types, edit)
