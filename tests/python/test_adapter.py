"""The floor that adapters share, driven by a third, tiny adapter over numpy arrays."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import toy
from hybrid_pages import HybridPagesError, TransferError
from hybrid_pages._core import POLICIES, InvalidArgumentError
from hybrid_pages.adapter.admission import last_boundary
from hybrid_pages.adapter.arrays import dtype_name
from hybrid_pages.adapter.disk import DiskShare
from hybrid_pages.adapter.entries import Entries
from hybrid_pages.adapter.errors import MissingError, SettingsError, UnsupportedError, VersionError
from hybrid_pages.adapter.keys import Prefix, identity
from hybrid_pages.adapter.memory import GIB
from hybrid_pages.adapter.pool import Pool
from hybrid_pages.adapter.tiers import close_tier
from hybrid_pages.adapter.versions import Supported
from toy import BLOCK, GEOMETRY, VOCAB, Toy, generate

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8]
# Another text after three blocks.
FORK = [*PROMPT[: 3 * BLOCK], 0, 0, 7, 7, 0, 0, 7]


class Texts:
    """A cache of the toy's texts."""

    # The policy makes one checkpoint per prompt, at its end.
    def __init__(self, policy="align-lru", *, host_gb=0.001, disk=None, wait_seconds=0.0):
        self.pool = Pool(GEOMETRY, host_gb=host_gb, policy=policy, disk=disk, identity=bytes(32))
        self.entries = Entries(GEOMETRY, self.pool.cache, wait_seconds=wait_seconds)
        self.moved = self.entries.moved

    def run(self, prompt, new=9, kind=Toy, salt="", **options):
        """Computes a text; how many tokens were restored, and the toy after it."""
        made = kind(self.pool, list(prompt), **options)
        return generate(self.entries, made, new, salt), made

    def count(self, what):
        return self.pool.cache.stats()[what]


@pytest.fixture
def texts():
    return Texts()


@pytest.fixture
def restarted(tmp_path):
    """Caches on one disk, each after the one before has ended; with room for so many pages."""
    made = []

    def restarted(pages=1000):
        if made:
            close_tier(made[-1].pool.disk)
        slot = GEOMETRY.suggest_slot_bytes()
        disk = DiskShare.of(str(tmp_path / "disk"), 0.01, 60_000)
        made.append(Texts(host_gb=pages * slot / GIB, disk=disk, wait_seconds=60.0))
        return made[-1]

    yield restarted
    for texts in made:
        close_tier(texts.pool.disk)


def cold(prompt, new=9):
    return Texts().run(prompt, new)[1]


def same(left, right):
    """Whether two toys have the same text and, bit for bit, the same cache."""
    return (
        left.ids == right.ids
        and left.count == right.count
        and np.array_equal(left.pages, right.pages)
        and np.array_equal(left.states(), right.states())
    )


def test_an_adapter_is_short_and_needs_no_framework():
    source = Path(toy.__file__)
    assert len(source.read_text().splitlines()) < 100
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "vllm", "transformers", "mlx"):
            raise ImportError(f"{name} was imported")
sys.meta_path.insert(0, Refuse())
import toy
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=source.parent, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("policy", POLICIES)
def test_a_restored_text_goes_on_bit_for_bit(policy):
    texts = Texts(policy)
    first, second = texts.run(PROMPT), texts.run(PROMPT)
    assert (first[0], second[0]) == (0, 4 * BLOCK)
    assert same(first[1], cold(PROMPT))
    assert same(second[1], cold(PROMPT))


def test_a_next_turn_resumes_at_the_last_boundary_of_the_answer(texts):
    _, turn = texts.run(PROMPT)
    # The last token was never computed, so the answer ends in the block after this boundary.
    longer = [*turn.ids, 8, 8]
    restored, made = texts.run(longer)
    assert restored == turn.count // BLOCK * BLOCK > len(PROMPT)
    assert same(made, cold(longer))


def test_a_fork_gets_a_checkpoint_when_it_is_seen_and_is_resumed_from_it(texts):
    texts.run(PROMPT)
    restored = [texts.run(prompt)[0] for prompt in (FORK, [*FORK[: 3 * BLOCK], 9, 9, 9, 9, 9, 9])]
    assert restored == [0, 3 * BLOCK]


def test_salts_share_nothing(texts):
    texts.run(PROMPT, salt="one")
    assert texts.run(PROMPT, salt="two")[0] == 0
    assert texts.run(PROMPT, salt="one")[0] > 0


def test_damaged_bytes_are_a_miss_where_they_are_verified_and_seen_where_not():
    for verify in (True, False):
        texts = Texts()
        texts.run(PROMPT)
        for slot in range(texts.pool.arena.slots):
            texts.pool.arena.write(slot, bytes(texts.pool.arena.slot_bytes))
        restored, made = texts.run(PROMPT, verify=verify)
        assert (restored, texts.moved.failed_loads) == ((0, 1) if verify else (4 * BLOCK, 0))
        assert same(made, cold(PROMPT)) == verify


