"""Forwards whose record is not the forward are left, and one that holds no longer is not used."""

from __future__ import annotations

import copy
import enum
import math
import operator
import pickle
import random
import types
from collections import OrderedDict

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint as also_checkpoint
from triton_ext import nn
from triton_ext.nn import folded
from triton_ext.nn.folded import recipe_of

TORCH = torch.nn


class Block(TORCH.Module):
    """What the forwards below use."""

    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn = TORCH.Conv2d(4, 4, 3, padding=1), TORCH.BatchNorm2d(4)
        self.drop = TORCH.Dropout(0.5)
        self.layers = TORCH.ModuleList([TORCH.Conv2d(4, 4, 1)])
        self.gamma = TORCH.Parameter(torch.full((1, 4, 1, 1), 2.0))
        self.register_parameter("beta", None)
        self.k, self.size, self.act, self.residual = 2.0, (6, 6), F.relu, True
        self.items_left = iter([0.0, 1.0])
        self.rng = random.Random(0)
        self.mode, self.loose = Mode.PLAIN, Loose.PLAIN
        self.zero, self.nan, self.pad, self.table = 0.0, math.nan, [1, 1, 1, 1], {"k": 2.0}
        self.functions, self.mixed = (F.relu, F.silu), (F.relu, iter(()))
        self.ring = [1.0]
        self.ring.append(self.ring)
        self.seq = TORCH.Sequential(TORCH.Conv2d(4, 4, 1))

    def chain(self, x):
        return F.relu(self.bn(self.conv(x)))


class Mode(enum.Enum):
    PLAIN = 0
    DOUBLE = 1


class Loose(enum.Enum):
    """Has no hash."""

    PLAIN = 0

    def __eq__(self, other):
        return self is other


def block(forward) -> Block:
    """Returns a block of a class with a forward, in eval mode."""
    kind = type("Case", (Block,), {"forward": forward, "__module__": __name__})
    return kind().eval()


def image() -> torch.Tensor:
    return torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)


# --- what is not recorded -----------------------------------------------------------------------

lib = types.ModuleType("lib")


def lib_scale(x):
    return x * 2 if isinstance(x, torch.Tensor) else x


def lib_frozen(x):
    with torch.no_grad():
        return x * 2


def lib_drop_path(x):
    return x if random.random() < 0.5 else x * 0


def lib_plain(x):
    return x * 2


def keeps(x, seen=[]):  # noqa: B006 - this is the mistake
    return x * len(seen)


def samples(x, number=random.random):
    return x * number()


# Their names are not those by which they are asked for.
lib.scale, lib.frozen, lib.drop_path, lib.plain = lib_scale, lib_frozen, lib_drop_path, lib_plain
lib.inner = lib


class Tools:
    scale = staticmethod(lib_scale)
    plain = staticmethod(lib_plain)

    def method(self, x):
        return x * 2


tools = Tools()
generator = random.Random(0)


def matches(self, x):
    match x:
        case torch.Tensor():
            return self.chain(x)
    return x


def switches(self, x):
    torch.set_grad_enabled(False)
    y = self.chain(x)
    torch.set_grad_enabled(True)
    return y


def keeps_self(self, x):
    self = tools
    return self.method(x)


def remembers_outside():
    count = 0

    def forward(self, x):
        nonlocal count
        count += 1
        return self.chain(x) * count

    return forward


def writes_to_images(self, x):
    y = self.chain(x)
    y[0:1] = 0
    return y


def asks_in_a_lambda(self, x):
    return (lambda y: y * 2 if callable(y) else y)(self.chain(x))


SEEN, LOG = set(), []


def writes_to_a_set(self, x):
    seen = SEEN
    seen.add(1)
    return self.chain(x) * len(seen)


def writes_to_a_list(self, x):
    log = LOG
    log += [1]
    return self.chain(x) * len(log)


