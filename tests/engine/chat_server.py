"""A server that `hybrid-pages serve` runs, and what a client of it sees."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from fixtures import CACHE

COMMAND = Path(sys.executable).with_name("hybrid-pages")
# No proxy: the server is on this machine.
OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


Ranked = tuple[tuple[str, float, tuple[float, ...]], ...]


@dataclass(frozen=True)
class Answer:
    """The answer to one request: the text of each choice, why it ended, its tokens' rankings."""

    texts: tuple[str, ...]
    reasons: tuple[str, ...]
    # For each choice and token: the token, its log-probability, and those of the likeliest ones.
    ranked: tuple[Ranked, ...]
    extra: Any = None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """`hybrid-pages serve` in a process of its own; `wait` for it."""

    def __init__(self, *flags: str, more: Sequence[str] = (), key: str = "none") -> None:
        self.port, self.plain = free_port(), "--plain" in flags
        self.base = f"http://127.0.0.1:{self.port}"
        environment = {**os.environ, "XDG_CACHE_HOME": str(CACHE), "NO_PROXY": "127.0.0.1"}
        self.process = subprocess.Popen(
            [COMMAND, "serve", "--port", str(self.port), *flags, "--", *more],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []
        self.client = openai.OpenAI(base_url=f"{self.base}/v1", api_key=key, max_retries=0)

    def wait(self) -> "Server":
        """Reads what the command says until it has said what to send."""
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if self.said[-1].startswith("Ctrl-C ends"):
                break
        else:
            raise AssertionError("the server did not start:\n" + "\n".join(self.said))
        self.model = self.client.models.list().data[0].id
        return self

    def curl_lines(self) -> list[str]:
        return [line for line in self.said if line.startswith("curl ")]

    def stop(self) -> int:
        """Ctrl-C."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.said += self.process.communicate(timeout=60)[0].splitlines()
        return self.process.returncode

    # ---- what a client sends

    def forget(self, *, everything: bool = False) -> None:
        """Empties vLLM's own prefix cache, and the connector's too if `everything`.

        vLLM does not reset while blocks are held: those of a cancelled request are held until its
        last step.
        """
        query = "?reset_external=true" if everything else ""
        for _ in range(200):
            request = urllib.request.Request(
                f"{self.base}/reset_prefix_cache{query}", method="POST"
            )
            with OPEN(request, timeout=60) as reply:
                if json.load(reply)["success"]:
                    return
            time.sleep(0.05)
        raise AssertionError("vLLM did not reset its prefix cache in 10 s")

    def chat(self, messages: Sequence[dict[str, str]], count: int = 24, **more: Any) -> Any:
        """One chat request."""
        given = dict(temperature=0, max_tokens=count, logprobs=True, top_logprobs=5) | more
        return self.client.chat.completions.create(
            model=self.model, messages=list(messages), **given
        )

    # ---- what can be seen from outside

    def metrics(self) -> dict[str, float]:
        """The connector's counters and gauges: `hit_tokens_total:host` and so on."""
        return self._figures("hybrid_pages_")

    def generated(self) -> float:
        """Tokens of all answers so far."""
        return self._figures("generation_tokens_")["total"]

    def _figures(self, prefix: str) -> dict[str, float]:
        with OPEN(f"{self.base}/metrics", timeout=60) as reply:
            lines = reply.read().decode().splitlines()
        found = {}
        for line in lines:
            matched = re.fullmatch(rf"vllm:{prefix}(\w+)\{{(.*)\}} (\S+)", line)
            if matched and not matched[1].endswith("_created"):
                labels = re.findall(r'(?:source|kind|reason)="(\w+)"', matched[2])
                found[":".join([matched[1], *labels])] = float(matched[3])
        return found

    def processes(self) -> list[int]:
        """The server's processes: the one that the command has started, and all in its group."""
        groups = {child for child in pids() if stat(child)[1] == self.process.pid}
        return [process for process in pids() if stat(process)[2] in groups]

    def anonymous_bytes(self) -> int:
        """Memory of the server's processes, without what is mapped from files or shared."""
        total = 0
        for process in self.processes():
            status = Path(f"/proc/{process}/status").read_text()
            if found := re.search(r"RssAnon:\s+(\d+) kB", status):
                total += 1024 * int(found[1])
        return total


def pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def stat(process: int) -> tuple[str, int, int]:
    """State, parent and group of a process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0, 0
    state, parent, group = text.rpartition(")")[2].split()[:3]
    return state, int(parent), int(group)


def answer(reply: Any) -> Answer:
    """A chat's reply without what differs from run to run."""
    return Answer(
        tuple(choice.message.content for choice in reply.choices),
        tuple(choice.finish_reason for choice in reply.choices),
        tuple(ranked(choice.logprobs.content) for choice in reply.choices),
    )


def ranked(tokens: Sequence[Any]) -> Ranked:
    """The tokens of a choice with their log-probabilities and those of the likeliest ones."""
    return tuple(
        (at.token, at.logprob, tuple(other.logprob for other in at.top_logprobs)) for at in tokens
    )


def cached(reply: Any) -> int:
    """The prompt tokens of a reply that were not computed."""
    return reply.usage.prompt_tokens_details.cached_tokens or 0
