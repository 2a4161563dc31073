"""Findings of ``tools/fuzz.py`` as cases: reduced, kept as files, and run again."""

from __future__ import annotations

import hashlib
import pathlib
import time
from collections.abc import Callable, Sequence
from random import Random

from fuzz_ir import Finding, examine, examine_llvm, pass_names

__all__ = ["examine_case", "keep", "reduced"]

_EDIT_SEQUENCES = 40
# CPU seconds that a reduction may take.
_REDUCING_SECONDS = 60.0


def examine_case(text: str, *, is_llvm: bool = False, step: str = "") -> Finding | None:
    """Asks everything about a case: every pass, and the same sequences of edits each time.

    Args:
        text: The module.
        is_llvm: Whether it is LLVM IR.
        step: Where the finding was; empty for everything.
    """
    if is_llvm:
        return examine_llvm(text)
    names = [n for n in pass_names() if not step or step.partition(",")[0] == f"pass {n}"]
    for name in (None, *names):
        for seed in (0, 1, 2) if name is not None else (0,):
            found = examine(
                text,
                Random(seed),
                passes=() if name is None else (name,),
                edits=0,
                options=seed > 0,
            )
            if found is not None:
                return found
    for seed in range(_EDIT_SEQUENCES if not step or step.startswith("edits") else 0):
        found = examine(text, Random(seed), passes=(), edits=1)
        if found is not None:
            return found
    return None


def keep(finding: Finding, folder: pathlib.Path, *, reduce: bool = True) -> pathlib.Path | None:
    """Writes a finding about IR as a file, reduced as far as it goes.

    Args:
        finding: The finding.
        folder: Where cases are; made if it is not there.
        reduce: Whether its input is run again to reduce it.

    Returns:
        The file; ``None`` for another kind of input, or where nothing can be written.
    """
    is_llvm = finding.door == "llvm"
    if finding.door not in ("ir", "llvm"):
        return None

    def is_same(text: str) -> bool:
        found = examine_case(text, is_llvm=is_llvm, step=finding.step)
        return found is not None and found.signature == finding.signature

    text = finding.text
    if reduce and is_same(text):
        text = reduced(text, is_same)
    words = "".join(c if c.isalnum() else "-" for c in finding.signature.lower())[:60].strip("-")
    name = "-".join(word for word in words.split("-") if word)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    path = folder / f"{name}-{digest}.{'ll' if is_llvm else 'mlir'}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    except OSError:
        return None
    return path


def reduced(text: str, is_same: Callable[[str], bool]) -> str:
    """Takes away lines, then pieces of lines, as long as the finding stays.

    Args:
        text: The input.
        is_same: Returns whether an input has the same finding.
    """
    end = time.process_time() + _REDUCING_SECONDS
    text = _reduced(text.splitlines(keepends=True), is_same, end)
    for size in (64, 16, 4, 1):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        if len(pieces) > 4000:
            break
        text = _reduced(pieces, is_same, end)
    return text


def _reduced(pieces: Sequence[str], is_same: Callable[[str], bool], end: float) -> str:
    """Delta debugging: takes away runs of pieces, halving their length."""
    kept = list(pieces)
    size = max(1, len(kept) // 2)
    while kept and time.process_time() < end:
        at, is_shorter = 0, False
        while at < len(kept) and time.process_time() < end:
            rest = kept[:at] + kept[at + size :]
            if is_same("".join(rest)):
                kept, is_shorter = rest, True
            else:
                at += size
        if size == 1 and not is_shorter:
            break
        size = max(1, size // 2)
    return "".join(kept)
