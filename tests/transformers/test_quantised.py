"""Quantised weights: tensors inside tensors. What can't be read costs a disk."""

import dataclasses
import enum
from types import SimpleNamespace

import pytest
import torch

import tiny
from hybrid_pages.adapter.errors import UnsupportedError
from hybrid_pages.transformers import PrefixCache
from hybrid_pages.transformers.identity import model_identity
from hybrid_pages.transformers.model_watch import WatchedModels
from hybrid_pages.transformers.tensor_parts import parts
from runs import BLOCK, agree

IDS = tiny.tokens(70, 61)


class Rounding(enum.Enum):
    NEAREST = 1
    DOWN = 2


@dataclasses.dataclass
class Kwargs:
    rounding: Rounding = Rounding.NEAREST
    sizes: tuple = (1, 64)


class Wrapper(torch.Tensor):
    """Quantised as torchao does it: it has no memory, and says what it consists of."""

    @staticmethod
    def __new__(cls, qdata, scale, kwargs=None):
        return torch.Tensor._make_wrapper_subclass(cls, qdata.shape, dtype=scale.dtype)

    def __init__(self, qdata, scale, kwargs=None):
        self.qdata, self.scale, self.kwargs = qdata, scale, kwargs or Kwargs()

    def __tensor_flatten__(self):
        return ["qdata", "scale"], {"kwargs": self.kwargs}

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name == "detach":
            (self,) = args
            return cls(self.qdata, self.scale, self.kwargs)
        if name in ("t", "linear", "mm", "addmm"):
            plain = [a.dequantize_it() if isinstance(a, Wrapper) else a for a in args]
            return func(*plain, **(kwargs or {}))
        raise NotImplementedError(f"{name} of a {cls.__name__}")

    def dequantize_it(self):
        offset = 0.0 if self.kwargs.rounding is Rounding.NEAREST else 0.5
        return (self.qdata + offset) * self.scale


CONTENTS = {}


class Secret(Wrapper):
    """It says of nothing what it consists of, and keeps it elsewhere."""

    def __init__(self, qdata, scale, kwargs=None):
        CONTENTS[id(self)] = qdata, scale, Kwargs()

    qdata = property(lambda self: CONTENTS[id(self)][0])
    scale = property(lambda self: CONTENTS[id(self)][1])
    kwargs = property(lambda self: CONTENTS[id(self)][2])

    def __tensor_flatten__(self):
        raise RuntimeError("not for you")


class Inner:
    def __init__(self):
        self.absmax, self.blocksize = torch.linspace(0.5, 1, 300), 256


class QuantState:
    """As that of bitsandbytes: with double quantisation, scales have scales."""

    def __init__(self):
        self.absmax, self.code = torch.arange(300, dtype=torch.uint8), torch.linspace(-1, 1, 16)
        self.state2, self.dtype, self.shape = Inner(), torch.float32, torch.Size([64, 64])
        self.offsets = {"list": [torch.tensor(0.25)]}


class Packed(torch.nn.Parameter):
    """As bitsandbytes' Params4bit: the scales are in an object among its attributes."""


def projection(model):
    return model.model.layers[1].self_attn.out_proj


def wrapped(model, kind=Wrapper, **given):
    weight = projection(model).weight.detach()
    scale = weight.abs().amax(1, keepdim=True) / 127
    qdata = (weight / scale).round().to(torch.int8)
    del projection(model).weight
    projection(model).weight = torch.nn.Parameter(kind(qdata, scale, **given), requires_grad=False)
    return model


def packed(model):
    weight = projection(model).weight.detach()
    made = torch.Tensor._make_subclass(Packed, weight)
    made.quant_state = QuantState()
    projection(model).weight = made
    return model


def packed_twice(model):
    """The module has the scales, too."""
    projection(model).quant_state = projection(packed(model)).weight.quant_state
    return model


def twins(make, change):
    """Two models that hold equal things, and share none."""
    return change(make("lfm2")), change(make("lfm2"))


def seen(tensor):
    """An element that a sample of the tensor sees."""
    return tensor.view(-1)[:1]


