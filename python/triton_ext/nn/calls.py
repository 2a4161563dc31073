"""Which kernels a module's calls ran: counted at every call, cheap enough to stay on.

A call is counted under what the dispatch cache has for it, whose kernel has its name in the report
only.  Autograd's node of a call has the counts of its module, so that its backward is counted too.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from triton_ext.errors import UnsupportedError
from triton_ext.ops.api.execution import FASTER, TorchConvolution
from triton_ext.ops.api.operators import torch_calls
from triton_ext.ops.core.device import IS_INTERPRETED

__all__ = ["CALLS", "Calls", "count", "no_gpu_line", "timed"]

Tensor = torch.Tensor

#: The attribute of a converted module that holds its :class:`Calls`.
CALLS = "_calls"

_log = logging.getLogger("triton_ext.nn")

_UNNAMED = "a kernel"
_NO_DATA = "x has no data (meta or fake): nothing was computed"

# Plans of a module that are kept; an input of another size has another one.
_MOST_PLANS = 256

# Beginning and end of calls.
_Events = list[tuple[Any, Any]]


class Calls:
    """Counts of one module's calls.

    Threads may call a module at once; a count may then miss a call.

    Args:
        name: The module, for the log.

    Attributes:
        name: The module.
        forward: Calls by a kernel that :meth:`followed` does not count, by their plans.
        gradients: Gradients of the input and of the weight by a kernel, by their plans.
        events: CUDA events of forward calls and of backward calls while these are timed, or None.
    """

    __slots__ = ("_by_torch", "_followed", "_kernels", "events", "forward", "gradients", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.forward: defaultdict[Any, int] = defaultdict(int)
        self.gradients: tuple[defaultdict[Any, int], ...] = (defaultdict(int), defaultdict(int))
        self.events: tuple[_Events, _Events] | None = None
        # For what the dispatch cache has, a copy that counts the calls of this module.
        self._followed: dict[Any, Any] = {}
        # Counts by name of calls whose plans are forgotten.
        self._kernels: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
        # Refusals of forward calls, of gradients of the input and of the weight.
        self._by_torch: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())

    @property
    def ours(self) -> int:
        """Forward calls that ran a kernel of this package."""
        return next(self.counts())[0].total()

    @property
    def torch(self) -> int:
        """Forward calls that ran torch's convolution."""
        return self.refusals.total()

    @property
    def refusals(self) -> Counter[str]:
        """Reasons for the forward calls by torch, each with its count."""
        return next(self.counts())[1]

    def followed(self, bound: Any) -> Any:
        """Counts a call, and returns what computes it and counts its gradients here.

        Args:
            bound: What the dispatch cache has for the call.
        """
        found = self._followed.get(bound)
        if found is None:
            if len(self._followed) >= _MOST_PLANS:
                self._forget()
            found = self._followed[bound] = bound.followed(self)
        found.count += 1
        return found

    def add(self, y: Tensor, plan: Any, before: int) -> None:
        """Counts a call that the dispatch cache did not have.

        Args:
            y: Its output, whose backward is counted here, too.
            plan: What computed it, or None.
            before: The count of ``torch_calls`` before it.
        """
        if torch_calls.count != before:
            self.add_torch(torch_calls.refusal)
        elif y.is_meta or type(y) is FakeTensor:
            self._by_torch[0][_NO_DATA] += 1
        else:
            self.forward[plan] += 1
        node = y.grad_fn
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            node.calls = self

    def add_torch(self, refusal: str) -> None:
        """Counts a call of torch's; the first one is logged as a warning where there is a GPU.

        Args:
            refusal: Why no kernel took the call.
        """
        reasons = self._by_torch[0]
        reasons[refusal] += 1
        if reasons.total() == 1 and torch.cuda.is_available():
            _log.warning(
                "%s runs torch's convolution: %s; triton_ext.nn.report(model) counts its calls",
                self.name,
                refusal,
            )

    def add_gradient(self, operand: int, plan: Any, before: int) -> None:
        """Counts a gradient that the dispatch cache did not have.

        Args:
            operand: 0 for that of the input, 1 for that of the weight.
            plan: As for :meth:`add`.
            before: As for :meth:`add`.
        """
        if torch_calls.count == before:
            self.gradients[operand][plan] += 1
        else:
            self._by_torch[1 + operand][torch_calls.refusal] += 1

    def counts(self) -> Iterator[tuple[Counter[str], Counter[str]]]:
        """Yields, of the forward and of both gradients, kernels and refusals by name."""
        self._forget()
        yield from zip(self._kernels, self._by_torch, strict=True)

    def _forget(self) -> None:
        """Forgets plans, which hold memory; keeps counts by names."""
        for plans, kernels in zip((self.forward, *self.gradients), self._kernels, strict=True):
            for plan in tuple(plans):
                kernels[_kernel(plan)] += plans.pop(plan)
        for plan in tuple(self._followed):
            bound = self._followed.pop(plan)
            if isinstance(bound, TorchConvolution):
                self._by_torch[0][FASTER] += bound.count
            else:
                self._kernels[0][_kernel(bound)] += bound.count

    def timed(self, call: Callable[[], Tensor]) -> Tensor:
        """Makes a call between CUDA events; events before and after its backward follow."""
        if self.events is None or torch.cuda.is_current_stream_capturing():
            return call()
        forward, backward = self.events
        begin = _recorded()
        y = call()
        forward.append((begin, _recorded()))
        if y.grad_fn is not None:
            begun = list[Any]()
            y.grad_fn.register_prehook(lambda *_: begun.append(_recorded()))
            y.grad_fn.register_hook(lambda *_: backward.append((begun.pop(), _recorded())))
        return y


