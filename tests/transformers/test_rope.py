"""Rotary embeddings that scale with the length: short and long texts have other keys."""

import copy

import pytest
import torch
import transformers

import tiny
from hybrid_pages.transformers import PrefixCache
from hybrid_pages.transformers.rope import Regime, regime
from runs import BLOCK, agree, feed, new_cache

ORIGINAL = 96
_FACTORS = torch.linspace(1, 2, 4).tolist(), torch.linspace(3, 9, 4).tolist()
SCALED = {
    "dynamic": dict(rope_type="dynamic", rope_theta=1e4, factor=4.0, partial_rotary_factor=0.5),
    "longrope": dict(
        rope_type="longrope",
        rope_theta=1e4,
        factor=4.0,
        short_factor=_FACTORS[0],
        long_factor=_FACTORS[1],
        original_max_position_embeddings=ORIGINAL,
        partial_rotary_factor=0.5,
    ),
}
FIXED = {
    "linear": dict(rope_type="linear", rope_theta=1e4, factor=4.0),
    "yarn": dict(
        rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=ORIGINAL
    ),
    "llama3": dict(
        rope_type="llama3",
        rope_theta=1e4,
        factor=4.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=ORIGINAL,
    ),
}


def model_with(parameters, name="qwen3"):
    """A tiny model with these rope parameters: attention alone, with windows, or hybrid."""
    parameters = copy.deepcopy(parameters)
    common = tiny._COMMON | dict(max_position_embeddings=ORIGINAL)
    full = {k: v for k, v in parameters.items() if k != "partial_rotary_factor"}
    dim = dict(head_dim=8 if "short_factor" in parameters else 16)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name == "qwen3":
            config = transformers.Qwen3Config(
                **common, **dim, num_hidden_layers=2, rope_parameters=full
            )
            model = transformers.Qwen3ForCausalLM(config)
        elif name == "phi3":
            config = transformers.Phi3Config(
                **common,
                num_hidden_layers=2,
                original_max_position_embeddings=ORIGINAL,
                rope_parameters=parameters,
            )
            model = transformers.Phi3ForCausalLM(config)
        elif name == "gemma3":
            kinds = ["sliding_attention", "full_attention"]
            rope = {"sliding_attention": dict(tiny._ROPE), "full_attention": full}
            config = transformers.Gemma3TextConfig(
                **common,
                **dim,
                num_hidden_layers=2,
                sliding_window=40,
                layer_types=kinds,
                rope_parameters=rope,
            )
            model = transformers.Gemma3ForCausalLM(config)
        else:
            config = transformers.Qwen3_5TextConfig(
                **common,
                **(tiny._DELTA_NET | dim),
                num_hidden_layers=4,
                rope_parameters=full,
            )
            model = transformers.Qwen3_5ForCausalLM(config)
        for key, parameter in model.named_parameters():
            if key.endswith(("q_proj.weight", "k_proj.weight", "qkv_proj.weight")):
                parameter.data.normal_(0, 0.5)
            if key.endswith("o_proj.weight"):
                parameter.data.normal_(0, 0.3)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = None
    return model.eval()


def opened(model):
    return PrefixCache(model, host_gb=0.01, block_tokens=BLOCK)


# Phi-3 knows longrope only; of longrope by kind of layer transformers 5.19 makes an error.
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen3", "dynamic"),
        ("qwen3", "longrope"),
        ("qwen3.5", "dynamic"),
        ("qwen3.5", "longrope"),
        ("gemma3", "dynamic"),
        ("phi3", "longrope"),
    ],
)
def test_short_and_long_prompts_with_one_prefix_get_their_own_texts(name, kind):
    model = model_with(SCALED[kind], name)
    ids = tiny.tokens(200, 41)
    # With "dynamic" a text depends on the longest one before it: the twin sees the same texts.
    twin = copy.deepcopy(model)
    with opened(model) as cache:
        for length in (50, 90, 120, 50, 180, 95, 96, 97, 60, 180):
            texts = [
                run(ids[:, :length], max_new_tokens=10, do_sample=False)
                for run in (cache.generate, twin.generate)
            ]
            assert torch.equal(*texts)
        stats = cache.stats()
        # Short ones are restored, before and after long ones; no state is lost by those.
        assert stats.hits >= 3
        assert stats.changes == {}
        if kind == "dynamic":
            assert stats.uncached == {"dynamic rope: each length has keys of its own": 5}


@pytest.mark.parametrize("kind", SCALED)
def test_a_text_that_grows_past_the_limit_is_stored_up_to_it(kind):
    model = model_with(SCALED[kind])
    ids = tiny.tokens(80, 42)
    with opened(model) as cache:
        agree(cache, ids, new=60)
        assert cache.stats().pages == ORIGINAL // BLOCK
        said = model.generate(ids, max_new_tokens=60, do_sample=False)
        assert agree(cache, said[:, :95]) == 80
        agree(cache, said)
        agree(cache, torch.cat([said, tiny.tokens(9, 43)], 1))


def test_long_prompts_of_longrope_share_what_was_computed_as_long():
    model = model_with(SCALED["longrope"])
    ids = tiny.tokens(200, 44)
    with opened(model) as cache:
        assert (agree(cache, ids[:, :150]), agree(cache, ids[:, :150])) == (0, 144)
        assert agree(cache, ids) == 144
        # The same tokens in a short text have other keys.
        assert (agree(cache, ids[:, :90]), agree(cache, ids[:, :90])) == (0, 80)
        assert cache.stats().uncached == {}


