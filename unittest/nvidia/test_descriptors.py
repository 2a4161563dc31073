"""Im2ColDescriptor: what Triton sees of it, what it carries, that it never changes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_ext.backends.nvidia.backend import driver
from triton_ext.backends.nvidia.backend.descriptors import Im2ColDescriptor, PixelShape
from triton_ext.backends.nvidia.backend.geometry import Im2ColGeometry
from triton_ext.backends.nvidia.backend.map_cache import MAPS
from triton_ext.errors import DescriptorError

MakeTensor = Callable[..., Any]

# What encode is asked by a kernel with a 128-byte swizzle over fp16.
LAYOUT: dict[str, Any] = {"swizzle": 3, "elem_size": 2, "elem_type": 6, "box": (64, 64)}


@pytest.fixture
def descriptor(make_tensor: MakeTensor) -> Im2ColDescriptor:
    x = make_tensor((2, 14, 12, 128))
    return Im2ColDescriptor.for_conv(x, (3, 5), 2, (1, 2), block_shape=[64, 128])


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Replaces the driver; lists what it was asked."""
    calls: list[tuple[Any, ...]] = []

    def encode(geometry: Im2ColGeometry, address: int, **layout: Any) -> bytes:
        calls.append((geometry, address, layout))
        return len(calls).to_bytes(64, "little") + address.to_bytes(64, "little")

    def replace(encoded: bytes, address: int) -> bytes:
        return encoded[:64] + address.to_bytes(64, "little")

    monkeypatch.setattr(driver, "encode_im2col", encode)
    monkeypatch.setattr(driver, "replace_address", replace)
    MAPS.clear()
    return calls


# ---- What Triton sees --------------------------------------------------------------------------


def test_triton_sees_a_descriptor_of_rank_2(descriptor: Im2ColDescriptor) -> None:
    assert isinstance(descriptor, TensorDescriptor)
    assert descriptor.shape == [2 * 14 * 12, 128]
    assert descriptor.strides == [128, 1]
    assert descriptor.block_shape == [64, 128]
    assert descriptor.padding == "zero"
    assert descriptor.round_f32_to_tf32 is False
    for values in (descriptor.shape, descriptor.strides, descriptor.block_shape):
        assert isinstance(values, list)
        assert all(type(value) is int for value in values)


def test_every_field_of_the_base_class_is_set(descriptor: Im2ColDescriptor) -> None:
    for field in dataclasses.fields(TensorDescriptor):
        assert field.name in vars(descriptor)


def test_padded_rows_show_in_the_strides(make_tensor: MakeTensor) -> None:
    x = make_tensor((2, 14, 12, 128), strides=(30000, 1920, 160, 1))
    descriptor = Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 64])
    assert descriptor.strides == [160, 1]
    assert descriptor.input_strides == (30000, 1920, 160, 1)


def test_specializes_as_a_tensor_descriptor() -> None:
    torch = pytest.importorskip("torch")
    native = pytest.importorskip("triton._C.libtriton")
    from triton.backends.compiler import BaseBackend

    if not hasattr(native, "native_specialize_impl"):
        pytest.skip("this Triton has no native_specialize_impl")
    x = torch.zeros(2, 14, 12, 128, dtype=torch.float16)
    ours = Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 128])
    plain = TensorDescriptor(x, [336, 128], [128, 1], [64, 128])
    specialize = native.native_specialize_impl
    expected = specialize(BaseBackend, plain, False, True, True)
    assert specialize(BaseBackend, ours, False, True, True) == expected
    assert expected[0] == "tensordesc<fp16[64, 128]>"


def test_geometry_survives_the_interpreters_copy(descriptor: Im2ColDescriptor) -> None:
    # As GridExecutor._to_cpu does: positionally, or without the last field on older hosts.
    fields = [getattr(descriptor, field.name) for field in dataclasses.fields(TensorDescriptor)]
    rebuilt = TensorDescriptor(*fields)
    assert type(rebuilt) is TensorDescriptor
    assert isinstance(rebuilt.shape, PixelShape)
    assert rebuilt.shape.im2col is descriptor.geometry


def test_pixel_count_beyond_int32_is_capped(make_tensor: MakeTensor) -> None:
    x = make_tensor((1 << 14, 1 << 10, 1 << 10, 8))
    descriptor = Im2ColDescriptor.for_conv(x, 1, 8, block_shape=[64, 8])
    assert descriptor.shape == [2**31 - 1, 8]
    assert descriptor.m_gemm == 1 << 28


