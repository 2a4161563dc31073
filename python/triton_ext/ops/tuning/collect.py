"""Records the convolutions of a model, torch's own and ours, while it runs on fake tensors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from triton_ext.ops.api.checks import kind_of
from triton_ext.ops.api.operators import OPERATORS, Operator
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.core.planner import refusals_on
from triton_ext.ops.core.problem import ConvParameters, ConvProblem, numbers

__all__ = ["Calls", "check_inputs", "collect", "parse_shape", "record"]


@dataclass(slots=True)
class Calls:
    """Recorded convolutions; it iterates over those that can be tuned.

    Attributes:
        cases: Those that a kernel of ours takes, each once, in the order of the first calls.
        refused: The others, and why not.
    """

    cases: list[Case] = field(default_factory=list)
    refused: dict[Case, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Case]:
        return iter(self.cases)

    def add(self, case: Case) -> None:
        """Adds a case."""
        if case in self.refused or case in self.cases or not case.problem.batch:
            return
        meta = torch.device("meta")
        found = tuple(map(str, refusals_on(case, meta)))
        if case.epilogue.function is not None:
            found = ("functions of the user's are not tuned",)
        if found:
            self.refused[case] = "; ".join(found)
        else:
            self.cases.append(case)

    def in_dtype(self, dtype: torch.dtype) -> Calls:
        """Returns the same calls on operands of another dtype."""
        calls = Calls()
        for case in (*self.cases, *self.refused):
            out = case.epilogue.out_dtype
            epilogue = replace(case.epilogue, out_dtype=None if out == case.dtype else out)
            calls.add(replace(case, dtype=dtype, epilogue=epilogue, out_dtype=None))
        return calls


class _Recorder(TorchDispatchMode):
    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = _READERS.get(str(func))
        if read is not None and not kwargs:
            for case in read(*args):
                self._calls.add(case)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def record() -> Iterator[Calls]:
    """Within, convolutions that this thread and its backward call are recorded.

    Compiled parts of a model call no operators; ``warmup_steps`` sees them, too, because it looks
    at the plans that are made.
    """
    calls = Calls()
    with _Recorder(calls):
        yield calls


def _shape(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


# ---- Readers of operators' calls ----------------------------------------------------------------


def _torch_problem(
    x_shape: Sequence[Any],
    weight: torch.Tensor,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: int,
) -> ConvProblem:
    """Returns the problem of a call of torch's; for a transposed one, the problem of its dgrad."""
    size, taps = _shape(x_shape), _shape(weight.shape[2:])
    given = (_shape(stride), _shape(padding), _shape(dilation), groups)
    parameters = ConvParameters.parse(given, taps)
    if transposed:
        extra = numbers("output_padding", _shape(output_padding), len(taps))
        pixels = parameters.transposed_size(size[2:], taps, extra)
        size = (size[0], int(weight.shape[1]) * groups, *pixels)
    return parameters.problem(size, _shape(weight.shape))


def _read_convolution(x: Any, weight: Any, bias: Any, *arguments: Any) -> Iterator[Case]:
    problem, transposed = _torch_problem(x.shape, weight, *arguments), arguments[3]
    epilogue = PLAIN if bias is None or transposed else EpilogueSpec(bias=True)
    direction: Direction = "dgrad" if transposed else "fprop"
    yield Case(direction=direction, problem=problem, dtype=x.dtype, epilogue=epilogue)


def _read_backward(grad: Any, x: Any, weight: Any, _: Any, *rest: Any) -> Iterator[Case]:
    *arguments, wanted = rest
    problem, transposed = _torch_problem(x.shape, weight, *arguments), arguments[3]
    if wanted[0]:
        direction: Direction = "fprop" if transposed else "dgrad"
        yield Case(direction=direction, problem=problem, dtype=grad.dtype)
    if wanted[1]:
        yield Case(direction="wgrad", problem=problem, dtype=x.dtype)


