"""Models as vLLM loads them, on stand-ins for the kernels of their layers."""

from vllm.model_executor.layers.mamba.gdn import kimi_gdn_linear_attn as kimi
from vllm.model_executor.layers.mamba.gdn import olmo_gdn_linear_attn as olmo
from vllm.model_executor.models.olmo_hybrid import OlmoHybridForCausalLM as OlmoHybridForCausalLM
from vllm.models.kimi_k3.amd.linear import KimiLinearForCausalLM as KimiLinearForCausalLM
from vllm.models.kimi_k3.nvidia.ops.third_party import kda

from gpu_path import delta

for layers in (kimi, olmo):
    layers.causal_conv1d_fn = delta.convolve
    layers.causal_conv1d_update = delta.update_convolution
kimi.gather_initial_states = delta.gather_initial_states
kda.chunk_kda_with_fused_gate = delta.kimi_prefill
kda.fused_recurrent_kda_packed_decode = delta.kimi_decode
olmo.set_triton_allocator = lambda device: None
olmo.fused_olmo_hybrid_gdn_gating = delta.olmo_gates
olmo.chunk_gated_delta_rule = delta.olmo_prefill
olmo.fused_recurrent_gated_delta_rule = delta.olmo_decode
