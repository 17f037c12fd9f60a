"""A Mooncake tier over a client that fails as no real one can be made to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hybrid_pages import InvalidArgumentError
from hybrid_pages._core import Mooncake
from mooncake_support import IDENTITY, Process, hybrid, keys, wait

FAKE = Path(__file__).parent / "fake_mooncake"


class Fake:
    """A store in a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process(self, **settings) -> Process:
        environment = {"FAKE_MOONCAKE": str(self.folder)}
        return Process("127.0.0.1:1", environment=environment, **settings)

    def fail(self, call: str, how: str) -> None:
        (self.folder / "new").write_text(how)
        (self.folder / "new").rename(self.folder / f"fault-{call}")

    def mend(self) -> None:
        for fault in self.folder.glob("fault-*"):
            fault.unlink()

    def values(self) -> list[Path]:
        return sorted(self.folder.glob("hp*"))


@pytest.fixture
def fake(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FAKE))
    return Fake(tmp_path)


def test_what_one_process_writes_another_reads(fake):
    first, second = fake.process(), fake.process()
    first.store("abc")
    assert (first.stats()["writes"], len(fake.values())) == (4, 4)
    assert second.restore("abcd") == 3
    assert (second.stats()["reads"], second.stats()["hits"]) == (4, 4)
    assert second.restore("xyz") == 0
    assert first.failures() == second.failures() == {}


FORKED = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from cache_support import use_in_a_fork
from test_mooncake import Fake

