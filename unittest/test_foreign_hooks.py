"""Hooks of others before and behind ours, taken out in any order: all that is installed acts.

Triton's side of a compile is played here, so that every order can be tried; a few kernels are
compiled for good.
"""

from __future__ import annotations

import functools
import itertools
import logging
from dataclasses import dataclass
from typing import ClassVar

import pytest
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton_ext import plugin
from triton_ext.errors import LaunchError
from triton_ext.host import patch_points
from triton_ext.ir import parse
from triton_ext.passes import Pass
from triton_ext.tools import doctor


@dataclass(frozen=True, slots=True)
class Mark(Pass):
    """Sets an attribute, which tells that passes of ours ran."""

    name: ClassVar[str] = "test-mark"

    def run(self, module, context):
        module.op.set_attribute("test.mark", "1 : i32")


@triton.jit
def add_one(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr) + 1)


def source():
    return ASTSource(add_one, {"x_ptr": "*fp32"}, constexprs={})


def compile_add_one():
    return triton.compile(source(), target=GPUTarget("cuda", 90, 32))


class Foreign:
    """Somebody else's stages hook.

    Args:
        name: Its part of the key.
        calls_previous: Whether it calls what was there.
        has_key: Whether it can be asked for a key, as Triton 3.6 never does.
        restores: Whether it puts back what was there whoever is in the slot when it goes.
    """

    def __init__(self, name, *, calls_previous=True, has_key=True, restores=False):
        self.name, self.calls_previous, self.restores = name, calls_previous, restores
        self.previous, self.compiles, self.is_on = None, 0, False
        self.hook = self._keyed if has_key else self._keyless

    def install(self):
        self.is_on = True
        self.previous = knobs.runtime.add_stages_inspection_hook
        # A function, as an extension would have: a method is a new object each time.
        self.function = functools.partial(self.hook)
        knobs.runtime.add_stages_inspection_hook = self.function

    def remove(self):
        self.is_on = False
        if self.restores or knobs.runtime.add_stages_inspection_hook is self.function:
            knobs.runtime.add_stages_inspection_hook = self.previous

    def _keyless(self, backend, stages, options, language, capability):
        if self.calls_previous and self.previous is not None:
            self.previous(backend, stages, options, language, capability)
        self.compiles += self.is_on

    def _keyed(self, backend=None, stages=None, options=None, language=None, capability=None):
        if stages is not None:
            return self._keyless(backend, stages, options, language, capability)
        key, digest = self.previous() if self.calls_previous and self.previous else ("", "")
        return (f"{key}{self.name}", f"{digest}{self.name}") if self.is_on else (key, digest)


class Ours:
    """The plugin, as an actor beside those."""

    is_on = False

    def install(self):
        self.is_on = True
        plugin.install()

    def remove(self):
        self.is_on = False
        plugin.uninstall()


@pytest.fixture
def compiled(fresh_triton_cache, monkeypatch):
    """Plays a compile; returns how often our passes ran and the key. Restores everything."""
    was_installed = plugin.is_installed()
    plugin.uninstall()
    assert knobs.runtime.add_stages_inspection_hook is None
    # With one pass of somebody, so that something runs for every kernel.
    monkeypatch.setattr(plugin, "_extra", (plugin._make_extra("ttgir", [Mark()]),))
    monkeypatch.setattr(plugin.host_module, "print_module", lambda module: "module {\n}\n")
    runs = []

    def run(text, **options):
        runs.append(text)
        return parse(text)

    monkeypatch.setattr(plugin, "run_passes", run)

    def play():
        runs.clear()
        made = source()
        made.parse_options()
        hook = knobs.runtime.add_stages_inspection_hook
        if not patch_points.asks_hook_for_key():
            from triton.compiler import compiler

            key = compiler.get_cache_key(made, Hashed(), Hashed(), {})
        else:
            key = hook()[0] if hook is not None else ""
        stages = {"ttgir": lambda module, metadata: module}
        if hook is not None:
            hook(None, stages, None, None, 90)
        stages["ttgir"]("module", {})
        return len(runs), key.count(plugin.cache_key())

    yield play
    knobs.runtime.add_stages_inspection_hook = None
    plugin.uninstall()
    assert knobs.runtime.add_stages_inspection_hook is None
    if was_installed:
        plugin.install()


class Hashed:
    """Stands for a backend and for options in Triton's key."""

    def hash(self):
        return "hash"


