"""Each operation of the emulator against plain Python, on drawn values."""

from __future__ import annotations

import math

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("hypothesis")

from emulator_text import elementwise, kernel  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from triton_ext.emulator import EmulationError, Program  # noqa: E402

few = settings(max_examples=15, deadline=None)
BITS = (8, 16, 32, 64)


def signed(value, bits):
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def unsigned(value, bits):
    return value % (1 << bits)


def truncated(a, b):
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


#: What Python says for two numbers of some bits; the operands are signed.
INTEGER = {
    "addi": lambda a, b, n: a + b,
    "subi": lambda a, b, n: a - b,
    "muli": lambda a, b, n: a * b,
    "andi": lambda a, b, n: a & b,
    "ori": lambda a, b, n: a | b,
    "xori": lambda a, b, n: a ^ b,
    "maxsi": lambda a, b, n: max(a, b),
    "minsi": lambda a, b, n: min(a, b),
    "maxui": lambda a, b, n: max(unsigned(a, n), unsigned(b, n)),
    "minui": lambda a, b, n: min(unsigned(a, n), unsigned(b, n)),
    "divsi": lambda a, b, n: truncated(a, b),
    "remsi": lambda a, b, n: a - b * truncated(a, b),
    "floordivsi": lambda a, b, n: a // b,
    "ceildivsi": lambda a, b, n: -(-a // b),
    "divui": lambda a, b, n: unsigned(a, n) // unsigned(b, n),
    "remui": lambda a, b, n: unsigned(a, n) % unsigned(b, n),
    "shli": lambda a, b, n: a << (b % n),
    "shrsi": lambda a, b, n: a >> (b % n),
    "shrui": lambda a, b, n: unsigned(a, n) >> (b % n),
}
COMPARE = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def numbers(bits):
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return st.one_of(st.sampled_from((low, -1, 0, 1, high)), st.integers(low, high))


@st.composite
def pairs(draw, element=None):
    bits = draw(st.sampled_from(BITS))
    pair = st.tuples(numbers(bits), numbers(bits))
    return bits, draw(st.lists(pair, min_size=8, max_size=8))


@pytest.mark.parametrize("name", INTEGER)
@few
@given(drawn=pairs())
def test_integers(name, drawn):
    bits, found = drawn
    low = -(1 << (bits - 1))
    if "div" in name or "rem" in name:
        # Undefined in MLIR: division by zero, and the one quotient that does not fit.
        found = [(a, b if b and (a, b) != (low, -1) else 1) for a, b in found]
    if name.startswith("sh"):
        found = [(a, b % bits) for a, b in found]
    a, b = (np.array(column, f"int{bits}") for column in zip(*found, strict=True))
    result = elementwise(f"arith.{name} {{0}}, {{1}} : T", [a, b], np.zeros_like(a))
    expected = [signed(INTEGER[name](x, y, bits), bits) for x, y in found]
    assert result.tolist() == expected


@pytest.mark.parametrize("predicate", ["eq", "ne", *(f"{s}{p}" for s in "su" for p in COMPARE)])
@few
@given(drawn=pairs())
def test_comparisons(predicate, drawn):
    if predicate[1:] in ("eq", "ne"):
        predicate = predicate[1:]
    bits, found = drawn
    a, b = (np.array(column, f"int{bits}") for column in zip(*found, strict=True))
    result = elementwise(f"arith.cmpi {predicate}, {{0}}, {{1}} : T", [a, b], np.zeros(8, bool))
    if predicate[0] == "u":
        found = [(unsigned(x, bits), unsigned(y, bits)) for x, y in found]
    assert result.tolist() == [COMPARE[predicate[-2:]](x, y) for x, y in found]


@pytest.mark.parametrize("name", ["extsi", "extui", "trunci"])
@few
@given(drawn=pairs(), other=st.sampled_from(BITS))
def test_integer_widths(name, drawn, other):
    bits, found = drawn
    narrow, wide = min(bits, other), max(bits, other)
    if narrow == wide:
        return
    source, target = (wide, narrow) if name == "trunci" else (narrow, wide)
    values = [signed(a, source) for a, _ in found]
    result = np.zeros(8, f"int{target}")
    elementwise(f"arith.{name} {{0}} : T to R", [np.array(values, f"int{source}")], result)
    if name == "extui":
        values = [unsigned(value, source) for value in values]
    assert result.tolist() == [signed(value, target) for value in values]


floats = st.floats(width=32, allow_nan=False)
rows_of_floats = st.lists(st.tuples(floats, floats), min_size=8, max_size=8)


def same(found, expected):
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(expected, np.float32))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["addf", "subf", "mulf", "divf", "maxnumf", "minnumf"])
@few
@given(drawn=rows_of_floats)
def test_floats(name, dtype, drawn):
    with np.errstate(all="ignore"):
        a, b = (np.array(column).astype(dtype) for column in zip(*drawn, strict=True))
        result = elementwise(f"arith.{name} {{0}}, {{1}} : T", [a, b], np.zeros_like(a))
        wide = {
            "addf": np.add,
            "subf": np.subtract,
            "mulf": np.multiply,
            "divf": np.divide,
            "maxnumf": np.fmax,
            "minnumf": np.fmin,
        }[name](a.astype(np.float64), b.astype(np.float64))
        # Rounded once: float64 holds sums, products and quotients well enough for that.
        same(result, wide.astype(dtype))


