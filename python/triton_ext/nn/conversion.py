"""Models with torch's convolutions and norms, turned into models with ours and back.

A module stays the same object with the same parameters: only its class changes.  So hooks, shared
and frozen weights, optimizers and names are what they were.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrize import is_parametrized

from triton_ext.nn import modules
from triton_ext.nn import norms as norm_modules
from triton_ext.nn.calls import CALLS, Calls, no_gpu_line, timed
from triton_ext.nn.channel_norms import ChannelNorm, is_channel_norm
from triton_ext.nn.folded import fold as fold_module
from triton_ext.nn.folded import folds_of, recipe_of, unfold, unfolded
from triton_ext.nn.folding import CONVOLUTIONS
from triton_ext.nn.gathered import GATHERED
from triton_ext.nn.outcome import (
    ALREADY_OURS,
    Conversion,
    Counts,
    Layer,
    ModuleCalls,
    Report,
    show,
)
from triton_ext.nn.padding import PAD_MODULES, PadsConvolution
from triton_ext.nn.patterns import Recipe, find_recipe
from triton_ext.nn.steps import has_hooks, own_activation, within
from triton_ext.nn.subclasses import base_of, class_for, is_plain, pads, refusal_of
from triton_ext.ops import support
from triton_ext.ops.api.checks import Fallback, parse_fallback
from triton_ext.ops.core.descriptors import channels_last, filter_strides

__all__ = ["convert", "refresh", "report", "revert", "survey"]

_OURS: dict[type[torch.nn.Module], Any] = {
    getattr(torch.nn, name): getattr(modules, name) for name in modules.__all__
}
_OUR_NORMS: dict[type[torch.nn.Module], Any] = {
    getattr(torch.nn, name): getattr(norm_modules, name) for name in norm_modules.NORMS
}
_CLASSES = {**_OURS, **_OUR_NORMS}
_TORCHS = {ours: theirs for theirs, ours in _CLASSES.items()}

# Classes whose instances, subclasses included, the table lists as norms.
_NORMS = (
    torch.nn.modules.batchnorm._BatchNorm,
    torch.nn.GroupNorm,
    torch.nn.modules.instancenorm._InstanceNorm,
)
_NORM_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

# How torch's FullyShardedDataParallel marks parameters that it has flattened (torch 2.13).
_OF_OLDER_FSDP = "_fsdp_flattened"

# And the mark of modules whose parameters stay parameters (use_orig_params=True).
_KEPT_BY_OLDER_FSDP = "_fsdp_use_orig_params"

# Where torch has its modules for training that is aware of quantization.
_OF_QAT = re.compile(r"torch\..*nn\.(intrinsic\.)?qat\b")

# Pixels per dimension of the input for which support is asked; larger filters get a larger input.
_NOMINAL_SIZE = 64

# On a converted module: shape and strides that its weight had in another memory order, which revert
# gives back.
_REPACKED = "_triton_ext_repacked"


def convert(
    model: torch.nn.Module,
    fallback: Fallback = "torch",
    report: bool = True,
    fold: bool = False,
    *,
    pack: bool = True,
    norms: bool = False,
) -> torch.nn.Module:
    """Gives the convolutions of a model the kernels of this package, in place.

    A layer is left as it is, with a reason, if no kernel computes its parameters or dtype, or if it
    is not a plain module of torch.  Inputs are checked at every call.  Their memory order is up to
    the caller: ``model.to(memory_format=torch.channels_last)``, and the same for the input.

    Other threads must not call models meanwhile: torch.fx, which traces forwards, replaces
    ``torch.nn.Module.__call__`` in the whole process.

    Args:
        model: Any module.
        fallback: What converted layers do with an input that no kernel takes.  With ``"torch"``,
            torch also computes what the planner finds it faster for (``prefer="fastest"`` of
            :func:`triton_ext.ops.conv2d`) where autograd records nothing.
        report: Whether to print a table with the outcome for every convolution and norm.
        fold: Whether BatchNorm, activations and sums behind convolutions become part of them, for
            inference.  :mod:`triton_ext.nn.folding` says how it is computed,
            :mod:`triton_ext.nn.patterns` which forwards are folded.
        pack: Whether weights are brought into the kernels' memory order.  Otherwise kernels copy
            them at every call.  Pass False for FSDP: ``fully_shard`` refuses the kernels' order.
        norms: Whether BatchNorm, GroupNorm and InstanceNorm run kernels of this package, too, with
            the activations and sums behind them, in training and in eval mode
            (:mod:`triton_ext.nn.norms`).

    Returns:
        The model.

    Raises:
        TypeError: ``model`` is not a module, or a flag is not a bool.
        ValueError: A module that is in training mode, with ``fold=True``; another ``fallback``; a
            child whose name is empty or has a dot.
    """
    parse_fallback(fallback)
    _check_model("convert", model)
    _check_flags("convert", report=report, fold=fold, pack=pack, norms=norms)
    if fold:
        _check_eval("convert", model)
    found, recipes = _survey(model, fold, norms)
    pack = pack and not _is_wrapped(model)
    shared = _shared_memory(model) if pack else None
    layers = tuple(_kept(model, layer, fallback, shared) for layer in found.layers)
    found = replace(found, layers=layers)
    for layer in found.layers:
        if layer.reason:
            continue
        module: Any = within(model, layer.name)
        ours = _class_for(module)
        if ours is None:
            continue
        module.__class__ = ours
        module.fallback = fallback
        module.__dict__[CALLS] = Calls(layer.name or type(module).__name__)
        if shared is not None and _is_packable(module, shared):
            _pack(module)
    for layer in found.norms:
        if not layer.reason:
            module = within(model, layer.name)
            kind: Any = type(module)
            is_over_channels = is_channel_norm(module)
            module.__class__ = class_for(kind, ChannelNorm) if is_over_channels else _class_of(kind)
    for name, recipe in recipes.items():
        module = within(model, name)
        if recipe_of(module) is not None:
            unfold(module)
        fold_module(module, recipe)
    for name, module in model.named_modules():
        kind = type(module)
        if name not in recipes and pads(module) and not refusal_of(kind):
            module.__class__ = class_for(kind)
        elif isinstance(module, torch.nn.Sequential) and _is_sequence(kind):
            for child, behind in itertools.pairwise(module.children()):
                if type(child) in PAD_MODULES and is_plain(type(behind), CONVOLUTIONS):
                    kind = type(child)
                    child.__class__ = class_for(kind, PadsConvolution)
    if report:
        show(found, sys.stdout)
        if any(not layer.reason for layer in found.layers):
            sys.stdout.write(no_gpu_line())
    return model


def survey(model: torch.nn.Module, fold: bool = False, *, norms: bool = False) -> Conversion:
    """Tells what :func:`convert` would do to a model; changes nothing.

    Args:
        model: As for :func:`convert`.
        fold: As for :func:`convert`.
        norms: As for :func:`convert`.

    Raises:
        TypeError: As for :func:`convert`.
        ValueError: As for :func:`convert`.
    """
    _check_model("survey", model)
    _check_flags("survey", fold=fold, norms=norms)
    if fold:
        _check_eval("survey", model)
    return _survey(model, fold, norms)[0]


def revert(model: torch.nn.Module) -> torch.nn.Module:
    """Undoes :func:`convert`, in place.

    Modules, parameters and buffers are the same objects before, between and after; weights lie in
    memory as they did before, but for those of a model that was converted and then given to DDP,
    and those that do not have their memory for themselves any longer.

    Returns:
        The model.

    Raises:
        TypeError: It is no module.
    """
    _check_model("revert", model)
    shared = None if _is_wrapped(model) else _shared_memory(model)
    for module in model.modules():
        if recipe_of(module) is not None:
            unfold(module)
        theirs = _torchs(module)
        if theirs is not None:
            module.__class__ = theirs
            module.__dict__.pop("fallback", None)
            module.__dict__.pop(GATHERED, None)
            module.__dict__.pop(CALLS, None)
            had = module.__dict__.pop(_REPACKED, None)
            if had is not None and shared is not None and _is_movable(module, shared):
                _unpack(module, *had)
    return model


def _is_sequence(kind: Any) -> bool:
    return kind.forward is torch.nn.Sequential.forward


def _class_for(module: torch.nn.Module) -> Any:
    """Returns the class that a convolution gets; ``None`` if it keeps its own."""
    kind: Any = type(module)
    if is_parametrized(module):
        base = _class_of(kind.__bases__[0])
        return None if base is None else _rebased(kind, base)
    return _class_of(kind)


def _class_of(kind: Any) -> Any:
    ours = None if _former(kind) else _nearest(kind)
    return ours if ours is None or kind in _CLASSES else class_for(kind, ours)


def _rebased(kind: Any, base: Any) -> Any:
    """Returns a class that torch made for a parametrized module, derived from another one."""
    own = {k: v for k, v in vars(kind).items() if k not in ("__dict__", "__weakref__")}
    return type(kind)(kind.__name__, (base,), own)


def _nearest(kind: type) -> Any:
    """Returns our class for what a class is derived from in torch, or None."""
    return next((_CLASSES[base] for base in kind.__mro__ if base in _CLASSES), None)


def _former(kind: Any) -> Any:
    """Returns the class that modules of a class of ours had; ``None`` for other classes."""
    return _TORCHS.get(kind) or base_of(kind)


def report(model: torch.nn.Module, run: Callable[[], object] | None = None) -> Report:
    """Returns how many calls of a converted model's convolutions our kernels and torch computed.

    Calls since :func:`convert` are counted, and gradients in their backward.  Calls inside of
    ``torch.compile`` are not.

        nn.convert(model, report=False)
        model(x)
        print(nn.report(model))
        print(nn.report(model, run=lambda: model(x)))  # with the time of each convolution

    Args:
        model: The model.
        run: Calls the model; its convolutions are timed by CUDA events, each with the copies that
            it makes.  What runs beside them on other streams counts, too.

    Raises:
        TypeError: ``model`` is no module.
        UnsupportedError: There is no GPU to time calls of.
    """
    _check_model("report", model)
    converted, left = {}, []
    for name, module in model.named_modules():
        calls = vars(module).get(CALLS)
        if isinstance(calls, Calls):
            converted[name] = calls
        elif _is_convolution(module):
            left.append(name)
    times_ms = [(0.0, 0.0)] * len(converted)
    if run is not None:
        with timed(tuple(converted.values())) as times_ms:
            run()
    found = []
    for (name, calls), (forward_ms, backward_ms) in zip(converted.items(), times_ms, strict=True):
        counts = [
            Counts(tuple(kernels.most_common()), tuple(refusals.most_common()))
            for kernels, refusals in calls.counts()
        ]
        forward, dgrad, wgrad = counts
        made = ModuleCalls(
            name=name,
            text=_text(within(model, name)),
            forward=forward,
            dgrad=dgrad,
            wgrad=wgrad,
            forward_ms=forward_ms,
            backward_ms=backward_ms,
        )
        found.append(made)
    return Report(tuple(found), tuple(left))


def _torchs(module: torch.nn.Module) -> Any:
    """Returns the class that a module had; ``None`` if it is not one of ours."""
    kind: Any = type(module)
    if not is_parametrized(module):
        return _former(kind)
    # Parametrized behind the conversion: a class of its own that torch derived from ours.
    theirs: Any = _former(kind.__bases__[0])
    return None if theirs is None else _rebased(kind, theirs)


def refresh(model: torch.nn.Module) -> torch.nn.Module:
    """Makes a folded model compute its norms' scales and biases again.

    Only needed after a write that torch's version counters do not show: ``bn.weight.data.mul_(2)``,
    a replayed CUDA graph, a collective of ``torch.distributed``, another library.
    ``model.train()`` and ``model.eval()`` do it as well.

    Returns:
        The model.

    Raises:
        TypeError: It is no module.
    """
    _check_model("refresh", model)
    for module in model.modules():
        for fold in folds_of(module):
            fold.clear()
    return model


# --- what there is to do ------------------------------------------------------------------------


def _check_model(name: str, model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{name}: expected a torch.nn.Module, got {type(model).__name__}")
    for path, module in model.named_modules():
        for child, found in module._modules.items():  # a scripted module has no keys
            where = " ".join((type(module).__name__, path)).rstrip()
            # Torch's own add_module refuses these; a file need not.
            if not isinstance(child, str) or not child or "." in child:
                raise ValueError(f"{name}: {where} has a child named {child!r}")
            if found is not None and not isinstance(found, torch.nn.Module):
                raise TypeError(f"{name}: {where} has a child {child!r}, a {type(found).__name__}")


def _check_flags(name: str, **flags: object) -> None:
    for which, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name}: {which} must be a bool, got {flag!r}")


def _survey(
    model: torch.nn.Module, fold: bool, norms: bool
) -> tuple[Conversion, dict[str, Recipe]]:
    layers, found_norms = {}, {}
    for name, module in model.named_modules():
        if _is_convolution(module):
            reason = _reason_to_leave(module)
            layers[name] = Layer(name, _text(module), _shape(module), reason, (), "")
        elif norms and (isinstance(module, _NORMS) or _is_channel_norm(module)):
            reason = _reason_to_leave_norm(module)
            found_norms[name] = Layer(name, _text(module), _channels(module), reason, (), "")
    search = _Search(model, layers, found_norms, fold)
    if fold or norms:
        search.run()
    if fold:
        layers = {name: search.told(layer) for name, layer in layers.items()}
    found_norms = {name: search.told(layer) for name, layer in found_norms.items()}
    return Conversion(tuple(layers.values()), tuple(found_norms.values())), search.recipes


def _check_eval(name: str, model: torch.nn.Module) -> None:
    for path, module in model.named_modules():
        if module.training:
            which = f"{path} ({type(module).__name__})" if path else f"{type(module).__name__}"
            raise ValueError(
                f"{name}: fold=True is for inference, but {which} is in training mode; call "
                "model.eval() first"
            )


class _Search:
    """Looks for recipes of a model's modules.

    Attributes:
        recipes: The new recipe of each module that gets one.
        parts: The operations that are folded into each layer.
        reasons: For each layer without folded operations, why it has none.
        within: For each folded norm, the convolution that it is folded into.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        convolutions: dict[str, Layer],
        norms: dict[str, Layer],
        fold: bool,
    ) -> None:
        self._model = model
        self._convolutions, self._norms = convolutions, norms
        self._layers = {**convolutions, **norms}
        self._fold = fold
        self.recipes: dict[str, Recipe] = {}
        self.parts: dict[str, tuple[str, ...]] = {}
        self.reasons: dict[str, str] = {}
        self.within: dict[str, str] = {}

    def run(self) -> None:
        """Looks for a recipe in every module that has some of the layers as its own children."""
        asked = self._layers if self._fold else self._norms
        for name, module in self._model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            prefix = f"{name}." if name else ""
            inner = (n[len(prefix) :] for n in asked if n.startswith(prefix) and n != name)
            own = [n for n in inner if _is_called_by(module, n)]
            if name not in self._layers and own:
                self._ask(name, prefix, module, own)

    def told(self, layer: Layer) -> Layer:
        """Returns a layer with the results of the search."""
        name = layer.name
        folded, within = self.parts.get(name, ()), self.within.get(name, "")
        if folded or within or layer.reason not in ("", ALREADY_OURS):
            return replace(layer, folded=folded, within=within)
        return replace(layer, unfolded=self.reasons.get(name, "no module here calls it"))

    def _ask(self, name: str, prefix: str, module: torch.nn.Module, own: list[str]) -> None:
        refused = {n: self._refusal(prefix + n, within(module, n)) for n in own}
        able = {n for n, reason in refused.items() if not reason}
        norms = {n for n in able if prefix + n in self._norms}
        convolutions = able - norms
        known = recipe_of(module)
        if known is not None:
            # Convolutions that are folded already stay folded, whatever this call asks for.
            convolutions |= {site.name for site in known.sites}
            norms |= {site.name for site in known.norms}
        recipe = known
        if known is None or (convolutions and not known.sites) or (norms and not known.in_training):
            recipe, why = find_recipe(unfolded(module), convolutions, norms)
            recipe = recipe or known
            self.reasons.update({prefix + child: reason for child, reason in why.items()})
        self.reasons.update({prefix + child: reason for child, reason in refused.items() if reason})
        if recipe is None:
            return
        if recipe != known:
            self.recipes[name] = recipe
        for site in (*recipe.sites, *recipe.norms):
            self.parts[prefix + site.name] = site.parts
            if site.norm:
                self.within[prefix + site.norm] = prefix + site.name

    def _refusal(self, name: str, module: Any) -> str:
        """Returns why nothing may be folded into a layer; empty if folding is allowed."""
        layer = self._layers[name]
        if layer.reason not in ("", ALREADY_OURS):
            return layer.reason
        if name in self._convolutions:
            if is_parametrized(module):
                return "its weight is computed at every call"
            kind = type(module)
            made = kind if _former(kind) else _class_of(kind)
            if not is_plain(made, CONVOLUTIONS):
                is_transposed = isinstance(module, torch.nn.modules.conv._ConvTransposeNd)
                return "transposed convolutions have no epilogue" if is_transposed else _OWN_CLASS
        if name in self._norms and own_activation(module) is not None:
            return "it applies its activation itself"
        return "it has hooks" if has_hooks(module) else ""


