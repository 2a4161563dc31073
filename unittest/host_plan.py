"""What is run with one Triton only, and what starts first.

``make test`` runs everything with the newest release.  ``make test-hosts`` sets
``TRITON_EXT_LATER_HOST``: what would show the same with every release is skipped then, with the
reason, and fewer cases are drawn.  ``make nightly`` runs all with a second release.
"""

from __future__ import annotations

import os
import pathlib
import random
from collections.abc import Mapping

import pytest

__all__ = ["FIRST", "ONE_HOST", "drawn", "is_later_host", "put_in_order", "skip_what_is_shown"]

FOLDER = pathlib.Path(__file__).parent

#: Files, or single tests as ``file::name``, by the reason for which one Triton is enough.
ONE_HOST: Mapping[str, tuple[str, ...]] = {
    "it runs the benchmarks of the tree, not the package": (
        "ops/test_benchmarks.py",
        "ops/test_gpu_comparison.py",
        "ops/test_memcheck.py",
        "ops/test_reproduce.py",
        "ops/test_zoo.py",
    ),
    "type checkers read our files": ("ops/test_signatures.py", "test_public_types.py"),
    "it runs torch's ranks, and no kernel": ("nn/test_examples_ranks.py",),
    "no Triton takes part in it": (
        "amd/test_partition_conflicts.py",
        "analysis/test_axis_info_random.py",
        "analysis/test_backward_flow.py",
        "analysis/test_bank_conflicts.py",
        "analysis/test_placement.py",
        "analysis/test_ranges_random.py",
        "fuzz/test_fuzz.py",
        "gpu/test_lost_context.py",
        "ir/test_properties.py",
        "ir/test_types.py",
        "llvm_ir/test_properties.py",
        "ops/test_tables.py::test_writers_do_not_undo_each_others_work",
        "passes/test_pipeline.py",
        "passes/test_registry.py",
        "tools/test_lds.py",
        "tools/test_lds_axis.py",
        "test_abuse.py",
        "test_build_wheel.py",
        "test_check.py",
        "test_check_prose.py",
        "test_check_regexes.py",
        "test_growth.py",
        "test_mutate.py",
        "test_try_wheel.py",
    ),
}

#: Files that take a core for more than fifteen seconds: no worker is left with one at the end.
FIRST = (
    "amd/test_instruction_count_emitted.py",
    "ops/test_conformance.py",
    "ops/test_hopper_fprop.py",
    "ops/test_row_packing.py",
    "nn/test_examples_ranks.py",
    "ops/test_tuning.py",
    "ops/test_reproduce.py",
    "ops/test_conv_compile.py",
    "ops/test_depthwise.py",
    "nvidia/test_launch.py",
    "ops/test_hopper_wgrad.py",
    "ops/test_epilogue.py",
    "ops/test_benchmarks.py",
    "gluon/test_hopper_conv.py",
    "test_support.py",
    "ops/test_hopper_dgrad.py",
    "ops/test_dgrad_compile.py",
    "ops/test_col2im.py",
    "ops/test_norms.py",
    "ops/test_functional.py",
    "amd/test_coalesce_async_copy_amd.py",
    "amd/test_verify_async_waits.py",
)


def is_later_host() -> bool:
    """Whether the newest release has been tested before."""
    return os.environ.get("TRITON_EXT_LATER_HOST") == "1"


def drawn(count: int) -> int:
    """Returns how many cases to draw for a kernel whose arithmetic is the same with every release.

    Args:
        count: As many as the newest release gets; others get a quarter.
    """
    return count // 4 if is_later_host() else count


def put_in_order(items: list[pytest.Item], seed: str | None = None) -> None:
    """Puts long files first, or all in an order that a seed draws.

    A file's tests stay together: their fixtures serve the whole file.
    """
    if seed is not None:
        chance = random.Random(seed)
        turn_of = dict.fromkeys(item.path for item in items)
        turn_of = {path: chance.random() for path in turn_of}
        chance.shuffle(items)
        items.sort(key=lambda item: turn_of[item.path])
        return
    turns = {FOLDER / name: turn for turn, name in enumerate(FIRST)}
    items.sort(key=lambda item: turns.get(item.path, len(turns)))


def skip_what_is_shown(item: pytest.Item) -> None:
    """Skips what the newest release has shown for all; one line of the summary per file."""
    if not is_later_host() or not item.path.is_relative_to(FOLDER):
        return
    file = item.path.relative_to(FOLDER).as_posix()
    names = {file, f"{file}::{item.name.partition('[')[0]}"}
    for reason, planned in ONE_HOST.items():
        if names.intersection(planned):
            pytest.skip(f"{file}: {reason}; make test runs it")
