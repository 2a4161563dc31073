"""Names, lazy loading, clashes, options."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import pass_helpers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_helpers import Needs, Options
from triton_ext.errors import PipelineError
from triton_ext.passes import Pass, PassManager, PassSpec, options, registry
from triton_ext.passes.options import options_of, spec_of
from triton_ext.passes.pipeline import parse_pipeline
from triton_ext.tools import opt


def build(text: str) -> Pass:
    return registry.build(parse_pipeline(text).items[0])


def test_every_registered_pass_loads_under_its_name():
    assert "triton-ext-lower-im2col" in registry.names()
    for name in registry.names():
        assert registry.lookup(name).name == name
        assert options_of(registry.lookup(name)) is not None


def test_one_prefix():
    """A pass has the name of Triton's pass that it ports, or the prefix of this package."""
    prefixes = ("triton-ext-", "tritongpu-", "tritonamdgpu-", "test-", "allocate-")
    ours = [name for name, entry in registry.entries().items() if "triton_ext." in entry.target]
    assert not [name for name in ours if not name.startswith(prefixes)]


@pytest.mark.parametrize("former", registry.aliases())
def test_former_names_are_aliases(former, capsys, tmp_path):
    name = registry.aliases()[former]
    assert former not in registry.names()
    assert registry.lookup(former) is registry.lookup(name)
    assert registry.lookup(former).name == name
    assert str(PassManager(former)) == f"builtin.module({name})"
    file = tmp_path / "module.ttgir"
    file.write_text('module attributes {ttg.target = "hip:gfx1250"} {\n}\n')
    for arguments in ([f"-{former}"], [f"--pass-pipeline=builtin.module({former})"]):
        printing = f"--mlir-print-ir-after={former}"
        assert opt.main([str(file), "--host=none", printing, *arguments]) == 0
        assert f"({name}) //-" in capsys.readouterr().err


def test_the_former_names():
    assert set(registry.aliases()) == {
        "tritonext-align-partitioned-shared",
        "tritonext-partition-shared",
        "tritonext-verify-async-waits",
    }


def test_names_load_nothing_of_a_pass():
    code = (
        "import sys; from triton_ext.passes import registry; registry.names(); "
        "print([m for m in sys.modules if m.startswith('triton_ext.backends.nvidia.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_unknown_name_tells_what_is_spelled_alike(registered):
    with pytest.raises(PipelineError) as caught:
        build("builtin.module(test-cuont)")
    assert str(caught.value) == (
        "<pipeline>:1:16: error: there is no pass 'test-cuont'\n"
        "builtin.module(test-cuont)\n"
        "               ^\n"
        "note: did you mean 'test-count'?"
    )
    with pytest.raises(PipelineError, match="there is no pass 'zzz'"):
        registry.lookup("zzz")


def test_clash_names_both(registered, monkeypatch):
    clash = registry.Entry("test-mark", "elsewhere:Mark", "package 'other'")
    monkeypatch.setattr(registry, "_of_packages", lambda: [*registered, clash])
    registry.refresh()
    with pytest.raises(PipelineError) as caught:
        registry.lookup("test-mark")
    assert caught.value.message == (
        "two passes are named 'test-mark': 'pass_helpers:Mark' of package 'test' and "
        "'elsewhere:Mark' of package 'other'"
    )


def test_clash_leaves_the_other_names_usable(registered, monkeypatch):
    clash = registry.Entry("test-mark", "elsewhere:Mark", "package 'other'")
    monkeypatch.setattr(registry, "_of_packages", lambda: [*registered, clash])
    registry.refresh()
    assert "test-mark" in registry.names()
    assert registry.lookup("test-count") is pass_helpers.CountFunction
    assert build("test-options{num-stages=5}") == Options(num_stages=5)
    with pytest.raises(PipelineError, match="two passes are named 'test-mark'"):
        build("test-mark")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise RuntimeError('no device')\n", "RuntimeError: no device"),
        ("def broken(:\n", "SyntaxError: invalid syntax"),
        ("{}['key']\n", "KeyError: 'key'"),
        ("assert False\n", "AssertionError"),
    ],
)
def test_a_module_that_fails_when_it_is_imported(registered, monkeypatch, tmp_path, text, said):
    (tmp_path / "failing_pass.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    entry = registry.Entry("test-bad", "failing_pass:Bad", "package 'bad'")
    monkeypatch.setattr(registry, "_of_packages", lambda: [*registered, entry])
    registry.refresh()
    with pytest.raises(PipelineError) as caught:
        registry.lookup("test-bad")
    assert caught.value.message.startswith(
        f"pass 'test-bad' of package 'bad' cannot be loaded from 'failing_pass:Bad': {said}"
    )


def test_one_installation_found_twice_is_no_clash(registered, monkeypatch):
    monkeypatch.setattr(registry, "_of_packages", lambda: [*registered, *registered])
    registry.refresh()
    assert registry.lookup("test-mark") is pass_helpers.Mark


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:X", "cannot be loaded from 'no_such_module:X': No module named"),
        ("pass_helpers:Missing", "cannot be loaded from 'pass_helpers:Missing'"),
        ("pass_helpers:TEXT", "is not a subclass of triton_ext.passes.Pass"),
        ("pass_helpers:Mark", "calls itself 'test-mark'"),
    ],
)
def test_what_cannot_be_loaded(monkeypatch, registered, target, message):
    entry = registry.Entry("test-bad", target, "package 'test'")
    monkeypatch.setattr(registry, "_of_packages", lambda: [*registered, entry])
    registry.refresh()
    assert "test-bad" in registry.names()
    with pytest.raises(PipelineError, match=message):
        registry.lookup("test-bad")


