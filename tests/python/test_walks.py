"""The walks through the code in ARCHITECTURE.md name files and functions that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "ARCHITECTURE.md").read_text()
MOST_FILES = {"A hit": 10, "A store": 8, "A read from a disk": 10}


def walk(heading, document=DOCUMENT):
    """(file, its functions) of each step of a walk, in order."""
    section = re.search(rf"^### {re.escape(heading)}\n(.*?)(?=^#|\Z)", document, re.M | re.S)
    assert section, f"ARCHITECTURE.md: expected a walk {heading!r}, found none"
    steps = re.split(r"^\d+\. ", section[1], flags=re.M)[1:]
    named = [re.findall(r"`([^`]+)`", step) for step in steps]
    return [(file, functions) for file, *functions in named]


def missing(steps):
    """The files and functions of a walk that are not there."""
    lost = []
    for file, functions in steps:
        if not (ROOT / file).is_file():
            lost.append(file)
            continue
        source = (ROOT / file).read_text()
        for function in functions:
            name = re.split(r"::|\.", function)[-1]
            if not re.search(rf"\b(?:fn|def|class|__global__ void) {re.escape(name)}\b", source):
                lost.append(f"{file}: {function}")
    return lost


@pytest.mark.parametrize("heading", MOST_FILES)
def test_a_walk_names_files_and_functions_that_exist(heading):
    steps = walk(heading)
    assert all(functions for _, functions in steps)
    assert missing(steps) == []


@pytest.mark.parametrize(("heading", "most"), MOST_FILES.items())
def test_a_walk_opens_few_files(heading, most):
    assert 3 <= len({file for file, _ in walk(heading)}) <= most


def test_a_file_or_a_function_that_is_gone_is_found():
    document = (
        "### A hit\n\n1. `rust/core/src/none.rs`: `lookup`\n2. `tests/python/test_walks.py`: "
        "`walk`,\n   `Cache::gone`\n"
    )
    assert missing(walk("A hit", document)) == [
        "rust/core/src/none.rs",
        "tests/python/test_walks.py: Cache::gone",
    ]


def test_the_document_is_short():
    assert len(DOCUMENT.splitlines()) <= 220
    assert len(re.findall(r"^\| \*", DOCUMENT, re.M)) <= 40
