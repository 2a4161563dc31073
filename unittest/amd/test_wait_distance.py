"""Waits to which too many ways lead: they wait for everything, and the pass says so."""

from __future__ import annotations

import sys

import pytest
from triton_ext.backends.amd.passes.update_async_wait_count import UpdateAsyncWaitCount
from triton_ext.ir import parse
from triton_ext.passes import PassContext

COPY = """\
    %t = ttg.async_copy_global_to_local %p, %m : tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, \
#smem, mutable>
    %g = ttg.async_commit_group tokens %t
"""
TEXT = f"""\
#b = #ttg.blocked<{{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}}>
#s = #ttg.swizzled_shared<{{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}}>
#smem = #ttg.shared_memory
module attributes {{"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, \
ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32}} {{
  tt.func public @f(%p: tensor<512x!tt.ptr<f32>, #b>, %c: i1) {{
    %m = ttg.local_alloc : () -> !ttg.memdesc<512xf32, #s, #smem, mutable>
{COPY.replace("%t", "%t0").replace("%g", "%g0")}\
{COPY.replace("%t", "%t1").replace("%g", "%g1")}\
    scf.if %c {{
{COPY}    }}
    %w = ttg.async_wait WAITED
    tt.return
  }}
}}
"""


def run(waited: str) -> tuple[str, list[str]]:
    """The wait as rewritten, and what the pass says."""
    module = parse(TEXT.replace("WAITED", waited))
    context = PassContext()
    UpdateAsyncWaitCount().run(module, context)
    [wait] = [op for op in module.walk() if "wait" in op.name]
    return wait.text.strip(), [remark.message for remark in context.remarks]


@pytest.mark.parametrize("waited", ["{num = 1 : i32}", "%g0 {num = 0 : i32}"])
def test_a_search_that_is_given_up_is_told_of(waited, monkeypatch):
    # Each copy is 4 instructions of a wave; the one in the branch may not have been issued.
    text, said = run(waited)
    assert "num_inst = 4 : i32" in text
    assert said == []
    monkeypatch.setattr(sys.modules["triton_ext.analysis.shortest_walk"], "MOST_PAIRS", 3)
    text, said = run(waited)
    assert "num_inst = 0 : i32" in text
    assert said == ["too many paths lead to this wait: it waits for everything"]
