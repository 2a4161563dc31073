"""Modules whose forward is a folded one: the same object of a class made for it.

The class is a subclass of the module's own with the same name.  Its forward is the folded one where
that stands for the original, for tensors in eval mode (with chains of norms in training mode, too),
and otherwise the original.  Copies have the recipe; constructing the class (as slices of a
``Sequential`` do) gives an instance of the module's own.

A pickle has the names of what is folded, and no text that would be run.  The process that loads it
records the forward anew; what cannot be recorded there is not folded.
"""

from __future__ import annotations

import functools
import secrets
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from triton_ext.nn.folding import Fold
from triton_ext.nn.patterns import FOLDS, Recipe, find_recipe, required_names
from triton_ext.nn.program import OWN
from triton_ext.nn.steps import has_hooks, within
from triton_ext.nn.subclasses import derived
from triton_ext.nn.traceable import differs, likeness

__all__ = ["fold", "folds_of", "recipe_of", "unfold", "unfolded"]

_RECIPE = f"{OWN}recipe"


def recipe_of(module: torch.nn.Module) -> Recipe | None:
    """Returns the recipe of a folded module; ``None`` for other modules."""
    recipe: Recipe | None = vars(type(module)).get(_RECIPE)
    return recipe


def folds_of(module: torch.nn.Module) -> tuple[Fold, ...]:
    """Returns the folds of a folded module; an empty tuple for other modules."""
    folds: tuple[Fold, ...] = vars(module).get(FOLDS, ())
    return folds


def fold(module: torch.nn.Module, recipe: Recipe) -> None:
    """Gives a module the forward of a recipe."""
    kind: Any = type(module)
    module.__class__ = _class_for(kind, recipe)
    module.__dict__[FOLDS] = tuple(Fold() for _ in recipe.sites)


def unfolded(module: torch.nn.Module) -> torch.nn.Module:
    """Returns a module as it was before it was folded, with the same attributes and children."""
    if recipe_of(module) is None:
        return module
    kind: Any = type(module).__bases__[0]
    made: torch.nn.Module = kind.__new__(kind)
    made.__dict__ = module.__dict__
    return made


def unfold(module: torch.nn.Module) -> None:
    """Gives a folded module its own class back."""
    module.__class__ = type(module).__bases__[0]
    module.__dict__.pop(FOLDS, None)


def _class_for(base: Any, recipe: Recipe) -> Any:
    """Returns the class of modules with the forward of a recipe."""
    values = likeness((recipe.attributes, recipe.others))  # equal ones may differ: 1 and True
    return _folded_class(base, recipe, base.forward, _of_class(base, recipe), values)


@functools.lru_cache(maxsize=1024)  # blocks of the same kind share a class, and what is compiled
def _folded_class(
    base: Any, recipe: Recipe, original: Any, of_class: tuple[Any, ...], values: tuple[Any, ...]
) -> Any:
    inputs, folded, in_training = recipe.inputs, _function(recipe), recipe.in_training
    token = secrets.token_hex(16)
    convolutions = tuple(site.name for site in recipe.sites)
    norms = tuple(site.name for site in recipe.norms)
    if in_training:  # Norms in a convolution's chain may begin a chain of their own, too.
        norms += tuple(site.norm for site in recipe.sites if site.norm)

    signature = _Signature.of(original)

    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        tensors: tuple[Any, ...] | None = arguments
        if keywords or len(arguments) != inputs:
            tensors = signature.required(arguments, keywords)
        if (
            (self.training and not in_training)
            or tensors is None
            or not all([isinstance(tensor, torch.Tensor) for tensor in tensors])
            or base.forward is not original
            or _of_class(type(self), recipe) != of_class
            or _is_changed(self, recipe)
        ):
            for each in folds_of(self):
                each.record()
            return base.forward(self, *arguments, **keywords)
        return folded(self, *tensors)

    def reduce(self: Any, protocol: Any) -> Any:
        # The default __reduce__ of a module gives the class, its arguments, then the state.
        _, arguments, *rest = base.__reduce_ex__(self, 2)
        return _empty, (base, token, convolutions, norms, *arguments[1:]), *rest

    def train(self: Any, mode: bool = True) -> Any:
        for each in folds_of(self):
            each.clear()
        return base.train(self, mode)

    def replicate(self: Any) -> Any:
        for each in folds_of(self):
            each.record()  # for the replica
        replica = unfolded(self)._replicate_for_data_parallel()
        replica.__class__ = type(self)
        replica.__dict__[FOLDS] = tuple(Fold() for _ in recipe.sites)
        return replica

    namespace = {
        "__reduce_ex__": reduce,
        "_replicate_for_data_parallel": replicate,
        "forward": functools.wraps(original)(forward),
        "train": functools.wraps(base.train)(train),
        _RECIPE: recipe,
    }
    made = derived(base, (base,), namespace)
    _classes[token] = made
    return made


