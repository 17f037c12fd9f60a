"""``hybrid-pages store``: what operators see of a disk path, and what it leaves alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hybrid_pages import DiskTree, InvalidArgumentError
from hybrid_pages.cli import main
from test_disk import Process

ABOUT = {
    "config": json.dumps({"architectures": ["Qwen3NextForCausalLM"]}),
    "vllm": "0.32.0",
    "weights": "ab" * 32,
    "ranks": 1,
}
OTHER = bytes(32)
CALL = "import sys; from hybrid_pages.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A disk path with two identities, that no process uses."""
    path = tmp_path / "disk"
    for identity, about in ((OTHER, ABOUT | {"vllm": "0.31.0"}), (bytes(range(32)), ABOUT)):
        process = Process(path, identity)
        process.disk.describe(json.dumps(about))
        process.store("abc")
        process.disk.close()
    for file in (path / "lane-0" / OTHER.hex()).iterdir():
        os.utime(file, (10**9, 10**9))
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert main(["store", *words]) == status
    captured = capsys.readouterr()
    return captured.out if status < 2 else captured.err


def told(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, *words, "--json", status=status))
    return found


def damage(path: Path) -> None:
    slab = path / "lane-0" / OTHER.hex() / "class-0.slab"
    data = bytearray(slab.read_bytes())
    data[4096] ^= 1
    slab.write_bytes(data)
    os.utime(slab, (10**9, 10**9))  # its identity stays the older one


def test_inspect_shows_what_is_there(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "inspect", str(path))
    first, lane, newest, about, oldest, _, difference = text.splitlines()
    assert first.startswith(f"{path}: ") and first.endswith(" in 1 lane")
    assert lane == "lane-0: not in use"
    assert newest.split()[0] == bytes(range(32)).hex()[:12]
    assert "Qwen3NextForCausalLM, vllm 0.32.0, weights abababababab" in about
    assert oldest.split()[0] == "0" * 12 and "2001-09-09" in oldest
    assert difference.endswith("differs from 000102030405 in: vllm (0.31.0, not 0.32.0)")
    found = told(capsys, "inspect", str(path))
    [lane_] = found["lanes"]
    identities = lane_["identities"]
    assert [it["identity"] for it in identities] == [OTHER.hex(), bytes(range(32)).hex()]
    assert identities[1]["about"] == ABOUT
    assert identities[1]["entries"] == sum(entries for entries, _ in identities[1]["classes"]) > 0
    assert lane_["process"] is None