ORDERS = list(itertools.permutations(range(3)))


@pytest.mark.parametrize("calls_previous", [True, False], ids=["chains", "alone"])
@pytest.mark.parametrize("has_key", [True, False], ids=["key", "no-key"])
@pytest.mark.parametrize("restores", [True, False], ids=["restores", "polite"])
def test_every_order_of_coming_and_going(compiled, calls_previous, has_key, restores):
    options = {"calls_previous": calls_previous, "has_key": has_key, "restores": restores}
    if not has_key and patch_points.asks_hook_for_key():
        pytest.skip("a hook that has no key ends in a TypeError without us as well here")
    for coming, going in itertools.product(ORDERS, ORDERS):
        ours = Ours()
        actors = [Foreign("first", **options), ours, Foreign("second", **options)]
        steps = [(actors[i], "install") for i in coming] + [(actors[i], "remove") for i in going]
        for number, (actor, step) in enumerate(steps):
            getattr(actor, step)()
            where = (coming, going, number)
            assert compiled() == ((1, 1) if ours.is_on else (0, 0)), where
            top = knobs.runtime.add_stages_inspection_hook
            if calls_previous and not restores:
                others = [a for a in actors if a is not ours and a.is_on]
                before = [a.compiles for a in others]
                compiled()
                assert [a.compiles for a in others] == [n + 1 for n in before], where
            assert (top is None) <= (not ours.is_on), where
        knobs.runtime.add_stages_inspection_hook = None
        plugin.uninstall()


def test_a_hook_that_unpacks_its_arguments_has_no_key(compiled):
    """It binds no arguments, as one with a key does, and fails with a ValueError."""
    seen = []

    def unpacks(*arguments):
        _, stages, *_ = arguments
        seen.append(stages)

    knobs.runtime.add_stages_inspection_hook = unpacks
    plugin.install()
    assert plugin.is_installed()
    assert compiled() == (1, 1)
    assert len(seen) == 1


def test_a_hook_that_replaced_ours_is_told_of_once(compiled, caplog):
    plugin.install()
    Foreign("alone", calls_previous=False).install()
    assert not plugin.is_installed()
    with caplog.at_level(logging.WARNING, "triton_ext"):
        assert compiled() == (1, 1)
        assert compiled() == (1, 1)
    (told,) = [record.getMessage() for record in caplog.records]
    assert "knobs.runtime.add_stages_inspection_hook no longer calls triton-ext" in told
    assert "because functools.partial" in told
    assert plugin.is_installed()


def test_a_hook_that_copies_the_attributes_of_ours_is_not_taken_for_ours(compiled):
    plugin.install()
    ours = knobs.runtime.add_stages_inspection_hook

    @functools.wraps(ours)
    def wrapped(*args, **kwargs):
        return ours(*args, **kwargs)

    knobs.runtime.add_stages_inspection_hook = wrapped
    assert compiled() == (1, 1)
    plugin.uninstall()
    assert knobs.runtime.add_stages_inspection_hook is wrapped
    assert compiled() == (0, 0)
    knobs.runtime.add_stages_inspection_hook = ours


def places():
    """Every function of Triton's in which the plugin stands, by its name."""
    plugin.install()
    return {
        patch_point.title: patch_point
        for patch_point in plugin._chained
        if "hook" not in patch_point.title
    }


class TestFunctionsOfTriton:
    """The launcher, the sources of kernels, and on 3.6 what makes keys."""

    @pytest.fixture(params=sorted(places()))
    def place(self, request, compiled):
        plugin.install()
        patch_point = places()[request.param]
        stock = None
        plugin.uninstall()
        stock = patch_point._present
        plugin.install()
        yield patch_point, stock
        setattr(patch_point._holder, patch_point._attribute, stock)
        plugin.uninstall()
        assert patch_point._present is stock

    def test_one_that_calls_ours_is_left_in_front(self, place):
        patch_point, stock = place
        ours = patch_point._present
        calls = []

        def foreign(*args, **kwargs):
            calls.append(args)
            return ours(*args, **kwargs)

        setattr(patch_point._holder, patch_point._attribute, foreign)
        assert patch_point.is_reached()
        assert patch_point.in_front.endswith("foreign")
        plugin.install()
        source().parse_options()
        assert patch_point._present is foreign
        plugin.uninstall()
        assert patch_point._present is foreign
        setattr(patch_point._holder, patch_point._attribute, ours)
        plugin.uninstall()
        assert patch_point._present is stock

    def test_one_that_does_not_is_found_at_the_next_compile(self, place):
        patch_point, stock = place

        def foreign(*args, **kwargs):
            return stock(*args, **kwargs)

        setattr(patch_point._holder, patch_point._attribute, foreign)
        assert not patch_point.is_reached()
        if patch_point.title.endswith("parse_options"):
            plugin.install()  # that is how compiles tell us
        source().parse_options()
        assert patch_point.is_reached()
        assert patch_point.behind.endswith("foreign")
        plugin.uninstall()
        assert patch_point._present is foreign

    def test_one_that_restores_what_was_before_ours(self, place):
        patch_point, stock = place
        setattr(patch_point._holder, patch_point._attribute, stock)
        assert not patch_point.is_reached()
        plugin.install()
        assert patch_point.is_reached()
        assert not patch_point.behind
        plugin.uninstall()
        assert patch_point._present is stock


