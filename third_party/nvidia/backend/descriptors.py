"""Host descriptors that a ``@triton.jit`` kernel loads through the TMA unit's im2col mode.

To Triton an :class:`Im2ColDescriptor` is a ``TensorDescriptor`` of rank 2, [pixels, channels]: it
specializes to the same signature and is launched the same way.  What the TMA unit needs beyond
that travels beside it, in :attr:`Im2ColDescriptor.geometry`.

Guarantees: a descriptor that exists breaks no rule of ``validation.py``; it never changes; the map
it encodes is cached by address, geometry and kernel layout for the whole process
(``map_cache.py``).  Whether the GPU has im2col at all is checked where kernels are compiled and
launched, not here.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NoReturn, Protocol

from triton.tools.tensor_descriptor import TensorDescriptor
from triton_ext.backends.nvidia.backend import driver
from triton_ext.backends.nvidia.backend.geometry import (
    DTYPE_BYTES,
    ConvGeometry,
    Im2ColGeometry,
    is_sequence,
    normalize_conv,
    normalize_dtype,
    packed_size_one_strides,
)
from triton_ext.backends.nvidia.backend.map_cache import MAPS
from triton_ext.backends.nvidia.backend.validation import (
    address_violations,
    advice_on_order,
    descriptor_error,
    layout_violations,
    violations,
)
from triton_ext.errors import DescriptorError

__all__ = [
    "FrozenList",
    "Im2ColDescriptor",
    "PixelShape",
    "TensorLike",
    "check_tensor",
    "integers",
    "is_on_gpu",
    "layout_of",
    "strides_of",
]

# Tensors that stand for others while torch traces; Triton's own descriptor asks them no address.
_TENSORS_WITHOUT_ADDRESS = ("FakeTensor", "FunctionalTensor")

# Triton passes a descriptor's shape to the kernel as int32.
_MAX_INT32 = (1 << 31) - 1


class TensorLike(Protocol):
    """The interface of tensors; torch tensors and Triton's TensorWrapper have it."""

    @property
    def dtype(self) -> Any:
        """Element type; ``str(dtype)`` ends in its name."""

    @property
    def shape(self) -> Sequence[int]:
        """Sizes in elements, outermost first."""

    def data_ptr(self) -> int:
        """Address of the first element in bytes."""

    def stride(self) -> Sequence[int]:
        """Strides in elements, outermost first."""


def check_tensor(name: str, tensor: object, *needed: str) -> None:
    """Refuses what is no tensor that a descriptor can be of.

    Raises:
        TypeError: ``tensor`` lacks one of the attributes of :class:`TensorLike`, or of ``needed``.
    """
    kind = type(tensor)
    for attribute in needed or ("dtype", "shape", "stride", "data_ptr"):
        try:
            is_there = hasattr(tensor, attribute)
        except RuntimeError as error:
            # A nested one of torch has no shape.
            raise TypeError(
                f"{name} must be a dense tensor, got one without {attribute}; pad nested tensors"
            ) from error
        if not is_there:
            is_array = kind.__module__.partition(".")[0] == "numpy"
            way_out = "; torch.from_numpy makes one of an array" if is_array else ""
            raise TypeError(
                f"{name} must be a tensor of torch, or one like it; {kind.__name__} has no "
                f"{attribute}{way_out}"
            )


def is_on_gpu(tensor: object) -> bool:
    """Tells whether a tensor lies in the memory of a GPU; one that does not say is taken to."""
    found = getattr(tensor, "is_cuda", None)
    if found is None:
        found = getattr(getattr(tensor, "device", None), "type", "cuda") == "cuda"
    return bool(found)


def strides_of(name: str, tensor: TensorLike) -> tuple[int, ...]:
    """Returns the strides in elements.

    Raises:
        TypeError: The tensor has none, as sparse ones have none.
    """
    try:
        strides = tensor.stride()
    except RuntimeError as error:
        raise TypeError(_not_strided(name, tensor)) from error
    return integers("strides", strides)


def _address_of(name: str, tensor: TensorLike) -> int | None:
    """Returns the address in bytes; ``None`` for tensors that stand for others.

    Raises:
        TypeError: The tensor has none, as sparse ones have none.
    """
    if type(tensor).__name__ in _TENSORS_WITHOUT_ADDRESS:
        return None
    try:
        return tensor.data_ptr()
    except RuntimeError as error:
        raise TypeError(_not_strided(name, tensor)) from error


def _not_strided(name: str, tensor: TensorLike) -> str:
    layout = getattr(tensor, "layout", type(tensor).__name__)
    return (
        f"{name} must be a dense tensor with strides and an address, got one of layout {layout}; "
        "use to_dense()"
    )


