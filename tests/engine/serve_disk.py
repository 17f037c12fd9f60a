"""An engine on a disk that waits to be ended by others, once it has run its prompts.

usage: serve_disk.py MODEL DISK SEED
"""

import sys
import time
from pathlib import Path

import fixtures  # noqa: F401 (sets the environment)
from harness import Engine, tokens

BLOCKS = (3, 21)


def settings(disk: Path) -> dict[str, object]:
    """Of every engine on the disk."""
    return {"disk_path": str(disk), "disk_gb": 0.2}


def prompts(seed: object, n: int) -> list[tuple[int, ...]]:
    """The prompts that an engine with this seed runs."""
    return [tokens((seed, blocks), blocks * n + 5) for blocks in BLOCKS]


def main(model: Path, disk: Path, seed: str) -> None:
    engine = Engine(model, settings(disk))
    for prompt in prompts(seed, engine.N):
        if engine.run(prompt, 8).resumed:
            raise RuntimeError("expected nothing of a new prompt, found some")
    print("DONE", flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
