"""The C extension and driver.py against a stand-in for libcuda; and, where there is one, a GPU."""

from __future__ import annotations

import _random
import contextlib
import ctypes
import datetime
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from triton_ext.backends.nvidia.backend import driver
from triton_ext.backends.nvidia.backend.descriptors import Im2ColDescriptor
from triton_ext.errors import DriverError

MakeTensor = Callable[..., Any]

ARGUMENTS: dict[str, Any] = {
    "address": 0x7F0000001000,
    "data_type": 6,
    "element_bytes": 2,
    "shape": (2, 14, 12, 128),
    "strides": (21504, 1536, 128, 1),
    "pixel_box_lower_corner": (-1, -2),
    "pixel_box_upper_corner": (-3, -4),
    "element_strides": (1, 2, 3, 1),
    "channels_per_pixel": 64,
    "pixels_per_column": 32,
    "swizzle": 3,
    "fill_nan": False,
}
LAYOUT: dict[str, Any] = {"swizzle": 3, "elem_size": 2, "elem_type": 6, "box": (64, 64)}


@pytest.fixture
def extension(stand_in: Any) -> Any:
    """The extension with the stand-in open."""
    stand_in.extension.open_library(stand_in.path)
    return stand_in.extension


# ---- The extension -----------------------------------------------------------------------------


def test_map_comes_back_as_bytes(extension: Any) -> None:
    encoded = extension.fill_tma_descriptor_im2col(**ARGUMENTS)
    assert type(encoded) is bytes
    words = struct.unpack("<16Q", encoded)
    assert words[0] == 0x7F0000001000
    assert words[2:6] == (128, 12, 14, 2)
    assert words[15] == 2**64 - 1


def test_lists_and_other_integers(extension: Any) -> None:
    np = pytest.importorskip("numpy")
    expected = extension.fill_tma_descriptor_im2col(**ARGUMENTS)
    as_lists = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in ARGUMENTS.items()
    }
    as_lists["shape"] = np.array(ARGUMENTS["shape"])
    as_lists["swizzle"] = np.int8(3)
    assert extension.fill_tma_descriptor_im2col(**as_lists) == expected


