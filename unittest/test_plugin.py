"""The plugin's life: install, uninstall, chains with foreign hooks, the cache key."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import timeit

import pytest
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_ext import backends, plugin
from triton_ext.host import capabilities

needs_key = pytest.mark.skipif(
    not capabilities()["stages-hook-key"].available,
    reason=capabilities()["stages-hook-key"].reason,
)


@triton.jit
def add_one(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr) + 1)


def compile_add_one():
    source = ASTSource(add_one, {"x_ptr": "*fp32"}, constexprs={})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32))


@pytest.fixture
def slot(fresh_triton_cache):
    """Triton's runtime knobs with an empty hook slot and no plugin; both are restored behind."""
    was_installed = plugin.is_installed()
    plugin.uninstall()
    assert knobs.runtime.add_stages_inspection_hook is None
    yield knobs.runtime
    # A test may leave a foreign hook on top of ours; without it ours can be taken out.
    plugin.uninstall()
    plugin._links.clear()
    knobs.runtime.add_stages_inspection_hook = None
    plugin.cache_key.cache_clear()
    if was_installed:
        plugin.install()


class ForeignHook:
    """Somebody else's hook: counts its calls, has a key, and passes on to what was there."""

    def __init__(self, name, previous=None):
        self.name, self.previous, self.compiles = name, previous, 0

    def __call__(self, backend=None, stages=None, options=None, language=None, capability=None):
        if stages is None:
            key, digest = self.previous() if self.previous is not None else ("", "")
            return f"{key}{self.name}", f"{digest}{self.name}"
        if self.previous is not None:
            self.previous(backend, stages, options, language, capability)
        self.compiles += 1
        return None


def test_install_and_uninstall_are_idempotent(slot):
    plugin.install()
    hook = slot.add_stages_inspection_hook
    assert hook is not None
    assert plugin.is_installed()
    plugin.install()
    assert slot.add_stages_inspection_hook is hook
    plugin.uninstall()
    assert slot.add_stages_inspection_hook is None
    assert not plugin.is_installed()
    plugin.uninstall()
    assert slot.add_stages_inspection_hook is None


def test_a_removed_plugin_leaves_nothing_behind(slot):
    import triton.backends.nvidia.driver as driver

    before = driver.make_tensordesc_arg
    plugin.install()
    assert driver.make_tensordesc_arg is not before
    plugin.uninstall()
    assert driver.make_tensordesc_arg is before


def test_chains_to_a_hook_that_was_there(slot):
    foreign = ForeignHook("foreign")
    slot.add_stages_inspection_hook = foreign
    plugin.install()
    compile_add_one()
    assert foreign.compiles == 1
    assert slot.add_stages_inspection_hook() == (
        f"foreign{plugin.cache_key()}",
        f"foreign{plugin.cache_key()}",
    )
    plugin.uninstall()
    assert slot.add_stages_inspection_hook is foreign


def test_chains_to_a_hook_that_cannot_be_asked_for_a_key(slot):
    calls = []

    def written_for_3_6(backend, stages, options, language, capability):
        calls.append(capability)

    slot.add_stages_inspection_hook = written_for_3_6
    plugin.install()
    compile_add_one()
    assert calls == [90]
    assert slot.add_stages_inspection_hook() == (plugin.cache_key(), plugin.cache_key())


def test_stays_as_a_pass_through_under_a_hook_that_came_later(slot):
    plugin.install()
    ours = slot.add_stages_inspection_hook
    foreign = ForeignHook("later", previous=ours)
    slot.add_stages_inspection_hook = foreign
    assert foreign()[0] == f"{plugin.cache_key()}later"
    plugin.uninstall()
    # The slot is not ours to change any more; our link adds no key and touches no stage.
    assert slot.add_stages_inspection_hook is foreign
    assert foreign() == ("later", "later")
    stages = {"ttgir": "stage"}
    ours(None, stages, None, None, 90)
    assert stages == {"ttgir": "stage"}
    # Installing again switches the same link on; it is not chained a second time.
    plugin.install()
    assert slot.add_stages_inspection_hook is foreign
    assert foreign()[0] == f"{plugin.cache_key()}later"
    assert compile_add_one().asm["cubin"]


def test_cache_key_is_a_digest_of_the_sources(slot, monkeypatch, tmp_path):
    (tmp_path / "passes").mkdir()
    source = tmp_path / "passes" / "lower.py"
    source.write_text("a = 1\n")
    monkeypatch.setattr(plugin, "_package_folders", lambda: [tmp_path])

    def key():
        plugin.cache_key.cache_clear()
        return plugin.cache_key()

    first = key()
    assert key() == first
    source.write_text("a = 2\n")
    changed = key()
    assert changed != first
    source.rename(source.with_name("renamed.py"))
    assert key() not in (first, changed)


