"""Explains the planner's choices: the refusals of kernels, and the candidates of every family.

Nothing is computed and no GPU is needed: the planner evaluates models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from triton_ext.ops.api.checks import check_arguments, check_output_padding, check_rank
from triton_ext.ops.api.convolve import OF_TRANSPOSED, check_call
from triton_ext.ops.api.operators import DGRAD, FPROP, ConvCall
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import DIRECTIONS, Case, Direction
from triton_ext.ops.core.descriptors import channels_last_strides
from triton_ext.ops.core.device import KNOWN, Device, device_of
from triton_ext.ops.core.dispatch_cache import cast_dtype, is_cast
from triton_ext.ops.core.epilogue import PLAIN, EpilogueArguments
from triton_ext.ops.core.problem import ConvParameters, ConvProblem, Numbers, Padding, numbers
from triton_ext.ops.core.refusals import Refusal, address_refusal, layout_refusal
from triton_ext.ops.core.tables import Entry, encode, entry_for

# Configurations of a family that are printed.
_PRINTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Which kernels take a convolution; true where the one that computes its output does.

    Each of the three tuples has the refusals of a direction, and is empty where a kernel computes
    it.  In a call with ``fallback="torch"`` and in every backward, torch computes what is refused.

    Attributes:
        problem: The convolution; a transposed one is the gradient of this one.
        is_transposed: Whether the question was about a transposed convolution.
        fprop: Refusals for y; for a transposed convolution, for the gradient of its input.
        dgrad: Refusals for the gradient of x; for a transposed convolution, for y.
        wgrad: Refusals for the gradient of the filter.
    """

    problem: ConvProblem
    is_transposed: bool
    fprop: tuple[str, ...]
    dgrad: tuple[str, ...]
    wgrad: tuple[str, ...]

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why no kernel computes the output; empty if one does."""
        return self.dgrad if self.is_transposed else self.fprop

    def __bool__(self) -> bool:
        return not self.refusals

    def __str__(self) -> str:
        lines = []
        for direction in DIRECTIONS:
            found = getattr(self, direction)
            lines.append(f"{direction}: {'no, ' + '; '.join(found) if found else 'yes'}")
        return "\n".join(lines)


def support(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    transposed: bool = False,
    output_padding: Numbers = 0,
) -> Support:
    """Tells whether the kernels take a convolution and its gradients.

    Nothing is computed: tensors may be fake or on the ``meta`` device, for which no GPU is
    assumed.  Under autocast, the dtype is the one that autocast will give.

    Args:
        x: As for ``conv1d`` to ``conv3d``, with or without a batch dimension.
        weight: As for them; its rank tells which.
        bias, stride, padding, dilation, groups: As for them.
        transposed: Whether it is about ``conv_transpose1d`` to ``conv_transpose3d``.
        output_padding: As for those.

    Raises:
        ValueError: Arguments that do not fit each other, as in the call.
        TypeError: Mixed dtypes, as in the call.
    """
    given = (stride, padding, dilation, groups)
    check_arguments("support", {"x": x, "weight": weight, "bias": bias}, given)
    operator, dims = DGRAD if transposed else FPROP, weight.dim() - 2
    if x.dim() == dims + 1 > 1:
        x = x.unsqueeze(0)
    check_rank("support", None, operator.direction, {"x": x, "weight": weight})
    name = f"conv{'_transpose' if transposed else ''}{dims}d"
    extra = numbers("output_padding", output_padding, dims)
    if transposed and isinstance(padding, str):
        raise ValueError(f"{name}: padding must be numbers, got {padding!r}")
    parameters = ConvParameters.parse(given, weight.shape[2:])
    size = parameters.transposed_size(x.shape[2:], weight.shape[2:], extra) if transposed else None
    c = ConvCall(operator, x, weight, EpilogueArguments(bias), parameters, size, False)
    check_call(name, c, OF_TRANSPOSED, is_cast=is_cast(x))
    if transposed and min(extra) < 0:
        check_output_padding(name, extra, parameters)
    if not transposed and any(extra):
        raise ValueError(f"support: output_padding {extra} needs transposed=True")
    found: list[str] = []
    steps = parameters.stride
    if any(pixels >= step for pixels, step in zip(extra, steps, strict=True)):
        found.append(f"output_padding {extra} is not smaller than stride {steps}")
    is_real = not isinstance(x, FakeTensor) and x.device.type != "meta"
    refusals = [layout_refusal(name, "x", x), address_refusal(name, {"x": x}) if is_real else None]
    found += [each.text.removeprefix(f"{name}: ") for each in refusals if each is not None]
    # The bias of a transposed convolution is dgrad's, which adds any to what it takes.
    case, dtype = c.case(), cast_dtype(x)
    dense = replace(case.dense, dtype=dtype, epilogue=PLAIN)
    cases = {each: replace(dense, direction=each) for each in DIRECTIONS}
    cases["fprop"] = replace(cases["fprop"], epilogue=case.epilogue)
    kernels = {
        each: tuple(map(str, planner.refusals_on(asked, x.device))) for each, asked in cases.items()
    }
    # The copies of autocast are dense.
    is_view = dtype == x.dtype and x.stride() != channels_last_strides(x.shape)
    # These directions read x itself; gradients are copied to channels-last.
    reads_x: tuple[Direction, ...] = (operator.direction, "wgrad")
    for each in reads_x:
        kernels[each] = (*found, *kernels[each])
        if is_view and not kernels[each] and x.device.type != "meta":
            asked = replace(cases[each], x_strides=case.x_strides, dy_strides=case.dy_strides)
            plan = planner.plan_or_refusal(asked, x.device)
            if isinstance(plan, Refusal):
                kernels[each] = (plan.text,)
    problem = parameters.problem(c.shapes()[0], tuple(weight.shape))
    return Support(problem=problem, is_transposed=transposed, **kernels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A configuration of a family, or a family that has none for a case.

    Attributes:
        kind: The family, by its name in tables of measured choices.
        config: The configuration; ``None`` where the family has none.
        us: Microseconds that the family's model expects, the sum of ``parts``; NaN without a model.
        parts: What they are spent on, by name; :class:`~triton_ext.ops.core.device.Expected`.
        counted_us: The time as the planner compares it, with the family's correction.
        measured_us: The time that a table holds for the configuration; ``None`` without one.
        refusal: Why the family refuses the case, or is not compared with others; empty where it is.
    """

    kind: str
    config: Any = None
    us: float = math.nan
    parts: tuple[tuple[str, float], ...] = ()
    counted_us: float = math.nan
    measured_us: float | None = None
    refusal: str = ""

    def __str__(self) -> str:
        words = [f"{self.kind:<16}"]
        if self.config is None:
            return f"{words[0]}refused: {self.refusal}"
        words.append(f"{'no model':>10}" if math.isnan(self.us) else f"{self.us:>7.1f} us")
        parts = [f"{us:.1f} {name}" for name, us in self.parts if us > 0.05]
        if len(parts) > 1:
            words.append("= " + " + ".join(parts))
        if abs(self.counted_us - self.us) > 0.05:
            words.append(f"counted as {self.counted_us:.1f}")
        if self.measured_us is not None:
            words.append(f"measured {self.measured_us:.1f} us")
        if self.refusal:
            words.append(f"({self.refusal})")
        return " ".join([*words, fields_of(self.config)])


