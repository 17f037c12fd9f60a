"""A disk below the host: engines that end and start again, with the real scheduler."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.lora.request import LoRARequest
from vllm.v1.request import RequestStatus

from hybrid_pages import Arena, Disk, DiskError, DiskTree, ForeignError
from hybrid_pages.vllm.scheduler.stale import lora as names
from simulation.config import SimulatedHybridForCausalLM, save_model
from simulation.copies import Script
from simulation.engine import Engine, connector
from simulation.shapes import BLOCK_TOKENS as N
from simulation.speculation import Speculation
from test_boundaries import tokens
from test_counts import counters, hits, hits_that_vllm_counts
from test_identity import adapter, safetensors  # noqa: F401 (adapter is a fixture)
from test_promotions import promoting

PROMPT = tokens(4 * N + 3)
Start = Callable[..., Engine]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    save_model(folder, SimulatedHybridForCausalLM.__name__)
    safetensors(folder / "model.safetensors", bytes(1000))
    return folder


@pytest.fixture
def start(script: Script, model: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts engines on one directory; the one before is shut down first."""
    engines: list[Engine] = []

    def start(*, extra: dict[str, Any] | None = None, keep: bool = False, **options: Any) -> Engine:
        if engines and not keep:
            engines[-1].close()
        settings = {"disk_path": str(tmp_path / "disk"), "disk_gb": 0.05} | (extra or {})
        transfer = connector(**settings)
        engines.append(Engine(transfer=transfer, **{"model": model, **options}))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()
    for engine in engines[-1:]:
        if engine.half.connection.arena is not None:
            restart_twice(engine)


def restart_twice(engine: Engine) -> None:
    """Every test ends with two more starts of its disk, which lose nothing that is whole."""
    half = engine.half
    path, lane = half.connection.settings.disk_path, half.connection.cores.index
    identity = half.connection.model.identity(half.connection.geometry)
    shape = {"geometry": half.connection.geometry, "slot_bytes": half.connection.slots.slot_bytes}
    arena = Arena.create(**shape, slots=half.connection.slots.least(half.connection.geometry))

    def whole() -> int:
        verdict = DiskTree(path).verify(f"lane-{lane}", identity.hex())
        return 0 if verdict is None else verdict["good"]

    before = whole()
    for _ in range(2):
        quota = half.connection.disk.stats()["quota_bytes"]
        disk = Disk(**shape, path=path, quota_bytes=quota, lane=lane)
        disk.connect(arena, identity)
        assert disk.stats()["entries"] >= before
        disk.close()
    assert whole() == before


def settled(engine: Engine) -> Engine:
    """What was published is on the disk."""
    assert engine.half.connection.disk.settle(60)
    engine.cache.poll()
    return engine


# Known report: LMCache#4492.
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_restarted_engine_restores_from_disk(
    start: Start, ranks: int, asynchronous: bool
) -> None:
    options = dict(ranks=ranks, async_scheduling=asynchronous)
    start(**options).generate(PROMPT)
    engine = start(**options)
    result = engine.generate(PROMPT)
    assert result.restored_tokens == 4 * N
    assert hits(engine) == {"disk": 4 * N}
    found = counters(engine)
    assert found["disk_entries:found"] == found["disk_entries:read"] > 0
    assert found["disk_bytes:read"] > 0
    assert found["disk_seconds:read"] > 0
    engine.check_idle()
    assert hits_that_vllm_counts(engine) == {"disk": 4 * N}
    # From now on the host has it.
    engine.forget_local()
    assert engine.generate(PROMPT).restored_tokens == 4 * N
    assert hits_that_vllm_counts(engine) == {"disk": 4 * N, "host": 4 * N}
    assert hits(engine)["host"] == 4 * N
    engine.check_idle()


def test_what_was_stored_last_is_on_the_disk_after_a_shutdown(start: Start, script: Script) -> None:
    script.delay = lambda kind: 1000 if kind == "store" else 0
    options: dict[str, Any] = {"in_process": True, "extra": {"store_mode": "background"}}
    engine = start(**options)
    result = engine.add(PROMPT)
    while not result.done:
        engine.step()
    assert engine.half.storing, "nothing steps the engine any more"
    assert start(**options).generate(PROMPT).restored_tokens == 4 * N


