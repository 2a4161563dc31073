"""What a launch is refused for, without a GPU: the metadata of a kernel against its arguments."""

from __future__ import annotations

import pytest
from triton_ext.backends.nvidia.backend.descriptors import Im2ColDescriptor
from triton_ext.backends.nvidia.backend.launch import wrap_make_tensordesc_arg
from triton_ext.errors import LaunchError

TILED = {
    "swizzle": 3,
    "elem_size": 2,
    "elem_type": 6,
    "block_size": [64, 64],
    "fp4_padded": False,
    "is_im2col": False,
}
IM2COL = {**TILED, "is_im2col": True, "triton_ext": {"name": "x_desc", "rank": 4}}


def stock(arg, metadata, *rest):
    """Stands for Triton's own function."""
    return ["stock", arg]


@pytest.fixture
def make():
    return wrap_make_tensordesc_arg(stock, lambda: True)


@pytest.fixture
def im2col(make_tensor):
    return Im2ColDescriptor.for_conv(make_tensor((2, 9, 9, 64)), 3, block_shape=[64, 64])


@pytest.fixture
def tiled(make_tensor):
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(make_tensor((128, 64)), [128, 64], [64, 1], [64, 64])


def test_a_tiled_descriptor_where_im2col_is_expected(make, tiled):
    with pytest.raises(LaunchError, match=r"reads 'x_desc' with load_im2col, but a tiled"):
        make(tiled, IM2COL, ())


def test_an_im2col_descriptor_where_a_tiled_one_is_expected(make, im2col):
    with pytest.raises(LaunchError, match=r"\[64, 64\] was passed to a kernel that does not read"):
        make(im2col, TILED, ())


def test_another_rank_than_the_kernel_reads(make, im2col):
    rank_5 = {**IM2COL, "triton_ext": {"name": "x_desc", "rank": 5}}
    with pytest.raises(LaunchError, match=r"with 5 coordinates, .* tensor of rank 4"):
        make(im2col, rank_5, ())


def test_a_target_without_tma(make, im2col):
    with pytest.raises(LaunchError, match="needs an NVIDIA GPU of sm_90 or newer"):
        make(im2col, None, ())


def test_what_is_not_ours_goes_to_triton(make, tiled):
    assert make(tiled, TILED, ()) == ["stock", tiled]
    assert make(tiled, None, ()) == ["stock", tiled]


def test_a_launcher_that_outlives_the_plugin(im2col, tiled):
    make = wrap_make_tensordesc_arg(stock, lambda: False)
    with pytest.raises(LaunchError, match=r"call triton_ext.install\(\)"):
        make(im2col, IM2COL, ())
    assert make(tiled, TILED, ()) == ["stock", tiled]