# ---- What it carries ---------------------------------------------------------------------------


def test_convolution(descriptor: Im2ColDescriptor) -> None:
    assert descriptor.output_size == (7, 6)
    assert descriptor.m_gemm == 84
    assert descriptor.k_gemm == 3 * 5 * 128
    assert descriptor.input_shape == (2, 14, 12, 128)
    assert descriptor.input_strides == (21504, 1536, 128, 1)
    assert descriptor.conv is not None
    assert descriptor.conv.padding == ((1, 1), (2, 2))
    assert descriptor.geometry == Im2ColGeometry(
        shape=(2, 14, 12, 128),
        strides=(21504, 1536, 128, 1),
        element_bytes=2,
        dtype="fp16",
        pixel_box_lower_corner=(-1, -2),
        pixel_box_upper_corner=(-1, -2),
        element_strides=(1, 2, 2, 1),
        pixels_per_column=64,
        channels_per_pixel=128,
    )


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_ranks(make_tensor: MakeTensor, rank: int) -> None:
    x = make_tensor((2, *(9, 10, 11)[5 - rank :], 16))
    descriptor = Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 16])
    assert descriptor.output_size == (7, 8, 9)[5 - rank :]


def test_explicit_corners(make_tensor: MakeTensor) -> None:
    x = make_tensor((2, 14, 12, 128), "float32")
    descriptor = Im2ColDescriptor(
        x,
        x.shape,
        x.stride(),
        [64, 32],
        pixel_box_lower_corner=(-2, 0),
        pixel_box_upper_corner=(0, -3),
        element_strides=(1, 1, 2, 1),
        padding="nan",
        round_f32_to_tf32=True,
    )
    assert descriptor.geometry.walk_size == (16, 5)
    assert descriptor.geometry.element_strides == (1, 1, 2, 1)
    assert descriptor.padding == "nan"
    assert descriptor.round_f32_to_tf32 is True
    assert descriptor.conv is None


@pytest.mark.parametrize("name", ["output_size", "m_gemm", "k_gemm"])
def test_explicit_corners_have_no_convolution(make_tensor: MakeTensor, name: str) -> None:
    x = make_tensor((2, 14, 12, 128))
    corners = {"pixel_box_lower_corner": (0, 0), "pixel_box_upper_corner": (0, 0)}
    descriptor = Im2ColDescriptor(x, x.shape, x.stride(), [64, 64], **corners)
    assert descriptor.geometry.element_strides == (1, 1, 1, 1)
    with pytest.raises(AttributeError, match=f"{name} is known only .* made by .*for_conv"):
        getattr(descriptor, name)


def test_explicit_and_convolution_agree(
    make_tensor: MakeTensor, descriptor: Im2ColDescriptor
) -> None:
    x = make_tensor((2, 14, 12, 128))
    explicit = Im2ColDescriptor(
        x,
        x.shape,
        x.stride(),
        [64, 128],
        pixel_box_lower_corner=(-1, -2),
        pixel_box_upper_corner=(-1, -2),
        element_strides=(1, 2, 2, 1),
    )
    assert explicit.geometry == descriptor.geometry


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(2, 128, 14, 12, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    descriptor = Im2ColDescriptor.for_conv(x.permute(0, 2, 3, 1), 3, block_shape=[64, 64])
    assert descriptor.geometry.dtype == "bf16"
    with pytest.raises(DescriptorError, match="channels must be contiguous"):
        Im2ColDescriptor.for_conv(x.transpose(1, 2), 3, block_shape=[64, 64])


def test_fake_tensors_have_no_address_yet() -> None:
    pytest.importorskip("torch")
    fake = pytest.importorskip("torch._subclasses.fake_tensor")
    import torch

    with fake.FakeTensorMode():
        x = torch.zeros(2, 14, 12, 128, dtype=torch.float16)
        descriptor = Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 64])
    assert descriptor.output_size == (12, 10)


def test_reinterpreted_tensors() -> None:
    torch = pytest.importorskip("torch")
    triton = pytest.importorskip("triton")
    x = triton.reinterpret(
        torch.zeros(2, 14, 12, 128, dtype=torch.int8), triton.language.float8e4nv
    )
    descriptor = Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 128])
    assert descriptor.geometry.dtype == "fp8e4nv"
    assert descriptor.geometry.element_bytes == 1