def test_entry_points_of_other_packages(monkeypatch):
    point = importlib.metadata.EntryPoint("test-mark", "pass_helpers:Mark", registry.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [point])
    registry.refresh()
    try:
        assert registry.lookup("test-mark") is pass_helpers.Mark
    finally:
        monkeypatch.undo()
        registry.refresh()


class TestOptions:
    def test_every_type(self, registered):
        text = (
            "test-options{num-stages=0x4 fast scale=2.5 label='a b' mode=large sizes=1,2 "
            "limit=7 other-name=9}"
        )
        made = build(text)
        assert made == Options(4, True, 2.5, "a b", "large", (1, 2), 7, 9)
        again = spec_of(made)
        assert registry.build(again) == made
        assert str(spec_of(Options())) == "test-options"

    def test_underscore_is_read_as_dash(self, registered):
        assert build("test-options{num_stages=5}") == Options(num_stages=5)

    @pytest.mark.parametrize(
        ("text", "column", "message"),
        [
            (
                "test-options{stages=3}",
                14,
                "pass 'test-options' has no option 'stages'",
            ),
            (
                "test-options{fast=maybe}",
                14,
                "expected 'true' or 'false' for option 'fast' of 'test-options', found 'maybe'",
            ),
            (
                "test-options{fast num-stages=x}",
                19,
                "expected an integer for option 'num-stages' of 'test-options', found 'x'",
            ),
            (
                "test-options{mode=huge}",
                14,
                "expected one of 'small', 'large' for option 'mode' of 'test-options', "
                "found 'huge'",
            ),
            (
                "test-options{sizes=1,b}",
                14,
                "expected a list with commas, each an integer for option 'sizes' of "
                "'test-options', found '1,b'",
            ),
            (
                "test-options{num-stages=1 num_stages=2}",
                27,
                "option 'num-stages' of 'test-options' is given twice",
            ),
            (
                "test-options{num-stages=0}",
                1,
                "pass 'test-options': num-stages must be at least 1, found 0",
            ),
            ("test-needs", 1, "pass 'test-needs' needs the option 'target', a text"),
            ("test-break{x}", 12, "pass 'test-break' has no option 'x'"),
        ],
    )
    def test_errors(self, registered, text, column, message):
        with pytest.raises(PipelineError) as caught:
            build(text)
        assert (caught.value.message, caught.value.column) == (message, column)

    def test_spec_without_text_has_a_place_too(self, registered):
        with pytest.raises(PipelineError) as caught:
            registry.build(PassSpec("test-options", {"fast": "maybe"}))
        assert caught.value.source_line == "test-options{fast=maybe}"
        assert caught.value.column == 14

    def test_help_and_what_is_expected(self):
        renamed = options_of(Options)[-1]
        assert (renamed.name, renamed.field, renamed.help) == ("other-name", "renamed", "a number")
        assert [option.expects for option in options_of(Options)][:3] == [
            "an integer",
            "'true' or 'false'",
            "a number",
        ]
        assert registry.build(PassSpec("triton-ext-lower-im2col")) is not None
        assert options_of(Needs)[0].name == "target"


def test_near_lists_all_where_there_are_few():
    assert options.near("zzz", ["a", "b"]) == "there are 'a', 'b'"
    assert options.near("zzz", [f"pass-{i}" for i in range(20)]).startswith("there are 20 others")


@dataclass(frozen=True, slots=True)
class Every(Pass):
    """Has options whose values a text could confuse."""

    name: ClassVar[str] = "test-every"
    number: int | None = 3
    text: str = "default"
    maybe: str | None = "default"
    flag: bool | None = True
    mode: Literal["none", "'", "a"] | None = "a"
    scale: float = 1.0
    scales: tuple[float, ...] = (1.0,)
    names: tuple[str, ...] = ("default",)
    names_or_none: tuple[str, ...] | None = ("default",)
    maybes: tuple[str | None, ...] = ("default",)

    def run(self, module, context):
        pass


TEXTS = st.one_of(st.just("none"), st.text(alphabet="ab,'\" {}()=\n\\", max_size=6))
LISTS = st.lists(TEXTS, max_size=3).map(tuple)
PASSES = st.builds(
    Every,
    number=st.none() | st.integers(),
    text=TEXTS,
    maybe=st.none() | TEXTS,
    flag=st.none() | st.booleans(),
    mode=st.sampled_from([None, "none", "'", "a"]),
    scale=st.floats(allow_nan=False),
    scales=st.lists(st.floats(allow_nan=False), max_size=3).map(tuple),
    names=LISTS,
    names_or_none=st.none() | LISTS,
    maybes=st.lists(st.none() | TEXTS, max_size=3).map(tuple),
)