def test_a_request_holds_no_blocks_while_the_disk_is_read(start: Start) -> None:
    start().generate(PROMPT)
    engine = start()
    engine.generate(tokens(N + 1, 9))  # the ranks have reported
    pool = engine.scheduler.kv_cache_manager.block_pool
    real, found = engine.cache.restore, []

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(engine.half.connection.cache, name)

        def restore(self, *args: Any, **kwargs: Any) -> Any:
            restore = real(*args, **kwargs)
            found.append(restore.progress())
            waiting = SimpleNamespace(first=0, blocks=4, depths=(), end=restore.end)
            waiting.progress = lambda: "waiting"
            return waiting

    engine.find_in(Slow())
    result = engine.add(PROMPT)
    engine.step()
    assert len(found) == 1 and found[0] in ("waiting", "ready")
    assert result.request.status == RequestStatus.WAITING
    assert pool.get_num_free_blocks() == engine.plan.num_blocks - 1
    engine.find_in(engine.cache)
    engine.run()
    assert result.restored_tokens == 4 * N
    engine.check_idle()


def test_what_the_host_has_evicted_comes_back_from_disk(start: Start) -> None:
    engine = start(extra={"host_gb": 0.00005})
    first = engine.generate(PROMPT)
    for seed in range(1, 12):
        settled(engine).generate(tokens(4 * N + 3, seed))
    engine.forget_local()
    assert counters(engine)["evicted_entries:pages"]
    assert first.restored_tokens == 0
    assert engine.generate(PROMPT).restored_tokens == 4 * N
    assert hits(engine)["disk"]
    engine.check_idle()


def test_other_weights_under_the_same_path_restore_nothing(start: Start, model: Path) -> None:
    start().generate(PROMPT)
    safetensors(model / "model.safetensors", bytes(999) + b"\1")
    engine = start()
    engine.update_weights()  # as the function sees them
    assert engine.generate(PROMPT).restored_tokens == 0
    assert settled(engine).half.connection.disk.stats()["other_bytes"] > 0
    engine.check_idle()
    # The first weights come back: so do their entries.
    safetensors(model / "model.safetensors", bytes(1000))
    engine = start()
    assert engine.generate(PROMPT).restored_tokens == 4 * N
    engine.check_idle()


def test_the_same_weights_at_another_path_restore_all(
    start: Start, model: Path, tmp_path: Path
) -> None:
    start().generate(PROMPT)
    elsewhere = tmp_path / "elsewhere"
    shutil.move(model, elsewhere)
    assert start(model=elsewhere).generate(PROMPT).restored_tokens == 4 * N


def test_a_damaged_file_costs_a_recompute_and_is_written_again(
    start: Start, tmp_path: Path
) -> None:
    start().generate(PROMPT)
    start().close()
    for path in (tmp_path / "disk").rglob("*"):
        if path.is_file() and "slab" in path.name:
            data = bytearray(path.read_bytes())
            for at in range(4096 + 7, len(data), 64):
                data[at] ^= 1
            path.write_bytes(data)
    engine = start()
    assert engine.generate(PROMPT).restored_tokens == 0
    assert sum(v for k, v in counters(engine).items() if k.startswith("disk_failures")) > 0
    engine.check_idle()
    engine = start()
    assert engine.generate(PROMPT).restored_tokens == 4 * N
    engine.check_idle()


def test_a_damaged_marker_is_mended_and_costs_nothing(start: Start, tmp_path: Path) -> None:
    start().generate(PROMPT)
    start().close()
    marker = tmp_path / "disk" / "hybrid-pages-disk"
    whole = marker.read_bytes()
    for damaged in (bytes([whole[0] ^ 4]) + whole[1:], whole[:9], b"", bytes(len(whole))):
        marker.write_bytes(damaged)
        engine = start()
        assert engine.generate(PROMPT).restored_tokens == 4 * N
        assert counters(engine)["disk_failures:directory"] == 1
        assert marker.read_bytes() == whole
        engine.check_idle()


def test_a_marker_of_a_later_format_is_refused_at_start(start: Start, tmp_path: Path) -> None:
    start().generate(PROMPT)
    start().close()
    marker = tmp_path / "disk" / "hybrid-pages-disk"
    ours = marker.read_bytes()
    marker.write_bytes(b"hybrid-pages disk store, format 2\n")
    with pytest.raises(ForeignError, match="format 2"):
        start()
    marker.write_bytes(ours)


