"""Copies in other layouts copy the same: Gluon kernels on a GPU with the plugin."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
kernels = pytest.importorskip("small_copy_kernels")

pytestmark = pytest.mark.gpu

ELEMENTS = ("int8", "float8_e5m2", "float16", "bfloat16", "float32", "int32", "int64")


@pytest.fixture
def plugin(installed):
    from triton_ext import host

    found = host.capabilities()["stages-hook-key"]
    if not found.available:
        pytest.skip(found.reason)
    installed()


def values(element: str, *shape: int):
    x = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(1))
    return x.float().to(getattr(torch, element)).cuda()


@pytest.mark.parametrize("rows", [16, 64, 128, 1024])
@pytest.mark.parametrize("element", ELEMENTS)
def test_rows(plugin, element, rows):
    x = values(element, rows)
    out = torch.zeros(rows, dtype=x.dtype, device="cuda")
    kernels.masked_rows[(1,)](x, out, rows // 16, ROWS=rows, MASKED=False, num_warps=4)
    assert torch.equal(out.float(), x.float())


@pytest.mark.parametrize("valid", [1, 3, 4])
@pytest.mark.parametrize("element", ELEMENTS)
def test_masked_rows(plugin, element, valid):
    x = values(element, 64)
    out = torch.zeros(64, dtype=x.dtype, device="cuda")
    kernels.masked_rows[(1,)](x, out, valid, ROWS=64, MASKED=True, num_warps=4)
    wanted = x.float()
    wanted[16 * valid :] = 0
    assert torch.equal(out.float(), wanted)


@pytest.mark.parametrize("element", ELEMENTS)
def test_pointers_that_a_loop_carries(plugin, element):
    """They are converted in the loop where a copy does not compile otherwise."""
    x = values(element, 9, 64)
    out = torch.zeros(64, dtype=torch.float32, device="cuda")
    kernels.carried[(1,)](x, out, 8, ROWS=64, num_warps=4)
    assert torch.equal(out, x[:8].float().sum(0))


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_partition_of_one_warp(plugin, element):
    from triton_ext import host

    if host.detect().release < (3, 8):
        pytest.skip("written for gl.warp_specialize of 3.8 and newer")
    x = values(element, 64)
    out = torch.zeros(64, dtype=x.dtype, device="cuda")
    kernels.specialized[(1,)](x, out, num_warps=4)
    assert torch.equal(out.float(), x.float())
