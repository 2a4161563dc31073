"""``triton-ext-verify-async`` and the emulator on the Hopper convolutions and their mutants.

Kernels are proved as they are.  A mutant that the emulator shows wrong, by an error or by its
result, must never be proved; and of those that are broken, most are refuted.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter

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
from hopper_kernels import CONFIGS  # noqa: E402
from triton_ext.emulator import EmulationError  # noqa: E402
from triton_ext.errors import PassError  # noqa: E402
from triton_ext.ir import parse  # noqa: E402
from triton_ext.passes import PassManager  # noqa: E402

from examples.gluon.hopper import launch  # noqa: E402

NIGHTLY = bool(os.environ.get("TRITON_EXT_NIGHTLY"))
at_night = pytest.mark.skipif(not NIGHTLY, reason="takes minutes; TRITON_EXT_NIGHTLY=1 runs it")
VERIFIER = PassManager("triton-ext-verify-async{report=all}")
UNIT = Case(
    n=3, size=(9, 9), ci=136, co=136, filter_size=(3, 2), stride=(1, 1), padding=(1, 1),
    dilation=(1, 2),
)  # fmt: skip
#: Mutants of each kernel in a short run.
SOME = 24

EVENTS = re.compile(
    r"ttng\.(?:init_barrier|barrier_expect|arrive_barrier|wait_barrier|fence_async_shared|"
    r"async_tma_store_wait|async_tma_copy_global_to_local)\b"
)


class _Stopped(Exception):
    """The TTGIR is known, and nothing has to run."""


@pytest.fixture(autouse=True, scope="module")
def one_cache(tmp_path_factory):
    with hopper_kernels.one_triton_cache(tmp_path_factory) as patch:
        # One CTA computes all tiles, so that every buffer is used more than once.
        patch.setattr(launch, "_EMULATED_MULTIPROCESSORS", 1)
        yield


def ttgir_of(kernel, config):
    """The TTGIR of a kernel."""
    texts = []

    def stop(text):
        texts.append(text)
        raise _Stopped

    with pytest.raises(_Stopped):
        hopper_kernels.run(kernel, UNIT, config, 0, stop)
    return texts[0]


def verdict(text):
    """``proved``, ``refuted`` or ``undecided``."""
    try:
        remarks = VERIFIER.run(parse(text)).remarks
    except PassError:
        return "refuted"
    return "proved" if remarks[0].message.startswith("proved:") else "undecided"


def mutants(text):
    """Operations left out, done twice, and with other numbers; waits for the other phase."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        found = {}
        if EVENTS.search(line):
            found["left out"], found["twice"] = "", line * 2
        for name, pattern, change in (
            ("pendings", r"pendings = (\d+)", lambda x: x + 1),
            ("bytes", r"barrier_expect %[\w.]+, (\d+)", lambda x: x // 2),
            ("count", r"(?:init|arrive)_barrier %[\w.]+, (\d+)", lambda x: x + 1),
        ):
            match = re.search(pattern, line)
            if match is not None:
                value = change(int(match[1]))
                found[name] = f"{line[: match.start(1)]}{value}{line[match.end(1) :]}"
        if "arith.xori" in line:
            found["phase"] = line.replace("arith.xori", "arith.ori")
        for how, new in found.items():
            mutant = "".join([*lines[:number], new, *lines[number + 1 :]])
            yield f"{number + 1} {how}: {line.strip()}", mutant


def is_wrong(kernel, config, text, seeds):
    """Whether the emulator shows a mutant wrong in some order of its partitions."""
    for seed in seeds:
        try:
            assert_close(*hopper_kernels.run(kernel, UNIT, config, seed, lambda _: text))
        except (EmulationError, AssertionError):
            return True
    return False


def check(kernel, config, most, seeds):
    """Compares verdicts and emulated runs of mutants; returns how many have each verdict."""
    text = ttgir_of(kernel, config)
    assert verdict(text) == "proved"
    chosen = list(mutants(text))
    random.Random(3).shuffle(chosen)
    verdicts: Counter[str] = Counter()
    for name, mutant in chosen[:most]:
        found = verdict(mutant)
        verdicts[found] += 1
        if found == "proved":
            assert not is_wrong(kernel, config, mutant, seeds), name
    return verdicts


@pytest.mark.parametrize("kernel", ["fprop", "dgrad"])
def test_some_mutants(kernel):
    verdicts = check(kernel, CONFIGS[2], SOME, range(1))
    assert verdicts["refuted"] >= 0.7 * SOME, verdicts


@at_night
@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["fprop", "dgrad"])
@pytest.mark.parametrize("config", CONFIGS)
def test_all_mutants(kernel, config):
    verdicts = check(kernel, config, None, range(3))
    assert verdicts["refuted"] >= 0.75 * verdicts.total(), verdicts


@pytest.mark.parametrize("config", CONFIGS[:2])
def test_other_configurations_are_proved(config):
    assert verdict(ttgir_of("fprop", config)) == "proved"
