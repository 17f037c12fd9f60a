"""Findings about a ``vllm serve`` command line, before anything is started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hybrid_pages import BudgetError, DiskTree, ForeignError, HybridPagesError
from hybrid_pages.adapter.disk import require_directory
from hybrid_pages.adapter.encryption import exposed_keys, read_keys, shown
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.adapter.memory import GIB, require_huge_pages, require_memory
from hybrid_pages.adapter.pool import budget_of
from hybrid_pages.adapter.remote import require_directory as require_remote_directory
from hybrid_pages.checks.rules import findings
from hybrid_pages.checks.situation import Finding, Situation
from hybrid_pages.checks.steps import least_batched_tokens
from hybrid_pages.doctor.serve_arguments import Command
from hybrid_pages.models.blocks import CachePlan, plan
from hybrid_pages.models.choices import Choices
from hybrid_pages.models.config import Config, ModelError, RanksError, find
from hybrid_pages.models.families import layers_of, stages_of
from hybrid_pages.models.stages import PARTITION
from hybrid_pages.vllm.config.settings import Settings
from hybrid_pages.vllm.config.speculation import MOST_DRAFTS, WITH_LAYERS, WITHOUT_LAYERS
from hybrid_pages.vllm.config.support import require_trace_dir

_REFUSED = {
    "prefill-context-parallel-size": "1",
}
_REFUSED_SWITCHES = (
    "disable-hybrid-kv-cache-manager",
    "enable-elastic-ep",
    "enable-dbo",
    "use-replayssm",
)
_LEAST_STEP = 2048
"""The least default of ``--max-num-batched-tokens`` (``arg_utils.py: get_batch_defaults``)."""
_ROLES = ("kv_both", "kv_producer", "kv_consumer")
_FLAG = (
    '--kv-transfer-config \'{"kv_connector":"HybridPagesConnector","kv_role":"kv_both",'
    '"kv_connector_extra_config":{"host_gb":"auto"}}\''
)


def examine(command: Command, vllm: str | None) -> tuple[list[Finding], list[str]]:
    """The findings, and what could not be examined, with the reason.

    Args:
        command: the command line, from :func:`read_command`.
        vllm: what is wrong with the vLLM that is installed here, if anything is.
    """
    skipped: list[str] = []
    found = list(_refused(command))
    if vllm is not None:
        found.append(Finding("version", "start", vllm, "install one of the versions named"))
    planned = _planned(command, found, skipped)
    ours, settings = command.ours(), None
    if ours is None:
        what = "no --kv-transfer-config"
        if command.transfer is not None:
            name = command.transfer.get("kv_connector")
            what = f"another connector, {name!r}"
            if name is None:
                what = (
                    "no kv_connector in --kv-transfer-config, whose dotted form replaces its JSON"
                )
        found.append(
            Finding("no-connector", "hits", f"{what}: hybrid-pages is not used", f"add {_FLAG}")
        )
    else:
        found += _drafts(command)
        found += _divided(command)
        found += _roles(command, ours)
        found += _offloading(command)
        given, cores = ours.get("kv_connector_extra_config") or {}, _engine_cores(command)
        try:
            if not isinstance(given, dict):
                named = "encrypt_key" if "encrypt_key" in str(given) else ""
                raise SettingsError(
                    "kv_connector_extra_config: expected a JSON object, found "
                    f"{shown(given, named)}"
                )
            extra, nodes = dict(given), _nodes(command)
            if nodes > 1 and extra.get("host_gb") == "auto":
                raise SettingsError(
                    f"host_gb: expected a number of GiB for all {nodes} nodes together, found "
                    "'auto', of which each node would take a share of its own memory"
                )
            if extra.get("host_gb") == "auto":
                extra["host_gb"] = budget_of("auto", cores)
            settings = Settings.parse(extra)
        except HybridPagesError as error:
            found.append(Finding("settings", "start", str(error), "correct the setting"))
        if settings is not None:
            workers = _ranks(command) * (command.number("pipeline-parallel-size") or 1)
            found += _machine(settings, workers, cores, nodes)
            found += _below(settings, nodes, writes=ours.get("kv_role") != "kv_consumer")
            found += _disk(settings)
    situation = _situation(command, planned, settings)
    found += findings(situation)
    _step(situation, skipped)
    return found, skipped


def _refused(command: Command) -> Iterator[Finding]:
    for name, expected in _REFUSED.items():
        value = command.text(name, expected)
        if value != expected:
            yield Finding(
                name, "start", f"--{name} {value} is not supported", f"use --{name} {expected}"
            )
    for name in _REFUSED_SWITCHES:
        if command.is_on(name):
            yield Finding(name, "start", f"--{name} is not supported", f"drop --{name}")
    if command.is_on("enable-return-routed-experts"):
        yield Finding(
            "routed-experts",
            "hits",
            "--enable-return-routed-experts: with vLLM 0.32 the engine does not start, later ones "
            "turn many loads down",
            "drop it where experts are not needed, or take vLLM 0.33 and a larger pool",
        )
    if (command.number("ubatch-size", 0, least=0) or 0) > 1:
        yield Finding(
            "ubatch-size", "start", "microbatches are not supported", "drop --ubatch-size"
        )
    if "ec-transfer-config" in command.options:
        yield Finding(
            "ec-transfer-config",
            "start",
            "encoder cache transfer is not supported",
            "drop --ec-transfer-config",
        )
    if command.is_on("enable-prefix-caching") is False:
        yield Finding(
            "prefix-caching",
            "start",
            "prefix caching is off, and its hashes name the pages",
            "drop --no-enable-prefix-caching or --disable-prefix-caching",
        )
    mode = command.text("mamba-cache-mode", "align")
    if mode != "align":
        yield Finding(
            "mamba-cache-mode",
            "start",
            f"--mamba-cache-mode {mode}: states are kept nowhere",
            "use --mamba-cache-mode align, the default with prefix caching",
        )


def _divided(command: Command) -> Iterator[Finding]:
    name = "decode-context-parallel-size"
    ranks = command.number(name) or 1
    if ranks > 1 and command.drafts():
        yield Finding(
            name, "start", f"--{name} {ranks} is not supported with drafts", f"drop --{name}"
        )
    if ranks > 1 and (command.number("pipeline-parallel-size") or 1) > 1:
        yield Finding(
            name,
            "start",
            f"--{name} {ranks} is not supported with pipeline stages",
            f"drop --{name}",
        )


def _drafts(command: Command) -> Iterator[Finding]:
    stages = command.number("pipeline-parallel-size") or 1
    if stages > 1 and command.drafts():
        yield Finding(
            "drafts",
            "start",
            f"drafts are not supported with --pipeline-parallel-size {stages}",
            "use no drafts, or no pipeline stages",
        )
    method = command.speculative.get("method") or command.text("spec-method")
    known = (*WITHOUT_LAYERS, *WITH_LAYERS)
    if method and method not in known and not str(method).endswith("_mtp"):
        yield Finding(
            "drafts",
            "start",
            f"drafts by {method} are not supported",
            f"use one of {', '.join(known)}, or no drafts",
        )
    if (drafts := command.drafts()) > MOST_DRAFTS:
        yield Finding(
            "drafts",
            "start",
            f"{drafts} drafts in each step are not supported",
            f"take at most {MOST_DRAFTS}",
        )


def _roles(command: Command, ours: dict[str, Any]) -> Iterator[Finding]:
    for it in (command.transfer, ours)[: 1 if command.transfer is ours else 2]:
        role = (it or {}).get("kv_role")
        if role not in _ROLES:
            yield Finding(
                "kv-role",
                "start",
                f"kv_role: expected one of {', '.join(_ROLES)} beside each kv_connector, found "
                f"{'none' if role is None else repr(role)}",
                'put "kv_role": "kv_both" beside "kv_connector"',
            )
            return


def _offloading(command: Command) -> Iterator[Finding]:
    size = command.text("kv-offloading-size", "None")
    if size != "None":
        yield Finding(
            "kv-offloading",
            "hits",
            f"--kv-offloading-size {size} puts a connector of vLLM's own in the place of the one "
            "that --kv-transfer-config names: hybrid-pages is not used",
            "drop --kv-offloading-size",
        )


def _step(it: Situation, skipped: list[str]) -> None:
    least = least_batched_tokens(it)
    if it.max_batched_tokens is None and it.cuts_prompts and least > _LEAST_STEP:
        skipped.append(
            f"the length of a step: this model needs --max-num-batched-tokens {least} or more, and "
            f"vLLM's default is {_LEAST_STEP} to 16384, by the GPU"
        )


def _ranks(command: Command) -> int:
    return command.number("tensor-parallel-size") or 1


def _engine_cores(command: Command) -> int:
    local = command.number("data-parallel-size-local", least=0)
    return local or command.number("data-parallel-size") or 1


def _nodes(command: Command) -> int:
    """The nodes of one engine core."""
    cores, local = command.number("data-parallel-size") or 1, _engine_cores(command)
    return max(1, (command.number("nnodes") or 1) // max(1, cores // local))


def _most_tokens(command: Command) -> int | None:
    """``--max-model-len``; None where vLLM finds it itself."""
    if command.text("max-model-len").lower() in ("auto", "-1"):
        return None
    return command.number("max-model-len")


def _retention(command: Command) -> int | None:
    name = "prefix-cache-retention-interval"
    if command.text(name).lower() == "none":
        return None
    return command.number(name, 0, least=0)


def _planned(command: Command, found: list[Finding], skipped: list[str]) -> CachePlan | None:
    if command.model is None:
        skipped.append("the size of a block: no model is named")
        return None
    choices = Choices(
        ranks=_ranks(command),
        dtype=_dtype(command.text("dtype", "auto")),
        kv_dtype=command.text("kv-cache-dtype", "auto"),
        conv_dtype=command.text("mamba-cache-dtype", "auto"),
        ssm_dtype=command.text("mamba-ssm-cache-dtype", "auto"),
        drafts=command.drafts(),
        stages=command.number("pipeline-parallel-size") or 1,
        partition=command.environment.get(PARTITION, os.environ.get(PARTITION)),
    )
    try:
        config = Config.read(find(command.model, command.text("revision", "main")))
        return plan(
            layers_of(config, choices),
            ranks=choices.ranks,
            block_size=command.number("block-size"),
            stages=stages_of(config, choices),
            context=command.number("decode-context-parallel-size") or 1,
        )
    except RanksError as error:
        found.append(Finding("ranks", "start", str(error), "use another number of ranks"))
    except ModelError as error:
        skipped.append(f"the size of a block: {error}")
    except KeyError as error:
        skipped.append(f"the size of a block: nothing is known here of the type {error}")
    return None


def _dtype(name: str) -> str:
    return {"half": "float16", "float": "float32"}.get(name, name)


def _machine(settings: Settings, workers: int, cores: int, nodes: int) -> Iterator[Finding]:
    try:
        if settings.huge_pages:
            require_huge_pages(settings.host_gb, workers, cores, nodes=nodes)
        else:
            require_memory(settings.host_gb, cores, nodes=nodes)
    except HybridPagesError as error:
        if settings.huge_pages:
            found, _, fix = str(error).rpartition(": ")  # it ends with what to do
            yield Finding("huge-pages", "start", found, fix)
        else:
            yield Finding("memory", "start", str(error), 'lower host_gb, or set it to "auto"')
    if "microsoft" in _read("/proc/version").lower():
        yield Finding(
            "unpinned",
            "hits",
            "this is WSL, where memory can't be pinned: copies to a GPU are slower",
            "run on Linux itself",
        )


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _below(settings: Settings, nodes: int, *, writes: bool) -> Iterator[Finding]:
    if nodes > 1 and settings.lasting:
        yield Finding(
            "nodes",
            "start",
            f"{settings.lasting} is not supported on {nodes} nodes",
            f"drop {settings.lasting}, or run one engine on each node",
        )
    try:
        require_remote_directory(settings.remote_url, writes=writes)
    except SettingsError as error:
        yield Finding("remote", "start", str(error), "correct remote_url, or its directory")
    try:
        require_trace_dir(settings.trace_dir)
    except SettingsError as error:
        yield Finding("trace", "start", str(error), "correct trace_dir, or leave it out")
    try:
        read_keys(settings.encrypt_key)
    except SettingsError as error:
        yield Finding("encrypt-key", "start", str(error), "name a file that holds a key")
    if exposed := exposed_keys(settings.encrypt_key):
        yield Finding(
            "encrypt-key", "safety", exposed, "take the permissions of others away: chmod 600"
        )


def _disk(settings: Settings) -> Iterator[Finding]:
    if not settings.disk_path:
        return
    try:
        require_directory(settings.disk_path, settings.disk_gb)
        used = os.path.isdir(settings.disk_path) and os.listdir(settings.disk_path)
        lanes = DiskTree(settings.disk_path).lanes() if used else []
    except ForeignError as error:
        yield Finding(
            "foreign-store", "start", str(error), "name a directory of these engines' own"
        )
        return
    except BudgetError as error:
        yield Finding("disk", "start", str(error), "lower disk_gb, or name another disk_path")
        return
    except (HybridPagesError, OSError) as error:
        yield Finding("disk", "start", str(error), "name another disk_path")
        return
    for lane in lanes:
        if lane["process"] is not None:
            yield Finding(
                "disk-in-use",
                "start",
                f"disk_path: {lane['lane']} is in use by another engine",
                "end that one, or name a directory of this engine's own",
            )
        for trouble in lane["troubles"]:
            yield Finding(
                "foreign-store",
                "start",
                f"disk_path: {trouble}",
                "name an empty directory, or one that only these engines use",
            )


def _whole_blocks_only(
    command: Command, planned: CachePlan | None, settings: Settings | None
) -> bool | None:
    mode = "adaptive" if settings is None else settings.checkpoint_mode
    if mode == "none" or (mode == "align" and command.number("prefix-match-unit") is None):
        return True
    return None if planned is None else planned.whole_blocks_only(command.drafts()) is not None


def _situation(command: Command, planned: CachePlan | None, settings: Settings | None) -> Situation:
    environment = {**os.environ, **command.environment}
    ours = command.ours() or {}
    changes = ""
    if "weight-transfer-config" in command.options:
        changes = "--weight-transfer-config"
    elif environment.get("VLLM_SERVER_DEV_MODE") == "1":
        changes = "VLLM_SERVER_DEV_MODE=1"
    return Situation(
        block_tokens=None if planned is None else planned.block_tokens,
        entry_bytes=None if planned is None else planned.page_bytes + planned.checkpoint_bytes,
        has_states=None if planned is None else planned.checkpoint_bytes > 0,
        exports_states=planned is not None and planned.exports,
        whole_blocks_only=_whole_blocks_only(command, planned, settings),
        host_bytes=None if settings is None else int(settings.host_gb * GIB),
        state_tokens=None if planned is None else min(it.block_tokens for it in planned.groups),
        max_batched_tokens=command.number("max-num-batched-tokens"),
        max_scheduled_tokens=command.number("max-num-scheduled-tokens"),
        long_prefill_tokens=command.number("long-prefill-token-threshold", 0, least=0) or 0,
        max_requests=command.number("max-num-seqs"),
        cuts_prompts=command.is_on("enable-chunked-prefill") is not False,
        max_model_len=_most_tokens(command),
        drafts=command.drafts(),
        draft_slots=int(command.drafts() > 0 and command.draft_method() == "draft_model"),
        retention=_retention(command),
        hash_algorithm=command.text("prefix-caching-hash-algo", "sha256"),
        has_hash_seed=bool(environment.get("PYTHONHASHSEED")),
        has_disk=settings is not None and bool(settings.disk_path),
        has_remote=settings is not None and bool(settings.remote_url),
        publishes_events="kv-events-config" in command.options,
        siblings=tuple(
            str(it.get("kv_connector")) for it in command.connectors() if it is not command.ours()
        )
        if command.ours() is not None
        else (),
        failure_policy=str((command.transfer or {}).get("kv_load_failure_policy", "fail")),
        kv_role=str(ours.get("kv_role", "kv_both")),
        changes_weights=changes if ours else "",
        follows_resets=settings is not None and settings.follow_engine_resets,
        checkpoint_mode="adaptive" if settings is None else settings.checkpoint_mode,
    )
