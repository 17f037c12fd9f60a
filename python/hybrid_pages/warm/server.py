"""What ``hybrid-pages warm`` asks of a server: tokens, and answers of one token."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybrid_pages import HybridPagesError
from hybrid_pages.scrape import base_of

_SECONDS = 600
"""The longest wait for an answer: other requests may be before it."""
_MOST_SAID = 300


class WarmServerError(HybridPagesError, OSError):
    """A server cannot be reached, or does not do what is asked of it."""


class RefusedError(WarmServerError):
    """A server refuses one request."""


@dataclass(frozen=True)
class Served:
    """How a prompt was served."""

    cached: int | None
    """Its tokens that were not computed; None if the server does not tell."""
    seconds: float


class Server:
    """A server with vLLM's OpenAI interface.

    Args:
        url: the address that it listens on.
        key: its API key; empty for none.
        model: the name of a model or an adapter; by default the first that it serves.
        salt: the ``cache_salt`` of requests; empty for none.

    Raises:
        WarmServerError: it can't be reached, or serves no such model.
    """

    def __init__(self, url: str, *, key: str = "", model: str = "", salt: str = "") -> None:
        self.base, self._key, self._salt = base_of(url), key, salt
        if not self.base.startswith(("http://", "https://")):
            raise WarmServerError(
                f"{self.base}: expected an address that begins with http:// or https://: name the "
                "one that `vllm serve` listens on, such as http://localhost:8000"
            )
        served = self._ask("/v1/models").get("data")
        models = [it for it in served if isinstance(it, dict)] if isinstance(served, list) else []
        names = [str(it.get("id")) for it in models]
        if not names or (model and model not in names):
            raise WarmServerError(
                f"{self.base}/v1/models: expected {model or 'a model'}, found "
                f"{', '.join(names) or 'none'}: name one of those with --model"
            )
        self.model = model or names[0]
        most = models[names.index(self.model)].get("max_model_len")
        self.most_tokens = most if isinstance(most, int) else None
        """The longest prompt with its answer; None if it does not tell."""

    def of_text(self, text: str) -> list[int]:
        """The tokens of a prompt."""
        return self._tokens({"prompt": text})

    def of_chat(
        self, messages: Sequence[Mapping[str, Any]], more: Mapping[str, Any], *, answers: bool
    ) -> list[int]:
        """The tokens of a chat, as the server's template renders it.

        more: tools, and what else the template gets. answers: whether the next message is the
        model's.
        """
        body = {"messages": list(messages), **more, "add_generation_prompt": answers}
        return self._tokens(body)

    def serve(self, tokens: Sequence[int], hints: Mapping[str, Any]) -> Served:
        """Has a prompt computed, and one token after it."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 0,
            "kv_transfer_params": {"hybrid_pages": dict(hints)},
        }
        if self._salt:
            body["cache_salt"] = self._salt
        began = time.monotonic()
        usage = self._ask("/v1/completions", body).get("usage")
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return Served(cached if isinstance(cached, int) else None, time.monotonic() - began)

    def _tokens(self, body: Mapping[str, Any]) -> list[int]:
        tokens = self._ask("/tokenize", {"model": self.model, **body}).get("tokens")
        if not isinstance(tokens, list) or any(type(token) is not int for token in tokens):
            raise WarmServerError(f"{self.base}/tokenize: expected a list of tokens, found none")
        return tokens

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        address = self.base + path
        request = urllib.request.Request(
            address,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        if self._key:
            request.add_header("Authorization", f"Bearer {self._key}")
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as reply:
                said = json.load(reply)
        except urllib.error.HTTPError as error:
            raise _refusal(address, error) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise WarmServerError(
                f"{address}: cannot be read ({reason}): start the server, or name the address that "
                "`vllm serve` listens on with --url"
            ) from None
        if not isinstance(said, dict):
            raise WarmServerError(f"{address}: expected an object, found {type(said).__name__}")
        return said


def _refusal(address: str, error: urllib.error.HTTPError) -> WarmServerError:
    if error.code in (401, 403):
        return WarmServerError(
            f"{address}: the server asks for a key (status {error.code}): set VLLM_API_KEY to it"
        )
    if error.code in (404, 405):
        said = _said(error)
        return WarmServerError(
            f"{address}: expected vLLM's OpenAI server, found status {error.code}"
            f"{f' ({said})' if said else ''}: name the address that `vllm serve` listens on"
        )
    kind = RefusedError if error.code < 500 else WarmServerError
    return kind(f"{address}: status {error.code}: {_said(error) or error.reason}")


def _said(error: urllib.error.HTTPError) -> str:
    """The message of an error, in one line."""
    try:
        said = json.loads(error.read(1 << 16))
        inner = said.get("error", said)
        message = str(inner.get("message", "") if isinstance(inner, dict) else inner)
    except (OSError, ValueError, AttributeError, http.client.HTTPException):
        return ""
    line = " ".join(message.split())
    return line if len(line) <= _MOST_SAID else f"{line[:_MOST_SAID]}..."
