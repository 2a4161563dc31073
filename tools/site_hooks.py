"""Hooks of mkdocs: generated pages, and links that lead out of ``docs``.

The pages of ``docs`` are plain Markdown whose links work in the repository.  In the site a link to
a file outside of ``docs`` leads to a page that shows the file; a missing file or folder is left to
mkdocs, which refuses it (``make docs`` runs it with ``--strict``).
"""

from __future__ import annotations

import pathlib
import posixpath
import re
import sys
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import reference  # noqa: E402 - its folder is on the path from here on

#: The folder of the site with pages of files that are not in ``docs``.
FILES = "files"
_LANGUAGES = {".py": "python", ".toml": "toml", ".md": "", ".mlir": "text"}
_SHOWN = (".py", ".toml", ".mlir")
_BOOST = {
    **{"faq.md": 2, "im2col-in-an-hour.md": 2, "recipes/": 2, "adr/": 0.5},
    **{"reference/errors.md": 8, "reference/environment.md": 4},
    **{"reference/triton_ext.analysis": 0.3, "reference/triton_ext.": 0.6},
}
_CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]*`)", re.M | re.S)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def on_config(config: Any) -> Any:
    """Adds the generated pages of modules, and the decisions, to the navigation."""
    config._pages = reference.pages()
    modules = [
        {pathlib.PurePosixPath(path).stem.removeprefix("triton_ext."): path}
        for path in config._pages
        if not path.endswith("/commands.md")
    ]
    decisions = [f"adr/{file.name}" for file in sorted((ROOT / "docs" / "adr").glob("*.md"))]
    for section in config.nav:
        if "Reference" in section:
            section["Reference"].append({"Python": modules})
        elif "Explanation" in section:
            section["Explanation"][-1] = {"Decisions": decisions}
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the generated pages, and a page for each file that a page links to."""
    from mkdocs.structure.files import File

    waiting = []
    for path, text in config._pages.items():
        files.append(File.generated(config, path, content=text))
    for file in list(files.documentation_pages()):
        if file.abs_src_path is not None:
            waiting += outside(file.content_string, f"docs/{file.src_uri}")
    seen = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        text = shown(path)
        files.append(File.generated(config, page_for(path), content=text))
        if path.endswith(".md"):
            waiting += outside(text, path)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites the links of a page that lead out of ``docs``."""
    uri = page.file.src_uri
    source = f"docs/{uri}"
    # Pages that answer a question come first; sources of files are not searched.
    boost = next((value for start, value in _BOOST.items() if uri.startswith(start)), 1)
    page.meta["search"] = {"exclude": True} if uri.startswith(f"{FILES}/") else {"boost": boost}
    if uri.startswith(f"{FILES}/"):
        source = uri.removeprefix(f"{FILES}/")
        source = (
            source if source.endswith("README.md") or is_page(source) else source[: -len(".md")]
        )
    if uri.startswith(f"{reference.FOLDER}/") and page.file.abs_src_path is None:
        return markdown

    def replace(target: str) -> str:
        path, hash_, anchor = target.partition("#")
        resolved = resolve(path, source)
        if not path or resolved is None:
            return target
        inner = resolved.removeprefix("docs/") if is_docs(resolved) else page_for(resolved)
        return posixpath.relpath(inner, posixpath.dirname(uri) or ".") + hash_ + anchor

    return spaced_lists(in_prose(markdown, replace))


def in_prose(markdown: str, replace: Callable[[str], str]) -> str:
    """Returns the text with every relative link outside of code replaced."""

    def one(match: re.Match[str]) -> str:
        target = match[2]
        is_relative = not re.match(r"[a-z]+:|/", target)
        return match[1] + (replace(target) if is_relative else target) + match[3]

    pieces = _CODE.split(markdown)
    # A link's text may be code: the bracket then stands behind it, outside.
    pieces[::2] = [_LINK.sub(one, piece) for piece in pieces[::2]]
    return "".join(pieces)


def spaced_lists(markdown: str) -> str:
    """Puts an empty line in front of lists, which GitHub does not need and mkdocs does."""
    pieces = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.M | re.S)
    item = re.compile(r"^(?![ ]*[-*] |[ ]*\d+\. |\||\s*$)(.+)\n(?=(?:[-*] |1\. ))", re.M)
    pieces[::2] = [_spaced(piece, item) for piece in pieces[::2]]
    return "".join(pieces)


def _spaced(text: str, item: re.Pattern[str]) -> str:
    # A line of an item's text is indented; only a paragraph at the margin is parted from a list.
    return item.sub(lambda m: m[0] if m[1].startswith(" ") else f"{m[1]}\n\n", text)


def outside(text: str, source: str) -> list[str]:
    """Returns the files and folders outside of ``docs`` that a text links to."""
    found: list[str] = []

    def note(target: str) -> str:
        resolved = resolve(target.partition("#")[0], source)
        if resolved is not None and not is_docs(resolved):
            found.append(resolved)
        return target

    in_prose(text, note)
    return found


def resolve(path: str, source: str) -> str | None:
    """Returns the path from the root that a link of a file leads to, None if nothing is there."""
    if not path:
        return None
    full = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    return full if not full.startswith("..") and (ROOT / full).exists() else None


def is_docs(path: str) -> bool:
    """Returns whether a file is a page or a picture of ``docs``."""
    return path.startswith("docs/")


def is_page(path: str) -> bool:
    """Returns whether a path of the repository is a Markdown file."""
    return path.endswith(".md") and (ROOT / path).is_file()


def page_for(path: str) -> str:
    """Returns the page of the site that shows a file or folder of the repository."""
    return f"{FILES}/{path}" if is_page(path) else f"{FILES}/{path}.md"


def shown(path: str) -> str:
    """Returns the page of a file: Markdown as it is, other text as code; of a folder all files."""
    full = ROOT / path
    if full.is_dir():
        files = sorted(file for file in full.rglob("*") if file.suffix in _SHOWN)
        parts = [f"## {file.relative_to(full)}\n\n{_code(file)}" for file in files]
        return "\n\n".join([f"# {path}", *parts]) + "\n"
    if is_page(path):
        return full.read_text(encoding="utf-8")
    return f"# {path}\n\n{_code(full)}\n"


def _code(file: pathlib.Path) -> str:
    text = file.read_text(encoding="utf-8").rstrip()
    return f"````{_LANGUAGES.get(file.suffix, 'text')}\n{text}\n````"
