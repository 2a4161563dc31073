"""How signatures of Gluon kernels spell im2col descriptors on hosts that have none (3.6, 3.7).

Three spellings are read::

    tensordesc<fp16[64, 64],Im2ColSharedLayout(input_rank=4,NVMMASharedLayout(..))>    as launched
    tensordesc_im2col<fp16[64, 64],input_rank=4,NVMMASharedLayout(..)>                 from 3.8 on
    tensordesc<fp16[1, 1, 64, 64],Im2ColSharedLayout(input_rank=4,NVMMASharedLayout(..))>

The first is what Triton makes of a descriptor with a layout of ``substitutes.py``.  The third is
what a source gets for either of the others: Triton's launcher counts the sizes and strides of a
descriptor by the numbers in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from triton_ext.host.chain import PROBE

__all__ = ["wrap_source", "wrap_str_to_ty"]

_SPELLED: Final = re.compile(
    r"tensordesc(?:_im2col)?<(?P<dtype>\w+)\[(?P<block>[\d, ]+)\],(?:Im2ColSharedLayout\()?"
    r"input_rank=(?P<rank>\d+),(?P<layout>NVMMASharedLayout\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))\)?>"
)


def _spelled_for_a_source(text: Any) -> Any:
    match = _SPELLED.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return text
    block = [int(size) for size in match["block"].split(",")][-2:]
    sizes = [1] * (int(match["rank"]) - 2) + block
    layout = f"Im2ColSharedLayout(input_rank={match['rank']},{match['layout']})"
    return f"tensordesc<{match['dtype']}{sizes},{layout}>"


def wrap_source(previous: Callable[..., Any], is_active: Callable[[], bool]) -> Callable[..., Any]:
    """Wraps the constructor of Gluon kernel sources (``host.patch_points.gluon_signature``).

    Args:
        previous: The wrapped ``__init__``.
        is_active: Tells whether the plugin is installed.
    """

    def __init__(source: Any, *args: Any, **kwargs: Any) -> Any:
        if source is PROBE:
            return PROBE
        previous(source, *args, **kwargs)
        if is_active():
            signature = source.signature
            spelled = {name: _spelled_for_a_source(text) for name, text in signature.items()}
            if spelled != signature:
                source.signature = spelled
        return None

    return __init__


def wrap_str_to_ty(
    previous: Callable[..., Any], is_active: Callable[[], bool]
) -> Callable[..., Any]:
    """Wraps the parser of types in signatures (``host.patch_points.gluon_signature``).

    Args:
        previous: The wrapped function.
        is_active: Tells whether the plugin is installed.
    """

    def str_to_ty(name: Any, *args: Any) -> Any:
        if name is PROBE:
            return PROBE
        match = _SPELLED.fullmatch(name) if isinstance(name, str) else None
        if match is None or not is_active():
            return previous(name, *args)
        block = ",".join(match["block"].split(",")[-2:])
        tiled = previous(f"tensordesc<{match['dtype']}[{block}],{match['layout']}>", *args)
        # Imported late: without im2col descriptors Gluon's modules are not needed.
        from .substitutes import tensor_descriptor_im2col_type

        sizes, steps = tiled.shape_type, tiled.strides_type
        rank = int(match["rank"])
        return tensor_descriptor_im2col_type(
            tiled.block_type,
            type(sizes)([sizes.types[0]] * rank),
            type(steps)([steps.types[0]] * rank),
            tiled.layout,
        )

    return str_to_ty
