"""Triton's own wait counts, for the tests of the model."""

from __future__ import annotations

from types import TracebackType

from async_model import Counts
from triton_ext.backends.amd.passes.update_async_wait_count import UpdateAsyncWaitCount
from triton_ext.host.capabilities import features
from triton_ext.host.passes import load_passes
from triton_ext.host.process import HostProcess, HostResult, find_library
from triton_ext.ir import Module, parse
from triton_ext.passes import PassContext

__all__ = ["PASS", "Host"]

PASS = "tritonamdgpu-update-async-wait-count"


class Host:
    """The installed Triton in a child process.

    Attributes:
        version: Its version.
    """

    def __init__(self) -> None:
        library = find_library()
        self.version = library.version
        self._process = HostProcess(library)
        self._passes = load_passes(self._process)
        # ``gfx-arch``, or ``arch-generation-name`` in older releases.
        self._option = self._passes.passes[PASS].adders[0].settable[0]

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.close()

    def problems(self, text: str) -> list[str]:
        """What the parser and verifier say against a module."""
        return _messages(self._process.run(text, "kernel.ttgir"))

    def has_marks(self, arch: str) -> bool:
        """Whether commits become marks that LLVM counts, and waits name their number."""
        return arch != "gfx1250" and self.version not in ("3.6.0", "3.7.1")

    def counts(self, text: str, arch: str) -> Counts | list[str]:
        """The numbers of the own pass, or what it says instead."""
        lowered = self.lowered(text, arch)
        return lowered if isinstance(lowered, list) else self.read(lowered, arch)

    def lowered(self, text: str, arch: str) -> str | list[str]:
        """What the own pass makes of a module, or what it says instead."""
        call = self._passes.bind(PASS, {self._option: arch})
        result = self._process.run(text, "kernel.ttgir", [call])
        return result.plain if result.plain is not None else _messages(result)

    def ours(self, module: Module, arch: str) -> Counts:
        """The numbers of our pass; the module is changed."""
        context = PassContext(host_features=features)
        UpdateAsyncWaitCount(gfx_arch=arch).run(module, context)
        return self._read(module, arch)

    def read(self, text: str, arch: str) -> Counts:
        """The numbers of a module that a wait-count pass left, as this Triton lowers it."""
        return self._read(parse(text, "kernel.ttgir"), arch)

    def _read(self, module: Module, arch: str) -> Counts:
        return Counts.lowered(
            module,
            marks=self.has_marks(arch),
            tdm_is_instructions=self.version == "3.6.0",
        )


def _messages(result: HostResult) -> list[str]:
    return [d.message for d in result.diagnostics if d.severity == "error"]