def _reader(operator: Operator) -> Callable[..., Iterator[Case]]:
    def read(*arguments: Any) -> Iterator[Case]:
        call = operator.call(arguments)
        if call.epilogue.function is None:
            yield call.case().dense

    return read


_READERS: dict[str, Callable[..., Iterator[Case]]] = {
    "aten.convolution.default": _read_convolution,
    "aten.convolution_backward.default": _read_backward,
    **{
        f"triton_ext.{name}.default": _reader(operator)
        for operator in OPERATORS
        for name in (operator.name, operator.differentiable)
        if name
    },
}


# ---- A model's calls ----------------------------------------------------------------------------


def collect(
    model: torch.nn.Module,
    example_inputs: torch.Tensor | Sequence[Any] | Mapping[str, Any],
    *,
    training: bool = False,
    fake: bool = True,
) -> Calls:
    """Returns the convolutions of a model's forward, and of its backward.

    Args:
        model: Any module; its parameters, gradients and buffers are left as they are.
        example_inputs: Its positional arguments, or its only one, or its keyword arguments.
        training: Whether to run the backward, too, of the sum of all that it returns.
        fake: Whether to compute nothing and take no memory; not every model can be run so.

    Raises:
        TypeError: ``model`` is no module, or ``example_inputs`` are none.
    """
    check_inputs("collect", model, example_inputs)
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    named = isinstance(example_inputs, Mapping)
    arguments: Any = () if named else tuple(example_inputs)
    keywords: Any = dict(example_inputs) if named else {}
    training = bool(training)
    if not fake:
        with _unchanged(model, example_inputs), record() as calls, torch.set_grad_enabled(training):
            _backward(model(*arguments, **keywords), training)
        return calls
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def faked(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return mode.from_tensor(value.detach()).requires_grad_(value.requires_grad)

    tensors = dict(model.named_parameters(remove_duplicate=False))
    tensors |= dict(model.named_buffers(remove_duplicate=False))
    state = {name: faked(tensor) for name, tensor in tensors.items()}
    arguments, keywords = tree_map(faked, (arguments, keywords))
    with mode, record() as calls, torch.set_grad_enabled(training):
        output = torch.func.functional_call(model, state, arguments, keywords, tie_weights=True)
        _backward(output, training)
    return calls


def check_inputs(name: str, model: object, example_inputs: object) -> None:
    """Raises TypeError where a model is no module, or inputs are none that it is called with.

    Args:
        name: The function or file that has them, for the error.
        model: A module.
        example_inputs: As for :func:`collect`.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"{name}: expected a torch.nn.Module, got {type(model).__name__}; record() records "
            "what any function calls"
        )
    is_inputs = isinstance(example_inputs, (torch.Tensor, Sequence, Mapping))
    if not is_inputs or isinstance(example_inputs, (str, bytes)):
        raise TypeError(
            f"{name}: example_inputs must be a tensor, a sequence of arguments or a mapping of "
            f"keyword arguments, got {kind_of(example_inputs)}"
        )
    for leaf in tree_leaves(example_inputs):
        if kind_of(leaf) != type(leaf).__name__:
            raise TypeError(f"{name}: example_inputs hold {kind_of(leaf)}")


@contextlib.contextmanager
def _unchanged(model: torch.nn.Module, inputs: Any) -> Iterator[None]:
    """Restores the state that a run for real changes, also where it fails.

    That is gradients, the model's buffers (statistics of batch norms, counters) and torch's
    generators, from which dropout draws.  Parameters are not: what the user's hooks do to them,
    such as an optimizer's step during the backward, stays.
    """
    tensors = [*model.parameters(), *tree_leaves(inputs)]
    leaves = [each for each in tensors if isinstance(each, torch.Tensor) and each.is_leaf]
    grads = [(leaf, leaf.grad) for leaf in leaves]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    # Lazy modules have nothing to put back before their first run.
    values = [
        (buffer, buffer.detach().clone())
        for buffer in model.buffers()
        if not (buffer.is_meta or is_lazy(buffer))
    ]
    devices = {leaf.device.index for leaf in leaves if leaf.device.type == "cuda"}
    for leaf in leaves:
        # Or the gradients of the run would be added to the user's.
        leaf.grad = None
    try:
        with torch.random.fork_rng(sorted(devices)):
            yield
    finally:
        for leaf, grad in grads:
            leaf.grad = grad
        for module, before in buffers:
            if isinstance(module, torch.jit.ScriptModule):
                # Its dictionary is a view of the compiled module; none are added there.
                for name, tensor in before.items():
                    setattr(module, name, tensor)
            else:
                module._buffers.clear()
                module._buffers.update(before)
        for buffer, value in values:
            # Through data, which counts no version: a graph of the user's may hold the buffer.
            if buffer.shape != value.shape:
                buffer.data = value
            elif not torch.equal(buffer, value):
                buffer.data.copy_(value)


def _backward(output: Any, training: bool) -> None:
    if not training:
        return
    # A class of outputs that torch does not know, such as a library's, often is a mapping.
    leaves = tree_leaves(dict(output) if isinstance(output, Mapping) else output)
    sums = [
        leaf.sum(dtype=torch.float32)
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if sums:
        torch.stack(sums).sum().backward()


_N = r"[1-9]\d*"
_SHAPE = re.compile(
    rf"(?P<x>{_N}(?:x{_N}){{2,4}})_(?P<co>{_N})_k(?P<k>{_N}(?:x{_N})*)"
    rf"(?:_s(?P<s>{_N}(?:x{_N})*))?(?:_d(?P<d>{_N}(?:x{_N})*))?"
    rf"(?:_p(?P<p>\d+(?:-\d+)?(?:x\d+(?:-\d+)?)*))?(?:_g(?P<g>{_N}))?"
)


def parse_shape(text: str) -> ConvProblem:
    """Returns the problem that a text such as ``"32x64x56x56_128_k3x3_s2x2"`` names.

    Batch, Ci and input size; Co; the filter ``k``; then, where they differ from the usual: stride
    ``s``, dilation ``d``, padding ``p`` (half the filter is usual; ``p1-2`` is 1 in front, 2
    behind), groups ``g``.

    Raises:
        TypeError: It is no text.
        ValueError: It is not of this form, or a number is out of range.
    """
    if not isinstance(text, str):
        raise TypeError(f"shape: expected a text, got {type(text).__name__}")
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"shape '{text}': expected NxCixSIZE_Co_kTAPS[_sSTRIDE][_dDILATION][_pPADDING]"
            "[_gGROUPS], such as 32x64x56x56_128_k3x3_s2x2, of numbers from 1"
        )
    shape = tuple(map(int, match["x"].split("x")))
    ci, co, dims, groups = shape[1], int(match["co"]), len(shape) - 2, int(match["g"] or 1)
    if ci % groups or co % groups:
        raise ValueError(
            f"shape '{text}': g{groups} must divide both {ci} input channels and {co} output "
            "channels"
        )

    def each(name: str, parse: Callable[[str], Any] = int) -> tuple[Any, ...]:
        values = tuple(map(parse, (match[name] or "1").split("x")))
        if len(values) not in (1, dims):
            raise ValueError(f"shape '{text}': {name} has {len(values)} numbers, expected {dims}")
        return values if len(values) == dims else values * dims

    taps, stride, dilation = each("k"), each("s"), each("d")
    padding: Sequence[tuple[int, int]] = [
        (d * (k // 2),) * 2 for k, d in zip(taps, dilation, strict=True)
    ]
    if match["p"]:
        padding = each("p", _low_and_high)
    sides = tuple(side for pair in padding for side in pair)
    parameters = ConvParameters(stride, sides, dilation, groups)
    return parameters.problem(shape, (co, ci // groups, *taps))


def _low_and_high(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    return int(low), int(high or low)
