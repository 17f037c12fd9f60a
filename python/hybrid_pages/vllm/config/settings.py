"""The connector's settings in ``kv_connector_extra_config``, with their types and checks."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, Literal, get_args, get_type_hints

from hybrid_pages.adapter.disk import DEADLINE_MS
from hybrid_pages.adapter.encryption import key_setting, shown
from hybrid_pages.adapter.errors import SettingsError as SettingsError
from hybrid_pages.adapter.pool import budget_of, require_policy
from hybrid_pages.adapter.remote import DEADLINE_MS as REMOTE_DEADLINE_MS
from hybrid_pages.adapter.remote import Admit
from hybrid_pages.adapter.tiers import TierSettings

StoreMode = Literal["auto", "step", "background"]
ChecksumMode = Literal["off", "store", "verify"]
CheckpointMode = Literal["none", "align", "all", "adaptive"]
HugePages = Literal["", "2M"]
PlantMode = Literal["", "zero-state", "swap-pages"]
PLANTS = tuple(name for name in get_args(PlantMode) if name)

PLANT_VARIABLE = "HYBRID_PAGES_VERIFY_PLANT"
"""The environment variable that must be set for ``plant``. ``hybrid-pages verify`` sets it."""


@dataclass(frozen=True)
class Settings:
    """Settings of the connector; every field has a default that works."""

    host_gb: float = 4.0
    """Host memory for pages and checkpoints of all ranks of one engine core, in GiB. ``"auto"`` in
    the configuration: half of the memory that is free when vLLM starts, for all engine cores of the
    machine together."""

    disk_path: str = ""
    """Directory for entries that outlive the engine: pages and checkpoints are written to it in the
    background, and found again after a restart. It is made if it does not exist. Empty for none."""

    disk_gb: float = 0.0
    """Quota of the files in ``disk_path``, in GiB, for all engine cores of the machine together.
    Needed with ``disk_path``."""

    disk_deadline_ms: int = DEADLINE_MS
    """If a call to the files in ``disk_path`` takes longer, or no copy proceeds for this long,
    copies fail, and the disk is not used for a while. An entry as a whole may take longer. A
    request waits at most this long for the disk."""

    disk_events: bool = True
    """Whether KV events also announce blocks on disk, with medium ``STORAGE``. False for routers
    that do not know this medium."""

    remote_url: str = ""
    """Store that machines share, below the host memory and ``disk_path``:
    ``s3://BUCKET/PREFIX``, ``gs://BUCKET/PREFIX``, ``az://CONTAINER/PREFIX`` or
    ``file:///DIRECTORY``. Credentials come from the environment. Empty for none."""

    remote_deadline_ms: int = REMOTE_DEADLINE_MS
    """A read from ``remote_url``, or a list of it, that takes longer has failed. A request waits at
    most this long for it."""

    remote_admit: Admit = "auto"
    """``auto``: only what a second request has used is written to ``remote_url``, and only what
    takes longer to compute is read. ``all``: everything is written and read.
    """

    encrypt_key: str = ""
    """File with the key that entries in ``disk_path`` and ``remote_url`` are encrypted with, or
    ``env:`` and the name of an environment variable that holds what would be in it. Each
    ``cache_salt`` has a key of its own. Leave it out for no encryption."""

    huge_pages: HugePages = ""
    """``2M`` for memory in pages of 2 MiB, which the system must have reserved. A large budget then
    needs smaller page tables. Empty for pages of the usual size."""

    policy: str = "reuse"
    """The policy that decides which checkpoints are made, and which entries stay when the budget is
    full."""

    tenant_share: float = 1.0
    """Share of the budget that the entries of one tenant cannot exceed. Requests with one
    ``cache_salt`` are a tenant, those without a salt another. 1 for no limit."""

    checkpoint_mode: CheckpointMode = "adaptive"
    """Where a request gets checkpoints. ``adaptive``: where the policy wants one, where prompts
    fork, for which the engine is asked to end a step, and where the request ends. ``align``: where
    vLLM keeps a state itself. ``all``: wherever a step ended on a boundary, and where the request
    ends. ``none``: nowhere."""

    checkpoint_interval: int = 0
    """The most tokens between checkpoints, rounded up to whole blocks; 0 for no limit. The engine
    ends a step at each of them."""

    trace_dir: str = ""
    """Directory to record requests in, for ``hybrid-pages lab replay``: lengths, times and salted
    hashes. Empty for no recording."""

    copy_threads: int = min(4, os.cpu_count() or 1)
    """How many threads of a worker copy."""

    kernel_below: int = 28672
    """On a GPU, transfers whose adjacent pieces are shorter than this many bytes, on average, are
    copied by a kernel, others by DMA alone. Change it only where both were measured."""

    staging_mb: int = 128
    """MiB of each GPU's memory in which kernels collect small pieces, so that DMA moves them over
    the bus in one. 0: kernels reach over the bus themselves, which is slower and disturbs the
    engine more."""

    batch_copies: bool = True
    """On a GPU, whether DMA copies go to the driver many at a time, from driver 12.8 on
    (``cuMemcpyBatchAsync``). A call that the driver refuses is made again copy by copy, and after
    two refusals no more are tried. False for drivers that crash there."""

    store_mode: StoreMode = "auto"
    """``step``: a step's stores end before the step does. ``background``: they run beside the next
    steps, and the engine's source blocks stay pinned until they end. ``auto``: ``step`` for caches
    in CPU memory, ``background`` on a GPU, where ``step`` would wait for the forward pass."""

    follow_engine_resets: bool = False
    """Whether every reset of vLLM's own prefix cache drops all entries, and not only one that
    resets the connectors, too.
    """

    checksum: ChecksumMode = "store"
    """Checksums of entries in host memory. ``off``: stores from CPU memory compute none, unless
    there is a tier below the host. ``store``: stores compute them. ``verify``: loads compare them,
    too; a mismatch is a failed load, which vLLM recomputes.
    """

    verify_on_load: bool = False
    """True has the effect of ``checksum="verify"``."""

    plant: PlantMode = ""
    """A fault to plant in restored entries, to show that a comparison can fail. ``zero-state``:
    restored states are zeroed. ``swap-pages``: two restored pages change places. Only
    ``hybrid-pages verify`` can set it. Empty for none."""

    def __post_init__(self) -> None:
        hints = _types()
        for field in fields(self):
            object.__setattr__(
                self, field.name, _checked(field.name, hints[field.name], getattr(self, field.name))
            )
        if self.verify_on_load and self.checksum == "off":
            raise _contradiction(self.checksum, verify_on_load=True)
        verifies = self.verify_on_load or self.checksum == "verify"
        object.__setattr__(self, "verify_on_load", verifies)
        object.__setattr__(self, "checksum", "verify" if verifies else self.checksum)
        if self.plant and os.environ.get(PLANT_VARIABLE) != self.plant:
            raise SettingsError(
                f"plant: expected none, found {self.plant!r}: it spoils what is restored, and only "
                "`hybrid-pages verify --plant` can set it; leave it out"
            )
        require_policy(self.policy)
        _ = self.tiers  # which checks them
        if not 0 < self.tenant_share <= 1:
            raise SettingsError(
                f"tenant_share: expected a share above 0 and at most 1, found {self.tenant_share}"
            )
        if not 0 <= self.checkpoint_interval < 1 << 32:
            raise SettingsError(
                "checkpoint_interval: expected 0 to 4294967295 tokens, found "
                f"{self.checkpoint_interval}"
            )
        if not 0 <= self.kernel_below < 1 << 40:
            raise SettingsError(
                f"kernel_below: expected 0 to 1099511627775 bytes, found {self.kernel_below}"
            )
        if not 0 <= self.staging_mb <= 4096:
            raise SettingsError(f"staging_mb: expected 0 to 4096, found {self.staging_mb}")
        if not 1 <= self.copy_threads <= 256:
            raise SettingsError(f"copy_threads: expected 1 to 256, found {self.copy_threads}")

    @cached_property
    def tiers(self) -> TierSettings:
        """The settings of the host's memory and of the tiers below it."""
        return TierSettings(
            self.host_gb,
            self.disk_path,
            self.disk_gb,
            self.disk_deadline_ms,
            self.remote_url,
            self.remote_deadline_ms,
            self.remote_admit,
            self.encrypt_key,
        )

    def stores_in_steps(self, *, pinned: bool) -> bool:
        """Whether each step waits for its stores. On a GPU that waits for the forward pass, too,
        and is not the default. pinned: whether the caches lie on a GPU."""
        return self.store_mode == "step" or (self.store_mode == "auto" and not pinned)

    @property
    def tells_tenants_apart(self) -> bool:
        """Whether each tenant has its own namespaces, for its share or for its key."""
        return self.tenant_share < 1 or bool(self.encrypt_key)

    @property
    def has_checksums(self) -> bool:
        """Whether stores compute checksums, which tiers below the host need."""
        return self.checksum != "off" or bool(self.lasting)

    @property
    def lasting(self) -> str:
        """The setting by which entries outlive the engine; empty if none does."""
        return self.tiers.lasting

    @classmethod
    def parse(cls, extra_config: Mapping[str, Any]) -> "Settings":
        """Reads ``kv_connector_extra_config``.

        Raises:
            SettingsError: an unknown key (with the nearest valid one), a wrong type, an impossible
                value.
        """
        known = {field.name for field in fields(cls)}
        for key in extra_config:
            if key not in known:
                near = difflib.get_close_matches(str(key).lower(), known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise SettingsError(
                    f"kv_connector_extra_config has the unknown key {key!r}: {hint}"
                    f"valid keys are {', '.join(sorted(known))}"
                )
        given = dict(extra_config)
        if isinstance(given.get("encrypt_key"), str):
            key_setting(given["encrypt_key"])
        if "host_gb" in given:
            given["host_gb"] = budget_of(given["host_gb"])
        settings = cls(**given)
        found = {"checksum": settings.checksum, "verify_on_load": settings.verify_on_load}
        for key, value in found.items():
            if key in extra_config and value != extra_config[key]:
                raise _contradiction(extra_config["checksum"], extra_config["verify_on_load"])
        return settings


def fix_budget(extra_config: dict[str, Any], engine_cores: int) -> None:
    """Replaces ``host_gb: "auto"`` by a size, so that all processes with this configuration agree.

    Args:
        extra_config: ``kv_connector_extra_config``, which is changed.
        engine_cores: how many of them share this machine.

    Raises:
        SettingsError: ``"auto"`` beside ``huge_pages``.
    """
    if extra_config.get("host_gb") == "auto":
        if extra_config.get("huge_pages"):
            raise SettingsError(
                "host_gb: expected a number of GiB with huge_pages, found 'auto': free memory says "
                "nothing of huge pages"
            )
        extra_config["host_gb"] = budget_of("auto", engine_cores)


@cache
def _types() -> dict[str, Any]:
    """The types of the settings, which take longer to find than to check."""
    return get_type_hints(Settings)


def _contradiction(checksum: str, verify_on_load: bool) -> SettingsError:
    return SettingsError(
        f"verify_on_load: expected {checksum == 'verify'} with checksum {checksum!r}, found "
        f"{verify_on_load} (leave verify_on_load out)"
    )


def _checked(name: str, hint: Any, value: Any) -> Any:
    choices = get_args(hint)
    if choices:
        if value in choices and isinstance(value, str):
            return value
        near = difflib.get_close_matches(str(value).lower(), choices, n=1, cutoff=0.5)
        suggestion = f" (did you mean {near[0]!r}?)" if near else ""
        raise SettingsError(
            f"{name}: expected one of {', '.join(map(repr, choices))}, found {value!r}{suggestion}"
        )
    accepted = (int, float) if hint is float else (hint,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise SettingsError(
            f"{name}: expected {hint.__name__}, found {shown(value, name)} of type "
            f"{type(value).__name__}"
        )
    if isinstance(value, str) and "\0" in value:
        raise SettingsError(
            f"{name}: expected a text without NUL characters, found {shown(value, name)}"
        )
    try:
        return hint(value)
    except OverflowError:
        raise SettingsError(f"{name}: expected a number of usual size, found {value!r}") from None
