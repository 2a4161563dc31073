"""``tritonamdgpu-coalesce-async-copy``: chooses layouts with wide instructions for LDS copies.

Before (gfx950: 16 elements per thread; one instruction copies 8)::

    %t = ttg.async_copy_global_to_local %p, %m
        : tensor<64x64x!tt.ptr<f16>, #sixteen> -> <64x64xf16, ..>

After::

    %q = ttg.convert_layout %p : .. -> tensor<64x64x!tt.ptr<f16>, #eight>
    %t = ttg.async_copy_global_to_local %q, %m {contiguity = 8 : i32}
        : tensor<64x64x!tt.ptr<f16>, #eight> -> <64x64xf16, ..>

Copies are ``ttg.async_copy_global_to_local`` and, on gfx942 and gfx950,
``amdg.buffer_load_to_local``.  For the latter the pass changes the layout of the offsets, and the
alignment of the base pointer counts too.  A copy compiles if (as checked by upstream's lowering)

1. the GPU supports the width of a lane's vector (:class:`Target`), and
2. on gfx942 and gfx950, where all lanes of a wave share one LDS address, the lanes write one
   contiguous run: lane ``i`` writes ``i`` vectors after lane 0, a vector is all that is contiguous,
   and padding comes after the last lane at the earliest.  The swizzle of the buffer is ignored
   there: the lowering applies it to the source addresses, by shuffling whole vectors among the
   lanes of a wave.  So a swizzle must move whole vectors within a wave; Triton compiles other
   copies too, to wrong code.

Upstream's pass of this name rewrites copies of gfx942 and gfx950 that do not compile.  Differences
from the host's pass:

* It handles gfx1250; the host does nothing there.
* It handles buffer copies; the host creates them later, from copies by pointers.
* It trusts the attribute ``contiguity``, as the lowering does.
* The vector is as wide as pointers, mask and buffer allow, even if the present layout is narrower,
  and runs along the fastest dimension of the buffer.
* A copy that compiles gets another layout too if that takes fewer instructions.
* Pointers may have any encoding, not only a blocked one.

A remark at each copy states its new layout or the reason against a wider one.  With
``explicit-layouts`` (Gluon, where the user chose the layouts) a copy that compiles changes only if
it has fewer elements than there are threads and needs no conversion.

Like upstream's, the pass belongs after the pipeliner and before
``tritongpu-remove-layout-conversions``, which computes the pointers in the new layout and so
removes the conversions again.

Safe direction: a vector may be narrower than possible, never wider than proven.  Not handled:
buffers that are part of a padded allocation; buffer copies of gfx1250, which Triton refuses from
3.8 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import ClassVar

from triton_ext.analysis import AxisInfoAnalysis, register_to_shared
from triton_ext.ir import LinearLayout, Module, parse_type
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.encodings import (
    DistributedEncoding,
    LinearEncoding,
    PaddedSharedEncoding,
    SharedEncoding,
    SwizzledSharedEncoding,
)
from triton_ext.ir.linear_layout import log2
from triton_ext.ir.types import MemDescType, TensorType
from triton_ext.passes import Pass, PassContext
from triton_ext.passes.async_copy import (
    WIDEST_BITS,
    AsyncCopy,
    Operands,
    async_copies,
    read_copy,
    run_of,
)
from triton_ext.passes.retarget_copies import CopyRules, retarget_copies

from ..analysis.axis_info import AXIS_INFO_RULES
from ..analysis.target import Target
from ..dialect import amdg
from .chosen_target import chosen_target

__all__ = ["CoalesceAsyncCopy", "copies_of", "lowers", "lowers_at_best", "swizzle_stays_in_a_wave"]


@dataclass(frozen=True, slots=True)
class CoalesceAsyncCopy(Pass):
    """Chooses the layouts of pointers, masks and ``other`` of copies to LDS.

    Attributes:
        gfx_arch: The GPU, ``"gfx950"``; by default that of the module's ``ttg.target``.
        arch_generation_name: Older name of the same option.
        explicit_layouts: Whether the user chose the layouts: change only copies that do not
            compile, and small ones at no cost.
    """

    name: ClassVar[str] = "tritonamdgpu-coalesce-async-copy"

    gfx_arch: str = ""
    arch_generation_name: str = ""
    explicit_layouts: bool = False

    def run(self, module: Module, context: PassContext) -> None:
        """Changes the layouts of copies where another layout is better.

        Raises:
            VerifyError: The GPU is not given, or a copy is malformed.
            UnsupportedError: The given GPU is unknown.
        """
        target = self._target(module, context)
        if target is None:
            return
        rules = CopyRules(
            layout_for=partial(_layout_for, target=target),
            compiles=lambda copy: lowers(copy, copy.encoding, target),
            problem=partial(_problem, target=target),
        )
        copies = copies_of(module, target)
        retarget_copies(copies, rules, context, explicit_layouts=self.explicit_layouts)

    def _target(self, module: Module, context: PassContext) -> Target | None:
        """Returns the GPU; ``None`` for one without copies to LDS."""
        arch = self.gfx_arch or self.arch_generation_name
        if not arch and module.op.attributes.get("ttg.target", "").startswith('"cuda:'):
            return None
        return chosen_target(arch, module, context, "asynchronous copies")


def copies_of(module: Module, target: Target) -> list[AsyncCopy]:
    """Returns the copies to LDS with known layouts, by pointers and by offsets.

    Args:
        module: The module.
        target: The GPU.

    Raises:
        VerifyError: A copy is malformed, or the module has no number of waves.
    """
    analysis = AxisInfoAnalysis.of(module, rules=AXIS_INFO_RULES)
    copies = list(async_copies(module, analysis))
    types = AliasTable(module.aliases)
    for op in module.walk() if not target.lanes_have_addresses else ():
        view = amdg.BufferLoadToLocalOp.match(op)
        if view is None:
            continue
        operands = Operands(
            address=view.offsets,
            buffer=view.dst,
            mask=view.mask,
            other=view.other,
            base=view.ptr,
        )
        copy = read_copy(op, operands, view.contiguity, analysis, types)
        if copy is not None:
            copies.append(copy)
    return copies


def _problem(copy: AsyncCopy, encoding: DistributedEncoding, target: Target) -> str:
    """Returns why a copy will not compile; empty if it will."""
    if _fits(copy, encoding, target):
        return ""
    if not target.lanes_have_addresses and not swizzle_stays_in_a_wave(copy, encoding):
        return (
            "the swizzle of the buffer moves elements to lanes of other waves, or splits the "
            "vector of a lane; it will not compile, or to wrong code"
        )
    elements, least = prod(copy.share), copy.threads_per_warp * min(target.load_widths) // 8
    if not target.lanes_have_addresses and elements * copy.bits < 8 * least:
        return (
            f"a wave of {target.arch} writes one run of {least} bytes at least, and there are "
            f"{elements * copy.bits // 8}; it will not compile"
        )
    widths = ", ".join(str(width // 8) for width in target.load_widths)
    how = "" if target.lanes_have_addresses else ", whose wave writes one run in LDS"
    return f"{target.arch} copies {widths} bytes of a lane{how}; it will not compile"


def swizzle_stays_in_a_wave(copy: AsyncCopy, encoding: DistributedEncoding) -> bool:
    """Returns whether the swizzle of a buffer moves whole vectors within a wave.

    The lowering of gfx942 and gfx950 applies it to the source addresses, with a shuffle among the
    lanes of a wave.

    Args:
        copy: The copy.
        encoding: Encoding of its pointers.
    """
    alloc_shape, size = copy.buffer.full_alloc_shape, copy.vector(encoding).size
    return _stays_in_a_wave(
        encoding, copy.shared, copy.shape, alloc_shape, size, copy.threads_per_warp
    )


def lowers(copy: AsyncCopy, encoding: DistributedEncoding, target: Target) -> bool:
    """Returns whether a copy compiles on every host if its pointers have an encoding."""
    size, run = copy.vector(encoding).size, copy.vector(encoding).run
    if encoding == copy.encoding:
        # Hosts abort if the attribute exceeds the widest instruction.  Up to 3.7 they also refuse
        # one that exceeds a contiguous run where the lanes have to write one.
        asked = copy.attribute
        if size < (min(asked, run) if target.lanes_have_addresses else asked):
            return False
    return _fits(copy, encoding, target)


def _fits(copy: AsyncCopy, encoding: DistributedEncoding, target: Target) -> bool:
    """Returns whether a copy compiles, provided that the attribute does not exceed the vector."""
    vector = copy.vector(encoding)
    if vector.size * copy.bits not in target.load_widths:
        return False
    if target.lanes_have_addresses:
        return True
    return vector.size == vector.run and _is_one_run(
        encoding,
        copy.shared,
        copy.shape,
        copy.buffer.full_alloc_shape,
        vector.size,
        copy.threads_per_warp,
    )


def lowers_at_best(tensor: str, buffer: str, threads: int, target: Target) -> bool:
    """Returns whether a copy compiles if pointers and mask are as well aligned as needed.

    Args:
        tensor: Type of its pointers or offsets, as text without aliases.
        buffer: Type of its buffer.
        threads: Lanes of a wave.
        target: The GPU.
    """
    source, lds = parse_type(tensor), parse_type(buffer)
    run = run_of(tensor, buffer)
    if run == 0 or not isinstance(source, TensorType) or not isinstance(lds, MemDescType):
        return False
    encoding, shared, bits = source.encoding, lds.encoding, lds.bit_width
    if not isinstance(encoding, DistributedEncoding) or not isinstance(shared, SharedEncoding):
        return False
    if bits is None:
        return False
    if target.lanes_have_addresses:
        return min(run * bits, WIDEST_BITS) in target.load_widths
    shape = source.static_shape
    return run * bits in target.load_widths and _is_one_run(
        encoding, shared, shape, lds.full_alloc_shape, run, threads
    )


@lru_cache(maxsize=256)
def _is_one_run(
    encoding: DistributedEncoding,
    shared: SharedEncoding,
    shape: tuple[int, ...],
    alloc_shape: tuple[int, ...],
    size: int,
    threads: int,
) -> bool:
    """Returns whether the lanes of a wave write one contiguous run of vectors in LDS."""
    if isinstance(shared, PaddedSharedEncoding):
        least = min(interval for interval, _ in shared.interval_padding_pairs)
        if least < size * threads:
            return False
    if not _stays_in_a_wave(encoding, shared, shape, alloc_shape, size, threads):
        return False
    layout = register_to_shared(encoding, _without_swizzle(shared), shape, alloc_shape)
    at = layout.out_dim_names.index("offset")
    steps = [basis[at] for basis in layout.in_bases("lane")]
    return all(step == size << bit for bit, step in enumerate(steps))


def _stays_in_a_wave(
    encoding: DistributedEncoding,
    shared: SharedEncoding,
    shape: tuple[int, ...],
    alloc_shape: tuple[int, ...],
    size: int,
    threads: int,
) -> bool:
    if not isinstance(shared, SwizzledSharedEncoding) or shared.max_phase == 1:
        return True
    swizzled = register_to_shared(encoding, shared, shape, alloc_shape)
    plain = register_to_shared(encoding, _without_swizzle(shared), shape, alloc_shape)
    moves = [move for name, _ in plain.bases for move in _moves(swizzled, plain, name)]
    return all(move % size == 0 and move < size * threads for move in moves)


def _without_swizzle(shared: SharedEncoding) -> SharedEncoding:
    if not isinstance(shared, SwizzledSharedEncoding):
        return shared
    return SwizzledSharedEncoding(1, 1, 1, shared.order, shared.cga_layout)


def _moves(swizzled: LinearLayout, plain: LinearLayout, name: str) -> list[int]:
    """Returns the offset bits that a swizzle flips, for each bit of a dimension."""
    one, other = swizzled.out_dim_names.index("offset"), plain.out_dim_names.index("offset")
    pairs = zip(swizzled.in_bases(name), plain.in_bases(name), strict=True)
    return [ours[one] ^ theirs[other] for ours, theirs in pairs]


def _layout_for(copy: AsyncCopy, target: Target) -> DistributedEncoding | None:
    """Returns the encoding with the widest instructions; ``None`` if it is no improvement.

    Returns the present encoding if only the attribute has to change.
    """
    compiles = lowers(copy, copy.encoding, target)
    fits = compiles or _fits(copy, copy.encoding, target)
    now = copy.vector(copy.encoding)
    for width in sorted(target.load_widths, reverse=True):
        size = width // copy.bits
        if size * copy.bits != width or (fits and size < now.size):
            continue
        encoding = _encoding_with(copy, size)
        if encoding is None or not copy.facts_in(encoding).is_local:
            continue
        if not _fits(copy, encoding, target):
            continue
        then = copy.vector(encoding)
        if then.size == size and (not fits or then.instructions < now.instructions):
            return encoding
    return copy.encoding if fits and not compiles else None


def _encoding_with(copy: AsyncCopy, size: int) -> DistributedEncoding | None:
    """Returns the encoding with vectors of a size whose threads follow the buffer's offsets."""
    shared = copy.shared
    if isinstance(shared, PaddedSharedEncoding):
        return _along_offsets(copy, shared, size)
    if not isinstance(shared, SwizzledSharedEncoding):
        return None
    if copy.share[shared.order[0]] < size:
        return None
    tile = [1] * len(copy.shape)
    tile[shared.order[0]] = size
    return copy.blocked(tile, shared.order)


def _along_offsets(
    copy: AsyncCopy, shared: PaddedSharedEncoding, size: int
) -> DistributedEncoding | None:
    """Enumerates the offsets by the registers of a vector, lanes, waves, then other registers."""
    rank = len(copy.shape)
    if copy.buffer.full_alloc_shape[-rank:] != copy.shape:
        return None
    layout = shared.to_linear_layout(copy.shape)
    bases, nothing = list(layout.in_bases("offset")), (0,) * rank
    if len(bases) < log2(size):
        return None

    def take(count: int) -> tuple[tuple[int, ...], ...]:
        taken = [bases.pop(0) if bases else nothing for _ in range(count)]
        return tuple(taken)

    vector = take(log2(size))
    lanes, warps = take(log2(copy.threads_per_warp)), take(log2(copy.num_warps))
    return LinearEncoding((*vector, *bases), lanes, warps, layout.in_bases("block"))
