"""The operations that may follow a convolution or a norm in a forward, and the call itself."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch

from triton_ext.ops.core.epilogue import apply_activation

__all__ = [
    "activation_of",
    "add_and_activate",
    "drops_nothing",
    "has_hooks",
    "is_watched",
    "name_of",
    "own_activation",
    "refuse_scripting",
    "within",
]


def within(module: Any, path: str) -> Any:
    """Returns the module at a path in a module; ``None`` if there is none.

    Only children are followed.  ``get_submodule`` follows attributes, and a model from a file may
    have children with the names of attributes.

    Args:
        module: Any module.
        path: As ``named_modules`` gives it.
    """
    for name in path.split(".") if path else ():
        module = getattr(module, "_modules", {}).get(name)
    return module


def activation_of(module: object) -> str | None:
    """Returns the epilogue's name of an activation module; ``None`` if epilogues lack it."""
    kind = type(module)
    if kind is torch.nn.GELU:
        return "gelu" if module.approximate == "none" else "gelu_tanh"
    return _ACTIVATIONS.get(kind)


_ACTIVATIONS: dict[type, str] = {
    torch.nn.ReLU: "relu",
    torch.nn.SiLU: "silu",
    torch.nn.Tanh: "tanh",
}


def name_of(activation: Any) -> str | None:
    """Returns the epilogue's name of an activation in a recorded forward; ``None`` if none fits.

    Args:
        activation: A module, the name of a function, or None, whose name is ``"none"``.
    """
    if activation is None or type(activation) is torch.nn.Identity:
        return "none"
    return activation if isinstance(activation, str) else activation_of(activation)


def own_activation(norm: Any) -> Any:
    """Returns the activation that a norm of timm applies itself; ``None`` for other norms.

    ``timm.layers.BatchNormAct2d``, ``GroupNormAct`` and ``GroupNorm1Act`` have the modules ``drop``
    and ``act`` behind the norm; ``nn.Identity`` stands for none.
    """
    kind: Any = type(norm)
    return norm.act if _applies_activation(kind) else None


@functools.cache
def _applies_activation(kind: Any) -> bool:
    return any(
        base.__module__ == "timm.layers.norm_act" and base.__name__ in _WITH_ACTIVATION
        for base in kind.__mro__
    )


def drops_nothing(norm: Any) -> bool:
    """Tells whether nothing stands between a norm and its own activation."""
    return type(getattr(norm, "drop", None)) is torch.nn.Identity


_WITH_ACTIVATION = ("BatchNormAct2d", "GroupNormAct", "GroupNorm1Act")


def has_hooks(module: Any) -> bool:
    """Tells whether hooks see a module's inputs, outputs or gradients."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def is_watched(*modules: Any) -> bool:
    """Tells whether a call must not be left out: a module has hooks or a replaced forward.

    Hooks of all modules count, too.

    Args:
        modules: Any objects; those that are not modules are skipped.
    """
    for module in modules:
        if isinstance(module, torch.nn.Module) and (
            has_hooks(module) or "forward" in module.__dict__
        ):
            return True
    return torch.nn.modules.module._has_any_global_hook()


def add_and_activate(y: Any, activation: Any, residual: Any, adds: str) -> Any:
    """Adds and activates by torch, in the way of the original forward.

    Args:
        y: The tensor to add to.
        activation: As for :func:`name_of`.
        residual: The tensor to add, or None.
        adds: ``"+"``, ``"+="``, or empty if nothing is added.
    """
    if adds == "+=":
        y += residual
    elif adds:
        y = y + residual
    if activation is None:
        return y
    return apply_activation(y, activation) if isinstance(activation, str) else activation(y)


def refuse_scripting(module: Any) -> NoReturn:
    """Refuses ``torch.jit.script`` with advice; its own error would be about kernel code.

    Raises:
        RuntimeError: Always, as torch raises for what it cannot compile.
    """
    raise RuntimeError(
        f"torch.jit.script does not take the {type(module).__name__} of triton_ext.nn; call "
        "triton_ext.nn.revert(model) first"
    )
