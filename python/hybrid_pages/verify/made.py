"""The prompts that an engine gets: those that the user gave, or built-in ones, as tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.verify import prompts, questions
from hybrid_pages.verify.prompts import GivenPrompts, VerifyPrompt
from hybrid_pages.verify.runs import EngineCommands

_ANSWER_TOKENS = 256


def made(
    args: SimpleNamespace,
    given: list[GivenPrompts] | None,
    asked: list[questions.ScoredQuestion],
    engine: EngineCommands,
    facts: dict[str, Any],
) -> list[VerifyPrompt]:
    """The prompts that an engine gets.

    Raises:
        SettingsError: a prompt that the engine does not take; names it.
    """
    found = [
        VerifyPrompt(each.name, _fitting(each, tokens, args.tokens, facts), args.tokens)
        for each, tokens in _encoded(given, args.seed, args.tokens, engine, facts)
    ]
    return found + _questions(asked, args.answer_tokens or _ANSWER_TOKENS, engine, facts)


def _encoded(
    given: list[GivenPrompts] | None,
    seed: int,
    answer: int,
    engine: EngineCommands,
    facts: dict[str, Any],
) -> list[tuple[GivenPrompts, tuple[int, ...]]]:
    if given is None:
        given = _built_in(seed, answer, engine, facts)
    texts = [each.text for each in given if each.text is not None]
    encoded = iter(engine.ask("encode", texts=texts)["tokens"] if texts else ())
    return [(each, each.tokens if each.text is None else tuple(next(encoded))) for each in given]


def _built_in(
    seed: int, answer: int, engine: EngineCommands, facts: dict[str, Any]
) -> list[GivenPrompts]:
    n, longest = facts["block_tokens"], facts["longest"] - answer
    # Nobody tells how many ids a served model has.
    vocab, few = facts.get("sure_ids", facts["vocab"]), facts.get("few", False)
    if longest < 1:
        raise SettingsError(
            f"--tokens: expected less than --max-model-len {facts['longest']}, found {answer}"
        )
    if not facts["has_tokenizer"]:
        return prompts.ids(n, vocab, longest, seed, few=few)
    lines, needed = 8 + n // 2, 2 * sum(prompts.lengths(n, longest, few=few))
    tokens: list[int] = []
    while len(tokens) < needed:
        (more,) = engine.ask("encode", texts=[prompts.ledger(lines, seed)])["tokens"]
        # The tokenizer knows no word, or cuts texts.
        if len(more) <= len(tokens):
            return prompts.ids(n, vocab, longest, seed, few=few)
        tokens, lines = more, 2 * lines
    return prompts.cut(tokens, n, longest, few=few)


def _fitting(
    each: GivenPrompts, tokens: tuple[int, ...], answer: int, facts: dict[str, Any]
) -> tuple[int, ...]:
    if not tokens:
        raise SettingsError(f"{each.name}: expected a prompt with tokens, found none")
    if max(tokens) >= facts["vocab"]:
        raise SettingsError(
            f"{each.name}: expected token ids below {facts['vocab']}, found {max(tokens)}"
        )
    if len(tokens) + answer > facts["longest"]:
        raise SettingsError(
            f"{each.name}: expected at most {facts['longest'] - answer} tokens, which leaves "
            f"{answer} of --max-model-len {facts['longest']} for the answer, found {len(tokens)}"
        )
    return tokens


def _questions(
    asked: list[questions.ScoredQuestion],
    answer: int,
    engine: EngineCommands,
    facts: dict[str, Any],
) -> list[VerifyPrompt]:
    """The questions, each after as many worked ones as fill a block, which are not asked."""
    if not asked:
        return []
    if not facts["has_tokenizer"]:
        raise SettingsError("--questions: expected a model with a tokenizer, found none")
    shots = min(questions.LEAST_SHOTS, len(asked) - 1)
    while shots < len(asked) - 1:
        (tokens,) = engine.ask("encode", texts=[questions.shown(asked[:shots])])["tokens"]
        if len(tokens) > facts["block_tokens"]:
            break
        shots += 1
    head, rest = questions.shown(asked[:shots]), asked[shots:]
    encoded = engine.ask("encode", texts=[head + questions.asked(each) for each in rest])["tokens"]
    return [
        VerifyPrompt(
            name := f"question {each.line}",
            _fitting(GivenPrompts(name), tuple(tokens), answer, facts),
            answer,
            questions.STOP,
            each.wanted,
        )
        for each, tokens in zip(rest, encoded, strict=True)
    ]
