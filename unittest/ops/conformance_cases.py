"""Cases for families and rewrites of every direction, how they run, and what they should give.

Families come from the registry: one that is registered has the cases of :data:`PROBLEMS` that it
does not refuse, and neighbours of these.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from fprop_cases import ACTIVATIONS, TF32, TOLERANCE, clamp_and_tilt, convolve, finish
from hypothesis import strategies as st
from problem_cases import channels_last, misaligned_slice, problem_of
from triton_ext.errors import TritonExtError
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import IS_INTERPRETED, KNOWN, Device, device_of
from triton_ext.ops.core.epilogue import EpilogueArguments, EpilogueSpec
from triton_ext.ops.core.family import FAMILIES
from triton_ext.ops.core.packing import RowPacking
from triton_ext.ops.core.problem import as_forward
from triton_ext.ops.core.refusals import DTYPES
from triton_ext.ops.families.partial_im2col import swapped_case

#: Where tensors are: the interpreter's processor, or a GPU.
PLACE = torch.device("cpu" if IS_INTERPRETED else "cuda")


def _device() -> Device:
    # Tests are also collected where they cannot run.
    is_here = IS_INTERPRETED or (
        torch.version.cuda is not None
        and torch.cuda.is_available()
        and torch.cuda.get_device_capability() >= (9, 0)
    )
    return device_of(PLACE, "conformance") if is_here else KNOWN["h200"]


DEVICE = _device()

#: Families by the names of their tests.
BY_ID = {f"{family.direction}-{family.kind}": family for family in FAMILIES}

#: Geometries: what each of them is about.
PROBLEMS = {
    "plain": problem_of(n=2),
    "same": problem_of(n=2, ci=16, co=24, size=(7, 8), padding=1),
    "tiles": problem_of(n=2, ci=8, co=72, size=(8, 8)),
    "matrix": problem_of(n=2, ci=24, co=24, size=(7, 8), taps=(1, 1)),
    "matrix-tails": problem_of(n=4, ci=72, co=20, size=(5, 5), taps=(1, 1)),
    "matrix-strided": problem_of(n=2, ci=16, size=(6, 8), taps=(1, 1), stride=(2, 3)),
    "matrix-padded": problem_of(ci=8, size=(5, 6), taps=(1, 1), padding=((1, 2), (3, 0))),
    "pixel": problem_of(size=(1, 1), taps=(1, 1)),
    "stride": problem_of(n=2, ci=8, co=16, size=(11, 10), stride=(3, 2), padding=1),
    "stride-8": problem_of(size=(19, 17), stride=8),
    "stride-above-8": problem_of(ci=2, size=(23, 20), taps=(9, 10), stride=(9, 10)),
    "dilation": problem_of(size=(9, 11), dilation=(2, 3)),
    "everything": problem_of(
        n=2, size=(9, 10), stride=2, dilation=(3, 2), padding=((2, 1), (0, 3))
    ),
    "one-side": problem_of(padding=((3, 0), (0, 2)), stride=(2, 1)),
    "far-padding": problem_of(size=(4, 4), taps=(2, 2), padding=((4, 4), (3, 4))),
    "only-with-padding": problem_of(size=(2, 1), taps=(5, 4), padding=((2, 1), (1, 2))),
    "divisor": problem_of(size=(12, 13), stride=(4, 2), dilation=(2, 4), padding=4),
    "image-below-stride": problem_of(size=(2, 3), taps=(2, 1), stride=(4, 3)),
    "behind-the-last-tap": problem_of(size=(9, 10), taps=(2, 2), stride=(4, 3)),
    "1-D": problem_of(n=2, ci=16, size=(19,), taps=(3,), padding=1),
    "1-D-strided": problem_of(
        n=2, ci=24, co=16, size=(30,), taps=(5,), stride=2, padding=((2, 1),), dilation=2
    ),
    "3-D": problem_of(ci=16, size=(4, 5, 6), taps=(2, 3, 2), padding=1),
    "3-D-strided": problem_of(
        n=2, size=(5, 6, 7), taps=(2, 3, 3), stride=(2, 1, 3),
        padding=((2, 1), (0, 1), (1, 1)), dilation=(1, 2, 1),
    ),
    "odd-channels": problem_of(ci=13, co=7, stride=(2, 1)),
    "one-channel": problem_of(ci=1, co=1),
    "tail-in-k": problem_of(ci=72, co=72, size=(4, 4)),
    "odd-tail-in-k": problem_of(ci=67, co=67, size=(4, 4), padding=1),
    # Few input channels.
    "rgb": problem_of(n=2, ci=3, co=24, size=(10, 12), stride=2, padding=1),
    "rgb-wide": problem_of(n=1, ci=3, co=16, size=(9, 21), taps=(3, 7), padding=((1, 1), (3, 2))),
    "rgb-dilated": problem_of(ci=3, co=16, size=(5, 9), dilation=2),
    "windows": problem_of(ci=2, co=16, size=(4, 24), taps=(1, 3), stride=(1, 6)),
    "audio": problem_of(n=2, ci=1, co=40, size=(60,), taps=(10,), stride=5),
    "video": problem_of(ci=3, co=16, size=(4, 9, 8), taps=(2, 3, 4), padding=1),
    "in-place": problem_of(n=2, ci=8, co=16, size=(9, 9)),
    "rows-in-padding": problem_of(n=2, ci=8, co=16, size=(9, 9), padding=((1, 1), (0, 0))),
    "patches": problem_of(n=2, ci=3, co=24, size=(11, 14), taps=(4, 4), stride=4),
    "patches-1-D": problem_of(n=2, ci=4, co=16, size=(17,), taps=(5,), stride=5),
    "patches-3-D": problem_of(ci=2, co=8, size=(5, 6, 7), taps=(2, 2, 3), stride=(2, 2, 3)),
    "patches-many": problem_of(n=3, ci=3, co=8, size=(18, 34), taps=(4, 4), stride=4),
    # Few output channels.
    "end": problem_of(n=2, ci=16, co=3, size=(10, 12), padding=1),
    "end-rows": problem_of(n=1, ci=24, co=3, size=(3, 70), taps=(2, 5), padding=((0, 1), (2, 1))),
    "end-dilated": problem_of(ci=20, co=4, size=(8, 9), taps=(3, 2), dilation=(2, 3)),
    "end-1-D": problem_of(n=2, ci=40, co=2, size=(30,), taps=(5,), padding=((3, 1),)),
    "end-3-D": problem_of(ci=16, co=3, size=(4, 5, 6), taps=(2, 2, 3), padding=1),
    # Groups.
    "groups": problem_of(n=2, ci=48, co=48, size=(6, 7), padding=1, groups=2),
    "groups-tails": problem_of(ci=24, co=32, size=(6, 7), padding=1, groups=2),
    "groups-filled": problem_of(ci=40, co=32, size=(6, 7), padding=1, groups=2),
    "groups-tiles": problem_of(n=2, ci=160, co=144, size=(7, 6), taps=(2, 1), groups=2),
    "groups-odd": problem_of(ci=198, co=72, size=(4, 4), taps=(2, 2), groups=3),
    "groups-strided": problem_of(ci=15, co=144, size=(7, 8), stride=2, padding=1, groups=3),
    "small-groups": problem_of(n=2, ci=32, co=64, size=(6, 7), padding=1, groups=8),
    "small-groups-strided": problem_of(
        n=2, ci=32, co=32, size=(7, 6), taps=(2, 3), stride=2, padding=1, groups=4
    ),
    "small-groups-1-D": problem_of(n=2, ci=16, co=32, size=(18,), taps=(3,), padding=1, groups=4),
    "tiny-groups": problem_of(
        n=2, ci=6, co=6, size=(9, 10), taps=(3, 2), stride=2, padding=1, groups=2
    ),
    "tiny-groups-1-D": problem_of(n=2, ci=12, co=8, size=(21,), taps=(3,), dilation=2, groups=4),
    "tiny-groups-3-D": problem_of(
        n=2, ci=14, co=10, size=(4, 5, 6), taps=(2, 3, 2), stride=(1, 2, 2), padding=1, groups=2
    ),
    "multiplier": problem_of(n=2, ci=16, co=32, size=(6, 7), padding=1, groups=16),
    "depthwise": problem_of(n=2, ci=24, co=24, size=(8, 9), padding=1, groups=24),
    "depthwise-7x7": problem_of(ci=8, co=8, size=(6, 12), taps=(7, 7), padding=3, groups=8),
    "depthwise-strided": problem_of(
        n=2, ci=19, co=19, size=(7, 9), taps=(3, 5), padding=((1, 0), (2, 3)), stride=(2, 3),
        groups=19,
    ),
    "depthwise-dilated": problem_of(
        ci=16, co=16, size=(9, 11), padding=2, dilation=2, groups=16
    ),
    "depthwise-1-D": problem_of(n=2, ci=16, co=16, size=(40,), taps=(5,), padding=2, groups=16),
    "depthwise-3-D": problem_of(
        ci=8, co=8, size=(4, 5, 6), taps=(3, 3, 2), padding=1, stride=(1, 2, 1), groups=8
    ),
}  # fmt: skip

#: Epilogues of fprop, and whether their scale is one number.
EPILOGUES = {
    "bias": EpilogueSpec(bias=True),
    "scale": EpilogueSpec(scale=True),
    "one-scale": EpilogueSpec(scale=True, bias=True),
    "residual": EpilogueSpec(residual=True),
    "residual-in-fp32": EpilogueSpec(residual=True, bias=True, out_dtype=torch.float32),
    "residual-per-image": EpilogueSpec(residual=True, residual_per_image=True, activation="silu"),
    "out-scale": EpilogueSpec(out_scale=True, out_dtype=torch.float16),
    "amax": EpilogueSpec(amax=True, bias=True),
    "function": EpilogueSpec(function=clamp_and_tilt),
    **{
        name: EpilogueSpec(bias=True, activation=name, out_dtype=torch.float32)
        for name in ACTIVATIONS
        if name != "none"
    },
    "all": EpilogueSpec(
        bias=True, scale=True, residual=True, activation="gelu_tanh", out_dtype=torch.float32,
        out_scale=True, amax=True, function=clamp_and_tilt,
    ),
}  # fmt: skip


# --- families and the cases that they take ------------------------------------------------------


def case_of(family: Any, problem: Any, dtype: torch.dtype = torch.float16, **fields: Any) -> Case:
    return Case(direction=family.direction, problem=problem, dtype=dtype, **fields)


def refusals_of(family: Any, case: Case) -> list[str]:
    """Why a case does not come to a family, or it refuses the case; empty if it takes it."""
    try:
        planner.check(case, PLACE)
    except TritonExtError as error:
        return [str(error)]
    if found := family.refusals(case, DEVICE):
        return [refusal.text for refusal in found]
    return [] if family.candidates(case, DEVICE) else ["no configuration fits"]


FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def first_taken(family: Any, problem: Any, *dtypes: torch.dtype) -> Case:
    """The case of a problem in the first dtype that a family takes, from the given ones on."""
    cases = [case_of(family, problem, dtype) for dtype in (*dtypes, *FLOATS)]
    return next((case for case in cases if not refusals_of(family, case)), cases[0])


def taken(family: Any) -> list[str]:
    """The problems that a family takes, in one of its dtypes."""
    return [
        name
        for name, problem in PROBLEMS.items()
        if not refusals_of(family, first_taken(family, problem))
    ]


def packings(case: Case) -> tuple[RowPacking, ...]:
    """How rows of the filter can be packed into pixels, if a family reads such pixels."""
    size = case.dtype.itemsize
    if case.direction != "dgrad":
        return tuple(RowPacking.candidates(case.problem, case.strides_of_x, size))
    forward = as_forward(case.problem)
    return (
        () if forward is None else tuple(RowPacking.candidates(forward, case.strides_of_dy, size))
    )


def configs(family: Any, case: Case) -> list[Any]:
    """The configurations of a family for a case, the best guess first."""
    return list(family.candidates(case, DEVICE))


def bound(family: Any, case: Case, config: Any = None, num_sms: int | None = None) -> Any:
    """The plan of a family; of so many multiprocessors, or programs that run one after another."""
    config = config or configs(family, case)[0]
    return family.bind(config, case, replace(DEVICE, num_sms=num_sms or DEVICE.num_sms))


def smaller(family: Any, case: Case, config: Any, sizes: dict[str, int]) -> Any:
    """A configuration with other numbers, of those that the family lets pass.

    Args:
        family: The family.
        case: What is computed.
        config: One of its configurations.
        sizes: Other values of fields by name, of the configuration and of those in it.
    """

    def changed(each: Any, name: str, value: int) -> Any:
        inner = getattr(each, "config", None)
        if name in {field.name for field in dataclasses.fields(each)}:
            is_number = type(getattr(each, name)) in (int, bool)
            return replace(each, **{name: type(getattr(each, name))(value)}) if is_number else each
        return each if inner is None else replace(each, config=changed(inner, name, value))

    for name, value in sizes.items():
        other = changed(config, name, value)
        if other != config and not family.refusals(case, DEVICE, other):
            with contextlib.suppress(TritonExtError):
                family.bind(other, case, DEVICE)
                config = other
    return config


# --- operands and what they should give ---------------------------------------------------------


def _drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    if dtype != torch.int8:
        return channels_last(shape, dtype, seed, PLACE.type)
    generator = torch.Generator(PLACE).manual_seed(seed)
    size = (shape[0], *shape[2:], shape[1])
    numbers = torch.randint(-16, 16, size, generator=generator, device=PLACE)
    return numbers.to(dtype).movedim(-1, 1)


def operands(
    case: Case, *, one_scale: bool = False, bias: bool = False, plain_order: bool = False
) -> tuple[list[torch.Tensor], EpilogueArguments]:
    """The two operands of a case, and those of its epilogue.

    Args:
        case: The case, of dense operands.
        one_scale: Whether the scale is one number.
        bias: Whether dgrad has a bias.
        plain_order: Whether weight and residual are not channels-last.
    """
    problem, spec = case.problem, case.epilogue
    x, weight, dy = problem.x_shape, problem.w_shape, problem.y_shape
    shapes = {"fprop": (x, weight), "dgrad": (dy, weight), "wgrad": (x, dy)}[case.direction]
    tensors = [_drawn(shape, case.dtype, seed) for seed, shape in enumerate(shapes)]
    wide = torch.float16 if case.dtype.itemsize == 1 else case.dtype
    narrow = torch.float16 if spec.out_dtype == torch.float16 else wide
    of_residual = (*dy[:2], *(1,) * problem.dims) if spec.residual_per_image else dy
    residual = channels_last(of_residual, narrow, 5, PLACE.type)
    if plain_order:
        residual = residual.contiguous()
        if case.direction != "wgrad":
            tensors[1] = tensors[1].contiguous()

    def vector(count: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return channels_last((1, count), dtype, seed, PLACE.type).flatten()

    co = problem.in_channels if case.direction == "dgrad" else problem.out_channels
    # Every second number of a tensor.
    shift = vector(2 * co, 6, wide)[::2]
    extra = (vector(co, 9) + 2, 0.5, co)
    return tensors, EpilogueArguments(
        bias=shift if spec.bias or bias else None,
        scale=vector(1 if one_scale else co, 7) if spec.scale else None,
        residual=residual if spec.residual else None,
        out_scale=vector(1, 8).abs() + 0.5 if spec.out_scale else None,
        amax=torch.full((1,), 7e9, device=PLACE) if spec.amax else None,
        extra=extra if spec.function is not None else (),
    )


def run(
    case: Case,
    plan: Any,
    tensors: list[torch.Tensor],
    epilogue: EpilogueArguments,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    return plan.run(*tensors, epilogue, out)


def swapped_expected(case: Case, tensors: list[torch.Tensor]) -> torch.Tensor:
    """dw as the operand swap has it, which pads dy and not x: NaN shows in other places."""
    swapped = swapped_case(case)
    assert swapped is not None
    dw, _ = expected(swapped, tensors[::-1], EpilogueArguments())
    return dw.transpose(0, 1).flip(tuple(range(2, dw.dim())))


def expected(
    case: Case,
    tensors: list[torch.Tensor],
    epilogue: EpilogueArguments,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result of torch in a dtype, and its largest absolute value before ``out_scale``."""
    problem = case.problem
    first, second = (tensor.to(dtype) for tensor in tensors)
    if case.direction == "fprop":
        y = convolve(problem, first, second)
        return finish(y.double(), case.epilogue, epilogue)
    shapes = {"dgrad": problem.x_shape, "wgrad": problem.w_shape}
    shape = shapes[case.direction]
    wanted = torch.zeros(shape, dtype=dtype, device=first.device, requires_grad=True)
    pair = (wanted, second) if case.direction == "dgrad" else (first, wanted)
    dy = first if case.direction == "dgrad" else second
    with torch.backends.cudnn.flags(enabled=dtype != torch.float64):
        (found,) = torch.autograd.grad(convolve(problem, *pair), wanted, dy)
    if epilogue.bias is not None:
        found = found + epilogue.bias.to(dtype).view(-1, *(1,) * problem.dims)
    return found, found.abs().max()


