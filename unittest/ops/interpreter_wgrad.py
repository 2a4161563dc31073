"""wgrad in Triton's interpreter; ``test_interpreted.py`` runs this file.

Reference: torch's own gradient on the CPU in fp64.  The interpreter multiplies in fp32 and rounds
once, so the largest error, relative to the largest value of the reference, is at most half an
epsilon of dw's dtype, and fp32's errors of the sum; bf16 is truncated instead of rounded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import pytest
import torch
from host_plan import drawn
from hypothesis import assume, given, settings
from hypothesis import strategies as st

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("set TRITON_INTERPRET=1 before pytest starts", allow_module_level=True)

import triton_ext.ops  # noqa: F401 - installs the plugin
from planned import plan_wgrad
from problem_cases import misaligned_slice
from triton.runtime import interpreter
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.wgrad import WgradConfig, WgradPlan

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"

LIMITS = {
    torch.float16: torch.finfo(torch.float16).eps,
    torch.bfloat16: torch.finfo(torch.bfloat16).eps * 1.01,
    torch.float32: 1e-5,
}

SMALL = WgradConfig(block_co=64, block_ci=16, block_pixels=16, num_stages=2, num_warps=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A gradient of a filter: the convolution and how it is computed."""

    n: int = 2
    ci: int = 8
    co: int = 8
    size: tuple[int, ...] = (6, 7)
    taps: tuple[int, ...] = (3, 3)
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[tuple[int, int], ...] = ((0, 0), (0, 0))
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    dtype: torch.dtype = torch.float16
    out_dtype: torch.dtype | None = None
    programs: int = 4
    config: WgradConfig | None = SMALL
    part_rounds: int = 1

    @property
    def problem(self) -> ConvProblem:
        """What is computed."""
        return ConvProblem(
            batch=self.n,
            in_channels=self.ci,
            out_channels=self.co,
            input_size=self.size,
            filter_size=self.taps,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x and dy, standard normal, channels-last."""
        generator = torch.Generator().manual_seed(0)

        def normal(channels: int, size: tuple[int, ...]) -> torch.Tensor:
            rows = torch.randn(self.n, *size, channels, generator=generator).to(self.dtype)
            return rows.movedim(-1, 1)

        return normal(self.ci, self.size), normal(self.co, self.problem.output_size)

    def plan(self, x: torch.Tensor, dy: torch.Tensor) -> WgradPlan:
        """The plan for these tensors."""
        return plan_wgrad(
            self.problem,
            x.stride(),
            dy.stride(),
            self.dtype,
            x.device,
            self.config,
            self.out_dtype,
            self.programs,
            self.part_rounds,
        )


def reference(problem: ConvProblem, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """torch's gradient in fp64; it knows equal sides only, so all padding is done in front."""
    sides = [side for pair in reversed(problem.padding) for side in pair]
    padded = torch.nn.functional.pad(x.double(), sides)
    weight = torch.zeros(problem.w_shape, dtype=torch.float64)
    zeros = [0] * problem.dims
    return torch.ops.aten.convolution_backward(
        dy.double(), padded, weight, None, problem.stride, zeros, problem.dilation, False, zeros,
        problem.groups, [False, True, False],
    )[1]  # fmt: skip


def check(case: Case, dw: torch.Tensor, x: torch.Tensor, dy: torch.Tensor) -> None:
    expected = reference(case.problem, x, dy)
    dtype = case.dtype if case.out_dtype is None else case.out_dtype
    assert dw.shape == expected.shape
    assert dw.dtype == dtype
    assert dw.movedim(1, -1).is_contiguous()
    error = (dw.double() - expected).abs().max().item()
    # "not greater" would let NaN through.
    assert error <= LIMITS[dtype] * max(expected.abs().max().item(), 1.0)


def run(case: Case) -> torch.Tensor:
    x, dy = case.tensors()
    dw = case.plan(x, dy).run(x, dy)
    check(case, dw, x, dy)
    return dw


FIXED = {
    "plain": Case(),
    "one image": Case(n=1),
    "one pixel": Case(n=1, size=(1, 1), taps=(1, 1)),
    "same": Case(padding=((1, 1), (1, 1))),
    "unequal padding": Case(padding=((3, 0), (0, 2))),
    "unequal filter": Case(taps=(1, 5), size=(3, 11)),
    "largest stride": Case(size=(19, 17), stride=(8, 8)),
    "stride and dilation": Case(
        stride=(2, 2), dilation=(3, 2), padding=((2, 1), (0, 3)), size=(9, 10)
    ),
    "filter fits with its padding only": Case(size=(2, 1), taps=(5, 4), padding=((2, 1), (1, 2))),
    "1x1": Case(taps=(1, 1)),
    "1x1 strided": Case(taps=(1, 1), stride=(2, 3)),
    "1x1 padded": Case(taps=(1, 1), padding=((1, 2), (3, 0))),
    "RGB": Case(ci=3),
    "odd channels": Case(ci=13, co=7),
    "one channel": Case(ci=1, co=1),
    "several blocks": Case(ci=40, co=136, n=1),
    "odd tails": Case(ci=37, co=75, n=1),
    "groups": Case(ci=16, co=24, groups=2),
    "groups, odd": Case(ci=9, co=6, groups=3),
    "depthwise": Case(ci=6, co=6, groups=6),
    "1-D": Case(
        size=(30,), taps=(5,), stride=(2,), padding=((2, 1),), dilation=(2,), ci=24, co=16
    ),
    "3-D": Case(
        size=(5, 6, 7), taps=(2, 3, 3), stride=(2, 1, 3), padding=((2, 1), (0, 1), (1, 1)),
        dilation=(1, 2, 1),
    ),
    "whole tiles only": Case(programs=1),
    "fp32": Case(out_dtype=torch.float32),
    "fp32, whole tiles, odd": Case(out_dtype=torch.float32, programs=1, ci=5),
}  # fmt: skip


@pytest.mark.parametrize("name", FIXED)
def test_fixed(name):
    run(FIXED[name])


@pytest.mark.parametrize("name", ["plain", "odd channels", "groups", "3-D"])
def test_bf16(name):
    run(replace(FIXED[name], dtype=torch.bfloat16))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Convolutions of one to three dimensions, split in any way."""
    dims = draw(st.integers(1, 3))
    # What the TMA unit takes in three dimensions bounds the others as well.
    most = {1: 24, 2: 9, 3: 5}[dims]

    def per_dim(values: st.SearchStrategy) -> tuple:
        return tuple(draw(values) for _ in range(dims))

    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 8]))
    channels = st.integers(1, 8 if groups > 1 else 20)
    return Case(
        n=draw(st.integers(1, 3)),
        ci=draw(channels) * groups,
        co=draw(channels | st.sampled_from([64, 65])) * groups,
        size=per_dim(st.integers(1, most)),
        taps=per_dim(st.integers(1, 4 if dims < 3 else 3)),
        stride=per_dim(st.integers(1, 3)),
        padding=per_dim(st.tuples(st.integers(0, 3), st.integers(0, 3))),
        dilation=per_dim(st.integers(1, 3)),
        groups=groups,
        dtype=draw(st.sampled_from([torch.float16, torch.bfloat16])),
        out_dtype=draw(st.sampled_from([None, None, torch.float32])),
        programs=draw(st.integers(1, 9)),
        part_rounds=draw(st.integers(1, 3)),
        config=replace(SMALL, taps=draw(st.integers(1, 5)), store_parts=draw(st.integers(1, 2))),
    )


@settings(max_examples=400 if NIGHTLY else drawn(50), deadline=None, derandomize=True)
@given(cases())
def test_drawn(case):
    assume(min(case.problem.output_size) > 0)
    run(case)


def test_shipped_configurations():
    run(Case(config=None, n=1, ci=72, co=72, programs=5))


# A whole tile, split ones, taps past the last, tails of every kind.
SPLIT = Case(
    ci=20,
    co=70,
    size=(5, 6),
    padding=((1, 1), (2, 0)),
    programs=16,
    config=replace(SMALL, taps=2),
)


def test_the_case_above_has_whole_tiles_and_parts():
    x, dy = SPLIT.tensors()
    partition = SPLIT.plan(x, dy).tiles.partition
    assert partition.waves > 0
    assert partition.splits > 1


def test_every_element_is_written(monkeypatch):
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(float("nan")))
    for case in (SPLIT, replace(SPLIT, groups=2), FIXED["3-D"]):
        run(case)


def test_the_order_of_programs_changes_no_bit(monkeypatch):
    builder = interpreter.interpreter_builder
    first = run(SPLIT)
    again = run(SPLIT)
    place = builder.set_grid_idx

    def backwards(*position: int) -> None:
        place(*(n - 1 - i for n, i in zip(builder.grid_dim, position, strict=True)))

    monkeypatch.setattr(builder, "set_grid_idx", backwards)
    last_first = run(SPLIT)
    assert torch.equal(first, again)
    assert torch.equal(first, last_first)


def test_parts_are_added_in_the_order_of_their_pixels():
    # In fp32, 2^26 + 1 is 2^26: only in their order do these add up to 4.
    case = Case(
        n=1, ci=8, co=8, size=(64,), taps=(1,), stride=(1,), padding=((0, 0),), dilation=(1,),
        out_dtype=torch.float32, programs=4,
    )  # fmt: skip
    x, dy = torch.zeros(1, 64, 8), torch.zeros(1, 64, 8)
    # Parts of 16 pixels: 2^26, -2^26, 1 and 3.
    x[0, ::16], dy[0, ::16] = 2.0**13, torch.tensor([2.0**13, -(2.0**13), 0, 0])[:, None]
    x[0, 1::16], dy[0, 1::16] = 1.0, torch.tensor([0, 0, 1.0, 3.0])[:, None]
    x, dy = (t.half().movedim(-1, 1) for t in (x, dy))
    plan = case.plan(x, dy)
    assert plan.tiles.partition.splits == 4
    assert torch.equal(plan.run(x, dy), torch.full((8, 8, 1), 4.0))


def expanded(dy: torch.Tensor) -> torch.Tensor:
    """What the gradient of a sum looks like."""
    return torch.ones((), dtype=dy.dtype).expand(dy.shape)


def sliced(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers as every second pixel column and the first channels of a larger tensor."""
    rows = tensor.movedim(1, -1)
    larger = torch.full((*rows.shape[:-1], 2, rows.shape[-1] + 8), float("nan"), dtype=rows.dtype)
    larger[..., 0, : rows.shape[-1]] = rows
    return larger[..., 0, : rows.shape[-1]].movedim(-1, 1)


def misaligned(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers at an address that TMA cannot read."""
    rows = tensor.movedim(1, -1).contiguous()
    memory = torch.zeros(rows.numel() + 8, dtype=rows.dtype)
    start = 1 + (-memory.data_ptr() // 2) % 8
    memory[start : start + rows.numel()] = rows.flatten()
    return memory[start : start + rows.numel()].view(rows.shape).movedim(-1, 1)


LAYOUTS = (torch.Tensor.contiguous, expanded, sliced, misaligned, misaligned_slice)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["same", "odd channels", "1-D", "1x1"])
def test_dy_may_lie_in_any_way(name, layout):
    x, dy = FIXED[name].tensors()
    dy = layout(dy)
    check(FIXED[name], FIXED[name].plan(x, dy).run(x, dy), x, dy)


@pytest.mark.parametrize("name", ["same", "1x1", "3-D"])
def test_x_may_be_a_slice(name):
    x, dy = FIXED[name].tensors()
    x = sliced(x)
    check(FIXED[name], FIXED[name].plan(x, dy).run(x, dy), x, dy)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["same", "odd tails", "groups", "1x1"])
def test_not_a_number_goes_where_torch_has_it(name, value):
    case = FIXED[name]
    for which in (0, 1):
        tensors = case.tensors()
        tensors[which][-1, 2, 0, 1] = value
        ours = case.plan(*tensors).run(*tensors).double()
        expected = reference(case.problem, *tensors)
        assert torch.equal(ours.isnan(), expected.isnan())
        assert torch.equal(ours.isinf(), expected.isinf())


def test_an_empty_batch_gives_zeros(monkeypatch):
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(float("nan")))
    case = Case(n=0)
    x, dy = torch.zeros(0, 8, 6, 7).half(), torch.zeros(0, 8, 4, 5).half()
    assert torch.equal(case.plan(x, dy).run(x, dy), torch.zeros(8, 8, 3, 3).half())


@pytest.mark.parametrize("packed", [True, False])
def test_out(packed):
    x, dy = SPLIT.tensors()
    plan = SPLIT.plan(x, dy)
    memory_format = torch.channels_last if packed else torch.contiguous_format
    out = torch.full((70, 20, 3, 3), float("nan")).half().contiguous(memory_format=memory_format)
    assert plan.run(x, dy, out) is out
    assert torch.equal(out, plan.run(x, dy))


def test_out_of_another_shape_or_dtype_is_refused():
    x, dy = SPLIT.tensors()
    plan = SPLIT.plan(x, dy)
    for out in (torch.empty(70, 20, 3, 3), torch.empty(70, 20, 3, 1).half()):
        with pytest.raises(ValueError, match=r"expected \[70, 20, 3, 3\] of torch.float16"):
            plan.run(x, dy, out)
