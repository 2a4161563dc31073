"""Types as frozen dataclasses: parse, print, verify.

``parse_type(value.type, module.aliases)`` returns the type of a printed text with its aliases
resolved; ``str(type_)`` prints it in full, ``type_.print(table)`` with the aliases of an
:class:`~triton_ext.ir.aliases.AliasTable`.  Unknown types are an :class:`OpaqueType`.

A tensor descriptor is one model for all hosts.  Triton up to 3.7 prints the block as a tensor,
``!tt.tensordesc<tensor<128x64xf16, #shared>>``, later ones as ``!tt.tensordesc<128x64xf16,
#shared>``; the same holds for the im2col type, which 3.6 does not know.  ``as_tensor`` stores the
spelling; it is ignored by comparisons and survives ``dataclasses.replace``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from ..strings import quote
from .attribute_values import Attribute, Printable
from .linear_layout import is_power_of_two
from .text_checks import require_text

if TYPE_CHECKING:
    from .aliases import AliasTable

__all__ = [
    "AsyncTokenType",
    "FloatType",
    "FunctionType",
    "IndexType",
    "IntegerType",
    "MemDescType",
    "OpaqueType",
    "PointerType",
    "TensorDescIm2ColType",
    "TensorDescInterface",
    "TensorDescType",
    "TensorType",
    "Type",
    "VectorType",
    "parse_type",
]

Shape = tuple[int | None, ...]

FLOAT_BITS = {
    "f4E2M1FN": 4,
    "f6E2M3FN": 6,
    "f6E3M2FN": 6,
    "f8E3M4": 8,
    "f8E4M3": 8,
    "f8E4M3B11FNUZ": 8,
    "f8E4M3FN": 8,
    "f8E4M3FNUZ": 8,
    "f8E5M2": 8,
    "f8E5M2FNUZ": 8,
    "f8E8M0FNU": 8,
    "bf16": 16,
    "f16": 16,
    "tf32": 19,
    "f32": 32,
    "f64": 64,
    "f80": 80,
    "f128": 128,
}
#: Triton's limit on the elements of a tensor (``TRITON_MAX_TENSOR_NUMEL``).
MAX_ELEMENTS = 1 << 20


class Type(Printable):
    """Base of all types."""

    __slots__ = ()

    @property
    def bit_width(self) -> int | None:
        """Bits of one element; ``None`` if the type has no such property."""
        return None

    @classmethod
    def parse(cls, text: str, aliases: AliasTable | Mapping[str, str] | None = None) -> Type:
        """Parses a type of this class.

        Raises:
            ParseError: The text is not a type, or has another class.
        """
        from .lexer import Source

        type_ = parse_type(text, aliases)
        if not isinstance(type_, cls):
            Source(text).error(0, f"expected {cls.__name__}, found {type(type_).__name__}")
        return type_


@dataclass(frozen=True, slots=True)
class IntegerType(Type):
    """``i32``; ``si8`` and ``ui8`` with a signedness."""

    width: int
    signedness: str = ""

    @property
    def bit_width(self) -> int:
        """The width."""
        return self.width

    def _text(self, aliases: AliasTable | None) -> str:
        return f"{self.signedness}i{self.width}"


@dataclass(frozen=True, slots=True)
class FloatType(Type):
    """``f16``, ``bf16``, ``f8E4M3FN``, ...; the name is one of :data:`FLOAT_BITS`."""

    name: str

    @property
    def bit_width(self) -> int:
        """The width."""
        return FLOAT_BITS[self.name]

    def _text(self, aliases: AliasTable | None) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class IndexType(Type):
    """``index``."""

    def _text(self, aliases: AliasTable | None) -> str:
        return "index"


@dataclass(frozen=True, slots=True)
class OpaqueType(Type):
    """A type kept as its text."""

    text: str

    def _text(self, aliases: AliasTable | None) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class PointerType(Type):
    """``!tt.ptr<f16>``, ``!tt.ptr<f16, 3>``, or from 3.9 on ``!tt.ptr<f16, "constant">``.

    Attributes:
        pointee: The type it points to.
        address_space: A number up to 3.8, a name from 3.9 on.  Global memory is 1 on every host and
            not printed.
    """

    pointee: Type
    address_space: int | str = 1

    @property
    def bit_width(self) -> int:
        """A pointer has 64 bits."""
        return 64

    def _text(self, aliases: AliasTable | None) -> str:
        space = ""
        if self.address_space != 1:
            named = self.address_space
            space = f", {quote(named) if isinstance(named, str) else named}"
        return f"!tt.ptr<{self.pointee.print(aliases)}{space}>"

    def verify(self) -> None:
        """Checks that it points to a scalar, or on hosts up to 3.8 to a pointer or a tensor.

        Raises:
            VerifyError: It does not.
        """
        self.pointee.verify()
        if isinstance(self.pointee, (MemDescType, AsyncTokenType, FunctionType, VectorType)):
            self._fail("expected a pointer to a number, a pointer or a tensor")


class _Shaped(Type):
    """Base of tensors, vectors, buffers and descriptor blocks."""

    __slots__ = ()
    shape: Shape
    element: Type

    @property
    def bit_width(self) -> int | None:
        """Bits of one element."""
        return self.element.bit_width

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape where every size is known.

        Raises:
            VerifyError: A size is printed as ``?``.
        """
        sizes = tuple(size for size in self.shape if size is not None)
        if len(sizes) != len(self.shape):
            self._fail("expected a static shape")
        return sizes

    @property
    def num_elements(self) -> int:
        """Product of the sizes."""
        product = 1
        for size in self.static_shape:
            product *= size
        return product

    def _block_text(self, aliases: AliasTable | None) -> str:
        """``128x64xf16``."""
        sizes = "".join(f"{'?' if size is None else size}x" for size in self.shape)
        return sizes + self.element.print(aliases)

    def _verify_encoding(self, encoding: Attribute | None, what: str) -> None:
        from .encodings import Encoding

        if encoding is None:
            return
        encoding.verify()
        if isinstance(encoding, Encoding) and encoding.rank not in (None, self.rank):
            self._fail(
                f"expected an encoding of rank {self.rank} for this {what}, "
                f"found '{encoding}' of rank {encoding.rank}"
            )


