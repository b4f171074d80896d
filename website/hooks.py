"""What mkdocs.yml cannot say: pages made from the repository, links that lead out of docs/, no load from the network.

Pages outside docs/ (README, changelog, ...) become pages of the site. Another file that a page links to is copied to
`files/`. So every link works in the folder that `make docs` writes, without a network.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from posixpath import dirname, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))

import cards  # noqa: E402
import notebooks  # noqa: E402
import reference  # noqa: E402

PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "results/README.md": "results-data.md",
    "bench/README.md": "bench.md",
    "examples/serve/README.md": "serve.md",
}
"""files of the repository, and the pages that they become"""
SOURCES = {page: source for source, page in PAGES.items()}
LINK = re.compile(r"\[([^]]*)\]\(([^)\s#:]+)(#[\w-]+)?\)")
FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)
LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(https?:)?//|<link\b[^>]*\bhref=\"?(https?:)?//[^>]*>"
)


def on_config(config: MkDocsConfig) -> None:
    """The made sections come after the guides."""
    config.nav[2:2] = [{"Methods": cards.nav()}, {"Reference": reference.nav()}]  # type: ignore[index]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for folder, made in (("methods", cards.pages()), ("reference", reference.pages())):
        for name, text in made.items():
            files.append(File.generated(config, f"{folder}/{name}.md", content=text))
    for path in notebooks.notebooks():
        text, pictures = notebooks.page(path)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    for asset in ("website/style.css", "website/iframe-worker.js"):
        files.append(File.generated(config, asset, abs_src_path=str(ROOT / asset)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of a page outside docs/, or out of docs/, as links of the site. Code is left alone."""
    source = Path(SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}"))

    def of_the_site(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / found[2]))
        if (where := _page_of(target, config, files)) is None:
            return found[1]  # a folder
        return f"[{found[1]}]({relpath(where, dirname(page.file.src_uri))}{found[3] or ''})"

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(of_the_site, part) for part in parts)


def _page_of(target: Path, config: MkDocsConfig, files: Files) -> str | None:
    """Where a file of the repository is on the site; one that is not there yet is added."""
    if str(target) in PAGES:
        return PAGES[str(target)]
    if (ROOT / target / "README.md").is_file():
        return _page_of(target / "README.md", config, files)
    if (ROOT / target).is_dir():
        return None
    if target.parts[0] == "docs":
        inside = target.relative_to("docs")
        return str(inside.with_suffix(".md") if inside.suffix == ".ipynb" else inside)
    where = f"files/{target}" + (".txt" if target.suffix == ".md" else "")
    if files.get_file_from_path(where) is None:
        files.append(File.generated(config, where, abs_src_path=str(ROOT / target)))
    return where


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Refuse a page that would load something from the network."""
    for page in Path(config.site_dir).rglob("*.html"):
        for found in LOADED.finditer(page.read_text()):
            raise PluginError(f"{page} loads {found[0]}")
