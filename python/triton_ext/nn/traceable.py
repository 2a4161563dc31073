"""Decides whether one recorded forward represents every call.

torch.fx runs a forward with proxies for its inputs and records the operations on them.  What it
cannot record it either refuses, or, which is worse, executes once and forgets: assignments to
attributes, ``with`` blocks, queries of types, modes of torch, random numbers.  A deny list would
never be complete, so :func:`read_forward` uses an allow list: every name in the code must lead to
something whose calls are recorded or have the same result each time:

- functions with ``__torch_function__``, which proxies intercept, and methods and attributes of
  tensors that do not depend on gradients, types or memory;
- ``operator``, ``math`` and built-in functions of values alone;
- constants, modules, parameters and buffers;
- functions in Python, of the forward's own or anybody else's, that were read in the same way;
- attributes of modules that can be compared at every call, and tuples of all these.

A value computed by code that was read is safe to call, because all its roots were.  An attribute of
such a value is allowed by its name alone.

Safe direction: a forward that would be recorded correctly may be refused.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import inspect
import math
import numbers
import operator
import types
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import get_overridable_functions
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

__all__ = ["Frozen", "Reading", "differs", "likeness", "read_forward"]


@dataclass(slots=True)
class Reading:
    """The names that a forward and its callees use.

    Attributes:
        hazard: The first thing that cannot be recorded; empty if nothing is found.
        attributes: By path of a module and name, values that are compared at every call.
        tensors: By path of a module and name, existing parameters and buffers.
        containers: The paths of lists, dicts and sequences of modules that it names.
        functions: Names of its class's functions and properties.
        has_checkpoints: Whether it may call torch.utils.checkpoint.
    """

    hazard: str = ""
    attributes: dict[tuple[str, str], Any] = field(default_factory=dict)
    tensors: set[tuple[str, str]] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    has_checkpoints: bool = False


def read_forward(module: torch.nn.Module) -> Reading:
    """Reads the code of a module's forward and of all that it calls."""
    reader = _Reader(module)
    try:
        reader.read_function(type(module).forward, module)
    except _Unknown as unknown:
        reader.found.hazard = f"{unknown.where} {unknown}"
    except RecursionError:  # a list may be a part of itself
        reader.found.hazard = f"{type(module).__qualname__}.forward reads what is nested too deeply"
    return reader.found


@dataclass(frozen=True, slots=True)
class Frozen:
    """The state of a list or a dict when a forward was recorded.

    Attributes:
        likeness: The result of :func:`likeness`.
    """

    likeness: Any


def differs(value: object, recorded: object) -> bool:
    """Tells whether an attribute is another one than when a forward was recorded."""
    if value is recorded:
        return False
    if type(recorded) is Frozen:
        return likeness(value) != recorded.likeness
    if type(value) is not type(recorded):
        return True
    if type(value) in _EXACT:
        return value != recorded
    return likeness(value) != likeness(recorded)


_EXACT = (int, bool, str)


def likeness(value: object) -> tuple[type, Any]:
    """Returns a key that is equal for indistinguishable values; 1 and True have different keys.

    So have 0.0 and -0.0.

    Types come first, so a value of another type than the recorded one is never asked whether it is
    equal, which tensors do not answer.
    """
    kind = type(value)
    if isinstance(value, (tuple, list)):
        return kind, tuple([likeness(part) for part in value])
    if isinstance(value, dict):
        return kind, tuple([(likeness(k), likeness(part)) for k, part in value.items()])
    if isinstance(value, frozenset):
        return kind, frozenset([likeness(part) for part in value])
    if isinstance(value, float):  # two nan are alike; torch.compile knows no repr of them
        return kind, (value if value == value else "nan", math.copysign(1.0, value))
    if kind not in _EXACT and isinstance(value, numbers.Number):
        return kind, repr(value)
    return kind, value


class _Unknown(Exception):
    """Something that is not known to be recorded.

    Attributes:
        where: The name of the function that has it.
    """

    where = ""


# --- what is known ------------------------------------------------------------------------------

