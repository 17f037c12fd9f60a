"""Answers of vllm-mlx that say how many tokens of a prompt were cached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, Field, model_validator
from vllm_mlx import server
from vllm_mlx.api import models

from hybrid_pages.vllm_mlx.prompt_tokens import cached_of


class PromptDetails(BaseModel):
    """What OpenAI's API says of a prompt's tokens."""

    cached_tokens: int = 0


class ChatUsage(server.Usage):  # type: ignore[misc]
    """Usage in answers of completions and chats."""

    prompt_tokens_details: PromptDetails = Field(default_factory=PromptDetails)

    @model_validator(mode="before")
    @classmethod
    def _with_cached(cls, given: dict[str, Any]) -> dict[str, Any]:
        cached = cached_of(given.get("prompt_tokens"))
        return {"prompt_tokens_details": PromptDetails(cached_tokens=cached), **given}


class ResponsesUsage(server.ResponsesUsage):  # type: ignore[misc]
    """Usage in answers of ``/v1/responses``."""

    @model_validator(mode="before")
    @classmethod
    def _with_cached(cls, given: dict[str, Any]) -> dict[str, Any]:
        cached = cached_of(given.get("input_tokens"))
        return {"input_tokens_details": {"cached_tokens": cached}, **given}


class MessagesUsage(server.AnthropicUsage):  # type: ignore[misc]
    """Usage in answers of ``/v1/messages``, where cached tokens are no input tokens."""

    @model_validator(mode="before")
    @classmethod
    def _with_cached(cls, given: dict[str, Any]) -> dict[str, Any]:
        tokens = given.get("input_tokens", 0)
        if cached := cached_of(tokens):
            return {
                **given,
                "input_tokens": int(tokens) - cached,
                "cache_read_input_tokens": cached,
            }
        return given


_OURS = {"Usage": ChatUsage, "ResponsesUsage": ResponsesUsage, "AnthropicUsage": MessagesUsage}
_ANSWERS = {
    models.CompletionResponse: ChatUsage,
    models.ChatCompletionResponse: ChatUsage,
    models.ChatCompletionChunk: ChatUsage | None,
}


@contextmanager
def cached_tokens_shown() -> Iterator[None]:
    """A ``with`` block in which vllm-mlx's answers say how many tokens were cached."""
    theirs = {name: getattr(server, name) for name in _OURS}
    kinds = {answer: answer.model_fields["usage"].annotation for answer in _ANSWERS}
    try:
        for name, usage in _OURS.items():
            setattr(server, name, usage)
        _declare(_ANSWERS)
        yield
    finally:
        for name, usage in theirs.items():
            setattr(server, name, usage)
        _declare(kinds)


def _declare(kinds: dict[Any, Any]) -> None:
    for answer, kind in kinds.items():
        answer.model_fields["usage"].annotation = kind
        answer.model_rebuild(force=True)
