"""Names in a model and what a file says of it are never run as code."""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import io
import math
import pickle
import re
import weakref

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")

import torch
from torch.nn import functional as F
from triton_ext import nn
from triton_ext.nn import folded
from triton_ext.nn.folded import recipe_of
from triton_ext.nn.folding import Fold
from triton_ext.nn.patterns import Recipe, find_recipe

TORCH = torch.nn
RUN: list[str] = []  # by what was hidden in a name


class Block(TORCH.Module):
    """Calls its only children, whatever their names are."""

    def __init__(self, name: str, norm: str = "bn") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = TORCH.ModuleDict()
        self.layers._modules[name] = TORCH.Conv2d(4, 4, 3, padding=1)
        self.layers._modules[norm] = TORCH.BatchNorm2d(4)

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return F.relu(x)


def image() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 4, 8, 8).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def check(model: TORCH.Module, is_folded: bool) -> None:
    x = image()
    expected = model.eval()(x)
    nn.convert(model, fold=True, report=False)
    assert (recipe_of(model) is not None) == is_folded
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)


# Without a dot, which separates names.
CODE = f"import importlib\nimportlib.import_module({__name__!r}).RUN.append('run')"
HIDDEN = f"exec(bytes({list(CODE.encode())}))"


@pytest.mark.parametrize(
    "name",
    [
        f'a"), {HIDDEN}, getattr(self, "a',
        f'a") or {HIDDEN} or getattr(self, "layers',
        'quo"te',
        "line\nend",
        "back\\",
        "class",
        "\ufb01eld",  # Python reads it as "field"
        "nul\0",
    ],
)
def test_a_name_that_cannot_be_written_is_not_recorded(name):
    for model in (Block(name), Block("conv", norm=name)):
        (convolution,) = (n for n, m in model.named_modules() if isinstance(m, TORCH.Conv2d))
        recipe, reasons = find_recipe(model.eval(), {convolution})
        assert recipe is None
        assert reasons[convolution] == f"not recorded: torch.fx cannot write the name {name!r}"
        check(model, is_folded=False)
    assert RUN == []


@pytest.mark.parametrize("name", ["0", "a-b", "with blank", "o'clock", "größe", "_", "{x}", "#"])
def test_other_names_are_recorded(name):
    check(Block(name), is_folded=True)


@pytest.mark.parametrize("name", ["a.b", ""])
def test_a_name_that_torch_refuses_is_refused(name):
    model = Block(name).eval()
    for call in (nn.convert, nn.survey):
        with pytest.raises(ValueError, match=f"ModuleDict layers has a child named {name!r}"):
            call(model, fold=True)


class Worded(Block):
    """Takes the names of arguments and methods from what a file may have set."""

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return F.relu(x) + F.pad(x, (0, 0), **{self.word: "constant"})


def test_a_word_that_is_no_name_is_not_recorded():
    model = Worded("conv")
    model.word = "mode"
    model.eval()
    assert find_recipe(model, {"layers.conv"})[0] is not None
    model.word = f"mode='constant', value={HIDDEN} or 0, x"
    assert find_recipe(model, {"layers.conv"})[0] is None
    assert RUN == []


# --- names and values that the text would not give back ----------------------------------------


def chain(*names: str) -> TORCH.Sequential:
    """Returns a sequence that folds, unless its names are in the way."""
    torch.manual_seed(0)
    norm = TORCH.BatchNorm2d(4)
    norm.running_mean.normal_()
    model = TORCH.Sequential(TORCH.Conv2d(4, 4, 3, padding=1), norm, TORCH.ReLU()).eval()
    layers = list(model._modules.values())
    model._modules.clear()
    model._modules.update(zip(names, layers, strict=True))
    return model


# Each is the name of an attribute that a module or a folded one has.
ATTRIBUTES = [
    *("train", "eval", "to", "forward", "__class__", "__dict__", "_modules", "training", "half"),
    *("_triton_ext_folds", "_triton_ext_recipe", "__reduce_ex__", "_parameters", "__getattr__"),
]


@pytest.mark.parametrize("name", ATTRIBUTES)
@pytest.mark.parametrize("place", range(3))
def test_a_child_with_the_name_of_an_attribute_is_not_recorded(name, place):
    model = chain(*(name if n == place else f"layer{n}" for n in range(3)))
    x = image()
    expected = TORCH.Sequential(*model._modules.values())(x)
    (layer,) = nn.survey(model, fold=True).layers
    assert layer.unfolded.startswith("not recorded: ")
    assert name in layer.unfolded
    nn.convert(model, fold=True, report=False)
    assert recipe_of(model) is None
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    assert type(nn.revert(model)._modules[layer.name]) is TORCH.Conv2d


