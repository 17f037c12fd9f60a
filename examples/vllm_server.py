"""Requests to vLLM's OpenAI server with hybrid-pages, and what they got from host memory.

    make serve                                                # in one terminal
    python3 examples/vllm_server.py [http://127.0.0.1:8000]   # in another

Three chats with the same instructions. Between them vLLM's own prefix cache is emptied, as the
prompts of others would do. The second chat makes the state at the end of the instructions, and the
third one resumes from it. The instructions are as long as the model needs: three of its blocks. The
program needs only Python. For a server of your own: the reset needs VLLM_SERVER_DEV_MODE=1, and the
count of cached tokens --enable-prompt-tokens-details.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Sequence

SENTENCE = "You are the guide of a large museum of trains. "  # some ten tokens
BLOCKS = 3
QUESTIONS = ("Who are you?", "When can I come?", "What does a ticket cost?")


def send(url: str, body: object = None, *, post: bool = False) -> str:
    """One request to the server, not by way of a proxy; the reply's text."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url,
        data=data,
        headers={"Content-Type": "application/json"},
        method="POST" if post or data is not None else "GET",
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=600) as reply:
        text: str = reply.read().decode()
    return text


def hit_tokens(base: str) -> float:
    """Tokens restored from host memory so far, by the server's metrics."""
    pattern = r'^vllm:hybrid_pages_hit_tokens_total\{.*source="host".*\} (\S+)$'
    return sum(map(float, re.findall(pattern, send(f"{base}/metrics"), re.MULTILINE)))


def instructions(base: str) -> str:
    """Some blocks of text: a prompt shorter than one never hits."""
    found = re.search(
        r'^vllm:cache_config_info\{.*\bblock_size="(\d+)"', send(f"{base}/metrics"), re.MULTILINE
    )
    assert found is not None, f"expected vllm:cache_config_info among {base}/metrics, found none"
    return SENTENCE * -(-BLOCKS * int(found[1]) // 9)


def main(words: Sequence[str] = ()) -> float:
    """Send the requests; the tokens that were restored from host memory for them."""
    base = (words[0] if words else "http://127.0.0.1:8000").rstrip("/")
    model = json.loads(send(f"{base}/v1/models"))["data"][0]["id"]
    before, system = hit_tokens(base), instructions(base)
    for question in QUESTIONS:
        body = {
            "model": model,
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": question},
            ],
            "max_tokens": 16,
            "temperature": 0,
        }
        usage = json.loads(send(f"{base}/v1/chat/completions", body))["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        print(f"{question:20} {usage['prompt_tokens']} prompt tokens, {cached} cached")
        send(f"{base}/reset_prefix_cache", post=True)
    restored = hit_tokens(base) - before
    print(f"restored from host memory: {restored:.0f} tokens")
    return restored


if __name__ == "__main__":
    main(sys.argv[1:])
