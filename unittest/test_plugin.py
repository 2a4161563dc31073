"""The plugin's life: install, uninstall, chains with foreign hooks, the cache key."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import threading
import timeit
from dataclasses import dataclass
from typing import ClassVar

import pytest
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_ext import backends, plugin
from triton_ext.errors import UnsupportedError
from triton_ext.host import capabilities, patch_points
from triton_ext.ir import parse
from triton_ext.passes import Pass
from triton_ext.passes.sources import add_files, python_files

needs_key = pytest.mark.skipif(
    not capabilities()["stages-hook-key"].available,
    reason=capabilities()["stages-hook-key"].reason,
)


@dataclass(frozen=True, slots=True)
class Nothing(Pass):
    """Sets an attribute."""

    name: ClassVar[str] = "test-nothing"
    value: int = 1
    names: tuple[str, ...] = ()
    scale: float = 0.0

    def run(self, module, context):
        module.op.set_attribute("test.nothing", f"{self.value} : i32")


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


def test_a_removed_plugin_leaves_the_sources_of_kernels_as_they_were(slot):
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    before = ASTSource.make_ir, GluonASTSource.make_ir
    plugin.install()
    assert ASTSource.make_ir is not before[0]
    assert GluonASTSource.make_ir is not before[1]
    plugin.uninstall()
    assert (ASTSource.make_ir, GluonASTSource.make_ir) == before


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


def test_links_that_lead_back_are_followed_once(tmp_path):
    (tmp_path / "a.py").touch()
    for name in ("x", "y", "z"):
        (tmp_path / name).symlink_to(tmp_path)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.py").touch()
    (tmp_path / "inner" / "up").symlink_to(tmp_path)
    (tmp_path / "inner" / "nowhere").symlink_to(tmp_path / "none")
    assert python_files(tmp_path) == [tmp_path / "a.py", tmp_path / "inner" / "b.py"]


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
        for path in python_files(folder)
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


@pytest.mark.skipif(
    patch_points.asks_hook_for_key(), reason="this Triton asks the hook for its key"
)
class TestKeysOfAHostThatDoesNotAsk:
    """Triton 3.6: the key goes behind Triton's own, on disk, of compiles under way, in memory."""

    @staticmethod
    def in_memory():
        from triton.runtime import jit

        return jit.compute_cache_key({}, [("i32", "")], "options")

    def test_the_key_in_memory(self, slot):
        without = self.in_memory()
        plugin.install()
        assert self.in_memory() == f"{without}{plugin.cache_key()}"
        with plugin.extra_passes("ttgir", [Nothing()]):
            assert self.in_memory() == f"{without}{plugin.cache_key()}-{plugin.passes_key()[0]}"
        assert self.in_memory() == f"{without}{plugin.cache_key()}"
        plugin.uninstall()
        assert self.in_memory() == without

    def test_each_key_is_extended_once(self, slot):
        plugin.install()
        plugin.install()
        assert self.in_memory().count(plugin.cache_key()) == 1

    def test_a_key_that_was_lost_is_extended_again(self, slot, monkeypatch):
        from triton.runtime import jit

        stock = jit.compute_cache_key
        plugin.install()
        jit.compute_cache_key = stock
        assert plugin.cache_key() not in self.in_memory()
        plugin.install()
        assert plugin.cache_key() in self.in_memory()

    def test_stays_as_a_pass_through_under_a_replacement_that_came_later(self, slot, monkeypatch):
        from triton.runtime import jit

        without, compiled = self.in_memory(), compile_add_one().hash
        plugin.install()
        with_us = compile_add_one().hash
        ours = jit.compute_cache_key
        monkeypatch.setattr(jit, "compute_cache_key", lambda *args: f"{ours(*args)} and theirs")
        plugin.uninstall()
        assert self.in_memory() == f"{without} and theirs"
        assert compile_add_one().hash == compiled
        plugin.install()
        assert self.in_memory() == f"{without}{plugin.cache_key()} and theirs"
        assert compile_add_one().hash == with_us != compiled

    def test_passes_that_changed_behind_the_key_are_an_error(self, slot):
        plugin.install()
        self.in_memory()
        thread = threading.Thread(target=plugin.add_pass, args=("ttgir", [Nothing()]))
        thread.start()
        thread.join()
        try:
            with pytest.raises(UnsupportedError, match="stored under a wrong key"):
                slot.add_stages_inspection_hook(None, {}, None, None, 90)
        finally:
            plugin.remove_pass("ttgir", [Nothing()])


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


