"""Weights that change, in whatever way: what was computed before is not used any more."""

import copy
import gc
import weakref

import pytest
import torch

import tiny
from hybrid_pages import ForeignError
from hybrid_pages.transformers import CacheStore, PrefixCache
from hybrid_pages.transformers.weight_samples import SAMPLES, WeightSampler, plain
from runs import BLOCK, VISIBLE, agree, difference

IDS = tiny.tokens(70, 25)


def strong(model):
    """A weight that texts depend on."""
    return model.model.layers[1].self_attn.out_proj.weight


def whole_model_by_data(model):
    for parameter in model.parameters():
        parameter.data.mul_(1.5)


def one_layer_by_data(model):
    for parameter in model.model.layers[1].parameters():
        parameter.data.add_(0.3)


def one_tensor_by_data(model):
    strong(model).data.neg_()


def merged_adapter(model):
    weight = strong(model)
    torch.manual_seed(1)
    weight.data += torch.randn(weight.shape[0], 2) @ torch.randn(2, weight.shape[1])


def through_numpy(model):
    strong(model).detach().numpy()[:] *= -1


def data_replaced(model):
    weight = strong(model)
    weight.data = -weight.data


def data_swapped(model):
    one, other = (model.model.layers[n].self_attn.out_proj.weight for n in (1, 3))
    one.data, other.data = other.data, one.data


def parameter_replaced(model):
    attention = model.model.layers[1].self_attn
    attention.out_proj.weight = torch.nn.Parameter(-strong(model).detach())


def module_replaced(model):
    attention = model.model.layers[1].self_attn
    attention.out_proj = copy.deepcopy(attention.out_proj)
    strong(model).data.neg_()


@torch.no_grad()
def one_element_in_place(model):
    strong(model)[3, 5] += 50


def loaded_state(model):
    model.load_state_dict(tiny.make("lfm2", seed=3).state_dict())


def optimizer_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with torch.enable_grad():
        model(input_ids=IDS, labels=IDS).loss.backward()
    optimizer.step()
    model.zero_grad()


def in_inference_mode(model):
    with torch.inference_mode():
        strong(model).neg_()


def a_buffer(model):
    model.model.rotary_emb.inv_freq.data.mul_(0.3)


def a_tensor_that_is_no_buffer(model):
    norm = model.model.layers[1].operator_norm
    norm.shift = torch.linspace(-3, 3, 64)
    norm.forward = lambda states: type(norm).forward(norm, states) + norm.shift


EDITS = [
    whole_model_by_data,
    one_layer_by_data,
    one_tensor_by_data,
    merged_adapter,
    through_numpy,
    data_replaced,
    data_swapped,
    parameter_replaced,
    module_replaced,
    one_element_in_place,
    loaded_state,
    optimizer_step,
    in_inference_mode,
    a_buffer,
    a_tensor_that_is_no_buffer,
]


@pytest.fixture
def cache(make):
    with PrefixCache(make("lfm2"), host_gb=0.01, block_tokens=BLOCK) as made:
        yield made


@torch.no_grad()
def logits(model):
    return model(input_ids=IDS).logits


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_changed_weights_are_noticed(cache, edit):
    assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
    old = logits(cache.model)
    edit(cache.model)
    # The comparison can fail: what the old weights computed is not what these compute.
    assert difference(logits(cache.model), old) > VISIBLE
    assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
    if edit is a_tensor_that_is_no_buffer:
        cache.model.model.layers[1].operator_norm.shift.data.neg_()
        assert agree(cache, IDS) == 0


@pytest.mark.parametrize("edit", [whole_model_by_data, data_swapped, a_buffer])
def test_a_cache_that_does_not_look_would_give_another_text(cache, edit, monkeypatch):
    """Why the tests above can fail: the stale state alone shows in the text of some prompt."""
    prompts = [tiny.tokens(70, seed) for seed in range(60, 64)]
    for ids in prompts:
        agree(cache, ids)
    state = cache._watch.look()
    monkeypatch.setattr(cache._watch, "look", lambda: state)
    edit(cache.model)
    with pytest.raises(AssertionError):
        for ids in prompts:
            agree(cache, ids)


def unsampled(weight):
    """The index of an element that no look reads."""
    marked = torch.zeros_like(weight, dtype=torch.int64)
    WeightSampler()._pick(marked).fill_(1)
    return tuple((marked == 0).nonzero()[0].tolist())


def test_an_edit_that_a_sample_misses_needs_to_be_told(cache):
    assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
    weight = strong(cache.model)
    place = unsampled(weight)
    before = weight.data[place].item()
    weight.data[place] += 50
    cache.weights_changed()
    assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
    # Changed back and told, or not told: the first entries never serve again.
    weight.data[place] = before
    cache.weights_changed()
    assert agree(cache, IDS) == 0
    assert cache.stats().changes == {"weights_changed()": 2}


def test_a_write_that_only_its_counter_tells_is_never_undone(cache):
    assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
    weight = strong(cache.model)
    place = unsampled(weight)
    with torch.no_grad():
        weight[place] += 50
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
        weight[place] -= 50
    assert agree(cache, IDS) == 0
    assert cache.stats().changes == {"weights": 2}


def test_memory_that_is_used_anew_is_not_taken_for_the_old_tensor(cache):
    """A parameter goes, another comes to its address with the same sample."""
    agree(cache, IDS)
    projection = cache.model.model.layers[1].self_attn.out_proj
    copied, memory = projection.weight.detach().clone(), projection.weight.detach().numpy()
    address, version = projection.weight.data_ptr(), projection.weight._version
    copied[unsampled(copied)] += 50
    del projection.weight
    fresh = torch.from_numpy(memory)
    fresh.data.copy_(copied)
    projection.weight = torch.nn.Parameter(fresh)
    with torch.no_grad():
        while projection.weight._version < version:
            projection.weight.add_(0)
    assert (projection.weight.data_ptr(), projection.weight._version) == (address, version)
    assert agree(cache, IDS) == 0


