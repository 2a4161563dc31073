"""Blocked, slice, linear and dot-operand encodings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..attribute_values import Attribute, OpaqueAttr
from ..linear_layout import LinearLayout
from .base import (
    Bases,
    DistributedEncoding,
    Encoding,
    Fields,
    Ints,
    ordered_parameters,
    print_bases,
    print_ints,
)
from .conversion import (
    broadcast_nd,
    combine_cta_and_cga,
    dim_names,
    fit_above,
    fit_below,
    identity_nd,
    matrix_order,
)
from .mma import AmdMfmaEncoding, AmdWmmaEncoding, NvidiaMmaEncoding

if TYPE_CHECKING:
    from ..aliases import AliasTable

__all__ = [
    "BlockedEncoding",
    "DotOperandEncoding",
    "GenericLinearEncoding",
    "LinearEncoding",
    "SliceEncoding",
]


@dataclass(frozen=True, slots=True)
class BlockedEncoding(DistributedEncoding):
    """``#ttg.blocked``: each thread holds a contiguous tile, threads and warps tile around it.

    Where the tile of a thread is larger than the tensor, the linear layout has register bits that
    repeat elements.  Triton 3.9 leaves these registers out (of blocked encodings only):
    ``layout.without_zero_bases("register")`` is the layout there.

    Attributes:
        size_per_thread: Elements of one thread per dimension.
        threads_per_warp: Threads per dimension.
        warps_per_cta: Warps per dimension.
        order: Dimensions, the fastest varying first.
        cga_layout: Basis per bit of the CTA in its cluster.
    """

    MNEMONIC: ClassVar[str] = "ttg.blocked"
    size_per_thread: Ints
    threads_per_warp: Ints
    warps_per_cta: Ints
    order: Ints
    cga_layout: Bases = ()

    @classmethod
    def _of(cls, fields: Fields) -> BlockedEncoding:
        return cls(
            fields.ints("sizePerThread"),
            fields.ints("threadsPerWarp"),
            fields.ints("warpsPerCTA"),
            *fields.order_and_cga(),
        )

    def _parameters(self, aliases: AliasTable | None) -> list[tuple[str, str]]:
        return [
            ("sizePerThread", print_ints(self.size_per_thread)),
            ("threadsPerWarp", print_ints(self.threads_per_warp)),
            ("warpsPerCTA", print_ints(self.warps_per_cta)),
            *ordered_parameters(self.order, self.cga_layout),
        ]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.order)

    def verify(self) -> None:
        """Checks lengths, powers of two, the order and the CGA layout.

        Raises:
            VerifyError: One of them is wrong.
        """
        self._check_order(self.order)
        lists = {
            "sizePerThread": self.size_per_thread,
            "threadsPerWarp": self.threads_per_warp,
            "warpsPerCTA": self.warps_per_cta,
        }
        self._check_lengths(self.rank, **lists)
        self._check_powers(**lists)
        self._check_cga(self.cga_layout, self.rank)

    def _layout(self, shape: Ints) -> LinearLayout:
        cta = (
            identity_nd("register", self.size_per_thread, self.order)
            * identity_nd("lane", self.threads_per_warp, self.order)
            * identity_nd("warp", self.warps_per_cta, self.order)
        )
        return combine_cta_and_cga(cta, self.cga_layout, shape)


@dataclass(frozen=True, slots=True)
class SliceEncoding(DistributedEncoding):
    """``#ttg.slice``: a distributed encoding with one dimension taken out.

    Attributes:
        dim: The dimension of the parent that is not there.
        parent: Encoding of a tensor with one dimension more.
    """

    MNEMONIC: ClassVar[str] = "ttg.slice"
    dim: int
    parent: Attribute

    @classmethod
    def _of(cls, fields: Fields) -> SliceEncoding:
        return cls(fields.number("dim"), fields.attribute("parent"))

    def _parameters(self, aliases: AliasTable | None) -> list[tuple[str, str]]:
        return [("dim", str(self.dim)), ("parent", self.parent.print(aliases))]

    @property
    def rank(self) -> int | None:
        """One less than the parent's."""
        parent = self.parent.rank if isinstance(self.parent, Encoding) else None
        return None if parent is None else parent - 1

    @property
    def cga_bases(self) -> Bases:
        """The parent's, without the dimension."""
        if not isinstance(self.parent, DistributedEncoding):
            return ()
        return tuple((*b[: self.dim], *b[self.dim + 1 :]) for b in self.parent.cga_bases)

    def verify(self) -> None:
        """Checks that the parent is a distributed encoding with this dimension and another one.

        Raises:
            VerifyError: One of them is wrong.
        """
        self.parent.verify()
        if isinstance(self.parent, OpaqueAttr):
            return
        if not isinstance(self.parent, DistributedEncoding):
            self._reject(f"expected a distributed encoding as 'parent', found '{self.parent}'")
        rank = self.parent.rank
        if rank is not None and rank < 2:
            self._reject(f"expected a parent of rank 2 or more, found rank {rank}")
        if rank is not None and self.dim >= rank:
            self._reject(f"expected 'dim' below the parent's rank {rank}, found {self.dim}")

    def _layout(self, shape: Ints) -> LinearLayout:
        if not isinstance(self.parent, Encoding):
            self._reject(f"expected a 'parent' that triton-ext knows, found '{self.parent}'")
        inner = self.parent.to_linear_layout((*shape[: self.dim], 1, *shape[self.dim :]))
        gone = f"dim{self.dim}"
        kept = [name for name in inner.out_dim_names if name != gone]
        layout = inner.sublayout(inner.in_dim_names, kept)
        renamed = tuple(zip(dim_names(len(shape)), (s for _, s in layout.out_dims), strict=True))
        return LinearLayout(layout.bases, renamed).without_zero_bases("register")