def _kernel(plan: Any) -> str:
    """Returns the name of a plan's kernel."""
    plan = getattr(plan, "plan", None)
    launcher = getattr(plan, "launcher", None)
    return _UNNAMED if launcher is None else str(launcher.kernel.fn.__name__)


def _recorded() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _sum_ms(found: _Events) -> float:
    return sum(begin.elapsed_time(end) for begin, end in found)


@contextmanager
def timed(every: Sequence[Calls]) -> Iterator[list[tuple[float, float]]]:
    """Within, calls are timed by CUDA events.

    Yields:
        A list that gets the milliseconds of each one's forward and backward calls at the end.

    Raises:
        UnsupportedError: There is no GPU.
    """
    if not torch.cuda.is_available():
        raise UnsupportedError(
            "report: calls are timed by CUDA events, and torch sees no GPU here; leave out run="
        )
    for calls in every:
        calls.events = ([], [])
    times_ms: list[tuple[float, float]] = []
    try:
        yield times_ms
        torch.cuda.synchronize()
        for calls in every:
            forward, backward = calls.events or ([], [])
            times_ms.append((_sum_ms(forward), _sum_ms(backward)))
    finally:
        for calls in every:
            calls.events = None


def count(
    calls: Calls, operator: Callable[..., Tensor], *arguments: Any, **keywords: Any
) -> Tensor:
    """Calls an operator of :mod:`triton_ext.ops` and counts who computed it.

    Args:
        calls: The counts.
        operator: The operator.
        arguments: Its arguments.
        keywords: Its keyword arguments.
    """
    before = torch_calls.count
    y = operator(*arguments, **keywords)
    calls.add(y, None, before)
    return y


def no_gpu_line() -> str:
    """Returns a line that says that no kernel can run on this machine; empty where one can."""
    if IS_INTERPRETED or any(
        torch.cuda.get_device_capability(device) >= (9, 0)
        for device in range(torch.cuda.device_count())
    ):
        return ""
    return "no GPU of compute capability 9.0 or newer here: every call will run torch\n"
