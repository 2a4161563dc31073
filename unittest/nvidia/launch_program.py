"""Launches through Triton's own launcher, against a stand-in for libcuda; run by test_launch.py.

Needs TRITON_LIBCUDA_PATH and LD_LIBRARY_PATH set to the folder of the stand-in.  Runs every
function whose name starts with ``check_`` and prints a JSON object: name to "" or a traceback.
"""

import ctypes
import json
import os
import random
import resource
import sys
import threading
import traceback

import pytest
import triton
import triton.language as tl
import triton_ext.language as tle
from stand_in_driver import StandInDriver
from stand_in_tensor import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_ext import Im2ColDescriptor
from triton_ext.backends.nvidia.backend import driver
from triton_ext.backends.nvidia.backend.geometry import Im2ColGeometry
from triton_ext.backends.nvidia.backend.map_cache import MAPS
from triton_ext.errors import DescriptorError, DriverError, LaunchError
from triton_ext.host import capabilities

FIELDS = json.loads(os.environ["FAKE_LIBCUDA_FIELDS"])

fake = ctypes.CDLL(os.path.join(os.environ["TRITON_LIBCUDA_PATH"], "libcuda.so.1"))
fake.fake_libcuda_state.restype = ctypes.POINTER(ctypes.c_int)
fake.fake_libcuda_record.restype = ctypes.c_void_p
fake.fake_launcher_parameter.restype = ctypes.c_void_p
fake.fake_launcher_set_bytes(0, 128)


triton.runtime.driver.set_active(StandInDriver())


def count(name):
    return fake.fake_libcuda_state()[FIELDS.index(name)]


def calls():
    return count("encodes"), count("replaces")


def launched_address():
    """The address in the map that the last launch of this thread got."""
    return ctypes.c_uint64.from_address(fake.fake_launcher_parameter(0)).value


@triton.jit
def tiled(x, y):
    rows = tl.arange(0, 64)[:, None]
    tl.store(y + rows * 64 + tl.arange(0, 64)[None, :], x.load([0, 0]))


@triton.jit
def im2col(x, y):
    rows = tl.arange(0, 64)[:, None]
    tile = tle.load_im2col(x, [0, 0, 0, 0], [0, 0])
    tl.store(y + rows * 64 + tl.arange(0, 64)[None, :], tile)


OUT = Tensor((64, 64), address=0x7F0000000000)
launch_tiled, launch_im2col = tiled[(1,)], im2col[(1,)]


def conv(address=0x7F0000100000, **changes):
    arguments = {"filter_size": 3, "padding": 1, "block_shape": [64, 64], **changes}
    return Im2ColDescriptor.for_conv(Tensor((2, 8, 8, 64), address=address), **arguments)


def block(address=0x7F0000100000):
    return TensorDescriptor(Tensor((128, 64), address=address), [128, 64], [64, 1], [64, 64])


def raises(kind, call, *texts):
    with pytest.raises(kind) as caught:
        call()
    for text in texts:
        assert text in str(caught.value), f"no {text!r} in {caught.value}"
    return caught.value


def needs(capability):
    """Notes that a check is about what not every Triton has; ``test_launch.py`` asks."""

    def noted(function):
        function.capability = capability
        return function

    return noted


def check_one_encoding_per_geometry():
    launch_im2col(conv(0x7F0000100000), OUT)
    assert calls() == (1, 1)
    assert launched_address() == 0x7F0000100000
    launch_im2col(conv(0x7F0000200000), OUT)
    assert calls() == (1, 2)
    assert launched_address() == 0x7F0000200000
    # A map is kept from the second time on that its address is seen.
    for _ in range(3):
        launch_im2col(conv(0x7F0000100000), OUT)
        assert calls() == (1, 3)
        assert launched_address() == 0x7F0000100000
    launch_im2col(conv(0x7F0000100000, stride=2), OUT)
    assert calls() == (2, 4)


