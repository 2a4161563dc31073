"""What the installed Triton emits for a TTGIR module, asked of processes that may die of it.

Run as a script it reads one JSON document per line (a module, its GPU) and answers with the
assembly: each is compiled in a child of its own, so an assertion of the host is an answer, too.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass

#: Instructions that move data between global memory and LDS.
COPY = re.compile(
    r"^\s*(?:(?:global|cluster)_load_async_to_lds_\w+|global_store_async_from_lds_\w+"
    r"|(?:global|buffer)_load_(?:lds_\w+|\w+ .*\blds\b)|tensor_load_to_lds|tensor_store_from_lds)",
    re.MULTILINE,
)
#: A branch around code that no lane of the wave executes, and its target.
SKIP = re.compile(r"^\s*s_cbranch_execz\s+(\S+)", re.MULTILINE)

#: Seconds for one module; 3.9.0 was seen to need minutes for one of some thousands.
PATIENCE = 60


@dataclass(frozen=True, slots=True)
class Emitted:
    """What came out.

    Attributes:
        count: Instructions that copy; ``None`` where the host refused the module.
        skips: Whether a wave without an active lane branches around one of them.
        said: What the host said if it refused.
        asm: The assembly.
    """

    count: int | None
    skips: bool = False
    said: str = ""
    asm: str = ""


class EmissionHost:
    """Asks a process that runs this file."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, text: str, arch: str) -> Emitted:
        """Compiles one module for one GPU."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps({"text": text, "arch": arch}) + "\n")
        self._child.stdin.flush()
        answer = json.loads(self._child.stdout.readline())
        asm = answer.get("asm")
        if asm is None:
            return Emitted(None, said=answer["said"])
        return Emitted(len(COPY.findall(asm)), _skips_copies(asm), asm=asm)

    def close(self) -> None:
        """Ends the process."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


def _skips_copies(asm: str) -> bool:
    for branch in SKIP.finditer(asm):
        end = asm.find(f"\n{branch[1]}:", branch.end())
        # A branch backwards, or to a block that was moved: better once too often than never.
        if COPY.search(asm, branch.end(), end if end >= 0 else len(asm)):
            return True
    return False


def compile_to_assembly(text: str, arch: str) -> str:
    """The host's stages behind TTGIR, as far as assembly."""
    from triton._C.libtriton import ir
    from triton.backends.amd.compiler import HIPBackend
    from triton.backends.compiler import GPUTarget

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


def main() -> None:
    """Answers until standard input ends."""
    import triton.backends.amd.compiler  # noqa: F401  loaded once, for every child

    for line in sys.stdin:
        with tempfile.TemporaryFile() as sink, tempfile.TemporaryFile() as said:
            status = _answer(json.loads(line), sink, said)
            for file in (sink, said):
                file.seek(0)
            if status == 0:
                answer = {"asm": sink.read().decode()}
            else:
                text = said.read().decode("utf-8", "replace")[-2000:]
                answer = {"said": f"ended with {status}\n{text}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
