"""What the installed Triton makes of asynchronous copies: PTX or amdgcn, by children that may die.

Run as a script it reads one JSON document per line (a module and its target) and answers with the
assembly.  Each module is compiled in a child of its own, so an assertion of the host is an answer.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from types import TracebackType

__all__ = ["EmissionHost", "Emitted"]

#: Bytes of one cp.async of a thread.
CP_ASYNC = re.compile(
    r"cp\.async\.c[ag]\.shared\.global\S*\s+\[[^]]*\],\s*\[[^]]*\],\s*(0x\w+|\d+)"
)
#: Bits of one lane of a copy into LDS.
TO_LDS = re.compile(
    r"global_load_async_to_lds_b(\d+)|global_load_lds_(\w+)|buffer_load_(\w+)\b.*\blds\b"
)
_LDS_BYTES = {"dword": 4, "dwordx3": 12, "dwordx4": 16, "ushort": 2, "ubyte": 1}

#: Seconds for one module.
PATIENCE = 60


@dataclass(frozen=True, slots=True)
class Emitted:
    """What came out.

    Attributes:
        widths: Bytes of a copy instruction, and how many there are; ``None`` where it was refused.
        said: What the host said if it refused.
        asm: The assembly.
    """

    widths: dict[int, int] | None
    said: str = ""
    asm: str = ""

    @property
    def narrowest(self) -> int:
        """Bytes of the narrowest instruction; 0 without any."""
        return min(self.widths or {0: 0})

    @property
    def count(self) -> int:
        """Instructions that a thread executes."""
        return sum((self.widths or {}).values())


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

    def __enter__(self) -> EmissionHost:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()

    def ask(self, text: str, target: str) -> Emitted:
        """Compiles one module.

        Args:
            text: TTGIR.
            target: ``"cuda:90"``, ``"hip:gfx950"``.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps({"text": text, "target": target}) + "\n")
        self._child.stdin.flush()
        answer = json.loads(self._child.stdout.readline())
        asm = answer.get("asm")
        if asm is None:
            return Emitted(None, said=answer["said"])
        return Emitted(_widths(asm, target), asm=asm)


def _widths(asm: str, target: str) -> dict[int, int]:
    if target.startswith("cuda"):
        return dict(Counter(int(match[1], 0) for match in CP_ASYNC.finditer(asm)))
    found = (
        int(match[1]) // 8 if match[1] else _LDS_BYTES[match[2] or match[3]]
        for match in TO_LDS.finditer(asm)
    )
    return dict(Counter(found))


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
                answer = {"asm": sink.read().decode()}
            else:
                text = said.read().decode("utf-8", "replace")
                told = [line for line in text.splitlines() if "rror: " in line or "ssert" in line]
                answer = {"said": "\n".join([f"ended with {status}", *told[:4]])}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
