"""The model of asynchronous copies, and what it finds of Triton's own wait counts."""

from __future__ import annotations

import pytest
from async_mistakes import CASES, emitted_of, make
from async_model import Counts, Program, Rule, run, wrong_numbers
from async_text import ARCHES, Kernel
from triton_ext.ir import parse

SCHEDULES = range(300)


def each_case():
    for case in CASES:
        for arch in case.arches:
            yield pytest.param(case, arch, id=f"{case.name}-{arch}")


@pytest.mark.parametrize(("case", "arch"), list(each_case()))
def test_the_case_is_right_and_triton_is_not(case, arch, host):
    if host.version not in case.hosts:
        pytest.skip(f"triton {host.version} gives a right number, or has no such operation")
    text = make(case, host.version, arch)
    assert host.problems(text) == []
    module = parse(text)
    module.verify()
    program = Program(module, case.emitted_of(arch), case.may_skip)
    assert program.search(SCHEDULES, Counts.contract(module)) == []
    counts = host.counts(text, arch)
    if case.dies:
        assert isinstance(counts, list)
        assert any("aborted while running" in message for message in counts)
        return
    assert isinstance(counts, Counts)
    kinds = {fault.kind for fault in wrong_numbers(program.search(SCHEDULES, counts))}
    # Not only lets the wait something through: LDS is used before it may be.
    assert kinds > {"wait"}
    assert program.truncated == 0


@pytest.mark.parametrize(("case", "arch"), list(each_case()))
def test_our_numbers_hold_where_tritons_do_not(case, arch, host):
    if host.version not in case.hosts:
        pytest.skip(f"triton {host.version} gives a right number, or has no such operation")
    text = make(case, host.version, arch)
    program = Program(parse(text), case.emitted_of(arch), case.may_skip)
    assert program.search(SCHEDULES, host.ours(parse(text), arch)) == []


def copies(function, rows, arch):
    """Writes a copy of every shape and layout that generated kernels have; yields behind each."""
    layouts = ("s", "s4") if arch == "gfx1250" else ("s",)
    for layout in layouts:
        for times in (1, 2, 4, 8):
            tile = function.slot(
                function.alloc(times * rows, 1, layout),
                function.const(0),
                times * rows,
                1,
                layout,
            )
            function.copy(tile, times * rows, layout)
            yield


@pytest.mark.parametrize("arch", ARCHES)
def test_numbers_of_instructions_are_those_of_triton(arch, host):
    if host.has_marks(arch):
        pytest.skip("LLVM counts the instructions")
    kernel = Kernel(host.version, arch)
    function = kernel.function("kernel", {"ptr": "!tt.ptr<f16>"})
    for _ in copies(function, kernel.rows, arch):
        function.commit()
        function.commit()
        # What is newer than the last but two groups: the copy.
        function.wait(num=2)
    text = str(kernel)
    usual = emitted_of(arch)
    expected = [usual(op) for op in parse(text).walk() if op.name.startswith("ttg.async_copy")]
    counts = host.counts(text, arch)
    assert isinstance(counts, Counts)
    assert [rule.number for rule in counts.rules] == expected
    assert {1, 2, 4, 8} <= set(expected)


def test_a_machine_retires_in_order_and_as_late_as_it_can():
    """Two loads of 4 instructions; which number of a wait covers the first one, both, none."""
    kernel = Kernel("3.9.0", "gfx1250")
    function = kernel.function("kernel", {"ptr": "!tt.ptr<f16>"})
    rows = 4 * kernel.rows
    buffers = function.alloc(rows, 2)
    tiles = [function.slot(buffers, function.const(i), rows, 2) for i in range(2)]
    for tile in tiles:
        function.commit(function.copy(tile, rows))
    function.wait(num=0)
    for tile in tiles:
        function.load(tile, rows)
    module = parse(str(kernel))
    loads = [op for op in module.walk() if op.name == "ttg.local_load"]
    program = Program(module, emitted_of("gfx1250"))
    for number, broken in ((0, []), (1, loads[1:]), (4, loads[1:]), (5, loads), (63, loads)):
        faults = program.search(range(50), Counts((Rule(number),)))
        assert [fault.op for fault in faults if fault.kind == "read"] == broken


def test_views_of_other_parts_do_not_disturb():
    text = """\
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#t = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0, 1]}>
#smem = #ttg.shared_memory
tt.func @f(%p: tensor<16x64x!tt.ptr<f16>>) {
  %b = ttg.local_alloc : () -> !ttg.memdesc<32x64xf16, #s, #smem, mutable>
  %x = ttg.memdesc_subslice %b[0, 0] : !ttg.memdesc<32x64xf16, #s, #smem, mutable> -> !ttg.memdesc<16x64xf16, #s, #smem, mutable, 32x64>
  %y = ttg.memdesc_trans %b {order = array<i32: 1, 0>} : !ttg.memdesc<32x64xf16, #s, #smem, mutable> -> !ttg.memdesc<64x32xf16, #t, #smem, mutable>
  %z = ttg.memdesc_subslice %y[0, 16] : !ttg.memdesc<64x32xf16, #t, #smem, mutable> -> !ttg.memdesc<64x16xf16, #t, #smem, mutable, 64x32>
  %w = ttg.memdesc_subslice %y[8, 8] : !ttg.memdesc<64x32xf16, #t, #smem, mutable> -> !ttg.memdesc<8x16xf16, #t, #smem, mutable, 64x32>
  %c = ttg.async_copy_global_to_local %p, %x : tensor<16x64x!tt.ptr<f16>> -> <16x64xf16, #s, #smem, mutable, 32x64>
  %1 = ttg.local_load %z : !ttg.memdesc<64x16xf16, #t, #smem, mutable, 64x32> -> tensor<64x16xf16>
  %2 = ttg.local_load %w : !ttg.memdesc<8x16xf16, #t, #smem, mutable, 64x32> -> tensor<8x16xf16>
  tt.return
}
"""  # noqa: E501  as printed
    module = parse(text)
    faults = run(module, 0, Counts(()), lambda op: 1)
    assert [(fault.kind, fault.op.operands[0].name, fault.promised) for fault in faults] == [
        ("read", "%w", False)
    ]