@pytest.mark.parametrize(
    ("name", "value", "kind", "message"),
    [
        ("address", -1, OverflowError, "address = -1 is outside 0..2^64-1"),
        ("address", 2**64, OverflowError, "address = 18446744073709551616 is outside 0..2^64-1"),
        ("address", "x", TypeError, "address must be an int, got 'x'"),
        ("data_type", 2**31, OverflowError, r"data_type = 2147483648 is outside -2^31..2^31-1"),
        ("element_bytes", -2, OverflowError, "element_bytes = -2 is outside"),
        ("element_bytes", 0, ValueError, "element_bytes must be at least 1, got 0"),
        ("shape", (2, 14), ValueError, "shape has 2 entries, expected 3 to 5"),
        ("shape", (2,) * 6, ValueError, "shape has 6 entries, expected 3 to 5"),
        ("shape", (2,) * 100000, ValueError, "shape has 100000 entries, expected 3 to 5"),
        ("shape", (2, 14, -1, 128), OverflowError, "shape[2] = -1 is outside 0..2^64-1"),
        ("shape", (2, 14, 1.5, 128), TypeError, "shape[2] must be an int, got 1.5"),
        ("shape", 7, TypeError, "shape must be a sequence of ints, got 7"),
        ("shape", {2}, TypeError, "shape must be a sequence of ints, got {2}"),
        ("strides", None, TypeError, "strides must be a sequence of ints, got None"),
        ("shape", "2345", TypeError, "shape[0] must be an int, got '2'"),
        ("strides", (1536, 128, 1), ValueError, "strides has 3 entries, expected 4"),
        ("strides", (1, 1, 1, 1, 1), ValueError, "strides has 5 entries, expected 4"),
        ("strides", (21504, 1536, 128, 2), ValueError, "last dimension must be 1, got 2"),
        ("strides", (2**63, 1536, 128, 1), ValueError, "does not fit 64 bits"),
        ("pixel_box_lower_corner", (1, 2, 3), ValueError, "has 3 entries, expected 2"),
        ("pixel_box_lower_corner", (1, -(2**31) - 1), OverflowError, "_corner[1] = -2147483649"),
        ("pixel_box_upper_corner", (1,), ValueError, "has 1 entries, expected 2"),
        ("element_strides", (1, 1, 1), ValueError, "element_strides has 3 entries, expected 4"),
        ("element_strides", (1, 2**32, 1, 1), OverflowError, "element_strides[1] = 4294967296"),
        ("channels_per_pixel", -1, OverflowError, "channels_per_pixel = -1 is outside"),
        ("pixels_per_column", 2**32, OverflowError, "pixels_per_column = 4294967296 is outside"),
        ("pixels_per_column", 2**64, OverflowError, "is outside"),
        ("swizzle", None, TypeError, "swizzle must be an int, got None"),
    ],
)
def test_arguments_are_checked_before_the_driver_is_asked(
    stand_in: Any, extension: Any, name: str, value: object, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        extension.fill_tma_descriptor_im2col(**{**ARGUMENTS, name: value})
    assert message in str(caught.value)
    assert stand_in.get("encodes") == 0


TILED: dict[str, Any] = {
    "address": 0x7F0000001000,
    "data_type": 6,
    "element_bytes": 2,
    "shape": (300, 128),
    "strides": (128, 1),
    "block_shape": (64, 32),
    "element_strides": (1, 1),
    "swizzle": 2,
    "fill_nan": False,
}


def test_tiled_map_comes_back_as_bytes(extension: Any) -> None:
    words = struct.unpack("<16Q", extension.fill_tma_descriptor_tiled(**TILED))
    assert words[0] == 0x7F0000001000
    assert words[2:4] == (128, 300)


@pytest.mark.parametrize(
    ("name", "value", "kind", "message"),
    [
        ("shape", (), ValueError, "shape has 0 entries, expected 1 to 5"),
        ("shape", (2,) * 6, ValueError, "shape has 6 entries, expected 1 to 5"),
        ("strides", (128, 2), ValueError, "last dimension must be 1, got 2"),
        ("block_shape", (64,), ValueError, "block_shape has 1 entries, expected 2"),
        ("block_shape", (64, -1), OverflowError, "block_shape[1] = -1 is outside 0..2^64-1"),
        ("block_shape", (64, 2**32), OverflowError, "block_shape[1] = 4294967296 is outside"),
        ("block_shape", 64, TypeError, "block_shape must be a sequence of ints, got 64"),
        ("element_strides", (1,), ValueError, "element_strides has 1 entries, expected 2"),
    ],
)
def test_tiled_arguments_are_checked_before_the_driver_is_asked(
    stand_in: Any, extension: Any, name: str, value: object, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        extension.fill_tma_descriptor_tiled(**{**TILED, name: value})
    assert message in str(caught.value)
    assert stand_in.get("encodes") == 0


def test_replaced_address(stand_in: Any, extension: Any) -> None:
    encoded = extension.fill_tma_descriptor_im2col(**ARGUMENTS)
    moved = extension.replace_tma_descriptor_address(encoded, 0x7F0000002000)
    assert struct.unpack("<Q", moved[:8]) == (0x7F0000002000,)
    assert moved[8:] == encoded[8:]
    assert stand_in.get("encodes") == 1
    with pytest.raises(ValueError, match="a tensor map has 128 bytes, got 5"):
        extension.replace_tma_descriptor_address(b"short", 16)
    with pytest.raises(TypeError):
        extension.replace_tma_descriptor_address("x" * 128, 16)
    with pytest.raises(OverflowError, match="address = -1 is outside"):
        extension.replace_tma_descriptor_address(encoded, -1)
    with pytest.raises(extension.Error, match="cuTensorMapReplaceAddress: CUDA_ERROR_INVALID_VA"):
        extension.replace_tma_descriptor_address(encoded, 8)


# In place of the launcher's object: its last bytes are numbers of its state, any will do.
KIND = _random.Random
OFFSET = KIND.__basicsize__ - 128


def new_arguments(extension: Any, encoded: Any, sizes: Any, address: Any) -> Any:
    place = extension.map_place(KIND, OFFSET)
    return extension.new_tma_arguments(place, encoded, sizes, address)


def test_kernel_arguments_of_an_address(stand_in: Any, extension: Any) -> None:
    encoded = extension.fill_tma_descriptor_im2col(**ARGUMENTS)
    made = new_arguments(extension, encoded, (5, 1 << 60), 0x7F0000002000)
    assert made[1:] == (5, 1 << 60)
    moved = extension.replace_tma_descriptor_address(encoded, 0x7F0000002000)
    assert type(made[0]) is KIND
    assert ctypes.string_at(id(made[0]) + OFFSET, 128) == moved
    assert len(new_arguments(extension, encoded, (), 0x7F0000002000)) == 1
    for wrong, error, text in (
        ((b"short", (), 16), ValueError, "a tensor map is 128 bytes, got b'short'"),
        (("x" * 128, (), 16), ValueError, "a tensor map is 128 bytes"),
        ((encoded, [1], 16), TypeError, r"sizes must be a tuple, got \[1\]"),
        ((encoded, (), -1), OverflowError, "address = -1 is outside"),
        ((encoded, (), "x"), TypeError, "address must be an int, got 'x'"),
        ((encoded, (), 8), extension.Error, "cuTensorMapReplaceAddress: CUDA_ERROR_INVALID_VALUE"),
    ):
        with pytest.raises(error, match=text):
            new_arguments(extension, *wrong)
    with pytest.raises(TypeError, match="takes 4 arguments, got 1"):
        extension.new_tma_arguments(KIND)


class Fails(KIND):
    """Large enough, but cannot be made."""

    __slots__ = ()

    def __new__(cls) -> Fails:
        raise ZeroDivisionError("own error")


class MakesBytes(Fails):
    """Instances would be large enough, what is made is not."""

    __slots__ = ()

    def __new__(cls) -> Any:
        return b""


class Lies(type):
    """Says that instances are larger than they are."""

    @property
    def __basicsize__(cls) -> int:
        return 1 << 20


@pytest.mark.parametrize("kind", [KIND, Fails, object])
def test_a_map_has_its_place_inside_of_the_object(extension: Any, kind: type) -> None:
    head, most = object.__basicsize__, kind.__basicsize__ - 128
    for offset in (head, most):
        if kind is not object:
            extension.map_place(kind, offset)
    for offset in (-(1 << 63), -128, -1, 0, head - 1, most + 1, kind.__basicsize__, (1 << 63) - 1):
        with pytest.raises(ValueError, match=f"a map of 128 bytes at offset {offset} is not insid"):
            extension.map_place(kind, offset)


class WithSlots:
    __slots__ = tuple(f"slot_{i}" for i in range(32))


class WithDict(KIND):
    """Has a ``__dict__``."""


class WithOneSlot(KIND):
    __slots__ = ("slot",)


class Inherits(WithOneSlot):
    __slots__ = ()


class WithWeakReferences(KIND):
    __slots__ = ("__weakref__",)


@pytest.mark.parametrize(
    "kind", [WithSlots, WithDict, WithOneSlot, Inherits, WithWeakReferences], ids=str
)
def test_a_map_never_overwrites_references(extension: Any, kind: type) -> None:
    with pytest.raises(TypeError, match="expected a type whose instances have no slots"):
        extension.map_place(kind, 16)


def test_what_is_no_place_of_a_map_is_refused(stand_in: Any, extension: Any) -> None:
    encoded = extension.fill_tma_descriptor_im2col(**ARGUMENTS)
    for wrong, error, text in (
        ((Lies("Lies", (), {}), 16), TypeError, "expected a type without a metaclass"),
        ((lambda: bytes(256), 16), TypeError, "expected a type without a metaclass"),
        ((KIND, "x"), TypeError, "integer"),
        ((KIND, 1 << 64), OverflowError, "int too large"),
        ((KIND,), TypeError, "2 arguments"),
    ):
        with pytest.raises(error, match=text):
            extension.map_place(*wrong)
    for kind, error, text in (
        (Fails, ZeroDivisionError, "own error"),
        (MakesBytes, TypeError, r"MakesBytes'>\(\) returned b''"),
    ):
        place = extension.map_place(kind, 16)
        with pytest.raises(error, match=text):
            extension.new_tma_arguments(place, encoded, (), 16)
    for place in (KIND, datetime.datetime_CAPI):
        with pytest.raises((TypeError, ValueError), match=r"map_place|incorrect name"):
            extension.new_tma_arguments(place, encoded, (), 16)


def test_a_place_keeps_its_type_alive(extension: Any) -> None:
    class Kind(KIND):
        __slots__ = ()

    before = sys.getrefcount(Kind)
    places = [extension.map_place(Kind, 16) for _ in range(100)]
    assert sys.getrefcount(Kind) == before + 100
    places.clear()
    assert sys.getrefcount(Kind) == before


def test_every_argument_is_required(extension: Any) -> None:
    for name in ARGUMENTS:
        rest = {key: value for key, value in ARGUMENTS.items() if key != name}
        with pytest.raises(TypeError, match=name):
            extension.fill_tma_descriptor_im2col(**rest)
    with pytest.raises(TypeError):
        extension.fill_tma_descriptor_im2col(*ARGUMENTS.values())


def test_a_sequence_that_shrinks_while_it_is_read(extension: Any) -> None:
    shape: list[Any] = [2, 14, 12, 128]

    class Shrinks:
        def __index__(self) -> int:
            shape.clear()
            return 2

    shape[0] = Shrinks()
    with pytest.raises(IndexError):
        extension.fill_tma_descriptor_im2col(**{**ARGUMENTS, "shape": shape})


def test_error_of_a_conversion_passes_through(extension: Any) -> None:
    class Broken:
        def __index__(self) -> int:
            raise ZeroDivisionError("own error")

    with pytest.raises(ZeroDivisionError, match="own error"):
        extension.fill_tma_descriptor_im2col(**{**ARGUMENTS, "address": Broken()})


def test_open_library_takes_paths(stand_in: Any) -> None:
    stand_in.extension.open_library(str(stand_in.path))
    stand_in.extension.open_library(path=stand_in.path)
    with pytest.raises(TypeError):
        stand_in.extension.open_library(7)
    with pytest.raises(ValueError, match="null"):
        stand_in.extension.open_library("a\0b")


def test_no_references_leak(stand_in: Any, extension: Any) -> None:
    def encode(value: object) -> None:
        arguments = {**ARGUMENTS, "shape": (2, 14, 12, value)}
        with contextlib.suppress(extension.Error, TypeError):
            extension.fill_tma_descriptor_im2col(**arguments)

    number = 10**9 + 7  # not a small int: those are immortal
    stride = 2**40 + 1
    for encode_result in (0, 1):
        stand_in.set("encode_result", encode_result)
        for value in (number, "text"):
            encode(value)
            before = sys.getrefcount(value), sys.getrefcount(stride), sys.getrefcount(None)
            for _ in range(1000):
                encode(value)
            after = sys.getrefcount(value), sys.getrefcount(stride), sys.getrefcount(None)
            assert all(abs(b - a) < 100 for a, b in zip(before, after, strict=True))
    stand_in.set("encode_result", 0)
    encoded = extension.fill_tma_descriptor_im2col(**ARGUMENTS)
    sizes = (number, stride)
    for address in (16, 8):  # the second one is refused
        before = [sys.getrefcount(value) for value in (number, stride, sizes, encoded)]
        for _ in range(1000):
            with contextlib.suppress(extension.Error):
                new_arguments(extension, encoded, sizes, address)
        after = [sys.getrefcount(value) for value in (number, stride, sizes, encoded)]
        assert all(abs(b - a) < 100 for a, b in zip(before, after, strict=True))


# ---- driver.py ---------------------------------------------------------------------------------


def test_descriptor_to_map(stand_in: Any, make_tensor: MakeTensor) -> None:
    descriptor = Im2ColDescriptor.for_conv(make_tensor((2, 14, 12, 64)), 3, block_shape=[64, 64])
    encoded = descriptor.encode(**LAYOUT)
    assert struct.unpack("<6Q", encoded[:48])[2:] == (64, 12, 14, 2)
    # 43008 bytes: small enough for the repair.
    assert struct.unpack("<2Q", encoded[:16])[1] == 2**64 - 1 - 2**21
    assert descriptor.encode(**LAYOUT) is encoded
    assert stand_in.get("encodes") == 1


def test_refusal_names_everything(stand_in: Any, make_tensor: MakeTensor) -> None:
    stand_in.set("encode_result", 1)
    descriptor = Im2ColDescriptor.for_conv(
        make_tensor((2, 14, 12, 64)), (3, 5), stride=(1, 2), padding=(1, 2), block_shape=[64, 64]
    )
    with pytest.raises(DriverError) as caught:
        descriptor.encode(**LAYOUT)
    message = str(caught.value)
    for part in (
        "cuTensorMapEncodeIm2col: CUDA_ERROR_INVALID_VALUE (1): invalid argument",
        "address=0x7f0000000000",
        "shape=[2, 14, 12, 64]",
        "strides=[10752, 768, 64, 1]",
        "pixel_box_lower_corner=[-1, -2]",
        "pixel_box_upper_corner=[-1, -2]",
        "element_strides=[1, 1, 2, 1]",
        "pixels_per_column=64 channels_per_pixel=64",
    ):
        assert part in message
    # A failure is not cached.
    stand_in.set("encode_result", 0)
    descriptor.encode(**LAYOUT)


def test_tiled_and_replaced_maps(stand_in: Any) -> None:
    encoded = driver.encode_tiled(
        0x7F0000001000,
        shape=(300, 128),
        strides=(128, 1),
        element_bytes=2,
        swizzle=3,
        elem_type=6,
        box=[64, 64],
    )
    assert struct.unpack("<4Q", encoded[:32])[2:] == (128, 300)
    assert struct.unpack("<Q", driver.replace_address(encoded, 0x7F0000002000)[:8])[0] == (
        0x7F0000002000
    )
    stand_in.set("encode_result", 1)
    with pytest.raises(DriverError, match=r"block_shape=\[64, 64\]"):
        driver.encode_tiled(
            0x7F0000001000,
            shape=(300, 128),
            strides=(128, 1),
            element_bytes=2,
            swizzle=3,
            elem_type=6,
            box=[64, 64],
        )
    with pytest.raises(DriverError, match=r"ReplaceAddress.*\(1\)[^\0]*address=0x8"):
        driver.replace_address(encoded, 8)


def test_missing_library(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "library_path", lambda: "/nonexistent/libcuda.so.1")
    with pytest.raises(DriverError, match=r"cannot be opened: /nonexistent/libcuda\.so\.1"):
        driver.open_library()
    assert driver.driver_version() is None
    status = driver.driver_status()
    assert status.library == "/nonexistent/libcuda.so.1"
    assert status.version is None
    assert status.problem is not None
    assert "TRITON_LIBCUDA_PATH" in status.problem


def test_old_driver(stand_in: Any) -> None:
    with pytest.raises(DriverError, match=r"needs CUDA 12\.0") as caught:
        driver.open_library(str(stand_in.old_path))
    assert "driver too old: cuTensorMapEncodeIm2col is missing" in str(caught.value)
    assert "driver 525" in str(caught.value)


def test_no_device(stand_in: Any, make_tensor: MakeTensor) -> None:
    stand_in.set("is_initialized", 0)
    stand_in.set("init_result", 100)
    descriptor = Im2ColDescriptor.for_conv(make_tensor((2, 14, 12, 64)), 3, block_shape=[64, 64])
    with pytest.raises(DriverError, match=r"cuInit: CUDA_ERROR_NO_DEVICE \(100\)"):
        descriptor.encode(**LAYOUT)


def test_status_of_a_healthy_driver(stand_in: Any) -> None:
    assert driver.driver_version() == 13000
    assert driver.driver_status() == driver.DriverStatus(str(stand_in.path), 13000, None)


def test_missing_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton_ext.backends.nvidia.backend._driver", None)
    with pytest.raises(DriverError, match="C extension of triton-ext cannot be loaded"):
        driver.open_library("/nonexistent")


def test_library_path_follows_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_LIBCUDA_PATH", raising=False)
    assert driver.library_path() == "libcuda.so.1"
    monkeypatch.setenv("TRITON_LIBCUDA_PATH", "/opt/driver")
    assert driver.library_path() == "/opt/driver/libcuda.so.1"


def test_threads_without_a_context(stand_in: Any, make_tensor: MakeTensor) -> None:
    stand_in.set("has_context", 0)
    failures: list[Exception] = []

    def work(number: int) -> None:
        try:
            for call in range(50):
                x = make_tensor((2, 14, 12, 64), address=(number << 32) + 4096 * call)
                descriptor = Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 64])
                encoded = descriptor.encode(**LAYOUT)
                assert struct.unpack("<Q", encoded[:8])[0] == x.address
        except Exception as error:  # reported by the test's thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert stand_in.get("retains") == stand_in.get("releases") == 32 * 50


