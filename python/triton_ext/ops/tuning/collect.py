"""Collects the convolutions to tune: of a model, of a text, or of a job's first steps.

A model, with torch's convolutions or ours, runs on fake tensors.  In a job, plans are observed as
eager code, backwards and compiled graphs make them.  At a step's end the ranks gather the cases
that no table has, rank 0 measures them, and the others get the results through the default process
group.  Rank 0 sends a message after every case: no wait in a process group may be longer than its
timeout.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from triton_ext.errors import TritonExtError, UnsupportedError
from triton_ext.ops.api.checks import kind_of
from triton_ext.ops.api.operators import OPERATORS, Operator
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.core.planner import refusals_on
from triton_ext.ops.core.problem import ConvParameters, ConvProblem, numbers
from triton_ext.ops.core.tables import lookup
from triton_ext.ops.tuning.runs import Outcome, Report, check_options, tune
from triton_ext.ops.tuning.store import reload


@dataclass(slots=True)
class Calls:
    """Recorded convolutions; it iterates over those that can be tuned."""

    #: Cases that a kernel of ours takes, each once, in the order of the first calls.
    cases: list[Case] = field(default_factory=list)
    #: The others, and why no kernel takes them.
    refused: dict[Case, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Case]:
        return iter(self.cases)

    def add(self, case: Case) -> None:
        """Adds a case."""
        if case in self.refused or case in self.cases or not case.problem.batch:
            return
        found = "; ".join(map(str, refusals_on(case, torch.device("meta"))))
        if case.epilogue.function is not None:
            found = "functions of the user's are not tuned"
        if found:
            self.refused[case] = found
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
    """Within the context, convolutions that this thread and its backward call are recorded.

    Compiled parts of a model call no operators; ``warmup_steps`` observes their plans.
    """
    calls = Calls()
    with _Recorder(calls):
        yield calls


def _torch_case(
    direction: Direction, x: Any, weight: Any, arguments: Sequence[Any], dtype: torch.dtype,
    epilogue: EpilogueSpec = PLAIN,
) -> Case:  # fmt: skip
    """Returns the case of a call of torch's; a transposed one is the dgrad of its problem."""
    stride, padding, dilation, transposed, output_padding, groups = arguments
    size, filter_shape = tuple(map(int, x.shape)), tuple(map(int, weight.shape))
    taps = filter_shape[2:]
    steps = (tuple(map(int, each)) for each in (stride, padding, dilation))
    parameters = ConvParameters.parse((*steps, groups), taps)
    if transposed:
        extra = numbers("output_padding", tuple(map(int, output_padding)), len(taps))
        pixels = parameters.transposed_size(size[2:], taps, extra)
        size = (size[0], filter_shape[1] * groups, *pixels)
    problem = parameters.problem(size, filter_shape)
    return Case(direction=direction, problem=problem, dtype=dtype, epilogue=epilogue)


def _read_convolution(x: Any, weight: Any, bias: Any, *arguments: Any) -> Iterator[Case]:
    transposed = arguments[3]
    epilogue = PLAIN if bias is None or transposed else EpilogueSpec(bias=True)
    direction: Direction = "dgrad" if transposed else "fprop"
    yield _torch_case(direction, x, weight, arguments, x.dtype, epilogue)


def _read_backward(grad: Any, x: Any, weight: Any, _: Any, *rest: Any) -> Iterator[Case]:
    *arguments, wanted = rest
    if wanted[0]:
        direction: Direction = "fprop" if arguments[3] else "dgrad"
        yield _torch_case(direction, x, weight, arguments, grad.dtype)
    if wanted[1]:
        yield _torch_case("wgrad", x, weight, arguments, x.dtype)


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

    named_tensors = (model.named_parameters, model.named_buffers)
    state = {n: faked(t) for each in named_tensors for n, t in each(remove_duplicate=False)}
    arguments, keywords = tree_map(faked, (arguments, keywords))
    with mode, record() as calls, torch.set_grad_enabled(training):
        output = torch.func.functional_call(model, state, arguments, keywords, tie_weights=True)
        _backward(output, training)
    return calls


