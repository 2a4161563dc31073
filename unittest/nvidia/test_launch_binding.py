"""``prepare_launch`` and ``launch_prepared`` of the C extension, on a stand-in for libcuda."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest
from stand_in_driver import compile_stand_in
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_ext import Im2ColDescriptor
from triton_ext.backends.nvidia.backend.prepared import _kind_of

# A map and a pointer, which are the first and the third tensor of a launch.
REQUEST: dict[str, Any] = {
    "function": 0x1234,
    "grid": (2, 3, 4),
    "num_warps": 4,
    "num_ctas": 1,
    "shared_bytes": 0,
    "has_pdl": False,
    "is_cooperative": False,
    "values": bytes(136),
    "offsets": struct.pack("=2I", 0, 128),
    "slots": struct.pack("=6I", 0, 1, 0, 2, 0, 128),
    "kinds": (None, None, None),
}


class Tensor:
    """Something at an address."""

    def __init__(self, address: object, dtype: str = "fp16") -> None:
        self.address = address
        self.dtype = dtype

    def data_ptr(self) -> object:
        return self.address


class Descriptor:
    """What describes a tensor."""

    def __init__(
        self,
        base: object,
        shape: object = (8, 8),
        strides: object = (8, 1),
        padding: object = "zero",
    ) -> None:
        self.base = base
        self.shape = shape
        self.strides = strides
        self.padding = padding


NAMES = ("shape", "strides", "padding")
KINDS = ((Descriptor, NAMES, ((8, 8), (8, 1), "zero"), "fp16"), None, None)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Path of the stand-in with its launches."""
    folder = tmp_path_factory.mktemp("launches")
    if not compile_stand_in(folder):
        pytest.skip("no C compiler for the stand-in of libcuda")
    return folder / "libcuda.so.1"


@pytest.fixture
def extension(stand_in: Any, library: Any) -> Any:
    """The extension with that stand-in open."""
    stand_in.extension.open_library(library)
    return stand_in.extension


def launches(library: Any) -> int:
    count = ctypes.CDLL(str(library)).fake_launcher_launches
    count.restype = ctypes.c_uint64
    return int(count())


def test_launches(extension: Any, library: Any) -> None:
    prepared = extension.prepare_launch(**REQUEST | {"kinds": KINDS})
    before = launches(library)
    for x in (Tensor(0x1000), Descriptor(Tensor(0x2000))):
        assert extension.launch_prepared(prepared, 7, (x, None, Tensor(0))) is True
    assert launches(library) == before + 2