@pytest.mark.parametrize("thing", [5, None, "x", [1, 2]])
def test_what_is_no_tensor_is_named(thing: object) -> None:
    message = f"must be a tensor of torch, or one like it; {type(thing).__name__} has no dtype"
    with pytest.raises(TypeError, match=f"x {message}"):
        Im2ColDescriptor.for_conv(thing, 3, block_shape=[64, 64])
    with pytest.raises(TypeError, match=f"base {message}"):
        Im2ColDescriptor(
            thing,
            (2, 8, 8, 64),
            (4096, 512, 64, 1),
            [64, 64],
            pixel_box_lower_corner=(0, 0),
            pixel_box_upper_corner=(0, 0),
        )


def test_arrays_of_numpy_and_nested_tensors_are_named() -> None:
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros((2, 8, 8, 64), numpy.float16)
    with pytest.raises(TypeError, match=r"ndarray has no stride; torch\.from_numpy makes one"):
        Im2ColDescriptor.for_conv(array, 3, block_shape=[64, 64])
    nested = torch.nested.nested_tensor([torch.zeros(8, 8, 64)])
    with pytest.raises(TypeError, match="x must be a dense tensor, got one without shape"):
        Im2ColDescriptor.for_conv(nested, 3, block_shape=[64, 64])


def test_wrong_types_are_named(make_tensor: MakeTensor) -> None:
    with pytest.raises(TypeError, match="block_shape must be a sequence of ints, got"):
        Im2ColDescriptor.for_conv(make_tensor((2, 14, 14, 64)), 3, block_shape=[64.0, 64])
    with pytest.raises(TypeError, match="block_shape must be a sequence of ints, got 64"):
        Im2ColDescriptor.for_conv(make_tensor((2, 14, 14, 64)), 3, block_shape=64)


@pytest.mark.parametrize("value", [None, "no", 2, 0.0, [], object()])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rounding_is_a_bool(make_tensor: MakeTensor, dtype: str, value: object) -> None:
    x = make_tensor((2, 14, 14, 64), dtype)
    with pytest.raises(TypeError, match="round_f32_to_tf32 must be a bool, got"):
        Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 32], round_f32_to_tf32=value)


def test_rounding_is_for_fp32(make_tensor: MakeTensor) -> None:
    arguments: dict[str, Any] = {"block_shape": [64, 32], "round_f32_to_tf32": True}
    Im2ColDescriptor.for_conv(make_tensor((2, 14, 14, 64), "float32"), 3, **arguments)
    with pytest.raises(DescriptorError, match="round_f32_to_tf32 needs dtype fp32, got bf16"):
        Im2ColDescriptor.for_conv(make_tensor((2, 14, 14, 64), "bfloat16"), 3, **arguments)


@pytest.mark.parametrize(
    "make",
    [set, dict.fromkeys, iter, bytes, bytearray, lambda ints: memoryview(bytes(ints)), str],
    ids=["set", "dict", "iterator", "bytes", "bytearray", "memoryview", "str"],
)
def test_sequences_only(make_tensor: MakeTensor, make: Callable[[Any], Any]) -> None:
    x = make_tensor((2, 14, 14, 64))
    with pytest.raises(TypeError, match="block_shape must be a sequence of ints, got"):
        Im2ColDescriptor.for_conv(x, 3, block_shape=make([128, 64]))
    for name in ("filter_size", "stride", "padding", "dilation"):
        arguments: dict[str, Any] = {"filter_size": 3, "block_shape": [64, 64]}
        with pytest.raises(TypeError, match=f"{name} must be an int or a sequence of ints, got"):
            Im2ColDescriptor.for_conv(x, **{**arguments, name: make([1, 1])})
    with pytest.raises(TypeError, match="padding must be an int or a sequence of ints, got"):
        Im2ColDescriptor.for_conv(x, 3, padding=[make([1, 1]), 1], block_shape=[64, 64])


def test_from_tensor_is_not_inherited(make_tensor: MakeTensor) -> None:
    with pytest.raises(TypeError, match=r"no from_tensor: .* use Im2ColDescriptor\.for_conv\(x, "):
        Im2ColDescriptor.from_tensor(make_tensor((2, 14, 14, 64)), [64, 64])


