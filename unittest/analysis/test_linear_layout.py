"""Linear layouts: laws, and agreement with the installed Triton's class."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from triton_ext.analysis import (
    consecutive_run,
    conversion,
    elements_per_thread,
    register_to_shared,
)
from triton_ext.ir.encodings import BlockedEncoding, SwizzledSharedEncoding
from triton_ext.ir.linear_layout import LinearLayout


@pytest.fixture(scope="module")
def host_class():
    """Triton's own class; illegal input ends the process, so it only gets what we made."""
    pytest.importorskip("triton")
    from triton._C.libtriton.linear_layout import LinearLayout as HostLayout

    return HostLayout


@st.composite
def layouts(draw, ins=("register", "lane"), outs=("dim0", "dim1"), bits=3):
    sizes = [1 << draw(st.integers(0, bits)) for _ in outs]
    basis = st.tuples(*(st.integers(0, size - 1) for size in sizes))
    bases = {name: draw(st.lists(basis, max_size=bits)) for name in ins}
    return LinearLayout.of(bases, dict(zip(outs, sizes, strict=True)))


def to_host(host_class, layout):
    bases = [(name, [list(b) for b in vectors]) for name, vectors in layout.bases]
    return host_class.from_bases(
        bases, list(layout.out_dim_names), [size for _, size in layout.out_dims], False
    )


def from_host(layout):
    names = list(layout.get_out_dim_names())
    sizes = dict(layout.out_dims)
    bases = {name: [tuple(b) for b in vectors] for name, vectors in layout.bases}
    return LinearLayout.of(bases, {name: sizes[name] for name in names})


@settings(max_examples=200, deadline=None)
@given(layout=layouts(), data=st.data())
def test_apply_is_the_xor_of_the_bases(host_class, layout, data):
    point = {
        name: data.draw(st.integers(0, layout.in_dim_size(name) - 1))
        for name in layout.in_dim_names
    }
    expected = [0, 0]
    for name, vectors in layout.bases:
        for bit, basis in enumerate(vectors):
            if point[name] >> bit & 1:
                expected = [a ^ b for a, b in zip(expected, basis, strict=True)]
    assert list(layout.apply(point).values()) == expected
    assert layout.apply(point) == dict(to_host(host_class, layout).apply(point))


@settings(max_examples=200, deadline=None)
@given(left=layouts(), right=layouts(ins=("lane", "warp"), outs=("dim1", "dim2"), bits=2))
def test_product(host_class, left, right):
    theirs = to_host(host_class, left) * to_host(host_class, right)
    assert left * right == from_host(theirs)


@settings(max_examples=200, deadline=None)
@given(inner=layouts(), data=st.data())
def test_compose(host_class, inner, data):
    sizes = dict(inner.out_dims)
    outer = LinearLayout.of(
        {
            name: data.draw(
                st.lists(
                    st.tuples(st.integers(0, 7)),
                    min_size=size.bit_length() - 1,
                    max_size=size.bit_length() - 1,
                )
            )
            for name, size in sizes.items()
        },
        {"offset": 8},
    )
    composed = inner.compose(outer)
    theirs = to_host(host_class, inner).compose(to_host(host_class, outer))
    assert composed == from_host(theirs)


@settings(max_examples=300, deadline=None)
@given(layout=layouts())
def test_ranks_and_inverses(host_class, layout):
    theirs = to_host(host_class, layout)
    assert layout.is_surjective == theirs.is_surjective()
    assert layout.is_injective == theirs.is_injective()
    assert layout.is_invertible == theirs.is_invertible()
    if not layout.is_surjective:
        with pytest.raises(ValueError, match="expected a layout that reaches"):
            layout.pseudoinvert()
        return
    inverse = layout.pseudoinvert()
    assert inverse == from_host(theirs.pseudoinvert())
    for i in range(layout.out_dims[0][1]):
        for j in range(layout.out_dims[1][1]):
            assert layout.apply(inverse.apply({"dim0": i, "dim1": j})) == {"dim0": i, "dim1": j}
    if layout.is_invertible:
        assert layout.invert() == inverse


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_invert_and_compose(host_class, data):
    outer = data.draw(layouts())
    assume(outer.is_surjective)
    sizes = dict(outer.out_dims)
    basis = st.tuples(*(st.integers(0, size - 1) for size in sizes.values()))
    inner = LinearLayout.of(
        {name: data.draw(st.lists(basis, max_size=3)) for name in ("register", "warp")}, sizes
    )
    found = inner.invert_and_compose(outer)
    assert found.compose(outer) == inner
    # Equal dimensions stay in place; where that leaves the rest without a solution, the host fails.
    assume(inner.in_bases("register") != outer.in_bases("register"))
    theirs = to_host(host_class, inner).invert_and_compose(to_host(host_class, outer))
    assert found == from_host(theirs)


