"""The connector's settings: typed, checked, refused with what was expected."""

import re

import pytest

from hybrid_pages.vllm.settings import GIB, Settings, SettingsError


def test_no_setting_is_needed() -> None:
    settings = Settings.parse({})
    assert settings.host_bytes == 4 * GIB
    assert settings.policy == "lru"
    assert settings.store_mode == "step"
    assert settings.verify_on_load is False


def test_every_setting_is_taken() -> None:
    given = {
        "host_gb": 1,
        "policy": "lru",
        "copy_threads": 3,
        "store_mode": "background",
        "verify_on_load": True,
    }
    settings = Settings.parse(given)
    assert {key: getattr(settings, key) for key in given} == given
    assert isinstance(settings.host_gb, float)


def test_a_fraction_of_a_gib_is_a_budget_in_bytes() -> None:
    assert Settings.parse({"host_gb": 0.5}).host_bytes == GIB // 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"hostgb": 4}, "unknown key 'hostgb': did you mean 'host_gb'?"),
        ({"zzz": 4}, "unknown key 'zzz': valid keys are copy_threads, host_gb"),
        ({"host_gb": "4"}, "host_gb: expected float, found '4' of type str"),
        ({"host_gb": True}, "host_gb: expected float, found True of type bool"),
        ({"host_gb": None}, "host_gb: expected float, found None"),
        ({"host_gb": 0}, "host_gb: expected a size above 0"),
        ({"host_gb": -1.5}, "host_gb: expected a size above 0"),
        ({"host_gb": float("nan")}, "host_gb: expected a size above 0"),
        ({"host_gb": float("inf")}, "host_gb: expected a size above 0"),
        ({"policy": "lur"}, "policy: expected one of 'lru', found 'lur' (did you mean 'lru'?)"),
        ({"policy": 1}, "policy: expected one of 'lru', found 1"),
        ({"store_mode": "backgrond"}, "(did you mean 'background'?)"),
        ({"copy_threads": 0}, "copy_threads: expected 1 to 256, found 0"),
        ({"copy_threads": 2.5}, "copy_threads: expected int, found 2.5 of type float"),
        ({"copy_threads": 10**9}, "copy_threads: expected 1 to 256"),
        ({"verify_on_load": 1}, "verify_on_load: expected bool, found 1 of type int"),
    ],
)
def test_an_impossible_setting_is_refused_with_what_was_expected(
    given: dict[str, object], said: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(said)):
        Settings.parse(given)
