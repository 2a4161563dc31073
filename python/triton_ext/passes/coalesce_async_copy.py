"""``tritongpu-coalesce-async-copy``: layouts in which asynchronous copies are wide.

Before (a thread holds 4 elements of which nothing is known: 4 instructions of 4 bytes)::

    %t = ttg.async_copy_global_to_local %p, %m : tensor<64x!tt.ptr<f32>, #four> -> <64xf32, ..>

After (one instruction of 4 bytes)::

    %q = ttg.convert_layout %p : tensor<64x!tt.ptr<f32>, #four> -> tensor<64x!tt.ptr<f32>, #one>
    %t = ttg.async_copy_global_to_local %q, %m : tensor<64x!tt.ptr<f32>, #one> -> <64xf32, ..>

Upstream's pass of this name (pull request 9183 for small copies) has two patterns, which are here
as well:

* *Small copies*, of fewer elements than a CTA has threads, are laid out for whoever uses what they
  load; as a copy to shared memory they get the layout that is best for the copy.
* *Clip*: where a thread holds more than what lies side by side in a swizzled buffer, it holds that
  much, so that the lanes of an instruction stay side by side.

Where the result differs from the host's pass:

* ``contiguity`` of the copy is kept.  The host loses it, and a copy of 8-bit elements that compiles
  without its pass fails with it.
* A small copy is as wide as pointers, mask and buffer allow, not one element a thread; one that is
  wide and coalesced already is left alone.  It may have elements of 8 and 16 bits if as many as an
  instruction needs can be copied at once.
* Small is what one CTA of a cluster copies.
* A copy of any size that the hardware has no instruction for (below 4 bytes of a thread) gets a
  layout for which it has one.

What each copy got, and what kept it from more, is a remark at its source line.

A small copy that compiles changes if it then has fewer instructions, or as many of one element each
whose lanes are side by side.  With ``explicit-layouts`` (Gluon, where a person wrote the layouts)
only small ones do, and only if nothing has to be converted: a conversion in a loop may cost more
than it saves, and the shared memory that it goes through may not be there.

Safe direction: a vector may be narrower than it could be, never wider than what is known.
Not handled: larger copies that are narrow stay so, since converting their pointers may cost more
than it saves; buffers and pointers with an encoding that is not known here; modules for AMD, which
a warning sends to ``tritonamdgpu-coalesce-async-copy``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from triton_ext.analysis import AxisInfoAnalysis
from triton_ext.analysis.linear_layout import layout_of
from triton_ext.ir import LinearLayout, Module
from triton_ext.ir.encodings import BlockedEncoding, DistributedEncoding, SwizzledSharedEncoding
from triton_ext.passes.async_copy import (
    AsyncCopy,
    async_copies,
    build_coalesced_encoding,
)
from triton_ext.passes.base import Pass
from triton_ext.passes.context import PassContext
from triton_ext.passes.retarget_copies import CopyRules, retarget_copies

__all__ = ["CoalesceAsyncCopy", "is_coalesced", "layout_for"]

#: ``cp.async`` copies 4, 8 or 16 bytes (PTX ISA, cp.async).
LEAST_BITS: Final = 32
_PROBLEM: Final = f"no instruction copies less than {LEAST_BITS // 8} bytes, it will not compile"


@dataclass(frozen=True, slots=True)
class CoalesceAsyncCopy(Pass):
    """Chooses the layouts of pointers, masks and ``other`` of asynchronous copies.

    Attributes:
        explicit_layouts: Whether a person wrote the layouts, so that only copies change that do not
            compile, and small ones at no cost.
    """

    name: ClassVar[str] = "tritongpu-coalesce-async-copy"

    explicit_layouts: bool = False

    def run(self, module: Module, context: PassContext) -> None:
        """Retargets the copies of ``module`` that another layout makes better.

        Raises:
            VerifyError: A copy is malformed, or the module does not tell its number of warps.
        """
        target = module.op.attributes.get("ttg.target", "")
        if target.startswith('"hip:'):
            context.warning(
                module.op,
                f"the asynchronous copies of this module are left alone: expected a GPU of NVIDIA, "
                f"found {target}; tritonamdgpu-coalesce-async-copy is for those of AMD",
            )
            return
        copies = async_copies(module, AxisInfoAnalysis.of(module))
        retarget_copies(copies, _RULES, context, explicit_layouts=self.explicit_layouts)


def layout_for(copy: AsyncCopy) -> DistributedEncoding | None:
    """A better encoding for the operands of a copy; ``None`` where there is none."""
    now = copy.vector(copy.encoding)
    compiles = _compiles(copy)
    if not compiles or copy.is_small:
        best = build_coalesced_encoding(copy, LEAST_BITS)
        if best is not None:
            then = copy.vector(best)
            if not compiles or then.instructions < now.instructions:
                return best
            if now.size == 1 and not is_coalesced(copy):
                return best
            return None
    clipped = _clipped(copy)
    if clipped is None:
        return None
    then = copy.vector(clipped)
    # The attribute may span rows of a thread, of which the new layout keeps less.
    is_refused = bool(_problem(copy, clipped))
    is_worse = then.instructions > now.instructions or (compiles and is_refused)
    return None if is_worse else clipped


def _compiles(copy: AsyncCopy) -> bool:
    return not _problem(copy, copy.encoding)


def _problem(copy: AsyncCopy, encoding: DistributedEncoding) -> str:
    return "" if copy.vector(encoding).size * copy.bits >= LEAST_BITS else _PROBLEM


_RULES: Final = CopyRules(layout_for=layout_for, compiles=_compiles, problem=_problem)


def is_coalesced(copy: AsyncCopy) -> bool:
    """Returns whether neighbouring lanes of a copy read neighbouring elements."""
    order = copy.order()
    return _layout(copy, copy.encoding) == _layout(copy, copy.blocked([1] * len(order), order))


def _clipped(copy: AsyncCopy) -> BlockedEncoding | None:
    """The encoding with as many elements of a thread as lie side by side in the buffer."""
    encoding = copy.encoding
    if not isinstance(encoding, BlockedEncoding):
        return None
    if not isinstance(copy.shared, SwizzledSharedEncoding):
        return None
    dim, vector = encoding.order[0], copy.vector(encoding)
    run = vector.run
    # A tile may be larger than the tensor, or the next one follow it: what a thread holds counts.
    if vector.dim != dim or vector.held <= run:
        return None
    tile = list(encoding.size_per_thread)
    tile[dim] = run
    clipped = copy.blocked(tile, encoding.order)
    if not copy.facts_in(clipped).is_local:
        return None
    return clipped if _layout(copy, clipped) != _layout(copy, encoding) else None


def _layout(copy: AsyncCopy, encoding: DistributedEncoding) -> LinearLayout:
    """Which thread copies what; registers that repeat others are left out."""
    return layout_of(encoding, copy.shape).without_zero_bases("register")
