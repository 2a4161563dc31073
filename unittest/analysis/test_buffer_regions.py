"""Buffer regions: views of random types against sets of addresses made element by element."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton_ext import ir
from triton_ext.analysis.buffer_regions import (
    BufferRegions,
    Footprint,
    Region,
    RegionSet,
    state_plan,
)
from triton_ext.errors import VerifyError
from triton_ext.ir.encodings import PaddedSharedEncoding, PartitionedSharedEncoding
from triton_ext.ir.types import MemDescType, parse_type

NIGHTLY = bool(os.environ.get("TRITON_EXT_NIGHTLY"))
BITS = {"i8": 8, "f16": 16, "f32": 32, "i64": 64}
#: CTA, row, and byte or column.
Places = frozenset[tuple[int, int, int]]


# ---- random allocations


@dataclass(frozen=True)
class Allocation:
    """A buffer, and where its elements are by brute force."""

    type: MemDescType
    pages: int
    bases: tuple[int, ...]
    row: int = 0

    @property
    def offsets(self) -> str:
        if self.type.in_tensor_memory:
            return (
                f"{{tensor_memory_col_offset = {self.bases[0]} : i32, "
                f"tensor_memory_row_offset = {self.row} : i32}}"
            )
        listed = [f"{base} : i32" for base in self.bases]
        text = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
        return f"{{allocation.offset = {text}}}"

    def elements(self) -> dict[tuple[int, ...], Places]:
        """The places of each element of one page, by its coordinates, if it starts at 0."""
        layout = self.type.encoding.to_linear_layout(self.shape)
        free = layout.free_variable_masks()
        sizes = [range(layout.in_dim_size(name)) for name in layout.in_dim_names]
        found = {}
        for point in itertools.product(*sizes):
            inputs = dict(zip(layout.in_dim_names, point, strict=True))
            if not any(inputs[name] & mask for name, mask in free.items()):
                coordinates = tuple(layout.apply(inputs).values())
                assert coordinates not in found
                found[coordinates] = self._places(inputs)
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.static_shape[-2:]

    @property
    def bits(self) -> int:
        return BITS[str(self.type.element)]

    def _places(self, inputs: dict[str, int]) -> Places:
        cta, partition = inputs.get("block", 0), inputs.get("partition", 0)
        if self.type.in_tensor_memory:
            first = inputs["col"] * self.bits
            words = range(first // 32, -(-(first + self.bits) // 32))
            return frozenset(
                (cta, self.row + inputs["row"], self.bases[0] + word) for word in words
            )
        at = self.padded(inputs["offset"]) * self.bits // 8
        base = self.bases[partition if len(self.bases) > 1 else 0]
        return frozenset((cta, 0, base + at + byte) for byte in range(self.bits // 8))

    def padded(self, offset: int) -> int:
        encoding = self.type.encoding
        if isinstance(encoding, PartitionedSharedEncoding):
            encoding = encoding.partition_layout
        if not isinstance(encoding, PaddedSharedEncoding):
            return offset
        return offset + sum(
            offset // every * more for every, more in encoding.interval_padding_pairs
        )

    def page_start(self, page: int) -> int:
        layout = self.type.encoding.to_linear_layout(self.shape)
        if self.type.in_tensor_memory:
            return page * layout.in_dim_size("col") * self.bits // 32
        return self.padded(page * layout.in_dim_size("offset")) * self.bits // 8


def random_encoding(random: Random, shape: tuple[int, int]) -> str:
    """The text of an encoding for a shape, in shared memory."""
    order = random.choice(["[1, 0]", "[0, 1]"])
    cga = random.choice(["", "", ", CGALayout = [[1, 0]]"])
    swizzled = (
        f"#ttg.swizzled_shared<{{vec = {random.choice((1, 2, 4))}, "
        f"perPhase = {random.choice((1, 2))}, maxPhase = {random.choice((1, 2, 4))}, "
        f"order = {order}"
    )
    every, more = random.choice((8, 16, 32)), random.choice((1, 2, 4, 8))
    kind = random.randrange(5)
    if kind == 0:
        return f"{swizzled}{cga}}}>"
    if kind == 1:
        return f"#ttg.padded_shared<[{every}:+{more}] {{order = {order}, shape = {list(shape)}}}>"
    if kind == 2:
        groups, partitions = random.choice((1, 2)), random.choice((2, 4))
        dim = random.randrange(2)
        piece = list(shape)
        piece[dim] //= groups * partitions
        inner = f"{swizzled}}}>"
        if random.random() < 0.5:
            inner = f"#ttg.padded_shared<[{every}:+{more}] {{order = {order}, shape = {piece}}}>"
        return (
            f"#ttg.partitioned_shared<{{numPartitions = {partitions}, numGroups = {groups}, "
            f"partitionDim = {dim}, partitionLayout = {inner}}}>"
        )
    if kind == 3:
        bases = [[1 << bit, 0] for bit in range(shape[0].bit_length() - 1)]
        bases += [[0, 1 << bit] for bit in range(shape[1].bit_length() - 1)]
        random.shuffle(bases)
        # Offset bits that are sums of others, and one that broadcasts.
        for number in range(1, len(bases)):
            if random.random() < 0.4:
                bases[number] = [
                    a ^ b for a, b in zip(bases[number], bases[number - 1], strict=True)
                ]
        block = [bases.pop()] if random.random() < 0.3 else []
        if random.random() < 0.3:
            bases.insert(random.randrange(len(bases)), [0, 0])
        return f"#ttg.shared_linear<{{offset = {bases}, block = {block}}}, alignment = 16>"
    width = random.choice((0, 32, 64, 128))
    return (
        f"#ttg.nvmma_shared<{{swizzlingByteWidth = {width}, transposed = "
        f"{random.choice(('true', 'false'))}, elementBitWidth = !BITS}}>"
    )


def random_allocation(random: Random) -> Allocation | None:
    """A buffer of a random type; ``None`` where the encoding is none for the shape."""
    pages = random.choice((0, 0, 2, 3))
    if random.random() < 0.25:
        shape = (random.choice((64, 128, 256)), random.choice((16, 32)))
        block = random.choice((64, 128)), random.choice((16, 32))
        encoding = (
            f"#ttng.tensor_memory_encoding<blockM = {block[0]}, blockN = {block[1]}, "
            f"colStride = {random.choice((1, 2))}>"
        )
        space, element = "#ttng.tensor_memory", random.choice(("f16", "f32"))
        bases, row = (random.choice((0, 4, 64)),), random.choice((0, 0, 16))
    else:
        shape = (random.choice((8, 16)), random.choice((8, 16, 32)))
        element = random.choice(("i8", "f16", "f32", "i64"))
        encoding = random_encoding(random, shape).replace("!BITS", str(BITS[element]))
        space = "#ttg.shared_memory"
        count = 4 if "numPartitions = 4" in encoding else 2 if "numPartitions" in encoding else 1
        bases, row = tuple(random.sample(range(0, 1 << 16, 4096), count)), 0
    sizes = "x".join(map(str, (*((pages,) if pages else ()), *shape)))
    type_ = parse_type(f"!ttg.memdesc<{sizes}x{element}, {encoding}, {space}, mutable>")
    assert isinstance(type_, MemDescType)
    try:
        type_.verify()
        type_.encoding.to_linear_layout(shape)
    except VerifyError:
        return None
    return Allocation(type_, pages, bases, row)


# ---- random views


class Views:
    """The text of a function with views of an allocation, and the places of each."""

    def __init__(self, random: Random, allocation: Allocation) -> None:
        self.random = random
        self.allocation = allocation
        self.lines = [f"%c{n} = arith.constant {n} : i32" for n in range(max(1, allocation.pages))]
        name = "ttng.tmem_alloc" if allocation.type.in_tensor_memory else "ttg.local_alloc"
        self.lines.append(f"%v0 = {name} {allocation.offsets} : () -> {allocation.type}")
        self.expected: dict[str, set[Places]] = {}
        elements = allocation.elements()
        whole = ((0, 0), allocation.shape)
        if not allocation.pages:
            self._note("%v0", elements, whole, [0])
            self._slices("%v0", allocation.type, elements, whole, [0], 2)
            return
        page = replace(allocation.type, shape=allocation.shape)
        everything = [self._of_box(elements, whole, at) for at in range(allocation.pages)]
        self.expected["%v0"] = {frozenset().union(*everything)}
        for index in ("%index", f"%c{random.randrange(allocation.pages)}"):
            view = self._name()
            self.lines.append(
                f"{view} = ttg.memdesc_index %v0[{index}] : {allocation.type} -> {page}"
            )
            pages = [int(index[2:])] if index != "%index" else list(range(allocation.pages))
            self._note(view, elements, whole, pages)
            self._slices(view, page, elements, whole, pages, 2)

    def _name(self) -> str:
        return f"%v{len(self.lines)}"

    def _of_box(self, elements, box, page: int) -> Places:
        (row, column), (rows, columns) = box
        at = self.allocation.page_start(page)
        return frozenset(
            (cta, lane, place + at)
            for r in range(row, row + rows)
            for c in range(column, column + columns)
            for cta, lane, place in elements[r, c]
        )

    def _note(self, view: str, elements, box, pages: list[int]) -> None:
        self.expected[view] = {self._of_box(elements, box, page) for page in pages}

    def _slices(self, source: str, type_: MemDescType, elements, box, pages, depth: int) -> None:
        if not depth:
            return
        for _ in range(self.random.randrange(3)):
            (row, column), (rows, columns) = box
            if self.allocation.type.in_tensor_memory:
                made = self._tensor_slice(rows, columns)
            else:
                made = self._shared_slice(rows, columns)
            if made is None:
                continue
            (down, right), shape = made
            found = replace(type_, shape=shape, alloc_shape=self.allocation.shape)
            view = self._name()
            self.lines.append(self._slice_text(view, source, type_, found, down, right))
            inner = ((row + down, column + right), shape)
            self._note(view, elements, inner, pages)
            self._slices(view, found, elements, inner, pages, depth - 1)

    def _shared_slice(self, rows: int, columns: int):
        shape = rows >> self.random.randrange(3), columns >> self.random.randrange(3)
        if not all(shape):
            return None
        offsets = (
            self.random.randrange(0, rows, shape[0]),
            self.random.randrange(0, columns, shape[1]),
        )
        return offsets, shape

    def _tensor_slice(self, rows: int, columns: int):
        half = self.random.choice([(rows // 2, columns), (rows, columns // 2)])
        if half[0] < 64 or half[1] < 8:
            return None
        second = self.random.random() < 0.5
        return (
            half[0] * second if half[0] < rows else 0,
            half[1] * second if half[1] < columns else 0,
        ), half

    def _slice_text(self, view, source, type_, found, down: int, right: int) -> str:
        if not self.allocation.type.in_tensor_memory:
            return f"{view} = ttg.memdesc_subslice {source}[{down}, {right}] : {type_} -> {found}"
        dim = 0 if found.static_shape[0] < type_.static_shape[0] else 1
        offset = down if dim == 0 else right
        return (
            f"{view} = ttng.tmem_subslice {source} {{offset = {offset} : i32, dim = {dim} : i32}}"
            f" : {type_} -> {found}"
        )

    @property
    def text(self) -> str:
        body = "\n".join(self.lines)
        return f"tt.func public @f(%index: i32) {{\n{body}\ntt.return\n}}\n"


def places_of(footprint: Footprint) -> Places:
    """A footprint as a set."""
    return frozenset(
        (cta, row, place)
        for (cta, row), mask in footprint.planes
        for place in range(mask.bit_length())
        if mask >> place & 1
    )


def check(random: Random) -> int:
    """Fails where a view covers other places; returns the number of views."""
    allocation = random_allocation(random)
    if allocation is None:
        return 0
    views = Views(random, allocation)
    module = ir.parse(views.text)
    regions = BufferRegions(module)
    values = {result.name: result for op in module.walk() for result in op.results}
    found = {name: regions.region_set(values[name]) for name in views.expected}
    for name, expected in views.expected.items():
        assert found[name].is_known
        covered = {places_of(region.footprint) for region in found[name].regions}
        assert covered == expected, f"{name}\n{views.text}"
    for one, other in itertools.combinations(views.expected, 2):
        check_pair(found[one], found[other], views.expected[one], views.expected[other])
    return len(found)


def check_pair(one: RegionSet, other: RegionSet, mine: set[Places], its: set[Places]) -> None:
    """Questions about two descriptors have the answers that sets have."""
    assert one.may_alias(other) == any(a & b for a in mine for b in its)
    assert one.contains(other) == all(any(b <= a for a in mine) for b in its)
    regions = [*one.regions, *other.regions]
    plan = state_plan(regions)
    for a, b in itertools.combinations(range(len(regions)), 2):
        shared = regions[a].footprint.of_any_cta.intersects(regions[b].footprint.of_any_cta)
        assert bool(plan.masks[a] & plan.masks[b]) == shared
    assert plan.lanes == max((mask.bit_length() for mask in plan.masks), default=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "examples", [40, pytest.param(2000, marks=pytest.mark.skipif(not NIGHTLY, reason="nightly"))]
)
def test_views_cover_what_their_elements_do(examples: int):
    counts = []

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.integers(0, 2**32))
    def run(seed: int) -> None:
        counts.append(check(Random(seed)))

    run()
    assert sum(counts) > examples


# ---- cases by hand

HEAD = """\
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#p = #ttg.padded_shared<[16:+4] {order = [1, 0], shape = [4, 16]}>
#smem = #ttg.shared_memory
"""
T = "!ttg.memdesc<4x16xf32, #s, #smem, mutable>"
TYPES = {
    "!PAGES": "!ttg.memdesc<3x4x16xf32, #s, #smem, mutable>",
    "!T": T,
    "!P": "!ttg.memdesc<4x16xf16, #p, #smem, mutable>",
    "!C": "!ttg.memdesc<4x1xf16, #s, #smem, mutable>",
}


def region_sets(body: str) -> dict[str, RegionSet]:
    """The regions of each descriptor of a module by name."""
    text = HEAD + body
    for name, type_ in TYPES.items():
        text = text.replace(name, type_)
    module = ir.parse(text)
    regions = BufferRegions(module)
    values = [result for op in module.walk() for result in op.results]
    values += [
        argument
        for op in module.walk()
        for region in op.regions
        for block in region.blocks
        for argument in block.args
    ]
    memdescs = [value for value in values if value.type.startswith("!ttg.memdesc")]
    return {value.name: regions.region_set(value) for value in memdescs}


def listed(found: RegionSet) -> str:
    return ", ".join(map(str, found.regions)) if found.is_known else "unknown"


def test_a_loop_that_rotates_stages_uses_all_of_them():
    found = region_sets("""\