def test_sparse_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(2, 14, 14, 64, dtype=torch.float16)
    message = r"{} must be a dense tensor with strides and an address, got one of layout torch"
    with pytest.raises(TypeError, match=message.format("x")):
        Im2ColDescriptor.for_conv(x.to_sparse(), 3, block_shape=[64, 64])
    corners = {"pixel_box_lower_corner": (0, 0), "pixel_box_upper_corner": (0, 0)}
    with pytest.raises(TypeError, match=message.format("base")):
        Im2ColDescriptor(x.to_sparse(), x.shape, x.stride(), [64, 64], **corners)
    with pytest.raises((TypeError, DescriptorError), match=r"dense tensor|the tensor is"):
        Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 64]).with_base(x.to_sparse())


def test_repr(descriptor: Im2ColDescriptor, make_tensor: MakeTensor) -> None:
    assert repr(descriptor) == (
        "Im2ColDescriptor(fp16[2, 14, 12, 128], strides=[21504, 1536, 128, 1], "
        "block_shape=[64, 128], filter_size=(3, 5), stride=(2, 2), padding=((1, 1), (2, 2)), "
        "dilation=(1, 1))"
    )
    x = make_tensor((2, 14, 12, 128))
    corners = {"pixel_box_lower_corner": (0, 0), "pixel_box_upper_corner": (0, 0)}
    explicit = Im2ColDescriptor(x, x.shape, x.stride(), [64, 64], **corners, padding="nan")
    assert "pixel_box_lower_corner=(0, 0)" in repr(explicit)
    assert "padding='nan'" in repr(explicit)


# ---- That it never changes ---------------------------------------------------------------------


def test_attributes_cannot_be_set(descriptor: Im2ColDescriptor) -> None:
    for name in ("base", "shape", "padding", "geometry", "something_new"):
        with pytest.raises(AttributeError, match=f"immutable: cannot set '{name}'"):
            setattr(descriptor, name, None)
    with pytest.raises(AttributeError, match="immutable: cannot delete 'base'"):
        del descriptor.base


def test_the_block_can_be_set_as_the_autotuner_does(descriptor: Im2ColDescriptor) -> None:
    before = descriptor.geometry
    descriptor.block_shape = [128, 64]
    assert list(descriptor.block_shape) == [128, 64]
    assert (descriptor.geometry.pixels_per_column, descriptor.geometry.channels_per_pixel) == (
        128,
        64,
    )
    assert descriptor.shape.im2col is descriptor.geometry
    assert descriptor.geometry.strides == before.strides
    with pytest.raises(DescriptorError, match="block of 96 pixels"):
        descriptor.block_shape = [96, 64]
    assert list(descriptor.block_shape) == [128, 64]


@pytest.mark.parametrize("name", ["shape", "strides", "block_shape"])
def test_lists_cannot_be_changed(descriptor: Im2ColDescriptor, name: str) -> None:
    values = getattr(descriptor, name)
    before = list(values)
    changes: list[Callable[[], object]] = [
        lambda: values.__setitem__(0, 1),
        lambda: values.__delitem__(0),
        lambda: values.__iadd__([1]),
        lambda: values.__imul__(2),
        lambda: values.append(1),
        lambda: values.clear(),
        lambda: values.extend([1]),
        lambda: values.insert(0, 1),
        lambda: values.pop(),
        lambda: values.remove(before[0]),
        lambda: values.reverse(),
        lambda: values.sort(),
    ]
    for change in changes:
        with pytest.raises(TypeError, match="immutable"):
            change()
    assert values == before


def test_identity(make_tensor: MakeTensor) -> None:
    x = make_tensor((2, 14, 12, 128))
    one = Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 64])
    two = Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 64])
    assert one == one
    assert one != two
    assert len({one, two, one}) == 2


def test_no_copies(descriptor: Im2ColDescriptor) -> None:
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            attempt(descriptor)


def test_with_block_shape(descriptor: Im2ColDescriptor) -> None:
    other = descriptor.with_block_shape([128, 64])
    assert other.block_shape == [128, 64]
    assert other.conv is descriptor.conv
    assert other.base is descriptor.base
    assert other.geometry == dataclasses.replace(
        descriptor.geometry, pixels_per_column=128, channels_per_pixel=64
    )
    with pytest.raises(DescriptorError, match="block of 96 pixels"):
        descriptor.with_block_shape([96, 64])


# ---- Encoding ----------------------------------------------------------------------------------


