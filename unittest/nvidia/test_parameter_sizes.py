"""What is read of a kernel's parameters in PTX."""

from __future__ import annotations

import pytest
from triton_ext.backends.nvidia.backend.prepared import parameter_sizes

KERNEL = """
.version 8.8
.target sm_90a
.func (.param .b32 result) helper(.param .b64 one);
.visible .entry kernel(
	.param .align 128 .b8 kernel_param_0[128],
	.param .u32 kernel_param_1,
	.param .u64 .ptr .global .align 16 kernel_param_2,
	.param .u64 kernel_param_3,
	.param .u8 kernel_param_4,
	.param .f32 kernel_param_5
)
.reqntid 128
{
	ret;
}
"""


def test_sizes_are_those_of_the_entry() -> None:
    assert parameter_sizes(KERNEL) == [128, 4, 8, 8, 1, 4]


def test_no_parameters() -> None:
    assert parameter_sizes(".visible .entry kernel()\n{ ret; }") == []


@pytest.mark.parametrize("text", ["", ".func helper(.param .b32 a);", KERNEL + KERNEL])
def test_not_one_kernel(text: str) -> None:
    assert parameter_sizes(text) is None


def test_a_parameter_that_is_not_understood_has_no_size() -> None:
    assert parameter_sizes(KERNEL.replace(".u8", ".struct")) == [128, 4, 8, 8, -1, 4]
