"""Settings that change the arithmetic but no weight: named in the state, or rejected."""

import contextlib
import functools

import pytest
import torch

import tiny
from hybrid_pages.transformers import PrefixCache
from runs import BLOCK, agree

IDS = tiny.tokens(70, 31)


@pytest.fixture
def cache(make):
    with PrefixCache(make("lfm2"), host_gb=0.01, block_tokens=BLOCK) as made:
        yield made


def flag(module, name, value):
    @contextlib.contextmanager
    def change(model):
        before = getattr(module, name)
        setattr(module, name, value)
        try:
            yield
        finally:
            setattr(module, name, before)

    return change


def called(setter, getter, value):
    @contextlib.contextmanager
    def change(model):
        before = getter()
        setter(value)
        try:
            yield
        finally:
            setter(before)

    return change


def attribute(path, name, value):
    @contextlib.contextmanager
    def change(model):
        module = model.get_submodule(path)
        before = getattr(module, name)
        setattr(module, name, value(before))
        try:
            yield
        finally:
            setattr(module, name, before)

    return change


@contextlib.contextmanager
def eager(model):
    model.set_attn_implementation("eager")
    yield
    model.set_attn_implementation("sdpa")


@contextlib.contextmanager
def forward_of_an_object(model):
    norm = model.model.layers[2].operator_norm
    norm.forward = lambda states: type(norm).forward(norm, states) * 2
    yield
    del norm.forward


@contextlib.contextmanager
def forward_of_a_class(model):
    kind = type(model.model.layers[2].operator_norm)
    original = kind.forward
    kind.forward = lambda self, states: original(self, states) + 0.5
    yield
    kind.forward = original


@contextlib.contextmanager
def compiled(model):
    model.model.layers[0].compile(backend="eager")
    yield
    del model.model.layers[0]._compiled_call_impl


@contextlib.contextmanager
def config_edited(model):
    before = model.config.rope_parameters
    model.config.rope_parameters = before | {"rope_theta": 500.0}
    yield
    model.config.rope_parameters = before


@contextlib.contextmanager
def checkpointing(model):
    model.gradient_checkpointing_enable()
    yield
    model.gradient_checkpointing_disable()


TOLD_APART = {
    "default dtype": called(torch.set_default_dtype, torch.get_default_dtype, torch.float64),
    "deterministic": called(
        torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled, True
    ),
    "matmul precision": called(
        torch.set_float32_matmul_precision, torch.get_float32_matmul_precision, "medium"
    ),
    "bf16 in mkldnn": flag(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "reduced sums": flag(
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False
    ),
    "sdpa kernels": lambda model: torch.nn.attention.sdpa_kernel(
        torch.nn.attention.SDPBackend.MATH
    ),
    "cudnn": flag(torch.backends.cudnn, "enabled", False),
    "attention implementation": eager,
    "scaling": attribute("model.layers.1.self_attn", "scaling", lambda value: 3 * value),
    "epsilon": attribute("model.layers.2.operator_norm", "variance_epsilon", lambda value: 0.5),
    "rope's scaling": attribute("model.rotary_emb", "attention_scaling", lambda value: 2.0),
    "another function": attribute(
        "model.layers.1.self_attn.q_layernorm", "forward", lambda old: lambda x: old(x) * 2
    ),
    "forward of an object": forward_of_an_object,
    "forward of a class": forward_of_a_class,
    "compiled layer": compiled,
    "config": config_edited,
    # Ignored in evaluation mode, and one miss dearer than need be.
    "gradient checkpointing": checkpointing,
}


@pytest.mark.parametrize("name", TOLD_APART)
def test_entries_serve_only_the_conditions_that_they_were_made_under(cache, name):
    # Writes more than what is there: as it will be put back.
    torch.set_float32_matmul_precision(torch.get_float32_matmul_precision())
    assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
    with TOLD_APART[name](cache.model):
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
    again = agree(cache, IDS)
    # Compared whole, so earlier conditions are known again; two of these leave something behind.
    left = ("another function", "gradient checkpointing")
    assert again == (0 if name in left else 64)
    assert cache.stats().uncached == {}
    # Never a miss without a word.
    assert cache.stats().changes


def test_what_only_rounds_otherwise_shares_entries(cache):
    """Threads round sums otherwise, as chunks do; inference mode changes no arithmetic."""
    agree(cache, IDS)
    torch.set_num_threads(2)
    try:
        assert agree(cache, IDS, new=1) == 64
    finally:
        torch.set_num_threads(1)
    with torch.inference_mode():
        assert agree(cache, IDS) == 64
    with torch.device("cpu"):
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)