def edit(name):
    def change(weight):
        found = weight
        for part in name.split("."):
            found = found[part] if isinstance(found, dict) else getattr(found, part, None)
            found = found[0] if isinstance(found, list) else found
        seen(found.data).add_(3)

    change.__name__ = name
    return change


def rounding(weight):
    weight.kwargs.rounding = Rounding.DOWN


def sizes(weight):
    weight.kwargs.sizes = (1, 32)


def blocksize(weight):
    weight.quant_state.state2.blocksize = 64


def dtype(weight):
    weight.quant_state.dtype = torch.bfloat16


CASES = [
    *[(wrapped, change) for change in (edit("qdata"), edit("scale"), rounding, sizes)],
    *[
        (packed, change)
        for change in (
            edit("quant_state.absmax"),
            edit("quant_state.code"),
            edit("quant_state.state2.absmax"),
            edit("quant_state.offsets.list"),
            blocksize,
            dtype,
        )
    ],
]


@pytest.mark.parametrize("weights", ["sampled", "full"])
@pytest.mark.parametrize(
    ("make_it", "change"), CASES, ids=lambda value: getattr(value, "__name__", "")
)
def test_models_that_differ_in_any_part_have_other_identities(make, make_it, change, weights):
    first, second = twins(make, make_it)
    assert model_identity(first, weights) == model_identity(second, weights)
    change(projection(second).weight)
    assert model_identity(first, weights) != model_identity(second, weights)


@pytest.mark.parametrize(
    ("make_it", "change"), CASES, ids=lambda value: getattr(value, "__name__", "")
)
def test_an_edit_of_any_part_is_noticed_as_one_of_a_weight_is(make, make_it, change):
    model = make_it(make("lfm2"))
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
        change(projection(model).weight)
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
        assert sum(cache.stats().changes.values()) == 1
        assert cache.stats().uncached == {}


@pytest.mark.parametrize(
    ("make_it", "change"), CASES, ids=lambda value: getattr(value, "__name__", "")
)
def test_models_of_one_store_that_differ_in_any_part_share_nothing(make, make_it, change):
    first, second = twins(make, make_it)
    with PrefixCache(first, host_gb=0.01, block_tokens=BLOCK) as cache:
        other = PrefixCache(second, store=cache.store)
        assert (agree(cache, IDS), agree(other, IDS)) == (0, 64)
        change(projection(second).weight)
        assert (agree(other, IDS), agree(cache, IDS)) == (0, 64)


def test_a_tensor_among_attributes_enters_the_identity(make):
    """Neither parameter nor buffer: bitsandbytes' int8 weights have their scales so."""
    first, second = make("lfm2"), make("lfm2")
    for model in (first, second):
        projection(model).state = QuantState()
    assert model_identity(first, "full") == model_identity(second, "full")
    seen(projection(second).state.state2.absmax).add_(1)
    assert model_identity(first, "full") != model_identity(second, "full")


def test_identities_of_plain_models_are_those_of_their_tensors_alone(make, monkeypatch):
    """What earlier versions have written to a disk is found again."""
    model = make("qwen3.5")
    before = model_identity(model, "full")
    monkeypatch.setattr(
        "hybrid_pages.transformers.identity.describe", lambda _: SimpleNamespace(tensors={})
    )
    assert model_identity(model, "full") == before


# ---- a disk


def on_disk(model, tmp_path):
    settings = dict(disk_path=tmp_path / "disk", disk_gb=0.1)
    return PrefixCache(model, host_gb=0.01, block_tokens=BLOCK, **settings)


def as_installed(monkeypatch):
    """Classes of this file count as those of a package with a version."""
    from hybrid_pages.transformers import stable_names

    plain = stable_names._version.__wrapped__
    known = {__name__: "quantiser 1.0"}
    monkeypatch.setattr(stable_names, "_version", lambda module: known.get(module) or plain(module))


@pytest.mark.parametrize("make_it", [wrapped, packed, packed_twice])
def test_quantised_models_are_found_again_on_a_disk(make, make_it, tmp_path, monkeypatch):
    as_installed(monkeypatch)
    for change, expected in ((None, [0, 64]), (None, [64, 64]), (CASES, [0, 64])):
        model = make_it(make("lfm2"))
        if change is not None:
            part = "scale" if make_it is wrapped else "quant_state.state2.absmax"
            edit(part)(projection(model).weight)
        with on_disk(model, tmp_path) as cache:
            assert [agree(cache, IDS), agree(cache, IDS)] == expected


