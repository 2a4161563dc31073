"""Modules with values in LDS that are all alive at once, and Triton's allocation of them."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import tempfile

#: Seconds of work after which an allocation, which takes milliseconds, is taken for endless.
ENDLESS = 1.0

_HEADER = """\
#b = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
"""  # noqa: E501 - TTGIR
_OPEN = """\
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, \
ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
"""


def partitioned(partitions, groups=1, padding=None):
    """The text of an encoding."""
    inner = "#s" if padding is None else f"#ttg.padded_shared<{padding}>"
    return (
        f"#ttg.partitioned_shared<{{numPartitions = {partitions}, numGroups = {groups}, "
        f"partitionDim = 0, partitionLayout = {inner}}}>"
    )


def module_of(values, also="", call=""):
    """A kernel that reads values of a shape and an encoding (``None`` for a plain one)."""
    numbers = range(len(values))
    events = [*((k, False) for k in numbers), *((k, True) for k in numbers)]
    return module_with(values, events, also, call)


def module_with(values, events, also="", call=""):
    """A kernel that allocates values and reads them: pairs of a number and whether it is read.

    A function is called in front of the first read.
    """
    names = {None: "#s"}
    for _, encoding in values:
        names.setdefault(encoding, f"#e{len(names) - 1}")
    lines = [f"{name} = {text}" for text, name in names.items() if text is not None]
    lines += [_OPEN, also, "tt.func public @kernel(%q: !tt.ptr<f16>, %i: i32) {"]
    calls = [f"tt.call @{call}(%q) : (!tt.ptr<f16>) -> ()"] if call else []
    for k, is_read in events:
        shape, encoding = values[k]
        if is_read:
            lines += [*calls, *_read(k, shape, names[encoding])]
            calls = []
        else:
            lines.append(
                f"%m{k} = ttg.local_alloc : () -> "
                f"!ttg.memdesc<{shape}xf16, {names[encoding]}, #smem, mutable>"
            )
    return "\n".join([_HEADER, *lines, "tt.return", "}", "}"])


def _read(k, shape, encoding):
    sizes = shape.split("x")
    view, source = "x".join(sizes[-2:]), f"%m{k}"
    memory = f"{encoding}, #smem, mutable>"
    if len(sizes) == 3:
        yield (
            f"%x{k} = ttg.memdesc_index {source}[%i] : !ttg.memdesc<{shape}xf16, {memory} -> "
            f"!ttg.memdesc<{view}xf16, {memory}"
        )
        source = f"%x{k}"
    yield f"%s{k} = tt.splat %q : !tt.ptr<f16> -> tensor<{view}x!tt.ptr<f16>, #b>"
    yield (
        f"%v{k} = ttg.local_load {source} : !ttg.memdesc<{view}xf16, {memory} -> "
        f"tensor<{view}xf16, #b>"
    )
    yield f"tt.store %s{k}, %v{k} : tensor<{view}x!tt.ptr<f16>, #b>"


def in_child(work, seconds, timer=signal.ITIMER_REAL):
    """The text that work returns in a process of its own, and how that ended.

    Triton may abort or never end: a signal ends the process after some seconds.
    """
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(read)
            signal.setitimer(timer, seconds)
            with os.fdopen(write, "w") as stream:
                stream.write(work())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        found = stream.read()
    return found, os.waitpid(child, 0)[1]


def allocation_in_child(text):
    """Triton's allocation of a kernel, as it runs in a compile.

    Returns:
        The offsets of each ``ttg.local_alloc`` and the total; ``None`` if it does not end.
    """
    found, status = in_child(lambda: _allocate(text), ENDLESS, signal.ITIMER_PROF)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        return None
    assert found, "Triton could not allocate the module"
    offsets = [
        [int(n) for n in re.findall(r"(\d+) : i32", "".join(pair))]
        for pair in re.findall(
            r"local_alloc.*?allocation.offset = (?:\[(.*?)\]|(\d+ : i32))", found
        )
    ]
    return offsets, int(re.search(r"ttg.shared = (\d+)", found)[1])


_BARRIERS = """\
tt.func public @kernel(%x: tensor<64x64xf16, #b>, %p: tensor<64x64x!tt.ptr<f16>, #b>) {
  %0 = ttg.local_alloc %x : (tensor<64x64xf16, #b>) -> !ttg.memdesc<64x64xf16, #s, #smem>
  %1 = ttg.local_load %0 : !ttg.memdesc<64x64xf16, #s, #smem> -> tensor<64x64xf16, #b>
  %2 = ttg.local_alloc %1 : (tensor<64x64xf16, #b>) -> !ttg.memdesc<64x64xf16, #s, #smem>
  %3 = ttg.local_load %2 : !ttg.memdesc<64x64xf16, #s, #smem> -> tensor<64x64xf16, #b>
  %4 = ttg.local_load %0 : !ttg.memdesc<64x64xf16, #s, #smem> -> tensor<64x64xf16, #b>
  tt.store %p, %3 : tensor<64x64x!tt.ptr<f16>, #b>
  tt.store %p, %4 : tensor<64x64x!tt.ptr<f16>, #b>
  tt.return
}
}
"""


def barrier_case():
    """A kernel with two buffers that are alive at once, behind Triton's allocation."""
    from triton._C.libtriton import amd

    add = amd.passes.ttgpuir.add_allocate_shared_memory
    return _run(_HEADER + _OPEN + _BARRIERS, lambda manager: add(manager, "gfx1250"))


def barriers(text):
    """How many barriers Triton adds to a kernel that it has allocated."""
    from triton._C.libtriton import amd

    add = amd.passes.ttgpuir.add_membar
    return _run(text, lambda manager: add(manager, "gfx1250")).count("ttg.barrier")


def _allocate(text):
    from triton._C.libtriton import amd, passes

    def add(manager):
        passes.convert.add_scf_to_cf(manager)
        passes.gluon.add_inliner(manager)
        amd.passes.ttgpuir.add_allocate_shared_memory(manager, "gfx1250")

    return _run(text, add)


def _run(text, add):
    from triton._C.libtriton import amd, ir

    context = ir.context()
    ir.load_dialects(context)
    amd.load_dialects(context)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "kernel.ttgir")
        path.write_text(text)
        module = ir.parse_mlir_module(str(path), context)
    manager = ir.pass_manager(context)
    add(manager)
    manager.run(module, "allocate")
    return module.str_nodebug()
