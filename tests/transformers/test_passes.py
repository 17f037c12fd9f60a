"""Results that depend on the other tokens of a pass: no cache for such models, and a reason."""

import copy
import inspect
import threading
import types

import pytest
import torch

import tiny
from hybrid_pages.transformers import PrefixCache, model_trial
from hybrid_pages.transformers.chunk_invariance import _rounded, depends_on_pass
from hybrid_pages.transformers.structure import describe
from runs import BLOCK, agree

IDS = tiny.tokens(70, 41)
# Models that cannot go on from a state by several tokens at once.
SINGLE = ("jamba",)


def depends(model, name=""):
    return depends_on_pass(model, continues=name not in SINGLE)


# ---- healthy models


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", tiny.MODELS)
def test_no_healthy_model_is_ruled_out(name, dtype):
    assert depends(tiny.make(name, 0, dtype), name) is None


@pytest.fixture
def routed(monkeypatch):
    """The name of a model with experts, few of which each token goes to."""
    make = tiny.MODELS["qwen3-next"]

    def deep():
        model = make()
        config = model.config
        config.num_hidden_layers, config.num_experts, config.num_experts_per_tok = 12, 16, 2
        config.layer_types = config.layer_types * 3
        return type(model)(config)

    monkeypatch.setitem(tiny.MODELS, "routed", deep)
    return "routed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_deep_models_that_route_tokens_to_few_experts_are_healthy(dtype, routed):
    """Rounding flips routes there, and layers amplify it."""
    for seed in range(3):
        assert depends(tiny.make(routed, seed, dtype)) is None


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_products_of_lower_precision_are_healthy(precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert depends(tiny.make("qwen3.5")) is None
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_experts_that_sum_products_of_few_tokens_otherwise_are_healthy(dtype, routed, monkeypatch):
    """GPUs compute products of few rows in parts, and round each part."""
    linear = torch.nn.functional.linear

    def in_parts(states, weight, bias=None):
        few = states.dim() == 2 and states.shape[0] < 12
        if not few or states.dtype == torch.float32:
            return linear(states, weight, bias)
        half = states.shape[1] // 2
        first = linear(states[:, :half], weight[:, :half], bias)
        return first + linear(states[:, half:], weight[:, half:])

    monkeypatch.setattr(torch.nn.functional, "linear", in_parts)
    for seed in range(3):
        model = tiny.make(routed, seed, dtype)
        model.set_experts_implementation("eager")
        assert depends(model) is None


# ---- models that are not


def dynamic_int8(model):
    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def one_dynamic_layer(model):
    projection = model.model.layers[1].feed_forward
    torch.ao.quantization.quantize_dynamic(
        projection, {torch.nn.Linear}, dtype=torch.qint8, inplace=True
    )
    return model


def wrap(module, change):
    forward = module.forward
    module.forward = lambda states, *args, **kwargs: change(forward(states, *args, **kwargs))


def one_scale(model):
    """Activations that are rounded to 8 bits by the largest of the pass, in any dtype."""

    def change(states):
        step = states.abs().max() / 127
        return (states / step).round() * step

    for layer in model.model.layers:
        wrap(layer.operator_norm, change)
    return model


def outliers(model):
    """Columns with an outlier anywhere in the pass are not rounded, as in LLM.int8()."""

    def change(states):
        spared = states.abs().amax((0, 1)) > 2.2
        step = states.abs().amax(-1, keepdim=True) / 127
        return torch.where(spared, states, (states / step).round() * step)

    for layer in model.model.layers:
        wrap(layer.operator_norm, change)
    return model


def norm_over_tokens(model):
    wrap(model.model.layers[2].operator_norm, lambda x: x - 0.1 * x.mean(1, keepdim=True))
    return model


def first_come_first_served(model):
    """The first quarter of a pass, counted by token, is served: later tokens are dropped."""

    def change(states):
        served = torch.arange(states.shape[1]) < max(states.shape[1] // 4, 1)
        return states * served[None, :, None]

    wrap(model.model.layers[1].feed_forward, change)
    return model


def mean_so_far(model):
    """Causal, but it begins anew in each pass."""

    def change(states):
        counts = torch.arange(1, states.shape[1] + 1)[None, :, None]
        return states - 0.3 * states.cumsum(1) / counts

    wrap(model.model.layers[2].operator_norm, change)
    return model


DEPENDENT = [
    dynamic_int8,
    one_dynamic_layer,
    one_scale,
    outliers,
    norm_over_tokens,
    first_come_first_served,
    mean_so_far,
]


@pytest.mark.parametrize("change", DEPENDENT, ids=lambda change: change.__name__)
def test_texts_that_depend_on_the_cut_are_computed_without_the_cache(make, change):
    model = change(make("lfm2")).eval()
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        for seed in range(3):
            ids = tiny.tokens(70, seed)
            assert (agree(cache, ids), agree(cache, ids)) == (0, 0)
        (reason,) = cache.stats().uncached
        assert reason.startswith("texts depend on where a prompt is cut: ")
        assert cache.stats().uncached[reason] == 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("change", [one_scale, outliers, norm_over_tokens])
def test_it_shows_in_half_precision_too(make, change, dtype):
    reason = depends(change(make("lfm2", 0, dtype)))
    assert "with other tokens later in a pass, logits differ by" in reason


def test_a_model_that_becomes_dependent_is_ruled_out_and_comes_back(make):
    model = make("lfm2")
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
        norm = model.model.layers[2].operator_norm
        norm_over_tokens(model)
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 0)
        del norm.forward
        assert agree(cache, IDS) == 64


def test_a_threshold_for_outliers_rules_a_model_out_although_no_token_tried_has_one(make):
    class Linear8bitLt(torch.nn.Linear):
        pass

    model = make("lfm2")
    projection = model.model.layers[1].self_attn.out_proj
    projection.__class__ = Linear8bitLt
    projection.state = types.SimpleNamespace(threshold=6.0)
    assert "out_proj is a Linear8bitLt with an outlier threshold of 6" in depends(model)
    projection.state.threshold = 0.0
    assert depends(model) is None


def test_logits_that_are_no_numbers_rule_a_model_out(make):
    model = make("lfm2")
    wrap(model.model.layers[1].feed_forward, lambda states: states * torch.nan)
    assert depends(model) is not None


def test_logits_whose_squares_are_too_large_are_compared_all_the_same(make):
    model = make("lfm2")
    with torch.no_grad():
        model.lm_head.weight.mul_(1e28)
    assert depends(model) is None
    assert depends(one_scale(model)) is not None


def test_logits_that_are_all_equal_are_no_fault(make):
    model = make("lfm2")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert depends(model) is None


# ---- the trial itself


def test_the_trial_takes_few_short_passes_and_leaves_nothing_behind(make, monkeypatch):
    model = make("lfm2")
    lengths = []
    forward = type(model).forward

    def counted(self, *args, **kwargs):
        lengths.append(kwargs["input_ids"].shape[1])
        return forward(self, *args, **kwargs)

    counted.__signature__ = inspect.signature(forward)
    monkeypatch.setattr(type(model), "forward", counted)
    before, drawn = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert depends(model) is None
    assert len(lengths) <= 10 and sum(lengths) <= 320
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not any(module._forward_hooks for module in model.modules())
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_trial_that_fails_costs_the_cache_alone(make):
    model = make("lfm2")
    norm = model.model.layers[0].operator_norm
    plain = type(norm).forward

    def picky(states):
        if states.shape[1] == 48:
            raise IndexError("not so many")
        return plain(norm, states)

    norm.forward = picky
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 0)
        assert cache.stats().uncached == {"the model fails on a few tokens: IndexError": 2}