@needs_key
class TestChangesBetweenTheKeyAndTheCompile:
    """Triton asks for the key first and for the stages later, and runs them later still."""

    @pytest.fixture(autouse=True)
    def no_passes_behind(self, slot):
        yield
        plugin._extra = ()

    @staticmethod
    def wrapped_ttgir(slot, monkeypatch):
        """What runs behind a stage, and the passes that it ran."""
        ran = []

        def remember(text, *, stage, extra, **options):
            ran.append([entry.pipeline for entry in extra])
            return parse(text)

        monkeypatch.setattr(plugin, "run_passes", remember)
        monkeypatch.setattr(plugin.host_module, "print_module", lambda module: "module {\n}\n")
        stages = {"ttgir": lambda source, metadata: source}
        slot.add_stages_inspection_hook(None, stages, None, None, 90)
        return stages["ttgir"], ran

    def test_the_stages_run_what_the_key_was_made_of(self, slot, monkeypatch):
        with plugin.extra_passes("ttgir", [Nothing()]):
            slot.add_stages_inspection_hook()
            stage, ran = self.wrapped_ttgir(slot, monkeypatch)
        plugin.add_pass("ttgir", [Nothing(value=2)])
        stage("module", {})
        assert ran == [["builtin.module(test-nothing)"]]

    def test_a_pass_that_was_added_after_the_key_is_an_error(self, slot, monkeypatch):
        plugin.install()
        slot.add_stages_inspection_hook()
        thread = threading.Thread(target=plugin.add_pass, args=("ttgir", [Nothing()]))
        thread.start()
        thread.join()
        with pytest.raises(UnsupportedError, match="stored under a wrong key"):
            self.wrapped_ttgir(slot, monkeypatch)
        # The next question is about the passes that are there now.
        slot.add_stages_inspection_hook()
        stage, ran = self.wrapped_ttgir(slot, monkeypatch)
        stage("module", {})
        assert ran == [["builtin.module(test-nothing)"]]

    def test_a_removed_pass_is_an_error_too(self, slot, monkeypatch):
        plugin.add_pass("ttgir", [Nothing()])
        slot.add_stages_inspection_hook()
        plugin.remove_pass("ttgir", [Nothing()])
        with pytest.raises(UnsupportedError, match="stored under a wrong key"):
            self.wrapped_ttgir(slot, monkeypatch)

    def test_the_key_of_another_thread_is_not_compared(self, slot, monkeypatch):
        plugin.install()
        thread = threading.Thread(target=slot.add_stages_inspection_hook)
        thread.start()
        thread.join()
        plugin.add_pass("ttgir", [Nothing()])
        slot.add_stages_inspection_hook()
        stage, ran = self.wrapped_ttgir(slot, monkeypatch)
        stage("module", {})
        assert ran == [["builtin.module(test-nothing)"]]


@needs_key
@pytest.mark.parametrize("stage", plugin.STAGES)
def test_descriptor_metadata_is_of_the_module_behind_a_pass(slot, monkeypatch, stage):
    class Lowered:
        def get_tensordesc_metadata(self):
            return ["new"]

    class Source:
        context = None

    monkeypatch.setattr(plugin.host_module, "print_module", lambda module: "module {\n}\n")
    monkeypatch.setattr(plugin.host_module, "parse_module", lambda text, context: Lowered())
    with plugin.extra_passes(stage, [Nothing()]):
        stages = {stage: lambda source, metadata: source}
        slot.add_stages_inspection_hook()
        slot.add_stages_inspection_hook(None, stages, None, None, 90)
        metadata = {"tensordesc_meta": ["stale"]}
        assert isinstance(stages[stage](Source(), metadata), Lowered)
    assert metadata == {"tensordesc_meta": ["new"] if stage == "ttgir" else ["stale"]}


@needs_key
def test_values_that_print_alike_give_different_keys(slot):
    digests = {
        plugin._make_extra("ttgir", [Nothing(names=names)]).digest
        for names in [("a,b",), ("a", "b"), (), ("",)]
    }
    assert len(digests) == 4
    # Equal to the default, so that the text leaves it out, but not the same.
    made = [plugin._make_extra("ttgir", [Nothing(scale=scale)]) for scale in (0.0, -0.0)]
    assert made[0].pipeline == made[1].pipeline
    assert made[0].digest != made[1].digest