@pytest.mark.parametrize("name", ["lfm2", "gemma3"])
def test_under_autocast_the_cache_is_not_used(make, name):
    """Whether keys have another type there depends on the model: those of Gemma 3 have not."""
    model = make(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cache = PrefixCache(model, host_gb=0.01, block_tokens=BLOCK)
    assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            assert (agree(cache, IDS), agree(cache, IDS)) == (0, 0)
    assert cache.stats().uncached == {"autocast": 4}
    assert agree(cache, IDS) == 64
    cache.close()


@contextlib.contextmanager
def hook(model):
    handle = model.model.layers[0].register_forward_hook(lambda m, a, out: out + 0.5)
    yield
    handle.remove()


@contextlib.contextmanager
def hook_before(model):
    norm = model.model.layers[0].operator_norm
    handle = norm.register_forward_pre_hook(lambda m, args: (args[0] + 0.5,))
    yield
    handle.remove()


@contextlib.contextmanager
def hook_on_everything(model):
    def double(module, args, out):
        return out * 2 if type(module).__name__ == "Lfm2RMSNorm" else None

    handle = torch.nn.modules.module.register_module_forward_hook(double)
    yield
    handle.remove()


@contextlib.contextmanager
def a_layer_in_training(model):
    model.model.layers[0].train()
    yield
    model.model.layers[0].eval()


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.nn.functional.silu else out


class Watching(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def noise(model):
    norm = model.model.layers[2].operator_norm
    norm.forward = lambda states: type(norm).forward(norm, states) + torch.randn(())
    yield
    del norm.forward


REFUSED = {
    "forward hook on model.layers.0": hook,
    "forward hook on model.layers.0.operator_norm": hook_before,
    "global forward hooks": hook_on_everything,
    "training mode of model.layers.0": a_layer_in_training,
    "torch function mode": lambda model: Doubling(),
    "torch dispatch mode": lambda model: Watching(),
    "random numbers in forward passes": noise,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_told_runs_without_the_cache(cache, reason):
    assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
    with REFUSED[reason](cache.model):
        texts = []
        for run in (cache.model.generate, cache.generate, cache.generate):
            torch.manual_seed(4)
            texts.append(run(IDS, max_new_tokens=6, do_sample=False))
        assert torch.equal(texts[0], texts[1])
        assert torch.equal(texts[0], texts[2])
        assert cache.stats().uncached == {reason: 2}
        assert cache.stats().restored_tokens == 64
    assert agree(cache, IDS) == 64


def test_probes_leave_modes_and_random_numbers_alone(make):
    model = make("lfm2")
    model.model.layers[0].train()
    torch.manual_seed(9)
    before = torch.get_rng_state()
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK):
        assert torch.equal(torch.get_rng_state(), before)
    assert [m.training for m in (model, *model.model.layers)] == [False, True, False, False, False]


def test_hooks_of_transformers_itself_do_no_harm(cache):
    cache.model.generate(
        IDS, max_new_tokens=2, output_hidden_states=True, return_dict_in_generate=True
    )
    assert any(module._forward_hooks for module in cache.model.modules())
    assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)


def test_parametrized_and_quantised_layers_are_other_models(cache):
    class Double(torch.nn.Module):
        def forward(self, weight):
            return 2 * weight

    agree(cache, IDS)
    projection = cache.model.model.layers[1].self_attn.out_proj
    torch.nn.utils.parametrize.register_parametrization(projection, "weight", Double())
    projection.eval()
    assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
    projection.parametrizations.weight.original.data.neg_()
    assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
    torch.nn.utils.parametrize.remove_parametrizations(projection, "weight")
    assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
    torch.ao.quantization.quantize_dynamic(
        cache.model.model.layers[1], {torch.nn.Linear}, dtype=torch.qint8, inplace=True
    )
    cache.model.eval()
    # One scale for all activations of a pass: texts depend on where the prompt is cut.
    assert (agree(cache, IDS), agree(cache, IDS)) == (0, 0)
    assert list(cache.stats().uncached.values()) == [2]


def test_a_model_of_other_shapes_or_dtype_runs_without_the_cache(make):
    model = make("gemma3")
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
        model.config.sliding_window = 24
        assert agree(cache, IDS) == 0
        model.config.sliding_window = 40
        assert agree(cache, IDS) == 64
        model.to(torch.bfloat16)
        assert agree(cache, IDS) == 0
        assert cache.stats().uncached == {"model changed": 2}
        model.to(torch.float32)
        # Rounded on the way: other weights now.
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)


