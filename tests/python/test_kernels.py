"""The compiled kernels in csrc/images/ against the report that was written with them.

`make check-kernels` compiles them again.
"""

import hashlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"
IMAGES = CSRC / "images"
REPORT = json.loads((IMAGES / "report.json").read_text())

KERNELS = {"hybrid_pages_gather", "hybrid_pages_scatter", "hybrid_pages_digest"}
# Two thread blocks of 512 share the 65,536 registers of a multiprocessor.
MOST_REGISTERS = 64


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_images_are_of_the_sources():
    sources = {path.name for path in CSRC.iterdir() if path.suffix in (".cu", ".cuh", ".h")}
    assert REPORT["sources"] == {name: sha256(CSRC / name) for name in sources}


def test_every_image_is_the_reported_one():
    found = {path.name: sha256(path) for path in IMAGES.iterdir() if path.name != "report.json"}
    assert found == {name: image["sha256"] for name, image in REPORT["images"].items()}


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_87", "sm_90", "sm_100", "sm_120"])
def test_no_kernel_spills_and_two_blocks_fit(architecture):
    kernels = REPORT["images"][f"{architecture}.cubin"]["kernels"]
    assert kernels.keys() == KERNELS
    for name, usage in kernels.items():
        spilled = {key: value for key, value in usage.items() if "spill" in key or "stack" in key}
        assert spilled == dict.fromkeys(
            ("stack_bytes", "spill_store_bytes", "spill_load_bytes"), 0
        ), name
        assert usage["registers"] <= MOST_REGISTERS, name


def test_the_pinned_compiler_made_them():
    pins = (ROOT / "requirements/kernels.txt").read_text()
    assert f"nvidia-cuda-nvrtc-cu12=={REPORT['nvrtc']} " in pins