@pytest.mark.parametrize("disk_gb", [0.0004, 0.0003])
def test_a_lower_quota_costs_what_has_no_room_and_nothing_that_is_written_then(
    start: Start, disk_gb: float
) -> None:
    engine = start()
    for seed in range(1, 12):
        engine.generate(tokens(4 * N + 3, seed))
        settled(engine)
    for _ in range(2):
        engine = start(extra={"disk_gb": disk_gb})
        engine.generate(PROMPT)
        settled(engine)
    for _ in range(2):
        engine = start(extra={"disk_gb": disk_gb})
        assert engine.generate(PROMPT).restored_tokens == 4 * N
        assert not any(key.startswith("disk_failures") for key in counters(engine))
        engine.check_idle()


def test_salts_stay_apart_across_restarts(start: Start) -> None:
    start().generate(PROMPT, salt="a")
    engine = start()
    assert engine.generate(PROMPT, salt="b").restored_tokens == 0
    assert engine.generate(PROMPT, salt="a").restored_tokens == 4 * N
    engine.check_idle()


def test_tenants_find_their_own_again(start: Start) -> None:
    extra = {"tenant_share": 0.5}
    start(extra=extra).generate(PROMPT, salt="a")
    engine = start(extra=extra)
    assert engine.generate(PROMPT, salt="b").restored_tokens == 0
    assert engine.generate(PROMPT, salt="a").restored_tokens == 4 * N
    engine.check_idle()


def test_an_adapter_is_found_again_by_its_files(start: Start, adapter: Path) -> None:  # noqa: F811
    lora = LoRARequest("a", 1, str(adapter))
    start().generate(PROMPT, lora=lora)
    engine = start()
    assert engine.generate(PROMPT).restored_tokens == 0
    assert engine.generate(PROMPT, lora=lora).restored_tokens == 4 * N
    engine.check_idle()
    safetensors(adapter / "adapter_model.safetensors", b"87654321")
    engine = start()
    engine.update_weights("a")
    assert engine.generate(PROMPT, lora=lora).restored_tokens == 0
    engine.check_idle()


@pytest.mark.parametrize("how", ["no files", "changed", "load_inplace"])
def test_an_adapter_that_its_files_do_not_name_is_found_in_one_engine_alone(
    start: Start,
    adapter: Path,  # noqa: F811
    how: str,
) -> None:
    if how == "no files":
        shutil.rmtree(adapter)
    lora = LoRARequest("a", 1, str(adapter), load_inplace=how == "load_inplace")
    engine = start()
    if how == "changed":
        engine.generate(tokens(N + 1, 5), lora=lora)
        (adapter / "adapter_config.json").write_text('{"r": 9}')
    engine.generate(PROMPT, lora=lora)
    engine.forget_local()
    assert engine.generate(PROMPT, lora=lora).restored_tokens == 4 * N
    engine.check_idle()
    if how == "changed":
        (adapter / "adapter_config.json").write_text('{"r": 8}')
    engine = start()
    assert engine.generate(PROMPT, lora=lora).restored_tokens == 0
    engine.check_idle()


