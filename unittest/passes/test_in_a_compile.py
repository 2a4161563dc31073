"""Passes of others in a real compile: they act, they enter the cache key, they are named."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys

import pytest
import triton
import triton.language as tl
from pass_helpers import Atan2, Break, CountFunction, EraseKernel, Mark, Nothing, Shorten
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton_ext import plugin
from triton_ext.errors import PassError, PipelineError, UnsupportedError, VerifyError
from triton_ext.host import capabilities

has_key = capabilities()["stages-hook-key"].available
needs_key = pytest.mark.skipif(not has_key, reason=capabilities()["stages-hook-key"].reason)


@triton.jit
def add_two(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr) + 2)


@triton.jit
def add_two_to_a_row(x_ptr):
    row = tl.arange(0, 128)
    tl.store(x_ptr + row, tl.load(x_ptr + row) + 2)


def compiled(kernel=add_two, pointer="*i32"):
    source = ASTSource(kernel, {"x_ptr": pointer}, constexprs={})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32))


@pytest.fixture(autouse=True)
def clean_plugin(fresh_triton_cache):
    """No passes of others in front and behind; the plugin as it was."""
    was_installed = plugin.is_installed()
    assert plugin._extra == ()
    yield
    plugin._extra = ()
    if not was_installed:
        plugin.uninstall()


@needs_key
@pytest.mark.parametrize("stage", plugin.STAGES)
def test_a_pass_changes_what_is_compiled(stage):
    with plugin.extra_passes(stage, [Mark(value=7)]):
        inside = compiled()
    outside = compiled()
    assert inside.hash != outside.hash
    assert "test.mark = 7 : i32" in inside.asm["ttgir"]
    assert ("test.mark" in inside.asm["ttir"]) == (stage == "ttir")
    assert "test.mark" not in outside.asm["ttgir"]
    assert inside.asm["cubin"]


@needs_key
def test_options_and_order_enter_the_key():
    plugin.install()
    hook = knobs.runtime.add_stages_inspection_hook
    keys = {"none": hook()}
    assert hook() is hook()
    for name, passes in {
        "one": [Mark()],
        "other": [Mark(value=2)],
        "both": [Mark(), Mark(value=2)],
        "swapped": [Mark(value=2), Mark()],
    }.items():
        with plugin.extra_passes("ttgir", passes):
            keys[name] = hook()
            assert hook() is hook()
            assert len(plugin.passes_key()) == 1
    with plugin.extra_passes("ttir", [Mark()]):
        keys["stage"] = hook()
    assert len(set(keys.values())) == len(keys)
    assert hook() == keys["none"]
    assert plugin.passes_key() == ()


@needs_key
def test_the_source_of_a_pass_enters_the_key(tmp_path, monkeypatch):
    source = tmp_path / "changing_pass.py"
    text = (
        "from dataclasses import dataclass\n"
        "from triton_ext.passes import Pass\n"
        "@dataclass(frozen=True, slots=True)\n"
        "class Changing(Pass):\n"
        "    name = 'changing'\n"
        "    def run(self, module, context):\n"
        "        pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    digests = []
    for version in (text, text + "# changed\n", text):
        source.write_text(version)
        importlib.invalidate_caches()
        sys.modules.pop("changing_pass", None)
        with plugin.extra_passes("ttgir", importlib.import_module("changing_pass").Changing()):
            digests.append(plugin._full_key(plugin._extra))
    del sys.modules["changing_pass"]
    assert digests[0] != digests[1]
    assert digests[0] == digests[2]


@needs_key
def test_a_pass_whose_source_is_in_no_file(monkeypatch):
    monkeypatch.delattr(sys.modules[Mark.__module__], "__file__")
    with pytest.raises(UnsupportedError, match="'test-mark' is not in a file"):
        plugin.add_pass("ttgir", [Mark()])


@needs_key
def test_add_and_remove():
    plugin.add_pass("ttgir", [Mark()])
    plugin.add_pass("ttgir", [Mark(value=2)])
    assert plugin.is_installed()
    assert "test.mark = 2 : i32" in compiled().asm["ttgir"]
    with pytest.raises(ValueError, match=r"added are: builtin\.module\(test-mark\) after ttgir"):
        plugin.remove_pass("ttir", [Mark()])
    plugin.remove_pass("ttgir", [Mark(value=2)])
    assert "test.mark = 1 : i32" in compiled().asm["ttgir"]
    plugin.remove_pass("ttgir", [Mark()])
    assert "test.mark" not in compiled().asm["ttgir"]


@needs_key
def test_text_of_a_pipeline(registered):
    with plugin.extra_passes("ttgir", "test-mark{value=9}") as manager:
        assert str(manager) == "builtin.module(test-mark{value=9})"
        assert "test.mark = 9 : i32" in compiled().asm["ttgir"]
    with pytest.raises(PipelineError, match="there is no pass 'no-such-pass'"):
        plugin.add_pass("ttgir", "no-such-pass")
    with pytest.raises(ValueError, match="passes can run after 'ttir' and 'ttgir', not 'llir'"):
        plugin.add_pass("llir", "test-mark")


@needs_key
def test_the_pass_is_named_that_leaves_an_invalid_module():
    with (
        plugin.extra_passes("ttgir", [Mark(), Break()]),
        pytest.raises(VerifyError, match="pass 'test-break' left an invalid module"),
    ):
        compiled()


@needs_key
@pytest.mark.parametrize("stage", plugin.STAGES)
def test_the_pass_is_named_whose_module_triton_refuses(stage):
    line = inspect.getsourcelines(add_two_to_a_row.fn)[1] + 2
    with (
        plugin.extra_passes(stage, [Mark(), Shorten(), Mark(value=2)]),
        pytest.raises(VerifyError, match="pass 'test-shorten' left an invalid module: ") as caught,
    ):
        compiled(add_two_to_a_row)
    assert (caught.value.filename, caught.value.line) == (__file__, line)


@needs_key
@pytest.mark.parametrize(("stage", "fails"), [("ttir", "ttgir"), ("ttgir", "llir")])
def test_the_pass_is_named_whose_module_triton_cannot_lower(stage, fails, capfd):
    """Triton's verifier takes it, and a later stage fails."""
    expected = rf"stage '{fails}' failed on .*test-atan2\)' behind {stage} changed: PassManager"
    with (
        plugin.extra_passes(stage, [Mark(), Atan2()]),
        pytest.raises(PassError, match=expected) as caught,
    ):
        compiled(add_two_to_a_row, "*fp32")
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "atan2" in capfd.readouterr().err


