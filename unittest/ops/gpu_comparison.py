"""What the tests of the operators on a GPU share: skips, preparation, poison and the tolerance.

Tolerance: the largest and the mean error against a reference in higher precision are at most twice
torch's own, plus 1/8 of the dtype's epsilon relative to the largest and the mean absolute value of
the reference.

Where fp32 products are added to an fp32 result, no last rounding hides in which order, and torch's
few errors may all be small by luck: for sums in another order than torch's the floor is
``pairwise_floor`` relative to the largest and the mean norm of a sum's products.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from triton_ext.host import capabilities

__all__ = [
    "MARKS",
    "NIGHTLY",
    "assert_as_exact_as_torch",
    "bits",
    "compile_ahead",
    "cudnn_in_full_precision",
    "pairwise_floor",
    "poison",
    "poisoned",
    "skip_without_gpu",
    "twice",
]

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
IM2COL = capabilities()["im2col"]
MARKS = [pytest.mark.gpu, pytest.mark.skipif(not IM2COL.available, reason=IM2COL.reason)]

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # by the bytes of an element
PARTS = ("largest", "mean")


def skip_without_gpu() -> None:
    """Skips the module that is being imported, where its kernels would not run on a GPU."""
    if not torch.cuda.is_available():
        reason = "needs an NVIDIA GPU, torch sees none"
    elif torch.cuda.get_device_capability() < (9, 0):
        reason = "needs an NVIDIA GPU of compute capability 9.0"
    elif os.environ.get("TRITON_INTERPRET") == "1":
        reason = "TRITON_INTERPRET=1 is set, nothing would run on the GPU"
    else:
        return
    pytest.skip(reason, allow_module_level=True)


@contextlib.contextmanager
def cudnn_in_full_precision() -> Iterator[None]:
    """Takes TF32 from cuDNN, because the reference is meant to be fp32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def compile_ahead(request: pytest.FixtureRequest, cases: int, timeout_s: int) -> None:
    """Compiles a module's random cases in several processes, for Triton's cache only.

    Each process runs the module's file as a program whose arguments are an index and a count: it is
    to run every count-th case from the index on.  Nothing is started where fewer than half of the
    cases were selected.

    Args:
        request: Of a fixture of the module.
        cases: How many random cases the module has.
        timeout_s: How long each process is waited for.
    """
    selected = sum(item.path == request.path for item in request.session.items)
    processes = min(12, (os.cpu_count() or 1) * 3 // 4)
    if selected < cases // 2 or processes < 2 or "PYTEST_XDIST_WORKER" in os.environ:
        return
    running = [
        subprocess.Popen(
            [sys.executable, str(request.path), str(index), str(processes)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for index in range(processes)
    ]
    for process in running:
        try:
            process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            # The tests themselves will show what is wrong.
            process.kill()
            process.wait()


def poison(size_bytes: int) -> set[int]:
    """Fills what the caching allocator will hand out next with NaN; returns the addresses."""
    # All ones are NaN in every floating-point dtype.
    blocks = [
        torch.full((max(1, size_bytes),), 0xFF, dtype=torch.uint8, device="cuda") for _ in range(4)
    ]
    return {block.data_ptr() for block in blocks}


def poisoned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor [N, C, *size] on the GPU, channels-last and full of NaN."""
    n, channels, *size = shape
    return torch.full((n, *size, channels), torch.nan, dtype=dtype, device="cuda").movedim(-1, 1)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bit patterns, so that equality is exact and NaN equals itself."""
    return tensor.view(INTEGERS[tensor.dtype.itemsize])


def twice(once: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Runs a function two times; both results have the same bits."""
    first, second = once(), once()
    assert torch.equal(bits(first), bits(second)), "another run gave other bits"
    return first


def errors(found: torch.Tensor, reference: torch.Tensor) -> tuple[float, float]:
    """Largest and mean absolute error."""
    difference = (found.double() - reference.double()).abs()
    return difference.max().item(), difference.mean().item()


def pairwise_floor(products: int) -> float:
    """Returns what an fp32 sum of products may be off by in the best order, relative to their norm.

    The best order adds in pairs: the products are rounded, and so are the sums of each of
    ceil(log2 products) levels.  Rounding moves a value v by at most u |v|, u = eps / 2.  Factors
    are drawn independently with mean zero: the squares of a level's sums add up to those of the
    products, as expected values.  Roundings are independent with mean zero, too (the model of
    Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput.
    41, 2019): the variance of their sum is below u^2 times the norm's square for each rounding that
    a product goes through.  A chain of additions goes beyond it: a product in the middle of n goes
    through n / 2 of them.

    Args:
        products: That are added.

    Returns:
        The bound of the standard deviation over the root of the sum of the products' squares.
    """
    roundings = math.ceil(math.log2(products)) + 1
    return torch.finfo(torch.float32).eps / 2 * math.sqrt(roundings)


def assert_as_exact_as_torch(
    ours: torch.Tensor,
    torchs: torch.Tensor,
    reference: torch.Tensor,
    relative_floor: float | None = None,
    norms: torch.Tensor | None = None,
) -> None:
    """Compares a result with the reference, within the tolerance that this module states.

    Args:
        ours: What the package computed.
        torchs: The same, computed by torch in the same precision.
        reference: The same in a higher precision.
        relative_floor: Instead of 1/8 of the epsilon of the dtype of ``torchs``.
        norms: What the floor is relative to, instead of the reference.
    """
    assert ours.shape == reference.shape
    assert torch.isfinite(ours).all(), "part of the output was not written, or is not finite"
    floor = torch.finfo(torchs.dtype).eps / 8 if relative_floor is None else relative_floor
    scale = errors(torch.zeros_like(reference), reference if norms is None else norms)
    for what, found, other, size in zip(
        PARTS, errors(ours, reference), errors(torchs, reference), scale, strict=True
    ):
        allowed = 2 * other + floor * size
        assert found <= allowed, f"{what} error {found}, allowed {allowed}, torch's {other}"
