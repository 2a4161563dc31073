"""Encodings of the results of matrix instructions, and tiles of their operands.

NVIDIA: PTX ISA, "Matrix Fragments for mma.m16n8k16" and "Register Fragments for wgmma".  AMD: the
MFMA and WMMA layouts of the CDNA and RDNA ISA manuals, which AMD's matrix instruction calculator
prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ..linear_layout import LinearLayout
from .base import (
    Bases,
    DistributedEncoding,
    Fields,
    Ints,
    cga_parameter,
    print_bases,
    print_ints,
)
from .conversion import (
    broadcast_nd,
    combine_cta_and_cga,
    dim_names,
    identity_nd,
    matrix_order,
    operand_order,
)

if TYPE_CHECKING:
    from ..aliases import AliasTable

__all__ = ["AmdMfmaEncoding", "AmdWmmaEncoding", "NvidiaMmaEncoding"]

identity = LinearLayout.identity_1d


def _ordered(layout: LinearLayout, order: Sequence[int]) -> LinearLayout:
    """A layout with all dimensions of ``order``, in that order."""
    for dim in order:
        if f"dim{dim}" not in layout.out_dim_names:
            layout = layout * identity(1, "register", f"dim{dim}")
    return layout.transpose_outs([f"dim{dim}" for dim in order])


@dataclass(frozen=True, slots=True)
class NvidiaMmaEncoding(DistributedEncoding):
    """``#ttg.nvidia_mma``: the result of ``mma`` (version 2) or ``wgmma`` (version 3).

    Attributes:
        version: Major and minor version of the tensor cores.
        warps_per_cta: Warps per dimension.
        instr_shape: Shape of the instruction: of its result for version 2, M, N, K for version 3.
        cga_layout: Basis per bit of the CTA in its cluster.
    """

    MNEMONIC: ClassVar[str] = "ttg.nvidia_mma"
    version: Ints
    warps_per_cta: Ints
    instr_shape: Ints
    cga_layout: Bases = ()

    @classmethod
    def _of(cls, fields: Fields) -> NvidiaMmaEncoding:
        warps = fields.ints("warpsPerCTA")
        return cls(
            (fields.number("versionMajor"), fields.number("versionMinor", 0)),
            warps,
            fields.ints("instrShape", ()),
            fields.cga(len(warps)),
        )

    def _parameters(self, aliases: AliasTable | None) -> list[tuple[str, str]]:
        return [
            ("versionMajor", str(self.version[0])),
            ("versionMinor", str(self.version[1])),
            ("warpsPerCTA", print_ints(self.warps_per_cta)),
            *cga_parameter(self.cga_layout),
            ("instrShape", print_ints(self.instr_shape)),
        ]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.warps_per_cta)

    def verify(self) -> None:
        """Checks the CGA layout.

        Raises:
            VerifyError: It is wrong.
        """
        self._check_cga(self.cga_layout, self.rank)

    def _check_layout(self) -> None:
        DistributedEncoding._check_layout(self)
        if self.rank not in (2, 3):
            self._reject(f"expected 2 or 3 numbers in 'warpsPerCTA', found {self.rank}")
        self._check_powers(warpsPerCTA=self.warps_per_cta)
        if self.version[0] not in (2, 3):
            self._reject(f"expected 2 or 3 as 'versionMajor', found {self.version[0]}")
        if self.instr_shape:
            self._check_tile()

    def _check_tile(self) -> None:
        self._check_lengths(self.rank if self.version[0] == 2 else 3, instrShape=self.instr_shape)
        rows, columns = self._tile_shape()[-2:]
        if rows % 8 or columns % 8 or not rows or not columns:
            self._reject(f"expected a tile of multiples of 8, found {rows} x {columns}")
        if self.version[0] == 3 and rows != 16:
            self._reject(f"expected M = 16 for wgmma, found {rows}")

    def _tile_shape(self) -> Ints:
        """Shape of the part of the result that one warp computes in one instruction."""
        if not self.instr_shape:
            self._reject("expected an 'instrShape', which the layout depends on, found none")
        return self.instr_shape if self.version[0] == 2 else self.instr_shape[:2]

    def _warps(self, along: int | None) -> LinearLayout:
        order = matrix_order(self.rank, row_major=self.version[0] != 3)
        return broadcast_nd("warp", self.warps_per_cta, order, along)

    def _layout(self, shape: Ints) -> LinearLayout:
        tile_shape = (1,) * (self.rank - len(self._tile_shape())) + self._tile_shape()
        order = matrix_order(self.rank)
        tile = _mma_tile(tile_shape, 2, order)
        return combine_cta_and_cga(tile * self._warps(None), self.cga_layout, shape)

    def operand_tile(self, operand_index: int, k_width: int, shape: Ints) -> LinearLayout:
        """Layout of an operand over one CTA.

        Args:
            operand_index: 0 or 1.
            k_width: Consecutive elements of one thread along K.
            shape: Shape of the operand, which does not matter here.
        """
        rows, columns = (16, k_width * 8) if operand_index == 0 else (k_width * 8, 8)
        order = operand_order(operand_index, self.rank)
        tile_shape = (1,) * (self.rank - 2) + (rows, columns)
        k_dim = self.rank - 1 if operand_index == 0 else self.rank - 2
        return _mma_tile(tile_shape, k_width, order) * self._warps(k_dim)


def _mma_tile(shape: Ints, k_width: int, order: Sequence[int]) -> LinearLayout:
    """Tile of 8 x 4 threads: ``k_width`` registers, 4 lanes, 8 lanes, then the rest."""
    inner, outer = f"dim{order[0]}", f"dim{order[1]}"
    columns, rows = shape[order[0]], shape[order[1]]
    if columns % (4 * k_width):
        raise ValueError(f"{columns} columns are not a multiple of 4 threads of {k_width} elements")
    tile = (
        identity(k_width, "register", inner)
        * identity(4, "lane", inner)
        * identity(8, "lane", outer)
        * identity(rows // 8, "register", outer)
        * identity(columns // (4 * k_width), "register", inner)
    )
    return _ordered(tile, order)


@dataclass(frozen=True, slots=True)
class AmdMfmaEncoding(DistributedEncoding):
    """``#ttg.amd_mfma``: the result of an MFMA instruction of CDNA, 64 lanes per wave.

    Attributes:
        version: 1 gfx908, 2 gfx90a, 3 gfx942, 4 gfx950.
        instr_shape: M, N and K of the instruction.
        transposed: Whether each lane holds consecutive elements of a row instead of a column.
        warps_per_cta: Waves per dimension.
        element_bitwidth: Bits of an element of the result, 32 or 64.
        tiles_per_warp: Tiles of one wave that lie side by side, per dimension; empty for one.
        cga_layout: Basis per bit of the workgroup in its cluster.
    """

    MNEMONIC: ClassVar[str] = "ttg.amd_mfma"
    version: int
    instr_shape: Ints
    transposed: bool
    warps_per_cta: Ints
    element_bitwidth: int = 32
    tiles_per_warp: Ints = ()
    cga_layout: Bases = ()

    @classmethod
    def _of(cls, fields: Fields) -> AmdMfmaEncoding:
        warps = fields.ints("warpsPerCTA")
        tiles = fields.ints("tilesPerWarp", ())
        return cls(
            fields.number("version"),
            fields.ints("instrShape"),
            fields.flag("isTransposed", False),
            warps,
            fields.number("elementBitWidth", 32),
            () if set(tiles) <= {1} else tiles,
            fields.cga(len(warps)),
        )

    def _parameters(self, aliases: AliasTable | None) -> list[tuple[str, str]]:
        has_tiles = bool(set(self.tiles_per_warp) - {1})
        return [
            ("version", str(self.version)),
            ("warpsPerCTA", print_ints(self.warps_per_cta)),
            ("instrShape", print_ints(self.instr_shape)),
            ("isTransposed", str(self.transposed).lower()),
            *cga_parameter(self.cga_layout),
            *([("tilesPerWarp", print_ints(self.tiles_per_warp))] if has_tiles else []),
            *([("elementBitWidth", "64")] if self.element_bitwidth == 64 else []),
        ]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.warps_per_cta)

    @property
    def tiles(self) -> Ints:
        """Tiles of one wave that lie side by side, per dimension."""
        return self.tiles_per_warp or (1,) * self.rank

    def verify(self) -> None:
        """Checks version, instruction shape, waves, element width and the CGA layout.

        Raises:
            VerifyError: One of them is wrong.
        """
        if self.version > 4:
            self._reject(f"expected 1 to 4 as 'version', found {self.version}")
        shapes = ((32, 32), (16, 16), (64, 4), (4, 64))
        if self.instr_shape[:2] not in shapes:
            self._reject(
                "expected 'instrShape' with M x N of 32 x 32, 16 x 16, 64 x 4 or 4 x 64, "
                f"found {list(self.instr_shape)}"
            )
        if self.instr_shape[:2] == (64, 4) and not self.transposed:
            self._reject("expected isTransposed = true with an instruction of 64 x 4")
        if self.element_bitwidth not in (32, 64):
            self._reject(f"expected 'elementBitWidth' 32 or 64, found {self.element_bitwidth}")
        self._check_cga(self.cga_layout, self.rank)

    def _check_layout(self) -> None:
        DistributedEncoding._check_layout(self)
        if not self.version:
            self._reject(f"expected 1 to 4 as 'version', found {self.version}")
        if self.rank not in (2, 3):
            self._reject(f"expected 2 or 3 numbers in 'warpsPerCTA', found {self.rank}")
        self._check_lengths(3, instrShape=self.instr_shape)
        self._check_lengths(self.rank, tilesPerWarp=self.tiles)
        self._check_powers(warpsPerCTA=self.warps_per_cta, tilesPerWarp=self.tiles)

    def _layout(self, shape: Ints) -> LinearLayout:
        order = matrix_order(self.rank)
        column, row = f"dim{order[0]}", f"dim{order[1]}"
        rows, columns = self.instr_shape[:2]
        # A lane holds groups of this many consecutive elements.
        height = 1 if self.element_bitwidth == 64 else 4
        along, across, width = (row, column, columns)
        if self.transposed:
            along, across, width = (column, row, rows)
        tile = (
            identity(height, "register", along)
            * identity(width, "lane", across)
            * identity(64 // width, "lane", along)
            * identity(max(1, rows * columns // (64 * height)), "register", along)
        )
        tile = _ordered(tile, order)
        # Tiles of one wave side by side, then waves, and all of the columns before other rows.
        tiles_m, tiles_n = self.tiles[order[1]], self.tiles[order[0]]
        waves_m, waves_n = self.warps_per_cta[order[1]], self.warps_per_cta[order[0]]
        tile = tile * identity(tiles_n, "register", column) * identity(waves_n, "warp", column)
        repeats = shape[order[0]] // (columns * waves_n * tiles_n)
        tile = tile * identity(max(1, repeats), "register", column)
        tile = tile * identity(tiles_m, "register", row) * identity(waves_m, "warp", row)
        for dim in order[2:]:
            tile = tile * identity(self.warps_per_cta[dim], "warp", f"dim{dim}")
        return combine_cta_and_cga(tile, self.cga_layout, shape)

    def operand_tile(self, operand_index: int, k_width: int, shape: Ints) -> LinearLayout:
        """Layout of an operand over one workgroup; see :meth:`NvidiaMmaEncoding.operand_tile`.

        Args:
            operand_index: 0 or 1.
            k_width: Consecutive elements of one lane along K.
            shape: Shape of the operand.
        """
        order = operand_order(operand_index, self.rank)
        k_dim, other = f"dim{order[0]}", f"dim{order[1]}"
        other_size = self.instr_shape[operand_index]
        k_size = 64 // other_size * k_width
        tile = (
            identity(k_width, "register", k_dim)
            * identity(other_size, "lane", other)
            * identity(64 // other_size, "lane", k_dim)
        )
        if other_size == 64:
            # The other operand, 4 wide, spreads 16 times as much of K over its lanes.
            tile = tile * identity(16, "register", k_dim)
            k_size *= 16
        if shape[order[0]] > k_size:
            tile = tile * identity(shape[order[0]] // k_size, "register", k_dim)
        tile = tile * identity(self.tiles[order[1]], "register", other)
        tile = _ordered(tile, order)
        warps = broadcast_nd("warp", self.warps_per_cta, matrix_order(self.rank), order[0])
        return tile * warps


_WMMA_DEFAULT: Ints = (16, 16, 16)


@dataclass(frozen=True, slots=True)
class AmdWmmaEncoding(DistributedEncoding):
    """``#ttg.amd_wmma``: the result of a WMMA instruction, 32 lanes per wave.

    Attributes:
        version: 1 RDNA3, 2 RDNA4, 3 gfx1250.
        transposed: Whether each lane holds consecutive elements of a row instead of a column.
        warp_bases: Basis per bit of the wave, in tiles.
        reg_bases: Basis per repetition of the instruction by one wave, in tiles.
        instr_shape: M, N and K of the instruction.
        cga_layout: Basis per bit of the workgroup in its cluster.
        as_warps: Whether waves are printed as counts (``warpsPerCTA``, host 3.6).
    """

    MNEMONIC: ClassVar[str] = "ttg.amd_wmma"
    version: int
    transposed: bool
    warp_bases: Bases
    reg_bases: Bases = ()
    instr_shape: Ints = _WMMA_DEFAULT
    cga_layout: Bases = ()
    given_rank: int = 2
    as_warps: bool = field(default=False, compare=False)

    @classmethod
    def _of(cls, fields: Fields) -> AmdWmmaEncoding:
        version = fields.number("version")
        transposed = fields.flag("isTranspose", False)
        instr_shape = fields.ints("instrShape", _WMMA_DEFAULT)
        as_warps = fields.has("warpsPerCTA")
        if as_warps:
            warps = fields.ints("warpsPerCTA")
            tiles = fields.ints("tilesPerWarp", (1,) * len(warps))
            rank = len(warps)
            cta = identity_nd("register", tiles, matrix_order(rank)) * identity_nd(
                "warp", warps, matrix_order(rank)
            )
            cta = cta.transpose_outs(dim_names(rank))
            bases = {name: cta.in_bases(name) for name in ("register", "warp")}
        else:
            bases = fields.layout("ctaLayout")
            inferred = next((len(b) for vectors in bases.values() for b in vectors), 2)
            rank = fields.number("rank", inferred)
        return cls(
            version,
            transposed,
            bases.get("warp", ()),
            bases.get("register", ()),
            instr_shape,
            fields.cga(rank),
            rank,
            as_warps,
        )

    def _parameters(self, aliases: AliasTable | None) -> list[tuple[str, str]]:
        cga = cga_parameter(self.cga_layout)
        head = [("version", str(self.version)), ("isTranspose", str(self.transposed).lower())]
        instr = [("instrShape", print_ints(self.instr_shape))]
        if self.as_warps:
            counts = [("warpsPerCTA", print_ints(self.warps_per_cta))]
            tiles = self._counts(self.reg_bases, (1,) * self.rank)
            if set(tiles) != {1}:
                counts.append(("tilesPerWarp", print_ints(tiles)))
            return [*head, *counts, *cga, *instr]
        # The host prints neither an empty list nor the rank, but needs both to read the text.
        registers = f"register = {print_bases(self.reg_bases)}, " if self.reg_bases else ""
        layout = f"{registers}warp = {print_bases(self.warp_bases)}"
        shape = instr if self.instr_shape != _WMMA_DEFAULT else []
        rank = [("rank", str(self.rank))] if self.rank != 2 else []
        return [*head, ("ctaLayout", f"{{{layout}}}"), *rank, *cga, *shape]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return self.given_rank

    @property
    def warps_per_cta(self) -> Ints:
        """Waves per dimension."""
        return self._counts(self.warp_bases, (1,) * self.rank)

    @staticmethod
    def _counts(bases: Bases, start: Ints) -> Ints:
        counts = list(start)
        for basis in bases:
            moved = [dim for dim, x in enumerate(basis) if x]
            if moved:
                counts[moved[0]] *= 2
        return tuple(counts)

    @property
    def cta_layout(self) -> LinearLayout:
        """Tiles of one workgroup: inputs ``register`` and ``warp``."""
        return LinearLayout.of(
            {"register": self.reg_bases, "warp": self.warp_bases}, dim_names(self.rank)
        )

    def verify(self) -> None:
        """Checks version, instruction shape, tiles and the CGA layout.

        Raises:
            VerifyError: One of them is wrong.
        """
        if not 1 <= self.version <= 3:
            self._reject(f"expected 1, 2 or 3 as 'version', found {self.version}")
        self._check_bases(self.rank, register=self.reg_bases, warp=self.warp_bases)
        self._check_lengths(3, instrShape=self.instr_shape)
        shapes = [(16, 16, k) for k in (4, 16, 32, 64, 128)] + [(32, 16, 64), (32, 16, 128)]
        if self.instr_shape not in shapes:
            self._reject(
                f"expected 'instrShape' 16 x 16 or 32 x 16, found {list(self.instr_shape)}"
            )
        # 3.6 and 3.7 have counts of warps instead, and pass over a 'ctaLayout'.
        if self.rank not in (2, 3):
            self._reject(f"expected bases of length 2 or 3, found {self.rank}")
        if not self.cta_layout.is_surjective:
            self._reject("expected a 'ctaLayout' that reaches every tile")
        self._check_cga(self.cga_layout, self.rank)

    def _over_tiles(self, tile: LinearLayout, dropped: int | None = None) -> LinearLayout:
        """Lays a tile over the tiles of one workgroup, which stay in place in ``dropped``."""
        layout = self.cta_layout
        if dropped is not None:
            moved = tuple(
                (
                    name,
                    tuple(
                        tuple(0 if dim == dropped else x for dim, x in enumerate(basis))
                        for basis in bases
                    ),
                )
                for name, bases in layout.bases
            )
            sizes = tuple(
                (name, 1 if name == f"dim{dropped}" else size) for name, size in layout.out_dims
            )
            layout = LinearLayout(moved, sizes)
            kept = [
                basis
                for basis, before in zip(layout.in_bases("register"), self.reg_bases, strict=True)
                if any(basis) or not any(before)
            ]
            layout = layout.with_in_bases("register", kept)
        return tile * layout.transpose_outs(tile.out_dim_names)

    def _layout(self, shape: Ints) -> LinearLayout:
        order = matrix_order(self.rank)
        column, row = f"dim{order[0]}", f"dim{order[1]}"
        along, across = (column, row) if self.transposed else (row, column)
        rows, columns = self.instr_shape[:2]
        lanes, height = (rows, columns) if self.transposed else (columns, rows)
        if self.version == 1:
            # Lanes 16 to 31 hold the odd elements.
            tile = (
                identity(lanes, "lane", across)
                * identity(2, "lane", along)
                * identity(height // 2, "register", along)
            )
        else:
            tile = (
                identity(8, "register", along)
                * identity(16, "lane", across)
                * identity(2, "lane", along)
                * identity(height // 16, "register", along)
                * identity(lanes // 16, "register", across)
            )
        tile = _in_order(_ordered(tile, order), ("register", "lane"))
        return combine_cta_and_cga(self._over_tiles(tile), self.cga_layout, shape)

    def operand_tile(self, operand_index: int, k_width: int, shape: Ints) -> LinearLayout:
        """Layout of an operand over one workgroup; see :meth:`AmdMfmaEncoding.operand_tile`.

        Args:
            operand_index: 0 or 1.
            k_width: Consecutive elements of one lane along K.
            shape: Shape of the operand.
        """
        order = operand_order(operand_index, self.rank)
        k_dim, other = f"dim{order[0]}", f"dim{order[1]}"
        other_size = self.instr_shape[operand_index]
        # In version 1 the upper 16 lanes repeat the lower ones.
        upper = (
            LinearLayout.zeros_1d(2, "lane", k_dim)
            if self.version == 1
            else identity(2, "lane", k_dim)
        )
        tile = (
            identity(k_width, "register", k_dim)
            * identity(16, "lane", other)
            * upper
            * identity(max(1, self.instr_shape[2] // (2 * k_width)), "register", k_dim)
            * identity(other_size // 16, "register", other)
        )
        return self._over_tiles(_ordered(tile, order), order[0])


def _in_order(layout: LinearLayout, names: Sequence[str]) -> LinearLayout:
    return layout.transpose_ins([name for name in names if layout.has_in_dim(name)])