def test_cache_key_follows_links_to_folders(slot, monkeypatch, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "lower.py").write_text("a = 1\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "passes").symlink_to(tmp_path / "real")
    monkeypatch.setattr(plugin, "_package_folders", lambda: [tmp_path / "package"])
    plugin.cache_key.cache_clear()
    first = plugin.cache_key()
    (tmp_path / "real" / "lower.py").write_text("a = 2\n")
    plugin.cache_key.cache_clear()
    assert plugin.cache_key() != first


def test_a_registration_that_was_lost_is_made_again(slot):
    with knobs.runtime.scope():
        plugin.install()
        assert plugin.is_installed()
    # The scope has restored the slot.
    assert slot.add_stages_inspection_hook is None
    assert not plugin.is_installed()
    plugin.install()
    assert plugin.is_installed()
    assert slot.add_stages_inspection_hook()[0] == plugin.cache_key()


def test_a_foreign_hook_that_does_not_call_ours_is_chained_to(slot):
    plugin.install()
    foreign = ForeignHook("alone")
    slot.add_stages_inspection_hook = foreign
    assert not plugin.is_installed()
    plugin.install()
    assert plugin.is_installed()
    assert slot.add_stages_inspection_hook()[0] == f"alone{plugin.cache_key()}"
    compile_add_one()
    assert foreign.compiles == 1


def test_cache_key_covers_passes_and_vendors(slot):
    covered = {
        path.relative_to(folder).as_posix()
        for folder in plugin._package_folders()
        for path in plugin._python_files(folder)
    }
    assert "plugin.py" in covered
    assert "ir/parser.py" in covered
    assert any(path.endswith("passes/lower_im2col.py") for path in covered)


@needs_key
def test_a_changed_pass_recompiles_and_a_removed_plugin_is_not_served(slot, monkeypatch):
    without = compile_add_one().hash
    hashes = []
    for key in ("old", "new", "old"):
        monkeypatch.setattr(plugin, "cache_key", lambda key=key: key)
        plugin.install()
        hashes.append(compile_add_one().hash)
        plugin.uninstall()
    monkeypatch.undo()
    old, new, old_again = hashes
    assert len({without, old, new}) == 3
    assert old_again == old
    assert compile_add_one().hash == without


def test_a_module_without_markers_is_not_parsed(slot, monkeypatch):
    def refuse(*args):
        raise AssertionError("a module that has nothing of ours was parsed")

    monkeypatch.setattr(plugin, "run_passes", refuse)
    plugin.install()
    assert compile_add_one().asm["cubin"]


def test_cost_of_a_launch_that_does_not_concern_us(slot, capsys):
    """Measured and printed, not asserted: a loaded machine would make a limit flaky."""
    plugin.install()
    hook = slot.add_stages_inspection_hook
    hook()
    calls = 200_000
    best = min(timeit.repeat(hook, number=calls, repeat=3)) / calls
    with capsys.disabled():
        sys.stdout.write(f"\nzero-argument hook: {best * 1e6:.2f} us per call\n")
    assert hook() == hook()


def test_cost_of_a_tiled_descriptor_that_does_not_concern_us(slot, capsys):
    """What we add to Triton's own function; measured and printed, not asserted."""
    wrap = backends.load("nvidia", "wrap_make_tensordesc_arg")
    arg, metadata = object.__new__(TensorDescriptor), {"is_im2col": False}

    def previous(arg, metadata, rest):
        return arg

    wrapped = wrap(previous, lambda: True)
    calls = 200_000

    def microseconds(function):
        timed = timeit.repeat(lambda: function(arg, metadata, ()), number=calls, repeat=3)
        return min(timed) / calls * 1e6

    added = microseconds(wrapped) - microseconds(previous)
    with capsys.disabled():
        sys.stdout.write(f"\ntiled descriptor: {added:.2f} us added per argument\n")
    assert wrapped(arg, metadata, ()) is arg


def test_a_child_process_with_another_pass_source_gets_another_key(tmp_path):
    """The whole way: a copy of the package, one byte of a pass changed."""
    import shutil

    import triton_ext

    package = pathlib.Path(triton_ext.__file__).parent
    if not (package / "backends" / "nvidia").is_dir():
        pytest.skip("an editable install has the vendors elsewhere")
    shutil.copytree(package, tmp_path / "triton_ext", ignore=shutil.ignore_patterns("__pycache__"))
    changed = tmp_path / "triton_ext" / "backends" / "nvidia" / "passes" / "lower_im2col.py"

    def key():
        code = "from triton_ext import plugin; print(plugin.cache_key(), plugin.__file__)"
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        output = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
        digest, path = output.split()
        assert path.startswith(str(tmp_path))
        return digest

    first = key()
    changed.write_text(changed.read_text() + "\n")
    assert key() != first
