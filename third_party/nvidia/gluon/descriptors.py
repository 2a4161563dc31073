"""Host descriptors for Gluon's im2col loads, checked when they are built.

To Triton, a descriptor from here is the host's ``TensorDescriptorIm2Col``.  Building one checks
every rule of ``validation.py`` (the host has a few asserts), takes a convolution instead of
corners, and chooses a layout that fits.  It is immutable; the host's own is not.  At each launch
the plugin looks the tensor map up; where it has none, it checks the fields and encodes one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, NoReturn

from triton_ext.errors import DescriptorError
from triton_ext.host import capabilities, require

from ..backend.descriptors import (
    FrozenList,
    Im2ColDescriptor,
    TensorLike,
    check_tensor,
    integers,
    strides_of,
)
from ..backend.geometry import DTYPE_BYTES, is_sequence, normalize_dtype
from ..backend.validation import block_violations, descriptor_error

__all__ = ["TensorDescriptorIm2Col", "im2col_layout", "with_base"]

# Channel bytes of one box, widest first, and the swizzle that goes with them.
_SWIZZLES = (128, 64, 32)


def im2col_layout(
    block_shape: Sequence[int], dtype: Any, cga_layout: Sequence[Sequence[int]] | None = None
) -> Any:
    """Returns the shared memory layout in which a block needs the fewest boxes.

    Args:
        block_shape: [pixels, channels], powers of two.
        dtype: The tensor's dtype: torch's, or Triton's.
        cga_layout: How the CTAs of a cluster split the block; ``None`` for one CTA.  One basis
            [along pixels, along channels] per bit of the CTA's number: [1, 0], [2, 0], ... halve
            the pixels, [0, 1], [0, 2], ... the channels, [0, 0] shares the block.

    Raises:
        DescriptorError: There is no such block, or it cannot be split so; all violations are
            listed.
        TypeError: An argument that should hold integers does not.
        UnsupportedError: The host has no im2col.
    """
    require("im2col-gluon")
    from triton.experimental.gluon.language._layouts import NVMMASharedLayout

    block = integers("block_shape", block_shape)
    bases = _bases(cga_layout)
    name = normalize_dtype(dtype)
    element_bytes = DTYPE_BYTES.get(name, 0)
    problems = []
    if not element_bytes:
        problems.append(f"dtype {name} not supported (8-, 16-, 32-bit only)")
    if len(block) != 2:
        problems.append(f"block_shape must be [pixels, channels], got {list(block)}")
    elif element_bytes:
        problems.extend(block_violations(*block, element_bytes))
    if not problems:
        problems.extend(_split_violations(bases, (block[0], block[1]), element_bytes))
    if problems:
        raise descriptor_error(problems)
    pixels, channels = _block_of_cta(bases, (block[0], block[1]))
    fitting = (s for s in _SWIZZLES if (channels * element_bytes) % s == 0 and pixels >= 8)
    return NVMMASharedLayout(
        swizzle_byte_width=next(fitting, 0),
        element_bitwidth=8 * element_bytes,
        rank=2,
        cga_layout=[list(basis) for basis in bases] if bases else None,
    )


def _bases(cga_layout: object) -> tuple[tuple[int, ...], ...]:
    if cga_layout is None:
        return ()
    if not is_sequence(cga_layout):
        raise TypeError(f"cga_layout must be a sequence of [pixels, channels], got {cga_layout!r}")
    return tuple(integers("cga_layout", basis) for basis in cga_layout)


def _block_of_cta(bases: Sequence[Sequence[int]], block: tuple[int, int]) -> tuple[int, int]:
    pixels, channels = block
    for basis in bases:
        pixels = pixels // 2 if basis[0] else pixels
        channels = channels // 2 if basis[1] else channels
    return pixels, channels


def _split_violations(
    bases: Sequence[Sequence[int]], block: tuple[int, int], element_bytes: int
) -> list[str]:
    """Lists what is wrong with a cga_layout, and with what it leaves to one CTA."""
    for basis in bases:
        if len(basis) != 2 or min(basis) < 0 or all(basis):
            return [
                f"basis {list(basis)} of cga_layout must be [along pixels, along channels], at "
                "least one of them 0"
            ]
    for dim, name in enumerate(("pixels", "channels")):
        along = sorted(basis[dim] for basis in bases if basis[dim])
        expected = [1 << bit for bit in range(len(along))]
        if along != expected:
            return [
                f"cga_layout splits the {name} at {along}, expected {expected}: each CTA has one "
                "part, and each part a CTA"
            ]
    pixels, channels = _block_of_cta(bases, block)
    if pixels < 1 or channels * element_bytes < 16:
        return [
            f"cga_layout leaves {pixels} pixels x {channels} channels of the block to each CTA: "
            "TMA needs a pixel and 16 bytes of channels"
        ]
    return []


class _HostType(type):
    """Makes ``isinstance`` mean the host's class, which is what instances are."""

    def __instancecheck__(cls, instance: object) -> bool:
        require("im2col-gluon")
        return isinstance(instance, _host_class())


