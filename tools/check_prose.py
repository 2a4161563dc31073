"""Finds sentences that are hard to read: in docstrings, comments and pages.

``python tools/check_prose.py`` checks what ``CLEAN`` names, ``python tools/check_prose.py PATH...``
files and folders.  ``make lint`` runs the first.  Three rules:

* No docstring and no comment opens with "Of", "What", "Who", "Whoever" or "Whether".
* No house words where the field has a name (``HOUSE_WORDS``), no sentence that ends in "is told".
* No sentence of a page has more than 40 words.

``prose: ok`` in a comment of the same lines, or in the paragraph of a page, exempts them.
"""

from __future__ import annotations

import ast
import io
import pathlib
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from environment import ROOT, say

# Files and folders without findings.  Only grows.
CLEAN = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "benchmarks",
    "docs",
    "examples",
    "python/triton_ext",
    "third_party",
    "tools",
)

# Ours, and the word that people know.
HOUSE_WORDS = {
    r"col2im": "kn2row",
    r"residue class(?:es)?": "stride phase",
    r"row[- ]packing": "partial im2col",
    r"seams?": "patch point",
    r"(?:is|are) (?:said|told)(?=[.:;]|$)": "the fact itself",
    r"(?:is|are) no (?:int|integer|list|name|number|power of two|text|tuple)": "is not a",
    r"nobody here knows": "unknown",
}
MOST_WORDS = 40
_EXEMPT = "prose: ok"
_OPENER = re.compile(r"(?:Of|What|Who|Whoever|Whether)\b")
_HOUSE = {
    re.compile(rf"\b(?:{word})\b", re.I): better  # pattern: ours, of the table above
    for word, better in HOUSE_WORDS.items()
}
# Code in a sentence counts as a word, and may name anything.
_CODE = re.compile(r"``[^`]*``|`[^`]*`")
_FENCED = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z\d*\[\"(]|code\b)")


@dataclass(frozen=True, slots=True)
class Text:
    """A docstring, a block of comments, or a paragraph of a page.

    Attributes:
        line: Its first line, from 1.
        words: The text.
        is_page: Whether it is part of a page.
    """

    line: int
    words: str
    is_page: bool = False


def texts_of_python(source: str) -> Iterator[Text]:
    """Yields the docstrings and the blocks of comments of a Python source."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = ast.get_docstring(node)
            if found is None:
                continue
            holder = node.body[0]
            behind = lines[(holder.end_lineno or 1) - 1]
            if _EXEMPT not in behind:
                yield Text(holder.lineno, found)
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("#:! ")
        own_line = not token.line[: token.start[1]].strip()
        if comments and own_line and comments[-1][0] == token.start[0] - 1:
            comments.append((token.start[0], text))
            continue
        yield from _block(comments)
        comments = [(token.start[0], text)]
    yield from _block(comments)


def _block(comments: list[tuple[int, str]]) -> Iterator[Text]:
    if comments and not any(_EXEMPT in text for _, text in comments):
        yield Text(comments[0][0], " ".join(text for _, text in comments))


def texts_of_page(source: str) -> Iterator[Text]:
    """Yields the paragraphs and items of a Markdown page, without code and tables."""
    blank = _FENCED.sub(lambda match: "\n" * match[0].count("\n"), source)
    paragraph: list[str] = []
    first = 1
    for number, line in enumerate([*blank.split("\n"), ""], 1):
        starts = re.match(r"\s*(?:[-*] |\d+\. |#+ |\||$)", line)
        if starts and paragraph:
            text = " ".join(paragraph)
            if _EXEMPT not in text:
                yield Text(first, text, is_page=True)
            paragraph = []
        if line.strip() and not line.lstrip().startswith(("|", "#", "<")):
            if not paragraph:
                first = number
            paragraph.append(line.strip().removeprefix("- ").removeprefix("* "))


def problems_of(text: Text) -> Iterator[str]:
    """Yields what is wrong with a text."""
    plain = _CODE.sub("code", text.words)
    opener = _OPENER.match(plain)
    if opener is not None and not text.is_page:
        yield f"opens with '{opener[0]}': begin with the subject and a verb"
    for word, better in _HOUSE.items():
        found = word.search(plain)
        if found is not None:
            yield f"'{found[0]}': write '{better}'"
    if text.is_page:
        for sentence in _SENTENCE_END.split(plain):
            count = len(sentence.split())
            if count > MOST_WORDS:
                yield f"a sentence of {count} words, at most {MOST_WORDS}: {sentence[:60]}..."


def files_of(paths: Iterable[pathlib.Path]) -> Iterator[pathlib.Path]:
    """Yields the sources and pages in files and folders."""
    for path in paths:
        if path.is_dir():
            found = {*path.rglob("*.py"), *path.rglob("*.md")}
            yield from sorted(file for file in found if "__pycache__" not in file.parts)
        else:
            yield path


def findings(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Yields line and text of what is wrong in a file, in the order of lines."""
    source = path.read_text(encoding="utf-8")
    texts = texts_of_page(source) if path.suffix == ".md" else texts_of_python(source)
    yield from sorted((text.line, problem) for text in texts for problem in problems_of(text))


def main(argv: list[str]) -> int:
    """Checks the paths, or all that is clean; returns the exit status."""
    paths = [pathlib.Path(each).resolve() for each in argv] or [ROOT / each for each in CLEAN]
    count = failed = 0
    for file in files_of(paths):
        count += 1
        for line, problem in findings(file):
            failed += 1
            say(f"{file.relative_to(ROOT)}:{line}: error: {problem}")
    say(f"prose: {count} files checked, {failed} findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