def fields_of(config: Any) -> str:
    """Returns the fields of a configuration, those of one in it without its name."""
    fields = encode(config)
    while isinstance(fields.get("config"), dict):
        inner = fields.pop("config")
        fields = {**fields, **inner}
    return " ".join(f"{name}={value}" for name, value in fields.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Lists the candidates for a direction of a convolution, the chosen one first.

    Attributes:
        key: The name under which a table holds a choice for the case.
        refusals: Why no kernel takes it; empty if one does.
        candidates: The chosen one first, then by family in the planner's order, of each the best
            guess first.
    """

    case: Case
    device: Device
    key: str
    refusals: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()

    @property
    def chosen(self) -> Candidate | None:
        """The planner's choice; ``None`` where no kernel takes the convolution."""
        return None if self.refusals else self.candidates[0]

    def __str__(self) -> str:
        where = f"{self.device.name or 'a GPU'}, {self.device.num_sms} multiprocessors"
        lines = [f"{self.case} on {where}", f"key of tables: {self.key}"]
        if self.refusals:
            return "\n".join([*lines, *(f"refused: {each}" for each in self.refusals)])
        printed: dict[str, int] = {}
        lines.append(f"* {self.candidates[0]}")
        for candidate in self.candidates[1:]:
            printed[candidate.kind] = printed.get(candidate.kind, 0) + 1
            if printed[candidate.kind] <= _PRINTED:
                lines.append(f"  {candidate}")
        more = sum(count - _PRINTED for count in printed.values() if count > _PRINTED)
        return "\n".join(lines) + (f"\n  and {more} configurations more" if more else "")


def explain(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    direction: Direction = "fprop",
    device: Device | None = None,
) -> Explanation:
    """Returns why a direction of a convolution is computed as it is.

    Args:
        x: [N, Ci, *input_size], of any device; ``meta`` tensors need no memory.  In another memory
            format than channels-last it counts as if it were converted.
        weight: [Co, Ci / groups, *filter_size].
        bias, stride, padding, dilation, groups: As for ``conv1d`` to ``conv3d``; a bias changes no
            choice.
        direction: ``"fprop"``, ``"dgrad"`` or ``"wgrad"``; of gradients, dy is taken to be dense.
        device: Where it would run; the GPU of x by default, an H200 where x is on none.

    Raises:
        TypeError: Mixed dtypes, as in the call.
        ValueError: Arguments that do not fit each other, as in the call; no such direction.
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"explain: direction is {direction!r}: expected {' or '.join(DIRECTIONS)}")
    if device is not None and not isinstance(device, Device):
        raise TypeError(f"explain: device is {device!r}: expected a Device of core.device")
    problem = support(x, weight, bias, stride, padding, dilation, groups).problem
    is_last = x.dim() == weight.dim() and x.stride(1) == 1
    strides = tuple(x.stride()) if is_last and direction != "dgrad" else None
    case = Case(direction=direction, problem=problem, dtype=cast_dtype(x), x_strides=strides)
    if device is None:
        device = device_of(x.device, "explain") if x.device.type == "cuda" else KNOWN["h200"]
    return explain_case(case, device)


def explain_case(case: Case, device: Device) -> Explanation:
    """Returns why a case is computed as it is."""
    key, raw = entry_for(case.dense, device)
    refusals = tuple(map(str, planner.refusals(case, device)))
    if refusals:
        return Explanation(case=case, device=device, key=key, refusals=refusals)
    table = planner.measured(case, device)
    choice = table or planner.cheapest(case, device)
    assert choice is not None
    measured_us = None if table is None or raw is None else Entry.of(raw).us
    found: list[Candidate] = []
    for offer in (*planner.offers(case, device), planner.torch_offer(case, device)):
        found += _candidates(offer, None if table is None else table.config, measured_us)
    kind, config = choice.family.kind, choice.config
    first = next(
        (each for each in found if each.kind == kind and each.config == config),
        # A measured configuration that no model proposes.
        Candidate(kind=kind, config=config, measured_us=measured_us),
    )
    others = tuple(each for each in found if each is not first)
    return Explanation(case=case, device=device, key=key, candidates=(first, *others))


def _candidates(offer: planner.Offer, measured: Any, measured_us: float | None) -> list[Candidate]:
    """Returns the candidates of a family; ``measured`` is the configuration of a table, or None."""
    kind, refusal = offer.family.kind, offer.passed_over
    if offer.superseded_by and not refusal:
        refusal = f"{offer.superseded_by} goes first"
    if offer.refusals:
        return [Candidate(kind=kind, refusal="; ".join(map(str, offer.refusals)))]
    if not offer.times:
        return [Candidate(kind=kind, refusal="no configuration fits the shared memory of a CTA")]
    return [
        Candidate(
            kind=kind,
            config=config,
            us=expected.us,
            parts=expected.parts,
            counted_us=expected.counted_us,
            measured_us=measured_us if config == measured else None,
            refusal=refusal,
        )
        for config, expected in offer.times
    ]