# Why nothing is folded into a convolution of a class derived from torch's.
_OWN_CLASS = "its class has a forward of its own"


def _is_called_by(module: torch.nn.Module, name: str) -> bool:
    """Tells whether a layer is a module's child, directly or through lists and dicts of modules."""
    *path, _ = name.split(".")
    return all(
        isinstance(within(module, ".".join(path[: i + 1])), _LISTS) for i in range(len(path))
    )


_LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict)


# --- single layers ------------------------------------------------------------------------------


def _is_channel_norm(module: torch.nn.Module) -> bool:
    return is_channel_norm(module) or isinstance(module, ChannelNorm)


def _is_convolution(module: torch.nn.Module) -> bool:
    if isinstance(module, tuple(_OURS)):
        return True
    # These do not derive from torch's convolutions, but belong into the table.
    if isinstance(module, torch.jit.ScriptModule):
        return getattr(module, "original_name", "") in {kind.__name__ for kind in _OURS}
    kind = type(module)
    return "quantized" in kind.__module__ and kind.__name__.startswith(("Conv", "LazyConv"))


def _text(module: Any) -> str:
    """Returns a layer's class and numbers in one line, without the modules that it has."""
    return " ".join(f"{module._get_name()}({module.extra_repr()})".split())


def _shape(module: Any) -> str:
    """Returns the shape of a layer's weight, where it is known."""
    weight = getattr(module, "weight", None)
    if callable(weight):
        weight = weight()
    if weight is None or isinstance(weight, torch.nn.parameter.UninitializedParameter):
        return "?"
    return "x".join(str(size) for size in _sizes(module, weight))