class TensorDescriptorIm2Col(metaclass=_HostType):
    """Builds Gluon's im2col descriptors: ``for_conv``, ``from_tensor``, or all of the fields.

    Instances are immutable, of a subclass of the host's class of the same name, with two attributes
    more: ``geometry``, what the driver sees, and ``conv``, the convolution or ``None``.
    """

    def __new__(
        cls,
        base: TensorLike,
        shape: Sequence[int],
        strides: Sequence[int],
        block_shape: Sequence[int],
        layout: Any = None,
        padding: str = "zero",
        round_f32_to_tf32: bool = False,
        element_strides: Sequence[int] | None = None,
        pixel_box_lower_corner: Sequence[int] | None = None,
        pixel_box_upper_corner: Sequence[int] | None = None,
    ) -> Any:
        """Builds a descriptor from the driver's terms; parameters as the host's class has them.

        Args:
            base: Tensor whose memory is described, 16-byte aligned.
            shape: (N, [D, [H,]] W, C).
            strides: In elements.
            block_shape: [pixels, channels], powers of two.
            layout: NVMMASharedLayout of the block; :func:`im2col_layout` by default.
            padding: ``"zero"`` or ``"nan"``.
            round_f32_to_tf32: Round fp32 elements to tf32.
            element_strides: Step of the walk per dimension, 1 for N and C.
            pixel_box_lower_corner: First position per spatial dimension.
            pixel_box_upper_corner: Last position per spatial dimension, relative to the last pixel.

        Raises:
            DescriptorError: A rule is broken; all violations are listed.
            UnsupportedError: The host has no im2col.
        """
        missing = [
            name
            for name, corner in (
                ("pixel_box_lower_corner", pixel_box_lower_corner),
                ("pixel_box_upper_corner", pixel_box_upper_corner),
            )
            if corner is None
        ]
        if missing:
            raise DescriptorError(f"{' and '.join(missing)} must be given; or use for_conv")
        checked = Im2ColDescriptor(
            base,
            shape,
            strides,
            block_shape,
            pixel_box_lower_corner=pixel_box_lower_corner or (),
            pixel_box_upper_corner=pixel_box_upper_corner or (),
            element_strides=element_strides,
            padding=padding,
            round_f32_to_tf32=round_f32_to_tf32,
        )
        return _host_descriptor(checked, layout)

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
        layout: Any = None,
        round_f32_to_tf32: bool = False,
        fill: Literal["zero", "nan"] = "zero",
    ) -> Any:
        """Builds the descriptor through which a convolution or a pooling reads its input.

        Args:
            x: Input, N(D)(H)WC of rank 3 to 5, 16-byte aligned.
            filter_size: Taps, one int or one per spatial dimension.
            stride: 1..8, one int or one per spatial dimension.
            padding: One int, one per spatial dimension, or (low, high) per spatial dimension.
            dilation: One int or one per spatial dimension.
            block_shape: [pixels, channels] of one load, powers of two.
            layout: NVMMASharedLayout of the block; :func:`im2col_layout` by default.
            round_f32_to_tf32: Round fp32 elements to tf32.
            fill: Value of pixels in the padding and of channels beyond the last: ``"zero"`` for
                convolutions, or ``"nan"`` for poolings of fp16, bf16 and fp32, which ignore NaN.

        Raises:
            DescriptorError: TMA cannot express the convolution; all violations are listed.
            UnsupportedError: The host has no im2col.
        """
        checked = Im2ColDescriptor.for_conv(
            x,
            filter_size,
            stride,
            padding,
            dilation,
            block_shape=block_shape,
            round_f32_to_tf32=round_f32_to_tf32,
            fill=fill,
        )
        return _host_descriptor(checked, layout)

    @classmethod
    def from_tensor(
        cls, tensor: TensorLike, block_shape: Sequence[int], layout: Any = None, **fields: Any
    ) -> Any:
        """Builds a descriptor with the shape and strides of ``tensor``; others as the class."""
        check_tensor("tensor", tensor)
        strides = strides_of("tensor", tensor)
        return cls(tensor, tensor.shape, strides, block_shape, layout, **fields)


def with_base(desc: Any, base: TensorLike) -> Any:
    """Returns the descriptor of another tensor of the same dtype, shape and strides.

    Args:
        desc: A descriptor that was built here.
        base: The tensor, 16-byte aligned.

    Raises:
        DescriptorError: The tensor does not have this geometry, or is not aligned.
        TypeError: ``desc`` was not built here, or ``base`` is no tensor.
    """
    if isinstance(desc, Im2ColDescriptor):
        raise TypeError(
            "desc must be a triton_ext.gluon.nvidia.TensorDescriptorIm2Col, got an "
            "Im2ColDescriptor; that one has a method: desc.with_base(base)"
        )
    if not isinstance(getattr(desc, "checked", None), Im2ColDescriptor):
        raise TypeError(
            "desc must be a descriptor that triton_ext.gluon.nvidia.TensorDescriptorIm2Col built, "
            f"got {type(desc).__module__}.{type(desc).__qualname__}"
        )
    checked = desc.checked.with_base(base)
    immutable = _immutable_type()
    made = immutable.__new__(immutable)
    # The layout, and all else, was checked when the first one was made.
    made.__dict__.update(desc.__dict__, base=base, checked=checked)
    return made


