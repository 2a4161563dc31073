"""Chooses the encoding of a buffer in LDS: candidates, modelled costs, legality.

Candidates for a buffer with a padded or swizzled encoding:

* 2 or 4 partitions along either dimension, in any number of groups whose pieces are still one tile
  of a matrix instruction;
* in each piece, the present encoding, and padding of 128 bits after every row of 256 to 1024 bytes
  (upstream's padding for WMMA operands);
* that padding without partitions.

The best has the fewest wavefronts (:mod:`.partition_conflicts`), then the fewest instructions of
each TDM load, then the fewest partitions, then the fewest pieces.  A candidate is legal for TDM if
(upstream's lowering, and the launcher that makes descriptors)

1. at least as many waves issue the load as there are partitions;
2. a piece is not swizzled, and has one interval of 2 to 256 dwords, a power of two, with 1 to 128
   dwords of padding;
3. each instruction writes a multiple of the interval, because padding is counted from its start;
4. a hint of the waves to use names a multiple of the pieces, and a barrier gets one arrival.

Paddings for which Triton's allocation reserves too little are no candidates either.

If the contracted dimension is not the fastest, Triton reads with transposing instructions with
undocumented bank conflicts: then only partitions are compared, and the padding stays.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from triton_ext.analysis.allocation import buffer_size, reserved_bytes
from triton_ext.analysis.bank_conflicts import Access, BankModel, Conflicts
from triton_ext.analysis.warps import num_warps_of
from triton_ext.errors import VerifyError
from triton_ext.ir import Module, Operation, Value
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.dialects import ttg
from triton_ext.ir.encodings import (
    DistributedEncoding,
    DotOperandEncoding,
    PaddedSharedEncoding,
    PartitionedSharedEncoding,
    SharedEncoding,
    SwizzledSharedEncoding,
)
from triton_ext.ir.types import MemDescType, TensorType

from ..dialect import amdg
from .lds import Lds
from .partition_conflicts import joint_wavefronts
from .partition_group import BufferGroup

__all__ = ["Choice", "GroupAccesses", "Renamed", "viewed"]

_TILE: Final = 16
_PARTITIONS: Final = (2, 4)
_DWORD_BITS: Final = 32
_PAD_BITS: Final = 128
_LEAST_INTERVAL_BITS, _MOST_INTERVAL_BITS = 256 * 8, 1024 * 8

#: New encodings of tensors, by their old ones.
Renamed = Mapping[DistributedEncoding, DistributedEncoding]


@dataclass(frozen=True, slots=True)
class Choice:
    """An encoding for the allocations of a group.

    Attributes:
        encoding: The encoding.
        wavefronts: Wavefronts of all accesses by the model, each operation once.
        instructions: Instructions of each TDM load; 1 if there is none.
    """

    encoding: SharedEncoding
    wavefronts: int
    instructions: int = 1

    @property
    def partitions(self) -> int:
        """Returns the number of physical partitions of a buffer."""
        encoding = self.encoding
        return encoding.num_partitions if isinstance(encoding, PartitionedSharedEncoding) else 1

    @property
    def key(self) -> tuple[int, ...]:
        """Returns a sort key; smaller is better."""
        encoding = self.encoding
        pieces = encoding.num_pieces if isinstance(encoding, PartitionedSharedEncoding) else 1
        return (self.wavefronts, self.instructions, self.partitions, pieces)


def viewed(encoding: SharedEncoding, dims: Sequence[int]) -> SharedEncoding:
    """Returns the encoding of a view with these dimensions of the buffer.

    Raises:
        VerifyError: The transpose of the encoding is unknown.
    """
    if list(dims) == sorted(dims):
        return encoding
    if isinstance(encoding, PartitionedSharedEncoding):
        inner = encoding.partition_layout
        assert isinstance(inner, SharedEncoding)
        return PartitionedSharedEncoding(
            encoding.num_partitions,
            encoding.num_groups,
            list(dims).index(encoding.partition_dim),
            viewed(inner, dims),
        )
    if isinstance(encoding, PaddedSharedEncoding):
        offset, block = (
            tuple(tuple(basis[dim] for dim in dims) for basis in bases)
            for bases in (encoding.offset_bases, encoding.cga_layout)
        )
        shape = tuple(encoding.shape[dim] for dim in dims)
        return PaddedSharedEncoding(encoding.interval_padding_pairs, offset, block, shape)
    if isinstance(encoding, SwizzledSharedEncoding) and not encoding.cga_layout:
        order = tuple(list(dims).index(dim) for dim in encoding.order)
        return replace(encoding, order=order)
    raise VerifyError(f"the transpose of '{encoding}' is not known")


@dataclass(frozen=True, slots=True)
class _Access:
    """A read or write of a group's buffer by an operation."""

    tensor: TensorType
    buffer: MemDescType
    dims: tuple[int, ...]
    is_store: bool

    def conflicts(self, encoding: SharedEncoding, renamed: Renamed, model: BankModel) -> Conflicts:
        """Returns the modelled conflicts with an encoding and renamed tensors."""
        held = self.tensor.encoding
        assert isinstance(held, DistributedEncoding)
        return _conflicts(
            renamed.get(held, held),
            viewed(encoding, self.dims),
            self.tensor.static_shape,
            self.buffer.bit_width or 8,
            self.buffer.full_alloc_shape,
            self.is_store,
            model,
        )