def _sizes(module: Any, weight: torch.Tensor) -> tuple[int, ...]:
    """Returns the shape of a layer's weight; computed from the layer if FSDP has flattened it."""
    if not getattr(weight, _OF_OLDER_FSDP, False):
        return weight.shape
    inputs, outputs = module.in_channels, module.out_channels
    if isinstance(module, torch.nn.modules.conv._ConvTransposeNd):
        return (inputs, outputs // module.groups, *module.kernel_size)
    return (outputs, inputs // module.groups, *module.kernel_size)


def _channels(norm: Any) -> str:
    """Returns the number of a norm's channels."""
    if _is_channel_norm(norm):
        return str(next((p.numel() for p in norm.parameters()), "?"))
    return str(getattr(norm, "num_channels", None) or getattr(norm, "num_features", "?"))


def _is_wrapped(model: torch.nn.Module) -> bool:
    """Tells whether a model is wrapped by DDP, so that its weights keep their memory order.

    DDP records the order when it is made; after a later change its first step is wrong.
    """
    return any(isinstance(module, DistributedDataParallel) for module in model.modules())


def _shared_memory(model: torch.nn.Module) -> frozenset[int]:
    """Returns the storages (torch's handles) that several parameters and buffers share."""
    seen: set[int] = set()
    shared: set[int] = set()
    for tensor in (*model.parameters(), *model.buffers()):
        if type(tensor.data) is not torch.Tensor or tensor.layout is not torch.strided:
            continue
        memory = tensor.data.untyped_storage()._cdata
        (shared if memory in seen else seen).add(memory)
    return frozenset(shared)


def _kept(
    model: torch.nn.Module, layer: Layer, fallback: Fallback, shared: frozenset[int] | None
) -> Layer:
    """Returns a layer with the options that it keeps from an earlier conversion.

    Args:
        model: The model that the layer belongs to.
        layer: Any convolution.
        fallback: The fallback that this conversion asks for.
        shared: As for :func:`_is_packable`; None if weights are not to be packed.
    """
    if not layer.is_ours_already:
        return layer
    module: Any = within(model, layer.name)
    kept = []
    if module.fallback != fallback:
        kept.append(f'fallback="{module.fallback}"')
    if shared is None and module.__dict__.get(_REPACKED, False):
        kept.append("its packed weight")
    if shared is not None and _is_packable(module, shared):
        kept.append("a weight that is not packed")
    return replace(layer, kept=f"keeps {' and '.join(kept)}: revert first" if kept else "")


def _is_packable(module: Any, shared: frozenset[int]) -> bool:
    """Tells whether a weight may be packed: it shares no memory and is in another order.

    Args:
        module: The module with the weight.
        shared: Storages that several tensors share.
    """
    if not _is_movable(module, shared):
        return False
    data = module.weight.data
    if type(data) is not torch.Tensor or not data.numel():
        return False
    return data.stride() != filter_strides(data.shape, module.groups)


def _is_movable(module: Any, shared: frozenset[int]) -> bool:
    """Tells whether a weight shares no memory; arguments as for :func:`_is_packable`."""
    weight = getattr(module, "weight", None)
    # A weight that was parametrized or pruned since is computed on every call.
    if is_parametrized(module) or not isinstance(weight, torch.nn.Parameter):
        return False
    data = weight.data
    if data.layout is not torch.strided:
        return False
    if type(data) is not torch.Tensor:
        return True  # the subclass moves its own memory
    if data.untyped_storage()._cdata in shared:
        return False
    if data.device.type == "cpu" and data.is_shared():
        return False  # shared with other processes
    if getattr(weight, _OF_OLDER_FSDP, False):
        return False  # a view of FSDP's flat parameter
    # A weight or gradient that is a part of another tensor (FSDP's, DDP's, the user's) stays one.
    return modules.is_alone(weight)


def _pack(module: Any) -> None:
    strides = module.weight.stride()
    module.pack_weight()
    weight = module.weight
    # A filter of one tap is in both orders at once.
    if weight.stride() != strides and not weight.is_contiguous():
        module.__dict__[_REPACKED] = (weight.shape, strides)


def _unpack(module: Any, shape: torch.Size, strides: tuple[int, ...]) -> None:
    """Gives a weight its former strides; torch's default ones if its shape has changed."""

    def in_order(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape != shape or type(tensor) is not torch.Tensor:
            return tensor.contiguous()
        empty = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
        return empty.copy_(tensor)

    modules.reorder(module.weight, in_order)


def _reason_to_leave(module: Any) -> str:
    kind = type(module)
    if _former(kind):
        return ALREADY_OURS
    if isinstance(module, torch.jit.ScriptModule):
        return "it is compiled (torch.jit)"
    if "quantized" in kind.__module__ or _OF_QAT.match(kind.__module__):
        return f"it is quantized ({kind.__module__}.{kind.__name__})"
    if is_parametrized(module):
        kind = kind.__bases__[0]
        if _former(kind):
            return f"{ALREADY_OURS}, and parametrized since (torch.nn.utils.parametrize)"
    refusal = "" if kind in _OURS else refusal_of(kind, _nearest(kind))
    if refusal:
        return refusal
    if "forward" in module.__dict__:
        return "its forward was replaced"
    weight = getattr(module, "weight", None)
    if weight is None:
        return "it has no weight"
    if not isinstance(weight, torch.nn.Parameter) and not _is_made_by_torch(module):
        return f"its weight is no parameter{_maker_of_weights(module)}"
    if type(weight.data) is not torch.Tensor and not _is_sharded(weight):
        return f"its weight is a {type(weight.data).__name__}"
    if weight.layout is not torch.strided:
        return f"its weight is {weight.layout}"
    return _reason_of_kernels(module)


def _is_made_by_torch(module: Any) -> bool:
    """Tells whether torch computes a weight before every call: parametrize, weight_norm, prune."""
    makers = (type(hook).__module__ for hook in module._forward_pre_hooks.values())
    return is_parametrized(module, "weight") or any(
        maker.startswith("torch.nn.utils.") for maker in makers
    )


def _maker_of_weights(module: Any) -> str:
    """Returns what in torch makes a weight before every call, and what to do about it."""
    if getattr(module, _KEPT_BY_OLDER_FSDP, None) is False:
        return (
            " (FullyShardedDataParallel with use_orig_params=False); convert with pack=False "
            "first, then wrap"
        )
    return ""


def _reason_to_leave_norm(module: Any) -> str:
    kind = type(module)
    if _former(kind):
        return ALREADY_OURS
    if is_channel_norm(module):
        refusal = refusal_of(kind, ChannelNorm)
        if refusal:
            return refusal
    elif kind not in _OUR_NORMS and own_activation(module) is None:
        return f"it is a {kind.__name__}"
    if "forward" in module.__dict__:
        return "its forward was replaced"
    for name in ("weight", "bias", "gamma"):
        tensor = getattr(module, name, None)
        if not isinstance(tensor, torch.Tensor):
            continue
        if type(tensor.data) is not torch.Tensor and not _is_sharded(tensor):
            return f"its {name} is a {type(tensor.data).__name__}"
        if tensor.dtype not in _NORM_DTYPES:
            return f"dtype {str(tensor.dtype).removeprefix('torch.')} is not supported"
    return ""


def _is_sharded(weight: Any) -> bool:
    """Tells whether a weight is torch's distributed tensor, of which a forward sees a plain one."""
    return type(weight.data).__module__.startswith("torch.distributed.tensor")


def _reason_of_kernels(module: Any) -> str:
    dtype, sizes = module.weight.dtype, _sizes(module, module.weight)
    transposed = isinstance(module, torch.nn.modules.conv._ConvTransposeNd)
    # The weight's sizes, as torch uses; attributes may have been overwritten since construction.
    channels = sizes[0] if transposed else sizes[1] * module.groups
    size = [
        max(_NOMINAL_SIZE, (taps - 1) * step + 1)
        for taps, step in zip(sizes[2:], module.dilation, strict=False)
    ]
    x = torch.empty(1, channels, *size, dtype=dtype, device="meta")
    padding = module.padding if module.padding_mode == "zeros" else 0
    try:
        found = support(
            channels_last(x),
            torch.empty(sizes, dtype=dtype, device="meta"),
            None,
            module.stride,
            padding,
            module.dilation,
            module.groups,
            transposed=transposed,
            output_padding=module.output_padding if transposed else 0,
        )
    except (TypeError, ValueError) as error:
        # Empty weights, and numbers that do not fit each other.
        return str(error)
    return "; ".join(found.refusals)
