"""Linear layouts: maps between bit vectors that are linear over the field of two elements.

A layout takes hardware coordinates (``register``, ``lane``, ``warp``, ``block``, or an ``offset``
into shared memory) to tensor coordinates (``dim0``, ``dim1``, ...).  All sizes are powers of two,
and the map is fixed by its *bases*: the images of the powers of two of every input dimension.  The
image of any other input is the XOR of the images of its bits.  The theory is in Zhou et al.,
"Linear Layouts" (arXiv:2505.23819).  Names follow Triton's ``LinearLayout``.

Values are immutable and hashable; every operation returns a new layout.  Misuse by a caller (an
unknown dimension, sizes that do not fit) is a :class:`ValueError` that names both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["LinearLayout", "is_power_of_two", "log2"]

Basis = tuple[int, ...]


def is_power_of_two(value: int) -> bool:
    """Tells whether a number is 1, 2, 4, ..."""
    return value > 0 and value & (value - 1) == 0


def log2(value: int) -> int:
    """Returns the exponent of a power of two.

    Raises:
        ValueError: The number is not one.
    """
    if not is_power_of_two(value):
        raise ValueError(f"expected a power of two, found {value}")
    return value.bit_length() - 1


@dataclass(frozen=True, slots=True)
class LinearLayout:
    """A linear map, given by its bases.

    Attributes:
        bases: For each input dimension, in order, its name and the image of each power of two: one
            coordinate per output dimension.
        out_dims: Name and size of each output dimension, in order.
    """

    bases: tuple[tuple[str, tuple[Basis, ...]], ...]
    out_dims: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        for name, size in self.out_dims:
            if not is_power_of_two(size):
                raise ValueError(f"expected a power of two as the size of {name}, found {size}")
        sizes = [size for _, size in self.out_dims]
        for names in (self.in_dim_names, self.out_dim_names):
            if len(set(names)) != len(names):
                raise ValueError(f"expected dimensions of different names, found {names}")
        for name, vectors in self.bases:
            for basis in vectors:
                if len(basis) != len(sizes):
                    raise ValueError(
                        f"expected {len(sizes)} coordinates in a basis of {name}, found {basis}"
                    )
                if any(not 0 <= x < size for x, size in zip(basis, sizes, strict=True)):
                    raise ValueError(
                        f"expected a basis of {name} inside of {sizes}, found {list(basis)}"
                    )

    # ---- construction

    @classmethod
    def of(
        cls,
        bases: Mapping[str, Iterable[Sequence[int]]],
        out_dims: Mapping[str, int] | Sequence[str],
    ) -> LinearLayout:
        """Creates a layout from mappings.

        Args:
            bases: Input dimension to its bases.
            out_dims: Output dimension to its size; with names only, every size is the smallest that
                holds the bases.
        """
        fixed = tuple((name, tuple(tuple(b) for b in vectors)) for name, vectors in bases.items())
        if isinstance(out_dims, Mapping):
            return cls(fixed, tuple(out_dims.items()))
        sizes = [1] * len(out_dims)
        for _, vectors in fixed:
            for basis in vectors:
                for i, x in enumerate(basis[: len(sizes)]):
                    sizes[i] = max(sizes[i], 1 << x.bit_length())
        return cls(fixed, tuple(zip(out_dims, sizes, strict=True)))

    @classmethod
    def empty(cls) -> LinearLayout:
        """Returns the layout without dimensions, the neutral element of ``*``."""
        return cls((), ())

    @classmethod
    def identity_1d(cls, size: int, in_dim: str, out_dim: str) -> LinearLayout:
        """Maps 0 .. size - 1 to itself."""
        return cls.strided_1d(size, 1, in_dim, out_dim)

    @classmethod
    def strided_1d(cls, size: int, stride: int, in_dim: str, out_dim: str) -> LinearLayout:
        """Maps x to x * stride for x below size."""
        bases = tuple((stride << i,) for i in range(log2(size)))
        return cls(((in_dim, bases),), ((out_dim, size * stride),))

    @classmethod
    def zeros_1d(cls, size: int, in_dim: str, out_dim: str, out_size: int = 1) -> LinearLayout:
        """Maps every x below size to 0."""
        return cls(((in_dim, ((0,),) * log2(size)),), ((out_dim, out_size),))

    # ---- dimensions

    @property
    def in_dim_names(self) -> tuple[str, ...]:
        """Names of the input dimensions."""
        return tuple(name for name, _ in self.bases)

    @property
    def out_dim_names(self) -> tuple[str, ...]:
        """Names of the output dimensions."""
        return tuple(name for name, _ in self.out_dims)

    def has_in_dim(self, name: str) -> bool:
        """Returns whether there is an input dimension of this name."""
        return any(name == known for known, _ in self.bases)

    def in_bases(self, name: str) -> tuple[Basis, ...]:
        """Returns the bases of an input dimension; none if there is no such dimension."""
        return next((vectors for known, vectors in self.bases if known == name), ())

    def in_dim_size(self, name: str) -> int:
        """Returns the size of an input dimension; 1 if there is no such dimension."""
        return 1 << len(self.in_bases(name))

    def out_dim_size(self, name: str) -> int:
        """Returns the size of an output dimension.

        Raises:
            ValueError: There is no such dimension.
        """
        return self.out_dims[self._out_index(name)][1]

    def _out_index(self, name: str) -> int:
        for index, (known, _) in enumerate(self.out_dims):
            if known == name:
                return index
        raise ValueError(f"expected one of {self.out_dim_names}, found {name!r}")

    @property
    def total_in_bits(self) -> int:
        """Number of bases."""
        return sum(len(vectors) for _, vectors in self.bases)

    @property
    def total_out_bits(self) -> int:
        """Number of output bits."""
        return sum(log2(size) for _, size in self.out_dims)

    # ---- evaluation

    def apply(self, inputs: Mapping[str, int]) -> dict[str, int]:
        """Returns the output coordinates of one point.

        Args:
            inputs: Every input dimension to its coordinate.

        Raises:
            ValueError: A dimension is missing or unknown, or a coordinate is too large.
        """
        if set(inputs) != set(self.in_dim_names):
            raise ValueError(f"expected {self.in_dim_names}, found {tuple(inputs)}")
        out = [0] * len(self.out_dims)
        for name, vectors in self.bases:
            x = inputs[name]
            if not 0 <= x < 1 << len(vectors):
                raise ValueError(f"expected {name} below {1 << len(vectors)}, found {x}")
            for bit, basis in enumerate(vectors):
                if x >> bit & 1:
                    out = [a ^ b for a, b in zip(out, basis, strict=True)]
        return dict(zip(self.out_dim_names, out, strict=True))

    # ---- combination

    def __mul__(self, other: LinearLayout) -> LinearLayout:
        """Lays ``other`` over copies of ``self``.

        In dimensions that both have, the low bits belong to ``self`` and the high ones to
        ``other``; dimensions of only one stay as they are.
        """
        names = list(dict.fromkeys([*self.out_dim_names, *other.out_dim_names]))
        left, right = dict(self.out_dims), dict(other.out_dims)
        sizes = {name: left.get(name, 1) * right.get(name, 1) for name in names}
        bases: dict[str, list[Basis]] = {}
        for layout, scale in ((self, dict.fromkeys(names, 1)), (other, left)):
            where = {name: i for i, name in enumerate(layout.out_dim_names)}
            for in_dim, vectors in layout.bases:
                bases.setdefault(in_dim, []).extend(
                    tuple(
                        basis[where[name]] * scale.get(name, 1) if name in where else 0
                        for name in names
                    )
                    for basis in vectors
                )
        return LinearLayout.of(bases, sizes)

    def compose(self, outer: LinearLayout) -> LinearLayout:
        """Returns ``outer`` after this layout: x maps to outer(self(x)).

        Raises:
            ValueError: The outputs do not match the inputs of ``outer``, or are larger.
        """
        if set(self.out_dim_names) != set(outer.in_dim_names):
            raise ValueError(f"expected outputs {outer.in_dim_names}, found {self.out_dim_names}")
        for name, size in self.out_dims:
            if size > outer.in_dim_size(name):
                raise ValueError(
                    f"expected {name} of at most {outer.in_dim_size(name)}, found {size}"
                )
        bases = tuple(
            (
                in_dim,
                tuple(
                    tuple(outer.apply(dict(zip(self.out_dim_names, basis, strict=True))).values())
                    for basis in vectors
                ),
            )
            for in_dim, vectors in self.bases
        )
        return LinearLayout(bases, outer.out_dims)

    def transpose_ins(self, names: Sequence[str]) -> LinearLayout:
        """Returns the same map with its input dimensions in another order."""
        _check_permutation(names, self.in_dim_names)
        return LinearLayout(tuple((name, self.in_bases(name)) for name in names), self.out_dims)

    def transpose_outs(self, names: Sequence[str]) -> LinearLayout:
        """Returns the same map with its output dimensions in another order."""
        _check_permutation(names, self.out_dim_names)
        where = [self._out_index(name) for name in names]
        return self._map_outs(where, tuple(self.out_dims[i] for i in where))

    def _map_outs(self, where: Sequence[int], dims: tuple[tuple[str, int], ...]) -> LinearLayout:
        bases = tuple(
            (name, tuple(tuple(basis[i] for i in where) for basis in vectors))
            for name, vectors in self.bases
        )
        return LinearLayout(bases, dims)

    def reshape_ins(self, dims: Sequence[tuple[str, int]]) -> LinearLayout:
        """Redistributes all input bits, lowest first, to dimensions of these sizes."""
        flat = [basis for _, vectors in self.bases for basis in vectors]
        if sum(log2(size) for _, size in dims) != len(flat):
            raise ValueError(f"expected sizes with the product {1 << len(flat)}, found {dims}")
        bases, start = [], 0
        for name, size in dims:
            end = start + log2(size)
            bases.append((name, tuple(flat[start:end])))
            start = end
        return LinearLayout(tuple(bases), self.out_dims)

    def reshape_outs(self, dims: Sequence[tuple[str, int]]) -> LinearLayout:
        """Redistributes all output bits, lowest first, to dimensions of these sizes."""
        if sum(log2(size) for _, size in dims) != self.total_out_bits:
            raise ValueError(f"expected sizes with the product {1 << self.total_out_bits}: {dims}")
        bases = []
        for name, vectors in self.bases:
            fresh = []
            for basis in vectors:
                flat, basis_out = self.flat_output(basis), []
                for _, size in dims:
                    basis_out.append(flat & (size - 1))
                    flat >>= log2(size)
                fresh.append(tuple(basis_out))
            bases.append((name, tuple(fresh)))
        return LinearLayout(tuple(bases), tuple(dims))

    def flatten_ins(self) -> LinearLayout:
        """Joins all input dimensions to one with the first one's name."""
        name = self.in_dim_names[0] if self.bases else "in"
        return self.reshape_ins([(name, 1 << self.total_in_bits)])

    def flatten_outs(self) -> LinearLayout:
        """Joins all output dimensions to one with the first one's name."""
        name = self.out_dim_names[0] if self.out_dims else "out"
        return self.reshape_outs([(name, 1 << self.total_out_bits)])

    def flat_output(self, coordinates: Sequence[int]) -> int:
        """Returns output coordinates as one number, the first dimension in the lowest bits."""
        flat, shift = 0, 0
        for x, (_, size) in zip(coordinates, self.out_dims, strict=True):
            flat |= x << shift
            shift += log2(size)
        return flat

    def sublayout(self, in_dims: Iterable[str], out_dims: Iterable[str]) -> LinearLayout:
        """Keeps only these dimensions, in their order; other inputs are 0, others dropped."""
        ins, outs = set(in_dims), set(out_dims)
        where = [i for i, name in enumerate(self.out_dim_names) if name in outs]
        kept = LinearLayout(tuple(b for b in self.bases if b[0] in ins), self.out_dims)
        return kept._map_outs(where, tuple(self.out_dims[i] for i in where))

    def with_in_bases(self, name: str, vectors: Iterable[Basis]) -> LinearLayout:
        """Returns the same layout with other bases of one input dimension."""
        fresh = tuple(vectors)
        return LinearLayout(
            tuple((known, fresh if known == name else old) for known, old in self.bases),
            self.out_dims,
        )

    def without_zero_bases(self, name: str) -> LinearLayout:
        """Drops the bits of an input dimension with zero bases (broadcasts)."""
        return self.with_in_bases(name, (basis for basis in self.in_bases(name) if any(basis)))

    # ---- linear algebra

    def _columns(self) -> list[int]:
        """Returns every basis as one number, in the order of the inputs."""
        return [self.flat_output(basis) for _, vectors in self.bases for basis in vectors]

    @property
    def rank(self) -> int:
        """Dimension of the image."""
        return _rank(self._columns())

    @property
    def is_surjective(self) -> bool:
        """Returns whether every output is reached."""
        return self.rank == self.total_out_bits

    @property
    def is_injective(self) -> bool:
        """Returns whether distinct inputs have distinct outputs."""
        return self.rank == self.total_in_bits

    @property
    def is_invertible(self) -> bool:
        """Returns whether the map is a bijection."""
        return self.is_injective and self.is_surjective

    def free_variable_masks(self) -> dict[str, int]:
        """Returns per input dimension the bits that do not enlarge the image.

        A bit is free if its basis is a sum of earlier bases.
        """
        seen: list[int] = []
        masks = {}
        for name, vectors in self.bases:
            mask = 0
            for bit, basis in enumerate(vectors):
                if not _insert(seen, self.flat_output(basis)):
                    mask |= 1 << bit
            masks[name] = mask
        return masks

    def invert(self) -> LinearLayout:
        """Returns the inverse map.

        Raises:
            ValueError: The layout is not invertible.
        """
        if not self.is_invertible:
            raise ValueError(f"expected an invertible layout, found\n{self}")
        return self.pseudoinvert()

    def pseudoinvert(self) -> LinearLayout:
        """Returns a right inverse: some input for every output, with free input bits 0.

        Raises:
            ValueError: The layout is not surjective.
        """
        identity = LinearLayout.empty()
        for name, size in self.out_dims:
            identity = identity * LinearLayout.identity_1d(size, name, name)
        return identity.invert_and_compose(self)

    def invert_and_compose(self, outer: LinearLayout) -> LinearLayout:
        """Returns the map C from this layout's inputs to those of ``outer``: outer(C(x)) = self(x).

        If there are several, input dimensions that are equal in both layouts map to themselves, and
        free bits of ``outer`` stay 0.

        Raises:
            ValueError: The output dimensions differ, or ``outer`` does not reach all outputs.
        """
        if set(self.out_dim_names) != set(outer.out_dim_names):
            raise ValueError(f"expected outputs {outer.out_dim_names}, found {self.out_dim_names}")
        mine = self.transpose_outs(outer.out_dim_names)
        sizes = [max(a[1], b[1]) for a, b in zip(mine.out_dims, outer.out_dims, strict=True)]
        dims = tuple(zip(outer.out_dim_names, sizes, strict=True))
        a, b = LinearLayout(outer.bases, dims), LinearLayout(mine.bases, dims)
        alike = [d for d in a.in_dim_names if b.has_in_dim(d) and a.in_bases(d) == b.in_bases(d)]
        bases: dict[str, list[Basis]] = {}
        for in_dim, vectors in b.bases:
            if in_dim in alike:
                at = a.in_dim_names.index(in_dim)
                bases[in_dim] = [
                    tuple((1 << bit if i == at else 0) for i in range(len(a.bases)))
                    for bit in range(len(vectors))
                ]
                continue
            bases[in_dim] = [a._inverse_image(basis, alike) for basis in vectors]
        return LinearLayout.of(bases, {name: 1 << len(v) for name, v in a.bases})

    def _inverse_image(self, output: Basis, unwanted: Sequence[str]) -> Basis:
        """Returns input coordinates of an output, avoiding some dimensions if possible.

        Raises:
            ValueError: There are none.
        """
        for skipped in (unwanted, ()):
            rest = tuple(b for b in self.bases if b[0] not in skipped)
            bits = _solve(LinearLayout(rest, self.out_dims)._columns(), self.flat_output(output))
            if bits is not None:
                return self._unflatten(bits, skipped)
        raise ValueError(f"expected a layout that reaches {output}, found\n{self}")

    def _unflatten(self, bits: int, skipped: Sequence[str]) -> Basis:
        """Splits a number into input coordinates, without some dimensions."""
        out = []
        for name, vectors in self.bases:
            width = 0 if name in skipped else len(vectors)
            out.append(bits & ((1 << width) - 1))
            bits >>= width
        return tuple(out)

    # ---- text

    def __str__(self) -> str:
        lines = []
        for name, vectors in self.bases:
            if not vectors:
                lines.append(f" - {name} is a size 1 dimension")
                continue
            rows = [f"{name}={1 << i} -> ({', '.join(map(str, b))})" for i, b in enumerate(vectors)]
            lines.append(" - " + "\n   ".join(rows))
        dims = ", ".join(f"{name} (size {size})" for name, size in self.out_dims)
        return "\n".join([*lines, f"where out dims are: [{dims}]"])


