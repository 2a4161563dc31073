"""Choices of the planner for layers of networks, as rows to compare; needs no GPU.

A row says which plan, which configuration and which rewrite a direction of a layer gets, on a GPU
that is only assumed.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.suites import Layer

__all__ = ["DTYPES", "GPUS", "choices", "describe"]

#: Names of GPUs that choices are made for (``core.device.KNOWN``).
GPUS = ("h200", "h100")

#: Types of the operands, and the directions that take them.
DTYPES: dict[str, tuple[str, ...]] = {
    "float16": ("fprop", "dgrad", "wgrad"),
    "float32": ("fprop", "dgrad"),
    "float8_e4m3fn": ("fprop",),
}


def choices(layers: Sequence[Layer], directions: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yields what is chosen for every layer, direction, type and GPU, with tables and without.

    Args:
        layers: Layers of networks.
        directions: ``"fprop"``, ``"dgrad"`` and ``"wgrad"``, or some of them.
    """
    import torch
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.device import KNOWN, assumed_device
    from triton_ext.ops.tuning import reload

    for gpu in GPUS:
        for table in ("shipped", "none"):
            reload()
            with _table(table), assumed_device(KNOWN[gpu]):
                for layer in layers:
                    for dtype, taken in DTYPES.items():
                        for direction in directions:
                            if direction in taken:
                                case: Any = Case(
                                    direction=direction,  # type: ignore[arg-type]
                                    problem=layer.problem,
                                    dtype=getattr(torch, dtype),
                                )
                                names = {
                                    "gpu": KNOWN[gpu].name,
                                    "table": table,
                                    "layer": layer.name,
                                }
                                names |= {"direction": direction, "dtype": dtype}
                                yield names | {"choice": _choice(case)}
    reload()


@contextlib.contextmanager
def _table(name: str) -> Iterator[None]:
    """Within, choices come from the package's table alone, or from no table."""
    wanted = {"TRITON_EXT_TUNING": "0" if name == "none" else "1"}
    before = {key: os.environ.get(key) for key in (*wanted, "TRITON_EXT_TUNING_DIR")}
    try:
        with tempfile.TemporaryDirectory(prefix="triton-ext-choices-") as empty:
            os.environ.update(wanted, TRITON_EXT_TUNING_DIR=empty)
            yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _choice(case: Any) -> str:
    import torch
    from triton_ext.errors import TritonExtError
    from triton_ext.ops.core.planner import make_plan

    try:
        return describe(make_plan(case, torch.device("meta")))
    except TritonExtError as error:
        return f"refused: {error}"


def describe(plan: Any) -> str:
    """Returns what a plan launches: kernel, configuration and how rows are packed.

    Args:
        plan: Of any direction.
    """
    from triton_ext.ops.core.tables import encode

    inner = getattr(plan, "plain", plan)
    words = [type(plan).__name__, type(inner.config).__name__]
    if (launcher := getattr(inner, "launcher", None)) is not None:
        words.append(launcher.kernel.__name__)
    words.append(json.dumps(encode(inner.config), sort_keys=True))
    partition = getattr(getattr(inner, "tiles", None), "partition", None)
    if partition is not None:
        words.append(str(partition))
    copies = getattr(inner, "row_copies", None) or getattr(inner, "copies", None)
    if copies is not None:
        words.append(f"{copies.packing.kind} of {copies.packing.channels} channels")
    return " ".join(words)