tt.func public @f(%n: index) {
  %c0 = arith.constant 0 : i32
  %c2 = arith.constant 2 : i32
  %a = ttg.local_alloc {allocation.offset = 1024 : i32} : () -> !PAGES
  %x = ttg.memdesc_index %a[%c0] : !PAGES -> !T
  %y = ttg.memdesc_index %a[%c2] : !PAGES -> !T
  %r:2 = scf.for %i = %n to %n step %n iter_args(%u = %x, %v = %y) -> (!T, !T) {
    scf.yield %v, %u : !T, !T
  }
  tt.return
}
""")
    assert listed(found["%a"]) == "[1024, 768]"
    assert listed(found["%x"]) == "[1024, 256]"
    both = "[1024, 256], [1536, 256]"
    assert [listed(found[name]) for name in ("%u", "%v", "%r#0", "%r#1")] == [both] * 4
    assert not found["%x"].may_alias(found["%y"])
    assert found["%u"].contains(found["%y"])
    assert not found["%y"].contains(found["%u"])


def test_padding_belongs_to_nobody():
    found = region_sets("""\
tt.func public @f() {
  %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !P
  %b = ttg.local_alloc {allocation.offset = 32 : i32} : () -> !C
  tt.return
}
""")
    # 16 elements of 2 bytes, then 8 bytes of padding; the last row has none behind it.
    assert listed(found["%a"]) == "[0, 152]"
    assert not found["%a"].may_alias(found["%b"])


def test_a_callee_has_memory_of_its_own():
    found = region_sets("""\
