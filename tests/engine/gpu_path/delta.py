"""Kimi Delta Attention, whose kernels are all Triton's: the recurrence itself, in torch.

The model is the one that vLLM has for AMD's GPUs: its latent attention is the shared one, which has
a CPU kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.functional import normalize, silu, softplus


def install() -> None:
    """Registers the model, which brings the stand-ins when it is loaded."""
    from vllm.model_executor.models.registry import ModelRegistry

    name = "KimiLinearForCausalLM"
    ModelRegistry.register_model(name, f"gpu_path.delta_model:{name}")


def convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: None,
    *,
    activation: str,
    conv_states: torch.Tensor,
    has_initial_state: torch.Tensor,
    cache_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    metadata: Any,
) -> torch.Tensor:
    """The short convolution of sequences, one after another: ``[channels, tokens]``."""
    assert bias is None and activation == "silu"
    starts, wide, out = query_start_loc.tolist(), weight.size(1) - 1, torch.empty_like(x)
    for row, block in enumerate(cache_indices.tolist()):
        past = conv_states[block, :, :wide].to(x.dtype)
        if not has_initial_state[row]:
            past = torch.zeros_like(past)
        part = slice(starts[row], starts[row + 1])
        seen = torch.cat([past, x[:, part]], 1)
        out[:, part] = _taps(seen, weight).to(x.dtype)
        conv_states[block, :, :wide] = seen[:, seen.size(1) - wide :].to(conv_states.dtype)
    return out


def update_convolution(
    x: torch.Tensor,
    conv_states: torch.Tensor,
    weight: torch.Tensor,
    bias: None,
    *,
    activation: str,
    conv_state_indices: torch.Tensor,
    out: torch.Tensor,
    validate_data: bool,
) -> torch.Tensor:
    """The same of one token each: ``[tokens, channels]``."""
    assert bias is None and activation == "silu"
    wide = weight.size(1) - 1
    past = conv_states[conv_state_indices, :, :wide].to(x.dtype)
    seen = torch.cat([past, x[:, :, None]], 2)
    conv_states[conv_state_indices, :, :wide] = seen[:, :, 1:].to(conv_states.dtype)
    return out.copy_(torch.stack([_taps(each, weight)[:, 0] for each in seen]))


def _taps(seen: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return silu((seen.float().unfold(1, weight.size(1), 1) * weight.float()[:, None]).sum(-1))


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kept: torch.Tensor,
    written: torch.Tensor,
    state: torch.Tensor,
    tokens: Iterable[int],
    out: torch.Tensor,
) -> None:
    """Tokens of one sequence: changes its heads' states, ``[heads, V, K]``, in place.

    Args:
        q, k, v: by token and head.
        kept: how much of a state each token leaves, by head and column.
        written: how much of its value each token writes, by head.
    """
    q = normalize(q.float(), dim=-1) * q.size(-1) ** -0.5
    k, v = normalize(k.float(), dim=-1), v.float()
    for t in tokens:
        key = k[t, :, None]
        state *= kept[t, :, None]
        known = (state * key).sum(-1)
        state += ((v[t] - known) * written[t, :, None])[:, :, None] * key
        out[t] = (state * q[t, :, None]).sum(-1)


def gather_initial_states(
    states: torch.Tensor, blocks: torch.Tensor, known: torch.Tensor
) -> torch.Tensor:
    """States to go on from; zeros where there is none."""
    return torch.where(known.view(-1, *[1] * (states.dim() - 1)), states[blocks], 0)


def prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    raw_g: torch.Tensor,
    raw_beta: torch.Tensor,
    *,
    A_log: torch.Tensor,
    g_bias: torch.Tensor,
    lower_bound: None,
    initial_state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences one after another; gives their last states too."""
    gates = _gates(raw_g[0], raw_beta[0], A_log, g_bias, lower_bound)
    out, states, starts = torch.empty_like(v), initial_state.float().clone(), cu_seqlens.tolist()
    for row, state in enumerate(states):
        run(q[0], k[0], v[0], *gates, state, range(starts[row], starts[row + 1]), out[0])
    return out, states.to(initial_state.dtype)


def decode(
    mixed_qkv: torch.Tensor,
    raw_g: torch.Tensor,
    raw_beta: torch.Tensor,
    *,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    lower_bound: None,
    initial_state: torch.Tensor,
    state_indices: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token each, on states in their blocks."""
    count, heads, size = mixed_qkv.size(0), *initial_state.shape[1:3]
    q, k, v = mixed_qkv.view(count, 3, heads, size).unbind(1)
    gates = _gates(raw_g[0], raw_beta[0], A_log, dt_bias, lower_bound)
    out = torch.zeros(1, count, heads, size, dtype=mixed_qkv.dtype)
    for t, block in enumerate(state_indices.tolist()):
        if block > 0:  # no block: padding
            state = initial_state[block].float()
            run(q, k, v, *gates, state, (t,), out[0])
            initial_state[block] = state.to(initial_state.dtype)
    return out, initial_state


def _gates(
    raw: torch.Tensor, written: torch.Tensor, A_log: torch.Tensor, bias: torch.Tensor, bound: None
) -> tuple[torch.Tensor, torch.Tensor]:
    assert bound is None
    rate, step = A_log.float().exp()[:, None], softplus(raw.float() + bias.view(raw.shape[1:]))
    return (-rate * step).exp(), written.float().sigmoid()
