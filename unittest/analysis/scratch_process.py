"""Answers with the shared memory that Triton's own passes give modules.

Modules that end the process (the wheels have assertions) are answered with ``null``, as are those
that Triton does not take.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys


def total(target: str, text: str, path: pathlib.Path) -> int:
    """Bytes, as the pass of a target's vendor has them; of no vendor's for ``""``."""
    from triton._C.libtriton import amd, ir, nvidia, passes

    context = ir.context()
    for dialects in (ir, amd, nvidia):
        dialects.load_dialects(context)
    path.write_text(text)
    module = ir.parse_mlir_module(str(path), context)
    manager = ir.pass_manager(context)
    vendor, _, arch = target.partition(":")
    if vendor == "cuda":
        nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(manager, int(arch), 85)
    elif vendor == "hip":
        add = amd.passes.ttgpuir.add_allocate_shared_memory
        # Since 3.8 for a GPU.
        add(manager, arch) if "arg1" in str(add.__doc__) else add(manager)
    else:
        passes.ttgpuir.add_allocate_shared_memory(manager)
    manager.run(module, "allocate")
    return int(re.search(r"ttg.shared = (\d+)", module.str_nodebug())[1])


def answer(cases: list[list[str]], start: int, write: int) -> None:
    """Writes a line for each module from one on, until one ends the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    path = pathlib.Path(sys.argv[2]).with_name(f"module{os.getpid()}.ttgir")
    for number in range(start, len(cases)):
        try:
            found = total(*cases[number], path)
        except RuntimeError:
            found = None
        os.write(write, f"{json.dumps([number, found])}\n".encode())


def main() -> None:
    """Forks until every module is answered."""
    cases = json.loads(pathlib.Path(sys.argv[1]).read_text())
    answers: list[int | None] = [None] * len(cases)
    start = 0
    while start < len(cases):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            answer(cases, start, write)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as lines:
            for line in lines:
                number, answers[number] = json.loads(line)
                start = number + 1
        _, status = os.waitpid(child, 0)
        # The one that ended the process stays without an answer.
        start += os.WIFSIGNALED(status)
    pathlib.Path(sys.argv[2]).write_text(json.dumps(answers))


main()