tt.func private @g(%x: !T) -> !T {
  %l = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !T
  tt.return %x : !T
}
tt.func public @f(%o: !T) {
  %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !T
  %r = tt.call @g(%a) : (!T) -> !T
  tt.return
}
""")
    assert found["%x"] == found["%a"] == found["%r"]
    assert not found["%l"].may_alias(found["%x"])
    assert listed(found["%o"]) == "unknown"
    assert found["%o"].may_alias(found["%a"])
    assert not found["%o"].contains(found["%a"])


def test_views_that_grow_in_a_loop_are_not_known():
    found = region_sets("""\
tt.func public @f(%n: index) {
  %c1 = arith.constant 1 : i32
  %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !PAGES
  %r = scf.for %i = %n to %n step %n iter_args(%u = %a) -> (!PAGES) {
    %x = ttg.memdesc_index %u[%c1] : !PAGES -> !T
    %y = ttg.memdesc_reinterpret %x : !T -> !PAGES
    scf.yield %y : !PAGES
  }
  tt.return
}
""")
    assert listed(found["%r"]) == "unknown"


def test_a_slice_whose_start_is_no_multiple_of_its_size_is_not_known():
    found = region_sets("""\
tt.func public @f() {
  %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !T
  %x = ttg.memdesc_subslice %a[0, 8] : !T -> !ttg.memdesc<4x8xf32, #s, #smem, mutable, 4x16>
  %y = ttg.memdesc_subslice %a[0, 4] : !T -> !ttg.memdesc<4x8xf32, #s, #smem, mutable, 4x16>
  tt.return
}
""")
    # 3 rows of 64 bytes and half a row lie between the first element and behind the last one.
    assert listed(found["%x"]) == "[32, 224]"
    assert listed(found["%y"]) == "unknown"


@pytest.mark.parametrize(
    "view",
    [
        "memdesc_index %a[%far] : !PAGES -> !T",
        "memdesc_index %a[%negative] : !PAGES -> !T",
        "memdesc_index %number[%far] : !PAGES -> !T",
        "memdesc_reinterpret %a : !PAGES -> !ttg.memdesc<1073741824x2xf32, #s, #smem, mutable>",
    ],
)
def test_a_view_that_leaves_its_allocation_is_not_known(view):
    found = region_sets(f"""\