def test_a_load_that_failed_is_stored_again(texts):
    texts.run(PROMPT)

    class Failing(Toy):
        def copy_in(self, leases, blocks):
            next(leases)
            raise TransferError("injected")

    assert texts.run(PROMPT, kind=Failing)[0] == 0
    assert texts.moved.failed_loads == 1
    assert texts.run(PROMPT)[0] == 4 * BLOCK


LONG = [(7 * at + at // 3) % VOCAB for at in range(12 * BLOCK + 3)]


def test_a_text_larger_than_the_host_comes_back_from_disk_in_waves(restarted):
    restarted().run(LONG)
    texts = restarted(8)
    restored, made = texts.run(LONG)
    assert restored == 12 * BLOCK
    assert same(made, cold(LONG))
    assert texts.pool.cache.restores()["waves"] > 2
    assert texts.moved.failed_loads == texts.moved.late_loads == 0
    assert texts.moved.restored_bytes > 12 * GEOMETRY.classes[0].entry_bytes


def test_a_wave_that_fails_costs_the_restore_and_never_the_text(restarted):
    restarted().run(LONG)
    texts = restarted(8)

    class Failing(Toy):
        def copy_in(self, leases, blocks):
            next(leases)
            next(leases)
            raise TransferError("injected")

    restored, made = texts.run(LONG, kind=Failing)
    assert (restored, texts.moved.failed_loads, texts.moved.restored_bytes) == (0, 1, 0)
    assert same(made, cold(LONG))
    # What was dropped has been computed and stored again.
    assert texts.run(LONG)[0] == 12 * BLOCK


def test_what_a_disk_lost_between_waves_is_computed(restarted):
    texts = restarted()
    texts.run(LONG)
    texts = restarted(8)

    class Clearing(Toy):
        def copy_in(self, leases, blocks):
            def first_only():
                yield next(leases)
                texts.pool.cache.clear()
                yield from leases

            super().copy_in(first_only(), blocks)

    restored, made = texts.run(LONG, kind=Clearing)
    assert (restored, texts.moved.failed_loads) == (0, 1)
    assert same(made, cold(LONG))


class Watched(Toy):
    """Notes the lengths of passes."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.passes = []

    def compute(self, start, end):
        self.passes.append((start, end))
        super().compute(start, end)


def test_a_chunk_is_no_longer_than_windows_keep(texts):
    class Windowed(Watched):
        def kept_tokens(self):
            return 2 * BLOCK + 1

    _, made = texts.run(PROMPT, kind=Windowed)
    assert made.passes == [(0, 2 * BLOCK), (2 * BLOCK, 4 * BLOCK)]
    assert same(made, cold(PROMPT))


def test_pages_that_windows_have_dropped_are_left_out(texts):
    class Windowed(Toy):
        def first_held(self, class_index):
            return max(0, self.count - BLOCK)

    texts.run(PROMPT, new=1, kind=Windowed)
    assert (texts.count("pages"), texts.count("checkpoints")) == (0, 0)  # never to be reached


def test_a_model_that_steps_from_a_state_gets_its_tokens_one_by_one(texts):
    class Stepping(Watched):
        def continues(self):
            return False

    last = 4 * BLOCK
    first, second = (texts.run(PROMPT, kind=Stepping) for _ in range(2))
    assert (first[0], second[0]) == (0, last)
    assert first[1].passes == [(0, last), (last, last + 1), (last + 1, last + 2)]
    assert second[1].passes == [(last, last + 1), (last + 1, last + 2)]
    assert same(first[1], second[1]) and same(first[1], cold(PROMPT))


def test_nothing_is_stored_once_the_model_has_changed(texts):
    class Changed(Toy):
        def changed(self):
            return self.count > 4 * BLOCK

    texts.run(PROMPT, kind=Changed)
    assert (texts.count("pages"), texts.count("checkpoints")) == (4, 1)


@pytest.mark.parametrize("error", [MemoryError(), TransferError("injected")])
def test_a_store_that_fails_costs_that_store(texts, error):
    class Failing(Toy):
        failed = False

        def copy_out(self, entries, states):
            if not self.failed:
                self.failed = True
                raise error
            return super().copy_out(entries, states)

    _, made = texts.run(PROMPT, kind=Failing)
    assert same(made, cold(PROMPT))
    assert texts.moved.failed_stores == 1
    assert texts.count("writing_entries") == 0
    assert texts.run(made.ids)[0] > 0


def test_other_errors_of_a_runtime_are_raised(texts):
    class Broken(Toy):
        def copy_out(self, entries, states):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        texts.run(PROMPT, kind=Broken)
    assert texts.count("writing_entries") == 0


def test_keys_are_those_of_whole_blocks_whatever_holds_the_ids():
    listed = Prefix(PROMPT, BLOCK)
    assert len(listed.keys) == len(set(listed.keys)) == len(PROMPT) // BLOCK
    assert listed.keys == Prefix(np.array(PROMPT, np.int32), BLOCK).keys
    grown = Prefix(PROMPT[:6], BLOCK)
    grown.extend(PROMPT)
    assert grown.keys == listed.keys
    assert Prefix([0, *PROMPT[1:]], BLOCK).keys[-1] != listed.keys[-1]
    # Stored entries outlive a release: the keys of these ids never change.
    assert Prefix(range(4), 4).keys[0].hex()[:16] == "df5c58d8b7c13806"
    with pytest.raises(InvalidArgumentError, match="token_ids: expected integers of 64 bits"):
        Prefix([2**63] * BLOCK, BLOCK)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_one_token_is_left_to_compute(tokens, blocks):
    assert last_boundary(tokens, 4) == blocks


def test_dtypes_have_the_names_of_segments():
    class Named:
        def __init__(self, text):
            self.text = text

        def __repr__(self):
            return self.text

    assert dtype_name(np.dtype(np.float16)) == "float16"
    assert dtype_name(Named("torch.bfloat16")) == "bfloat16"
    assert dtype_name(Named("mlx.core.bfloat16")) == "bfloat16"


def test_a_pool_rejects_an_unknown_policy_before_memory_is_taken():
    with pytest.raises(SettingsError, match="did you mean 'reuse'"):
        Pool(GEOMETRY, host_gb=1e9, policy="resue")


def test_a_version_outside_the_range_is_an_import_error_and_ours():
    one = Supported("this", "that", first=(1, 2), end=None, remedy="install another")
    one.require("1.2.0rc1")
    one.require("2.0")
    with pytest.raises(VersionError, match=r"this works with that>=1\.2, found 1\.1: install") as e:
        one.require("1.1")
    kinds = (HybridPagesError, UnsupportedError, ImportError, RuntimeError)
    assert all(isinstance(e.value, kind) for kind in kinds)
    assert all(issubclass(MissingError, kind) for kind in (HybridPagesError, ImportError))


@pytest.mark.parametrize(
    ("version", "is_newer"),
    [
        ("1.2.0", False),
        ("1.2.4", True),
        ("1.2.3rc1", False),
        ("1.3", False),
        ("1.3.9", False),
        ("1.4.0", False),
        ("1.4.0.dev3+g12", False),
        ("1.4.1", True),
        ("1.10", True),
        ("2.0", True),
        ("none", False),
    ],
)
def test_what_is_newer_than_its_tested_line_is_said_once(version, is_newer, caplog):
    """1.3 is between tested lines."""
    one = Supported("this", version, (1, 2), None, "install another", tested=("1.2.3", "1.4.0"))
    for _ in range(2):
        one.warn_if_newer(version)
    assert one.is_newer(version) == is_newer
    assert len(caplog.messages) == is_newer
    assert all(f"found the newer {version}: it is used" in each for each in caplog.messages)


def test_a_range_may_begin_at_a_patch_release():
    one = Supported("this", "that", first=(0, 32, 2), end=(0, 33), remedy="install another")
    assert one.range == ">=0.32.2,<0.33"
    assert [one.includes(each) for each in ("0.32.1", "0.32", "0.32.2", "0.32.10", "0.33.0")] == [
        *(False, False, True, True, False)
    ]


def test_entries_without_room_are_counted_again_and_again_and_said_once(caplog):
    """A prompt larger than the budget restores nothing, however often it comes."""
    slot = GEOMETRY.suggest_slot_bytes()
    needed = sum(GEOMETRY.slots_per_entry(item.index, slot) for item in GEOMETRY.classes)
    texts = Texts(host_gb=needed * slot / GIB + 1e-9)
    counts = []
    for _ in range(3):
        assert texts.run(PROMPT)[0] == 0
        counts.append(sum(texts.moved.skipped_entries.values()))
    assert set(texts.moved.skipped_entries) <= {"no_room", "orphan"}
    assert texts.moved.skipped_entries["no_room"] > 0
    assert counts == sorted(set(counts))
    assert len([each for each in caplog.messages if "raise host_gb" in each]) == 1


def test_entries_that_are_there_already_are_not_counted_as_skipped():
    texts = Texts()
    for _ in range(3):
        texts.run(PROMPT)
    assert not texts.moved.skipped_entries


def test_half_a_surrogate_pair_in_a_salt_is_a_salt():
    halves = {identity(salt) for salt in ("\ud800", "\udc00", "", "?")}
    assert len(halves) == 4
