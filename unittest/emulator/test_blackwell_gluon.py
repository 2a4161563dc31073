"""Gluon kernels for sm_100 in the emulator: equal to torch, and faults where a wait is missing."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("numpy")
torch = pytest.importorskip("torch", reason="the launches take CPU tensors of torch")
blackwell = pytest.importorskip("triton.experimental.gluon.language.nvidia.blackwell")
if not hasattr(getattr(blackwell, "tensor_memory_descriptor", None), "get_reg_layout"):
    pytest.skip("Gluon's tensor memory has no default layout", allow_module_level=True)

from blackwell_kernels import descriptors, matmul, specialized_matmul  # noqa: E402
from hopper_kernels import one_triton_cache  # noqa: E402
from triton_ext.emulator import EmulationError  # noqa: E402
from triton_ext.gluon import nvidia as xnv  # noqa: E402

KERNELS = [matmul, specialized_matmul]

#: The operation that is taken out or weakened, and the message at the access that shows it.
EXPECTED = {
    "ttng.wait_barrier": r"in flight|orders the two accesses|were written|expects 0 more|elements",
    "ttng.barrier_expect": r"deadlock|in flight|were written",
    "ttng.tc_gen5_commit": r"deadlock|in flight|orders the two accesses",
    "ttng.fence_async_shared": r"asynchronous proxy",
}


@pytest.fixture(autouse=True, scope="module")
def one_cache(tmp_path_factory):
    with one_triton_cache(tmp_path_factory):
        yield


def run(kernel, edit=None, seed=0, k=320):
    """c of a kernel and what it should be; both are [128, 64]."""
    torch.manual_seed(1)
    a, b = torch.randn(128, k).half(), torch.randn(64, k).half()
    c = torch.full((128, 64), torch.nan).half()
    arguments = descriptors((a, b, c), [64, 64])
    xnv.emulated(kernel, 100, seed=seed, edit=edit)[(2, 1)](*arguments, k, num_warps=4)
    return c, (a.double() @ b.double().T).half()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("k", [64, 320])
def test_products_equal_torch(kernel, k):
    for seed in range(3):
        torch.testing.assert_close(*run(kernel, seed=seed, k=k), rtol=2e-3, atol=1e-2)


def mutants(line):
    """What becomes of a line: nothing, or half of the bytes."""
    if "ttng.barrier_expect" in line:
        yield re.sub(r", (\d+), ", lambda match: f", {int(match[1]) // 2}, ", line, count=1)
    if any(name in line for name in EXPECTED):
        yield ""


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_every_wait_commit_and_fence_is_needed(kernel):
    texts: list[str] = []
    run(kernel, lambda text: texts.append(text) or text)
    lines = texts[0].splitlines(keepends=True)
    found = set()
    for number, line in enumerate(lines):
        for changed in mutants(line):
            text = "".join([*lines[:number], changed, *lines[number + 1 :]])
            with pytest.raises(EmulationError) as caught:
                run(kernel, lambda _, text=text: text)
            name = next(name for name in EXPECTED if name in line)
            assert re.search(EXPECTED[name], caught.value.message), (line, str(caught.value))
            found.add(name)
    assert found == set(EXPECTED)
