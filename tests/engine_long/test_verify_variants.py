"""`hybrid-pages verify` with ranks, with fp8 caches, with drafts, and from a bucket."""

import json
import os
import random
from pathlib import Path

import pytest
from s3_server import s3  # noqa: F401
from test_disk_kills import SECOND_RUNNER

from hybrid_pages import cli

TESTS = Path(__file__).parents[1]
TRITON = TESTS.parent / ".cache" / "triton"
# Python runs this at the start of each process.
INTERPRETED = "from gpu_path import interpreter\ninterpreter.install()\n"
FLAGS = [
    *("--skip-tokenizer-init", "--enforce-eager", "--block-size", "32", "--max-model-len", "512"),
    *("--max-num-seqs", "4", "--max-num-batched-tokens", "128"),
    *("--kv-cache-memory-bytes", str(64 << 20)),
]
# vLLM 0.32 alone, on this path, answers differently from run to run with n-gram drafts if the last
# step of a prompt computes one token; verify says so. These leave more to each step, and have more
# tokens than a block of any variant.
LENGTHS = (210, 301, 418)


def drafts(**speculation):
    return ["--speculative-config", json.dumps(speculation)]


VARIANTS = {
    "plain": ("qwen3.5", []),
    "ranks": ("qwen3.5-tp2", ["--tensor-parallel-size", "2"]),
    # On a CPU, vLLM makes the buffers between stages only where it traces the model.
    "stages": (
        "qwen3.5-tp2",
        ["--pipeline-parallel-size", "2", "--no-enforce-eager", "-cc.mode=2", "-cc.backend=eager"],
    ),
    "fp8": ("qwen3.5", ["--kv-cache-dtype", "fp8"]),
    "mtp": ("qwen3.5-mtp", drafts(method="mtp", num_speculative_tokens=2)),
    "ngram": (
        "qwen3.5-mtp",
        [
            *drafts(
                method="ngram",
                prompt_lookup_min=1,
                prompt_lookup_max=3,
                num_speculative_tokens=3,
            ),
            "--no-async-scheduling",
        ],
    ),
}


@pytest.fixture
def verify(capfd, model, monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    tokens = random.Random("variants")
    prompts = tmp_path / "prompts.jsonl"
    with prompts.open("w") as file:
        for length in LENGTHS:
            prompt = [tokens.randrange(8, 400) for _ in range(length)]
            print(json.dumps({"prompt_token_ids": prompt}), file=file)

    def second_runner():
        (tmp_path / "sitecustomize.py").write_text(INTERPRETED)
        paths = [tmp_path, TRITON, TESTS / "engine", *filter(None, [os.environ.get("PYTHONPATH")])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))

    def first_runner():
        for name in SECOND_RUNNER:
            monkeypatch.delenv(name, raising=False)

    def run(variant, *options, **settings):
        name, flags = VARIANTS[variant]
        if "--no-enforce-eager" in flags:
            monkeypatch.delenv("TORCH_COMPILE_DISABLE", raising=False)
        if "--speculative-config" in flags:
            second_runner()
        else:
            first_runner()
        transfer = {
            "kv_connector": "HybridPagesConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host_gb": 0.1, **settings},
        }
        words = ["verify", str(model(name)), "--json", "-", "--prompts", str(prompts)]
        words += [*options, "--", *FLAGS, *flags]
        status = cli.main([*words, "--kv-transfer-config", json.dumps(transfer)])
        printed = capfd.readouterr()
        assert printed.out, printed.err
        return status, json.loads(printed.out), printed.err

    return run


@pytest.fixture
def needs_fp8():
    import torch

    if not (torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()):
        pytest.skip("vLLM's fp8 caches on x86 need AVX-512 or AMX: this CPU has neither")


def all_equal(found, tiers):
    assert found["tiers"] == tiers
    assert len(found["prompts"]) == len(LENGTHS)
    for prompt in found["prompts"]:
        assert list(prompt["tiers"]) == tiers
        for tier in prompt["tiers"].values():
            assert tier["restored_tokens"] >= prompt["local_hit_tokens"] > 0
            assert tier["verdict"] == "equal"


@pytest.mark.parametrize("variant", ["ranks", "stages", "fp8", "mtp", "ngram"])
def test_host_and_disk_give_what_the_engine_computes_itself(verify, variant, tmp_path, request):
    if variant == "fp8":
        request.getfixturevalue("needs_fp8")
    status, found, said = verify(variant, disk_path=str(tmp_path / "disk"), disk_gb=0.1)
    assert (status, found["problems"]) == (0, []), said
    all_equal(found, ["host", "disk"])


def test_a_bucket_gives_what_the_engine_computes_itself(verify, s3, monkeypatch):  # noqa: F811
    for name, text in s3.environment.items():
        monkeypatch.setenv(name, text)
    status, found, said = verify(
        "plain",
        remote_url="s3://prefixes/team",
        remote_deadline_ms=60_000,  # busy cores are slow
    )
    assert (status, found["problems"]) == (0, []), said
    all_equal(found, ["host", "remote"])
    # What verify has stored is in a folder of its own, and the report says that it stays.
    names = s3.names()
    assert names
    assert all(name.startswith("team/verify-") for name in names)
    assert "left there: remove it at the end" in " ".join(found["notes"])


@pytest.mark.parametrize(
    ("variant", "plant"),
    [
        ("ranks", "zero-state"),
        ("stages", "zero-state"),
        ("fp8", "swap-pages"),
        ("mtp", "zero-state"),
        ("mtp", "swap-pages"),
    ],
)
def test_a_planted_fault_shows(verify, variant, plant, request):
    if variant == "fp8":
        request.getfixturevalue("needs_fp8")
    status, found, said = verify(variant, "--plant", plant)
    assert status == 1, said
    rows = [row for prompt in found["prompts"] for row in prompt["tiers"].values()]
    assert "DIFFERS" in [row["verdict"] for row in rows]
