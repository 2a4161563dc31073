"""Why a convolution is computed as it is: what every family has for it, the chosen one first.

Nothing is computed and no GPU is needed: the planner is asked, which only counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from triton_ext.ops.api.support import support
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import DIRECTIONS, Case, Direction
from triton_ext.ops.core.device import KNOWN, Device, device_of
from triton_ext.ops.core.parameters import Numbers, Padding
from triton_ext.ops.core.tables import Entry, encode, entry_for

__all__ = ["Candidate", "Explanation", "explain", "explain_case"]

# Configurations of a family that are printed.
_PRINTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A configuration of a family, or a family that has none for a case.

    Attributes:
        kind: The family, by its name in tables of measured choices.
        config: The configuration; ``None`` where the family has none.
        us: Microseconds that the family's model expects; NaN without a model.
        parts: What they are made of, by name.
        counted_us: The time as the planner compares it, with the family's correction.
        measured_us: The time that a table holds for the configuration; ``None`` without one.
        reason: Why the family refuses the case, or is passed over; empty where it is compared.
    """

    kind: str
    config: Any = None
    us: float = math.nan
    parts: tuple[tuple[str, float], ...] = ()
    counted_us: float = math.nan
    measured_us: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        words = [f"{self.kind:<16}"]
        if self.config is None:
            return f"{words[0]}refused: {self.reason}"
        words.append(f"{'no model':>10}" if math.isnan(self.us) else f"{self.us:>7.1f} us")
        if len(self.parts) > 1:
            words.append("= " + " + ".join(f"{us:.1f} {name}" for name, us in self.parts))
        if abs(self.counted_us - self.us) > 0.05:
            words.append(f"counted as {self.counted_us:.1f}")
        if self.measured_us is not None:
            words.append(f"measured {self.measured_us:.1f} us")
        if self.reason:
            words.append(f"({self.reason})")
        return " ".join([*words, _fields_of(self.config)])


def _fields_of(config: Any) -> str:
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
        case: What is computed.
        device: Where.
        key: Under which name a table holds a choice for it.
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
        """What the planner chooses; ``None`` where no kernel takes the convolution."""
        return None if self.refusals else self.candidates[0]

    def __str__(self) -> str:
        where = f"{self.device.name or 'a GPU'}, {self.device.num_sms} multiprocessors"
        lines = [f"{self.case} on {where}", f"key of tables: {self.key}"]
        if self.refusals:
            return "\n".join([*lines, *(f"refused: {reason}" for reason in self.refusals)])
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
        stride: As for ``conv1d`` to ``conv3d``.
        padding: As for them.
        dilation: As for them.
        groups: As for them.
        direction: ``"fprop"``, ``"dgrad"`` or ``"wgrad"``; of gradients, dy is taken to be dense.
        device: Where it would run; the GPU of x by default, an H200 where x is on none.

    Raises:
        TypeError: Mixed dtypes, as in the call.
        ValueError: Arguments that do not fit each other, as in the call; no such direction.
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"explain: direction is {direction!r}: expected {' or '.join(DIRECTIONS)}")
    problem = support(x, weight, None, stride, padding, dilation, groups).problem
    is_last = x.dim() == weight.dim() and x.stride(1) == 1
    strides = tuple(x.stride()) if is_last and direction != "dgrad" else None
    case = Case(direction=direction, problem=problem, dtype=x.dtype, x_strides=strides)
    if device is None:
        device = device_of(x.device, "explain") if x.device.type == "cuda" else KNOWN["h200"]
    return explain_case(case, device)


def explain_case(case: Case, device: Device) -> Explanation:
    """Returns why a case is computed as it is.

    Args:
        case: What is computed.
        device: Where.
    """
    key, raw = entry_for(case.dense, device)
    refusals = tuple(planner.refusals(case, device))
    if refusals:
        return Explanation(case=case, device=device, key=key, refusals=refusals)
    table = planner.measured(case, device)
    choice = table or planner.cheapest(case, device)
    assert choice is not None
    measured_us = None if table is None or raw is None else Entry.of(raw).us
    found: list[Candidate] = []
    for offer in planner.offers(case, device):
        found += _candidates(offer, None if table is None else table.config, measured_us)
    first = next(
        (
            each
            for each in found
            if each.kind == choice.family.kind and each.config == choice.config
        ),
        # A measured configuration that no model proposes.
        Candidate(kind=choice.family.kind, config=choice.config, measured_us=measured_us),
    )
    others = tuple(each for each in found if each is not first)
    return Explanation(case=case, device=device, key=key, candidates=(first, *others))


def _candidates(offer: planner.Offer, measured: Any, measured_us: float | None) -> list[Candidate]:
    """Returns the candidates of a family.

    Args:
        offer: What it has for the case.
        measured: The configuration that a table holds; ``None`` without one.
        measured_us: Its time.
    """
    kind, reason = offer.family.kind, offer.passed_over
    if offer.superseded_by and not reason:
        reason = f"{offer.superseded_by} goes first"
    if offer.refusals:
        return [Candidate(kind=kind, reason="; ".join(offer.refusals))]
    if not offer.times:
        return [Candidate(kind=kind, reason="no configuration fits the shared memory of a CTA")]
    return [
        Candidate(
            kind=kind,
            config=config,
            us=expected.us,
            parts=expected.parts,
            counted_us=expected.counted_us,
            measured_us=measured_us if config == measured else None,
            reason=reason,
        )
        for config, expected in offer.times
    ]
