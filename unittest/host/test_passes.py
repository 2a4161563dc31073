"""Triton's passes by textual name: what is found, what is refused, what a crash looks like."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import pwd
import re
import signal
import threading
import time

import pytest
from triton_ext.errors import UnsupportedError
from triton_ext.host import module as host_module
from triton_ext.host import passes as host_passes
from triton_ext.host import worker
from triton_ext.host.detect import HostError, detect
from triton_ext.host.passes import load_passes
from triton_ext.host.process import Call, HostLibrary, HostProcess, find_library
from triton_ext.ir import parse

MODULE = """\
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, \
ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @f(%x: i32, %p: !tt.ptr<i32>) {
    %dead = arith.muli %x, %x : i32
    tt.store %p, %x : !tt.ptr<i32>
    tt.return
  }
}
"""


@pytest.fixture(scope="module")
def process():
    with HostProcess(find_library()) as process:
        yield process


CALLS = [
    Call("canonicalize", "passes.common.add_canonicalizer", ()),
    Call("cse", "passes.common.add_cse", ()),
]


@pytest.fixture(scope="module")
def passes(process, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return load_passes(process)


def test_every_adder_of_the_bindings_is_a_pass(passes):
    """Counts the adders by another way than the worker does."""
    from triton._C import libtriton

    def adders(module, path):
        for name in dir(module):
            value = getattr(module, name)
            if "pass_manager" in str(value.__doc__):
                yield f"{path}.{name}"
            elif type(value) is type(module):
                yield from adders(value, f"{path}.{name}")

    expected = {
        *adders(libtriton.passes, "passes"),
        *adders(libtriton.nvidia.passes, "nvidia.passes"),
        *adders(libtriton.amd.passes, "amd.passes"),
    }
    assert len(expected) >= 90
    found = {adder.path for known in passes.passes.values() for adder in known.adders}
    assert found == expected
    assert dict(passes.problems) == {}


def test_what_bind_returns_prints_the_options_that_were_given(passes):
    """The printed pipeline of the real binding is the reference."""
    from triton._C import libtriton

    context = libtriton.ir.context()
    libtriton.ir.load_dialects(context)
    checked = 0
    for name, known in passes.passes.items():
        for adder in known.adders:
            options = {}
            for index, argument in enumerate(adder.arguments):
                value = {"int": str(5 + index), "bool": "true", "str": "gfx1250"}[argument.kind]
                options.update(dict.fromkeys(argument.options, value))
            call = passes.bind(name, options)
            manager = libtriton.ir.pass_manager(context)
            function = libtriton
            for part in call.path.split("."):
                function = getattr(function, part)
            function(manager, *call.arguments)
            printed = manager.get_pipeline_str()
            assert re.search(rf"\b{re.escape(name)}\b", printed)
            for option, value in options.items():
                assert re.search(rf"\b{option}={value}\b", printed), (printed, options)
            checked += len(options)
    assert checked > 30


def test_defaults_are_those_of_upstream(passes):
    call = passes.bind("convert-triton-to-tritongpu", {"target": "cuda:80"})
    assert call == Call(
        "convert-triton-to-tritongpu",
        "passes.ttir.add_convert_to_ttgpuir",
        ("cuda:80", 4, 32, 1),
    )


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("no-such-pass", {}, "has no pass 'no-such-pass'"),
        ("cse", {"x": "1"}, "'cse' .* has no option 'x'; its options: none"),
        ("canonicalize", {"max-iterations": "3"}, "binding always uses max-iterations=10"),
        ("tritongpu-pipeline", {"num-stages": "many"}, "takes an integer, found 'many'"),
        (
            "tritongpu-pipeline",
            {"num-stages": "2147483648"},
            "'num-stages' takes an integer from -2147483648 to 2147483647, found 2147483648",
        ),
        ("tritongpu-F32DotTC", {"emu-tf32": "2"}, "takes true or false, found '2'"),
        ("nvgpu-warp-specialization", {}, "needs a value for option"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(passes, name, options, said):
    with pytest.raises(UnsupportedError, match=said):
        passes.bind(name, options)


def test_integers_are_those_that_the_bindings_take(passes):
    context = host_module.new_context()
    checked = 0
    for known in passes.passes.values():
        for adder in known.adders:
            for index, argument in enumerate(adder.arguments):
                if argument.kind == "int":
                    for value in (-(2**31) - 1, -(2**31), 2**31 - 1, 2**31):
                        given = [_ANY[other.kind] for other in adder.arguments]
                        given[index] = value
                        fits = -(2**31) <= value < 2**31
                        assert _takes(context, adder.path, given) == fits, (adder, value)
                    checked += 1
    assert checked >= 15


_ANY = {"int": 0, "bool": False, "str": "", "float": 0.0}


def _takes(context, path, arguments):
    from triton._C import libtriton

    function = libtriton
    for part in path.split("."):
        function = getattr(function, part)
    try:
        function(libtriton.ir.pass_manager(context), *arguments)
    except TypeError:
        return False
    return True


def test_the_value_that_is_always_used_may_be_given(passes):
    given = {"max-iterations": "10", "top-down": "1"}
    assert passes.bind("canonicalize", given) == passes.bind("canonicalize", {})


def test_an_option_has_the_names_of_all_releases(passes):
    for name in ("tritonamdgpu-coalesce-async-copy", "convert-triton-amdgpu-to-llvm"):
        calls = [
            passes.bind(name, {spelling: "gfx950"})
            for spelling in ("arch", "arch-generation-name", "gfx-arch")
        ]
        assert calls[0] == calls[1] == calls[2]
        assert "gfx950" in calls[0].arguments
    with pytest.raises(UnsupportedError, match="has no option"):
        passes.bind("convert-triton-amdgpu-to-llvm", {"arch": "gfx950", "gfx-arch": "gfx942"})
    with pytest.raises(UnsupportedError, match="has no option 'arch'"):
        passes.bind("cse", {"arch": "gfx950"})


def test_the_probe_is_kept_on_disk(process, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = load_passes(process)
    (path,) = pathlib.Path(tmp_path, "triton-ext").iterdir()

    def must_not_run(self):
        raise AssertionError("asked twice")

    monkeypatch.setattr(HostProcess, "probe", must_not_run)
    assert load_passes(process) == first
    good = json.loads(path.read_text())["adders"]
    path.write_text(json.dumps({"adders": good[:1]}))
    assert len(load_passes(process).passes) == 1
    damaged = [[], [1], ["x"], [{}], [{"path": 1, "types": [], "problem": "x"}]]
    damaged += [[{**good[0], "printed": 1}], [{**good[0], "varied": ["x"] * 9}]]
    for text in ("{", "[]", *(json.dumps({"adders": entries}) for entries in damaged)):
        path.write_text(text)
        with pytest.raises(AssertionError, match="asked twice"):
            load_passes(process)


def test_a_run_is_what_the_binding_does(process, passes):
    result = process.run(MODULE, "in.mlir", [passes.bind("canonicalize", {})])
    assert result.diagnostics == ()
    assert "arith.muli" not in result.plain
    assert "loc(" not in result.plain
    assert 'loc("in.mlir":4:5)' in result.text


def test_dumps_of_each_pass(process, passes):
    calls = [passes.bind("canonicalize", {}), passes.bind("cse", {})]
    result = process.run(MODULE, "in.mlir", calls, one_by_one=True)
    assert "arith.muli" in result.states[0]
    assert (len(result.states), len(result.seconds)) == (3, 2)
    assert result.states[2] == result.plain


def test_a_parse_error_has_its_place_and_source(process):
    result = process.run(MODULE.replace("tt.store %p, %x", "tt.store %p, %q"), "in.mlir")
    assert result.text is None
    (error,) = result.diagnostics
    assert (error.severity, error.filename, error.line) == ("error", "in.mlir", 4)
    assert "use of undeclared SSA value name" in error.message
    assert error.source_line.strip() == "tt.store %p, %q : !tt.ptr<i32>"


def test_a_parse_error_has_its_notes(process):
    text = MODULE.replace("%dead", "%x")
    result = process.run(text, "in.mlir")
    (error,) = result.diagnostics
    assert (error.line, error.message) == (3, "redefinition of SSA value '%x'")
    # Triton 3.6 exports no handler of diagnostics.
    assert result.without_notes == (not error.notes)
    if not detect().version.startswith("3.6."):
        (note,) = error.notes
        assert (note.filename, note.line) == ("in.mlir", 2)
        assert note.message == "previously defined here"


def test_a_verifier_error_has_its_place_and_source(process):
    text = MODULE.replace("%dead = arith.muli %x, %x : i32", "%dead = tt.call @g() : () -> i32")
    (error,) = process.run(text, "in.mlir").diagnostics
    assert (error.line, error.message) == (
        3,
        "'tt.call' op 'g' does not reference a valid function",
    )
    assert error.source_line.strip().startswith("%dead = tt.call @g()")


def test_a_failed_pass_leaves_one_error_without_the_dump(process, passes):
    text = MODULE.replace(
        "%x, %x : i32", "%x, %x : i32\n    tt.call @f(%x, %p) : (i32, !tt.ptr<i32>) -> ()"
    )
    calls = [passes.bind("convert-triton-gpu-to-llvm", {"compute-capability": "90"})]
    result = process.run(text, "in.mlir", calls)
    assert result.text is None
    assert all(d.filename == "in.mlir" for d in result.diagnostics)
    assert len([d for d in result.diagnostics if d.severity == "error"]) == 1
    assert "mlir_reproducer" not in "".join(map(str, result.diagnostics)) + result.other


def test_unregistered_dialects_on_demand(process):
    text = 'module {\n  "my.op"() : () -> ()\n}\n'
    refused = process.run(text, "in.mlir")
    assert "unregistered dialect" in refused.diagnostics[0].message
    assert refused.diagnostics[0].line == 2
    allowed = process.run(text, "in.mlir", allow_unregistered=True)
    if detect().release >= (3, 7):
        assert allowed.plain == text
    else:
        # 3.6 does not export the setter.
        (error,) = allowed.diagnostics
        assert "--host=none reads operations of any dialect" in error.notes[0].message
    # It holds for one run only.
    assert process.run(text, "in.mlir").text is None


# The second pass of a pipeline ends the process, as an assertion of the host does.
DIE = (
    "if index + len(group) > 1: "
    'os.write(2, b"in.mlir:3:5: remark: so far\\npython3: /src/A.cpp:7: void f(): '
    "Assertion `x > 0' failed.\\nStack dump:\\n\"); os.abort()"
)


def patched_worker(tmp_path, monkeypatch, line, replacement):
    """Gives the processes that start from now on another worker."""
    script = tmp_path / "worker.py"
    source = pathlib.Path(worker.__file__).read_text(encoding="utf-8")
    assert source.count(line) == 1
    script.write_text(source.replace(line, replacement))
    monkeypatch.setattr("triton_ext.host.process._WORKER", script)


def test_a_host_that_aborts_is_one_error(monkeypatch, tmp_path):
    line = (
        "            manager = self._host.ir.pass_manager(context)\n            for step in group:"
    )
    patched_worker(tmp_path, monkeypatch, line, f"            {DIE}\n{line}")
    with HostProcess(find_library()) as process:
        calls = CALLS
        result = process.run(MODULE, "in.mlir", calls)
        assert result.text is None
        remark, error = result.diagnostics
        assert remark.source_line == "    %dead = arith.muli %x, %x : i32"
        assert re.fullmatch(
            r"triton \S+ aborted while running 'cse': "
            r"Assertion `x > 0' failed\. \(A\.cpp:7\) \(SIGABRT\)",
            error.message,
        )
        # The next request gets a new child.
        assert process.run(MODULE, "in.mlir", calls[:1]).text is not None


RUN = '                manager.run(module, "triton-opt")'


def test_what_was_dumped_before_an_abort_is_kept(monkeypatch, tmp_path):
    patched_worker(tmp_path, monkeypatch, RUN, f"                index and os.abort()\n{RUN}")
    with HostProcess(find_library()) as process:
        result = process.run(MODULE, "in.mlir", CALLS, one_by_one=True)
    assert result.text is None
    assert "aborted while running 'cse'" in result.diagnostics[-1].message
    assert len(result.seconds) == 1
    before, after = result.states
    assert "arith.muli" in before
    assert "arith.muli" not in after
    assert "tt.store" in after


def test_an_interrupted_run_leaves_no_answer_for_the_next(monkeypatch, tmp_path):
    patched_worker(tmp_path, monkeypatch, RUN, f"                time.sleep(1)\n{RUN}")
    other = MODULE.replace("@f", "@other")
    with HostProcess(find_library()) as process:
        process.run(MODULE, "in.mlir")  # started
        real = process._answers

        class Interrupted:
            interrupted = False

            def readline(self):
                if self.interrupted:
                    return real.readline()
                self.interrupted = True
                raise KeyboardInterrupt

            def close(self):
                real.close()

        process._answers = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            process.run(MODULE, "in.mlir", CALLS[:1])
        assert "@other" in process.run(other, "in.mlir").plain


def test_an_answer_to_another_request_is_refused(monkeypatch, tmp_path):
    line = 'worker.request = request.pop("id")'
    patched_worker(tmp_path, monkeypatch, line, line + " - 1")
    with HostProcess(find_library()) as process:
        (error,) = process.run(MODULE, "in.mlir").diagnostics
    assert "answered request 0 instead of 1" in error.message


def test_a_child_that_closes_its_answers_and_waits_for_a_request_is_ended(monkeypatch, tmp_path):
    line = "        worker.say(answer=answer)\n"
    patched_worker(tmp_path, monkeypatch, line, "        answers.close()\n")
    with HostProcess(find_library()) as process:
        timer = threading.Timer(20, lambda: process._child.kill())
        timer.start()
        (error,) = process.run(MODULE, "in.mlir").diagnostics
        timer.cancel()
    assert "aborted while reading the module: exit status" in error.message


def test_a_busy_child_is_ended(monkeypatch, tmp_path):
    line = "        context = self._context()\n        refused ="
    patched_worker(tmp_path, monkeypatch, line, f"        time.sleep(60)\n{line}")
    process = HostProcess(find_library())
    child = process._start()
    child.stdin.write(
        b'{"id": 1, "do": "run", "text": "", "path": "/dev/null", "steps": [], '
        b'"allow_unregistered": false, "one_by_one": false, "failed_state": false}\n'
    )
    child.stdin.flush()
    start = time.monotonic()
    process.close()
    assert time.monotonic() - start < 20
    assert child.returncode == -signal.SIGKILL


def test_a_child_that_cannot_start_leaves_nothing_open(monkeypatch):
    def refuse(*arguments, **named):
        raise OSError("no more processes")

    monkeypatch.setattr("subprocess.Popen", refuse)
    process = HostProcess(find_library())
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(HostError, match="cannot be started: no more processes"):
            process._start()
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", ['a"b.mlir', "a\\b.mlir", "\u00e9.mlir"])
def test_an_odd_name_of_the_input_is_escaped(process, name):
    result = process.run(MODULE, name, CALLS)
    module = parse(result.text)
    (store,) = (op for op in module.walk() if op.name == "tt.store")
    assert store.loc.resolve() == (name, 4, 5)
    (error,) = process.run(MODULE.replace("%p, %x", "%p, %q"), name).diagnostics
    assert (error.filename, error.line) == (name, 4)


def test_a_host_that_survives_its_assertion_is_one_error(process, passes):
    """Inside of a pass MLIR catches the signal and goes on."""
    text = "tt.func @f() {\n  %r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>\n"
    calls = [passes.bind("convert-triton-to-tritongpu", {"target": "cuda:80", "num-warps": "3"})]
    result = process.run(text + "  tt.return\n}\n", "in.mlir", calls)
    assert result.text is None
    assert "must be a power of two" in result.diagnostics[0].message
    assert "aborted while running 'convert-triton-to-tritongpu'" in result.diagnostics[-1].message
    assert len(result.diagnostics) == 2
    assert process.run(MODULE, "in.mlir").text is not None


def test_no_triton_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(HostError, match="no Triton is installed"):
        find_library()


def test_a_library_that_does_not_load_is_a_sentence(tmp_path):
    broken = tmp_path / "libtriton.so"
    broken.write_text("not a library")
    with HostProcess(HostLibrary("3.9.0", broken)) as process:
        (error,) = process.run(MODULE, "in.mlir").diagnostics
    assert "ImportError" in error.message


def test_files_of_killed_writers_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "triton-ext"
    folder.mkdir()
    for name in ("host-passes-killed.tmp", "host-passes-locked.tmp", "other.tmp"):
        (folder / name).touch()
    with open(folder / "host-passes-locked.tmp") as locked, HostProcess(find_library()) as process:
        fcntl.flock(locked, fcntl.LOCK_EX)
        load_passes(process)
    names = {path.name for path in folder.iterdir()}
    assert len(names) == 3
    assert names > {"host-passes-locked.tmp", "other.tmp"}


def test_without_a_home_folder_nothing_is_kept(monkeypatch):
    monkeypatch.setenv("HOME", "relative")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert host_passes._cache_path(find_library()) is None
    monkeypatch.setenv("HOME", "")
    path = host_passes._cache_path(find_library())
    assert path.is_relative_to(pwd.getpwuid(os.getuid()).pw_dir)