@dataclass(frozen=True, slots=True)
class DotOperandEncoding(DistributedEncoding):
    """``#ttg.dot_op``: an operand of the dot whose result has the parent's encoding.

    Attributes:
        operand_index: 0 for the left operand, 1 for the right one.
        parent: Encoding of the result.
        k_width: Consecutive elements of one thread along the contracted dimension; 0 where the
            parent does not need it.
    """

    MNEMONIC: ClassVar[str] = "ttg.dot_op"
    operand_index: int
    parent: Attribute
    k_width: int = 0

    @classmethod
    def _of(cls, fields: Fields) -> DotOperandEncoding:
        return cls(fields.number("opIdx"), fields.attribute("parent"), fields.number("kWidth", 0))

    def _parameters(self, aliases: AliasTable | None) -> list[tuple[str, str]]:
        return [
            ("opIdx", str(self.operand_index)),
            ("parent", self.parent.print(aliases)),
            *([("kWidth", str(self.k_width))] if self.k_width else []),
        ]

    @property
    def rank(self) -> int | None:
        """The parent's."""
        return self.parent.rank if isinstance(self.parent, Encoding) else None

    @property
    def k_dim(self) -> int:
        """The dimension that the dot contracts."""
        rank = self.rank or 2
        return rank - 1 if self.operand_index == 0 else rank - 2

    @property
    def cga_bases(self) -> Bases:
        """The parent's, without steps in the contracted dimension."""
        if not isinstance(self.parent, DistributedEncoding):
            return ()
        return tuple(
            tuple(0 if dim == self.k_dim else x for dim, x in enumerate(basis))
            for basis in self.parent.cga_bases
        )

    def verify(self) -> None:
        """Checks the operand's number, the parent, and that its kind and ``k_width`` fit.

        Raises:
            VerifyError: One of them is wrong.
        """
        if self.operand_index not in (0, 1):
            self._reject(f"expected 0 or 1 as 'opIdx', found {self.operand_index}")
        self.parent.verify()
        parent = self.parent
        if isinstance(parent, (BlockedEncoding, SliceEncoding)):
            if self.k_width:
                self._reject(f"expected no 'kWidth' with this parent, found {self.k_width}")
        elif isinstance(parent, NvidiaMmaEncoding):
            if not self.k_width and parent.version[0] in (2, 3):
                self._reject("expected 'kWidth', which an MMA parent needs")
            if parent.version[0] == 3 and self.operand_index == 1:
                self._reject("expected opIdx = 0: Hopper reads the right operand from memory")
        elif isinstance(parent, AmdMfmaEncoding):
            if not self.k_width:
                self._reject("expected 'kWidth', which an MFMA parent needs")
        elif isinstance(parent, AmdWmmaEncoding):
            self._verify_wmma(parent)
        elif not isinstance(parent, OpaqueAttr):
            self._reject(f"expected a blocked or matrix encoding as 'parent', found '{parent}'")

    def _verify_wmma(self, parent: AmdWmmaEncoding) -> None:
        allowed = {1: (8, 16), 2: (4, 8, 16), 3: (1, 2, 4, 8, 16, 32)}[parent.version]
        if self.k_width not in allowed:
            self._reject(
                f"expected 'kWidth' {' or '.join(map(str, allowed))} with WMMA version "
                f"{parent.version}, found {self.k_width}"
            )

    def _check_layout(self) -> None:
        if isinstance(self.parent, Encoding):
            self.parent._check_layout()
        if self.k_width:
            self._check_powers(kWidth=(self.k_width,))

    def _layout(self, shape: Ints) -> LinearLayout:
        parent = self.parent
        if isinstance(parent, BlockedEncoding):
            cta = self._blocked_tile(parent, shape)
        elif isinstance(parent, (NvidiaMmaEncoding, AmdMfmaEncoding, AmdWmmaEncoding)):
            cta = parent.operand_tile(self.operand_index, self.k_width, shape)
        else:
            self._reject("expected a parent whose operands have a known layout")
        # The host does not take the contracted dimension out for MFMA.
        cga = parent.cga_layout if isinstance(parent, AmdMfmaEncoding) else self.cga_bases
        return combine_cta_and_cga(cta, cga, shape)

    def _blocked_tile(self, parent: BlockedEncoding, shape: Ints) -> LinearLayout:
        """Every thread holds the whole contracted dimension."""
        sizes = list(parent.size_per_thread)
        sizes[self.k_dim] = shape[self.k_dim]
        return (
            identity_nd("register", sizes, parent.order)
            * broadcast_nd("lane", parent.threads_per_warp, parent.order, self.k_dim)
            * broadcast_nd("warp", parent.warps_per_cta, parent.order, self.k_dim)
        )