@dataclass(frozen=True, slots=True)
class TensorType(_Shaped):
    """``tensor<128x64xf16, #blocked>``."""

    shape: Shape
    element: Type
    encoding: Attribute | None = None

    def _text(self, aliases: AliasTable | None) -> str:
        encoding = f", {self.encoding.print(aliases)}" if self.encoding is not None else ""
        return f"tensor<{self._block_text(aliases)}{encoding}>"

    def verify(self) -> None:
        """Checks sizes (powers of two, at most 2**20 elements) and the encoding.

        Raises:
            VerifyError: One of them is wrong.
        """
        self.element.verify()
        # 3.6 takes 0 for one.
        bad = [size for size in self.static_shape if size and not is_power_of_two(size)]
        if bad:
            self._fail(f"expected powers of two as the sizes of a tensor, found {bad[0]}")
        if self.num_elements > MAX_ELEMENTS:
            self._fail(
                f"expected at most {MAX_ELEMENTS} elements in a tensor, found {self.num_elements}"
            )
        from .encodings import SharedEncoding

        if isinstance(self.encoding, SharedEncoding):
            self._fail(
                "expected a distributed encoding for a tensor, found one of shared memory; "
                "a buffer has the type !ttg.memdesc"
            )
        self._verify_encoding(self.encoding, "tensor")


@dataclass(frozen=True, slots=True)
class VectorType(_Shaped):
    """``vector<4xi32>``, also with scalable sizes kept as text by :class:`OpaqueType`."""

    shape: Shape
    element: Type

    def _text(self, aliases: AliasTable | None) -> str:
        return f"vector<{self._block_text(aliases)}>"