_OPERATIONS = {
    "STORE_ATTR": "assigns to an attribute",
    "DELETE_ATTR": "deletes an attribute",
    "STORE_GLOBAL": "assigns to a global name",
    "STORE_SUBSCR": "assigns to an element",
    "STORE_SLICE": "assigns to elements",
    "DELETE_SUBSCR": "deletes an element",
    "BEFORE_WITH": "has a with block",
    "SETUP_WITH": "has a with block",
    "LOAD_SPECIAL": "has a with block",
    "SETUP_FINALLY": "catches exceptions",
    "PUSH_EXC_INFO": "catches exceptions",
    "YIELD_VALUE": "yields",
    "MATCH_CLASS": "asks for types (match)",
    "MATCH_MAPPING": "asks for types (match)",
    "MATCH_SEQUENCE": "asks for types (match)",
    "MATCH_KEYS": "asks for types (match)",
    "IMPORT_NAME": "imports",
    "LOAD_BUILD_CLASS": "makes a class",
}

_BUILTINS: tuple[Any, ...] = (
    *(abs, all, any, bool, dict, divmod, enumerate, float, int, len, list, max, min, pow, range),
    *(reversed, round, slice, sorted, sum, super, tuple, zip),
)

# They ask for identity or types, write, or take names of attributes.
_NOT_PLAIN = {
    *("attrgetter", "methodcaller", "is_", "is_not", "is_none", "is_not_none"),
    *("setitem", "delitem", "call"),
}

# Those of torch.nn.functional that torch.overrides does not list, because they call others.
_CALLING_OTHERS = (F.sigmoid, F.tanh, F.hardsigmoid, F.hardswish, F.relu_, F.elu_, F.leaky_relu_)

# They are called while a forward is recorded, but not by its record.
_CHECKPOINTS = (checkpoint, checkpoint_sequential)

_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)

# Methods that return the children of a container.
_OF_CONTAINERS = ("items", "keys", "values")

_TENSOR_ATTRIBUTES = {
    *("shape", "dtype", "device", "ndim", "layout", "T", "mT", "real", "imag", "stride"),
    *("unflatten", "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"),
    "requires_grad",  # it is recorded, and there is no record of a forward that branches on it
}
_ABOUT_TENSORS = ("_", "is_", "get_", "grad", "requires_", "retain", "register_", "data", "storage")


@functools.cache
def _known_functions() -> dict[int, Any]:
    """Returns functions whose calls are recorded or give the same each time, by address."""
    known = [f for listed in get_overridable_functions().values() for f in listed]
    known += (*_BUILTINS, *_CALLING_OTHERS, torch.jit.is_scripting, torch._assert)
    known += _CHECKPOINTS
    known += (f for name, f in vars(math).items() if not name.startswith("_") and callable(f))
    known += (getattr(operator, name) for name in set(operator.__all__) - _NOT_PLAIN)
    return {id(f): f for f in known}


@functools.cache
def _tensor_names() -> set[str]:
    """Returns the names of what may be asked of a tensor, because stand-ins record it."""
    methods = {f.__name__ for f in get_overridable_functions()[torch.Tensor]}
    methods = {name for name in methods if name in dir(torch.Tensor)}
    return {n for n in methods if not n.startswith(_ABOUT_TENSORS)} | _TENSOR_ATTRIBUTES


def _is_constant(value: object) -> bool:
    """Tells whether a value stays what it is, and can be compared."""
    if type(value) in (tuple, torch.Size, frozenset):  # a record has none of another class
        return all(map(_is_constant, value))  # type: ignore[call-overload]
    return value is None or value is Ellipsis or _is_hashable_constant(value)


def _is_hashable_constant(value: object) -> bool:
    kind = type(value)
    if isinstance(value, enum.Enum):
        return kind.__eq__ in _PLAIN_EQUALITY and kind.__hash__ is not None
    # Subclasses may be equal, or print, as they like.
    return kind in _CONSTANTS or (
        isinstance(value, numbers.Number) and kind.__module__ in _OF_NUMBERS
    )


def _leaves(value: object) -> Iterator[object]:
    """Yields the parts of tuples, lists and dicts, nested ones included."""
    kind = type(value)
    if kind in (tuple, torch.Size, list):
        for part in value:
            yield from _leaves(part)
    elif kind in (dict, OrderedDict):
        yield from _leaves((*value.keys(), *value.values()))
    else:
        yield value


def _is_mutable(value: object) -> bool:
    """Tells whether a value is a list or a dict or has one."""
    if isinstance(value, tuple):
        return any(map(_is_mutable, value))
    return isinstance(value, (list, dict))


_CONSTANTS = {
    *(int, float, bool, complex, str, bytes),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
}
_OF_NUMBERS = {"numpy", "decimal", "fractions"}
_PLAIN_EQUALITY = {kind.__eq__ for kind in (object, int, float, str)}