def check_inputs(name: str, model: object, example_inputs: object) -> None:
    """Raises TypeError, which begins with a name, for no module, or for no inputs of one."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"{name}: expected a torch.nn.Module, got {type(model).__name__}; record() records "
            "what any function calls"
        )
    kinds = (torch.Tensor, Sequence, Mapping)
    if not isinstance(example_inputs, kinds) or isinstance(example_inputs, (str, bytes)):
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
    # A class of outputs that torch does not know, such as a library's, often is a mapping.
    leaves = tree_leaves(dict(output) if isinstance(output, Mapping) else output)
    found = [each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad]
    sums = [each.sum(dtype=torch.float32) for each in found]
    if sums and training:
        torch.stack(sums).sum().backward()


_N = r"[1-9]\d*"
_SHAPE = re.compile(
    rf"(?P<x>{_N}(?:x{_N}){{2,4}})_(?P<co>{_N})_k(?P<k>{_N}(?:x{_N})*)"
    rf"(?:_s(?P<s>{_N}(?:x{_N})*))?(?:_d(?P<d>{_N}(?:x{_N})*))?"
    rf"(?:_p(?P<p>\d+(?:-\d+)?(?:x\d+(?:-\d+)?)*))?(?:_g(?P<g>{_N}))?"
)


_GRAMMARS = (
    "NxCixSIZE_Co_kTAPS[_sSTRIDE][_dDILATION][_pPADDING][_gGROUPS], such as "
    "32x64x56x56_128_k3x3_s2x2",
    "N,Ci,SIZE -> Co kTAPS [sSTRIDE] [dDILATION] [pPADDING] [gGROUPS], such as "
    "32,64,56,56 -> 128 k3x3 s2x2",
)


def parse_shape(text: str) -> ConvProblem:
    """Returns the convolution of a text such as ``"32x64x56x56_128_k3x3_s2x2"``.

    ``"32,64,56,56 -> 128 k3x3 s2x2"`` is the same.  Batch, Ci and input size; Co; the filter ``k``;
    optionally stride ``s``, dilation ``d``, padding ``p`` (half the filter by default; ``p1-2`` is
    1 in front, 2 behind) and groups ``g``.

    Raises:
        TypeError: It is not a string.
        ValueError: It is not of this form, or a number is out of range.
    """
    if not isinstance(text, str):
        raise TypeError(f"shape: expected a text, got {type(text).__name__}")
    before, arrow, after = text.partition("->")
    sizes = "x".join(number.strip() for number in before.split(","))
    match = _SHAPE.fullmatch("_".join([sizes, *after.split()]) if arrow else text)
    if match is None:
        grammar = _GRAMMARS[bool(arrow) or "," in text]
        raise ValueError(f"shape '{text}': expected {grammar}, of numbers from 1")
    shape = tuple(map(int, match["x"].split("x")))
    ci, co, dims, groups = shape[1], int(match["co"]), len(shape) - 2, int(match["g"] or 1)
    if ci % groups or co % groups:
        raise ValueError(
            f"shape '{text}': g{groups} must divide both {ci} input channels and {co} output "
            "channels"
        )

    def each(name: str) -> list[str]:
        values = (match[name] or "1").split("x")
        if len(values) not in (1, dims):
            raise ValueError(f"shape '{text}': {name} has {len(values)} numbers, expected {dims}")
        return values if len(values) == dims else values * dims

    taps, stride, dilation = (tuple(map(int, each(name))) for name in "ksd")
    padding = [d * (k // 2) for k, d in zip(taps, dilation, strict=True) for _ in range(2)]
    if match["p"]:
        pairs = (side.partition("-") for side in each("p"))
        padding = [int(side) for low, _, high in pairs for side in (low, high or low)]
    parameters = ConvParameters(stride, tuple(padding), dilation, groups)
    return parameters.problem(shape, (co, ci // groups, *taps))


# Rank 0's message to the others while it measures.
_GOING_ON = "going on"


class JobError(TritonExtError):
    """Rank 0 could not measure, or the ranks lost each other meanwhile; the text says why."""


class Warmup(contextlib.AbstractContextManager["Warmup"]):
    """Steps whose convolutions are tuned; also a context manager, which ends it early."""

    def __init__(self, steps: int, options: Mapping[str, Any]) -> None:
        self._left = steps
        self._options = dict(options)
        self._met: dict[Case, None] = {}
        if steps > 0:
            lookup.observers.append(self._observe)
            # Plans that were made before are made again, so that they are seen.
            reload()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it: later steps do nothing."""
        self._left = 0
        if self._observe in lookup.observers:
            lookup.observers.remove(self._observe)

    def _observe(self, case: Case, device: Device, is_known: bool) -> None:
        # Functions are compiled into their kernel, and do not go to other processes.
        if not is_known and case.epilogue.function is None:
            self._met[case] = None

    def step(self) -> Report | None:
        """Tunes the cases of the step; to be called by every rank at the end of its step.

        Returns:
            The measurements; ``None`` on other ranks than 0, where there was nothing to measure,
            and after the last of the steps.

        Raises:
            UnsupportedError: A CUDA graph is being captured.
            JobError: Rank 0 could not measure; on every rank.  Or a rank did not hear of rank 0 for
                longer than the timeout of the process group.
        """
        if not self._left:
            return None
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise UnsupportedError(
                "warmup_steps: a CUDA graph is being captured; call step() outside of it"
            )
        self._left -= 1
        met, self._met = tuple(self._met), {}
        try:
            if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
                return self._together(met)
            return tune(met, **self._options) if met else None
        finally:
            if not self._left:
                self.close()

    def _together(self, met: tuple[Case, ...]) -> Report | None:
        """Tunes the cases of all ranks on rank 0, which sends the choices to the others."""
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, met)
        every = tuple(dict.fromkeys(case for cases in gathered for case in cases))
        if not every:
            return None
        report, answer = self._measured(every) if dist.get_rank() == 0 else (None, None)
        answer = _broadcast(answer)
        while answer == _GOING_ON:
            answer = _broadcast(None)
        if isinstance(answer, str):
            raise JobError(f"warmup_steps: rank 0 could not measure: {answer}")
        gpu, entries = answer
        lookup.add(gpu, entries, "what rank 0 measured")
        reload()
        return report

    def _measured(self, cases: tuple[Case, ...]) -> tuple[Report | None, Any]:
        """Returns the report, and the message to the others: GPU and entries, or the error."""
        device = torch.cuda.current_device() if torch.cuda.is_available() else -1

        def on_outcome(outcome: Outcome) -> None:
            # Where it is measured may be another device than the one that speaks to the others.
            with torch.cuda.device(device):
                _broadcast(_GOING_ON)
            if (also := self._options.get("on_outcome")) is not None:
                also(outcome)

        try:
            report = tune(cases, **{**self._options, "on_outcome": on_outcome})
        except JobError:
            raise
        except Exception as error:  # the others wait for an answer, whatever it is
            return None, f"{type(error).__name__}: {error}"
        return report, (report.gpu, report.table.entries)


