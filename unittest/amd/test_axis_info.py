"""Axis info of ``amdg.extract_slice``: a table, numbers, and what the host's coalescing shows."""

from __future__ import annotations

import tempfile
from random import Random

import pytest
from triton_ext import ir
from triton_ext.analysis.axis_info import AxisInfo, AxisInfoAnalysis
from triton_ext.backends.amd.analysis.axis_info import AXIS_INFO_RULES
from triton_ext.ir.types import parse_type

BODY = """\
module {{
  tt.func public @f(%x: tensor<{source}xi32> {{{hints}}}) {{
    %r = amdg.extract_slice %x {offsets} : tensor<{source}xi32> to tensor<{target}xi32>
    tt.return
  }}
}}
"""


def hints(**numbers: tuple[int, ...]) -> str:
    return ", ".join(
        f"tt.{name} = dense<{list(values)}> : tensor<{len(values)}xi32>"
        for name, values in numbers.items()
    )


def tile_of(source, target, offsets, **numbers) -> AxisInfo:
    """What is known of a tile of a tensor of which ``numbers`` are known."""
    text = BODY.format(
        source="x".join(map(str, source)),
        target="x".join(map(str, target)),
        offsets=list(offsets),
        hints=hints(**numbers),
    )
    module = ir.parse(text)
    (op,) = (op for op in module.walk() if op.name == "amdg.extract_slice")
    return AxisInfoAnalysis.of(module, rules=AXIS_INFO_RULES).info(op.results[0])


@pytest.mark.parametrize(
    ("offset", "contiguity", "divisibility", "expected"),
    [
        # Of 64 elements, 16 from the offset on: contiguity, divisibility, complete.
        (0, 64, 64, (16, 64, True)),
        (0, 4, 16, (4, 16, True)),
        (16, 64, 64, (16, 16, False)),  # The tile begins 16 behind the only first element.
        (16, 8, 64, (8, 64, True)),
        (8, 16, 64, (8, 8, False)),
        (4, 8, 2, (4, 2, False)),
        (3, 8, 8, (1, 1, False)),
        (3, 1, 8, (1, 8, True)),
    ],
)
def test_tile(offset, contiguity, divisibility, expected):
    known = {"contiguity": (1, contiguity), "divisibility": (1, divisibility)}
    if contiguity == 1:
        known["divisibility"] = (divisibility, divisibility)
    found = tile_of((4, 64), (4, 16), (0, offset), **known)
    assert (found.contiguity[1], found.divisibility[1], found.complete) == expected


def test_a_tile_of_another_rank_has_no_facts():
    """Hosts refuse it."""
    found = tile_of((4, 64), (4, 8, 2), (0, 0), contiguity=(1, 64))
    assert (found.contiguity, found.divisibility, found.constancy) == ((1,) * 3, (1,) * 3, (1,) * 3)


@pytest.mark.parametrize(
    ("offset", "constancy", "expected"), [(0, 64, 16), (16, 4, 4), (8, 16, 8), (2, 4, 2), (1, 4, 1)]
)
def test_tile_repeats(offset, constancy, expected):
    assert tile_of((4, 64), (4, 16), (0, offset), constancy=(1, constancy)).constancy == (
        1,
        expected,
    )


def test_without_the_rule_there_is_a_gap():
    module = ir.parse(
        BODY.format(source="4x64", target="4x16", offsets=[0, 0], hints=hints(contiguity=(1, 64)))
    )
    (op,) = (op for op in module.walk() if op.name == "amdg.extract_slice")
    assert AxisInfoAnalysis.of(module).info(op.results[0]) == AxisInfo(
        (1, 1), (1, 1), (1, 1), None, op
    )


