"""Base classes of encodings: reading parameters, spelling, the layout protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NoReturn, TypeVar

from ...errors import VerifyError
from ..attribute_values import (
    ArrayAttr,
    Attribute,
    BoolAttr,
    DictionaryAttr,
    IntegerAttr,
    OpaqueAttr,
    UnitAttr,
)
from ..linear_layout import LinearLayout, is_power_of_two

if TYPE_CHECKING:
    from ..aliases import AliasTable
    from ..value_parser import ValueParser

__all__ = [
    "Bases",
    "DistributedEncoding",
    "Encoding",
    "Fields",
    "Ints",
    "Names",
    "SharedEncoding",
    "TensorMemory",
    "cga_parameter",
    "ordered_parameters",
    "print_bases",
    "print_ints",
]

T = TypeVar("T")
Ints = tuple[int, ...]
Bases = tuple[Ints, ...]
Names = tuple[str, ...]


class Fields:
    """The parameters of an attribute, ``{name = value, ...}``, with their positions.

    Args:
        parser: The parser, after the opening bracket.
        closer: The closing bracket.
    """

    def __init__(self, parser: ValueParser, closer: str) -> None:
        self.parser = parser
        self.start = parser.position
        self.values: dict[str, tuple[Attribute, int]] = {}
        self.taken: set[str] = set()
        self.missing: list[str] = []
        parser.list_of(self._read, closer)

    def _read(self) -> None:
        self.parser.skip()
        start = self.parser.position
        name, value = self.parser.parse_entry()
        if name in self.values:
            self.parser.fail(f"expected '{name}' once", start)
        self.values[name] = (value, start)

    def finish(self) -> Names:
        """Returns the unknown parameters; call it after taking all known ones.

        Raises:
            ParseError: A parameter is missing, and none is unknown (which may be a new name of it).
        """
        unknown = tuple(name for name in self.values if name not in self.taken)
        if self.missing and not unknown:
            self.parser.fail(f"expected the parameter '{self.missing[0]}'", self.start)
        return unknown

    def has(self, name: str) -> bool:
        """Returns whether a parameter is printed."""
        return name in self.values

    def _take(self, name: str) -> tuple[Attribute, int] | None:
        self.taken.add(name)
        return self.values.get(name)

    def _default(self, name: str, default: T | None, stand_in: T) -> T:
        """Returns the default, or a placeholder for a parameter that :meth:`finish` reports."""
        if default is not None:
            return default
        self.missing.append(name)
        return stand_in

    def _wrong(self, name: str, what: str, found: tuple[Attribute, int]) -> NoReturn:
        self.parser.fail(f"expected {what} for '{name}', found '{found[0]}'", found[1])

    def number(self, name: str, default: int | None = None) -> int:
        """An unsigned number."""
        found = self._take(name)
        if found is None:
            return self._default(name, default, 0)
        if not isinstance(found[0], IntegerAttr) or found[0].number < 0:
            self._wrong(name, "an unsigned integer", found)
        return found[0].number

    def flag(self, name: str, default: bool | None = None) -> bool:
        """``true`` or ``false``; 3.6 and older also print 1 and 0."""
        found = self._take(name)
        if found is None:
            return self._default(name, default, False)
        if isinstance(found[0], IntegerAttr) and found[0].number in (0, 1):
            return bool(found[0].number)
        if not isinstance(found[0], BoolAttr):
            self._wrong(name, "true or false", found)
        return found[0].flag

    def ints(self, name: str, default: Ints | None = None) -> Ints:
        """A list of numbers."""
        found = self._take(name)
        if found is None:
            return self._default(name, default, ())
        numbers = _ints(found[0])
        if numbers is None:
            self._wrong(name, "a list of unsigned integers", found)
        return numbers

    def bases(self, name: str, default: Bases | None = None) -> Bases:
        """A list of lists of numbers."""
        found = self._take(name)
        if found is None:
            return self._default(name, default, ())
        return self._bases(name, found)

    def _bases(self, name: str, found: tuple[Attribute, int]) -> Bases:
        items = found[0].items if isinstance(found[0], ArrayAttr) else (found[0],)
        rows = [_ints(item) for item in items]
        fixed = tuple(row for row in rows if row is not None)
        if not isinstance(found[0], ArrayAttr) or len(fixed) != len(rows):
            self._wrong(name, "a list of bases such as [[0, 1], [0, 2]]", found)
        if len({len(row) for row in fixed}) > 1:
            self._wrong(name, "bases of one length", found)
        return fixed

    def layout(self, name: str) -> dict[str, Bases]:
        """A dictionary of bases, ``{register = [], warp = [[0, 1]]}``."""
        found = self._take(name)
        if found is None:
            return {}
        if not isinstance(found[0], DictionaryAttr):
            self._wrong(name, "a dictionary of bases", found)
        return {key: self._bases(key, (value, found[1])) for key, value in found[0].entries}

    def attribute(self, name: str) -> Attribute:
        """Any attribute."""
        found = self._take(name)
        return found[0] if found is not None else self._default(name, None, UnitAttr())

    def order_and_cga(self) -> tuple[Ints, Bases]:
        """Returns the order of the dimensions, and the CGA layout of the same rank."""
        order = self.ints("order")
        return order, self.cga(len(order))

    def cga(self, rank: int) -> Bases:
        """Returns the CGA layout in any host's spelling: ``CGALayout``, or three ``CTA`` lists."""
        if not any(self.has(name) for name in ("CTAsPerCGA", "CTASplitNum", "CTAOrder")):
            return self.bases("CGALayout", ())
        lists = [self.ints("CTAsPerCGA"), self.ints("CTASplitNum"), self.ints("CTAOrder")]
        if any(len(numbers) != rank for numbers in lists) or sorted(lists[2]) != [*range(rank)]:
            self.parser.fail(f"expected three lists of {rank} numbers each", self.start)
        return split_bases(*lists)