# ---- The real driver ---------------------------------------------------------------------------


@pytest.mark.gpu
def test_real_driver_accepts_what_we_accept() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs an NVIDIA GPU of compute capability 9.0 or newer")
    for rank, limit in ((3, 300), (4, 128), (5, 16)):
        x = torch.zeros((2, *(20,) * (rank - 2), 64), dtype=torch.float16, device="cuda")
        descriptor = Im2ColDescriptor.for_conv(
            x, 3, stride=8, padding=((limit, 3),) * (rank - 2), block_shape=[64, 64]
        )
        assert len(descriptor.encode(**LAYOUT)) == 128
        with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
            driver.encode_im2col(
                descriptor.geometry, x.data_ptr() + 8, swizzle=3, elem_type=6, box=(64, 64)
            )


@pytest.mark.gpu
def test_real_driver_on_a_thread_without_a_context() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs an NVIDIA GPU of compute capability 9.0 or newer")
    x = torch.zeros((2, 14, 12, 64), dtype=torch.float16, device="cuda")
    descriptor = Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 64])
    twin = Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 64])
    encoded: list[bytes] = []
    thread = threading.Thread(target=lambda: encoded.append(twin.encode(**LAYOUT)))
    thread.start()
    thread.join()
    assert encoded == [descriptor.encode(**LAYOUT)]
