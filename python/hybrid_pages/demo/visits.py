"""Requests to send to the server: two visits with the same beginning, as curl lines."""

from __future__ import annotations

import json
import shlex

# This ends right after a block's end, and the question of a first visit fits into one block, so
# later visits can resume from the last state of the first one.
SYSTEM = (
    "You are the voice of a small museum of trains. Its doors open at ten and close at six. "
    "A ticket is four coins, and children come in for free. Be kind, and be brief."
)
QUESTIONS = ("Who are you?", "When can I come?")
HITS = 'vllm:hybrid_pages_hit_tokens_total{.*source="host"'


def body(model: str, question: str, count: int = 16) -> dict[str, object]:
    """A chat request: the instructions that all visits share, and a question."""
    return {
        "model": model,
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": question},
        ],
        "max_tokens": count,
        "temperature": 0,
    }


def lines(base: str, model: str) -> list[tuple[str, str]]:
    """For each step, a sentence that says what it shows, and its curl line."""
    first, second = (
        f"curl -s {base}/v1/chat/completions -H 'Content-Type: application/json' "
        f"-d {shlex.quote(json.dumps(body(model, question)))}"
        for question in QUESTIONS
    )
    return [
        ("A first visit computes its whole prompt:", first),
        (
            "vLLM's own prefix cache is emptied, as by the prompts of many others:",
            f"curl -s -X POST {base}/reset_prefix_cache",
        ),
        (
            "A second visit, with the same instructions and another question; the answer's usage "
            "tells its cached_tokens:",
            second,
        ),
        (
            "The tokens that were restored from host memory so far:",
            f"curl -s {base}/metrics | grep {shlex.quote(HITS)}",
        ),
    ]
