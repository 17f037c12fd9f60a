"""The command line as a whole: ``--json`` everywhere, completion, usage, without its library."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

import hybrid_pages
from hybrid_pages import cli

COMMANDS = [
    ["info"],
    ["demo"],
    ["serve"],
    ["lab", "replay"],
    ["lab", "route"],
    ["lab", "scale"],
    ["store", "inspect"],
    ["store", "verify"],
    ["store", "gc"],
    ["key", "new"],
    ["key", "destroy"],
    ["plan"],
    ["doctor"],
    ["verify"],
    ["top"],
    ["warm"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_and_has_json(capsys, command):
    assert cli.main([*command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert "--json" in printed
    assert f"hybrid-pages {' '.join(command)}" in printed


def test_the_package_runs_as_a_module():
    words = [sys.executable, "-m", "hybrid_pages", "plan", "/nonexistent"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "hybrid-pages plan: /nonexistent: expected a model's folder" in done.stderr


def test_no_command_is_left_out(capsys):
    assert cli.main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert {command[0] for command in COMMANDS} | {"mlx-server", "vllm-mlx"} == {
        line.split()[1]
        for line in printed.splitlines()
        if line.startswith("│ ") and line[2].islower()
    } - {""}


@pytest.mark.parametrize("name", ["replay", "route", "scale"])
def test_old_names_of_the_labs_commands_work_and_are_not_listed(capsys, name):
    assert cli.main([name, "--help"]) == 0
    old = capsys.readouterr().out
    assert cli.main(["lab", name, "--help"]) == 0
    assert capsys.readouterr().out.split("\n", 2)[2] == old.split("\n", 2)[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_completion(shell):
    done = subprocess.run(
        [sys.executable, "-c", "from hybrid_pages.cli import main; main()"],
        env={"_HYBRID_PAGES_COMPLETE": f"source_{shell}", "PATH": "/usr/bin:/bin"}
        | {"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "hybrid-pages" in done.stdout, done


def test_without_its_library_it_says_what_to_install():
    code = (
        "import sys; sys.modules['typer'] = None; sys.modules['rich'] = None\n"
        "from hybrid_pages.cli import main; sys.exit(main(sys.argv[1:]))"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60
        )

    done = run("info")
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'hybrid-pages[cli]'" in done.stderr
    assert run("--version").stdout == f"hybrid-pages {hybrid_pages.__version__}\n"


def test_mlx_server_needs_no_library_and_gets_its_words_as_they_are():
    code = (
        "import sys, types; sys.modules['typer'] = None; sys.modules['rich'] = None\n"
        "for name in ('hybrid_pages.mlx', 'hybrid_pages.mlx.server'):\n"
        "    sys.modules[name] = types.ModuleType(name)\n"
        "sys.modules['hybrid_pages.mlx.server'].main = lambda words: print(words) or 7\n"
        "from hybrid_pages.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["org/model", "--help", "--temp", "0.5", "--", "--json", "-h"]
    done = subprocess.run(
        [sys.executable, "-c", code, "mlx-server", *words],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (7, f"{words}\n"), done


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["plann"], "Did you mean 'plan'?"),
        (["info", "--jsn"], "--json"),
        (["store"], "usage: hybrid-pages store"),
        (["lab", "replay"], "TRACE"),
        (
            ["lab", "replay", "t", "--ratio", "3", "--model", "m"],
            "argument --model: not allowed with argument --ratio",
        ),
        (
            ["lab", "replay", "t", "--disk", "5%", "--remote", "1ms,1GB/s"],
            "argument --remote: not allowed with argument --disk",
        ),
        (
            ["lab", "scale", "t", "--ratio", "3", "--model", "m"],
            "argument --model: not allowed with argument --ratio",
        ),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_one(capsys, words, reason):
    with pytest.raises(SystemExit) as exit_:
        cli.main(words)
    assert exit_.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert reason in printed.err
    assert printed.err.startswith("usage: hybrid-pages")


@pytest.mark.parametrize("words", ["info", "plan --help", "--help"])
@pytest.mark.parametrize("place", ["| true", "> /dev/full"])
def test_output_that_cannot_be_printed_is_no_finding(words, place):
    command = f"{sys.executable} -m hybrid_pages {words} {place}"
    shell = ["bash", "-c", f"set -o pipefail; {command}"]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done
    assert ("cannot print" in done.stderr) == (place == "> /dev/full")


def test_an_error_of_something_else_is_not_one_of_the_output(monkeypatch):
    def refuse(words):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(cli, "_run", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        cli.main(["info"])


def test_a_locale_without_a_letter_gets_another():
    done = subprocess.run(
        [sys.executable, "-m", "hybrid_pages", "plan", "--help"],
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
