"""Triton's own MLIR modules: print them, and parse text back into them.

MLIR's printed form is the only boundary that survives a change of LLVM (docs/adr/0001).  Triton's
parser verifies what it reads, so everything that we hand back has been checked by the host.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from triton_ext.errors import VerifyError
from triton_ext.host.children import TemporaryFolder
from triton_ext.host.diagnostics import Diagnostic, read_printed
from triton_ext.strings import lines_of

__all__ = ["new_context", "parse_module", "print_module", "readable", "verify"]

_NO_WARPS = re.compile(r"(#ttg\.amd_wmma<\{[^<>]*\bctaLayout = )\{\}")

# One thread parses at a time, so that none reads the diagnostics of another's module.
_parse_lock = threading.Lock()


def print_module(module: Any) -> str:
    """Returns the printed form of a Triton module, locations included, that Triton reads again."""
    return readable(str(module))


def readable(text: str) -> str:
    """Returns text that Triton printed, changed where Triton's own parser would refuse it.

    Triton prints ``#ttg.amd_wmma`` of a single wave with ``ctaLayout = {}``, which its parser
    refuses: it asks for the bases of ``warp``, of which there are none.
    """
    return _NO_WARPS.sub(r"\1{warp = []}", text) if "ctaLayout = {}" in text else text


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

    with _temporary(text) as path, _parse_lock:
        try:
            module = ir.parse_mlir_module(path, context)
        except RuntimeError as error:
            said = _diagnostics(path, context).replace(path, "<module>").strip() or str(error)
            raise VerifyError(f"triton refuses the module:\n{said}") from error
    module.context = context
    return module


def _diagnostics(path: str, context: Any) -> str:
    """Returns the host's diagnostics for a file that it has just refused, by parsing it once more.

    Its C++ writes them to file descriptor 2, which has to be redirected for the whole process.  So
    this is done for modules that fail only, by one thread at a time.  The caller holds the lock.
    """
    from triton._C.libtriton import ir

    with _captured_stderr() as text:
        with suppress(RuntimeError):
            ir.parse_mlir_module(path, context)
        return str(text())


def verify(module: object, context: Any | None = None) -> None:
    """Asks Triton whether it can read a module and whether the module is valid.

    Triton's diagnostics are in the error and not on file descriptor 2, which is redirected for the
    whole process while Triton parses.

    Args:
        module: A ``triton_ext.ir.Module``, or anything whose ``str`` is the text.
        context: The MLIR context to parse into; by default a new one with every backend's dialects.

    Raises:
        VerifyError: The host refuses it, at this place of the text: that of the source for a module
            that was not edited, else that of ``str(module)``, named ``<edited NAME>``.
    """
    text, name = str(module), _name_of(module)
    if context is None:
        from triton._C.libtriton import amd, nvidia

        context = new_context()
        for backend in (nvidia, amd):
            backend.load_dialects(context)
    from triton._C.libtriton import ir

    refused: RuntimeError | None = None
    with _temporary(text) as path, _parse_lock, _captured_stderr() as said:
        try:
            ir.parse_mlir_module(path, context)
        except RuntimeError as error:
            refused = error
        printed = str(said())
    if refused is None:
        sys.stderr.write(printed)  # by other threads, too
        return
    found = read_printed(printed.replace(path, name))
    sys.stderr.write(found.other)
    errors = [_error(one, text, name) for one in found.diagnostics if one.severity == "error"]
    if not errors:
        raise VerifyError(f"triton refuses the module: {refused}", filename=name) from refused
    errors[0].others = tuple(errors[1:])
    raise errors[0] from refused


def _name_of(module: object) -> str:
    """Returns the file name for places in the text of a module."""
    name = getattr(getattr(module, "source", None), "filename", "<module>")
    return f"<edited {name.strip('<>')}>" if getattr(module, "is_changed", False) else str(name)


def _error(diagnostic: Diagnostic, text: str, name: str) -> VerifyError:
    line = diagnostic.source_line
    lines = lines_of(text) if diagnostic.filename == name else []
    if line is None and 0 < diagnostic.line <= len(lines):
        line = lines[diagnostic.line - 1]
    return VerifyError(
        diagnostic.message,
        filename=diagnostic.filename or name,
        line=diagnostic.line,
        column=diagnostic.column,
        source_line=line,
        notes=tuple(
            f"{note.filename}:{note.line}:{note.column}: {note.message}"
            if note.line
            else note.message
            for note in diagnostic.notes
        ),
    )


@contextmanager
def _temporary(text: str) -> Iterator[str]:
    """The path of a file with a text, for as long as it is needed."""
    with TemporaryFolder() as folder:
        path = os.path.join(folder, "module.mlir")
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        yield path


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
