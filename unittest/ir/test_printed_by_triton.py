"""What the installed Triton prints for kernels of our own reads, prints and verifies.

The same is tested on stored modules where there are any (``TRITON_EXT_CORPUS``); these need none.
"""

from __future__ import annotations

import pytest
from triton_ext.ir import parse

triton = pytest.importorskip("triton")

from corpus_kernels import KERNELS  # noqa: E402
from triton import knobs  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton_ext.host.process import HostProcess, find_library  # noqa: E402

TARGETS = {
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx950": GPUTarget("hip", "gfx950", 64),
    "gfx1250": GPUTarget("hip", "gfx1250", 32),
}
#: Triton 3.7 ends the process of who compiles these.
ENDS_THE_PROCESS = {("3.7", "matmul_desc", "gfx1250")}


class Enough(Exception):
    """Raised by the first stage that is of no interest."""


def printed(name, target):
    """What the stages up to TTGIR print, by stage."""
    kernel, signature, block = KERNELS[name]
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if "*" in kind
    }
    source = ASTSource(
        kernel, {**signature, "BLOCK": "constexpr"}, constexprs={"BLOCK": block}, attrs=aligned
    )
    found = {}

    def keep(stage, inner):
        def run(module, metadata):
            result = inner(module, metadata)
            found[stage] = str(result)
            return result

        return run

    def stop(module, metadata):
        raise Enough

    def hook(backend=None, stages=None, options=None, language=None, capability=None):
        if stages is not None:
            for stage in ("ttir", "ttgir"):
                stages[stage] = keep(stage, stages[stage])
            stages["llir"] = stop
        return ("", "")

    with knobs.runtime.scope():
        knobs.runtime.add_stages_inspection_hook = hook
        with pytest.raises(Enough):
            triton.compile(source, target=target, options={"num_stages": 3})
    return found


@pytest.fixture(scope="module")
def process():
    with HostProcess(find_library()) as opened:
        yield opened


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_round_trip(name, target, process, fresh_triton_cache):
    release = ".".join(triton.__version__.split(".")[:2])
    if (release, name, target) in ENDS_THE_PROCESS:
        pytest.skip(f"triton {release} ends the process of who compiles this")
    texts = printed(name, TARGETS[target])
    assert set(texts) == {"ttir", "ttgir"}
    for stage, text in texts.items():
        module = parse(text, f"{name}.{stage}")
        assert str(module) == text
        module.verify()
        # An edit that changes nothing but makes everything be printed anew.
        for op in module.walk():
            op._touch()
        result = process.run(str(module), f"{name}.{stage}")
        assert result.plain is not None, result.diagnostics
        assert result.plain == process.run(text, f"{name}.{stage}").plain
