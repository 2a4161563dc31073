"""Writes the reference of the site from docstrings and ``--help`` texts.

``pages()`` returns a page for each public module and one for the commands.  A public module is a
package with an ``__all__``, a module at the top of the package or of ``gluon`` with one, or one
that a page of ``docs`` imports from.  Every name of its ``__all__`` gets an entry: the signature
as ``inspect`` sees it, and the docstring, whose Google sections become lists.

It needs what the package needs (torch included), because it imports what it describes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import os
import pkgutil
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

from environment import ROOT

__all__ = ["anchor", "command_page", "module_page", "pages", "public_modules"]

FOLDER = "reference"
COMMANDS = {
    "triton-ext": ["--help"],
    "triton-ext doctor": ["doctor", "--help"],
    "triton-ext explain": ["explain", "--help"],
    "triton-ext tune": ["tune", "--help"],
    "triton-ext waits": ["waits", "--help"],
    "triton-ext lds": ["lds", "--help"],
    "triton-opt": ["opt", "--help"],
    "split-file": ["split-file", "--help"],
    "mlir-translate": ["mlir-translate", "--help"],
}
_WIDTH = 88
_IMPORT = re.compile(r"^(?:from|import) (triton_ext(?:\.\w+)+)(?: import ([\w, ]+))?", re.M)
_SECTION = re.compile(
    r"^(Args|Attributes|Returns|Yields|Raises|Example|Examples|Note|Notes):[ ]*$", re.M
)
_LISTS = ("Args", "Attributes", "Raises")
_TITLES = {"Args": "Arguments"}
_ROLE = re.compile(r":(?:func|class|mod|meth|attr|data|exc):`~?([^`]*)`")


def public_modules() -> list[str]:
    """Returns the names of the modules that have a page, sorted."""
    package = importlib.import_module("triton_ext")
    found = {"triton_ext"}
    for name in _modules_in(package):
        parts = name.split(".")
        is_near = len(parts) == 2 or parts[1] == "gluon"
        module = importlib.import_module(name)
        if getattr(module, "__all__", ()) and (is_near or hasattr(module, "__path__")):
            found.add(name)
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for match in _IMPORT.finditer(page.read_text(encoding="utf-8")):
            found.update(_imported(match[1], match[2] or ""))
    return sorted(found)


def _modules_in(package: types.ModuleType) -> Iterator[str]:
    for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        last = each.name.rpartition(".")[2]
        if last.startswith("_") or last in ("selftest", "tools"):
            continue
        yield each.name
        if each.ispkg:
            yield from _modules_in(importlib.import_module(each.name))


def _imported(name: str, names: str) -> Iterator[str]:
    """Yields the modules with an ``__all__`` that an import of a page names."""
    candidates = [name, *(f"{name}.{part.split(' as ')[0].strip()}" for part in names.split(","))]
    for each in candidates:
        with contextlib.suppress(ImportError):
            if getattr(importlib.import_module(each), "__all__", ()):
                yield each


def pages() -> dict[str, str]:
    """Returns the Markdown of every generated page by its path in the site."""
    modules = public_modules()
    links = {
        f"{module}.{name}": f"{module}.md#{anchor(name)}"
        for module in modules
        for name in _names(module)
    }
    links |= {module: f"{module}.md" for module in modules}
    found = {f"{FOLDER}/{module}.md": module_page(module, links) for module in modules}
    found[f"{FOLDER}/commands.md"] = command_page()
    return found


def anchor(name: str) -> str:
    """Returns the anchor of a name on its page."""
    return name.strip("_")


def _heading(marks: str, name: str) -> str:
    last = name.rpartition(".")[2].strip("_")
    return f"{marks} `{name}` {{ #{anchor(name)} data-toc-label='{last}' }}"


def _names(module: str) -> list[str]:
    names: list[str] = sorted(importlib.import_module(module).__all__)
    return names


def module_page(name: str, links: dict[str, str] | None = None) -> str:
    """Returns the page of a module: what it is for, its names in a table, an entry for each."""
    module = importlib.import_module(name)
    links = links or {}
    lines = [f"# {name}", "", _markdown(inspect.getdoc(module) or "", links), ""]
    entries = [(each, getattr(module, each)) for each in _names(name)]
    lines += ["| name | summary |", "| --- | --- |"]
    for each, value in entries:
        summary = _summary(value, links).replace("|", "\\|")
        lines.append(f"| [`{each}`](#{anchor(each)}) | {summary} |")
    for each, value in entries:
        lines += ["", _heading("##", each), ""]
        lines += _entry(name, each, value, links)
    return "\n".join(lines) + "\n"


def _summary(value: Any, links: dict[str, str]) -> str:
    text = _docstring(value)
    return _inline(" ".join(text.split("\n\n")[0].split()), links) if text else _kind(value)


def _kind(value: Any) -> str:
    return f"a value of type `{type(value).__name__}`"


def _docstring(value: Any) -> str:
    """Returns the own docstring of a function, class or module; '' for a plain value."""
    target = _function(value)
    if not (inspect.isroutine(target) or inspect.isclass(target) or inspect.ismodule(target)):
        return ""
    text = inspect.getdoc(target) or ""
    # A dataclass without a docstring gets its signature as one.
    is_made = inspect.isclass(target) and text.startswith(f"{target.__name__}(")
    return "" if is_made else text


def _function(value: Any) -> Any:
    """Returns the Python function behind a kernel or a decorated one."""
    inner = getattr(value, "fn", None)
    return inspect.unwrap(inner) if inspect.isfunction(inner) else value


def _entry(module: str, name: str, value: Any, links: dict[str, str]) -> Iterator[str]:
    target = _function(value)
    if inspect.ismodule(target):
        where = links.get(target.__name__)
        yield f"Module [`{target.__name__}`]({where})." if where else f"Module `{target.__name__}`."
        return
    if not callable(target):
        yield from ("```python", f"{name} = {_value(value)}", "```", "")
        return
    yield from ("```python", _signature(name, target), "```", "")
    home = getattr(target, "__module__", module)
    if home in links and home != module and f"{home}.{name}" in links:
        yield f"Also in [`{home}`]({links[home]}#{name})."
        yield ""
    yield _markdown(_docstring(target), links)
    if inspect.isclass(target):
        yield from _members(name, target, links)


def _value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 10 * _WIDTH else f"{text[: 10 * _WIDTH]} ..."


def _signature(name: str, target: Any) -> str:
    word = "class " if inspect.isclass(target) else "def "
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return f"{word}{name}"
    parts = []
    seen_star = False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "_semantic", "_generator"):
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            seen_star = True
        if parameter.kind is parameter.KEYWORD_ONLY and not seen_star:
            parts.append("*")
            seen_star = True
        parts.append(_parameter(parameter))
    ends = signature.return_annotation
    result = ""
    if ends is not inspect.Signature.empty and not inspect.isclass(target):
        result = f" -> {_annotation(ends)}"
    line = f"{word}{name}({', '.join(parts)}){result}"
    if len(line) <= _WIDTH:
        return line
    inner = "".join(f"    {part},\n" for part in parts)
    return f"{word}{name}(\n{inner}){result}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else stars
    text = f"{stars}{parameter.name}"
    typed = parameter.annotation is not parameter.empty
    if typed:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f"{' = ' if typed else '='}{_default(parameter.default)}"
    return text


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation.strip("'\"")
    return str(inspect.formatannotation(annotation))


def _default(value: Any) -> str:
    text = repr(value)
    return "..." if " at 0x" in text or len(text) > _WIDTH or "<factory>" in text else text


def _members(name: str, target: type, links: dict[str, str]) -> Iterator[str]:
    fields = {field.name for field in dataclasses.fields(target)} if _is_data(target) else set()
    for each, value in vars(target).items():
        if each.startswith("_") or each in fields:
            continue
        inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if isinstance(inner, property):
            head, text = f"{name}.{each}", inspect.getdoc(inner) or ""
            code = f"{each}{_returned(inner.fget)}"
        elif inspect.isfunction(inner):
            head, text = f"{name}.{each}", inspect.getdoc(inner) or ""
            code = _signature(each, getattr(target, each))
        else:
            continue
        yield from ("", _heading("###", head), "")
        yield from ("```python", code, "```", "", _markdown(text, links))


def _is_data(target: type) -> bool:
    return dataclasses.is_dataclass(target)


def _returned(getter: Callable[..., Any] | None) -> str:
    annotation = getattr(getter, "__annotations__", {}).get("return")
    return "" if annotation is None else f": {_annotation(annotation)}"


def _markdown(text: str, links: dict[str, str]) -> str:
    """Returns a docstring as Markdown."""
    parts = _SECTION.split(inspect.cleandoc(text))
    blocks = [_prose(parts[0], links)]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        # Text at the margin no longer belongs to the section.
        inner, rest = _section_body(body)
        blocks.append(f"**{_TITLES.get(title, title)}**")
        as_list = title in _LISTS
        blocks.append(_list(inner, links) if as_list else _prose(inner, links))
        if rest.strip():
            blocks.append(_prose(rest, links))
    return "\n\n".join(block for block in blocks if block.strip())


def _section_body(body: str) -> tuple[str, str]:
    lines = body.split("\n")
    at_margin = (n for n, line in enumerate(lines) if line.strip() and not line.startswith(" "))
    count = next(at_margin, len(lines))
    return inspect.cleandoc("\n" + "\n".join(lines[:count])), "\n".join(lines[count:])


def _list(text: str, links: dict[str, str]) -> str:
    """Returns ``name: text`` entries as a list."""
    entries: list[str] = []
    for line in text.split("\n"):
        if line and not line.startswith(" "):
            entries.append(line)
        elif entries and line.strip():
            entries[-1] += f" {line.strip()}"
    items = []
    for entry in entries:
        name, colon, what = entry.partition(":")
        shown = f"`{name.strip('`')}`: {_inline(what.strip(), links)}" if colon else entry
        items.append(f"- {shown}")
    return "\n".join(items)


def _prose(text: str, links: dict[str, str]) -> str:
    """Returns paragraphs; an indented block behind ``::`` or of code becomes fenced."""
    shown: list[str] = []
    for block in re.split(r"\n{2,}", text.strip("\n")):
        lines = block.split("\n")
        if lines[0].startswith("    "):
            shown.append("```text\n" + inspect.cleandoc("\n" + block) + "\n```")
        elif lines[0].startswith(("* ", "- ", "1. ")):
            shown.append(_inline(block, links))
        else:
            shown.append(_mixed(lines, links))
    return "\n\n".join(shown)


def _mixed(lines: list[str], links: dict[str, str]) -> str:
    """Returns a paragraph, with what is a list or indented in it on its own."""
    text = ""
    for line in lines:
        is_item = line.startswith(("* ", "- "))
        text += "\n\n" if is_item and text and not text.split("\n")[-1].startswith("- ") else "\n"
        text += f"- {line[2:]}" if is_item else line
    return re.sub(r"::(?=\n|$)", ":", _inline(text.strip("\n"), links))


def _inline(text: str, links: dict[str, str]) -> str:
    """Returns a text whose roles and double backquotes are Markdown's code, linked where known."""

    def link(match: re.Match[str]) -> str:
        name = match[1].strip()
        where = links.get(name)
        shown = name.rpartition(".")[2] if where and "#" in where else name
        return f"[`{shown}`]({where})" if where else f"`{name}`"

    text = _ROLE.sub(link, text)
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    pieces = re.split(r"(`[^`]*`)", text)
    outside = [piece.replace("<", "&lt;") for piece in pieces[::2]]
    star = re.compile(r"(?<=\w)\*\*?(?=\w)|(?<=\s)\*(?=\s)")
    pieces[::2] = [star.sub(r"\\\g<0>", each) for each in outside]
    return "".join(pieces)


def command_page() -> str:
    """Returns the page of all commands with what ``--help`` prints."""
    lines = [
        "# Commands",
        "",
        "`python -m triton_ext` is the command `triton-ext` where scripts are not on the path.",
        "The passes that `triton-opt` lists are those of the installed Triton; this is "
        f"{importlib.import_module('triton').__version__}.",
    ]
    for name, arguments in COMMANDS.items():
        anchor = name.replace(" ", "-")
        lines += ["", f"## {name} {{ #{anchor} }}", "", "```text", _help(arguments), "```"]
    return "\n".join(lines) + "\n"


def _help(arguments: list[str]) -> str:
    cli = importlib.import_module("triton_ext.tools.cli")
    printed = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            cli.main(arguments)
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return printed.getvalue().rstrip()