def test_a_launcher_of_somebody_else_in_front_and_behind(compiled):
    import triton.backends.nvidia.driver as driver
    from triton_ext import Im2ColDescriptor

    plugin.uninstall()
    stock = driver.make_tensordesc_arg
    seen = []

    def foreign(previous):
        # As Triton spells it on this release.
        if _takes_three(stock):
            return lambda arg, metadata, others: (
                seen.append(type(arg)) or previous(arg, metadata, others)
            )
        return lambda arg, metadata: seen.append(type(arg)) or previous(arg, metadata)

    driver.make_tensordesc_arg = behind = foreign(stock)
    plugin.install()
    driver.make_tensordesc_arg = foreign(driver.make_tensordesc_arg)
    plugin.install()
    arg = object.__new__(Im2ColDescriptor)
    object.__setattr__(arg, "families", {})
    rest = ((),) if _takes_three(stock) else ()
    seen.clear()
    try:
        with pytest.raises(LaunchError, match="a target without TMA"):
            driver.make_tensordesc_arg(arg, None, *rest)
        assert seen == [Im2ColDescriptor]
        plugin.uninstall()
        with pytest.raises(LaunchError, match="triton_ext is uninstalled"):
            driver.make_tensordesc_arg(arg, None, *rest)
        driver.make_tensordesc_arg = behind
        plugin.install()
        with pytest.raises(LaunchError, match="a target without TMA"):
            driver.make_tensordesc_arg(arg, None, *rest)
    finally:
        driver.make_tensordesc_arg = stock
        plugin.uninstall()


def _takes_three(function):
    return function.__code__.co_argcount > 2


def test_a_kernel_gets_our_passes_and_the_hook_of_somebody_else(fresh_triton_cache):
    """The whole way through Triton: a hook that came later and calls nobody."""
    was_installed = plugin.is_installed()
    plugin.uninstall()
    without = compile_add_one()
    foreign = Foreign("alone", calls_previous=False)
    try:
        with plugin.extra_passes("ttgir", [Mark()]):
            foreign.install()
            both = compile_add_one()
            assert foreign.compiles == 1
            assert "test.mark" in both.asm["ttgir"]
            assert both.hash != without.hash
        plugin.uninstall()
        theirs = compile_add_one()
        assert "test.mark" not in theirs.asm["ttgir"]
        assert theirs.hash != both.hash
        foreign.remove()
        assert compile_add_one().hash == without.hash
    finally:
        knobs.runtime.add_stages_inspection_hook = None
        plugin.uninstall()
        if was_installed:
            plugin.install()


class TestDoctor:
    def found(self):
        return next(f for f in doctor.examine().facts if f.topic == "plugin")

    def test_alone(self, compiled):
        found = self.found()
        assert found.good
        assert "beside others" not in found.text

    def test_tells_who_is_behind(self, compiled):
        Foreign("first").install()
        found = self.found()
        assert found.good
        assert "functools.partial behind in knobs.runtime.add_stages_inspection_hook" in found.text

    def test_tells_who_is_in_front(self, compiled):
        plugin.install()
        Foreign("second").install()
        assert "functools.partial in front in knobs.runtime" in self.found().text

    def test_tells_who_took_our_place(self, compiled):
        plugin.install()
        Foreign("alone", calls_previous=False).install()
        found = self.found()
        assert found.good is False
        assert "functools.partial in knobs.runtime.add_stages_inspection_hook" in found.text
        assert "triton_ext.install()" in found.text
