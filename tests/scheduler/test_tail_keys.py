"""Keys of tails: equal for equal prefixes, different wherever vLLM's own hash would differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys
from vllm.v1.request import Request

from hybrid_pages import InvalidArgumentError
from hybrid_pages.vllm.scheduler.requests.tails import can_have_tails, tail_keys

PARENT, START = b"p" * 32, 16
TOKENS = list(range(100, 140))


def image(identifier: str, offset: int, length: int) -> MultiModalFeatureSpec:
    return MultiModalFeatureSpec(
        data=None,
        modality="image",
        identifier=identifier,
        mm_position=PlaceholderRange(offset=offset, length=length),
    )


def request(tokens: list[int] | None = None, **more: Any) -> Request:
    return Request(
        "name",
        TOKENS.copy() if tokens is None else tokens,
        SamplingParams(max_tokens=4),
        None,
        **more,
    )


def key(made: Request, length: int = 7, start: int = START) -> bytes:
    (found,) = tail_keys(made, PARENT if start else None, start, [length])
    return found


def test_several_lengths_have_the_keys_that_each_has_alone() -> None:
    for more in ({}, {"mm_features": [image("a", 18, 3), image("b", 23, 9), image("c", 32, 1)]}):
        made = request(**more)
        lengths = [1, 2, 5, 7, 8, 16, 24]
        keys = tail_keys(made, PARENT, START, lengths)
        assert keys == [key(made, length) for length in lengths]
        assert [len(each) for each in keys] == [31] * len(keys)
        assert [int.from_bytes(each[27:], "little") for each in keys] == lengths
        assert {each[19:27] for each in keys} == {PARENT[:8]}
        assert len({each[:19] for each in keys}) == len(keys)
    assert tail_keys(request(), PARENT, START, []) == []


def test_a_key_is_that_of_the_prefix_alone() -> None:
    assert key(request()) == key(request(TOKENS[: START + 7]))
    longer = request(mm_features=[image("a", START + 7, 5)])
    assert key(longer) == key(request()), "the image begins behind the tail"
    assert key(request(cache_salt="salt")) == key(request()), "the key of the parent names it"


LORA = {"lora_name": "a", "lora_int_id": 1, "lora_path": "/a"}
OTHERS: dict[str, dict[str, Any]] = {
    "a token": {"tokens": [*TOKENS[: START + 3], 7, *TOKENS[START + 4 :]]},
    "a LoRA": {"lora_request": LoRARequest(**LORA)},
    "a LoRA of another name": {"lora_request": LoRARequest(**LORA | {"lora_name": "b"})},
    "a LoRA of another path": {"lora_request": LoRARequest(**LORA | {"lora_path": "/b"})},
    "an image": {"mm_features": [image("a", START + 2, 4)]},
    "another image": {"mm_features": [image("b", START + 2, 4)]},
    "an image elsewhere": {"mm_features": [image("a", START + 3, 4)]},
    "an image that begins before": {"mm_features": [image("a", START - 3, 10)]},
    "an image that ends behind": {"mm_features": [image("a", START + 2, 14)]},
    "two images": {"mm_features": [image("a", START + 2, 2), image("a", START + 4, 2)]},
}


def test_what_vllm_hashes_apart_has_keys_of_its_own() -> None:
    made = {name: request(**more) for name, more in OTHERS.items()} | {"plain": request()}
    keys = {name: key(each) for name, each in made.items()}
    assert len(set(keys.values())) == len(keys)
    theirs = {
        (
            tuple(each.all_token_ids[START : START + 7]),
            generate_block_hash_extra_keys(each, START, START + 7, 0)[0],
        )
        for each in made.values()
    }
    assert len(theirs) >= len(keys) - 1, "vLLM does not hash an image's length"


def test_the_first_block_names_the_salt() -> None:
    salts = (None, "", "a", "b", "\udc80")
    keys = [key(request(cache_salt=salt), start=0) for salt in salts]
    assert keys[0] == keys[1], "vLLM takes an empty salt for none"
    assert len(set(keys)) == len(salts) - 1
    assert key(request()) not in keys


def test_other_parents_have_other_tails() -> None:
    made = request()
    parents = [b"p" * 32, b"q" * 32, b"p" * 16]
    assert len({tail_keys(made, each, START, [7])[0] for each in parents}) == len(parents)


def test_fields_cannot_run_into_each_other() -> None:
    loras = [("ab", "c"), ("a", "bc"), ("abc", ""), ("a", "b\0c")]
    made = [request(lora_request=LoRARequest(name, 1, path or "/")) for name, path in loras]
    assert len({key(each) for each in made}) == len(made)


@pytest.mark.parametrize("lengths", [[0], [3, 3], [5, 2], [-1], [25]])
def test_lengths_that_make_no_sense_are_rejected(lengths: list[int]) -> None:
    with pytest.raises(InvalidArgumentError, match="expected ascending ones from 1 to 24"):
        tail_keys(request(), PARENT, START, lengths)


@pytest.mark.parametrize(("parent", "start"), [(None, START), (PARENT, 0)])
def test_a_parent_stands_for_the_tokens_before(parent: bytes | None, start: int) -> None:
    with pytest.raises(InvalidArgumentError, match="parent of tails"):
        tail_keys(request(), parent, start, [1])


def test_prompts_with_embeddings_have_no_tails() -> None:
    made = request(prompt_embeds=torch.zeros(40, 2))
    assert not can_have_tails(made)
    assert can_have_tails(request())
