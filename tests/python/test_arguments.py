"""Numbers on the command line: a wrong one is a line of usage, before anything is loaded."""

import sys

import pytest

from hybrid_pages import arguments, cli
from hybrid_pages.adapter import memory
from hybrid_pages.demo import main as demo

NO_SIZES = ["-1", "0", "-0.0", "nan", "inf", "1e30", "1e-9", "abc", "", "1GiB", "9" * 5000]
NO_COUNTS = ["-1", "0", "1.5", "1001", "1e2", "nan", "abc", "", "1_0", "٣", "9" * 5000]


@pytest.fixture
def nothing_happens(monkeypatch):
    def happened(*words, **options):
        raise AssertionError("the demo began")

    for name in ("ensure", "DemoEngine"):
        monkeypatch.setattr(demo, name, happened)
    for module in ("torch", "vllm"):
        monkeypatch.setitem(sys.modules, module, None)


def refusal(capsys, *words):
    """The last line of what is printed about a command line that is refused."""
    with pytest.raises(SystemExit) as exit_:
        cli.main(words)
    printed = capsys.readouterr()
    assert (exit_.value.code, printed.out) == (2, "")
    assert "Traceback" not in printed.err
    return printed.err.splitlines()[-1]


@pytest.mark.parametrize("word", NO_SIZES)
def test_the_demo_refuses_a_size_that_is_none(capsys, nothing_happens, word):
    line = refusal(capsys, "demo", "--host-gb", word)
    assert "argument --host-gb: expected a size in GiB from 0.01 to " in line
    assert line.endswith(f"found {arguments.reprlib.repr(word)}")


@pytest.mark.parametrize("word", NO_COUNTS)
def test_the_demo_refuses_a_number_of_runs_that_is_none(capsys, nothing_happens, word):
    line = refusal(capsys, "demo", "--runs", word)
    assert "argument --runs: expected a whole number from 1 to 1000, found " in line


@pytest.mark.parametrize("option", ["--ratio", "--trace-block"])
@pytest.mark.parametrize("word", [*NO_COUNTS[:3], "1048576", *NO_COUNTS[4:]])
def test_the_lab_refuses_a_number_that_is_none(capsys, option, word):
    line = refusal(capsys, "replay", "trace.jsonl", option, word)
    assert f"argument {option}: expected a whole number from 1 to 1048575, found " in line


def test_numbers_in_range_are_read():
    assert [arguments.whole(1000)(word) for word in ("1", "007", "1000")] == [1, 7, 1000]
    assert [arguments.gib(0.01)(word) for word in ("0.01", "1e-1", ".25")] == [0.01, 0.1, 0.25]


def test_no_size_is_above_the_memory_of_the_machine(monkeypatch):
    machine = {"SC_PHYS_PAGES": 1 << 20, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(memory.os, "sysconf", machine.get)
    assert arguments.gib(0.01)("4") == 4
    with pytest.raises(Exception, match=r"from 0.01 to 4.00, this machine's memory, found '4.01'"):
        arguments.gib(0.01)("4.01")
