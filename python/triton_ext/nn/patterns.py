"""Convolutions and norms in a forward, and what behind them goes into their kernels.

A module's own forward is recorded by torch.fx, with every module that it calls as one step.  In the
record the pattern is a chain whose every link is used by the next one only:

    convolution -> BatchNorm? -> + residual? -> activation?

with modules, functions (``F.relu``, ``torch.relu``) or methods (``x.relu_()``), ``+`` and ``+=``.
The residual has the output's shape or is one number per image and channel, such as the
``embedding[:, :, None, None]`` of a time; which one it is, calls look at.
The chain becomes one call at the place of its last link.  What stands between its first and last
link must not write to tensors, because the convolution is then computed behind it.

Norms that are in no chain of a convolution begin chains of their own:

    BatchNorm -> + residual? -> ReLU?      BatchNorm, GroupNorm, InstanceNorm -> activation?

Those are called in training mode, too, unless the forward asks for checkpoints: what it does with
them is not in its record.  A norm that is called again between the links of its chain has none,
because it counts what it is called with.

Safe direction: a chain that could be folded may be left.
"""

from __future__ import annotations

import abc
import operator
import types
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import fx
from torch.nn import functional as F

from triton_ext.nn.folding import convolve_folded, is_foldable
from triton_ext.nn.norms import normalize
from triton_ext.nn.program import OWN, NotWritable, check_record, program_of, tied_paths
from triton_ext.nn.steps import activation_of, has_hooks, own_activation
from triton_ext.nn.traceable import Reading, read_forward

__all__ = ["FOLDS", "Recipe", "Site", "find_recipe", "required_names"]

#: The attribute of a folded module that has a fold for each of its sites.
FOLDS = f"{OWN}folds"


