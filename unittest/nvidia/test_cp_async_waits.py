"""``triton-ext-verify-async-waits`` on what Triton's own pipeliner makes for NVIDIA."""

from __future__ import annotations

import re

import pytest
from ir_helpers import CORPUS
from triton_ext.errors import PassError
from triton_ext.ir import parse
from triton_ext.passes import PassManager

VERIFIER = PassManager("triton-ext-verify-async-waits")
FILES = [
    path for path in sorted(CORPUS.glob("*/cuda-*/*.ttgir")) if "ttg.async_wait" in path.read_text()
]

needs_corpus = pytest.mark.skipif(not FILES, reason=f"no kernels with cp.async in {CORPUS}")


@needs_corpus
def test_no_false_alarm():
    for path in FILES:
        VERIFIER.run(parse(path.read_text(), path.name))


@needs_corpus
def test_one_group_more_is_an_error():
    for path in FILES:
        text = path.read_text()
        # The wait in front of the loop or in it; those behind it wait for what nobody reads.
        wait = re.search(r"ttg\.async_wait .*?num = (\d+)", text)
        raised = f"{text[: wait.start(1)]}{int(wait[1]) + 1}{text[wait.end(1) :]}"
        with pytest.raises(PassError, match="unsafe read of LDS"):
            VERIFIER.run(parse(raised, path.name))