def check_cached_map_is_the_encoded_one():
    desc = conv()
    launch_im2col(desc, OUT)
    got = ctypes.string_at(fake.fake_launcher_parameter(0), 128)
    layout = {"swizzle": 3, "elem_size": 2, "elem_type": 6, "box": (64, 64)}
    assert got == desc.encode(**layout)


def check_the_walk_stands_in_place_of_the_strides():
    desc = conv(stride=2, padding=((1, 0), (0, 2)))
    for index in (3, 4):
        fake.fake_launcher_set_bytes(index, 8)
    launch_im2col(desc, OUT)
    read = ctypes.c_int64.from_address
    got = [read(fake.fake_launcher_parameter(index)).value for index in (3, 4)]
    for index in (3, 4):
        fake.fake_launcher_set_bytes(index, 0)
    assert got == list(desc.geometry.packed_walk), got
    assert list(desc.strides) == [64, 1]


def check_misaligned_tensor():
    desc = conv()
    launch_im2col(desc, OUT)
    desc.base.address += 8
    raises(DescriptorError, lambda: launch_im2col(desc, OUT), "is off by 8")


def check_mismatches_are_refused():
    raises(LaunchError, lambda: launch_im2col(block(), OUT), "reads 'x' with load_im2col")
    raises(LaunchError, lambda: launch_tiled(conv(), OUT), "Im2ColDescriptor of block shape")
    x = Tensor((2, 8, 64), address=0x7F0000100000)
    desc = Im2ColDescriptor.for_conv(x, 3, block_shape=[64, 64])
    raises(LaunchError, lambda: launch_im2col(desc, OUT), "with 4 coordinates", "rank 3")
    # Nothing wrong was kept.
    launch_im2col(conv(), OUT)
    launch_tiled(block(), OUT)


class Elsewhere(Tensor):
    """A tensor that says where it is, as torch's do."""

    is_cuda = False

    def __init__(self, device, pinned=False, **description):
        super().__init__((2, 8, 8, 64), **description)
        self.device = Device(device)
        self.is_pinned = lambda: pinned


class Device(str):
    """torch.device, as far as it is asked."""

    @property
    def type(self):
        return str(self)


def check_tensors_that_no_gpu_can_read():
    arguments = {"filter_size": 3, "padding": 1, "block_shape": [64, 64]}

    def of(tensor):
        return Im2ColDescriptor.for_conv(tensor, **arguments)

    # The message names the device or the lack of memory, and nothing is encoded.
    cpu, meta = Elsewhere("cpu"), Elsewhere("meta", address=0)
    for _ in range(2):
        raises(LaunchError, lambda: launch_im2col(of(cpu), OUT), "of a tensor on cpu")
        raises(LaunchError, lambda: launch_im2col(of(meta), OUT), "of a tensor on meta")
        raises(LaunchError, lambda: launch_im2col(conv(0), OUT), "has no memory")
        assert calls() == (0, 0)
    good = conv()
    launch_im2col(good, OUT)
    before = calls()
    # Neither does what was launched before say anything of another tensor, or of a freed one.
    raises(LaunchError, lambda: launch_im2col(good.with_base(cpu), OUT), "of a tensor on cpu")
    raises(LaunchError, lambda: launch_im2col(good.with_base(meta), OUT), "of a tensor on meta")
    raises(LaunchError, lambda: launch_im2col(of(cpu), OUT), "of a tensor on cpu")
    good.base.address = 0
    raises(LaunchError, lambda: launch_im2col(good, OUT), "has no memory")
    assert calls() == before
    # A kernel can read pinned memory of the host.
    launch_im2col(of(Elsewhere("cpu", pinned=True, address=0x7F0000300000)), OUT)
    assert launched_address() == 0x7F0000300000