process = Fake(Path(sys.argv[3])).process()
process.store("abc")
use_in_a_fork(process)
"""


def test_a_forked_process_goes_on_without_the_store(fake):
    folders = [str(Path(__file__).parent), str(FAKE)]
    command = [sys.executable, "-c", FORKED, *folders, str(fake.folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(FAKE)])}
    subprocess.run(command, env=environment, check=True, timeout=60)


def test_another_process_learns_how_long_tails_are(fake):
    first = fake.process()
    for prompt in ("abC", "abE", "O"):
        first.store(prompt)
    assert first.stats()["writes"] == 2 + 3 * 2
    assert len(fake.values()) == 2 + 3 * 2 + 4  # and two marks behind each block that has tails
    second = fake.process()

    def told(asked):
        wait("the store has answered", lambda: not asked()[1])
        return asked()[0]

    def lengths(prompt):
        return told(lambda: second.cache.tail_lengths(second.namespace, keys(prompt)))

    def has(prompt):
        *before, tail = keys(prompt)
        return told(lambda: second.cache.has_tails(second.namespace, len(before), [tail])) == [True]

    some = list(range(1, 16))  # of a block of 16 tokens, whatever their number
    assert lengths("") == [(0, some)]
    assert second.depth("ab") == 0
    assert lengths("ab") == [(0, some), (2, some)]
    assert lengths("x") == [(0, some)]
    assert [has(prompt) for prompt in ("abC", "abD", "O", "C")] == [True, False, True, False]
    for prompt in ("abC", "abE", "O"):
        assert second.restore(prompt) == len(prompt)
    assert second.restore("abD") == 0
    assert first.failures() == second.failures() == {}
    # What is there is left as it is.
    second.store("abG")
    assert (second.failures(), len(fake.values())) == ({}, 14)


def test_where_there_are_no_tails_one_question_is_asked_of_each_block(fake):
    fake.process(block_tokens=784).store("ab")
    second = fake.process(block_tokens=784)
    assert second.depth("ab") == 2
    before = second.stats()["asked"]
    for prompt, questions in (("", 1), ("a", 2), ("ab", 3)):

        def asked(prompt: str = prompt):
            return second.cache.tail_lengths(second.namespace, keys(prompt))

        wait("the store has answered", lambda asked=asked: not asked()[1])
        assert (asked()[0], second.stats()["asked"] - before) == ([], questions)


@pytest.mark.parametrize("which", [0, 1])
def test_a_damaged_mark_hides_tails_and_is_written_anew(fake, which):
    first = fake.process()
    first.store("C")
    marks = [value for value in fake.values() if value.stat().st_size < 150]
    assert len(marks) == 2
    mark = marks[which]
    mark.write_bytes(mark.read_bytes()[:-1] + b"?")
    second = fake.process()

    def lengths():
        return second.cache.tail_lengths(second.namespace, [])

    wait("the store has answered", lambda: not lengths()[1])
    assert lengths() == ([], False)
    assert second.failures() == {"header": 1}
    second.settle()
    second.store("D")
    third = fake.process()
    third.depth("x")
    wait("it is found", lambda: third.cache.tail_lengths(third.namespace, [])[0])
    assert third.restore("C") == third.restore("D") == 1


def test_a_prompt_is_asked_for_in_one_batch(fake):
    fake.process().store("abcdefghijkl")
    second = fake.process()
    assert second.restore("abcdefghijkl") == 12
    stats = second.stats()
    assert stats["lists"] <= 2, stats
    assert stats["gets"] <= 3, stats


def test_ranks_have_their_own_shards(fake):
    first, second = fake.process(ranks=2), fake.process(ranks=2)
    first.store("abc")
    assert second.restore("abc") == 3


def test_entries_whose_slots_lie_apart_are_whole(fake):
    first = fake.process()
    apart = []
    for number in range(200):
        prompt = f"{chr(256 + number)}{'abcd'[: number % 5]}"
        slots = first.store(prompt)[-1]
        if slots != tuple(range(slots[0], slots[0] + len(slots))):
            apart.append(prompt)
        if len(apart) == 3:
            break
    assert len(apart) == 3
    second = fake.process()
    for prompt in apart:
        assert second.restore(prompt) == len(prompt)


def test_another_identity_finds_nothing_and_leaves_it_alone(fake):
    fake.process().store("abc")
    keys = [value.name for value in fake.values()]
    assert all(key.startswith(f"hp%2F1%2F{IDENTITY.hex()}%2F") for key in keys), keys
    other = fake.process(identity=bytes(32))
    assert other.restore("abc") == 0
    other.store("abc", change=b"other")
    assert other.failures() == {}
    assert fake.process().restore("abc") == 3


def test_values_longer_than_the_staging_memory_arrive_one_after_another(fake):
    fake.process().store("abcdefghij")
    second = fake.process(staging_bytes=1)
    assert second.restore("abcdefghij") == 10


@pytest.mark.parametrize("at", [0, 20, 60, 100, 110, 200])
def test_a_changed_byte_is_a_miss_and_the_value_goes(fake, at):
    fake.process().store("a")
    for value in fake.values():
        data = bytearray(value.read_bytes())
        data[min(at, len(data) - 1)] ^= 1
        value.write_bytes(data)
    second = fake.process()
    assert second.restore("a") == 0
    assert sum(second.failures().values()) >= 1
    assert set(second.failures()) <= {"header", "checksum"}
    second.settle()
    # What was damaged is written anew, and found.
    second.store("a")
    assert fake.process().restore("a") == 1


@pytest.mark.parametrize("length", [0, 30, 113])
def test_a_value_that_is_cut_short_is_a_miss(fake, length):
    fake.process().store("a")
    for value in fake.values():
        value.write_bytes(value.read_bytes()[:length])
    second = fake.process()
    assert second.restore("a") == 0
    assert sum(second.failures().values()) >= 1


def test_values_that_were_exchanged_are_misses(fake):
    fake.process().store("ab")
    one, two, *_ = (value for value in fake.values() if value.stat().st_size < 200)
    one_data, two_data = one.read_bytes(), two.read_bytes()
    one.write_bytes(two_data)
    two.write_bytes(one_data)
    second = fake.process()
    assert second.restore("ab") == 0
    assert second.failures()["header"] >= 1


def test_a_value_that_has_left_is_a_miss(fake):
    fake.process().store("abc")
    second = fake.process()
    assert second.depth("abc") == 3
    for value in fake.values():
        value.unlink()
    assert second.restore("abc") == 0
    assert set(second.failures()) == {"gone"}


def test_a_missing_member_of_a_boundary_costs_the_boundary(fake):
    first = fake.process()
    first.store("abc")
    first.store("abcde")
    before = set(fake.values())
    first.store("abcdefg")
    checkpoint = max(set(fake.values()) - before, key=lambda value: value.stat().st_size)
    checkpoint.unlink()
    assert fake.process().restore("abcdefg") == 5


def test_the_bytes_that_are_there_stay_and_are_told_apart(fake):
    """Two engines that compute other bytes for one key."""
    first, second = fake.process(), fake.process()
    first.store("a")
    second.store("a", change=b"other")
    assert second.failures() == {"kept": 2}
    assert second.stats()["writes"] == 0
    assert first.restore("a") == fake.process().restore("a") == 1


def test_the_same_bytes_may_be_written_twice(fake):
    first, second = fake.process(), fake.process()
    first.store("a")
    second.store("a")
    assert second.failures() == {}
    assert len(fake.values()) == 2


def test_a_write_that_is_answered_well_and_lost_counts_as_a_failure(fake):
    first = fake.process()
    fake.fail("put", "lose")
    first.store("a")
    assert first.failures() == {"write": 2}
    assert first.stats()["writes"] == 0


def test_a_read_that_brings_nothing_is_a_miss(fake):
    fake.process().store("abc")
    second = fake.process()
    fake.fail("get", "lose")
    assert second.restore("abc") == 0
    assert second.failures()["header"] >= 1


def test_a_read_that_says_that_less_has_come_is_a_miss(fake):
    fake.process().store("a")
    second = fake.process()
    fake.fail("get", "short")
    assert second.restore("a") == 0
    assert set(second.failures()) == {"read"}


def test_what_could_not_be_read_is_absent_for_a_while(fake):
    """Others may be asked meanwhile: one failure is no outage."""
    fake.process().store("abc")
    second = fake.process()
    fake.fail("get", "-1")
    assert second.restore("abc") == 0
    fake.mend()
    assert second.depth("abc") == 0
    assert second.stats()["outages"] == 0


def test_a_write_whose_header_cannot_be_read_back_counts_as_a_failure(fake):
    """The header that it was written from is no proof."""
    first = fake.process()
    fake.fail("ranges", "lose")
    first.store("a")
    assert first.failures() == {"header": 2}
    assert first.stats()["writes"] == 0
    assert not fake.values()


def test_a_full_store_is_left_alone_for_a_while(fake):
    first = fake.process()
    fake.fail("put", "-200")
    first.store("a")
    assert first.failures() == {"full": 2}
    first.store("b")
    assert first.stats()["dropped"] >= 1
    assert first.stats()["outages"] == 0


@pytest.mark.parametrize("call", ["exist", "ranges", "get"])
@pytest.mark.parametrize("code", ["-800", "-900", "-1"])
def test_reads_that_fail_are_misses_and_the_store_comes_back(fake, call, code):
    fake.process().store("abc")
    second = fake.process()
    fake.fail(call, code)
    for _ in range(3):
        assert second.restore("abc") == 0
    assert set(second.failures()) <= {"ask", "read"}
    fake.mend()
    wait("it comes back", lambda: second.restore("abc") == 3)


def test_after_failures_in_a_row_the_store_is_asked_no_more_for_a_while(fake):
    second = fake.process()
    fake.fail("exist", "-900")
    for prompt in ("a", "b", "c"):
        assert second.depth(prompt) == 0
    assert second.stats()["outages"] >= 1

    def left_alone() -> bool:
        before = second.stats()
        assert second.depth(f"{before['misses']}") == 0
        second.store(f"{before['misses']}")
        after = second.stats()
        if not (before["out"] and after["out"] and before["outages"] == after["outages"]):
            return False  # A pause has ended meanwhile.
        assert after["lists"] == before["lists"]
        assert after["dropped"] > before["dropped"]
        assert after["failed_ask"] == before["failed_ask"]
        return True

    wait("it is left alone", left_alone)


def test_an_answer_grows_old(fake):
    first, second = fake.process(), fake.process()
    assert second.depth("a") == 0
    first.store("a")
    wait("it is asked anew", lambda: second.depth("a") == 1)


def test_an_answer_after_the_deadline_touches_nothing(fake):
    fake.process().store("abc")
    second = fake.process(deadline_ms=200)
    assert second.depth("abc") == 3
    fake.fail("get", "hold")
    assert second.restore("abc") == 0
    wait("all reads are late", lambda: second.failures() == {"deadline": 4})
    assert second.depth("xyz") == 0, "questions are answered meanwhile"
    assert second.failures() == {"deadline": 4}
    # Others get the slots that the reads were to fill.
    others = ["def", "ghi", "jkl", "mno", "pqr", "stu", "vwx", "yz1", "234", "567"]
    for prompt in others:
        second.store(prompt, settle=False)
    assert second.stats()["reading"] == 4
    fake.mend()
    wait("the answer has come", lambda: not second.stats()["reading"])
    second.settle()
    for prompt in others:
        assert second.restore(prompt) == 3
    assert second.stats()["reads"] == 0


LIES = {
    "twice": "tell(self, **answer); tell(self, **answer)",
    "unasked": "tell(self, id=1000, codes=[1] * 9); tell(self, **answer)",
    "more": "tell(self, id=answer['id'], codes=answer['codes'] + [1, 1])",
    "fewer": "tell(self, id=answer['id'], codes=answer['codes'][:-1])",
    "nonsense": "self._connection.sendall(b'nonsense\\n')",
    "not ready": "tell(self, ready=False)",
}


def liar(lie: str) -> list[str]:
    """A helper that answers so."""
    code = f"""
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from hybrid_pages import mooncake
tell = mooncake._Tier.tell
def lie(self, **answer):
    if "codes" in answer:
        {LIES[lie]}
    else:
        tell(self, **answer)
