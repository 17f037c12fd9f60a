"""Requests to vLLM's OpenAI server with hybrid-pages, and what they got from host memory.

    make serve                                                # in one terminal
    python3 examples/vllm_server.py [http://127.0.0.1:8000]   # in another

Three questions with the same instructions, as chats, or as plain text where the model has no chat
template. Between them vLLM's own prefix cache is emptied, as the prompts of others would do. The
second request makes the state at the end of the instructions if there is none yet, and the third
one resumes from it. The instructions are as long as the model needs: three of its blocks. The
program needs only Python. For a server of your own: the reset needs VLLM_SERVER_DEV_MODE=1, and the
count of cached tokens --enable-prompt-tokens-details.
"""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence

SENTENCE = "You are the guide of a large museum of trains. "  # some ten tokens
BLOCKS = 3
QUESTIONS = ("Who are you?", "When can I come?", "What does a ticket cost?")


class Refused(Exception):
    """The server is not there, or did not do what it was asked to."""


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
    try:
        with opener.open(request, timeout=600) as reply:
            text: str = reply.read().decode()
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")
        raise Refused(f"{url}: {error}: {said}") from error
    except OSError as error:
        raise Refused(f"{url}: expected vLLM's server, found none: {error}") from error
    return text


def hit_tokens(base: str) -> float:
    """Tokens restored from host memory so far, by the server's metrics."""
    pattern = r'^vllm:hybrid_pages_hit_tokens_total\{.*source="host".*\} (\S+)$'
    return sum(map(float, re.findall(pattern, send(f"{base}/metrics"), re.MULTILINE)))


def instructions(base: str) -> str:
    """Some blocks of text, for engines that resume at whole blocks only, too."""
    found = re.search(
        r'^vllm:cache_config_info\{.*\bblock_size="(\d+)"', send(f"{base}/metrics"), re.MULTILINE
    )
    if found is None:
        raise Refused(f"{base}/metrics: expected vllm:cache_config_info, found none")
    return SENTENCE * -(-BLOCKS * int(found[1]) // 9)


def ask(base: str, model: str, system: str, question: str) -> dict[str, object]:
    """The usage that the server reports for one question."""
    body = {"model": model, "max_tokens": 16, "temperature": 0}
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    try:
        reply = send(f"{base}/v1/chat/completions", {**body, "messages": messages})
    except Refused as refused:
        if "chat template" not in str(refused):
            raise
        reply = send(f"{base}/v1/completions", {**body, "prompt": system + question})
    usage: dict[str, object] = json.loads(reply)["usage"]
    return usage


def reset(base: str) -> None:
    """Empties vLLM's own prefix cache, as soon as no copy holds a block of it any more."""
    for _ in range(200):
        try:
            reply = send(f"{base}/reset_prefix_cache", post=True)
        except Refused as refused:
            raise Refused(f"{refused}: start the server with VLLM_SERVER_DEV_MODE=1") from refused
        if json.loads(reply)["success"]:
            return
        time.sleep(0.05)
    raise Refused(f"{base}/reset_prefix_cache: expected a reset within 10 s, found blocks in use")


def main(words: Sequence[str] = ()) -> float:
    """Send the requests; the tokens that were restored from host memory for them.

    Raises:
        Refused: the server is not there, or refused a request: with its words.
    """
    base = (words[0] if words else "http://127.0.0.1:8000").rstrip("/")
    model = json.loads(send(f"{base}/v1/models"))["data"][0]["id"]
    before, system = hit_tokens(base), instructions(base)
    for question in QUESTIONS:
        usage = ask(base, model, system, question)
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        print(f"{question:24} {usage['prompt_tokens']} prompt tokens, {cached} cached")
        reset(base)
    restored = hit_tokens(base) - before
    print(f"restored from host memory: {restored:.0f} tokens")
    if not restored:
        print(f"to find out why: hybrid-pages doctor --url {base}")
    return restored


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Refused as refused:
        sys.exit(str(refused))