@needs("im2col-gluon")
def check_a_tensor_with_other_memory_than_was_described():
    """As ``set_`` leaves it, before and after the kernel was launched with the descriptor."""
    for launches in (0, 2):
        x = Tensor((2, 8, 8, 64), address=0x7F0000300000)
        desc = Im2ColDescriptor.for_conv(x, 3, 1, 1, block_shape=[64, 64])
        for descriptor in (desc, desc.with_base(x)):
            for _ in range(launches):
                launch_im2col(descriptor, OUT)
        small = Tensor((1, 4, 4, 64), address=0x7F0000400000)
        x.shape, x._strides, x.address = small.shape, small._strides, small.address
        for descriptor in (desc, Im2ColDescriptor.for_conv(small, 3, 1, 1, block_shape=[64, 64])):
            if descriptor.base is small:
                launch_im2col(descriptor, OUT)
                continue
            with pytest.raises(LaunchError, match=r"has shape \[1, 4, 4, 64\].*set_\(\)"):
                launch_im2col(descriptor, OUT)


def check_gluon_tensors_that_no_gpu_can_read():
    from gluon_kernels import load_tile
    from triton_ext.gluon import nvidia as xnv

    def launch(tensor):
        desc = xnv.TensorDescriptorIm2Col.for_conv(tensor, 3, 1, 1, block_shape=[64, 64])
        return load_tile[(1,)](desc, OUT, 5, "constants", 1)

    for _ in range(2):
        raises(LaunchError, lambda: launch(Elsewhere("cpu")), "of a tensor on cpu")
        raises(LaunchError, lambda: launch(Elsewhere("meta", address=0)), "of a tensor on meta")
        raises(LaunchError, lambda: launch(Tensor((2, 8, 8, 64), address=0)), "has no memory")
        assert calls() == (0, 0)
        launch(Tensor((2, 8, 8, 64), address=0x7F0000300000))
        MAPS.clear()
        fake.fake_libcuda_reset()


def check_refusal_of_the_driver():
    fake.fake_libcuda_state()[FIELDS.index("encode_result")] = 1
    raises(DriverError, lambda: launch_im2col(conv(), OUT), "pixels_per_column=64")
    error = raises(DriverError, lambda: launch_tiled(block(), OUT), "block_shape=[64, 64]")
    assert isinstance(error.__cause__ or error.__context__, RuntimeError)
    fake.fake_libcuda_state()[FIELDS.index("encode_result")] = 0
    launch_im2col(conv(), OUT)
    launch_tiled(block(), OUT)


def check_tiled_maps():
    launch_tiled(block(), OUT)
    launch_tiled(block(), OUT)
    assert launched_address() == 0x7F0000100000
    launch_tiled(block(0x7F0000200000), OUT)
    assert launched_address() == 0x7F0000200000
    cached = os.environ.get("TRITON_EXT_TILED_MAPS") == "cached"
    assert calls() == ((1, 3) if cached else (3, 0)), calls()
    # A descriptor that was changed since is another one.
    desc = block()
    desc.shape = [96, 64]
    launch_tiled(desc, OUT)
    rows = ctypes.c_uint64.from_address(fake.fake_launcher_parameter(0) + 24).value
    assert rows == 96


def check_threads():
    wrong = []

    def work(number):
        for step in range(300):
            address = 0x7F1000000000 + ((number << 20) + step % 7) * 16
            launch_im2col(conv(address), OUT)
            if launched_address() != address:
                wrong.append(address)

    launch_im2col(conv(), OUT)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    assert count("encodes") == 1


def check_changing_addresses_neither_leak_nor_grow():
    desc = conv()
    run = launch_im2col(desc, OUT)[(1, 1, 1)]

    def launch(times, uses):
        for i in range(times):
            if i % uses == 0:
                desc.base.address += 64
            run(desc, OUT)

    # Maps used once are not kept, but for the first; those used twice are, up to the limit.
    for uses, fewest, most in ((1, 0, 1), (2, 4096, 8192)):
        launch(20000, uses)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        launch(100000, uses)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kib < 4096, f"grew by {grown_kib} KiB"
        assert fewest <= len(MAPS) <= most, len(MAPS)


def check_addresses_in_turn_are_kept():
    desc = conv()
    run = launch_im2col(desc, OUT)[(1, 1, 1)]
    for _ in range(3):
        before = calls()
        for number in range(3000):
            desc.base.address = 0x7F2000000000 + number * 64
            run(desc, OUT)
            assert launched_address() == desc.base.address
    assert calls() == before
    assert 3000 <= len(MAPS) <= 3001  # and the bytes of the first


