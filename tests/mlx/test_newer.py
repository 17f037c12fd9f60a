"""mlx-lm and mlx newer than tested: one warning, and what is not understood runs uncached."""

import subprocess
import sys

import mlx_lm
import pytest
from mlx_lm.models.cache import KVCache, make_prompt_cache

import tiny
from hybrid_pages import BudgetError, adapter
from hybrid_pages.adapter.errors import SettingsError, VersionError
from hybrid_pages.adapter.tiers import TierSettings
from hybrid_pages.mlx import PrefixCache, UnsupportedError, versions
from hybrid_pages.mlx.model_watch import ModelWatch
from hybrid_pages.mlx.runtime import ModelRuntime
from hybrid_pages.mlx.server_cache import ServerPromptCache
from hybrid_pages.mlx.versions import require_versions
from runs import BLOCK, agree, cold, collect, require_equal

PROMPT = tiny.tokens(90)
WHY = {"mlx-lm 0.40.1 is newer than tested"}


@pytest.fixture
def newer(monkeypatch):
    monkeypatch.setattr(mlx_lm, "__version__", "0.40.1")
    monkeypatch.setattr(versions, "_told", set())
    monkeypatch.setattr(adapter.versions, "_warned", set())


class Unknown(KVCache):
    """A kind of cache that a later mlx-lm might have."""


@pytest.fixture
def unknown(models):
    """A model whose caches are of another kind."""
    model = tiny.make("qwen3")
    type(model).make_cache = lambda self: [Unknown() for _ in self.layers]
    yield model
    del type(model).make_cache


def warnings(caplog, words):
    return [each for each in caplog.messages if words in each]


def planted(*args, **kwargs):
    raise AttributeError("'Later' object has no attribute 'offset'")


def test_a_newer_version_is_used_after_one_warning(newer, models, tokenizer, caplog):
    for _ in range(2):
        require_versions("0.40.1", "0.39.0")
    for tested in ("mlx-lm 0.31.3 or 0.32.2", "mlx 0.32.4"):
        said = warnings(caplog, f"expected {tested}, which tests have run, found the newer")
        assert len(said) == 1
    with PrefixCache(models("qwen3_5"), host_gb=0.05, block_tokens=BLOCK) as cache:
        agree(cache, tokenizer, PROMPT)
        assert agree(cache, tokenizer, PROMPT)[0] == 80


def test_the_tested_version_is_not_warned_of(caplog):
    require_versions(mlx_lm.__version__, versions.MLX.tested[-1])
    assert not caplog.messages
    assert versions.newer() is None


def test_an_unknown_kind_of_cache_runs_uncached(newer, unknown, tokenizer, caplog):
    with PrefixCache(unknown, host_gb=0.05, block_tokens=BLOCK) as cache:
        for count in (1, 2):
            assert agree(cache, tokenizer, PROMPT)[0] == 0
            assert cache.stats().uncached == dict.fromkeys(WHY, count)
        cache.look(), cache.weights_changed(), cache.clear()
        assert (cache.stats().pages, cache.stats().host_bytes, cache.stats().requests) == (0, 0, 0)
    assert len(warnings(caplog, "found Unknown")) == 1


def test_on_a_tested_version_it_is_an_error(unknown):
    with pytest.raises(UnsupportedError, match="found Unknown"):
        PrefixCache(unknown, host_gb=0.05, block_tokens=BLOCK)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ModelWatch, "look"),
        (ModelRuntime, "copy_in"),
        (ModelRuntime, "compute"),
        (ModelRuntime, "states"),
    ],
)
def test_what_fails_while_a_prompt_is_restored_is_computed(
    newer, models, tokenizer, monkeypatch, caplog, owner, name
):
    with PrefixCache(models("qwen3_5"), host_gb=0.05, block_tokens=BLOCK) as cache:
        collect(cache.stream_generate(tokenizer, PROMPT, 2))
        wanted = [cold(cache.model, tokenizer, [*PROMPT, *tiny.tokens(70, seed=3)])] * 2
        monkeypatch.setattr(owner, name, planted)
        for each in wanted:
            found = collect(
                cache.stream_generate(tokenizer, [*PROMPT, *tiny.tokens(70, seed=3)], 6)
            )
            require_equal(each, found)
        assert cache.stats().uncached == dict.fromkeys(WHY, 2)
    assert len(warnings(caplog, "no attribute 'offset'")) == 1


def test_what_fails_while_a_text_is_stored_is_said_and_the_text_goes_on(
    newer, models, tokenizer, monkeypatch, caplog
):
    with PrefixCache(models("qwen3_5"), host_gb=0.05, block_tokens=BLOCK) as cache:
        wanted = cold(cache.model, tokenizer, PROMPT, 20)
        monkeypatch.setattr("hybrid_pages.adapter.session.Session.passed", planted)
        require_equal(wanted, collect(cache.stream_generate(tokenizer, PROMPT, 20)))
    assert len(warnings(caplog, "no attribute 'offset'")) == 1


def test_what_fails_on_a_tested_version_is_raised(models, tokenizer, monkeypatch):
    with PrefixCache(models("qwen3_5"), host_gb=0.05, block_tokens=BLOCK) as cache:
        monkeypatch.setattr(ModelWatch, "look", planted)
        with pytest.raises(AttributeError):
            collect(cache.stream_generate(tokenizer, PROMPT, 6))


def test_mistakes_of_the_user_are_errors_on_a_newer_version_too(newer, models):
    for given, error in (
        ({"host_gb": -1}, SettingsError),
        ({"host_gb": 1e-6}, BudgetError),
        ({"block_tokens": 0}, SettingsError),
        ({"disk_gb": 1}, SettingsError),
    ):
        with pytest.raises(error):
            PrefixCache(models("qwen3_5"), **{"host_gb": 0.05, **given})


def test_the_server_s_cache_leaves_an_unknown_kind_to_mlx_lm(newer, unknown, caplog):
    prompts = ServerPromptCache(TierSettings(0.05), BLOCK, 10)
    prompts.use(unknown, None)
    prompts.insert_cache("key", [1, 2, 3], make_prompt_cache(unknown))
    assert prompts.refused is None
    assert warnings(caplog, "prompts are cached by mlx-lm's own cache: cache 0: expected KVCache")


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("gone", ["mlx_lm.models.cache.ArraysCache", "mlx_lm.generate.wired_limit"])
def test_a_name_that_a_newer_version_no_longer_has_is_told(gone):
    module, _, name = gone.rpartition(".")
    done = run(
        f"import sys, mlx_lm, {module}; mlx_lm.__version__ = '0.40.1'\n"
        f"del sys.modules['{module}'].{name}\n"
        "try:\n    import hybrid_pages.mlx\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    assert done.stdout.startswith(f"{VersionError.__name__} hybrid_pages.mlx: expected what mlx-lm")
    assert name in done.stdout
    assert "pip install" in done.stdout


def test_a_newer_server_that_our_cache_does_not_fit_into_runs_as_it_is():
    done = run(
        "import sys, mlx_lm; from mlx_lm import server; mlx_lm.__version__ = '0.40.1'\n"
        "del server.BatchGenerator\n"
        "server.main = lambda: print(sys.argv)\n"
        "from hybrid_pages.cli import main\n"
        "words = ['mlx-server', 'M', '--host-gb', '1', '--disk-path', '/d', '--temp', '0.5']\n"
        "print(main(words))"
    )
    assert done.stdout == ("['hybrid-pages mlx-server', '--model', 'M', '--temp', '0.5']\n0\n"), (
        done
    )
    assert done.stderr.count("was not possible to put a prompt cache into mlx-lm's server") == 1