def either(self, x):
    return (self.conv if self.residual else lib).scale(x)


LEFT = {
    "isinstance in a module": (lambda self, x: self.chain(lib.scale(x)), "isinstance"),
    "with in a module": (lambda self, x: self.chain(lib.frozen(x)), "with block"),
    "random in a module": (lambda self, x: self.chain(lib.drop_path(x)), "random.random"),
    "a module in a module": (lambda self, x: self.chain(lib.inner.scale(x)), "isinstance"),
    "a static method": (lambda self, x: self.chain(Tools.scale(x)), "isinstance"),
    "an object's method": (lambda self, x: self.chain(tools.method(x)), "tools.method"),
    "an object": (lambda self, x: self.chain(x * generator.uniform(0, 1)), "generator"),
    "a default that changes": (lambda self, x: self.chain(x) + keeps(x) + samples(x), "default"),
    "is_tensor": (lambda self, x: self.chain(x) if torch.is_tensor(x) else x, "is_tensor"),
    "callable": (lambda self, x: x if callable(x) else self.chain(x), "callable"),
    "in a lambda": (asks_in_a_lambda, "callable"),
    "elements": (writes_to_images, "assigns to"),
    "__class__": (lambda self, x: self.chain(x) * (x.__class__ == torch.Tensor), "__class__"),
    "match": (matches, "match"),
    "grad_fn": (lambda self, x: self.chain(x) if x.grad_fn is None else x, "grad_fn"),
    "is_leaf": (lambda self, x: self.chain(x) * x.is_leaf, "is_leaf"),
    "is": (lambda self, x: self.chain(x) * (x is self.gamma), "the same"),
    "set_grad_enabled": (switches, "set_grad_enabled"),
    "a number of a tensor": (
        lambda self, x: self.chain(x) if torch.empty(1).uniform_().item() < 0.5 else x,
        "torch.empty",
    ),
    "a generator": (lambda self, x: self.chain(x) * self.rng.uniform(0, 1), "attribute rng"),
    "an enum without a hash": (
        lambda self, x: self.chain(x) * (2 if self.loose == Loose.PLAIN else 1),
        "attribute loose, a Loose",
    ),
    "a tuple with an object": (
        lambda self, x: self.mixed[0](self.bn(self.conv(x))),
        "attribute mixed, a tuple with a tuple_iterator",
    ),
    "a list that has itself": (lambda self, x: self.chain(x) * self.ring[0], "nested too deeply"),
    "a set by another name": (writes_to_a_set, "SEEN, a set"),
    "a list by another name": (writes_to_a_list, "LOG, a list"),
    "the class in super()": (lambda self, x: super(Block, self).forward(x), "super(Block, self)"),
    "next": (lambda self, x: self.chain(x) + next(self.items_left), "next"),
    "autocast": (
        lambda self, x: x if torch.is_autocast_cpu_enabled() else self.chain(x),
        "is_autocast_cpu_enabled",
    ),
    "tracing": (
        lambda self, x: x if torch.fx._symbolic_trace.is_fx_tracing() else self.chain(x),
        "is_fx_tracing",
    ),
    "getattr of a tensor": (lambda self, x: self.chain(getattr(x, "mask", x)), "getattr"),
    "getattr by another name": (
        lambda self, x: self.chain(x) * getattr(self, "".join("k")),
        "getattr",
    ),
    "__dict__": (lambda self, x: self.chain(x) * self.__dict__["k"], "__dict__"),
    "vars": (lambda self, x: self.chain(x) * vars(self)["k"], "vars"),
    "itself by another name": (
        lambda self, x: (lambda s: s.chain(x) * s.k)(self),
        "attribute chain",
    ),
    "another self": (keeps_self, "assigns to self"),
    "a variable of an outer function": (remembers_outside(), "count"),
    "a layer's forward": (lambda self, x: F.relu(self.layers[0].forward(x)), "attribute forward"),
    "a child's forward": (lambda self, x: F.relu(self.conv.forward(x)), "conv.forward"),
    "one of two": (either, "either"),
    "by name": (lambda self, x: self.chain(operator.attrgetter("real")(x)), "attrgetter"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_known_to_be_recorded_is_left_and_why(name):
    forward, word = LEFT[name]
    model = block(forward)
    nn.convert(model, fold=True, report=False)
    assert recipe_of(model) is None
    (reason,) = {x.unfolded for x in nn.survey(model, fold=True).layers if x.name == "conv"}
    assert reason.startswith("not recorded: ")
    assert word in reason


def closes_over(number):
    def forward(self, x):
        return self.chain(x) * number

    return forward


class Chains(Block):
    def forward(self, x):
        return self.chain(x)


class Sequence(TORCH.Sequential):
    """Uses its base's forward."""

    def forward(self, x):
        return super().forward(x) + x


FOLDED = {
    "functions of modules": lambda self, x: self.chain(lib.inner.plain(Tools.plain(x))),
    "values": lambda self, x: self.chain(x) * math.sqrt(max(self.k, len(self.size))),
    "operators": lambda self, x: operator.mul(self.chain(x), 2),
    "attributes": lambda self, x: self.act(self.bn(self.conv(x))).view(x.shape).to(x.dtype),
    "of children": lambda self, x: self.chain(x) * self.conv.stride[0],
    "parameters": lambda self, x: self.chain(x) * self.gamma.view(1, 4, 1, 1),
    "None": lambda self, x: self.chain(x) if self.beta is None else x,
    "layers": lambda self, x: self.chain([layer(x) for layer in self.layers][-1]),
    "a closure": closes_over(2),
    "a tuple of functions": lambda self, x: self.functions[0](self.bn(self.conv(x))),
    "a list": lambda self, x: F.pad(self.chain(x), self.pad),
    "a dict": lambda self, x: self.chain(x) * self.table["k"],
    "a checkpoint that is not asked for": lambda self, x: (
        also_checkpoint(self.chain, x) if self.k == 3 and x.requires_grad else self.chain(x)
    ),
    "new tensors": lambda self, x: self.chain(x) + x.new_tensor(2.0) * x.new_empty(2).shape[0],
}


@pytest.mark.parametrize("name", FOLDED)
@torch.no_grad()
def test_what_is_known_to_be_recorded_is_folded(name):
    model, x = block(FOLDED[name]), image()
    expected = model(x)
    nn.convert(model, fold=True, report=False)
    assert recipe_of(model) is not None
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_an_output_that_is_an_operand_is_a_write():
    def forward(self, x):
        y = self.conv(x)
        torch.add(x, 1, out=x)
        return F.relu(self.bn(y) + x)

    model, x = block(forward), image()
    expected = model(x.clone())
    nn.convert(model, fold=True, report=False)
    torch.testing.assert_close(model(x.clone()), expected, rtol=1e-5, atol=1e-5)


def test_functions_of_bases_are_read():
    class Doubles(Chains):
        def forward(self, x):
            return super().forward(x) * 2

    class Asks(Block):
        def forward(self, x):
            return self.chain(x) if isinstance(x, torch.Tensor) else x

    class AsksBelow(Asks):
        def forward(self, x):
            return super().forward(x) * 2

    layers = (TORCH.Conv2d(4, 4, 1), TORCH.BatchNorm2d(4))
    models = (Doubles(), Sequence(*layers), AsksBelow())
    for model in models:
        nn.convert(model.eval(), fold=True, report=False)
    assert [recipe_of(model) is not None for model in models] == [True, True, False]


def test_a_checkpoint_by_another_name_is_none_of_training():
    def forward(self, x):
        return also_checkpoint(self.chain, x)

    models = block(forward), block(Chains.forward)
    for model in models:
        nn.convert(model.train(), norms=True, report=False)
    assert [recipe_of(model).in_training for model in models] == [False, True]


# --- what changes later -------------------------------------------------------------------------


def resizes(self, x):
    return F.adaptive_avg_pool2d(self.chain(x), self.size)


def doubles(self, x):
    return self.chain(x) * (2 if self.mode is not None and self.mode == Mode.DOUBLE else 1)


def replace_forward(model):
    type(model).forward = lambda self, x: self.conv(x)


def replace_method(model):
    type(model).chain = lambda self, x: self.conv(x)


def loops(self, x):
    y = self.chain(x)
    for layer in self.layers:
        y = layer(y)
    return y


def signs(self, x):
    return torch.copysign(self.chain(x), torch.full_like(x, 1) * self.zero)


CHANGED = {
    "a tuple's part that is a tensor now": (
        lambda self, x: self.chain(x) * self.size[0],
        lambda m: setattr(m, "size", (torch.full((4, 1, 1), 3.0), 6)),
    ),
    "a number that is a tensor now": (
        lambda self, x: self.chain(x) * self.k,
        lambda m: setattr(m, "k", torch.full((4, 1, 1), 3.0)),
    ),
    "the sign of zero": (signs, lambda m: setattr(m, "zero", -0.0)),
    "a list's element": (
        lambda self, x: F.pad(self.chain(x), self.pad),
        lambda m: operator.setitem(m.pad, 0, 2),
    ),
    "a dict's element": (
        lambda self, x: self.chain(x) * self.table["k"],
        lambda m: operator.setitem(m.table, "k", 3.0),
    ),
    "a function in a tuple": (
        lambda self, x: self.functions[0](self.bn(self.conv(x))),
        lambda m: setattr(m, "functions", (F.silu, F.silu)),
    ),
    "a parameter that is None now": (
        lambda self, x: self.chain(x) if self.gamma is None else self.chain(x) * self.gamma,
        lambda m: setattr(m, "gamma", None),
    ),
    "a child's buffer that is None now": (
        lambda self, x: self.chain(x) * (1 if self.bn.running_mean is None else 2),
        lambda m: m.bn.__setattr__("running_mean", None) or m.bn.__setattr__("running_var", None),
    ),
    "a length": (
        lambda self, x: self.chain(x) * len(self.seq),
        lambda m: m.seq.append(TORCH.Identity()),
    ),
    "a tuple": (resizes, lambda m: setattr(m, "size", (3, 3))),
    "a function": (
        lambda self, x: self.act(self.bn(self.conv(x))),
        lambda m: setattr(m, "act", F.silu),
    ),
    "an enum": (doubles, lambda m: setattr(m, "mode", Mode.DOUBLE)),
    "another type": (lambda self, x: self.chain(x) * self.k, lambda m: setattr(m, "k", 3)),
    "a class attribute": (
        lambda self, x: self.chain(x) * self.scale,
        lambda m: setattr(type(m), "scale", 3.0),
    ),
    "one that hides it": (
        lambda self, x: self.chain(x) * self.scale,
        lambda m: setattr(m, "scale", 3.0),
    ),
    "a child's mode": (
        lambda self, x: self.chain(x) * (2 if self.drop.training else 1),
        lambda m: m.drop.train(),
    ),
    "a child's attribute": (
        lambda self, x: self.chain(x) * self.drop.p,
        lambda m: setattr(m.drop, "p", 0.25),
    ),
    "a parameter that was None": (
        lambda self, x: self.chain(x) if self.beta is None else x,
        lambda m: setattr(m, "beta", TORCH.Parameter(torch.ones(1))),
    ),
    "the forward": (lambda self, x: self.chain(x), replace_forward),
    "a method of its class": (lambda self, x: self.chain(x), replace_method),
    "a method of its own": (
        lambda self, x: self.chain(x),
        lambda m: setattr(m, "chain", lambda x: m.conv(x)),
    ),
    "more layers": (loops, lambda m: m.layers.append(TORCH.Tanh())),
}

OF_CLASSES = {"a class attribute", "the forward", "a method of its class"}


@pytest.mark.parametrize("name", CHANGED)
@torch.no_grad()
def test_what_changes_later_is_seen(name):
    forward, change = CHANGED[name]
    model, other, x = block(forward), block(forward), image()
    nn.convert(model, fold=True, report=False)
    assert recipe_of(model) is not None
    before = model(x)
    change(other)
    expected = other(x)
    assert expected.shape != before.shape or not torch.allclose(expected, before)
    # A folded model's class has another class of the same name in front of it.
    change(object.__new__(type(model).__bases__[0]) if name in OF_CLASSES else model)
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("in_container", [False, True])
@torch.no_grad()
def test_a_class_attribute_named_like_a_child_is_seen(in_container):
    class Chain(TORCH.ModuleList if in_container else TORCH.Sequential):
        pass

    class Owner(TORCH.Module):
        def __init__(self):
            super().__init__()
            self.chain = Chain([TORCH.Conv2d(4, 4, 1), TORCH.BatchNorm2d(4)])

        def forward(self, x):
            return self.chain[1](self.chain[0](x))

    layers = {"conv": TORCH.Conv2d(4, 4, 1), "bn": TORCH.BatchNorm2d(4)}
    model = (Owner() if in_container else Chain(OrderedDict(layers))).eval()
    x = image()
    expected = model(x)
    nn.convert(model, fold=True, report=False)
    assert recipe_of(model) is not None
    # A sequence runs its children, whatever attributes of their names its class has.
    setattr(Chain, "0" if in_container else "conv", TORCH.Identity())
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("values", [(1, True, 1.0), (0.0, -0.0)], ids=str)
def test_blocks_whose_numbers_are_equal_do_not_share_a_record(values):
    def forward(self, x):
        return self.chain(x) + (x if self.k else 1)

    first = block(forward)
    blocks = [first, *(type(first)() for _ in values[1:])]
    for each, value in zip(blocks, values, strict=True):
        each.k = value
    model = TORCH.Sequential(*blocks).eval()
    nn.convert(model, fold=True, report=False)
    assert not any(folded._is_changed(each, recipe_of(each)) for each in model)


class Numbered(Block):
    """A class that can be pickled."""

    def forward(self, x):
        y = self.act(self.bn(self.conv(x))) * self.k + self.size[0] + self.drop.p
        return y + (self.nan > 0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@torch.no_grad()
def test_records_of_copies_hold(copied):
    model, x = Numbered().eval(), image()
    del model.items_left, model.mixed
    expected = model(x)
    nn.convert(model, fold=True, report=False)
    other = copied(model)
    assert not folded._is_changed(other, recipe_of(other))
    torch.testing.assert_close(other(x), expected, rtol=1e-5, atol=1e-5)
    other.k = 5.0
    torch.testing.assert_close(other(x), 5 / 2 * (expected - 6.5) + 6.5, rtol=1e-4, atol=1e-4)


# --- what the table says ------------------------------------------------------------------------


class Frozen(Block):
    @torch.no_grad()
    def forward(self, x):
        return self.chain(x)


@pytest.mark.parametrize(
    ("model", "layer", "reason"),
    [
        (TORCH.ModuleList([TORCH.Conv2d(4, 4, 1)]), "0", "its module has no forward"),
        (TORCH.ModuleDict({"a": TORCH.Conv2d(4, 4, 1)}), "a", "its module has no forward"),
        (Frozen(), "conv", "its module's forward is decorated"),
    ],
    ids=["list", "dict", "decorated"],
)
def test_the_table_says_what_a_forward_is(model, layer, reason):
    layers = nn.survey(model.eval(), fold=True).layers
    assert reason in {x.unfolded for x in layers if x.name == layer}