def record():
    return ctypes.string_at(fake.fake_libcuda_record(), fake.fake_libcuda_record_bytes())


@needs("im2col-copies")
def check_same_as_the_hosts_encoders():
    utils = triton.runtime.driver.active.utils
    numbers = random.Random(1)
    compared = 0
    for _ in range(2000):
        rank = numbers.randint(1, 5)
        limit = 1 << numbers.randint(1, 20)
        shape = [numbers.randint(1, limit) for _ in range(rank)]
        strides = [16 * numbers.randint(1, limit) for _ in range(rank - 1)] + [1]
        box = [numbers.randint(1, 256) for _ in range(rank)]
        size = numbers.choice((1, 2, 4))
        swizzle, kind, nan = numbers.randint(0, 3), numbers.randint(0, 11), numbers.randint(0, 1)
        address = 16 * numbers.randint(1, 1 << 40)
        theirs = utils.fill_tma_descriptor_tiled(
            address, swizzle, size, kind, box, shape, strides, nan
        )
        expected = record(), payload(theirs)
        layout = {"swizzle": swizzle, "elem_type": kind, "fill_nan": bool(nan)}
        ours = driver.encode_tiled(
            address, shape=shape, strides=strides, element_bytes=size, box=box, **layout
        )
        arguments = (address, shape, strides, size, box, layout)
        assert record() == expected[0], arguments
        # The host sums the span of a tensor in 32 bits: those beyond 2 GiB may look small to it.
        if sum((n - 1) * s * size for n, s in zip(shape, strides, strict=True)) < 1 << 31:
            compared += 1
            assert ours == expected[1], arguments
        if rank < 3:
            continue
        lower = [numbers.randint(-16, 15) for _ in range(rank - 2)]
        upper = [numbers.randint(-16, 15) for _ in range(rank - 2)]
        steps = [numbers.randint(1, 8) for _ in range(rank)]
        utils.fill_tma_descriptor_im2col(
            address, swizzle, size, kind, box[:2], shape, strides, nan, lower, upper, steps
        )
        expected_record = record()
        geometry = Im2ColGeometry(
            shape=tuple(shape),
            strides=tuple(strides),
            element_bytes=size,
            dtype="fp16",
            pixel_box_lower_corner=tuple(lower),
            pixel_box_upper_corner=tuple(upper),
            element_strides=tuple(steps),
            pixels_per_column=box[0],
            channels_per_pixel=box[1],
        )
        driver.encode_im2col(geometry, address, box=(box[0], box[1]), **layout)
        assert record() == expected_record
    assert compared > 500, compared


def payload(host_map):
    return ctypes.string_at(id(host_map) + 128, 128)


@needs("im2col-gluon")
def check_gluon_descriptors_from_the_launch_to_the_map():
    from gluon_kernels import sizes_tile
    from triton_ext.gluon import nvidia as xnv

    def sent(index, kind):
        return kind.from_address(fake.fake_launcher_parameter(index)).value

    parameters = range(1, 8)  # the last stride, of the channels, is out of sight
    for index in parameters:
        fake.fake_launcher_set_bytes(index, 8 if index > 4 else 4)
    # A kernel that reads it, and one that does not; blocks of one tiled box, of two and of four.
    for pixels, stride, is_read in (
        (64, 1, True), (512, 2, True), (1024, 1, True), (512, 1, False),
    ):  # fmt: skip
        x = Tensor((3, 9, 7, 32), address=0x7F0000100000)
        desc = xnv.TensorDescriptorIm2Col.for_conv(x, 3, stride, 1, block_shape=[pixels, 32])
        sizes_tile[(1,)](desc, OUT, 5, is_read)
        shape = [sent(1 + i, ctypes.c_int32) for i in range(4)]
        strides = [sent(5 + i, ctypes.c_int64) for i in range(3)]
        assert (shape, strides) == ([3, 9, 7, 32], [2016, 224, 32]), (shape, strides)
        if is_read:
            got = ctypes.string_at(fake.fake_launcher_parameter(0), 128)
            layout = {"swizzle": 2, "elem_size": 2, "elem_type": 6, "box": (pixels, 32)}
            assert got == conv_of(x, stride, pixels).encode(**layout)
    for index in parameters:
        fake.fake_launcher_set_bytes(index, 0)


