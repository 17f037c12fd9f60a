"""mlx-lm 0.31.3, which vllm-mlx asks for, where it differs from the newest."""

import mlx.core as mx
import mlx_lm
import pytest

import tiny
from hybrid_pages import InvalidArgumentError
from hybrid_pages.mlx import PrefixCache, differences
from runs import BLOCK, collect

PROMPT = tiny.tokens(90)


@pytest.fixture
def cache(models):
    with PrefixCache(models("qwen3_5"), host_gb=0.05, block_tokens=BLOCK) as made:
        yield made


def test_it_is_the_version_that_tests_are_meant_to_run():
    assert mlx_lm.__version__ == "0.31.3"


def test_a_stream_of_the_caller_is_rejected(cache, tokenizer):
    with pytest.raises(InvalidArgumentError, match=r"0\.31\.3 always computes"):
        collect(cache.stream_generate(tokenizer, PROMPT, 4, None, mx.new_stream(mx.cpu)))


def test_processors_see_what_they_see_cold(cache, tokenizer):
    """The last token of a prompt alone."""

    def seen(generate, *model):
        found = []

        def note(tokens, logits):
            found.append(tokens.tolist())
            return logits

        collect(generate(*model, tokenizer, PROMPT, 3, logits_processors=[note]))
        return found

    cold = seen(mlx_lm.stream_generate, cache.model)
    assert cold[0] == PROMPT[-1:]
    assert [seen(cache.stream_generate) for _ in range(2)] == [cold, cold]
    assert cache.stats().hits == 1


def test_kv_bits_quantise_from_the_first_token_on(cache, tokenizer):
    assert differences.QUANTIZED_FROM == 0
    collect(cache.stream_generate(tokenizer, PROMPT, 3, kv_bits=8, kv_group_size=32))
    assert cache.stats().uncached == {"kv_bits": 1}