mooncake._Tier.tell = lie
mooncake.main()
"""
    return [sys.executable, "-c", code, json.dumps(sys.path)]


@pytest.mark.parametrize("lie", ["twice", "unasked", "more"])
def test_answers_that_nobody_asked_for_are_ignored(fake, lie):
    prompt = "abcdefghij"
    fake.process().store(prompt)
    second = fake.process(staging_bytes=1, program=liar(lie))
    assert second.restore(prompt) == len(prompt)
    second.store("xyz")
    assert second.failures() == {}
    assert fake.process().restore("xyz") == 3


def test_an_answer_that_is_missing_is_a_failure(fake):
    fake.process().store("a")
    second = fake.process(program=liar("fewer"))
    assert second.depth("a") == 0
    second.store("b")
    assert second.failures() == {"ask": 1, "write": 1}
    assert second.stats()["writes"] == 1


@pytest.mark.parametrize("lie", ["nonsense", "not ready"])
def test_a_client_that_talks_nonsense_is_ended(fake, lie):
    second = fake.process(program=liar(lie))
    assert second.depth("a") == 0
    wait("another client is started", lambda: second.stats()["helpers"] > 1)
    assert second.failures()["helper"] >= 1


def test_a_client_can_write_nothing_but_the_staging_memory(fake):
    first = fake.process()
    lines = Path(f"/proc/{first.helper()}/maps").read_text().splitlines()
    shared = [line.split(maxsplit=5) for line in lines]
    shared = [(mode, name) for _, mode, *_, name in shared if mode.endswith("s")]
    writable = {name for mode, name in shared if "w" in mode}
    assert {name.partition(" ")[0] for name in writable} == {"/memfd:hybrid-pages-staging"}
    assert {mode for mode, name in shared if name not in writable} == {"r--s"}


@pytest.mark.parametrize("call", ["exist", "get", "put"])
def test_a_call_that_never_ends_costs_the_deadline_alone(fake, call):
    fake.process().store("abc")
    second = fake.process(deadline_ms=200)
    second.depth("abc")
    fake.fail(call, "hang")
    if call == "put":
        second.cache.reserve(second.namespace, [b"x" * 32], [(0, 0)]).commit([[1]])
    else:
        assert second.restore("abcx" if call == "exist" else "abc") in (0, 3)
        assert second.failures()["deadline"] >= 1
    wait("the call hangs", (fake.folder / "hangs").exists)
    # A client that hangs is ended, with all that it was doing, and the next one works.
    fake.mend()
    wait("another client works", lambda: second.stats()["helpers"] > 1)
    second.wait_ready()
    assert second.failures()["helper"] == 1
    wait("it comes back", lambda: second.restore("abc") == 3)
    second.settle()


@pytest.mark.parametrize("how", ["exit", "raise"])
@pytest.mark.parametrize("call", ["exist", "get", "put"])
def test_a_client_that_dies_fails_what_it_was_doing_and_the_next_one_works(fake, call, how):
    fake.process().store("abc")
    second = fake.process()
    fake.fail(call, how)
    if call == "put":
        second.store("x")
    else:
        assert second.restore("abc") == 0
    assert second.failures()["helper"] >= 1
    fake.mend()
    wait("it comes back", lambda: second.restore("abc") == 3)


def test_a_client_that_is_killed_in_the_middle_is_replaced(fake):
    first = fake.process()
    first.store("abc")
    for _ in range(2):
        os.kill(first.helper(), signal.SIGKILL)
        wait("it is noticed", lambda: first.stats()["out"])
        assert first.restore("abc") == 3  # The host has it.
        first.wait_ready()
    first.store("abcd")
    assert fake.process().restore("abcd") == 4


def test_a_client_has_the_environment_in_which_its_tier_was_made(fake, monkeypatch):
    # Python may change the environment while threads of the tier start a client: reading it then
    # is a fault of memory.
    monkeypatch.setenv("BEFORE", "1")
    first = fake.process()
    monkeypatch.delenv("BEFORE")
    monkeypatch.setenv("AFTER", "1")
    os.kill(first.helper(), signal.SIGKILL)
    wait("it is noticed", lambda: first.stats()["out"])
    first.wait_ready()
    found = Path(f"/proc/{first.helper()}/environ").read_bytes().split(b"\0")
    assert b"BEFORE=1" in found
    assert not any(one.startswith(b"AFTER=") for one in found)
    assert found.count(b"GLOG_minloglevel=3") == 1


def test_a_store_that_is_not_there_at_first_is_used_when_it_comes(fake):
    fake.fail("setup", "-900")
    first = fake.process(ready=False)
    wait("it has failed", lambda: first.failures().get("helper"))
    first.store("a")
    assert first.stats()["writes"] == 0
    assert any("expected a Mooncake master at 127.0.0.1:1" in note for note in first.tier.notes())
    fake.mend()
    first.wait_ready()
    first.store("b")
    assert fake.process().restore("b") == 1


def test_a_client_without_memory_for_reads_is_no_client(fake):
    fake.fail("register", "-1")
    first = fake.process(ready=False)
    wait("it has failed", lambda: first.failures().get("helper"))
    assert any("expected to register" in note for note in first.tier.notes())


def test_without_the_package_a_note_says_what_to_install(fake, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(FAKE)])
    first = fake.process(ready=False)
    wait("it has failed", lambda: first.failures().get("helper"))
    (note,) = first.tier.notes()
    assert "install the package mooncake-transfer-engine-non-cuda" in note


def test_after_a_clear_nobody_finds_what_this_process_wrote_and_it_shares_no_more(fake):
    other, first = fake.process(), fake.process()
    other.store("x")
    first.store("abc")
    first.cache.clear()
    first.settle()
    assert len(fake.values()) == 2
    assert fake.process().restore("abc") == 0
    assert fake.process().restore("x") == 1
    first.store("abc")
    assert first.stats()["shared"] == 0
    assert len(fake.values()) == 2
    assert first.restore("x") == 0


def test_what_a_clear_cannot_remove_is_tried_again(fake):
    first = fake.process()
    first.store("abc")
    fake.fail("remove", "-900")
    first.cache.clear()
    wait("it has failed", lambda: first.failures().get("remove", 0) >= 4)
    assert len(fake.values()) == 4
    fake.mend()
    wait("it is gone", lambda: not fake.values())


def test_a_closed_tier_ends_its_client_and_does_nothing_more(fake):
    first = fake.process()
    first.store("a")
    helper = first.helper()
    for _ in range(2):
        first.tier.close()
    assert not Path(f"/proc/{helper}").exists()
    first.store("b")
    assert len(fake.values()) == 2
    assert first.stats()["out"] == 1


def test_a_close_waits_for_no_long_deadline(fake):
    fake.fail("put", "hang")
    first = fake.process(deadline_ms=3_600_000)
    first.store("abc", settle=False)
    wait("the call hangs", (fake.folder / "hangs").exists)
    closing = threading.Thread(target=first.tier.close, daemon=True)
    closing.start()
    wait("it is closed", lambda: not closing.is_alive())
    assert first.failures() == {"closed": 4}


def test_what_the_end_has_cut_off_is_counted_and_told(fake):
    fake.fail("put", "hang")
    first = fake.process(deadline_ms=50)
    first.store("abc", settle=False)
    wait("the call hangs", (fake.folder / "hangs").exists)
    first.tier.close()
    assert first.failures() == {"closed": 4}
    assert "before 4 entries" in "\n".join(first.tier.notes())


def test_a_client_ends_with_the_process_that_started_it(fake):
    code = (
        "import os, signal, sys, mooncake_support as support\n"
        "process = support.Process('127.0.0.1:1')\n"
        "print(process.helper(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "FAKE_MOONCAKE": str(fake.folder)}
    child = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    helper = int(child.stdout)
    wait("the client has ended", lambda: not Path(f"/proc/{helper}").exists())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("master", "host", "expected host:port"),
        ("master", ":1", "expected host:port"),
        ("master", "host:0", "expected host:port"),
        ("command", [], "expected a program"),
        ("deadline_ms", 0, "expected up to an hour"),
    ],
)
def test_settings_out_of_range_are_rejected(name, value, message):
    settings = {"master": "h:1", "command": ["x"], "deadline_ms": 1, name: value}
    with pytest.raises(InvalidArgumentError, match=message):
        Mooncake(hybrid(), slot_bytes=64, **settings)
