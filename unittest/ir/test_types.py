"""Types and attributes as values: text, spellings of all hosts, and rules."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_ext.errors import ParseError, TritonExtError, VerifyError
from triton_ext.ir import attribute_values as at
from triton_ext.ir import parse
from triton_ext.ir import types as ty
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.attribute_values import parse_attribute
from triton_ext.ir.encodings import NvmmaSharedEncoding, SharedMemorySpace
from triton_ext.ir.types import parse_type

ALIASES = {
    "#blocked": "#ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [8, 4], "
    "warpsPerCTA = [4, 1], order = [1, 0]}>",
    "#shared": "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, "
    "elementBitWidth = 16}>",
    "#smem": "#ttg.shared_memory",
    "#slice": "#ttg.slice<{dim = 0, parent = #blocked}>",
    "#loc": 'loc("x.py":1:1)',
    "#me": "#me",
    "!t": "tensor<4xi32>",
}
F16 = ty.FloatType("f16")
SHARED = NvmmaSharedEncoding(128, 16)

TYPES = [
    ("i32", ty.IntegerType(32)),
    ("si8", ty.IntegerType(8, "s")),
    ("ui8", ty.IntegerType(8, "u")),
    ("f8E4M3FN", ty.FloatType("f8E4M3FN")),
    ("index", ty.IndexType()),
    ("none", ty.OpaqueType("none")),
    ("tensor<*xf32>", ty.OpaqueType("tensor<*xf32>")),
    ("!llvm.ptr<3>", ty.OpaqueType("!llvm.ptr<3>")),
    ("!x.y<(i32) -> i32, {a = 1}>", ty.OpaqueType("!x.y<(i32) -> i32, {a = 1}>")),
    ("tensor<4x?xi1>", ty.TensorType((4, None), ty.IntegerType(1))),
    ("tensor<f32>", ty.TensorType((), ty.FloatType("f32"))),
    ("vector<4xi32>", ty.VectorType((4,), ty.IntegerType(32))),
    ("!tt.ptr<f16>", ty.PointerType(F16)),
    ("!tt.ptr<f16, 3>", ty.PointerType(F16, 3)),
    ('!tt.ptr<f16, "constant">', ty.PointerType(F16, "constant")),
    ("tensor<8x!tt.ptr<f16>>", ty.TensorType((8,), ty.PointerType(F16))),
    ("!ttg.async.token", ty.AsyncTokenType()),
    (
        "!ttg.memdesc<64x64xf16, #shared, #smem, mutable, 3x64x64>",
        ty.MemDescType((64, 64), F16, SHARED, SharedMemorySpace(), True, (3, 64, 64)),
    ),
    (
        "!ttg.memdesc<64x64xf16, #shared, #smem>",
        ty.MemDescType((64, 64), F16, SHARED, SharedMemorySpace()),
    ),
    ("!tt.tensordesc<64x64xsi8>", ty.TensorDescType((64, 64), ty.IntegerType(8, "s"))),
    ("!tt.tensordesc<64x64xf16, #shared>", ty.TensorDescType((64, 64), F16, SHARED)),
    ("!tt.tensordesc<tensor<64x64xf16, #shared>>", ty.TensorDescType((64, 64), F16, SHARED)),
    (
        "!ttng.tensordesc_im2col<64x64xf16, #shared>",
        ty.TensorDescIm2ColType((64, 64), F16, SHARED),
    ),
    (
        "!ttng.tensordesc_im2col<tensor<64x64xf16>>",
        ty.TensorDescIm2ColType((64, 64), F16),
    ),
    ("() -> ()", ty.FunctionType((), ())),
    ("(i32, f16) -> index", ty.FunctionType((ty.IntegerType(32), F16), (ty.IndexType(),))),
    ("(i32) -> (i32, i32)", ty.FunctionType((ty.IntegerType(32),), (ty.IntegerType(32),) * 2)),
]


@pytest.mark.parametrize(("text", "type_"), TYPES, ids=[text for text, _ in TYPES])
def test_types(text, type_):
    table = AliasTable(ALIASES)
    found = parse_type(text, table)
    assert found == type_
    assert hash(found) == hash(type_)
    assert found.print(table) == text
    full = str(found)
    assert "#shared" not in full
    assert parse_type(full) == found


def test_aliases():
    table = AliasTable(ALIASES)
    type_ = parse_type("tensor<4xf32, #slice>", table)
    assert str(type_) == (
        "tensor<4xf32, #ttg.slice<{dim = 0, parent = " + ALIASES["#blocked"] + "}>>"
    )
    assert type_.print(table) == "tensor<4xf32, #slice>"
    assert parse_type("!t", table) == parse_type("tensor<4xi32>")
    without = AliasTable({name: raw for name, raw in ALIASES.items() if name != "#slice"})
    assert type_.print(without) == "tensor<4xf32, #ttg.slice<{dim = 0, parent = #blocked}>>"


def test_a_table_sees_aliases_that_a_module_gets_later():
    module = parse("#a = #ttg.shared_memory\nmodule {\n}\n")
    table = AliasTable(module.aliases)
    type_ = parse_type(f"tensor<64x64xf16, {ALIASES['#blocked']}>", table)
    assert type_.print(table) == str(type_)
    module.add_alias("#blocked", ALIASES["#blocked"])
    assert type_.print(table) == "tensor<64x64xf16, #blocked>"


def test_the_spelling_of_a_descriptor_survives_a_change():
    old = parse_type("!tt.tensordesc<tensor<64x64xf16>>")
    assert old == parse_type("!tt.tensordesc<64x64xf16>")
    wider = dataclasses.replace(old, shape=(64, 128))
    assert str(wider) == "!tt.tensordesc<tensor<64x128xf16>>"


@pytest.mark.parametrize("space", ["", ", 3", ', "constant"'])
def test_what_a_load_gives_has_no_address_space(space):
    module = parse(
        f"tt.func @f(%p: !tt.ptr<f16{space}>, %q: tensor<4x!tt.ptr<f16{space}>>) {{\n"
        f"  %a = tt.load %p : !tt.ptr<f16{space}>\n"
        f"  %b = tt.load %q : tensor<4x!tt.ptr<f16{space}>>\n"
        "  tt.return\n}\n"
    )
    loads = [op for op in module.walk() if op.name == "tt.load"]
    assert [op.results[0].type for op in loads] == ["f16", "tensor<4xf16>"]


def test_descriptors_answer_alike():
    for text in ("!tt.tensordesc<64x32xui8>", "!ttng.tensordesc_im2col<tensor<64x32xui8>>"):
        desc = parse_type(text)
        assert isinstance(desc, ty.TensorDescInterface)
        assert str(desc.block_type) == "tensor<64x32xui8>"
        assert str(desc.signless_block_type) == "tensor<64x32xi8>"
        assert desc.shared_layout is None
        assert desc.bit_width == 8


def test_parse_of_one_class():
    assert ty.TensorType.parse("tensor<4xi32>").rank == 1
    with pytest.raises(ParseError, match="expected TensorType, found IntegerType"):
        ty.TensorType.parse("i32")


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("tensor<4xi32", 13, "expected '>', found the end"),
        ("tensor<4x>", 10, "expected a type, found '>'"),
        ("tensor<4xi32, #none>", 15, "undefined attribute alias '#none'"),
        ("tensor<4xi32, #me>", 1, "undefined attribute alias '#me'"),
        ("!none", 1, "undefined type alias '!none'"),
        ("i32 i32", 5, "expected the end, found 'i32'"),
        ("!ttg.memdesc<4xi32, #smem, #smem, immutable>", 35, "expected 'mutable' or the shape"),
        ("(i32", 5, "expected ')', found the end"),
        ("", 1, "expected a type, found the end"),
        ("(" * 100, 65, "expected values nested at most 64 deep"),
    ],
)
def test_malformed_types(text, column, message):
    with pytest.raises(ParseError) as error:
        parse_type(text, ALIASES)
    assert message in error.value.message
    assert (error.value.line, error.value.column) == (1, column)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensor<3xi32>", "expected powers of two as the sizes of a tensor, found 3"),
        ("tensor<2097152xi32>", "expected at most 1048576 elements in a tensor, found 2097152"),
        ("tensor<4xi32, #blocked>", "expected an encoding of rank 1 for this tensor"),
        ("tensor<64x64xf16, #shared>", "expected a distributed encoding for a tensor"),
        ("tensor<?xi32>", "expected a static shape"),
        ("!tt.ptr<!ttg.async.token>", "expected a pointer to a number, a pointer or a tensor"),
        ("!ttg.memdesc<3x3x64xf16, #shared, #smem>", "expected powers of two"),
        ("!ttg.memdesc<64x64xf16, #blocked, #smem>", "expected an encoding of shared memory"),
        ("!ttg.memdesc<64x64xf16, #shared, #smem, 32x64>", "expected a view inside of its alloc"),
        ("!ttg.memdesc<64x64xf16, #shared, #smem, 64>", "expected an allocation shape of at least"),
        ("!ttg.memdesc<64x64xf16, #shared, #ttng.tensor_memory>", "expected an encoding of tensor"),
        ("!tt.tensordesc<1x1x1x1x1x1xf16>", "expected a block of 1 to 5 dimensions, found 6"),
        ("!tt.tensordesc<64x64xf16, #blocked>", "expected an encoding of shared memory"),
        ("!tt.tensordesc<48x64xf16>", "expected powers of two as the sizes of a block, found 48"),
        (
            "!ttng.tensordesc_im2col<4x64x64xf16>",
            "expected a block of rank 2 (pixels x channels), found rank 3",
        ),
        (
            "!ttg.memdesc<128x64xf16, #ttng.tensor_memory_encoding<blockM = 128, blockN = 64, "
            "colStride = 4>, #ttng.tensor_memory>",
            "expected at most 32 bits for an element and 'colStride', found 16 x 4",
        ),
        ("(tensor<3xi32>) -> ()", "expected powers of two as the sizes of a tensor, found 3"),
    ],
)
def test_verify(text, message):
    with pytest.raises(VerifyError) as error:
        parse_type(text, ALIASES).verify()
    assert message in str(error.value)


ATTRIBUTES = [
    ("unit", True),
    ("true", True),
    ("false", False),
    ("4 : i32", 4),
    ("-4 : i64", -4),
    ("7", 7),
    ("1.500000e+00 : f32", 1.5),
    ("-0.000000e+00 : f16", -0.0),
    ("0x7F800000 : f32", math.inf),
    ("0xFC00 : f16", -math.inf),
    ("0x3C01 : f16", 1 + 2**-10),
    ("0x3F80 : bf16", 1.0),
    ("0x7FF0000000000000 : f64", math.inf),
    ("0x0001 : f16", 2**-24),
    ('"cuda:90"', "cuda:90"),
    ('"a\\22b\\\\c\\0A"', 'a"b\\c\n'),
    ('"\\C3\\BC"', "ü"),
    ('"x" : i32', "x"),
    ("@f", "f"),
    ('@"f(1,)"', "f(1,)"),
    ("@m::@f", "f"),
    ("[]", ()),
    ('[1 : i32, "x", [true]]', (1, "x", (True,))),
    ("array<i32>", ()),
    ("array<i32: 1, -2>", (1, -2)),
    ("array<i1: true, false>", (True, False)),
    ("array<f32: 1.000000e+00>", (1.0,)),
    ('{a = 1 : i32, b, "c d" = "x"}', {"a": 1, "b": True, "c d": "x"}),
    ("{}", {}),
    ("dense<0> : tensor<4xi32>", 0),
    ("dense<true> : tensor<4xi1>", True),
    ("dense<[1, 2]> : tensor<2xi32>", (1, 2)),
    ("dense<[[1], [2]]> : tensor<2x1xi32>", ((1,), (2,))),
    ("dense<0xFF800000> : tensor<4xf32, #blocked>", -math.inf),
    ("dense<> : tensor<0xi32>", ""),
    ('dense<"0x0102"> : tensor<2xi8>', "0x0102"),
    ("affine_map<(d0) -> (d0)>", "affine_map<(d0) -> (d0)>"),
    ("#tt.cache_policy<cache_modifier = cg>", "#tt.cache_policy<cache_modifier = cg>"),
    ('#nvvm<"x y">', '#nvvm<"x y">'),
    ("none_such", "none_such"),
    ('loc("x":1:1)', 'loc("x":1:1)'),
]


@pytest.mark.parametrize(("text", "value"), ATTRIBUTES, ids=[text for text, _ in ATTRIBUTES])
def test_attributes(text, value):
    table = AliasTable(ALIASES)
    found = parse_attribute(text, table)
    assert found.print(table) == text
    assert found.value == value
    assert type(found.value) is type(value)
    assert parse_attribute(str(found)) == found


def test_types_are_attributes():
    found = parse_attribute("(i32) -> i32")
    assert isinstance(found, at.TypeAttr)
    assert str(found.value) == "(i32) -> i32"
    assert parse_attribute("#loc", ALIASES).value == 'loc("x.py":1:1)'


def values() -> st.SearchStrategy[at.Attribute]:
    """Attributes of every kind, nested."""
    integers = st.builds(
        at.IntegerAttr, st.integers(), st.sampled_from([None, ty.IntegerType(32), ty.IndexType()])
    )
    leaves = st.one_of(
        st.just(at.UnitAttr()),
        st.booleans().map(at.BoolAttr),
        integers,
        st.floats(allow_nan=False, allow_infinity=False).map(lambda x: at.FloatAttr(f"{x:.6e}")),
        st.text(st.characters(exclude_categories=["Cs"])).map(at.StringAttr),
        st.lists(st.text(min_size=1), min_size=1, max_size=2).map(
            lambda names: at.SymbolRefAttr(tuple(names))
        ),
        st.lists(st.integers().map(at.IntegerAttr)).map(
            lambda items: at.DenseArrayAttr(ty.IntegerType(64), tuple(items))
        ),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner).map(lambda items: at.ArrayAttr(tuple(items))),
            st.dictionaries(st.text(min_size=1), inner).map(
                lambda entries: at.DictionaryAttr(tuple(entries.items()))
            ),
        ),
        max_leaves=8,
    )


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(attribute=values())
def test_what_is_printed_is_read(attribute):
    assert parse_attribute(str(attribute)) == attribute


@settings(max_examples=500, deadline=None)
@given(
    text=st.sampled_from([*(t for t, _ in TYPES), *(t for t, _ in ATTRIBUTES), *ALIASES.values()]),
    data=st.data(),
)
def test_damaged_text_is_a_value_or_an_error_of_ours(text, data):
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 4)))
    damaged = text[:start] + data.draw(st.text(alphabet='<>{}[]()#!%"x1,:= ', max_size=3))
    damaged += text[end:]
    for read in (parse_type, parse_attribute):
        try:
            found = read(damaged, ALIASES)
        except TritonExtError:
            continue
        assert read(str(found), ALIASES) == found


def test_corpus(corpus):
    """Every type and attribute of the corpus prints as it was, and every type is legal."""
    opaque = set()
    for path in corpus[::2]:
        module = parse(path.read_text(), path.name)
        table = AliasTable(module.aliases)
        for op in module.walk():
            blocks = [block for region in op.regions for block in region.blocks]
            for value in (*op.results, *(arg for block in blocks for arg in block.args)):
                if value.known_type is not None:
                    type_ = table.type(value.known_type)
                    assert type_.print(table) == value.known_type
                    type_.verify()
                    assert not isinstance(type_, ty.OpaqueType)
            for text in op.attributes.values():
                found = parse_attribute(text, table)
                assert found.print(table) == text
                if isinstance(found, at.OpaqueAttr):
                    opaque.add(text.partition("<")[0])
    assert opaque <= {"#tt.cache_policy"}


def test_names_of_the_package_are_loaded_when_they_are_asked_for():
    import triton_ext.ir as ir
    from triton_ext.ir.linear_layout import LinearLayout
    from triton_ext.ir.types import parse_type

    assert ir.parse_type is parse_type
    assert ir.LinearLayout is LinearLayout
    assert str(ir.parse_attribute("4 : i32")) == "4 : i32"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ir.nothing


@pytest.mark.parametrize(
    ("text", "number"),
    [("0x100 : i32", 256), ("0xFFFFFFFF : i32", -1), ("-0x10 : i64", -16), ("0x10", 16)],
)
def test_bits_of_integers(text, number):
    attribute = at.parse_attribute(text)
    assert isinstance(attribute, at.IntegerAttr)
    assert attribute.value == number
    assert at.parse_attribute(attribute.print()) == attribute


@pytest.mark.parametrize("text", ["0x100 : i8", "0x10 : !t.x"])
def test_bits_that_are_no_integer_are_kept(text):
    assert isinstance(at.parse_attribute(text), at.OpaqueAttr)