@pytest.mark.parametrize("changes", [False, True])
def test_the_files_of_an_adapter_are_looked_at_before_and_after_a_wait(
    start: Start,
    adapter: Path,  # noqa: F811
    changes: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lora = LoRARequest("a", 1, str(adapter))
    engine = start()
    engine.generate(PROMPT, lora=lora)
    engine.forget_local()
    looks: list[Path | None] = []
    look = names.file_marks
    monkeypatch.setattr(names, "file_marks", lambda path: looks.append(path) or look(path))
    cache = promoting(engine, answers=6)
    result = engine.add(PROMPT, lora=lora)
    while cache.left:
        engine.step()
    assert len(looks) == 1
    if changes:
        (adapter / "adapter_config.json").write_text('{"r": 9}')
        engine.update_weights("a")
    engine.run()
    assert len(looks) == 2
    assert result.restored_tokens == (0 if changes else 4 * N)
    engine.check_idle()


@pytest.mark.parametrize("drafts", [1, 2])
def test_draft_layers_are_restored_too(start: Start, drafts: int) -> None:
    def speculation() -> Speculation:
        return Speculation("mtp", drafts)

    start(speculation=speculation()).generate(PROMPT)
    engine = start(speculation=speculation())
    assert engine.generate(PROMPT).restored_tokens >= 3 * N
    engine.check_idle()


def test_a_reset_empties_the_disk_for_good(start: Start) -> None:
    engine = start()
    engine.generate(PROMPT)
    settled(engine)
    assert engine.reset_prefix_cache(reset_connector=True)
    engine.update_weights()
    assert engine.generate(PROMPT).restored_tokens == 0
    settled(engine).forget_local()
    # Found in this engine, whose weights may be others by now, and in no later one.
    assert engine.generate(PROMPT).restored_tokens == 4 * N
    assert engine.half.connection.disk.stats()["persistent"] == 0
    engine.check_idle()
    engine = start()
    assert engine.generate(PROMPT).restored_tokens == 0
    engine.check_idle()


@pytest.mark.parametrize("follow", [False, True])
def test_a_reset_of_the_engine_alone_empties_it_only_if_it_is_followed(
    start: Start, follow: bool
) -> None:
    extra = {"follow_engine_resets": follow}
    engine = start(extra=extra)
    engine.generate(PROMPT)
    settled(engine)
    assert engine.reset_prefix_cache()
    engine.generate(tokens(N + 1, 3))
    engine.check_idle()
    restored = start(extra=extra).generate(PROMPT).restored_tokens
    assert restored == (0 if follow else 4 * N)


def test_a_disk_that_is_full_serves_what_it_has(start: Start) -> None:
    extra = {"disk_gb": 0.0003}
    engine = start(extra=extra)
    for seed in range(12):
        engine.generate(tokens(4 * N + 3, seed))
        settled(engine)
    assert (
        engine.half.connection.disk.stats()["live_bytes"]
        <= engine.half.connection.disk.stats()["quota_bytes"]
    )
    engine.check_idle()
    engine = start(extra=extra)
    newest_first = reversed(range(12))
    restored = [engine.generate(tokens(4 * N + 3, seed)).restored_tokens for seed in newest_first]
    assert 0 < sum(restored) < 12 * 4 * N
    engine.check_idle()


def test_a_request_waits_no_longer_than_the_deadline(start: Start) -> None:
    engine = start(extra={"disk_deadline_ms": 50})
    assert engine.half.connection.loads.wait_seconds == 0.05
    real = engine.half.connection.loads.cache

    class Hanging:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def lookup(self, *args: Any, **kwargs: Any) -> Any:
            hit = real.lookup(*args, **kwargs)
            return SimpleNamespace(
                blocks=4, host=hit.host, pages=4, missing=None, asking=False, coming=4
            )

        def restore(self, *args: Any, **kwargs: Any) -> Any:
            waiting = SimpleNamespace(first=0, blocks=4, depths=(), end=lambda: None)
            waiting.progress = lambda: "waiting"
            return waiting

    engine.find_in(Hanging())
    assert engine.generate(PROMPT).restored_tokens == 0
    assert counters(engine)["failures:promotion"] == 1
    engine.check_idle()


def test_two_engines_on_one_directory_are_told_apart(start: Start) -> None:
    start().generate(PROMPT)
    with pytest.raises(DiskError, match=f"found that process {os.getpid()} uses it"):
        start(keep=True)


def test_engine_cores_have_a_lane_each(start: Start) -> None:
    engines = [start(keep=True, data_parallel=(rank, 2)) for rank in range(2)]
    for rank, engine in enumerate(engines):
        engine.generate(tokens(4 * N + 3, rank))
        assert engine.half.connection.disk.stats()["quota_bytes"] <= 0.025 * (1 << 30)
    for engine in engines:
        engine.close()
    engine = start(keep=True, data_parallel=(1, 2))
    assert engine.generate(tokens(4 * N + 3, 1)).restored_tokens == 4 * N
    assert engine.generate(tokens(4 * N + 3, 0)).restored_tokens == 0


def test_a_directory_of_somebody_else_is_refused_at_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "letters").write_text("dear")
    with pytest.raises(ForeignError, match="letters"):
        start()


def test_checksums_are_made_whatever_the_setting_says(start: Start) -> None:
    extra = {"checksum": "off"}
    start(extra=extra).generate(PROMPT)
    assert start(extra=extra).generate(PROMPT).restored_tokens == 4 * N


def test_entries_of_other_weights_under_one_name_would_be_seen(start: Start) -> None:
    """The files are those of before, the weights are not: what the tests above would see."""
    start().generate(PROMPT)
    engine = start()
    engine.update_weights()
    with pytest.raises(AssertionError):
        engine.generate(PROMPT)
        engine.check_idle()
    engine.results.clear()