def _is_torchs(function: types.FunctionType) -> bool:
    # Not by __module__, which decorators copy.
    return str(function.__globals__.get("__name__")).split(".")[0] == "torch"


# --- what code reads ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Chain:
    """A name and the attributes behind it: ``torch.nn.functional.relu``.

    Attributes:
        kind: ``global``, ``cell``, ``local`` or ``super``; empty if it begins with a value.
        name: Name of the variable, or empty.
        attributes: Their names, the first one first.
    """

    kind: str
    name: str
    attributes: list[str] = field(default_factory=list)


_QUIET = {"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL"}
_LOADS = {
    "LOAD_GLOBAL": "global",
    "LOAD_NAME": "global",
    "LOAD_DEREF": "cell",
    "LOAD_CLASSDEREF": "cell",
}


def _chains(code: types.CodeType) -> Iterator[_Chain]:
    """Returns what code reads, one after another."""
    chain: _Chain | None = None
    instructions = [each for each in dis.get_instructions(code) if each.opname not in _QUIET]
    skipped = 0
    for index, instruction in enumerate(instructions):
        name = instruction.opname
        if skipped:
            skipped -= 1
            continue
        if name == "LOAD_GLOBAL" and instruction.argval == "getattr":
            found, skipped = _asked(instructions[index + 1 : index + 5])
            if found is not None:
                if chain is not None:
                    yield chain
                chain = found
                continue
        if name in ("LOAD_ATTR", "LOAD_METHOD"):
            # A jump target also gets values from elsewhere.
            if chain is not None and instruction.is_jump_target:
                yield chain
                chain = None
            chain = chain or _Chain("", "")
            chain.attributes.append(instruction.argval)
            continue
        is_super = name in ("CALL", "CALL_FUNCTION") and chain == _Chain("global", "super")
        if chain is not None:
            yield chain
        chain = _Chain("super", "") if is_super else _begun(name, instruction.argval)
    if chain is not None:
        yield chain


def _asked(behind: list[dis.Instruction]) -> tuple[_Chain | None, int]:
    """Returns the attribute that ``getattr(x, "name")`` or ``getattr(x, "name", default)`` reads.

    Args:
        behind: The instructions behind the one that loads ``getattr``.

    Returns:
        The chain and how many instructions it takes; ``None`` and 0 where it is another call.
    """
    if not behind or not behind[0].opname.startswith("LOAD_FAST"):
        return None, 0
    variable, names = behind[0], list[object]()
    for number, each in enumerate(behind[1:]):
        if each.opname in ("CALL", "CALL_FUNCTION"):
            name = names[0] if names else None
            if not isinstance(name, str) or isinstance(variable.argval, tuple):
                break
            return _Chain("local", variable.argval, [name]), number + 2
        if each.opname != "LOAD_CONST" or each.is_jump_target:
            break
        names.append(each.argval)
    return None, 0


def _begun(operation: str, value: Any) -> _Chain | None:
    """Returns the chain that begins with an instruction, if one does."""
    if operation == "LOAD_SUPER_ATTR":  # since Python 3.12
        return _Chain("super", "", [value])
    if operation in _LOADS:
        return _Chain(_LOADS[operation], value)
    if "LOAD_FAST" in operation:  # of one variable or, since Python 3.13, of two
        return _Chain("local", value[-1] if isinstance(value, tuple) else value)
    return None


def _first_name(function: types.FunctionType) -> str:
    """Returns the name of a function's first argument; empty if it has none."""
    code = function.__code__
    return code.co_varnames[0] if code.co_argcount else ""


def _refuse_operations(code: types.CodeType, owner: str) -> None:
    """Raises for operations that are never recorded, whatever their operands.

    Args:
        code: The code of a function, or of a function within it.
        owner: The name of the module whose method it is, or empty.
    """
    # Generator expressions and comprehensions yield to nobody else.
    allowed = {"YIELD_VALUE"} if code.co_name.startswith("<") else set()
    before: object = ""
    for instruction in dis.get_instructions(code):
        name, value = instruction.opname, instruction.argval
        if name in _OPERATIONS and name not in allowed:
            raise _Unknown(_OPERATIONS[name])
        if name == "STORE_DEREF" and value in code.co_freevars:
            raise _Unknown(f"assigns to a variable of an outer function ({value})")
        stored = value if isinstance(value, tuple) else (value,)  # of two variables: Python 3.13
        if name.startswith(("STORE_FAST", "STORE_DEREF")) and owner in stored:
            raise _Unknown(f"assigns to {owner}")
        # Each input has a stand-in of its own, also where they are the same tensor.
        if name == "IS_OP" and before is not None:
            raise _Unknown("asks whether two things are the same (is)")
        before = value if name == "LOAD_CONST" else ""