def _check_permutation(names: Sequence[str], of: Sequence[str]) -> None:
    if sorted(names) != sorted(of):
        raise ValueError(f"expected a permutation of {tuple(of)}, found {tuple(names)}")


def _insert(reduced: list[int], column: int) -> bool:
    """Adds a column to a reduced, descending list; returns whether it was independent."""
    for known in reduced:
        column = min(column, column ^ known)
    if not column:
        return False
    reduced.append(column)
    reduced.sort(reverse=True)
    return True


def _rank(columns: Iterable[int]) -> int:
    reduced: list[int] = []
    for column in columns:
        _insert(reduced, column)
    return len(reduced)


def _solve(columns: Sequence[int], target: int) -> int | None:
    """Bits x with the XOR of the chosen columns equal to ``target``; early columns preferred."""
    # Each pivot is (column, combination), reduced by the earlier pivots.
    pivots: list[tuple[int, int]] = []
    for index, column in enumerate(columns):
        combination = 1 << index
        for known, how in pivots:
            if column ^ known < column:
                column, combination = column ^ known, combination ^ how
        if column:
            pivots.append((column, combination))
            pivots.sort(reverse=True)
    bits = 0
    for known, how in pivots:
        if target ^ known < target:
            target, bits = target ^ known, bits ^ how
    return None if target else bits