@dataclass(frozen=True, slots=True)
class MemDescType(_Shaped):
    """``!ttg.memdesc<128x64xf16, #shared, #smem, mutable, 3x128x64>``.

    Attributes:
        shape: Sizes of this view.
        element: Type of the elements.
        encoding: How the elements lie in memory.
        memory_space: ``#ttg.shared_memory`` or ``#ttng.tensor_memory``.
        mutable: Whether the memory can be written after its allocation.
        alloc_shape: Sizes of the buffer that this is a view of; ``None`` where it is the shape.
    """

    shape: Shape
    element: Type
    encoding: Attribute
    memory_space: Attribute
    mutable: bool = False
    alloc_shape: tuple[int, ...] | None = None

    def _text(self, aliases: AliasTable | None) -> str:
        return f"!ttg.memdesc{self.short_text(aliases)}"

    def short_text(self, aliases: AliasTable | None = None) -> str:
        """The form without its name that copies print: ``<128x64xf16, #shared, ...>``."""
        parts = [self._block_text(aliases), self.encoding.print(aliases)]
        parts.append(self.memory_space.print(aliases))
        if self.mutable:
            parts.append("mutable")
        if self.alloc_shape is not None:
            parts.append("x".join(map(str, self.alloc_shape)))
        return f"<{', '.join(parts)}>"

    @property
    def full_alloc_shape(self) -> tuple[int, ...]:
        """The allocation's sizes, whether printed or not."""
        return self.alloc_shape if self.alloc_shape is not None else self.static_shape

    @property
    def in_tensor_memory(self) -> bool:
        """Returns whether the memory is Blackwell's tensor memory."""
        from .encodings import TensorMemorySpace

        return isinstance(self.memory_space, TensorMemorySpace)

    def verify(self) -> None:
        """Checks sizes, memory space and encoding.

        Raises:
            VerifyError: One of them is wrong.
        """
        from .encodings import Encoding

        self.verify_memory()
        known = self.encoding.rank if isinstance(self.encoding, Encoding) else None
        of_buffer = min(self.rank, known if known is not None else max(1, self.rank - 1))
        sizes = self.static_shape[self.rank - of_buffer :]
        bad = [size for size in sizes if not is_power_of_two(size)]
        if bad:
            self._fail(
                "expected powers of two as the sizes of a memory descriptor (but for the number of "
                f"buffers in front), found {bad[0]}"
            )

    def verify_memory(self) -> None:
        """Checks what every host relies on: all of :meth:`verify` but powers of two.

        Raises:
            VerifyError: The allocation, the memory space or the encoding is wrong.
        """
        from .encodings import (
            Encoding,
            SharedEncoding,
            TensorMemory,
            TensorMemoryEncoding,
            TensorMemoryScalesEncoding,
        )

        self.element.verify()
        if not self.shape:
            self._fail("expected at least one dimension, found a memory descriptor of rank 0")
        alloc = self.full_alloc_shape
        if len(alloc) < self.rank:
            self._fail(f"expected an allocation shape of at least rank {self.rank}, found {alloc}")
        tail = alloc[len(alloc) - self.rank :]
        if any(x > y for x, y in zip(self.static_shape, tail, strict=True)):
            self._fail(f"expected a view inside of its allocation {list(alloc)}")
        wanted = TensorMemory if self.in_tensor_memory else SharedEncoding
        if isinstance(self.encoding, Encoding) and not isinstance(self.encoding, wanted):
            place = "tensor" if self.in_tensor_memory else "shared"
            self._fail(f"expected an encoding of {place} memory, found '{self.encoding}'")
        self.encoding.verify()
        if isinstance(self.encoding, TensorMemoryEncoding) and self.bit_width is not None:
            stride = self.encoding.col_stride
            if self.bit_width * stride > 32:
                self._fail(
                    "expected at most 32 bits for an element and 'colStride', "
                    f"found {self.bit_width} x {stride}"
                )
        # The dimension in front counts buffers; the encoding is that of one buffer.
        if (
            isinstance(self.encoding, Encoding)
            and self.encoding.rank is not None
            and self.rank not in (self.encoding.rank, self.encoding.rank + 1)
            # 3.6 reads scales of any rank.
            and not isinstance(self.encoding, TensorMemoryScalesEncoding)
        ):
            self._fail(
                f"expected rank {self.encoding.rank} or, with a number of buffers in front, "
                f"{self.encoding.rank + 1}, found rank {self.rank}"
            )


@dataclass(frozen=True, slots=True)
class AsyncTokenType(Type):
    """``!ttg.async.token``."""

    def _text(self, aliases: AliasTable | None) -> str:
        return "!ttg.async.token"


@runtime_checkable
class TensorDescInterface(Protocol):
    """The common interface of tensor descriptors, tiled or im2col."""

    @property
    def shape(self) -> Shape:
        """Sizes of the block that one access moves."""

    @property
    def element(self) -> Type:
        """Type of the elements, with its signedness."""

    @property
    def shared_layout(self) -> Attribute | None:
        """Encoding of the block in shared memory, once one was chosen."""

    @property
    def block_type(self) -> TensorType:
        """The block as a tensor."""

    @property
    def signless_block_type(self) -> TensorType:
        """The block as the tensor that a load gives: its integers have no signedness."""