class Lists(TORCH.Module):
    """Goes through a list that a file may have written attributes to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = TORCH.ModuleList(chain("0", "1", "2"))
        self.eval()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@torch.no_grad()
@pytest.mark.parametrize("name", ["0", "1"])
def test_attributes_in_the_place_of_children(name):
    x = image()
    for model in (chain("0", "1", "2"), Lists()):
        holder = model if isinstance(model, TORCH.Sequential) else model.layers
        expected = model(x)
        other = TORCH.Conv2d(4, 4, 3, padding=1) if name == "0" else TORCH.Identity()
        # Before the model is folded: torch's own forward does not look at it.
        holder.__dict__[name] = other
        nn.convert(model, fold=True, report=False)
        assert recipe_of(model) is None
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
        # And behind that.
        del holder.__dict__[name]
        nn.convert(model, fold=True, report=False)
        assert recipe_of(model) is not None
        holder.__dict__[name] = other
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)


class Swaps(TORCH.Sequential):
    """Gives other children than it is asked for."""

    def __getattr__(self, name):
        return super().__getattr__({"0": "3", "3": "0"}.get(name, name))


@torch.no_grad()
def test_attribute_access_of_its_own_is_not_recorded():
    torch.manual_seed(0)
    layers = [*chain("0", "1", "2"), *chain("0", "1", "2")]
    layers[3].weight.normal_()
    model, x = TORCH.Sequential(*layers).eval(), image()
    expected = model(x)
    model.__class__ = Swaps
    nn.convert(model, fold=True, report=False)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    assert "attribute access of its own" in nn.survey(model, fold=True).layers[0].unfolded


class Tied(TORCH.Module):
    """Has each of its parts under two names, and calls both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = chain("0", "1", "2")
        self.d, self.e = self.a, self.b
        self.p = self.q = TORCH.Parameter(torch.tensor([2.0]))
        self.register_buffer("r", torch.tensor([3.0]))
        self.register_buffer("s", self.r)
        self.eval()

    def forward(self, x):
        y = self.c(self.b(self.a(x * self.q)))
        return self.c(self.e(self.d(y * self.p + self.r))) + 2 * self.s


@torch.no_grad()
@pytest.mark.parametrize("name", ["a", "b", "d", "e", "p", "q", "r", "s"])
def test_what_has_two_names_may_be_replaced_under_one(name):
    model, x = Tied(), image()
    expected = model(x)
    nn.convert(model, fold=True, report=False)
    assert recipe_of(model) is not None
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    other = {"a": chain("0", "1", "2")[0], "b": TORCH.Identity(), "p": TORCH.Parameter(x[:1, :1])}
    other |= {"d": other["a"], "e": other["b"], "q": other["p"], "r": x[1], "s": x[1]}
    if name in "ad":
        other[name].weight.normal_()
    setattr(model, name, other[name])
    found = model(x)
    torch.testing.assert_close(found, nn.revert(model)(x), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, expected, rtol=1e-2, atol=1e-2)


class Number(enum.IntEnum):
    ONE = 1


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


class Text(str):
    """Prints as code."""

    def __repr__(self) -> str:
        return HIDDEN


class Seventeen(int):
    def __repr__(self) -> str:
        return "17"


class Pair(tuple):
    """Is a tuple, and not one that is written."""


class Valued(Block):
    """Hands an attribute to a function of torch."""

    def __init__(self, value: object, pads: bool = False) -> None:
        super().__init__("conv")
        self.value, self.pads = value, pads
        self.eval()

    def forward(self, x):
        x = F.pad(x, self.value) if self.pads else x * self.value
        for layer in self.layers.values():
            x = layer(x)
        return F.relu(x)


