"""What the tests of BatchNorm and GroupNorm share: cases, references, the tolerance.

Tolerance of torch in float64, relative to the largest value: some of the dtype's epsilon, for
results are rounded once, and more of fp32's, in which sums are made.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn import functional

__all__ = [
    "FLOAT_DTYPES",
    "NormCase",
    "assert_close",
    "expected_of",
    "gradients_of",
    "random_case",
    "rows_of",
    "run_ours",
]

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# The interpreter truncates to bfloat16.
TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-5}
FUNCTIONS: dict[str, Any] = {
    "identity": lambda y: y,
    "relu": functional.relu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class NormCase:
    """One normalization.

    Attributes:
        kind: ``"batch"`` or ``"group"``.
        shape: Of x, [N, C, *size].
        dtype: Of x.
        groups: Of ``"group"``.
        terms: dtype of weight and bias, or None for none.
        activation: Its name.
        residual: Whether there is one.
        training: Of ``"batch"``.
        mean: Of x.
        scale: Of the weight.
        needs: What has a gradient.
        device: Of all tensors.
    """

    kind: Literal["batch", "group"]
    shape: tuple[int, ...]
    dtype: torch.dtype
    groups: int = 1
    terms: torch.dtype | None = torch.float32
    activation: str = "identity"
    residual: bool = False
    training: bool = True
    mean: float = 0.0
    scale: float = 1.0
    needs: tuple[str, ...] = ("x", "weight", "bias", "residual")
    device: str = "cpu"

    def tensors(self) -> dict[str, torch.Tensor]:
        """x, weight, bias, residual, running_mean, running_var, dy; without what is not there."""
        channels = self.shape[1]
        drawn = {"x": rows_of(self.shape, torch.float32, 0, self.device) + self.mean}
        if self.terms is not None:
            term = torch.linspace(0.5, 1.5, channels, device=self.device)
            drawn["weight"] = (term * self.scale).to(self.terms)
            drawn["bias"] = (term.flip(0) - 1).to(self.terms)
        if self.residual:
            drawn["residual"] = rows_of(self.shape, self.dtype, 1, self.device)
        if not self.training:
            drawn["running_mean"] = torch.linspace(-1, 1, channels, device=self.device)
            drawn["running_var"] = torch.linspace(0.5, 2, channels, device=self.device)
        drawn["dy"] = rows_of(self.shape, self.dtype, 2, self.device)
        drawn["x"] = drawn["x"].to(self.dtype)
        return drawn


def rows_of(
    shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: str = "cpu"
) -> torch.Tensor:
    """A random tensor [N, C, *size], channels-last."""
    generator = torch.Generator(device).manual_seed(seed)
    size = (shape[0], *shape[2:], shape[1])
    return torch.randn(size, generator=generator, device=device).to(dtype).movedim(-1, 1)


def random_case(kind: Literal["batch", "group"], seed: int) -> NormCase:
    """A small case; channels that fill no tile, pixels that fill none."""
    rng = random.Random(f"{kind} {seed}")
    dims = rng.randint(1, 3)
    channels = rng.choice((3, 8, 24, 32, 35, 40, 96, 320))
    most = max(2, 800 // channels)
    # Of two values that lie close together fp32 has no digits left.
    size = (
        rng.randint(4, 9),
        *(rng.randint(1, max(2, round(most ** (1 / dims)))) for _ in range(dims - 1)),
    )
    groups = rng.choice([g for g in (1, 4, 8, 32, channels) if channels % g == 0])
    dtype = rng.choice(FLOAT_DTYPES)
    residual = kind == "batch" and rng.random() < 0.5
    return NormCase(
        kind,
        (rng.randint(2, 4), channels, *size),
        dtype,
        groups=groups,
        terms=rng.choice((None, torch.float32, dtype)),
        activation=rng.choice(("identity", "relu") if residual else tuple(FUNCTIONS)),
        residual=residual,
        training=kind == "group" or rng.random() < 0.7,
        mean=rng.choice((0.0, 3.0)),
    )


def _call_ours(case: NormCase, t: dict[str, torch.Tensor]) -> torch.Tensor:
    from triton_ext.ops import batch_norm, group_norm

    weight, bias = t.get("weight"), t.get("bias")
    if case.kind == "group":
        return group_norm(t["x"], case.groups, weight, bias, activation=case.activation)
    return batch_norm(
        t["x"], weight, bias, t.get("running_mean"), t.get("running_var"),
        training=case.training, activation=case.activation, residual=t.get("residual"),
    )  # fmt: skip


def _call_torch(case: NormCase, t: dict[str, torch.Tensor]) -> torch.Tensor:
    weight, bias = t.get("weight"), t.get("bias")
    if case.kind == "group":
        y = functional.group_norm(t["x"], case.groups, weight, bias)
    else:
        running = t.get("running_mean"), t.get("running_var")
        y = functional.batch_norm(t["x"], *running, weight, bias, case.training)
    return FUNCTIONS[case.activation](y + t["residual"] if case.residual else y)


def _results(
    case: NormCase, tensors: dict[str, torch.Tensor], call: Any
) -> dict[str, torch.Tensor]:
    inputs = {name: tensors[name] for name in case.needs if name in tensors}
    for tensor in inputs.values():
        tensor.requires_grad_()
    y = call(case, tensors)
    found = torch.autograd.grad(y, tuple(inputs.values()), tensors["dy"])
    return {"y": y.detach(), **dict(zip(inputs, found, strict=True))}


def run_ours(case: NormCase) -> dict[str, torch.Tensor]:
    """y and gradients, by the names of what they are of."""
    return _results(case, case.tensors(), _call_ours)


def expected_of(
    case: NormCase, dtype: torch.dtype | None = torch.float64
) -> dict[str, torch.Tensor]:
    """The same of torch, in a dtype; ``None`` for that of the case."""
    tensors = case.tensors()
    if dtype is not None:
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    return _results(case, tensors, _call_torch)


def assert_close(
    found: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    case: NormCase,
    tolerance: float = 0.0,
) -> None:
    """Fails where a result is farther from float64 than the tolerance.

    What is in front of a ReLU may be 0 but for rounding: one gradient in a million may differ.
    """
    assert found.keys() == expected.keys()
    given = case.tensors()
    for name, result in found.items():
        other = expected[name]
        assert result.shape == other.shape, name
        assert result.dtype == given["x" if name == "y" else name].dtype, name
        limit = max(tolerance, TOLERANCE[result.dtype]) * other.abs().max().item() + 2e-6
        errors = (result.double() - other).abs()
        is_masked = case.activation == "relu" and name in ("x", "residual")
        most = result.numel() // 1_000_000 if is_masked else 0
        # "not greater" would let NaN through.
        wrong = (~(errors <= limit)).sum().item()
        text = f"{name}: {wrong} wrong by {errors.max().item()}, allowed {limit}: {case}"
        assert errors.isfinite().all(), text
        assert wrong <= most, text


def gradients_of(case: NormCase, twice: bool, ours: bool) -> list[torch.Tensor]:
    """Gradients of the inputs, or of a function of them; of ours, or of torch in float64."""
    tensors = case.tensors()
    if not ours:
        tensors = {name: tensor.double() for name, tensor in tensors.items()}
    inputs = [tensors[name] for name in ("x", "weight", "bias", "residual") if name in tensors]
    for tensor in inputs:
        tensor.requires_grad_()
    y = (_call_ours if ours else _call_torch)(case, tensors)
    found = torch.autograd.grad(y.sin().sum(), inputs, create_graph=twice)
    if not twice:
        return list(found)
    return list(torch.autograd.grad(sum(g.square().sum() for g in found), inputs))
