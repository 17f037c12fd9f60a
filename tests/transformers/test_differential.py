"""Random courses of texts and of changes that give keys another meaning, against `model.generate`.

A longer run: ``HYBRID_PAGES_FUZZ=500`` courses. A failing course is named by its number, and runs
alone as ``-k course_17``, given that many courses.
"""

import contextlib
import copy
import os
import random

import pytest
import torch

import tiny
from hybrid_pages.transformers import (
    CacheStore,
    PrefixCache,
    prefix_cache,
    structure,
    torch_settings,
    weight_samples,
)
from hybrid_pages.transformers.model_watch import ModelWatch, WatchedModels
from hybrid_pages.transformers.rope import Regime
from runs import BLOCK, GREEDY, NOISE, difference
from test_rope import SCALED, model_with
from test_weights import unsampled

COURSES = int(os.environ.get("HYBRID_PAGES_FUZZ", "16"))
STEPS = 24
ROPE = "longrope"


def make(name):
    if name == ROPE:
        return model_with(SCALED[ROPE])
    return tiny.make(name)


NAMES = ["lfm2", "gemma3", ROPE, "falcon-h1"]


class Course:
    """Some models, caches over them on one store and on another, and what may happen to them."""

    def __init__(self, number):
        self.rng = random.Random(number)
        name = NAMES[number % len(NAMES)]
        first = make(name)
        self.models = [first, copy.deepcopy(first)]
        self.open = contextlib.ExitStack()
        self.store = self.open.enter_context(
            CacheStore(first, host_gb=0.01, block_tokens=BLOCK, verify_on_load=True)
        )
        self.caches = [
            PrefixCache(first, store=self.store),
            PrefixCache(first, store=self.store),
            PrefixCache(self.models[1], store=self.store),
            self.open.enter_context(PrefixCache(first, host_gb=0.01, block_tokens=BLOCK)),
        ]
        self.roots = [tiny.tokens(60, 10 * number + seed) for seed in range(2)]
        self.autocast = 0.1
        self.undo = []
        self.settings = contextlib.ExitStack()
        self.log = []

    def close(self):
        self.settings.close()
        self.open.close()

    def run(self, steps, only=None):
        """only: the names of the changes that may happen, and then happen more often."""
        changes = [
            self.by_data,
            self.in_place,
            self.replaced,
            self.swapped,
            self.adapter,
            self.loaded,
            self.told,
            self.attribute,
            self.implementation,
            self.function,
            self.hook,
            self.counter,
            self.config,
            self.setting,
            self.renewed,
            # More often: one hook or counter that is read refuses all calls.
            *[self.back] * 6,
        ]
        changes = [act for act in changes if only is None or act.__name__ in only]
        for _ in range(steps):
            share = 0.25 if only is None else 0.4
            act = self.rng.choice(changes) if self.rng.random() < share else self.text
            self.log.append(act.__name__)
            with torch.no_grad():
                act()

    # ---- texts

    def text(self):
        cache, rng = self.rng.choice(self.caches), self.rng
        root = rng.choice(self.roots)[:, : rng.choice([33, 50, 60])]
        ids = torch.cat([root, tiny.tokens(rng.randint(1, 60), rng.randrange(3))], 1)
        kwargs = GREEDY | dict(max_new_tokens=rng.choice([1, 3, 20]))
        kwargs["cache_implementation"] = rng.choice([None, None, "dynamic", "static"])
        salt = rng.choice(["", "", "a"])
        scope = contextlib.nullcontext()
        # Under autocast a static cache raises in `generate`: keys of a type that it has not.
        if rng.random() < self.autocast and kwargs["cache_implementation"] != "static":
            scope = torch.autocast("cpu", dtype=torch.bfloat16)
        with scope:
            found = cache.generate(ids, cache_salt=salt, **kwargs)
            expected = cache.model.generate(ids, **kwargs)
        assert torch.equal(found.sequences, expected.sequences), self.log
        assert difference(found.logits, expected.logits) < 10 * NOISE, self.log
        # A next text may go on from this one.
        if rng.random() < 0.2:
            self.roots[rng.randrange(2)] = expected.sequences[:, :100]

    # ---- weights

    def weight(self):
        names = ("o_proj", "out_proj", "down_proj", "v_proj", "q_proj", "w1", "conv")
        model = self.rng.choice(self.models)
        found = [
            p
            for name, p in model.named_parameters()
            if any(part in name for part in names) and p.dim() > 1
        ]
        return self.rng.choice(found)

    def by_data(self):
        weight = self.weight()
        weight.data.copy_(self.rng.choice([-1, 1]) * weight.data.flip(-1))

    def in_place(self):
        self.weight().neg_()

    def replaced(self):
        weight = self.weight()
        weight.data = weight.data.roll(1, 0)

    def swapped(self):
        left = self.weight()
        right = self.weight()
        if left.shape == right.shape and left is not right:
            left.data, right.data = right.data, left.data

    def adapter(self):
        weight = self.weight()
        shape = weight.flatten(1).shape
        delta = torch.ones(shape[0], 1) @ torch.linspace(-0.1, 0.1, shape[1])[None]
        weight.data += delta.reshape(weight.shape)

    def loaded(self):
        model, other = self.rng.sample(self.models, 2)
        model.load_state_dict(other.state_dict(), strict=False)

    def told(self):
        weight = self.weight()
        weight.data[unsampled(weight)] += self.rng.choice([-4, 4])
        for cache in self.caches:
            cache.weights_changed()

    # ---- code, attributes and settings

    def norms(self):
        model = self.rng.choice(self.models)
        kinds = ("RMSNorm", "LayerNorm")
        return [m for m in model.modules() if type(m).__name__.endswith(kinds)]

    def attribute(self):
        norm = self.rng.choice(self.norms())
        name = "variance_epsilon" if hasattr(norm, "variance_epsilon") else "eps"
        before = getattr(norm, name)
        setattr(norm, name, 0.5)
        self.undo.append(lambda: setattr(norm, name, before))

    def implementation(self):
        model = self.rng.choice(self.models)
        model.set_attn_implementation(self.rng.choice(["eager", "sdpa"]))

    def function(self):
        norm, factor = self.rng.choice(self.norms()), self.rng.choice([0.5, 2.0])
        norm.forward = lambda states: type(norm).forward(norm, states) * factor
        self.undo.append(lambda: vars(norm).pop("forward", None))

    def hook(self):
        norm = self.rng.choice(self.norms())
        handle = norm.register_forward_hook(lambda module, args, out: out * 1.5)
        self.undo.append(handle.remove)

    def counter(self):
        norm, reads = self.rng.choice(self.norms()), self.rng.random() < 0.3
        if "forward" in vars(norm):
            return
        norm.register_buffer("passes", torch.zeros(()))

        def forward(states):
            norm.passes += 1
            out = type(norm).forward(norm, states)
            # Something that depends on the counter and is always the same.
            return out * (2 + 0 * norm.passes) if reads else out

        norm.forward = forward
        self.undo.append(lambda: vars(norm).pop("forward", None))

    def config(self):
        config = self.rng.choice(self.models).config
        before = config.hidden_act if hasattr(config, "hidden_act") else None
        config.hidden_act = "gelu"
        self.undo.append(lambda: setattr(config, "hidden_act", before))

    def setting(self):
        backend = torch.nn.attention.SDPBackend
        self.settings.close()
        self.settings = contextlib.ExitStack()
        if self.rng.random() < 0.7:
            kernels = self.rng.choice([[backend.MATH], [backend.FLASH_ATTENTION, backend.MATH]])
            self.settings.enter_context(torch.nn.attention.sdpa_kernel(kernels))

    def back(self):
        while self.undo:
            self.undo.pop()()

    def renewed(self):
        """A cache goes, another comes to the same store and finds what the first one left."""
        self.caches[0] = PrefixCache(self.caches[0].model, store=self.store)