@torch.no_grad()
@pytest.mark.parametrize("value", [0.5, 2, True, -0.0, math.nan, math.inf, -math.inf])
def test_plain_values_are_recorded(value):
    model, x = Valued(value), image()
    expected = model(x)
    nn.convert(model, fold=True, report=False)
    assert recipe_of(model) is not None
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@torch.no_grad()
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Number.ONE, "a Number is a value of the forward"),
        (Bits.ONE | Bits.TWO, "a Bits is a value of the forward"),
        (Seventeen(2), "reads the attribute value, a Seventeen"),
        (Text("constant"), "reads the attribute value, a Text"),
        (1j, "a complex is a value of the forward"),
        pytest.param(10**5000, "an integer has more than 64 bits", id="many digits"),
    ],
)
def test_values_that_print_as_something_else_are_not_recorded(value, reason):
    model = Valued(value)
    recipe, reasons = find_recipe(model, {"layers.conv"})
    assert recipe is None
    assert reason in reasons["layers.conv"]
    nn.convert(model, fold=True, report=False)
    assert recipe_of(model) is None
    if isinstance(value, int) and value < 10:
        x = image()
        torch.testing.assert_close(model(x), nn.revert(model)(x), rtol=1e-4, atol=1e-4)
    assert RUN == []


@torch.no_grad()
def test_numbers_of_numpy_are_not_written():
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    for value in (numpy.float64(0.5), numpy.float32(0.5), numpy.int64(2)):
        model, x = Valued(value), image()
        expected = model(x)
        nn.convert(model, fold=True, report=False)
        assert recipe_of(model) is None
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("value", [(1, 1), [1, 1]])
def test_tuples_and_lists_are_recorded_unless_they_are_of_another_class(value):
    nested = functools.reduce(lambda inner, _: (inner,), range(120), (1, 1))
    for padding, is_recorded in (
        (value, True),
        (Pair(value), False),
        ((Number.ONE, *value[1:]), False),
        (nested, False),
    ):
        model, x = Valued(padding, pads=True), image()
        nn.convert(model, fold=True, report=False)
        assert (recipe_of(model) is not None) == is_recorded
        if padding is not nested:
            torch.testing.assert_close(model(x), nn.revert(model)(x), rtol=1e-4, atol=1e-4)


class Branches(Block):
    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return F.relu(x) if self.number > 2 else x


@torch.no_grad()
def test_a_number_that_prints_as_another_one_decides():
    model, x = Branches("conv"), image()
    model.number = Seventeen(5)
    nn.convert(model.eval(), fold=True, report=False)
    model.number = Seventeen(1)
    torch.testing.assert_close(model(x), nn.revert(model)(x), rtol=1e-4, atol=1e-4)
    assert model(x).min() < 0


@pytest.mark.parametrize(
    ("name", "child", "error"), [(5, TORCH.ReLU(), ValueError), ("a", "text", TypeError)]
)
def test_children_that_are_none_are_refused(name, child, error):
    model = TORCH.Sequential(TORCH.Sequential(TORCH.Conv2d(4, 4, 3))).eval()
    model[0]._modules[name] = child
    for call in (nn.convert, nn.survey, nn.revert, nn.report, nn.refresh):
        with pytest.raises(error, match=f"Sequential 0 has a child (named )?{name!r}"):
            call(model)


def test_tables_escape_names(capsys):
    model = TORCH.Sequential(TORCH.Conv2d(4, 4, 3))
    for name in ("\x1b[31m\nred\t", "A" * 100_000, "\u202e"):
        model._modules[name] = TORCH.Sequential(TORCH.Conv2d(4, 4, 3), TORCH.BatchNorm2d(4)).eval()
    nn.convert(model.eval(), fold=True)
    for text in (capsys.readouterr().out, str(nn.report(model))):
        assert all(line.isprintable() and len(line) < 2500 for line in text.splitlines())
        assert "\\x1b[31m\\nred" in text


class Raises(TORCH.Module):
    def __getattr__(self, name):
        raise RuntimeError(name)


def test_a_report_asks_modules_for_nothing():
    assert nn.report(Raises()).modules == ()


# --- files --------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(monkeypatch):
    """What is loaded now was pickled by another process."""

    def forget():
        monkeypatch.setattr(folded, "_classes", weakref.WeakValueDictionary())

    return forget


@torch.no_grad()
@pytest.mark.parametrize("norms", [False, True])
def test_a_pickle_is_folded_again_where_it_is_loaded(elsewhere, norms):
    model, x = TORCH.Sequential(Block("conv"), Block("other")).eval(), image()
    nn.convert(model, fold=True, norms=norms, report=False)
    expected = model(x)
    data = pickle.dumps(model)
    assert b"def forward" not in data
    elsewhere()
    other = pickle.loads(data)
    for mine, its in zip(model, other, strict=True):
        assert type(its).__bases__ == (Block,)
        assert recipe_of(its) == recipe_of(mine)
    assert torch.equal(other(x), expected)
    again = pickle.loads(pickle.dumps(copy.deepcopy(other)))
    assert torch.equal(again(x), expected)
    assert type(nn.revert(other)[0]) is Block