# ---- what forward passes write


def writing(model, write):
    """Makes each pass of the first norm call write(norm, its output), which may replace it."""
    norm = model.model.layers[0].operator_norm

    def forward(states):
        out = type(norm).forward(norm, states)
        other = write(norm, out)
        return out if other is None else other

    norm.register_buffer("seen", torch.zeros(64))
    norm.forward = forward
    return norm


def counter(norm, out):
    norm.seen += 1


def replaced_counter(norm, out):
    norm.seen = norm.seen + 1


def statistic(norm, out):
    norm.seen.mul_(0.9).add_(out.mean((0, 1)), alpha=0.1)


def unseen_counter(norm, out):
    norm.seen.data += 1


@pytest.mark.parametrize("write", [counter, replaced_counter, statistic, unseen_counter])
def test_a_buffer_that_passes_write_and_nobody_reads_costs_no_hit(make, write):
    model = make("lfm2")
    norm = writing(model, write)
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        assert (agree(cache, IDS), agree(cache, IDS), agree(cache, IDS)) == (0, 64, 64)
        assert (cache.stats().uncached, cache.stats().changes) == ({}, {})
        # Watched again when it is read again.
        del norm.forward
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
        norm.seen.data += 1
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)


def drift(norm, out):
    norm.seen += 0.01
    return out + norm.seen.sin()


def decides(norm, out):
    norm.seen += 1
    return out * 2 if norm.seen[0].item() > 5 else out


def previous(norm, out):
    result = out + norm.seen
    norm.seen = out.mean((0, 1))
    return result


def through_a_list(norm, out):
    norm.seen += 1
    return out * (1 + norm.seen.tolist()[0] % 3)


@pytest.mark.parametrize("write", [drift, decides, previous, through_a_list])
def test_a_buffer_that_passes_write_and_read_is_named(make, write):
    model = make("lfm2")
    norm = writing(model, write)
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        for _ in range(2):
            before = norm.seen.clone()
            expected = model.generate(IDS, max_new_tokens=6, do_sample=False)
            norm.seen = before.clone()
            found = cache.generate(IDS, max_new_tokens=6, do_sample=False)
            assert torch.equal(found, expected)
        name = "model.layers.0.operator_norm.seen is written by each forward pass"
        assert cache.stats().uncached == {name: 2}


def test_an_attribute_that_passes_write_is_named(make):
    def count(norm, out):
        norm.calls = getattr(norm, "calls", 0) + 1

    model = make("lfm2")
    writing(model, count)
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 0)
        name = "model.layers.0.operator_norm.calls is written by each forward pass"
        assert cache.stats().uncached == {name: 2}


def test_an_attribute_that_the_caller_writes_is_named(cache):
    for number in range(2):
        cache.model.request = number
        assert agree(cache, IDS) == 0
    assert agree(cache, IDS) == 64
    assert cache.stats().changes == {"request": 2}


def test_what_only_long_passes_write_is_counted_and_not_stored(make):
    def count(norm, out):
        if out.shape[1] > 8:
            norm.seen += 1

    model = make("lfm2")
    writing(model, count)
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 0)
        name = "model.layers.0.operator_norm.seen while computing"
        assert cache.stats().changes[name] == 2
        assert cache.stats().pages == 0


def test_partial_functions_are_told_apart_by_what_they_hold(make):
    model = make("gemma3")
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        act = model.model.layers[0].mlp.act_fn
        assert isinstance(act.act, functools.partial)
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
        act.act = functools.partial(torch.nn.functional.gelu, approximate="none")
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
