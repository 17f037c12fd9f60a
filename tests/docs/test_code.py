"""The code in the documents runs: blocks of Python, and commands with what they print.

A block marked ``python`` runs, all of a document in one after another. In a block marked
``console``, lines behind ``$`` run in a shell at the root of the repository, and what they print
has to be what stands below them, where a line ``...`` stands for any lines. Blocks that are
indented or marked otherwise are only shown.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "benches/*.md")
    for path in ROOT.glob(pattern)
)
# Documents whose Python needs more than this environment has, and the tests that run it.
ELSEWHERE = {
    "docs/batch.md": "tests/batch/test_document.py",
    "docs/transformers.md": "tests/transformers/test_document.py",
    "docs/weight-updates.md": "tests/engine/test_weight_updates.py",
}
# A line behind `$`, with those that a backslash continues, and what stands below it.
COMMAND = re.compile(r"^\$ (.*(?:(?<=\\)\n.*)*)\n((?:(?!\$ ).*\n?)*)", re.MULTILINE)


def run(command: str) -> str:
    """What a command prints. It may end with any status: the document shows what it says."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plain = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "PATH": path}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env={**os.environ, **plain},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.stdout


def matches(printed: str, expected: str) -> bool:
    """Whether it is what was expected, ends of lines apart."""

    def lines(text: str) -> list[str]:
        return [line.rstrip() for line in text.strip("\n").splitlines()]

    parts = [re.escape(line) + "\n" if line != "..." else r"(?:.*\n)*?" for line in lines(expected)]
    return re.fullmatch("".join(parts), "".join(line + "\n" for line in lines(printed))) is not None


def console(example: Example) -> str | None:
    """Runs a block's commands."""
    complaints = []
    for command, expected in COMMAND.findall(example.parsed):
        printed = run(command)
        if not matches(printed, expected):
            complaints.append(f"$ {command}\nexpected:\n{expected}\nprinted:\n{printed}")
    return "\n".join(complaints) or None


BLOCKS = Sybil(
    parsers=[PythonCodeBlockParser(), CodeBlockParser(language="console", evaluator=console)]
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_the_code_of_a_document_runs(document):
    examples = list(BLOCKS.parse(ROOT / document).examples())
    elsewhere = ELSEWHERE.get(str(document))
    if elsewhere is not None:
        assert examples and document.name in (ROOT / elsewhere).read_text()
        return
    for example in examples:
        example.evaluate()


def test_a_command_that_prints_something_else_is_found():
    shown = "a\n...\nd\n"
    assert matches("a\nb\nc\nd\n", shown)
    assert matches("a\nd\n", shown)
    assert not matches("a\nb\nc\n", shown)
    assert not matches("a\nb\nd\ne\n", shown)
    assert matches(run("echo $((1 + 1))"), "2\n")