def test_a_running_engine_is_named_and_not_disturbed(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = Process(path)
    assert f"in use by process {os.getpid()}" in said(capsys, "inspect", str(path))
    assert told(capsys, "verify", str(path))["identities"][1]["good"] > 0
    done = told(capsys, "gc", str(path), "--unused-for", "1")
    assert done["busy"] == [["lane-0", os.getpid()]]
    assert done["removed"] == []
    assert process.restore("abc") == 3
    process.disk.close()


def test_verify_names_what_is_bad(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "BAD" not in said(capsys, "verify", str(path))
    damage(path)
    text = said(capsys, "verify", str(path), status=1)
    assert "1 BAD (1 checksum)" in text
    assert "class 0, block 0, cell 0: checksum" in text
    [bad, good] = told(capsys, "verify", str(path), status=1)["identities"]
    assert bad["bad"] == [{"class": 0, "block": 0, "cell": 0, "reason": "checksum"}]
    assert good["bad"] == []
    (path / "lane-0" / OTHER.hex() / "index.redb").write_bytes(b"none")
    assert "its index can't be read" in said(capsys, "verify", str(path), status=1)
    assert "its index can't be read" in said(capsys, "inspect", str(path))


def test_gc_removes_what_it_is_told_to(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lane = path / "lane-0"
    cleared = lane / f"cleared-{'0' * 32}"
    cleared.mkdir()
    (cleared / "class-0.slab").write_bytes(bytes(9000))
    text = said(capsys, "gc", str(path), "--dry-run", "--unused-for", "30")
    assert "would remove" in text and OTHER.hex() in text and cleared.name in text
    assert cleared.exists()
    assert cleared.name in said(capsys, "gc", str(path))
    assert not cleared.exists() and (lane / OTHER.hex()).exists()
    assert OTHER.hex() in said(capsys, "gc", str(path), "--unused-for", "30")
    assert not (lane / OTHER.hex()).exists()
    done = told(capsys, "gc", str(path), "--lanes", "1")
    assert done == {"path": str(path), "dry_run": False, "removed": [], "busy": [], "failed": []}
    process = Process(path)
    assert process.restore("abc") == 3
    process.disk.close()


def test_what_cannot_be_removed_is_said(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = path / "lane-0" / OTHER.hex() / "folder"
    foreign.mkdir()
    os.utime(foreign.parent, (10**9, 10**9))
    text = said(capsys, "gc", str(path), "--unused-for", "30", status=1)
    assert f"can't be removed: lane-0/{OTHER.hex()}" in text


def test_what_is_no_disk_path_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for action in ("inspect", "verify", "gc"):
        assert "expected" in said(capsys, action, str(tmp_path / "none"), status=2)
        error = said(capsys, action, str(tmp_path), status=2)
        assert "hybrid-pages disk store, format 1" in error
    assert list(tmp_path.iterdir()) == []


ODD = [
    "[" * 100_000,
    '{"config": "{\\"architectures\\": {\\"a\\": 1}}"}',
    '{"config": "[1]", "vllm": "\\ud800", "a": NaN, "b": 1e999}',
    '{"vllm": "\\u001b[31m\\u0007", "x\\nlane-9: not in use": 1}',
    "\\x00",
]


@pytest.mark.parametrize("about", ODD)
def test_whatever_is_written_down_is_shown_or_left_out(
    path: Path, capsys: pytest.CaptureFixture[str], about: str
) -> None:
    for identity in (OTHER, bytes(range(32))):
        (path / "lane-0" / identity.hex() / "about.json").write_text(about)
    (path / "lane-0" / OTHER.hex() / "about.json").write_text('{"vllm": "0.31.0"}')
    text = said(capsys, "inspect", str(path))
    assert text.replace("\n", "").isprintable()
    assert text.encode()
    assert sum(line.startswith("lane-") for line in text.splitlines()) == 1
    assert told(capsys, "inspect", str(path))["lanes"]
    said(capsys, "verify", str(path))


@pytest.mark.parametrize("place", ["| true", "> /dev/full"])
def test_output_that_nobody_takes_is_no_damage(path: Path, place: str) -> None:
    command = f"{sys.executable} -c {CALL!r} store inspect {path} {place}"
    shell = ["bash", "-c", f"set -o pipefail; sleep 0.1; {command}"]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 2), done
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_what_goes_while_it_is_looked_at_is_left_out(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tree:
        def __init__(self, path: str) -> None:
            self.tree = DiskTree(path)

        def lanes(self) -> Any:
            return self.tree.lanes()

        def verify(self, lane: str, identity: str, *rest: Any, **keys: Any) -> Any:
            shutil.rmtree(path / "lane-0" / OTHER.hex(), ignore_errors=True)
            return self.tree.verify(lane, identity, *rest, **keys)

    monkeypatch.setattr("hybrid_pages.store.main.DiskTree", Tree)
    [left] = told(capsys, "verify", str(path))["identities"]
    assert left["identity"] == bytes(range(32)).hex() and left["good"] > 0


@pytest.mark.parametrize("words", [["--lanes", "0"], ["--unused-for", "-1"], ["--unused-for", "x"]])
def test_wrong_numbers_are_lines_of_usage(path: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["store", "gc", str(path), *words])
    assert exit_.value.code == 2
    with pytest.raises(InvalidArgumentError):
        DiskTree(path).collect(unused_seconds=-1.0)


def test_what_progress_raises_ends_a_verification(path: Path) -> None:
    def progress(done: int, total: int) -> None:
        assert 0 < done <= total
        raise KeyError(done)

    with pytest.raises(KeyError):
        DiskTree(path).verify("lane-0", OTHER.hex(), progress)


def test_a_verification_can_be_interrupted(path: Path) -> None:
    code = (
        "import os, signal, sys; from hybrid_pages.store import main as store\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background\n"
        "from hybrid_pages.cli import main\n"
        "store.DiskTree = lambda path: Tree(path)\n"
        "from hybrid_pages import DiskTree\n"
        "class Tree:\n"
        "    def __init__(self, path):\n"
        "        self.tree = DiskTree(path)\n"
        "        self.lanes = self.tree.lanes\n"
        "    def verify(self, *args, **keys):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        return self.tree.verify(*args, **keys)\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "store", "verify", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (
        130,
        ["hybrid-pages store verify: interrupted"],
    ), (done, signal.SIGINT)