@needs("im2col-gluon")
def check_a_gluon_descriptor_beside_a_tuple():
    from ring_kernel import ring_kernel
    from triton_ext.gluon import nvidia as xnv

    problem = (1, 1, 1, 1, 64, (1, 8, 8), (1, 1, 1), (0, 1, 1))
    for address in (0x7F0000100000, 0x7F0000200000):
        x = Tensor((2, 8, 8, 64), address=address)
        desc = xnv.TensorDescriptorIm2Col.for_conv(x, 3, 1, 1, block_shape=[64, 64])
        ring_kernel[(1,)](desc, problem, 2, 1)
        assert launched_address() == address


def conv_of(x, stride, pixels):
    return Im2ColDescriptor.for_conv(x, 3, stride, 1, block_shape=[pixels, 32])


@needs("im2col-copies")
def check_gluons_own_descriptors():
    from gluon_kernels import stock_tile
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptorIm2Col
    from triton_ext.gluon import nvidia as xnv

    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)

    def descriptor(**changes):
        x = Tensor((2, 8, 8, 64), address=changes.pop("address", 0x7F0000100000))
        fields = {
            "base": x,
            "shape": list(x.shape),
            "strides": list(x.stride()),
            "block_shape": [64, 64],
            "layout": layout,
            "pixel_box_lower_corner": [-1, -1],
            "pixel_box_upper_corner": [-1, -1],
            **changes,
        }
        return TensorDescriptorIm2Col(**fields)

    def launch(desc):
        return stock_tile[(1,)](desc, OUT, 5, 1)

    launch(descriptor())
    launch(descriptor())
    assert calls() == (1, 2), calls()
    launch(
        xnv.TensorDescriptorIm2Col.for_conv(
            Tensor((2, 8, 8, 64), address=0x7F0000100000), 3, 1, 1, block_shape=[64, 64]
        )
    )
    assert launched_address() == 0x7F0000100000
    assert count("encodes") == 1
    launch(descriptor(address=0x7F0000200000))
    assert launched_address() == 0x7F0000200000
    assert count("encodes") == 1
    bad = {
        "is empty": {"pixel_box_upper_corner": [-1, -9]},
        "element_strides for N and C must be 1": {"element_strides": [2, 1, 1, 1]},
        "must be > 0 and < 2^40": {"strides": [1 << 40, 512, 64, 1]},
        "allowed 1..2^32": {"shape": [2, 8, (1 << 32) + 1, 64]},
        "permuted views": {"strides": [4096, 64, 512, 1]},
    }
    for text, changes in bad.items():
        raises(DescriptorError, lambda changes=changes: launch(descriptor(**changes)), text)
    # The host takes whatever is false for it.
    unhashable = descriptor(round_f32_to_tf32=[])
    raises(TypeError, lambda: launch(unhashable), "round_f32_to_tf32 must be a bool, got []")
    changed = descriptor()
    changed.pixel_box_lower_corner = 3
    raises(TypeError, lambda: launch(changed), "pixel_box_lower_corner must be a sequence of ints")
    assert count("encodes") == 1


def lacks(capability):
    """Why this Triton lacks something; empty where it has it."""
    return capabilities()[capability].reason if capability else ""


def main():
    results = {}
    for name, function in list(globals().items()):
        if not name.startswith("check_"):
            continue
        lacking = lacks(getattr(function, "capability", ""))
        if lacking:
            results[name] = f"skip: {lacking}"
            continue
        MAPS.clear()
        fake.fake_libcuda_reset()
        try:
            function()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
    json.dump(results, sys.stdout)


main()
