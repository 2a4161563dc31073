"""wgrad's kernels, compiled for sm_90, in the emulator, against torch's gradient in float64."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

pytest.importorskip("numpy")
torch = pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

from triton_ext.host import capabilities  # noqa: E402

IM2COL = capabilities()["im2col-copies"]
if not IM2COL.available:
    pytest.skip(IM2COL.reason, allow_module_level=True)

from conv_cases import Case, assert_close, draw  # noqa: E402
from emulated import emulate  # noqa: E402
from problem_cases import problem_of_case  # noqa: E402
from triton_ext.ops.core import case as cases  # noqa: E402
from triton_ext.ops.core.device import SMEM_BYTES, Device  # noqa: E402
from triton_ext.ops.families.wgrad import (  # noqa: E402
    WGRAD,
    WgradChoice,
    WgradConfig,
)

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"


@pytest.fixture
def run(fresh_triton_cache, monkeypatch):
    """Returns dw of the kernels on a GPU of so many multiprocessors, and of torch."""
    empty = torch.empty

    def poisoned(*size, **options):
        return empty(*size, **options).fill_(torch.nan)

    def run(case, config, programs):
        emulate(monkeypatch, programs)
        x, w, dy = case.tensors()
        asked = cases.Case(direction="wgrad", problem=problem_of_case(case), dtype=x.dtype)
        choice = WgradChoice(config=config)
        plan = WGRAD.bind(choice, asked, Device(programs, (9, 0), SMEM_BYTES))
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", poisoned)
            dw = plan.run(x.movedim(-1, 1), dy.movedim(-1, 1))
        return dw.movedim(1, -1), case.gradients(x, w, dy)[1]

    return run


def config(co=64, ci=64, taps=1, stages=3, warps=4, pixels=64, pieces=1) -> WgradConfig:
    return WgradConfig(
        block_co=co,
        block_ci=ci,
        taps=taps,
        block_pixels=pixels,
        num_stages=stages,
        num_warps=warps,
        store_parts=pieces,
    )


CASE = Case(
    n=2, size=(9, 11), ci=72, co=80, filter_size=(3, 3), stride=(2, 1), padding=(1, 1),
    dilation=(1, 1),
)  # fmt: skip


@pytest.mark.parametrize("programs", [1, 16, 64], ids=["whole", "both", "parts"])
def test_it_equals_torch(programs, run):
    assert_close(*run(CASE, config(taps=2), programs))


def test_many_taps_of_few_channels(run):
    assert_close(*run(replace(CASE, ci=8), config(ci=16, taps=5), 3))


def test_through_pointers(run):
    assert_close(*run(replace(CASE, ci=70), config(), 7))


@pytest.mark.parametrize("number", range(40 if NIGHTLY else 4))
def test_random_geometries(number, run):
    rng = random.Random(number)
    chosen = config(
        rng.choice((64, 128)), rng.choice((32, 64, 128)), rng.randint(1, 3), rng.randint(2, 5),
        pixels=rng.choice((32, 64)), pieces=rng.choice((1, 2)),
    )  # fmt: skip
    case = draw(rng, rng.randint(1, 3), most_flops=1e8)
    # TMA does not store rows of odd channels.
    case = replace(case, ci=case.ci - rng.choice((0, 0, 3)))
    assert_close(*run(case, chosen, rng.randint(1, 20)))
