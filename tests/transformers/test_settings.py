"""Settings that make no sense are errors at the start, with what was expected, found, and to do."""

import math
import re

import pytest

from hybrid_pages import BudgetError, DiskError, HybridPagesError
from hybrid_pages.transformers import CacheStore, PrefixCache

DISK = dict(disk_path="disk", disk_gb=0.1)
WRONG = {
    "no memory": (dict(host_gb=0), "host_gb: .*found 0: say"),
    "less than none": (dict(host_gb=-1), "host_gb: .*found -1: say"),
    "not a number": (dict(host_gb=math.nan), "host_gb: .*found nan: say"),
    "more than there is": (dict(host_gb=100_000), "host_gb: .*found 100000 GiB: lower it"),
    "without end": (dict(host_gb=math.inf), "host_gb: .*found inf GiB: lower it"),
    "too little": (dict(host_gb=1e-6), "host_gb: .*found 1e-06 GiB: raise it"),
    "a word": (dict(host_gb="much"), "host_gb: expected a number of GiB or 'auto', found 'much'"),
    "no block": (dict(block_tokens=0), "block_tokens: .*found 0: prompts"),
    "less than no block": (dict(block_tokens=-16), "block_tokens: .*found -16: prompts"),
    "half a token": (dict(block_tokens=1.5), r"block_tokens: .*found 1\.5: prompts"),
    "a huge block": (dict(block_tokens=2**40), f"block_tokens: .*found {2**40}: prompts"),
    "a size without a disk": (dict(disk_gb=1), "disk_path: .*found none: name one"),
    "a disk without a size": (dict(disk_path="disk"), "disk_gb: .*found 0: say how much"),
    "a disk of no size": (DISK | dict(disk_gb=-1), "disk_gb: .*found -1: say how much"),
    "a disk of a word": (DISK | dict(disk_gb="1"), "disk_gb: expected a number, found '1'"),
    "a disk too large": (DISK | dict(disk_gb=1e6), "disk_gb: .*found 1e[+]06 GiB: lower it"),
    "a disk nowhere": (DISK | dict(disk_path="no/such/disk"), "disk_path: .*make it first"),
    "no time": (DISK | dict(disk_deadline_ms=0), "disk_deadline_ms: expected 1 to .*found 0"),
    "no place": (dict(remote_url="nowhere"), "remote_url: expected s3://.*found another kind"),
    "no policy": (dict(policy="best"), "policy: expected one of .*found 'best'"),
}


@pytest.mark.parametrize("kind", [PrefixCache, CacheStore])
@pytest.mark.parametrize("name", list(WRONG))
def test_a_setting_that_makes_no_sense_is_refused(kind, name, make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings, message = WRONG[name]
    with pytest.raises(HybridPagesError) as error:
        kind(make("lfm2"), **(dict(host_gb=0.01, block_tokens=16) | settings))
    assert re.search(message, str(error.value), re.S), str(error.value)
    # It can be mended in the same process.
    with kind(make("lfm2"), host_gb=0.01, block_tokens=16, **DISK):
        pass


@pytest.mark.parametrize("host_gb", [0, -1, 1e-6, 100_000])
def test_a_budget_is_refused_as_one(host_gb, make):
    with pytest.raises(BudgetError):
        PrefixCache(make("lfm2"), host_gb=host_gb, block_tokens=16)


def test_a_disk_in_use_is_refused(make, tmp_path):
    model, settings = make("lfm2"), dict(host_gb=0.01, block_tokens=16, disk_gb=0.1)
    with PrefixCache(model, disk_path=tmp_path, **settings):
        for _ in range(2):
            with pytest.raises(DiskError, match=r"found that process \d+ uses it: give each"):
                PrefixCache(model, disk_path=tmp_path, **settings)
    PrefixCache(model, disk_path=tmp_path, **settings).close()


def test_what_is_refused_late_gives_its_disk_back(make, tmp_path):
    model, settings = make("gemma3"), dict(host_gb=0.05, disk_path=tmp_path, disk_gb=0.1)
    for _ in range(2):
        with pytest.raises(HybridPagesError, match="less than the sliding window of 40 tokens"):
            PrefixCache(model, block_tokens=64, **settings)
    PrefixCache(model, block_tokens=16, **settings).close()


def test_settings_are_looked_at_before_the_model(tmp_path):
    """Not after minutes of reading weights: here there is no model at all."""
    for settings in (dict(block_tokens=0), dict(disk_gb=1), dict(host_gb=-1)):
        with pytest.raises(HybridPagesError, match=next(iter(settings)).partition("_")[0]):
            PrefixCache(None, **settings)