@dataclass(frozen=True, slots=True)
class Site:
    """A convolution or a norm with what is folded into it.

    Attributes:
        name: Its name in the module.
        parts: The folded operations, in order: classes of modules, names of functions, ``+`` or
            ``+=``, with ``[:, :, None, None]`` if the residual is indexed like that.
        norm: The name of a norm that is folded into a convolution; empty if there is none.
    """

    name: str
    parts: tuple[str, ...]
    norm: str = ""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A forward with folded convolutions, as text and what the text names.

    No file has one: what loads a folded module makes its recipe from the module.

    Attributes:
        source: Defines ``forward(self, ...)``.
        names: Global names of the source, with their values.
        inputs: How many tensors it takes; its optional arguments have their defaults.
        attributes: Values, while it was recorded, of the module's attributes that it may read.
        others: The same, by path and name, for attributes of its class and of its submodules.
        tensors: By path and name, parameters and buffers that it uses: they are not None.
        class_names: Names that its class may give a meaning: of methods and properties that the
            forward uses, and of children.
        containers: By path, the children of the containers that it names or whose modules it calls.
        children: Names of its children in order, without those that are None.
        sites: The convolutions, in the order of the folds.
        norms: The norms that begin chains.
        in_training: Whether the forward is also that of training mode.
        identities: Modules that are left out because they return what they are given.
        tied: Paths of modules, parameters and buffers that have several names: a record has one of
            the names, which may not be the one that the forward used.
    """

    source: str
    names: tuple[tuple[str, Any], ...]
    inputs: int
    attributes: tuple[tuple[str, Any], ...]
    others: tuple[tuple[str, str, Any], ...]
    tensors: tuple[tuple[str, str], ...]
    class_names: tuple[str, ...]
    containers: tuple[tuple[str, tuple[str, ...]], ...]
    children: tuple[str, ...]
    sites: tuple[Site, ...]
    norms: tuple[Site, ...] = ()
    in_training: bool = False
    identities: tuple[str, ...] = ()
    tied: tuple[tuple[str, ...], ...] = ()


class _NotRecorded(Exception):
    """A forward that a record would not reproduce."""


class _StandIn(fx.Proxy):
    """A stand-in for a tensor that also records ``+=`` and its kin, which fx takes for ``+``."""


def _recording(target: Any) -> Any:
    def record(self: fx.Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", target, (self, other), {})

    return record


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
    setattr(_StandIn, f"__i{_name}__", _recording(getattr(operator, f"i{_name}")))


class _Tracer(fx.Tracer):
    """Records one module's own forward, called without optional arguments.

    What it calls are single steps.
    """

    # Without it, operations on buffers run once while recording and are missing in the record.
    proxy_buffer_attributes = True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _StandIn(node, self)

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return True

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        # Optional arguments have their defaults in the record, starred ones are empty.
        names = required_names(root_fn)
        return root_fn, [self.root, *(self.create_proxy("placeholder", n, (), {}) for n in names)]

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, torch.Tensor) and not self._is_known(a):
            raise _NotRecorded("makes a tensor of its own")
        return super().create_arg(a)

    def _is_known(self, tensor: torch.Tensor) -> bool:
        known = (*self.root.parameters(), *self.root.buffers())
        return any(tensor is t for t in known)


# --- the record ---------------------------------------------------------------------------------


def find_recipe(
    module: torch.nn.Module, convolutions: Set[str], norms: Set[str] = frozenset()
) -> tuple[Recipe | None, dict[str, str]]:
    """Returns a module's folded forward, or None; by layer, why nothing is folded into it.

    Args:
        module: The module whose own forward is folded; not a convolution itself.
        convolutions: The names in the module of those that have an epilogue.
        norms: The names in the module of those that may begin chains.
    """
    layers = (*convolutions, *norms)
    reason = _reason_against(module)
    reading = Reading() if reason else read_forward(module)
    if reading.hazard:
        reason = f"not recorded: {reading.hazard}"
    if reason:
        return None, dict.fromkeys(layers, reason)
    tracer = _Tracer()
    try:
        graph = tracer.trace(module)
    # A stand-in is not a tensor, so a forward may raise any error.
    except Exception as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        reason = f"its module's forward does not trace: {first}"
        return None, dict.fromkeys(layers, reason)
    try:
        check_record(graph, module)
    except NotWritable as error:
        return None, dict.fromkeys(layers, f"not recorded: {error}")
    reasons = dict.fromkeys(layers, "its module's forward does not call it")
    for node in graph.nodes:
        if node.op == "call_module" and node.kwargs and node.target in reasons:
            reasons[node.target] = "it is called with keyword arguments"
    containers = _containers(module, graph, reading.containers)
    tied = tied_paths(module, graph)
    identities = _skip_identities(module, graph)
    sites = _fold(module, graph, convolutions, reasons)
    chains = _fold_norms(module, graph, norms, reasons)
    if not sites and not chains:
        return None, reasons
    try:
        source, names = program_of(graph)
    except NotWritable as error:
        return None, dict.fromkeys(layers, f"not recorded: {error}")
    state = vars(module)
    own = {k: v for (path, k), v in reading.attributes.items() if not path and k in state}
    recipe = Recipe(
        source=source,
        names=names,
        inputs=sum(node.op == "placeholder" for node in graph.nodes),
        attributes=tuple(own.items()),
        others=tuple((*k, v) for k, v in reading.attributes.items() if k[0] or k[1] not in own),
        tensors=tuple(sorted(reading.tensors)),
        # A class attribute of a child's name would hide the child from the program.
        class_names=tuple(sorted(reading.functions.union(module._modules))),
        containers=containers,
        children=tuple(k for k, v in module._modules.items() if v is not None),
        sites=tuple(sites),
        norms=tuple(chains),
        in_training=bool(norms) and not reading.has_checkpoints,
        identities=identities,
        tied=tied,
    )
    return recipe, reasons


def required_names(forward: Any) -> tuple[str, ...]:
    """Returns the names of a forward's arguments without a default, ``self`` excluded."""
    code = forward.__code__
    count: int = code.co_argcount - len(forward.__defaults__ or ())
    names: tuple[str, ...] = code.co_varnames[1:count]
    return names