def _ints(attribute: Attribute) -> Ints | None:
    if not isinstance(attribute, ArrayAttr):
        return None
    numbers = tuple(x.number for x in attribute.items if isinstance(x, IntegerAttr))
    return (
        numbers if len(numbers) == len(attribute.items) and min(numbers, default=0) >= 0 else None
    )


def split_bases(ctas_per_cga: Ints, cta_split_num: Ints, cta_order: Ints) -> Bases:
    """Returns the bases of a CGA layout given by counts, as hosts before 3.6 print it."""
    bases = []
    for dim in cta_order:
        split, count = cta_split_num[dim], ctas_per_cga[dim]
        step = 1
        while step < count:
            stride = step if step < split else 0
            bases.append(tuple(stride if d == dim else 0 for d in range(len(cta_order))))
            step *= 2
    return tuple(bases)


def print_ints(numbers: Sequence[int]) -> str:
    """``[1, 2]``."""
    return f"[{', '.join(map(str, numbers))}]"


def print_bases(bases: Sequence[Sequence[int]]) -> str:
    """``[[0, 1], [0, 2]]``."""
    return f"[{', '.join(map(print_ints, bases))}]"


def cga_parameter(bases: Bases) -> list[tuple[str, str]]:
    """Returns the CGA layout as a parameter; an empty one is not printed."""
    return [("CGALayout", print_bases(bases))] if bases else []


def ordered_parameters(order: Ints, bases: Bases) -> list[tuple[str, str]]:
    """Returns the parameters that :meth:`Fields.order_and_cga` reads."""
    return [("order", print_ints(order)), *cga_parameter(bases)]