def test_memory_that_runs_out_in_the_trial_is_no_property_of_the_model(make, monkeypatch):
    failing = [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("out of memory")]

    def short(model, *, continues):
        if failing:
            raise failing.pop()
        return depends_on_pass(model, continues=continues)

    monkeypatch.setattr(model_trial, "depends_on_pass", short)
    with PrefixCache(make("lfm2"), host_gb=0.01, block_tokens=BLOCK) as cache:
        assert [agree(cache, IDS) for _ in range(3)] == [0, 0, 64]
        assert cache.stats().uncached == {"out of memory while trying the model out": 1}


@pytest.mark.any_version
def test_a_trial_compiles_nothing(make):
    model, compiled = make("lfm2"), []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    model.compile(backend=backend)
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        assert cache.generate(IDS, max_new_tokens=1, do_sample=False).shape[1] == 71
        assert cache.stats().uncached == {}
    lengths = {size for graph in compiled for size in _lengths(graph)}
    assert compiled and not lengths & {2, 8, 48}


def _lengths(graph):
    nodes = (node for node in graph.graph.nodes if node.op == "placeholder")
    values = (node.meta.get("example_value") for node in nodes)
    ids = (v for v in values if isinstance(v, torch.Tensor) and v.dtype == torch.int64)
    return [v.shape[-1] for v in ids if v.dim() == 2 and isinstance(v.shape[-1], int)]


def test_a_trial_changes_nothing_for_other_threads(make):
    model = make("lfm2")
    embeddings, found = model.get_input_embeddings(), []
    expected = embeddings(IDS)

    def use():
        found.append((embeddings(IDS), describe(model).uncached))

    with _rounded(model, 0.01) as noted:
        assert not torch.equal(embeddings(IDS), expected) and noted
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    ((states, uncached),) = found
    assert torch.equal(states, expected) and uncached is None


@pytest.mark.parametrize("limit", [32, 48, 49])
def test_lengths_whose_keys_change_are_not_tried(limit):
    model = tiny.make("lfm2")
    config = copy.deepcopy(model.config)
    config.max_position_embeddings = limit
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    scaled = type(model)(config).eval()
    scaled.load_state_dict(model.state_dict(), strict=False)
    assert depends(scaled) is None


def test_a_model_that_does_not_tell_its_embeddings_is_tried_all_the_same(make, monkeypatch):
    model = make("lfm2")

    def missing(self):
        raise NotImplementedError

    monkeypatch.setattr(type(model), "get_input_embeddings", missing)
    assert depends(model) is None
    assert depends(one_scale(model)) is not None
