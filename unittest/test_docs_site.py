"""The pages as a whole: links, anchors, length, and what the reference has to name."""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
import posixpath
import re
import subprocess

import pytest
import triton_ext
from triton_ext import errors

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "reference.py"
DOCS = ROOT / "docs"
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md")]
)
# Pages that the build writes; in a checkout a link to one leads nowhere.
GENERATED = re.compile(r"docs/reference/(?:commands|triton_ext[\w.]*)\.md")
# A table that tools/conformance.py writes, a line for each file of upstream's tests.
LONG = {"docs/conformance.md"}
MOST_LINES = 250
#: Variables of others, or that name nothing that a user sets.
NOT_OURS = {"TRITON_EXT_"}


def prose_of(text: str) -> str:
    """The text without blocks of code."""
    return re.sub(r"^ *(````?)[^`].*?^ *\1$|^ *```\n.*?^ *```$", "", text, flags=re.M | re.S)


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for title in re.findall(r"^#+ (.*?)\s*$", prose_of(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", plain).strip().lower().replace(" ", "-")
        count = 0
        while (name := f"{slug}-{count}" if count else slug) in found:
            count += 1
        found.add(name)
    return found


def links_of(text: str) -> list[str]:
    without_code = re.sub(r"`[^`\n]*`", "x", prose_of(text))
    return re.findall(r"\]\(([^)\s]+)\)", without_code)


def problem_of(page: str, link: str) -> str | None:
    if re.match(r"https?:|mailto:", link):
        return None
    path, _, anchor = link.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    if GENERATED.fullmatch(target):
        return f"{link}: is made by the build; link to docs/reference/index.md"
    full = ROOT / target
    if not full.exists():
        return f"{link}: no such file"
    if anchor and anchor not in anchors_of(full.read_text(encoding="utf-8")):
        return f"{link}: no such heading"
    return None


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    problems = [problem for link in links_of(text) if (problem := problem_of(page, link))]
    assert problems == []


def test_the_check_of_links_finds_what_it_should():
    text = "# A b: `c`\n\n[x](nowhere.md) [y](#a-b-c) [z](#nothing) `[q](gone.md)`\n"
    assert links_of(text) == ["nowhere.md", "#a-b-c", "#nothing"]
    assert anchors_of(text) == {"a-b-c"}
    assert problem_of("docs/faq.md", "nowhere.md") == "nowhere.md: no such file"
    assert problem_of("docs/faq.md", "index.md#nothing") == "index.md#nothing: no such heading"
    assert problem_of("docs/faq.md", "reference/triton_ext.ops.md") is not None


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_pages_are_short(page):
    if page in LONG:
        pytest.skip("longer on purpose")
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= MOST_LINES


# ---- The reference ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference_pages(tool):
    pytest.importorskip("torch", reason="the reference describes triton_ext.ops too")
    return tool.pages()


def public_packages() -> list[str]:
    """Packages with an ``__all__``, and modules at the top and of gluon that have one."""
    found = []
    package = ROOT / "python" / "triton_ext"
    paths = [package / "__init__.py", *package.rglob("*/__init__.py")]
    paths += [*package.glob("*.py"), *package.glob("gluon/*.py")]
    for path in paths:
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(["triton_ext", *(part for part in parts if part != "__init__")])
        hidden = any(part.startswith("_") for part in name.split("."))
        if not hidden and "selftest" not in parts and "tools" not in parts:
            found.append(name)
    return sorted(set(found))


def test_every_public_name_has_an_entry(tool, reference_pages):
    missing, count = [], 0
    for module in public_packages():
        for name in getattr(importlib.import_module(module), "__all__", ()):
            count += 1
            page = reference_pages.get(f"reference/{module}.md", "")
            if f"## `{name}` {{ #{tool.anchor(name)} " not in page:
                missing.append(f"{module}.{name}")
    print(f"public names with an entry: {count - len(missing)} of {count}")  # noqa: T201
    assert missing == []
    assert count > 200


def test_entries_show_signatures_and_sections(reference_pages):
    page = reference_pages["reference/triton_ext.language.md"]
    assert "def load_im2col(" in page
    assert "**Arguments**" in page
    page = reference_pages["reference/triton_ext.ops.md"]
    for word in ("def conv2d(", "- `x`: ", "**Raises**"):
        assert word in page


def test_docstrings_become_markdown(tool):
    links = {"a.f": "a.md#f"}
    text = "Calls :func:`a.f` on ``x``::\n\n    f(x)\n\nArgs:\n    x: One\n        or two.\n"
    shown = tool._markdown(text, links)
    assert shown.startswith("Calls [`f`](a.md#f) on `x`:\n\n```text\nf(x)\n```")
    assert shown.endswith("**Arguments**\n\n- `x`: One or two.")


def test_every_command_has_its_options(reference_pages):
    page = reference_pages["reference/commands.md"]
    for option in ("--selftest", "--dry-run", "--pass-pipeline", "--svg", "--no-leading-lines"):
        assert option in page
    scripts = re.search(
        r"\[project.scripts\]\n(.*?)\n\[", (ROOT / "pyproject.toml").read_text(), re.S
    )
    for name in re.findall(r"^([\w-]+) = ", scripts[1], re.MULTILINE):
        assert f"## {name} " in page


def test_every_variable_is_in_the_table():
    page = (DOCS / "reference" / "environment.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", page))
    folders = ("python", "third_party", "tools", "benchmarks", "unittest", "examples")
    read = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            read |= set(re.findall(r"\bTRITON_EXT_[A-Z_]*\b", path.read_text(encoding="utf-8")))
    assert read - NOT_OURS - listed == set()
    ours = {name for name in listed if name.startswith("TRITON_EXT_")}
    assert ours - read == set()


def error_classes() -> set[str]:
    """Classes of ours that derive from the base error, by their names in the sources."""
    bases = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    found = set()
    for folder in ("python", "third_party"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    names = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                    if names & (bases | {"HostError"}) or node.name == "TritonExtError":
                        found.add(node.name)
    return found


def test_every_error_has_cause_and_cure():
    page = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    listed = set()
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 3, row
        assert all(cells), row
        listed |= set(re.findall(r"`(\w+)`", cells[0]))
    assert error_classes() - listed == set()


def test_the_navigation_has_every_page():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"([\w/-]+\.md)$", text, re.MULTILINE))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    decisions = {page for page in pages if page.startswith("adr/")}
    assert pages - decisions - listed == set()
    assert {page for page in listed if not GENERATED.fullmatch(f"docs/{page}")} - pages == set()


def test_no_file_of_a_page_names_a_machine():
    tracked = subprocess.run(
        ["git", "ls-files", "docs", "mkdocs.yml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    for name in tracked:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"(?:^|[\s\"'(])/(?:home|work|root)/", text), name


def test_the_version_is_the_newest_of_the_changelog():
    headings = re.findall(
        r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert triton_ext.__version__ == headings[0]
