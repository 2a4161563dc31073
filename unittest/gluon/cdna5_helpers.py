"""What the tests of examples/gluon/cdna5 share: recorded launches, removed waits."""

from __future__ import annotations

import contextlib
import pathlib
import re
import sys
from dataclasses import dataclass, field

import pytest
from triton_ext.emulator import EmulationError, Program
from triton_ext.errors import PassError
from triton_ext.gluon import amd as xamd
from triton_ext.host import capabilities, features
from triton_ext.ir import parse
from triton_ext.passes import PassManager

__all__ = [
    "MISSING",
    "Launch",
    "Launcher",
    "recorded",
    "tensorcnt_waits",
    "verifier_objects",
    "waits_without_barrier",
    "with_one_more",
    "without_waits",
]

# The examples are not installed; they are imported from the root of the checkout.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

#: Why the examples do not run on this Triton; empty where they do.
MISSING = capabilities()["amd-partitioned-shared"].reason

_WAIT = re.compile(r"^.*amdg\.async_tdm_(?:intrinsic_)?wait.*\n", re.MULTILINE)


@dataclass
class Launch:
    """One launch of a kernel.

    Attributes:
        name: The kernel's.
        asm: What the compile made.
        shared: Its bytes of LDS.
        grid: Workgroups.
        values: Arguments that are no constants.
    """

    name: str
    asm: dict
    shared: int
    grid: tuple
    values: list

    @property
    def ttgir(self):
        return self.asm["ttgir"]

    @property
    def placed_bytes(self):
        """Bytes of LDS that the emulator placed buffers in; 0 if each has memory of its own."""
        return Program(self.ttgir, host_features=features).lds_bytes

    def rerun(self, ttgir):
        """Runs another text on the same arguments; gives what the emulator says against it."""
        try:
            Program(ttgir, host_features=features).run(self.grid, self.values)
        except EmulationError as error:
            return error
        return None


@dataclass
class Launcher:
    """Launches kernels on numpy arrays, compiles each set of constants once, and takes notes."""

    launches: list[Launch] = field(default_factory=list)
    kernels: dict = field(default_factory=dict)

    def __call__(self, kernel):
        emulated = self.kernels.setdefault(kernel, xamd.emulated(kernel))
        launcher = self

        class At:
            def __getitem__(self, grid):
                def launch(*args, **kwargs):
                    compiled = emulated.compile(*args, **kwargs)
                    values = emulated._values(emulated._bind(args, kwargs)[0])
                    name = kernel.fn.__name__
                    launcher.launches.append(
                        Launch(name, compiled.asm, compiled.metadata.shared, grid, values)
                    )
                    emulated[grid](*args, **kwargs)

                return launch

        return At()

    def of(self, name):
        """The launches of one kernel."""
        return [launch for launch in self.launches if launch.name == name]


@contextlib.contextmanager
def recorded(folder):
    """A launcher for all tests of a module, with a Triton cache of its own in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(folder))
        yield Launcher()


def verifier_objects(ttgir):
    """What the verifier of waits says against a kernel, or ``None``."""
    try:
        PassManager("triton-ext-verify-async-waits").run(parse(ttgir))
    except PassError as error:
        return error
    return None


def without_waits(ttgir):
    """Each text that lacks one of the waits; the wait's number beside it."""
    for match in _WAIT.finditer(ttgir):
        number = re.search(r"(?:count|num) = (\d+)", match[0])
        yield int(number[1]), ttgir[: match.start()] + ttgir[match.end() :]


def with_one_more(ttgir):
    """Each text in which one of the waits lets one instruction more be in flight."""
    for match in _WAIT.finditer(ttgir):
        number = re.search(r"(count|num) = (\d+)", match[0])
        raised = match[0].replace(number[0], f"{number[1]} = {int(number[2]) + 1}", 1)
        yield int(number[2]), ttgir[: match.start()] + raised + ttgir[match.end() :]


def waits_without_barrier(asm):
    """Waits that no barrier follows before LDS is read or filled.

    A wait is for the copies of one wave; the barrier makes it one for the copies of all, and tells
    that all have read what is filled next.
    """
    lines = [line.split() for line in asm["amdgcn"].splitlines()]
    code = [words[0:2] for words in lines if words and not words[0].startswith((";", "."))]
    found = []
    for place, words in enumerate(code):
        if words[0] == "s_wait_tensorcnt" and int(words[1], 16) != 10:
            for name, *_ in code[place + 1 :]:
                if name == "s_barrier_wait":
                    break
                if name.startswith(("tensor_", "ds_load", "s_endpgm", "s_cbranch")):
                    found.append((" ".join(words), name))
                    break
    return found


def tensorcnt_waits(asm):
    """Numbers of the waits in the machine code, those that LLVM adds by itself left out.

    The LLVM of 3.9 keeps the counter below 11: it waits for 10 between two tensor operations.
    """
    code = asm["amdgcn"]
    numbers = [int(n, 16) for n in re.findall(r"^\s*s_wait_tensorcnt (0x[0-9a-f]+)", code, re.M)]
    return [n for n in numbers if n != 10]
