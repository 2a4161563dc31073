"""Random sequences of edits leave modules that we verify and Triton reads and verifies."""

from __future__ import annotations

import os
from random import Random

import ir_helpers
import pytest
import random_edits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton_ext.errors import ParseError, VerifyError
from triton_ext.ir import parse
from triton_ext.ir.verifier import find_problems

_SIZE = 16_000
#: Their blocks define names that are numbers, and that are taken where the blocks go.
_NUMBERED = (
    "cuda-100/conv_flat.ttgir",
    "cuda-100/mm_persistent_flat.ttgir",
    "cuda-100/mm_persistent_flat_ws.ttgir",
    "cuda-90/conv_flat_ws.ttgir",
)


def _texts() -> list[tuple[str, str]]:
    """Fixtures and, of the corpus, what the installed Triton printed itself."""
    import triton

    found = [
        (path.name, path.read_text())
        for path in ir_helpers.FIXTURES
        if path.name not in ir_helpers.NOT_FOR_HOST and triton.__version__ >= "3.8"
    ]
    own = [path for path in ir_helpers.corpus_files() if path.parts[-3] == triton.__version__]
    for path in own:
        if path.stat().st_size < _SIZE:
            found.append(("/".join(path.parts[-2:]), path.read_text()))
    return found


def check(host: ir_helpers.Host, name: str, text: str, rng: Random) -> None:
    """Edits, and asks both verifiers, and whether the text means the tree."""
    module = parse(text, name)
    module.verify()
    done = [random_edits.edit(module, rng) for _ in range(rng.randint(1, 6))]
    module.verify()
    edited = str(module)
    again = parse(edited, name)
    assert str(again) == edited
    again.verify()
    assert [op.name for op in again.walk()] == [op.name for op in module.walk()]
    assert [r.known_type for op in again.walk() for r in op.results] == [
        r.known_type for op in module.walk() for r in op.results
    ]
    try:
        host.text(edited)
    except RuntimeError as error:
        pytest.fail(f"{name}: the host refuses it after {done}: {error}\n{edited}")


def _run(host: ir_helpers.Host, examples: int) -> None:
    texts = _texts()
    if not texts:
        pytest.skip("no corpus of this Triton, and the fixtures are for 3.8 and newer")

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(texts), st.randoms(use_true_random=False))
    def case(entry: tuple[str, str], rng: Random) -> None:
        check(host, *entry, rng)

    case()


@pytest.mark.slow
@pytest.mark.slow
def test_random_edits(host):
    _run(host, 500)


@pytest.mark.parametrize("name", _NUMBERED)
def test_inlined_blocks_of_large_modules(host, name):
    path = ir_helpers.CORPUS / host.version / name
    if not path.exists():
        pytest.skip(f"no {name} of Triton {host.version}: {ir_helpers.NO_CORPUS}")
    for what, module in random_edits.inline_every_block(path.read_text(), name):
        module.verify()
        try:
            host.text(str(module))
        except RuntimeError as error:
            pytest.fail(f"{name}: the host refuses {what}: {error}")


@pytest.mark.slow
def test_both_verifiers_agree_about_structure(host):
    """Whatever is moved, used or erased: the host refuses what we refuse, and we what it does."""
    texts = _texts()
    if not texts:
        pytest.skip("no corpus of this Triton, and the fixtures are for 3.8 and newer")

    @settings(
        max_examples=400, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.sampled_from(texts), st.randoms(use_true_random=False))
    def case(entry: tuple[str, str], rng: Random) -> None:
        name, text = entry
        module = parse(text, name)
        kind = random_edits.wild_edit(module, rng)
        edited = str(module)
        ours = _refusal(edited, name)
        try:
            host.text(edited)
            theirs = ""
        except RuntimeError as error:
            theirs = str(error)
        problem = next(find_problems(module), None)
        what = f"{name} after {kind}: {ours}, {problem}, {theirs}\n{edited}"
        # The tree may be wrong where its text is not, because a name means another value there.
        assert theirs or not ours, f"refused without a reason: {what}"
        assert problem is not None or not theirs, f"not seen: {what}"
        assert problem is not None or not ours, f"the text is not the tree: {what}"

    case()


def _refusal(text: str, name: str) -> str:
    """Why we refuse a text; nothing if we do not."""
    try:
        parse(text, name).verify()
    except (ParseError, VerifyError) as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("TRITON_EXT_NIGHTLY"), reason="takes minutes; TRITON_EXT_NIGHTLY=1 runs it"
)
def test_random_edits_at_night(host):
    _run(host, 10_000)
