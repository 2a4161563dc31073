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
    """Returns the module that a module has by a path; ``None`` if there is none.

    It goes by the children alone.  ``get_submodule`` goes by attributes, and a file may have
    children that are named as attributes are.

    Args:
        module: Any module.
        path: As ``named_modules`` gives it.
    """
    for name in path.split(".") if path else ():
        module = getattr(module, "_modules", {}).get(name)
    return module


def activation_of(module: object) -> str | None:
    """Returns the name by which epilogues know a module's function; ``None`` without one."""
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
    """Returns the name of what a recorded forward has for an activation; ``None`` if none fits.

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
    """Tells whether somebody looks at a module's inputs, outputs or gradients."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def is_watched(*modules: Any) -> bool:
    """Tells whether calls of modules may not be left out: hooks, also of all, other forwards.

    Args:
        modules: What is no module is none that could be watched.
    """
    for module in modules:
        if isinstance(module, torch.nn.Module) and (
            has_hooks(module) or "forward" in module.__dict__
        ):
            return True
    return torch.nn.modules.module._has_any_global_hook()


def add_and_activate(y: Any, activation: Any, residual: Any, adds: str) -> Any:
    """Adds and activates as a forward does that says so.

    Args:
        y: What is added to.
        activation: As for :func:`name_of`.
        residual: What is added.
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
    """Says what to do before ``torch.jit.script``, whose own errors tell of the kernels' code.

    Raises:
        RuntimeError: Always, as torch raises for what it cannot compile.
    """
    raise RuntimeError(
        f"torch.jit.script does not take the {type(module).__name__} of triton_ext.nn; call "
        "triton_ext.nn.revert(model) first"
    )