def test_encode_passes_what_the_kernel_asks(
    descriptor: Im2ColDescriptor, encoded: list[tuple[Any, ...]]
) -> None:
    assert descriptor.encode(**LAYOUT)[:64] == (1).to_bytes(64, "little")
    ((geometry, address, layout),) = encoded
    assert geometry is descriptor.geometry
    assert address == 0x7F0000000000
    assert layout == {"swizzle": 3, "elem_type": 6, "box": (64, 64), "fill_nan": False}


def test_maps_are_cached_by_layout_and_address(
    make_tensor: MakeTensor, encoded: list[tuple[Any, ...]]
) -> None:
    x = make_tensor((2, 14, 12, 128))
    descriptor = Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 128])
    first = descriptor.encode(**LAYOUT)
    assert descriptor.encode(**LAYOUT) is first
    assert descriptor.encode(**{**LAYOUT, "box": (32, 64)}) != first
    assert descriptor.encode(**{**LAYOUT, "swizzle": 0}) != first
    assert descriptor.encode(**{**LAYOUT, "elem_type": 9}) != first
    x.address += 4096
    moved = descriptor.encode(**LAYOUT)
    assert moved[:64] == first[:64]
    assert int.from_bytes(moved[64:], "little") == x.address
    x.address -= 4096
    assert descriptor.encode(**LAYOUT) is first
    # Another address is not another encoding.
    assert len(encoded) == 4


def test_equal_descriptors_share_their_maps(
    make_tensor: MakeTensor, encoded: list[tuple[Any, ...]]
) -> None:
    x = make_tensor((2, 14, 12, 128))
    one, two = (Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 128]) for _ in range(2))
    assert one.encode(**LAYOUT) is two.encode(**LAYOUT)
    other = Im2ColDescriptor.for_conv(x, 3, stride=2, block_shape=[64, 128])
    assert other.encode(**LAYOUT) != one.encode(**LAYOUT)
    assert len(encoded) == 2


def test_cache_does_not_grow(make_tensor: MakeTensor, encoded: list[tuple[Any, ...]]) -> None:
    x = make_tensor((2, 14, 12, 128))
    descriptor = Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 128])
    for _ in range(20000):
        x.address += 4096
        descriptor.encode(**LAYOUT)
    assert len(encoded) == 1
    assert 4096 <= len(MAPS) <= 8192


def test_with_base(make_tensor: MakeTensor, encoded: list[tuple[Any, ...]]) -> None:
    first, second = make_tensor((2, 14, 12, 128)), make_tensor((2, 14, 12, 128))
    second.address += 4096
    descriptor = Im2ColDescriptor.for_conv(first, 3, block_shape=[64, 128])
    other = descriptor.with_base(second)
    assert other.base is second
    assert other.geometry is descriptor.geometry
    assert other.output_size == descriptor.output_size
    assert descriptor.base is first
    # The maps are shared, by address.
    mine, theirs = descriptor.encode(**LAYOUT), other.encode(**LAYOUT)
    assert mine != theirs
    assert other.with_base(first).encode(**LAYOUT) is mine
    assert len(encoded) == 1


def test_with_base_refuses_another_tensor(
    descriptor: Im2ColDescriptor, make_tensor: MakeTensor
) -> None:
    n, h, w, c = descriptor.geometry.shape
    with pytest.raises(DescriptorError, match="the descriptor is of"):
        descriptor.with_base(make_tensor((n, h, w, 2 * c)))
    unaligned = make_tensor((n, h, w, c))
    unaligned.address += 8
    with pytest.raises(DescriptorError, match="is off by 8"):
        descriptor.with_base(unaligned)


@pytest.mark.parametrize("thing", [None, 3, "x"])
def test_with_base_refuses_what_is_no_tensor(descriptor: Im2ColDescriptor, thing: object) -> None:
    with pytest.raises(TypeError, match=f"base must be a tensor .*{type(thing).__name__} has no"):
        descriptor.with_base(thing)


def test_with_base_of_a_fake_tensor() -> None:
    torch = pytest.importorskip("torch")
    fake = pytest.importorskip("torch._subclasses.fake_tensor")
    x = torch.zeros(2, 14, 12, 128, dtype=torch.float16)
    descriptor = Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 64])
    with fake.FakeTensorMode():
        traced = torch.zeros(2, 14, 12, 128, dtype=torch.float16)
    assert descriptor.with_base(traced).base is traced


