"""Mamba-1 and Mamba-2 with prefix caching: what their CPU kernels leave out.

These are in torch, and slow. vLLM's modules import them by name, so they come first.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn.functional import silu, softplus

_USERS = [f"vllm.model_executor.layers.mamba.{name}" for name in ("mamba_mixer", "mamba_mixer2")]


def install() -> None:
    """Puts the stand-ins where vLLM looks."""
    from vllm.model_executor.layers.mamba.ops import (
        mamba_ssm,
        ssd_checkpoint,
        ssd_combined,
        ssu_dispatch,
    )

    late = [name for name in _USERS if name in sys.modules]
    if late:
        raise RuntimeError(f"expected to come before {late}, which hold vLLM's own functions now")
    ssd_checkpoint.store_prefill_checkpoint = store_prefill_checkpoint
    ssd_combined._mamba_chunk_scan_combined_fwd = _scan_by_chunks(
        ssd_combined._mamba_chunk_scan_combined_fwd
    )
    mamba_ssm.selective_scan_fn = selective_scan
    ssu_dispatch.CPUSSUBackend.__call__ = _update_of_any_rank(ssu_dispatch.CPUSSUBackend.__call__)


def _scan_by_chunks(scan: Any) -> Any:
    """Mamba-2's prefill that returns the state after every chunk when it is asked to.

    The CPU kernel returns the last states whatever it is asked. The state that a chunk ends with
    goes on in full precision, as in the GPU kernels.
    """

    def scan_by_chunks(
        x: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        chunk_size: int,
        out: torch.Tensor,
        **kwargs: Any,
    ) -> torch.Tensor:
        if not kwargs["return_intermediate_states"]:
            return scan(x, dt, A, B, C, chunk_size, out, **kwargs)
        assert kwargs["z"] is None  # vLLM applies gates elsewhere
        initial = kwargs["initial_states"]
        ends, before, states = kwargs["cu_chunk_seqlens"].tolist(), None, []
        for chunk, sequence in enumerate(kwargs["seq_idx"].tolist()):
            part = slice(ends[chunk], ends[chunk + 1])
            if sequence != before:
                state = None if initial is None else initial[sequence, None]
            before = sequence
            changed = dict(
                initial_states=state,
                cu_seqlens=torch.tensor([0, part.stop - part.start], dtype=torch.int32),
                state_dtype=torch.float32,
            )
            state = scan(
                x[part], dt[part], A, B[part], C[part], chunk_size, out[part], **kwargs | changed
            )
            states.append(state)
        return torch.cat(states).to(kwargs["state_dtype"] or x.dtype)

    return scan_by_chunks


def store_prefill_checkpoint(
    checkpoint: Any,
    chunk_idx: torch.Tensor,
    x: torch.Tensor,
    conv_state: torch.Tensor,
    chunk_states: torch.Tensor,
    ssm_state: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    state_len: int,
) -> None:
    """Writes the state at a boundary inside a step into its block: a Triton kernel on GPUs."""
    rows = zip(
        checkpoint.checkpoint_offsets.tolist(),
        checkpoint.state_indices.tolist(),
        chunk_idx.tolist(),
        query_start_loc.tolist()[:-1],
        strict=True,
    )
    for offset, block, chunk, start in rows:
        if offset > 0:  # 0: this row has no boundary inside
            end = start + offset
            conv_state[block, :, :state_len] = x[:, end - state_len : end]
            ssm_state[block] = chunk_states[chunk].to(ssm_state.dtype)


def selective_scan(
    u: torch.Tensor,
    ssm_states: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    query_start_loc: torch.Tensor | None = None,
    cache_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """Mamba-1's prefill, a CUDA operator: of one group, on sequences one after another."""
    assert query_start_loc is not None and cache_indices is not None
    assert has_initial_state is not None
    x, step, size = u.float(), delta.float(), A.shape[1]
    into, outof = B.reshape(size, -1).float(), C.reshape(size, -1).float()
    if delta_bias is not None:
        step = step + delta_bias[:, None]
    if delta_softplus:
        step = softplus(step)
    y, starts = torch.zeros_like(x), query_start_loc.tolist()
    for row, block in enumerate(cache_indices.tolist()):
        state = ssm_states[block].float() if has_initial_state[row] else torch.zeros_like(A)
        for t in range(starts[row], starts[row + 1]):
            decay = torch.exp(step[:, t, None] * A)
            state = decay * state + (step[:, t] * x[:, t])[:, None] * into[:, t]
            y[:, t] = state @ outof[:, t]
        ssm_states[block] = state.to(ssm_states.dtype)
    if D is not None:
        y = y + x * D[:, None]
    if z is not None:
        y = y * silu(z.float())
    return y.to(u.dtype)


def _update_of_any_rank(update: Any) -> Any:
    """Decoding of Mamba-1 as well: the CPU's dispatch takes only states of several heads."""
    from vllm.model_executor.layers.mamba.ops.cpu.mamba_ssm import selective_state_update

    def update_of_any_rank(
        self: Any,
        state: torch.Tensor,
        x: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        D: torch.Tensor,
        dt_bias: torch.Tensor,
        **others: Any,
    ) -> None:
        if state.dim() == 4:
            update(self, state, x, dt, A, B, C, D, dt_bias, **others)
        else:
            selective_state_update(state, x, dt, A, B, C, D, dt_bias=dt_bias, **others)

    return update_of_any_rank
