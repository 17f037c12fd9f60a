"""What the site adds to `docs/`: documents of other folders, files that pages link, the commands.

Documents are written for readers of the repository, so their links lead through the repository.
Here each becomes a link within the site.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

from hybrid_pages.cli.app import app

ROOT = Path(__file__).parents[2]
OUTER = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benches/README.md": "benches.md",
    "examples/README.md": "examples.md",
    "tests/gpu/README.md": "gpu.md",
}
"""Documents outside of `docs/`, and the pages that they become."""
README = "index.md"
"""What a link to the README leads to."""
WEIGHTS = {
    "vllm.md": 4.0,
    **dict.fromkeys(("reference/", "architecture.md", "changelog.md", "contributing.md"), 0.1),
}
"""How much pages count in the search: the settings come first, what holds most words last."""

_LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
_COMMANDS = "<!-- commands -->"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the documents outside of `docs/`, and what pages link there."""
    pages = {page: (ROOT / name).read_text() for name, page in OUTER.items()}
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    texts = {
        file.src_uri: file.content_string for file in files if file.src_uri.endswith(".md")
    } | pages
    for page, text in texts.items():
        for link in _LINK.finditer(text):
            path = _in_repository(page, link[2])
            target = None if path is None else _in_site(path)
            if target is not None and files.get_file_from_path(target) is None:
                data = (ROOT / path).read_bytes()
                files.append(File.generated(config, target, content=data))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links through the repository into links within the site, and lists the commands."""
    at = page.file.src_uri
    for start, weight in WEIGHTS.items():
        if at.startswith(start):
            page.meta["search"] = {"boost": weight}

    def link(found: re.Match[str]) -> str:
        path = _in_repository(at, found[2])
        target = None if path is None else _in_site(path)
        if target is None:
            return found[0]
        relative = posixpath.relpath(target, posixpath.dirname(at) or ".")
        return f"{found[1]}{relative}{found[3] or ''}{found[4]}"

    if _COMMANDS in markdown:
        markdown = markdown.replace(_COMMANDS, _commands())
    return _LINK.sub(link, markdown)


def _in_repository(page: str, link: str) -> str | None:
    """Where a page's link leads, as a path in the repository; None if to no file there."""
    source = next((name for name, known in OUTER.items() if known == page), f"docs/{page}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return path if not path.startswith("..") and (ROOT / path).is_file() else None


def _in_site(path: str) -> str | None:
    """What a file of the repository is called in the site."""
    if path == "README.md":
        return README
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return OUTER.get(path, f"files/{path}")


def _commands() -> str:
    """The command line's own help, one heading a command."""
    os.environ["TERM"] = "dumb"
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="hybrid-pages")
    text = get_docs_for_click(obj=command, ctx=context, name="hybrid-pages")
    # Click cuts summaries short: the description of each command begins with the whole one.
    for heading, whole in re.findall(r"^#+ `([^`]+)`\n\n([^\n]+)", text, re.MULTILINE):
        name = heading.rpartition(" ")[2]
        cut = rf"^\* `{re.escape(name)}`: (.+?)\.\.\.$"
        for short in set(re.findall(cut, text, re.MULTILINE)):
            if whole.startswith(short):
                text = text.replace(f"* `{name}`: {short}...", f"* `{name}`: {whole}")
    # The page has a title of its own.
    return text.partition("\n")[2]
