"""Integer attributes: decimal, hexadecimal, and what their type holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triton_ext.ir.integers import read_integer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("16", 16),
        ("16 : i32", 16),
        ("007 : i64", 7),
        ("-16 : i32", -16),
        ("0x100 : i32", 256),
        ("0x7FFFFFFF : i32", 2**31 - 1),
        ("0xFFFFFFF0 : i32", -16),
        ("-0x10 : i32", -16),
        ("0xff : index", 255),
        ("3 : ui8 ", 3),
        ("4294967296 : i32", None),
        ("0x100 : i8", None),
        ("true", None),
        ("unit", None),
        ('"4"', None),
        ("4.0 : f32", None),
        ("dense<4> : tensor<1xi32>", None),
        ("4 : f32", None),
        ("", None),
    ],
)
def test_known_texts(text, number):
    assert read_integer(text) == number


@given(st.integers(-(2**31), 2**31 - 1))
def test_bits_and_decimals_are_the_same_number(number):
    assert read_integer(f"{number} : i32") == number
    assert read_integer(f"0x{number % 2**32:X} : i32") == number
