"""Configurations rejected at startup, by name."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from hybrid_pages.vllm.config import support
from hybrid_pages.vllm.versions import SUPPORTED, TESTED, supported

FIRST_BEYOND = ".".join(map(str, (*SUPPORTED.end, 0)))


def engine(**changes: object) -> SimpleNamespace:
    """A configuration that is accepted, with dotted names changed."""
    config = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_role="kv_both", enable_permute_local_kv=False),
        speculative_config=None,
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1,
            prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
            data_parallel_size=1,
            distributed_executor_backend="mp",
            enable_elastic_ep=False,
            tensor_parallel_size=1,
            use_ubatching=False,
        ),
        cache_config=SimpleNamespace(enable_prefix_caching=True, use_replayssm=False),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=False, disable_chunked_mm_input=False
        ),
        model_config=SimpleNamespace(
            is_encoder_decoder=False, is_diffusion=False, multimodal_config=None
        ),
        ec_transfer_config=None,
        aux_output_config=SimpleNamespace(enabled=False),
    )
    for name, value in changes.items():
        owner, _, leaf = name.rpartition("__")
        setattr(getattr(config, owner) if owner else config, leaf, value)
    return config


def speculation(method: str = "mtp", num_speculative_tokens: int | None = 3) -> SimpleNamespace:
    return SimpleNamespace(
        method=method,
        num_speculative_tokens=num_speculative_tokens,
        num_speculative_tokens_per_batch_size=None,
        parallel_drafting=False,
        use_multi_module_mtp=lambda: False,
    )


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu", "mtp", "eagle", "eagle3", "draft_model"])
@pytest.mark.parametrize("drafts", [1, 7])
def test_speculation_of_the_tested_methods_is_accepted(method: str, drafts: int) -> None:
    support.require_config(engine(speculative_config=speculation(method, drafts)))


@pytest.mark.parametrize("version", [*TESTED, f"{TESTED[-1]}.dev4+g1234", f"{TESTED[0]}rc1"])
def test_a_version_inside_the_window_is_accepted(version: str) -> None:
    support.require_version(version)


@pytest.mark.parametrize("version", ["0.31.9", FIRST_BEYOND, "1.0.0", "0.3.2", "dev", ""])
def test_a_version_outside_the_window_is_refused_with_the_window(version: str) -> None:
    with pytest.raises(
        support.UnsupportedError, match=re.escape(f"vllm{support.supported_range()}")
    ):
        support.require_version(version)


def test_a_plain_configuration_is_accepted() -> None:
    support.require_config(engine())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kv_transfer_config__enable_permute_local_kv": True}, "enable_permute_local_kv"),
        ({"speculative_config": speculation(method="suffix")}, "draft_model, found 'suffix'"),
        ({"speculative_config": speculation(num_speculative_tokens=None)}, "1 to 7, found None"),
        (
            {
                "parallel_config__pipeline_parallel_size": 2,
                "speculative_config": speculation("ngram"),
            },
            "found drafts and pipeline_parallel_size 2",
        ),
        ({"parallel_config__prefill_context_parallel_size": 2}, "prefill_context_parallel_size"),
        ({"parallel_config__enable_elastic_ep": True}, "enable_elastic_ep"),
        ({"parallel_config__use_ubatching": True}, "microbatches"),
        ({"cache_config__enable_prefix_caching": False}, "--enable-prefix-caching"),
        ({"cache_config__use_replayssm": True}, "use_replayssm"),
        ({"scheduler_config__disable_hybrid_kv_cache_manager": True}, "hybrid KV cache manager"),
        ({"model_config__is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_config__is_diffusion": True}, "diffusion models"),
        ({"ec_transfer_config": object()}, "encoder cache transfer"),
    ],
)
def test_what_is_not_shown_to_work_is_refused_by_name(change: dict[str, object], said: str) -> None:
    with pytest.raises(support.UnsupportedError, match=re.escape(said)):
        support.require_config(engine(**change))


@pytest.mark.parametrize("role", ["kv_both", "kv_producer", "kv_consumer"])
def test_every_role_is_accepted(role: str) -> None:
    support.require_config(engine(kv_transfer_config__kv_role=role))


def test_attention_alone_needs_no_hybrid_manager() -> None:
    config = engine(scheduler_config__disable_hybrid_kv_cache_manager=True)
    support.require_config(config, recurrent=False)


EXPERTS = {"aux_output_config__enabled": True}
WHOLE_IMAGES = {
    "scheduler_config__disable_chunked_mm_input": True,
    "model_config__multimodal_config": SimpleNamespace(language_model_only=False),
}


@pytest.mark.parametrize(
    ("change", "version", "said"),
    [
        (EXPERTS, "0.32.1", "drop --enable-return-routed-experts"),
        (EXPERTS, "0.33.0rc1", None),
        (WHOLE_IMAGES, "0.32.1", None),
        (WHOLE_IMAGES, "0.33.0", "in vllm 0.33.0 requests with images could wait for ever"),
        (WHOLE_IMAGES | {"model_config__multimodal_config": None}, "0.33.0", None),
        (
            WHOLE_IMAGES
            | {"model_config__multimodal_config": SimpleNamespace(language_model_only=True)},
            "0.33.0",
            None,
        ),
    ],
)
def test_what_one_version_cannot_do_is_refused_there_alone(
    change: dict[str, object], version: str, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (supported, support.versions):
        monkeypatch.setattr(module, "installed", lambda: version)
    if said is None:
        support.require_config(engine(**change))
        return
    with pytest.raises(support.UnsupportedError, match=re.escape(said)):
        support.require_config(engine(**change))


def test_whole_images_do_no_harm_to_a_model_without_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supported, "installed", lambda: "0.33.0")
    support.require_config(engine(**WHOLE_IMAGES), recurrent=False)


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ([], "drop --disable-hybrid-kv-cache-manager if you gave it"),
        (["One"], "since One cannot work with it: take it out"),
        (["One", "Two"], "since One and Two cannot work with it: take them out"),
    ],
)
def test_who_turned_the_hybrid_manager_off_is_named(beside: list[str], said: str) -> None:
    config = engine(scheduler_config__disable_hybrid_kv_cache_manager=True)
    with pytest.raises(support.UnsupportedError, match=re.escape(said)):
        support.require_config(config, beside=beside)


def test_every_refused_feature_is_named_at_once() -> None:
    config = engine(
        speculative_config=speculation(method="suffix"), parallel_config__use_ubatching=True
    )
    with pytest.raises(support.UnsupportedError) as caught:
        support.require_config(config)
    assert "speculative" in str(caught.value) and "microbatches" in str(caught.value)


def test_a_trace_dir_that_cannot_be_written_is_refused_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    support.require_trace_dir("")
    support.require_trace_dir(str(tmp_path / "a" / "b"))
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    for path in ("file", "file/below"):
        with pytest.raises(
            support.SettingsError, match=r"^trace_dir: expected a directory .* a file at "
        ):
            support.require_trace_dir(str(tmp_path / path))
    monkeypatch.setattr(support.os, "access", lambda path, mode: False)  # tests may run as root
    with pytest.raises(support.SettingsError, match="found no permission to write at"):
        support.require_trace_dir(str(tmp_path))
