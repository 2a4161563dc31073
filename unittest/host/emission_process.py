"""What the installed Triton emits for a TTGIR module, asked of processes that may die of it.

Run as a script it reads one JSON document per line (a module, its target) and answers with the
assembly: each is compiled in a child of its own, so an assertion of the host is an answer, too.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from dataclasses import dataclass

from line_process import LineProcess

__all__ = ["Assembly", "EmissionProcess"]

#: Seconds for one module; 3.9.0 was seen to need minutes for one of some thousands.
PATIENCE = 60


@dataclass(frozen=True, slots=True)
class Assembly:
    """What came out.

    Attributes:
        text: PTX or amdgcn; ``None`` where the host refused the module, or died of it.
        said: The exit status and the end of what the host said, if it refused.
    """

    text: str | None
    said: str = ""


class EmissionProcess(LineProcess):
    """Asks a process that runs this file."""

    def __init__(self) -> None:
        super().__init__(__file__)

    def assembly(self, text: str, target: str) -> Assembly:
        """Compiles one module.

        Args:
            text: TTGIR.
            target: ``"cuda:90"``, ``"hip:gfx950"``.
        """
        return Assembly(**self.exchange({"text": text, "target": target}))


def compile_to_assembly(text: str, target: str) -> str:
    """The host's stages behind TTGIR, as far as assembly."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget

    vendor, _, arch = target.partition(":")
    if vendor == "cuda":
        from triton.backends.nvidia.compiler import CUDABackend

        backend = CUDABackend(GPUTarget("cuda", int(arch), 32))
    else:
        from triton.backends.amd.compiler import HIPBackend

        backend = HIPBackend(GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32))
    counts = {
        name: int(re.search(rf'"ttg.{key}" = (\d+)', text)[1])
        for name, key in (("num_warps", "num-warps"), ("num_ctas", "num-ctas"))
    }
    options = backend.parse_options(dict(counts))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(text)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    module.context = context
    metadata = {"target": backend.target, "name": "f", **options.__dict__, **counts}
    if vendor == "cuda":
        llir = backend.make_llir(module, metadata, options, int(arch))
        return backend.make_ptx(llir, metadata, options, int(arch))
    return backend.make_amdgcn(backend.make_llir(module, metadata, options), metadata, options)


def _answer(job: dict, sink, said) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        os.dup2(said.fileno(), 2)
        signal.alarm(PATIENCE)  # ends this process, whatever it does
        try:
            sink.write(compile_to_assembly(**job).encode())
            sink.flush()
            status = 0
        except Exception as error:  # whatever it is, the host could not compile the module
            said.write(f"\n{type(error).__name__}: {error}".encode())
            said.flush()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _words(said: str) -> str:
    """The lines that tell why, or the last ones."""
    telling = [line for line in said.splitlines() if "rror: " in line or "ssert" in line]
    return "\n".join(telling[:4]) or said[-2000:]


def main() -> None:
    """Answers until standard input ends."""
    import triton.backends.amd.compiler
    import triton.backends.nvidia.compiler  # noqa: F401  loaded once, for every child

    for line in sys.stdin:
        with tempfile.TemporaryFile() as sink, tempfile.TemporaryFile() as said:
            status = _answer(json.loads(line), sink, said)
            for file in (sink, said):
                file.seek(0)
            if status == 0:
                answer = {"text": sink.read().decode()}
            else:
                words = _words(said.read().decode("utf-8", "replace"))
                answer = {"text": None, "said": f"ended with {status}\n{words}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