@pytest.mark.parametrize("predicate", ["oeq", "one", "olt", "oge", "ueq", "une", "ult", "uge"])
def test_comparisons_of_floats(predicate):
    values = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 3.0]
    a, b = (np.repeat(values, 8), np.tile(values, 8))
    a, b = a.astype(np.float32), b.astype(np.float32)
    result = elementwise(f"arith.cmpf {predicate}, {{0}}, {{1}} : T", [a, b], np.zeros(64, bool))

    def expected(x, y):
        if math.isnan(x) or math.isnan(y):
            return predicate[0] == "u"
        return COMPARE[predicate[1:]](x, y)

    assert result.tolist() == [expected(x, y) for x, y in zip(a, b, strict=True)]


@few
@given(st.lists(st.floats(-1e12, 1e12), min_size=8, max_size=8))
def test_floats_to_integers_round_to_zero_and_saturate(values):
    a = np.array([*values[:6], math.nan, math.inf], np.float32)
    result = elementwise("arith.fptosi {0} : T to R", [a], np.zeros(8, np.int32))
    info = np.iinfo(np.int32)
    expected = [max(info.min, min(info.max, int(float(x)))) for x in a[:6]]
    assert result.tolist() == [*expected, 0, info.max]


@few
@given(st.lists(numbers(32), min_size=8, max_size=8))
def test_integers_to_floats(values):
    a = np.array(values, np.int32)
    same(elementwise("arith.sitofp {0} : T to R", [a], np.zeros(8, np.float32)), a)
    result = elementwise("arith.uitofp {0} : T to R", [a], np.zeros(8, np.float32))
    same(result, a.view(np.uint32))


@few
@given(st.lists(st.floats(width=32), min_size=8, max_size=8))
def test_bits_are_kept(values):
    a = np.array(values, np.float32)
    result = elementwise("tt.bitcast {0} : T -> R", [a], np.zeros(8, np.int32))
    assert result.tolist() == a.view(np.int32).tolist()


@few
@given(st.lists(st.floats(width=32), min_size=8, max_size=8))
def test_bf16_rounds_to_the_nearest_even(values):
    from triton_ext.emulator.elements import element_of
    from triton_ext.ir import parse_type

    element = element_of(parse_type("bf16"))
    a = np.array(values, np.float32)
    with np.errstate(all="ignore"):
        memory = element.to_memory(a)
    assert memory.dtype == np.uint16
    back = element.from_memory(memory)
    torch = pytest.importorskip("torch", reason="the reference is torch's")
    expected = torch.from_numpy(a.copy()).to(torch.bfloat16).float().numpy()
    same(back, expected)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("exp", math.exp),
        ("exp2", lambda x: 2.0**x),
        ("log", math.log),
        ("log2", math.log2),
        ("sqrt", math.sqrt),
        ("rsqrt", lambda x: 1 / math.sqrt(x)),
        ("sin", math.sin),
        ("cos", math.cos),
        ("tanh", math.tanh),
        ("erf", math.erf),
        ("floor", math.floor),
        ("ceil", math.ceil),
        ("absf", abs),
    ],
)
@few
@given(st.lists(st.floats(0.0078125, 60, width=32), min_size=8, max_size=8))
def test_math(name, reference, values):
    a = np.array(values, np.float32)
    result = elementwise(f"math.{name} {{0}} : T", [a], np.zeros_like(a))
    np.testing.assert_allclose(result, [reference(float(x)) for x in a], rtol=2e-6, atol=1e-7)


