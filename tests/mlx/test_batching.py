"""Which models mlx-lm batches rightly: the list that the server goes by."""

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache

import tiny
from hybrid_pages.mlx.batching import batches_rightly
from hybrid_pages.mlx.differences import BATCHED
from runs import NOISE, VISIBLE, apart, feed

LENGTHS = (37, 5, 20, 11)


def first_logprobs(model, prompts):
    """The log-probs of the first new token of each prompt, in one batch."""
    generator = BatchGenerator(model, max_tokens=1)
    uids = generator.insert([list(prompt) for prompt in prompts])
    found = {}
    while responses := generator.next_generated():
        found |= {response.uid: response.logprobs for response in responses}
    generator.close()
    return [found[uid] for uid in uids]


@pytest.mark.parametrize("name", tiny.HYBRIDS)
def test_the_list_is_what_mlx_lm_computes(models, name):
    """A model that is mended upstream turns this red, and joins the list."""
    model = models(name)
    prompts = [tiny.tokens(count, seed=count) for count in LENGTHS]
    together = first_logprobs(model, prompts)
    alone = [first_logprobs(model, [prompt])[0] for prompt in prompts]
    worst = max(apart(a, b) for a, b in zip(together, alone, strict=True))
    assert batches_rightly(model) == (name in BATCHED)
    if batches_rightly(model):
        assert worst < NOISE
    else:
        assert worst > VISIBLE


@pytest.mark.parametrize("name", BATCHED)
def test_rows_that_join_later_and_have_a_prefix_give_their_texts(models, name):
    """As the server has them: some begin behind a restored prefix, while others are decoded."""
    model = models(name)
    prompts = [tiny.tokens(count, seed=count) for count in (40, 30, 53, 26, 61)]

    def written(generator):
        found = {}
        for response in generator.next_generated():
            found.setdefault(response.uid, []).append(response.token)
        return found

    def collect(generator, found):
        while now := written(generator):
            for uid, tokens in now.items():
                found.setdefault(uid, []).extend(tokens)
        return found

    alone = []
    for prompt in prompts:
        generator = BatchGenerator(model, max_tokens=10)
        (uid,) = generator.insert([prompt])
        alone.append(collect(generator, {})[uid])
    generator = BatchGenerator(model, max_tokens=10, prefill_step_size=16)
    uids, found = [], {}
    for at, prompt in enumerate(prompts):
        cache, seen = make_prompt_cache(model), 24 * (at % 2)
        if seen:
            feed(model, cache, prompt[:seen])
        uids += generator.insert([prompt[seen:]], caches=[cache], all_tokens=[prompt[:seen]])
        for uid, tokens in written(generator).items():
            found.setdefault(uid, []).extend(tokens)
    collect(generator, found)
    assert [found[uid] for uid in uids] == alone


def test_models_without_recurrent_layers_are_batched(models):
    model = models("llama")
    assert batches_rightly(model)
    cache = make_prompt_cache(model)
    model(mx.array([[1, 2]]), cache=cache)