@pytest.mark.parametrize("kind", SCALED)
def test_chunks_of_a_long_prompt_have_the_keys_of_their_own_lengths(kind):
    model, ids = model_with(SCALED[kind]), tiny.tokens(150, 52)
    with opened(model) as cache:
        assert [agree(cache, ids[:, :90], prefill_chunk_size=32) for _ in range(2)] == [0, 80]
        assert cache.stats().uncached == {}
        assert [agree(cache, ids, prefill_chunk_size=32) for _ in range(2)] == [0, 0]
        assert sum(cache.stats().uncached.values()) == 2
        agree(cache, ids, prefill_chunk_size=200)


@pytest.mark.parametrize("kind", FIXED)
def test_scaling_that_does_not_look_at_the_length_changes_nothing(kind):
    model = model_with(FIXED[kind])
    ids = tiny.tokens(150, 45)
    with opened(model) as cache:
        assert agree(cache, ids[:, :90]) == 0
        assert agree(cache, ids) == 80


@pytest.mark.parametrize("kind", SCALED)
def test_keys_of_a_prefix_do_depend_on_the_length(kind):
    """Why the tests above can fail."""
    model = model_with(SCALED[kind])
    ids, keys = tiny.tokens(150, 46), []
    for length in (90, 150):
        cache = new_cache(model)
        feed(model, cache, ids[:, :length], 0)
        keys.append(cache.layers[0].keys[:, :, :90].clone())
    assert (keys[0] - keys[1]).abs().max() > 0.1


def test_without_regimes_texts_differ(monkeypatch):
    monkeypatch.setattr("hybrid_pages.transformers.prefix_cache.regime", lambda *_: Regime())
    model = model_with(SCALED["longrope"])
    with opened(model) as cache, pytest.raises(AssertionError):
        for seed in range(20):
            ids = tiny.tokens(200, 100 + seed)
            for length in (90, 150, 200):
                agree(cache, ids[:, :length], new=20)


@pytest.mark.parametrize("kind", SCALED)
def test_frequencies_that_were_edited_are_noticed(kind):
    model = model_with(SCALED[kind])
    rope, ids = model.model.rotary_emb, tiny.tokens(90, 47)
    with opened(model) as cache:
        assert (agree(cache, ids), agree(cache, ids)) == (0, 80)
        before = model.generate(
            ids, max_new_tokens=6, do_sample=False, output_logits=True, return_dict_in_generate=True
        ).logits
        rope.inv_freq.data.mul_(0.5)
        after = model.generate(
            ids, max_new_tokens=6, do_sample=False, output_logits=True, return_dict_in_generate=True
        ).logits
        # Newer transformers write longrope's anew in each pass: such an edit changes nothing.
        changed = not all(map(torch.equal, before, after))
        assert changed or kind == "longrope"
        assert (agree(cache, ids), agree(cache, ids)) == ((0, 80) if changed else (80, 80))
        agree(cache, tiny.tokens(150, 48))
        agree(cache, ids)
        rope.original_inv_freq.data.mul_(0.5)
        assert (agree(cache, ids), agree(cache, ids)) == (0, 80)


@pytest.mark.parametrize("first", ["short", "long"])
def test_frequencies_of_long_texts_that_were_edited_are_noticed(first):
    model = model_with(SCALED["longrope"])
    rope, ids = model.model.rotary_emb, tiny.tokens(150, 50)
    with opened(model) as cache:
        agree(cache, ids[:, :90] if first == "short" else ids)
        agree(cache, ids)
        assert agree(cache, ids) == 144
        assert cache.stats().changes == {}
        cold = model.generate(ids, max_new_tokens=6, do_sample=False)
        rope.long_inv_freq.data.mul_(0.3)
        edited = model.generate(ids, max_new_tokens=6, do_sample=False)
        if not torch.equal(cold, edited):  # older transformers work them out anew
            assert agree(cache, ids) == 0
        agree(cache, ids)
        assert agree(cache, ids) == 144


def test_a_rotary_module_that_was_replaced_is_used_at_once():
    model, ids = model_with(SCALED["longrope"]), tiny.tokens(150, 51)
    fresh = model_with(SCALED["longrope"]).model.rotary_emb
    with opened(model) as cache:
        agree(cache, ids)
        model.model.rotary_emb = fresh
        assert [agree(cache, ids), agree(cache, ids)] == [0, 144]
        assert cache.stats().uncached == {}


def test_a_probe_leaves_the_frequencies_of_a_long_text():
    model = model_with(SCALED["dynamic"])
    model.generate(tiny.tokens(150, 49), max_new_tokens=2)
    rope = model.model.rotary_emb
    before = rope.inv_freq, rope.max_seq_len_cached
    assert before[1] > ORIGINAL
    with opened(model):
        assert rope.inv_freq is before[0]
        assert rope.max_seq_len_cached is before[1]


def test_regimes():
    longrope, dynamic = model_with(SCALED["longrope"]), model_with(SCALED["dynamic"])
    assert regime(longrope, ORIGINAL) == Regime("short", 0, ORIGINAL)
    assert regime(longrope, ORIGINAL + 1) == Regime("long", ORIGINAL, None)
    assert regime(dynamic, ORIGINAL - 1) == Regime(reach=ORIGINAL)
    assert isinstance(regime(dynamic, ORIGINAL), str)
    assert regime(model_with(FIXED["yarn"]), 10**6) == Regime()