def _broadcast(message: Any) -> Any:
    """Returns rank 0's ``message`` on all ranks."""
    messages = [message]
    try:
        dist.broadcast_object_list(messages, src=0)
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        raise JobError(
            f"warmup_steps: rank {dist.get_rank()} lost the others while rank 0 measured: {line}; "
            "if no rank has failed, measure for a shorter time (seconds=), or give "
            "init_process_group a longer timeout"
        ) from error
    return messages[0]


def warmup_steps(steps: int, **options: Any) -> Warmup:
    """Begins to watch which convolutions a job has; ``step()`` at the end of a step tunes them.

        with warmup_steps(3) as warmup:
            for batch in loader:
                train(batch)
                warmup.step()

    Args:
        steps: After so many calls of ``step`` it is over, and ``step`` costs nothing any more.
        options: As for :func:`triton_ext.ops.tuning.tune`; rank 0's count.

    Raises:
        TypeError: ``steps`` is not an int, or ``tune`` has no such option.
        ValueError: ``steps`` is negative, or ``tune`` refuses an option anywhere.
    """
    if type(steps) is not int:
        raise TypeError(f"warmup_steps: steps is {steps!r}: expected an int")
    if steps < 0:
        raise ValueError(f"warmup_steps: steps is {steps}: expected 0 or more")
    known = [name for name in inspect.signature(tune).parameters if name != "cases"]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise TypeError(
            f"warmup_steps: {', '.join(unknown)}: expected an option of tune, which has "
            f"{', '.join(known)}"
        )
    check_options("warmup_steps", **options)
    return Warmup(steps, options)
