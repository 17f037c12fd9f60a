"""The connector's settings: typed, checked, refused with what was expected."""

import re

import pytest

from hybrid_pages import (
    Cache,
    Geometry,
    Group,
    HybridPagesError,
    InvalidArgumentError,
    Layer,
    Segment,
)
from hybrid_pages._core import POLICIES
from hybrid_pages.adapter.pool import OFFERED
from hybrid_pages.vllm.config.settings import Settings, SettingsError

PURE = Geometry(
    block_tokens=16,
    groups=[Group("attention", [Layer("0", [Segment("kv", "uint8", [512])])])],
    identity={},
)


def test_no_setting_is_needed() -> None:
    settings = Settings.parse({})
    assert (settings.host_gb, settings.tenant_share) == (4.0, 1.0)
    assert (settings.policy, settings.checkpoint_mode) == ("reuse", "adaptive")
    assert (settings.checkpoint_interval, settings.trace_dir) == (0, "")
    assert settings.store_mode == "auto"
    assert (settings.checksum, settings.verify_on_load) == ("store", False)


def test_every_setting_is_taken() -> None:
    given = {
        "host_gb": 1,
        "policy": "page-lru",
        "checkpoint_mode": "align",
        "checkpoint_interval": 4096,
        "trace_dir": "/somewhere",
        "tenant_share": 0.25,
        "copy_threads": 3,
        "kernel_below": 1 << 16,
        "staging_mb": 32,
        "batch_copies": False,
        "store_mode": "background",
        "checksum": "verify",
        "verify_on_load": True,
    }
    settings = Settings.parse(given)
    assert {key: getattr(settings, key) for key in given} == given
    assert isinstance(settings.host_gb, float)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"hostgb": 4}, "unknown key 'hostgb': did you mean 'host_gb'?"),
        ({"HOST_GB": 4}, "unknown key 'HOST_GB': did you mean 'host_gb'?"),
        ({"checkpoint_mode": "ALL"}, "found 'ALL' (did you mean 'all'?)"),
        ({"host_gb": 10**400}, "host_gb: expected a number of usual size"),
        (
            {"zzz": 4},
            "unknown key 'zzz': valid keys are batch_copies, checkpoint_interval, checkpoint_mode",
        ),
        ({"host_gb": "4"}, "host_gb: expected a number of GiB or 'auto', found '4' of type str"),
        ({"host_gb": True}, "host_gb: expected a number of GiB or 'auto', found True of type bool"),
        ({"host_gb": None}, "host_gb: expected a number of GiB or 'auto', found None"),
        ({"host_gb": 0}, "host_gb: expected a size above 0"),
        ({"host_gb": -1.5}, "host_gb: expected a size above 0"),
        ({"host_gb": float("nan")}, "host_gb: expected a size above 0"),
        ({"host_gb": float("inf")}, "host_gb: expected a size above 0"),
        (
            {"policy": "resue"},
            "policy: expected one of 'reuse', 'lru' (for comparison: 'page-lru', ",
        ),
        ({"policy": "resue"}, "found 'resue' (did you mean 'reuse'?)"),
        ({"policy": 1}, "policy: expected str, found 1 of type int"),
        ({"checkpoint_mode": "alll"}, "expected one of 'none', 'align', 'all', 'adaptive'"),
        ({"checkpoint_interval": -1}, "checkpoint_interval: expected 0 to 4294967295 tokens"),
        ({"checkpoint_interval": 2.5}, "checkpoint_interval: expected int, found 2.5"),
        ({"trace_dir": 3}, "trace_dir: expected str, found 3 of type int"),
        ({"trace_dir": "/a\0b"}, "trace_dir: expected a text without NUL characters"),
        ({"disk_path": "/a\0", "disk_gb": 1}, "disk_path: expected a text without NUL characters"),
        ({"remote_url": "file:///a\0"}, "remote_url: expected a text without NUL characters"),
        ({"store_mode": "backgrond"}, "(did you mean 'background'?)"),
        ({"tenant_share": 0}, "tenant_share: expected a share above 0 and at most 1, found 0"),
        ({"tenant_share": 1.01}, "tenant_share: expected a share above 0 and at most 1"),
        ({"tenant_share": float("nan")}, "tenant_share: expected a share above 0"),
        ({"tenant_share": "half"}, "tenant_share: expected float, found 'half' of type str"),
        ({"copy_threads": 0}, "copy_threads: expected 1 to 256, found 0"),
        ({"copy_threads": 2.5}, "copy_threads: expected int, found 2.5 of type float"),
        ({"copy_threads": 10**9}, "copy_threads: expected 1 to 256"),
        ({"kernel_below": -1}, "kernel_below: expected 0 to 1099511627775 bytes, found -1"),
        ({"staging_mb": 1 << 20}, "staging_mb: expected 0 to 4096, found 1048576"),
        ({"verify_on_load": 1}, "verify_on_load: expected bool, found 1 of type int"),
        ({"checksum": "on"}, "checksum: expected one of 'off', 'store', 'verify', found 'on'"),
        ({"checksum": False}, "checksum: expected one of 'off', 'store', 'verify', found False"),
        (
            {"checksum": "off", "verify_on_load": True},
            "verify_on_load: expected False with checksum 'off', found True (leave verify_on_load",
        ),
        (
            {"checksum": "store", "verify_on_load": True},
            "verify_on_load: expected False with checksum 'store', found True",
        ),
        (
            {"checksum": "verify", "verify_on_load": False},
            "verify_on_load: expected True with checksum 'verify', found False",
        ),
    ],
)
def test_an_impossible_setting_is_refused_with_what_was_expected(
    given: dict[str, object], said: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(said)):
        Settings.parse(given)


@pytest.mark.parametrize(
    ("given", "checksum"),
    [
        ({"verify_on_load": True}, "verify"),
        ({"verify_on_load": False}, "store"),
        ({"checksum": "off", "verify_on_load": False}, "off"),
        ({"checksum": "verify"}, "verify"),
    ],
)
def test_verify_on_load_is_another_name_for_verify(given: dict[str, object], checksum: str) -> None:
    settings = Settings.parse(given)
    assert (settings.checksum, settings.verify_on_load) == (checksum, checksum == "verify")


def test_the_policies_are_those_of_the_core() -> None:
    for name in POLICIES:
        assert Settings.parse({"policy": name}).policy == name
        Cache(PURE, slot_bytes=512, slots=4, policy=name)
    with pytest.raises(SettingsError) as ours:
        Settings.parse({"policy": "none of them"})
    with pytest.raises(InvalidArgumentError) as of_the_core:
        Cache(PURE, slot_bytes=512, slots=4, policy="none of them")
    assert named(ours) == named(of_the_core) == sorted(POLICIES)
    assert OFFERED == ("reuse", "lru")
    assert set(OFFERED) < set(POLICIES)


def named(caught: pytest.ExceptionInfo[HybridPagesError]) -> list[str]:
    """The policies that an error offers."""
    expected = str(caught.value).partition("one of ")[2].partition(", found")[0]
    return sorted(set(re.findall(r"[a-z-]+", expected)) - {"for", "comparison"})