def test_launches_nothing(extension: Any, library: Any) -> None:
    prepared = extension.prepare_launch(**REQUEST | {"kinds": KINDS})
    before = launches(library)
    x, y = Tensor(0x1000), Tensor(0x2000)
    for tensors in (
        (),
        (x, None),
        (x, None, y, None),
        (x, y, y),  # the second is no parameter
        (None, None, y),
        (x, None, None),
        (x, None, Descriptor(y)),  # not of the type prepared for in that place
        (Descriptor(None), None, y),
        (Descriptor(x, (8, 9)), None, y),
        (Descriptor(x, (8, 8), (16, 1)), None, y),
        (Descriptor(x, (8, 8), None), None, y),
        (Descriptor(x, padding="nan"), None, y),
        (Descriptor(Tensor(0x1000, "bf16")), None, y),
        (Tensor(0), None, y),  # a map of no memory
        (Tensor(0x1008), None, y),
        (Tensor(-1), None, y),
        (Tensor(1 << 64), None, y),
        (Tensor("0x1000"), None, y),
        (object(), None, y),
    ):
        assert extension.launch_prepared(prepared, 0, tensors) is False, tensors
    assert launches(library) == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"grid": (0, 1, 1)},
        {"grid": (1, 1, -1)},
        {"num_warps": 0},
        {"num_warps": 33},
        {"grid": (1 << 30, 1, 1), "num_ctas": 4},
        {"num_ctas": 0},
        {"shared_bytes": -1},
        {"values": bytes(4097)},
        {"values": bytes(8)},
        {"offsets": b"123"},
        {"offsets": struct.pack("=2I", 0, 136)},
        {"offsets": bytes(4 * 257)},
        {"slots": bytes(8)},
        {"slots": struct.pack("=3I", 3, 1, 0)},
        {"slots": struct.pack("=3I", 0, 2, 0)},
        {"slots": struct.pack("=3I", 0, 1, 64)},
        {"slots": struct.pack("=3I", 0, 0, 132)},
        {"slots": bytes(12 * 33)},
        {"kinds": (None,) * 65},
    ],
    ids=str,
)
def test_requests_that_make_no_sense(extension: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        extension.prepare_launch(**REQUEST | wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"grid": 1},
        {"grid": (1, 2)},
        {"kinds": [None]},
        {"kinds": (int,)},
        {"kinds": ((int, ("a",), (), None),)},
        {"kinds": ((int, (1,), (1,), None),)},
        {"kinds": ((int, ["a"], [1], None),)},
        {"values": "text"},
    ],
    ids=str,
)
def test_requests_of_wrong_types(extension: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        extension.prepare_launch(**REQUEST | wrong)


def test_numbers_that_do_not_fit(extension: Any) -> None:
    for name, value in (("function", 1 << 64), ("num_warps", 1 << 31), ("grid", (1 << 31, 1, 1))):
        with pytest.raises(OverflowError):
            extension.prepare_launch(**REQUEST | {name: value})
    prepared = extension.prepare_launch(**REQUEST)
    with pytest.raises(OverflowError):
        extension.launch_prepared(prepared, -1, (None, None, None))


def test_launches_with_wrong_arguments(extension: Any) -> None:
    prepared = extension.prepare_launch(**REQUEST)
    for arguments in ((), (prepared, 0), (prepared, 0, [])):
        with pytest.raises(TypeError):
            extension.launch_prepared(*arguments)
    with pytest.raises(ValueError, match="PyCapsule"):
        extension.launch_prepared(None, 0, ())
    with pytest.raises(TypeError):
        extension.launch_prepared(prepared, "stream", (None, None, None))


def test_only_what_differs_in_its_address_is_launched(
    extension: Any, library: Any, make_tensor: Any
) -> None:
    """Descriptors whose shape and strides are alike to Triton and whose maps are not."""

    def conv(shape: tuple[int, ...], filter_size: int = 3, dtype: str = "float16") -> Any:
        tensor = make_tensor(shape, dtype)
        return Im2ColDescriptor.for_conv(tensor, filter_size, 1, 1, block_shape=[64, 64])

    def tiled(dtype: str = "float16", **options: Any) -> Any:
        tensor = make_tensor((64, 64), dtype)
        given = {"block_shape": [16, 64], **options}
        return TensorDescriptor(tensor, [64, 64], [64, 1], **given)

    image, matrix = conv((2, 14, 16, 64)), tiled()
    others = {
        image: [
            conv((2, 16, 14, 64)),
            conv((2, 14, 16, 64), 1),
            conv((2, 14, 16, 64), dtype="bfloat16"),
            conv((4, 7, 16, 64)),
            image.with_block_shape([64, 32]),
        ],
        0: [tiled("bfloat16"), tiled(block_shape=[16, 32]), tiled(padding="nan")],
    }
    alike = {
        image: [image.with_base(make_tensor((2, 14, 16, 64), address=0x7F0000000100))],
        0: [tiled()],
    }
    before, y = launches(library), Tensor(0)
    for key, descriptor in ((image, image), (0, matrix)):
        request = REQUEST | {"kinds": (_kind_of(descriptor), None, None)}
        prepared = extension.prepare_launch(**request)
        for other in others[key]:
            assert (tuple(other.shape), tuple(other.strides)) == (
                tuple(descriptor.shape),
                tuple(descriptor.strides),
            )
            assert extension.launch_prepared(prepared, 0, (other, None, y)) is False, other
        for other in (descriptor, *alike[key]):
            assert extension.launch_prepared(prepared, 0, (other, None, y)) is True, other
    assert launches(library) == before + 4


def test_a_driver_without_launches(stand_in: Any) -> None:
    stand_in.extension.open_library(stand_in.path)
    with pytest.raises(RuntimeError, match="cuLaunchKernelEx is missing in "):
        stand_in.extension.prepare_launch(**REQUEST)