def test_what_cannot_be_read_costs_the_disk_with_its_reason(make, tmp_path, monkeypatch):
    as_installed(monkeypatch)
    model = wrapped(make("lfm2"), Secret)
    assert parts(projection(model).weight).unread == {"": "RuntimeError: not for you"}
    with pytest.raises(UnsupportedError) as raised:
        on_disk(model, tmp_path)
    for word in ("Secret, whose content can't be read (RuntimeError: not for you)", "in weight of"):
        assert word in str(raised.value)
    assert "no version" not in str(raised.value)


def test_what_cannot_be_read_does_not_cost_the_memory_cache(make):
    model = wrapped(make("lfm2"), Secret)
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
        wrapped_again = projection(model).weight
        projection(model).weight = torch.nn.Parameter(
            Secret(wrapped_again.qdata, -wrapped_again.scale), requires_grad=False
        )
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)


def test_models_of_which_nothing_can_be_read_are_no_twins(make):
    first, second = twins(make, lambda model: wrapped(model, Secret))
    assert model_identity(first, "full") != model_identity(second, "full")
    models = WatchedModels()
    layout = PrefixCache(first, host_gb=0.01, block_tokens=BLOCK).store.layout
    assert models.watch(first, layout).epoch != models.watch(second, layout).epoch


@pytest.mark.parametrize(
    ("exotic", "said"),
    [
        (torch.Generator(), "an object of torch._C.Generator, whose content can't be read"),
        (lambda: None, "which has no version"),
        (QuantState(), "which has no version"),
    ],
    ids=["generator", "code", "object"],
)
def test_an_exotic_object_costs_the_disk_with_its_reason(make, tmp_path, exotic, said):
    model = make("lfm2")
    projection(model).exotic = exotic
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
    with pytest.raises(UnsupportedError) as raised:
        on_disk(model, tmp_path)
    assert said in str(raised.value)
    assert "in exotic of a Linear" in str(raised.value)


# ---- what a tensor consists of


def test_parts_are_found_in_any_depth_and_once():
    tensor = torch.Tensor._make_subclass(Packed, torch.zeros(3))
    tensor.state = QuantState()
    tensor.state.back = tensor
    tensor.state.again = tensor.state
    found = parts(tensor)
    assert set(found.tensors) == {
        "",
        ".state.absmax",
        ".state.code",
        ".state.state2.absmax",
        ".state.offsets.list.0",
    }
    assert found.values[".state.state2.blocksize"] == 256
    assert not found.unread


@pytest.mark.parametrize("layout", ["sparse", "sparse_csr", "quantised", "channels", "mkldnn"])
def test_kinds_of_torch_s_own(layout):
    plain = torch.eye(4)
    made = {
        "sparse": lambda: plain.to_sparse(),
        "sparse_csr": lambda: plain.to_sparse_csr(),
        "quantised": lambda: torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8),
        "channels": lambda: torch.quantize_per_channel(
            plain, torch.ones(4), torch.zeros(4, dtype=torch.int64), 0, torch.qint32
        ),
        "mkldnn": lambda: plain.to_mkldnn(),
    }[layout]()
    found = parts(made)
    if layout == "mkldnn":
        assert not found.tensors
        assert list(found.unread) == [""]
    else:
        assert found.tensors
        assert not found.unread
        assert all(type(part) is torch.Tensor for part in found.tensors.values())


def test_a_tensor_whose_attributes_fail_is_noted():
    class Failing(torch.Tensor):
        def __tensor_flatten__(self):
            raise KeyError("no")

    class Odd:
        __slots__ = ("inner",)

        @property
        def __dict__(self):
            raise ValueError("odd")

    tensor = torch.ones(3).as_subclass(Failing)
    assert list(parts(tensor).tensors) == [""]
    tensor.odd = Odd()
    assert parts(tensor).unread == {"": "ValueError: odd"}