tt.func public @f(%number: i32) {{
  %far = arith.constant 2147483647 : i32
  %negative = arith.constant -1 : i32
  %a = ttg.local_alloc {{allocation.offset = 0 : i32}} : () -> !PAGES
  %x = ttg.{view}
  tt.return
}}
""")
    assert listed(found["%x"]) == "unknown"


def test_an_allocation_without_an_offset_is_an_error_each_time():
    module = ir.parse(
        f"{HEAD}tt.func @f() {{\n  %a = ttg.local_alloc : () -> {T}\n  tt.return\n}}\n"
    )
    (value,) = (result for op in module.walk() for result in op.results)
    regions = BufferRegions(module)
    for _ in range(2):
        with pytest.raises(VerifyError, match=r"expected 'allocation\.offset'"):
            regions.region_set(value)


@pytest.mark.parametrize(
    ("sets", "lanes", "masks", "unknown"),
    [
        ([range(8), range(0, 8, 2), range(1, 8, 2)], 2, (0b11, 0b01, 0b10), 0),
        ([range(2), range(1, 3)], 3, (0b011, 0b110), 0),
        ([range(4), range(8, 9), ()], 2, (0b01, 0b10, 0), 0),
        ([], 1, (), 1),
        ([range(4)], 2, (1,), 0b11),
    ],
)
def test_state_plan(sets, lanes: int, masks: tuple[int, ...], unknown: int):
    regions = [Region(0, 0, Footprint.of_addresses(places)) for places in sets]
    plan = state_plan(regions, with_unknown=bool(unknown))
    assert (plan.lanes, plan.masks, plan.unknown) == (lanes, masks, unknown)