# --- a call and its comparison ------------------------------------------------------------------


@contextlib.contextmanager
def uninitialized_is_nan() -> Iterator[None]:
    """Within, memory that torch does not initialize holds NaN, or the largest integer."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


@contextlib.contextmanager
def _last_program_first() -> Iterator[None]:
    """Within, the interpreter runs programs from the last to the first."""
    if not IS_INTERPRETED:
        yield
        return
    from triton.runtime.interpreter import interpreter_builder as builder

    place = builder.set_grid_idx

    def backwards(*position: int) -> None:
        place(*(n - 1 - i for n, i in zip(builder.grid_dim, position, strict=True)))

    builder.set_grid_idx = backwards
    try:
        yield
    finally:
        del builder.set_grid_idx


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Bit patterns, so that equality is exact and NaN equals itself."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.view(integers[tensor.dtype.itemsize])


def check(
    family: Any,
    case: Case,
    config: Any = None,
    *,
    tensors: list[torch.Tensor] | None = None,
    num_sms: int | None = None,
    one_scale: bool = False,
    bias: bool = False,
    plain_order: bool = False,
    repeats: bool = False,
) -> torch.Tensor:
    """Runs a case, compares it with torch's in fp64, and returns the result.

    ``repeats`` runs it again, into memory of the caller's, with programs in the reverse order.
    """
    drawn, epilogue = operands(case, one_scale=one_scale, bias=bias, plain_order=plain_order)
    tensors = tensors or drawn
    plan = bound(family, case, config, num_sms)
    with uninitialized_is_nan():
        found = run(case, plan, tensors, epilogue)
    if repeats:
        _assert_repeats(case, plan, tensors, epilogue, found, plain_order)
    assert found.movedim(1, -1).is_contiguous()
    assert found.dtype == case.output_dtype
    _compare(case, tensors, epilogue, found)
    return found


def _assert_repeats(
    case: Case,
    plan: Any,
    tensors: list[torch.Tensor],
    epilogue: EpilogueArguments,
    found: torch.Tensor,
    plain_order: bool,
) -> None:
    amax = None if epilogue.amax is None else epilogue.amax.clone()
    with uninitialized_is_nan():
        out = torch.empty_like(found)
        if case.direction == "wgrad" and plain_order:
            out = torch.empty(found.shape, dtype=found.dtype, device=PLACE)
        with _last_program_first():
            assert run(case, plan, tensors, epilogue, out) is out
    assert torch.equal(bits(found.contiguous()), bits(out.contiguous())), "other bits"
    assert amax is None or torch.equal(amax, epilogue.amax)


def _compare(
    case: Case, tensors: list[torch.Tensor], epilogue: EpilogueArguments, found: torch.Tensor
) -> None:
    exact, amax = expected(case, tensors, epilogue)
    assert found.shape == exact.shape
    largest = exact.abs().max().item()
    error = (found.double() - exact).abs().max().item()
    is_fp8 = case.dtype.itemsize == 1 and case.dtype.is_floating_point
    # sm_90 adds products of fp8 with about 14 bits.
    sums = 4e-3 if PLACE.type == "cuda" and is_fp8 else 0.0
    relative = TOLERANCE[found.dtype] + sums + (TF32 if case.dtype == torch.float32 else 0.0)
    if PLACE.type == "cuda" and case.dtype != torch.int8:
        # An activation may make large sums small, but not their errors.
        flat = replace(case, epilogue=replace(case.epilogue, activation="none", function=None))
        before, _ = expected(flat, tensors, epilogue._replace(extra=()))
        largest = max(largest, before.abs().max().item())
    limit = relative * largest + 1e-9
    if PLACE.type == "cuda" and case.dtype.itemsize > 1:
        torchs, _ = expected(case, tensors, epilogue, case.dtype)
        torch_error = (torchs.to(found.dtype).double() - exact).abs().max().item()
        limit = max(limit, 2 * torch_error + torch.finfo(found.dtype).eps / 2 * largest)
    # "not greater" would let NaN through.
    assert error <= limit, f"error {error} of {largest}, allowed {limit}"
    if epilogue.amax is not None:
        error = abs(epilogue.amax.item() - amax.item())
        assert error <= (TF32 if case.dtype == torch.float32 else 1e-5 + sums) * amax.item() + 1e-6


# --- memory -------------------------------------------------------------------------------------


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """More channels, which are NaN, lie between pixels."""
    rows = tensor.movedim(1, -1)
    larger = rows.new_full((*rows.shape[:-1], rows.shape[-1] + 16), torch.nan)
    larger[..., 8 : 8 + rows.shape[-1]] = rows
    return larger[..., 8 : 8 + rows.shape[-1]].movedim(-1, 1)


def _inside(tensor: torch.Tensor) -> torch.Tensor:
    """The inside of a larger image."""
    rows = tensor.movedim(1, -1)
    size = [extent + 2 for extent in rows.shape[1:-1]]
    larger = rows.new_full((rows.shape[0], *size, rows.shape[-1]), torch.nan)
    inside = larger[(slice(None), *(slice(1, -1) for _ in size))]
    return inside.copy_(rows).movedim(-1, 1)


def _every_second(tensor: torch.Tensor) -> torch.Tensor:
    """Every second pixel of a row."""
    rows = tensor.movedim(1, -1)
    larger = rows.new_full((*rows.shape[:-1], 2, rows.shape[-1]), torch.nan)
    larger[..., 0, :] = rows
    return larger[..., 0, :].movedim(-1, 1)


def _at(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    rows = tensor.movedim(1, -1)
    memory = rows.new_zeros(rows.numel() + offset)
    return memory[offset:].view(rows.shape).copy_(rows).movedim(-1, 1)


#: The same numbers, or numbers that are like each other, in other memory.
LAYOUTS = {
    "contiguous": torch.Tensor.contiguous,
    "apart": _apart,
    "inside": _inside,
    "every-second": _every_second,
    "by-one": lambda tensor: _at(tensor, 1),
    "slice": misaligned_slice,
    "one-image": lambda tensor: tensor[:1].expand(tensor.shape),
    "one-number": lambda tensor: tensor.new_ones(()).expand(tensor.shape),
}


# --- random neighbours of the problems ------------------------------------------------------------

_MOST_FLOPS = 6e5 if IS_INTERPRETED else 1e9
_CHANNELS = st.sampled_from((1, 2, 3, 4, 5, 7, 8, 12, 16, 20, 24, 32, 40, 66, 72, 136))


@st.composite
def neighbours(draw: st.DrawFn, family: Any, names: tuple[str, ...]) -> tuple[Case, Any, dict]:
    """A case that a family takes, a configuration, and how its operands are made.

    Args:
        draw: Hypothesis's.
        family: The family.
        names: Problems that it takes.
    """
    case = case_of(family, PROBLEMS[draw(st.sampled_from(names))])
    if refusals_of(family, case):
        case = replace(case, dtype=torch.float32)

    def keep(other: Case) -> None:
        nonlocal case
        problem = other.problem
        if min(problem.output_size) < 1 or problem.flops > _MOST_FLOPS:
            return
        # Each group, tap and stride phase is a k iteration, or several.
        steps = problem.groups * problem.taps * math.prod(problem.stride)
        if IS_INTERPRETED and family.is_gemm and steps > 100:
            return
        if max(problem.in_channels, problem.out_channels) <= 300 and not refusals_of(family, other):
            case = other

    def vary(**fields: Any) -> None:
        keep(replace(case, problem=replace(case.problem, **fields)))

    dims = case.problem.dims

    def each(low: int, high: int) -> tuple[int, ...]:
        return draw(st.tuples(*[st.integers(low, high)] * dims))

    if draw(st.booleans()):
        taps = each(1, 6 if dims < 3 else 3)
        vary(filter_size=taps)
        vary(filter_size=taps, stride=taps)
    vary(input_size=each(1, ((40, 12, 6) if IS_INTERPRETED else (999, 60, 20))[dims - 1]))
    vary(batch=draw(st.integers(1, 3)))
    if draw(st.booleans()):
        groups = draw(st.sampled_from((1, 2, 3, 4, 8, 16, 35)))
        ci, co = draw(_CHANNELS), draw(_CHANNELS)
        vary(in_channels=ci * case.problem.groups)
        vary(out_channels=co * case.problem.groups)
        vary(groups=groups, in_channels=groups, out_channels=groups)
        vary(groups=groups, in_channels=ci * groups, out_channels=co * groups)
    if draw(st.booleans()):
        vary(stride=each(1, 4))
        vary(dilation=each(1, 3))
    if draw(st.booleans()):
        vary(padding=tuple(zip(each(0, 4), each(0, 4), strict=True)))
    dtype = draw(st.sampled_from(DTYPES[family.direction]))
    if family.direction == "fprop":
        out_dtype = draw(st.sampled_from((None, torch.float32, torch.float16)))
        if dtype.itemsize == 1:
            out_dtype = None if dtype == torch.int8 else out_dtype or torch.float16
        keep(replace(case, dtype=dtype, epilogue=EpilogueSpec(out_dtype=out_dtype)))
        if draw(st.booleans()):
            spec = draw(st.sampled_from(list(EPILOGUES.values())))
            keep(replace(case, epilogue=replace(spec, out_dtype=case.epilogue.out_dtype)))
    else:
        keep(replace(case, dtype=dtype))
    if family.direction == "wgrad":
        keep(replace(case, out_dtype=draw(st.sampled_from((None, torch.float32)))))
    if family.reads_packed and draw(st.booleans()) and (ways := packings(case)):
        keep(replace(case, packing=draw(st.sampled_from(ways))))
    few = configs(family, case)
    config = few[draw(st.integers(0, 7)) % len(few)]
    if draw(st.booleans()):
        config = smaller(family, case, config, _sizes(draw, config))
    how = {name: draw(st.booleans()) for name in ("one_scale", "plain_order")}
    how["bias"] = family.direction == "dgrad" and draw(st.booleans())
    return case, config, {**how, "num_sms": draw(st.sampled_from((1, 2, 3, 7, 16)))}


def _sizes(draw: st.DrawFn, config: Any) -> dict[str, int]:
    """Other values of all numbers of a configuration."""
    found: dict[str, int] = {}
    while config is not None:
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            if type(value) is bool:
                found[field.name] = draw(st.integers(0, 1))
            elif type(value) is int:
                values = (16, 16, 32, 64) if field.name.startswith("block") else (1, 2, 3, 4)
                found[field.name] = draw(st.sampled_from(values))
        config = getattr(config, "config", None)
    return found