def test_looking_keeps_no_weights_alive(cache):
    weight = strong(cache.model)
    memory = weight.detach().numpy().copy()
    held = weakref.ref(memory)
    weight.data = torch.from_numpy(memory)
    del memory
    agree(cache, IDS)
    assert held() is not None
    weight.data = weight.data.clone()
    gc.collect()
    assert held() is None


def test_weights_that_change_while_a_text_is_computed_are_not_stored(make):
    model = make("lfm2")
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:

        class Edit:
            def put(self, value):
                strong(model).data.mul_(1.01)

            def end(self):
                pass

        cache.generate(IDS, max_new_tokens=30, do_sample=False, streamer=Edit())
        assert cache.stats().pages == 4
        name = "model.layers.1.self_attn.out_proj.weight while computing"
        assert cache.stats().changes == {name: 1}
        assert agree(cache, IDS) == 0


# ---- one store for several


@pytest.fixture
def store(make):
    model = make("lfm2")
    with CacheStore(model, host_gb=0.01, block_tokens=BLOCK) as made:
        made.model = model
        yield made


def test_caches_with_one_store_do_not_mix_versions_of_weights(store):
    model = store.model
    first, second = (PrefixCache(model, store=store) for _ in range(2))
    assert (agree(first, IDS), agree(second, IDS)) == (0, 64)
    one_tensor_by_data(model)
    assert (agree(first, IDS), agree(second, IDS)) == (0, 64)
    one_tensor_by_data(model)
    one_layer_by_data(model)
    assert (agree(second, IDS), agree(first, IDS)) == (0, 64)
    # One that is made now knows nothing of earlier versions, and shares the present one.
    third = PrefixCache(model, store=store)
    assert agree(third, IDS) == 64
    one_tensor_by_data(model)
    fourth = PrefixCache(model, store=store)
    assert (agree(fourth, IDS), agree(first, IDS)) == (0, 64)
    fourth.weights_changed()
    assert (agree(first, IDS), agree(second, IDS)) == (0, 64)


def test_copies_of_a_model_share_a_store_until_one_of_them_changes(store):
    other = copy.deepcopy(store.model)
    first, second = PrefixCache(store.model, store=store), PrefixCache(other, store=store)
    assert (agree(first, IDS), agree(second, IDS)) == (0, 64)
    one_tensor_by_data(other)
    assert (agree(first, IDS), agree(second, IDS), agree(first, IDS)) == (64, 0, 64)
    one_tensor_by_data(store.model)
    assert (agree(first, IDS), agree(second, IDS)) == (0, 64)


def test_models_that_differ_where_no_sample_looks_share_nothing(store):
    other = copy.deepcopy(store.model)
    weight = strong(other)
    weight.data[unsampled(weight)] += 50
    first, second = PrefixCache(store.model, store=store), PrefixCache(other, store=store)
    assert (agree(first, IDS), agree(second, IDS), agree(second, IDS)) == (0, 0, 64)
    with pytest.raises(ForeignError, match="weights"):
        PrefixCache(tiny.make("lfm2", seed=1), store=store)


# ---- sampling


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(7.0),
        torch.arange(100_000.0).reshape(100, 1000),
        torch.arange(6000.0).reshape(60, 100).t(),
        torch.arange(6000.0).reshape(60, 100)[:, ::2],
        torch.arange(300.0)[:, None].expand(300, 5),
        torch.ones(300, dtype=torch.bfloat16),
        torch.ones(300, dtype=torch.bool),
        torch.ones(300, dtype=torch.complex64),
        torch.ones(300).to(torch.float8_e4m3fn),
        torch.tensor(3),
        torch.empty(0),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}-{tensor.stride()}",
)
def test_samples_are_elements_of_the_tensor_alone(tensor):
    sampler = WeightSampler()
    before = sampler.read({"t": tensor})
    picked = sampler._pick(tensor)
    assert len(before.samples["t"]) == picked.numel() * picked.element_size()
    assert tensor.numel() > SAMPLES or picked.numel() >= tensor.numel()
    if tensor.dtype is torch.float32:
        assert set(picked.tolist()) <= set(tensor.flatten().tolist())
    assert before.changed(sampler.read({"t": tensor})) == []
    if tensor.numel():
        tensor.data.view(torch.uint8 if tensor.dtype == torch.bool else tensor.dtype).zero_()
        assert before.changed(sampler.read({"t": tensor})) == ["t"]


def test_one_transfer_a_device_whatever_the_dtypes(monkeypatch):
    tensors = {
        str(number): torch.ones(200, dtype=dtype)
        for number, dtype in enumerate([torch.float32, torch.bfloat16, torch.bool] * 50)
    }
    transfers = []
    original = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: transfers.append(1) or original(self))
    WeightSampler().read(tensors)
    assert len(transfers) == 1


class Packed(torch.Tensor):
    """A quantised tensor as bitsandbytes makes them: the scales are an attribute."""


def test_quantised_tensors_are_watched_with_their_scales():
    class State:
        def __init__(self):
            self.absmax = torch.ones(4)

    packed = torch.zeros(128, dtype=torch.uint8).as_subclass(Packed)
    packed.quant_state = State()
    assert len(list(plain(packed))) == 2
    sampler = WeightSampler()
    before = sampler.read({"w": packed})
    packed.quant_state.absmax.data += 1
    assert before.changed(sampler.read({"w": packed})) == ["w"]