def test_select_and_i1():
    c = np.array([True, False] * 4)
    d = np.array([True, True, False, False] * 2)
    a, b = np.arange(8, dtype=np.int32), -np.arange(8, dtype=np.int32)
    found = elementwise("arith.select {2}, {0}, {1} : tensor<8xi1>, T", [a, b, c], np.zeros_like(a))
    assert found.tolist() == np.where(c, a, b).tolist()
    for name, reference in (("addi", c ^ d), ("muli", c & d), ("ori", c | d), ("xori", c ^ d)):
        found = elementwise(f"arith.{name} {{0}}, {{1}} : T", [c, d], np.zeros(8, bool))
        assert found.tolist() == reference.tolist()


# ---- tensors


def run(body, parameters, arguments, grid=(1,)):
    Program(kernel(body, parameters)).run(grid, arguments)


def test_shapes():
    body = """
        %r = tt.make_range {end = 6 : i32, start = 2 : i32} : tensor<4xi32>
        %e = tt.expand_dims %r {axis = 1 : i32} : tensor<4xi32> -> tensor<4x1xi32>
        %b = tt.broadcast %e : tensor<4x1xi32> -> tensor<4x2xi32>
        %t = tt.trans %b {order = array<i32: 1, 0>} : tensor<4x2xi32> -> tensor<2x4xi32>
        %f = tt.reshape %t : tensor<2x4xi32> -> tensor<8xi32>
        %i = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
        %p = tt.splat %out : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>>
        %a = tt.addptr %p, %i : tensor<8x!tt.ptr<i32>>, tensor<8xi32>
        tt.store %a, %f : tensor<8x!tt.ptr<i32>>
    """
    out = np.zeros(8, np.int32)
    run(body, "%out: !tt.ptr<i32>", [out])
    assert out.tolist() == [2, 3, 4, 5] * 2


def test_reduce_over_an_axis_of_any_size():
    body = """
        %i = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
        %p = tt.splat %x : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>>
        %a = tt.addptr %p, %i : tensor<8x!tt.ptr<i32>>, tensor<8xi32>
        %v = tt.load %a : tensor<8x!tt.ptr<i32>>
        %m = tt.reshape %v : tensor<8xi32> -> tensor<2x4xi32>
        %s = "tt.reduce"(%m) <{axis = 1 : i32}> ({
        ^bb0(%l: i32, %r: i32):
          %c = arith.maxsi %l, %r : i32
          tt.reduce.return %c : i32
        }) : (tensor<2x4xi32>) -> tensor<2xi32>
        %j = tt.make_range {end = 2 : i32, start = 0 : i32} : tensor<2xi32>
        %q = tt.splat %y : !tt.ptr<i32> -> tensor<2x!tt.ptr<i32>>
        %b = tt.addptr %q, %j : tensor<2x!tt.ptr<i32>>, tensor<2xi32>
        tt.store %b, %s : tensor<2x!tt.ptr<i32>>
    """
    x, y = np.array([3, -9, 7, 1, 5, 11, -2, 0], np.int32), np.zeros(2, np.int32)
    run(body, "%x: !tt.ptr<i32>, %y: !tt.ptr<i32>", [x, y])
    assert y.tolist() == [7, 11]


