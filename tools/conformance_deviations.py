"""Where passes of triton-ext differ from upstream's on purpose.

A test *deviates as listed* if it passes with each of these lines changed as it says here, and with
nothing else changed.  Lines are those of upstream's commit ef08c7fc4; in another checkout, the
nearest line with the text counts.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEVIATIONS", "Deviation", "with_deviations"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """Lines of one test in which upstream's result is another one.

    Attributes:
        file: The test.
        lines: Their numbers.
        upstream: What the lines hold, a fragment of them.
        ours: What has to stand in its place.
        reason: Why ours is right.
        proof: A test of this repository that shows it, or a command.
    """

    file: str
    lines: tuple[int, ...]
    upstream: str
    ours: str
    reason: str
    proof: str


_COALESCE = "TritonGPU/amd/amd-coalesce-async-copy.mlir"
_WAITS = "TritonGPU/amd/amd-update-async-wait-count-without-token.mlir"
_ALIGNMENT = "Analysis/test-alignment.mlir"
_RANGES = "TritonGPU/amd/amd-range-analysis.mlir"

_COMPUTED_AGAIN = (
    "pointers made of ranges and splats are computed in the new layout, not converted to it"
)
_COMPUTED_TEST = "test/ttg/coalesce-async-copy/rematerialize.mlir"
_NO_CONVERSION = "the layout fits already, a conversion to an equal one is left out"
_NOTHING_OLDER = (
    "a path with no more groups than may stay in flight awaits nothing, so it lowers no number"
)
_MORE_IS_KNOWN = "more is known of the same numbers"

_FITS_TEST = (
    "unittest/amd/test_coalesce_async_copy_amd.py::test_a_layout_that_fits_is_not_converted"
)
_WAITS_TEST = (
    "test/amd/update-async-wait-count/groups.mlir (start_of_kernel), "
    "unittest/amd/test_async_kernels.py::test_our_numbers_hold"
)
_AXIS_TEST = "unittest/analysis/test_axis_info_random.py::test_arithmetic_has_what_is_claimed_of_it"
_AXIS_LIT = "test/ttg/print-alignment/results.mlir (more)"
_LOOPS_TEST = (
    "unittest/analysis/test_ranges_random.py::"
    "test_ends_of_ranges_behind_loops_are_numbers_that_occur"
)

DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        file="Analysis/test-membar-ttng.mlir",
        lines=(30, 44),
        upstream=", warpGroupLocal}",
        ours="}",
        reason="before Triton 3.9 a WGMMA wait has no barrier of the CTA that could be left out",
        proof="unittest/analysis/test_membar.py::test_contained_barriers_depend_on_the_host",
    ),
    Deviation(
        file=_COALESCE,
        lines=(101,),
        upstream="sizePerThread = [1, 2], threadsPerWarp = [2, 32]",
        ours="sizePerThread = [1, 8], threadsPerWarp = [8, 8]",
        reason="a lane copies 16 bytes at once instead of 4: a quarter of the instructions",
        proof=(
            "unittest/amd/test_coalesce_async_copy_amd.py::"
            "test_a_lane_copies_more_than_a_thread_held"
        ),
    ),
    Deviation(
        file=_COALESCE,
        lines=(113, 139),
        upstream="ttg.convert_layout %{{.*}} : {{.*}} -> tensor<32x64x!tt.ptr<f16>,",
        ours="tt.addptr %{{.*}} : tensor<32x64x!tt.ptr<f16>,",
        reason=_COMPUTED_AGAIN,
        proof=_COMPUTED_TEST,
    ),
    Deviation(
        file=_COALESCE,
        lines=(164,),
        upstream="ttg.convert_layout %{{.*}} : {{.*}} -> tensor<32x64x!tt.ptr<f32>,",
        ours="tt.addptr %{{.*}} : tensor<32x64x!tt.ptr<f32>,",
        reason=_COMPUTED_AGAIN,
        proof=_COMPUTED_TEST,
    ),
    Deviation(
        file=_COALESCE,
        lines=(152,),
        upstream="warpsPerCTA = [1, 4], order = [1, 0]",
        ours="warpsPerCTA = [1, 4], order = [0, 1]",
        reason=(
            "columns of 32 elements are shorter than a wave: with upstream's order its lanes write "
            "apart, and Triton refuses the copy"
        ),
        proof=(
            "unittest/amd/test_coalesce_async_copy_amd.py::"
            "test_lanes_walk_a_buffer_whose_columns_are_shorter_than_a_wave"
        ),
    ),
    Deviation(
        file=_COALESCE,
        lines=(284,),
        upstream="sizePerThread = [1, 1], threadsPerWarp = [64, 1]",
        ours="sizePerThread = [1, 2], threadsPerWarp = [64, 1]",
        reason=_NO_CONVERSION,
        proof=_FITS_TEST,
    ),
    Deviation(
        file=_COALESCE,
        lines=(288,),
        upstream=(
            "CHECK: %[[CVT:.*]] = ttg.convert_layout %{{.*}} : {{.*}} -> "
            "tensor<64x2x!tt.ptr<f32>, #[[$NEW_BLOCKED]]>"
        ),
        ours="CHECK-NOT: ttg.convert_layout",
        reason=_NO_CONVERSION,
        proof=_FITS_TEST,
    ),
    Deviation(
        file=_COALESCE,
        lines=(289,),
        upstream="%[[CVT]], %{{.*}} :",
        ours="%{{.*}}, %{{.*}} :",
        reason=_NO_CONVERSION,
        proof=_FITS_TEST,
    ),
    Deviation(
        file="TritonGPU/amd/amd-update-async-wait-count-asyncmark.mlir",
        lines=(18,),
        upstream="{num = 7 : i32}",
        ours="{num = 2 : i32}",
        reason="LLVM looks at the number alone, and 7 lets the copy through that the token names",
        proof=(
            "unittest/amd/test_waits_in_a_compile.py::"
            "test_a_number_that_waits_for_nothing_behind_a_mark"
        ),
    ),
    Deviation(
        file=_WAITS,
        lines=(78,),
        upstream="num_inst = 1",
        ours="num_inst = 2",
        reason=_NOTHING_OLDER,
        proof=_WAITS_TEST,
    ),
    Deviation(
        file=_WAITS,
        lines=(446,),
        upstream="num_inst = 6",
        ours="num_inst = 8",
        reason=_NOTHING_OLDER,
        proof=_WAITS_TEST,
    ),
    Deviation(
        file="TritonGPU/amd/amd-update-async-wait-count.mlir",
        lines=(523,),
        upstream="num_inst = 2",
        ours="num_inst = 0",
        reason=(
            "stores may retire before the awaited load: it may be one of the 2 that stay in flight"
        ),
        proof=(
            "unittest/amd/test_async_model.py::test_the_case_is_right_and_triton_is_not"
            "[loads-and-stores-gfx1250]"
        ),
    ),
    Deviation(
        file=_ALIGNMENT,
        lines=(340,),
        upstream="divisibility = [2]",
        ours="divisibility = [4]",
        reason=_MORE_IS_KNOWN,
        proof=_AXIS_TEST,
    ),
    Deviation(
        file=_ALIGNMENT,
        lines=(344,),
        upstream="divisibility = [1073741824], constancy = [1], constant_value = <none>",
        ours="divisibility = [4611686018427387904], constancy = [128], constant_value = 0",
        reason="a value minus itself is 0",
        proof=_AXIS_TEST,
    ),
    Deviation(
        file=_ALIGNMENT,
        lines=(360,),
        upstream="divisibility = [4], constancy = [1], constant_value = <none>",
        ours="divisibility = [4611686018427387904], constancy = [128], constant_value = 0",
        reason="a value minus itself is 0",
        proof=_AXIS_TEST,
    ),
    Deviation(
        file=_ALIGNMENT,
        lines=(363,),
        upstream="divisibility = [4], constancy = [2], constant_value = <none>",
        ours="divisibility = [4611686018427387904], constancy = [128], constant_value = 0",
        reason="a value minus itself is 0",
        proof=_AXIS_TEST,
    ),
    Deviation(
        file=_ALIGNMENT,
        lines=(734,),
        upstream="divisibility = [1], constancy = [1]",
        ours="divisibility = [64], constancy = [1]",
        reason="the conjunction with 64 is a multiple of 64",
        proof=_AXIS_TEST,
    ),
    Deviation(
        file=_ALIGNMENT,
        lines=(800,),
        upstream="divisibility = [1], constancy = [1]",
        ours="divisibility = [1], constancy = [16]",
        reason="16 numbers in a row are equal without their last 4 bits",
        proof=_AXIS_TEST,
    ),
    Deviation(
        file=_ALIGNMENT,
        lines=(980,),
        upstream="constancy = [1, 1]",
        ours="constancy = [128, 128]",
        reason="all elements of a splat are equal",
        proof=_AXIS_LIT,
    ),
    Deviation(
        file=_ALIGNMENT,
        lines=(1080,),
        upstream="constancy = [1]",
        ours="constancy = [128]",
        reason="all elements of a splat are equal",
        proof=_AXIS_LIT,
    ),
    Deviation(
        file=_ALIGNMENT,
        lines=(1221,),
        upstream="constancy = [1, 1]",
        ours="constancy = [128, 64]",
        reason="all elements of a splat are equal",
        proof=_AXIS_LIT,
    ),
    Deviation(
        file=_ALIGNMENT,
        lines=(1322,),
        upstream="divisibility = [1024, 1024]",
        ours="divisibility = [4096, 4096]",
        reason="a hint takes nothing away from what is known",
        proof=(
            "unittest/analysis/test_axis_info.py::test_hints_do_not_take_away_what_is_known, "
            f"{_AXIS_LIT}"
        ),
    ),
    Deviation(
        file=_ALIGNMENT,
        lines=(1461, 1463),
        upstream="constant_value = <none>",
        ours="constant_value = 64",
        reason="the loop has one iteration",
        proof=f"unittest/analysis/test_axis_info.py::test_loops_of_known_length, {_AXIS_LIT}",
    ),
    Deviation(
        file=_ALIGNMENT,
        lines=(1479,),
        upstream="divisibility = [1], constancy = [1], constant_value = <none>",
        ours="divisibility = [4], constancy = [4], constant_value = 12",
        reason="facts of an operation follow from its operands, executed or not",
        proof=_AXIS_LIT,
    ),
    Deviation(
        file=_RANGES,
        lines=(288,),
        upstream="unsigned : [0, 17391] signed : [0, 17391]",
        ours="unsigned : [0, 261888] signed : [0, 261888]",
        reason="upstream's range is too small: 256 iterations add up to 1023 each",
        proof=_LOOPS_TEST,
    ),
    Deviation(
        file=_RANGES,
        lines=(315,),
        upstream="unsigned : [0, 18414] signed : [0, 18414]",
        ours="unsigned : [0, 262911] signed : [0, 262911]",
        reason="upstream's range is too small, as that of the loop in front of it",
        proof=_LOOPS_TEST,
    ),
    Deviation(
        file=_RANGES,
        lines=(772, 782),
        upstream="unsigned : [0, 131967] signed : [0, 131967]",
        ours="unsigned : [0, 66495] signed : [0, 66495]",
        reason="two values take turns: each grows in every other iteration, 64 times",
        proof=_LOOPS_TEST,
    ),
    Deviation(
        file=_RANGES,
        lines=(773,),
        upstream="unsigned : [0, 130944] signed : [0, 130944]",
        ours="unsigned : [0, 66495] signed : [0, 66495]",
        reason="two values take turns: each grows in every other iteration, 64 times",
        proof=_LOOPS_TEST,
    ),
    Deviation(
        file=_RANGES,
        lines=(795,),
        upstream="unsigned : [0, 132990] signed : [0, 132990]",
        ours="unsigned : [0, 67518] signed : [0, 67518]",
        reason="two values take turns: each grows in every other iteration, 64 times",
        proof=_LOOPS_TEST,
    ),
    Deviation(
        file=_RANGES,
        lines=(1289,),
        upstream="unsigned : [0, 4294967295] signed : [0, -1]",
        ours="unsigned : [0, 256] signed : [0, 256]",
        reason="a histogram of 256 elements counts no more than 256",
        proof="unittest/analysis/test_ranges.py::test_numbers_that_are_made_and_moved",
    ),
)


def with_deviations(name: str, text: str) -> tuple[str, tuple[tuple[int, Deviation], ...]]:
    """Returns a test with its listed lines changed, and each change with its line.

    Args:
        name: The test.
        text: What stands in it.
    """
    lines = text.splitlines(keepends=True)
    found = []
    for deviation in DEVIATIONS:
        if deviation.file != name:
            continue
        for wanted in deviation.lines:
            having = [n for n, line in enumerate(lines, 1) if deviation.upstream in line]
            if having:
                _, number = min((abs(n - wanted), n) for n in having)
                line = lines[number - 1]
                lines[number - 1] = line.replace(deviation.upstream, deviation.ours)
                found.append((number, deviation))
    return "".join(lines), tuple(found)