@dataclass(frozen=True, slots=True)
class Encoding(Attribute):
    """Base of all encodings.

    Attributes:
        spelling: The parsed text if it differs from the present spelling; ``dataclasses.replace``
            drops it.
    """

    MNEMONIC: ClassVar[str]
    OPEN: ClassVar[str] = "<{"
    CLOSE: ClassVar[str] = "}"

    spelling: str = field(default="", init=False, compare=False, repr=False)

    @classmethod
    def read(cls, parser: ValueParser, start: int) -> Attribute:
        """Parses the body after the name.

        Args:
            parser: The parser, after the name.
            start: Offset of the ``#``.

        Returns:
            The encoding; an :class:`OpaqueAttr` if it has an unknown parameter.
        """
        encoding, unknown = cls._read(parser)
        text = parser.text[start : parser.position]
        if unknown:
            name = text.partition("<")[0]
            return OpaqueAttr(text, why="; ".join(f"'{name}' has no '{key}'" for key in unknown))
        if "#" not in text[1:] and encoding.print() != text:
            object.__setattr__(encoding, "spelling", text)
        return encoding

    @classmethod
    def _read(cls, parser: ValueParser) -> tuple[Encoding, Names]:
        """Returns the encoding, and its unknown parameters."""
        for character in cls.OPEN:
            parser.expect(character)
        fields = Fields(parser, cls.CLOSE)
        if cls.CLOSE != ">":
            parser.expect(">")
        return cls._of(fields), fields.finish()

    @classmethod
    def _of(cls, fields: Fields) -> Encoding:
        """Creates the encoding from its parameters."""
        raise NotImplementedError

    def _text(self, aliases: AliasTable | None) -> str:
        return self.spelling or f"#{self.MNEMONIC}{self._body(aliases)}"

    def _body(self, aliases: AliasTable | None) -> str:
        """Returns the text after the name."""
        parameters = ", ".join(f"{name} = {text}" for name, text in self._parameters(aliases))
        return f"<{{{parameters}}}>"

    def _parameters(self, aliases: AliasTable | None) -> list[tuple[str, str]]:
        """Returns name and text of each printed parameter."""
        raise NotImplementedError

    @property
    def rank(self) -> int | None:
        """Number of tensor dimensions; ``None`` if any number fits."""
        raise NotImplementedError

    def to_linear_layout(self, shape: Sequence[int]) -> LinearLayout:
        """Returns the map from hardware coordinates to elements of a tensor of a shape.

        Args:
            shape: Sizes, powers of two; as many as the encoding has dimensions.

        Returns:
            For registers, inputs ``register``, ``lane``, ``warp``, ``block``; for shared memory
            ``offset`` (in elements, without padding) and ``block``; for tensor memory ``row``,
            ``col`` (in elements) and ``block``; outputs ``dim0``, ``dim1``, ...

        Raises:
            VerifyError: The encoding is malformed, or does not fit the shape.
        """
        self.verify()
        self._check_layout()
        if self.rank is not None and len(shape) != self.rank:
            self._reject(f"expected a shape of rank {self.rank}, found {list(shape)}")
        if not shape or not all(map(is_power_of_two, shape)):
            self._reject(f"expected powers of two as the shape, found {list(shape)}")
        try:
            return self._layout(tuple(shape))
        except ValueError as error:
            raise VerifyError(
                f"'{self.print()}' has no layout for the shape {list(shape)}: {error}"
            ) from error

    def verify(self) -> None:
        """Checks what every release of Triton checks when it reads the text.

        Raises:
            VerifyError: No release accepts it.
        """
        raise NotImplementedError

    def _check_layout(self) -> None:
        """Checks further requirements of a layout, without which some release reads the text.

        Raises:
            VerifyError: There is no layout.
        """
        self._check_cga_moves(getattr(self, "cga_layout", ()))

    def _layout(self, shape: Ints) -> LinearLayout:
        raise NotImplementedError

    def _reject(self, message: str) -> NoReturn:
        raise VerifyError(f"{message}, in '{self.print()}'")

    # ---- checks shared by encodings

    def _check_powers(self, **lists: Sequence[int]) -> None:
        for name, numbers in lists.items():
            for number in numbers:
                if not is_power_of_two(number):
                    self._reject(f"expected powers of two in '{name}', found {number}")

    def _check_lengths(self, rank: int, **lists: Sequence[int]) -> None:
        for name, numbers in lists.items():
            if len(numbers) != rank:
                self._reject(f"expected {rank} numbers in '{name}', found {len(numbers)}")

    def _check_order(self, order: Sequence[int]) -> None:
        if not order or sorted(order) != list(range(len(order))):
            self._reject(
                f"expected a permutation of 0 to {len(order) - 1} as 'order', found {list(order)}"
            )

    def _check_bases(self, rank: int | None, **bases: Bases) -> None:
        for name, vectors in bases.items():
            for basis in vectors:
                if rank is not None and len(basis) != rank:
                    self._reject(
                        f"expected {rank} numbers in each basis of '{name}', found {basis}"
                    )
                bad = [x for x in basis if x and not is_power_of_two(x)]
                if bad and name == "CGALayout":
                    self._reject(f"expected powers of two in '{name}', found {bad[0]}")

    def _check_cga(self, bases: Bases, rank: int | None) -> None:
        """Checks the numbers of a CGA layout; 3.6 and 3.7 read it without further checks."""
        self._check_bases(rank, CGALayout=bases)
        steps: dict[int, set[int]] = {}
        for basis in bases:
            for dim, x in enumerate(basis):
                if x:
                    steps.setdefault(dim, set()).add(x)
        for dim, found in steps.items():
            if found != {1 << i for i in range(len(found))}:
                self._reject(
                    f"expected the steps 1, 2, 4, ... of 'CGALayout' in dimension {dim}, "
                    f"found {sorted(found)}"
                )

    def _check_cga_moves(self, bases: Bases) -> None:
        """Checks that every CTA basis moves along one dimension, by a unique step."""
        for number, basis in enumerate(bases):
            if sum(map(bool, basis)) > 1:
                self._reject(
                    f"expected each basis of 'CGALayout' to move one dimension, found {basis}"
                )
            if any(basis) and basis in bases[:number]:
                self._reject(f"expected each step in 'CGALayout' once, found {basis} twice")


@dataclass(frozen=True, slots=True)
class DistributedEncoding(Encoding):
    """An encoding of a tensor in registers."""

    @property
    def cga_bases(self) -> Bases:
        """How the tensor is split over the CTAs of a cluster: a basis per bit of the CTA."""
        return getattr(self, "cga_layout", ())


@dataclass(frozen=True, slots=True)
class SharedEncoding(Encoding):
    """An encoding of a buffer in shared memory."""

    @property
    def cga_bases(self) -> Bases:
        """How the buffer is split over the CTAs of a cluster: a basis per bit of the CTA."""
        return getattr(self, "cga_layout", ())


@dataclass(frozen=True, slots=True)
class TensorMemory(Encoding):
    """An encoding of a buffer in Blackwell's tensor memory."""

    @property
    def cga_bases(self) -> Bases:
        """How the buffer is split over the CTAs of a cluster: a basis per bit of the CTA."""
        return getattr(self, "cga_layout", ())
