"""What the graphs of torch.compile call, for tests that count operators of this package."""

from __future__ import annotations

from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

__all__ = ["recording"]


def recording(calls: list[str]) -> Any:
    """A backend that runs graphs as they are, and notes their operators of ``triton_ext``.

    Args:
        calls: Where names go, those of a forward before those of its backward.
    """

    def compile_graph(graph: torch.fx.GraphModule, _: Any) -> Any:
        for node in graph.graph.nodes:
            # One that writes is an argument of another, which knows what it writes.
            for target in (node.target, *node.args[:1]):
                if isinstance(target, torch._ops.OpOverload) and target.namespace == "triton_ext":
                    calls.append(target._opname)
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=compile_graph)
