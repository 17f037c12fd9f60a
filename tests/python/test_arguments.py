"""Numbers on the command line: a wrong one is a line of usage, before anything is loaded."""

import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hybrid_pages import arguments, cli
from hybrid_pages.adapter import memory
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.demo import main as demo
from hybrid_pages.demo import serve
from hybrid_pages.verify import main as verify

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
    line = refusal(capsys, "lab", "replay", "trace.jsonl", option, word)
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


def test_no_size_is_above_the_memory_that_is_free(capsys, monkeypatch, nothing_happens):
    """The machine has more, but a control group or other processes leave less."""
    free = memory.Free(1 << 29, "what the memory limit of the control group /x leaves")
    monkeypatch.setattr(arguments, "free_memory", lambda: free)
    for command in ("demo", "serve"):
        line = refusal(capsys, command, "--host-gb", "0.75")
        assert f"--host-gb: expected at most {free.limit}, 0.5 GiB, found '0.75': lower it" in line
    assert arguments.gib(0.01)("0.5") == 0.5


def said(capsys, *words):
    """The last line of what is printed about a command that ends at once, whoever noticed."""
    try:
        status = cli.main(list(map(str, words)))
    except SystemExit as exit_:
        status = exit_.code
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert "Traceback" not in printed.err
    return printed.err.splitlines()[-1]


CONFIG = Path(__file__).parents[2] / "docs/models/configs/qwen3.6-27b.json"
TRACE = Path(__file__).parents[1] / "data/mooncake_conversation_trace.jsonl.zst"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["plan", ""], "MODEL: expected a name, found ''"),
        (["plan", CONFIG, "--revision", ""], "--revision: expected a name, found ''"),
        (["store", "inspect", ""], "PATH: expected a name, found ''"),
        (["store", "gc", "/no/where"], "expected a directory of this user, found none: name the"),
        (
            ["lab", "replay", TRACE, "--disk-policy", "lru"],
            "--disk-policy lru: expected --disk beside it, found none",
        ),
        (["top", "--once", "--url", ""], "name the one that `vllm serve` listens on"),
        *(
            (
                ["lab", command, path],
                f"TRACE: expected a file that can be read, found '{path}' ({why})",
            )
            for command in ("replay", "route", "scale")
            for path, why in (
                ("/no/where", "No such file or directory"),
                ("/tmp", "Is a directory"),
            )
        ),
        *(
            ([*command, "--plot", path], f"--plot: expected {why}")
            for command in (["plan", CONFIG], ["lab", "replay", TRACE], ["lab", "scale", TRACE])
            for path, why in (
                ("/no/where/it.png", "a folder that exists, found /no/where"),
                ("it.doc", "a name that ends in .png, .pdf, .svg, found it.doc"),
                ("", "a name that ends in"),
            )
        ),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_what_comes_to_nothing_or_cannot_be_used_is_one_line(capsys, words, line):
    assert line in said(capsys, *words)


@pytest.mark.parametrize("command", ["plan", "lab replay", "lab scale"])
def test_a_picture_that_cannot_be_written_is_refused_before_it_is_computed(
    capsys, tmp_path, command
):
    (tmp_path / "folder.png").mkdir()
    target = CONFIG if command == "plan" else TRACE
    line = said(capsys, *command.split(), target, "--plot", tmp_path / "folder.png")
    assert "--plot: expected a file that can be written, found " in line


def verify_of(tmp_path, **more):
    given = dict(model="m", vllm=[], json=None, markdown=None, scratch=None, questions=None)
    return SimpleNamespace(**given | {"answer_tokens": None} | more)


def test_verify_refuses_what_comes_to_nothing(tmp_path, monkeypatch):
    verify._check(verify_of(tmp_path, scratch=tmp_path))
    verify._check(verify_of(tmp_path, answer_tokens=9, questions=tmp_path))
    with pytest.raises(SettingsError, match=r"^--answer-tokens 9: expected --questions beside it"):
        verify._check(verify_of(tmp_path, answer_tokens=9))
    with pytest.raises(arguments.WrongArgument, match=r"^MODEL: expected a name, found ''"):
        verify._check(verify_of(tmp_path, model=""))
    monkeypatch.setattr(verify.os, "access", lambda path, mode: False)  # tests may run as root
    with pytest.raises(SettingsError, match=r"^--scratch: expected a directory to write in, found"):
        verify._check(verify_of(tmp_path, scratch=tmp_path))


def test_a_port_where_nothing_can_listen_is_refused(monkeypatch, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert serve.run(SimpleNamespace(port=port)) == 2
    line = capsys.readouterr().err
    assert line == (
        f"hybrid-pages serve: --port: expected a free port, found {port} in use on 127.0.0.1: end "
        "what listens there, or choose another with --port\n"
    )
    arguments.require_port("127.0.0.1", port)
    for host in ("nowhere.invalid", "a" * 70, "192.0.2.1"):
        with pytest.raises(arguments.WrongArgument, match=r"^--host: expected a"):
            arguments.require_port(host, port)

    def forbidden(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", forbidden)
    with pytest.raises(arguments.WrongArgument, match=r"^--port: .* may listen on, found 80: "):
        arguments.require_port("127.0.0.1", 80)
