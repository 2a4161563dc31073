"""Programs of the emulator: control flow, LDS, arguments, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")

from emulator_text import kernel  # noqa: E402
from triton_ext.emulator import EmulationError, Program  # noqa: E402
from triton_ext.errors import TritonExtError, UnsupportedError  # noqa: E402

OUT = "%out: !tt.ptr<i32>, %n: i32"


def result(body, n, module=None):
    """What a kernel stores in ``%r``."""
    out = np.zeros(1, np.int32)
    text = module or kernel(body + "\ntt.store %out, %r : !tt.ptr<i32>", OUT)
    Program(text).run((1,), [out, n])
    return int(out[0])


FOR = """
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %r, %last = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c0, %b = %c1) -> (i32, i32) : i32 {
      %s = arith.addi %a, %b : i32
      scf.yield %b, %s : i32, i32
    }
"""


@pytest.mark.parametrize(("n", "expected"), [(0, 0), (1, 1), (2, 1), (10, 55), (-3, 0)])
def test_for_hands_on_all_values_at_once(n, expected):
    assert result(FOR, n) == expected


@pytest.mark.parametrize(("n", "expected"), [(5, 1), (-5, -1)])
def test_if(n, expected):
    body = """
        %c0 = arith.constant 0 : i32
        %c1 = arith.constant 1 : i32
        %c2 = arith.constant -1 : i32
        %c = arith.cmpi sgt, %n, %c0 : i32
        %r = scf.if %c -> (i32) {
          scf.yield %c1 : i32
        } else {
          scf.yield %c2 : i32
        }
    """
    assert result(body, n) == expected


@pytest.mark.parametrize(("n", "expected"), [(1, 0), (27, 111), (8, 3)])
def test_while(n, expected):
    """Steps until a number is 1."""
    body = """
        %c0 = arith.constant 0 : i32
        %c1 = arith.constant 1 : i32
        %c2 = arith.constant 2 : i32
        %c3 = arith.constant 3 : i32
        %x, %r = scf.while (%a = %n, %k = %c0) : (i32, i32) -> (i32, i32) {
          %c = arith.cmpi ne, %a, %c1 : i32
          scf.condition(%c) %a, %k : i32, i32
        } do {
        ^bb0(%a: i32, %k: i32):
          %even = arith.remsi %a, %c2 : i32
          %odd = arith.cmpi ne, %even, %c0 : i32
          %half = arith.divsi %a, %c2 : i32
          %more = arith.muli %a, %c3 : i32
          %next = arith.addi %more, %c1 : i32
          %b = arith.select %odd, %next, %half : i32
          %l = arith.addi %k, %c1 : i32
          scf.yield %b, %l : i32, i32
        }
    """
    assert result(body, n) == expected


BRANCHES = """module attributes {"ttg.num-warps" = 4 : i32} {
  tt.func private @twice(%x: i32) -> i32 {
    %y = arith.addi %x, %x : i32
    tt.return %y : i32
  }
  tt.func public @kernel(%out: !tt.ptr<i32>, %n: i32) {
    %c0 = arith.constant 0 : i32
    %c = arith.cmpi sgt, %n, %c0 : i32
    cf.cond_br %c, ^bb1(%n : i32), ^bb2
  ^bb1(%m: i32):
    %d = tt.call @twice(%m) : (i32) -> i32
    cf.br ^bb3(%d : i32)
  ^bb2:
    tt.return
  ^bb3(%r: i32):
    tt.store %out, %r : !tt.ptr<i32>
    tt.return
  }
}
"""


@pytest.mark.parametrize(("n", "expected"), [(21, 42), (-1, 0)])
def test_branches_and_calls(n, expected):
    assert result("", n, BRANCHES) == expected


def test_views_of_lds():
    body = """
        %a = ttg.local_alloc : () -> !ttg.memdesc<2x4x8xi32, #m, #smem, mutable>
        %c1 = arith.constant 1 : i32
        %v = ttg.memdesc_index %a[%n] : !ttg.memdesc<2x4x8xi32, #m, #smem, mutable> -> !ttg.memdesc<4x8xi32, #m, #smem, mutable>
        %w = ttg.memdesc_subslice %v[2, 4] : !ttg.memdesc<4x8xi32, #m, #smem, mutable> -> !ttg.memdesc<2x4xi32, #m, #smem, mutable, 4x8>
        %t = ttg.memdesc_trans %w {order = array<i32: 1, 0>} : !ttg.memdesc<2x4xi32, #m, #smem, mutable, 4x8> -> !ttg.memdesc<4x2xi32, #m, #smem, mutable, 8x4>
        %x = tt.make_range {end = 32 : i32, start = 0 : i32} : tensor<32xi32>
        %y = tt.reshape %x : tensor<32xi32> -> tensor<4x8xi32>
        ttg.local_store %y, %v : tensor<4x8xi32> -> !ttg.memdesc<4x8xi32, #m, #smem, mutable>
        %z = ttg.local_load %t : !ttg.memdesc<4x2xi32, #m, #smem, mutable, 8x4> -> tensor<4x2xi32>
        %f = tt.reshape %z : tensor<4x2xi32> -> tensor<8xi32>
        %i = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
        %p = tt.splat %out : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>>
        %q = tt.addptr %p, %i : tensor<8x!tt.ptr<i32>>, tensor<8xi32>
        tt.store %q, %f : tensor<8x!tt.ptr<i32>>
    """  # noqa: E501 - TTGIR
    text = kernel(body, OUT).replace(
        "#smem =",
        "#m = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>\n#smem =",
    )
    out = np.zeros(8, np.int32)
    Program(text).run((1,), [out, 1])
    assert out.tolist() == np.arange(32).reshape(4, 8)[2:4, 4:8].T.reshape(-1).tolist()
    with pytest.raises(EmulationError, match="index 2 of 2 buffers 'a'"):
        Program(text).run((1,), [out, 2])


# ---- refusals


def test_an_operation_that_is_not_known():
    text = kernel('%r = "some.thing"(%n) : (i32) -> i32 loc("kernel.py":3:5)', OUT)
    with pytest.raises(EmulationError) as caught:
        Program(text)
    assert str(caught.value).startswith(
        "kernel.py:3:5: error: the emulator does not support 'some.thing'"
    )


def test_a_type_that_is_not_known():
    text = kernel("%r = arith.constant 1.0 : f8E3M4", OUT)
    with pytest.raises(UnsupportedError, match="no values of type f8E3M4"):
        Program(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([np.zeros(1, np.int32)], "the kernel has 2 parameters (%out, %n), got 1 arguments"),
        ([3, 4], "%out is !tt.ptr<i32>: expected a numpy array or a CPU tensor, got 3"),
        ([np.zeros(1, np.int64), 4], "%out is !tt.ptr<i32>, of 4 bytes: got an array of int64"),
        ([np.zeros(1, np.int32), np.zeros(3)], "%n is i32, got an array"),
    ],
)
def test_arguments_that_do_not_fit(arguments, message):
    with pytest.raises(TypeError) as caught:
        Program(kernel("", OUT)).run((1,), arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize("grid", [1, (), (1, 1, 1, 1), (1.5,), (-1,), "1"])
def test_a_grid_that_is_none(grid):
    with pytest.raises(TypeError, match="expected a grid of one to three numbers, got "):
        Program(kernel("", OUT)).run(grid, [np.zeros(1, np.int32), 1])


def test_a_grid_of_three_dimensions():
    body = """
        %x = tt.get_program_id x : i32
        %y = tt.get_program_id y : i32
        %z = tt.get_program_id z : i32
        %xy = arith.muli %y, %n : i32
        %xyz = arith.addi %xy, %x : i32
        %p = tt.addptr %out, %xyz : !tt.ptr<i32>, i32
        tt.store %p, %z : !tt.ptr<i32>
    """
    out = np.full(6, -1, np.int32)
    Program(kernel(body, OUT)).run((np.int64(2), 3, 2), [out, 2])
    assert (out == 1).all()


def test_an_array_that_is_not_contiguous():
    with pytest.raises(ValueError, match="out: expected a contiguous array, got strides"):
        Program(kernel("", OUT)).run((1,), [np.zeros((4, 4), np.int32)[:, ::2], 1])


def test_the_kernel_is_found():
    assert Program(BRANCHES, "kernel").kernel.name == "tt.func"
    with pytest.raises(ValueError, match="expected one kernel 'other', found: "):
        Program(BRANCHES, "other")


def test_arrays_are_written_in_place_whatever_their_shape():
    body = "%p = tt.addptr %out, %n : !tt.ptr<i32>, i32\ntt.store %p, %n : !tt.ptr<i32>"
    out = np.zeros((2, 3), np.int32)
    Program(kernel(body, OUT)).run((1,), [out, 4])
    assert out.tolist() == [[0, 0, 0], [0, 4, 0]]
    with pytest.raises(EmulationError, match="writes outside of global memory: byte 24 is outside"):
        Program(kernel(body, OUT)).run((1,), [out, 6])
    with pytest.raises(
        EmulationError, match=r"writes outside of global memory: address 0x\w+ belongs to no array"
    ):
        Program(kernel(body, OUT)).run((1,), [out, -1])


def test_without_numpy_it_says_what_to_install():
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from triton_ext import emulator\n"
        "try:\n    emulator.Program\n"
        "except emulator.UnsupportedError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "the emulator needs numpy: pip install 'triton-ext[interpreter]'" in done.stdout


def test_its_errors_are_ours():
    assert issubclass(EmulationError, TritonExtError)