@dataclass(frozen=True, slots=True)
class _LinearBase(DistributedEncoding):
    """Base of linear and generic linear encodings.

    Attributes:
        reg_bases: Basis per bit of the register.
        lane_bases: Basis per bit of the lane.
        warp_bases: Basis per bit of the warp.
        block_bases: Basis per bit of the CTA in its cluster.
    """

    reg_bases: Bases
    lane_bases: Bases
    warp_bases: Bases
    block_bases: Bases

    @classmethod
    def _of(cls, fields: Fields) -> _LinearBase:
        return cls(
            fields.bases("register"),
            fields.bases("lane"),
            fields.bases("warp"),
            fields.bases("block"),
        )

    def _parameters(self, aliases: AliasTable | None) -> list[tuple[str, str]]:
        return [(name, print_bases(bases)) for name, bases in self._named().items()]

    def _named(self) -> dict[str, Bases]:
        return {
            "register": self.reg_bases,
            "lane": self.lane_bases,
            "warp": self.warp_bases,
            "block": self.block_bases,
        }

    @property
    def rank(self) -> int | None:
        """Length of a basis; ``None`` where there is none."""
        return next((len(basis) for bases in self._named().values() for basis in bases), None)

    @property
    def cga_bases(self) -> Bases:
        """The block bases."""
        return self.block_bases

    @property
    def linear_layout(self) -> LinearLayout:
        """The bases as a layout of the smallest shape that holds them."""
        return LinearLayout.of(self._named(), dim_names(self.rank or 1))

    @property
    def order(self) -> Ints:
        """Dimensions in the order in which the registers move through them."""
        rank = self.rank or 1
        moved = [dim for basis in self.reg_bases for dim, x in enumerate(basis) if x]
        return tuple(dict.fromkeys([*moved, *matrix_order(rank)]))

    def _check(self, swizzled: tuple[str, ...]) -> None:
        rank = self.rank
        if rank is None:
            self._reject("expected at least one basis")
        self._check_bases(rank, **self._named())
        for name, bases in self._named().items():
            for basis in bases:
                if name not in swizzled and sum(1 for x in basis if x) > 1:
                    self._reject(
                        f"expected each basis of '{name}' to move one dimension, found {basis}"
                    )
        if not self.linear_layout.is_surjective:
            self._reject("expected bases that reach every element of their shape")

    def _layout(self, shape: Ints) -> LinearLayout:
        sizes = dict(zip(dim_names(len(shape)), shape, strict=True))
        layout = self.linear_layout.transpose_outs([f"dim{dim}" for dim in self.order])
        layout = fit_below(fit_above(layout, sizes), sizes, drop_registers=True)
        if not layout.is_surjective:
            self._reject(f"expected bases that reach every element of the shape {list(shape)}")
        return layout.transpose_outs(dim_names(len(shape)))


@dataclass(frozen=True, slots=True)
class LinearEncoding(_LinearBase):
    """``#ttg.linear``: any layout whose bases move one dimension each, without repetitions."""

    MNEMONIC: ClassVar[str] = "ttg.linear"

    def verify(self) -> None:
        """Checks that bases move one dimension each and reach every element.

        Raises:
            VerifyError: They do not.
        """
        self._check(())

    def _check_layout(self) -> None:
        # 3.6 reads layouts whose bases repeat.
        layout = self.linear_layout
        moving = [basis for _, bases in layout.bases for basis in bases if any(basis)]
        if len(moving) != layout.total_out_bits:
            self._reject("expected bases that reach no element twice, but for zero bases")


@dataclass(frozen=True, slots=True)
class GenericLinearEncoding(_LinearBase):
    """``#ttg.generic_linear``: as linear, but warps may be swizzled and elements repeated."""

    MNEMONIC: ClassVar[str] = "ttg.generic_linear"

    def verify(self) -> None:
        """Checks that bases reach every element and all but those of warps move one dimension.

        Raises:
            VerifyError: They do not.
        """
        self._check(("warp",))
