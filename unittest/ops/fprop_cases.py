"""Random forward convolutions with epilogues, and what they should give, in float64.

Tolerance of a result, relative to the largest value of the reference: what rounding the output
costs, and for fp32 inputs what rounding to tf32 costs.  On a GPU: twice torch's own error plus half
of the output's epsilon, where torch has the type.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from planned import plan_fprop
from triton_ext.ops.core.epilogue import PLAIN, EpilogueArguments, EpilogueSpec
from triton_ext.ops.core.plan import ForwardPlan
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.gluon import DTYPES, FP8_DTYPES

ACTIVATIONS = {
    "none": lambda y: y,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
}

TOLERANCE = {
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
    torch.float32: 1e-5,
    torch.float8_e4m3fn: 2**-4,
    torch.float8_e5m2: 2**-3,
    torch.int32: 0.0,
}
# Half a unit in the last place of tf32, of either operand.
TF32 = 1e-3


@triton.jit
def clamp_and_tilt(tile, rows, columns, limit_ptr, factor, co):
    """A function of a user's: uses everything that it is given."""
    limit = tl.load(limit_ptr + columns, mask=columns < co, other=0.0)
    return tl.minimum(tile * factor, limit[None, :]) + (rows % 7)[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A convolution with an epilogue.

    Attributes:
        problem: What is computed.
        dtype: Of x and weight, a torch name.
        spec: The epilogue.
        one_scale: Whether its scale is one number.
        plain_order: Whether weight and residual are not channels-last.
        given_out: Whether the output is put into a tensor of the caller's.
    """

    problem: ConvProblem
    dtype: torch.dtype
    spec: EpilogueSpec = PLAIN
    one_scale: bool = True
    plain_order: bool = False
    given_out: bool = False

    @property
    def tolerance(self) -> float:
        """Largest error over the largest value of the reference."""
        default = torch.int32 if self.dtype == torch.int8 else self.dtype
        output = TOLERANCE[self.spec.out_dtype or default]
        return output + (TF32 if self.dtype == torch.float32 else 0)

    def tensors(self, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor, EpilogueArguments]:
        """x, weight and the operands; standard normal, or integers."""
        generator = torch.Generator(device).manual_seed(0)
        problem, spec = self.problem, self.spec

        def normal(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.randn(size, generator=generator, device=device).to(dtype)

        def draw_like(shape: tuple[int, ...]) -> torch.Tensor:
            size = (shape[0], *shape[2:], shape[1])
            if self.dtype == torch.int8:
                # Sums of any int8 products reach further than fp16.
                top = 16 if spec.out_dtype == torch.float16 else 128
                drawn = torch.randint(-top, top, size, generator=generator, device=device)
                return drawn.to(torch.int8).movedim(-1, 1)
            return normal(*size, dtype=self.dtype).movedim(-1, 1)

        x, weight = draw_like(problem.x_shape), draw_like(problem.w_shape)
        co = problem.out_channels
        wide = torch.float16 if self.dtype.itemsize == 1 else self.dtype
        # A residual is not wider than the output that it goes into.
        narrow = spec.out_dtype == torch.float16
        shape = problem.y_shape
        if spec.residual_per_image:
            shape = (*shape[:2], *(1,) * problem.dims)
        residual = normal(*shape, dtype=torch.float16 if narrow else wide)
        if not self.plain_order:
            residual = residual.movedim(1, -1).contiguous().movedim(-1, 1)
        if self.plain_order:
            weight = weight.contiguous()
        bias, scale = normal(co, dtype=wide), normal(1 if self.one_scale else co)
        out_scale = normal(1).abs() + 0.5
        extra = (normal(co) + 2, 0.5, co)
        return (
            x,
            weight,
            EpilogueArguments(
                bias=bias if spec.bias else None,
                scale=scale if spec.scale else None,
                residual=residual if spec.residual else None,
                out_scale=out_scale if spec.out_scale else None,
                amax=torch.full((1,), 7e9, device=device) if spec.amax else None,
                extra=extra if spec.function is not None else (),
            ),
        )

    def plan(self, x: torch.Tensor, config: Any = None) -> ForwardPlan:
        """Ours, with a configuration of ours."""
        return plan_fprop(self.problem, x.stride(), x.dtype, x.device, self.spec, config)

    def out(self, plan: ForwardPlan, device: str) -> torch.Tensor | None:
        """A poisoned tensor for the output, where the case wants one."""
        if not self.given_out:
            return None
        n, co, *size = self.problem.y_shape
        rows = torch.empty((n, *size, co), dtype=plan.out_dtype, device=device)
        rows.view(torch.uint8).fill_(0x7F)
        return rows.movedim(-1, 1)

    def reference(
        self, x: torch.Tensor, weight: torch.Tensor, operands: EpilogueArguments
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The output in float64, and its largest absolute value before ``out_scale``."""
        problem, spec = self.problem, self.spec
        y = convolve(problem, x.double(), weight.double())
        return finish(y, spec, operands)

    def largest_sum(
        self, x: torch.Tensor, weight: torch.Tensor, operands: EpilogueArguments
    ) -> float:
        """The largest absolute value of the output, had it no function."""
        y = convolve(self.problem, x.double(), weight.double())
        spec = replace(self.spec, activation="none", function=None)
        y, _ = finish(y, spec, operands._replace(extra=()))
        return y.abs().max().item()


def convolve(problem: ConvProblem, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """torch's convolution; it knows equal sides only, so all padding is done in front."""
    sides = [side for pair in reversed(problem.padding) for side in pair]
    function = getattr(F, f"conv{problem.dims}d")
    padded = F.pad(x, sides)
    # cuDNN has no fp64 engine for some of the groups.
    with torch.backends.cudnn.flags(enabled=x.dtype != torch.float64):
        return function(padded, weight, None, problem.stride, 0, problem.dilation, problem.groups)


def finish(
    y: torch.Tensor, spec: EpilogueSpec, operands: EpilogueArguments
) -> tuple[torch.Tensor, torch.Tensor]:
    """The epilogue in torch, and the largest absolute value before ``out_scale``."""
    co = y.shape[1]
    per_channel = (1, co) + (1,) * (y.dim() - 2)
    if operands.scale is not None:
        scale = operands.scale.to(y.dtype)
        y = y * (scale if scale.numel() == 1 else scale.view(per_channel))
    if operands.bias is not None:
        y = y + operands.bias.to(y.dtype).view(per_channel)
    if operands.residual is not None:
        y = y + operands.residual.to(y.dtype)
    y = ACTIVATIONS[spec.activation](y)
    if spec.function is not None:
        limit, factor, _ = operands.extra
        rows = torch.arange(y.numel() // co, device=y.device).view(y.shape[0], 1, *y.shape[2:])
        y = torch.minimum(y * factor, limit.to(y.dtype).view(per_channel)) + rows % 7
    amax = y.abs().max()
    return (y if operands.out_scale is None else y * operands.out_scale.to(y.dtype)), amax


def check(case: Case, device: str = "cpu", config: Any = None) -> torch.Tensor:
    """Runs a case and compares it; returns the output."""
    x, weight, operands = case.tensors(device)
    plan = case.plan(x, config)
    out = case.out(plan, device)
    y = plan.run(x, weight, operands, out)
    expected, amax = case.reference(x, weight, operands)
    assert out is None or y is out
    assert y.shape == expected.shape
    assert y.dtype == plan.out_dtype
    largest = expected.abs().max().item()
    error = (y.double() - expected).abs().max().item()
    is_fp8 = case.dtype.itemsize == 1 and case.dtype.is_floating_point
    # sm_90 adds products of fp8 with about 14 bits.
    sums = 4e-3 if device == "cuda" and is_fp8 else 0
    limit = (case.tolerance + sums) * largest + 1e-9
    if sums and case.spec.activation == "tanh":
        # Whose values are small beside the sums, and the errors of these are not.
        limit += 2**-11 * case.largest_sum(x, weight, operands)
    if device == "cuda" and case.dtype.itemsize > 1 and plan.out_dtype.is_floating_point:
        # torch's own error is the yardstick: two kernels, what lies between them rounded.
        torchs, _ = finish(convolve(case.problem, x, weight).float(), case.spec, operands)
        torch_error = (torchs.to(plan.out_dtype).double() - expected).abs().max().item()
        limit = 2 * torch_error + torch.finfo(plan.out_dtype).eps / 2 * largest + 1e-9
        if case.dtype == torch.float32:
            # cuDNN computes small convolutions in fp32 although TF32 is allowed.
            is_flat = case.spec.activation == "tanh"  # see above
            sum_ = case.largest_sum(x, weight, operands) if is_flat else largest
            limit = max(limit, case.tolerance * max(sum_, largest))
    # "not greater" would let NaN through.
    assert error <= limit, f"{error} of {largest}, allowed {limit}: {case}"
    if operands.amax is not None:
        found = operands.amax.item()
        limit = (TF32 if case.dtype == torch.float32 else 1e-5 + sums) * amax.item() + 1e-6
        assert abs(found - amax.item()) <= limit, f"amax {found}, not {amax.item()}: {case}"
    return y


def draw(
    rng: random.Random,
    dtypes: tuple[torch.dtype, ...],
    *,
    activations: tuple[str, ...] = tuple(ACTIVATIONS),
    pixels: int = 6,
    fp8_out: bool = False,
) -> Case:
    """A random case, small enough for a processor if ``pixels``, the largest side, is."""
    while True:
        dims = rng.randint(1, 3)

        def several(low: int, high: int, dims: int = dims) -> tuple[int, ...]:
            return tuple(rng.randint(low, high) for _ in range(dims))

        def is_so(chance: float = 0.3) -> bool:
            return rng.random() < chance

        groups = rng.choice((1, 1, 1, 2, 3, 4, 8))
        group_ci = rng.choice((1, 2, 3, 4, 5, 8, 16, 20, 24, 32, 40, 66))
        group_co = rng.choice((1, 2, 3, 8, 16, 24, 32, 64, 72, 136))
        if is_so(0.15):
            groups, group_ci, group_co = rng.choice((3, 16, 64, 70)), 1, rng.choice((1, 1, 2))
        matrix = is_so(0.15)
        problem = ConvProblem(
            batch=rng.randint(1, 3),
            in_channels=groups * group_ci,
            out_channels=groups * group_co,
            input_size=several(1, pixels),
            filter_size=(1,) * dims if matrix else several(1, 3),
            stride=(1,) * dims if matrix else several(1, 3),
            padding=tuple((0, 0) if matrix else (rng.randint(0, 2), rng.randint(0, 2))
                          for _ in range(dims)),
            dilation=several(1, 2),
            groups=groups,
        )  # fmt: skip
        if 0 in problem.output_size or max(problem.in_channels, problem.out_channels) > 300:
            continue
        dtype = rng.choice(dtypes)
        out_dtype = rng.choice((None, None, torch.float32, torch.float16))
        if dtype.itemsize == 1 and out_dtype is None and not (fp8_out and dtype != torch.int8):
            out_dtype = torch.float32
        spec = EpilogueSpec(
            bias=is_so(),
            scale=is_so(),
            residual=is_so() and dtype != torch.int8,
            activation=rng.choice(activations) if is_so(0.4) else "none",
            out_dtype=out_dtype,
            out_scale=is_so(),
            amax=is_so(),
            function=clamp_and_tilt if is_so(0.2) else None,
        )
        if dtype == torch.int8 and is_so(0.5):
            spec = EpilogueSpec()
        case = Case(
            problem=problem,
            dtype=dtype,
            spec=spec,
            one_scale=is_so(0.5),
            plain_order=is_so(),
            given_out=is_so(0.5),
        )
        per_image = spec.residual and is_so(0.5)
        return replace(case, spec=replace(spec, residual_per_image=per_image))


def draw_fp8(rng: random.Random, *, pixels: int) -> Case:
    """A random case of fp8 that the Gluon kernel takes: one group, channels in sixteens."""
    case = draw(rng, FP8_DTYPES, pixels=pixels)
    out_dtypes = (None, *FP8_DTYPES, *DTYPES, torch.float32)
    spec = replace(
        case.spec,
        activation=rng.choice(tuple(ACTIVATIONS)),
        function=None,
        amax=False,
        out_dtype=rng.choice(out_dtypes),
    )
    channels = {
        "in_channels": rng.choice((16, 48, 128, 144)),
        "out_channels": rng.choice((16, 48, 112, 160, 320)),
    }
    case = replace(case, problem=replace(case.problem, **channels, groups=1), spec=spec)
    expected, _ = case.reference(*case.tensors())
    if expected.abs().max() > torch.finfo(torch.float8_e4m3fn).max:
        # Only e5m2 has such numbers among the outputs of 8 bits.
        small = torch.float8_e5m2 if (spec.out_dtype or case.dtype).itemsize == 1 else None
        case = replace(case, spec=replace(spec, out_dtype=small or spec.out_dtype))
    return case