@needs_key
def test_a_pass_that_changed_nothing_is_not_named():
    with (
        plugin.extra_passes("ttgir", [Nothing()]),
        plugin.extra_passes("ttgir", [Atan2()]),
        plugin.extra_passes("ttgir", [Nothing()]),
        pytest.raises(PassError, match=r"failed on .*test-atan2\)' behind ttgir changed") as caught,
    ):
        compiled(add_two_to_a_row, "*fp32")
    assert "test-nothing" not in caught.value.message


@needs_key
@pytest.mark.parametrize("stage", plugin.STAGES)
def test_passes_that_erase_the_kernel_are_named(stage):
    with (
        plugin.extra_passes(stage, [EraseKernel()]),
        pytest.raises(PassError, match=r"erase-kernel\)' removed or renamed the kernel 'add_two'"),
    ):
        compiled()


@needs_key
def test_a_module_that_no_pass_changes_is_not_parsed_again(monkeypatch):
    def refuse(*args):
        raise AssertionError("an unchanged module was parsed by the host")

    monkeypatch.setattr(plugin.host_module, "parse_module", refuse)
    with plugin.extra_passes("ttgir", [CountFunction()]):
        assert compiled().asm["cubin"]


@needs_key
def test_remarks_go_to_the_log(caplog):
    with (
        caplog.at_level("INFO", logger="triton_ext"),
        plugin.extra_passes("ttgir", CountFunction()),
    ):
        compiled()
    assert any("remark: an addition" in record.message for record in caplog.records)
    assert any(__file__ in record.message for record in caplog.records)


def test_a_host_that_would_serve_stale_kernels_is_refused(monkeypatch):
    lacking = dataclasses.replace(capabilities()["stages-hook-key"], available=False, reason="no")
    table = {**capabilities(), "stages-hook-key": lacking}
    # Its package has a function of the same name.
    module = importlib.import_module("triton_ext.host.capabilities")
    monkeypatch.setattr(module, "capabilities", lambda: table)
    with pytest.raises(UnsupportedError, match="no"):
        plugin.add_pass("ttgir", [Mark()])