# --- what it leads to ---------------------------------------------------------------------------

_ANY: Any = object()  # a value of code that was read
_NONE_SUCH: Any = object()


class _Reader:
    """Follows every name in a forward and in what it calls."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.found = Reading()
        self._root = module
        self._paths = {id(child): path for path, child in module.named_modules()}
        # Addresses of functions, and whether as methods.
        self._seen: set[tuple[int, bool]] = set()

    def read_function(self, function: Any, owner: torch.nn.Module | None = None) -> None:
        """Reads a function of Python.

        Args:
            function: It.
            owner: The module that is its first argument; None if that is anything.
        """
        if (id(function), owner is not None) in self._seen:
            return
        self._seen.add((id(function), owner is not None))
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        try:
            for default in defaults:
                self._judge("a default value", default)
            self._read_code(function, function.__code__, owner)
        except _Unknown as unknown:
            unknown.where = unknown.where or function.__qualname__
            raise

    def _read_code(
        self, function: types.FunctionType, code: types.CodeType, owner: torch.nn.Module | None
    ) -> None:
        first = "" if owner is None else _first_name(function)
        _refuse_operations(code, first)
        for chain in _chains(code):
            self._follow(chain, self._root_of(chain, function, code, owner), owner)
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self._read_code(function, inner, owner)

    def _root_of(
        self,
        chain: _Chain,
        function: types.FunctionType,
        code: types.CodeType,
        owner: torch.nn.Module | None,
    ) -> Any:
        """Returns the value of the variable that a chain begins with."""
        if chain.kind == "global":
            known = function.__globals__.get(chain.name, _NONE_SUCH)
            known = vars(builtins).get(chain.name, known) if known is _NONE_SUCH else known
            if known is _NONE_SUCH:
                raise _Unknown(f"uses {chain.name}, which is not there")
            return known
        own = function.__code__
        if chain.kind == "cell" and chain.name in own.co_freevars:
            return _content(function, chain.name)
        is_outer = code is own or chain.name in code.co_freevars
        is_owner = owner is not None and is_outer and chain.name == _first_name(function)
        return owner if is_owner else _ANY

    def _follow(self, chain: _Chain, value: Any, owner: torch.nn.Module | None) -> None:
        text, attributes = chain.name, chain.attributes
        if chain.kind == "super" and attributes:
            self._read_definitions(attributes[0], owner)
            attributes = attributes[1:]
        for name in attributes:
            value = self._attribute(text, value, name)
            text = f"{text}.{name}"
        self._judge(text, value)

    def _attribute(self, text: str, value: Any, name: str) -> Any:
        if value is _ANY or _is_constant(value):
            return self._of_anything(name)
        if isinstance(value, torch.nn.Module):
            return self._of_module(value, name)
        if isinstance(value, (types.ModuleType, type)):
            found = inspect.getattr_static(value, name, _NONE_SUCH)
            if isinstance(found, staticmethod):
                return found.__func__
            if found is _NONE_SUCH and isinstance(value, types.ModuleType):
                found = getattr(value, name, _NONE_SUCH)
            if found is not _NONE_SUCH:
                return found
        raise _Unknown(f"uses {text}.{name}, which is not known to be recorded")

    def _of_anything(self, name: str) -> Any:
        """Decides about an attribute of a value about which nothing is known."""
        if name in _tensor_names() or name in _OF_CONTAINERS:
            # The value may be a module that was passed on.
            for module in self._root.modules():
                if any(name in x for x in (vars(module), module._parameters, module._buffers)):
                    self._of_module(module, name)
            return _ANY
        raise _Unknown(f"reads the attribute {name} of an unknown value")

    def _read_definitions(self, name: str, owner: torch.nn.Module | None) -> None:
        """Reads every definition of a method along the bases: ``super()`` may reach any of them."""
        if owner is None:
            raise _Unknown(f"uses super().{name} outside of a method")
        for base in type(owner).__mro__:
            if name in vars(base) and base is not torch.nn.Module:
                self._judge_method(f"super().{name}", vars(base)[name], owner)

    def _of_module(self, module: torch.nn.Module, name: str) -> Any:
        """Returns a module's attribute, and notes it if it may change later."""
        path = self._paths.get(id(module))
        if path is None:
            raise _Unknown(f"uses a module that is not its own for {name}")
        state = vars(module)
        if name in state:
            value = state[name]
            self.found.attributes[path, name] = self._recorded(name, value)
            return _ANY
        if name in module._modules:
            return self._child(module, path, name)
        for listed in (module._parameters, module._buffers):
            if name in listed:
                if listed[name] is None:
                    self.found.attributes[path, name] = None
                else:
                    self.found.tensors.add((path, name))
                return _ANY
        return self._of_class(module, path, name)

    def _child(self, module: torch.nn.Module, path: str, name: str) -> Any:
        child = module._modules[name]
        if child is None:
            self.found.attributes[path, name] = None
            return _ANY
        self._note_containers(child, f"{path}.{name}" if path else name)
        return child

    def _note_containers(self, module: torch.nn.Module, path: str) -> None:
        """Notes containers of modules, which a forward may iterate or take the length of."""
        if isinstance(module, _CONTAINERS):
            self.found.containers.add(path)
            for name, child in module.named_children():
                self._note_containers(child, f"{path}.{name}")

    def _of_class(self, module: torch.nn.Module, path: str, name: str) -> Any:
        found = inspect.getattr_static(type(module), name, _NONE_SUCH)
        if name in _OF_CONTAINERS and found is getattr(torch.nn.ModuleDict, name):
            return _ANY
        function = found.fget if isinstance(found, property) else found
        if isinstance(found, staticmethod):
            self._judge(name, found.__func__)
        elif isinstance(function, types.FunctionType) and not path:
            self._judge_method(name, function, module)
        else:
            if _is_function(function):  # of another module, or bound to this one
                raise _Unknown(f"uses {path or 'self'}.{name}, which is not known to be recorded")
            self.found.attributes[path, name] = self._recorded(name, found)
            return _ANY
        if not path:
            self.found.functions.add(name)
        return _ANY

    def _recorded(self, name: str, value: Any) -> Any:
        """Returns the value that an attribute is compared with at every call."""
        for part in _leaves(value):
            if part is _NONE_SUCH:
                raise _Unknown(f"reads the attribute {name}, which is not there")
            if not _is_constant(part) and not _is_function(part):
                inside = "" if part is value else f"a {type(value).__name__} with "
                raise _Unknown(f"reads the attribute {name}, {inside}a {type(part).__name__}")
            self._judge(name, part)
        return Frozen(likeness(value)) if _is_mutable(value) else value

    def _judge_method(self, name: str, function: Any, owner: torch.nn.Module) -> None:
        if not isinstance(function, types.FunctionType) or (
            _is_torchs(function) and function is not torch.nn.Sequential.forward
        ):
            raise _Unknown(f"uses {name}, which is not known to be recorded")
        if not _is_torchs(function):
            self.read_function(function, owner)

    def _judge(self, text: str, value: Any) -> None:
        """Raises if a value is none that may be used and called."""
        if value is _ANY or isinstance(value, torch.nn.Module) or _is_constant(value):
            return
        if id(value) in _known_functions() or _is_exception(value):
            self.found.has_checkpoints |= value in _CHECKPOINTS
            return
        if isinstance(value, types.FunctionType) and not _is_torchs(value):
            self.read_function(value)
        elif isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self._judge(text, part)
        elif type(value) is tuple:
            for part in value:
                self._judge(text, part)
        elif type(value) in (list, set, dict):
            raise _Unknown(f"uses {text}, a {type(value).__name__}, which may change")
        elif isinstance(value, type) and issubclass(value, torch.nn.Module):
            raise _Unknown(f"uses {text}, a class of modules, as in super({text}, self)")
        else:
            raise _Unknown(f"uses {text}, which is not known to be recorded")


def _content(function: types.FunctionType, name: str) -> Any:
    """Returns what a function has from around it by a name."""
    cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
    if name == "__class__":  # for super()
        return _ANY
    try:
        return cell.cell_contents
    except ValueError:
        raise _Unknown(f"uses {name}, which is not there yet") from None


def _is_function(value: object) -> bool:
    kinds = (types.FunctionType, types.BuiltinFunctionType, functools.partial)
    return isinstance(value, kinds)


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)
