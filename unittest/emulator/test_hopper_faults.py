"""Every wait, fence, arrival and expected byte of the Hopper convolutions is needed.

Each test takes one out of the TTGIR, or lets one more through, and the emulator has to object: in
any order of the partitions, at a line that has to do with it.
"""

from __future__ import annotations

import os
import re

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch", reason="the examples' launchers need torch")

from triton_ext.host import capabilities

# Where TTGIR has no such copies, the loads become calls, and that later.
CAPABILITY = capabilities()["im2col-copies"]
if not CAPABILITY.available:
    pytest.skip(CAPABILITY.reason, allow_module_level=True)

import hopper_kernels  # noqa: E402
from conv_cases import Case, assert_close  # noqa: E402
from hopper_kernels import CONFIGS, WGRAD_CONFIGS  # noqa: E402
from triton_ext.emulator import EmulationError  # noqa: E402

from examples.gluon.hopper import launch  # noqa: E402

NIGHTLY = bool(os.environ.get("TRITON_EXT_NIGHTLY"))
at_night = pytest.mark.skipif(not NIGHTLY, reason="takes a minute; TRITON_EXT_NIGHTLY=1 runs it")
# More than one round of the ring, and more than two tiles in each dimension.
UNIT = Case(
    n=3, size=(9, 9), ci=136, co=136, filter_size=(3, 2), stride=(1, 1), padding=(1, 1),
    dilation=(1, 2),
)  # fmt: skip
STRIDED = Case(
    n=2, size=(9, 11), ci=136, co=80, filter_size=(3, 3), stride=(2, 1), padding=(1, 1),
    dilation=(1, 1),
)  # fmt: skip
PENDINGS = re.compile(r"pendings = (\d+)")
LOADS = r"async_load|load_im2col"
PRODUCTS = r"warpgroup_mma\("

#: What is said about an operation that is missing, and the source lines that it is said at.
EXPECTED = {
    "ttng.wait_barrier": (
        r"in flight|orders the two accesses|elements were written|deadlock|expects 0 more",
        rf"{PRODUCTS}|{LOADS}|mbarrier\.",
    ),
    "ttng.barrier_expect": (
        r"deadlock|in flight|elements were written",
        rf"mbarrier\.wait|{PRODUCTS}|{LOADS}",
    ),
    "ttng.arrive_barrier": (r"deadlock", r"mbarrier\.wait"),
    "ttng.fence_async_shared": (r"asynchronous proxy", r"async_store"),
    "ttng.async_tma_store_wait": (
        r"overwrites '\w+' while a copy from it|ends while this store",
        r"\.store\(|async_store",
    ),
    "ttng.warp_group_dot_wait": (
        r"reads the result of a matrix product|orders the two accesses|product that reads it",
        rf"reshape|\.to\(|convert_layout|{LOADS}",
    ),
}


@pytest.fixture(autouse=True, scope="module")
def one_cache(tmp_path_factory):
    with hopper_kernels.one_triton_cache(tmp_path_factory) as patch:
        # One CTA computes all tiles, so that every buffer is used more than once.
        patch.setattr(launch, "_EMULATED_MULTIPROCESSORS", 1)
        yield


def mutants(line):
    """What becomes of a line: nothing, a wait that lets one more through, half of the bytes."""
    name = next((name for name in EXPECTED if f"{name} " in line), None)
    if name is None:
        return []
    if name == "ttng.barrier_expect":
        half = re.sub(r", (\d+), ", lambda match: f", {int(match[1]) // 2}, ", line, count=1)
        return [(name, ""), (name, half)]
    more = PENDINGS.sub(lambda match: f"pendings = {int(match[1]) + 1}", line)
    # Who goes on with the results of a wait would have none.
    found = [] if name == "ttng.warp_group_dot_wait" else [(name, "")]
    return [*found, (name, more)] if more != line else found


def objection(run):
    """What the emulator has against a run, or ``None``."""
    try:
        run()
    except EmulationError as error:
        return error
    return None


def check(kernel, case, config, seeds, needless=0, **options):
    """Checks all mutants of a kernel.

    Args:
        kernel: Its name.
        case: The convolution.
        config: How to compile.
        seeds: Orders of the partitions.
        needless: Mutants that may pass: of waits for what this variant never starts.
        options: More arguments of the launcher.
    """
    texts = []

    def run(edit, seed=0):
        return hopper_kernels.run(kernel, case, config, seed, edit, **options)

    assert_close(*run(lambda text: texts.append(text) or text))
    lines = texts[0].splitlines(keepends=True)
    kinds = set()
    passed = []
    for number, line in enumerate(lines):
        for name, changed in mutants(line):
            mutant = "".join([*lines[:number], changed, *lines[number + 1 :]])
            for seed in seeds:
                error = objection(lambda seed=seed, mutant=mutant: run(lambda _: mutant, seed))
                if error is None:
                    passed.append((number + 1, line.strip(), changed.strip()))
                    continue
                message, source = EXPECTED[name]
                assert re.search(message, error.message), (line, str(error))
                assert re.search(source, error.source_line), (line, str(error))
                kinds.add(name)
    assert len(passed) <= needless * len(seeds), passed
    return kinds


def test_fprop_needs_all_of_it():
    assert check("fprop", UNIT, CONFIGS[0], range(1)) == set(EXPECTED)


@at_night
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "case", "config", "needless", "options"),
    [
        ("fprop", UNIT, CONFIGS[0], 0, {}),
        ("fprop", UNIT, CONFIGS[1], 0, {}),
        ("dgrad", UNIT, CONFIGS[1], 0, {}),
        # Strided stores go through pointers; a wait for TMA stores follows all the same.
        ("dgrad", STRIDED, CONFIGS[0], 4, {}),
        ("wgrad", UNIT, WGRAD_CONFIGS[0], 0, {"add_in_place": True}),
    ],
)
def test_all_kernels_need_all_of_it(kernel, case, config, needless, options):
    check(kernel, case, config, range(3), needless, **options)