def test_no_claim_about_a_tile_is_false():
    """Numbers that are as contiguous, divisible and constant as the source is said to be."""
    random = Random(0)
    for _ in range(2000):
        size, part = 64, random.choice((4, 8, 16, 64))
        offset = random.randrange(0, size - part + 1)
        run, repeat = random.choice((1, 1, 2, 4, 16, 64)), 1
        divisor = random.choice((1, 2, 4, 16, 64))
        if run == 1:
            repeat = random.choice((1, 2, 4, 16, 64))
        group = max(run, repeat)
        starts = [divisor * random.randrange(1, 100) for _ in range(size // group)]
        numbers = [s + (t if run > 1 else 0) for s in starts for t in range(group)]
        tile = numbers[offset : offset + part]
        found = tile_of(
            (size,),
            (part,),
            (offset,),
            contiguity=(run,),
            divisibility=(divisor,),
            constancy=(repeat,),
        )
        run, divisor, repeat = found.contiguity[0], found.divisibility[0], found.constancy[0]
        for at, number in enumerate(tile):
            first = tile[at - at % run]
            assert number == first + at % run
            assert first % divisor == 0
            assert number == tile[at - at % repeat]


COPY = """\
#b = #ttg.blocked<{{sizePerThread = [1, {wide}], threadsPerWarp = [64, 1], warpsPerCTA = [4, 1], \
order = [1, 0]}}>
#s = #ttg.swizzled_shared<{{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}}>
#smem = #ttg.shared_memory
module attributes {{"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, \
"ttg.threads-per-warp" = 64 : i32, ttg.target = "hip:gfx950"}} {{
  tt.func public @f(%p: tensor<256x64x!tt.ptr<{element}>, #b> {{{hints}}}, \
%m: !ttg.memdesc<256x{part}x{element}, #s, #smem, mutable>) {{
    %r = amdg.extract_slice %p [0, {offset}] : tensor<256x64x!tt.ptr<{element}>, #b> to \
tensor<256x{part}x!tt.ptr<{element}>, #b>
    %t = ttg.async_copy_global_to_local %r, %m : tensor<256x{part}x!tt.ptr<{element}>, #b> -> \
<256x{part}x{element}, #s, #smem, mutable>
    tt.return
  }}
}}
"""


def coalesced(text: str) -> str:
    libtriton = pytest.importorskip("triton._C.libtriton")
    context = libtriton.ir.context()
    libtriton.ir.load_dialects(context)
    libtriton.amd.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(text)
        file.flush()
        module = libtriton.ir.parse_mlir_module(file.name, context)
    module.context = context
    manager = libtriton.ir.pass_manager(context)
    libtriton.amd.passes.ttgpuir.add_coalesce_async_copy(manager, "gfx950")
    manager.run(module, "axis-info")
    return module.str_nodebug()


def test_the_host_accesses_a_tile_as_widely():
    """AMD's coalescing uses the axis analysis that knows the operation; gfx950 has 4 and 16 bytes.

    What it shows is the widest legal access that is proven, in the layout it chooses.
    """
    shown = []
    for element, size in (("i8", 1), ("f16", 2), ("f32", 4)):
        wide = 16 // size
        for offset in (0, wide, 2 * wide):
            for contiguity in (1, 2, 4, 16, 64):
                for divisibility in (1, 4, 8, 16, 64):
                    text = COPY.format(
                        element=element,
                        wide=wide,
                        part=2 * wide,
                        offset=offset,
                        hints=hints(contiguity=(1, contiguity), divisibility=(1, divisibility)),
                    )
                    after = ir.parse(coalesced(text))
                    (copy,) = (op for op in after.walk() if "async_copy" in op.name)
                    type_ = parse_type(copy.operands[0].type, after.aliases)
                    host = type_.encoding.size_per_thread[1]
                    module = ir.parse(text)
                    analysis = AxisInfoAnalysis.of(module, rules=AXIS_INFO_RULES)
                    (op,) = (op for op in module.walk() if op.name == "amdg.extract_slice")
                    proven = analysis.pointer_contiguity(op.results[0])
                    legal = max((x for x in (4 // size, wide) if x <= proven), default=None)
                    case = f"{element} [{offset}] {contiguity} {divisibility}: {host}, {proven}"
                    if legal is None:
                        assert host == wide, case  # Left as it is: nothing legal is proven.
                        continue
                    # From 3.8 on the host counts the offset in bytes, where it is in elements.
                    assert host <= legal or not analysis.info(op.results[0]).complete, case
                    shown.append((host, legal))
    assert len({host for host, _ in shown}) > 3
    assert sum(host == legal for host, legal in shown) > 0.9 * len(shown)
