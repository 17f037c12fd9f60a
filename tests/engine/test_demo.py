"""The demo's verdict can be trusted: good bytes pass it, wrong ones do not."""

import json
from types import SimpleNamespace

import pytest

from hybrid_pages.demo import engine, main


@pytest.fixture
def arguments(start, monkeypatch, model):
    """The demo's arguments; no other engine is left running, and the model is this folder's."""
    monkeypatch.setattr(main, "ensure", model)
    return SimpleNamespace(json=True, verbose=False, runs=1, host_gb=0.25)


def test_every_prompt_is_restored_equal(arguments, capfd):
    assert main.run(arguments) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["good"]
    assert all(row["equal"] and row["max_delta_logprob"] == 0 for row in shown["rows"])
    assert sum(row["restored_tokens"] > 0 for row in shown["rows"]) >= 4
    half, restart = shown["rows"][-2:]
    assert half["restored_tokens"] == half["prompt_tokens"] - 1
    assert restart["name"] == "restarted, restored from disk"
    assert restart["restored_tokens"] == restart["reference_tokens"] > 0
    assert shown["memory"]["resident_entries:pages"] > 0


@pytest.mark.long
def test_its_disk_is_gone_afterwards(arguments, capfd, monkeypatch, tmp_path):
    places = tmp_path / "places"
    places.mkdir()
    monkeypatch.setattr(main.tempfile, "tempdir", str(places))
    monkeypatch.setattr(main, "cases", lambda n: [])
    used = []
    shutdown = engine.DemoEngine.shutdown

    def damage(self):
        """Wrong bytes in what the first of the two engines has left."""
        shutdown(self)
        for slab in sorted(places.rglob("*.slab"))[: 1 if not used else 0]:
            used.append(slab)
            slab.write_bytes(bytes(slab.stat().st_size))

    monkeypatch.setattr(engine.DemoEngine, "shutdown", damage)
    assert main.run(arguments) == 1
    shown = json.loads(capfd.readouterr().out)
    assert used and not any(places.iterdir())
    half, restart = shown["rows"]
    assert half["equal"] and half["restored_tokens"] == half["prompt_tokens"] - 1
    assert restart["restored_tokens"] == 0
    assert any(name.startswith("disk_failures") for name in shown["failures"])


def test_wrong_bytes_make_it_fail(arguments, capfd, monkeypatch):
    forget = engine.DemoEngine.forget

    def spoil(self, *, everything=False):
        arena = self.half.connection.arena
        for slot in range(200):
            arena.write(slot, bytes(arena.slot_bytes))
        forget(self, everything=everything)

    monkeypatch.setattr(engine.DemoEngine, "forget", spoil)
    arguments.json = False
    assert main.run(arguments) == 1
    assert "NOT EQUAL" in capfd.readouterr().out
