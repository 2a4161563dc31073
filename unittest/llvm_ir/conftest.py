"""Fixtures of the tests of the LLVM IR tree."""

from __future__ import annotations

import pytest

#: Targets of which Triton compiles plain kernels everywhere.
TARGETS = (("cuda", 90, 32), ("cuda", 80, 32), ("hip", "gfx942", 64))


@pytest.fixture(scope="session")
def printed(tmp_path_factory):
    """LLVM IR of the kernels in unittest/ir, by name and target."""
    triton = pytest.importorskip("triton")
    from corpus_kernels import KERNELS
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    texts = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        for target in TARGETS:
            for name, (kernel, signature, block) in KERNELS.items():
                if name == "control" and target[0] == "hip":
                    continue  # has an instruction of NVIDIA's
                source = ASTSource(
                    kernel, {**signature, "BLOCK": "constexpr"}, constexprs={"BLOCK": block}
                )
                compiled = triton.compile(source, target=GPUTarget(*target))
                texts[f"{name} for {target[1]}"] = compiled.asm["llir"]
    return texts