class _Descriptor(_Shaped):
    """Base of tiled and im2col descriptors."""

    __slots__ = ()
    NAME: ClassVar[str]
    shared_layout: Attribute | None
    as_tensor: bool

    @property
    def block_type(self) -> TensorType:
        """The block as a tensor."""
        return TensorType(self.shape, self.element)

    @property
    def signless_block_type(self) -> TensorType:
        """The block as a tensor of signless elements."""
        element = self.element
        if isinstance(element, IntegerType):
            element = replace(element, signedness="")
        return TensorType(self.shape, element)

    def _text(self, aliases: AliasTable | None) -> str:
        layout = self.shared_layout
        block = self._block_text(aliases) + (f", {layout.print(aliases)}" if layout else "")
        return f"{self.NAME}<{f'tensor<{block}>' if self.as_tensor else block}>"

    def _verify_block(self) -> None:
        from .encodings import Encoding, SharedEncoding

        self.element.verify()
        bad = [size for size in self.static_shape if not is_power_of_two(size)]
        if bad:
            self._fail(f"expected powers of two as the sizes of a block, found {bad[0]}")
        layout = self.shared_layout
        if isinstance(layout, Encoding) and not isinstance(layout, SharedEncoding):
            self._fail("expected an encoding of shared memory for the block")
        self._verify_encoding(layout, "block")


@dataclass(frozen=True, slots=True)
class TensorDescType(_Descriptor):
    """``!tt.tensordesc<128x64xf16, #shared>``, a descriptor in tiled mode.

    Attributes:
        shape: Sizes of the block.
        element: Type of the elements, with its signedness.
        shared_layout: Encoding of the block in shared memory.
        as_tensor: Whether the block is spelled as a tensor (hosts up to 3.7).
    """

    NAME: ClassVar[str] = "!tt.tensordesc"
    shape: Shape
    element: Type
    shared_layout: Attribute | None = None
    as_tensor: bool = field(default=False, compare=False)

    def verify(self) -> None:
        """Checks the block: 1 to 5 dimensions, powers of two, a shared encoding of its rank.

        Raises:
            VerifyError: One of them is wrong.
        """
        if not 1 <= self.rank <= 5:
            self._fail(f"expected a block of 1 to 5 dimensions, found {self.rank}")
        self._verify_block()


@dataclass(frozen=True, slots=True)
class TensorDescIm2ColType(_Descriptor):
    """``!ttng.tensordesc_im2col<128x64xf16, #shared>``, a descriptor in im2col mode.

    The block is pixels x channels whatever the rank of the tensor in memory.

    Attributes:
        shape: Pixels and channels of the block.
        element: Type of the elements, with its signedness.
        shared_layout: Encoding of the block in shared memory.
        as_tensor: Whether the block is spelled as a tensor (host 3.7).
    """

    NAME: ClassVar[str] = "!ttng.tensordesc_im2col"
    shape: Shape
    element: Type
    shared_layout: Attribute | None = None
    as_tensor: bool = field(default=False, compare=False)

    def verify(self) -> None:
        """Checks the block: pixels and channels, powers of two, a shared encoding of rank 2.

        Raises:
            VerifyError: One of them is wrong.
        """
        self.verify_rank()
        self._verify_block()

    def verify_rank(self) -> None:
        """Checks what every host checks: the rank of the block.

        Raises:
            VerifyError: It is not 2.
        """
        if self.rank != 2:
            self._fail(f"expected a block of rank 2 (pixels x channels), found rank {self.rank}")


@dataclass(frozen=True, slots=True)
class FunctionType(Type):
    """``(i32, f32) -> i1``."""

    inputs: tuple[Type, ...]
    results: tuple[Type, ...]

    def _text(self, aliases: AliasTable | None) -> str:
        inputs = ", ".join(type_.print(aliases) for type_ in self.inputs)
        results = ", ".join(type_.print(aliases) for type_ in self.results)
        if len(self.results) != 1 or isinstance(self.results[0], FunctionType):
            results = f"({results})"
        return f"({inputs}) -> {results}"

    def verify(self) -> None:
        """Checks every type in it.

        Raises:
            VerifyError: One of them is wrong.
        """
        for type_ in (*self.inputs, *self.results):
            type_.verify()


def parse_type(text: str, aliases: AliasTable | Mapping[str, str] | None = None) -> Type:
    """Reads one type that fills the whole text.

    Args:
        text: The text, ``value.type`` for instance.
        aliases: Values of ``#name`` and ``!name``, ``module.aliases`` for instance; many types
            of one module are parsed faster with one :class:`~triton_ext.ir.aliases.AliasTable`.

    Raises:
        ParseError: The text is no type, or an alias is not known; the place is in ``text``.
        TypeError: It is not a string.
    """
    require_text(text, "a type")
    from .aliases import AliasTable

    return AliasTable.of(aliases).type(text)