@dataclass(frozen=True, slots=True)
class _Signature:
    """The arguments of a forward, without ``self``.

    Attributes:
        names: The required ones.
        optional: The others, but for starred ones, with their defaults.
        positional: How many may be given by position.
    """

    names: tuple[str, ...]
    optional: dict[str, Any]
    positional: int

    @classmethod
    def of(cls, forward: Any) -> _Signature:
        names, code = required_names(forward), forward.__code__
        others = code.co_varnames[1 + len(names) : code.co_argcount]
        optional = dict(zip(others, forward.__defaults__ or (), strict=True))
        optional |= forward.__kwdefaults__ or {}
        return cls(names, optional, len(names) + len(others))

    def required(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[Any, ...] | None:
        """Returns a call's required arguments where the others have their defaults, or None."""
        if len(arguments) > self.positional:
            return None
        given = dict(zip((*self.names, *self.optional), arguments, strict=False))
        if not given.keys().isdisjoint(keywords):
            return None
        given |= keywords
        for name in given.keys() - self.names:
            if name not in self.optional or given[name] is not self.optional[name]:
                return None
        if not given.keys() >= set(self.names):
            return None
        return tuple([given[name] for name in self.names])


# The classes of this process by the token that pickles of their instances name.
_classes: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def _of_class(base: Any, recipe: Recipe) -> tuple[Any, ...]:
    """Returns what a class has for names that a forward uses; a user may replace it later."""
    return tuple([getattr(base, name, None) for name in recipe.class_names])


def _is_changed(module: Any, recipe: Recipe) -> bool:
    """Tells whether a forward may behave differently from its record."""
    state, children = module.__dict__, module._modules
    for name, value in recipe.attributes:
        if name not in state or differs(state[name], value):
            return True
    if tuple([name for name in children if children[name] is not None]) != recipe.children:
        return True
    # The program reads attributes, which hide methods and children of the same name.
    for name in recipe.class_names:
        if name in state:
            return True
    for name in recipe.identities:
        child = within(module, name)
        if type(child) is not torch.nn.Identity or has_hooks(child):
            return True
    return _is_changed_deeper(module, recipe)


_ABSENT: Any = object()


def _is_changed_deeper(module: Any, recipe: Recipe) -> bool:
    for path, name, value in recipe.others:
        if differs(getattr(within(module, path), name, _ABSENT), value):
            return True
    for path, name in recipe.tensors:
        if getattr(within(module, path), name, None) is None:
            return True
    for path, names in recipe.containers:
        container = within(module, path)
        if container is None or tuple(container._modules) != names:
            return True
        for name in names:
            if name in container.__dict__ or hasattr(type(container), name):
                return True
    for paths in recipe.tied:
        found = [_part(module, path) for path in paths]
        if any(each is not found[0] for each in found):
            return True
    return False


def _part(module: Any, path: str) -> Any:
    """Returns the module, parameter or buffer at a path in a module."""
    path, _, name = path.rpartition(".")
    return getattr(within(module, path), name, None)


def _function(recipe: Recipe) -> Any:
    names = dict(recipe.names)
    exec(compile(recipe.source, "<folded forward>", "exec"), names)
    return names["forward"]


def _empty(
    base: Any, token: str, convolutions: tuple[str, ...], norms: tuple[str, ...], *arguments: Any
) -> Any:
    """Returns an instance without attributes yet; copies and pickles call it.

    Args:
        base: The module's own class.
        token: Names the class in the process that made it.
        convolutions: Names of the folded convolutions in the module.
        norms: Names of the norms in the module that begin chains.
        arguments: For ``__new__``.
    """
    made = _classes.get(token)
    if made is None or made.__bases__ != (base,):
        made = _unpickled_class(base, frozenset(convolutions), frozenset(norms))
    return base.__new__(made, *arguments)


@functools.lru_cache(maxsize=1024)
def _unpickled_class(base: Any, convolutions: frozenset[str], norms: frozenset[str]) -> Any:
    """Returns the class of a module from another process until it gets its state."""

    def set_state(self: Any, state: Any) -> None:
        self.__class__ = base
        self.__setstate__(state)
        self.__dict__.pop(FOLDS, None)
        try:
            recipe, _ = find_recipe(self, convolutions, norms)
        except AttributeError:  # it refers to a module that contains it and has no state yet
            return
        if recipe is not None:
            fold(self, recipe)

    namespace = {"__module__": base.__module__, "__setstate__": set_state}
    return type(base)(base.__name__, (base,), namespace)