@needs_key
class TestSourcesInTheKey:
    PASS = """\
from dataclasses import dataclass
from triton_ext.passes import Pass
{imports}

@dataclass(frozen=True, slots=True)
class Changing({base}):
    name = "changing"
    def run(self, module, context):
        {body}
"""

    @pytest.fixture
    def digests(self, slot, tmp_path, monkeypatch):
        """Given texts of modules, all their texts but one changed: the digests of the pass."""
        monkeypatch.syspath_prepend(tmp_path)
        before = set(sys.modules)

        def of(files):
            for name, text in files.items():
                (tmp_path / name).parent.mkdir(exist_ok=True)
                (tmp_path / name).write_text(text)
            for name in set(sys.modules) - before:
                del sys.modules[name]
            importlib.invalidate_caches()
            made = importlib.import_module("key_pass").Changing()
            return plugin._make_extra("ttgir", [made]).digest

        yield of
        for name in set(sys.modules) - before:
            del sys.modules[name]

    @pytest.mark.parametrize(
        ("imports", "base", "body", "files", "changed"),
        [
            ("import key_helper", "Pass", "pass", {"key_helper.py": "A = 1\n"}, "key_helper.py"),
            (
                "from key_helper import A",
                "Pass",
                "pass",
                {"key_helper.py": "A = 1\n"},
                "key_helper.py",
            ),
            (
                "",
                "Pass",
                "from key_helper import A",
                {"key_helper.py": "A = 1\n"},
                "key_helper.py",
            ),
            (
                "import importlib; helper = importlib.import_module('key_helper')",
                "Pass",
                "pass",
                {"key_helper.py": "A = 1\n"},
                "key_helper.py",
            ),
            (
                "import key_package",
                "Pass",
                "pass",
                {"key_package/__init__.py": "", "key_package/inner.py": "A = 1\n"},
                "key_package/inner.py",
            ),
            (
                "import key_helper",
                "Pass",
                "pass",
                {"key_helper.py": "import key_deeper\n", "key_deeper.py": "A = 1\n"},
                "key_deeper.py",
            ),
            (
                "import key_base",
                "key_base.Base",
                "pass",
                {
                    "key_base.py": "from triton_ext.passes import Pass\n"
                    "class Base(Pass):\n    name = 'changing'\n"
                },
                "key_base.py",
            ),
            (
                "",
                "__import__('key_' + 'base').Base",
                "pass",
                {
                    "key_base.py": "from triton_ext.passes import Pass\n"
                    "class Base(Pass):\n    name = 'changing'\n"
                },
                "key_base.py",
            ),
        ],
    )
    def test_what_a_pass_is_made_of(self, digests, imports, base, body, files, changed):
        own = self.PASS.format(imports=imports, base=base, body=body)
        first = digests({"key_pass.py": own, **files})
        assert digests({"key_pass.py": own, **files}) == first
        assert digests({"key_pass.py": own, changed: files[changed] + "# changed\n"}) != first

    def test_a_module_named_like_one_of_the_standard_library(self, tmp_path):
        # Tests are imported under such names: unittest.passes.test_some_pass.
        from triton_ext.passes.sources import add_sources

        def digest(text):
            path = tmp_path / "test_some_pass.py"
            path.write_text(text)
            name = "unittest.test_some_pass"
            spec = importlib.util.spec_from_file_location(name, path)
            sys.modules[name] = module = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
                made = hashlib.sha256()
                add_sources(made, module.Changing)
            finally:
                del sys.modules[name]
            return made.hexdigest()

        own = self.PASS.format(imports="", base="Pass", body="pass")
        assert digest(own) != digest(own + "# changed\n")


def test_files_that_run_together_give_different_keys(tmp_path):
    def digest(**files):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name, content in files.items():
            (folder / f"{name}.py").write_text(content)
        made = hashlib.sha256()
        add_files(made, folder)
        return made.digest()

    assert digest(a="b.py") != digest(a="", b="")
    assert digest(a="xb.py", c="") != digest(a="x", b="c.py")
