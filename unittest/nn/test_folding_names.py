"""Names in a model and what a file says of it are never run as code."""

from __future__ import annotations

import copy
import io
import pickle
import weakref

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")

import torch
from torch.nn import functional as F
from triton_ext import nn
from triton_ext.nn import folded
from triton_ext.nn.folded import recipe_of
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


class Hostile:
    """Pickles as a folded module with a recipe that has other text."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def __reduce__(self):
        return folded._empty, (Block, self._recipe)


def test_a_recipe_in_a_file_is_not_run():
    recipe = Recipe(f"{HIDDEN}\ndef forward(self): pass", (), 1, (), (), (), (), (), (), ())
    file = io.BytesIO()
    torch.save(Hostile(recipe), file)
    for weights_only in (False, True):
        file.seek(0)
        allowed = [folded._empty, Recipe, Block]
        with torch.serialization.safe_globals(allowed), pytest.raises(Exception):  # noqa: B017
            torch.load(file, weights_only=weights_only)
    assert RUN == []
