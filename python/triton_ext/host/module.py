"""Triton's own MLIR modules: print them, and parse text back into them.

MLIR's printed form is the only boundary that survives a change of LLVM (docs/adr/0001).  Triton's
parser verifies what it reads, so everything that we hand back has been checked by the host.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from triton_ext.errors import VerifyError

__all__ = ["new_context", "parse_module", "print_module", "verify"]

# One thread parses at a time, so that none reads what another's module is refused for.
_parse_lock = threading.Lock()


def print_module(module: Any) -> str:
    """Returns the printed form of a Triton module, locations included."""
    return str(module)


def new_context(backend: Any | None = None) -> Any:
    """Returns an MLIR context with Triton's dialects and, if given, a backend's."""
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    if backend is not None:
        backend.load_dialects(context)
    return context


def parse_module(text: str, context: Any) -> Any:
    """Parses and verifies ``text`` with the host.

    Args:
        text: The printed form of a module.
        context: The MLIR context to parse into, with the dialects loaded.

    Returns:
        The host's module, with ``context`` set as Triton's later stages expect.

    Raises:
        VerifyError: The host refuses the text; its diagnostics are in the message.
    """
    from triton._C.libtriton import ir

    handle, path = tempfile.mkstemp(prefix="triton-ext-", suffix=".mlir")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        with _parse_lock:
            try:
                module = ir.parse_mlir_module(path, context)
            except RuntimeError as error:
                said = _diagnostics(path, context).replace(path, "<module>").strip() or str(error)
                raise VerifyError(f"triton refuses the module:\n{said}") from error
    finally:
        os.unlink(path)
    module.context = context
    return module


def _diagnostics(path: str, context: Any) -> str:
    """Returns what the host says about a file that it has just refused, by asking once more.

    Catching what its C++ writes means taking file descriptor 2 away from the whole process, so it
    is done for modules that fail only, by one thread at a time.  The caller holds the lock.
    """
    from triton._C.libtriton import ir

    with _captured_stderr() as text:
        with suppress(RuntimeError):
            ir.parse_mlir_module(path, context)
        return str(text())


def verify(module: object, context: Any | None = None) -> None:
    """Asks Triton whether it can read a module and whether the module is valid.

    Args:
        module: A ``triton_ext.ir.Module``, or anything whose ``str`` is the text.
        context: The MLIR context to parse into; by default a new one with every backend's dialects.

    Raises:
        VerifyError: The host refuses it; its diagnostics are in the message.
    """
    if context is None:
        from triton._C.libtriton import amd, nvidia

        context = new_context()
        for backend in (nvidia, amd):
            backend.load_dialects(context)
    parse_module(str(module), context)


@contextmanager
def _captured_stderr() -> Iterator[Any]:
    """Catches what is written to file descriptor 2; the caller holds the lock.

    A temporary file rather than a pipe: a long text would fill a pipe and block.
    """
    with tempfile.TemporaryFile() as sink:
        saved = os.dup(2)

        def text() -> str:
            sink.seek(0)
            return sink.read().decode("utf-8", "replace")

        os.dup2(sink.fileno(), 2)
        try:
            yield text
        finally:
            os.dup2(saved, 2)
            os.close(saved)