class FrozenList(list[int]):
    """A list that Triton takes as a list, and that cannot be changed."""

    __slots__ = ()

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("a descriptor is immutable: its lists cannot be changed")

    __setitem__ = _refuse
    __delitem__ = _refuse
    __iadd__ = _refuse
    __imul__ = _refuse
    append = _refuse
    clear = _refuse
    extend = _refuse
    insert = _refuse
    pop = _refuse
    remove = _refuse
    reverse = _refuse
    sort = _refuse


class PixelShape(FrozenList):
    """The shape [pixels, channels] that Triton sees, carrying the im2col geometry.

    Triton's interpreter rebuilds a descriptor as a plain ``TensorDescriptor`` but hands over the
    same shape object; this is how the geometry gets through.

    Attributes:
        im2col: The geometry of the tensor map.
        conv: The convolution that the descriptor was made for, or ``None``.
    """

    __slots__ = ("conv", "im2col")

    im2col: Im2ColGeometry
    conv: ConvGeometry | None

    def __init__(
        self, sizes: Iterable[int], im2col: Im2ColGeometry, conv: ConvGeometry | None
    ) -> None:
        super().__init__(sizes)
        self.im2col = im2col
        self.conv = conv


class Im2ColDescriptor(TensorDescriptor):  # type: ignore[misc]  # triton ships no types
    """A tensor map for im2col loads of [pixels, channels] blocks; immutable but for the block.

    For a convolution use :meth:`for_conv`.  The constructor takes the driver's own terms, as the
    backward passes need them.

    Attributes:
        base: The tensor; kept alive by the descriptor.
        shape: [N * D * H * W, C], what Triton sees (the pixel count is capped at 2^31 - 1, the
            range of Triton's own argument; im2col loads do not read it).
        strides: [stride of W, 1] in elements, what Triton sees.
        block_shape: [pixels, channels] of one load.
        padding: ``"zero"`` or ``"nan"``, the value of elements outside the tensor.
        round_f32_to_tf32: Whether fp32 elements are rounded to tf32 as they are loaded.
        geometry: The tensor map as the driver sees it.
        conv: The convolution it was made for, or ``None``.
        identity: A number that stands for geometry, padding and rounding in keys of maps.
        base_layout: Shape and strides that ``base`` had; ``None`` for a base that does not tell.
        base_numel: Number of its elements, likewise; what every launch compares.
        families: The launcher's cache for this geometry, by kernel; :meth:`with_base`
            shares it between tensors on GPUs.
        input_shape: Shape of the tensor, (N, [D, [H,]] W, C).
        input_strides: Strides of the tensor in elements, size-1 dimensions packed.
    """

    def __init__(
        self,
        base: TensorLike,
        shape: Sequence[int],
        strides: Sequence[int],
        block_shape: Sequence[int],
        *,
        pixel_box_lower_corner: Sequence[int],
        pixel_box_upper_corner: Sequence[int],
        element_strides: Sequence[int] | None = None,
        padding: str = "zero",
        round_f32_to_tf32: bool = False,
    ) -> None:
        """Builds a descriptor from the driver's terms; every array is outermost first.

        Args:
            base: Tensor whose memory is described, 16-byte aligned.
            shape: (N, [D, [H,]] W, C) in elements, each 1..2^32.
            strides: In elements; the last 1, the others multiples of 16 bytes.
            block_shape: [pixels, channels], powers of two; pixels 1..1024.
            pixel_box_lower_corner: First position per spatial dimension; -32768..32767 in 1-D,
                -128..127 in 2-D, -16..15 in 3-D.
            pixel_box_upper_corner: Last position relative to the last pixel; same ranges.
            element_strides: Step of the walk, one per dimension of the tensor, 1 for N and C and
                1..8 between; all 1 by default.
            padding: ``"zero"``, or ``"nan"`` for float types of 16 and 32 bits.
            round_f32_to_tf32: Round fp32 elements to tf32.

        Raises:
            DescriptorError: A rule of ``validation.py`` is broken; all violations are listed.
            TypeError: An argument that should hold integers does not, or one that should be a
                tensor is none.
        """
        check_tensor("base", base, "dtype", "data_ptr")
        full_shape = integers("shape", shape)
        steps = (1,) * len(full_shape) if element_strides is None else element_strides
        self._init(
            base,
            full_shape,
            integers("strides", strides),
            block_shape,
            lower=integers("pixel_box_lower_corner", pixel_box_lower_corner),
            upper=integers("pixel_box_upper_corner", pixel_box_upper_corner),
            steps=integers("element_strides", steps),
            padding=padding,
            round_f32_to_tf32=round_f32_to_tf32,
            conv=None,
        )

    @classmethod
    def for_conv(
        cls,
        x: TensorLike,
        filter_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | Sequence[Sequence[int]] = 0,
        dilation: int | Sequence[int] = 1,
        *,
        block_shape: Sequence[int],
        round_f32_to_tf32: bool = False,
        fill: Literal["zero", "nan"] = "zero",
    ) -> Im2ColDescriptor:
        """Builds the descriptor through which a convolution or a pooling reads its input.

        Args:
            x: Input, N(D)(H)WC of rank 3 to 5, 16-byte aligned.
            filter_size: Taps, one int or one per spatial dimension.
            stride: 1..8, one int or one per spatial dimension.
            padding: Pixels; one int, one per spatial dimension, or a (low, high) pair per
                spatial dimension.
            dilation: One int or one per spatial dimension.
            block_shape: [pixels, channels] of one load, powers of two; pixels 1..1024.
            round_f32_to_tf32: Round fp32 elements to tf32.
            fill: Value of pixels in the padding and of channels beyond the last: ``"zero"`` for
                convolutions, or ``"nan"`` for poolings of fp16, bf16 and fp32, which ignore NaN.

        Raises:
            DescriptorError: TMA cannot express the convolution; all violations are listed. Or x is
                in torch's order of dimensions, channels-last.
            TypeError: An argument that should hold integers does not, or one that should be a
                tensor is none.

        Warns:
            UserWarning: x is legal, and looks like contiguous memory in torch's order.
        """
        check_tensor("x", x)
        shape = integers("shape", x.shape)
        strides = strides_of("x", x)
        advice, certainty = advice_on_order(shape, strides)
        if certainty == "certain":
            raise descriptor_error([advice])
        # Rows of another order than the expected one are hardly ever aligned.
        if certainty == "possible" and _is_aligned(shape, normalize_dtype(x.dtype)):
            advice = ""
        conv, problems = normalize_conv(shape, filter_size, stride, padding, dilation)
        self = cls.__new__(cls)
        self._init(
            x,
            shape,
            strides,
            block_shape,
            # Without a convolution the rank is wrong, which is reported as such.
            lower=() if conv is None else conv.pixel_box_lower_corner,
            upper=() if conv is None else conv.pixel_box_upper_corner,
            steps=() if conv is None else conv.element_strides,
            padding=fill,
            round_f32_to_tf32=round_f32_to_tf32,
            conv=conv,
            wrong_lengths={} if conv is None else problems,
            advice=advice,
        )
        if certainty == "likely" and _address_of("x", x):
            warnings.warn(advice, stacklevel=2)
        return self

    @classmethod
    def from_tensor(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses what the base class has for tiled descriptors.

        Raises:
            TypeError: Always; an im2col descriptor needs to know the convolution.
        """
        raise TypeError(
            "Im2ColDescriptor has no from_tensor: what an im2col load walks follows from the "
            "convolution; use Im2ColDescriptor.for_conv(x, filter_size, stride, padding, dilation, "
            "block_shape=[pixels, channels]), or TensorDescriptor.from_tensor for tiled loads"
        )

    def _init(
        self,
        base: TensorLike,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        block_shape: Sequence[int],
        *,
        lower: tuple[int, ...],
        upper: tuple[int, ...],
        steps: tuple[int, ...],
        padding: str,
        round_f32_to_tf32: bool,
        conv: ConvGeometry | None,
        wrong_lengths: Mapping[str, str] = MappingProxyType({}),
        advice: str = "",
    ) -> None:
        """Validates everything, then sets every attribute once; an error ends with the advice."""
        if not isinstance(round_f32_to_tf32, bool):
            raise TypeError(f"round_f32_to_tf32 must be a bool, got {round_f32_to_tf32!r}")
        block = integers("block_shape", block_shape)
        if len(block) != 2:
            wrong = f"block_shape must be [pixels, channels], got {list(block)}"
            wrong_lengths = {**wrong_lengths, "block_shape": wrong}
            block = (1, 1)
        dtype = normalize_dtype(base.dtype)
        element_bytes = DTYPE_BYTES.get(dtype)
        if element_bytes is None:
            element_bytes = int(getattr(base.dtype, "itemsize", 1))
        if len(strides) == len(shape):
            strides = packed_size_one_strides(shape, strides, element_bytes)
        geometry = Im2ColGeometry(
            shape=shape,
            strides=strides,
            element_bytes=element_bytes,
            dtype=dtype,
            pixel_box_lower_corner=lower,
            pixel_box_upper_corner=upper,
            element_strides=steps,
            pixels_per_column=block[0],
            channels_per_pixel=block[1],
        )
        problems = violations(
            geometry,
            conv=conv,
            address=_address_of("base" if conv is None else "x", base),
            padding=padding,
            round_f32_to_tf32=round_f32_to_tf32,
            wrong_lengths=wrong_lengths,
        )
        if problems:
            raise descriptor_error([*problems, *([advice] if advice else ())])
        channels = geometry.shape[-1]
        pixels = min(math.prod(geometry.shape[:-1]), _MAX_INT32)
        # The base class is a plain dataclass whose checks are asserts on these same fields; ours
        # replace them, so its __init__ is not called.
        self.__dict__.update(
            base=base,
            shape=PixelShape((pixels, channels), geometry, conv),
            strides=FrozenList((geometry.strides[-2], 1)),
            block_shape=FrozenList(block),
            padding=padding,
            round_f32_to_tf32=round_f32_to_tf32,
            geometry=geometry,
            conv=conv,
            identity=MAPS.numbers.of((geometry, padding, round_f32_to_tf32)),
            base_layout=layout_of(base),
            base_numel=base.numel() if hasattr(base, "numel") else None,
            families={},
        )

    geometry: Im2ColGeometry
    conv: ConvGeometry | None
    identity: int
    base_layout: Any
    base_numel: int | None
    families: dict[int, Any]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "block_shape":
            # Triton's autotuner does that: a configuration's pre_hook sets the block of the
            # descriptors among the kernel's arguments.
            self.__dict__.update(self.with_block_shape(value).__dict__)
            return
        raise AttributeError(
            f"Im2ColDescriptor is immutable: cannot set {name!r}; build a new descriptor"
        )

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"Im2ColDescriptor is immutable: cannot delete {name!r}")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("Im2ColDescriptor cannot be copied or pickled; build a new descriptor")

    def __repr__(self) -> str:
        geometry = self.geometry
        parts = [
            f"{geometry.dtype}{list(geometry.shape)}",
            f"strides={list(geometry.strides)}",
            f"block_shape={list(self.block_shape)}",
        ]
        if self.conv is not None:
            parts += [
                f"filter_size={self.conv.filter_size}",
                f"stride={self.conv.stride}",
                f"padding={self.conv.padding}",
                f"dilation={self.conv.dilation}",
            ]
        else:
            parts += [
                f"pixel_box_lower_corner={geometry.pixel_box_lower_corner}",
                f"pixel_box_upper_corner={geometry.pixel_box_upper_corner}",
                f"element_strides={geometry.element_strides}",
            ]
        if self.padding != "zero":
            parts.append(f"padding={self.padding!r}")
        if self.round_f32_to_tf32:
            parts.append("round_f32_to_tf32=True")
        return f"Im2ColDescriptor({', '.join(parts)})"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the tensor, (N, [D, [H,]] W, C)."""
        return self.geometry.shape

    @property
    def input_strides(self) -> tuple[int, ...]:
        """Strides of the tensor in elements; those of size-1 dimensions are the packed ones."""
        return self.geometry.strides

    @property
    def kernel_strides(self) -> tuple[int, int]:
        """Numbers that a kernel gets as strides: the walk, for ``im2col_start(row, desc)``."""
        return self.geometry.packed_walk

    def _conv_or_raise(self, name: str) -> ConvGeometry:
        if self.conv is None:
            raise AttributeError(
                f"{name} is known only for a descriptor made by Im2ColDescriptor.for_conv; this "
                "one was made from pixel box corners (its walk is geometry.walk_size)"
            )
        return self.conv

    @property
    def output_size(self) -> tuple[int, ...]:
        """Output pixels per spatial dimension.

        Raises:
            AttributeError: The descriptor was not made by :meth:`for_conv`.
        """
        return self._conv_or_raise("output_size").output_size

    @property
    def m_gemm(self) -> int:
        """Rows of the implicit GEMM, N * prod(output_size).

        Raises:
            AttributeError: The descriptor was not made by :meth:`for_conv`.
        """
        return self._conv_or_raise("m_gemm").m_gemm

    @property
    def k_gemm(self) -> int:
        """Reduction length of the implicit GEMM, prod(filter_size) * C.

        Raises:
            AttributeError: The descriptor was not made by :meth:`for_conv`.
        """
        return self._conv_or_raise("k_gemm").k_gemm

    def with_base(self, base: TensorLike) -> Im2ColDescriptor:
        """Returns the descriptor of another tensor of the same dtype, shape and strides.

        Costs a fraction of building one, because only what depends on the tensor is checked.  Maps
        are kept by address and geometry (``map_cache.py``): a tensor at an address that was seen
        before needs none, one at another address a copy with the address replaced.

        Args:
            base: The tensor, 16-byte aligned.

        Raises:
            DescriptorError: The tensor does not have this geometry, or is not aligned.
            TypeError: ``base`` is no tensor with strides and an address.
        """
        geometry = self.geometry
        try:
            shape, strides, dtype = tuple(base.shape), tuple(base.stride()), base.dtype
        except (AttributeError, RuntimeError):
            check_tensor("base", base)
            strides_of("base", base)
            raise
        if shape == geometry.shape and strides != geometry.strides:
            strides = packed_size_one_strides(shape, strides, geometry.element_bytes)
        if dtype != self.base.dtype or (shape, strides) != (geometry.shape, geometry.strides):
            raise DescriptorError(
                f"the descriptor is of {geometry.dtype}{list(geometry.shape)} with strides "
                f"{list(geometry.strides)}, the tensor is {normalize_dtype(dtype)}"
                f"{list(shape)} with strides {list(strides)}"
            )
        address = _address_of("base", base)
        problems = [] if address is None else address_violations(address)
        if problems:
            raise descriptor_error(problems)
        other = type(self).__new__(type(self))
        numel = base.numel() if hasattr(base, "numel") else None
        other.__dict__.update(
            self.__dict__, base=base, base_layout=layout_of(base), base_numel=numel
        )
        if not getattr(base, "is_cuda", False) and not is_on_gpu(base):
            # Earlier launches checked the other tensor only: check this one at its first launch.
            other.__dict__["families"] = {}
        return other

    def with_block_shape(self, block_shape: Sequence[int]) -> Im2ColDescriptor:
        """Returns a descriptor of the same tensor and geometry for another block.

        Args:
            block_shape: [pixels, channels].

        Raises:
            DescriptorError: The block is not possible.
        """
        geometry = self.geometry
        other = type(self).__new__(type(self))
        other._init(
            self.base,
            geometry.shape,
            geometry.strides,
            block_shape,
            lower=geometry.pixel_box_lower_corner,
            upper=geometry.pixel_box_upper_corner,
            steps=geometry.element_strides,
            padding=self.padding,
            round_f32_to_tf32=self.round_f32_to_tf32,
            conv=self.conv,
        )
        return other

    def encode(
        self,
        *,
        swizzle: int,
        elem_size: int,
        elem_type: int,
        box: tuple[int, int],
    ) -> bytes:
        """Returns the tensor map for a compiled kernel, from the cache where possible.

        Args:
            swizzle: ``CUtensorMapSwizzle`` of the kernel's shared memory layout.
            elem_size: Bytes per element that the kernel loads.
            elem_type: ``CUtensorMapDataType`` in the host's numbering.
            box: (pixels, channels) of one TMA instruction.

        Returns:
            The 128 bytes of the ``CUtensorMap``.

        Raises:
            DescriptorError: The kernel's layout does not fit the descriptor or the hardware.
            DriverError: The CUDA driver is missing, too old, or refused the map.
        """
        address = self.base.data_ptr()
        fill_nan = self.padding == "nan"
        pixels, channels = integers("box", box)
        problems = layout_violations(
            self.geometry,
            address=address,
            swizzle=swizzle,
            elem_size=elem_size,
            elem_type=elem_type,
            box=(pixels, channels),
            fill_nan=fill_nan,
        )
        if problems:
            raise descriptor_error(problems)

        def encode() -> bytes:
            return driver.encode_im2col(
                self.geometry,
                address,
                swizzle=swizzle,
                elem_type=elem_type,
                box=(pixels, channels),
                fill_nan=fill_nan,
            )

        family = (self.identity, swizzle, elem_size, elem_type, pixels, channels)
        return MAPS.encoded(address, family, encode)


def _is_aligned(shape: Sequence[int], dtype: str) -> bool:
    """Tells whether rows along the last dimension are a multiple of 16 bytes long."""
    return not shape or shape[-1] * DTYPE_BYTES.get(dtype, 16) % 16 == 0


def layout_of(base: Any) -> Any:
    """Returns the shape and the strides of a tensor; ``None`` for what does not tell them."""
    try:
        return base.shape, base.stride()
    except (AttributeError, RuntimeError):
        return None


def integers(name: str, values: object) -> tuple[int, ...]:
    """Returns the values as plain ints, or raises a TypeError that names the argument."""
    try:
        if not is_sequence(values):
            raise TypeError
        return tuple(operator.index(value) for value in values)
    except TypeError:
        raise TypeError(f"{name} must be a sequence of ints, got {values!r}") from None