@settings(max_examples=100, deadline=None)
@given(layout=layouts())
def test_reshapes_keep_the_bits(layout):
    flat = layout.flatten_outs()
    assert flat.reshape_outs(layout.out_dims) == layout
    ins = [(name, layout.in_dim_size(name)) for name in layout.in_dim_names]
    assert layout.flatten_ins().reshape_ins(ins) == layout
    assert layout.transpose_outs(("dim1", "dim0")).transpose_outs(("dim0", "dim1")) == layout


@settings(max_examples=100, deadline=None)
@given(layout=layouts())
def test_free_bits_do_not_move_the_image(layout):
    masks = layout.free_variable_masks()
    assert sum(bin(mask).count("1") for mask in masks.values()) == (
        layout.total_in_bits - layout.rank
    )


def test_text():
    layout = LinearLayout.of({"register": [(0, 1), (2, 0)], "lane": []}, ["dim0", "dim1"])
    assert str(layout) == (
        " - register=1 -> (0, 1)\n"
        "   register=2 -> (2, 0)\n"
        " - lane is a size 1 dimension\n"
        "where out dims are: [dim0 (size 4), dim1 (size 2)]"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearLayout.of({"a": [(3,)]}, {"b": 2}), "expected a basis of a inside of"),
        (lambda: LinearLayout.of({"a": [(1, 1)]}, {"b": 2}), "expected 1 coordinates"),
        (lambda: LinearLayout.of({}, {"b": 3}), "expected a power of two as the size of b"),
        (lambda: LinearLayout.identity_1d(3, "a", "b"), "expected a power of two, found 3"),
        (lambda: LinearLayout.identity_1d(4, "a", "b").apply({"a": 4}), "expected a below 4"),
        (lambda: LinearLayout.identity_1d(4, "a", "b").apply({"c": 0}), "expected ('a',)"),
        (lambda: LinearLayout.zeros_1d(4, "a", "b").invert(), "expected an invertible layout"),
        (
            lambda: LinearLayout.identity_1d(4, "a", "b").transpose_outs(["c"]),
            "expected a permutation of ('b',), found ('c',)",
        ),
    ],
)
def test_misuse_is_named(make, message):
    with pytest.raises(ValueError, match=r".*") as error:
        make()
    assert message in str(error.value)


ROWS = BlockedEncoding((1, 8), (4, 8), (4, 1), (1, 0))
PLAIN = SwizzledSharedEncoding(1, 1, 1, (1, 0))


def test_elements_per_thread():
    assert elements_per_thread(ROWS, (64, 64)) == 32
    assert elements_per_thread(ROWS, (8, 4)) == 8
    assert elements_per_thread(ROWS, (8, 4), broadcast=False) == 4


def test_conversion_of_an_encoding_to_itself_is_the_identity():
    found = conversion(ROWS, ROWS, (64, 64))
    assert found.apply({"register": 5, "lane": 9, "warp": 2, "block": 0}) == {
        "register": 5,
        "lane": 9,
        "warp": 2,
        "block": 0,
    }


def test_register_to_shared():
    layout = register_to_shared(ROWS, PLAIN, (64, 64))
    point = {"register": 3, "lane": 9, "warp": 1, "block": 0}
    element = ROWS.to_linear_layout((64, 64)).apply(point)
    assert layout.apply(point)["offset"] == element["dim0"] * 64 + element["dim1"]
    assert consecutive_run(layout) == 8
    swizzled = SwizzledSharedEncoding(4, 1, 8, (1, 0))
    assert consecutive_run(register_to_shared(ROWS, swizzled, (64, 64))) == 4
    columns = SwizzledSharedEncoding(1, 1, 1, (0, 1))
    assert consecutive_run(register_to_shared(ROWS, columns, (64, 64))) == 1


def test_a_view_is_laid_out_in_its_allocation():
    layout = register_to_shared(ROWS, PLAIN, (32, 64), (4, 64, 64))
    point = {"register": 8, "lane": 0, "warp": 0, "block": 0}
    element = ROWS.to_linear_layout((32, 64)).apply(point)
    assert layout.apply(point)["offset"] == element["dim0"] * 64 + element["dim1"]
