"""The vLLM that is tested has everything that the connector reads; one that lacks it is named."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field

import pytest
import vllm.version
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.kv_cache_interface import MambaSpec

from hybrid_pages.demo import serve
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config.support import UnsupportedError, require_reads

pytestmark = pytest.mark.every_version


def test_this_vllm_has_everything_that_is_read() -> None:
    assert versions.missing(versions.READS | versions.READS_EARLY) == []


def test_this_vllm_has_what_the_command_verify_reads() -> None:
    assert versions.missing(versions.READS_COMMAND) == []


def test_this_vllm_has_the_server_that_the_demo_starts() -> None:
    assert importlib.util.find_spec(serve.SERVER) is not None


def test_this_vllm_is_one_that_the_table_names() -> None:
    assert vllm.version.__version__.partition("+")[0] in versions.TESTED


@pytest.mark.parametrize(
    ("owner", "lacks"),
    [
        ("vllm.v1.request.Request", "class vllm.v1.request.Request: expected an attribute 'gone'"),
        ("vllm.version", "module vllm.version: expected an attribute 'gone'"),
        ("vllm.v1.request.Gone", "vllm.v1.request.Gone: expected a module or class of this name"),
        ("vllm.gone.Gone", "vllm.gone.Gone: expected a module or class of this name"),
        ("vllm.a.A|vllm.b.A", "vllm.a.A or vllm.b.A: expected a module or class of this name"),
    ],
)
def test_what_is_missing_is_named(owner: str, lacks: str) -> None:
    (line,) = versions.missing({owner: "gone"})
    assert line.startswith(lacks)


@pytest.mark.parametrize(
    "owner", ["vllm.v1.request.Request", "vllm.gone.Request|vllm.v1.request.Request"]
)
def test_one_of_several_alternatives_is_enough(owner: str) -> None:
    assert versions.missing({owner: "gone|num_tokens num_tokens|gone"}) == []
    (line,) = versions.missing({owner: "gone|lost num_tokens"})
    assert line.startswith("class vllm.v1.request.Request: expected an attribute 'gone' or 'lost'")


def test_attributes_count_wherever_a_class_gets_them() -> None:
    reads = {
        "vllm.v1.request.Request": "block_hashes num_tokens",  # set by __init__, a property
        "vllm.v1.kv_cache_interface.MambaSpec": "shapes num_speculative_blocks",  # fields
        "vllm.config.CacheConfig": "cache_dtype",
    }
    assert versions.missing(reads) == []


@dataclass
class Fields:
    """A field whose default is made anew is no attribute of the class."""

    made: dict[str, str] = field(default_factory=dict)


def test_fields_count_where_a_class_keeps_no_annotations() -> None:
    """As in Python 3.14, where they are computed when they are asked for."""
    del Fields.__annotations__
    assert versions.missing({f"{__name__}.Fields": "made"}) == []


def test_a_vllm_without_something_that_is_read_is_an_error_when_the_connector_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(BlockPool, "evict_blocks")
    monkeypatch.delattr(MambaSpec, "num_prefill_checkpoint_blocks")
    monkeypatch.delitem(MambaSpec.__dataclass_fields__, "num_prefill_checkpoint_blocks")
    monkeypatch.delitem(sys.modules, "hybrid_pages.vllm.connector")
    with pytest.raises(UnsupportedError) as caught:
        importlib.import_module("hybrid_pages.vllm.connector")
    says = str(caught.value)
    assert "BlockPool: expected an attribute 'evict_blocks'" in says
    assert "MambaSpec: expected an attribute 'num_prefill_checkpoint_blocks'" in says
    assert "vllm>=" in says
    monkeypatch.undo()
    require_reads()
