"""A tiny model that can be chatted with: a byte-level tokenizer and a chat template, made here.

The answers are babble, but legible: the output layer prefers syllables to other tokens.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_pages.demo import models

if TYPE_CHECKING:
    import torch

# The tiny models' configurations give these ids to padding, begin and end.
SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('expected the role system, user or assistant, found ' + message['role']) }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# A space, as byte-level vocabularies spell it.
_SPACE = "\u0120"
# The factor on the output weights of tokens that are not legible.
_FAINT = 0.1


def ensure_chat(cache_dir: Path | None = None) -> Path:
    """The folder of the tiny Qwen3.5 with a tokenizer, made now unless it is there already."""
    return models.ensure("qwen3.5-chat", cache_dir, {"qwen3.5-chat": _model}, also=_write_words)


def _merges() -> list[tuple[str, str]]:
    """Merges that fill the vocabulary beside bytes: syllables, words' beginnings, closed
    syllables."""
    open_syllables = list(product("bcdfghjklmnprstvwxz", "aeiou"))
    words = ["".join(syllable) for syllable in open_syllables]
    merges = open_syllables + [(_SPACE, word) for word in words] + [(word, "n") for word in words]
    return merges[: models.VOCAB - len(SPECIAL) - 256]


def vocabulary() -> dict[str, int]:
    """Every token's id: the special ones, all bytes, syllables."""
    from tokenizers.pre_tokenizers import ByteLevel

    syllables = ["".join(pair) for pair in _merges()]
    words = [*SPECIAL, *sorted(ByteLevel.alphabet()), *syllables]
    return {word: number for number, word in enumerate(words)}


def _model() -> tuple[torch.nn.Module, dict[str, object]]:
    model, extra = models.MODELS["qwen3.5"]()
    legible = {SPECIAL[2], _SPACE, ".", ",", "?", *map("".join, _merges())}
    rows: Any = model.lm_head.weight
    for word, row in vocabulary().items():
        if word not in legible:
            rows[row] *= _FAINT
    return model, extra


def _write_words(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import GenerationConfig, PreTrainedTokenizerFast

    tokenizer = Tokenizer(BPE(vocab=vocabulary(), merges=_merges()))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    pad, begin, end = SPECIAL
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=begin,
        eos_token=end,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
    GenerationConfig(pad_token_id=0, bos_token_id=1, eos_token_id=2).save_pretrained(folder)