def _host_descriptor(checked: Im2ColDescriptor, layout: Any) -> Any:
    """Returns the host's object with the fields of a descriptor that broke no rule."""
    require("im2col-gluon")
    geometry = checked.geometry
    if layout is None:
        layout = im2col_layout(checked.block_shape, checked.base.dtype)
    _check_layout(layout, checked)
    if not capabilities()["im2col-copies"].available:
        from .substitutes import Im2ColSharedLayout

        layout = Im2ColSharedLayout.of(layout, len(geometry.shape))
    # The host's own __init__ asserts a part of what was checked, and cannot take a fake tensor.
    immutable = _immutable_type()
    desc = immutable.__new__(immutable)
    desc.__dict__.update(
        base=checked.base,
        shape=FrozenList(geometry.shape),
        strides=FrozenList(geometry.strides),
        block_shape=checked.block_shape,
        layout=layout,
        padding=checked.padding,
        round_f32_to_tf32=checked.round_f32_to_tf32,
        element_strides=FrozenList(geometry.element_strides),
        pixel_box_lower_corner=FrozenList(geometry.pixel_box_lower_corner),
        pixel_box_upper_corner=FrozenList(geometry.pixel_box_upper_corner),
        geometry=geometry,
        conv=checked.conv,
        checked=checked,
    )
    return desc


def _host_class() -> Any:
    """Returns the host's class, or what takes its place (before 3.8)."""
    if capabilities()["im2col-copies"].available:
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptorIm2Col
    else:
        from .substitutes import TensorDescriptorIm2Col
    return TensorDescriptorIm2Col


@functools.cache
def _immutable_type() -> Any:
    """Returns the class of the descriptors that are built here."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as Tiled

    Host = _host_class()  # triton ships no types

    # Triton specializes the im2col class by its exact type only, but subclasses of the tiled one
    # too, and by what the object says of itself: with both as bases, the im2col one first, it is
    # taken for what it is.
    class TensorDescriptorIm2Col(Host, Tiled):  # type: ignore[misc,valid-type]  # as above
        """An im2col descriptor of the host's class, which cannot be changed."""

        __qualname__ = "TensorDescriptorIm2Col"

        def __setattr__(self, name: str, value: object) -> NoReturn:
            raise AttributeError(
                f"TensorDescriptorIm2Col is immutable: cannot set {name!r}; build a new descriptor"
            )

        def __delattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"TensorDescriptorIm2Col is immutable: cannot delete {name!r}")

        def __reduce__(self) -> NoReturn:
            raise TypeError(
                "TensorDescriptorIm2Col cannot be copied or pickled; build a new descriptor"
            )

    return TensorDescriptorIm2Col


def _check_layout(layout: Any, checked: Im2ColDescriptor) -> None:
    from triton.experimental.gluon.language._layouts import NVMMASharedLayout

    if not isinstance(layout, NVMMASharedLayout):
        raise TypeError(f"layout must be an NVMMASharedLayout, got {type(layout).__name__}")
    geometry = checked.geometry
    problems = []
    if layout.rank != 2:
        problems.append(f"layout has rank {layout.rank}, a block [pixels, channels] has 2")
    if layout.element_bitwidth != 8 * geometry.element_bytes:
        problems.append(
            f"layout is for elements of {layout.element_bitwidth} bits, {geometry.dtype} has "
            f"{8 * geometry.element_bytes}"
        )
    if layout.fp4_padded or layout.transposed:
        problems.append("layout is transposed or fp4_padded: im2col has neither")
    block = (geometry.pixels_per_column, geometry.channels_per_pixel)
    if layout.rank == 2:
        bases = _bases(layout.cga_layout)
        wrong = _split_violations(bases, block, geometry.element_bytes)
        _, channels = block if wrong else _block_of_cta(bases, block)
        channel_bytes = channels * geometry.element_bytes
        if channel_bytes < layout.swizzle_byte_width:
            whole = "block" if channels == block[1] else "a CTA's part of the block"
            wrong.append(
                f"{whole}, {channels} channels = {channel_bytes} B, is narrower than the "
                f"{layout.swizzle_byte_width}-byte swizzle; use im2col_layout(block_shape, dtype, "
                "cga_layout)"
            )
        problems.extend(wrong)
    if problems:
        raise descriptor_error(problems)
