"""Which kernels a module's calls ran: counted at every call, cheap enough to stay on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from triton_ext.ops.api.execution import torch_calls
from triton_ext.ops.core.device import IS_INTERPRETED

__all__ = ["CALLS", "Calls", "count", "no_gpu_line"]

#: The attribute of a converted module that holds its :class:`Calls`.
CALLS = "_calls"

_log = logging.getLogger("triton_ext.nn")


class Calls:
    """Counts of one module's calls.

    Threads may call a module at once; a count may then miss a call.

    Args:
        name: The module, for the log.

    Attributes:
        name: The module.
        ours: Calls that ran a kernel of this package.
        torch: Calls that ran torch's convolution.
        refusals: Reasons for the calls by torch, each with its count.
    """

    __slots__ = ("name", "ours", "refusals", "torch")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ours = 0
        self.torch = 0
        self.refusals: Counter[str] = Counter()

    def add_torch(self, refusal: str) -> None:
        """Counts a call of torch's; the first one is logged as a warning where there is a GPU.

        Args:
            refusal: Why no kernel took the call.
        """
        self.torch += 1
        self.refusals[refusal] += 1
        if self.torch == 1 and torch.cuda.is_available():
            _log.warning(
                "%s runs torch's convolution: %s; triton_ext.nn.report(model) counts its calls",
                self.name,
                refusal,
            )


def count(
    calls: Calls, operator: Callable[..., torch.Tensor], *arguments: Any, **keywords: Any
) -> torch.Tensor:
    """Calls an operator of :mod:`triton_ext.ops` and counts who computed it.

    Args:
        calls: The counts.
        operator: The operator.
        arguments: Its arguments.
        keywords: Its keyword arguments.
    """
    before = torch_calls.count
    y = operator(*arguments, **keywords)
    if torch_calls.count == before:
        calls.ours += 1
    else:
        calls.add_torch(torch_calls.refusal)
    return y


def no_gpu_line() -> str:
    """Returns a line that says that no kernel can run on this machine; empty where one can."""
    if IS_INTERPRETED or any(
        torch.cuda.get_device_capability(device) >= (9, 0)
        for device in range(torch.cuda.device_count())
    ):
        return ""
    return "no GPU of compute capability 9.0 or newer here: every call will run torch\n"