@torch.no_grad()
def test_what_no_longer_folds_is_loaded_as_it_was(elsewhere):
    model, x = Block("conv").eval(), image()
    nn.convert(model, fold=True, report=False)
    data = pickle.dumps(model)
    elsewhere()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Block, "forward", lambda self, x, **_: x + 1)
        other = pickle.loads(data)
        assert type(other) is Block
        assert torch.equal(other(x), x + 1)


class Child(Block):
    """Knows the module that it is in."""

    def forward(self, x):
        return super().forward(x) + self.owner[0].number


@torch.no_grad()
def test_a_module_that_knows_its_parent_survives(elsewhere):
    parent = TORCH.Sequential(Child("conv")).eval()
    parent.number, parent[0].owner = 1.0, [parent]
    nn.convert(parent, fold=True, report=False)
    expected = parent(image())
    data = pickle.dumps(parent)
    elsewhere()
    torch.testing.assert_close(pickle.loads(data)(image()), expected)


@torch.no_grad()
@pytest.mark.parametrize("name", ["a.b", ".", "a.", "0.0", "a..b", ""])
@pytest.mark.parametrize("is_deep", [False, True])
def test_a_pickle_with_a_dot_in_the_name_of_a_child_is_not_folded(elsewhere, name, is_deep):
    inner = TORCH.Sequential(TORCH.Conv2d(4, 4, 3), TORCH.BatchNorm2d(4), TORCH.ReLU())
    model, x = (TORCH.Sequential(inner) if is_deep else inner).eval(), image()
    expected = model(x)
    nn.convert(model, fold=True, report=False)
    children = inner.__dict__["_modules"]
    inner.__dict__["_modules"] = {name if k == "0" else k: v for k, v in children.items()}
    data = pickle.dumps(model)
    elsewhere()
    other = pickle.loads(data)
    torch.testing.assert_close(other(x), expected)
    with pytest.raises(ValueError, match=f"has a child named {re.escape(repr(name))}"):
        nn.report(other)


class Hostile:
    """Pickles as a folded module with other names and another state."""

    def __init__(self, arguments, state) -> None:
        self._arguments, self._state = arguments, state

    def __reduce__(self):
        return folded._empty, self._arguments, self._state


ALLOWED = [folded._empty, Block, TORCH.ModuleDict, TORCH.Conv2d, TORCH.BatchNorm2d, Fold, set]


def loaded(model, *extra, weights_only=True):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    with torch.serialization.safe_globals([*ALLOWED, *extra]):
        return torch.load(file, weights_only=weights_only)


def test_torch_builds_no_folded_model_from_data_alone(elsewhere):
    model = Block("conv").eval()
    nn.convert(model, fold=True, report=False)
    kinds = {type(module) for module in model.layers.values()}
    elsewhere()
    with pytest.raises(pickle.UnpicklingError):
        loaded(model, *kinds)
    assert recipe_of(loaded(model, weights_only=False)) == recipe_of(model)


@pytest.mark.parametrize("name", [HIDDEN, f'a"), {HIDDEN}, getattr(self, "a'])
def test_text_in_a_file_is_not_run(elsewhere, name):
    for token in ("0" * 32, HIDDEN):
        for convolutions in ((name,), (f"layers.{name}",)):
            block = Block("conv").eval()
            block.layers._modules[name] = block.layers._modules.pop("conv")
            state = {**vars(block), "_triton_ext_recipe": HIDDEN, HIDDEN: HIDDEN, "word": HIDDEN}
            elsewhere()
            hostile = Hostile((Block, token, convolutions, (HIDDEN, "layers.bn")), state)
            for weights_only in (True, False):
                with contextlib.suppress(RuntimeError, pickle.UnpicklingError):
                    loaded(hostile, weights_only=weights_only)(image())
    assert RUN == []


def test_a_recipe_in_a_file_is_refused():
    recipe = Recipe(f"{HIDDEN}\ndef forward(self): pass", (), 1, (), (), (), (), (), (), ())
    with pytest.raises(TypeError, match="missing"):
        loaded(Hostile((Block, recipe), None), Recipe)
    assert RUN == []