def _containers(
    root: torch.nn.Module, graph: fx.Graph, named: Set[str]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Returns the names in containers, which a forward may go through: by path."""
    paths = {str(n.target).rpartition(".")[0] for n in graph.nodes if n.op == "call_module"}
    paths = (paths | named) - {""}
    return tuple((p, tuple(root.get_submodule(p)._modules)) for p in sorted(paths))


# Methods that copy, pickle and create instances, which a class made for a folded forward overrides.
# A __getattribute__ may return other attributes than those compared.
_OF_INSTANCES = (
    *("__deepcopy__", "__reduce__", "__reduce_ex__", "__getnewargs_ex__", "__new__"),
    "__getattribute__",
)


def _reason_against(module: torch.nn.Module) -> str:
    kind = type(module)
    for made in (torch.jit.ScriptModule, fx.GraphModule):
        if isinstance(module, made):
            return f"its module is a {made.__name__}"
    if "forward" in module.__dict__:
        return "its module's forward was replaced"
    for name in _OF_INSTANCES:
        if getattr(kind, name, None) is not getattr(torch.nn.Module, name, None):
            return f"its module has a {name} of its own"
    if type(kind) not in (type, abc.ABCMeta):
        return f"its module's class is made by {type(kind).__name__}"
    makers = [base for base in kind.__mro__ if "__init_subclass__" in vars(base)]
    if not set(makers) <= {object, Generic}:
        return "its module's class has an __init_subclass__"
    return _reason_against_forward(kind.forward)


def _reason_against_forward(forward: Any) -> str:
    if forward is torch.nn.Module.forward:
        return "its module has no forward"
    if not isinstance(forward, types.FunctionType):
        return "its module's forward is no function"
    if hasattr(forward, "__wrapped__"):
        return "its module's forward is decorated"
    if len(forward.__kwdefaults__ or ()) < forward.__code__.co_kwonlyargcount:
        return "its module's forward has keyword arguments without a default"
    return ""


# --- the pattern --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Chain:
    """The node of a convolution or a norm and the links behind it, while they are found.

    A norm that is the first link is not the ``norm``, which stands behind a convolution.
    """

    first: fx.Node
    last: fx.Node
    norm: fx.Node | None = None
    add: fx.Node | None = None
    activation: fx.Node | None = None
    residual: fx.Node | None = None
    adds: str = ""
    name: str = ""  # of an activation that is a function
    own_activation: str = ""  # the path of one that the norm applies itself

    @property
    def links(self) -> list[fx.Node]:
        return [n for n in (self.first, self.norm, self.add, self.activation) if n is not None]

    def parts(self, root: torch.nn.Module) -> tuple[str, ...]:
        """Returns what is folded, as :class:`Site` has it."""

        def kind(node: fx.Node | None) -> str:
            return "" if node is None else type(root.get_submodule(str(node.target))).__name__

        adds = self.adds + _spread(self.residual)
        found = (kind(self.norm), adds, self.name or kind(self.activation))
        return tuple(filter(None, found))


def _spread(residual: fx.Node | None) -> str:
    """Returns how a residual [N, Co] is spread over pixels, if it is by an index."""
    if residual is None or residual.op != "call_function" or len(residual.args) != 2:
        return ""
    index = residual.args[1]
    if residual.target is not operator.getitem or not isinstance(index, tuple):
        return ""
    news = index[2:]
    if index[:2] != (slice(None),) * 2 or not news or any(new is not None for new in news):
        return ""
    return f"[:, :{', None' * len(news)}]"


def _fold(
    root: torch.nn.Module, graph: fx.Graph, convolutions: Set[str], reasons: dict[str, str]
) -> list[Site]:
    """Replaces the chains in a graph by single calls, and says why there is no chain.

    The last ones first: of two convolutions that are added, the later one takes the sum.
    """
    sites: list[Site] = []
    for first in reversed(_calls_of(graph, convolutions)):
        chain = _chain_from(root, first)
        reasons[str(first.target)] = _behind(root, first)
        if chain.first is not chain.last:
            _replace(graph, chain, len(sites))
            norm = "" if chain.norm is None else str(chain.norm.target)
            sites.append(Site(str(first.target), chain.parts(root), norm))
    return sites


def _fold_norms(
    root: torch.nn.Module, graph: fx.Graph, norms: Set[str], reasons: dict[str, str]
) -> list[Site]:
    """Does the same for norms, the last ones first, too: of two that are added."""
    sites: list[Site] = []
    for first in reversed(_calls_of(graph, norms)):
        chain = _chain_from_norm(root, first)
        reasons[str(first.target)] = _behind(root, first)
        if chain.first is not chain.last:
            _replace_norm(graph, chain)
            sites.append(Site(str(first.target), chain.parts(root)))
    return sites


def _calls_of(graph: fx.Graph, names: Set[str]) -> list[fx.Node]:
    """Returns the calls of modules whose only argument is one tensor."""
    return [
        node
        for node in graph.nodes
        if node.op == "call_module"
        and node.target in names
        and len(node.args) == 1
        and not node.kwargs
        and isinstance(node.args[0], fx.Node)
    ]


def _skip_identities(root: torch.nn.Module, graph: fx.Graph) -> tuple[str, ...]:
    """Takes ``nn.Identity`` modules out of a graph; returns their names."""
    skipped = []
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        module = root.get_submodule(str(node.target))
        if type(module) is torch.nn.Identity and not has_hooks(module):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            skipped.append(str(node.target))
    return tuple(skipped)


def _chain_from(root: torch.nn.Module, first: fx.Node) -> _Chain:
    chain = _Chain(first, first)
    node = _next(chain)
    if node is not None and _is_norm(root, node, root.get_submodule(str(first.target))):
        chain.norm = chain.last = node
        act = own_activation(root.get_submodule(str(node.target)))
        if not (act is None or type(act) is torch.nn.Identity):
            chain.own_activation = f"{node.target}.act"
            return chain if _is_quiet_between(root, chain) else _Chain(first, first)
        node = _next(chain)
    short = _Chain(first, chain.last, chain.norm)
    if node is not None and _take_sum(chain, node):
        node = _next(chain)
    if node is not None:
        _take_activation(root, chain, node)
    if _is_quiet_between(root, chain):
        return chain
    return short if _is_quiet_between(root, short) else _Chain(first, first)


def _chain_from_norm(root: torch.nn.Module, first: fx.Node) -> _Chain:
    chain = _Chain(first, first)
    node = _next(chain)
    if node is not None and _is_batch_norm(root, first) and _take_sum(chain, node):
        if _spread(chain.residual):
            return _Chain(first, first)
        node = _next(chain)
    short = _Chain(first, chain.last, None, chain.add, None, chain.residual, chain.adds)
    if node is not None:
        _take_activation(root, chain, node)
    if chain.adds and chain.activation is not None and _activation_name(root, chain) != "relu":
        chain = short
    if _is_quiet_between(root, chain):
        return chain
    return short if _is_quiet_between(root, short) else _Chain(first, first)


def _activation_name(root: torch.nn.Module, chain: _Chain) -> str | None:
    if chain.activation is None or chain.name:
        return chain.name
    return activation_of(root.get_submodule(str(chain.activation.target)))


def _behind(root: torch.nn.Module, node: fx.Node) -> str:
    """Returns a text about the use of a layer's output: why nothing is folded into it."""
    users = list(node.users)
    if len(users) != 1:
        return "nothing uses its output" if not users else "its output is used more than once"
    user = users[0]
    if user.op == "output":
        return "nothing is behind it in its module"
    if user.op == "call_module":
        return f"behind it: {type(root.get_submodule(str(user.target))).__name__}"
    if user.target in (convolve_folded, normalize):
        return _behind_folded(root, node, user)
    return f"behind it: {getattr(user.target, '__name__', user.target)}"


def _behind_folded(root: torch.nn.Module, node: fx.Node, user: fx.Node) -> str:
    """Returns the same where the user of the output is a chain that has become one call."""
    layer, x, residual = user.args[0], user.args[-3], user.args[-2]
    name = str(layer.target) if isinstance(layer, fx.Node) else ""
    if residual is not node:
        return f"behind it: {type(root.get_submodule(name)).__name__}"
    if x is node:
        return "its output is used more than once"
    return f"the sum behind it is folded into {name}"


def _next(chain: _Chain) -> fx.Node | None:
    """Returns the only user of a chain's last link."""
    users = list(chain.last.users)
    return users[0] if len(users) == 1 else None


def _is_norm(root: torch.nn.Module, node: fx.Node, convolution: Any) -> bool:
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return False
    norm: Any = root.get_submodule(str(node.target))
    return (
        is_foldable(norm, convolution.out_channels)
        and type(norm).__name__[-2:] == f"{len(convolution.kernel_size)}d"
        and all(type(t.data) is torch.Tensor for t in (*norm.parameters(), *norm.buffers()))
    )


def _take_sum(chain: _Chain, node: fx.Node) -> bool:
    """Makes a sum the next link, if it adds the chain's output and one other tensor."""
    is_sum = node.op == "call_function" and node.target in (operator.add, torch.add)
    in_place = node.op == "call_function" and node.target is operator.iadd
    if node.op == "call_method":
        is_sum, in_place = node.target == "add", node.target == "add_"
    if not (is_sum or in_place) or len(node.args) != 2 or node.kwargs:
        return False
    left, right = node.args
    if in_place and left is not chain.last:
        return False  # the sum would write to the other tensor
    residual = right if left is chain.last else left
    if not isinstance(residual, fx.Node) or residual is chain.last:
        return False
    chain.last = chain.add = node
    chain.residual, chain.adds = residual, "+=" if in_place else "+"
    return True


_FUNCTIONS: dict[Any, str] = {
    F.relu: "relu",
    F.relu_: "relu",
    torch.relu: "relu",
    torch.relu_: "relu",
    F.silu: "silu",
    F.tanh: "tanh",
    torch.tanh: "tanh",
    torch.tanh_: "tanh",
}
_METHODS = {"relu": "relu", "relu_": "relu", "tanh": "tanh", "tanh_": "tanh"}


def _take_activation(root: torch.nn.Module, chain: _Chain, node: fx.Node) -> None:
    if not node.args or node.args[0] is not chain.last:
        return
    if node.op == "call_module":
        module: Any = root.get_submodule(str(node.target))
        known = activation_of(module) is not None and not has_hooks(module)
        if not known or "forward" in module.__dict__ or len(node.args) != 1 or node.kwargs:
            return
    else:
        chain.name = _function_name(node)
        if not chain.name:
            return
    chain.last = chain.activation = node


def _function_name(node: fx.Node) -> str:
    """Returns the activation that a function or a method of a tensor is; empty if it is none."""
    # In-place or not makes no difference: nobody else sees the tensor.
    others = [name for name in node.kwargs if name != "inplace"]
    if node.op == "call_method":
        return "" if others or len(node.args) != 1 else _METHODS.get(str(node.target), "")
    if node.op != "call_function":
        return ""
    if node.target is F.gelu and len(node.args) == 1 and set(others) <= {"approximate"}:
        approximate = node.kwargs.get("approximate", "none")
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(str(approximate), "")
    if others or len(node.args) > 2:
        return ""
    return _FUNCTIONS.get(node.target, "")


# --- what stands between ------------------------------------------------------------------------

_HARMLESS = {
    operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.getitem,
    getattr, torch.add, torch.mul, torch.cat, torch.relu, torch.sigmoid, torch.tanh, torch.flatten,
    F.avg_pool2d, F.max_pool2d, F.adaptive_avg_pool2d, F.interpolate, F.pad, F.gelu,
    convolve_folded, normalize,
}  # fmt: skip

_FRESH = (
    torch.nn.modules.conv._ConvNd,
    torch.nn.modules.pooling._MaxPoolNd,
    torch.nn.modules.pooling._AvgPoolNd,
    torch.nn.modules.pooling._AdaptiveAvgPoolNd,
    torch.nn.modules.pooling._AdaptiveMaxPoolNd,
    torch.nn.modules.batchnorm._BatchNorm,
    torch.nn.GroupNorm,
    torch.nn.modules.instancenorm._InstanceNorm,
    torch.nn.LayerNorm,
    torch.nn.Linear,
    torch.nn.Upsample,
)


def _is_quiet_between(root: torch.nn.Module, chain: _Chain) -> bool:
    """Tells whether nothing between a chain's first and last link writes to a tensor."""
    links, node = chain.links, chain.first
    norms = {link.target for link in links if _is_batch_norm(root, link)}
    while node is not chain.last:
        node = node.next
        if node in links:
            continue
        if not _is_quiet(root, node):
            return False
        if node.op in ("call_module", "get_attr") and node.target in norms:
            return False
    return True


def _is_batch_norm(root: torch.nn.Module, node: fx.Node) -> bool:
    """Tells whether a step is a norm that counts its calls."""
    return node.op == "call_module" and isinstance(
        root.get_submodule(str(node.target)), torch.nn.modules.batchnorm._BatchNorm
    )


def _is_quiet(root: torch.nn.Module, node: fx.Node) -> bool:
    if node.op in ("placeholder", "get_attr"):
        return True
    if node.op == "call_function":
        return node.target in _HARMLESS and "out" not in node.kwargs
    if node.op == "call_method":
        return not str(node.target).endswith("_")
    return node.op == "call_module" and _leaves_input(root.get_submodule(str(node.target)))


def _leaves_input(module: Any) -> bool:
    """Tells whether a module surely does not write to what it is given."""
    if has_hooks(module) or "forward" in module.__dict__:
        return False
    if isinstance(module, torch.nn.Sequential):
        for child in module:
            if not _leaves_input(child):
                return False
            if not isinstance(child, (torch.nn.Identity, torch.nn.Sequential)):
                return True  # what follows is given a new tensor
        return True
    if type(module).__module__.startswith(("torch.nn.", "triton_ext.nn.")):
        if isinstance(module, (*_FRESH, torch.nn.Identity)):
            return True
        return activation_of(module) is not None and not getattr(module, "inplace", False)
    return False


# --- the replacement ----------------------------------------------------------------------------


def _module(graph: fx.Graph, node: fx.Node | None) -> fx.Node | None:
    return None if node is None else graph.create_node("get_attr", str(node.target))


def _replace(graph: fx.Graph, chain: _Chain, index: int) -> None:
    with graph.inserting_before(chain.last):
        folds = graph.create_node("get_attr", FOLDS)
        fold = graph.call_function(operator.getitem, (folds, index))
        activation = chain.name or _module(graph, chain.activation)
        if chain.own_activation:
            activation = graph.create_node("get_attr", chain.own_activation)
        arguments = (_module(graph, chain.first), _module(graph, chain.norm), activation, fold)
        node = graph.call_function(
            convolve_folded, (*arguments, chain.first.args[0], chain.residual, chain.adds)
        )
    _put(graph, chain, node)


def _replace_norm(graph: fx.Graph, chain: _Chain) -> None:
    with graph.inserting_before(chain.last):
        activation = chain.name or _module(graph, chain.activation)
        arguments = (_module(graph, chain.first), activation, chain.first.args[0])
        node = graph.call_function(normalize, (*arguments, chain.residual, chain.adds))
    _put(graph, chain, node)


def _put(graph: fx.Graph, chain: _Chain, node: fx.Node) -> None:
    """Puts one call in the place of a chain."""
    chain.last.replace_all_uses_with(node)
    for link in reversed(chain.links):
        graph.erase_node(link)