def test_gather_along_an_axis():
    body = """
        %i = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
        %p = tt.splat %x : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>>
        %a = tt.addptr %p, %i : tensor<8x!tt.ptr<i32>>, tensor<8xi32>
        %v = tt.load %a : tensor<8x!tt.ptr<i32>>
        %k = tt.reshape %v : tensor<8xi32> -> tensor<4x2xi32>
        %m = tt.reshape %i : tensor<8xi32> -> tensor<4x2xi32>
  %g = tt.gather %m[%k] {axis = 0 : i32} : (tensor<4x2xi32>, tensor<4x2xi32>) -> tensor<4x2xi32>
        %f = tt.reshape %g : tensor<4x2xi32> -> tensor<8xi32>
        %q = tt.splat %y : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>>
        %b = tt.addptr %q, %i : tensor<8x!tt.ptr<i32>>, tensor<8xi32>
        tt.store %b, %f : tensor<8x!tt.ptr<i32>>
    """
    x, y = np.array([3, 0, 2, 1, 0, 1, 0, 3], np.int32), np.zeros(8, np.int32)
    run(body, "%x: !tt.ptr<i32>, %y: !tt.ptr<i32>", [x, y])
    assert y.tolist() == [6, 1, 4, 3, 0, 3, 0, 7]
    x[0] = 4
    with pytest.raises(EmulationError, match="an index along axis 0 is outside of 0 to 3"):
        run(body, "%x: !tt.ptr<i32>, %y: !tt.ptr<i32>", [x, y])


def test_program_ids_and_scalars():
    body = """
        %x = tt.get_program_id x : i32
        %y = tt.get_program_id y : i32
        %n = tt.get_num_programs x : i32
        %r = arith.muli %y, %n : i32
        %i = arith.addi %r, %x : i32
        %p = tt.addptr %out, %i : !tt.ptr<i32>, i32
        %v = arith.addi %i, %start : i32
        tt.store %p, %v : !tt.ptr<i32>
    """
    out = np.zeros(6, np.int32)
    run(body, "%out: !tt.ptr<i32>, %start: i32", [out, 100], grid=(3, 2))
    assert out.tolist() == [100, 101, 102, 103, 104, 105]


def test_masked_loads_and_stores():
    body = """
        %i = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
        %n = tt.splat %size : i32 -> tensor<8xi32>
        %m = arith.cmpi slt, %i, %n : tensor<8xi32>
        %o = arith.constant dense<7> : tensor<8xi32>
        %p = tt.splat %x : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>>
        %a = tt.addptr %p, %i : tensor<8x!tt.ptr<i32>>, tensor<8xi32>
        %v = tt.load %a, %m, %o : tensor<8x!tt.ptr<i32>>
        %q = tt.splat %y : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>>
        %b = tt.addptr %q, %i : tensor<8x!tt.ptr<i32>>, tensor<8xi32>
        tt.store %b, %v : tensor<8x!tt.ptr<i32>>
    """
    x, y = np.arange(5, dtype=np.int32), np.zeros(8, np.int32)
    run(body, "%x: !tt.ptr<i32>, %y: !tt.ptr<i32>, %size: i32", [x, y, 5])
    assert y.tolist() == [0, 1, 2, 3, 4, 7, 7, 7]
    with pytest.raises(EmulationError, match="reads outside of global memory: byte 20 is outside"):
        run(body, "%x: !tt.ptr<i32>, %y: !tt.ptr<i32>, %size: i32", [x, y, 6])


@few
@given(st.integers(0, 1 << 30))
def test_dot(seed):
    body = """
        %i = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
        %pa = tt.splat %a : !tt.ptr<f16> -> tensor<64x!tt.ptr<f16>>
        %aa = tt.addptr %pa, %i : tensor<64x!tt.ptr<f16>>, tensor<64xi32>
        %va = tt.load %aa : tensor<64x!tt.ptr<f16>>
        %ma = tt.reshape %va : tensor<64xf16> -> tensor<4x16xf16>
        %mb = tt.reshape %va : tensor<64xf16> -> tensor<16x4xf16>
        %c = arith.constant dense<1.5> : tensor<4x4xf32>
        %d = tt.dot %ma, %mb, %c : tensor<4x16xf16> * tensor<16x4xf16> -> tensor<4x4xf32>
        %f = tt.reshape %d : tensor<4x4xf32> -> tensor<16xf32>
        %j = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32>
        %q = tt.splat %y : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
        %b = tt.addptr %q, %j : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
        tt.store %b, %f : tensor<16x!tt.ptr<f32>>
    """
    a = np.random.default_rng(seed).standard_normal(64).astype(np.float16)
    y = np.zeros(16, np.float32)
    run(body, "%a: !tt.ptr<f16>, %y: !tt.ptr<f32>", [a, y])
    wide = a.astype(np.float64)
    expected = wide.reshape(4, 16) @ wide.reshape(16, 4) + 1.5
    np.testing.assert_allclose(y, expected.reshape(-1), rtol=1e-5, atol=1e-5)
