"""Remarks on asynchronous copies: the width of an instruction, and the reasons against more."""

from __future__ import annotations

from triton_ext.ir.encodings import DistributedEncoding
from triton_ext.passes.async_copy import AsyncCopy, Vector
from triton_ext.passes.context import PassContext

__all__ = ["limits", "report"]


def report(
    copy: AsyncCopy,
    encoding: DistributedEncoding | None,
    problem: str,
    context: PassContext,
) -> None:
    """Makes the remark of one copy; a warning where it will not compile.

    Args:
        copy: The copy as it was found.
        encoding: What its operands are converted to; ``None`` where they stay.
        problem: Why the copy will not compile in the end; empty where it will.
        context: Takes the remark.
    """
    final = encoding if encoding is not None else copy.encoding
    told = _width(copy, copy.vector(final))
    if encoding is not None:
        told += f", before {_width(copy, copy.vector(copy.encoding))}"
    said, because = f"asynchronous copy of {told}", limits(copy, final, is_refused=bool(problem))
    if problem:
        context.warning(copy.op, f"{said}: {problem}", *because)
    else:
        context.remark(copy.op, said, *because)


def _width(copy: AsyncCopy, vector: Vector) -> str:
    size = vector.size * copy.bits // 8
    count = vector.instructions
    plural = "s" if count > 1 else ""
    return f"{size} byte{'s' if size > 1 else ''} an instruction ({count} instruction{plural})"


def limits(
    copy: AsyncCopy, encoding: DistributedEncoding, *, is_refused: bool = False
) -> tuple[str, ...]:
    """Returns the reasons why an instruction copies no more; empty for the widest there is.

    Args:
        copy: The copy.
        encoding: The encoding that its operands have in the end.
        is_refused: Whether it will not compile: then no other layout would help, at any price.
    """
    vector = copy.vector(encoding)
    size, dim = vector.size, vector.dim
    if size == vector.widest:
        return ()
    if copy.known(dim) <= size:
        reasons = []
        if vector.hint == size > 1:
            reasons.append(f"the attribute contiguity says {_elements(vector.hint)}")
        if vector.pointers <= size:
            what = f"the pointers are known to be contiguous over {_elements(vector.pointers)}"
            reasons.append(f"{what} of dimension {dim}")
        if vector.mask is not None and vector.mask <= size:
            what = f"the mask is known to be constant over {_elements(vector.mask)}"
            reasons.append(f"{what} of dimension {dim}")
        return tuple(reasons)
    if copy.share[dim] <= size:
        return (f"there are {_elements(copy.share[dim])} in dimension {dim}",)
    tile = [2 * size if d == dim else 1 for d in range(len(copy.shape))]
    order = (dim, *(other for other in copy.order() if other != dim))
    run = copy.vector(copy.blocked(tile, order)).run
    if run <= size:
        return (f"the buffer has runs of {_elements(run)} along dimension {dim}",)
    if is_refused:
        return ()
    held = f"a thread holds {_elements(vector.held)} side by side"
    return (f"{held}; a conversion of the pointers may cost more than wider instructions save",)


def _elements(count: int) -> str:
    return f"{count} element{'s' if count > 1 else ''}"
