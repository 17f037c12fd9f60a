"""An engine that shares a store with others and runs prompts when it is told to.

usage: serve_remote.py MODEL URL ROLE

Each line on stdin is a seed, or `check` and a seed. When the engine has run the prompts of that
seed, and others can find what it has stored, it prints a line with the tokens that it had not to
compute. With `check` they have to come from the store.
"""

import sys
from pathlib import Path

import fixtures  # noqa: F401 (sets the environment)
from harness import Engine, Prompt, tokens

BLOCKS = (3, 21)


def settings(url: str) -> dict[str, object]:
    """Of every engine on the store."""
    return {"remote_url": url, "remote_admit": "all"}


def transfer(url: str, role: str) -> dict[str, object]:
    """The transfer configuration of an engine with a role."""
    return {
        "kv_connector": "HybridPagesConnector",
        "kv_role": role,
        "kv_connector_extra_config": {"host_gb": 0.25} | settings(url),
    }


def prompts(seed: object, n: int) -> list[tuple[int, ...]]:
    """The prompts of a seed."""
    return [tokens((seed, blocks), blocks * n + 5) for blocks in BLOCKS]


def check_restored(engine: Engine, prompt: Prompt) -> None:
    """All of it comes from the store, and the answer is that of vLLM's own hit, bit for bit."""
    with engine.counting() as counted:
        restored = engine.run(prompt, 8)
    assert restored.host == len(prompt) // engine.N * engine.N
    assert counted["hit_tokens:remote"] == restored.host
    engine.reset_local()
    with engine.looking_away():
        engine.run(prompt, 8)  # vLLM's own blocks, from no restored one
    assert restored == engine.local_hit(prompt, restored, 8)


def main(model: Path, url: str, role: str) -> None:
    engine = Engine(model, kv_transfer_config=transfer(url, role))
    print("READY", flush=True)
    for line in sys.stdin:
        *check, seed = line.split()
        resumed = []
        for prompt in prompts(seed, engine.N):
            if check:
                check_restored(engine, prompt)
            else:
                resumed.append(engine.run(prompt, 8).resumed)
        if not engine.half.connection.remote.settle(60):
            raise RuntimeError("expected an end of the writes within a minute, found none")
        print(f"DONE {sum(resumed)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
