"""The site of the documents: strict, whole, searchable, and without a network."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag
from xml.etree import ElementTree

import pytest
import typer.main

import hybrid_pages
from hybrid_pages.cli.app import app

ROOT = Path(__file__).parents[2]
# What a browser fetches by itself, by element.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src"}


class Fetches(HTMLParser):
    """What a page loads, and which anchors it has."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.images, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if given.get("id"):
            self.anchors.add(given["id"])
        if tag in FETCHED and given.get(FETCHED[tag]):
            self.loads.append(given[FETCHED[tag]])
        if tag == "link" and {"stylesheet", "preconnect", "preload", "icon"} & set(
            given.get("rel", "").split()
        ):
            self.loads.append(given["href"])
        if tag == "img":
            self.images.append(given)


@pytest.fixture(scope="module")
def pages(site):
    return {path: Fetches(path.read_text()) for path in site.rglob("*.html")}


def test_pages_load_nothing_from_elsewhere(site, pages):
    loads = {(path, load) for path, page in pages.items() for load in page.loads}
    assert [load for _, load in loads if re.match(r"([a-z]+:)?//", load)] == []
    missing = [
        (path, load)
        for path, load in loads
        if path.name != "404.html" and not (path.parent / urldefrag(load)[0].split("?")[0]).exists()
    ]
    assert missing == []


def test_styles_and_pictures_load_nothing_from_elsewhere(site):
    for path in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        text = path.read_text()
        assert not re.search(r"""(@import|url\(|href=)\s*["']?(https?:)?//""", text), path
        if path.suffix == ".svg":
            assert ElementTree.fromstring(text).get("viewBox"), path


def test_every_picture_says_what_it_shows(pages):
    silent = [
        (path.name, image["src"])
        for path, page in pages.items()
        for image in page.images
        if len(image.get("alt") or "") < 20
    ]
    assert silent == []


def test_every_picture_is_shown():
    shown = {
        (path.parent / link).resolve()
        for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", path.read_text())
    }
    kept = {
        path
        for end in ("svg", "png", "jpg")
        for path in (ROOT / "docs").resolve().rglob(f"*.{end}")
    }
    assert kept == shown


def test_a_phone_scales_the_pages(pages, site):
    for path in pages:
        assert 'name="viewport" content="width=device-width' in path.read_text(), path


def test_the_search_knows_every_page(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {urldefrag(entry["location"])[0] for entry in index["docs"]}
    written = {str(path.relative_to(site)) for path in site.rglob("*.html")} - {"404.html"}
    assert found == written
    texts = {entry["location"]: entry["text"] for entry in index["docs"]}
    assert any("host_gb" in text for at, text in texts.items() if at.startswith("vllm.html"))


def test_the_search_puts_settings_first_and_the_reference_behind_guides(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    weights = {
        urldefrag(entry["location"])[0]: entry["boost"]
        for entry in index["docs"]
        if entry.get("boost", 1) != 1
    }
    assert [page for page, weight in weights.items() if weight > 1] == ["vllm.html"]
    assert "changelog.html" in weights
    references = {str(path.relative_to(site)) for path in (site / "reference").glob("*.html")}
    assert references < set(weights)


def test_the_reference_has_every_public_name(pages, site):
    names = [name for name in hybrid_pages.__all__ if not name.startswith("__")]
    anchors = {
        name.rpartition(".")[2] for name in pages[site / "reference" / "python.html"].anchors
    }
    assert set(names) - anchors == set()


@pytest.mark.parametrize("module", ["cuda", "transformers", "mlx", "batch"])
def test_the_reference_has_every_public_name_of_a_module(module, pages, site):
    source = (ROOT / "python" / "hybrid_pages" / module / "__init__.py").read_text()
    names = re.search(r"__all__ = (\[.*?\])", source, re.DOTALL).group(1)
    wanted = {f"hybrid_pages.{module}.{name}" for name in re.findall(r'"(\w+)"', names)}
    assert wanted
    assert wanted - pages[site / "reference" / f"{module}.html"].anchors == set()


def test_the_reference_has_every_command_and_option(site):
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "commands.html").read_text())
    commands = typer.main.get_command(app).commands
    group = commands["lab"].commands
    commands = commands | {f"lab {name}": command for name, command in group.items()}
    for name, command in commands.items():
        if command.hidden:
            continue
        assert f"hybrid-pages {name}" in text
        for option in command.params:
            assert all(word in text for word in option.opts if word.startswith("--")), option.opts


def test_no_summary_of_a_command_is_cut_short(site):
    page = (site / "reference" / "commands.html").read_text()
    assert re.findall(r"<li><code>[a-z-]+</code>: [^<]+\.\.\.</li>", page) == []


def test_docstrings_show_no_markup_of_another_tool(site):
    for path in (site / "reference").glob("*.html"):
        text = re.sub(r"<[^>]+>", "", path.read_text())
        assert not re.search(r":(class|func|meth|mod|attr):", text), path.name


def test_drawings_and_tables_are_current(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools" / "docs")
    import drawings
    import figures
    import models

    for name, draw in drawings.DRAWINGS.items():
        written = (drawings.IMAGES / f"{name}.svg").read_text()
        assert draw().text() == written, "run `make docs-pages`"
    for page in models.MODELS.glob("*.md"):
        assert models.current(page.read_text()) == page.read_text(), "run `make docs-pages`"
    page, front = figures.PAGE.read_text(), figures.FRONT.read_text()
    assert figures.current(page) == page, "run `make docs-pages`"
    assert figures.front(front) == front, "run `make docs-pages`"
    assert front.count("Prompt tokens that chats compute") == front.count("<!-- resume -->") == 1


def test_every_result_is_shown(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools" / "docs")
    import figures

    page = figures.PAGE.read_text()
    samples = set(re.findall(r"\]\(results/(.+)\.json\)", page))
    found = {path.stem for path in figures.RESULTS.glob("*.json")}
    assert found - {"test-long", "prove"} == set(figures.named(page)) | samples


def test_every_family_has_a_page():
    families = (ROOT / "docs" / "families.md").read_text()
    rows = re.findall(r"^\| (?!family|---)(.+?) \|", families, re.MULTILINE)
    linked = {re.fullmatch(r"\[.+\]\((models/[\w.-]+\.md)\)", row)[1] for row in rows}
    pages = {f"models/{page.name}" for page in (ROOT / "docs" / "models").glob("*.md")}
    assert linked == pages