@lru_cache(maxsize=1024)
def _conflicts(
    tensor: DistributedEncoding,
    buffer: SharedEncoding,
    shape: tuple[int, ...],
    bits: int,
    alloc_shape: tuple[int, ...],
    is_store: bool,
    model: BankModel,
) -> Conflicts:
    # Cached: a kernel's buffers are alike, and most orders of waves change few of their tensors.
    access = Access.of(tensor, buffer, shape, bits, alloc_shape)
    return joint_wavefronts(access, model, is_store=is_store)


class GroupAccesses:
    """The accesses of a group with their types, and their modelled cost.

    Args:
        group: The group, which has no trouble.
        module: Its module.
        lds: The LDS of the GPU.

    Attributes:
        problem: Why the model does not apply; empty if it does.
    """

    def __init__(self, group: BufferGroup, module: Module, lds: Lds) -> None:
        types = self._names = AliasTable(module.aliases)
        self.group, self.lds = group, lds
        self.types = [_memdesc(types, op.results[0]) for op in group.allocations]
        encodings = [type_.encoding for type_ in self.types]
        self.encoding = encodings[0]
        self.problem = self._problem(encodings, types)
        self.accesses: list[_Access] = []
        for op, tensor, buffer in group.accesses:
            held = types.type(tensor.type)
            assert isinstance(held, TensorType)
            is_store = op not in group.loads
            self.accesses.append(
                _Access(held, _memdesc(types, buffer), group.members[buffer], is_store)
            )
            if not isinstance(held.encoding, DistributedEncoding):
                self.problem = self.problem or "the encoding of a tensor is not known"
        self._legal: list[SharedEncoding] | None = None
        # Most operations of an unrolled or pipelined loop are alike.
        self._counts = Counter(self.accesses)
        self.rank = self.encoding.rank or 0 if isinstance(self.encoding, SharedEncoding) else 0

    def _problem(self, encodings: Sequence[object], types: AliasTable) -> str:
        first = encodings[0]
        if any(encoding != first for encoding in encodings):
            return "one descriptor copies buffers of several encodings"
        if isinstance(first, PartitionedSharedEncoding):
            return "the user chose the partitions"
        if isinstance(first, PaddedSharedEncoding):
            plain = PaddedSharedEncoding.with_identity_for((), first.shape, first.order)
            if first.cga_layout or first.offset_bases != plain.offset_bases:
                return "its padded encoding is not determined by an order of dimensions"
        elif not isinstance(first, SwizzledSharedEncoding) or first.cga_layout:
            return "only padded and swizzled encodings of one workgroup can be partitioned"
        if first.rank != 2:
            return "only buffers of two dimensions can be partitioned"
        for op in self.group.slices:
            view = ttg.MemDescSubsliceOp.match(op)
            if view is not None and len(_memdesc(types, view.src).shape) > first.rank:
                return "Triton cannot slice several padded buffers at once"
        return ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape of one buffer of the first allocation."""
        return self.types[0].full_alloc_shape[-self.rank :]

    @property
    def bits(self) -> int:
        """Returns the element width."""
        return self.types[0].bit_width or 8

    def now(self, renamed: Renamed) -> Choice:
        """Returns the present encoding, in one partition.

        Raises:
            VerifyError: An access is malformed.
        """
        assert isinstance(self.encoding, SharedEncoding)
        return self._choice(self.encoding, renamed)

    def choices(self, renamed: Renamed) -> Iterator[Choice]:
        """Yields the legal candidates with their costs.

        Args:
            renamed: New encodings of tensors.
        """
        if self._legal is None:
            self._legal = [e for e in self._candidates() if self._is_legal(e)]
        for encoding in self._legal:
            yield self._choice(encoding, renamed)

    def _choice(self, encoding: SharedEncoding, renamed: Renamed) -> Choice:
        wavefronts = 0
        for access, count in self._counts.items():
            found = access.conflicts(encoding, renamed, self.lds.bank_model)
            wavefronts += count * found.wavefronts
        return Choice(encoding, wavefronts, self._instructions(encoding))

    def _instructions(self, encoding: SharedEncoding) -> int:
        if not isinstance(encoding, PartitionedSharedEncoding):
            return 1
        pieces = encoding.num_pieces
        return max(
            [pieces // math.gcd(num_warps_of(op, 4), pieces) for op in self.group.copies], default=1
        )

    # ---- candidates

    @property
    def is_transposed(self) -> bool:
        """Returns whether an operand is read along another dimension than the instruction's."""
        encoding = self.encoding
        if not isinstance(encoding, (PaddedSharedEncoding, SwizzledSharedEncoding)):
            return False
        order = encoding.order
        for access in self.accesses:
            held = access.tensor.encoding
            if access.is_store or not isinstance(held, DotOperandEncoding):
                continue
            if access.dims[held.k_dim] != order[0]:
                return True
        return False

    def _candidates(self) -> Iterator[SharedEncoding]:
        encoding, shape = self.encoding, self.shape
        assert isinstance(encoding, (PaddedSharedEncoding, SwizzledSharedEncoding))
        if isinstance(encoding, SwizzledSharedEncoding) and not self.is_transposed:
            yield self._padded(shape, encoding.order)
        for dim in range(self.rank):
            for count in _PARTITIONS:
                groups = 1
                while count * groups * _TILE <= shape[dim]:
                    piece = list(shape)
                    piece[dim] //= count * groups
                    for inner in self._inner(tuple(piece)):
                        yield PartitionedSharedEncoding(count, groups, dim, inner)
                    groups *= 2

    def _inner(self, piece: tuple[int, ...]) -> Iterator[SharedEncoding]:
        encoding = self.encoding
        assert isinstance(encoding, (PaddedSharedEncoding, SwizzledSharedEncoding))
        present: SharedEncoding = encoding
        if isinstance(encoding, PaddedSharedEncoding):
            present = PaddedSharedEncoding.with_identity_for(
                encoding.interval_padding_pairs, piece, encoding.order
            )
        yield present
        padded = self._padded(piece, encoding.order)
        if padded != present and not self.is_transposed:
            yield padded

    def _padded(self, shape: tuple[int, ...], order: Sequence[int]) -> PaddedSharedEncoding:
        row = shape[order[0]] * self.bits
        interval = min(max(row, _LEAST_INTERVAL_BITS), _MOST_INTERVAL_BITS) // self.bits
        pair = (interval, max(1, _PAD_BITS // self.bits))
        return PaddedSharedEncoding.with_identity_for((pair,), shape, order)

    # ---- limits

    def _is_legal(self, encoding: SharedEncoding) -> bool:
        for type_ in self.types:
            wanted = replace(type_, encoding=encoding)
            try:
                needed = buffer_size(wanted).bytes
            except VerifyError:
                return False
            if reserved_bytes(wanted) < needed:
                return False
        if not all(self._can_slice(op, encoding) for op in self.group.slices):
            return False
        return all(self._can_copy(op, encoding) for op in self.group.copies)

    def _can_slice(self, op: Operation, encoding: SharedEncoding) -> bool:
        """Returns whether a part of a buffer consists of whole pieces."""
        view = ttg.MemDescSubsliceOp.match(op)
        if view is None or not isinstance(encoding, PartitionedSharedEncoding):
            return True
        dims = self.group.members[view.src]
        at = dims.index(encoding.partition_dim)
        size = _memdesc(self._names, view.result).static_shape[at]
        pieces = encoding.piece_shape(self.shape)[encoding.partition_dim] * encoding.num_partitions
        return size % pieces == 0 and view.offsets[at] % pieces == 0

    def _can_copy(self, op: Operation, encoding: SharedEncoding) -> bool:
        """Checks the numbered rules of TDM loads."""
        copy = amdg.AsyncTdmCopyGlobalToLocalOp.match(op)
        assert copy is not None
        warps = num_warps_of(op, 4)
        inner, pieces = encoding, 1
        if isinstance(encoding, PartitionedSharedEncoding):
            if warps < encoding.num_partitions:
                return False
            pieces = encoding.num_pieces
            layout = encoding.partition_layout
            assert isinstance(layout, SharedEncoding)
            inner = layout
            hint = copy.warp_used_hint
            if hint is not None and hint.bit_count() % pieces:
                return False
            if copy.barrier is not None and self._instructions(encoding) > 1:
                return False
        if isinstance(inner, SwizzledSharedEncoding):
            return inner.max_phase == 1 and tuple(inner.order) == (1, 0)
        if not isinstance(inner, PaddedSharedEncoding) or len(inner.interval_padding_pairs) != 1:
            return False
        (interval, padding), *_ = inner.interval_padding_pairs
        if inner.order != (1, 0) or not (
            2 <= interval * self.bits / _DWORD_BITS <= 256
            and 1 <= padding * self.bits / _DWORD_BITS <= 128
        ):
            return False
        elements = math.prod(self.shape) // max(warps, pieces)
        return elements % interval == 0


def _memdesc(types: AliasTable, value: Value) -> MemDescType:
    type_ = types.type(value.type)
    assert isinstance(type_, MemDescType)
    return type_