def read_again(pass_: Pass) -> Pass:
    (spec,) = parse_pipeline(str(PassManager([pass_]))).items
    return options.with_options(type(pass_), spec)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, database=None)
@given(PASSES)
def test_passes_are_read_from_their_text(pass_):
    values = [str(getattr(pass_, f.name)) for f in fields(pass_)]
    if any('"' in value and ("{" in value or "}" in value) for value in values):
        # It may be refused, but is never read as something else.
        with suppress(PipelineError):
            assert read_again(pass_) == pass_
        return
    assert read_again(pass_) == pass_
    assert str(PassManager([read_again(pass_)])) == str(PassManager([pass_]))


@pytest.mark.parametrize(
    ("pass_", "text"),
    [
        (Every(number=None), "number=none"),
        (Every(names=()), "names=''"),
        (Every(names=("",)), "names=\"''\""),
        (Every(names=("a,b",)), "names=\"'a,b'\""),
        (Every(names=("a", "b c")), "names='a,b c'"),
        (Every(names=("none", "it's")), "names=\"'none',it's\""),
        (Every(names=("'a,", "b")), "names=\"'''a,',b\""),
        (Every(maybe="none"), "maybe=\"'none'\""),
        (Every(maybe=None, text="none"), "text=none maybe=none"),
        (Every(names_or_none=None), "names-or-none=none"),
        (Every(number=True), "number=true"),
    ],
)
def test_texts_of_values(pass_, text):
    if text == "number=true":  # equal to 1, which is what can be read
        text = "number=1"
    assert str(spec_of(pass_)) == f"test-every{{{text}}}"
    assert read_again(pass_) == pass_


@pytest.mark.parametrize("value", ["'\"{", "'\"}", "'\"}{", "'\"{}}{"])
def test_a_value_that_no_quotes_hold_is_refused(value):
    with pytest.raises(PipelineError, match="option 'text' of 'test-every' cannot be written"):
        PassManager([Every(text=value)])
    with pytest.raises(PipelineError, match="cannot be written"):
        PassSpec("a", {"text": value})


@pytest.mark.parametrize("text", ["'a", "'a'b", "a,'b", "'a','"])
def test_a_quote_in_a_list_that_does_not_end(text):
    with pytest.raises(PipelineError, match="expected a list with commas, each a text"):
        options.with_options(Every, PassSpec("test-every", {"names": text}))


@pytest.mark.parametrize("name", ["my-pass", "_p.q-1", "x"])
def test_a_name_as_pipelines_have_it(name):
    @dataclass(frozen=True, slots=True)
    class Named(Pass):
        pass

    made = type("Made", (Named,), {"name": name, "run": lambda self, module, context: None})
    assert str(PassManager([made()])) == f"builtin.module({name})"


@pytest.mark.parametrize("name", ["", "my pass", "1st", "a(b)", "a,b", "pass{", "p\n", "-o"])
def test_a_name_that_no_pipeline_could_have(name):
    with pytest.raises(PipelineError, match="'Made' cannot be named"):
        type("Made", (Pass,), {"name": name})


@pytest.mark.parametrize(
    ("type_", "shown"),
    [
        ("dict[str, int]", r"dict\[str, int\]"),
        ("list", "list"),
        ("Literal[1, 2]", r"typing\.Literal\[1, 2\]"),
        ("tuple[int, int]", r"tuple\[int, int\]"),
        ("int | str", r"int \| str"),
    ],
)
def test_a_type_that_no_option_can_have(registered, monkeypatch, tmp_path, type_, shown):
    write_odd_pass(monkeypatch, tmp_path, registered, type_)
    for ask in (lambda: registry.lookup("test-odd"), lambda: build("test-odd")):
        with pytest.raises(PipelineError) as caught:
            ask()
        said = f"option 'how-many' of pass 'test-odd' has the type {shown}, which cannot be read"
        assert re.match(said, caught.value.message)
        assert "a Literal of strings" in caught.value.notes[0]


def test_a_type_that_is_not_known(registered, monkeypatch, tmp_path):
    write_odd_pass(monkeypatch, tmp_path, registered, "Nowhere")
    with pytest.raises(PipelineError, match=r"pass 'test-odd' have no known types: .*'Nowhere'"):
        registry.lookup("test-odd")


def write_odd_pass(monkeypatch, tmp_path, registered, type_):
    """Registers a pass with one option, of this type."""
    (tmp_path / "odd_pass.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from typing import ClassVar, Literal\n"
        "from triton_ext.passes import Pass\n"
        "@dataclass(frozen=True)\n"
        "class Odd(Pass):\n"
        "    name: ClassVar[str] = 'test-odd'\n"
        f"    how_many: {type_} = None\n"
        "    def run(self, module, context):\n"
        "        pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_pass", raising=False)
    entry = registry.Entry("test-odd", "odd_pass:Odd", "package 'odd'")
    monkeypatch.setattr(registry, "_of_packages", lambda: [*registered, entry])
    registry.refresh()