@pytest.mark.parametrize("number", range(COURSES), ids=lambda number: f"course_{number}")
def test_texts_are_those_of_generate_whatever_changes(number):
    course = Course(number)
    try:
        course.run(STEPS)
        stats = [cache.stats() for cache in course.caches]
        assert all(s.failed_loads == s.failed_stores == 0 for s in stats)
    finally:
        course.close()


def test_courses_restore_prefixes_and_refuse_some_calls():
    """Courses restore, run uncached and change often enough to be worth comparing."""
    stats = []
    for number in range(3):
        course = Course(number)
        try:
            course.run(STEPS)
            stats += [cache.stats() for cache in course.caches]
        finally:
            course.close()
    assert sum(s.hits for s in stats) > sum(s.requests for s in stats) / 4
    assert any(s.uncached for s in stats)
    assert any(s.changes for s in stats)


look = ModelWatch.look


def first_look(self):
    if not hasattr(self, "first"):
        self.first = look(self)
    return self.first


MISTAKES = {
    "one look for ever": (ModelWatch, "look", first_look),
    "no samples": (
        weight_samples.WeightSampler,
        "_sample",
        lambda self, tensors: [b""] * len(tensors),
    ),
    "nobody is told": (WatchedModels, "weights_changed", lambda self: None),
    "no attributes": (structure.Structure, "key", lambda self: ()),
    "no hooks": (structure, "_note_hooks", lambda *_: None),
    "autocast is ignored": (torch_settings, "uncached_reason", lambda model: None),
    "no lengths": (prefix_cache, "regime", lambda *_: Regime()),
}
SHOWN_BY = {
    "one look for ever": ("in_place", "loaded"),
    "no samples": ("by_data", "adapter"),
    "nobody is told": ("told",),
    "no attributes": ("attribute", "function", "back"),
    "no hooks": ("hook", "back"),
    "autocast is ignored": ("renewed",),
    "no lengths": ("renewed",),
}
MODEL_OF = {"autocast is ignored": "lfm2", "no lengths": ROPE}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_found(mistake, monkeypatch):
    """The comparison can fail: without one of the ways to look some course gives a wrong text."""
    monkeypatch.setattr(*MISTAKES[mistake])
    # What was made for other keys may also be of other shapes or types.
    with pytest.raises((AssertionError, RuntimeError)):
        for number in range(NAMES.index(MODEL_OF.get(mistake, "lfm2")), 80, len(NAMES)):
            course = Course(number)
            course.autocast = 0.5 if mistake == "autocast is ignored" else 0
            try:
                course.run(STEPS, SHOWN_BY[mistake])
            finally:
                course.close()
