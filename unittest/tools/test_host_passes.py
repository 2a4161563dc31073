"""triton-opt --pass-provider=host equals calling the binding, for every pass, over the corpus.

The reference is the corpus' own table of adders (``passes.json``, made when the corpus was) called
in a process that knows nothing of this package.  A pass that aborts there has to be one error here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys

import pytest
from ir_helpers import CORPUS, NO_CORPUS
from triton_ext.host.process import find_library
from triton_ext.tools import opt

#: Reads jobs (file, adder, arguments), one JSON a line; answers how each ended, and its text.
REFERENCE = """\
import json, os, sys, tempfile
from triton._C import libtriton

def run(file, adder, arguments):
    context = libtriton.ir.context()
    libtriton.ir.load_dialects(context)
    libtriton.nvidia.load_dialects(context)
    libtriton.amd.load_dialects(context)
    module = libtriton.ir.parse_mlir_module(file, context)
    module.context = context
    manager = libtriton.ir.pass_manager(context)
    function = libtriton
    for name in adder.split("."):
        function = getattr(function, name)
    function(manager, *arguments)
    manager.run(module, "x")
    return module.str_nodebug()

os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
for line in sys.stdin:
    job = json.loads(line)
    with tempfile.TemporaryFile() as sink:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.write(sink.fileno(), run(*job).encode())
                status = 0
            except RuntimeError:
                pass
            os._exit(status)
        _, status = os.waitpid(child, 0)
        sink.seek(0)
        print(json.dumps([os.waitstatus_to_exitcode(status), sink.read().decode()]), flush=True)
"""


def jobs():
    """Every pass with every chosen file: (name, pipeline, adder, arguments, file)."""
    folder = CORPUS / find_library().version
    table = folder / "passes.json"
    if not table.exists():
        return []
    found = []
    for adder, (arguments, printed) in sorted(json.loads(table.read_text()).items()):
        text = re.fullmatch(r"any\((.*)\)", printed)[1]
        # Options without a value are printed as nothing, or as a name with nothing behind it.
        text = re.sub(r"[\w-]+=(?=[ }])", "", text)
        found += [(adder, arguments, text, file) for file in files(folder)]
    return found


def files(folder):
    """Five files of middle size and different targets."""
    chosen = []
    for pattern in ("*-90/*.ttir", "*-90/*.ttgir", "*-100/*.ttgir", "*-gfx950/*.ttgir"):
        sized = sorted(folder.glob(pattern), key=lambda path: (path.stat().st_size, path.name))
        chosen += [sized[len(sized) // 3]] if sized else []
    sized = sorted(folder.glob("*-90/*.ttgir"), key=lambda path: (path.stat().st_size, path.name))
    return [*chosen, *sized[-1:]]


@pytest.fixture(scope="module")
def reference():
    """A function that runs a job in the reference process."""
    process = subprocess.Popen(
        [sys.executable, "-c", REFERENCE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(file, adder, arguments):
        process.stdin.write(json.dumps([str(file), adder, arguments]) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    process.stdin.close()
    process.stdout.close()
    process.wait()


def compare(job, reference, capsys):
    """Returns ``ok``, ``fails`` or ``aborts``: how both ended.  Fails where they differ."""
    adder, arguments, pipeline, file = job
    status, text = reference(file, adder, arguments)
    found = opt.main([str(file), "--pass-provider=host", f"--pass-pipeline={pipeline}"])
    captured = capsys.readouterr()
    what = f"{pipeline} on {file.name}\n{captured.err[:2000]}"
    if status == 0:
        assert (found, captured.out) == (0, text), what
        return "ok"
    assert (found, captured.out) == (1, ""), what
    assert ": error: " in captured.err, what
    # An assertion inside of a pass may be survived, and is told in the same words.
    assert status > 0 or "aborted while running" in captured.err, what
    return "aborts" if status < 0 else "fails"


def check(chosen, reference, capsys):
    counts = {"ok": 0, "fails": 0, "aborts": 0}
    aborting = set()
    for job in chosen:
        outcome = compare(job, reference, capsys)
        counts[outcome] += 1
        if outcome == "aborts":
            aborting.add(job[2].partition("{")[0])
    with capsys.disabled():
        sys.stdout.write(
            f"\ntriton {find_library().version}: {len(chosen)} runs agree with the binding: "
            f"{counts['ok']} give equal text, {counts['fails']} fail on both sides, "
            f"{counts['aborts']} abort on both sides ({', '.join(sorted(aborting)) or 'none'})\n"
        )
    return counts


needs_corpus = pytest.mark.skipif(
    not jobs(), reason=f"triton {find_library().version}: {NO_CORPUS}"
)


@needs_corpus
def test_a_sample_equals_the_binding(reference, capsys):
    """Every pass has the same chance; which ones are chosen does not change from run to run."""
    ordered = sorted(
        jobs(), key=lambda job: hashlib.sha256(f"{job[2]} {job[3].name}".encode()).digest()
    )
    counts = check(ordered[:40], reference, capsys)
    assert counts["ok"] > 20


@pytest.mark.slow
@needs_corpus
@pytest.mark.skipif(
    not os.environ.get("TRITON_EXT_NIGHTLY"), reason="takes minutes; TRITON_EXT_NIGHTLY=1 runs it"
)
def test_every_pass_equals_the_binding(reference, capsys):
    every = jobs()
    assert len({job[3] for job in every}) == 5
    assert len({job[0] for job in every}) >= 90
    counts = check(every, reference, capsys)
    assert counts["ok"] > len(every) // 2
