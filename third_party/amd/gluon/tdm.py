"""TDM copies and waits of Gluon kernels, with one spelling on every host.

Every argument that can be checked is checked at the user's line: what the host would only assert,
or pass on to a lowering that ends the process, is a sentence here (:mod:`.checks`).
"""

from __future__ import annotations

from typing import Any

from triton.experimental.gluon.language._core import builtin
from triton.language import core

from . import hosts

__all__ = [
    "async_gather",
    "async_load",
    "async_scatter",
    "async_store",
    "async_wait",
    "async_wait_instructions",
    "async_wait_stage",
    "make_tensor_descriptor",
    "update_tensor_descriptor",
    "wmma",
]


@builtin
def make_tensor_descriptor(base, shape, strides, block_shape, layout, _semantic=None):  # type: ignore[no-untyped-def]
    """Describes a tensor in global memory to the tensor data mover."""
    hosts.check_target("make_tensor_descriptor", _semantic.builder.options)
    return hosts.tdm().make_tensor_descriptor(
        base, shape, strides, block_shape, layout, _semantic=_semantic
    )


@builtin
def update_tensor_descriptor(  # type: ignore[no-untyped-def]
    desc, add_offsets=None, set_bounds=None, pred=None, clamp_bounds=False, _semantic=None
):
    """Returns a descriptor that is moved, bounded or switched off (Triton 3.8 or newer)."""
    hosts.check_target("update_tensor_descriptor", _semantic.builder.options)
    hosts.needs_positions("update_tensor_descriptor")
    return hosts.tdm().update_tensor_descriptor(
        desc, add_offsets, set_bounds, pred, clamp_bounds, _semantic=_semantic
    )


@builtin
def async_load(desc, offsets, smem, pred=None, warp_used_hint=None, _semantic=None):  # type: ignore[no-untyped-def]
    """Starts the copy of a block into LDS; what lies outside of the tensor arrives as zeros."""
    hosts.check_target("async_load", _semantic.builder.options)
    options: dict[str, Any] = {}
    if core._unwrap_if_constexpr(pred) is not None:
        options["pred"] = pred
    if core._unwrap_if_constexpr(warp_used_hint) is not None:
        hosts.needs_positions("warp_used_hint of async_load")
        options["warp_used_hint"] = warp_used_hint
    hosts.tdm().async_load(desc, offsets, smem, **options, _semantic=_semantic)


@builtin
def async_store(desc, offsets, smem, _semantic=None):  # type: ignore[no-untyped-def]
    """Starts the copy of a block from LDS; what lies outside of the tensor is dropped."""
    hosts.check_target("async_store", _semantic.builder.options)
    hosts.tdm().async_store(desc, offsets, smem, _semantic=_semantic)


@builtin
def async_gather(desc, rows, column, smem, pred=None, _semantic=None):  # type: ignore[no-untyped-def]
    """Starts the copy of rows of a tensor into the rows of an LDS buffer."""
    hosts.check_target("async_gather", _semantic.builder.options)
    hosts.require_rows()
    _copy_rows("async_gather", desc, rows, column, smem, pred, _semantic)


@builtin
def async_scatter(desc, rows, column, smem, _semantic=None):  # type: ignore[no-untyped-def]
    """Starts the copy of the rows of an LDS buffer to rows of a tensor."""
    hosts.check_target("async_scatter", _semantic.builder.options)
    hosts.require_rows()
    _copy_rows("async_scatter", desc, rows, column, smem, None, _semantic)


def _copy_rows(
    name: str, desc: Any, rows: Any, column: Any, smem: Any, pred: Any, semantic: Any
) -> None:
    copy = getattr(hosts.tdm(), name)
    if not hosts.has_positions():
        if core._unwrap_if_constexpr(pred) is not None:
            hosts.needs_positions(f"pred of {name}")
        copy(desc, rows, column, smem, _semantic=semantic)
        return
    options = {} if core._unwrap_if_constexpr(pred) is None else {"pred": pred}
    moved = hosts.tdm().update_tensor_descriptor(
        desc, add_offsets=[0, column], clamp_bounds=True, **options, _semantic=semantic
    )
    copy(moved, rows, smem, _semantic=semantic)


@builtin
def async_wait(num_ops=0, _semantic=None):  # type: ignore[no-untyped-def]
    """Waits until at most ``num_ops`` TDM operations are in flight."""
    hosts.check_target("async_wait", _semantic.builder.options)
    hosts.tdm().async_wait(core._unwrap_if_constexpr(num_ops), _semantic=_semantic)


@builtin
def async_wait_stage(stage, behind=0, newer=0, _semantic=None):  # type: ignore[no-untyped-def]
    """Waits for all of a stage, while ``behind`` newer stages may be in flight."""
    hosts.check_target("async_wait_stage", _semantic.builder.options)
    stage = core._unwrap_if_constexpr(stage)
    number = stage.behind(core._unwrap_if_constexpr(behind), core._unwrap_if_constexpr(newer))
    hosts.tdm().async_wait(number, _semantic=_semantic)


@builtin
def async_wait_instructions(count, stage, _semantic=None):  # type: ignore[no-untyped-def]
    """Waits until at most ``count`` TDM instructions of a wave are in flight."""
    hosts.check_target("async_wait_instructions", _semantic.builder.options)
    stage = core._unwrap_if_constexpr(stage)
    number = stage.within(core._unwrap_if_constexpr(count))
    hosts.tdm().async_wait(number, _semantic=_semantic)


@builtin
def wmma(a, b, acc, _semantic=None):  # type: ignore[no-untyped-def]
    """``a @ b + acc`` on the matrix cores."""
    hosts.check_target("wmma", _semantic.builder.options)
    return hosts.cdna5().wmma(a, b, acc, _semantic=_semantic)
