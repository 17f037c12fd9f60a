"""The table of versions that tests run, against everything that says so, and what tries newer."""

import re
from pathlib import Path

import pytest

import newest
from hybrid_pages import mooncake
from hybrid_pages.vllm.versions import SUPPORTED, TESTED
from newest import LIBRARIES, Library

ROOT = Path(__file__).parents[2]
BY_NAME = {library.name: library for library in LIBRARIES}


def rows():
    """The table's cells by library."""
    text = (ROOT / "docs/limits.md").read_text()
    section = text.partition("\n## Versions\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| ([^|]+?) \| ([^|]*?) ?\| ([^|]+?) \| [^|]+ \|$", section, re.M)
    return {name: (accepted.strip("` "), tests) for name, accepted, tests in found[1:]}


def test_the_table_has_every_library_and_no_other():
    assert list(rows()) == list(BY_NAME)


@pytest.fixture(params=BY_NAME)
def library(request):
    return BY_NAME[request.param]


def test_the_table_says_what_is_accepted_and_what_tests_run(library):
    accepted, tests = rows()[library.name]
    assert accepted == library.accepted()
    assert tests == (", ".join(library.tested()) or "none")
    assert all(newest.pinned(file, library.package) for file in library.pins)


def listed(file, name):
    """What follows a name in a source file: those of adapters need their frameworks."""
    text = (ROOT / "python/hybrid_pages" / file).read_text()
    return re.search(rf"^{name} = (.*?)\n\n?(?=\S)", text, re.M | re.S)[1]


def test_the_code_s_lists_are_the_same():
    vllm = BY_NAME["vLLM"]
    assert list(TESTED) == vllm.tested() == list(SUPPORTED.tested)
    assert SUPPORTED.range == vllm.accepted()
    for name, package in (("MLX_LM", "mlx-lm"), ("MLX", "mlx")):
        (tested,) = re.findall(r"tested=\((.*?)\)", listed("mlx/versions.py", name))
        assert re.findall(r'"(.*?)"', tested) == BY_NAME[package].tested()
    assert BY_NAME["Mooncake's client"].package == mooncake.WHEEL


def test_an_extra_never_brings_what_no_test_has_run(library):
    """Its range begins and ends with lines of which tests run a version."""
    asked = dict(re.findall(r"(==|>=|<)([\d.]+)", library.accepted()))
    lines = [tuple(map(int, each.split(".")[:2])) for each in library.tested()]
    if library.manifest or not lines or not asked:
        assert library.suite is None or library.manifest
        return
    if "==" in asked:
        assert asked["=="] == library.tested()[-1]
        return
    assert tuple(map(int, asked[">="].split(".")[:2])) == lines[0]
    assert tuple(map(int, asked["<"].split("."))) == (lines[-1][0], lines[-1][1] + 1)


@pytest.fixture
def offered(monkeypatch):
    """A library whose index offers what the test says."""

    def offer(version, status=0, suite=True):
        ran = []

        def run(library, version):
            ran.append(version)
            return status

        monkeypatch.setattr(Library, "tested", lambda self: ["1.0"])
        monkeypatch.setattr(Library, "newest", lambda self: version)
        library = Library("a library", "it", suite=run if suite else None)
        monkeypatch.setattr(newest, "LIBRARIES", (library,))
        return ran

    return offer


@pytest.mark.parametrize(
    ("version", "status", "words", "ran", "said"),
    [
        ("1.0", 0, [], [], "tests run it"),
        ("1.0", 0, ["--all", "it"], ["1.0"], "passed"),
        ("1.1", 0, [], ["1.1"], "passed"),
        ("1.1", 3, ["it"], ["1.1"], "FAILED with status 3"),
    ],
)
def test_the_command_tries_what_no_test_has_run(offered, capsys, version, status, words, ran, said):
    tried = offered(version, status)
    assert newest.main(words) == (1 if status else 0)
    assert tried == ran
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(rf"a library +1\.0 +{version} +{said}", last)


def test_an_index_that_does_not_answer_is_a_failure(offered, monkeypatch, capsys):
    offered("1.1")
    monkeypatch.setattr(Library, "newest", lambda self: newest.run(["/nowhere/uv"]))
    assert newest.main([]) == 1
    assert "FAILED: " in capsys.readouterr().out.splitlines()[-1]


def test_a_name_that_is_no_library_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        newest.main(["nonsense"])
    assert ended.value.code == 2
    assert "expected some of vllm, transformers" in capsys.readouterr().err
