"""A server with our prompt cache against the stock one, on the five cases of prefix reuse.

The server is vllm-mlx's where that is installed, and mlx-lm's elsewhere.

Both serve the same small hybrid model with random weights, over HTTP, one request after another,
each case in a fresh process. For each case: prompt tokens that were computed, the median time to
the first token of all requests but the first, and the memory that stored prompts hold in the end:
what mlx counts, and the slots that are taken. Texts have to be equal, or the bench fails. On mlx's
CPU backend: no number here says anything about a Mac.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "mlx"))

import cases
import http_server
import tiny

MIB = 1 << 20


class TimedServer(http_server.Server):
    """Streams answers and notes when the first token came."""

    def __init__(self, *args):
        super().__init__(*args)
        self.seconds = []

    def chat(self, messages, tokens=8, **more):
        body = dict(
            model=http_server.NAME,
            messages=messages,
            max_tokens=tokens,
            temperature=0,
            stream=True,
            stream_options=dict(include_usage=True),
            **more,
        )
        connection = http_server.http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        start = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        text, first, usage = "", None, None
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            answer = json.loads(line[6:])
            for choice in answer["choices"]:
                delta = choice.get("delta") or {}
                piece = delta.get("content") or delta.get("reasoning") or ""
                if piece and first is None:
                    first = time.perf_counter() - start
                text += piece
            usage = answer.get("usage") or usage
        self.seconds.append(first if first is not None else time.perf_counter() - start)
        return text, *self.usage(dict(usage=usage))


def measure(case, folder, log, *, ours):
    """Texts, tokens computed, median seconds to the first token, bytes held by stored prompts."""
    with contextlib.ExitStack() as stack:
        made = http_server.serving(folder, log, ours=ours, kind=TimedServer)
        server = stack.enter_context(made)
        # The first request of a process compiles and warms up.
        server.chat([cases.user(cases.words(40, 999))], tokens=2)
        base = sum(server.held())
        server.seconds.clear()
        answers = case(server)
        held = sum(server.held()) - base
    computed = sum(prompt - reused for _, reused, prompt in answers)
    return dict(
        texts=[text for text, _, _ in answers],
        prompt=sum(prompt for _, _, prompt in answers),
        computed=computed,
        seconds=statistics.median(server.seconds[1:]),
        held=held,
    )


def scaled(scale):
    """The cases, with prompts so many times as long."""
    return {
        "document, other questions": partial(
            cases.document_and_questions, document=200 * scale, question=30 * scale, times=6
        ),
        "edited message": partial(cases.edited_message, length=120 * scale, times=5),
        "same system prompt": partial(cases.same_system_prompt, length=120 * scale, times=6),
        "growing chats": partial(cases.growing_chats, message=60 * scale, turns=4),
        "agent loop": partial(cases.agent_loop, result=60 * scale, turns=8),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="qwen3_next", choices=tiny.HYBRIDS)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--scale", type=int, default=8, help="length of prompts (default: 8)")
    parser.add_argument("--json", type=Path, help="also write what was measured to this file")
    args = parser.parse_args()
    found = {}
    print(f"{'vllm-mlx' if http_server.VLLM_MLX else 'mlx-lm'}\n")
    print(
        "| case | prompt tokens | computed, stock | ours | ms to first token, stock | ours "
        "| MiB held, stock | ours |\n|---|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as place:
        size = dict(hidden_size=args.hidden, num_hidden_layers=args.layers)
        folder = tiny.save(args.model, Path(place) / "model", tiny.THINKING, **size)
        for name, case in scaled(args.scale).items():
            stock, ours = (
                measure(case, folder, Path(place) / f"{ours}.log", ours=ours)
                for ours in (False, True)
            )
            if stock.pop("texts") != ours.pop("texts"):
                print(f"{name}: texts differ", file=sys.stderr)
                return 1
            found[name] = dict(stock=stock, ours=ours)
            print(
                f"| {name} | {stock['prompt']} | {stock['computed']} | {ours['computed']} "
                f"| {stock['seconds'] * 1e3:.0f} | {ours['seconds'] * 1e3:.0f} "
                f"| {stock['held'] / MIB:.1f} | {ours['held'] / MIB:.1f} |",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(dict(vars(args), json=None, cases=found), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
