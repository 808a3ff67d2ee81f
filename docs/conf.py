"""Configuration of the documentation site. `./go docs` builds it from the Markdown pages of the repository.

The source folder is the root of the repository, so that README.md and CONTRIBUTING.md are pages of the site and every
relative link works in the site as it does in the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pygments.lexers.special import TextLexer

import splitrelay

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

project = "Splitrelay"
author = "The Splitrelay authors"
copyright = "2026, The Splitrelay authors. Apache-2.0"
version = release = splitrelay.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
DECISIONS = "docs/decisions/README"
API = "docs/python"  # the page that gets the reference of all public names
source_suffix = {".md": "markdown"}
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**.md"]
exclude_patterns = ["docs/site"]

# Headings get the anchors that GitHub gives them, so that links between pages work in both places.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
nitpicky = False  # type hints name classes of torch and numpy, whose pages are not part of this site

autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True

html_theme = "furo"
html_title = f"Splitrelay {release}"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"sidebar_hide_name": False}

HIDDEN = "__init__, __new__, set_fit_request, set_score_request"  # scikit-learn adds the last two
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(?:#[^)]*)?\)")
GROUP = re.compile(r"^\*\*(.+)\*\*$", re.MULTILINE)


def edit_page(app: Sphinx, page: str, content: list[str]) -> None:
    """Adapt one page to the site: its navigation, and links to folders, which are not part of the site."""
    folder = (ROOT / page).parent
    text = content[0]
    if page == root_doc:
        text += "".join(make_group(title, pages) for title, pages in list_groups(text))
    elif page == DECISIONS:
        text += make_group("Decisions", list_pages(text))
    elif page == API:
        text += make_reference()
    content[0] = LINK.sub(lambda link: link[1] if (folder / link[2]).is_dir() else link[0], text)


def list_groups(text: str) -> list[tuple[str, dict[str, str]]]:
    """Return the groups of the first page, each with the pages of its table. The changelog is added to the last."""
    parts = GROUP.split(text.split("\n## The commands")[0])[1:]
    groups = [(title, list_pages(table)) for title, table in zip(parts[::2], parts[1::2], strict=True)]
    groups[-1][1]["../CHANGELOG.md"] = "Changelog"
    return groups


def list_pages(text: str) -> dict[str, str]:
    """Return the Markdown pages to which a text links, in order, each with the text of its first link."""
    pages: dict[str, str] = {}
    for title, target in LINK.findall(text):
        if target.endswith(".md"):
            pages.setdefault(target, title)
    return pages


def make_group(title: str, pages: dict[str, str]) -> str:
    """Return a group of the navigation. The page itself does not show it."""
    lines = [f"{text} <{'/' * target.startswith('../')}{target.removeprefix('../')}>" for target, text in pages.items()]
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *lines, "```", ""])


def make_reference() -> str:
    """Return the reference of all public names, from their docstrings."""
    lines = ["", "## Reference", ""]
    for name in splitrelay.__all__:
        value = getattr(splitrelay, name)
        if isinstance(value, str | ModuleType):
            continue
        directive = ".. autoclass::" if isinstance(value, type) else ".. autofunction::"
        options = ["   :members:", f"   :exclude-members: {HIDDEN}"] if isinstance(value, type) else []
        body = [f"{directive} {value.__module__}.{value.__qualname__}", *options]
        lines += [f"### {name}", "", "```{eval-rst}", *body, "```", ""]
    return "\n".join(lines)


def keep_formulas(app: Sphinx, kind: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Show the docstrings of algorithms as they are: their formulas and hand-worked rounds are aligned text."""
    if name.startswith("splitrelay.algorithms."):
        lines[:] = ["::", "", *(f"   {line}" for line in lines), ""]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the changes of pages. Diagrams in Mermaid are shown as text: the site loads nothing from elsewhere."""
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", edit_page)
    app.connect("autodoc-process-docstring", keep_formulas, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