def test_encode_refuses_what_does_not_fit(
    descriptor: Im2ColDescriptor, encoded: list[tuple[Any, ...]]
) -> None:
    with pytest.raises(DescriptorError, match="exceeds 64-byte swizzle; use 2 boxes of 32"):
        descriptor.encode(**{**LAYOUT, "swizzle": 2})
    assert encoded == []


def test_encode_sees_a_base_that_became_unaligned(
    make_tensor: MakeTensor, encoded: list[tuple[Any, ...]]
) -> None:
    x = make_tensor((2, 14, 12, 128))
    descriptor = Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 128])
    x.address += 2
    with pytest.raises(DescriptorError, match="is off by 2"):
        descriptor.encode(**LAYOUT)
    assert encoded == []


def test_threads_encode_once(descriptor: Im2ColDescriptor, encoded: list[tuple[Any, ...]]) -> None:
    barrier = threading.Barrier(16)
    results: list[bytes] = []

    def work() -> None:
        barrier.wait()
        results.append(descriptor.encode(**LAYOUT))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(encoded) == 1
    assert len(results) == 16
    assert len(set(results)) == 1


# ---- Tensors in torch's order of dimensions ----------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((2, 64, 17, 17), "[N, C, H, W]"),
        ((2, 64, 1, 16), "[N, C, H, W]"),
        ((1, 32, 4, 6, 8), "[N, C, D, H, W]"),
        ((2, 32, 9), "[N, C, W]"),
    ],
)
def test_channels_last_tensors_of_torch_are_to_be_moved(shape: tuple[int, ...], order: str) -> None:
    torch = pytest.importorskip("torch")
    last = torch.zeros(shape[0], *shape[2:], shape[1], dtype=torch.float16)
    x, block = last.movedim(-1, 1), [64, 32]
    with pytest.raises(DescriptorError, match=r"x\.movedim\(1, -1\)$") as raised:
        Im2ColDescriptor.for_conv(x, 3, padding=1, block_shape=block)
    assert order in str(raised.value)
    assert list(Im2ColDescriptor.for_conv(x.movedim(1, -1), 1, block_shape=block).input_shape) == [
        shape[0],
        *shape[2:],
        shape[1],
    ]


def test_contiguous_tensors_of_torch_are_asked_about() -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(2, 16, 224, 224, dtype=torch.float16)
    advice = r"x\.contiguous\(memory_format=torch\.channels_last\)\.movedim\(1, -1\)$"
    with pytest.warns(UserWarning, match=advice):
        Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 32])
    # Rows of 17 elements are no multiple of 16 bytes, so that it is refused as well.
    with pytest.raises(DescriptorError, match=advice):
        Im2ColDescriptor.for_conv(x[:, :, :17, :17].contiguous(), 3, block_shape=[64, 32])


@pytest.mark.parametrize("shape", [(2, 3, 224, 320), (2, 64, 8, 16, 16), (1, 3, 24, 40, 56)])
def test_images_and_volumes_that_are_not_square_are_asked_about(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(shape, dtype=torch.float16)
    with pytest.warns(UserWarning, match=r"which looks like .*\.movedim\(1, -1\)$"):
        Im2ColDescriptor.for_conv(x, 1, block_shape=[64, 32])


@pytest.mark.parametrize("shape", [(2, 64, 13, 17), (2, 64, 100)])
def test_rows_that_are_not_aligned_may_be_no_channels(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(shape, dtype=torch.float16)
    order = r"\[N, C, H, W\]" if len(shape) == 4 else r"\[N, C, W\]"
    with pytest.raises(DescriptorError, match=rf"pad C=\d+.*\n.*which may be {order}; if it is"):
        Im2ColDescriptor.for_conv(x, 1, block_shape=[64, 32])


@pytest.mark.parametrize(
    "shape",
    [
        (2, 56, 56, 64),
        (2, 14, 12, 128),
        (2, 3, 8, 64),
        (4, 1, 64, 64),
        (8, 64, 64),
        (1, 8, 16, 16, 64),
        (1, 5, 30, 52, 64),
    ],
)
def test_other_shapes_are_not_asked_about(
    shape: tuple[int, ...], make_tensor: MakeTensor, recwarn: pytest.WarningsRecorder
) -> None:
    Im2ColDescriptor.for_conv(make_tensor(shape), 1, block_shape=[64, 64])
    assert not recwarn.list
